"""Laws that may have made a tensor's scales: dialects, and what goes wrong in kernels. Codes: `check_codes`.

A law of scales is a dialect with some outer scale, then: another rounding of the scale, x or the scale before rounding
cut to bfloat16, scales of a neighbouring block or row, padding that was not cleared. Scales and codes are judged apart.

Blocks that hold NaN or Inf are left out of these counts; `check` tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import Blocks, Dialect, Outer, Steps, folded_outer
from numerics.dialects_layout import scale_values, scales_differ
from numerics.identify_result import Identification

from .check_case import Case

MODES = {
    "with ties away from zero instead of to even": nm.Rounding.NEAREST_AWAY,
    "toward zero, not to nearest": nm.Rounding.TOWARD_ZERO,
    "toward +infinity, not to nearest": nm.Rounding.TOWARD_POSITIVE,
    "toward -infinity, not to nearest": nm.Rounding.TOWARD_NEGATIVE,
}
UNRELATED = "the stored outer scale does not belong to codes and scales"
LOST = "the outer scale is lost: one is stored, but scales are those of x without it"
LARGE, HEAD, FEW = 1 << 20, 128, 4  # elements, rows, dialects: see `shortlist`
ENOUGH = 3  # dialects that make every scale: further ones would not tell more
NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Law(Protocol):
    """What `best_first` sorts."""

    @property
    def fault(self) -> str | None: ...

    @property
    def count(self) -> int: ...


L = TypeVar("L", bound=Law)


@dataclass(frozen=True)
class ScaleLaw:
    """What may have made the scale bytes.

    Args:
        dialect: whose formula. outer: the outer scale that it was run with. narrow: the dtype that x was cut to first,
            or None. fault: how the bytes depart from the dialect, or None. wrong: scales that differ, bool (..., n),
            False where a block is not finite.
    """

    dialect: Dialect
    outer: Outer
    narrow: torch.dtype | None
    fault: str | None
    wrong: Tensor

    @property
    def count(self) -> int:
        """How many differ."""
        return int(self.wrong.sum())

    @property
    def faultless(self) -> bool:
        """Whether these are the dialect's scales, every one."""
        return self.fault is None and self.count == 0

    @property
    def factor(self) -> Tensor:
        """What decoded values are multiplied by, broadcasting to blocks."""
        one = torch.ones(1)
        return self.dialect.decode(one, one, self.outer.stored)

    def steps(self, f: Folded) -> Steps:
        """The dialect's values before each rounding."""
        return self.dialect.steps(f.blocks(self.dialect, self.narrow), self.outer)


@dataclass(frozen=True)
class Folded:
    """A case in blocks: x float32 and codes (..., n, B), scales (..., n, 1), which blocks are finite (..., n, 1), which
    places are values (n, B), with tiles like x; the stored outer (..., n or 1, 1), or None. whole: what this is the
    head of, or None."""

    case: Case
    x: Tensor
    codes: Tensor
    scales: Tensor
    finite: Tensor
    real: Tensor
    outer: Tensor | None
    whole: Folded | None = None

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

    def blocks(self, dialect: Dialect, narrow: torch.dtype | None = None) -> Blocks:
        """What `dialect` sees, `x` perhaps cut to a dtype; NaN and Inf are left out of what it derives from it."""
        x = self.x if narrow is None else self.x.to(narrow).to(torch.float32)
        x = torch.where(self.finite, x, 0.0)
        made = dialect.blocks(x.flatten(-2), self.case.layout.per_scale, self.case.layout.element)
        return replace(made, dtype=self.case.x.dtype)

    def head(self, rows: int) -> Folded:
        """The first rows, under outer scales of the whole."""
        names = ("x", "codes", "scales", "finite", *(("real",) if self.real.ndim > 2 else ()))
        parts = {name: _head(getattr(self, name), rows) for name in names}
        return replace(self, outer=None if self.outer is None else _head(self.outer, rows), whole=self, **parts)

    def own(self, dialect: Dialect, narrow: torch.dtype | None = None) -> Outer:
        """The outer scale that a dialect would derive from x."""
        if self.whole is None:
            return dialect.own_outer(self.blocks(dialect, narrow), self.scope(dialect), self.case.experts)
        own, rows = self.whole.own(dialect, narrow), self.x.shape[-3]
        return Outer(_head(own.stored, rows), None if own.amax is None else _head(own.amax, rows))

    def scope(self, dialect: Dialect) -> tuple[int, ...] | None:
        """Extents of the outer's axes but the last, as `Dialect.own_outer` takes them."""
        return None if self.outer is None or dialect.run is not None else tuple(self.outer.shape[:-2])


def _head(t: Tensor, rows: int) -> Tensor:
    return t[..., :rows, :, :] if t.shape[-3] > 1 else t


def shortlist(f: Folded, found: Identification) -> list[Dialect]:
    """Dialects worth trying, the nearest first: of a large tensor those whose scales come close, or where none do,
    those of the laws that explain its head best."""
    verdicts = list(found)
    if f.x.numel() < LARGE:
        return [verdict.dialect for verdict in verdicts]
    least = min(verdict.scales for verdict in verdicts)
    if least * 100 < f.scales.numel():
        return [verdict.dialect for verdict in verdicts if verdict.scales <= 2 * least][:FEW]
    laws = scale_laws(f.head(HEAD), [verdict.dialect for verdict in verdicts])
    return list({law.dialect.name: law.dialect for law in laws}.values())[:FEW]


def scale_laws(f: Folded, dialects: list[Dialect]) -> list[ScaleLaw]:
    """Laws of the scales, see `best_first`, then in the order of `dialects`."""
    found: list[ScaleLaw] = []
    for d in dialects:
        found += _of_dialect(f, d)
        if sum(law.faultless for law in found) >= ENOUGH:
            break
    if min(law.count for law in found):
        found += [changed for law in found if law.fault is None for changed in _variants(f, law)]
        found += [law for d in dialects for law in _of_narrow(f, d)]
    return best_first(found)


def best_first(laws: list[L]) -> list[L]:
    """The fewest bytes that differ, then no fault. A fault that leaves more than a quarter of the bytes that differ
    from the best law without one explains too little to be named: it comes last."""
    plain = min((law.count for law in laws if law.fault is None), default=math.inf)

    def rank(law: L) -> tuple[bool, int, bool]:
        return law.fault is not None and 4 * law.count > plain, law.count, law.fault is not None

    return sorted(laws, key=rank)


def _of_dialect(f: Folded, d: Dialect) -> Iterator[ScaleLaw]:
    """A dialect with its own outer scale, the stored one, its reciprocal and none."""
    blocks = f.blocks(d)
    own = f.own(d)
    if d.outer_of is None or f.outer is None:
        yield _law(f, d, blocks, own, LOST if f.outer is not None and bool((f.outer != 1).any()) else None)
        return
    yield _law(f, d, blocks, own, None if direction(f, d) is not None else UNRELATED)
    if not torch.equal(*torch.broadcast_tensors(own.stored, f.outer)):
        yield _law(f, d, blocks, Outer(f.outer, None), None)
        upside_down = "the outer scale is used in the wrong direction: multiplied where it divides"
        yield _law(f, d, blocks, Outer(torch.ones_like(f.outer) / f.outer, None), upside_down)
    ones = torch.ones_like(f.outer) if d.direction != "amax" else torch.full_like(f.outer, 2688.0)
    yield _law(f, d, blocks, Outer(ones, None), LOST)


def direction(f: Folded, d: Dialect) -> str | None:
    """In words, how the stored outer tells what the dialect stores; None if it does not."""
    assert f.outer is not None
    own, one = f.own(d).stored, torch.ones(1)
    factor = d.decode(one, one, own)  # what values are multiplied by
    stored = {
        "as it stores it": own,
        "the factor to multiply by": factor,
        "the factor to divide by": one / factor,
        "amax, 2688 times the factor to multiply by": factor * 2688,
        "amax, 1536 times the factor to multiply by": factor * 1536,
    }
    close = (words for words, t in stored.items() if torch.isclose(f.outer, t, rtol=1e-6, atol=0.0).all())
    return next(close, None)


def _law(
    f: Folded, d: Dialect, blocks: Blocks, outer: Outer, fault: str | None, narrow: torch.dtype | None = None
) -> ScaleLaw:
    return ScaleLaw(d, outer, narrow, fault, _differs(f, d.steps(blocks, outer).scales))


def _differs(f: Folded, scales: Tensor) -> Tensor:
    return (scales_differ(scales, f.scales, f.case.scale_format) & f.finite).squeeze(-1)


def _variants(f: Folded, law: ScaleLaw) -> Iterator[ScaleLaw]:
    """The same dialect's scales, rounded otherwise or out of place."""
    fmt, steps = law.dialect.scale_format, law.steps(f)
    ratio = steps.ratio.to(torch.float32)
    for words, mode in MODES.items():
        if fmt == nm.E4M3 and mode is not nm.Rounding.TOWARD_NEGATIVE:  # of positive numbers that is toward zero
            yield replace(law, fault=f"scales are rounded {words}", wrong=_differs(f, nm.encode(ratio, fmt, mode)))
    for words, dtype in NARROW.items():
        narrow = ratio.to(dtype)
        made = narrow.to(torch.float32) if fmt is None else nm.encode(narrow, fmt)
        fault = f"scales are rounded twice: to {words} before {scale_name(fmt)}"
        yield replace(law, fault=fault, wrong=_differs(f, made))
    for axis, what in ((-2, "block"), (-3, "row")):
        if steps.scales.ndim >= -axis and steps.scales.shape[axis] > 1:
            for step in (1, -1):
                fault = f"scales are stale or out of place: each is that of its {what} {-step:+d}"
                yield replace(law, fault=fault, wrong=_differs(f, steps.scales.roll(step, axis)))
    ragged = ~f.real.all(-1)  # short blocks
    larger = bool((f.scales > steps.scales).squeeze(-1)[law.wrong].all())
    if larger and bool(ragged.any()) and not bool(ragged.all()) and not bool(law.wrong[..., ~ragged].any()):
        stale = "stale padding: scales of the short last blocks alone are wrong, as if they held more than their values"
        yield replace(law, fault=stale, wrong=torch.zeros_like(law.wrong))


def scale_name(fmt: nm.Format | None) -> str:
    """What a format of scales is called."""
    return "float32" if fmt is None else fmt.name


def _of_narrow(f: Folded, d: Dialect) -> Iterator[ScaleLaw]:
    """A dialect on x cut to a narrower dtype."""
    for words, dtype in NARROW.items():
        blocks = f.blocks(d, dtype)
        if bool(torch.isfinite(blocks.x).all()) and bool((blocks.x != torch.where(f.finite, f.x, 0.0)).any()):
            fault = f"x is rounded to {words} before it is quantized"
            yield _law(f, d, blocks, f.own(d, dtype), fault, dtype)


def not_finite(f: Folded, law: ScaleLaw) -> list[str]:
    """The fault, if blocks that hold NaN or Inf are not what the law's dialect makes of them."""
    d, there = law.dialect, ~f.finite.squeeze(-1)
    if not bool(there.any()):
        return []
    made = d.blocks(f.x.flatten(-2), f.case.layout.per_scale, f.case.layout.element)
    blocks = replace(made, dtype=f.case.x.dtype)
    for outer in (law.outer, d.own_outer(blocks, f.scope(d), f.case.experts)):
        steps = d.steps(blocks, outer)
        codes = (steps.codes != f.codes) & f.real & (d.defined_nan | ~torch.isnan(steps.scaled))
        scales = scales_differ(steps.scales, f.scales, f.case.scale_format)
        wrong = scales.squeeze(-1) | codes.any(-1)
        if not bool(wrong[there].any()):
            return []
    shown = str if f.case.scale_format is None else "{:#04x}".format
    bytes_there = sorted({shown(b) for b in f.scales.squeeze(-1)[there][:4096].tolist()})
    return [
        f"NaN policy: {int(there.sum()):,} blocks hold NaN or Inf and have scale bytes {', '.join(bytes_there[:6])}; "
        f"by {d.name}: {d.prose.nonfinite}"
    ]
