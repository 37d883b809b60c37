"""The pipeline's curves and its page. Words that judge are computed from the measurements."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import plots, report

_COLORS = (plots.BLUE, plots.ORANGE, plots.BLACK, plots.GREEN, plots.VERMILION, plots.PURPLE, plots.SKY, plots.GREY)
_DASHES = ("-", ":", "--", "-.")
_NAMES = {
    "pretrain_nats": ("held-out loss of pretraining", "nats a byte"),
    "sft_nats": ("held-out loss of fine-tuning", "nats a token of completions"),
    "sft_exact": ("held-out completions that are right", ""),
    "reward": ("reward at the end", ""),
    "heldout_reward": ("held-out reward, greedy", ""),
}
_CURVES = (
    ("pretrain", "loss", "Pretraining", "nats per byte"),
    ("sft", "loss", "Fine-tuning", "nats per token"),
    ("rl", "reward", "Reinforcement", "reward"),
)


@dataclass(frozen=True)
class Facts:
    """What the page tells besides measurements: the command, steps of each stage, the environment, seeds, the preset
    that others are compared with, and the folder of a chain."""

    command: str
    steps: dict[str, int]
    environment: str
    seeds: int
    baseline: str
    chain: Path


def draw(logs: dict[tuple[str, int], dict[str, list[dict[str, Any]]]], presets: Sequence[str]) -> Figure:
    """Three panels: losses of both trainings and reward against steps, running means; thin lines are seeds."""
    with plots.style():
        figure, panels = plots.panels(3, plots.PAGE, 2.6)
        for axes, (stage, name, title, unit) in zip(panels, _CURVES, strict=True):
            for place, preset in enumerate(presets):
                chains = [[r[name] for r in log[stage]] for (own, _), log in logs.items() if own == preset]
                _curves(axes, np.array(chains), place, preset)
            axes.set_xlim(left=0)
            axes.set_title(title)
            axes.set_xlabel("step")
            axes.set_ylabel(unit)
        panels[2].set_ylim(0, 1)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(presets))
    return figure


def _curves(axes: Axes, values: np.ndarray, place: int, preset: str) -> None:
    """values: (seeds, steps)."""
    color, dash = _COLORS[place % len(_COLORS)], _DASHES[place % len(_DASHES)]
    steps = np.arange(1, values.shape[1] + 1)
    for own in values if len(values) > 1 else ():
        axes.plot(steps, plots.smooth(own), color=color, lw=0.5, alpha=0.4)
    axes.plot(steps, plots.smooth(values.mean(0)), dash, color=color, lw=1.3, label=preset)


def sentences(differences: pd.DataFrame, baseline: str) -> list[str]:
    """What the differences say of every preset's rewards."""
    found = []
    for row in differences[differences.measure.isin(["reward", "heldout_reward"])].itertuples():
        name, _ = _NAMES[row.measure]
        if math.isnan(row.mean):
            found.append(f"{row.preset}, {name}: nothing is held out, since the environment asks too few questions")
            continue
        if math.isnan(row.half):
            found.append(f"{row.preset}, {name}: {row.mean:+.3f} to {baseline}, of one seed, which has no interval")
            continue
        inside = abs(row.mean) <= row.half
        judged = "which holds zero: no difference is shown" if inside else "which does not hold zero"
        low, high = row.mean - row.half, row.mean + row.half
        found.append(
            f"{row.preset}, {name}: {row.mean:+.3f} to {baseline}, 95 % interval {low:+.3f} to {high:+.3f} over "
            f"{row.seeds} paired seeds, {judged}"
        )
    return found


def page(facts: Facts, presets: Sequence[str], table: pd.DataFrame, differences: pd.DataFrame, figure: bytes) -> str:
    """The whole page.

    Args:
        facts, presets: what to tell. table, differences: of `pipeline.tabulate` and `compare`. figure: an SVG.
    """
    meta = json.loads((facts.chain / "rl" / "meta.json").read_bytes())
    about = meta["environment"]
    return report.page(
        "fourbit: from pretraining to rollouts, one recipe throughout",
        report.paragraph(
            f"{facts.steps['pretrain']} steps of pretraining, {facts.steps['sft']} of supervised fine-tuning on "
            f"completions and {facts.steps['rl']} of reinforcement learning (GRPO) with the rewards of the environment "
            f"{facts.environment}, under each recipe from first to last: the sampler draws from the packed weights "
            f"that the trainer's next forward multiplies. {facts.seeds} seed{'s' * (facts.seeds > 1)} a recipe; chains "
            "of one seed have equal initial weights, batches, examples, problems and random words."
        ),
        report.figure(
            figure,
            "Loss of pretraining, loss of fine-tuning and reward against steps, for each recipe",
            "Running means over a fifteenth of the steps. Thick: mean over seeds; thin: each seed.",
            wide=True,
        ),
        report.heading("What came out"),
        report.bullets(f"{sentence}." for sentence in sentences(differences, facts.baseline)),
        report.table(*_differences(differences, facts.baseline)),
        report.table(*_chains(table, presets)),
        report.heading("How to read this"),
        report.bullets(
            [
                "One small model and few seeds: an interval that holds zero says that this many seeds do not tell "
                "recipes apart, not that they are equal.",
                "The reward at the end is a mean over the last twentieth of the steps, at temperature 1; the held-out "
                "one is of problems that are never asked in training, answered greedily.",
                "KL of sampler and trainer is that of one set of weights computed two ways, with and without a cache; "
                "it is zero under parity.",
            ]
        ),
        report.heading("Where it comes from"),
        report.facts(
            [
                ("fourbit", report.version(about)),
                ("versions", f"Python {about['python']}, torch {about['torch']}, numpy {about['numpy']}"),
                ("machine", f"{about['device']}, {about['platform']}"),
            ]
        ),
        report.command(f".venv/bin/{facts.command}"),
    )


def _differences(differences: pd.DataFrame, baseline: str) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    rows = []
    for row in differences.itertuples():
        name, unit = _NAMES[row.measure]
        half = "" if math.isnan(row.half) else f" ± {row.half:.4f}"
        rows.append((row.preset, f"{name}{f', {unit}' * bool(unit)}", f"{row.mean:+.4f}{half}"))
    caption = f"Differences to {baseline} of the same seed, with Student's 95 % interval over seeds."
    return ("recipe", "measure", "difference"), rows, caption


def _chains(table: pd.DataFrame, presets: Sequence[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    rows = [
        (
            f"{row.preset}, seed {row.seed}",
            f"{row.pretrain_nats:.4f}",
            f"{row.sft_nats:.4f}",
            f"{row.sft_exact:.2f}",
            f"{row.start_reward:.3f}",
            f"{row.reward:.3f}",
            f"{row.heldout_reward:.3f}",
            f"{row.kl_sampler:.1e}",
        )
        for preset in presets
        for row in table[table.preset == preset].itertuples()
    ]
    header = ("chain", "pretrain, nats", "sft, nats", "sft, right", "first reward", "reward", "held out", "KL")
    return header, rows, "Every chain. KL: of sampler and trainer, a mean over the steps of reinforcement learning."
