"""Notebook 2's block: its numbers, its picture, and what its widget says to anything that is typed.

Oracle: the scalar twin (`numerics.oracle`), blocks worked by hand, and the normal distribution for shares of losses.
"""

import math
import random
import re

import pytest
import torch

pytest.importorskip("ipywidgets")

from notebooks import block, block_draw, block_panel
from notebooks.figure_data import figure_data
from notebooks.readout import paragraphs, table, told
from numerics import E2M1, oracle
from studies import plots

pytestmark = pytest.mark.usefixtures("one_thread")
START = "-54 5.4 30 12 -8 2 41 -1.5 20 -36 -24 6.5 0.7 -17 3 46"


def blocks(count: int) -> list[torch.Tensor]:
    """Blocks of one to sixteen values of every size that outer scales of 1 and 1/4 reach, and beyond."""
    made, generator = [], torch.Generator().manual_seed(1)
    for number in range(count):
        x = torch.randn(1 + number % 16, generator=generator) * 2.0 ** (number % 29 - 14)
        made.append(torch.where(torch.rand(x.shape, generator=generator) < 0.1, torch.zeros(()), x))
    return made


@pytest.mark.parametrize("outer", [None, 1.0, 0.25])
def test_each_format_against_the_twin(outer: float | None):
    for x in blocks(64):
        seen, xs = block.views(x, outer), x.tolist()
        largest = max(map(abs, xs))
        kept = {block.NV: outer or oracle.outer_scale(largest, 2688.0)}
        kept[block.SIX] = outer or oracle.outer_scale(largest, 1536.0)
        amax = largest if outer is None else 2688.0 * outer  # of a tensor with this outer scale
        scale, codes = oracle.nvfp4_block(xs, amax)
        six_scale, six_codes, four = oracle.four_over_six_block(xs + [0.0] * (16 - len(xs)), kept[block.SIX])
        mx_scale, mx_codes = oracle.mx_block(xs, E2M1)
        twin = {block.NV: (scale, codes), block.SIX: (six_scale, six_codes[: len(xs)]), block.MX: (mx_scale, mx_codes)}
        for name, view in seen.items():
            assert (view.scale_code, list(view.codes)) == twin[name], (name, xs)
            assert view.outer == kept.get(name)
            if name == block.MX:
                told = [oracle.dequantize_mx(code, mx_scale, E2M1) for code in view.codes]
            else:
                told = [oracle.dequantize_nvfp4(code, view.scale_code, kept[name]) for code in view.codes]
            assert view.values.tolist() == told
            assert view.lost.tolist() == [v == 0 and x != 0 for v, x in zip(told, xs, strict=True)]
            assert [view.levels[code] for code in view.codes] == told
        assert seen[block.SIX].winner == (4 if four else 6)


def test_the_block_of_54_by_hand():
    """NVFP4: 54 / 6 = 9. Four over six: 54 / 4 = 13.5 ties to 14. MXFP4: 54 / 8 > 6, so 16."""
    seen = block.views(block.block(block.parse(START)), 1.0)
    assert [view.scale for view in seen.values()] == [9.0, 14.0, 16.0]
    assert [view.values[1].item() for view in seen.values()] == [4.5, 7.0, 8.0]
    assert [view.values[15].item() for view in seen.values()] == [54.0, 42.0, 48.0]
    assert [view.dead for view in seen.values()] == [2.25, 3.5, 4.0]


def test_ten_to_forty_by_hand():
    """arXiv 2512.02010, tables 1 and 2: with 6 the scale is 6.5 and the sum of squares 17.3125, with 4 it is 0."""
    seen = block.views(block.block([10.0, 20.0, 30.0, 40.0]), 1.0)
    assert seen[block.NV].values.tolist() == [9.75, 19.5, 26.0, 39.0]
    six = seen[block.SIX]
    assert six.candidates == {6: 17.3125, 4: 0.0} and six.winner == 4
    assert six.values.tolist() == [10.0, 20.0, 30.0, 40.0] and six.rel_mse == 0
    assert seen[block.NV].rel_mse == 17.3125 / 3000


@pytest.mark.parametrize("most", [54.0, 7.0, 0.3])
def test_the_dead_zone_is_where_values_are_lost(most: float):
    """Just inside they become zero, just outside the least level, in each format; four over six may choose anew."""
    for name in (block.NV, block.MX):
        dead = block.views(block.block([most]), 1.0)[name].dead
        for factor, lost in ((1 - 2.0**-10, True), (1 + 2.0**-10, False)):
            assert bool(block.views(block.block([most, factor * dead]), 1.0)[name].lost[1]) == lost


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1, 2,3", [1.0, 2.0, 3.0]),
        ("1;2 ; -3e-2", [1.0, 2.0, -0.03]),
        ("\u22121 0x1.8p-3", [-1.0, 0.1875]),
        ("1e400 -inf", [math.inf, -math.inf]),
    ],
)
def test_reading_values(text: str, found: list[float]):
    assert block.parse(text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no value: a block holds sixteen"),
        (" , ;", "no value"),
        ("1 " * 17, "17 values: a block holds sixteen"),
        ("1 2 abc", "value 3='abc' is no number"),
    ],
)
def test_values_that_cannot_be_read(text: str, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        block.parse(text)


def test_reading_the_outer_scale():
    assert block.parse_outer(" AUTO ") is None is block.parse_outer("")
    assert block.parse_outer("0.25") == 0.25
    for text in ("0", "-1", "nan", "inf", "1e39", "1e-39"):
        with pytest.raises(ValueError, match="type auto, or a number from"):
            block.parse_outer(text)
    with pytest.raises(ValueError, match=r"outer=9{37}[.]{3}: type auto") as long:
        block.parse_outer("9" * 5000)
    assert len(str(long.value)) < 120
    with pytest.raises(ValueError, match="outer='x' is no number"):
        block.parse_outer("x")


@pytest.mark.parametrize(
    ("text", "outer", "words"),
    [
        ("1 nan", "1", "Value 2 is NaN: the block's scale is NaN"),
        ("-1e400", "auto", "Value 1 is infinite: the block's scale is NaN"),
        ("1e39 1", "auto", "Value 1 is beyond float32: 3.40282e+38 was taken."),
        ("1e-50 1", "auto", "Value 1 is below float32's least number: 0 was taken."),
        ("0 0", "auto", "All values are zero"),
        ("1 2", "auto", "2 of sixteen values: a short block"),
        (START, "1", "A block of MXFP4 holds 32"),
        ("2689", "1", "NVFP4: the scale saturates at 448, so values do at 6 x 448 x outer = 2688."),
        ("0.005859375", "1", "NVFP4: the scale is rounded to 0 and all is lost"),
        ("3e38 1e20", "1", "Both errors of four over six are beyond float32"),
    ],
)
def test_remarks(text: str, outer: str, words: str):
    typed = block.parse(text)
    x = block.block(typed)
    seen = block.views(x, block.parse_outer(outer))
    said = block.remarks(typed, x, seen)
    assert words in " ".join(said)
    assert block_draw.readout(x, seen, said).endswith(paragraphs(said))


def test_where_a_scale_is_lost_is_said_exactly():
    """6 x 2^-10 is lost in NVFP4, the next number is not; with 4 as an alternative the border is 4 x 2^-10."""
    for name, most in ((block.NV, 6 * 2.0**-10), (block.SIX, 4 * 2.0**-10)):
        for value, lost in ((most, True), (math.nextafter(most * (1 + 2.0**-23), 1), False)):
            typed = [value]
            x = block.block(typed)
            seen = block.views(x, 1.0)
            said = [line for line in block.remarks(typed, x, seen) if line.startswith(f"{name}: the scale is rounded")]
            assert bool(said) == lost == bool(seen[name].lost.all()), (name, value)
            assert not lost or said[0].endswith(f"would have to pass {most:.3g}.")


def cells(readout: str) -> list[list[str]]:
    """The rows of the readout's tables."""
    rows = re.findall("<tr>(.*?)</tr>", readout)
    return [re.findall(">([^<]*)</t[dh]>", row) for row in rows]


def test_the_readout_says_the_numbers():
    picture = block_panel.picture(START, "1")
    x = block.block(block.parse(START))
    seen, rows = block.views(x, 1.0), cells(picture.readout)
    for row, (name, view) in zip(rows[1:4], seen.items(), strict=True):
        assert row[0] == name and int(row[1], 16) == view.scale_code and float(row[2]) == view.scale
        assert row[4] == f"\u00b1{view.dead:g}" and int(row[5]) == int(view.lost.sum())
        assert float(row[6]) == pytest.approx(view.rel_mse, rel=5e-4)  # four digits are shown
    for place, row in enumerate(rows[5:]):
        assert float(row[1]) == pytest.approx(float(x[place]), rel=1e-6)
        for number, view in enumerate(seen.values()):
            code, after, error = row[2 + 3 * number : 5 + 3 * number]
            assert int(code, 16) == view.codes[place] and float(after) == float(view.values[place])
            assert float(error) == pytest.approx(float(view.values[place] - x[place]), rel=5e-3, abs=1e-9)
    six = seen[block.SIX].candidates
    assert f"{six[6]:.6g} with 6 and {six[4]:.6g} with 4: the maximum is mapped to 4" in picture.readout


def test_the_picture_shows_the_numbers():
    """Bars before and after, codes under them, levels behind, the dead zone, crosses where values are lost."""
    x = block.block(block.parse(START))
    seen = block.views(x, 1.0)
    for axes, view in zip(figure_data(block_draw.comparison(x, seen))["axes"], seen.values(), strict=True):
        heights = [patch["place"][3] for patch in axes["patches"]]
        zone, before, after = axes["patches"][0]["place"], heights[1:17], heights[17:]
        assert (zone[1], zone[3]) == (-view.dead, 2 * view.dead)
        assert before == pytest.approx(x.tolist()) and after == view.values.tolist()
        assert axes["texts"] == ["code", *(f"{code:X}" for code in view.codes)]
        levels = {path[0][1] for path in axes["collections"][0]["paths"]}
        assert levels == {level for level in view.levels if -1.1 * 56 <= level <= 1.1 * 54}  # 56 and 54 are the ends
        assert [place for place, _ in axes["lines"][0]] == view.lost.nonzero().flatten().tolist()


# ---- the widget ------------------------------------------------------------------------------------------------------


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are made and not turned into PNG, which takes most of the time and which `figure_data` does too."""
    monkeypatch.setattr(plots, "render", lambda figure, kind: b"")


def test_a_slider_writes_its_value_and_redraws(unseen):
    panel = block_panel.panel()
    before = figure_data(panel.picture.figure)
    panel.controls["value2"].value = 100.0
    assert panel.controls["text"].value.startswith("-54 100 30") and panel.controls["start"].value == block_panel.OWN
    assert figure_data(panel.picture.figure) != before
    assert panel.controls["value1"].max == 200.0 and panel.controls["value2"].value == 100.0
    seen = block.views(block.block(block.parse(panel.controls["text"].value)), 1.0)
    assert f"0x{seen[block.NV].scale_code:02X}" in panel.picture.readout


def test_a_text_moves_the_sliders(unseen):
    panel = block_panel.panel()
    panel.controls["text"].value = "7, nan 2"
    panel.controls["value3"].value = -2.0
    panel.controls["text"].value = "7.000000123, nan; -2"
    assert [panel.controls[f"value{n}"].value for n in (1, 2, 3, 4)] == [7.000000123, 0.0, -2.0, 0.0]
    assert [panel.controls[f"value{n}"].disabled for n in (1, 2, 3, 4)] == [False, True, False, True]
    panel.controls["value3"].value = 3.0
    assert panel.controls["text"].value == "7.000000123 nan 3"  # the others as they were typed


def test_every_start_is_drawn(unseen):
    panel = block_panel.panel()
    seen = {panel.picture.readout}
    for name, start in list(panel._starts.items())[1:]:
        panel.controls["start"].value = name
        assert (panel.controls["text"].value, panel.controls["outer"].value) == (start.text, start.outer)
        assert panel.controls["start"].value == name and not panel._note.value
        seen.add(panel.picture.readout)
    assert len(seen) == len(panel._starts)


def test_bad_input_is_told_and_the_picture_stays(unseen):
    panel = block_panel.panel("all zero")
    good = panel.picture
    for name, text in (("text", "1 2 abc"), ("text", ""), ("text", "1 " * 17), ("outer", "x"), ("outer", "-1")):
        kept = panel.controls[name].value
        panel.controls[name].value = text
        assert "the last picture stays" in panel._note.value and panel.picture is good
        panel.controls[name].value = kept
        assert not panel._note.value
        good = panel.picture
    panel.controls["text"].value = "1 abc"
    panel.controls["value1"].value = 0.5  # goes on from the last good block
    assert panel.controls["text"].value.startswith("0.5 ") and not panel._note.value


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("outer", ["auto", "1"])
@pytest.mark.parametrize("text", ["nan 1 -inf", "1e38 -1e38", "1e-45", "1e300 1e-300", "-0"])
def test_extremes_are_drawn_without_a_warning(text: str, outer: str):
    assert len(figure_data(block_panel.picture(text, outer).figure)["axes"]) == 3


def test_reach_of_the_sliders(unseen):
    rng = random.Random(0)
    for _ in range(500):
        values = [rng.uniform(-1, 1) * 10.0 ** rng.randint(-45, 38) for _ in range(3)]
        most = max(map(abs, values))
        assert 2 * most <= block_panel.reach(values) <= 5.1 * most
    assert block_panel.reach([0.0, math.nan, math.inf]) == 1.0
    assert block_panel.reach([1e308]) == 1e300


# ---- the other figures -----------------------------------------------------------------------------------------------


def test_what_is_lost_beside_an_outlier():
    """Normal values within size / 24 are lost, in MXFP4 within scale / 4; three standard errors of 7,680 values."""
    found = block.shares([16.0, 48.0])
    for name, borders in ((block.NV, (16 / 24, 2.0)), (block.MX, (1.0, 2.0))):
        for share, border in zip(found[name], borders, strict=True):
            expected = math.erf(border / math.sqrt(2))
            assert share == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / 7680))


def test_one_beside_a_growing_maximum():
    """With an automatic outer scale the last jump, to zero, comes at 24 times the value."""
    found = block.beside([1.0], [23.9, 24.1])[block.NV]
    assert found[0][0] == pytest.approx(23.9 / 12, rel=1e-6) and found[1][0] == 0.0  # 0.5 of the step 23.9 / 6


def test_special_blocks():
    rows = block.special().to_numpy(object)
    assert rows[0][2:4].tolist() == ["0", "0 0 0 0"] and rows[1][2:4].tolist() == ["NaN", "NaN NaN NaN NaN"]
    assert rows[3][3] == "0 0" and rows[4][3] == "0.001 0.002" and rows[5][3] == "2688 2688"


def test_words():
    assert [told(v, 3) for v in (1.25, -0.0, math.nan, -math.inf, 1e-9)] == ["1.25", "0", "NaN", "-inf", "1e-09"]
    assert "<td" in table(["a"], [["<b>"]]) and "&lt;b&gt;" in table(["a"], [["<b>"]])
    assert paragraphs(["a & b"]) == "<p>a &amp; b</p>"
