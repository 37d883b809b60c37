"""One code of an element format taken apart: its fields, its neighbours, the numbers that round to it, and why.

Codes have places on the number line: `place` counts codes from zero (from the least value of an exponent format), so a
neighbour is one place away. The ends of an interval are midpoints and values, exact in float64, and whether an end
belongs to it is asked of `encode` itself; so are the outcomes of a rounding, of which stochastic rounding has two.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch

from .codes import encode
from .exact_text import exact
from .formats import Format
from .rounding import Rounding

_FIELDS = 1 << 16  # random fields of 16 bits


def split(fmt: Format, code: int) -> tuple[int, int, int]:
    """Sign, exponent and mantissa fields of a float format's code."""
    magnitude = code & ((1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1)
    exponent, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
    return int(code != magnitude), exponent, mantissa


def bit_fields(fmt: Format, code: int) -> list[str]:
    """The bits of each field of `code`, in the order of `Format.fields`."""
    bits, parts = f"{code:0{fmt.bits}b}", []
    for _, width in fmt.fields:
        parts.append(bits[:width])
        bits = bits[width:]
    return parts


def place(fmt: Format, code: int) -> int:
    """Place of a finite code on the number line; both zeros are at 0."""
    if fmt.kind == "fixed":
        return code - ((code >> (fmt.bits - 1)) << fmt.bits)
    if fmt.kind == "float" and fmt.signed:
        magnitude = code & ((1 << (fmt.bits - 1)) - 1)
        return magnitude if code == magnitude else -magnitude
    return code


def at(fmt: Format, place: int) -> int | None:
    """Inverse of `place`; None beyond the largest finite values."""
    signed = fmt.kind == "fixed" or (fmt.kind == "float" and fmt.signed)
    least = -fmt.max_code - (fmt.kind == "fixed") if signed else 0
    if not least <= place <= fmt.max_code:
        return None
    if place >= 0:
        return place
    return place + (1 << fmt.bits) if fmt.kind == "fixed" else -place | (1 << (fmt.bits - 1))


def neighbours(fmt: Format, code: int) -> tuple[int | None, int | None]:
    """Codes of the next values below and above a finite code; None where it has none."""
    here = place(fmt, code)
    return at(fmt, here - 1), at(fmt, here + 1)


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, each end with or without itself."""

    low: float
    high: float
    low_in: bool
    high_in: bool

    def __str__(self) -> str:
        if self.low == self.high:
            return f"only {exact(self.low)}"
        return f"{'(['[self.low_in]}{exact(self.low)}, {exact(self.high)}{')]'[self.high_in]}"


def interval(fmt: Format, code: int, rounding: Rounding = Rounding.NEAREST_EVEN) -> Interval:
    """The numbers that become a finite code; under stochastic rounding (16 random bits) those that may."""
    value = fmt.value(code)
    below, above = neighbours(fmt, code)
    low = -math.inf if below is None else _end(value, fmt.value(below), rounding)
    high = math.inf if above is None else _end(value, fmt.value(above), rounding)
    if below is None and fmt.min >= 0 and fmt.nan_code is not None:
        low = 0.0  # negative numbers become NaN
    if value == 0 and fmt.kind == "float" and fmt.signed:  # each zero takes its own side
        low, high = (value, high) if code == 0 else (low, value)
    return Interval(low, high, _becomes(fmt, low, code, rounding), _becomes(fmt, high, code, rounding))


def _end(value: float, near: float, rounding: Rounding) -> float:
    """Where the numbers between `value` and its neighbour `near` stop becoming `value`."""
    upward, outward = near > value, abs(near) > abs(value)
    match rounding:
        case Rounding.NEAREST_EVEN | Rounding.NEAREST_AWAY:
            return (value + near) / 2
        case Rounding.TOWARD_ZERO:
            return near if outward else value
        case Rounding.TOWARD_POSITIVE:
            return value if upward else near
        case Rounding.TOWARD_NEGATIVE:
            return near if upward else value
        case Rounding.STOCHASTIC:  # 65535/65536 of the way can still be rounded back, 1/65536 of it up
            return near if outward else near + (value - near) / _FIELDS


def _becomes(fmt: Format, value: float, code: int, rounding: Rounding) -> bool:
    """Whether `value` becomes `code`, or may."""
    return code in _codes(fmt, value, rounding, torch.tensor([0, _FIELDS - 1]))


def _codes(fmt: Format, value: float, rounding: Rounding, fields: torch.Tensor) -> list[int]:
    """Codes that `value` becomes, one for each random field; a single one where nothing is random."""
    chance = rounding is Rounding.STOCHASTIC
    x = torch.full(fields.shape if chance else (1,), value, dtype=torch.float64)
    codes = encode(x, fmt, rounding, fields if chance else None).to(torch.int64) & ((1 << fmt.bits) - 1)
    listed: list[int] = codes.tolist()  # codes of 32 bits came as int32
    return listed


def outcomes(fmt: Format, value: float, rounding: Rounding = Rounding.NEAREST_EVEN) -> dict[int, float]:
    """Codes that `value`, a float64, becomes, with their probabilities, the likeliest first.

    Under stochastic rounding every field of 16 random bits is tried, so probabilities are exact: multiples of 2^-16.
    """
    counts = Counter(_codes(fmt, value, rounding, torch.arange(_FIELDS)))
    total = sum(counts.values())
    return {code: count / total for code, count in counts.most_common()}


def special(fmt: Format, code: int) -> str:
    """Why a code is a special, by its bits."""
    if fmt.kind == "exponent":
        return "the last code: NaN"
    if fmt.specials == "nan":
        return "all bits of exponent and mantissa set: NaN, of either sign" if fmt.signed else "all bits set: NaN"
    infinite = math.isinf(fmt.value(code))
    return f"exponent all ones, mantissa {'zero: infinity' if infinite else 'not zero: NaN'}"


def policy(fmt: Format, value: float) -> str:
    """Why `value` becomes what it becomes, where rounding alone does not say."""
    if math.isnan(value):
        return "NaN becomes the format's NaN" if fmt.nan_code is not None else "no NaN in this format: it becomes +max"
    if fmt.min >= 0 and value < 0:
        replacement = "NaN" if fmt.nan_code is not None else f"the least value, {exact(fmt.min)}"
        return f"no negative numbers in this format: they become {replacement}"
    if fmt.kind == "exponent" and value < fmt.min:
        return f"no zero in this format, and nothing below {exact(fmt.min)}: it becomes that"
    if not fmt.min <= value <= fmt.max:
        return f"beyond the range {exact(fmt.min)} to {exact(fmt.max)}: it saturates"
    return ""
