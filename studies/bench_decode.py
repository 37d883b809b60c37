"""`fourbit bench decode`: tokens a second of the sampler under recipes, beside the same sampler in BF16.

A round of a recipe and a batch is one call of `Sampler.sample`: prompts are read, then token after token is taken
greedily, each step over the whole batch. Medians over the rounds count; a ratio is the median of its rounds' ratios to
`bf16`, above 1 where the recipe is faster. Weights are quantized before, once; `memory` is what those of the routed
experts take beside BF16. What a target asks on this device is told beside it. On a CPU products are FP32 for all.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
import tyro

from hw.choose import operations
from reference.checkpoint import write_atomic
from reference.config import TrainConfig, can_be_file, check
from reference.model import ModelConfig, Transformer
from reference.presets import preset
from reference.progress import Progress
from reference.sample import Sampler, Sampling

from .bench_training import BASELINE, LARGE

LEAST_RATIO = {("cuda", "fourbit"): 0.9}  # tokens a second, of bf16's
MOST_MEMORY = {"fourbit": 0.33}  # the last sixth of the layers is MXFP8


@dataclass(frozen=True)
class BenchConfig:
    """Time the sampler under recipes beside BF16."""

    presets: tuple[str, ...] = ("fourbit", "mxfp8")
    """Recipes; bf16 is always there."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to sample."""
    ops: Literal["emulated", "triton"] = "emulated"
    """What computes the experts: the emulation, or Triton kernels, on a GPU."""
    large: bool = False
    """A model of about 100 million active parameters instead of the trainer's default."""
    parity: bool = False
    """In the forms of `fourbit train --parity`, BF16 too."""
    batches: tuple[int, ...] = (1, 4, 16, 64)
    """Completions at a time."""
    tokens: int = 32
    """Of a completion."""
    prompt: int = 16
    """Tokens of a prompt."""
    rounds: int = 5
    """Measured calls of each recipe and batch."""
    threads: int = 2
    """CPU threads."""
    out: Path | None = None
    """CSV file for the table."""


def measure(config: BenchConfig) -> pd.DataFrame:
    """The table, a row for each recipe and batch.

    Columns: preset, batch; rate, tokens a second; ratio to bf16's rate and memory beside bf16's; verdict.

    Raises: ValueError for an unknown preset, or sizes that do not fit.
    """
    _require(config)
    names = [BASELINE, *(name for name in config.presets if name != BASELINE)]
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        samplers = {name: _sampler(name, config) for name in names}
        rates: dict[tuple[str, int], list[float]] = {(name, n): [] for n in config.batches for name in names}
        with Progress((config.rounds + 1) * len(rates), "calls") as progress:
            for n in config.batches:
                for turn in range(config.rounds + 1):
                    for name in names:
                        rate = _rate(samplers[name], n, config)
                        if turn:
                            rates[name, n].append(rate)
                        progress.advance(1, f"{name}, {n}")
    finally:
        torch.set_num_threads(before)
    bytes_of = {name: sampler.frozen.expert_bytes for name, sampler in samplers.items()}
    return tabulate(rates, bytes_of, config.device)


def tabulate(rates: dict[tuple[str, int], list[float]], bytes_of: dict[str, int], device: str) -> pd.DataFrame:
    """The table of measured rates and of bytes by recipe, see `measure`."""
    rows = []
    for (name, n), own in rates.items():
        ratio = statistics.median(a / b for a, b in zip(own, rates[BASELINE, n], strict=True))
        memory = bytes_of[name] / bytes_of[BASELINE]
        asked = [
            ("speed", ratio, LEAST_RATIO.get((device, name)), 1),
            ("memory", memory, MOST_MEMORY.get(name), -1),
        ]
        told = [
            f"{what} {'met' if sign * value >= sign * limit else 'missed'} ({limit:g})"
            for what, value, limit, sign in asked
            if limit is not None
        ]
        rows.append((name, n, statistics.median(own), ratio, memory, ", ".join(told)))
    return pd.DataFrame(rows, columns=["preset", "batch", "rate", "ratio", "memory", "verdict"])


def _require(config: BenchConfig) -> None:
    for name in ("rounds", "tokens", "prompt"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: use 1 or more")
    if not config.batches or min(config.batches) < 1:
        raise ValueError(f"batches={config.batches}: use one or more numbers of 1 or more")
    longest = _sizes(config).sequence + 1
    if config.prompt + config.tokens > longest:
        raise ValueError(f"prompt={config.prompt} and tokens={config.tokens}: use {longest} or fewer together")
    if config.out is not None and not can_be_file(config.out):
        raise ValueError(f"out {str(config.out)!r} cannot be written; name a file in a folder that exists")
    check(dataclasses.replace(TrainConfig(Path()), device=config.device, threads=config.threads))


def _sizes(config: BenchConfig) -> ModelConfig:
    return LARGE if config.large else ModelConfig()


def _sampler(name: str, config: BenchConfig) -> Sampler:
    model = Transformer(_sizes(config), preset(name), operations(config.ops, config.device), 0)
    if config.parity:
        model.keep_parity()
    return Sampler(model.to(config.device))


def _rate(sampler: Sampler, n: int, config: BenchConfig) -> float:
    """Tokens a second of one call."""
    generator = torch.Generator().manual_seed(n)
    prompts = torch.randint(0, 256, (n, config.prompt), generator=generator).tolist()
    began = time.perf_counter()
    sampler.sample(prompts, config.tokens, Sampling(0.0), None)  # tokens come to the host: it waits for the device
    return n * config.tokens / (time.perf_counter() - began)


def main(argv: list[str]) -> int:
    """`fourbit bench decode ...`: print the table; 0 if it ran, whatever it shows."""
    config = tyro.cli(BenchConfig, args=argv, prog="fourbit bench decode", config=(tyro.conf.FlagCreatePairsOff,))
    table = measure(config)
    print(f"tokens a second, prompts read too, {config.device}, ops {config.ops}")
    print(table.to_string(index=False, float_format=lambda v: f"{v:.4g}"))
    if config.out is not None:
        write_atomic(config.out, table.to_csv(index=False, lineterminator="\n").encode())
    return 0
