"""One line to the user that stops nothing: on stderr, past a progress bar."""

from __future__ import annotations

import sys

from tqdm import tqdm

from .config import TrainConfig


def notice(text: str) -> None:
    """Print `text`, one sentence."""
    tqdm.write(f"fourbit: {text}", file=sys.stderr)


def notice_begin(config: TrainConfig, start: int) -> None:
    """Of a run that is about to take the steps after `start`: where it goes on, and a warm-up that is shortened."""
    if start:
        notice(f"{config.out} goes on after step {start} of {config.steps}")
    if config.warmup_steps < config.warmup:
        decay = "" if config.stable_steps is None else f", {config.decay_steps} of them the decay"
        notice(
            f"warmup {config.warmup} is shortened to {config.warmup_steps}, since there are {config.steps} steps{decay}"
        )
