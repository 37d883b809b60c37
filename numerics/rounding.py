"""Rounding a magnitude to an integer number of quanta: every mode in one place.

For a format with m mantissa bits and smallest normal exponent emin, a magnitude a in [0, max] has the quantum
2^q, q = max(exponent(a), emin) - m (a fixed-point format: q = -m always). Scaling by 2^-q is exact, so

    n = round(a 2^-q)                        the mode acts on one exact number: no double rounding
    code magnitude = n + ((q + m - emin) << m)

and a carry out of the mantissa (n = 2^(m+1)) is the next exponent's first code without a special case.

Stochastic rounding is the rule of PTX `cvt.rs` (PTX ISA 8.7, "Stochastic rounding"): the 16 leading discarded
bits are added to 16 random bits and the carry decides,

    n = (floor(a 2^(16-q)) + r) >> 16        P(up) = floor(fraction 2^16) / 2^16

so r = 0 truncates and exact values never move. Arithmetic: integer bit operations, exact scalings by powers of
two, floor/ceil/round-half-even of floats below 2^24 (float32) or 2^53 (float64); equal on every device.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from .formats import Format


class Rounding(Enum):
    """How a value between two neighbours of a format is rounded."""

    NEAREST_EVEN = "nearest, ties to even"
    TOWARD_ZERO = "toward zero"
    TOWARD_POSITIVE = "toward +infinity"
    TOWARD_NEGATIVE = "toward -infinity"
    NEAREST_AWAY = "nearest, ties away from zero"
    STOCHASTIC = "stochastic, 16 random bits"


RANDOM_BITS = 16  # random bits that one element consumes

# mantissa bits, exponent bias, integer type of the two working precisions
_LAYOUT = {torch.float32: (23, 127, torch.int32), torch.float64: (52, 1023, torch.int64)}


def working_dtype(x_dtype: torch.dtype, fmt: Format) -> torch.dtype:
    """float32 unless the input is float64 or the format's range nears float32's (then 2^-q would overflow)."""
    return torch.float64 if x_dtype == torch.float64 or fmt.bias > 100 else torch.float32


def round_magnitude(
    a: Tensor, fmt: Format, rounding: Rounding, signed: Tensor | None = None, random_bits: Tensor | None = None
) -> Tensor:
    """Codes, without sign, of magnitudes `a`.

    Args:
        a: float32 or float64 in [0, fmt.max] (a negative fixed-point number reaches one step further), no NaN.
        fmt: a "float" or "fixed" format; `a.dtype` must be `working_dtype(..., fmt)`.
        rounding: the mode, applied to the signed number.
        signed: like `a`, the number whose magnitude `a` is; needed by the two directed modes only.
        random_bits: integers in [0, 2^16) like `a`; needed by STOCHASTIC only.

    Returns:
        int32 like `a`.
    """
    bits, bias, integer = _LAYOUT[a.dtype]
    if fmt.kind == "fixed":
        return _round_scaled(a * 2.0**fmt.mantissa_bits, rounding, signed, random_bits)
    lowest = (fmt.min_exponent + bias) << bits
    exponent = (a.view(integer) & ~((1 << bits) - 1)).clamp_(min=lowest)  # exponent field in place, mantissa zero
    scale = ((2 * bias + fmt.mantissa_bits) << bits) - exponent  # the float 2^(m - e)
    n = _round_scaled(a * scale.view(a.dtype), rounding, signed, random_bits)
    return n.add_(((exponent - lowest) >> (bits - fmt.mantissa_bits)).to(torch.int32))


def _round_scaled(v: Tensor, rounding: Rounding, signed: Tensor | None, random_bits: Tensor | None) -> Tensor:
    """Integer nearest to the exact magnitude v under the mode, int32."""
    match rounding:
        case Rounding.NEAREST_EVEN:
            n = v.round()
        case Rounding.TOWARD_ZERO:
            n = v.floor()
        case Rounding.NEAREST_AWAY:
            n = v.floor()
            n = n + (v - n >= 0.5)
        case Rounding.TOWARD_POSITIVE | Rounding.TOWARD_NEGATIVE:
            assert signed is not None
            shrinks = torch.signbit(signed) == (rounding is Rounding.TOWARD_POSITIVE)
            n = torch.where(shrinks, v.floor(), v.ceil())
        case Rounding.STOCHASTIC:
            assert random_bits is not None
            leading = (v * 2.0**RANDOM_BITS).to(torch.int32)  # truncates; below 2^(m + 17)
            return leading.add_(random_bits.to(torch.int32)) >> RANDOM_BITS
    return n.to(torch.int32)


def exponent_codes(x: Tensor, rounding: Rounding) -> Tensor:
    """E8M0 codes of float32 or float64 `x` by the rules of PTX `cvt.{rz,rp}.satfinite.ue8m0x2`, int32, any shape.

    TOWARD_ZERO keeps the exponent, TOWARD_POSITIVE adds one if any mantissa bit is set, NEAREST_EVEN and NEAREST_AWAY
    round at 1.5 2^k, the tie up (neighbours in E8M0 are 1 and 2 quanta of the lower binade, so the even one is the
    upper). Zero and anything below 2^-127 become code 0, infinity and overflow 254, NaN and negative numbers (which
    no code approximates) 255.

    Raises:
        ValueError: for a mode without a definition here (STOCHASTIC, TOWARD_NEGATIVE).
    """
    fraction, exponent = torch.frexp(x)  # x = fraction 2^exponent, fraction in [1/2, 1)
    match rounding:
        case Rounding.TOWARD_ZERO:
            up = torch.zeros_like(fraction, dtype=torch.bool)
        case Rounding.TOWARD_POSITIVE:
            up = fraction > 0.5
        case Rounding.NEAREST_EVEN | Rounding.NEAREST_AWAY:
            up = fraction >= 0.75
        case _:
            raise ValueError(
                f"rounding={rounding}: E8M0 has no such mode; use TOWARD_POSITIVE (rceil), TOWARD_ZERO or NEAREST_EVEN"
            )
    code = (exponent.to(torch.int32) - 1 + 127 + up.to(torch.int32)).clamp_(0, 254)
    code = torch.where(x == 0, 0, torch.where(torch.isinf(x), 254, code))
    return torch.where(torch.isnan(x) | (x < 0), 255, code)
