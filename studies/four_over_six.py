"""Four over six: what a block gains when its maximum may be mapped to 4 instead of 6.

E2M1 has no level between 4 and 6, the largest gap of all, so a block whose maximum is mapped to 6 rounds its values
between two thirds of the maximum and the maximum badly. Mapped to 4 it has a level at three quarters, and a coarser
grid elsewhere; "Four Over Six" (arXiv 2512.02010) tries both per block and keeps the better. What is measured is in
`four_over_six_data`, closed forms and the paper's worked block in `four_over_six_exact`.

Intervals are Student's over seeds, over matrices of trained data, 95 %. Numbers by crest factor are ratios of sums over
all blocks of a source, where it has enough of them.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from reference.progress import Progress

from . import cache, real_data
from . import four_over_six_data as data
from . import four_over_six_exact as exact
from . import four_over_six_plots as drawn
from .four_over_six_data import CREST_EDGES, PRODUCTS, RULES, SIX, SOURCES, SQUARES
from .four_over_six_tables import PAPER, SELECTIONS, Found, by_crest, precision_table, published, rules_table, summarize
from .interval import interval, listed
from .result import Plate, Result, Study, Table, key_table

PAIRS = (("gaussian", "gaussian"), ("channels", "laplace"))
ALIKE = 0.05  # sources whose error saved differs by less follow one curve
MEASURES = {SQUARES: "rel_mse", "4/6, magnitudes": "rel_mae", "4/6, largest error": "largest"}


def measure(n: int, seeds: tuple[int, ...], trained: Sequence[str] = ()) -> pd.DataFrame:
    """All rows of `measure_seed` and `measure_product`, for matrices of n x n, factors of n / 2; and of `trained` data,
    kinds in `REAL`, those of `measure_real`."""
    parts = []
    with Progress((len(SOURCES) + len(PAIRS)) * len(seeds) + len(trained), "four_over_six") as progress:
        for seed in seeds:
            for source in SOURCES:
                parts.append(cache.part(data.measure_seed, source=source, seed=seed, n=n))
                progress.advance(1, f"{source}, seed {seed}")
            for x, w in PAIRS:
                parts.append(cache.part(data.measure_product, activations=x, weights=w, seed=seed, n=n // 2))
                progress.advance(1, f"product of {x} and {w}, seed {seed}")
        for kind in trained:
            parts.append(cache.part(data.measure_real, kind=kind, identity=real_data.identity()))
            progress.advance(1, kind)
    return pd.concat(parts, ignore_index=True)


def find(rows: pd.DataFrame, reason: str = "") -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements; reason: why there are no trained data."""
    found, normal = summarize(rows), rows[(rows.source == "gaussian") & (rows.part == "rule")]
    told = [_on_trained(rows, kind) for kind in data.REAL if (rows.source == kind).any()]
    return (
        _lead(found, by_crest(rows), normal.seed.nunique()),
        *(
            _on_levels(),
            f"Intervals are 95 % over {normal.seed.nunique()} seeds of {int(normal.n.iloc[0]):,} numbers each.",
            _on_rules(found),
            _on_gap(found),
            _on_precision(found),
            _on_products(found),
            *told,
            _on_crest(by_crest(rows)),
            *([f"Trained data not measured: {reason}."] if reason else []),
        ),
    )


def _lead(found: Found, crests: pd.DataFrame, seeds: int) -> str:
    six, chosen = (found["rule", "gaussian", rule, "rel_mse"] for rule in (SIX, SQUARES))
    gain = crests.groupby("at", sort=True).gain.mean()
    return (
        f"On normal values the choice of 6 or 4 by squares changes the squared error from {six.text(2, 1e3)} to "
        f"{chosen.text(2, 1e3)} thousandths of the energy ({seeds} seeds). It saves {100 * gain.iloc[0]:.0f} % in "
        f"blocks of the least crest factor and {100 * gain.iloc[-1]:.0f} % in those of the largest."
    )


def _on_levels() -> str:
    six, four = (exact.levels(largest) for largest in (6.0, 4.0))
    inside = [v for v in exact.both() if v in four and six[-2] < v < 6]
    saved = 1 - exact.mean_square(four) / exact.mean_square(six)
    return (
        f"Mapped to 6, a block has no level between {six[-2] / 6:.1%} and 100% of its maximum; mapped to 4 it has "
        f"{listed(f'{v / 6:.1%}' for v in inside)}: of values uniform up to the maximum, {float(saved):.1%} less "
        f"squared error, and a largest error of {float(exact.largest_error(four)) / 6:.1%} instead of "
        f"{float(exact.largest_error(six)) / 6:.1%} of the maximum."
    )


def _on_rules(found: Found) -> str:
    def told(rule: str) -> str:
        error, share = (found["rule", "gaussian", rule, name] for name in ("rel_mse", "fours"))
        return f"{error.text(3, 1e3)} by {rule.removeprefix('4/6, ')} ({share.text(1, 100)} % of blocks mapped to 4)"

    six = found["rule", "gaussian", SIX, "rel_mse"]
    winners = {
        rule: min(SELECTIONS, key=lambda r, m=m: found["rule", "gaussian", r, m].mean) for rule, m in MEASURES.items()
    }
    best = all(rule == winner for rule, winner in winners.items())
    words = " Each rule is the best by its own measure." if best else " Not each rule is the best by its own measure."
    return (
        f"On normal values the squared error is {six.text(3, 1e3)} thousandths of the energy mapped to 6 always, and "
        f"{listed(told(rule) for rule in SELECTIONS)}.{words}"
    )


def _on_gap(found: Found) -> str:
    values, six, four = (found["gap", "gaussian", case, "share"] for case in ("values", SIX, SQUARES))
    inside, outside = (
        found["gap", "gaussian", SQUARES, side].mean - found["gap", "gaussian", SIX, side].mean
        for side in ("inside", "outside")
    )
    trade = (
        f"choosing saves {-1e3 * inside:.2f} thousandths there and adds {1e3 * outside:.2f} below"
        if inside < 0 < outside
        else f"choosing changes the error by {1e3 * inside:+.2f} thousandths there and by {1e3 * outside:+.2f} below"
    )
    return (
        f"The {values.text(1, 100)} % of values above two thirds of their block's maximum make {six.text(1, 100)} % of "
        f"the error mapped to 6, {four.text(1, 100)} % after choosing: {trade}."
    )


def _on_precision(found: Found) -> str:
    shares = {}
    for case in ("scales exact", "values exact"):
        part = found["precision", "gaussian", f"6, {case}", "rel_mse"].mean
        shares[case] = 100 * part / found["rule", "gaussian", SIX, "rel_mse"].mean
    culprit = "values, not scales, cause the error" if shares["scales exact"] > 90 > 10 > shares["values exact"] else ""
    culprit = culprit or "both contribute to the error"
    return (
        f"With exact scales {shares['scales exact']:.1f} % of it remain, with exact values that only saturate "
        f"{shares['values exact']:.1f} %: {culprit}."
    )


def _on_products(found: Found) -> str:
    told = []
    for x, w in PAIRS:
        each = {case: found["product", f"{x} x {w}", case, "rel_mse"] for case in PRODUCTS}
        parts = [f"{each[case].text(2, 1e3)} for {case}" for case in ("neither", "activations", "weights", "both")]
        told.append(f"of {x} activations and {w} weights {listed(parts)}")
    return f"Error of the product, thousandths, by who may choose: {'; '.join(told)}. {_more(found, *PAIRS[1])}"


def _more(found: Found, x: str, w: str) -> str:
    """Which operand gains more by choosing, from differences within seeds."""
    saved = {case: found["saved", f"{x} x {w}", case, "rel_mse"] for case in ("activations", "weights")}
    low, high = sorted(saved, key=lambda case: saved[case].mean)
    distinct = saved[low].mean + saved[low].half < saved[high].mean - saved[high].half
    told = f"{saved[high].text(2, 1e3)} by {high}, {saved[low].text(2, 1e3)} by {low}"
    return f"The latter is saved {told}{'' if distinct else ', which the intervals do not tell apart'}."


def _on_trained(rows: pd.DataFrame, kind: str) -> str:
    part = rows[(rows.source == kind) & (rows.part == "rule")]
    error = part[part.measure == "rel_mse"].pivot(index="seed", columns="case", values="value")
    saved = interval((1 - error[SQUARES] / error[SIX]).tolist())
    share = interval(part[(part.measure == "fours") & (part.case == SQUARES)].value.tolist())
    return (
        f"On {kind} ({len(error)} matrices, intervals over them) choosing saves {saved.text(1, 100)} % of the squared "
        f"error; {share.text(1, 100)} % of blocks are mapped to 4."
    )


def _on_crest(crests: pd.DataFrame) -> str:
    low, high = crests["at"].min(), crests["at"].max()
    ends = {
        column: [f"{100 * value:.0f}" for at in (low, high) for value in [_pooled(crests[crests["at"] == at], column)]]
        for column in ("gain", "fours")
    }
    spread, of_shares = (100 * apart(crests, column) for column in ("gain", "fours"))
    gains = crests.groupby("at").gain.max()
    none = [at for at in gains.index if (gains[gains.index >= at] < 0.02).all()]
    curve = (
        f"within {spread:.1f} points whatever the source: the block's crest factor decides what 4/6 saves, which no "
        "source we know states"
        if spread < 100 * ALIKE
        else f"but sources differ by up to {spread:.1f} points at the same crest factor"
    )
    return (
        f"By the block's maximum over its rms, its crest factor, the error saved goes from {ends['gain'][0]} % at "
        f"{_range(low)} to {ends['gain'][1]} % at {_range(high)}, {curve}. The share mapped to 4 goes from "
        f"{ends['fours'][0]} % to {ends['fours'][1]} %, within {of_shares:.1f} points"
        f"{f'; from {none[0]:g} on no source gains 2 %' if none else ''}."
    )


def _pooled(part: pd.DataFrame, column: str) -> float:
    return float((part[column] * part.blocks).sum() / part.blocks.sum())


def apart(crests: pd.DataFrame, column: str) -> float:
    """The largest difference between sources in a column of `by_crest`, at like crest factors."""
    return float(crests.groupby("at")[column].agg(lambda v: v.max() - v.min()).max())


def _range(at: float) -> str:
    """The bin of crest factors that begins at `at`."""
    later = [edge for edge in CREST_EDGES if edge > at]
    return f"{at:g} to {later[0]:g}" if later else f"{at:g}"


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 8 seeds of 2048 x 2048 numbers, or 5 of 512 x 512 when `fast`."""
    n, seeds = (512, tuple(range(5))) if fast else (2048, tuple(range(8)))
    reason = real_data.missing()
    rows = measure(n, seeds, () if reason else tuple(data.REAL))
    found, crests = summarize(rows), by_crest(rows)
    sources = [*SOURCES, *(() if reason else data.REAL)]
    errors = pd.DataFrame({s: {r: found["rule", s, r, "rel_mse"].mean for r in RULES} for s in sources})
    part = rows[(rows.part == "position") & (rows.source == "gaussian")]
    positions = part.pivot_table(index="at", columns="case", values="value") * 1e3
    gap = {case: found["gap", "gaussian", case, "share"].text(1, 100) for case in ("values", SIX, SQUARES)}
    share = {s: found["rule", s, SQUARES, "fours"].text(1, 100) for s in sources}
    summary: dict[str, Any] = {
        "intervals": {" | ".join(key): [value.mean, value.half] for key, value in found.items()},
        "by_crest": crests.to_dict("records"),
    }
    spread = apart(crests, "gain")
    same = f"the latter within {100 * spread:.1f} points " + (
        "for all sources" if spread < ALIKE else "between sources"
    )
    plate = Plate(
        "choice",
        drawn.choice(errors / errors.loc[SIX], crests),
        "Left: each rule's squared error over that of mapping to 6. Middle and right: blocks mapped to 4 and error "
        f"saved by the block's crest factor, {same}. Of all blocks, 4/6 by squares maps to 4 in %: "
        f"{listed(f'{s} {v}' for s, v in share.items())}.",
    )
    caption = (
        "Left: error with exact scales; shaded, the gap between 4/6 of the maximum and the maximum. Middle and right, "
        f"normal values: the {gap['values']} % of values in the gap make {gap[SIX]} % of the error mapped to 6 and "
        f"{gap[SQUARES]} % with the choice; right, thick lines quantize only what lies above the threshold."
    )
    worked = Table(
        "worked", exact.worked(), f"Both candidates of some blocks, outer scale 1; the first is that of {PAPER}."
    )
    figure = drawn.where(positions)
    rules = rules_table(rows, reason)
    key = key_table(rules.frame[rules.frame.source == "gaussian"], rules.caption)
    tables = (key, rules, published(rows), worked, precision_table(rows))
    finding, *told = find(rows, reason)
    return Result(rows, figure, caption, finding, seeds, summary, "cpu", tables, (plate,), tuple(told))


STUDY = Study(
    name="four_over_six",
    title="Four over six",
    question="What does a block gain when its maximum may be mapped to 4 instead of 6, by which rule should it choose, "
    "and which values and which blocks does that help?",
    run=run,
)
