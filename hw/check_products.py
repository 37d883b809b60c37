"""Products in a dump: the output beside the exact product of the decoded operands, within a bound that is derived.

    y* = outer_a outer_b sum_k a_k b_k        from stored codes and scales, in float64
    |y - y*| <= (K + 4) 2^-23 S + u (|y*| + (K + 4) 2^-23 S)        S = |outer_a outer_b| sum_k |a_k b_k|

holds for every order of K FP32 additions, each rounded to nearest or truncated (a unit in the last place, 2^-23 of a
partial sum that is at most S), for products that are rounded before they are added, two factors more for the outer
scales, and one rounding to the output's dtype at the end, u = 2^-24, 2^-8 or 2^-11 for float32, bfloat16 and float16.
float64's own errors are below 2^-40 of S. Inside the bound nothing more is claimed.

Where the output is outside, the product is taken again as kernels get it wrong: an outer scale lost or used in the
wrong direction, nibbles swapped, scales read in another layout, experts' offsets off by one, a result that went through
bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import LAYOUTS, Layout
from numerics.partition import check_groups

from .check_dump import Dump
from .check_layouts import Reading, code_readings, scale_readings
from .check_report import Report

ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@dataclass(frozen=True)
class Operand:
    """One way to read an operand: its values without the outer scale, float64 (..., rows, K); faults of reading so."""

    words: str
    fault: str | None
    values: Tensor


@dataclass(frozen=True)
class Try:
    """One way to get the output. outside: elements beyond the bound; worst: the largest error over its bound, and
    where. fault: what is wrong with it, or None."""

    words: str
    fault: str | None
    outside: int
    worst: float
    at: tuple[int, ...]
    bound: Tensor
    exact: Tensor


def judge_product(dump: Dump, fmt: str | None) -> Report:
    """The report on a product. Raises ValueError for shapes that do not belong together."""
    y = dump["output"]
    if y.ndim != 2:
        raise ValueError(f"output has shape {tuple(y.shape)}: pass (M, N)")
    tries = [t for layout in _layouts(dump, fmt) for t in _tries(dump, layout, y)]
    best = min(tries, key=lambda t: (t.outside, t.fault is not None))
    name = f"product {y.shape[0]} x {y.shape[1]}"
    if best.outside:
        best = min((t for t in tries if t.fault is None), key=lambda t: t.outside)
        return Report(name, (), (best.words,), (_missed(best, y),))
    facts = (best.words, f"largest error: {best.worst:.3g} of the bound of FP32 sums in any order")
    if best.fault is None:
        return Report(name, ("the exact product, within the bound",), facts, ())
    return Report(name, (), facts, (best.fault,))


def _missed(t: Try, y: Tensor) -> str:
    found, exact, bound = (float(v[t.at]) for v in (y.double(), t.exact, t.bound))
    return (
        f"{t.outside:,} of {y.numel():,} elements are outside the bound; the worst is output{list(t.at)} = "
        f"{found:.9g}, exact {exact:.9g}, bound {bound:.3g}, {t.worst:.3g} times as far; no known fault explains it"
    )


def _layouts(dump: Dump, fmt: str | None) -> list[Layout]:
    """Formats that the operands' shapes allow."""
    if fmt is not None:
        return [LAYOUTS[fmt]]
    found = []
    for layout in LAYOUTS.values():
        try:
            _operands(dump, layout)
        except ValueError:
            continue
        found.append(layout)
    if not found:
        shapes = ", ".join(f"{k} {tuple(t.shape)}" for k, t in dump.tensors.items())
        raise ValueError(
            f"no format explains the shapes: {shapes}; pass a (M, K), b (N, K) or (E, N, K) and output (M, N), one "
            "scale per 16 (NVFP4) or 32 (MX) values"
        )
    return found


def _operands(dump: Dump, layout: Layout) -> tuple[list[Operand], list[Operand]]:
    """Readings of a and of b that have one K."""
    rows, columns = dump["output"].shape
    lead = (len(dump.groups) - 1,) if dump.groups is not None and dump["b_codes"].ndim == 3 else ()
    a, b = _readings(dump, "a", (rows,), layout), _readings(dump, "b", (*lead, columns), layout)
    shared = {o.values.shape[-1] for o in a} & {o.values.shape[-1] for o in b}
    if not shared:
        shapes = " and ".join(f"{name} {tuple(dump[name].shape)}" for name in ("a_codes", "b_codes"))
        raise ValueError(f"the operands' lengths along K differ: {shapes}; pass a (M, K) and b (N, K) or (E, N, K)")
    return tuple([o for o in each if o.values.shape[-1] in shared] for each in (a, b))  # type: ignore[return-value]


def _readings(dump: Dump, name: str, lead: tuple[int, ...], layout: Layout) -> list[Operand]:
    codes, scales = dump[f"{name}_codes"], dump[f"{name}_scales"]
    count = math.prod(lead)
    if not count or codes.numel() % count:
        raise ValueError(f"{name}_codes have shape {tuple(codes.shape)}: pass {(*lead, 'K')}, as the output has it")
    length, found, told = codes.numel() // count, [], None
    for k in (length, 2 * length) if layout.element.bits <= 4 else (length,):
        try:
            ways = [c for c in code_readings(codes, (*lead, k), layout.element.bits) if "padded" not in c.words]
            pairs = product(ways, scale_readings(scales, (*lead, -(-k // layout.block))))
            found += [_operand(name, c, s, layout) for c, s in pairs]
        except ValueError as error:
            told = error
    if not found:
        raise ValueError(f"{name}: {told}")
    return found


def _operand(name: str, c: Reading, s: Reading, layout: Layout) -> Operand:
    scale = nm.decode(s.tensor, nm.E4M3 if layout.name == "NVFP4" else nm.E8M0).to(torch.float64)
    k = c.tensor.shape[-1]
    values = nm.decode(c.tensor, layout.element).to(torch.float64) * scale.repeat_interleave(layout.block, -1)[..., :k]
    faults = [f"of a or of b {c.fault}"] if c.fault else []  # which of the two, the product cannot tell
    faults += [f"{name} is read wrongly: {s.fault}"] if s.fault else []
    return Operand(f"{name}: {c.words}; scales {s.words}", "; ".join(faults) or None, values)


def _tries(dump: Dump, layout: Layout, y: Tensor) -> Iterator[Try]:
    a_ways, b_ways = _operands(dump, layout)
    groups = None if dump.groups is None else check_groups(dump.groups, y.shape[0])
    for a, b in product(a_ways, b_ways):
        k = a.values.shape[-1]
        if k != b.values.shape[-1]:
            continue
        for fault, offsets in _offsets(groups, len(y)):
            outer = {name: _outer(dump, name, y, offsets) for name in ("a", "b")}
            exact, size = (_product(f(a.values), f(b.values), offsets) for f in (lambda t: t, torch.abs))
            for lost, factor in _factors(outer, exact):
                faults = "; ".join(f for f in (a.fault, b.fault, fault, lost) if f) or None
                words = f"{layout.name}; {a.words}; {b.words}"
                yield _try(words, faults, y, exact * factor, size * factor.abs(), k)
                if faults is None and y.dtype == torch.float32 and torch.equal(y, y.to(torch.bfloat16).float()):
                    twice = "the output is rounded twice: every element is a bfloat16 number, though it is float32"
                    yield _try(words, twice, y.to(torch.bfloat16), exact * factor, size * factor.abs(), k)


def _outer(dump: Dump, name: str, y: Tensor, groups: tuple[int, ...] | None) -> Tensor | None:
    """The outer scales of an operand, broadcasting to the output: of a (M, 1), of b (1, N) or, by expert, (M, 1)."""
    outer = dump.get(f"{name}_outer")
    if outer is None or outer.numel() == 1:
        return None if outer is None else outer.to(torch.float64).reshape(1, 1)
    rows, columns = y.shape
    if name == "b" and groups is not None and outer.numel() == len(groups) - 1:
        sizes = torch.tensor([end - start for start, end in pairwise(groups)])
        return outer.to(torch.float64).flatten().repeat_interleave(sizes).unsqueeze(-1)
    if outer.numel() == (rows if name == "a" else columns):
        return outer.to(torch.float64).reshape(*((-1, 1) if name == "a" else (1, -1)))
    raise ValueError(
        f"{name}_outer has shape {tuple(outer.shape)}: pass one value, or one per {'row' if name == 'a' else 'column'} "
        f"of the output {tuple(y.shape)}" + " or per expert" * (name == "b")
    )


def _offsets(groups: tuple[int, ...] | None, rows: int) -> Iterator[tuple[str | None, tuple[int, ...] | None]]:
    yield None, groups
    if groups is not None:
        for step in (1, -1):
            moved = tuple(g if g in (0, rows) else min(max(g + step, 0), rows) for g in groups)
            yield f"experts' offsets are off by one: rows meet the expert of the row {-step:+d}", moved


def _product(a: Tensor, b: Tensor, groups: tuple[int, ...] | None) -> Tensor:
    """a @ b.T, by expert if b has three axes; float64."""
    if groups is None or b.ndim == 2:
        return a @ b.mT
    return torch.cat([a[start:end] @ b[e].mT for e, (start, end) in enumerate(pairwise(groups))])


def _factors(outer: dict[str, Tensor | None], exact: Tensor) -> Iterator[tuple[str | None, Tensor]]:
    """(fault, outer scale of each element): as it should be, lost, or in the wrong direction."""
    one = exact.new_ones(1, 1)
    a, b = (one if outer[name] is None else outer[name] for name in ("a", "b"))
    assert a is not None and b is not None
    yield None, a * b
    for name, this, other in (("a", a, b), ("b", b, a)):
        if bool((this != 1).any()):
            yield f"the outer scale of {name} is lost: the output is the product without it", other
            yield f"the outer scale of {name} is used in the wrong direction: divided by", other / this
            yield f"the outer scale of {name} is multiplied in twice", other * this * this
    if bool((a != 1).any()) and bool((b != 1).any()):
        yield "the outer scales of a and b are lost: the output is the product without them", one


def _try(words: str, fault: str | None, y: Tensor, exact: Tensor, size: Tensor, k: int) -> Try:
    summed = (k + 4) * 2.0**-23 * size
    # a result below the output's normal numbers is off by half a unit of its subnormal ones
    least = torch.finfo(y.dtype).tiny * torch.finfo(y.dtype).eps
    bound = summed + ROUNDOFF[y.dtype] * (exact.abs() + summed) + least
    error = (y.to(torch.float64) - exact).abs()
    both_nan = torch.isnan(exact) & torch.isnan(y)
    ratio = torch.where(both_nan, 0.0, error / bound).nan_to_num(nan=math.inf)
    index = int(ratio.argmax()) if ratio.numel() else 0
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), ratio.shape)) if ratio.numel() else ()
    worst = float(ratio.max()) if ratio.numel() else 0.0
    return Try(words, fault, int((ratio > 1).sum()), worst, at, bound, exact)
