"""More steps for a run that has been begun with fewer, where its schedule allows.

The steps that a checkpoint stands for must be those of the longer run, bit for bit: the learning rate of each, the
recipes of its layers, and the calendar of `oscillation`. Under wsd that is every step before the decay, which moves to
the new end; with min_lr_ratio 1, where the rate never falls, every step. Under cosine it is the warm-up alone.

The run goes on from its newest checkpoint, under wsd from the newest one before the decay. The decay is undone: its
checkpoints are deleted and its lines of the log are taken again. Nothing else is ever undone.
"""

from __future__ import annotations

import dataclasses
import math

from . import checkpoint
from .config import TrainConfig
from .learning_rate import learning_rate
from .notice import notice
from .schedule import schedule


def lengthen(config: TrainConfig, before: int, way: str) -> None:
    """Make the run folder of `config`, which holds a run of `before` steps, one to go on from.

    Args: way: what can be done where that cannot be; ends the message.

    Raises:
        ValueError: fewer steps, or no checkpoint that stands for steps of the longer run; nothing was changed.
    """
    out, steps = str(config.out), config.steps
    if not checkpoint.steps(config.out):
        return  # nothing was done that counts
    if steps < before:
        raise ValueError(
            f"out {out!r} holds a run of {before} steps, which cannot become {steps}; use steps {before}, or another "
            "out"
        )
    shorter = dataclasses.replace(config, steps=before)
    same, stable = _same(config, shorter), before if shorter.stable_steps is None else shorter.stable_steps
    kept = [step for step in checkpoint.steps(config.out) if step <= stable]
    if not kept or kept[-1] > same:
        newest = f"it has no checkpoint up to step {stable}" if not kept else f"its checkpoint is of step {kept[-1]}"
        raise ValueError(
            f"out {out!r} holds a run of {before} steps, which cannot be lengthened to {steps}: it differs from one of "
            f"{steps} from step {same + 1} on, and {newest}; {way}"
        )
    later = [step for step in checkpoint.steps(config.out) if step > kept[-1]]
    for step in reversed(later):
        path = checkpoint.at(config.out, step)
        assert path is not None
        checkpoint.remove(path)
    undone = f"; the steps after it are taken anew, and checkpoint {later[-1]} is deleted" if later else ""
    notice(f"{out} is lengthened from {before} steps to {steps}, from its checkpoint of step {kept[-1]} on{undone}")


def _same(one: TrainConfig, other: TrainConfig) -> int:
    """Up to which step two runs are alike that differ in their number of steps."""
    steps, layers = min(one.steps, other.steps), [schedule(config) for config in (one, other)]
    if layers[0].later is not None and layers[0].switch_step != layers[1].switch_step:
        steps = min(steps, *(found.switch_step for found in layers))
    for found in layers:
        for recipe in (*found.start, *(found.later or ())):
            if recipe.osci_reset is not None:
                steps = min(steps, *(math.ceil(recipe.osci_reset.start_share * c.steps) for c in (one, other)))
    rates = ((learning_rate(one, step), learning_rate(other, step)) for step in range(1, steps + 1))
    return next((step for step, (a, b) in enumerate(rates) if a != b), steps)
