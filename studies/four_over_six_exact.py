"""Four-over-six without random numbers: the dead zone, closed forms, and the paper's worked block.

Scaled to the block's range [0, 6], candidate 6 has the levels of E2M1 and candidate 4 those times 1.5, of which 6 is
the largest within the range. A value uniform in a gap of width g has mean squared error g^2 / 12, so over [0, 6]

    mean squared error = sum g^3 / 72            largest error = max g / 2

Choosing the nearer candidate for every value by itself is rounding to the union of both sets of levels.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pandas as pd
import torch

import numerics as nm

TOP = 6.0
TABLE = (10.0, 20.0, 30.0, 40.0)  # arXiv 2512.02010, tables 1 and 2
BLOCKS = (TABLE, (10.0, 20.0, 40.0, 60.0), (33.0, 36.0, 39.0, 40.0))


def levels(largest: float) -> list[float]:
    """Levels in [0, 6] when the block maximum, 6, is mapped to the code value `largest`."""
    found = nm.E2M1.values()[nm.E2M1.values() >= 0].double() * (TOP / largest)
    return [v for v in found.tolist() if v <= TOP]


def both() -> list[float]:
    """The union of the levels of both candidates."""
    return sorted({*levels(6.0), *levels(4.0)})


def gaps(points: Sequence[float]) -> list[Fraction]:
    """Widths between neighbouring levels."""
    return [Fraction(b) - Fraction(a) for a, b in pairwise(points)]


def mean_square(points: Sequence[float]) -> Fraction:
    """Mean squared error of a value uniform in [0, 6] that is rounded to the nearest of `points`, with 0 and 6."""
    return sum((g**3 for g in gaps(points)), Fraction(0)) / 72


def largest_error(points: Sequence[float]) -> Fraction:
    return max(gaps(points)) / 2


def curve(largest: float, count: int = 1201) -> tuple[np.ndarray, np.ndarray]:
    """Error against value, both in parts of the block maximum, with the exact scale."""
    x = torch.linspace(0, TOP, count, dtype=torch.float64)
    step = TOP / largest
    off = nm.round_to(x / step, nm.E2M1) * step - x
    return (x / TOP).numpy(), (off.abs() / TOP).numpy()


def candidates(values: Sequence[float]) -> pd.DataFrame:
    """A block of four values and twelve zeros, outer scale 1: both candidates and which one is stored.

    Returns:
        Columns block, mapped to, scale, decoded, mse (over the four), stored.
    """
    x = torch.zeros(1, 16)
    x[0, :4] = torch.tensor(values)
    one = torch.ones(1, 1)
    stored = nm.quantize(x, nm.NVFP4_46, outer=one)
    rows = []
    for largest in (6, 4):
        q = nm.quantize(x, nm.NVFP4, rule=f"static_{largest}", outer=one)
        decoded = q.dequantize()[0, :4]
        mse = float((decoded - x[0, :4]).double().square().sum()) / 4
        same = torch.equal(q.scales, stored.scales) and torch.equal(q.codes, stored.codes)
        told = ", ".join(f"{v:g}" for v in decoded.tolist())
        scale = float(nm.decode(q.scales, nm.E4M3)[0, 0])
        rows.append([", ".join(f"{v:g}" for v in values), largest, scale, told, mse, "stored" if same else ""])
    return pd.DataFrame(rows, columns=["block", "mapped to", "scale", "decoded", "mse", "stored"])


def worked() -> pd.DataFrame:
    """`candidates` of the paper's block, of one that 6 represents exactly, and of one near its maximum throughout."""
    return pd.concat([candidates(values) for values in BLOCKS], ignore_index=True)
