"""Where bytes differ from the nearest law, and by how much, in words: what is known where no law is proved.

    place       one expert, row or column; a few; a half; a range; every k-th; a part of every 2^k; short last blocks
    condition   ties, zeros, subnormals, saturated elements, largest elements, blocks with such a scale
    distance    of codes in steps of magnitude or by sign; of scales by a factor or in steps

A place or condition is stated if all that differ lie there, and if by chance they would not, see `likely`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_layout import scale_values

from .check_roundings import magnitude

FEW = 4  # indices that are listed
CHANCE = 2.0**-14  # what would have to happen by chance for a place to be no finding


@dataclass(frozen=True)
class Place:
    """Indices along one axis where all that differ lie. share: of all indices. inside: bool, one per index."""

    words: str
    share: float
    inside: Tensor


def likely(share: float, events: int) -> bool:
    """Whether so many would not all lie in a share of the whole by chance."""
    return 0 < share < 1 and events * math.log2(1 / share) > -math.log2(CHANCE)


def along(hit: Tensor, name: str, events: int) -> Place | None:
    """The smallest usual set of indices along an axis that holds all `hit` ones (bool, one per index)."""
    n, at = len(hit), hit.nonzero().squeeze(-1)
    found = [place for place in _sets(n, at, name) if likely(place.share, events)]
    return min(found, key=lambda place: place.share, default=None)


def _sets(n: int, at: Tensor, name: str) -> Iterator[Place]:
    index = torch.arange(n)
    if len(at) <= FEW:
        *others, last = (f"{int(i):,}" for i in at)
        words = f"{name}s {', '.join(others)} and {last}" if others else f"{name} {last}"
        yield Place(words, len(at) / n, torch.isin(index, at))
    first, last = int(at[0]), int(at[-1])
    half, extent = n // 2, last - first + 1
    in_half = n % 2 == 0 and (last < half or first >= half)
    if in_half:
        words = "first" if last < half else "second"
        yield Place(f"the {words} half of the {name}s", 0.5, (index < half) == (last < half))
    if extent <= (0.4 if in_half else 0.75) * n:
        yield Place(f"{name}s {first:,} to {last:,}", extent / n, (index >= first) & (index <= last))
    step = math.gcd(*(at - first).tolist())
    if 1 < step <= half:
        words = f"every {_ordinal(step)} {name} from {name} {first % step:,}"
        yield Place(words, 1 / step, index % step == first % step)
    period = 4
    while period <= half:
        rest = (at % period).unique()
        low, high = int(rest[0]), int(rest[-1])
        if len(rest) > 1 and 2 * (high - low + 1) <= period:
            words = f"{name}s {low} to {high} of every {period}"
            yield Place(words, (high - low + 1) / period, (index % period >= low) & (index % period <= high))
        period *= 2


def _ordinal(n: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{n:,}{'th' if n % 100 in (11, 12, 13) else ends.get(n % 10, 'th')}"


def places(wrong: Tensor, names: tuple[str, str], events: int) -> list[tuple[Place, Tensor]]:
    """Per axis, the place where all `wrong` ones (bool (..., rows, columns)) lie, and its mask, which broadcasts to
    them. `names`: of indices along the last two axes; with one axis before them, that counts experts. events: how many
    of them chance would have put there one by one."""
    ndim, found = wrong.ndim, []
    for d in range(ndim):
        name = names[d - ndim] if d >= ndim - 2 else "expert" if ndim == 3 else f"axis-{d} index"
        hit = wrong.any(tuple(k for k in range(ndim) if k != d)) if ndim > 1 else wrong
        place = along(hit, name, events) if len(hit) > 1 and bool(hit.any()) else None
        if place is not None:
            found.append((place, place.inside.view([-1 if k == d else 1 for k in range(ndim)])))
    return found


# ---- by how much -----------------------------------------------------------------------------------------------------


def code_distance(given: Tensor, made: Tensor, fmt: nm.Format) -> str:
    """How codes differ, of those that do: by steps of magnitude, by sign, or otherwise."""
    a, b = magnitude(given, fmt), magnitude(made, fmt)
    same = (given.to(torch.int32) - a == 0) == (made.to(torch.int32) - b == 0)
    same = same | (a == 0) | (b == 0) if fmt.kind == "fixed" else same
    steps = torch.where(same, a - b, torch.where(a == b, 1 << 20, 1 << 21))
    values, counts = steps.unique(return_counts=True)
    order = counts.argsort(descending=True)
    parts = [(int(counts[i]), _step_words(int(values[i]))) for i in order[:3]]
    return _parts(parts, int(counts.sum()))


def _step_words(step: int) -> str:
    if step >= 1 << 20:
        return "by their sign alone" if step == 1 << 20 else "by sign and magnitude"
    return f"by {step:+d} code{'s' * (abs(step) > 1)} of magnitude"


def _parts(parts: list[tuple[int, str]], total: int) -> str:
    if parts[0][0] == total:
        return f"all {parts[0][1]}" if total > 1 else parts[0][1]
    told = [f"{count:,} {words}" for count, words in parts if count * 50 >= total]
    left = total - sum(count for count, _ in parts if count * 50 >= total)
    return ", ".join(told) + f", {left:,} otherwise" * (left > 0)


def scale_distance(given: Tensor, made: Tensor, fmt: nm.Format | None) -> str:
    """How scales differ, of those that do: by one factor, nearly one, or by steps."""
    a, b = (scale_values(t, fmt).to(torch.float64) for t in (given, made))
    usable = torch.isfinite(a) & torch.isfinite(b) & (a > 0) & (b > 0)
    if bool(usable.all()):
        ratio = a / b
        low, middle, high = (float(t) for t in (ratio.min(), ratio.median(), ratio.max()))
        if low == high:
            return f"by a factor of {low:g}" if a.numel() == 1 else f"all by a factor of {low:g}"
        if (low > 1.15 or high < 0.87) and high < 2 * low:
            return f"by factors of {low:.4g} to {high:.4g}, {middle:.4g} in the middle"
    if fmt is None:
        return f"by factors of {float((a / b).nan_to_num().min()):.4g} to {float((a / b).nan_to_num().max()):.4g}"
    steps, counts = (given.to(torch.int32) - made.to(torch.int32)).unique(return_counts=True)
    order = counts.argsort(descending=True)
    parts = [(int(counts[i]), f"by {int(steps[i]):+d} code{'s' * (abs(int(steps[i])) > 1)}") for i in order[:3]]
    return _parts(parts, int(counts.sum()))
