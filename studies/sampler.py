"""How far a sampler's distribution is from its trainer's, and what that comes from: sums, recipe, outer scale.

Reinforcement learning takes a sampler's probabilities for those of the model that it trains. One recipe in both is not
enough: sums whose order depends on shapes move a code or an expert now and then, and an outer scale of all tokens
together is another one in a batch of a sampler. `sampler_cases` trains a model under `fourbit` on solved items of small
tasks and holds pairs of trainer and sampler with these weights against each other. In parity the difference must be
zero, to the bit. Intervals are Student's over seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reference.progress import Progress

from . import cache, plots
from . import sampler_cases as cases
from .interval import listed, over_seeds, shown
from .result import Result, Study, key_table


@dataclass(frozen=True)
class Size:
    """Seeds, steps of training, texts, and fields of the model's configuration that are not the trainer's defaults."""

    seeds: tuple[int, ...]
    steps: int
    count: int
    sizes: dict[str, Any]


FAST = Size((0, 1), 12, 2, {"dim": 64, "heads": 2, "expert_dim": 32, "shared_dim": 32, "sequence": 28})
FULL = Size((0, 1, 2), 200, 8, {"sequence": 64})


def measure(at: Size) -> pd.DataFrame:
    """A row for each seed and pair."""
    parts = []
    with Progress(len(at.seeds), "sampler") as progress:
        for seed in at.seeds:
            parts.append(cache.part(cases.mismatch, seed=seed, steps=at.steps, count=at.count, sizes=at.sizes))
            progress.advance(1, f"seed {seed}")
    return pd.concat(parts, ignore_index=True)


def find(rows: pd.DataFrame) -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements."""
    kl, rerouted = (over_seeds(rows, ["pair"], name) for name in ("kl", "rerouted"))
    own = rows[rows.pair == "parity"]
    exact = bool((own.equal == 1).all() and (own.rerouted == 0).all() and (own.kl == 0).all())
    places, n = int(own.places.sum()), rows.seed.nunique()
    first = (
        f"In parity zero: at all {places:,} places every log-probability and every choice of experts is the trainer's, "
        "to the bit"
        if exact
        else f"Parity does not hold: {(1 - own.equal.mean()):.2%} of {places:,} places differ"
    )
    told = [
        f"{name} {kl[name,].text(3, 1e3)} ({rerouted[name,].text(1, 100)} % of choices rerouted)"
        for name in rows.pair.unique()
        if name != "parity"
    ]
    kept = {name: 100 * part.equal.mean() for name, part in rows.groupby("pair", sort=False)}
    bits = listed(f"{kept[name]:.1f} % ({name})" for name in kept if name.startswith("library"))
    moved = {name: part.largest.max() for name, part in rows.groupby("pair", sort=False)}
    most = max(moved, key=moved.__getitem__)
    return (
        f"{first}. Without parity the log-probability of one token moves by up to {moved[most]:.2f} ({most}).",
        f"KL(sampler, trainer) in thousandths of a nat per token is: {listed(told)}.",
        f"Where sums alone differ, places that keep all bits are {bits}.",
        f"95 % intervals over {n} seeds of a model trained under fourbit for {int(rows.steps.iloc[0])} steps, loss "
        f"{own.loss.mean():.2f} nats per token.",
    )


def draw(rows: pd.DataFrame) -> tuple[Figure, str]:
    """KL and rerouted choices of each pair."""
    with plots.style():
        figure, (left, right) = plots.panels(2, height=3.0)
        _bars(left, rows, "kl", 1e3)
        left.set_xscale("symlog", linthresh=0.01)
        left.set_xlabel("KL(sampler, trainer), 1e-3 nats per token")
        left.set_title("Distributions")
        _bars(right, rows, "rerouted", 100)
        right.set_xlabel("% of a token's choices in a layer")
        right.set_title("Experts that differ")
        right.set_yticklabels([])
    caption = (
        "A sampler with a cache against the training forward of the same weights, trained under fourbit: left the "
        "KL divergence per token, right how often a layer chooses other experts; bars are 95 % intervals over "
        f"{rows.seed.nunique()} seeds. In parity both are {'zero' if _zero(rows) else 'not zero'}."
    )
    return figure, caption


def _zero(rows: pd.DataFrame) -> bool:
    own = rows[rows.pair == "parity"]
    return bool((own.kl == 0).all() and (own.rerouted == 0).all())


def _bars(axes: Axes, rows: pd.DataFrame, column: str, factor: float) -> None:
    found = over_seeds(rows, ["pair"], column)
    names = [name for (name,) in found]
    for place, value in enumerate(found.values()):
        color = plots.BLUE if names[place] == "parity" else plots.VERMILION
        half = min(value.half, value.mean)  # shares and divergences are not negative
        error = [[half * factor], [value.half * factor]]
        axes.errorbar(value.mean * factor, place, xerr=error, fmt="o", color=color, capsize=2)
        if value.mean == 0:
            axes.annotate("0", (0, place), xytext=(6, -3), textcoords="offset points")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0)


def run(fast: bool) -> Result:
    """Measure, draw and conclude: three seeds of 200 steps, or two short ones of a smaller model when `fast`."""
    at = FAST if fast else FULL
    rows = measure(at)
    figure, caption = draw(rows)
    milli, percent = (1e3, 3), (100.0, 2)
    columns = {"kl": milli, "apart": milli, "equal": percent, "rerouted": percent}
    table = key_table(
        shown(rows, ["pair"], columns),
        "KL and mean distance of log-probabilities in thousandths, places with equal bits and rerouted choices in %.",
    )
    summary = {
        name: {"kl": float(part.kl.mean()), "equal": float(part.equal.mean()), "rerouted": float(part.rerouted.mean())}
        for name, part in rows.groupby("pair", sort=False)
    }
    finding, *told = find(rows)
    return Result(rows, figure, caption, finding, at.seeds, summary, tables=(table,), details=tuple(told))


STUDY = Study(
    name="sampler",
    title="Sampler against trainer",
    question="How far is a sampler's distribution from that of the training forward with the same weights, in parity, "
    "and when sums, the recipe or the scope of the outer scale differ?",
    run=run,
)
