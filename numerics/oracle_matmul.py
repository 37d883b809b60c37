"""The slow scalar twin of `matmul`: one dot product at a time, from codes, in exact rational arithmetic.

Like `oracle`, whose FP32 operations it uses, it shares nothing with the vectorized code but the formats: exponents are
read off a code's exponent field, truncation is an integer division of `Fraction`s, and the parameters of the tensor
cores are written down once more. NaN is one value here; a product of a zero is a zero term, whatever its sign.

Sources: those of `accumulators`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from .formats import E4M3, E8M0, FP16, Format
from .oracle import add32, exact_dot, float32, mul32

# name: (products per step, alignment bits, bits kept after the leading one, exponent of a zero)
STEPS = {
    "volta_fp16": (4, 23, 23, -131),
    "ampere_fp16": (8, 24, 23, -132),
    "ampere_bf16": (8, 24, 23, -132),
    "ampere_tf32": (4, 24, 23, -132),
    "ada_fp8": (16, 13, 13, -132),
    "hopper_fp16": (16, 25, 23, -133),
    "hopper_bf16": (16, 25, 23, -133),
    "hopper_tf32": (8, 25, 23, -133),
    "hopper_fp8": (32, 13, 13, -133),
    "blackwell_fp16": (16, 25, 23, -133),
    "blackwell_bf16": (16, 25, 23, -133),
    "blackwell_tf32": (8, 25, 23, -133),
    "blackwell_fp8": (32, 25, 23, -133),
    "blackwell_mxfp8": (32, 25, 23, -133),
    "blackwell_mxfp4": (64, 35, 23, -139),
    "blackwell_nvfp4": (64, 35, 23, -139),
    "mma_sync_fp8_as_fp16": (32, 25, 23, -133),
}


@dataclass(frozen=True)
class Line:
    """One row of an operand: element codes and, of blocks, a scale code for every `block` of them."""

    fmt: Format
    codes: Sequence[int]
    scale: Format | None = None
    scales: Sequence[int] = ()
    block: int = 1

    def element(self, k: int) -> float:
        """Value of an element, without scale; 0 beyond the end."""
        return self.fmt.value(self.codes[k]) if k < len(self.codes) else 0.0

    def exponent(self, k: int) -> int:
        """Exponent of an element as it is stored."""
        return _stored(self.fmt, self.codes[k])

    def factor(self, k: int) -> float:
        """Value of the scale of an element: 1 without, 0 beyond the end, without its sign."""
        if self.scale is None:
            return 1.0
        return abs(self.scale.value(self.scales[k // self.block])) if k < len(self.codes) else 0.0

    def factor_exponent(self, k: int) -> int:
        """Exponent of that scale as it is stored."""
        if self.scale is None:
            return 0
        code = self.scales[k // self.block]
        return code - E8M0.bias if self.scale is E8M0 else _stored(E4M3, code)


def _stored(fmt: Format, code: int) -> int:
    """Exponent field less the bias; a subnormal number's is that of the least normal one."""
    field = code >> fmt.mantissa_bits & (1 << fmt.exponent_bits) - 1
    return max(field, 1) - fmt.bias


def dot(kind: str, a: Line, b: Line, c: float = 0.0, promote: int | None = None, splits: int = 1) -> float:
    """The sum under an accumulator, c included as `matmul` includes it; outer scales are not known here."""
    if kind == "exact":
        values = [[float(Fraction(x.element(k)) * Fraction(x.factor(k))) for k in range(len(x.codes))] for x in (a, b)]
        return add32(exact_dot(*values), c)
    length = 1 if kind == "fp32" else STEPS[kind][0]
    steps = math.ceil(len(a.codes) / length)
    if kind != "fp32" and promote is None and splits == 1:
        return _chain(kind, a, b, range(steps), c)
    size, total = math.ceil(steps / splits), None
    every = size if promote is None else promote // length
    for first in range(0, steps, size):
        last, register = min(first + size, steps), None
        for start in range(first, last, every):
            part = _chain(kind, a, b, range(start, min(start + every, last)), 0.0)
            register = part if register is None else add32(register, part)
        assert register is not None
        total = register if total is None else add32(total, register)
    return add32(0.0 if total is None else total, c)


def _chain(kind: str, a: Line, b: Line, steps: range, c: float) -> float:
    """Steps one after the other, each from what the one before it left."""
    for step in steps:
        if kind == "fp32":
            c = add32(c, mul32(a.element(step), b.element(step)))
            continue
        length, bits, kept, zero = STEPS[kind]
        places = range(step * length, (step + 1) * length)
        if kind == "mma_sync_fp8_as_fp16":
            half, wide = 0.0, (_as_fp16(a), _as_fp16(b))
            for quarters in ((0, 1), (2, 3)):
                chosen = [_product(*wide, k) for k in places if k % 4 in quarters]
                half = _step(chosen, half, bits, kept, zero)
            c = add32(c, half)
        elif length == 64:
            c = _step([_group(a, b, range(k, k + 16)) for k in places[::16]], c, bits, kept, zero)
        else:
            c = _step([_product(a, b, k) for k in places], c, bits, kept, zero)
    return c


@dataclass(frozen=True)
class Term:
    """A summand: exact, or a float that is NaN or infinite; the exponent by which it is aligned, None of a zero."""

    value: Fraction | float
    exponent: int | None


def _product(a: Line, b: Line, k: int) -> Term:
    factors = [a.element(k), a.factor(k), b.element(k), b.factor(k)]
    if not all(map(math.isfinite, factors)):
        return Term(math.prod(factors), None)
    value = math.prod(map(Fraction, factors))
    if value == 0:
        return Term(value, None)
    return Term(value, a.exponent(k) + a.factor_exponent(k) + b.exponent(k) + b.factor_exponent(k))


def _group(a: Line, b: Line, places: range) -> Term:
    """Sixteen products under one pair of scales."""
    first = places[0]
    scales = (a.factor(first), b.factor(first))
    if any(map(math.isnan, scales)):
        return Term(math.nan, None)
    total = sum((Fraction(a.element(k)) * Fraction(b.element(k)) for k in places), Fraction(0))
    if 0 in scales:
        return Term(Fraction(0), None)
    value = total * Fraction(scales[0]) * Fraction(scales[1])
    return Term(value, a.factor_exponent(first) + b.factor_exponent(first))


def _as_fp16(x: Line) -> Line:
    """FP8 codes as FP16 codes of the same values."""
    table = _fp16_codes()
    assert FP16.nan_code is not None
    return Line(FP16, [FP16.nan_code if math.isnan(v) else table[v] for v in map(x.fmt.value, x.codes)])


@lru_cache(maxsize=1)
def _fp16_codes() -> dict[float, int]:
    """Code of every FP16 number."""
    return {FP16.value(code): code for code in range(1 << 16)}


def _step(terms: list[Term], c: float, bits: int, kept: int, zero: int) -> float:
    """Align, cut toward zero, add exactly, cut the sum."""
    odd = [float(t.value) for t in [*terms, Term(c, None)] if isinstance(t.value, float) and not math.isfinite(t.value)]
    if odd:
        return sum(odd)  # NaN if one is, or if infinities disagree
    start = Fraction(c)
    everything = [*terms, Term(start, None if start == 0 else max(math.frexp(c)[1] - 1, -126))]
    largest = max(zero if t.exponent is None else t.exponent for t in everything)
    unit = Fraction(2) ** (largest - bits)
    return _cut(sum(math.trunc(Fraction(t.value) / unit) for t in everything) * unit, kept)


def _cut(value: Fraction, kept: int) -> float:
    """Toward zero, `kept` bits after the leading one, subnormal numbers of the exponent -126; +0; 2^128 is infinite."""
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - kept)
    cut = math.trunc(value / unit) * unit
    return math.copysign(math.inf, value) if abs(cut) >= 2**128 else float32(cut)
