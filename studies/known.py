"""Numbers that others published, beside ours: the rows of a study's table "published".

    row = compared("relMSE of NVFP4", ours=9.05, published=9.050, tolerance=0.01, source="arXiv 2601.22813, table 1")

The difference is relative to the published number, or to the nearer end of a published range, and ours agrees when it
is at most the tolerance plus the half-width of our own interval. What does not agree says so, with an explanation or
with the word that there is none.
"""

from collections.abc import Iterable

import pandas as pd

from .interval import Interval
from .result import Table

COLUMNS = ("quantity", "ours", "published", "difference", "tolerance", "verdict", "source", "explanation")
RECOMPUTED = "independent recomputation in numpy"


def compared(
    quantity: str,
    ours: float | Interval,
    published: float | tuple[float, float],
    tolerance: float,
    source: str,
    explanation: str = "",
    digits: int = 3,
) -> dict[str, str]:
    """One row.

    Args:
        quantity: what it is, with its unit. ours: a number, or a mean with its interval, in that unit.
        published: a number, or the ends of a range. tolerance: relative; 0: to the last bit.
        source: paper and section. explanation: why the two differ, shown whatever the verdict.
        digits: decimals.
    """
    mean, half = (ours.mean, ours.half) if isinstance(ours, Interval) else (ours, 0.0)
    low, high = published if isinstance(published, tuple) else (published, published)
    nearest = min(max(mean, low), high)
    off = mean - nearest
    agrees = abs(off) <= tolerance * abs(nearest) + half
    difference = f"{off / nearest:+.2%}" if nearest and off else f"{off:+.{digits}f}" if off else "0"
    return {
        "quantity": quantity,
        "ours": ours.text(digits) if isinstance(ours, Interval) else f"{ours:.{digits}f}",
        "published": f"{low:.{digits}f}" if low == high else f"{low:.{digits}f} to {high:.{digits}f}",
        "difference": difference,
        "tolerance": (f"{100 * tolerance:g}%" if tolerance else "exact") + (" and our interval" if half else ""),
        "verdict": "agrees" if agrees else "differs",
        "source": source,
        "explanation": explanation or ("" if agrees else "not explained"),
    }


def table(rows: Iterable[dict[str, str]]) -> Table:
    """The table of `compared` rows; its caption counts them."""
    frame = pd.DataFrame(list(rows), columns=list(COLUMNS))
    count = int((frame.verdict == "agrees").sum())
    caption = f"Published numbers beside ours: {count} of {len(frame)} agree within the tolerance."
    return Table("published", frame, caption)
