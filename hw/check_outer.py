"""Outer scales of a dump: stored in which direction, and how much of x is left under them.

    v = dialect.decode(code, scale, outer)      in float64, for every block of x without NaN or Inf
    b = max |x|                                 of a block
    c                                           what its scale and the largest code decode to

    lost to NaN    some v is NaN or infinite
    vanished       b > 0 and every v is 0
    saturated      b > 9/8 c under a normal scale byte: rounding a scale to E4M3 makes at most 17/16
    unlike         |x - v|^2 > 0.28 |x|^2: of one value 0.28 is missed where 8/17 are left, half but for rounding

An outer that the dialect derives from x is the contract's own, and these counts are facts. Any other is a calibration:
it may clip a few blocks, which is a fact too. It fails where it is no positive finite number, where more than a quarter
of the blocks of its scope (tensor, row, expert or run) are lost to NaN, vanished or unlike, though the dialect's own
outer would keep them, or where more than 7/8 of at least 32 are lost to NaN, vanished or saturated. For normal values,
4 times the outer of their amax loses nothing, half of it saturates half of the blocks and passes, a quarter of it
fails. Model-Optimizer#1573 accepts amax <= 2688 outer <= 28672 times the smallest block amax, which loses no block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import Dialect
from numerics.scales import DIALECTS, Identification

from .check_folded import Folded
from .check_laws import LOST, UNRELATED, ScaleLaw, direction, not_finite

ROUNDED = 9 / 8  # b / t beyond this is no rounding of a scale
MISSED = (1 - 8 / 17) ** 2
FEW, MANY, NEARLY_ALL = 1 / 4, 32, 7 / 8


@dataclass(frozen=True)
class Meaning:
    """How the bytes decode: in whose order of products, and by which outer, in that dialect's direction, (..., n, 1) or
    broadcasting to it. derived: where that is what the dialect makes of x, likewise."""

    dialect: Dialect
    outer: Tensor
    derived: Tensor

    def values(self, f: Folded, dtype: torch.dtype = torch.float32) -> Tensor:
        """What the bytes decode to, (..., n, B), every operation in `dtype`."""
        return self._decoded(f, nm.decode(f.codes, f.case.layout.element), dtype)

    def largest(self, f: Folded) -> Tensor:
        """What the largest code of each block decodes to, float64 (..., n)."""
        return self._decoded(f, torch.tensor(f.case.layout.element.max), torch.float64).squeeze(-1)

    def _decoded(self, f: Folded, q: Tensor, dtype: torch.dtype) -> Tensor:
        return self.dialect.decode(q.to(dtype), f.scale_values.to(dtype), self.outer.to(dtype))

    def scopes(self, f: Folded) -> Tensor:
        """Which entry of `outer` each block meets, int64 (..., n): an index into it, flattened."""
        shape = self.outer.shape[:-1]
        index = torch.arange(self.outer.numel()).reshape(shape)
        if self.dialect.run is not None and shape[-1] > 1:  # repeated for each block of the run
            blocks = torch.arange(shape[-1])
            index = index - blocks % (self.dialect.run // f.case.layout.block)
        return torch.broadcast_to(index, f.scales.shape[:-1])


@dataclass(frozen=True)
class Judgement:
    """What an outer means, with facts and faults in words."""

    meaning: Meaning
    facts: tuple[str, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Left:
    """Blocks of x without NaN and Inf, bool (..., n): which are to be kept, and what became of them; `saturated` and
    `unlike` leave out those lost to NaN or vanished. See the module."""

    kept: Tensor
    nan: Tensor
    vanished: Tensor
    saturated: Tensor
    unlike: Tensor

    @property
    def lost(self) -> Tensor:
        """To NaN, or vanished."""
        return self.nan | self.vanished

    def words(self, scope: Tensor) -> str:
        """The counts in a part of the blocks, empty if nothing is lost."""
        counts = {"saturate": self.saturated, "vanish": self.vanished, "decode to NaN or infinity": self.nan}
        found = {what: int((t & scope).sum()) for what, t in counts.items()}
        each = ", ".join(f"{n:,} {what}" for what, n in found.items())
        return f"of {int((self.kept & scope).sum()):,} blocks {each}" if any(found.values()) else ""


def judge_outer(found: Identification, f: Folded, names: tuple[str, ...], contract: str | None) -> Judgement:
    """The outer of bytes that the dialects `names` make: all from x alone, or all with the stored outer."""
    dialects = [DIALECTS[name] for name in names if contract not in names or name == contract]
    d, kind = dialects[0], found[names[0]].outer
    if f.outer is None:
        two = all(d.direction is not None for d in dialects)
        return _own(d, f, ["outer: none in the dump, and codes and scales are those of two levels"] if two else [])
    if kind == "own":
        return _left_under(Meaning(d, f.outer, torch.tensor(True)), f, [f"outer: {d.prose.outer}"], [])
    if kind == "given":  # of an x that says little, other dialects may make the same bytes and lose it
        unrotated = next((d for d in dialects if _of_before(d, f)), None)
        if unrotated is not None:
            fault = (
                f"the outer scale is that of x before the Hadamard transform: {unrotated.name} has that of x after it"
            )
            return Judgement(_given(unrotated, f).meaning, (), (fault,))
        given = [_given(d, f)]
        given += [_given(d, f) for d in dialects[1:] if given[0].faults]
        return next((judged for judged in given if not judged.faults), given[0])
    two_levels = [d for d in dialects if d.direction is not None]
    if not two_levels:
        one = bool((f.outer == 1).all())
        return _own(d, f, ["outer: 1, beside codes and scales of one level"] * one, [] if one else [LOST])
    d = next((d for d in two_levels if direction(f, d) is not None), two_levels[0])
    return _own(d, f, *_related(d, f, d.name == contract))


def of_law(law: ScaleLaw, f: Folded) -> Judgement:
    """The outer of bytes that no dialect makes, as the nearest law of the scales has it, whose fault stands there; and
    blocks that are not finite."""
    meaning = Meaning(law.dialect, law.outer.stored, torch.tensor(law.outer.amax is not None))
    judged = Judgement(meaning, (), ()) if law.fault else _left_under(meaning, f, [], [])
    return replace(judged, faults=(*judged.faults, *not_finite(f, law)))


def _own(d: Dialect, f: Folded, facts: list[str], faults: list[str] | None = None) -> Judgement:
    return _left_under(Meaning(d, f.own(d).stored, torch.tensor(True)), f, facts, faults or [])


def _given(d: Dialect, f: Folded) -> Judgement:
    assert f.outer is not None
    meaning = Meaning(d, f.outer, _alike(f.outer, _stored_by(d, f)))
    if d.direction != "amax" and upside_down(d, f):
        stored = f"{d.name} stores {d.prose.outer}, not 1 over it"
        return Judgement(meaning, (), (f"the outer scale is used in the wrong direction: {stored}",))
    calibrated = "outer: not derived from x (calibrated, or of a larger tensor); codes and scales follow from it"
    return _left_under(meaning, f, [calibrated], [])


def _stored_by(d: Dialect, f: Folded) -> Tensor:
    """The outer that a dialect makes of x, NaN and Inf included."""
    if bool(f.finite.all()):
        return f.own(d).stored
    made = d.blocks(f.x.flatten(-2), f.case.layout.per_scale, f.case.layout.element)
    return d.own_outer(replace(made, dtype=f.case.x.dtype), f.scope(d), f.case.experts).stored


def _alike(a: Tensor, b: Tensor) -> Tensor:
    return torch.isclose(*torch.broadcast_tensors(a, b), rtol=0.0, atol=0.0, equal_nan=True)


def _of_before(d: Dialect, f: Folded) -> bool:
    """Whether what is stored is what a dialect would derive from x before a Hadamard transform."""
    return f.outer is not None and f.before is not None and _near(f.outer, f.before.own(d).stored)


STORED = {"decode": "a factor to multiply by", "encode": "a factor to divide by", "amax": "the largest magnitude"}


def as_called(m: Meaning, f: Folded) -> list[str]:
    """The fault of an outer whose name in the dump says that it is stored in another direction than it is."""
    scope, outer = f.case.scope, f.outer
    if scope.direction is None or outer is None or m.dialect.direction is None:
        return []
    one = torch.ones(1, dtype=torch.float64)
    factor = m.dialect.decode(one, one, m.outer.to(torch.float64))
    ways = {"decode": [factor], "encode": [1 / factor], "amax": [factor * 2688, factor * 1536]}
    found = [
        direction
        for direction, values in ways.items()
        if any(bool(torch.isclose(outer.to(torch.float64), t, rtol=1e-4, atol=0.0).all()) for t in values)
    ]
    if not found or scope.direction in found:
        return []
    return [f"the outer scale is called {scope.called!r}, {STORED[scope.direction]}, but {STORED[found[0]]} is stored"]


def upside_down(d: Dialect, f: Folded) -> bool:
    """Whether what is stored is 1 over what a dialect would store."""
    assert f.outer is not None
    own = f.own(d).stored
    return _near(f.outer, torch.ones(1) / own) and not _near(f.outer, own)


def _near(a: Tensor, b: Tensor) -> bool:
    return bool(torch.isclose(*torch.broadcast_tensors(a, b), rtol=1e-6, atol=0.0).all())


def _related(d: Dialect, f: Folded, asked: bool) -> tuple[list[str], list[str]]:
    """(facts, faults) about an outer that is not what the dialect of the bytes stores. asked: that is the contract."""
    assert f.outer is not None
    words = direction(f, d)
    if words is not None:
        text = f"{words}; {d.name} would store {d.prose.outer}"
        return ([], [f"the outer scale is stored in another direction: {text}"]) if asked else ([f"outer: {text}"], [])
    if bool((f.outer == 1).all()):
        return [], [f"the outer scale is lost: 1 is stored, where {d.name} has {d.prose.outer}"]
    return [], [f"{UNRELATED}: {d.name} stores {d.prose.outer}"]


def _left_under(m: Meaning, f: Folded, facts: list[str], faults: list[str]) -> Judgement:
    """The judgement with what is left of x."""
    blocks, everywhere = left(m, f), torch.tensor(True)
    fault = _no_scale(m, f, blocks) or (None if faults else _too_few(m, f, blocks))
    if fault is not None:
        return Judgement(m, (), (fault,))
    told, its = blocks.words(everywhere), f", as {m.dialect.name} has it" if bool(m.derived.all()) else ""
    return Judgement(m, (*facts, *([told + its] if told and not faults else [])), tuple(faults))


def left(m: Meaning, f: Folded) -> Left:
    """What is left of x, block by block."""
    v, s = m.values(f, torch.float64), f.scale_values.squeeze(-1)
    v, x = torch.where(f.real, v, 0.0), torch.where(f.finite, f.x, 0.0).to(torch.float64)
    b, zero = x.abs().amax(-1), (v == 0).all(-1)
    nan = ~torch.isfinite(v).all(-1) & f.finite.squeeze(-1)
    some = (b > 0) & ~nan & ~zero
    unit = torch.where(b > 0, b, 1.0).unsqueeze(-1)
    error, energy = (t.div_(unit).square_().sum(-1) for t in (v.sub_(x), x))
    saturated = some & (b > ROUNDED * m.largest(f)) & (s >= 2.0**-6)
    if m.dialect.direction is None:  # one level: its scale has the range of x
        saturated = torch.zeros_like(saturated)
    return Left((b > 0) | nan, nan, (b > 0) & ~nan & zero, saturated, some & (error > MISSED * energy))


def _left_by_own(d: Dialect, f: Folded) -> Tensor:
    """Blocks that are lost or unlike x under the outer that the dialect derives from x as well, bool (..., n)."""
    outer = f.own(d)
    steps = d.steps(f.blocks(d), outer)
    blocks = left(Meaning(d, outer.stored, torch.tensor(True)), replace(f, codes=steps.codes, scales=steps.scales))
    return blocks.lost | blocks.unlike


def _no_scale(m: Meaning, f: Folded, blocks: Left) -> str | None:
    """The fault of a stored outer that is no positive finite number where x has finite values, unless the dialect makes
    it of x."""
    if f.outer is None or m.dialect.direction is None:
        return None
    bad = ~(torch.isfinite(f.outer) & (f.outer > 0)) & ~_alike(f.outer, _stored_by(m.dialect, f))
    there = bad.squeeze(-1) & blocks.kept
    if not bool(there.any()):
        return None
    first = tuple(there.nonzero()[0].tolist())
    value = float(torch.broadcast_to(f.outer.squeeze(-1), there.shape)[first])
    told = blocks.words(there) or "codes and scales do not follow from it"
    return f"the outer scale is {value:g}{_where(first, f.outer)}: {told}"


def _too_few(m: Meaning, f: Folded, blocks: Left) -> str | None:
    """The fault of an outer that is not derived from x and loses too many blocks of its scope."""
    if m.dialect.direction is None:
        return None
    scopes, own = m.scopes(f), _left_by_own(m.dialect, f)

    def count(t: Tensor) -> Tensor:
        return torch.bincount(scopes[t], minlength=m.outer.numel())

    kept, given = count(blocks.kept), ~torch.broadcast_to(m.derived, f.scales.shape).squeeze(-1)
    nearly = (count((blocks.lost | blocks.saturated) & ~own) > NEARLY_ALL * kept) & (kept >= MANY)
    few = count((blocks.lost | blocks.unlike) & ~own) > FEW * kept
    bad = ((count(given) > 0) & (few | nearly)).nonzero().flatten()
    if not len(bad):
        return None
    scope, value = scopes == bad[0], float(m.outer.flatten()[bad[0]])
    first = tuple(scope.nonzero()[0].tolist())
    told = f"{blocks.words(scope)}, {int((blocks.unlike & scope).sum()):,} miss more than a quarter of their energy"
    return f"the outer scale is {value:g}{_where(first, m.outer)}: {told.lstrip(', ')}; that leaves too little of x"


def _where(block: tuple[int, ...], outer: Tensor) -> str:
    return f" at block {block}" if outer.numel() > 1 else ""
