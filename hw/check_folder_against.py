"""A quantized matrix beside its original: does it decode to it, and if not, where does it not?

For every block b with values x_b and decoded v_b,

    c_b = <x_b, v_b> / <v_b, v_b>      r_b = <x_b, v_b>^2 / (|x_b|^2 |v_b|^2)      error = sum |x - v|^2 / sum |x|^2

Nearest, stochastic and calibrated codes have an error below `LIMIT`, r_b above 0.9, c_b near 1, and a middle c_b within
`SLACK` of 1 (or up to 1.3, if they are cut toward zero). A block is off if c_b is by more than `OFF`. It is gone if r_b
or c_b is below a quarter, or c_b above four, and a row if its error is `ODD` times the middle one. Not counted are
blocks below the smallest normal scale, and errors below `SPENT`, which calibration may make to spare others; nor are
gone ones where twice as many lie between them and the sound ones, as the tail of calibration does. Rules that round a
power-of-two scale down cut values off, up to `CUT` times the largest code: where something is found in MX formats, such
elements count as exact, and it is looked for again.

Where more than `SHARE` of all blocks are off, or error or factor are, `check_folder_explain` looks for the reading that
fits. Every row is decoded, a chunk at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .check_folder_decode import elements, factors, outer_of, scaled, stored_grid
from .check_folder_explain import LIMIT, SLACK, Rows, explained, sample_of, smoothed
from .check_folder_parts import Matrix
from .check_folder_report import Finding

CHUNK = 1 << 19  # values that are decoded together
ODD = 6.0  # times the middle error of rows, where that is above half of `LIMIT`
OFF, SHARE = 0.34, 0.02
SPENT = 0.2  # times the mean energy of a row's blocks: what calibration may spend on one of them
CUT = 1.5  # times the largest code: powers of two to the nearest in log2 leave sqrt(2), and its rounding
BINS = 1001  # of factors, in log2 from -1 to 1
BLOCK = 16  # values whose factor is compared, at least
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Beside:
    """A matrix beside its original. error, energy: sums of squares. factor: the middle one of blocks. off, gone,
    blocks: blocks that are off, or gone, and all. where: first and last row, first and last column of those that are
    gone. padding: values beyond the original's columns that are not zero."""

    error: float
    energy: float
    factor: float
    off: int
    gone: int
    blocks: int
    where: Box
    padding: int

    def same(self, fmt: str, truncated: bool = False) -> bool:
        """Whether this is the original, quantized, but for the blocks that are gone. truncated: toward zero."""
        scaled = abs(self.factor - 1) <= SLACK[fmt] or (truncated and 1 < self.factor < 1 + OFF)
        return scaled and self.error <= LIMIT[fmt] * self.energy and self.off <= SHARE * self.blocks


def against(
    m: Matrix, of: int, original: Rows, shape: tuple[int, int], kin: list[Matrix]
) -> tuple[float, list[Finding]]:
    """The error of matrix `of`, and what is wrong with it.

    shape: of the original. kin: matrices of its role or its parent, whose scales or codes it may have.
    """
    name = m.module.name if m.lead == 1 else f"{m.module.name}[{of}]"
    found = beside(m, of, original, shape, 1.0)
    if m.fmt.startswith("MX") and (not found.same(m.fmt) or found.gone):
        found = beside(m, of, original, shape, CUT)
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
    shown = sample_of(m, of, original, shape)
    if found.same(m.fmt, shown.truncated()):
        return error, findings + ([_some(found, name)] if found.gone else [])
    detail = f"error {error:.2g} of the original's energy as stored"
    told = explained(m, of, shown, kin, name, detail)
    if not told:
        told = [_some(found, name)] if 0 < found.gone < found.blocks / 2 else smoothed(shown, name)
    text = "decoded values are not those of the original, in no order of nibbles, scales or siblings"
    unknown = Finding("values", text, (name,), f"{detail}; {found.off:,} of {found.blocks:,} blocks are off")
    return error, findings + (told or [unknown])


def beside(m: Matrix, of: int, original: Rows, shape: tuple[int, int], cut: float) -> Beside:
    """Compare every row. cut: elements at the largest code count as exact up to that many times it."""
    grid = factors(stored_grid(m, of), m.fmt) * outer_of(m)[of]
    rows, columns = min(shape[0], m.rows), min(shape[1], m.columns)
    tall = min(m.block[0], m.rows)
    step = max(1, CHUNK // max(m.columns, 1) // tall) * tall
    totals = torch.zeros(3, dtype=torch.float64)  # <x, x>, <x, v>, <v, v>
    off = gone = between = blocks = padding = 0
    where, ratios, bins = (m.rows, -1, m.columns, -1), [], torch.zeros(BINS)
    for first in range(0, rows, step):
        raw = elements(m, of, first, min(first + step, rows))
        v = scaled(raw, grid, m, first)
        padding += int((v[:, columns:] != 0).sum()) if columns < m.columns else 0
        x = original(of, first, first + len(v))[:, :columns]
        if cut > 1:
            top = raw[:, :columns].abs() == (6.0 if m.packed else 448.0)
            ratio = x / v[:, :columns]
            x = torch.where(top & (ratio > 1) & (ratio <= cut), v[:, :columns], x)
        s = _sums(x, v[:, :columns], _width(m))
        totals += torch.stack([t.sum(dtype=torch.float64) for t in (s.energy, s.dot, s.own)])
        one, other, half = _off(s, _floor(m, of, grid, first, len(v)))
        bins += torch.histc((s.dot / s.own).log2(), BINS, -1.0, 1.0)  # neither NaN nor what is beyond is counted
        ratios.append(_row_errors(s, _floor(m, of, grid, first, len(v))))
        blocks, off, gone = blocks + one.numel(), off + int(one.sum()), gone + int(other.sum())
        between += int(half.sum())
        where = _box(where, other, first, columns, _width(m))
    gone = 0 if between > 2 * gone else gone
    rows_off = _odd(torch.cat(ratios), m.fmt) if ratios else torch.zeros(0, dtype=torch.bool)
    if not gone and bool(rows_off.any()):
        gone = int(rows_off.sum()) * (-(-columns // _width(m)))
        where = _box(where, rows_off.view(-1, 1).expand(-1, -(-columns // _width(m))), 0, columns, _width(m))
    energy, dot, own = totals.tolist()
    middle = int((bins.cumsum(0) * 2 >= bins.sum()).int().argmax())
    factor = 2 ** ((middle + 0.5) * 2 / BINS - 1) if bool(bins.any()) else dot / own if own else 0.0
    return Beside(max(energy - 2 * dot + own, 0.0), energy, factor, off, gone, blocks, where, padding)


def _width(m: Matrix) -> int:
    """Values of a block that are compared: those that share a scale, at most a tile's row."""
    return max(BLOCK, min(m.block[1], 128))


def _floor(m: Matrix, of: int, grid: Tensor, first: int, rows: int) -> Tensor:
    """Magnitudes below which scales or elements are subnormal, (rows or 1, 1). grid: with the outer."""
    if m.fmt != "FP8":
        return 6 * 2.0**-6 * outer_of(m)[of].abs().view(1, 1) * (m.fmt == "NVFP4")
    own = grid[torch.arange(first, first + rows) // m.block[0]].abs()
    return own.amax(-1, keepdim=True) * 2.0**-6


class _Sums(NamedTuple):
    """Blocks of x and v (rows, blocks, width), and their sums <x, v>, <v, v> and <x, x>, (rows, blocks)."""

    x: Tensor
    v: Tensor
    dot: Tensor
    own: Tensor
    energy: Tensor


def _sums(x: Tensor, v: Tensor, width: int) -> _Sums:
    pad = -x.shape[1] % width
    x, v = (torch.nn.functional.pad(t, (0, pad)) if pad else t for t in (x, v))
    x, v = (t.reshape(len(t), -1, width) for t in (x, v))
    own = torch.einsum("rbk,rbk->rb", v, v)
    if not bool(torch.isfinite(own).all()):
        v = torch.where(torch.isfinite(v) & (v.abs() < 1e18), v, 0.0)
        own = torch.einsum("rbk,rbk->rb", v, v)
    return _Sums(x, v, torch.einsum("rbk,rbk->rb", x, v), own, torch.einsum("rbk,rbk->rb", x, x))


def _off(s: _Sums, floor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which blocks of a row are off, which are gone, and which are between gone and sound, bool (rows, blocks)."""
    c = torch.where(s.own > 0, s.dot / torch.where(s.own > 0, s.own, 1.0), 0.0)
    r = torch.where(s.energy > 0, c * s.dot / torch.where(s.energy > 0, s.energy, 1.0), 0.0)
    off, gone, between = (c - 1).abs() > OFF, (r < 0.25) | (c < 0.25) | (c > 4.0), r < 0.8
    if not bool((off | gone).any()):
        return off, gone, between & False
    large = _large(s, floor)
    much = large & (s.energy - 2 * s.dot + s.own > SPENT * s.energy.mean(-1, keepdim=True))
    return off & large, gone & much, between & ~gone & much


def _large(s: _Sums, floor: Tensor) -> Tensor:
    """Which blocks reach above what scales or elements have as normal numbers."""
    return torch.maximum(s.x.abs().amax(-1), s.v.abs().amax(-1)) > 2 * floor


def _row_errors(s: _Sums, floor: Tensor) -> Tensor:
    """The error of every row, NaN where that says nothing: all zeros, or below the normal scales."""
    error, energy = (s.energy - 2 * s.dot + s.own).sum(-1), s.energy.sum(-1)
    small = s.energy.amax(-1) <= s.x.shape[-1] * (2 * floor.squeeze(-1)).square()
    return torch.where(small | (energy == 0), torch.nan, error / torch.where(energy > 0, energy, 1.0))


def _odd(errors: Tensor, fmt: str) -> Tensor:
    """Which rows have an error far above the others', bool; none if there are as many on the way."""
    usual = torch.nanmedian(errors)
    odd = (errors > ODD * usual) & (errors > LIMIT[fmt] / 2)
    way = (errors > ODD / 2 * usual) & ~odd
    return odd & (way.sum() < odd.sum())


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
