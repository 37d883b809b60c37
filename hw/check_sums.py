"""Outputs of products that are outside the bound: how else they may have been summed and rounded.

Every law is a chain of operations that keep the order of numbers: rounding to nearest or toward zero, adding, flushing,
clamping. Run on both ends of what an FP32 sum may be, it gives both ends of what the output may be:

    e - d <= FP32 sum <= e + d        e: the exact sum, or that of a part of K; d = (K + 4) (2^-23 S + 2^-149)
    law(e - d) <= y <= law(e + d)     for every element, or the law is none

    truncated    toward zero: |y| is nowhere larger than |e + d|
    flushed      subnormal results are zero         saturated, NaN    what overflows is the largest number, or NaN
    split        K in s parts of equal length, each rounded to a dtype, then added in it one after the other, as a tree,
                 or in FP32 and rounded once
    scaled       the product times a number that belongs to one part of it: all, halves of the rows or columns (gate and
                 up), every other row or column, experts. It is solved for: all elements must agree on it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .check_operands import Operand

ULP, LEAST = 2.0**-23, 2.0**-149
FEW = 64  # rows and columns on which laws are refuted
SHOWN = 4  # factors that are listed


@dataclass(frozen=True)
class Product:
    """A product as it should be: operands, offsets of experts along the rows, and outer scales that broadcast to it."""

    a: Operand
    b: Operand
    offsets: tuple[int, ...] | None
    factor: Tensor

    def at(self, rows: Tensor, columns: Tensor, parts: int = 1) -> list[tuple[Tensor, Tensor]]:
        """(exact sum, sum of magnitudes) of each part of K, float64, for some rows, ascending, and columns."""
        a, b = self.a.values(rows), self.b.values(columns)
        factor = self.factor[rows if len(self.factor) > 1 else slice(None)]
        factor = factor[:, columns if factor.shape[1] > 1 else slice(None)]
        length = -(-a.shape[-1] // parts)
        cut = zip(a.split(length, -1), b.split(length, -1), strict=True)
        return [tuple(product(f(x), f(y), rows, self.offsets) * f(factor) for f in (_same, torch.abs)) for x, y in cut]


def _same(t: Tensor) -> Tensor:
    return t


def product(a: Tensor, b: Tensor, rows: Tensor, offsets: tuple[int, ...] | None) -> Tensor:
    """a @ b.T, by the expert of each of the ascending `rows` if b has three axes."""
    if offsets is None or b.ndim == 2:
        return a @ b.mT
    ends = torch.searchsorted(rows, torch.tensor(offsets)).tolist()
    return torch.cat([a[start:end] @ b[e].mT for e, (start, end) in enumerate(pairwise(ends))])


# ---- operations that keep the order of numbers -----------------------------------------------------------------------

Step = Callable[[Tensor], Tensor]


def rounded(dtype: torch.dtype) -> Step:
    """To nearest, by way of float32, as kernels do."""
    return lambda t: t.to(torch.float32).to(dtype).to(torch.float64)


def truncated(dtype: torch.dtype) -> Step:
    """Toward zero."""

    def step(t: Tensor) -> Tensor:
        near = t.to(dtype)
        beyond = near.to(torch.float64).abs() > t.abs()
        return torch.where(beyond, torch.nextafter(near, torch.zeros_like(near)), near).to(torch.float64)

    return step


def flushed(dtype: torch.dtype) -> Step:
    """To nearest, subnormal results to zero."""
    return lambda t: torch.where(rounded(dtype)(t).abs() < torch.finfo(dtype).tiny, 0.0, rounded(dtype)(t))


def saturated(dtype: torch.dtype) -> Step:
    """To nearest, but to the largest number where that is infinite."""
    largest = torch.finfo(dtype).max
    return lambda t: rounded(dtype)(t).clamp(-largest, largest)


Ends = tuple[Tensor, Tensor]


def _ends(sums: tuple[Tensor, Tensor], k: int) -> Ends:
    exact, size = sums
    d = (k + 4) * (ULP * size + LEAST)
    return exact - d, exact + d


def _apply(step: Step, ends: Ends) -> Ends:
    return step(ends[0]), step(ends[1])


def _add(step: Step, a: Ends, b: Ends) -> Ends:
    return step(a[0] + b[0]), step(a[1] + b[1])


def _one_by_one(step: Step, parts: list[Ends]) -> Ends:
    total = parts[0]
    for part in parts[1:]:
        total = _add(step, total, part)
    return total


def _as_a_tree(step: Step, parts: list[Ends]) -> Ends:
    while len(parts) > 1:
        pairs = [_add(step, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]


# ---- laws ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """The fault in words, the parts of K, and what it makes of them, both ends."""

    fault: str
    parts: int
    make: Callable[[list[Ends]], Ends]


def _laws(k: int, dtype: torch.dtype) -> Iterator[Law]:
    name = str(dtype).removeprefix("torch.")
    steps = {
        f"the output is truncated to {name}, not rounded to nearest": truncated(dtype),
        f"subnormal results are flushed to zero in {name}": flushed(dtype),
        f"the output saturates at {torch.finfo(dtype).max:g}, where {name} overflows": saturated(dtype),
    }
    for fault, step in steps.items():
        yield Law(fault, 1, lambda parts, step=step: _apply(step, parts[0]))
    last, parts = rounded(dtype), 2
    while k // parts >= 16:
        for narrow in (dtype,) if dtype.itemsize == 2 else (torch.bfloat16, torch.float16):
            what = str(narrow).removeprefix("torch.")
            fault = f"K is split in {parts} parts, whose sums are rounded to {what}"
            yield Law(f"{fault} and added in it", parts, _split(_one_by_one, narrow, rounded(narrow), last))
            if parts > 2:
                tree = _split(_as_a_tree, narrow, rounded(narrow), last)
                yield Law(f"{fault} and added in it as a tree", parts, tree)
            if parts > 2 or dtype == torch.float32:
                wide = _split(_one_by_one, narrow, rounded(torch.float32), last)
                yield Law(f"{fault}, then added in FP32", parts, wide)
        parts *= 2


def _split(add: Callable[[Step, list[Ends]], Ends], narrow: torch.dtype, each: Step, last: Step) -> Callable[..., Ends]:
    return lambda parts: _apply(last, add(each, [_apply(rounded(narrow), part) for part in parts]))


def explained(p: Product, y: Tensor, wrong: Tensor) -> str | None:
    """The fault that explains every element of `y`. `wrong`: those outside the bound, bool."""
    at = wrong.nonzero()
    places = [torch.cat([at[:FEW, d], torch.arange(0, n, -(-n // FEW))]).unique() for d, n in enumerate(y.shape)]
    whole = [torch.arange(n) for n in y.shape]
    nan = _nan_for_overflow(p, y, whole) if bool(torch.isnan(y).any()) else None
    if nan is not None:
        return nan
    k = p.a.codes.shape[-1]
    for law in _nearest(p, y, places):
        if _holds(law.make([_ends(sums, k) for sums in p.at(whole[0], whole[1], law.parts)]), y):
            return law.fault
    return _scaled(p, y, whole)


def _nearest(p: Product, y: Tensor, places: list[Tensor]) -> list[Law]:
    """Laws that hold in some rows and columns. Where FP32's sums are uncertain by more than a unit of the output,
    several do: first those that make the most elements of exact sums."""
    k, dtype, y = p.a.codes.shape[-1], y.dtype, y[places[0]][:, places[1]].to(torch.float64)
    cache: dict[int, list[tuple[Tensor, Tensor]]] = {}
    found = []
    for law in _laws(k, dtype):
        sums = cache.setdefault(law.parts, []) or p.at(places[0], places[1], law.parts)
        cache[law.parts] = sums
        if _holds(law.make([_ends(part, k) for part in sums]), y):
            missed = int((law.make([(exact, exact) for exact, _ in sums])[0] != y).sum())
            found.append((missed, len(found), law))
    return [law for _, _, law in sorted(found, key=lambda each: each[:2])]


def _holds(ends: Ends, y: Tensor) -> bool:
    y = y.to(torch.float64)
    return bool(((ends[0] <= y) & (y <= ends[1])).all())


def _nan_for_overflow(p: Product, y: Tensor, whole: list[Tensor]) -> str | None:
    """Whether NaN is where the output's dtype overflows, and all else is as it should be."""
    low, high = _apply(rounded(y.dtype), _ends(p.at(whole[0], whole[1])[0], p.a.codes.shape[-1]))
    beyond = torch.isinf(low) | torch.isinf(high)
    right = ((low <= y.to(torch.float64)) & (y.to(torch.float64) <= high)) | (torch.isnan(y) & beyond)
    name = str(y.dtype).removeprefix("torch.")
    return f"results are NaN where {name} overflows, not infinite" if bool(right.all()) else None


def _scaled(p: Product, y: Tensor, whole: list[Tensor]) -> str | None:
    """Whether the output is the product times one number in each of its usual parts, which is not 1 in all."""
    exact, size = p.at(whole[0], whole[1])[0]
    k, unit = p.a.codes.shape[-1], torch.finfo(y.dtype).eps
    y = y.to(torch.float64)
    if not bool(torch.isfinite(y).all() & torch.isfinite(exact).all()):
        return None
    tight = (k + 4) * ULP * size / exact.abs() + unit  # relative: how well an element tells the number
    usable = tight < 0.5
    for words, ids in _parts(p, y.shape):
        ids = ids.expand(y.shape)
        t = y / exact
        low = _by_part(ids, torch.where(usable, t - tight * t.abs() * 2, -torch.inf), "amax")
        high = _by_part(ids, torch.where(usable, t + tight * t.abs() * 2, torch.inf), "amin")
        if bool((low > high).any()):
            continue
        number = torch.where((low <= 1) & (high >= 1), 1.0, (low + high) / 2)
        number = torch.where(number.abs() < unit, 0.0, number)
        d = (k + 4) * (ULP * size + LEAST) * number[ids].abs().clamp(min=1.0)
        left = (y - exact * number[ids]).abs() - d - 2 * unit * (exact * number[ids]).abs()
        if bool((left > torch.finfo(torch.float32).tiny).any()) or bool((number == 1).all()):
            continue
        return _numbers(number, words)
    return None


def _parts(p: Product, shape: torch.Size) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """(names of parts, the part of each element)."""
    yield ("",), torch.zeros(1, 1, dtype=torch.int64)
    for d, what in enumerate(("row", "column")):
        n = shape[d]
        index = torch.arange(n).view(-1, 1) if d == 0 else torch.arange(n).view(1, -1)
        if n % 2 == 0:
            yield (f"first half of the {what}s", f"second half of the {what}s"), index // (n // 2)
            yield (f"even {what}s", f"odd {what}s"), index % 2
    if p.offsets is not None:
        ids = torch.bucketize(torch.arange(shape[0]), torch.tensor(p.offsets[1:-1]), right=True)
        yield tuple(f"rows of expert {e}" for e in range(len(p.offsets) - 1)), ids.view(-1, 1)


def _by_part(ids: Tensor, t: Tensor, how: str) -> Tensor:
    start = torch.full((int(ids.max()) + 1,), -torch.inf if how == "amax" else torch.inf, dtype=torch.float64)
    return start.scatter_reduce(0, ids.flatten(), t.flatten(), how)


def _numbers(t: Tensor, words: tuple[str, ...]) -> str:
    """The fault of an output that is the product times one number in each part."""
    zero = [words[i] for i in range(len(t)) if float(t[i]) == 0.0]
    if zero:
        return f"the output is 0 in the {', '.join(zero[:SHOWN])}"
    if len(t) == 1:
        return f"another outer scale: the output is {float(t):.5g} times the product"
    other = [i for i in range(len(t)) if float(t[i]) != 1.0]
    shown = [f"{float(t[i]):.5g} times the product in the {words[i]}" for i in other[:SHOWN]]
    more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
    return f"another outer scale: the output is {', '.join(shown)}{more}" + ", as of gate and up" * (len(t) == 2)
