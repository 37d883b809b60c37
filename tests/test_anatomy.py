"""Contract: the interval of a code holds exactly the numbers that become it, under every rounding; outcomes and their
probabilities; policies in words; places and neighbours. Oracle: `numerics.oracle`, which searches the table of values,
asked at the ends of each interval and one float64 step to either side.
"""

import math
from fractions import Fraction

import pytest
import torch

import numerics as nm
from numerics import anatomy, oracle

SIX = [nm.E2M1, nm.E3M2, nm.E4M3, nm.UE4M3, nm.E5M2, nm.E8M0, nm.S2F6, nm.INT4]
MODES = {
    nm.Rounding.NEAREST_EVEN: "nearest_even",
    nm.Rounding.NEAREST_AWAY: "nearest_away",
    nm.Rounding.TOWARD_ZERO: "toward_zero",
    nm.Rounding.TOWARD_POSITIVE: "toward_positive",
    nm.Rounding.TOWARD_NEGATIVE: "toward_negative",
}
FP32 = nm.Format("FP32", "float", 32, 8, 23, bias=127, specials="ieee")
POSITIVE = nm.Format("U5", "float", 5, 3, 2, bias=3, signed=False)  # no sign and no NaN
pytestmark = pytest.mark.usefixtures("one_thread")


def becomes(value: float, fmt: nm.Format, rounding: nm.Rounding) -> set[int]:
    """Every code that the oracle makes of `value`."""
    if value < 0 and not fmt.min < 0:
        return {fmt.nan_code}
    if rounding is not nm.Rounding.STOCHASTIC:
        return {oracle.nearest(value, fmt, MODES[rounding])}
    return {oracle.stochastic(value, fmt, field) for field in (0, 65535)}


@pytest.mark.parametrize("rounding", nm.Rounding, ids=lambda r: r.name)
@pytest.mark.parametrize("fmt", SIX, ids=lambda f: f.name)
def test_an_interval_holds_what_becomes_its_code(fmt: nm.Format, rounding: nm.Rounding):
    finite = [code for code in range(1 << fmt.bits) if math.isfinite(fmt.value(code))]
    for code in finite[:: 1 if fmt.bits < 8 else 3] + finite[-2:]:
        near = anatomy.interval(fmt, code, rounding)
        assert near.low <= fmt.value(code) <= near.high
        for end, inside, inward in ((near.low, near.low_in, math.inf), (near.high, near.high_in, -math.inf)):
            assert (code in becomes(end, fmt, rounding)) == inside, (code, end)
            if near.low < near.high:
                assert code in becomes(math.nextafter(end, inward), fmt, rounding), (code, end)
            if not math.isinf(end):
                outside = math.nextafter(end, -inward)
                assert code not in becomes(outside, fmt, rounding), (code, outside)


def test_intervals_by_hand():
    told = {rule: str(anatomy.interval(nm.E2M1, 7, rule)) for rule in nm.Rounding}
    assert told == {
        nm.Rounding.NEAREST_EVEN: "(5, inf]",
        nm.Rounding.NEAREST_AWAY: "[5, inf]",
        nm.Rounding.TOWARD_ZERO: "[6, inf]",
        nm.Rounding.TOWARD_POSITIVE: "(4, inf]",
        nm.Rounding.TOWARD_NEGATIVE: "[6, inf]",
        nm.Rounding.STOCHASTIC: "[131073 x 2^-15, inf]",  # 4 + 2/65536
    }
    assert str(anatomy.interval(nm.E2M1, 0, nm.Rounding.TOWARD_POSITIVE)) == "only 0"
    assert str(anatomy.interval(nm.E8M0, 0, nm.Rounding.TOWARD_POSITIVE)) == "[0, 2^-127]"
    assert str(anatomy.interval(POSITIVE, 0)) == "[-inf, 0.03125]"  # negative numbers become 0 where there is no NaN


@pytest.mark.parametrize("value", [2.25, -5.4, 5.4, 0.1, 3.0, 6.0, 100.0, -0.0, 1 / 3, 2.0**-30])
def test_chances_are_the_place_between_the_neighbours(value: float):
    chances = anatomy.outcomes(nm.E2M1, value, nm.Rounding.STOCHASTIC)
    low, high = oracle.stochastic(value, nm.E2M1, 0), oracle.stochastic(value, nm.E2M1, 65535)
    small, large = abs(nm.E2M1.value(low)), abs(nm.E2M1.value(high))
    up = 0 if low == high else math.floor((Fraction(abs(value)) - Fraction(small)) / Fraction(large - small) * 65536)
    expected = {low: 1 - up / 65536, high: up / 65536} if low != high else {low: 1.0}
    assert chances == expected
    assert list(chances.values()) == sorted(chances.values(), reverse=True)


@pytest.mark.parametrize("rounding", MODES, ids=lambda r: r.name)
def test_one_outcome_where_nothing_is_random(rounding: nm.Rounding):
    for value in (5.0, -2.5, 0.3, 1e300, -math.inf):
        assert anatomy.outcomes(nm.E4M3, value, rounding) == {oracle.nearest(value, nm.E4M3, MODES[rounding]): 1.0}


def test_codes_of_32_bits_are_not_negative():
    bits = int(torch.tensor(-1e9, dtype=torch.float32).view(torch.int32)) & 0xFFFFFFFF
    assert anatomy.outcomes(FP32, -1e9) == {bits: 1.0}
    assert anatomy.interval(FP32, bits).low_in


@pytest.mark.parametrize("fmt", SIX, ids=lambda f: f.name)
def test_neighbours_are_next_in_the_table(fmt: nm.Format):
    values = fmt.values().tolist()
    for code in range(1 << fmt.bits):
        if math.isfinite(fmt.value(code)):
            i = values.index(fmt.value(code))
            near = [None if c is None else fmt.value(c) for c in anatomy.neighbours(fmt, code)]
            assert near == [values[i - 1] if i else None, values[i + 1] if i + 1 < len(values) else None]


def test_fields_are_the_bits():
    assert anatomy.bit_fields(nm.E4M3, 0x6C) == ["0", "1101", "100"] and anatomy.split(nm.E4M3, 0xEC) == (1, 13, 4)
    assert anatomy.bit_fields(nm.S2F6, 0x81) == ["10", "000001"] and anatomy.bit_fields(nm.E8M0, 5) == ["00000101"]
    shifted = nm.Format("F", "fixed", 4, 0, 6, bias=0)  # i / 64: no integer bits
    assert shifted.fields == (("fraction", 4),) and anatomy.bit_fields(shifted, 9) == ["1001"]


def test_policies_in_words():
    assert anatomy.policy(POSITIVE, -1.0) == "no negative numbers in this format: they become the least value, 0"
    assert anatomy.policy(nm.UE4M3, -1.0) == "no negative numbers in this format: they become NaN"
    assert anatomy.policy(nm.E2M1, 6.0) == "" and "saturates" in anatomy.policy(nm.E2M1, -math.inf)
    assert anatomy.special(nm.E5M2, 0x7C).endswith("infinity") and anatomy.special(nm.E5M2, 0x7D).endswith("NaN")
