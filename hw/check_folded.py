"""A case cut into blocks, as dialects and laws see it: the whole of it, and samples of its blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from numerics.dialects_core import Blocks, Dialect, Outer, folded_outer
from numerics.dialects_layout import scale_values

from .check_case import Case

Cut = Callable[[Tensor], Tensor]
SIZE = 512  # half the blocks of a sample


@dataclass(frozen=True)
class Folded:
    """A case in blocks: x float32 and codes (..., n, B), scales (..., n, 1), which blocks are finite (..., n, 1), which
    places are values (n, B), with tiles like x; the stored outer (..., n or 1, 1), or None. memo: results, kept."""

    case: Case
    x: Tensor
    codes: Tensor
    scales: Tensor
    finite: Tensor
    real: Tensor
    outer: Tensor | None
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(case: Case, outer: Tensor | None) -> Folded:
        """Cut a case into blocks. `outer`: with the axes of x, 1 or a run's number along the last, or one value."""
        folding = case.folding
        x = folding.fold(case.x.to(torch.float32))
        folded = None
        if outer is not None:
            outer = outer.reshape([1] * case.x.ndim) if outer.numel() == 1 else outer
            run = None if outer.shape[-1] == 1 else 128
            folded = folded_outer(outer, outer.ndim - 1, case.layout.block, run, x.shape[-2])
        tiled = case.layout.tile > 1
        real = folding.fold(case.mask.expand(case.x.shape)) if tiled else case.real.view(-1, case.layout.block)
        finite = torch.isfinite(x).all(-1, keepdim=True)
        return Folded(case, x, folding.fold(case.codes), case.scales.unsqueeze(-1), finite, real, folded)

    @property
    def scale_values(self) -> Tensor:
        """The numbers that the stored scales stand for, float32."""
        return scale_values(self.scales, self.case.scale_format)

    def blocks(self, dialect: Dialect, cut: Cut | None = None) -> Blocks:
        """What `dialect` sees, `x` perhaps cut to fewer bits; NaN and Inf are left out of what it derives from it."""
        key = ("blocks", dialect.nonfinite)
        if key not in self.memo:
            x = self.memo.setdefault("finite x", torch.where(self.finite, self.x, 0.0))
            made = dialect.blocks(x.flatten(-2), self.case.layout.per_scale, self.case.layout.element)
            self.memo[key] = replace(made, dtype=self.case.x.dtype)
        made = self.memo[key]
        # rounding keeps the order of numbers: the largest of what was rounded is the largest, rounded
        return made if cut is None else replace(made, x=cut(made.x), amax=cut(made.amax))

    def own(self, dialect: Dialect, cut: Cut | None = None) -> Outer:
        """The outer scale that a dialect would derive from x."""
        key = ("own", dialect.name, cut)
        if key not in self.memo:
            made = self.blocks(dialect)
            made = made if cut is None else replace(made, amax=cut(made.amax))
            self.memo[key] = dialect.own_outer(made, self.scope(dialect), self.case.experts)
        return self.memo[key]

    def scope(self, dialect: Dialect) -> tuple[int, ...] | None:
        """Extents of the outer's axes but the last, as `Dialect.own_outer` takes them."""
        return None if self.outer is None or dialect.run is not None else tuple(self.outer.shape[:-2])

    def lines(self, t: Tensor) -> Tensor:
        """(..., n, B) in rows and columns."""
        return self.case.folding.unfold(t)

    def blocked(self, mask: Tensor) -> Tensor:
        """A mask of rows or columns, which broadcasts to x, in blocks."""
        if self.case.layout.tile > 1:
            return self.case.folding.fold(mask.expand(self.case.x.shape))
        return mask.unflatten(-1, (1, 1) if mask.shape[-1] == 1 else self.x.shape[-2:])

    @property
    def before(self) -> Folded | None:
        """The same case with x as it was before a Hadamard transform, if there was one."""
        if self.case.before is None:
            return None
        if "before" not in self.memo:
            x = self.case.folding.fold(self.case.before.to(torch.float32))
            self.memo["before"] = replace(
                self, x=x, finite=self.finite & torch.isfinite(x).all(-1, keepdim=True), memo={}
            )
        return self.memo["before"]

    def pick(self, t: Tensor) -> Tensor:
        """What a tensor that broadcasts to the whole case's blocks holds at these: all of it."""
        return t

    def fit(self, outer: Outer) -> Outer:
        """An outer scale of the whole, at these blocks."""
        return Outer(self.pick(outer.stored), None if outer.amax is None else self.pick(outer.amax))

    def rolled(self, make: Callable[[Folded], Tensor], axis: int, step: int) -> Tensor:
        """What `make` makes of the blocks `step` before these along an axis (..., n, 1), as `torch.roll` has them."""
        return make(self).roll(step, axis)


@dataclass(frozen=True)
class Sample(Folded):
    """Blocks `at` (flat indices) of a `whole`: x and codes (m, B), scales (m, 1), outer (m, 1) or None."""

    whole: Folded = field(kw_only=True)
    at: Tensor = field(kw_only=True)

    @staticmethod
    def at_blocks(whole: Folded, at: Tensor) -> Sample:
        """Blocks of a whole case by their flat indices."""
        c = torch.unravel_index(at, whole.x.shape[:-1])
        parts = (_picked(t, c) for t in (whole.x, whole.codes, whole.scales, whole.finite, whole.real))
        outer = None if whole.outer is None else _picked(whole.outer, c)
        return Sample(whole.case, *parts, outer, {}, whole=whole, at=at)

    @staticmethod
    def of_wrong(whole: Folded, wrong: Tensor, size: int | None = None) -> Sample:
        """At most 2 `size` finite blocks, half of them such as are `wrong` (bool (..., n)); all if there are few."""
        size, finite = SIZE if size is None else size, whole.finite.flatten()
        bad = _some((wrong.flatten() & finite).nonzero().squeeze(-1), size)
        return Sample.at_blocks(whole, torch.cat([bad, _some(finite.nonzero().squeeze(-1), size)]).unique())

    def with_blocks(self, at: Tensor) -> Sample:
        """Further blocks too."""
        return Sample.at_blocks(self.whole, torch.cat([self.at, _some(at, 64)]).unique())

    def own(self, dialect: Dialect, cut: Cut | None = None) -> Outer:
        """The outer scale that a dialect would derive from the whole x."""
        return self.fit(self.whole.own(dialect, cut))

    def pick(self, t: Tensor) -> Tensor:
        """What a tensor (..., n or 1, last) that broadcasts to the whole's blocks holds at these ones."""
        return _picked(t, self._coordinates())

    def _coordinates(self) -> tuple[Tensor, ...]:
        if "coordinates" not in self.memo:
            self.memo["coordinates"] = torch.unravel_index(self.at, self.whole.x.shape[:-1])
        return self.memo["coordinates"]

    def rolled(self, make: Callable[[Folded], Tensor], axis: int, step: int) -> Tensor:
        """See `Folded.rolled`; `axis` is the whole's."""
        key = ("rolled", axis, step)
        if key not in self.memo:
            lead = self.whole.x.shape[:-1]
            c = list(self._coordinates())
            c[axis + 1] = (c[axis + 1] - step) % lead[axis + 1]
            at = torch.zeros_like(self.at)
            for index, extent in zip(c, lead, strict=True):
                at = at * extent + index
            self.memo[key] = Sample.at_blocks(self.whole, at)
        return make(self.memo[key])


def _picked(t: Tensor, coordinates: tuple[Tensor, ...]) -> Tensor:
    """Rows of a tensor (..., last) at coordinates of a shape that it broadcasts to."""
    own = t.shape[:-1]
    index = [c if n != 1 else torch.zeros_like(c) for c, n in zip(coordinates[-len(own) :], own, strict=True)]
    return t[tuple(index)]


def _some(at: Tensor, most: int) -> Tensor:
    if len(at) <= most:
        return at
    return at[torch.randint(len(at), (most,), generator=torch.Generator().manual_seed(0))]
