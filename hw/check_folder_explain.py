"""Why a matrix does not decode to its original: the reading in which it does.

Tried on a sample of rows: swapped nibbles; scales transposed, swizzled or inverted; another outer, after one factor
for all values; codes and scales of a sibling, or its scales alone; rows of gate and up in another order; factors of
columns, as smoothing leaves them. A reading is named only if its error is below `LIMIT`:

    error = 1 - <x, v>^2 / (|x|^2 |v|^2)      factor = <x, v> / <v, v>      over the sample
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .check_folder_decode import Reading, decoded, elements, factors, outer_of, readings, scaled, stored_grid
from .check_folder_parts import ENCODE, Matrix
from .check_folder_report import Finding
from .check_folder_values import sample

LIMIT = {"NVFP4": 0.06, "MXFP4": 0.08, "MXFP8": 0.01, "FP8": 0.01}  # error of what may be the original's
SLACK = {"NVFP4": 0.06, "MXFP4": 0.06, "MXFP8": 0.02, "FP8": 0.02}  # |factor - 1| of what may be
CLEAR = {**LIMIT, "NVFP4": 0.02}  # error that scales of another matrix do not have by chance
NEAR = 0.02  # relative: a product that is 1
Rows = Callable[[int, int, int], Tensor]  # (matrix, first row, last row) -> float32 (rows, K) of the original


def explained(m: Matrix, of: int, shown: Sample, kin: list[Matrix], name: str, detail: str) -> list[Finding]:
    """In which reading the matrix decodes to the original; nothing if in none. kin: matrices whose bytes it may have.
    detail: the error as stored, in words."""
    best = min(((r, *shown.error(r)) for r in readings(m, of)), key=lambda t: t[1] + 1e-3 * len(t[0].words))
    reading, least, factor = best
    if least <= LIMIT[m.fmt]:
        words = [*reading.words, *_outer_words(m, of, factor)]
        if words:
            scaled_by = f" and times {factor:.4g}" if abs(factor - 1) > SLACK[m.fmt] else ""
            return [Finding("values", w, (name,), f"{detail}, {least:.2g} so read{scaled_by}") for w in words]
    for said, other in (*_siblings(m, of, kin, shown), *_rows(m, of, shown)):
        return [Finding("values", said, (name,), f"{detail}; {other}")]
    return []


def smoothed(shown: Sample, name: str) -> list[Finding]:
    """Whether a factor for each column makes the matrix the original."""
    columns = shown.per_column()
    if columns is None:
        return []
    text = "columns are those of the original times factors, as of a smoothed model: compare with that one"
    return [Finding("values", text, (name,), f"factors {columns[0]:.3g} to {columns[1]:.3g}")]


def _outer_words(m: Matrix, of: int, factor: float) -> list[str]:
    """What a factor says of the outer scale, or of all scales."""
    if abs(factor - 1) <= SLACK[m.fmt]:
        return []
    outer, suffix = float(outer_of(m)[of]), m.module.suffix.get("outer")
    if suffix is None:
        if m.fmt == "NVFP4":
            return ["the outer scale is lost: there is none, and decoded values need one"]
        return ["decoded values are a multiple of the original: all scales are too large or too small"]
    if outer == 1:
        return [f"the outer scale is lost: {suffix} is 1"]
    if abs(factor * outer * outer - 1) <= NEAR:
        how = "multiplies, and readers divide by it" if suffix in ENCODE else "divides, and readers multiply by it"
        return [f"the outer scale is inverted: {suffix} {how}"]
    return ["the outer scale is another one: decoded values are a multiple of the original"]


@dataclass(frozen=True)
class Sample:
    """Rows of a matrix with those of its original: (first row, x) of each run."""

    m: Matrix
    of: int
    runs: list[tuple[int, Tensor]]

    def error(self, reading: Reading) -> tuple[float, float]:
        """The error of a reading after one factor for all, and that factor."""
        outer = outer_of(self.m)[self.of]
        pairs = []
        for first, x in self.runs:
            raw = elements(self.m, self.of, first, first + len(x), reading.swapped)
            v = scaled(raw, reading.grid, self.m, first)[:, : x.shape[1]] * outer
            pairs.append((x[:, : v.shape[1]], torch.where(torch.isfinite(v), v, 0.0)))
        return fit(pairs)

    def decoded(self, other: Matrix, of: int) -> tuple[float, float]:
        """The error of another matrix's values, and the factor."""
        return fit([(x, decoded(other, of, first, first + len(x))[:, : x.shape[1]]) for first, x in self.runs])

    def truncated(self) -> bool:
        """Whether hardly any value is larger than the original's."""
        above = count = 0
        for first, x in self.runs:
            v = decoded(self.m, self.of, first, first + len(x))[:, : x.shape[1]].abs()
            above, count = above + int((v > 1.001 * x.abs()).sum()), count + int((v > 0).sum())
        return above <= 0.01 * count

    def per_column(self) -> tuple[float, float] | None:
        """Least and largest factor of columns, if such factors make the values the original's."""
        x = torch.cat([x for _, x in self.runs]).double()
        v = torch.cat([decoded(self.m, self.of, f, f + len(x)) for f, x in self.runs])[:, : x.shape[1]].double()
        own = v.square().sum(0)
        c = torch.where(own > 0, (x * v).sum(0) / torch.where(own > 0, own, 1.0), 1.0)
        error = float((x - c * v).square().sum() / x.square().sum())
        return (float(c.min()), float(c.max())) if len(x) >= 16 and error <= LIMIT[self.m.fmt] else None


def sample_of(m: Matrix, of: int, original: Rows, shape: tuple[int, int]) -> Sample:
    """Runs of rows, evenly spaced."""
    runs = [(first, min(last, shape[0])) for first, last in sample(m) if first < shape[0]]
    return Sample(m, of, [(first, original(of, first, last)) for first, last in runs])


def fit(pairs: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """The error of v beside x after the one factor that makes it least, and the factor."""
    dot = sum(float((x.double() * v.double()).sum()) for x, v in pairs)
    own = sum(float(v.double().square().sum()) for _, v in pairs)
    energy = sum(float(x.double().square().sum()) for x, _ in pairs)
    if not own or not energy:
        return 1.0, 0.0
    return max(1 - dot * dot / own / energy, 0.0), dot / own


def _siblings(m: Matrix, of: int, kin: list[Matrix], shown: Sample) -> Iterator[tuple[str, str]]:
    """(what is wrong, whose it is) where a sibling's scales, or codes and scales, give the original."""
    places = [(k, i) for k in kin for i in range(k.lead) if (k.module.name, i) != (m.module.name, of)]
    for other, i in places:
        if (other.rows, other.columns, other.block, other.fmt) != (m.rows, m.columns, m.block, m.fmt):
            continue
        name = other.module.name if other.lead == 1 else f"{other.module.name}[{i}]"
        if shown.decoded(other, i)[0] <= LIMIT[m.fmt]:
            yield "codes and scales are those of a sibling", f"it fits {name}"
        elif shown.error(Reading((), False, factors(stored_grid(other, i), m.fmt)))[0] <= CLEAR[m.fmt]:
            yield "the scales are those of a sibling", f"it fits {name}"


def _rows(m: Matrix, of: int, shown: Sample) -> Iterator[tuple[str, str]]:
    """(what is wrong, the error so read) where rows lie in another order of gate and up."""
    half = m.rows // 2
    maps: dict[str, Callable[[int], int]] = {
        "the halves of the rows, gate and up, are exchanged": lambda r: (r + half) % m.rows,
        "the rows of gate and up are interleaved, and the original has them one after the other": lambda r: (
            2 * r if r < half else 2 * (r - half) + 1
        ),
        "the rows of gate and up lie one after the other, and the original interleaves them": lambda r: (
            r // 2 + (r % 2) * half
        ),
    }
    few = [(first + i, x[i : i + 1]) for first, x in shown.runs[:8] for i in range(min(4, len(x)))]
    for words, place in maps.items() if m.rows % 2 == 0 else ():
        pairs = [(x, decoded(m, of, place(r), place(r) + 1)[:, : x.shape[1]]) for r, x in few]
        error = fit(pairs)[0]
        if error <= LIMIT[m.fmt]:
            yield words, f"{error:.2g} so read"
