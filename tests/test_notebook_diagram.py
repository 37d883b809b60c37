"""Contract: `notebooks.diagram` draws every edge of a recipe, marks what two recipes differ in, and nothing overlaps.
Oracle: `recipe_edges`, which has tests of its own; a table made by hand of which edges a field decides; the boxes of
the drawn texts as matplotlib measures them.
"""

import ast
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ipywidgets")

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

import numerics as nm
from notebooks import diagram
from notebooks.recipe_edges import FORWARD, edges
from numerics import Rounding
from numerics.ops import Cast, Recast
from reference.ablations import fourbit
from reference.presets import PRESETS, preset
from reference.recipe import OsciReset, Recipe

NAMES = list(PRESETS)
PAIRS = [("fourbit", "tetrajet2"), ("quartet2", "fp8_deepseek"), ("bf16", "nvfp4_nvidia")]
FOURBIT = fourbit().experts
BF16 = Cast(None)


def collisions(figure) -> list[str]:
    """Texts that overlap each other, a line or the border of a box, or leave the page; pixels at 100 to the inch."""
    ax, page, renderer = figure.axes[0], figure.bbox, FigureCanvasAgg(figure).get_renderer()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in ax.texts if text.get_text() != "×"]
    found = [
        f"{words} leaves the page" for words, b in boxes if b.x0 < 0 or b.y0 < 0 or b.x1 > page.x1 or b.y1 > page.y1
    ]
    for (one, a), (two, b) in itertools.combinations(boxes, 2):
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1.5:
            found.append(f"{one} on {two}")
    for patch in (p for p in ax.patches if isinstance(p, Rectangle)):
        box = patch.get_window_extent(renderer)
        for words, b in boxes:
            across = min(box.x1, b.x1) - max(box.x0, b.x0), min(box.y1, b.y1) - max(box.y0, b.y0)
            inside = across[0] > b.width - 1 and across[1] > b.height - 2
            if min(across) > 1.5 and not inside:
                found.append(f"a box across {words}")
    for line in ax.lines:
        path = line.get_path().transformed(line.get_transform())
        found += [f"a line through {words}" for words, b in boxes if path.intersects_bbox(b, filled=False)]
    return found


def layouts() -> list[tuple[str, str]]:
    """(recipe, layers) of every picture that the presets have; of equal ones the first."""
    found = {}
    for name, layer in itertools.product(NAMES, diagram.LAYERS):
        recipe = preset(name)
        found.setdefault(tuple(edges(getattr(recipe, layer)).values()), (name, layer))
    return list(found.values())


@pytest.mark.every(5)
@pytest.mark.parametrize(("name", "layer"), layouts())
def test_every_preset_draws_and_nothing_overlaps(name, layer):
    figure = diagram.draw(preset(name), layer=layer)
    assert collisions(figure) == []
    assert figure.get_size_inches()[0] <= 7


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_recipes_draw_and_nothing_overlaps(one, other):
    assert collisions(diagram.draw(preset(one), preset(other))) == []


NVFP4_ROW, STOCHASTIC = Cast(nm.NVFP4, "row"), Rounding.STOCHASTIC
ROTATED = replace(FOURBIT, wgrad_hadamard=16)
SAVED_W, SAVED_X = {"dgrad w2", "dgrad w13"}, {"wgrad h", "wgrad x"}
GRADIENTS = {f"{product} {g}" for product in ("dgrad", "wgrad") for g in ("dy", "dz")}
CHANGES = [
    (FOURBIT, {"input": NVFP4_ROW}, {"x", "wgrad x"}),
    (FOURBIT, {"hidden": NVFP4_ROW}, {"h", "wgrad h"}),
    (FOURBIT, {"weight": Cast(nm.NVFP4_2D, "leading")}, {"w13", "w2"} | SAVED_W),
    (FOURBIT, {"weight": Cast(nm.NVFP4, "tensor")}, {"w13", "w2"}),
    (FOURBIT, {"grad": Cast(nm.MXFP8_E5M2)}, {"dy wire", "dx wire"} | GRADIENTS),
    (FOURBIT, {"grad_wire": BF16}, {"dy wire", "dx wire", "dgrad dy", "wgrad dy"}),
    (FOURBIT, {"saved_weight": Recast(nm.MXFP8)}, SAVED_W),
    (FOURBIT, {"saved_input": Recast(nm.MXFP8, "multiply")}, SAVED_X),
    (FOURBIT, {"saved_input": Recast(nm.MXFP8, "gradient", STOCHASTIC)}, SAVED_X | {"wgrad dy", "wgrad dz"}),
    (FOURBIT, {"combine_fmt": nm.MXFP8}, {"combine"}),
    (FOURBIT, {"combine_hadamard": None}, {"combine"}),
    (FOURBIT, {"originals": True}, SAVED_W | SAVED_X),
    (FOURBIT, {"wgrad_hadamard": 16}, SAVED_X | {"wgrad dy", "wgrad dz"}),
    (ROTATED, {"fresh_signs": True}, SAVED_X | {"wgrad dy", "wgrad dz"}),
    (FOURBIT, {"fresh_signs": True}, set()),
    (replace(FOURBIT, grad_wire=BF16, saved_weight=Recast(nm.MXFP8, "multiply")), {"dgrad_hadamard": 32},
     SAVED_W | {"dgrad dy", "dgrad dz"}),
    (FOURBIT, {"osci_reset": OsciReset(200, 50, 8.0)}, {"masters"}),
]  # fmt: skip


@pytest.mark.parametrize(("base", "fields", "concerned"), CHANGES, ids=[next(iter(c[1])) for c in CHANGES])
def test_a_field_changes_exactly_the_edges_that_it_decides(base, fields, concerned):
    changed = replace(base, **fields)
    before, after = edges(base), edges(changed)
    assert {key for key in before if before[key] != after[key]} == concerned
    texts = [
        text.get_text() for text in diagram.draw(Recipe("a", base, base), Recipe("b", changed, changed)).axes[0].texts
    ]
    for key in before.keys() - {"masters"}:
        twice = all(card(texts, letter, e[key]) for letter, e in (("A  ", before), ("B  ", after)))
        assert (twice, card(texts, "", before[key])) == (key in concerned, key not in concerned), key


def card(texts: list[str], letter: str, edge) -> bool:
    """Whether a card is drawn: its title, name and lines, one after the other."""
    words = [letter + edge.title, edge.name, *edge.lines]
    return any(texts[i : i + len(words)] == words for i in range(len(texts)))


@pytest.mark.parametrize("name", ["fourbit", "nvfp4_nvidia", "fp8_deepseek", "mxfp4"])
def test_names_stand_on_the_colour_of_their_kind(name):
    recipe = preset(name)
    ax = diagram.draw(recipe).axes[0]
    headers = Counter()
    boxes = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_height() < 0.16 and p.get_width() > 1]
    for text in ax.texts:
        x, y = text.get_position()
        at = [p for p in boxes if abs(p.get_y() + p.get_height() / 2 - y) < 1e-6 and 0 < x - p.get_x() < 0.1]
        if at:  # the last one is on top
            headers[text.get_text(), to_hex(at[-1].get_facecolor())] += 1
    told = edges(recipe.experts)
    assert headers == Counter((e.name, e.kind.colour) for key, e in told.items() if key != "masters")


def test_the_other_layers_are_drawn_where_they_are_asked_for():
    last = [text.get_text() for text in diagram.draw(fourbit(), layer="last").axes[0].texts]
    assert "last: 4 layers, drawn" in last and "NVFP4_46" not in last and "experts: 20" in last
    both = replace(fourbit(), shared=True)
    assert "shared experts: as the routed" in [t.get_text() for t in diagram.draw(both).axes[0].texts]


def test_passes_show_their_own_edges_alone():
    for which in ("forward", "backward"):
        texts = [text.get_text() for text in diagram.draw(fourbit(), None, which).axes[0].texts]
        for key, edge in edges(FOURBIT).items():
            if key != "masters":
                assert card(texts, "", edge) == ((key in FORWARD) == (which == "forward")), key


def test_odd_formats_and_long_names_draw():
    fmt = replace(nm.NVFP4_2D, name="A_VERY_LONG_NAME_OF_A_FORMAT", rule=nm.scales.RULES["four_over_six_absmax"])
    layer = replace(FOURBIT, weight=Cast(fmt, "leading", outer_rounding="pow2"))
    shares = {"last_share": 1.0, "claims_unbiased": False}
    for recipe in (
        Recipe("a name that is much longer than the place for it", layer, FOURBIT),
        replace(fourbit(), **shares),
    ):
        assert collisions(diagram.draw(recipe)) == []
    assert collisions(diagram.draw(Recipe("<&$x^2$>", layer, layer))) == []


def test_no_recipe_is_named_in_the_code():
    for path in (Path(diagram.__file__), *(Path(diagram.__file__).with_name(f"{n}.py") for n in MODULES)):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            assert not (isinstance(node, ast.Constant) and node.value in PRESETS), (path.name, node.value)


MODULES = ("recipe_edges", "diagram_parts", "diagram_passes")


def test_another_pass_or_field_is_told():
    with pytest.raises(ValueError, match="which='sideways': use one of forward, backward, both"):
        diagram.draw(fourbit(), which="sideways")
    with pytest.raises(ValueError, match="layer='middle'"):
        diagram.draw(fourbit(), layer="middle")
