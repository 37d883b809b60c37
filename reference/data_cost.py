"""`fourbit bench data`: what drawing a batch takes beside the training step that it feeds.

Rounds interleave a batch of each order, brought to the device, with a step of the model there, on as many tokens;
medians count. The trainer draws a batch while its device waits, so the share is what data costs a run. Without --data
the batches come from a memory map of random tokens in a temporary folder, as they would from shards of that size. A map
that was just written is in memory: a disk that is read for the first time adds its own time.

    share = seconds of a batch / (seconds of a batch + seconds of a step)
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np
import torch
import tyro
from torch import Tensor

from .config import TrainConfig, check
from .corpus import Split, batch, epoch_batch, require_sequences
from .data import load_corpus
from .model import ModelConfig
from .monitor_cost import Steps
from .token_maps import Tokens

TARGET = 0.01
_ORDERS = {"random": batch, "epoch": epoch_batch}
_VOCAB, _PART = 4096, 1 << 22  # of the random tokens; how many are drawn at once


@dataclass(frozen=True)
class DataCostConfig:
    """Time batches of tokens beside the training step that they feed."""

    data: str | None = None
    """As `fourbit train --data`; a memory map of random tokens if left out."""
    tokens: int = 64_000_000
    """Tokens of that map."""
    preset: str = "bf16"
    """Recipe of the step; the fastest one is the hardest to feed."""
    batch: int = 4
    """Sequences a step."""
    rounds: int = 9
    """Batches and steps of each kind."""
    threads: int = 1
    """CPU threads of a step."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where steps are taken."""
    ops: Literal["emulated", "triton"] = "emulated"
    """What computes the experts: the emulation, or Triton kernels, on a GPU."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    """Dimensions of the model."""


@dataclass(frozen=True)
class DataCost:
    """Median seconds of a step, and of a batch in each order."""

    step: float
    batches: dict[str, float]

    def share(self, order: str) -> float:
        """Of a run's time that its batches take."""
        return self.batches[order] / (self.batches[order] + self.step)


def cost(config: DataCostConfig, ops: ModuleType) -> DataCost:
    """Measure. Raises ValueError for rounds or tokens below 1, and as `train` does for data, sizes and presets."""
    for name in ("rounds", "tokens"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: use 1 or more")
    if config.data is not None and config.tokens != DataCostConfig.tokens:
        raise ValueError(f"tokens={config.tokens}: does nothing with data; leave one of them out")
    sizes = {"batch": config.batch, "grain": config.batch, "eval_sequences": config.batch}
    with tempfile.TemporaryDirectory() as folder:
        where = {"threads": config.threads, "device": config.device, "ops": config.ops}
        run = TrainConfig(Path(folder), config.preset, model=config.model, **where, **sizes)
        check(run)
        if config.data is None:
            split: Split = _random_map(Path(folder) / "tokens.bin", config.tokens)
        else:
            split = load_corpus(config.data).train
        require_sequences(split, "training part", 1, config.model.sequence, config.data or "the random map")
        return _measured(config, Steps(run, ops), split)


def _measured(config: DataCostConfig, steps: Steps, split: Split) -> DataCost:
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    taken: dict[str, list[float]] = {name: [] for name in ("step", *_ORDERS)}
    try:
        for turn in range(config.rounds + 1):
            found = {name: _seconds(config, draw, split, turn) for name, draw in _ORDERS.items()}
            found["step"] = steps.seconds(None)
            for name, seconds in found.items():
                if turn:  # the first one warms up
                    taken[name].append(seconds)
    finally:
        torch.set_num_threads(threads)
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return DataCost(median.pop("step"), median)


def _seconds(config: DataCostConfig, draw: Callable[..., tuple[Tensor, Tensor]], split: Split, turn: int) -> float:
    """Of one batch."""
    began = time.perf_counter()
    tokens, targets = draw(split, 0, turn + 1, config.batch, config.model.sequence)
    for part in (tokens, targets):
        part.to(config.device)
    if config.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _random_map(path: Path, tokens: int) -> Tokens:
    """A map of this many random tokens, written a part at a time."""
    words = np.random.Generator(np.random.Philox(key=0))
    with open(path, "wb") as file:
        for first in range(0, tokens, _PART):
            part = words.integers(0, _VOCAB, min(_PART, tokens - first), dtype=np.uint16)
            file.write(part.tobytes())
    return Tokens([path], np.dtype(np.uint16), _VOCAB)


def main(argv: list[str], operations: Callable[[str, str], ModuleType]) -> int:
    """Run `fourbit bench data` with `argv`; return the exit code 0, or raise as `cost` does.

    Args: operations: gives the module that `ops` and `device` of the command line name, or raises ValueError.
    """
    config = tyro.cli(DataCostConfig, args=argv, prog="fourbit bench data")
    found = cost(config, operations(config.ops, config.device))
    tokens = config.batch * config.model.sequence
    print(f"{config.preset}: a step on {tokens} tokens takes {found.step:.3f} s, {tokens / found.step:.0f} tokens/s")
    for order, seconds in found.batches.items():
        share = found.share(order)
        print(
            f"{order} order: a batch takes {seconds * 1e3:.3f} ms, {tokens / seconds / 1e6:.1f} million tokens/s; "
            f"{100 * share:.2f} % of the time (at most {100 * TARGET:.0f} %: {'met' if share <= TARGET else 'missed'})"
        )
    return 0
