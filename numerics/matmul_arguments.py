"""The arguments of `matmul`, checked, and its operands taken apart into what is summed and what stays outside."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .accumulators import ACCUMULATORS, Accumulator
from .arguments import broadcasts, integer, require_kind, require_same_device, require_tensor
from .blocks import BlockTensor
from .partition import check_groups
from .terms import FLOAT8, Terms, terms

Operand = BlockTensor | Tensor
Inner = Tensor | Terms
_PLAIN = (torch.float32, torch.float16, torch.bfloat16)  # dtypes that are used as they are


@dataclass(frozen=True)
class Prepared:
    """Checked arguments.

    Args:
        row: the accumulator. a, b: the factors inside the sum, (..., rows, K). outer_a, outer_b: the factors outside,
            broadcasting to (..., rows, 1), or None. offsets: of groups, or None. shape: of the result. start: the value
            that registers start from, of that shape, or None. last: what is added at the end, or None.
    """

    row: Accumulator
    a: Inner
    b: Inner
    outer_a: Tensor | None
    outer_b: Tensor | None
    offsets: tuple[int, ...] | None
    shape: tuple[int, ...]
    start: Tensor | None
    last: Tensor | None


def prepared(a: Any, b: Any, accumulator: Any, c: Any, groups: Any, promote: Any, splits: Any) -> Prepared:
    """Raises what `matmul` raises."""
    row = _check(a, b, accumulator, c, groups)
    _check_order(row, promote, splits)
    offsets = _offsets(groups, a, b)
    if row.steps:
        _require_grid(a, b, offsets, row)
    shape = _shape(a, b, offsets)
    if c is not None:
        _require_fit(c, shape)
        c = c.to(torch.float32)
    if row.rule != "library":  # roundings have no gradient that means something
        a, b, c = (_detached(x) for x in (a, b, c))
    a, b = (x.resolve_neg() if isinstance(x, Tensor) else x for x in (a, b))
    inner_a, outer_a = _operand(a, "a", row)
    inner_b, outer_b = _operand(b, "b", row)
    inside = row.steps and promote is None and splits == 1 and outer_a is None and outer_b is None
    start = c.expand(shape) if inside and c is not None else None
    return Prepared(row, inner_a, inner_b, outer_a, outer_b, offsets, shape, start, None if inside else c)


def _detached(x: Any) -> Any:
    if isinstance(x, BlockTensor):
        return x if x.outer is None else x.derived(outer=x.outer.detach())
    return x.detach() if isinstance(x, Tensor) else x


def _require_grid(a: Operand, b: Operand, offsets: tuple[int, ...] | None, row: Accumulator) -> None:
    """Raises ValueError unless the blocks of both operands start where a tensor core takes a scale: at multiples of
    their length from the start of each contraction."""
    k = a.shape[-1]
    cuts = (0, k) if offsets is None or len(b.shape) == 3 else offsets
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, BlockTensor) or x.axis != x.codes.ndim - 1:
            continue
        own = x.groups or (0, k)
        if own != cuts and _starts(own, x.fmt.block) != _starts(cuts, x.fmt.block):
            raise ValueError(
                f"{name} has its blocks from offsets {own}, the product contracts from {cuts}: "
                f"{row.name} takes a scale every {x.fmt.block} products; quantize and multiply with the same groups, "
                "or use exact, fp32 or library"
            )


def _starts(cuts: tuple[int, ...], block: int) -> set[int]:
    """Where blocks start."""
    return {start for i, j in pairwise(cuts) for start in range(i, j, block)}


def _shape(a: Operand, b: Operand, offsets: tuple[int, ...] | None) -> tuple[int, ...]:
    """Of the result."""
    if offsets is None:
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    else:
        lead = torch.Size(() if len(b.shape) == 3 else (len(offsets) - 1,))
    return (*lead, a.shape[-2], b.shape[-2])


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
            takers = [r.name for r in ACCUMULATORS.values() if FLOAT8.get(x.dtype) in r.operands]
            also = f", or use one of {', '.join(takers)}" if takers else ""
            raise TypeError(
                f"{name} is {x.dtype}: pass float32, float16 or bfloat16, or what nm.quantize returns{also}"
            )
    first, second = (x.codes if isinstance(x, BlockTensor) else x for x in (a, b))
    require_same_device(second, "b", first, "a")
    if c is not None:
        require_tensor(c, "c")
        if c.dtype not in _PLAIN:
            raise TypeError(f"c has dtype {c.dtype}: pass float32, float16 or bfloat16")
        require_same_device(c, "c", first, "a")
    for name, x in (("a", first), ("b", second), ("c", c)):
        if isinstance(x, Tensor) and (x.is_meta or x.layout != torch.strided or x.is_nested):
            kind = "on the meta device, without values" if x.is_meta else f"of layout {x.layout}"
            kind = "nested" if x.is_nested else kind
            raise TypeError(f"{name} is {kind}: pass a dense tensor on a CPU or GPU")
    return row


def _check_order(row: Accumulator, promote: Any, splits: Any) -> None:
    """`promote` and `splits` against the accumulator. Raises TypeError or ValueError."""
    if integer(splits, "splits", "pass a number of parts, 1 or more") < 1:
        raise ValueError(f"splits={splits}: pass a number of parts, 1 or more")
    length = row.length or 1
    if promote is not None and (integer(promote, "promote", "pass a number of products") < 1 or promote % length):
        remedy = f"takes steps of {length} products; pass a multiple of {length}" if length > 1 else "takes 1 or more"
        raise ValueError(f"promote={promote}: {row.name} {remedy}")
    if row.rule in ("exact", "library") and (promote is not None or splits != 1):
        name = "promote" if promote is not None else "splits"
        why = "an exact sum has no order" if row.rule == "exact" else "the library's order is its own"
        raise ValueError(f"{name}={promote or splits}: {why}; leave it out, or use fp32 or a tensor core's accumulator")


def _require_fit(c: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless `c` broadcasts to the result's shape without enlarging it."""
    if c.ndim > len(shape) or any(n not in (1, m) for n, m in zip(reversed(c.shape), reversed(shape), strict=False)):
        raise ValueError(f"c has shape {tuple(c.shape)}: the product has {shape}; make them equal")


def _offsets(groups: Any, a: Operand, b: Operand) -> tuple[int, ...] | None:
    """`groups` checked against the axis that they cut and the experts of `b`."""
    grouped_rows = len(b.shape) == 3
    offsets = check_groups(groups, a.shape[0 if grouped_rows else -1])
    if offsets is not None and grouped_rows and len(offsets) != b.shape[0] + 1:
        experts = b.shape[0]
        raise ValueError(f"groups has {len(offsets)} offsets: b holds {experts} experts, so {experts + 1} are needed")
    return offsets


def varies(x: BlockTensor) -> bool:
    """Whether the outer scale varies along the contraction, the last axis."""
    return x.outer is not None and (x.outer.shape[-1] != 1 or x.outer_block is not None)


def _operand(x: Operand, name: str, row: Accumulator) -> tuple[Tensor | Terms, Tensor | None]:
    """The factor inside the sum and the factor outside (broadcasting to (..., rows, 1)), if there is one."""
    if isinstance(x, Tensor):
        return (terms(x, name, row) if row.steps else x.to(torch.float32)), None
    if x.axis != x.codes.ndim - 1:
        raise ValueError(
            f"{name} has its blocks along axis {x.axis}: the contraction is axis {x.codes.ndim - 1}; use .mT"
        )
    if row.steps:
        if varies(x):
            raise ValueError(
                f"{name} has an outer scale that varies along the contraction, where no tensor core applies it: "
                'requantize with outer="multiply", or use exact, fp32 or library'
            )
        return terms(x, name, row), x.outer
    if not varies(x):
        return x.values(), x.outer
    if row.rule != "exact":
        return x.dequantize(), None
    outer = x.outer_per_value()
    assert outer is not None
    return x.values().to(torch.float64) * outer.to(torch.float64), None  # at most 6 + 24 bits: exact
