"""Notebook 1's explorer: what it finds, draws and tells.

Contract: what is drawn and told are the code's value, its neighbours, the numbers that become it and the error. Oracle:
`numerics.oracle`, `Format.value` over all codes, and examples worked by hand.
"""

import math
import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("ipywidgets")

import numerics as nm
from notebooks import bits_data, bits_draw, bits_figures, bits_words
from notebooks.figure_data import figure_data
from numerics import oracle
from studies import plots

STOCHASTIC = nm.Rounding.STOCHASTIC
OWN = nm.Format("E3M1", "float", 5, 3, 1, bias=3)
FP32 = nm.Format("FP32", "float", 32, 8, 23, bias=127, specials="ieee")
pytestmark = pytest.mark.usefixtures("one_thread")


class Rows(HTMLParser):
    """Texts of the cells of tables, in order; powers with a ^."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag in ("th", "td"):
            self.cells.append("")
        elif tag == "sup":
            self.cells[-1:] = [part + "^" for part in self.cells[-1:]]

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data.replace("\N{MINUS SIGN}", "-")


def told(state: bits_data.State) -> dict[str, str]:
    cells = Rows(bits_words.readout(state)).cells
    return dict(zip(cells[::2], cells[1::2], strict=True))


# ---- what becomes of a number ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [*nm.FORMATS.values(), OWN], ids=lambda f: f.name)
def test_a_number_becomes_the_code_of_the_oracle(fmt: nm.Format):
    for text in ("5.4", "0.3", "100", "1e400", "inf", "nan", "0", "1e-400", "0x1.8p-3", "2.5"):
        state = bits_data.from_text(fmt, text)
        value = math.inf if text == "1e400" else 0.0 if text == "1e-400" else bits_data.number(text)
        assert state.code == (oracle.nearest(value, fmt) if fmt.bits <= 16 else state.code)
        assert state.chances == ((state.code, 1.0),)
        assert math.isnan(state.result) or fmt.min <= state.result <= fmt.max


def test_what_float64_cannot_hold_is_told():
    assert bits_data.from_text(nm.E2M1, "-1e400").remark.startswith(
        "-1e400 is beyond float64, which ends at 1.7977e+308"
    )
    assert "read as 0" in bits_data.from_text(nm.E2M1, "1e-400").remark
    assert "read as 0" in bits_data.from_text(nm.E2M1, "0x1p-2000").remark
    for text in ("inf", "-Infinity", "0", "0e5", "-0.0", "1e308", "5e-324", "0x0p0"):
        assert bits_data.from_text(nm.E2M1, text).remark == ""
    assert len(bits_data.from_text(nm.E2M1, "9" * 500).remark) < 120


@pytest.mark.parametrize("fmt", [f for f in nm.FORMATS.values() if f.bits <= 8], ids=lambda f: f.name)
def test_the_text_of_a_value_reads_back_as_it(fmt: nm.Format):
    for code in range(1 << fmt.bits):
        value = fmt.value(code)
        back = bits_data.number(bits_data.as_text(value))
        assert back == value or (math.isnan(back) and math.isnan(value))
        assert math.copysign(1, back) == math.copysign(1, value) or math.isnan(value)


def test_landmarks_are_values():
    for fmt in (*nm.FORMATS.values(), OWN, FP32, nm.Format("Q", "fixed", 20, 0, 4, bias=0)):
        values, what = bits_data.landmarks(fmt)
        assert values == sorted(set(values)) and values[0] == fmt.min and values[-1] == fmt.max
        assert len(values) <= 560 and (what == f"all {len(values)} values") == (len(values) == fmt.count)
        assert fmt.min_subnormal in values and fmt.min_normal in values
    assert len([v for v in bits_data.landmarks(nm.BF16)[0] if v > 0]) == 127 + 133 + 1 + 1  # 2^-133 .. 2^127, and max


def test_half_steps_by_hand():
    places, gaps = bits_data.half_steps(nm.E2M1)
    assert places == [v / 6 for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
    assert gaps == [g / 6 for g in (0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 1.0)]


def test_s2f6_is_ten_decibels_better_on_normal_values():
    """Integers with power-of-two scales: 41.9 dB after a rotation, MXFP8 31.5 (arXiv 2510.25602, real tensors)."""
    found = bits_data.wire_error()
    assert abs(found["MXS2F6"] - 41.9) < 0.5 and abs(found["MXFP8"] - 31.5) < 0.5


# ---- the readout -----------------------------------------------------------------------------------------------------


def test_the_formula_with_its_bits():
    assert told(bits_data.from_code(nm.E4M3, 0x6C))["value"] == (
        "(-1)^0 × 2^11012 - 7 × 1.1002 = (-1)^0 × 2^13 - 7 × (1 + 4/8) = 96"
    )
    assert told(bits_data.from_code(nm.E4M3, 0x83))["value"] == (
        "(-1)^1 × 2^1 - 7 × 0.0112 (exponent 0000: subnormal) = (-1)^1 × 2^1 - 7 × (0 + 3/8) = -0.005859375"
    )
    assert told(bits_data.from_code(nm.S2F6, 0x81))["value"] == (
        "10.0000012 in two's complement = -127 / 2^6 = -1.984375"
    )
    assert told(bits_data.from_code(nm.E8M0, 0x85))["value"] == "2^100001012 - 127 = 2^133 - 127 = 64"
    assert told(bits_data.from_code(nm.E5M2, 0x7C))["value"] == "exponent all ones, mantissa zero: infinity"


@pytest.mark.parametrize("fmt", [*(f for f in nm.FORMATS.values() if f.bits <= 8), OWN], ids=lambda f: f.name)
def test_every_code_tells_its_bits_value_and_neighbours(fmt: nm.Format):
    values = fmt.values().tolist()
    for code in range(1 << fmt.bits):
        rows, value = told(bits_data.from_code(fmt, code)), fmt.value(code)
        assert "".join(re.findall(r"\b[01]+\b", rows["bits"])) == f"{code:0{fmt.bits}b}"
        if not math.isfinite(value):
            assert "never gives it" in rows["encode"] or code == fmt.nan_code
            continue
        near = [v for v in values if v < value][-1:] + [v for v in values if v > value][:1]
        shown = [fmt.value(int(c, 16)) for c in re.findall(r"\(0x([0-9A-F]+)\)", rows["neighbours"])]
        assert shown == near
        if "2^-" not in rows["value"].rsplit(" = ", 1)[1]:
            assert float(rows["value"].rsplit(" = ", 1)[1].split(", about ")[-1]) == pytest.approx(value, rel=1e-5)


def test_the_error_of_a_number():
    assert told(bits_data.from_text(nm.E2M1, "5.4"))["error"] == "+0.6, 11.111% of the number"
    assert told(bits_data.from_text(nm.E4M3, "100"))["tie"] == "halfway between 96 and 104"
    assert told(bits_data.from_text(nm.E2M1, "-2.5"))["tie"] == "halfway between -2 and -3"
    assert "tie" not in told(bits_data.from_text(nm.E4M3, "100", nm.Rounding.TOWARD_ZERO))
    assert "tie" not in told(bits_data.from_text(nm.E4M3, "96"))
    assert told(bits_data.from_text(nm.E2M1, "nan"))["policy"] == "no NaN in this format: it becomes +max"


def test_chances_and_their_mean():
    rows = told(bits_data.from_text(nm.E2M1, "2.25", STOCHASTIC))
    assert rows["chances"] == "2 (0x4) with probability 49152/65536, 3 (0x5) with probability 16384/65536"
    assert rows["mean"] == "2.25, the number itself"
    rows = told(bits_data.from_text(nm.E2M1, "5.4", STOCHASTIC))  # 0.7 of the way from 4 to 6
    up = math.floor(0.7 * 65536)
    assert rows["chances"].startswith(f"6 (0x7) with probability {up}/65536")
    mean = 4 + 2 * up / 65536
    assert rows["mean"] == f"{mean:.9g}, {mean - 5.4:+.3g} off: 16 random bits tell no more"
    assert rows["rounds here"] == "[131073 × 2^-15, inf] may, by chance"


def test_tables_of_the_notebook():
    text = re.sub("<[^>]+>", " ", bits_words.rounding_table(nm.E2M1, -2.25)).replace("\N{MINUS SIGN}", "-")
    for name, code in (("toward zero", "0xC"), ("toward -infinity", "0xD"), ("stochastic, 75.00% of draws", "0xC")):
        assert re.search(rf"{re.escape(name)}\s+{code}", text)
    cells = Rows(bits_words.policy_table().split("</thead>")[1]).cells
    rows = [cells[i : i + 7] for i in range(0, len(cells), 7)]
    assert [row[0] for row in rows] == list(bits_data.AWKWARD)
    formats = (nm.E2M1, nm.E4M3, nm.E5M2, nm.UE4M3, nm.E8M0, nm.S2F6)
    for text, *shown in rows:
        for fmt, result in zip(formats, shown, strict=True):
            unsigned = fmt is nm.UE4M3 and float(text) <= 0
            code = (0 if float(text) == 0 else fmt.nan_code) if unsigned else oracle.nearest(float(text), fmt)
            assert result == bits_draw.short(fmt.value(code))


# ---- the figure ------------------------------------------------------------------------------------------------------


def test_the_line_shows_the_neighbours_the_interval_and_the_number():
    line = figure_data(bits_draw.figure_of(bits_data.from_text(nm.E2M1, "5.4")))["axes"][1]
    ticks = [xy[0][0] for xy in line["lines"] if len(xy) == 2]
    assert ticks == [2.0, 3.0, 4.0, 6.0]
    assert [xy for xy in line["lines"] if len(xy) == 1] == [[[5.4, 0.8]]]
    (band,) = [patch["place"] for patch in line["patches"]]
    assert band[0] == 5.0 and band[0] + band[2] == 7.0  # to the end of the line: all above saturates
    assert "5.4: error +0.6" in line["texts"]


@pytest.mark.parametrize("fmt", [nm.E2M1, nm.E5M2, nm.E8M0, nm.S2F6, nm.TF32, FP32], ids=lambda f: f.name)
def test_every_kind_of_state_is_drawn(fmt: nm.Format):
    for text, rounding in (("0.3", STOCHASTIC), ("nan", nm.Rounding.NEAREST_EVEN), ("-inf", nm.Rounding.TOWARD_ZERO)):
        state = bits_data.from_text(fmt, text, rounding)
        shown = figure_data(bits_draw.figure_of(state))["axes"]
        bits_shown = "".join(t for t in shown[0]["texts"] if t in ("0", "1"))
        assert bits_shown == f"{state.code:0{fmt.bits}b}"
        if math.isfinite(state.result):
            assert any(xy[0][0] == pytest.approx(state.result, rel=1e-5) for xy in shown[1]["lines"])


def test_a_name_with_dollars_is_no_formula():
    odd = nm.Format("$x^$", "float", 4, 2, 1, bias=1)
    plots.render(bits_draw.figure_of(bits_data.from_text(odd, "5.4")), "png")


def test_names_tell_values_apart():
    assert bits_draw.names_of([2.0, 3.0, 4.0]) == ["2", "3", "4"]
    near = [0.1, math.nextafter(0.1, 1)]
    assert len(set(bits_draw.names_of(near))) == 2
    assert bits_draw.typeset("-3 x 2^-15") == "\N{MINUS SIGN}3 × $2^{-15}$"


def test_figures_show_every_value():
    left, right = figure_data(bits_figures.side_by_side())["axes"]
    counts = [len(fmt.values()) for fmt in reversed(bits_data.SMALL)]
    assert [len(line) for line in left["lines"]] == counts
    assert [len(line) for line in right["lines"]] == [sum(f.values() > 0) for f in reversed(bits_data.SMALL)]
    assert len(figure_data(bits_figures.steps())["axes"][0]["patches"]) == 2
