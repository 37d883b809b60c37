"""The order of scales as far as they show it themselves, without the original.

Rows and columns of a trained matrix have their own magnitudes, so the logarithms of block scales are nearly a sum,
row + column. In another order of the same bytes they are not. With T the variance of log2 scale, R and C those of the
means of rows and of columns of the n x k grid,

    share = 1 - (1 - (R + C) / T) * (n k - 1) / ((n - 1) (k - 1))        0 for numbers without rows and columns

An order is named if its share is `MORE` above that of the stored one. Where no order has a share, as in a matrix of
random numbers, nothing is known. Fisher's analysis of variance, two-way without repetition; adjusted for its degrees
of freedom.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .check_folder_decode import factors, orders, stored_grid
from .check_folder_parts import Matrix
from .check_folder_report import Finding

MORE = 0.2  # of the variance; chance gives less than 0.05 from `LEAST` scales on
LEAST, NARROW = 512, 4  # scales in all, and rows or columns


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


def scale_orders(matrices: list[Matrix]) -> tuple[list[Finding], int]:
    """Scales that show rows and columns in another order than the one in which they lie; and in how many matrices the
    order is known."""
    findings, known = [], 0
    for m in matrices:
        stored = stored_grid(m, 0)
        own = share(factors(stored, m.fmt))
        others = [(share(factors(grid, m.fmt)), words) for words, grid in orders(stored)]
        best, words = max(others, default=(0.0, ""))
        if best > own + MORE:
            detail = f"in that order rows and columns explain {best:.0%} of their variance, as stored {max(own, 0):.0%}"
            findings.append(Finding("scale layout", words, (m.module.parts["scale"].name,), detail))
        known += best > own + MORE or own > best + MORE
    return findings, known
