"""Notebook 1's panel, driven as a user does: buttons, text, lists.

Contract: bits and number follow each other, for every kind of format; whatever is typed is answered in words, under the
last good picture where nothing can be drawn. Oracle: `Format.value`, `numerics.oracle`.
"""

import math

import pytest
from matplotlib.figure import Figure

pytest.importorskip("ipywidgets")

import numerics as nm
from notebooks import bits
from notebooks.figure_data import figure_data
from numerics import oracle
from studies import plots

OWN = nm.Format("E3M1", "float", 5, 3, 1, bias=3)
STOCHASTIC = nm.Rounding.STOCHASTIC
pytestmark = pytest.mark.usefixtures("one_thread", "quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels that draw and do not render: a picture's data is read off the figure."""
    monkeypatch.setattr(plots, "render", lambda figure, kind: b"")


def data(panel: bits.Explorer) -> list:
    return figure_data(panel.picture.figure)["axes"]


def test_typing_moves_the_bits():
    panel = bits.explorer()
    before = data(panel)
    panel.controls["text"].value = "-2.4"
    assert panel.controls["bits"].value == 0b1100 and data(panel) != before
    assert [button.description for button in panel.controls["bits"].buttons] == list("1100")
    assert "-2.4 in E2M1 becomes 0xC = -2" in panel.picture.readout.replace("\N{MINUS SIGN}", "-")


@pytest.mark.parametrize("fmt", [nm.E2M1, nm.E4M3, nm.E8M0, nm.S2F6, nm.TF32, OWN], ids=lambda f: f.name)
def test_toggling_moves_the_number(fmt: nm.Format, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bits, "figure_of", lambda state: Figure())  # so many figures take seconds
    panel = bits.explorer(fmt, "1")
    row, code = panel.controls["bits"], panel.controls["bits"].value
    assert len(row.buttons) == fmt.bits
    for bit, button in enumerate(reversed(row.buttons)):
        button.value = not button.value
        code ^= 1 << bit
        assert row.value == panel.state.code == code
        value = float(panel.controls["text"].value)
        assert value == fmt.value(code) or (math.isnan(value) and math.isnan(fmt.value(code)))


def test_a_code_reached_by_its_bits_stays():
    panel = bits.explorer(nm.E4M3)
    panel.set(bits=0xFF)  # rounding never gives this NaN
    assert panel.state.code == 0xFF and "never gives it" in panel.picture.readout
    panel.controls["rounding"].value = STOCHASTIC
    assert panel.state.code == 0xFF and panel.controls["text"].value == "NaN"
    panel.controls["fmt"].value = nm.E2M1
    assert panel.state.code == 7 and len(panel.controls["bits"].buttons) == 4


def test_rounding_changes_the_code():
    panel = bits.explorer()
    before = data(panel)
    panel.controls["rounding"].value = nm.Rounding.TOWARD_ZERO
    assert panel.state.code == 6 and data(panel) != before


@pytest.mark.parametrize("text", ["abc", "", "5,4", "0x1p99999", "9" * 300 + "z"])
def test_what_is_no_number_is_told(text: str):
    panel = bits.explorer()
    before = data(panel)
    panel.controls["text"].value = text
    note = panel._note.value
    assert "is no number: type 5.4" in note and "the picture stays at 5.4" in note and len(note) < 250
    assert data(panel) == before and panel.controls["bits"].value == 7
    panel.controls["text"].value = "1"
    assert panel._note.value == "" and panel.state.code == 2


def test_a_change_of_format_goes_on_from_the_last_number():
    panel = bits.explorer()
    panel.controls["text"].value = "abc"
    panel.controls["fmt"].value = nm.E4M3
    assert panel.state.remark == "'abc' is no number: back to 5.4" in panel.picture.readout.replace("&#x27;", "'")
    assert panel.controls["text"].value == "5.4" and panel.state.code == oracle.nearest(5.4, nm.E4M3)
    panel.controls["text"].value = "abc"
    panel.controls["bits"].buttons[0].value = True
    assert panel._note.value == "" and panel.controls["text"].value == "-5.5"


@pytest.mark.parametrize(
    ("fmt", "text", "words"),
    [
        (nm.E2M1, "nan", "no NaN in this format: it becomes +max"),
        (nm.E4M3, "inf", "beyond the range −448 to 448: it saturates"),
        (nm.E2M1, "1e400", "1e400 is beyond float64"),
        (nm.E2M1, "1e38", "it saturates"),
        (nm.E8M0, "-1", "they become NaN"),
        (nm.E8M0, "0", "no zero in this format"),
    ],
)
def test_awkward_numbers_are_explained(fmt: nm.Format, text: str, words: str):
    panel = bits.explorer(fmt)
    panel.controls["text"].value = text
    assert panel._note.value == "" and words in panel.picture.readout


def test_steps_follow_the_values():
    panel = bits.explorer(nm.E2M1, "3")
    seen = []
    for _ in range(3):
        panel._steps[1].click()
        seen.append(panel.state.result)
    assert seen == [4.0, 6.0, 6.0] and "E2M1 has nothing above 6" in panel._note.value
    panel._steps[0].click()
    assert panel.state.result == 4.0 and panel._note.value == ""
    panel.set(fmt=nm.E4M3, text="nan")
    panel.step(0)
    assert "NaN has no neighbours" in panel._note.value


def test_a_format_of_ones_own_is_in_the_list():
    panel = bits.explorer(OWN, "0.3")
    assert panel.controls["fmt"].options[0] == ("E3M1 (yours)", OWN) and panel.state.result == 0.25
    assert len(bits.explorer().controls["fmt"].options) == len(nm.FORMATS)
    with pytest.raises(ValueError, match="number='x' is no number"):
        bits.explorer(OWN, "x")
