"""Contract: notebook 4 shows for each operand of `cvt.rs` the random bits that the instruction gives it, the sum and
the result of the instruction; its word and its 32 buttons follow each other; no input shows a traceback.

Oracle: the scalar `numerics.oracle` (`split_word`, `stochastic`), the word 0x12345678 whose fields were read off a
B200, and closed forms.
"""

import random
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("ipywidgets")
from panel_cases import fixtures, require_told

import numerics as nm
from notebooks import random_bits as rb
from notebooks import random_bits_panel as panels
from notebooks.figure_data import figure_data
from numerics import oracle

pytestmark = pytest.mark.usefixtures("one_thread")
E2M1X4, E4M3X4 = rb.INSTRUCTIONS.values()


one, panel = fixtures(panels.panel)


@pytest.mark.parametrize(
    ("instruction", "fields"),
    ((E2M1X4, (0x6A48, 0x1256, 0x1E2C, 0x3478)), (E4M3X4, (0x2C48, 0x1234, 0x1E6A, 0x5678))),
)
def test_the_measured_word(instruction: rb.Instruction, fields: tuple[int, ...]):
    found = rb.convert([1.0] * 4, 0x12345678, instruction)
    assert tuple(each.field for each in found) == fields and [each.operand for each in found] == ["a", "b", "e", "f"]


@pytest.mark.parametrize("instruction", (E2M1X4, E4M3X4))
def test_converts_as_the_oracle(instruction: rb.Instruction):
    draw = random.Random(0)
    for _ in range(12):
        word = draw.getrandbits(32)
        values = [
            float(np.float32(draw.choice((1, -1)) * draw.choice((0.3, 2.0, 5.9, 400.0)) * draw.random()))
            for _ in "abef"
        ]
        f, e, b, a = oracle.split_word(word, instruction.fmt.bits)
        for each, value, field in zip(rb.convert(values, word, instruction), values, (a, b, e, f), strict=True):
            code = oracle.stochastic(value, instruction.fmt, field)
            assert (each.field, each.code, each.result) == (field, code, instruction.fmt.value(code))
            assert each.result == (each.outer if each.carry else each.inner)


@pytest.mark.parametrize("value", (2.25, 2.1, -0.2, 0.01, 3.999, 1e-9, 6.5, 5.0))
def test_fields_that_round_away_are_the_bits_cut_off(value: float):
    for fmt in (nm.E2M1, nm.E4M3):
        count = rb.away(value, fmt)
        down = oracle.stochastic(value, fmt, 0)
        assert oracle.stochastic(value, fmt, 65535 - count) == down
        assert count == 0 or oracle.stochastic(value, fmt, 65536 - count) != down


def test_the_bytes_of_a_pair_are_those_that_matter():
    """Toggling a bit changes the fields of the pair that its byte serves, and no other."""
    for instruction in (E2M1X4, E4M3X4):
        for bit in range(32):
            before, after = (rb.convert([1.0] * 4, word, instruction) for word in (0, 1 << bit))
            changed = [old.field != new.field for old, new in zip(before, after, strict=True)]
            upper = bit // 8 in instruction.upper
            assert (bit // 8 in instruction.lower) != upper and changed == [upper, upper, not upper, not upper]


def test_a_pair_is_unbiased_and_nearly_independent():
    for value, chance in ((2.25, 0.25), (2.5, 0.5)):
        found = rb.pair(value, nm.E2M1)
        assert found.straight == found.reverse == chance and found.both == chance**2 and found.correlation == 0
    assert abs(rb.pair(2.1, nm.E2M1).correlation) < 1e-3


@pytest.mark.parametrize("bits", (2, 4, 8, 16))
def test_what_few_bits_lose(bits: int):
    """Between 2 and 3 the mean of x is 2 + floor((x - 2) 2^bits) / 2^bits."""
    x, error = rb.lost(bits)
    assert np.array_equal(error, 2 + np.floor((x - 2) * 2.0**bits) / 2.0**bits - x)


def test_fewer_bits_shrink_more():
    lengths = [rb.shrinkage(bits) for bits in (2, 4, 8, 16)]
    assert all(few < more for few, more in pairwise(lengths)) and -1e-5 < lengths[-1] <= 0


def test_word_and_buttons_follow_each_other():
    panel = panels.panel(word="0")
    panel.controls["bit31"].value = True
    assert panel.controls["word"].value == "0x80000000" and panel.controls["bit31"].description == "1"
    panel.controls["word"].value = " 1234_5678 "
    pressed = sum(1 << bit for bit in range(32) if panel.controls[f"bit{bit}"].value)
    assert pressed == 0x12345678 and "0x1256" in panel.picture.readout
    assert all(panel.controls[f"bit{bit}"].description == str(0x12345678 >> bit & 1) for bit in range(32))
    panel.controls["word"].value = "zzz"
    panel.controls["bit0"].value = True  # the buttons still say what they are
    assert panel.controls["word"].value == "0x12345679" and panel._note.value == ""


@pytest.mark.parametrize(
    ("control", "text", "told"),
    (
        ("word", "", "is no hexadecimal word"),
        ("word", "0x12g4", "is no hexadecimal word"),
        ("word", "-1", "is no hexadecimal word"),
        ("word", "0x123456789", "has more than 32 bits"),
        ("values", "", "holds 0 numbers"),
        ("values", "1 2 3", "holds 3 numbers"),
        ("values", "1 2 x 4", "'x' is no number"),
    ),
)
def test_bad_input_is_told_and_the_picture_stays(control: str, text: str, told: str, panel: panels.Panel):
    require_told(panel, control, text, told)


def test_specials_do_what_the_instruction_does(panel: panels.Panel):
    panel.controls["values"].value = "nan, 1e400, -7, 1e38"
    assert panel._note.value == ""
    assert "<code>0x77F7</code>" in panel.picture.readout
    assert (
        "There is no NaN: it becomes 6." in panel.picture.readout
        and "Inf, also of a number beyond float32, becomes 6." in panel.picture.readout
    )
    panel.controls["instruction"].value = "cvt.rs.satfinite.e4m3x4.f32"
    assert "<code>0x7F7ECE7E</code>" in panel.picture.readout and "NaN stays NaN." in panel.picture.readout


@pytest.mark.parametrize(
    ("name", "value"),
    (("instruction", "cvt.rs.satfinite.e4m3x4.f32"), ("values", "2.5"), ("word", "0xC0FFEE43"), ("bit7", True)),
)
def test_every_control_changes_the_picture(name: str, value: object, panel: panels.Panel, one: tuple):
    panel.controls[name].value = value
    assert panel._note.value == "" and figure_data(panel.picture.figure) != one[2]
