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

from .blocks import BlockTensor
from .cache import cached
from .floats import power_of_two
from .formats import Format

_RUNS = 8  # at most; beyond, slices cost less
_SLICED = 1 << 26  # float64 results of slices that are held at a time


def exact_product(a: Tensor, b: Tensor, width: int | None = None) -> Tensor:
    """Exact a @ b.T rounded once to FP32.

    Args: a (..., M, K), b (..., N, K): float32, or float64 holding products of a few float32 factors. width: bits that
    a product of any two values of two rows may span, `row_width` of a and of b; None: found from the values.

    A sum that is exactly zero is +0. A row that holds NaN or Inf gives what IEEE arithmetic gives in any order: NaN, or
    infinity where signs agree.
    """
    wild_a, wild_b = ~torch.isfinite(a).all(-1), ~torch.isfinite(b).all(-1)
    if bool(wild_a.any() | wild_b.any()):
        tame = exact_product(a.masked_fill(wild_a[..., None], 0.0), b.masked_fill(wild_b[..., None], 0.0), width)
        wild = wild_a[..., :, None] | wild_b[..., None, :]
        return torch.where(wild, (a.to(torch.float64) @ b.to(torch.float64).mT).to(torch.float32), tame)
    width = row_width(a) + row_width(b) if width is None else width
    narrow = a.dtype == b.dtype == torch.float32  # a product of two such is a float64 number, however wide the rows
    a, b, length = a.to(torch.float64), b.to(torch.float64), a.shape[-1]
    carry = _carry(length)
    if not length or width + carry <= 53:
        return (a @ b.mT).add_(0.0).to(torch.float32)  # a library may return -0 for an empty or zero sum
    run = 1 << max(53 - width, 0)
    if length <= _RUNS * run and (width <= 53 or narrow):
        return _round_expansion([a[..., i : i + run] @ b[..., i : i + run].mT for i in range(0, length, run)])
    return _sliced_product(a, b, (53 - carry) // 2 - 1)


def _sliced_product(a: Tensor, b: Tensor, bits: int) -> Tensor:
    """The product from slices of `bits` bits, in parts, since operands have many slices, and every pair a result."""
    tall = max(_SLICED // (16 * max(b.shape[-1] * b.shape[:-2].numel(), 1)), 1)
    if b.shape[-2] > tall:
        return torch.cat([_sliced_product(a, part, bits) for part in b.split(tall, -2)], -1)
    if b.ndim == 2:  # leading axes of `a` are rows too
        return _by_rows(a.flatten(0, -2), b, bits).view(*a.shape[:-1], b.shape[0])
    return _by_rows(a, b, bits)


def _by_rows(a: Tensor, b: Tensor, bits: int) -> Tensor:
    slices_a, slices_b = _slices(a, bits), _slices(b, bits)
    row = len(slices_a) * len(slices_b) * torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]).numel() * b.shape[-2]
    parts = [
        _round_expansion([x @ y.mT for x in some for y in slices_b])
        for some in zip(*(x.split(max(_SLICED // max(row, 1), 1), -2) for x in slices_a), strict=True)
    ]
    return torch.cat(parts, -2)


def _carry(terms: int) -> int:
    """Bits that a sum can grow by."""
    return max(terms - 1, 0).bit_length()


def row_width(x: Tensor) -> int:
    """Bits between the largest magnitude of a row and the least set bit of any value in it, maximum over rows."""
    if x.numel() == 0:
        return 0
    kind, width, bias = (torch.int32, 23, 127) if x.dtype == torch.float32 else (torch.int64, 52, 1023)
    bits = x.contiguous().view(kind)
    field = (bits >> width) & (2 * bias + 1)
    significand = (bits & ((1 << width) - 1)) | (field.clamp(max=1) << width)
    # the least set bit as a number, whose exponent is its place
    place = ((significand & -significand).to(x.dtype).view(kind) >> width) - bias
    exponent, nonzero = field.clamp(min=1) - bias, significand != 0
    least = torch.where(nonzero, exponent - width + place, 1 << 20).amin(-1)
    most = torch.where(nonzero, exponent + 1, -(1 << 20)).amax(-1)
    return max(int((most - least).max()), 0)


def block_width(x: BlockTensor) -> int:
    """The same of block values without outer scale, or a little more: from element format and scale bytes alone."""
    element = [fmt for fmt in (x.fmt.element, x.fmt.alternative) if fmt is not None]
    if x.fmt.scale is None or x.scales.numel() == 0:  # float32 scales: products are rounded
        return row_width(x.values())
    top, low = (table[x.scales.to(torch.int64)] for table in _ends(x.fmt.scale, str(x.scales.device)))
    most = top.amax(-1) + max(_bits_of(fmt.max)[0] for fmt in element)
    least = low.amin(-1) + min(_bits_of(fmt.min_subnormal)[1] for fmt in element)
    # values saturate at float32's largest number, a multiple of 2^104
    return max(int((most.clamp(max=128) - least.clamp(max=104)).max()), 0)


@cached(maxsize=16)
def _ends(fmt: Format, device: str) -> tuple[Tensor, Tensor]:
    """Of every scale code: exponent above its leading bit and of its least bit; zero and NaN are no ends."""
    values = [abs(fmt.value(code)) for code in range(1 << fmt.bits)]
    ends = [_bits_of(v) if 0 < v < float("inf") else (-(1 << 14), 1 << 14) for v in values]
    top, low = torch.tensor(ends, dtype=torch.int32).to(device).unbind(-1)
    return top.contiguous(), low.contiguous()


def _bits_of(value: float) -> tuple[int, int]:
    """Exponents: the least one with value < 2^e, and that of the least set bit."""
    numerator, denominator = value.as_integer_ratio()  # the denominator is a power of two
    shift = denominator.bit_length() - 1
    return numerator.bit_length() - shift, (numerator & -numerator).bit_length() - 1 - shift


def _slices(x: Tensor, bits: int) -> list[Tensor]:
    """Slices that add up to x exactly; in each row all values are multiples of a quantum, at most 2^bits of it."""
    out = []
    while bool((x != 0).any()):
        _, exponent = torch.frexp(x.abs().amax(-1, keepdim=True))
        # adding 1.5 2^(52 + e - bits) rounds to multiples of 2^(e - bits)
        big = 1.5 * power_of_two(exponent + (52 - bits), torch.float64)
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
