"""Contract: a published number beside ours gets a verdict from the distance of the two, the tolerance and our interval.

Oracle: distances worked out by hand; sums are exact in float64, or far from a tolerance's end.
"""

import pandas as pd
import pytest

from studies.interval import Interval, stated
from studies.published import COLUMNS, Claim, agreement, claimed, compared, table


@pytest.mark.parametrize(
    ("ours", "published", "tolerance", "verdict", "difference"),
    [
        (10.0, 10.0, {}, "agrees", "none"),
        (9.0, 9.0 + 1e-9, {}, "differs", "-1e-09"),
        (393216.0, 262144, {}, "differs", "+131072"),
        (10.1, 10.0, {"relative": 0.011}, "agrees", "+1.00 %"),
        (10.2, 10.0, {"relative": 0.011}, "differs", "+2.00 %"),
        (10.2, 10.0, {"relative": 0.011, "absolute": 0.1}, "agrees", "+2.00 %"),
        (-10.25, -10.0, {"absolute": 0.25}, "agrees", "-0.25"),
        (-10.1, -10.0, {"relative": 0.011}, "agrees", "+1.00 %"),
        (1.0, 0.0, {"relative": 0.5}, "differs", "+1"),
        (Interval(10.2, 0.1), 10.0, {"relative": 0.011}, "agrees", "+2.00 %"),
        (Interval(10.3, 0.1), (9.0, 10.0), {"relative": 0.01}, "differs", "+3.00 %"),
        (Interval(10.3, 0.25), (9.0, 10.0), {"relative": 0.01}, "agrees", "+3.00 %"),
        (8.5, (9.0, 10.0), {"absolute": 0.5}, "agrees", "-0.5"),
        (9.5, (9.0, 10.0), {}, "agrees", "none"),
        ((1.0, 2.0), (2.0, 3.0), {}, "agrees", "none"),
        ((1.0, 1.5), (2.0, 3.0), {}, "differs", "-0.5"),
        ((1.0, 3.0), 2.0, {}, "agrees", "none"),
    ],
)
def test_a_verdict_follows_the_distance(ours, published, tolerance, verdict, difference) -> None:
    row = compared("a", ours, published, "a paper", **tolerance)
    assert (row["verdict"], row["difference"]) == (verdict, difference)
    assert row["explanation"] == ("not explained" if verdict == "differs" else "")


def test_cells_are_as_they_are_to_be_read() -> None:
    row = compared("a", Interval(9.05123, 0.0123), 2.0**-10, "a paper", relative=0.03, absolute=0.5, explanation="why")
    assert tuple(row) == COLUMNS
    assert (row["ours"], row["published"], row["tolerance"]) == ("9.051 ± 0.012", "2^-10", "3 % + 0.5 + our interval")
    row = compared("a", 458752, (1.5, 17e3), "a paper", absolute=1e6, explanation="why")
    assert (row["ours"], row["published"], row["explanation"]) == ("458752", "1.5 to 17000", "why")
    assert compared("a", Interval(3.0, 0.0), 3, "a paper")["ours"] == "3" and row["tolerance"] == "1e+06"
    assert compared("a", Interval(312.0, 25.0), 3, "a paper")["ours"] == "312 ± 25"
    assert stated(Interval(1.0, 0.0004)) == "1.0000 ± 0.0004" and stated(Interval(1.0, 0.0)) == "1.00 ± 0.00"


def test_captions_count() -> None:
    rows = [compared(name, ours, 1.0, "a paper") for name, ours in (("a", 1.0), ("b", 2.0), ("b", 3.0), ("c", 1.0))]
    found = table(rows, "Here:")
    assert found.caption == "Here: 2 of 4 published numbers agree." and found.name == "published"
    assert agreement(found.frame) == "2 of 4 published numbers agree; b does not."
    assert agreement(table(rows[::3]).frame) == "2 of 2 published numbers agree."


def test_claims_are_looked_up_in_measurements() -> None:
    rows = pd.DataFrame({"kind": ["a", "a", "b"], "error": [0.0020, 0.0021, 9.0]})
    claims = (Claim("it", "kinds", {"kind": "a"}, "error", (1.0, 2.0), "a paper"),)
    for shift, verdict, difference in ((0.0, "agrees", "+2.50 %"), (0.003, "differs", "+152.50 %")):
        found = claimed({"kinds": rows.assign(error=rows.error + shift)}, claims, 0.03).frame.iloc[0]
        assert (found.verdict, found.difference, found.published) == (verdict, difference, "1 to 2")
    alone = claimed({"kinds": rows}, (Claim("it", "kinds", {"kind": "b"}, "error", 9.0, "a paper", 1.0),), 0.0)
    assert alone.frame.ours[0] == "9" and alone.frame.verdict[0] == "agrees"
