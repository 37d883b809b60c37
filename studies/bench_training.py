"""`fourbit bench training`: how long a training step takes under recipes, beside `bf16`.

A step is forward, backward, clipping and AdamW on random tokens, without logs, evaluations and checkpoints. After steps
that are not measured come rounds in which every recipe takes one step; medians over the rounds count, and the ratio of
a recipe is the median of its rounds' ratios to `bf16`. On a CPU products are FP32 for all of them. What a target asks
of a ratio on this device is told beside it; ratios move with whatever else the machine does.

On a GPU bf16's own step is held against the device's peak, the rate of a BF16 product of 8192^3 in the same process:

    operations = tokens (6 active + 6 layers width sequence)      active: the parameters that a token meets

The second term is causal attention, half of a square. A slow baseline would make every ratio a lie: 0.35 is asked.
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
from torch import Tensor, nn

from hw.choose import operations
from reference.checkpoint import write_atomic
from reference.config import TrainConfig, can_be_file, check
from reference.expert import Draw
from reference.model import ModelConfig, Transformer
from reference.optimizer import adamw
from reference.presets import preset
from reference.progress import Progress

BASELINE = "bf16"
TARGETS = {("cpu", "fourbit"): 3.0, ("cuda", "fourbit"): 1.6, ("cuda", "nvfp4_nvidia"): 1.8}  # most times bf16's step
# about 100 million active parameters
LEAST_SHARE = 0.35
LARGE = ModelConfig(
    dim=1024, depth=12, heads=16, experts=8, top_k=2, expert_dim=512, shared_dim=512, sequence=2048, vocab=256
)


@dataclass(frozen=True)
class BenchConfig:
    """Time a training step under recipes beside bf16's."""

    presets: tuple[str, ...] = ("fourbit", "nvfp4_nvidia", "mxfp8")
    """Recipes; bf16 is always there."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to train."""
    ops: Literal["emulated", "triton", "blackwell-library"] = "emulated"
    """What computes the experts: the emulation, Triton kernels, or these with the block-scaled products of torch, on a
    B200 or B300 (blackwell-library; never run)."""
    large: bool = False
    """A model of about 100 million active parameters instead of the trainer's default."""
    batch: int | None = None
    """Sequences a step, one grain; the trainer's default, 64 with --large."""
    rounds: int = 9
    """Measured steps of each recipe."""
    threads: int = 2
    """CPU threads."""
    out: Path | None = None
    """CSV file for the table."""


class _Stepper:
    """One recipe's model, and its steps."""

    def __init__(self, name: str, config: TrainConfig) -> None:
        model = Transformer(config.model, preset(name), operations(config.ops, config.device), config.seed)
        self.config, self.model, self.taken = config, model.to(config.device), 0
        self.optimizer = adamw(self.model, config)

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """Take one; seconds."""
        began = time.perf_counter()
        self.taken += 1
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.model(tokens, targets, Draw(self.config.seed, self.taken, 0))
        losses.total.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        losses.total.item()  # waits for the device
        if self.config.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began


def active_parameters(model: nn.Module, config: ModelConfig) -> int:
    """Parameters that a token meets: its own experts' and all others."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    routed = sum(n for name, n in sizes.items() if name.endswith(("moe.w13", "moe.w2")))
    return sum(sizes.values()) - routed + routed * config.top_k // config.experts


def measure(config: BenchConfig) -> tuple[pd.DataFrame, int]:
    """The table, one row per recipe, and the active parameters of the model.

    Columns: preset; seconds, median of a step; ratio to bf16's; target, None without one; verdict.

    Raises: ValueError for an unknown preset, or sizes that do not fit.
    """
    for name, value in (("rounds", config.rounds), ("batch", config.batch)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: use 1 or more")
    if config.out is not None and not can_be_file(config.out):
        raise ValueError(f"out {str(config.out)!r} cannot be written; name a file in a folder that exists")
    model, batch = _sizes(config)
    where = {"device": config.device, "ops": config.ops, "threads": config.threads}
    train = TrainConfig(Path(), batch=batch, grain=batch, **where, model=model)
    check(dataclasses.replace(train, eval_sequences=batch))
    names = [BASELINE, *(name for name in config.presets if name != BASELINE)]
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        steppers = {name: _Stepper(name, train) for name in names}
        drawn = torch.randint(0, 256, (batch, model.sequence + 1), generator=torch.Generator().manual_seed(0))
        drawn = drawn.to(config.device)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        with Progress((config.rounds + 2) * len(names), "steps") as progress:
            for turn in range(config.rounds + 2):
                for name, stepper in steppers.items():
                    taken = stepper.step(drawn[:, :-1], drawn[:, 1:])
                    if turn >= 2:
                        seconds[name].append(taken)
                    progress.advance(1, name)
    finally:
        torch.set_num_threads(before)
    return tabulate(seconds, config.device), active_parameters(steppers[BASELINE].model, model)


def tabulate(seconds: dict[str, list[float]], device: str) -> pd.DataFrame:
    """The table of measured steps, see `measure`."""
    rows = []
    for name, own in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(own, seconds[BASELINE], strict=True))
        target = TARGETS.get((device, name))
        verdict = "" if target is None else "met" if ratio <= target else "missed"
        rows.append((name, statistics.median(own), ratio, target, verdict))
    return pd.DataFrame(rows, columns=["preset", "seconds", "ratio", "target", "verdict"])


def peak(size: int = 8192, calls: int = 10) -> float:
    """Operations a second of the current GPU in a BF16 product of matrices (size, size)."""
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(calls + 3):
        if i == 3:
            start.record()
        torch.mm(a, a)
    end.record()
    end.synchronize()
    return 2.0 * size**3 * calls / (start.elapsed_time(end) / 1e3)


def operations_of_a_step(model: ModelConfig, active: int, batch: int) -> float:
    """See the module."""
    return batch * model.sequence * (6.0 * active + 6.0 * model.depth * model.dim * model.sequence)


def utilization(config: BenchConfig, seconds: float, active: int, most: float) -> str:
    """bf16's share of the peak `most` in words, with the verdict on what is asked of a large model."""
    model, batch = _sizes(config)
    rate = operations_of_a_step(model, active, batch) / seconds
    share = rate / most
    verdict = "" if not config.large else f", {'met' if share >= LEAST_SHARE else 'missed'}: {LEAST_SHARE} asked"
    return (
        f"bf16: {rate / 1e12:.0f} of {most / 1e12:.0f} TFLOP/s, {share:.3f} of the measured peak{verdict}; "
        f"{batch * model.sequence / seconds / 1e3:.1f} thousand tokens a second"
    )


def _sizes(config: BenchConfig) -> tuple[ModelConfig, int]:
    """Model and sequences a step."""
    model = LARGE if config.large else ModelConfig()
    return model, config.batch or (64 if config.large else TrainConfig(Path()).batch)


def main(argv: list[str]) -> int:
    """`fourbit bench training ...`: print the table; 0 if it ran, whatever it shows."""
    config = tyro.cli(BenchConfig, args=argv, prog="fourbit bench training", config=(tyro.conf.FlagCreatePairsOff,))
    table, active = measure(config)
    most = peak() if config.device == "cuda" else 0.0
    products = "BF16" if most else "FP32"
    print(f"{active / 1e6:.1f} M active parameters, {config.device}, {products} products in dense layers")
    print(table.to_string(index=False, float_format=lambda v: f"{v:.4g}", na_rep=""))
    if most:
        print(utilization(config, float(table.seconds[table.preset == BASELINE].iloc[0]), active, most))
    if config.out is not None:
        write_atomic(config.out, table.to_csv(index=False, lineterminator="\n").encode())
    return 0
