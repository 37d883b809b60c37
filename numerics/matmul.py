"""Products of block tensors: a @ b.T under a chosen accumulator, a row of `accumulators.ACCUMULATORS`.

Operands are decoded from codes. An outer scale that is constant along the contraction stays outside: result = sum *
fl(outer_a * outer_b). One that varies inside it takes part in the sum.

    "exact"    the exact sum, rounded once to FP32: the same bits everywhere, for any split or order
    "fp32"     every product rounded once to FP32, then added in order of k: fl(... fl(fl(p_0 + p_1) + p_2) ...);
               the same bits everywhere, for any split of rows or batch
    "library"  the library's FP32 product: its order, hence its bits, depend on shape, threads and device
    others     models of tensor cores. Plain operands hold values of the formats that the row names; of block formats
               codes and block scales enter as the instruction takes them. K is filled up with zeros to whole steps

For these, and for "fp32", two things are done to longer sums:

    promote=N  after every N products the accumulator is added to a register of its own and starts again from zero:
               register = fl(register + accumulator), FP32, nearest even (DeepSeek-V3, arXiv 2412.19437, 3.3.2)
    splits=S   the steps of K (products, of "fp32") are cut into S runs of ceil(steps / S), the last ones shorter or
               empty; their results, each made as if alone, are added in order of k: fl(fl(r_0 + r_1) + r_2) ...

c is the value that a tensor core's register starts from, one of the terms of the first step, where that register is the
result: without promotion, splits and outer scales. Elsewhere it is added last, fl(result + c), as an epilogue does.
Autocast and torch's leave to multiply FP32 in TF32 or BF16 are switched off around all of them, and so is the flushing
of subnormal numbers (`subnormals`).

MX values that no float32 holds count as float32's largest number, as `BlockTensor.values` says; models of tensor cores
take scales as they are. Without products (K = 0) a register stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .accumulators import Accumulator
from .blocks import BlockTensor
from .exact_sum import block_width, exact_product
from .matmul_arguments import Operand, Prepared, prepared, varies
from .sequential import sequential_product
from .subnormals import kept
from .tensor_core import one_nan, tensor_core_product

Product = Callable[[Any, Any, Tensor | None], Tensor]


@kept
def matmul(
    a: Operand,
    b: Operand,
    accumulator: str = "exact",
    c: Tensor | None = None,
    groups: Any = None,
    *,
    promote: int | None = None,
    splits: int = 1,
) -> Tensor:
    """a @ b.T + c.

    Args:
        a: (..., M, K), b: (..., N, K): BlockTensors with blocks along their last axis, or plain tensors (float32 or
            narrower, used as they are; float8 ones where the accumulator takes their format; wider ones that hold FP8
            values count, as a whole, as the first of the accumulator's formats that holds them all). The two outer
            scales of a result multiply each other first: their product must be a float32 number, which holds for outers
            between 2^-63 and 2^63. accumulator: a name of `ACCUMULATORS`.
        c: float32 or narrower, broadcasting to the result. None: nothing. See the module docstring.
        groups: offsets of E expert groups. With b (E, N, K) they cut the rows of a (T, K): row t meets its expert's
            b, and the result is (T, N). With b (N, T) they cut the contraction of a (M, T): the result is (E, M, N).
        promote: None, or after how many products an accumulator is promoted: a multiple of the row's length.
        splits: in how many parts K is summed.

    Returns:
        float32 (..., M, N), or as said under `groups`. NaN has the bits 0x7FFFFFFF, except the library's. Only the
        library's product follows the gradient of its operands.

    Raises:
        TypeError: operands of another kind, not dense or without values, dtypes that are not used as they are.
        ValueError: contraction lengths that differ, blocks along another axis or, of tensor cores, off the places where
        they take a scale, groups that do not cover theirs, an unknown accumulator, operands that it does not take, a
        `c` that does not fit, promotion or splits of a sum without order.
    """
    p = prepared(a, b, accumulator, c, groups, promote, splits)
    with without_autocast(p.a.device.type), _float32_products():
        out = sums(_product(p.row, promote, splits, _width(a, b) if p.row.rule == "exact" else None), p)
    out = out if p.last is None else out + p.last
    return out if p.row.rule == "library" else one_nan(out)


def _width(a: Operand, b: Operand) -> int | None:
    """Bits that a product may span, where scale bytes tell them."""
    found = 0
    for x in (a, b):
        if not isinstance(x, BlockTensor) or varies(x):
            return None
        found += block_width(x)
    return found


def _product(row: Accumulator, promote: int | None, splits: int, width: int | None) -> Product:
    """(a, b, value that the register starts from) -> a @ b.T of matrices under an accumulator."""
    if row.rule == "exact":
        return lambda a, b, _: exact_product(a, b, width)
    if row.rule == "library":
        return lambda a, b, _: _library_product(a, b)
    if row.rule == "sequential":
        return lambda a, b, _: sequential_product(a, b, promote, splits)
    return lambda a, b, start: tensor_core_product(a, b, row, start, promote, splits)


def sums(product: Product, p: Prepared) -> Tensor:
    """a @ b.T of prepared operands under a product of matrices, times their outer scales."""
    a, b, start = p.a, p.b, p.start
    if p.offsets is None:
        return _scaled(product(a, b, start), p.outer_a, p.outer_b)
    if len(b.shape) == 3:
        return _grouped_rows(product, p, p.offsets)
    parts = [
        product(a[:, i:j], b[:, i:j], None if start is None else start[e])
        for e, (i, j) in enumerate(pairwise(p.offsets))
    ]
    return _scaled(torch.stack(parts), p.outer_a, p.outer_b)


def without_autocast(kind: str) -> AbstractContextManager[Any]:
    """Switches autocast off for a type of device, where there is one."""
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


@contextmanager
def _float32_products() -> Iterator[None]:
    """Keeps torch from multiplying FP32 in TF32 or BF16, where somebody has allowed that."""
    allowed = torch.get_float32_matmul_precision()
    if allowed == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)


def _library_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.mT


def _scaled(sums: Tensor, outer_a: Tensor | None, outer_b: Tensor | None) -> Tensor:
    """Sums times fl(outer_a * outer_b)."""
    if outer_a is None and outer_b is None:
        return sums
    if outer_a is None or outer_b is None:
        return sums * (outer_b.mT if outer_a is None else outer_a)  # type: ignore[union-attr]
    return sums * (outer_a * outer_b.mT)


def _grouped_rows(product: Product, p: Prepared, offsets: tuple[int, ...]) -> Tensor:
    """Rows of each group times their expert's matrix."""
    parts = []
    for expert, (i, j) in enumerate(pairwise(offsets)):
        rows = None if p.outer_a is None else p.outer_a.expand(p.a.shape[0], -1)[i:j]
        matrix = None if p.outer_b is None else p.outer_b.expand(p.b.shape[0], -1, -1)[expert]
        start = None if p.start is None else p.start[i:j]
        parts.append(_scaled(product(p.a[i:j], p.b[expert], start), rows, matrix))
    return torch.cat(parts)
