"""Products of block tensors: a @ b.T under a chosen accumulator.

Operands are decoded from codes: code value * block scale, an exact float32. An outer scale that is constant along
the contraction stays outside: result = sum * fl(outer_a * outer_b). One that varies inside it takes part in the sum.

    "fp32"   the library's FP32 product: its order, hence its bits, depend on shape, threads and device
    "exact"  the exact sum, rounded once to FP32: the same bits everywhere, for any split or order

Autocast, which would have the library multiply in another precision, is switched off around either.

`exact` works in float64. If the exponents at hand prove that every partial sum fits 53 bits, one float64 product is
exact in any order. Otherwise each operand is cut into slices narrow enough that every product of two slices is
provably exact (Ozaki, Ogita, Oishi and Rump, Numerical Algorithms 59, 2012); the few float64 results are added as a
non-overlapping expansion (Shewchuk 1997, grow-expansion), rounded to odd, then to FP32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .arguments import broadcasts, require_kind, require_same_device, require_tensor
from .blocks import BlockTensor
from .partition import check_groups

Operand = BlockTensor | Tensor
ACCUMULATORS = ("exact", "fp32")
_PLAIN = (torch.float32, torch.float16, torch.bfloat16)  # dtypes that are used as they are


def matmul(a: Operand, b: Operand, accumulator: str = "exact", c: Tensor | None = None, groups: Any = None) -> Tensor:
    """a @ b.T + c.

    Args:
        a: (..., M, K), b: (..., N, K): BlockTensors with blocks along their last axis, or plain tensors (float32 or
            narrower, used as they are). The two outer scales of a result multiply each other first: their product
            must be a float32 number, which holds for outers between 2^-63 and 2^63. accumulator: "exact" or "fp32".
        c: float32 or narrower, broadcasting to the result; added to the FP32 product with one more rounding. None:
            nothing.
        groups: offsets of E expert groups. With b (E, N, K) they cut the rows of a (T, K): row t meets its expert's
            b, and the result is (T, N). With b (N, T) they cut the contraction of a (M, T): the result is (E, M, N).

    Returns:
        float32 (..., M, N), or as said under `groups`.

    Raises:
        TypeError: operands of another kind, dtypes that are not used as they are. ValueError: contraction lengths that
        differ, blocks along another axis, groups that do not cover theirs, an unknown accumulator, a `c` that does not
        fit.
    """
    _check(a, b, accumulator, c, groups)
    offsets = _offsets(groups, a, b)
    if c is not None:
        _require_fit(c, _shape(a, b, offsets))
    with _without_autocast((a.codes if isinstance(a, BlockTensor) else a).device.type):
        out = _product(a, b, accumulator, offsets)
    return out if c is None else out + c.to(torch.float32)


def _product(a: Operand, b: Operand, accumulator: str, offsets: tuple[int, ...] | None) -> Tensor:
    """a @ b.T of checked operands."""
    inner_a, outer_a = _operand(a, "a", accumulator)
    inner_b, outer_b = _operand(b, "b", accumulator)
    product = exact_product if accumulator == "exact" else _library_product
    if offsets is None:
        return _scaled(product(inner_a, inner_b), outer_a, outer_b)
    if len(b.shape) == 3:
        return _grouped_rows(product, inner_a, inner_b, outer_a, outer_b, offsets)
    sums = [product(inner_a[:, i:j], inner_b[:, i:j]) for i, j in pairwise(offsets)]
    return _scaled(torch.stack(sums), outer_a, outer_b)


def _shape(a: Operand, b: Operand, offsets: tuple[int, ...] | None) -> tuple[int, ...]:
    """Of the result."""
    if offsets is None:
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    else:
        lead = torch.Size(() if len(b.shape) == 3 else (len(offsets) - 1,))
    return (*lead, a.shape[-2], b.shape[-2])


def _without_autocast(kind: str) -> AbstractContextManager[Any]:
    """Switches autocast off for a type of device, where there is one."""
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _check(a: Any, b: Any, accumulator: Any, c: Any, groups: Any) -> None:
    """Kinds and shapes of the arguments; `_operand` and `_offsets` check the rest."""
    for name, x in (("a", a), ("b", b)):
        require_kind(x, (BlockTensor, Tensor), name, "pass a BlockTensor or a torch tensor")
        if len(x.shape) < 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: pass a matrix, the contraction along its last axis")
    require_kind(accumulator, str, "accumulator", f"use one of {', '.join(ACCUMULATORS)}")
    if accumulator not in ACCUMULATORS:
        raise ValueError(f"accumulator={accumulator!r}: use one of {', '.join(ACCUMULATORS)}")
    shapes = f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}"
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"{shapes}: their last axes, the contraction, must agree")
    if groups is None and not broadcasts(a.shape[:-2], b.shape[:-2]):
        raise ValueError(f"{shapes}: their leading axes must broadcast")
    if groups is not None and (len(a.shape) != 2 or len(b.shape) not in (2, 3)):
        raise ValueError(f"{shapes}: groups take a (T, K) with b (E, N, K), or a (M, T) with b (N, T)")
    for name, x in (("a", a), ("b", b)):
        if isinstance(x, Tensor) and x.dtype not in _PLAIN:
            raise TypeError(f"{name} is {x.dtype}: pass float32, float16 or bfloat16, or what nm.quantize returns")
    first, second = (x.codes if isinstance(x, BlockTensor) else x for x in (a, b))
    require_same_device(second, "b", first, "a")
    if c is not None:
        require_tensor(c, "c")
        if c.dtype not in _PLAIN:
            raise TypeError(f"c has dtype {c.dtype}: pass float32, float16 or bfloat16")
        require_same_device(c, "c", first, "a")


def _require_fit(c: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless `c` broadcasts to the result's shape without enlarging it."""
    if c.ndim > len(shape) or any(n not in (1, m) for n, m in zip(reversed(c.shape), reversed(shape), strict=False)):
        raise ValueError(f"c has shape {tuple(c.shape)}: the product has {shape}; make them equal")


def _library_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.mT


def _scaled(sums: Tensor, outer_a: Tensor | None, outer_b: Tensor | None) -> Tensor:
    """Sums times fl(outer_a * outer_b)."""
    if outer_a is None and outer_b is None:
        return sums
    if outer_a is None or outer_b is None:
        return sums * (outer_b.mT if outer_a is None else outer_a)  # type: ignore[union-attr]
    return sums * (outer_a * outer_b.mT)


def _offsets(groups: Any, a: Operand, b: Operand) -> tuple[int, ...] | None:
    """`groups` checked against the axis that they cut and the experts of `b`."""
    grouped_rows = len(b.shape) == 3
    offsets = check_groups(groups, a.shape[0 if grouped_rows else -1])
    if offsets is not None and grouped_rows and len(offsets) != b.shape[0] + 1:
        experts = b.shape[0]
        raise ValueError(f"groups has {len(offsets)} offsets: b holds {experts} experts, so {experts + 1} are needed")
    return offsets


def _grouped_rows(
    product: Callable[[Tensor, Tensor], Tensor],
    a: Tensor,
    b: Tensor,
    outer_a: Tensor | None,
    outer_b: Tensor | None,
    offsets: tuple[int, ...],
) -> Tensor:
    """Rows of each group times their expert's matrix."""
    parts = []
    for expert, (i, j) in enumerate(pairwise(offsets)):
        rows = None if outer_a is None else outer_a.expand(a.shape[0], -1)[i:j]
        matrix = None if outer_b is None else outer_b.expand(b.shape[0], -1, -1)[expert]
        parts.append(_scaled(product(a[i:j], b[expert]), rows, matrix))
    return torch.cat(parts)


def _operand(x: Operand, name: str, accumulator: str) -> tuple[Tensor, Tensor | None]:
    """The factor inside the sum and the factor outside (broadcasting to (..., rows, 1)), if there is one."""
    if isinstance(x, Tensor):
        return x.to(torch.float32), None
    if x.axis != x.codes.ndim - 1:
        raise ValueError(
            f"{name} has its blocks along axis {x.axis}: the contraction is axis {x.codes.ndim - 1}; use .mT"
        )
    if x.outer is None or (x.outer.shape[-1] == 1 and x.outer_block is None):
        return x.values(), x.outer
    outer = x.outer_per_value()
    assert outer is not None
    if accumulator == "exact":
        return x.values().to(torch.float64) * outer.to(torch.float64), None  # at most 6 + 24 bits: exact
    return x.dequantize(), None


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
