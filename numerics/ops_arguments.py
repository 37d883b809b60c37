"""Checks of the arguments of `ops`: TypeError for another kind or dtype, ValueError for a wrong shape or value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .arguments import require_kind, require_row_numbers, require_tensor
from .blocks import BlockFormat, BlockTensor
from .codes import require_float
from .rounding import Rounding


def require_cast(fmt: Any, rounding: Any) -> None:
    """A block format or None, and a rounding."""
    require_kind(fmt, (BlockFormat, type(None)), "fmt", "pass a block format such as nm.NVFP4, or None for BF16")
    require_kind(rounding, Rounding, "rounding", "use a member of nm.Rounding")


def draws(fmt: BlockFormat | None, rounding: Rounding) -> bool:
    """Whether a cast takes random words: for its elements, or for scales that its rule draws."""
    return rounding is Rounding.STOCHASTIC or (fmt is not None and fmt.rule.draws)


def require_operand(x: Any, name: str, axes: int | None = None) -> None:
    """A BlockTensor, or a floating tensor, of so many axes."""
    require_kind(x, (BlockTensor, Tensor), name, "pass a BlockTensor or a torch tensor")
    if isinstance(x, Tensor):
        require_float(x, name)
    if axes is not None and len(x.shape) != axes:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: pass {axes} axes")


def require_experts(groups: Any, **operands: Any) -> None:
    """Rows (R, ..) by name, and their experts' matrices (E, ..) under a name that starts with w."""
    if groups is None:
        raise TypeError("groups is None: pass the offsets of the experts' rows")
    for name, x in operands.items():
        require_operand(x, name, 3 if name.startswith("w") else 2)


def require_rows(factors: Any, name: str, rows: int) -> None:
    """Floating factors (rows, 1)."""
    require_tensor(factors, name)
    require_float(factors, name)
    if factors.shape != (rows, 1):
        raise ValueError(f"{name} has shape {tuple(factors.shape)}: pass one factor per row, {(rows, 1)}")


def require_index(index: Any, name: str, axes: int, rows: int) -> None:
    """Row numbers below `rows`, int64, with at least one in each row of two axes."""
    require_tensor(index, name, (torch.int64,))
    if index.ndim != axes or 0 in index.shape[1:]:
        raise ValueError(f"{name} has shape {tuple(index.shape)}: pass {axes} axes of row numbers")
    require_row_numbers(index, name, rows)
