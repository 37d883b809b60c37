"""Products in a dump: the output beside the exact product of the decoded operands, within a bound that is derived.

    y* = outer_a outer_b sum_k a_k b_k        from stored codes and scales, in float64
    |y - y*| <= (K + 4) 2^-23 S + u (|y*| + (K + 4) 2^-23 S)        S = |outer_a outer_b| sum_k |a_k b_k|

holds for every order of K FP32 additions, each rounded to nearest or truncated (a unit in the last place, 2^-23 of a
partial sum that is at most S), for products that are rounded before they are added, two factors more for the outer
scales, and one rounding to the output's dtype at the end, u = 2^-24, 2^-8 or 2^-11 for float32, bfloat16 and float16.
float64's own errors are below 2^-40 of S. Below FP32's normal numbers a product or a factor is off by up to 2^-149
more, K + 4 times, and the output by its own least number. What may overflow may be infinite, or NaN where a partial
sum may. Inside the bound nothing more is claimed. An output fails that is NaN throughout because the operands are; so
does an outer scale of an operand that holds values if it is no positive finite number: nothing is left.

Readings compete by the elements that they explain by a number: NaN or infinity of the output that a reading excuses,
by NaN codes of its own or by overflow, counts against it as a miss does, so that the formats whose bytes include NaN
have no advantage. Of equal ones, fewer excuses, no padding and no fault come first.

Where the output is outside, the product is taken again as kernels get it wrong: nibbles swapped, scales read in another
layout, experts' offsets off by one, an outer scale that is lost or another's (`check_factors`), a result that went
through bfloat16 or float16, other sums and roundings (`check_sums`). How operands may be read: `check_operands`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

import numerics as nm
from numerics.partition import check_groups

from .check_dump import Dump
from .check_factors import factors
from .check_operands import Operand, families, operands
from .check_report import Report
from .check_sums import Product, explained
from .check_sums import product as product_of
from .check_where import likely, places

ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SAMPLE = 64  # rows and columns of the output in which every reading and fault is tried; the best is then judged in all


@dataclass(frozen=True)
class Way:
    """One way to get the output: readings of the operands, offsets of experts, outer scales that broadcast to the
    output, and the dtype that it is rounded to. fault: what is wrong with it, or None."""

    words: str
    fault: str | None
    a: Operand
    b: Operand
    offsets: tuple[int, ...] | None
    factor: Tensor
    dtype: torch.dtype

    def lost(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Where the output is NaN because of the operands' padding, bool, broadcasting to the output."""
        a, b = (torch.tensor(False) if o.lost is None else o.lost for o in (self.a, self.b))
        a = a[rows].unsqueeze(-1) if a.ndim else a
        return a | (b.reshape(-1, b.shape[-1]).any(0)[columns] if b.ndim else b)


@dataclass(frozen=True)
class Tried:
    """A way compared with some rows and columns of the output: error over bound, the exact product there, and elements
    that are not finite with good reason, whose ratio is 0."""

    way: Way
    ratio: Tensor
    bound: Tensor
    exact: Tensor
    excused: Tensor

    @property
    def outside(self) -> int:
        """Elements beyond the bound."""
        return int((self.ratio > 1).sum())


def judge_product(dump: Dump, fmt: str | None) -> Report:
    """The report on a product. Raises ValueError for shapes that do not belong together."""
    y = dump["output"]
    if y.ndim != 2 or not y.numel():
        raise ValueError(f"output has shape {tuple(y.shape)}: pass (M, N), neither of them 0")
    if y.dtype not in ROUNDOFF:
        raise ValueError(f"output has dtype {y.dtype}: pass {', '.join(str(dtype) for dtype in ROUNDOFF)}")
    ways = [way for pair in _families(dump, fmt) for way in _ways(dump, pair, y)]
    places = tuple(torch.arange(0, n, -(-n // SAMPLE)) for n in y.shape)
    best = _best(ways, y, *places)
    if best.outside:  # the fault may be elsewhere than in the sample: try again where the output is wrong
        wrong = (best.ratio > 1).nonzero()[:SAMPLE]
        best = _best(ways, y, *(wrong[:, d].contiguous().unique() for d in (0, 1)))
    name, reason = f"product {y.shape[0]} x {y.shape[1]}", None
    if best.outside:
        sound = [way for way in ways if way.fault is None] or ways[:1]
        best = _best(sound, y, *places)
        usual = _best(sound[:1], y, *places)
        reason = next((why for why in (_explained(t, y) for t in (usual, best)) if why), None)
        if reason is not None or 2 * best.outside > y.numel():  # no reading is like it: as it is usually read
            best = usual
    padding = best.way.a.lost is not None or best.way.b.lost is not None  # its own fault says why all is NaN
    nothing = () if padding else _nothing_left(dump, best, y)
    if nothing or best.outside:
        return Report(name, (), (best.way.words,), nothing or (reason or _missed(best, y),))
    facts = (best.way.words, f"largest error: {float(best.ratio.max()):.3g} of the bound of FP32 sums in any order")
    if bool(best.excused.any()):
        facts += (f"{int(best.excused.sum()):,} elements are NaN or infinite, as the operands or overflow make them",)
    if best.way.fault is None:
        return Report(name, ("an FP32 sum of the decoded operands, within its bound",), facts, ())
    return Report(name, (), facts, (best.way.fault,))


def _best(ways: list[Way], y: Tensor, rows: Tensor, columns: Tensor) -> Tried:
    """The way that explains the most elements of some rows and columns, compared with all of the output."""

    def rank(way: Way) -> tuple[int, int, bool, bool]:
        t = _tried(way, y, rows, columns)
        excused = int(t.excused.sum())
        return t.outside + excused, excused, "padded" in way.words, way.fault is not None

    return _tried(min(ways, key=rank), y, *(torch.arange(n) for n in y.shape))


def _nothing_left(dump: Dump, t: Tried, y: Tensor) -> tuple[str, ...]:
    """The faults of outer scales that are none, and of operands whose product is NaN throughout."""
    found = []
    for name, operand in (("a", t.way.a), ("b", t.way.b)):
        outer = dump.get(f"{name}_outer")
        if outer is None:
            continue
        holds = (nm.decode(operand.codes, operand.layout.element) != 0).any(-1)  # (..., rows)
        if outer.numel() == holds.shape[0] != holds.numel():  # one per expert
            holds = holds.any(-1)
        elif outer.numel() != holds.numel():  # one, or one per column of every expert
            holds = holds.flatten(0, -2).any(0) if outer.numel() == holds.shape[-1] else holds.any()
        bad = (~(torch.isfinite(outer) & (outer > 0))).flatten() & holds.flatten()
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            where = f" at {at}" if outer.numel() > 1 else ""
            found.append(
                f"the outer scale of {name} is {float(outer.flatten()[at]):g}{where}: nothing of {name} is left"
            )
    if not found and bool(torch.isnan(y).all() & torch.isnan(t.exact).all()):
        found.append("every element is NaN, as the operands make it: nothing of the product is left")
    return tuple(found)


def _not_finite(y: Tensor) -> str:
    """How much of an output is NaN or infinite, in words; empty if nothing is."""
    nan, infinite = int(torch.isnan(y).sum()), int(torch.isinf(y).sum())
    if max(nan, infinite) == y.numel():
        return f"every element is {'NaN' if nan else 'infinite'}"
    return f"{nan:,} elements are NaN and {infinite:,} infinite" if nan or infinite else ""


def _explained(t: Tried, y: Tensor) -> str | None:
    """The fault of another way to sum or to round that makes every element."""
    way = t.way
    return explained(Product(way.a, way.b, way.offsets, way.factor), y, t.ratio > 1)


def _missed(t: Tried, y: Tensor) -> str:
    at = tuple(int(i) for i in torch.unravel_index(t.ratio.argmax(), t.ratio.shape))
    found, exact, bound, far = (float(v[at]) for v in (y.double(), t.exact, t.bound, t.ratio))
    worst = f"the worst is output{list(at)} = {found:.9g}, exact {exact:.9g}, bound {bound:.3g}, {far:.3g} times as far"
    known = f"{_not_finite(y)}; " if _not_finite(y[t.ratio > 1]) else ""
    counted = f"{known}{t.outside:,} of {y.numel():,} elements are outside the bound{_where(t, y)}"
    return f"{counted}; {worst}; no known fault explains it"


def _where(t: Tried, y: Tensor) -> str:
    """In which rows, columns or experts the elements outside are, and how many times the exact ones, if that is one
    number."""
    wrong, words = t.ratio > 1, ""
    found = [place for place, _ in places(wrong, ("row", "column"), int(wrong.sum()))]
    groups = t.way.offsets
    if groups is not None and len(groups) > 2:
        of = torch.bucketize(torch.arange(len(y)), torch.tensor(groups[1:-1]), right=True)
        e = of[wrong.any(1)].unique()
        if len(e) == 1 and likely(float((of == e).float().mean()), int(wrong.sum())):
            words = f", all in rows of expert {int(e)}"
    words = words or "".join(f", all in {place.words}" for place in found)
    ratio = (y.double() / t.exact)[wrong & torch.isfinite(y)]
    low, high = (float(ratio.nan_to_num().quantile(p)) if 0 < ratio.numel() < 1 << 24 else 0.0 for p in (0.01, 0.99))
    if low > 0 and high < 1.05 * low and not 0.99 < low < 1.01:
        words += f", {(low + high) / 2:.4g} times the exact ones"
    return words


def _families(dump: Dump, fmt: str | None) -> list[tuple[list[Operand], list[Operand]]]:
    """Operands by the formats that their shapes allow."""
    found: list[tuple[list[Operand], list[Operand]]] = []
    for family in families(fmt):
        try:
            found.append(operands(dump, family))
        except ValueError:
            if fmt is not None:
                raise
    if not found:
        shapes = ", ".join(f"{k} {tuple(t.shape)}" for k, t in dump.tensors.items())
        raise ValueError(
            f"no format explains the shapes: {shapes}; pass a (M, K), b (N, K) or (E, N, K) and output (M, N), one "
            "scale per 16 (NVFP4), 32 (MX) or 128 (FP8) values"
        )
    return found


def _ways(dump: Dump, pair: tuple[list[Operand], list[Operand]], y: Tensor) -> Iterator[Way]:
    groups = None if dump.groups is None else check_groups(dump.groups, y.shape[0])
    narrow = {torch.bfloat16, torch.float16} if y.dtype == torch.float32 else set()
    twice = [dtype for dtype in narrow if torch.equal(y, y.to(dtype).float())]
    for a, b in product(*pair):
        if a.codes.shape[-1] != b.codes.shape[-1]:
            continue
        names = dict.fromkeys((a.layout.name, b.layout.name))
        words = f"{' and '.join(names)}; {a.words}; {b.words}"
        for fault, offsets in _offsets(groups, len(y)):
            for lost, factor in factors(dump, y, offsets):
                found = [f for f in (a.fault, b.fault, fault, lost) if f]
                if len(found) > 1:  # one at a time: of two, nearly anything could be explained
                    continue
                faults = found[0] if found else None
                yield Way(words, faults, a, b, offsets, factor, y.dtype)
                for dtype in twice if faults is None else ():
                    number = f"every element is a {str(dtype).removeprefix('torch.')} number, though it is float32"
                    yield Way(words, f"the output is rounded twice: {number}", a, b, offsets, factor, dtype)


def _offsets(groups: tuple[int, ...] | None, rows: int) -> Iterator[tuple[str | None, tuple[int, ...] | None]]:
    yield None, groups
    if groups is not None:
        for step in (1, -1):
            moved = tuple(g if g in (0, rows) else min(max(g + step, 0), rows) for g in groups)
            yield f"experts' offsets are off by one: rows meet the expert of the row {-step:+d}", moved


def _tried(way: Way, y: Tensor, rows: Tensor, columns: Tensor) -> Tried:
    a, b = way.a.values(rows), way.b.values(columns)
    factor = way.factor[rows if len(way.factor) > 1 else slice(None)]
    factor = factor[:, columns if factor.shape[1] > 1 else slice(None)]
    exact, size = (product_of(f(a), f(b), rows, way.offsets) for f in (lambda t: t, torch.abs))
    exact, size, k = exact * factor, size * factor.abs(), a.shape[-1]
    y = y[rows][:, columns]
    y = y.to(way.dtype)
    bound = _bound(exact, size, factor, k, y.dtype)
    error = (y.to(torch.float64) - exact).abs()
    # NaN or Inf where the exact product is, where a partial sum or the rounding to the output's dtype may overflow
    infinite = torch.isinf(y) & (y.sign() == exact.sign()) & (exact.abs() + bound >= torch.finfo(y.dtype).max)
    overflowing = ~torch.isfinite(y) & (size >= torch.finfo(torch.float32).max)
    alike = (torch.isnan(exact) & torch.isnan(y)) | infinite | overflowing
    ratio = torch.where(alike, 0.0, error / bound).nan_to_num(nan=math.inf, posinf=math.inf)
    return Tried(way, ratio, bound, exact, alike & ~torch.isfinite(y) & ~way.lost(rows, columns))


def _bound(exact: Tensor, size: Tensor, factor: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """The bound of the module's docstring."""
    summed = (k + 4) * (2.0**-23 * size + 2.0**-149 * factor.abs().clamp(min=1.0))
    # a result below the output's normal numbers is off by half a unit of its subnormal ones
    least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    return summed + ROUNDOFF[dtype] * (exact.abs() + summed) + least
