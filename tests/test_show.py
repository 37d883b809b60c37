"""The texts of `fourbit formats` and `fourbit show`.

Contract: the texts below, letter by letter; for every code of the narrow formats the value, the neighbours and the
interval that the text states. Oracles: the texts were worked out by hand; `Format.values` for counts and neighbours;
`encode`, tested by itself, at the ends of each interval and one float64 step beyond.
"""

import math
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

import fourbit
import numerics as nm
from numerics import show
from numerics.exact_text import exact
from numerics.formats import E3M2, FORMATS, TF32, Format

NARROW = [f for f in FORMATS.values() if f.bits <= 8]
TABLE = """\
format  bits  fields     bias  least          max           min normal  min subnormal  finite  specials
E2M1    4     s1 e2 m1   1     -6             6             1           0.5            15      none
E2M3    6     s1 e2 m3   1     -7.5           7.5           1           0.125          63      none
E3M2    6     s1 e3 m2   3     -28            28            0.25        0.0625         63      none
E4M3    8     s1 e4 m3   7     -448           448           0.015625    0.001953125    253     NaN 0x7F
E5M2    8     s1 e5 m2   15    -57344         57344         2^-14       2^-16          247     inf 0x7C, NaN 0x7E
UE4M3   7     e4 m3      7     0              448           0.015625    0.001953125    127     NaN 0x7F
E8M0    8     e8         127   2^-127         2^127         2^-127      2^-127         255     NaN 0xFF
S2F6    8     i2 f6      0     -2             1.984375      0.015625    0.015625       256     none
INT8    8     i8 f0      0     -128           127           1           1              256     none
INT4    4     i4 f0      0     -8             7             1           1              16      none
FP16    16    s1 e5 m10  15    -65504         65504         2^-14       2^-24          63487   inf 0x7C00, NaN 0x7E00
BF16    16    s1 e8 m7   127   -255 x 2^120   255 x 2^120   2^-126      2^-133         65279   inf 0x7F80, NaN 0x7FC0
TF32    19    s1 e8 m10  127   -2047 x 2^117  2047 x 2^117  2^-126      2^-136         522239  inf 0x3FC00, NaN 0x3FE00
s sign, e exponent, m mantissa; i integer and f fraction of a two's complement number
"""
CARDS = {
    "E4M3 0x6C": """\
E4M3 0x6C = 96
  bits         0 1101 100  sign, exponent, mantissa
  exponent     13 - bias 7 = 6
  mantissa     1 + 4/8 = 1.5
  value        (-1)^0 x 2^(13 - 7) x (1 + 4/8) = 96
  neighbours   88 (0x6B) below, 104 (0x6D) above
  rounds here  [92, 100] by nearest even
""",
    "e4m3 0b10000011": """\
E4M3 0x83 = -0.005859375
  bits         1 0000 011  sign, exponent, mantissa
  exponent     0, subnormal: 1 - bias 7 = -6
  mantissa     0 + 3/8 = 0.375
  value        (-1)^1 x 2^(1 - 7) x (0 + 3/8) = -0.005859375
  neighbours   -0.0078125 (0x84) below, -0.00390625 (0x82) above
  rounds here  (-0.0068359375, -0.0048828125) by nearest even
""",
    "E4M3 126": """\
E4M3 0x7E = 448
  bits         0 1111 110  sign, exponent, mantissa
  exponent     15 - bias 7 = 8
  mantissa     1 + 6/8 = 1.75
  value        (-1)^0 x 2^(15 - 7) x (1 + 6/8) = 448
  neighbours   416 (0x7D) below, none above
  rounds here  [432, inf] by nearest even
""",
    "E4M3 0xFF": """\
E4M3 0xFF = NaN
  bits         1 1111 111  sign, exponent, mantissa
  value        all bits of exponent and mantissa set: NaN, of either sign
  encode       never gives it: NaN becomes 0x7F
""",
    "E5M2 0x7C": """\
E5M2 0x7C = inf
  bits         0 11111 00  sign, exponent, mantissa
  value        exponent all ones, mantissa zero: infinity
  encode       never gives it: infinity saturates to 57344
""",
    "E5M2 0x7E": """\
E5M2 0x7E = NaN
  bits         0 11111 10  sign, exponent, mantissa
  value        exponent all ones, mantissa not zero: NaN
  encode       gives it for NaN
""",
    "UE4M3 0": """\
UE4M3 0x00 = 0
  bits         0000 000  exponent, mantissa
  exponent     0, subnormal: 1 - bias 7 = -6
  mantissa     0 + 0/8 = 0
  value        2^(1 - 7) x (0 + 0/8) = 0
  neighbours   none below, 0.001953125 (0x01) above
  rounds here  [0, 0.0009765625] by nearest even; negative numbers become NaN
""",
    "UE4M3 0x7F": """\
UE4M3 0x7F = NaN
  bits         1111 111  exponent, mantissa
  value        all bits set: NaN
  encode       gives it for NaN
""",
    "E8M0 0x85": """\
E8M0 0x85 = 64
  bits         10000101  exponent
  value        2^(133 - 127) = 64
  neighbours   32 (0x84) below, 128 (0x86) above
  rounds here  [48, 96) by nearest even
""",
    "E8M0 0": """\
E8M0 0x00 = 2^-127
  bits         00000000  exponent
  value        2^(0 - 127) = 2^-127, about 5.87747e-39
  neighbours   none below, 2^-126 (0x01) above
  rounds here  [0, 3 x 2^-128) by nearest even; negative numbers become NaN
""",
    "E8M0 255": """\
E8M0 0xFF = NaN
  bits         11111111  exponent
  value        the last code: NaN
  encode       gives it for NaN
""",
    "S2F6 0x81": """\
S2F6 0x81 = -1.984375
  bits         10.000001  two's complement
  integer      -127
  value        -127 / 2^6 = -1.984375
  neighbours   -2 (0x80) below, -1.96875 (0x82) above
  rounds here  (-1.9921875, -1.9765625) by nearest even
""",
    "INT4 8": """\
INT4 0x8 = -8
  bits         1000  two's complement
  integer      -8
  value        -8
  neighbours   none below, -7 (0x9) above
  rounds here  [-inf, -7.5] by nearest even
""",
    "TF32 0x3FBFF": """\
TF32 0x3FBFF = 2047 x 2^117
  bits         0 11111110 1111111111  sign, exponent, mantissa
  exponent     254 - bias 127 = 127
  mantissa     1 + 1023/1024 = 2047 x 2^-10
  value        (-1)^0 x 2^(254 - 127) x (1 + 1023/1024) = 2047 x 2^117, about 3.40116e+38
  neighbours   1023 x 2^118 (0x3FBFE) below, none above
  rounds here  (4093 x 2^116, inf] by nearest even
""",
    "E2M1 --value 5.4": """\
5.4 in E2M1 becomes 0x7 = 6
  error        +0.6, 11.111% of the number

rounding                      code  value  error
nearest, ties to even         0x7   6      +0.6
toward zero                   0x6   4      -1.4
toward +infinity              0x7   6      +0.6
toward -infinity              0x6   4      -1.4
nearest, ties away from zero  0x7   6      +0.6
stochastic, 70.00% of draws   0x7   6      +0.6
stochastic, 30.00% of draws   0x6   4      -1.4

E2M1 0x7 = 6
  bits         0 11 1  sign, exponent, mantissa
  exponent     3 - bias 1 = 2
  mantissa     1 + 1/2 = 1.5
  value        (-1)^0 x 2^(3 - 1) x (1 + 1/2) = 6
  neighbours   4 (0x6) below, none above
  rounds here  (5, inf] by nearest even
""",
}
# the first lines of `--value`: what became of the number
BECAME = {
    "E2M1 --value -1.5": ["-1.5 in E2M1 becomes 0xB = -1.5", "error        none: the number is a value of the format"],
    "E2M1 --value nan": [
        "nan in E2M1 becomes 0x7 = 6",
        "error        not a number",
        "policy       no NaN in this format: it becomes +max",
    ],
    "E4M3 --value nan": [
        "nan in E4M3 becomes 0x7F = NaN",
        "error        not a number",
        "policy       NaN becomes the format's NaN",
    ],
    "E4M3 --value=-inf": [
        "-inf in E4M3 becomes 0xFE = -448",
        "error        infinite",
        "policy       beyond the range -448 to 448: it saturates",
    ],
    "S2F6 --value 1.99": [
        "1.99 in S2F6 becomes 0x7F = 1.984375",
        "error        -0.005625, 0.283% of the number",
        "policy       beyond the range -2 to 1.984375: it saturates",
    ],
    "UE4M3 --value -1": [
        "-1.0 in UE4M3 becomes 0x7F = NaN",
        "error        not a number",
        "policy       no negative numbers in this format: they become NaN",
    ],
    "E8M0 --value 0": [
        "0.0 in E8M0 becomes 0x00 = 2^-127",
        "error        +5.87747e-39",
        "policy       no zero in this format, and nothing below 2^-127: it becomes that",
    ],
    "BF16 --value 0x1.8p-3": [
        "0.1875 in BF16 becomes 0x3E40 = 0.1875",
        "error        none: the number is a value of the format",
    ],
}


def output(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert fourbit.main(command.split()) == 0
    return capsys.readouterr().out


# ---- the tables ------------------------------------------------------------------------------------------------------


def test_table_of_element_formats(capsys: pytest.CaptureFixture[str]):
    assert output("formats", capsys).split("\n\n")[0] + "\n" == TABLE


def test_every_format_has_its_line(capsys: pytest.CaptureFixture[str]):
    elements, blocks = output("formats", capsys).split("\n\n")
    assert [line.split()[0] for line in elements.splitlines()[1:-1]] == list(nm.FORMATS)
    assert [line.split()[0] for line in blocks.splitlines()[1:]] == list(nm.BLOCK_FORMATS)


def test_finite_values_are_counted_right():
    for fmt in FORMATS.values():
        if fmt.bits <= 16:
            line = show.element_table([fmt]).splitlines()[1]
            assert f" {len(fmt.values())} " in f"{line} "
    codes = torch.arange(1 << 19, dtype=torch.int32)
    values = nm.decode(codes, TF32)
    assert f" {len(torch.unique(values[torch.isfinite(values)] + 0.0))} " in show.element_table([TF32])


def test_table_of_block_formats():
    assert show.block_table([nm.NVFP4_46, nm.NVFP4_2D, nm.IF4, nm.MXFP8, nm.FP8_128X128]) == (
        "block format  bits per value  element       block      scale  rule           outer scale\n"
        "NVFP4_46      4.5             E2M1          16         E4M3   four_over_six  tensor\n"
        "NVFP4_2D      4.03125         E2M1          16 x 16    E4M3   nvfp4          tensor\n"
        "IF4           4.5             E2M1 or INT4  16         E4M3   if4            tensor\n"
        "MXFP8         8.25            E4M3          32         E8M0   rceil          none\n"
        "FP8_128X128   8.00195         E4M3          128 x 128  FP32   amax           none"
    )


# ---- the cards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", CARDS)
def test_card(arguments: str, capsys: pytest.CaptureFixture[str]):
    assert output(f"show {arguments}", capsys) == CARDS[arguments]


@pytest.mark.parametrize("arguments", BECAME)
def test_what_became_of_a_number(arguments: str, capsys: pytest.CaptureFixture[str]):
    first, _, card = output(f"show {arguments}", capsys).split("\n\n")
    assert [line.strip() for line in first.splitlines()] == BECAME[arguments]
    name = arguments.split()[0]
    code = re.search("0x[0-9A-F]+", first.split("becomes")[1])
    assert card == show.code_card(FORMATS[name], int(code[0], 16)) + "\n"


def parse(text: str) -> float:
    """A number as the cards write it."""
    if "2^" in text:
        odd, exponent = re.fullmatch(r"(?:(-?\d+) x |(-?))2\^(-?\d+)", text).group(1, 3)
        sign = -1.0 if text.startswith("-") and odd is None else 1.0
        return math.ldexp(float(odd) if odd else sign, int(exponent))
    return float(text)


def row(card: str, name: str) -> str:
    return next(line[15:] for line in card.splitlines() if line[2:].startswith(name))


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
def test_every_code_states_its_value_neighbours_and_interval(fmt: Format):
    values = sorted(set(fmt.values().tolist()))
    for code in range(1 << fmt.bits):
        card, value = show.code_card(fmt, code), fmt.value(code)
        digits = f"{code:0{-(-fmt.bits // 4)}X}"
        assert card.startswith(f"{fmt.name} 0x{digits} = ")
        if not math.isfinite(value):
            assert ("NaN" if math.isnan(value) else "inf") in card.splitlines()[0] and "rounds here" not in card
            continue
        assert parse(card.splitlines()[0].split(" = ")[1]) == value
        assert row(card, "bits").split("  ")[0].replace(" ", "").replace(".", "") == f"{code:0{fmt.bits}b}"
        place = values.index(value)
        for side, near in (("below", place - 1), ("above", place + 1)):
            stated = re.search(rf"(?:none|([^,]+) \(0x([0-9A-F]+)\)) {side}", row(card, "neighbours"))
            if 0 <= near < len(values):
                assert parse(stated[1].strip()) == values[near] == fmt.value(int(stated[2], 16))
            else:
                assert stated[1] is None
        check_interval(fmt, code, row(card, "rounds here"))


def check_interval(fmt: Format, code: int, text: str) -> None:
    """The ends of the interval go where its brackets say, a step inside to `code`, a step outside not."""
    opening, low, high, closing = re.match(r"([\[(])(.*), (.*)([\])]) by nearest even", text).groups()
    for bracket, end, inward in ((opening, parse(low), math.inf), (closing, parse(high), -math.inf)):
        points = [end, math.nextafter(end, inward), math.nextafter(end, -inward)]
        at, inside, outside = nm.encode(torch.tensor(points, dtype=torch.float64), fmt).tolist()
        assert (at == code) == (bracket in "[]") and inside == code
        # a step beyond an infinite end is that end; beyond a zero that ends an interval, the other zero begins
        assert math.isinf(end) or outside != code


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.5, "1.5"),
        (-448.0, "-448"),
        (0.0001, "7378697629483821 x 2^-66"),  # float64's 0.0001 is no decimal of 9 digits
        (2.0**-9, "0.001953125"),
        (2.0**-14, "2^-14"),
        (-(2.0**-14), "-2^-14"),
        (3 * 2.0**-15, "3 x 2^-15"),
        (-3 * 2.0**-15, "-3 x 2^-15"),
        (2.0**40, "2^40"),
        (123456789.0, "123456789"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_are_written_without_rounding(value: float, text: str):
    assert exact(value) == text
    assert math.isnan(value) or parse(text) == value


def test_a_format_of_ones_own():
    """No mantissa, no sign: fields that are not there are not named."""
    powers = Format("E3M0", "float", 3, 3, 0, bias=3, specials="nan", signed=False)
    assert row(show.code_card(powers, 5), "bits") == "101  exponent"
    shifted = replace(E3M2, name="E3M2b4", bias=4)
    assert show.code_card(shifted, 0x1F).startswith("E3M2b4 0x1F = 14\n")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("E3M4", "float8_e3m4"),
        ("E3M2FN", "float6_e3m2fn"),
        ("E2M3FN", "float6_e2m3fn"),
        ("E2M1FN", "float4_e2m1fn"),
        ("e4m3fn", "float8_e4m3fn"),
        ("E5M2", "float8_e5m2"),
        ("E8M0FNU", "float8_e8m0fnu"),
    ],
)
def test_a_written_format_is_that_of_ml_dtypes(name: str, dtype: str):
    fmt = nm.format_named(name)
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    theirs = codes.view(getattr(ml_dtypes, dtype)).astype(np.float32)
    assert np.array_equal(fmt.table().numpy(), theirs, equal_nan=True)


def test_formats_that_no_library_has():
    assert nm.format_named("E3M0").values().tolist() == [s * v for s, v in SIGNED_POWERS]
    assert nm.format_named("INT2").values().tolist() == [-2, -1, 0, 1]
    assert nm.format_named("S3F4").values().tolist() == [i / 16 for i in range(-64, 64)]
    assert nm.format_named("UE2M2FN").values().tolist() == [*(i / 4 for i in range(8)), 2, 2.5, 3, 3.5, 4, 5, 6, 7]
    assert nm.format_named("UE4M4FN").nan_code == 255 and nm.format_named("E5M0FNU").max == 2.0**15


SIGNED_POWERS = [(-1, 2.0**k) for k in range(4, -3, -1)] + [(1, 0.0)] + [(1, 2.0**k) for k in range(-2, 5)]


def test_a_format_alone_prints_its_line_and_formula(capsys: pytest.CaptureFixture[str]):
    _, line, _, formula = output("show E3M2FN", capsys).splitlines()
    assert line.split() == ["E3M2", "6", "s1", "e3", "m2", "3", "-28", "28", "0.25", "0.0625", "63", "none"]
    assert formula.endswith("(-1)^s x 2^(E - 3) x (1 + M/4); (-1)^s x 2^-2 x M/4 where E = 0")


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("fp4 0", "FORMAT='fp4' is unknown: use one of E2M1, E2M3, E3M2, E4M3, E5M2, UE4M3, E8M0, S2F6"),
        ("E4M3FNUZ 0", "FORMAT='E4M3FNUZ' is unknown"),
        ("E4M3FNU 0", "FORMAT='E4M3FNU' is unknown"),
        ("E9M1 0", "exponent_bits=9 of format E9M1: use 1 to 8"),
        ("INT40 0", "bits=40 of format INT40: use 2 to 32"),
        ("nvfp4 0", "FORMAT='nvfp4' is a block format: `fourbit formats` has it; show its elements, E2M1"),
        ("E4M3 256", "code=256 is not a code of E4M3: use 0 to 255"),
        ("E4M3 -1", "code=-1 is not a code of E4M3: use 0 to 255"),
        ("E4M3 6C", "CODE='6C' is no integer: write 0x6C, 0b1101100 or 108"),
        ("E4M3 1 --value 2", "CODE=1 and --value=2: give one of them"),
        ("E4M3 --value x", "--value='x' is no float64: write 5.4, 0x1.8p-3, nan or inf"),
        ("E4M3 --value 0x1p9999", "--value='0x1p9999' is no float64"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]):
    assert fourbit.main(["show", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"fourbit: error: {sentence}") and err.count("\n") == 1


@pytest.mark.parametrize("command", ["formats", "show"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        fourbit.main([command, "--help"])
    assert end.value.code == 0 and f"usage: fourbit {command}" in capsys.readouterr().out
