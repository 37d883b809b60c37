"""Laws that may have made a tensor's scales and codes: dialects, and what goes wrong in kernels.

Scales and codes are judged apart. A law of scales is a dialect with some outer scale, then: another rounding of the
scale, x or the scale before rounding cut to bfloat16, scales of a neighbouring block or row, padding that was not
cleared. A law of codes divides x by the scales that are stored, whatever made them, so that a wrong scale does not hide
a right payload: to nearest even, or with other ties and directions, through bfloat16 or float16, by the scale before
it was rounded, without the outer scale. Quotients are those of real numbers: float64 divides two products of float32
and small codes exactly enough that no quotient lies within its error of a tie without being one.

Blocks that hold NaN or Inf are left out of these counts; `check` tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import Blocks, Dialect, Outer, Steps, folded_outer

from .check_case import Case

EVEN = nm.Rounding.NEAREST_EVEN
MODES = {
    "with ties away from zero instead of to even": nm.Rounding.NEAREST_AWAY,
    "toward zero, not to nearest": nm.Rounding.TOWARD_ZERO,
    "toward +infinity, not to nearest": nm.Rounding.TOWARD_POSITIVE,
    "toward -infinity, not to nearest": nm.Rounding.TOWARD_NEGATIVE,
}
UNRELATED = "the stored outer scale does not belong to codes and scales"
LOST = "the outer scale is lost: one is stored, but scales are those of x without it"
TIES_DOWN = "with ties toward zero instead of to even"
NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


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
class CodeLaw:
    """What may have made the codes from x and the stored scales. words: the law. fault: what is wrong with it, or None.
    wrong: codes that differ, bool (..., n, B), False where a block is not finite or there is padding."""

    words: str
    fault: str | None
    wrong: Tensor

    @property
    def count(self) -> int:
        """How many differ."""
        return int(self.wrong.sum())


@dataclass(frozen=True)
class Folded:
    """A case in blocks: x float32 and codes (..., n, B), scales (..., n, 1), which blocks are finite (..., n, 1), which
    places are values (n, B); the stored outer (..., n or 1, 1), or None."""

    case: Case
    x: Tensor
    codes: Tensor
    scales: Tensor
    finite: Tensor
    real: Tensor
    outer: Tensor | None

    @staticmethod
    def of(case: Case, outer: Tensor | None) -> Folded:
        """Cut a case into blocks. `outer`: with the axes of x, 1 or a run's number along the last, or one value."""
        block = case.layout.block
        x = case.x.to(torch.float32).unflatten(-1, (-1, block))
        folded = None
        if outer is not None:
            outer = outer.reshape([1] * case.x.ndim) if outer.numel() == 1 else outer
            run = None if outer.shape[-1] == 1 else 128
            folded = folded_outer(outer, outer.ndim - 1, block, run, x.shape[-2])
        codes, real = case.codes.unflatten(-1, (-1, block)), case.real.view(-1, block)
        finite = torch.isfinite(x).all(-1, keepdim=True)
        return Folded(case, x, codes, case.scales.unsqueeze(-1), finite, real, folded)

    def blocks(self, dialect: Dialect, narrow: torch.dtype | None = None) -> Blocks:
        """What `dialect` sees, `x` perhaps cut to a dtype; NaN and Inf are left out of what it derives from it."""
        x = self.x if narrow is None else self.x.to(narrow).to(torch.float32)
        x = torch.where(self.finite, x, 0.0)
        made = dialect.blocks(x.flatten(-2), self.case.layout.block, self.case.layout.element)
        return replace(made, dtype=self.case.x.dtype)

    def scope(self, dialect: Dialect) -> tuple[int, ...] | None:
        """Extents of the outer's axes but the last, as `Dialect.own_outer` takes them."""
        return None if self.outer is None or dialect.run is not None else tuple(self.outer.shape[:-2])


def scale_laws(f: Folded, dialects: list[Dialect]) -> list[ScaleLaw]:
    """Laws of the scales, the best first: the fewest bytes that differ, then no fault, then the order of `dialects`."""
    found = [law for d in dialects for law in _of_dialect(f, d)]
    if min(law.count for law in found):
        found += [changed for law in found if law.fault is None for changed in _variants(f, law)]
        found += [law for d in dialects for law in _of_narrow(f, d)]
    return sorted(found, key=lambda law: (law.count, law.fault is not None))


def _of_dialect(f: Folded, d: Dialect) -> Iterator[ScaleLaw]:
    """A dialect with its own outer scale, the stored one, its reciprocal and none."""
    blocks = f.blocks(d)
    own = d.own_outer(blocks, f.scope(d))
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
    own, one = d.own_outer(f.blocks(d), f.scope(d)).stored, torch.ones(1)
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
    return ((scales != f.scales) & f.finite).squeeze(-1)


def _variants(f: Folded, law: ScaleLaw) -> Iterator[ScaleLaw]:
    """The same dialect's scales, rounded otherwise or out of place."""
    fmt, steps = law.dialect.scale_format, law.steps(f)
    ratio = steps.ratio.to(torch.float32)
    for words, mode in MODES.items():
        if fmt == nm.E4M3 and mode is not nm.Rounding.TOWARD_NEGATIVE:  # of positive numbers that is toward zero
            yield replace(law, fault=f"scales are rounded {words}", wrong=_differs(f, nm.encode(ratio, fmt, mode)))
    for words, dtype in NARROW.items():
        wrong = _differs(f, nm.encode(ratio.to(dtype), fmt))
        yield replace(law, fault=f"scales are rounded twice: to {words} before {fmt.name}", wrong=wrong)
    for axis, what in ((-2, "block"), (-3, "row")):
        if steps.scales.ndim >= -axis and steps.scales.shape[axis] > 1:
            for step in (1, -1):
                fault = f"scales are stale or out of place: each is that of its {what} {-step:+d}"
                yield replace(law, fault=fault, wrong=_differs(f, steps.scales.roll(step, axis)))
    ragged = f.case.ragged
    if bool(ragged.any()) and not bool(law.wrong[..., ~ragged].any()):
        stale = "stale padding: scales of the short last blocks alone are wrong, as if they held more than their values"
        yield replace(law, fault=stale, wrong=torch.zeros_like(law.wrong))


def _of_narrow(f: Folded, d: Dialect) -> Iterator[ScaleLaw]:
    """A dialect on x cut to a narrower dtype."""
    for words, dtype in NARROW.items():
        blocks = f.blocks(d, dtype)
        if bool(torch.isfinite(blocks.x).all()) and bool((blocks.x != torch.where(f.finite, f.x, 0.0)).any()):
            fault = f"x is rounded to {words} before it is quantized"
            yield _law(f, d, blocks, d.own_outer(blocks, f.scope(d)), fault, dtype)


def code_laws(f: Folded, law: ScaleLaw) -> list[CodeLaw]:
    """Laws of the codes, the best first. `law`: of the scales. Stochastic rounding explains nearly everything, so it
    is thought of where no other law explains all of it."""
    found = sorted(_codes(f, law), key=lambda one: (one.count, one.fault is not None))
    return [*_stochastic(f, law), *found] if found[0].count else found


def _codes(f: Folded, law: ScaleLaw) -> Iterator[CodeLaw]:
    element = f.case.layout.element
    for words, q in _quotients(f, law):
        yield CodeLaw(words, None, _wrong(f, nm.encode(q, element)))
        for text, mode in MODES.items():
            yield CodeLaw(words, f"codes are rounded {text}", _wrong(f, nm.encode(q, element, mode)))
        toward = torch.nextafter(q, torch.zeros_like(q))
        yield CodeLaw(words, f"codes are rounded {TIES_DOWN}", _wrong(f, nm.encode(toward, element)))
        for narrow, dtype in NARROW.items():
            twice = q.to(torch.float32).to(dtype).to(torch.float64)
            fault = f"elements are rounded twice: to {narrow} before {element.name}"
            yield CodeLaw(words, fault, _wrong(f, nm.encode(twice, element)))
    for fault, q in _wrong_quotients(f, law):
        yield CodeLaw("", fault, _wrong(f, nm.encode(q, element)))
    its = "" if law.faultless else ", by scales of its own"
    yield CodeLaw(f"as {law.dialect.name} makes them{its}", None, _wrong(f, law.steps(f).codes))


def _stored(f: Folded) -> Tensor:
    return nm.decode(f.scales, f.case.scale_format).to(torch.float64)


def _quotients(f: Folded, law: ScaleLaw) -> Iterator[tuple[str, Tensor]]:
    """(words, elements before rounding, float64)."""
    step = _stored(f) * law.factor.to(torch.float64)
    yield "x / scale" if law.dialect.outer_of is None else "x / (scale * outer)", _over(f.x.to(torch.float64), step)
    if law.faultless:
        yield f"elements as {law.dialect.name} scales them", law.steps(f).scaled.to(torch.float64)


def _wrong_quotients(f: Folded, law: ScaleLaw) -> Iterator[tuple[str, Tensor]]:
    """(fault, elements before rounding, float64)."""
    element, scale_format, x = f.case.layout.element, f.case.scale_format, f.x.to(torch.float64)
    scale, factor = _stored(f), law.factor.to(torch.float64)
    if f.case.x.dtype == torch.float32:
        for narrow, dtype in NARROW.items():
            cut = f"x is rounded to {narrow} before it is scaled and rounded to {element.name}"
            yield cut, _over(f.x.to(dtype).to(torch.float64), scale * factor)
    bare = (
        "the scale byte is rounded, the payload is not: elements are divided by the scale as it was before it was "
        f"rounded to {scale_format.name}"
    )
    yield bare, _over(x, law.steps(f).ratio.to(torch.float64) * factor)
    yield bare, _over(x, f.x.abs().amax(-1, keepdim=True).to(torch.float64) / element.max)
    if f.outer is not None:
        yield "the outer scale is lost: elements are divided by the block scale alone", _over(x, scale)
        yield "the outer scale is used in the wrong direction where elements are scaled", _over(x, scale / factor)


def _over(x: Tensor, divisor: Tensor) -> Tensor:
    """x / divisor; signed zero for a zero, saturating codes for a scale of zero."""
    return torch.where(x == 0, x, x / divisor.expand(torch.broadcast_shapes(x.shape, divisor.shape)))


def _wrong(f: Folded, codes: Tensor) -> Tensor:
    return (codes != f.codes) & f.real & f.finite


def _stochastic(f: Folded, law: ScaleLaw) -> Iterator[CodeLaw]:
    """Every code is one of its element's two neighbours, and as many are not the nearer one as chance would have."""
    element = f.case.layout.element
    _, q = next(_quotients(f, law))
    low, high = (nm.encode(q, element, mode) for mode in (nm.Rounding.TOWARD_NEGATIVE, nm.Rounding.TOWARD_POSITIVE))
    outside = (f.codes != low) & (f.codes != high) & f.real & f.finite
    inside = f.real & f.finite & (low != high)
    if bool(outside.any()) or not bool(inside.any()):
        return
    below, above = (nm.decode(c, element).to(torch.float64)[inside] for c in (low, high))
    share = (q[inside] - below) / (above - below)
    up = (f.codes == high)[inside]
    spread = max(float((share * (1 - share)).sum().sqrt()), 1.0)
    far = torch.where(up, share < 0.5, share > 0.5).sum() - torch.minimum(share, 1 - share).sum()
    if abs(float(far)) > 6 * spread:  # the variance of either count
        return
    z = float(up.sum() - share.sum()) / spread
    words = f"stochastic: each is one of its element's two neighbours, rounded up {z:+.1f} standard errors too often"
    yield CodeLaw(words, None if abs(z) <= 5 else f"codes are biased; {words}", outside)


def tie_distance(f: Folded, law: ScaleLaw, wrong: Tensor) -> float:
    """The largest distance of the elements `wrong` from a tie between codes, relative to the element; inf if one of
    their codes is no neighbour of its element."""
    element = f.case.layout.element
    _, q = next(_quotients(f, law))
    low, high = (nm.encode(q, element, mode) for mode in (nm.Rounding.TOWARD_NEGATIVE, nm.Rounding.TOWARD_POSITIVE))
    if bool(((f.codes != low) & (f.codes != high) & wrong).any()):
        return float("inf")
    tie = (nm.decode(low, element).to(torch.float64) + nm.decode(high, element).to(torch.float64)) / 2
    away = ((q - tie).abs() / q.abs())[wrong]
    return float(away.max()) if away.numel() else 0.0
