"""In which norm, at which outlier size and share, one wire of the combine is better than another.

A tensor in which a share f of the blocks holds `count` outliers has moments that mix those of blocks with and without
(see `combine_data`); a norm is a function of the mixed moments. Sums are over values, so parts weigh as they count.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .combine_data import BLOCK

Moments = dict[str, float]


@dataclass(frozen=True)
class Parts:
    """Moments of one wire, one seed, one case: of outliers, of the others of their blocks, of blocks without."""

    count: int
    share: float
    outliers: Moments
    others: Moments
    plain: Moments

    def mean(self, what: str, outliers: bool = True) -> float:
        """Mean of a moment over all values, or over those that are no outliers."""
        parts = [
            (self.share * self.count * outliers, self.outliers),
            (self.share * (BLOCK - self.count), self.others),
            ((1 - self.share) * BLOCK, self.plain),
        ]
        return sum(weight * each[what] for weight, each in parts) / sum(weight for weight, _ in parts)


def everything(parts: Parts) -> float:
    return float(np.sqrt(parts.mean("square")))


def small(parts: Parts) -> float:
    return float(np.sqrt(parts.mean("square", outliers=False)))


def beside(parts: Parts) -> float:
    return float(np.sqrt(parts.others["square"]))


def absolute(parts: Parts) -> float:
    return parts.mean("mean")


def largest(parts: Parts) -> float:
    return max(each["largest"] for each in (parts.outliers, parts.others))


def by_channel(parts: Parts) -> float:
    """Outliers stand in `count` channels of 32: root of the mean over channels of error energy / energy."""
    loud, quiet = (
        [parts.share * each[what] + (1 - parts.share) * parts.plain[what] for what in ("square", "energy")]
        for each in (parts.outliers, parts.others)
    )
    terms = parts.count * loud[0] / loud[1] + (BLOCK - parts.count) * quiet[0] / quiet[1]
    return float(np.sqrt(terms / BLOCK))


def beyond(parts: Parts) -> float:
    return parts.mean("beyond")


NORMS: dict[str, Callable[[Parts], float]] = {
    "root mean square, all values": everything,
    "mean |error|, all values": absolute,
    "largest |error|": largest,
    "root mean square, no outliers": small,
    "root mean square, outliers' neighbours": beside,
    "root mean square, each channel by its own": by_channel,
    "share off by more than 1/16 of themselves": beyond,
}


def curves(rows: pd.DataFrame, count: int, share: float, norm: Callable[[Parts], float]) -> pd.DataFrame:
    """The norm by wire, seed and size: columns wire, seed, size, value.

    Args:
        rows: of `combine_data.trade_part`. count: outliers of a block that holds some. share: of such blocks.
    """
    keys = ["wire", "seed", "count", "size", "part"]
    case = rows[rows["count"].isin((0, count))].set_index(keys).to_dict("index")
    found = []
    for wire, seed, each, size, part in case:
        if each and part == "others":
            others, outliers = (case[wire, seed, count, size, name] for name in ("others", "outliers"))
            parts = Parts(count, share, outliers, others, case[wire, seed, 0, 0, "others"])
            found.append({"wire": wire, "seed": seed, "size": size, "value": norm(parts)})
    return pd.DataFrame(found)


def crossings(sizes: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The size above which `a` exceeds `b`, between sizes by a straight line in logarithms.

    Returns: infinity where `a` is below at the last size; 0 where it is above at every size.
    """
    above = a > b
    if not above[-1]:
        return float("inf")
    if above.all():
        return 0.0
    last = int(np.nonzero(~above)[0][-1])
    x, gap = np.log2(sizes[last : last + 2]), np.log2(a[last : last + 2] / b[last : last + 2])
    return float(2 ** (x[0] - gap[0] * (x[1] - x[0]) / (gap[1] - gap[0])))


def crossing(found: pd.DataFrame, wire: str, other: str | float) -> list[float]:
    """Of each seed, the size above which `wire` has the larger norm than `other`: a wire, or a number."""
    sizes = np.sort(found["size"].unique())
    by_seed = []
    for _, each in found.groupby("seed"):
        table = each.pivot(index="size", columns="wire", values="value").loc[sizes]
        b = table[other].to_numpy() if isinstance(other, str) else np.full(len(sizes), other)
        by_seed.append(crossings(sizes.astype(float), table[wire].to_numpy(), b))
    return by_seed
