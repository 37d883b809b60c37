"""Laws that may have made a tensor's scales: dialects, and what goes wrong in kernels. Codes: `check_codes`.

A law of scales is a dialect with some outer scale, perhaps with a fault: another rounding, scales out of place, another
outer scale, fewer bits on the way (`check_scale_guesses`). A fault is a law only if it makes every scale; the first of
them is named, in order from the simplest. Otherwise the answer is the nearest dialect, and what is known of the scales
that differ from it. Scales and codes are judged apart.

Blocks that hold NaN or Inf are left out of these counts; `check` tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import Dialect, Outer, Steps
from numerics.dialects_layout import scales_differ as which_differ

from .check_folded import Cut, Folded, Sample
from .check_proof import Guess

UNRELATED = "the stored outer scale does not belong to codes and scales"
LOST = "the outer scale is lost: one is stored, but scales are those of x without it"
UPSIDE_DOWN = "the outer scale is used in the wrong direction: multiplied where it divides"
ENOUGH = 3  # dialects that make every scale: further ones would not tell more
RANKED = 64  # half the blocks on which dialects are compared
BASES = 5  # dialects, the nearest ones, that are tried with each fault but another rounding
NEAR = 4  # laws that are run on the whole where none makes all of a sample


@dataclass(frozen=True)
class ScaleLaw:
    """What may have made the scale bytes.

    Args:
        dialect: whose formula. outer: the outer scale that it was run with; under: which one that is, in words, where
            it is not the usual one. cut: what x went through first, or None. fault: how the bytes depart from the
            dialect, or None. wrong: scales that differ, bool (..., n), False where a block is not finite.
    """

    dialect: Dialect
    outer: Outer
    wrong: Tensor
    fault: str | None = None
    under: str = ""
    cut: Cut | None = None

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
        one, stored = torch.ones(1), self.outer.stored
        factor = self.dialect.decode(one, one, stored)
        return factor if factor.ndim == stored.ndim else factor.reshape([1] * stored.ndim)

    def quotient(self, g: Folded) -> Tensor:
        """x over the stored scales and the law's outer, float64; signed zero for a zero."""
        x = (g.x if self.cut is None else self.cut(g.x)).to(torch.float64)
        return torch.where(x == 0, x, x / (g.scale_values.to(torch.float64) * g.pick(self.factor).to(torch.float64)))

    def steps(self, f: Folded) -> Steps:
        """The dialect's values before each rounding."""
        return steps_of(f, self.dialect, self.outer, self.cut)


def steps_of(f: Folded, d: Dialect, outer: Outer, cut: Cut | None = None) -> Steps:
    """What a dialect makes of blocks, with an outer scale of the whole case; of samples it is kept."""
    key = ("steps", d.name, id(outer), cut)
    if key in f.memo:
        return f.memo[key][0]
    steps = d.steps(f.blocks(d, cut), f.fit(outer))
    if isinstance(f, Sample):
        f.memo[key] = steps, outer  # kept alive, so that its id stays its own
    return steps


def scales_differ(f: Folded, made: Tensor) -> Tensor:
    """Which scales of finite blocks are not those that were made, bool (..., n, 1); NaN is one number."""
    return which_differ(made, f.scales, f.case.scale_format) & f.finite


def law_of(f: Folded, d: Dialect, outer: Outer, fault: str | None = None, under: str = "") -> ScaleLaw:
    """A dialect with an outer scale, beside all scales."""
    return ScaleLaw(d, outer, scales_differ(f, steps_of(f, d, outer).scales).squeeze(-1), fault, under)


def scale_guess(
    fault: str, make: Callable[[Folded], Tensor], d: Dialect, outer: Outer, cut: Cut | None = None
) -> Guess:
    """A guess of scales: what it makes, and the law that codes are then judged by."""
    return Guess(fault, make, ScaleLaw(d, outer, torch.zeros(0, dtype=torch.bool), cut=cut))


def scale_name(fmt: nm.Format | None) -> str:
    """What a format of scales is called."""
    return "float32" if fmt is None else fmt.name


Plain = tuple[Dialect, Outer, str | None, str]  # a dialect, its outer scale, the fault, and which outer scale that is


def plain_laws(f: Folded, dialects: list[Dialect]) -> list[ScaleLaw]:
    """Dialects with each outer scale that they may have been run with: all that make every scale, up to `ENOUGH`; or
    the nearest ones, whose outer is then no proven fault."""
    tried = [(d, *rest) for d in dialects for rest in _outers(f, d)]
    first = law_of(f, *tried[0])
    sample = Sample.of_wrong(f, first.wrong, RANKED)
    misses: list[int] = []
    exact: list[ScaleLaw] = []
    for d, outer, fault, under in tried:
        misses.append(int(scales_differ(sample, steps_of(sample, d, outer).scales).sum()))
        if misses[-1] == 0:
            law = law_of(f, d, outer, fault, under)
            exact += [law] if law.count == 0 else []
        if sum(law.fault is None for law in exact) == ENOUGH:
            break
    faultless = [law for law in exact if law.fault is None]
    if faultless:
        return [*faultless, *(law for law in exact if law.fault is not None)]
    order = sorted(range(len(tried)), key=lambda i: (misses[i], tried[i][2] is not None))[:NEAR]
    laws = [first, *(law_of(f, *tried[i]) for i in order if i)]
    nearest = sorted(laws, key=lambda law: (law.count, law.fault is not None))
    return [*exact, *(replace(law, fault=None) for law in nearest if law.count)]


def _outers(f: Folded, d: Dialect) -> Iterator[tuple[Outer, str | None, str]]:
    """(outer, fault, which it is): a dialect's own outer scale, the stored one, its reciprocal, and none."""
    own = f.own(d)
    if d.outer_of is None or f.outer is None:
        yield own, LOST if f.outer is not None and bool((f.outer != 1).any()) else None, ""
        return
    related = direction(f, d) is not None
    yield own, None if related else UNRELATED, "" if related else "with the outer scale of x instead of the stored one"
    if not torch.equal(*torch.broadcast_tensors(own.stored, f.outer)):
        yield Outer(f.outer, None), None, "" if not related else "with the stored outer scale"
        yield Outer(torch.ones_like(f.outer) / f.outer, None), UPSIDE_DOWN, "with 1 over the outer scale"
    ones = torch.ones_like(f.outer) if d.direction != "amax" else torch.full_like(f.outer, 2688.0)
    yield Outer(ones, None), LOST, "without the outer scale"


def outers_without_fault(f: Folded, d: Dialect) -> Iterator[Outer]:
    return (outer for outer, fault, _ in _outers(f, d) if fault is None)


def distinct_laws(sample: Sample, bases: list[tuple[Dialect, Outer]]) -> list[tuple[Dialect, Outer]]:
    """Those that differ on a sample, in scales or in what is rounded to them; the first of each kind."""
    kinds: list[tuple[Tensor, Tensor]] = []
    found = []
    for d, outer in bases:
        steps = steps_of(sample, d, outer)
        if any(torch.equal(a, steps.ratio) and torch.equal(b, steps.scales) for a, b in kinds):
            continue
        kinds.append((steps.ratio, steps.scales))
        found.append((d, outer))
    return found


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
        scales = which_differ(steps.scales, f.scales, f.case.scale_format)
        wrong = scales.squeeze(-1) | codes.any(-1)
        if not bool(wrong[there].any()):
            return []
    shown = str if f.case.scale_format is None else "{:#04x}".format
    bytes_there = sorted({shown(b) for b in f.scales.squeeze(-1)[there][:4096].tolist()})
    return [
        f"NaN policy: {int(there.sum()):,} blocks hold NaN or Inf and have scale bytes {', '.join(bytes_there[:6])}; "
        f"by {d.name}: {d.prose.nonfinite}"
    ]
