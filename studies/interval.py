"""Numbers with intervals, in words: what a finding states."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the half-width of its 95 % interval."""

    mean: float
    half: float

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside."""
        return abs(value - self.mean) <= self.half

    def times(self, factor: float) -> "Interval":
        """Both numbers in another unit."""
        return Interval(self.mean * factor, self.half * factor)

    def text(self, digits: int, factor: float = 1.0) -> str:
        """`mean ± half`, both times `factor`, with `digits` decimals."""
        mean = round(self.mean * factor, digits) + 0.0  # never "-0"
        return f"{mean:.{digits}f} ± {self.half * factor:.{digits}f}"


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean of independent `values`.

    Raises:
        ValueError: fewer than two values, which have no spread.
    """
    if len(values) < 2:
        raise ValueError(f"values has {len(values)} entries; an interval needs two or more")
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(float(np.mean(values)), float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * error)


def share_interval(count: int, total: int) -> tuple[float, float]:
    """Clopper and Pearson's exact interval of the share that `count` of `total` independent draws estimate."""
    found = stats.binomtest(count, total).proportion_ci(LEVEL)
    return float(found.low), float(found.high)


def listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    *first, last = words
    return " and ".join(filter(None, [", ".join(first), last]))


def over(values: Sequence[float]) -> Interval:
    """The interval over seeds, or the value alone without spread where there is only one."""
    return interval(values) if len(values) > 1 else Interval(float(values[0]), 0.0)


def over_seeds(frame: pd.DataFrame, keys: Sequence[str], column: str) -> dict[tuple[Any, ...], Interval]:
    """The interval of `column` for each combination of `keys`, in the frame's order."""
    return {key: interval(values.tolist()) for key, values in frame.groupby(list(keys), sort=False)[column]}


def shown(frame: pd.DataFrame, keys: Sequence[str], columns: Mapping[str, tuple[float, int]]) -> pd.DataFrame:
    """A table for readers: one line for each combination of `keys`, with the interval of each of `columns`, whose
    values are a factor and a number of decimals."""
    found = {name: over_seeds(frame, keys, name) for name in columns}
    lines = []
    for key in next(iter(found.values())):
        cells = {name: found[name][key].text(digits, factor) for name, (factor, digits) in columns.items()}
        lines.append(dict(zip(keys, key, strict=True)) | cells)
    return pd.DataFrame(lines)


def stated(found: Interval, digits: int = 2) -> str:
    """`mean ± half` with `digits` decimals, more where the half-width would read as zero."""
    while digits < 6 and 0 < round(found.half, 6) and round(found.half, digits) == 0:
        digits += 1
    return found.text(digits)
