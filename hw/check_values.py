"""Decoded values of a dump: what codes, scales and outer decode to, in the direction that the outer was found to have.

With q the code's value, s the scale's and F the factor that the outer stands for (`Meaning`), values are right if they
are, bit for bit, the dialect's own order of products, (q s) F, q (s F), (q s) / (1/F), q (s / (1/F)) in float32 with
the factor made from what is stored, or q s F in float64, rounded once to the values' dtype; or if that has 16 bits,
both products are rounded to it, and the values are close to q s F. Where the dump lacks its outer, F is the one that
the dialect makes of x. Anything else is a fault, named if it is one of: q s alone, the stored number used as it is
where another direction is meant, F used twice or as 1/F; else by how many differ, and by which factor if that is one.
A value that is finite but overflows the values' dtype is a fault too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import numerics as nm

from .check_dump import Dump
from .check_folded import Folded
from .check_outer import Meaning

BOUNDS = (1.0, 2688.0, 1536.0, 1792.0)  # what an amax is divided by; 1 for what is no amax
CLOSE = 2.0**-6  # relative; more than two roundings to bfloat16
WRONG_WAY = "the outer scale is used in the wrong direction in values: "


def judge_values(dump: Dump, f: Folded, meanings: list[Meaning], axis: int) -> tuple[list[str], list[str]]:
    """(facts, faults) about `values` of the dump. meanings: those that its bytes may have."""
    values, x = dump["values"], dump["x"]
    if values.shape != x.shape:
        return [], [f"values have shape {tuple(values.shape)}: x has {tuple(x.shape)}"]
    values = values if values.ndim > 1 else values.unsqueeze(0)
    values = values if axis in (-1, values.ndim - 1) else values.mT

    def kept(t: Tensor) -> Tensor:
        return f.case.cut(f.case.folding.unfold(torch.broadcast_to(t, f.x.shape)))

    def same(t: Tensor) -> Tensor:
        return _same(kept(t).to(values.dtype), values)

    most = torch.zeros_like(values, dtype=torch.bool)  # those that the best order makes
    for m in meanings:
        for words, t in _right(f, m):
            right = same(t)
            if bool(right.all()):
                return _narrowed(kept(t), values, words)
            most = max(most, right, key=lambda mask: int(mask.sum()))
        for words, t in _twice(f, m, values.dtype):
            if bool(same(t).all()) and not bool(_far(kept(m.values(f, torch.float64)), values).any()):
                return [f"values: {words}"], []
    for m in meanings:
        fault = next((fault for fault, t in _wrong(f, m) if bool((same(t) | most).all())), None)
        if fault is not None:
            return [], [fault + _among(most)]
    return [], [_how_far(kept(meanings[0].values(f, torch.float64)), values)]


def _among(right: Tensor) -> str:
    """Which values a fault makes, if not all; zeros are right in any case."""
    first, wrong = (~right).nonzero()[0].tolist(), int((~right).sum())
    rows = (~right).any(-1)
    if bool(rows.all()):
        return ""
    return f"; {wrong:,} values in {int(rows.sum()):,} of {rows.numel():,} rows, the first at {tuple(first)}"


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (torch.isnan(a) & torch.isnan(b))


def _parts(f: Folded, m: Meaning) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Code values, scale values, the factor F, and the outer as it is stored."""
    q, s, one = nm.decode(f.codes, f.case.layout.element), f.scale_values, torch.ones(1)
    return q, s, m.dialect.decode(one, one, m.outer), m.outer if f.outer is None else f.outer


def _right(f: Folded, m: Meaning) -> Iterator[tuple[str, Tensor]]:
    """(words, values in blocks)."""
    if m.dialect.direction is None:
        yield "code * scale", m.values(f)
        return
    q, s, factor, stored = _parts(f, m)
    yield f"in the order of {m.dialect.name}", m.values(f)
    for t in (factor, *(stored / bound for bound in BOUNDS)):
        if _close(t, factor):
            yield "(code * scale) * outer", (q * s) * t
            yield "code * (scale * outer)", q * (s * t)
    for t in (1 / factor, stored):
        if _close(t, 1 / factor):
            yield "(code * scale) / outer", (q * s) / t
            yield "code * (scale / outer)", q * (s / t)
    yield "code * scale * outer, rounded once", m.values(f, torch.float64)


def _twice(f: Folded, m: Meaning, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The same where both products are rounded to the narrow dtype of the values."""
    if m.dialect.direction is None or dtype not in (torch.bfloat16, torch.float16):
        return
    q, s, factor, stored = _parts(f, m)
    name = str(dtype).removeprefix("torch.")
    for t in (factor, stored):
        for step, words in ((s * t, "scale * outer"), (s / t, "scale / outer")):
            yield f"code * ({words}), both rounded to {name}", q.to(dtype) * step.to(dtype)
        yield f"(code * scale) * outer, all rounded to {name}", (q * s).to(dtype) * t.to(dtype)
        yield f"(code * scale) / outer, all rounded to {name}", (q * s).to(dtype) / t.to(dtype)


def _close(a: Tensor, b: Tensor) -> bool:
    return bool(torch.isclose(*torch.broadcast_tensors(a, b), rtol=1e-6, atol=0.0, equal_nan=True).all())


def _wrong(f: Folded, m: Meaning) -> Iterator[tuple[str, Tensor]]:
    """(fault, values in blocks)."""
    if m.dialect.direction is None:
        return
    q, s, factor, stored = _parts(f, m)
    yield "the outer scale is lost in values: they are code * scale alone", q * s
    bound = next((bound for bound in BOUNDS[1:] if _close(stored / bound, factor)), None)
    if bound is not None:
        yield f"{WRONG_WAY}amax is multiplied in, without 1/{bound:.0f}", (q * s) * stored
        yield f"{WRONG_WAY}amax is multiplied in, without 1/{bound:.0f}", q * (s * stored)
    words = WRONG_WAY + ("it is multiplied in" if _close(stored, 1 / factor) else "it is divided by")
    for t in (factor, stored) if "divided" in words else (factor,):
        yield words, (q * s) / t
        yield words, q * (s / t)
    for t in (1 / factor, stored) if "multiplied" in words else (1 / factor,):
        yield words, (q * s) * t
        yield words, q * (s * t)
    yield "the outer scale is multiplied in twice in values", ((q * s) * factor) * factor


def _narrowed(made: Tensor, values: Tensor, words: str) -> tuple[list[str], list[str]]:
    """Right values, which their dtype may be too narrow for."""
    dtype, n = str(values.dtype).removeprefix("torch."), values.numel()
    infinite, gone = int((torch.isinf(values) & torch.isfinite(made)).sum()), int(((values == 0) & (made != 0)).sum())
    if infinite or 2 * gone > n:
        return [], [f"values overflow or vanish in {dtype}: of {n:,}, {infinite:,} are infinite and {gone:,} are 0"]
    rounded = f" rounded to {dtype}" if values.dtype != torch.float32 else ""
    return [f"values: {words}{rounded}" + (f"; {gone:,} are 0 in {dtype}" if gone else "")], []


def _far(made: Tensor, values: Tensor) -> Tensor:
    """Which values are not close to those that are decoded, beyond what any two roundings do."""
    v = values.to(torch.float64)
    return ~((v - made).abs() <= CLOSE * made.abs()) & ~(torch.isnan(v) & torch.isnan(made))


def _how_far(made: Tensor, values: Tensor) -> str:
    """The fault of values that no order of products and no known fault explains."""
    head = "values are not what codes, scales and outer decode to, in any order of products"
    v, off = values.to(torch.float64), _far(made, values)
    if not bool(off.any()):
        return f"{head}; all are close, the farthest by {float(((v - made) / made).nan_to_num(0.0).abs().max()):.1e}"
    ratio = (v / made)[off]
    at = tuple(off.nonzero()[0].tolist())
    text = f"{head}: {int(off.sum()):,} of {v.numel():,} are far from it, the first at {at}"
    if bool(torch.isfinite(ratio).all()) and _one_number(ratio):
        return f"{text}, each {float(ratio.median()):.4g} times as large"
    return f"{text}, {float(v[at]):.9g} where {float(made[at]):.9g} is decoded"


def _one_number(ratio: Tensor) -> bool:
    middle = ratio.median()
    return bool(((ratio - middle).abs() <= CLOSE * middle.abs()).all())
