"""Exact sums of products, a @ b.T rounded once to FP32, in float64.

If the exponents at hand prove that every partial sum fits 53 bits, one float64 product is exact in any order. If the
proof fails only because K is long, K is cut into runs for which it holds. Otherwise each operand is cut into slices
narrow enough that every product of two slices is provably exact (Ozaki, Ogita, Oishi and Rump, Numerical Algorithms 59,
2012). The few float64 results are added as a non-overlapping expansion (Shewchuk 1997, grow-expansion), rounded to odd,
then to FP32.
"""

from __future__ import annotations

import torch
from torch import Tensor


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """Exact a @ b.T rounded once to FP32.

    Args: a (..., M, K), b (..., N, K): float32, or float64 holding products of a few float32 factors.

    A sum that is exactly zero is +0. A row that holds NaN or Inf gives what IEEE arithmetic gives in any order: NaN, or
    infinity where signs agree.
    """
    a, b = a.to(torch.float64), b.to(torch.float64)
    wild_a, wild_b = ~torch.isfinite(a).all(-1), ~torch.isfinite(b).all(-1)
    if bool(wild_a.any() | wild_b.any()):
        tame = exact_product(a.masked_fill(wild_a[..., None], 0.0), b.masked_fill(wild_b[..., None], 0.0))
        return torch.where(wild_a[..., :, None] | wild_b[..., None, :], (a @ b.mT).to(torch.float32), tame)
    carry = max(a.shape[-1] - 1, 0).bit_length()  # bits that a sum of K terms can grow by
    if _width(a) + _width(b) + carry <= 53:
        return (a @ b.mT + 0.0).to(torch.float32)  # a library may return -0 for an empty or zero sum
    bits = (53 - carry) // 2 - 1
    slices_b = _slices(b, bits)
    return _round_expansion([x @ y.mT for x in _slices(a, bits) for y in slices_b])


def _width(x: Tensor) -> int:
    """Bits between the largest magnitude of a row and the least set bit of any value in it, maximum over rows."""
    if x.numel() == 0:
        return 0
    fraction, exponent = torch.frexp(x)
    significand = (fraction * 2.0**53).to(torch.int64)
    lowest_bit = (significand & -significand).to(torch.float64)
    _, trailing = torch.frexp(lowest_bit)  # index of the least set bit + 1
    nonzero = x != 0
    least = torch.where(nonzero, exponent.to(torch.int64) - 53 + trailing - 1, 1 << 30).amin(-1)
    most = torch.where(nonzero, exponent.to(torch.int64), -(1 << 30)).amax(-1)
    return max(int((most - least).max()), 0)


def _slices(x: Tensor, bits: int) -> list[Tensor]:
    """Slices that add up to x exactly; in each row all values are multiples of a quantum, at most 2^bits of it."""
    out = []
    while bool((x != 0).any()):
        _, exponent = torch.frexp(x.abs().amax(-1, keepdim=True))
        # adding 1.5 2^(52 + e - bits) rounds to multiples of 2^(e - bits)
        big = torch.ldexp(torch.full_like(x[..., :1], 1.5), exponent + (52 - bits))
        head = (x + big) - big
        out.append(head)
        x = x - head
    return out or [x]


def _round_expansion(sums: list[Tensor]) -> Tensor:
    """The exact sum of float64 tensors rounded once to FP32."""
    expansion: list[Tensor] = []
    for term in sums:
        grown = []
        for part in expansion:  # from least to greatest: Shewchuk's grow-expansion
            term, low = _two_sum(term, part)
            grown.append(low)
        expansion = [*grown, term]
    head, tail = expansion[-1], torch.zeros_like(expansion[-1])
    for part in reversed(expansion[:-1]):
        # from greatest to least; once a remainder shows, what follows is smaller than it and cannot change its sign
        total, low = _two_sum(head, part)
        settled = tail != 0
        head, tail = torch.where(settled, head, total), torch.where(settled, tail, low)
    return _to_odd(head + 0.0, tail).to(torch.float32)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b = s + e exactly, s = fl(a + b) (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _to_odd(head: Tensor, tail: Tensor) -> Tensor:
    """head + tail (|tail| below one ulp of head) rounded to odd in float64, so that rounding again is harmless."""
    inexact = tail != 0
    inward = inexact & (torch.signbit(tail) != torch.signbit(head)) & (head != 0)
    bits = head.view(torch.int64) - inward.to(torch.int64)  # the neighbour toward zero
    return (bits | inexact.to(torch.int64)).view(torch.float64)
