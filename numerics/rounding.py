"""Rounding a magnitude to an integer number of quanta: every mode in one place.

For a format with m mantissa bits and smallest normal exponent emin, a magnitude a in [0, max] has the quantum
2^q, q = max(exponent(a), emin) - m (a fixed-point format: q = -m always). Scaling by 2^-q is exact, so

    n = round(a 2^-q)                        the mode acts on one exact number: no double rounding
    code magnitude = n + ((q + m - emin) << m)

and a carry out of the mantissa (n = 2^(m+1)) is the next exponent's first code without a special case.

Stochastic rounding is the rule of PTX `cvt.rs` (PTX ISA 8.7, "Stochastic rounding"): the 16 leading discarded
bits are added to 16 random bits and the carry decides,

    n = (floor(a 2^(16-q)) + r) >> 16        P(up) = floor(fraction 2^16) / 2^16

so r = 0 truncates and exact values never move; with 32 random bits read 32 for 16. An exponent-only format is the case
m = 0 without subnormals or zero: its codes start at n = 1.

Arithmetic: integer bit operations, exact scalings by powers of two, floor/ceil/round-half-even of floats below 2^24
(float32) or 2^53 (float64); equal on every device.
"""

from __future__ import annotations

import struct
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
    STOCHASTIC = "stochastic"


RANDOM_WIDTHS = (16, 32)  # random bits that an element may consume; the hardware's conversions use 16

# mantissa bits, exponent bias, integer type of the two working precisions
_LAYOUT = {torch.float32: (23, 127, torch.int32), torch.float64: (52, 1023, torch.int64)}


def pattern(value: float, dtype: torch.dtype) -> int:
    """The bits of a number in float32 or float64, as a signed integer."""
    kinds = ("<f", "<i") if dtype == torch.float32 else ("<d", "<q")
    return int(struct.unpack(kinds[1], struct.pack(kinds[0], value))[0])


def reciprocal(value: float) -> float:
    """1 / value, rounded to float32: what a compiler cannot compute for itself, see `compiled`."""
    return float(struct.unpack("<f", struct.pack("<f", 1.0 / value))[0])


def working_dtype(x_dtype: torch.dtype, fmt: Format) -> torch.dtype:
    """float32 unless the input is float64, or the format has more than 22 significant bits, or 2^-q is no normal
    float32 number or might lose bits of a product."""
    if x_dtype == torch.float64 or max(fmt.mantissa_bits, fmt.bits if fmt.kind == "fixed" else 0) > 21:
        return torch.float64
    if fmt.kind == "fixed":
        return torch.float32
    m, lowest, highest = fmt.mantissa_bits, fmt.min_exponent, (fmt.max_code >> fmt.mantissa_bits) - fmt.bias
    return torch.float32 if 0 <= m - lowest <= 127 and highest - m <= 125 else torch.float64


def round_magnitude(
    a: Tensor,
    fmt: Format,
    rounding: Rounding,
    signed: Tensor | None = None,
    random_bits: Tensor | None = None,
    random_width: int = 16,
) -> Tensor:
    """Codes, without sign, of magnitudes `a`.

    Args:
        a: float32 or float64 in [0, fmt.max] (a negative fixed-point number reaches one step further; an exponent
            format starts at its least value), no NaN. `a.dtype` must be `working_dtype(..., fmt)`.
        rounding: the mode, applied to the signed number.
        signed: like `a`, the number whose magnitude `a` is; needed by the two directed modes only.
        random_bits: integers in [0, 2^random_width) like `a`; needed by STOCHASTIC only.

    Returns:
        int32 like `a`.
    """
    bits, bias, integer = _LAYOUT[a.dtype]
    if fmt.kind == "fixed":
        return _round_scaled(a * 2.0**fmt.mantissa_bits, fmt.bits, rounding, signed, random_bits, random_width)
    lowest = (fmt.min_exponent + bias) << bits
    exponent = (a.view(integer) & ~((1 << bits) - 1)).clamp_(min=lowest)  # exponent field in place, mantissa zero
    scale = ((2 * bias + fmt.mantissa_bits) << bits) - exponent  # the float 2^(m - e)
    v = a * scale.view(a.dtype)
    n = _round_scaled(v, fmt.mantissa_bits + 1, rounding, signed, random_bits, random_width)
    n.add_(((exponent - lowest) >> (bits - fmt.mantissa_bits)).to(torch.int32))
    return n.sub_(1) if fmt.kind == "exponent" else n


def _round_scaled(
    v: Tensor, width: int, rounding: Rounding, signed: Tensor | None, random_bits: Tensor | None, random_width: int
) -> Tensor:
    """Integer nearest to the exact magnitude v, at most 2^width, under the mode, int32."""
    match rounding:
        case Rounding.NEAREST_EVEN:  # of a sum with the first number whose neighbours are integers, bits count units
            start = 2.0 ** _LAYOUT[v.dtype][0]
            return ((v + start).view(_LAYOUT[v.dtype][2]) - pattern(start, v.dtype)).to(torch.int32)
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
            integer = torch.int32 if width + random_width < 31 else torch.int64
            leading = (v * 2.0**random_width).to(integer)  # truncates; below 2^(m + 1 + random_width)
            return (leading.add_(random_bits.to(integer)) >> random_width).to(torch.int32)
    return n.to(torch.int32)
