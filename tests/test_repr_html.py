"""What Format, BlockTensor and Recipe show of themselves in a notebook.

Contract: well-formed HTML that stands alone, with every name escaped, whose numbers are those of the object; of a large
tensor a bounded piece; no failure where a tensor has no values to read. Oracle: `html.parser`, and `Format.value`,
`dequantize`, `recipe_table.roles` and sizes counted by hand.
"""

import math
import re
from dataclasses import fields
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from torch._subclasses import FakeTensorMode

import numerics as nm
from numerics import markup
from numerics.exact_text import exact
from reference import recipe_table
from reference.presets import PRESETS, preset
from reference.recipe import Recipe

VOID = ("br", "hr", "img")
NAME = "<script>&\"'"
pytestmark = pytest.mark.usefixtures("one_thread")


class Tables(HTMLParser):
    """The rows of all tables, each a list of cells' texts; refuses tags left open or closed twice, and what loads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "link", "img", "iframe", "style"), tag
        assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attributes)
        # no colour of text, and no opaque background: both would be unreadable in the other theme
        style = dict(attributes).get("style", "")
        assert not re.search(r"(^|;)color:", style) and ("background" not in style or ",.3)" in style)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def row(self, name: str) -> list[str]:
        (found,) = (cells[1:] for cells in self.rows if cells and cells[0] == name)
        return found


def plain(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-"))


# ---- pieces ----------------------------------------------------------------------------------------------------------


def test_text_is_escaped_once():
    assert markup.escaped("<a> & 'b'") == "&lt;a&gt; &amp; &#x27;b&#x27;"
    assert markup.escaped(markup.escaped("<")) == "&lt;"
    assert markup.chip("<", "sign").endswith("&lt;</span>")
    assert Tables(markup.table([("<x>", "<y>")], "<z>", ("<h>",))).text == "<z><h><x><y>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("(-1)^s x 2^(E - 7)", "(−1)<sup>s</sup> × 2<sup>E − 7</sup>"),
        ("-3 x 2^-15", "−3 × 2<sup>−15</sup>"),
        ("9.1e-05 to -inf", "9.1e-05 to −inf"),
        ("two's all-ones", "two&#x27;s all-ones"),
    ],
)
def test_mathematics(text: str, shown: str):
    assert markup.mathematical(text) == shown


# ---- Format ----------------------------------------------------------------------------------------------------------

OWN = [
    nm.Format(NAME, "float", 5, 3, 1, bias=3),
    nm.Format("U3", "float", 3, 3, 0, bias=3, signed=False),
    nm.Format("FP32", "float", 32, 8, 23, bias=127, specials="ieee"),
    nm.Format("F4", "fixed", 4, 0, 6, bias=0),
    nm.Format("P3", "exponent", 3, 3, 0, bias=2, specials="nan"),
]


@pytest.mark.parametrize("fmt", [*nm.FORMATS.values(), *OWN], ids=lambda f: f.name)
def test_a_format_shows_its_facts(fmt: nm.Format):
    page = Tables(fmt._repr_html_())
    assert page.text.startswith(f"{fmt.name}: ") and f"of {fmt.bits} bits" in page.text
    assert sum(int(width) for width in re.findall(r"\d+", page.row("fields")[0])) == fmt.bits
    low, high = (markup.mathematical(exact(end)) for end in (fmt.min, fmt.max))
    assert f"{low} to {high};" in fmt._repr_html_()
    (numbers,) = page.row("numbers")
    if fmt.bits <= 16:
        finite = [value for value in map(fmt.value, range(1 << fmt.bits)) if math.isfinite(value)]
        assert numbers == f"{len(set(finite))} finite values in {1 << fmt.bits} codes"
    for name, code in re.findall(r"(inf|NaN) 0x([0-9A-F]+)", page.row("specials")[0]):
        assert math.isnan(fmt.value(int(code, 16))) if name == "NaN" else math.isinf(fmt.value(int(code, 16)))
    assert (page.row("specials")[0].startswith("none")) == (fmt.nan_code is None)


@pytest.mark.parametrize("fmt", [nm.E2M1, nm.E2M3, nm.E3M2, nm.INT4, OWN[0], OWN[1]], ids=lambda f: f.name)
def test_a_small_format_shows_every_value(fmt: nm.Format):
    listed = Tables(fmt._repr_html_()).row("values")[0]
    signed = listed.startswith("\N{PLUS-MINUS SIGN} ")
    values = {plain(v) for v in listed.removeprefix("\N{PLUS-MINUS SIGN} ").split(", ")}
    assert values | ({-v for v in values} if signed else set()) == set(fmt.values().tolist())


def test_a_large_format_lists_none():
    assert "values" not in [row[0] for row in Tables(nm.FP16._repr_html_()).rows]


# ---- BlockTensor -----------------------------------------------------------------------------------------------------


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


LAYOUTS = {
    "plain": (nm.NVFP4, {}, (4, 64)),
    "ragged": (nm.NVFP4, {"outer": "row"}, (3, 37)),
    "short": (nm.NVFP4, {}, (2, 5)),
    "columns": (nm.MXFP8, {"axis": 0}, (70, 3)),
    "groups": (nm.MXFP8, {"axis": -2, "groups": (0, 0, 3, 40)}, (40, 3)),
    "outer runs": (nm.NVFP4, {"outer": 128}, (2, 300)),
    "tokens": (nm.NVFP4, {"axis": 0, "outer": "tensor"}, (33, 2)),
    "tiles": (nm.NVFP4_2D, {}, (40, 40)),
    "alternatives": (nm.IF4, {}, (2, 64)),
    "FP32 scales": (nm.FP8_1X128, {}, (2, 256)),
    "experts": (nm.MXS2F6, {"axis": -2}, (2, 64, 3)),
}


def first_line(x: torch.Tensor, axis: int) -> torch.Tensor:
    return x.movedim(axis, -1).reshape(-1, x.shape[axis])[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_shows_its_first_blocks(layout: str):
    fmt, how, shape = LAYOUTS[layout]
    q = nm.quantize(sample(*shape), fmt, **how)
    page = Tables(q._repr_html_())
    codes, values = first_line(q.codes, q.axis).tolist(), first_line(q.dequantize(), q.axis).tolist()
    groups = q.groups or (0, len(codes))
    starts = [(s, b) for a, b in pairwise(groups) for s in range(a, b, fmt.block)][:2]
    rows = page.rows[-3 * len(starts) :]
    for i, (start, end) in enumerate(starts):
        shown = slice(start, min(start + 8, start + fmt.block, end))
        coded, element, valued = rows[3 * i : 3 * i + 3]
        assert coded[0] == f"block {i}, codes" and coded[1:][: len(codes[shown])] == [
            fmt.element.hex(code) for code in codes[shown]
        ]
        other = fmt.alternative is not None and int(first_line(q.scales, q.axis)[i]) & 0x80
        used = fmt.alternative if other else fmt.element
        assert element[0] == used.name
        assert [plain(v) for v in element[1:]] == [float(f"{used.value(code):.5g}") for code in codes[shown]]
        assert [plain(v) for v in valued[1:]] == [float(f"{value:.5g}") for value in values[shown]]
        left = min(start + fmt.block, end) - shown.stop
        assert (coded[-1] == f"… {left} more") == (left > 0)


def test_the_scale_of_a_block_is_the_one_it_is_multiplied_by():
    q = nm.quantize(sample(2, 64), nm.NVFP4, outer="row")
    texts = [row[0] for row in Tables(q._repr_html_()).rows if row[0].startswith("\N{MULTIPLICATION SIGN}")]
    for text, code in zip(texts, q.scales[0, :2].tolist(), strict=True):
        scale, outer = nm.E4M3.value(code), float(q.outer[0, 0])
        assert text == f"× scale 0x{code:02X} = {scale:.5g} × outer {outer:.5g}"
    alternative = nm.quantize(torch.arange(16.0), nm.IF4)  # evenly spaced: INT4 fits better, which the sign bit says
    text = Tables(alternative._repr_html_()).rows[-1][0]
    assert int(alternative.scales[0]) & 0x80 and "= \N{MINUS SIGN}" not in text


def test_sizes_by_hand():
    page = Tables(nm.quantize(sample(4, 64), nm.NVFP4, outer="row")._repr_html_())
    assert page.row("bytes, packed") == ["160: codes 128, scales 16, outer scale 16"]  # 256 / 2, 4 x 4, 4 x 4
    assert page.row("bits per value") == ["5"]
    assert Tables(nm.quantize(sample(32, 32), nm.NVFP4_2D)._repr_html_()).row("bytes, packed") == [
        "520: codes 512, scales 4, outer scale 4"
    ]
    assert Tables(nm.quantize(sample(2, 256), nm.FP8_1X128)._repr_html_()).row("bits per value") == ["8.25"]
    assert Tables(nm.quantize(sample(1, 32), nm.MXFP6_E2M3)._repr_html_()).row("bytes, packed") == [
        "25: codes 24, scales 1"
    ]


def test_a_nan_is_told():
    page = Tables(nm.quantize(torch.tensor([math.nan] + [1.0] * 15), nm.NVFP4)._repr_html_())
    assert page.rows[-1][0].startswith("× scale 0x7F = NaN") and set(page.rows[-1][1:]) == {"NaN"}


@pytest.mark.parametrize("shape", [(0,), (0, 16), (4, 0), (2, 0, 3)])
def test_an_empty_tensor(shape: tuple[int, ...]):
    assert "It holds no values." in nm.quantize(torch.zeros(shape), nm.NVFP4)._repr_html_()


def test_a_large_tensor_shows_a_little():
    codes, scales = torch.zeros(1, 1, dtype=torch.uint8), torch.full((1, 1), 0x38, dtype=torch.uint8)
    large = nm.quantize(torch.zeros(1, 16), nm.MXFP4, outer=None).derived(
        codes=codes.expand(1 << 20, 1 << 20), scales=scales.expand(1 << 20, 1 << 15)
    )  # a tebibyte, if anything looked at all of it
    page = large._repr_html_()
    assert len(page) < 8000 and "549,755,813,888" in page
    many = nm.quantize(sample(400, 2), nm.MXFP8, axis=0, groups=tuple(range(401)))
    assert len(many._repr_html_()) < 5000


def on(q: nm.BlockTensor, move) -> nm.BlockTensor:
    return q.derived(codes=move(q.codes), scales=move(q.scales), outer=move(q.outer))


def test_tensors_without_values_do_not_fail():
    q, mode = nm.quantize(sample(4, 64), nm.NVFP4), FakeTensorMode()
    assert "on meta has no values to read" in Tables(on(q, lambda t: t.to("meta"))._repr_html_()).text
    fake = on(q, mode.from_tensor)
    assert "A FakeTensor on cpu has no values" in Tables(fake._repr_html_()).text
    with mode:
        Tables(fake._repr_html_())
    assert torch.equal(nm.quantize(sample(4, 64), nm.NVFP4).dequantize(), q.dequantize())  # nothing fake was kept


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gpu_tensors_show_the_same(layout: str):
    fmt, how, shape = LAYOUTS[layout]
    q = nm.quantize(sample(*shape), fmt, **how)
    there = on(q, lambda t: None if t is None else t.cuda())
    assert there._repr_html_() == q._repr_html_().replace("on cpu", "on cuda:0")


def test_the_corner_is_a_piece_of_the_tensor():
    for fmt, how, shape in LAYOUTS.values():
        q = nm.quantize(sample(*shape), fmt, **how)
        for blocks in (1, 2, 3, 1000):
            corner = q.corner(blocks)
            nm.BlockTensor(**{field.name: getattr(corner, field.name) for field in fields(corner)})  # checks its parts
            line = first_line(q.dequantize(), q.axis)
            assert torch.equal(corner.dequantize().flatten(), line[: corner.codes.numel()])
            assert corner.scales.numel() == min(blocks, q.scales.shape[q.axis])
        assert corner.codes.numel() == len(line)
    transposed = nm.quantize(sample(3, 40), nm.NVFP4, outer="row").mT
    assert torch.equal(transposed.corner(2).dequantize().flatten(), transposed.dequantize()[:32, 0])


# ---- Recipe ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_recipe_shows_the_words_of_the_table(name: str):
    recipe = preset(name)
    page, told = Tables(recipe._repr_html_()), recipe_table.roles(recipe)
    assert page.text.startswith(f"Recipe {name}")
    for role in recipe.experts.roles():
        cells = page.row(role)
        assert cells[1] == told[role]
        if recipe.other_layers:
            assert cells[3] == told.get(f"  {role}", "the same")
    head = page.rows[0]
    assert head[-1] == (recipe.other_layers or "all layers")
    assert page.row("unbiased")[1] == told["unbiased"] and page.row("shared experts")[1] == told["shared experts"]


def test_a_recipe_colours_formats():
    page, html = Tables(preset("fourbit")._repr_html_()), preset("fourbit")._repr_html_()
    assert page.row("fprop w")[0] == "NVFP4" and page.row("dgrad g")[0] == "MXFP8"
    assert page.row("combine")[0] == "MXS2F6" and page.row("masters")[0] == "FP32"
    colour = {name: re.search(rf"rgba\(([\d,]+),[^>]*>{name}<", html)[1] for name in ("NVFP4", "MXFP8", "MXS2F6")}
    assert len(set(colour.values())) == 3
    assert Tables(preset("bf16")._repr_html_()).row("fprop w") == ["BF16", "BF16"]


def test_names_are_escaped():
    recipe = preset("mxfp8")
    page = Recipe(NAME, recipe.experts, recipe.last)._repr_html_()
    assert NAME not in page and Tables(page).text.startswith(f"Recipe {NAME}")
    fmt = nm.BlockFormat(NAME, nm.E4M3, 32, nm.E8M0, nm.scales.RULES["rceil"])
    assert NAME in Tables(nm.quantize(sample(2, 32), fmt)._repr_html_()).text
