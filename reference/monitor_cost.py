"""`fourbit bench monitor`: the share of a run's time that its monitor takes.

Rounds interleave steps of three kinds on one model: unobserved (seconds p), with the weights followed (f) and measured
(m); medians count. With interval n, and W = min(WINDOW, n - 1) followed steps before each measured one,

    share = (W (f - p) + (m - p)) / (n p)

A ratio moves less than its times with what else the machine does.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
import tyro

from .config import TrainConfig, check
from .expert import Draw
from .model import ModelConfig, Transformer
from .monitor import WINDOW, Observer, Part, observing
from .optimizer import adamw
from .presets import preset

TARGET = 0.03


@dataclass(frozen=True)
class CostConfig:
    """Time steps with and without the monitor, and print its share of a run's time."""

    preset: str = "fourbit"
    """Recipe of number formats."""
    monitor_every: int = TrainConfig.monitor_every
    """Interval that the share is told for."""
    rounds: int = 15
    """Steps of each kind."""
    threads: int = 1
    """CPU threads."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    """Dimensions of the model."""


@dataclass(frozen=True)
class Cost:
    """Median seconds of a step of each kind, and the monitor's share of the time of all steps."""

    plain: float
    followed: float
    measured: float
    share: float


def cost(config: CostConfig, ops: ModuleType) -> Cost:
    """Measure. Raises ValueError for rounds or an interval below 1, and as `train` does for sizes and presets."""
    for name in ("rounds", "monitor_every"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: use 1 or more")
    run = TrainConfig(Path(tempfile.gettempdir()), config.preset, threads=config.threads, model=config.model)
    check(run)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        kinds: tuple[Part, ...] = (None, "followed", "measured")
        steps = Steps(run, ops)
        times = [[steps.seconds(kind) for kind in kinds] for _ in range(config.rounds + 1)][
            1:
        ]  # the first one warms up
    finally:
        torch.set_num_threads(threads)
    plain, followed, measured = (statistics.median(column) for column in zip(*times, strict=True))
    window = min(WINDOW, config.monitor_every - 1)
    extra = window * (followed - plain) + measured - plain
    return Cost(plain, followed, measured, extra / (config.monitor_every * plain))


class Steps:
    """Steps of a model on random bytes, on the configuration's device."""

    def __init__(self, config: TrainConfig, ops: ModuleType) -> None:
        self._model = Transformer(config.model, preset(config.preset), ops, config.seed).to(config.device)
        self._optimizer = adamw(self._model, config)
        self._clip, self._step, self._observer = config.clip, 0, Observer()
        shape = (config.grain, config.model.sequence)
        self._tokens = torch.randint(256, shape, generator=torch.Generator().manual_seed(0)).to(config.device)

    def seconds(self, kind: Part) -> float:
        """Of one step, of the first kind before the others: one that follows needs no window of its own."""
        self._step += 1
        began = time.perf_counter()
        self._observer.begin(kind == "measured")
        self._optimizer.zero_grad(set_to_none=True)
        with observing(self._model, None if kind is None else self._observer):
            losses = self._model(self._tokens, self._tokens, Draw(0, self._step, 0))
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        if kind == "measured":
            self._observer.numbers()
        if self._tokens.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began


def main(argv: list[str], ops: ModuleType) -> int:
    """Run `fourbit bench monitor` with `argv`; return the exit code 0, or raise as `cost` does."""
    config = tyro.cli(CostConfig, args=argv, prog="fourbit bench monitor")
    found = cost(config, ops)
    print(
        f"{config.preset}: a step {found.plain:.3f} s, followed {found.followed:.3f} s, measured {found.measured:.3f} s"
    )
    verdict = "met" if found.share <= TARGET else "missed"
    print(
        f"the monitor takes {100 * found.share:.1f} % of the time at an interval of {config.monitor_every} steps "
        f"(at most {100 * TARGET:.0f} %: {verdict})"
    )
    return 0
