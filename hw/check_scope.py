"""Which values share an outer scale, and where experts begin: the offsets and the stored outer of a quantization.

Offsets of experts run along the blocks' axis, where blocks start anew at each, or along the rows of a matrix (T, K) of
stacked experts: those that end where the axis ends. A stored outer is one value, or one per row, per matrix (E, N, K),
per expert of stacked rows, or per 128 values of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from numerics.dialects_layout import Layout
from numerics.partition import check_groups


@dataclass(frozen=True)
class Cut:
    """One way to take the offsets. words: the fact, or nothing; fault: what is wrong, or None; groups: offsets along
    the blocks' axis, experts: along the rows, or None."""

    words: str = ""
    fault: str | None = None
    groups: tuple[int, ...] | None = None
    experts: tuple[int, ...] | None = None


def cuts(groups: tuple[int, ...] | None, x: Tensor) -> Iterator[Cut]:
    """Ways to take the offsets of experts in x, whose last axis is the blocks'.

    Raises: ValueError for offsets that belong to neither of the last two axes.
    """
    if groups is None:
        yield Cut()
        return
    rows, length = x.shape[-2:]
    down = x.ndim == 2 and groups[-1:] == (rows,)
    if not down or groups[-1] == length:
        check_groups(groups, length)
        yield Cut(f"blocks start anew at each of {len(groups) - 1} experts", None, groups)
        for step in (1, -1):
            moved = tuple(g if g in (0, length) else min(max(g + step, 0), length) for g in groups)
            yield Cut("", f"experts' offsets are off by one: blocks start {step:+d} from where the groups say", moved)
        yield Cut("", "blocks do not start anew at the experts' offsets")
    if down:
        check_groups(groups, rows)
        yield Cut(f"the rows of {len(groups) - 1} experts, stacked", experts=groups)


@dataclass(frozen=True)
class Scope:
    """A stored outer in the axes of x, blocks last, or None; words: what shares it; experts: offsets along the rows,
    where each expert has an outer of its own. called, direction: its name in the dump, and what that implies."""

    outer: Tensor | None
    words: str = ""
    experts: tuple[int, ...] | None = None
    called: str = ""
    direction: str | None = None


def scopes(outer: Tensor | None, x: Tensor, layout: Layout, turned: bool, cut: Cut) -> list[Scope]:
    """What a stored outer may belong to: one reading, or several where there is none.

    Args:
        outer: as stored. x: blocks along its last axis. turned: whether it was transposed for that.

    Raises: ValueError for a shape that does not belong to x, or of which the lines of a tile would have several.
    """
    if outer is None:
        own = [] if cut.experts is None else [Scope(None, "outer: one for each expert", cut.experts)]
        return [Scope(None), *own]
    if outer.numel() == 1:
        return [Scope(outer.reshape([1] * x.ndim))]
    found = _scope(outer, x, turned, cut)
    if found is None or found.outer is None or (layout.tile > 1 and not _by_tile(found, layout)):
        raise ValueError(
            f"outer has shape {tuple(outer.shape)}: pass one value, one per row of x {tuple(x.shape)}, per expert of "
            "its groups, or per 128 values of a row; tiles take one per matrix"
        )
    return [found]


def _scope(outer: Tensor, x: Tensor, turned: bool, cut: Cut) -> Scope | None:
    shape = x.shape
    if cut.experts is not None and outer.numel() == len(cut.experts) - 1:
        sizes = torch.tensor([end - start for start, end in pairwise(cut.experts)])
        words = f"outer: one for each of {len(sizes)} experts"
        return Scope(outer.flatten().repeat_interleave(sizes).unsqueeze(-1), words, cut.experts)
    if outer.numel() == math.prod(shape[:-1]) and outer.ndim <= x.ndim:
        return Scope(outer.reshape(*shape[:-1], 1), "outer: one for each row")
    if outer.numel() == shape[0] and x.ndim > 2:
        return Scope(outer.reshape(-1, *[1] * (x.ndim - 1)), f"outer: one for each of {shape[0]} matrices")
    if outer.ndim == x.ndim:
        outer, runs = outer.mT if turned else outer, -(-shape[-1] // 128)
        if all(n in (1, m) for n, m in zip(outer.shape[:-1], shape, strict=False)) and outer.shape[-1] in (1, runs):
            return Scope(outer, "outer: one for each 128 values of a row" if outer.shape[-1] > 1 else "")
    return None


def _by_tile(scope: Scope, layout: Layout) -> bool:
    """Whether no tile has rows of different scopes."""
    if scope.experts is not None:
        return all(start % layout.tile == 0 for start in scope.experts[:-1])
    return scope.outer is not None and scope.outer.shape[-2:] == (1, 1)
