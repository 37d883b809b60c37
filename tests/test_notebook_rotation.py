"""Contract: notebook 5's panel shows a block, its rotation, the bytes of both wires and the errors of what arrives; its
tables count bytes; no input shows a traceback.

Oracle: the scalar `numerics.oracle` for transform, scales and codes; closed forms; published errors of blocks with one
|200| among normal numbers ("End-to-End 4-Bit Training" compares these wires).
"""

import math

import pytest
import torch

pytest.importorskip("ipywidgets")
from panel_cases import fixtures, plain, require_told

import numerics as nm
from notebooks import rotation
from notebooks import rotation_data as data
from notebooks.figure_data import figure_data
from numerics import oracle
from studies.combine_data import WIRES

pytestmark = pytest.mark.usefixtures("one_thread")


one, panel = fixtures(rotation.panel)


def test_a_trip_is_the_oracles():
    x, signs = data.row_of("normal", 5, 37.5, 3), data.signs_of("random", 9)
    y = oracle.hadamard(x.tolist(), signs.tolist())
    assert data.rotated(x, signs).tolist() == y
    for wire in WIRES:
        if wire.fmt is None:
            continue
        found = data.trip(x, signs, wire)
        scale, codes = oracle.mx_block(y if wire.rotated else x.tolist(), wire.fmt.element)
        assert found.wire_bytes() == [scale, *codes] and found.scale == 2.0 ** (scale - 127)
        decoded = [oracle.dequantize_mx(code, scale, wire.fmt.element) for code in codes]
        if wire.rotated:  # H is symmetric: the inverse is the transform without signs, then the signs
            back = oracle.hadamard(decoded, [1.0] * 32)
            decoded = [oracle.mul32(value, sign) for value, sign in zip(back, signs.tolist(), strict=True)]
        assert found.received.tolist() == decoded
        assert found.errors.tolist() == [abs(a - b) for a, b in zip(decoded, x.tolist(), strict=True)]


def test_the_published_outlier():
    """MXFP8 sends 200 as 192, a tie; S2F6 without a rotation keeps it."""
    x, signs = data.row_of("normal", 0, 200.0, 11), data.signs_of("random", 0)
    assert float(data.trip(x, signs, data.PLAIN).received[11]) == 192
    assert float(data.trip(x, signs, data.BY_NAME["S2F6"]).received[11]) == 200


def test_crest_factors_at_both_ends():
    x = data.row_of("all zero", 0, 1.0, 7)
    assert math.isclose(data.crest_of(x), math.sqrt(32), rel_tol=1e-12)
    assert math.isclose(data.crest_of(data.rotated(x, data.signs_of("random", 0))), 1, rel_tol=1e-6)  # FP32 factor
    ones = data.row_of("all one", 0, 1.0, 7)
    assert math.isclose(data.crest_of(data.rotated(ones, data.signs_of("all +1", 0))), math.sqrt(32), rel_tol=1e-6)
    found = data.crests(blocks=64)
    assert found["before"][-1] > 5.6 and found["after"][-1] < 1.1
    # normal blocks of 32: 2.37 on average
    assert all(abs(crest - 2.37) < 0.15 for crest in data.offset_crests()["random signs"])
    assert data.offset_crests()["signs all +1"][-1] > 5.6


def test_bytes_of_a_token():
    """4,096 values: a byte each and 128 scales; half a byte each, 256 scales and an FP32 outer scale."""
    found = {p.name: (p.codes, p.scales, p.outer, p.total, p.bits) for p in data.payloads(4096)}
    assert found["BF16"] == (8192, 0, 0, 8192, 16)
    assert found["MXFP8"] == found["RHT + S2F6"] == (4096, 128, 0, 4224, 8.25)
    assert found["NVFP4"] == (2048, 256, 4, 2308, 4.5 + 32 / 4096)
    assert "<td>4,224</td><td>8.25</td>" in plain(rotation.payload_table(4096))


def test_the_trade():
    """Published rms errors with |200|: MXFP8 8.0 and .0265, RHT + S2F6 .143 and .144. Sizes here spread over an octave
    around a power of two, so they are bracketed: linear in the size."""
    found = data.trade()
    at = data.SIZES.index(256)
    assert math.isclose(found["others"]["MXFP8"][at], 0.0265, rel_tol=0.03)
    for part in ("outlier", "others"):
        assert 0.1 < found[part]["RHT + S2F6"][at] < 0.25
    assert 4 < found["outlier"]["MXFP8"][at] < 11
    others, everything = (data.overtakes(found[part], "RHT + S2F6", "MXFP8") for part in ("others", "all"))
    assert 16 < others < 64 and everything == math.inf
    words = rotation.trade_words(found)
    assert words[1].startswith("others: MXFP8") and f"{others:.0f} standard" in words[1]
    assert rotation.trade_words({"x": {"RHT + S2F6": [2.0] * 12, "MXFP8": [1.0] * 12}}) == [
        "x: MXFP8 has the smaller error at every size"
    ]


def test_sums_commute_with_the_rotation():
    rows, exact, once, each = data.sums()
    weighted = sum(w * row.double() for w, row in zip(data.WEIGHTS, rows, strict=True))
    assert torch.allclose(exact, weighted, rtol=1e-12, atol=1e-12)
    # ten roundings of numbers up to 30 sqrt(32)
    assert float((once - each).abs().max()) < 10 * 2.0**-24 * 30 * math.sqrt(32)
    assert not torch.equal(once, each)
    # half a step of each row's S2F6, summed with weights and rotated, stays far below the outliers
    assert float((once.double() - exact).abs().max()) < 0.5
    order = plain(rotation.order_table())
    assert "<td>64</td>" in order and "<td>384</td>" in order


def test_the_table_of_formats_rounds():
    """0.01 is 0.64 steps of S2F6 and 5.12 of E4M3's subnormals."""
    e4m3, s2f6 = f"<td>{5 / 512:.6g}</td><td>{1 - 5 / 5.12:.2%}</td>", f"<td>{1 / 64:g}</td><td>56.25%</td>"
    assert e4m3 + s2f6 in plain(rotation.formats_table((0.01,)))


@pytest.mark.parametrize(
    ("text", "told"), (("abc", "'abc' is no number"), ("", "is no number"), ("1,5", "is no number"))
)
def test_bad_input_is_told_and_the_picture_stays(text: str, told: str, panel: rotation.Panel):
    require_told(panel, "size", text, told)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("text", "told"),
    (
        ("nan", "32 of 32 values are lost on MXFP8"),
        ("-inf", "The outlier is -inf in float32"),
        ("1e400", "The outlier is inf in float32"),
        ("1e38", "go beyond its largest number"),
        ("1e-45", "32 coefficients"),
        ("0", "32 coefficients"),
    ),
)
def test_extremes_are_drawn(text: str, told: str, panel: rotation.Panel):
    for row, signs in (("normal", "random"), ("all zero", "all +1")):
        panel.set(size=text, row=row, signs=signs)
        assert panel._note.value == "" and told in panel.picture.readout


def test_an_empty_block_is_exact(panel: rotation.Panel):
    panel.set(size="0", row="all zero")
    assert panel._note.value == ""
    texts = figure_data(panel.picture.figure)["axes"][2]["texts"]
    assert texts.count("00") == 66 and "hollow: exact" in figure_data(panel.picture.figure)["axes"][3]["title"]


def test_the_picture_shows_the_bytes_and_the_readout_the_errors():
    panel = rotation.panel()
    x, signs = data.row_of("normal", 0, 200.0, 11), data.signs_of("random", 0)
    texts = figure_data(panel.picture.figure)["axes"][2]["texts"]
    for wire in (data.PLAIN, data.ROTATED):
        y = nm.hadamard(x, 32, signs) if wire.rotated else x
        q = nm.quantize(y, wire.fmt)
        line = texts.index(wire.name)
        assert texts[line - 33 : line] == [f"{byte:02X}" for byte in (*q.scales.tolist(), *q.codes.tolist())]
        values = q.dequantize()
        error = ((nm.hadamard_inverse(values, 32, signs) if wire.rotated else values) - x).double().abs()
        others = torch.cat((error[:11], error[12:]))
        cells = [f"{e:.4g}" for e in (float(error[11]), float(others.square().mean().sqrt()))]
        assert "".join(f"<td>{cell}</td>" for cell in cells) in plain(panel.picture.readout)


@pytest.mark.parametrize(
    ("name", "value"), (("size", "20"), ("place", 12), ("row", "all one"), ("seed", 1), ("signs", "all +1"), ("key", 1))
)
def test_every_control_changes_the_picture(name: str, value: object, panel: rotation.Panel, one: tuple):
    panel.controls[name].value = value
    assert panel._note.value == "" and figure_data(panel.picture.figure) != one[2]
