"""A quantized matrix beside its original: does it decode to it, and if not, in which reading does it?

For every block b with values x_b and decoded v_b,

    c_b = <x_b, v_b> / <v_b, v_b>      r_b = <x_b, v_b>^2 / (|x_b|^2 |v_b|^2)      error = sum |x - v|^2 / sum |x|^2

Nearest, stochastic and calibrated codes have c_b near 1, r_b above 0.9 and an error below `LIMIT`. A block is off if
c_b is by more than `OFF`, and gone if r_b is below a half or c_b a factor of four away: no quantizer does that. Blocks
below the smallest normal scale are left out. Where more than `SHARE` of all blocks are off, or the error is larger,
other readings are tried on a sample of rows: swapped nibbles; scales transposed, swizzled or inverted; another outer;
those of a sibling. One is named only if its error is below `LIMIT`. Every row is decoded, a chunk at a time.
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

CHUNK = 1 << 22  # values that are decoded together
LIMIT = {"NVFP4": 0.06, "MXFP4": 0.08, "MXFP8": 0.01, "FP8": 0.01}  # error of what may be the original's
OFF, SHARE = 0.34, 0.02
BLOCK = 16  # values whose factor is compared, at least
NEAR = 0.02  # relative: a factor that is another one
Rows = Callable[[int, int, int], Tensor]  # (matrix, first row, last row) -> float32 (rows, K) of the original


@dataclass(frozen=True)
class Beside:
    """A matrix beside its original. error, energy: sums of squares. off, gone, blocks: blocks that are off, or gone,
    and all. where: first and last row, first and last column of those that are gone. padding: values beyond the
    original's columns that are not zero."""

    error: float
    energy: float
    off: int
    gone: int
    blocks: int
    where: tuple[int, int, int, int]
    padding: int

    def same(self, fmt: str) -> bool:
        """Whether this is the original, quantized, but for the blocks that are gone."""
        return self.error <= LIMIT[fmt] * self.energy and self.off <= SHARE * self.blocks


def against(
    m: Matrix, of: int, original: Rows, shape: tuple[int, int], kin: list[Matrix]
) -> tuple[float, list[Finding]]:
    """The error of matrix `of`, and what is wrong with it.

    shape: of the original. kin: matrices of its role or its parent, whose scales or codes it may have.
    """
    name = m.module.name if m.lead == 1 else f"{m.module.name}[{of}]"
    found = beside(m, of, original, shape)
    findings = []
    if found.padding:
        text = "stale padding: columns beyond the original's do not decode to zero"
        findings.append(Finding("padding", text, (name,), f"{found.padding:,} values"))
    error = found.error / found.energy if found.energy else float(found.error > 0)
    if not found.energy:
        text = "the original is all zeros, and decoded values are not"
        return error, findings + ([Finding("values", text, (name,))] if found.error else [])
    if found.same(m.fmt):
        return error, findings + ([_some(found, name)] if found.gone else [])
    return error, findings + explained(m, of, original, shape, kin, found, name)


def beside(m: Matrix, of: int, original: Rows, shape: tuple[int, int]) -> Beside:
    """Compare every row."""
    grid, outer = factors(stored_grid(m, of), m.fmt), outer_of(m)[of]
    rows, columns = min(shape[0], m.rows), min(shape[1], m.columns)
    tall = min(m.block[0], m.rows)
    step = max(1, CHUNK // max(m.columns, 1) // tall) * tall
    error = energy = 0.0
    off = gone = blocks = padding = 0
    where = (m.rows, -1, m.columns, -1)
    for first in range(0, rows, step):
        raw = elements(m, of, first, min(first + step, rows))
        v = scaled(raw, grid, m, first) * outer
        padding += int((v[:, columns:] != 0).sum())
        x, v = original(of, first, first + len(v))[:, :columns], v[:, :columns]
        v = torch.where(torch.isfinite(v), v, 0.0)
        error += float((x - v).square().sum(dtype=torch.float64))
        energy += float(x.square().sum(dtype=torch.float64))
        one, other = _off(x, v, m, _floor(m, grid, first, len(x)) * float(outer.abs()))
        blocks, off, gone = blocks + one.numel(), off + int(one.sum()), gone + int(other.sum())
        where = _box(where, other, first, columns, _width(m))
    return Beside(error, energy, off, gone, blocks, where, padding)


def _width(m: Matrix) -> int:
    """Values of a block that are compared: those that share a scale, at most a tile's row."""
    return max(BLOCK, min(m.block[1], 128))


def _floor(m: Matrix, grid: Tensor, first: int, rows: int) -> Tensor:
    """Magnitudes below which scales or elements are subnormal, (rows or 1, 1), without the outer."""
    if m.fmt != "FP8":
        return torch.tensor([[6 * 2.0**-6 if m.fmt == "NVFP4" else 0.0]])
    own = grid[torch.arange(first, first + rows) // m.block[0]].abs()
    return own.amax(-1, keepdim=True) * 2.0**-6


def _off(x: Tensor, v: Tensor, m: Matrix, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Which blocks of a row are off, and which are gone, bool (rows, blocks)."""
    width = _width(m)
    pad = (0, -x.shape[1] % width)
    x, v = (torch.nn.functional.pad(t, pad).view(len(t), -1, width) for t in (x, v))
    dot, own, energy = (x * v).sum(-1), v.square().sum(-1), x.square().sum(-1)
    small = torch.maximum(x.abs().amax(-1), v.abs().amax(-1)) <= 2 * floor
    c = torch.where(own > 0, dot / torch.where(own > 0, own, 1.0), 0.0)
    r = torch.where(energy > 0, c * dot / torch.where(energy > 0, energy, 1.0), 0.0)
    off, gone = (c - 1).abs() > OFF, (r < 0.5) | (c < 0.25) | (c > 4.0)
    return off & ~small, gone & ~small


Box = tuple[int, int, int, int]


def _box(box: Box, bad: Tensor, first: int, columns: int, width: int) -> Box:
    """A box around blocks that are bad, of rows from `first`, and around another box."""
    if not bool(bad.any()):
        return box
    r, c = bad.any(-1).nonzero(), bad.any(0).nonzero() * width
    last = min(int(c[-1]) + width, columns) - 1
    return (
        *(min(box[0], first + int(r[0])), max(box[1], first + int(r[-1]))),
        *(min(box[2], int(c[0])), max(box[3], last)),
    )


def _some(found: Beside, name: str) -> Finding:
    """Few blocks are not those of the original."""
    r0, r1, c0, c1 = found.where
    text = "some blocks do not decode to the original"
    detail = f"{found.gone:,} of {found.blocks:,} blocks, in rows {r0} to {r1}, columns {c0} to {c1}"
    return Finding("values", text, (name,), detail)


def explained(
    m: Matrix, of: int, original: Rows, shape: tuple[int, int], kin: list[Matrix], found: Beside, name: str
) -> list[Finding]:
    """In which reading the matrix decodes to the original; else what is known."""
    error = found.error / found.energy
    detail = f"error {error:.2g} of the original's energy as stored"
    shown = sample_of(m, of, original, shape)
    best = min(((r, *shown.error(r)) for r in readings(m, of)), key=lambda t: t[1] + 1e-3 * len(t[0].words))
    reading, least, factor = best
    if least <= LIMIT[m.fmt]:
        words = [*reading.words, *_outer_words(m, of, factor)]
        if words:
            return [Finding("values", w, (name,), f"{detail}, {least:.2g} so read") for w in words]
    for words, other in _siblings(m, of, kin, shown):
        return [Finding("values", words, (name,), f"{detail}; it fits {other}")]
    if 0 < found.gone < found.blocks / 2:
        return [_some(found, name)]
    columns = shown.per_column()
    if columns is not None:
        text = "columns are those of the original times factors, as of a smoothed model: compare with that one"
        return [Finding("values", text, (name,), f"factors {columns[0]:.3g} to {columns[1]:.3g}")]
    text = "decoded values are not those of the original, in no order of nibbles, scales or siblings"
    return [Finding("values", text, (name,), f"{detail}; {found.off:,} of {found.blocks:,} blocks are off")]


def _outer_words(m: Matrix, of: int, factor: float) -> list[str]:
    """What a factor says of the outer scale, or of all scales."""
    if abs(factor - 1) <= NEAR:
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
            yield "codes and scales are those of a sibling", name
        elif shown.error(Reading((), False, factors(stored_grid(other, i), m.fmt)))[0] <= _clearly(m):
            yield "the scales are those of a sibling", name


def _clearly(m: Matrix) -> float:
    """An error that scales of another matrix do not have by chance."""
    return 0.02 if m.fmt == "NVFP4" else LIMIT[m.fmt]
