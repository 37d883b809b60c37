"""Outer scales of a product in a dump: as they should be, and as kernels get them wrong.

Each fault is one: an outer scale is lost, used in the wrong direction, multiplied in twice, or that of a neighbour, of
the other half, or of the first, where rows, columns or experts have one each.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from .check_dump import Dump


def factors(dump: Dump, y: Tensor, groups: tuple[int, ...] | None) -> Iterator[tuple[str | None, Tensor]]:
    """(fault, outer scale of each element of the output `y`, float64): without a fault first.

    Raises: ValueError for shapes that do not belong to the output.
    """
    own = {name: _broadcast(dump.get(f"{name}_outer"), name, y, groups) for name in ("a", "b")}
    a, b = own["a"], own["b"]
    yield None, a * b
    for name, this, other in (("a", a, b), ("b", b, a)):
        if bool((this != 1).any()):
            yield f"the outer scale of {name} is lost: the output is the product without it", other
            yield f"the outer scale of {name} is used in the wrong direction: divided by", other / this
            yield f"the outer scale of {name} is multiplied in twice", other * this * this
            for fault, moved in _of_others(dump[f"{name}_outer"].flatten(), name, groups):
                yield fault, other * _broadcast(moved, name, y, groups)
    if bool((a != 1).any()) and bool((b != 1).any()):
        yield "the outer scales of a and b are lost: the output is the product without them", torch.ones_like(a * b)


def _of_others(t: Tensor, name: str, groups: tuple[int, ...] | None) -> Iterator[tuple[str, Tensor]]:
    """(fault, outer scales in another order)."""
    n = len(t)
    if n == 1:
        return
    what = "expert" if groups is not None and n == len(groups) - 1 else "row" if name == "a" else "column"
    others = {f"that of its {what} {step:+d}": t.roll(-step) for step in (1, -1)}
    if n > 2 and n % 2 == 0:
        others[f"that of the other half of the {what}s"] = t.roll(n // 2)
    others[f"that of {what} 0"] = t[:1].expand(n)
    for words, other in others.items():
        if not torch.equal(other, t):
            yield f"the outer scale of each {what} of {name} is {words}", other


def _broadcast(outer: Tensor | None, name: str, y: Tensor, groups: tuple[int, ...] | None) -> Tensor:
    """Outer scales that broadcast to the output: of a (M, 1), of b (1, N); by expert (M, 1)."""
    if outer is None:
        return torch.ones(1, 1, dtype=torch.float64)
    outer, (rows, columns) = outer.to(torch.float64), y.shape
    if outer.numel() == 1:
        return outer.reshape(1, 1)
    if groups is not None and outer.numel() == len(groups) - 1:
        sizes = torch.tensor([end - start for start, end in pairwise(groups)])
        return outer.flatten().repeat_interleave(sizes).unsqueeze(-1)
    if outer.numel() == (rows if name == "a" else columns):
        return outer.reshape(*((-1, 1) if name == "a" else (1, -1)))
    raise ValueError(
        f"{name}_outer has shape {tuple(outer.shape)}: pass one value, or one per {'row' if name == 'a' else 'column'} "
        f"of the output {tuple(y.shape)} or per expert"
    )
