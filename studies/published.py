"""Published numbers beside ours: a `Claim` says what is compared and how closely, `table` makes the table of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from .interval import Interval, interval, listed
from .result import Table


@dataclass(frozen=True)
class Claim:
    """One published number.

    Attributes:
        quantity: what it is. value: as published. unit: behind both numbers, may be empty.
        source: paper and section.
        relative, absolute: how far ours may lie from it, the sum of both; neither: equal.
        explanation: why the two differ; shown only if they do.
    """

    quantity: str
    value: float
    unit: str
    source: str
    relative: float = 0.0
    absolute: float = 0.0
    explanation: str = ""

    def tolerance(self) -> float:
        """The largest difference that agrees."""
        return self.relative * abs(self.value) + self.absolute

    def verdict(self, ours: float, half: float = 0.0) -> str:
        """Whether ours, known to `half`, agrees."""
        return "agrees" if abs(ours - self.value) <= self.tolerance() + half else "differs"


def table(claims: Sequence[tuple[Claim, float | Interval]], caption: str = "") -> Table:
    """The table "published": each claim with our number, its interval counting as tolerance."""
    rows = []
    for claim, found in claims:
        ours, half = (found.mean, found.half) if isinstance(found, Interval) else (found, 0.0)
        verdict = claim.verdict(ours, half)
        unit = f" {claim.unit}" if claim.unit else ""
        off = (ours / claim.value - 1) if claim.value else math.nan
        rows.append(
            {
                "quantity": claim.quantity,
                "ours": f"{_number(ours)}{unit}" + (f" ± {half:.1g}" if half else ""),
                "published": f"{_number(claim.value)}{unit}",
                "difference": "none"
                if ours == claim.value
                else f"{100 * off:+.2f} %"
                if claim.value
                else f"{ours:+.2g}",
                "tolerance": _allowed(claim),
                "verdict": verdict,
                "source": claim.source,
                "explanation": claim.explanation if verdict == "differs" else "",
            }
        )
    frame = pd.DataFrame(rows)
    return Table("published", frame, f"{caption} {agreement(frame)}".strip())


def agreement(frame: pd.DataFrame) -> str:
    """How many of the table's numbers agree, and which do not."""
    off = frame[frame.verdict == "differs"].quantity
    told = f"{len(frame) - len(off)} of {len(frame)} published numbers agree"
    names = list(dict.fromkeys(off))  # a quantity may have two sources
    return told + (f"; {listed(names)} {'does' if len(names) == 1 else 'do'} not." if names else ".")


def over(values: Sequence[float]) -> Interval:
    """The interval over seeds, or the value alone without spread where there is only one."""
    return interval(values) if len(values) > 1 else Interval(float(values[0]), 0.0)


def stated(found: Interval, digits: int = 2) -> str:
    """`mean ± half` with `digits` decimals, more where the half-width would read as zero."""
    while digits < 6 and 0 < round(found.half, 6) and round(found.half, digits) == 0:
        digits += 1
    return found.text(digits)


def _number(value: float) -> str:
    fraction, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if fraction == 0.5 and abs(exponent - 1) >= 4 else f"{value:.6g}"


def _allowed(claim: Claim) -> str:
    parts = [f"{100 * claim.relative:g} %"] * (claim.relative > 0) + [f"{claim.absolute:g}"] * (claim.absolute > 0)
    return " + ".join(parts) or "equal"
