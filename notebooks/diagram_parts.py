"""What a recipe's diagram is made of: cards that tell a format, wires, products; lengths in inches, y downwards.

A card has a title, a header in the format's colour with its name, and lines that say the rest; its border is dashed
where it is rounded stochastically. A Hadamard transform is a narrow box at the side where the card's values enter. A
slot holds one card or, where two recipes differ, two, lettered A and B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from matplotlib.textpath import TextPath

from .recipe_edges import Edge, Kind

SIZE = 7.5  # points
CARD, SLAB, RADIUS = 1.14, 0.16, 0.11
TITLE, HEADER, LINE, PAD, GAP, MARGIN = 0.15, 0.155, 0.122, 0.05, 0.09, 0.05
PORT = TITLE + HEADER / 2  # where wires meet a card, from its top
PALE = 0.6  # share of white in what two recipes have in common
DASH = (0, (2.6, 1.4))

Slot = tuple[Edge, ...]
Point = tuple[float, float]


@dataclass(frozen=True)
class Canvas:
    """Axes whose coordinates are inches; `pale` draws what two recipes have in common."""

    ax: Axes

    def text(
        self, x: float, y: float, words: str, room: float | None = None, pale: bool = False, **how: object
    ) -> None:
        """Words at a point, made smaller where they do not fit into `room` inches; `how` as matplotlib's text."""
        style = {"ha": "left", "va": "center", "color": "#000000", "weight": "normal"} | how
        size = SIZE
        if room is not None and (needed := width(words, str(style["weight"]))) > room:
            size *= room / needed
        style["color"] = tint(str(style["color"]), PALE if pale else 0.0)
        self.ax.text(x, y, words, fontsize=size, **style)

    def box(self, x: float, y: float, wide: float, high: float, fill: str, edge: str, dash: bool = False) -> None:
        """A rectangle from its upper left corner."""
        line = DASH if dash else "-"
        self.ax.add_artist(Rectangle((x, y), wide, high, fc=fill, ec=edge, lw=1.1, ls=line, zorder=2))

    def wire(
        self, points: Sequence[Point], kind: Kind, pale: bool = False, dash: bool = False, arrow: bool = True
    ) -> None:
        """A line through `points` in the colour of a kind, with an arrowhead at its end."""
        colour = tint(kind.colour, PALE if pale else 0.0)
        xs, ys = zip(*points, strict=True)
        line = DASH if dash else "-"
        self.ax.plot(xs, ys, color=colour, lw=1.6, ls=line, solid_capstyle="butt", zorder=1)
        if arrow:
            tip = FancyArrowPatch(
                points[-2],
                points[-1],
                arrowstyle="-|>",
                mutation_scale=9,
                shrinkA=0,
                shrinkB=0,
                lw=0,
                fc=colour,
                zorder=3,
            )
            self.ax.add_artist(tip)

    def product(self, x: float, y: float) -> None:
        """A circle with a cross."""
        self.ax.add_artist(Circle((x, y), RADIUS, fc="white", ec="#000000", lw=0.9, zorder=4))
        self.ax.text(x, y, "×", fontsize=10, ha="center", va="center_baseline", zorder=5)


@cache
def width(words: str, weight: str = "normal") -> float:
    """Inches that words take at full size."""
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return float(TextPath((0, 0), words, size=SIZE, prop=font).get_extents().width) / 72 if words.strip() else 0.0


def tint(colour: str, white: float) -> str:
    """A colour mixed with white, as #rrggbb."""
    return "#" + "".join(f"{round(255 * (c + (1 - c) * white)):02x}" for c in to_rgb(colour))


def ink(colour: str) -> str:
    """Black or white, whichever reads better on a colour (relative luminance of WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return "#ffffff" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.28 else "#000000"


def card_height(edge: Edge) -> float:
    """Of one card, from the top of its title."""
    body = HEADER + (LINE * len(edge.lines) + PAD if edge.lines else 0.0)
    slab = width(edge.hadamard, "bold") + 0.1 if edge.hadamard else 0.0
    return TITLE + max(body, slab)


def height(slot: Slot) -> float:
    """Of a slot."""
    return sum(card_height(edge) for edge in slot) + GAP * (len(slot) - 1)


def ports(slot: Slot, y: float) -> list[float]:
    """Where wires meet the cards of a slot whose top is at `y`."""
    found, top = [], y
    for edge in slot:
        found.append(top + PORT)
        top += card_height(edge) + GAP
    return found


def draw_slot(canvas: Canvas, x: float, y: float, slot: Slot, pale: bool, enters: str) -> None:
    """The cards of a slot from its upper left corner; their values enter at the "left" or the "right"."""
    for letter, edge, port in zip("AB", slot, ports(slot, y), strict=False):
        _card(canvas, x, port - PORT, edge, letter if len(slot) > 1 else "", pale)
        if edge.hadamard:
            high = card_height(edge) - TITLE
            left = x - SLAB if enters == "left" else x + CARD
            colour = tint("#000000", PALE if pale else 0.0)
            canvas.box(left, port - PORT + TITLE, SLAB, high, "#ffffff", colour)
            middle = (left + SLAB / 2, port - PORT + TITLE + high / 2)
            canvas.text(*middle, edge.hadamard, high - 0.06, pale, ha="center", rotation=90, weight="bold")


def _card(canvas: Canvas, x: float, y: float, edge: Edge, letter: str, pale: bool) -> None:
    fill = tint(edge.kind.colour, PALE if pale else 0.0)
    title = f"{letter}  {edge.title}" if letter else edge.title
    canvas.text(x, y + TITLE / 2, title, CARD, pale, weight="bold")
    body = LINE * len(edge.lines) + PAD if edge.lines else 0.0
    top = y + TITLE
    canvas.box(x, top, CARD, HEADER + body, tint(edge.kind.colour, 0.97 if pale else 0.9), fill, edge.stochastic)
    canvas.ax.add_artist(Rectangle((x, top), CARD, HEADER, fc=fill, ec="none", lw=0, zorder=2))
    on = tint("#000000", 0.4) if pale else ink(fill)
    canvas.text(x + MARGIN, top + HEADER / 2, edge.name, CARD - 2 * MARGIN, weight="bold", color=on)
    for row, words in enumerate(edge.lines):
        middle = top + HEADER + PAD / 2 + LINE * (row + 0.5)
        canvas.text(x + MARGIN, middle, words, CARD - 2 * MARGIN, pale)
