"""The order of scales and of nibbles as far as a folder shows it by itself, without the original.

Scales. Rows and columns of a trained matrix have their own magnitudes, so the logarithms of block scales are nearly a
sum, row + column. In another order of the same bytes they are not. With T the variance of log2 scale, R and C those of
the means of rows and of columns of the n x k grid,

    share = 1 - (1 - (R + C) / T) * (n k - 1) / ((n - 1) (k - 1))        0 for numbers without rows and columns

An order is named if its share is `MORE` above that of the stored one. Where no order has a share, as in a matrix of
random numbers, nothing is known. Fisher's analysis of variance, two-way without repetition; adjusted for its degrees
of freedom.

Nibbles. A unit of a trained network has large weights on both of its sides or on none: column j of down_proj is as
large as row j of up_proj and of gate_proj (training keeps |row|^2 - |column|^2, up to weight decay and gates; Du, Hu
and Lee, arXiv:1806.00900). Swapped nibbles exchange columns 2i and 2i + 1, and rows stay. With r the correlation of
the logarithms as stored, r' with pairs exchanged, and K columns in all,

    z = (r' - r) / sqrt(2 / K)          a normal number if neither order means anything

Swapped is said of z above `SIGMA` and r' above `FIRM`, as stored of -z and r; of one matrix, or of those of a role
together. v_proj and o_proj do the same where each head has its own values.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from .check_folder_decode import NIBBLES, elements, factors, orders, scaled, stored_grid
from .check_folder_kin import role
from .check_folder_parts import Matrix
from .check_folder_report import Finding
from .check_folder_values import sample

MORE = 0.2  # of the variance; chance gives less than 0.05 from `LEAST` scales on
LEAST, NARROW = 512, 4  # scales in all, and rows or columns
MOST = 1 << 18  # scales that are looked at, of evenly spaced rows
SIGMA, FIRM = 8.0, 0.15
FED = {"down_proj": ("up_proj", "gate_proj"), "w2": ("w3", "w1"), "o_proj": ("v_proj",)}  # columns, and rows like them


def share(scales: Tensor) -> float:
    """The part of the variance of a grid's logarithms that rows and columns explain, 0 if that says nothing."""
    n, k = scales.shape
    if n * k < LEAST or min(n, k) < NARROW or not bool((torch.isfinite(scales) & (scales > 0)).all()):
        return 0.0
    log = scales.double().log2()
    total = float(log.var(correction=0))
    if total == 0:
        return 0.0
    explained = float(log.mean(1).var(correction=0) + log.mean(0).var(correction=0)) / total
    return 1 - (1 - explained) * (n * k - 1) / ((n - 1) * (k - 1))


def _few(grid: Tensor, m: Matrix) -> Tensor:
    """Factors of evenly spaced rows of a grid."""
    return factors(grid[:: max(1, grid.numel() // MOST)].contiguous(), m.fmt)


def scale_orders(matrices: list[Matrix]) -> tuple[list[Finding], int]:
    """Scales that show rows and columns in another order than the one in which they lie; and in how many matrices the
    order is known."""
    findings, known = [], 0
    for m in matrices:
        stored = stored_grid(m, 0)
        own = share(_few(stored, m))
        others = [(share(_few(grid, m)), words) for words, grid in orders(stored)]
        best, words = max(others, default=(0.0, ""))
        if best > own + MORE:
            detail = f"in that order rows and columns explain {best:.0%} of their variance, as stored {max(own, 0):.0%}"
            findings.append(Finding("scale layout", words, (m.module.parts["scale"].name,), detail))
        known += best > own + MORE or own > best + MORE
    return findings, known


def nibble_order(matrices: list[Matrix]) -> tuple[list[Finding], int]:
    """Matrices whose columns follow the rows that feed them with nibbles exchanged; and in how many the order is
    known."""
    of = {m.module.name: m for m in matrices}
    by_role: dict[str, list[tuple[str, Tensor]]] = defaultdict(list)
    for name, m in of.items():
        head, _, tail = name.rpartition(".")
        feeders = [of[f"{head}.{f}"] for f in FED.get(tail, ()) if f"{head}.{f}" in of]
        rows = [_row_sizes(f) for f in feeders if f.rows == m.columns and f.lead == m.lead == 1 and f.block[0] == 1]
        if m.packed and rows and m.lead == 1 and m.columns % 2 == 0:
            by_role[role(name)].append((name, _sums(_normal(_column_sizes(m)), _normal(torch.stack(rows).mean(0)))))
    swapped: list[str] = []
    known = 0
    for members in by_role.values():
        together = _verdict(torch.stack([sums for _, sums in members]).sum(0))
        verdicts = {name: _verdict(sums) or together for name, sums in members}
        swapped += [name for name, verdict in verdicts.items() if verdict > 0]
        known += sum(1 for verdict in verdicts.values() if verdict)
    text = f"{NIBBLES}; in that order alone do columns follow the rows that feed them"
    return [Finding("nibbles", text, (name,)) for name in swapped], known


def _sums(columns: Tensor, rows: Tensor) -> Tensor:
    """Products of the sizes of columns and rows, summed as stored and with pairs of columns exchanged; their number."""
    exchanged = columns.view(-1, 2).flip(-1).flatten()
    return torch.stack([(columns * rows).sum(), (exchanged * rows).sum(), torch.tensor(len(rows)).double()])


def _verdict(sums: Tensor) -> int:
    """1 if nibbles are swapped, -1 if they are not, 0 if that cannot be said."""
    as_stored, exchanged = (sums[:2] / sums[2]).tolist()
    z = (exchanged - as_stored) / (2 / float(sums[2])) ** 0.5
    return 1 if z > SIGMA and exchanged > FIRM else -1 if z < -SIGMA and as_stored > FIRM else 0


def _normal(sizes: Tensor) -> Tensor:
    """Logarithms with mean 0 and variance 1; zeros where a size is none."""
    usable = torch.isfinite(sizes) & (sizes > 0)
    log = torch.where(usable, sizes, 1.0).double().log()
    log = torch.where(usable, log - log[usable].mean(), 0.0)
    return log / log.square().mean().sqrt().clamp(min=1e-12)


def _row_sizes(m: Matrix) -> Tensor:
    """The root mean square of the scales of every row: what its values are like."""
    return factors(stored_grid(m, 0), m.fmt).square().mean(-1).sqrt()


def _column_sizes(m: Matrix) -> Tensor:
    """The root mean square of every column, on a sample of rows."""
    grid = factors(stored_grid(m, 0), m.fmt)
    runs = [scaled(elements(m, 0, first, last), grid, m, first) for first, last in sample(m)]
    return torch.cat(runs).square().mean(0).sqrt()
