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
Autocast, which would have the library multiply in another precision, is switched off around all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .accumulators import ACCUMULATORS, Accumulator
from .arguments import broadcasts, integer, require_kind, require_same_device, require_tensor
from .blocks import BlockTensor
from .exact_sum import block_width, exact_product
from .partition import check_groups
from .sequential import sequential_product
from .tensor_core import tensor_core_product
from .terms import FLOAT8, Terms, terms

Operand = BlockTensor | Tensor
Product = Callable[[Any, Any, Tensor | None], Tensor]
_PLAIN = (torch.float32, torch.float16, torch.bfloat16)  # dtypes that are used as they are


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
            narrower, used as they are; float8 ones where the accumulator takes their format). The two outer scales of a
            result multiply each other first: their product must be a float32 number, which holds for outers between
            2^-63 and 2^63. accumulator: a name of `ACCUMULATORS`.
        c: float32 or narrower, broadcasting to the result. None: nothing. See the module docstring.
        groups: offsets of E expert groups. With b (E, N, K) they cut the rows of a (T, K): row t meets its expert's
            b, and the result is (T, N). With b (N, T) they cut the contraction of a (M, T): the result is (E, M, N).
        promote: None, or after how many products an accumulator is promoted: a multiple of the row's length.
        splits: in how many parts K is summed.

    Returns:
        float32 (..., M, N), or as said under `groups`. A tensor core's NaN has the bits 0x7FFFFFFF.

    Raises:
        TypeError: operands of another kind, dtypes that are not used as they are. ValueError: contraction lengths that
        differ, blocks along another axis, groups that do not cover theirs, an unknown accumulator, operands that it
        does not take, a `c` that does not fit, promotion or splits of a sum without order.
    """
    row = _check(a, b, accumulator, c, groups)
    _check_order(row, promote, splits)
    offsets = _offsets(groups, a, b)
    shape = _shape(a, b, offsets)
    if c is not None:
        _require_fit(c, shape)
        c = c.to(torch.float32)
    device = a.codes.device if isinstance(a, BlockTensor) else a.device
    with _without_autocast(device.type):
        inner_a, outer_a = _operand(a, "a", row)
        inner_b, outer_b = _operand(b, "b", row)
        inside = row.steps and promote is None and splits == 1 and outer_a is None and outer_b is None
        start = c.expand(shape) if inside and c is not None else None
        product = _product(row, promote, splits, _width(a, b) if row.rule == "exact" else None)
        out = _sums(product, inner_a, inner_b, outer_a, outer_b, offsets, start)
    return out if c is None or inside else out + c


def _width(a: Operand, b: Operand) -> int | None:
    """Bits that a product may span, where scale bytes tell them."""
    found = 0
    for x in (a, b):
        if not isinstance(x, BlockTensor) or _varies(x):
            return None
        found += block_width(x)
    return found


def _varies(x: BlockTensor) -> bool:
    """Whether the outer scale varies along the contraction, the last axis."""
    return x.outer is not None and (x.outer.shape[-1] != 1 or x.outer_block is not None)


def _product(row: Accumulator, promote: int | None, splits: int, width: int | None) -> Product:
    """(a, b, value that the register starts from) -> a @ b.T of matrices under an accumulator."""
    if row.rule == "exact":
        return lambda a, b, _: exact_product(a, b, width)
    if row.rule == "library":
        return lambda a, b, _: _library_product(a, b)
    if row.rule == "sequential":
        return lambda a, b, _: sequential_product(a, b, promote, splits)
    return lambda a, b, start: tensor_core_product(a, b, row, start, promote, splits)


def _sums(
    product: Product,
    a: Any,
    b: Any,
    outer_a: Tensor | None,
    outer_b: Tensor | None,
    offsets: tuple[int, ...] | None,
    start: Tensor | None,
) -> Tensor:
    """a @ b.T of checked operands, times their outer scales."""
    if offsets is None:
        return _scaled(product(a, b, start), outer_a, outer_b)
    if len(b.shape) == 3:
        return _grouped_rows(product, a, b, outer_a, outer_b, offsets, start)
    sums = [
        product(a[:, i:j], b[:, i:j], None if start is None else start[e]) for e, (i, j) in enumerate(pairwise(offsets))
    ]
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


def _check(a: Any, b: Any, accumulator: Any, c: Any, groups: Any) -> Accumulator:
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
    row = ACCUMULATORS[accumulator]
    for name, x in (("a", a), ("b", b)):
        eight = isinstance(x, Tensor) and x.dtype in FLOAT8 and FLOAT8[x.dtype] in row.operands
        if isinstance(x, Tensor) and x.dtype not in _PLAIN and not eight:
            raise TypeError(f"{name} is {x.dtype}: pass float32, float16 or bfloat16, or what nm.quantize returns")
    first, second = (x.codes if isinstance(x, BlockTensor) else x for x in (a, b))
    require_same_device(second, "b", first, "a")
    if c is not None:
        require_tensor(c, "c")
        if c.dtype not in _PLAIN:
            raise TypeError(f"c has dtype {c.dtype}: pass float32, float16 or bfloat16")
        require_same_device(c, "c", first, "a")
    return row


def _check_order(row: Accumulator, promote: Any, splits: Any) -> None:
    """`promote` and `splits` against the accumulator. Raises TypeError or ValueError."""
    if integer(splits, "splits", "pass a number of parts, 1 or more") < 1:
        raise ValueError(f"splits={splits}: pass a number of parts, 1 or more")
    length = row.length or 1
    if promote is not None and (integer(promote, "promote", "pass a number of products") < 1 or promote % length):
        raise ValueError(f"promote={promote}: {row.name} takes steps of {length} products; pass a multiple of {length}")
    if row.rule in ("exact", "library") and (promote is not None or splits != 1):
        name = "promote" if promote is not None else "splits"
        why = "an exact sum has no order" if row.rule == "exact" else "the library's order is its own"
        raise ValueError(f"{name}={promote or splits}: {why}; leave it out, or use fp32 or a tensor core's accumulator")


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
    product: Product,
    a: Any,
    b: Any,
    outer_a: Tensor | None,
    outer_b: Tensor | None,
    offsets: tuple[int, ...],
    start: Tensor | None,
) -> Tensor:
    """Rows of each group times their expert's matrix."""
    parts = []
    for expert, (i, j) in enumerate(pairwise(offsets)):
        rows = None if outer_a is None else outer_a.expand(a.shape[0], -1)[i:j]
        matrix = None if outer_b is None else outer_b.expand(b.shape[0], -1, -1)[expert]
        begin = None if start is None else start[i:j]
        parts.append(_scaled(product(a[i:j], b[expert], begin), rows, matrix))
    return torch.cat(parts)


def _operand(x: Operand, name: str, row: Accumulator) -> tuple[Tensor | Terms, Tensor | None]:
    """The factor inside the sum and the factor outside (broadcasting to (..., rows, 1)), if there is one."""
    if isinstance(x, Tensor):
        return (terms(x, name, row) if row.steps else x.to(torch.float32)), None
    if x.axis != x.codes.ndim - 1:
        raise ValueError(
            f"{name} has its blocks along axis {x.axis}: the contraction is axis {x.codes.ndim - 1}; use .mT"
        )
    if row.steps:
        if _varies(x):
            raise ValueError(
                f"{name} has an outer scale that varies along the contraction, where no tensor core applies it: "
                'requantize with outer="multiply", or use exact, fp32 or library'
            )
        return terms(x, name, row), x.outer
    if not _varies(x):
        return x.values(), x.outer
    if row.rule != "exact":
        return x.dequantize(), None
    outer = x.outer_per_value()
    assert outer is not None
    return x.values().to(torch.float64) * outer.to(torch.float64), None  # at most 6 + 24 bits: exact
