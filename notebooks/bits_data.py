"""What notebook 1 draws and tells, as numbers: every one decoded from codes by `numerics`.

A number typed is a float64, rounded once to the format. `state` is all that the explorer shows at a time.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

import torch

import numerics as nm
from numerics import anatomy
from numerics.exact_text import exact

from .panel import brief, number

LISTED = 512  # values that an overview shows one by one
SMALL = (nm.E2M1, nm.INT4, nm.E2M3, nm.E3M2, nm.E4M3, nm.E5M2, nm.S2F6)
AWKWARD = ("7", "-1", "1e400", "-inf", "nan", "-0", "1e-30")  # the inputs of the policy table


@dataclass(frozen=True)
class State:
    """One code of a format, and the number that became it.

    Args:
        fmt, code, rounding: what is looked at. value: the number; the code's own value where the bits came first.
        chances: code -> probability of all that the number becomes; empty where the bits came first.
        remark: what was done to the text, if anything.
    """

    fmt: nm.Format
    code: int
    value: float
    rounding: nm.Rounding = nm.Rounding.NEAREST_EVEN
    chances: tuple[tuple[int, float], ...] = ()
    remark: str = ""

    @property
    def result(self) -> float:
        """The value of the code."""
        return self.fmt.value(self.code)


def from_text(fmt: nm.Format, text: str, rounding: nm.Rounding = nm.Rounding.NEAREST_EVEN) -> State:
    """The code that the number in `text` becomes, the likelier of two. ValueError: the text is no number."""
    value = number(text, "number")
    chances = tuple(anatomy.outcomes(fmt, value, rounding).items())
    return State(fmt, chances[0][0], value, rounding, chances, _beyond_float64(text, value))


def from_code(fmt: nm.Format, code: int, rounding: nm.Rounding = nm.Rounding.NEAREST_EVEN) -> State:
    """A code by itself. ValueError: the format has no such code."""
    return State(fmt, code, fmt.value(code), rounding)


def _beyond_float64(text: str, value: float) -> str:
    """What reading the text as float64 made of a number that float64 cannot hold."""
    short = brief(text)
    plain = text.lower()
    digits = plain.replace("0x", "").split("p")[0] if "0x" in plain else plain.split("e")[0]
    if math.isinf(value) and "inf" not in text.lower():
        return (
            f"{short} is beyond float64, which ends at {float.fromhex('0x1.fffffffffffffp1023'):.5g}: read as infinity"
        )
    if value == 0 and re.search("[1-9a-f]", digits):
        return f"{short} is below float64, whose smallest number is 4.9e-324: read as 0"
    return ""


def as_text(value: float) -> str:
    """The number as text that reads back as itself."""
    return exact(value) if "^" not in exact(value) and len(exact(value)) < 16 else repr(value)


def window(fmt: nm.Format, code: int) -> list[int]:
    """Codes of the values around a finite code, ascending: three on either side, two where each is twice the last."""
    here, reach = anatomy.place(fmt, code), 2 if fmt.kind == "exponent" else 3
    near = [code if step == 0 else anatomy.at(fmt, here + step) for step in range(-reach, reach + 1)]
    return [c for c in near if c is not None]


def landmarks(fmt: nm.Format) -> tuple[list[float], str]:
    """Values that stand for the whole format, ascending, and what they are: all if they are few."""
    if fmt.bits <= 16 and fmt.count <= LISTED:
        return fmt.values().tolist(), f"all {fmt.count} values"
    if fmt.kind == "fixed":
        places = [1 << i for i in range(fmt.bits - 1)]
        places = [-fmt.max_code - 1, *(-p for p in reversed(places)), 0, *places, fmt.max_code]
    else:
        firsts = [e << fmt.mantissa_bits for e in range(1, (fmt.max_code >> fmt.mantissa_bits) + 1)]
        places = [*(1 << i for i in range(fmt.mantissa_bits)), *firsts, fmt.max_code]
        places = [*(-p for p in reversed(places)), 0, *places] if fmt.signed else [0, *places]
    codes = [anatomy.at(fmt, place) for place in dict.fromkeys(places)]
    values = nm.decode(torch.tensor([code for code in codes if code is not None]), fmt)
    return values.tolist(), f"the first value of each power of two, of {fmt.count:,}"


def half_steps(fmt: nm.Format) -> tuple[list[float], list[float]]:
    """Largest error of rounding to nearest between two neighbours, and where: both over the format's largest value.

    Returns: the positive values as shares of the largest, and half the gap that begins at each but the last.
    """
    values = [v for v in fmt.values().tolist() if v >= 0]
    gaps = [(b - a) / 2 / fmt.max for a, b in pairwise(values)]
    return [v / fmt.max for v in values], gaps


def wire_error(seed: int = 0) -> dict[str, float]:
    """Block format -> QSNR in dB of 65,536 standard normal values."""
    x = torch.randn(512, 128, generator=torch.Generator().manual_seed(seed))
    formats = (nm.MXS2F6, nm.MXFP8)
    return {fmt.name: nm.metrics.error(x, nm.quantize(x, fmt).dequantize()).qsnr for fmt in formats}
