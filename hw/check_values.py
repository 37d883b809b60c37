"""Outer scales and decoded values of a dump: stored in which direction, multiplied in which order, or lost."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import Dialect
from numerics.scales import DIALECTS, Identification

from .check_case import Case
from .check_dump import Dump
from .check_folded import Folded
from .check_laws import LOST, UNRELATED, direction


def judge_outer(found: Identification, case: Case, outer: Tensor | None) -> tuple[list[str], list[str]]:
    """(facts, faults) about the stored outer of bytes that some dialect makes."""
    verdicts = [v for v in found if v.same]
    if outer is None:
        if all(v.dialect.direction is not None for v in verdicts):
            return ["outer: none in the dump, and codes and scales are those of two levels"], []
        return [], []
    if found.matches:
        d = DIALECTS[found.matches[0]]
        return [f"outer: {d.prose.outer}"], []
    if all(v.dialect.direction is None for v in verdicts):
        return (["outer: 1, beside codes and scales of one level"], []) if bool((outer == 1).all()) else ([], [LOST])
    if found.matches_given_outer:
        f, d = Folded.of(case, outer), DIALECTS[found.matches_given_outer[0]]
        if d.direction != "amax" and upside_down(d, f):
            return [], [
                f"the outer scale is used in the wrong direction: {d.name} stores {d.prose.outer}, not 1 over it"
            ]
        return ["outer: not derived from x (calibrated, or of a larger tensor); codes and scales follow from it"], []
    return _related(verdicts[0].dialect, Folded.of(case, outer))


def upside_down(d: Dialect, f: Folded) -> bool:
    """Whether what is stored is 1 over what a dialect would store."""
    assert f.outer is not None
    own = f.own(d).stored
    inverse, same = (torch.isclose(f.outer, t, rtol=1e-6, atol=0.0).all() for t in (torch.ones(1) / own, own))
    return bool(inverse) and not bool(same)


def _related(d: Dialect, f: Folded) -> tuple[list[str], list[str]]:
    """(facts, faults) about an outer that is not what the dialect of the bytes stores."""
    assert f.outer is not None
    words = direction(f, d)
    if words is not None:
        return [f"outer: {words}; {d.name} would store {d.prose.outer}"], []
    if bool((f.outer == 1).all()):
        return [], [f"the outer scale is lost: 1 is stored, where {d.name} has {d.prose.outer}"]
    return [], [f"{UNRELATED}: {d.name} stores {d.prose.outer}"]


def judge_values(
    dump: Dump, case: Case, outer: Tensor | None, names: tuple[str, ...], axis: int
) -> tuple[list[str], list[str]]:
    """(facts, faults) about `values` of the dump, if there are any: what codes, scales and outer decode to."""
    values = dump.get("values")
    if values is None:
        return [], []
    x = dump["x"]
    if values.shape != x.shape:
        return [], [f"values have shape {tuple(values.shape)}: x has {tuple(x.shape)}"]
    values = values if values.ndim > 1 else values.unsqueeze(0)
    values = values if axis in (-1, values.ndim - 1) else values.mT
    f = Folded.of(case, outer)
    for words, fault, made in _decoded(f, names):
        kept = made.flatten(-2)[..., case.real]
        for rounded, t in (
            ("", kept),
            (" rounded to " + str(values.dtype).removeprefix("torch."), kept.to(values.dtype)),
        ):
            if t.shape == values.shape and _same(t, values):
                return ([f"values: {words}{rounded}"], []) if fault is None else ([], [fault])
    return [], ["values are not what codes, scales and outer decode to, in any order of products"]


def _same(a: Tensor, b: Tensor) -> bool:
    a, b = a.to(torch.float64), b.to(torch.float64)
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def _decoded(f: Folded, names: tuple[str, ...]) -> Iterator[tuple[str, str | None, Tensor]]:
    """(words, fault, values in blocks)."""
    q, s = nm.decode(f.codes, f.case.layout.element), nm.decode(f.scales, f.case.scale_format)
    if f.outer is None:
        yield "code * scale", None, q * s
        return
    for name in names:
        yield f"in the order of {name}", None, DIALECTS[name].decode(q, s, f.outer)
    yield "(code * scale) * outer", None, (q * s) * f.outer
    yield "code * (scale * outer)", None, q * (s * f.outer)
    yield "(code * scale) / outer", None, (q * s) / f.outer
    yield "code * (scale / outer)", None, q * (s / f.outer)
    lost = "the outer scale is lost in values: they are code * scale alone"
    yield "", lost, q * s
