"""What may happen to a number on its way to a code, or to the code: tables of roundings, cuts and mishaps.

    ROUNDINGS    number, format -> code: directions, and ties of every kind
    POWERS       the same of E8M0 scales: nearest, linearly and in log2, down, up
    CUTS         number -> number of fewer bits: bfloat16, float16 or a 10-bit mantissa, E4M3
    mishaps      code -> code: subnormals flushed, overflow to NaN or infinity, bytes copied by value

Numbers are float32 or float64 and exact until they are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

import numerics as nm

from .check_folded import Cut

Round = Callable[[Tensor, nm.Format], Tensor]


def _directed(mode: nm.Rounding) -> Round:
    return lambda q, fmt: nm.encode(q, fmt, mode)


def _ties(choose: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Round:
    """Nearest; of a tie's two codes, lower and upper, the upper one where `choose` says so."""

    def rounded(q: Tensor, fmt: nm.Format) -> Tensor:
        low, high = neighbours(q, fmt)
        return torch.where(_tie(q, low, high, fmt), torch.where(choose(q, low, high), high, low), nm.encode(q, fmt))

    return rounded


def neighbours(q: Tensor, fmt: nm.Format) -> tuple[Tensor, Tensor]:
    """The codes below and above numbers; the same of a number that has a code."""
    return nm.encode(q, fmt, nm.Rounding.TOWARD_NEGATIVE), nm.encode(q, fmt, nm.Rounding.TOWARD_POSITIVE)


def is_tie(q: Tensor, fmt: nm.Format) -> Tensor:
    """Whether a number lies in the middle of the values of two codes."""
    return _tie(q, *neighbours(q, fmt), fmt)


def _tie(q: Tensor, low: Tensor, high: Tensor, fmt: nm.Format) -> Tensor:
    below, above = (nm.decode(c, fmt).to(torch.float64) for c in (low, high))
    return (low != high) & (q.to(torch.float64) * 2 == below + above)


# Ties first: where all that differs are ties, no more is claimed.
ROUNDINGS: dict[str, Round] = {
    "with ties away from zero instead of to even": _directed(nm.Rounding.NEAREST_AWAY),
    "with ties toward zero instead of to even": _ties(lambda q, low, high: q < 0),
    "with ties toward +infinity instead of to even": _ties(lambda q, low, high: torch.ones_like(q, dtype=torch.bool)),
    "with ties toward -infinity instead of to even": _ties(lambda q, low, high: torch.zeros_like(q, dtype=torch.bool)),
    "with ties to odd instead of to even": _ties(lambda q, low, high: (high & 1) == 1),
    "toward zero, not to nearest": _directed(nm.Rounding.TOWARD_ZERO),
    "away from zero, not to nearest": lambda q, fmt: torch.where(torch.signbit(q), *neighbours(q, fmt)),
    "toward +infinity, not to nearest": _directed(nm.Rounding.TOWARD_POSITIVE),
    "toward -infinity, not to nearest": _directed(nm.Rounding.TOWARD_NEGATIVE),
}


# ---- E8M0 ------------------------------------------------------------------------------------------------------------


def _log2(halves: Callable[[Tensor], Tensor]) -> Round:
    """The integer nearest to fl(log2 q), float32, as tensor programs compute it."""
    return lambda q, fmt: _byte(halves(torch.log2(q.to(torch.float32))))


def _byte(k: Tensor) -> Tensor:
    return k.nan_to_num(neginf=-127.0).clamp(-127, 127).add(127).to(torch.uint8)


def _nearest_power(q: Tensor, fmt: nm.Format) -> Tensor:
    """2^k with |log2 q - k| <= 1/2: sqrt(1/2) is the border of a fraction in [1/2, 1)."""
    fraction, exponent = torch.frexp(q.to(torch.float64))
    k = exponent - (fraction.square() < 0.5).to(exponent.dtype)
    return _byte(torch.where(q == 0, -127, k).to(torch.float64))


def _away(k: Tensor) -> Tensor:
    return torch.copysign((k.abs() + 0.5).floor(), k)


POWERS: dict[str, Round] = {
    "up": _directed(nm.Rounding.TOWARD_POSITIVE),
    "down": _directed(nm.Rounding.TOWARD_ZERO),
    "to nearest": lambda q, fmt: nm.encode(q, fmt),  # ties up, as torch and ml_dtypes have it
    "to nearest, ties down": _ties(lambda q, low, high: torch.zeros_like(q, dtype=torch.bool)),
    "to nearest, ties to the even byte": _ties(lambda q, low, high: (high & 1) == 0),
    "to nearest, ties to the odd byte": _ties(lambda q, low, high: (high & 1) == 1),
    "to nearest in log2": _nearest_power,
    "to nearest in log2, halves to even": _log2(torch.round),
    "to nearest in log2, halves away from zero": _log2(_away),
    "to nearest in log2, halves up": _log2(lambda k: (k + 0.5).floor()),
    "up, through a float32 logarithm": _log2(torch.ceil),
    "down, through a float32 logarithm": _log2(torch.floor),
}


# ---- cuts ------------------------------------------------------------------------------------------------------------


def through(dtype: torch.dtype) -> Cut:
    """Rounded to a dtype and back."""
    return lambda t: t.to(dtype).to(t.dtype)


def ten_bits(t: Tensor) -> Tensor:
    """Rounded to nearest even of 10 mantissa bits and float32's exponents."""
    bits = t.to(torch.float32).view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32).to(t.dtype)


@cache
def cuts(dtypes: frozenset[torch.dtype]) -> dict[str, Cut]:
    """Cuts by name; to float16 only if a tensor of the dump, whose `dtypes` these are, is float16."""
    fp16 = {"float16": through(torch.float16)}
    if torch.float16 not in dtypes:
        fp16 = {"a 10-bit mantissa (as TF32 and FP16 have, though no tensor here is either)": ten_bits}
    return {"bfloat16": through(torch.bfloat16)} | fp16


@cache
def inverse_cuts(dtypes: frozenset[torch.dtype]) -> dict[str, Cut]:
    """Cuts of a reciprocal: also to E4M3."""
    return cuts(dtypes) | {"E4M3": lambda t: nm.round_to(t, nm.E4M3)}


# ---- mishaps ---------------------------------------------------------------------------------------------------------


def magnitude(codes: Tensor, fmt: nm.Format) -> Tensor:
    """Codes without their sign, int32; a fixed-point format's distance from zero."""
    c = codes.to(torch.int32)
    if fmt.kind == "exponent" or not fmt.signed:
        return c
    half = 1 << (fmt.bits - 1)
    return torch.where(c >= half, 2 * half - c, c) if fmt.kind == "fixed" else c & (half - 1)


def is_subnormal(codes: Tensor, fmt: nm.Format) -> Tensor:
    """Whether codes are of numbers below the format's normal ones, but for zero."""
    m = magnitude(codes, fmt)
    return (m > 0) & (m < (1 << fmt.mantissa_bits)) & (fmt.kind == "float")


def flushed(codes: Tensor, fmt: nm.Format) -> Iterator[tuple[str, Tensor]]:
    """(what happened, codes) where subnormal numbers are lost."""
    small, c = is_subnormal(codes, fmt), codes.to(torch.int32)
    sign = c - magnitude(codes, fmt)
    for words, lost in (
        ("flushed to zero", sign),
        ("flushed to +0", torch.zeros_like(c)),
        (f"raised to {fmt.min_normal:g}, the least normal number", sign + (1 << fmt.mantissa_bits)),
    ):
        yield words, torch.where(small, lost, c).to(torch.uint8)


def overflowed(codes: Tensor, q: Tensor, fmt: nm.Format) -> Iterator[tuple[str, Tensor]]:
    """(what happened, codes) where numbers above a format's largest do not saturate. `q`: before rounding."""
    if fmt.kind == "fixed":
        steps = (q.to(torch.float64) * 2.0**fmt.mantissa_bits).round().clamp(-(2.0**62), 2.0**62).to(torch.int64)
        yield f"above {fmt.max:g} wrap around instead of saturating", (steps & ((1 << fmt.bits) - 1)).to(torch.uint8)
    if fmt.kind != "float":
        return
    wider = nm.Format(
        f"{fmt.name} with one exponent bit more",
        "float",
        fmt.bits + 1,
        fmt.exponent_bits + 1,
        fmt.mantissa_bits,
        fmt.bias,
    )
    large = magnitude(nm.encode(q, wider), wider)
    top = 1 << (fmt.bits - 1)
    sign = torch.where(torch.signbit(q), top, 0)
    become = {"NaN": fmt.nan_code, "infinity": fmt.infinity_code, "zero": 0}
    for size, above in (("that round above", large > fmt.max_code), ("above", q.abs() > fmt.max)):
        for what, code in become.items():
            if code is not None:
                made = torch.where(above, code + sign, codes.to(torch.int32))
                yield f"{size} {fmt.max:g} become {what} instead of saturating", made.to(torch.uint8)
    words = f"that round above {fmt.max:g} keep the low bits of a code that is too large"
    above = large > fmt.max_code
    yield words, torch.where(above, (large & (top - 1)) | sign, codes.to(torch.int32)).to(torch.uint8)
    yield (
        f"{words}, its high bit in place of the sign",
        torch.where(above, (large & (2 * top - 1)) | sign, codes.to(torch.int32)).to(torch.uint8),
    )


def by_value(codes: Tensor, fmt: nm.Format) -> Iterator[tuple[str, Tensor]]:
    """(what happened, bytes) where a tensor of codes was converted instead of reinterpreted."""
    v, c = nm.decode(codes, fmt).to(torch.float64), codes.to(torch.int32)
    whole = v.nan_to_num().trunc().clamp(-(2.0**62), 2.0**62).to(torch.int64)
    as_bytes = "copied by value instead of by their bits"
    yield f"{as_bytes}: each is the number itself as an integer, its low 8 bits", whole.bitwise_and(255).to(torch.uint8)
    yield f"{as_bytes}: each is the number itself as uint8, from 0 to 255", whole.clamp(0, 255).to(torch.uint8)
    yield (
        f"{as_bytes}: each is the number itself as int8, from -128 to 127",
        (whole.clamp(-128, 127) & 255).to(torch.uint8),
    )
    near = v.nan_to_num().round().clamp(0, 255).to(torch.uint8)
    yield f"{as_bytes}: each is the number itself, rounded to uint8", near
    back = f"{as_bytes}: the byte, taken as a number, was rounded to {fmt.name}"
    yield back, nm.encode(c.to(torch.float32), fmt)
    yield f"{back}, as int8", nm.encode(torch.where(c > 127, c - 256, c).to(torch.float32), fmt)
