"""Numbers written without rounding: a short decimal, else an odd integer times a power of two."""

from __future__ import annotations

import math
from fractions import Fraction


def exact(value: float) -> str:
    """`value` without rounding: a decimal of up to 9 digits, else m x 2^e with m odd."""
    short = f"{value:.9g}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    if Fraction(short) == Fraction(value) and "e" not in short:
        return short
    numerator, denominator = value.as_integer_ratio()
    twos = (abs(numerator) & -abs(numerator)).bit_length() - 1
    exponent = twos - (denominator.bit_length() - 1)
    odd = numerator >> twos if numerator > 0 else -(-numerator >> twos)
    return {1: "", -1: "-"}.get(odd, f"{odd} x ") + f"2^{exponent}"


def readable(value: float) -> str:
    """`exact`, and what it is about where that is not plain to see: `3 x 2^-15, about 9.15527e-05`."""
    text = exact(value)
    return text + (f", about {value:.6g}" if "^" in text else "")
