"""Contract: the numbers of notebook 4's first panel are what numerics gives for a value saved in NVFP4 and quantized
again; no input shows a traceback; the mean of many requantizations converges unless something saturates.

Oracle: the worked example of "End-to-End 4-Bit Training" (Thinking Machines Lab, 2026) by hand, the scalar
`numerics.oracle` with its own random fields, and published errors of requantization.
"""

import itertools
import math

import pytest

pytest.importorskip("ipywidgets")
from panel_cases import fixtures, plain, require_told

import numerics as nm
from notebooks import redraw, redraw_mean
from notebooks.figure_data import figure_data
from notebooks.redraw_data import COLUMNS, ROUNDINGS, TARGETS, again, saved_tensor
from notebooks.redraw_data import redraw as redrawn
from numerics import oracle

pytestmark = pytest.mark.usefixtures("one_thread")
STOCHASTIC, NEAREST = ROUNDINGS["stochastic"], ROUNDINGS["nearest"]


one, panel = fixtures(redraw.panel)


def test_the_worked_example():
    found = redrawn(5.4, -54.0, 12.0, nm.NVFP4, STOCHASTIC, 4096, 0)
    assert (found.saved_code, found.saved_scale, found.saved) == (0.5, 9.0, 4.5)
    assert (found.step, found.below, found.above, found.nearest) == (2.0, 4.0, 6.0, 4.0)
    assert found.fields == 65536 // 4 and found.chance == 0.25
    assert set(found.draws.tolist()) == {4.0, 6.0}
    # five standard errors of the mean of 4,096 draws of 4 and 6 at 3 : 1
    assert abs(float(found.draws.mean()) - 4.5) < 5 * 2 * math.sqrt(0.25 * 0.75 / 4096)


def test_mxfp8_holds_the_saved_value():
    found = redrawn(5.4, 54.0, 12.0, nm.MXFP8, STOCHASTIC, 64, 0)
    assert found.below == found.above == found.nearest == 4.5 and found.chance == 1
    assert set(found.draws.tolist()) == {4.5}


@pytest.mark.parametrize("value", (13.0, -13.0))
def test_draws_are_the_oracles(value: float):
    """Draw i: copy i // 15 is the expert, column 1 + i % 15 the line, row 0 the place along the axis."""
    n, seed, saved = 40, 7, math.copysign(13.5, value)
    wide = {"NVFP4": (nm.E2M1, 2.0, 4), "MXFP4": (nm.E2M1, 4.0, 4), "MXFP8": (nm.E4M3, 2.0**-5, 8)}
    column = {"NVFP4": 12.0, "MXFP4": 18.0, "MXFP8": 12.0}
    assert oracle.rceil(18.0, nm.E2M1) - 127 == 2 and oracle.rceil(13.5, nm.E4M3) - 127 == -5
    for name, (fmt, step, bits) in wide.items():
        found = redrawn(value, 54.0, column[name], TARGETS[name], STOCHASTIC, n, seed)
        for i, drawn in enumerate(found.draws.tolist()):
            field = oracle.random_field((seed, 0), (0, i // COLUMNS), 1 + i % COLUMNS, 0, bits)
            if name == "NVFP4":  # 13.5 / 6 rounds to the scale 2.25: an exact 6
                assert (drawn, found.step) == (saved, 2.25)
            else:
                assert found.step == step
                assert drawn == fmt.value(oracle.stochastic(saved / step, fmt, field)) * step


@pytest.mark.parametrize(
    ("name", "fmt", "bits"), (("E2M1 without a scale", nm.E2M1, 4), ("E4M3 without a scale", nm.E4M3, 8))
)
def test_draws_without_a_scale_are_the_oracles(name: str, fmt: nm.Format, bits: int):
    """The copy is the line, the column the place."""
    found = redrawn(-13.0, 26.0, 1.0, TARGETS[name], STOCHASTIC, 40, 3)
    for i, drawn in enumerate(found.draws.tolist()):
        field = oracle.random_field((3, 0), (0, 0), i // COLUMNS, 1 + i % COLUMNS, bits)
        assert drawn == fmt.value(oracle.stochastic(found.saved, fmt, field))


def test_more_draws_begin_with_the_same():
    few, many = (redrawn(13.0, 54.0, 12.0, nm.MXFP8, STOCHASTIC, n, 0).draws for n in (16, 256))
    assert few.tolist() == many[:16].tolist() and len(set(many.tolist())) == 2


def test_neighbours_of_a_negative_value_are_mirrored():
    up, down = (redrawn(sign * 5.4, 54.0, 12.0, nm.NVFP4, STOCHASTIC, 4, 0) for sign in (1, -1))
    assert (down.below, down.above, down.nearest) == (-up.above, -up.below, -up.nearest)
    assert down.chance == 0.75 and down.fields == up.fields


def test_nearest_has_one_outcome():
    found = redrawn(13.0, 54.0, 12.0, nm.MXFP8, NEAREST, 64, 0)
    assert set(found.draws.tolist()) == {14.0} and found.chance == 1  # the tie 13.5 goes to the even 14


def test_what_saturates_says_so():
    found = redrawn(13.0, 54.0, 12.0, nm.E2M1, STOCHASTIC, 4, 0)
    assert found.saturates and found.below == found.above == 6
    assert "saturates" in redraw.readout(found, "E2M1 without a scale")


@pytest.mark.parametrize(
    ("control", "text", "told"),
    (
        ("value", "abc", "'abc' is no number"),
        ("value", "", "is no number"),
        ("value", "nan", "is NaN in float32: the scale of its block becomes NaN (code 0x7F)"),
        ("row", "inf", "row=inf is inf in float32"),
        ("column", "-1e400", "is -inf in float32"),
        ("column", "1e39", "column=1e39 is inf in float32"),
    ),
)
def test_bad_input_is_told_and_the_picture_stays(control: str, text: str, told: str, panel: redraw.Panel):
    before = panel.picture
    require_told(panel, control, text, told)
    panel.controls[control].value = "4"
    assert panel._note.value == "" and panel.picture is not before


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("values", "told"),
    (
        ({"value": "1e38"}, "1e+38 is beyond 2,688"),
        ({"value": "0", "row": "0", "column": "0"}, "scale of the row's block is 0, so 0 is saved as"),
        ({"value": "1e-9", "row": "0"}, "so 1e-09 is saved as"),
        ({"value": "1e-45", "row": "3e38", "column": "3e38"}, "stays 0"),
    ),
)
def test_extremes_are_drawn(values: dict[str, str], told: str, panel: redraw.Panel):
    for target, rounding in zip(TARGETS, itertools.cycle(ROUNDINGS), strict=False):
        panel.set(**values, target=target, rounding=rounding, draws=1)
        assert panel._note.value == ""
        assert told in panel.picture.readout + panel.picture.figure.axes[0].get_title(loc="left")


def test_the_readout_holds_the_numbers_of_the_draws():
    panel = redraw.panel()
    draws, step = again(saved_tensor(5.4, 54.0, 12.0, 69), nm.NVFP4, STOCHASTIC, 0)
    draws = draws[:1024].double()
    assert step == 2 and f"Mean of the draws: {float(draws.mean()):.5g}," in panel.picture.readout
    for edge in (4.0, 6.0):
        assert f"<td>{int((draws == edge).sum()):,} (" in plain(panel.picture.readout)
    assert "49,152 of 65,536" in panel.picture.readout and "always 4, off by -0.5" in panel.picture.readout


def test_the_picture_counts_and_averages_the_draws(one: tuple):
    draws = again(saved_tensor(5.4, 54.0, 12.0, 69), nm.NVFP4, STOCHASTIC, 0)[0][:1024].double()
    _, counts, mean = one[2]["axes"]
    assert [patch["place"][3] for patch in counts["patches"]] == [int((draws == edge).sum()) for edge in (4, 6)]
    line = next(line for line in mean["lines"] if len(line) > 2)
    for n, shown in line:
        assert math.isclose(shown, float(draws[: int(n)].mean()), rel_tol=1e-5)  # stored to six digits
    assert line[-1][0] == 1024


@pytest.mark.parametrize(
    ("name", "value"),
    (
        ("value", "13"),
        ("row", "100"),
        ("column", "30"),
        ("target", "MXFP8"),
        ("rounding", "nearest"),
        ("draws", 64),
        ("seed", 1),
    ),
)
def test_every_control_changes_the_picture(name: str, value: object, panel: redraw.Panel, one: tuple):
    panel.controls[name].value = value
    assert panel._note.value == "" and figure_data(panel.picture.figure) != one[2]


def test_the_mean_converges_unless_something_saturates():
    """Published: nearest .709, one stochastic draw 1.415, in thousandths, within 3 % at any seed."""
    curves = {way.name: redraw_mean.curve(redraw_mean.saved(), way) for way in redraw_mean.WAYS}
    for name in ("MXFP8, stochastic, scale rounded up", "NVFP4, stochastic, headroom 16/17"):
        assert abs(curves[name].slope + 1) < 0.02
        assert abs(curves[name].bias) < 2 * curves[name].half
    for name in ("MXFP8, nearest", "NVFP4, nearest"):
        assert curves[name].slope == 0 and len(set(curves[name].errors)) == 1
    for name in ("MXFP8, stochastic, scale rounded down", "NVFP4, stochastic, no headroom"):
        assert curves[name].slope > -0.95 and curves[name].bias < -5 * curves[name].half
    assert math.isclose(curves["MXFP8, nearest"].errors[0], 0.709e-3, rel_tol=0.03)
    assert math.isclose(curves["MXFP8, stochastic, scale rounded up"].errors[0], 1.415e-3, rel_tol=0.03)


def test_the_largest_of_a_block_by_both_rules():
    """floor: the scale 1 leaves 448, whatever the random bits. rceil: 460 / 2 between 224 and 240."""
    assert redraw_mean.largest(460.0, "floor") == {"scale": 1.0, "mean": 448.0, "least": 448.0, "most": 448.0}
    found = redraw_mean.largest(460.0, "rceil")
    assert (found["scale"], found["least"], found["most"]) == (2.0, 448.0, 480.0)
    chance = 12 / 32  # five standard errors of 4,096 draws
    assert abs(found["mean"] - 460) < 5 * 32 * math.sqrt(chance * (1 - chance) / 4096)
