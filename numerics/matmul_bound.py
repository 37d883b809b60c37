"""How far a product may be from its exact sum when its order is unknown: a bound for every element.

The exact sum here is s = sum_k a_k b_k of the factors inside the sum (see `matmul`), times fl(outer_a outer_b), plus c.
Let S = |c| + sum_k |a_k b_k|, c only where it is a term of the sum, and u = 2^-24.

A tensor core cuts every term of a step toward zero to a multiple of q = 2^(emax - F), and the step's sum to p bits
after the leading one. Cutting toward zero never enlarges a magnitude, so by induction every register value is at most
S. Hence in every order, with any assignment of products to steps,

    2^emax <= max(P, S, 2^-126)                P = max_k 2^(e_a + e_b), raw exponents; 2^-126 for zeros, subnormal c
    K + G terms are cut, each by less than q   G steps: (K + G) 2^-F max(P, S, 2^-126)
    G sums are cut                             each by less than 2^-p S + 2^(-126 - p)

P is bounded by the product of the largest powers of two in the rows, and by the sum over k of products of powers of
two, whichever is less. For "groups", K counts groups of products and exponents are those of scales. "halves" has
two steps for every 32 products, and an FP32 addition. An order is unknown inside the steps that are counted here: a
kernel that takes shorter steps, or more of them, is another accumulator.

An addition of FP32 results, of promotion, of splits, of c at the end, or of halves, errs by at most u of its result,
which is at most (1 + u)^A S after A of them: together gamma_A S, gamma_n = n u / (1 - n u) (Higham, Accuracy and
Stability of Numerical Algorithms, 2nd ed., lemma 3.1), and the terms above grow by 1 + gamma_A.

"fp32": K products and K additions, each rounded to nearest: gamma_(K + A) S + K 2^-150, in any order. "library": the
same with u = 2^-23, which admits truncation, and 2^-149; fused multiply-adds round less often. "exact": u |s| + 2^-150.

Outer scales multiply bound and sum, and one more rounding follows, of s itself for "exact". float64, in which the
bound is computed, adds K 2^-52 S. Where S reaches float32's largest number a partial sum may overflow, and where an
operand is not finite there is no sum: the bound is infinite.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .accumulators import Accumulator
from .exact_sum import exact_product
from .floats import power_of_two
from .matmul import sums, without_autocast
from .matmul_arguments import Inner, Operand, prepared
from .subnormals import kept
from .terms import ZERO, Terms

FLT_MAX = torch.finfo(torch.float32).max
U = 2.0**-24


@kept
def matmul_bound(
    a: Operand,
    b: Operand,
    accumulator: str,
    c: Tensor | None = None,
    groups: Any = None,
    *,
    promote: int | None = None,
    splits: int = 1,
) -> Tensor:
    """The bound of the module docstring: float64, of the shape of `matmul` of the same arguments, which see.

    Every result of the accumulator, whatever the order of the products, differs from the exact sum (times outer scales,
    plus c) by at most this much.
    """
    p = prepared(a, b, accumulator, c, groups, promote, splits)
    with torch.no_grad(), without_autocast(p.a.device.type):
        size = sums(_size, p).abs()
        bound = sums(lambda x, y, start: _inner(p.row, x, y, start, promote, splits), p).abs()
        if p.outer_a is not None or p.outer_b is not None:
            # of an exact sum s the bound is at least u |s|, which is nearer than S
            bound = (1 + U) * bound + (bound if p.row.rule == "exact" else U * size) + 2.0**-150
    if p.last is not None:
        added = p.last.detach().to(torch.float64).abs()
        bound, size = (1 + U) * bound + U * (size + added), size + added
    return torch.where(size + bound < FLT_MAX, bound, torch.inf)


def _size(a: Inner, b: Inner, start: Tensor | None) -> Tensor:
    """S: |a| @ |b|.T + |start|, float64."""
    first, second = (_values(x).abs() for x in (a, b))
    total = first @ second.mT
    return total if start is None else total + start.to(torch.float64).abs()


def _values(x: Inner) -> Tensor:
    """Factors, float64."""
    if isinstance(x, Tensor):
        return x.to(torch.float64)
    value = x.value.to(torch.float64)
    return value if x.scale is None else value * x.scale * _powers(x)


def _inner(row: Accumulator, a: Inner, b: Inner, start: Tensor | None, promote: int | None, splits: int) -> Tensor:
    """Of the sum without outer scales."""
    if row.rule == "exact":
        assert isinstance(a, Tensor) and isinstance(b, Tensor)
        return U * (1 + 2 * U) * exact_product(a, b).to(torch.float64).abs() + 2.0**-150
    size, k = _size(a, b, start), a.shape[-1]
    splits = min(splits, max(k, 1))
    added = splits - 1 + (0 if promote is None else -(-k // promote) + splits)
    if row.steps:
        assert isinstance(a, Terms) and isinstance(b, Terms)
        bound = _cut(row, a, b, size)
        added += -(-k // 32) if row.rule == "halves" else 0
        gamma = _gamma(added, U)
        bound = (1 + gamma) * bound + gamma * size
    else:
        unit = U if row.rule == "sequential" else 2 * U
        bound = _gamma(k + added, unit) * size + k * unit * 2.0**-126
    bound = bound + k * 2.0**-52 * size
    return torch.where(size + bound < FLT_MAX, bound, torch.inf)


def _gamma(operations: int, unit: float) -> float:
    return operations * unit / (1 - operations * unit) if operations * unit < 1 else float("inf")


def _cut(row: Accumulator, a: Terms, b: Terms, size: Tensor) -> Tensor:
    """What the truncations of a tensor core's steps lose."""
    assert row.length is not None and row.fraction_bits is not None
    terms, steps = -(-a.shape[-1] // row.group), -(-a.shape[-1] // row.length)
    sums_cut = 2 * steps if row.rule == "halves" else steps
    powers = [_powers(x)[..., :: row.group] for x in (a, b)]
    most = [x.amax(-1, keepdim=True) if terms else x.sum(-1, keepdim=True) for x in powers]
    largest = torch.minimum(most[0] @ most[1].mT, powers[0] @ powers[1].mT)
    largest = torch.maximum(largest, size).clamp(min=2.0**-126)
    kept = row.output.mantissa_bits
    cut = (terms + steps) * 2.0**-row.fraction_bits * largest
    return cut + sums_cut * (2.0**-kept * size + 2.0 ** (-126 - kept))


def _powers(x: Terms) -> Tensor:
    """2^exponent, float64; 0 of a zero."""
    none = x.exponent < ZERO // 2
    return torch.where(none, 0.0, power_of_two(torch.where(none, 0, x.exponent), torch.float64))
