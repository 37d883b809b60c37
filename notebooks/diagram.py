"""A recipe as a picture: one expert layer's forward and backward, every operand a card in the colour of its format.

    forward     x -> (x w13^T) -> SwiGLU -> h -> (h w2^T) -> combine wire -> weighted sum
    backward    dy -> dgrad, wgrad of w2 -> SwiGLU -> dgrad, wgrad of w13 -> dx

Left half: gate and up; right half: down. A product is a circle between its two operands. Everything is read off the
`Recipe` through `recipe_edges`. With a second recipe, what differs is drawn twice, A above B, and the rest is pale.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine
from matplotlib.patches import Rectangle

from reference.recipe import Recipe
from studies import plots

from .diagram_parts import Canvas, Slot, width
from .diagram_passes import Page, backward, forward
from .recipe_edges import BF16, FORWARD, FP32, Edge, edges, kind, strip

PASSES = ("forward", "backward", "both")
LAYERS = ("experts", "last")
DEPTH = 24  # layers of the strip
_CELL = 0.11


def draw(recipe: Recipe, other: Recipe | None = None, which: str = "both", layer: str = "experts") -> Figure:
    """The diagram of a recipe, or of what differs from `other`.

    Args:
        which: "forward", "backward" or "both". layer: the field whose layers are drawn, "experts" or "last".

    Raises:
        ValueError: another pass or field.
    """
    if which not in PASSES:
        raise ValueError(f"which={which!r}: use one of {', '.join(PASSES)}")
    if layer not in LAYERS:
        raise ValueError(f"layer={layer!r}: use one of {', '.join(LAYERS)}")
    recipes = [recipe] if other is None else [recipe, other]
    page_slots = slots([edges(getattr(r, layer)) for r in recipes])
    with plots.style():
        # an engine that does nothing: without one, saving would bring that of the style
        figure = Figure(figsize=(plots.PAGE, plots.PAGE), layout=PlaceHolderLayoutEngine(True, False))
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set_axis_off()
        words = f"{' and '.join(r.name for r in recipes)}, {which}, layers under {layer}"
        ax.set_title(words).set_visible(False)  # what a text that stands for the picture says
        page = Page(Canvas(ax), page_slots, other is not None)
        y = 0.08
        for letter, each in zip("AB" if other else " ", recipes, strict=True):
            y = _head(page.canvas, each, letter.strip(), layer, y)
        y = forward(page, y) if which != "backward" else y
        y = backward(page, y) if which != "forward" else y
        y = _legend(page.canvas, _shown(page_slots, which), y)
        figure.set_size_inches(plots.PAGE, y)
        ax.set(xlim=(0, plots.PAGE), ylim=(y, 0))
    return figure


def slots(each: list[dict[str, Edge]]) -> dict[str, Slot]:
    """Edge -> its one card, or the two that differ."""
    return {key: tuple(dict.fromkeys(found[key] for found in each)) for key in each[0]}


def _shown(page_slots: dict[str, Slot], which: str) -> list[Edge]:
    """The edges of a pass."""
    keys = [key for key in page_slots if which == "both" or (key in FORWARD) == (which == "forward")]
    return [edge for key in keys for edge in page_slots[key]]


def _head(canvas: Canvas, recipe: Recipe, letter: str, layer: str, y: float) -> float:
    """A recipe's name, its layers as a strip and its claims; where the next line begins."""
    canvas.text(0.08, y + 0.09, f"{letter}  {recipe.name}".strip(), 1.6, weight="bold")
    left = 1.75
    for run in strip(recipe, DEPTH):
        experts = getattr(recipe, run.field)
        x, drawn = left + run.start * _CELL, run.field == layer
        for i in range(run.count):
            for j, fmt in enumerate((experts.weight.fmt, experts.saved_weight.fmt)):
                cell = Rectangle((x + i * _CELL, y + 0.08 * j), _CELL, 0.08, fc=kind(fmt).colour, ec="#ffffff", lw=0.4)
                canvas.ax.add_artist(cell)
        if drawn:
            canvas.box(x, y, run.count * _CELL, 0.16, "none", "#000000")
        words = f"{run.field}: {run.count}" + (" layers, drawn" if drawn else "")
        room = run.count * _CELL
        end = run.start + run.count == DEPTH and width(words) > room
        at, align = (left + DEPTH * _CELL, "right") if end else (x + room / 2, "center")
        canvas.text(at, y + 0.235, words, ha=align)
    canvas.text(4.52, y + 0.07, "shared experts: " + ("as the routed" if recipe.shared else "BF16"))
    claim = "claimed" if recipe.claims_unbiased else "not claimed"
    canvas.text(4.52, y + 0.215, f"unbiased backward operands: {claim}", plots.PAGE - 4.6)
    return y + 0.38


def _legend(canvas: Canvas, shown: list[Edge], y: float) -> float:
    """The colours in use, what dashes and boxes mean; the page's end."""
    canvas.ax.plot([0.08, plots.PAGE - 0.08], [y, y], color="#cccccc", lw=0.6)
    kinds = dict.fromkeys([*(edge.kind for edge in shown), *(edge.source for edge in shown), BF16, FP32])
    x, y = 0.08, y + 0.14
    for each in kinds:
        x, y = _wrapped(x, y, 0.3 + width(each.label))
        canvas.ax.add_artist(Rectangle((x, y - 0.05), 0.17, 0.1, fc=each.colour, ec="none"))
        canvas.text(x + 0.22, y, each.label)
        x += 0.4 + width(each.label)
    if any(edge.stochastic for edge in shown):
        x, y = _wrapped(x, y, 1.3)
        canvas.box(x, y - 0.05, 0.17, 0.1, "#ffffff", "#000000", dash=True)
        canvas.text(x + 0.22, y, "rounded stochastically")
        x += 0.4 + width("rounded stochastically")
    notes = []
    if blocks := [edge.lines[0] for edge in shown if edge.lines and edge.lines[0].startswith("1x")]:
        count, axis = blocks[0].removeprefix("1x").split(" ")
        notes.append(f"{blocks[0]}: {count} values along {axis} share a block scale.")
    if any(edge.hadamard for edge in shown):
        fresh = any("fresh" in edge.hadamard for edge in shown)
        notes.append("RHT-n: signs, then a Hadamard of n" + ("; fresh: other signs each time." if fresh else "."))
    notes.append("Strip of layers: weight of the forward above, of the backward below.")
    x = 0.08
    y += 0.16
    for note in notes:
        x, y = _wrapped(x, y, width(note))
        canvas.text(x, y, note, color=plots.GREY)
        x += width(note) + 0.12
    return y + 0.12


def _wrapped(x: float, y: float, needed: float) -> tuple[float, float]:
    """Where something as wide as `needed` goes: here, or at the beginning of the next line."""
    return (x, y) if x + needed <= plots.PAGE - 0.05 else (0.08, y + 0.16)
