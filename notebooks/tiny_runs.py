"""Notebook 6: a tiny mixture of experts trained under several recipes, by the trainer's own entry point.

Equal initial weights, batches and random words, so runs differ in arithmetic alone. One more run is a yardstick: the
last recipe again, with a learning rate that is higher by a ten-thousandth, which nobody would call another method.

The text is generated, the same everywhere: a times table in words. Curves of two machines part after a few steps all
the same: FP32 sums of attention, norms and the router have the library's order. `deterministic`, exact sums in the
experts' products, does not help against that, and takes twice the time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import ipywidgets
import numpy as np
from IPython.display import clear_output, display
from matplotlib.axes import Axes

from numerics import ops
from reference.model import ModelConfig
from reference.train import Result, TrainConfig, train
from studies import plots

from .panel import Picture
from .readout import table

STEPS = 24
RATE = 6e-3
NUDGE = 1e-4  # relative, of the yardstick's rate
MODEL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=32)
_COLOURS = (plots.BLACK, plots.ORANGE, plots.BLUE, plots.VERMILION, plots.GREEN, plots.PURPLE)
_DASHES = ("-", "--", "-", ":")
_LAST = 6  # steps that the table averages


def text() -> str:
    """`2 times 2 is 4`, and so on to 59."""
    return "".join(f"{a} times {b} is {a * b}\n" for a in range(2, 60) for b in range(2, 60))


def configuration(folder: Path, data: Path, recipe: str, steps: int, rate: float = RATE) -> TrainConfig:
    """A run of `recipe`: everything else is the same for all."""
    return TrainConfig(
        out=folder,
        preset=recipe,
        data=str(data),
        steps=steps,
        lr=rate,
        warmup=min(5, steps),
        eval_every=steps,
        eval_sequences=16,
        checkpoint_every=steps,
        monitor_every=0,
        progress="hide",
        model=MODEL,
    )


def yardstick(recipe: str) -> str:
    """What the run of the yardstick is called."""
    return f"{recipe}, rate + {100 * NUDGE:g} %"


def runs(recipes: Sequence[str], steps: int, on_step: Callable[[str], None] = print) -> dict[str, Result]:
    """Train under each recipe, then the yardstick; `on_step` hears the name of a run after each of its steps.

    Raises:
        ValueError: no recipe, one twice, an unknown one, or one whose blocks do not divide the model's widths.
    """
    if not recipes or len(set(recipes)) < len(recipes):
        raise ValueError(f"recipes={list(recipes)}: name one or more, each once")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "table.txt"
        data.write_text(text(), "ascii")
        again = (yardstick(recipes[-1]), recipes[-1], RATE * (1 + NUDGE))
        for name, recipe, rate in [*((r, r, RATE) for r in recipes), again]:
            config = configuration(Path(folder) / f"{recipe}-{rate}", data, recipe, steps, rate)
            found[name] = train(config, ops, lambda record, name=name: on_step(name))
    return found


def watched(recipes: Sequence[str] = ("bf16", "mxfp8", "fourbit"), steps: int = STEPS) -> None:
    """Train with a progress bar, then show the curves in its place."""
    bar = ipywidgets.IntProgress(max=steps * (len(recipes) + 1), description="training")
    words = ipywidgets.Label()
    display(ipywidgets.HBox([bar, words]))

    def on_step(name: str) -> None:
        bar.value, words.value = bar.value + 1, name

    try:
        shown = picture(runs(recipes, steps, on_step))
    finally:
        bar.close()
        words.close()
        clear_output(wait=True)
    shown.display()


def picture(results: dict[str, Result]) -> Picture:
    """Losses, their differences to those of the first run, and a table."""
    base, *others = results
    losses = {name: np.array(result.train_losses) for name, result in results.items()}
    with plots.style():
        figure, (left, right) = plots.panels(2, height=2.6)
        for place, (name, values) in enumerate(losses.items()):
            _curve(left, name, values, place)
            if name != base:
                _curve(right, name, values - losses[base], place)
        right.axhline(0, color=plots.BLACK, lw=0.8)
        left.set(title="Training loss", xlabel="step", ylabel="nats per byte")
        right.set(title=f"Difference to {base}", xlabel="step", ylabel="nats per byte")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(results))
    head, rows = ("run", f"mean loss of the last {_LAST} steps", f"minus {base}", "largest difference in a step"), []
    for name in (base, *others):
        gap = losses[name] - losses[base]
        rest = ("", "") if name == base else (f"{gap[-_LAST:].mean():+.4f}", f"{np.abs(gap).max():.4f}")
        rows.append((name, f"{losses[name][-_LAST:].mean():.4f}", *rest))
    return Picture(figure, table(head, rows))


def _curve(ax: Axes, name: str, values: np.ndarray, place: int) -> None:
    ax.plot(np.arange(1, len(values) + 1), values, _DASHES[place % 4], color=_COLOURS[place % 6], label=name)
