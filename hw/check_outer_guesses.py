"""Scales under another outer scale: a neighbour's, that of the other half, one for all, of fewer bits; or unknown ones.

What is unknown is solved for. Under an outer scale t times the dialect's, a block with the scale r before rounding has
r / t; its byte says that r / t lies between two borders, and all blocks that share the outer scale must agree:

    max_i r_i / high_i <= t <= min_i r_i / low_i        low, high: the borders of numbers that round to block i's byte

Blocks may share it by halves of rows (gate and up, stacked), by every other row (gate and up, interleaved), by halves
of columns, by expert, or all of them. A t between the bounds is a guess like any other: all bytes are made with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import Dialect, Outer

from .check_folded import Folded, Sample
from .check_laws import scale_guess, steps_of
from .check_proof import Guess
from .check_roundings import inverse_cuts, magnitude

AXES = {-2: "run", -3: "row", -4: "expert"}  # of an outer scale (..., rows, runs, 1)
SHOWN = 4  # factors that are listed


def outer_guesses(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """Outer scales that belong to others, or lost bits."""
    if d.outer_of is None:
        return
    for fault, other in other_outers(s, d, outer):
        yield scale_guess(fault, lambda g, o=other: steps_of(g, d, o).scales, d, other)
    for name, cut in inverse_cuts(s.case.dtypes).items():
        short = Outer(cut(outer.stored), None)
        fault = f"the outer scale is rounded to {name} before scales are made with it"
        yield scale_guess(fault, lambda g, o=short: steps_of(g, d, o).scales, d, short)


def other_outers(f: Folded, d: Dialect, outer: Outer) -> Iterator[tuple[str, Outer]]:
    """(fault, outer scale) of those that have one per expert, row or run."""
    assert d.outer_of is not None
    for axis, what, first in _owners(f, d, outer.stored):
        t, n = outer.stored, len(first)
        owner = torch.bucketize(torch.arange(t.shape[axis]), first, right=True) - 1  # which of them an entry belongs to
        offset = torch.arange(t.shape[axis]) - first[owner]

        def of(which: Tensor, t: Tensor = t, axis: int = axis, first: Tensor = first, offset: Tensor = offset) -> Outer:
            """With the entries of other owners; the last of them is as short as it is."""
            at = torch.minimum(first[which] + offset, torch.tensor(t.shape[axis] - 1))
            return Outer(t.index_select(axis, at), None)

        for step in (-1, 1):
            yield f"the outer scale of each {what} is that of its {what} {step:+d}", of((owner + step) % n)
        if n > 2 and n % 2 == 0:
            yield f"the outer scales of the two halves of the {what}s are exchanged", of((owner + n // 2) % n)
        yield f"the outer scale of {what} 0 is used for all {what}s", of(owner * 0)
        if outer.amax is not None:
            largest = d.outer_of(outer.amax.amax(axis, keepdim=True), f.case.x.dtype).expand_as(t)
            yield f"one outer scale is used for all {what}s, that of the largest value", Outer(largest, None)


def _owners(f: Folded, d: Dialect, stored: Tensor) -> Iterator[tuple[int, str, Tensor]]:
    """(axis, what has an outer scale of its own along it, where each begins)."""
    for axis, what in AXES.items():
        n = stored.shape[axis] if stored.ndim >= -axis else 1
        if n == 1:
            continue
        if what == "row" and f.case.experts is not None:
            offsets = torch.tensor(f.case.experts)
            yield axis, "expert", offsets[:-1][offsets.diff() > 0]  # but those without rows
        else:
            yield axis, what, torch.arange(0, n, d.run // f.x.shape[-1] if what == "run" and d.run else 1)


# ---- outer scales that are solved for --------------------------------------------------------------------------------


def solved_outers(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """Unknown outer scales, of all blocks or of parts that are usual."""
    if d.outer_of is None or s.case.scale_format != nm.E4M3:
        return
    law = scale_guess("", lambda g: g.scales, d, outer).of
    for words, ids in parts(s.whole):
        if any(bool((low > high).any()) for low, high in (_bounds(f, d, outer, ids) for f in (s, s.whole))):
            continue
        low, high = _bounds(s.whole, d, outer, ids)
        of_codes = _bounds_of_codes(s.whole, ids, lambda g: g.x.double() / (_stored(g) * g.pick(law.factor).double()))
        both = torch.maximum(low, of_codes[0]), torch.minimum(high, of_codes[1])
        if not bool((both[0] > both[1]).any()):  # the codes may be those of the stored outer scale
            low, high = both
        amax = s.whole.blocks(d).amax.double()
        own = _agreed(s.whole, ids, amax, amax)[0] / amax.max()
        t = torch.where((own >= low) & (own <= high), own, _between(low, high)).to(torch.float32)
        each = t[ids]
        stored = outer.stored / each if d.direction == "encode" else outer.stored * each
        other = Outer(stored, None)
        fault = f"scales are those of another outer scale: {factors(t, words)}"
        fault += ", that of its own largest value" * bool(torch.equal(t, own.to(torch.float32)) and len(t) > 1)
        yield scale_guess(fault, lambda g, o=other: steps_of(g, d, o).scales, d, other)


def solved_elements(s: Sample, factor: Tensor, of: Callable[[Folded], Tensor]) -> Iterator[Guess]:
    """The same of elements: codes that are those of x over an outer scale that is unknown. `factor`: what decoded
    values are multiplied by; of: elements before rounding with it."""
    element = s.case.layout.element
    for words, ids in parts(s.whole):
        if any(bool((low > high).any()) for low, high in (_bounds_of_codes(f, ids, of) for f in (s, s.whole))):
            continue
        bounds = _bounds_of_codes(s.whole, ids, of)
        t = _between(*bounds)
        each = t[ids].to(torch.float64)
        fault = f"elements are divided by another outer scale: {factors(t, words)}"
        yield Guess(fault, lambda g, e=each: nm.encode(of(g).to(torch.float64) / g.pick(e), element))


def parts(f: Folded) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """(names of parts, the part of each block, which broadcasts to (..., n, 1)): all, halves, every other, experts."""
    lead = f.x.shape[:-1]
    yield ("all",), torch.zeros([1] * f.x.ndim, dtype=torch.int64)
    for axis, what in ((-3, "row"), (-2, "column")):
        n = f.x.shape[axis] if f.x.ndim >= -axis else 1
        if n > 1 and n % 2 == 0:
            index = torch.arange(n).view(-1, *[1] * (-axis - 1))
            yield (f"first half of the {what}s", f"second half of the {what}s"), index // (n // 2)
            if what == "row":
                yield ("even rows", "odd rows"), index % 2
    if len(lead) > 2:
        n = lead[-3]
        yield tuple(f"expert {e}" for e in range(n)), torch.arange(n).view(-1, 1, 1, 1)
    if f.case.experts is not None:
        offsets = torch.tensor(f.case.experts)
        ids = torch.bucketize(torch.arange(lead[-2]), offsets[1:-1], right=True)
        yield tuple(f"expert {e}" for e in range(len(offsets) - 1)), ids.view(-1, 1, 1)


def _bounds(f: Folded, d: Dialect, outer: Outer, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What each part's factor must lie between."""
    steps = steps_of(f, d, outer)
    r, low, high = steps.ratio.to(torch.float64), *borders(f.scales, nm.E4M3)
    usable = f.finite & (r > 0)
    least = torch.where(usable, r / high, 0.0)
    most = torch.where(usable, r / low, torch.inf)
    return _agreed(f, ids, least, most)


def _bounds_of_codes(f: Folded, ids: Tensor, of: Callable[[Folded], Tensor]) -> tuple[Tensor, Tensor]:
    """The same by the codes of elements, `of` blocks before they are rounded."""
    element = f.case.layout.element
    size, (low, high) = of(f).abs(), borders(magnitude(f.codes, element), element)
    usable = f.finite & f.real & (size > 0)
    return _agreed(f, ids, torch.where(usable, size / high, 0.0), torch.where(usable, size / low, torch.inf))


def _stored(g: Folded) -> Tensor:
    return g.scale_values.to(torch.float64)


def _agreed(f: Folded, ids: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Per part, the largest lower and the smallest upper bound."""
    where = f.pick(ids).expand(least.shape).flatten()
    zeros = torch.zeros(int(ids.max()) + 1, dtype=torch.float64)
    low = zeros.scatter_reduce(0, where, least.flatten().double(), "amax")
    return low, (zeros + torch.inf).scatter_reduce(0, where, most.flatten().double(), "amin")


def _between(low: Tensor, high: Tensor) -> Tensor:
    """1 where it is between the bounds, else a number in their middle."""
    t = torch.where(torch.isfinite(high) & (low > 0), (low * high).sqrt(), torch.where(low > 0, low * 1.5, high / 1.5))
    return torch.where((low <= 1) & (high >= 1), 1.0, t)


def borders(codes: Tensor, fmt: nm.Format) -> tuple[Tensor, Tensor]:
    """Between which positive numbers those lie that round to codes, float64; the largest reaches infinity."""
    values = nm.decode(torch.arange(fmt.max_code + 1), fmt).to(torch.float64)
    middle = (values[:-1] + values[1:]) / 2
    low = torch.cat([torch.zeros(1, dtype=torch.float64), middle])
    high = torch.cat([middle, torch.full((1,), torch.inf, dtype=torch.float64)])
    at = codes.to(torch.int64).clamp(max=fmt.max_code)
    return low[at], high[at]


def factors(t: Tensor, words: tuple[str, ...]) -> str:
    """Factors of an outer scale in words."""
    if len(t) == 1:
        return f"{float(t):.4g} times the stored one"
    other = [i for i in range(len(t)) if float(t[i]) != 1.0]
    shown = [f"in the {words[i]} {float(t[i]):.4g} times the stored one" for i in other[:SHOWN]]
    more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
    gate = ", as of gate and up" if len(t) == 2 else ""
    return ", ".join(shown) + more + gate
