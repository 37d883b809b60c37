"""Published numbers beside ours, the table "published" of a study.

    row = compared("relMSE of NVFP4, x 1e-3", ours, 9.050, "arXiv 2601.22813, table 1", relative=0.01)
    table([row, ...])

Ours agrees when its distance to the published number, or to the nearer end of a published range, is at most
relative * |published| + absolute + the half-width of our interval. What differs says why, or that nobody explained it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .interval import Interval, listed, over
from .result import Table

COLUMNS = ("quantity", "ours", "published", "difference", "tolerance", "verdict", "source", "explanation")
RECOMPUTED = "independent recomputation in numpy"
Range = tuple[float, float]


def compared(
    quantity: str,
    ours: float | Interval | Range,
    published: float | Range,
    source: str,
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
    explanation: str = "",
) -> dict[str, str]:
    """One row.

    Args:
        quantity: what it is, with its unit.
        ours: a number, a mean with its interval, or the ends of a range, in that unit.
        published: a number, or the ends of a range.
        source: paper and section.
        relative, absolute: how far the two may lie apart, the sum of both; neither: not at all.
        explanation: why they differ, or may; shown whatever the verdict.
    """
    (low, high), (least, most) = _ends(ours), _ends(published)
    nearest = most if low > most else least
    off = low - most if low > most else high - least if high < least else 0.0
    half = ours.half if isinstance(ours, Interval) else 0.0
    verdict = "agrees" if abs(off) <= relative * abs(nearest) + absolute + half else "differs"
    allowed = [f"{100 * relative:g} %"] * (relative > 0) + [f"{absolute:g}"] * (absolute > 0)
    allowed += ["our interval"] * (half > 0)
    apart = f"{off:+.0f}" if abs(off) >= 100 else f"{off:+.2g}"
    apart = f"{100 * off / nearest:+.2f} %" if relative and nearest else apart
    return {
        "quantity": quantity,
        "ours": _text(ours),
        "published": _text(published),
        "difference": apart if off else "none",
        "tolerance": " + ".join(allowed) or "equal",
        "verdict": verdict,
        "source": source,
        "explanation": explanation or ("not explained" if verdict == "differs" else ""),
    }


def table(rows: Iterable[dict[str, str]], caption: str = "") -> Table:
    """The table of `compared` rows; its caption ends with how many agree."""
    frame = pd.DataFrame(list(rows), columns=list(COLUMNS))
    return Table("published", frame, f"{caption} {_count(frame)}.".strip())


def agreement(frame: pd.DataFrame) -> str:
    """How many of the table's numbers agree, and which do not: a sentence."""
    names = list(dict.fromkeys(frame[frame.verdict == "differs"].quantity))  # a quantity may have two sources
    return _count(frame) + (f"; {listed(names)} {'does' if len(names) == 1 else 'do'} not." if names else ".")


@dataclass(frozen=True)
class Claim:
    """A published number, or range, of `column` in the rows of the frame `part` that `where` picks, times `factor`."""

    quantity: str
    part: str
    where: Mapping[str, Any]
    column: str
    published: float | Range
    source: str
    factor: float = 1e3
    explanation: str = ""


def claimed(frames: Mapping[str, pd.DataFrame], claims: Iterable[Claim], relative: float) -> Table:
    """The table of claims, all with one tolerance, beside means over the seeds in `frames`."""
    rows = []
    for each in claims:
        part = frames[each.part]
        for name, value in each.where.items():
            part = part[part[name] == value]
        ours = over((part[each.column] * each.factor).tolist())
        row = (each.quantity, ours, each.published, each.source)
        rows.append(compared(*row, relative=relative, explanation=each.explanation))
    return table(rows)


def _count(frame: pd.DataFrame) -> str:
    return f"{(frame.verdict == 'agrees').sum()} of {len(frame)} published numbers agree"


def _ends(value: float | Interval | Range) -> Range:
    mean = value.mean if isinstance(value, Interval) else value
    return mean if isinstance(mean, tuple) else (mean, mean)


def _text(value: float | Interval | Range) -> str:
    """A number; a range; or an interval to the second digit of its half-width."""
    if isinstance(value, Interval) and value.half:
        return value.text(max(0, 1 - math.floor(math.log10(value.half))))
    return " to ".join(dict.fromkeys(map(_number, _ends(value))))


def _number(value: float) -> str:
    fraction, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if fraction == 0.5 and exponent < -3 else f"{value:.6g}"
