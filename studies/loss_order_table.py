"""From losses to verdicts: the statistics, words, tables and figure of `loss_order`.

For recipes a and b and seeds s = 1..n at equal initial weights and batches, d_s = loss_b,s - loss_a,s, and Student's
95 % interval of its mean is over seeds. A claim a < b

    holds       the interval lies above 0
    violated    it lies below 0
    undecided   it contains 0

Two losses: that of training, the mean over the last quarter of the steps, whose batches are the same and were seen for
the first time; and the held-out one after the last step. The first has less noise, so verdicts go by it, and the other
is told beside it. "Last" is the last step that all runs have reached, see `common_step`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import plots
from .interval import Interval, interval, listed
from .loss_order_claims import BASELINE, CHAIN, Claim

HOLDS, VIOLATED, UNDECIDED = "holds", "violated", "undecided"
LOSSES = {"training": "training loss", "heldout": "held-out loss"}
_LOOKS = {HOLDS: (plots.BLUE, "o"), VIOLATED: (plots.VERMILION, "^"), UNDECIDED: (plots.GREY, "D")}
_TREND = {HOLDS: "as claimed", VIOLATED: "against the claim", UNDECIDED: "which is undecided too"}
_MILLI = 1e3  # tables are in thousandths of a nat


@dataclass(frozen=True, eq=False)
class Measured:
    """Losses at one step: for each of `LOSSES` a frame with a row for each recipe and a column for each seed."""

    step: int
    seeds: tuple[int, ...]
    losses: dict[str, pd.DataFrame]

    @property
    def recipes(self) -> list[str]:
        """Recipes, the lowest mean training loss first."""
        return list(self.losses["training"].mean(axis=1).sort_values(kind="stable").index)

    def difference(self, loss: str, lower: str, higher: str) -> Interval:
        """Loss of `higher` minus that of `lower`, paired by seed."""
        frame = self.losses[loss]
        return interval((frame.loc[higher] - frame.loc[lower]).tolist())


def common_step(rows: pd.DataFrame, runs: Sequence[tuple[str, int]]) -> int:
    """The last step at which every one of `runs` was evaluated.

    Args:
        rows: columns recipe, seed, step, loss, heldout_nats (NaN where there was no evaluation).
        runs: (recipe, seed) of each.

    Raises:
        ValueError: there is none.
    """
    evaluated = rows[rows.heldout_nats.notna()].groupby(["recipe", "seed"]).step.agg(set).to_dict()
    steps = set.intersection(*(evaluated.get(run, set()) for run in runs))
    if not steps:
        behind = next((run for run in runs if run not in evaluated), runs[0])
        raise ValueError(
            f"no evaluated step is common to all {len(runs)} runs ({behind[0]} with seed {behind[1]} is behind): go on "
            "with the same command, without --table; or name fewer recipes or seeds"
        )
    return int(max(steps))


def measure(rows: pd.DataFrame, recipes: Sequence[str], seeds: Sequence[int]) -> Measured:
    """Losses of `recipes` at the step that all their runs with `seeds` have reached; see `common_step`."""
    step = common_step(rows, [(recipe, seed) for recipe in recipes for seed in seeds])
    chosen = rows[rows.recipe.isin(recipes) & rows.seed.isin(seeds) & (rows.step <= step)]
    last = chosen[chosen.step > step - max(1, step // 4)]
    training = last.pivot_table("loss", "recipe", "seed", sort=False)
    heldout = chosen[chosen.step == step].pivot(index="recipe", columns="seed", values="heldout_nats")
    frames = {"training": training, "heldout": heldout}
    return Measured(step, tuple(seeds), {name: f.loc[list(recipes), list(seeds)] for name, f in frames.items()})


def verdict(difference: Interval) -> str:
    """What the paired difference of a claim, higher minus lower, says about it."""
    if difference.mean - difference.half > 0:
        return HOLDS
    return VIOLATED if difference.mean + difference.half < 0 else UNDECIDED


def recipe_table(measured: Measured) -> pd.DataFrame:
    """One row per recipe: mean losses, and mean and half-width of the differences to the baseline; nats per byte."""
    rows = []
    for recipe in measured.recipes:
        row: dict[str, object] = {"recipe": recipe, "step": measured.step, "seeds": len(measured.seeds)}
        for loss, frame in measured.losses.items():
            gap = measured.difference(loss, BASELINE, recipe)
            row |= {loss: frame.loc[recipe].mean(), f"{loss}_gap": gap.mean, f"{loss}_gap_half": gap.half}
        rows.append(row)
    return pd.DataFrame(rows)


def claim_table(measured: Measured, claims: Sequence[Claim]) -> pd.DataFrame:
    """One row per claim whose recipes were measured: differences, half-widths and verdicts by either loss."""
    rows = []
    for claim in judged(measured, claims):
        row: dict[str, object] = {"lower": claim.lower, "higher": claim.higher}
        for loss in LOSSES:
            gap = measured.difference(loss, claim.lower, claim.higher)
            row |= {f"{loss}_difference": gap.mean, f"{loss}_half": gap.half, f"{loss}_verdict": verdict(gap)}
        rows.append(row | {"group": claim.group, "source": claim.source})
    return pd.DataFrame(rows)


def judged(measured: Measured, claims: Sequence[Claim]) -> list[Claim]:
    """The claims both of whose recipes were measured."""
    return [claim for claim in claims if {claim.lower, claim.higher} <= set(measured.recipes)]


def chain_slope(measured: Measured, claims: Sequence[Claim], loss: str) -> Interval | None:
    """By how much the loss rises from one recipe of the chain to the next: per seed the least-squares slope over their
    places, and its interval over seeds. One number for the whole order; None if the chain was not measured whole."""
    links = [claim for claim in claims if claim.group == CHAIN]
    chain = [link.lower for link in links[:1]] + [link.higher for link in links]
    if len(chain) < 3 or not set(chain) <= set(measured.recipes):
        return None
    places = np.arange(len(chain)) - (len(chain) - 1) / 2
    return interval((places @ measured.losses[loss].loc[chain].to_numpy() / (places @ places)).tolist())


def finding(measured: Measured, claims: Sequence[Claim]) -> str:
    """The answer, in words, from the measurements."""
    found = {c: verdict(measured.difference("training", c.lower, c.higher)) for c in judged(measured, claims)}
    if not found:
        return "No claim has both of its recipes among those measured."
    other = [
        claim for claim in found if verdict(measured.difference("heldout", claim.lower, claim.higher)) != found[claim]
    ]
    chain = [found[claim] for claim in found if claim.group == CHAIN]
    first = measured.step - max(1, measured.step // 4) + 1
    parts = [
        f"Of {len(found)} claimed orders, {_told(measured, found, HOLDS)}; {_told(measured, found, VIOLATED)}; "
        f"{_told(measured, found, UNDECIDED)} (training loss over steps {first} to "
        f"{measured.step}, n = {len(measured.seeds)} paired seeds, 95 % intervals, thousandths of a nat per byte)."
    ]
    if chain:
        counts = listed(f"{chain.count(word)} {word}" for word in (HOLDS, VIOLATED, UNDECIDED))
        parts.append(f"Of the chain's {len(chain)} links: {counts}.")
    slope = chain_slope(measured, claims, "training")
    if slope is not None:
        held = chain_slope(measured, claims, "heldout")
        assert held is not None
        parts.append(
            f"Along the chain as a whole the loss changes by {slope.text(2, _MILLI)} a link (held-out "
            f"{held.text(2, _MILLI)}), {_TREND[verdict(slope)]}."
        )
    parts.append(
        f"By held-out loss {listed(map(str, other))} would be judged otherwise."
        if other
        else "Held-out loss gives the same verdicts."
    )
    parts.append(f"One interval in 20 misses the truth by chance: of {len(found)}, {len(found) / 20:.1f} on average.")
    return " ".join(parts)


def _told(measured: Measured, found: dict[Claim, str], word: str) -> str:
    verb = {
        HOLDS: ("holds", "hold"),
        VIOLATED: ("is violated", "are violated"),
        UNDECIDED: ("is undecided", "are undecided"),
    }
    claims = [claim for claim in found if found[claim] == word]
    which = [f"{c} by {measured.difference('training', c.lower, c.higher).text(1, _MILLI)}" for c in claims]
    return f"{len(claims)} {verb[word][len(claims) != 1]}" + (f": {listed(which)}" if claims else "")


def markdown(measured: Measured, claims: Sequence[Claim], left_out: dict[str, str]) -> str:
    """Both tables, for a README. `left_out`: recipes without a place in them, and why."""
    lines = [
        f"Step {measured.step}, {len(measured.seeds)} paired seeds; thousandths of a nat per byte ± half of the 95 % "
        "interval over seeds.",
        "",
        f"| recipe | training loss, minus `{BASELINE}` | held-out loss, minus `{BASELINE}` |",
        "|---|--:|--:|",
    ]
    for recipe in measured.recipes:
        gaps = [_signed(measured.difference(loss, BASELINE, recipe)) for loss in LOSSES]
        lines.append(f"| `{recipe}` | " + " | ".join(["0", "0"] if recipe == BASELINE else gaps) + " |")
    lines += ["", "| claim | training loss | | held-out loss | | from |", "|---|--:|---|--:|---|---|"]
    for claim in judged(measured, claims):
        gaps = [measured.difference(loss, claim.lower, claim.higher) for loss in LOSSES]
        cells = [cell for gap in gaps for cell in (_signed(gap), verdict(gap))]
        lines.append(f"| `{claim.lower}` < `{claim.higher}` | " + " | ".join([*cells, claim.source]) + " |")
    if left_out:
        lines += ["", *(f"Left out: `{recipe}`, {why}." for recipe, why in left_out.items())]
    return "\n".join(lines) + "\n"


def _signed(gap: Interval) -> str:
    text = gap.text(1, _MILLI)
    return text if text.startswith("-") else f"+{text}"


def draw(measured: Measured, claims: Sequence[Claim]) -> Figure:
    """The figure: recipes' differences to the baseline, sorted, and the claims' differences with their verdicts."""
    claims = judged(measured, claims)
    with plots.style():
        count = max(len(measured.recipes), len(claims))
        figure, (left, right) = plots.panels(2, height=1.2 + 0.26 * count)
        _draw_recipes(left, measured, count)
        _draw_claims(right, measured, claims, count)
    return figure


def _draw_recipes(axes: Axes, measured: Measured, count: int) -> None:
    names = [recipe for recipe in measured.recipes if recipe != BASELINE]
    looks = {"training": (plots.BLUE, "o", -0.13), "heldout": (plots.ORANGE, "s", 0.13)}
    for loss, (color, marker, shift) in looks.items():
        gaps = [measured.difference(loss, BASELINE, recipe) for recipe in names]
        places = [y + shift for y in range(len(names))]
        means, halves = [g.mean * _MILLI for g in gaps], [g.half * _MILLI for g in gaps]
        axes.errorbar(means, places, xerr=halves, fmt=marker, color=color, ms=3, lw=1, label=LOSSES[loss])
    _finish(axes, names, f"Loss, minus {BASELINE}'s")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -1.9 / max(count, 4)), ncols=2)


def _draw_claims(axes: Axes, measured: Measured, claims: Sequence[Claim], count: int) -> None:
    for word, (color, marker) in _LOOKS.items():
        axes.errorbar([], [], xerr=[], fmt=marker, color=color, ms=3.5, lw=1, label=word)
    for y, claim in enumerate(claims):
        gap = measured.difference("training", claim.lower, claim.higher)
        color, marker = _LOOKS[verdict(gap)]
        axes.errorbar(gap.mean * _MILLI, y, xerr=gap.half * _MILLI, fmt=marker, color=color, ms=3.5, lw=1)
    _finish(axes, [f"{claim.lower}\n< {claim.higher}" for claim in claims], "Claims: training loss, difference")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -1.9 / max(count, 4)), ncols=3, columnspacing=1)


def _finish(axes: Axes, names: Sequence[str], title: str) -> None:
    axes.axvline(0, color=plots.BLACK, lw=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=6.2, linespacing=1.05)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the lowest loss on top
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("thousandths of a nat per byte")
    axes.set_title(title)
