"""`fourbit bench experts`: the expert MLP in four bits beside the same MLP on torch's grouped products in BF16.

    ours      quantize_tokens -> gate_up_glu -> down_to_wire -> aggregate; weights quantized beforehand, not timed
    BF16      gate_up = x w13^T, h = silu(gate) up, y = h w2^T, two calls of torch._grouped_mm with SwiGLU between

One expert per token, equal numbers of tokens per expert, rows already sorted, so neither side permutes tokens. Ours has
what the recipe of `expert_passes` adds: every quantization, the Hadamard and S2F6 wire, and the weighted sum. The
router's gradient is left out, as BF16 has none here.

The backward requantizes the weights from their codes, in the time that the target is asked of; a step of several
micro-batches does so once for all of them, hence one more line without it. BF16's SwiGLU is one fused kernel on a GPU.
A ratio is BF16's time over ours, of the same round: above 1 ours is faster. Medians over the rounds count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from .clocks import Clock, clock_of
from .device import DeviceAbsent, conditions, resolve
from .expert_passes import NEEDED, Ours, Plain, data
from .record import require_writable, write_csv
from .seam import KERNELS, implementation, importable

FORWARD, BOTH, BOTH_ONCE = "forward", "forward + backward", "forward + backward, weights requantized before"
LEAST = {FORWARD: 0.80, BOTH: 1 / 1.4}  # BF16's time over ours


@dataclass(frozen=True)
class ExpertsConfig:
    """Time the expert MLP on the kernels beside the same MLP on torch's grouped products in BF16."""

    device: str = "cuda"
    """Where to run: cpu, cuda or cuda:1."""
    ops: str = "triton"
    """Whose operations: triton, blackwell, emulated, an importable module, or the path of a .py file."""
    rows: int = 32768
    """Tokens, a multiple of 32 x experts."""
    experts: int = 8
    """Experts, with equally many tokens."""
    width: int = 4096
    """Width of the model, a multiple of 32."""
    hidden: int = 4096
    """Width of an expert, a multiple of 32."""
    accumulator: str = "library"
    """Who adds ours: library, exact or another accumulator of the table."""
    repeats: int = 15
    """Measured rounds."""
    calls: int = 5
    """Calls of each in a round, on a GPU."""
    out: Path | None = None
    """CSV file for the table."""


@dataclass(frozen=True)
class ExpertRow:
    """One pass. seconds, bf16_seconds: medians; ratio: BF16's time over ours; target: the least asked for; verdict:
    met, missed or nothing; peak, bf16_peak: most device memory of one call above what stood before, in bytes."""

    name: str
    seconds: float
    bf16_seconds: float
    ratio: float
    target: float | None
    verdict: str
    peak: int | None
    bf16_peak: int | None


def passes(ours: Ours, plain: Plain) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Ours and BF16's of each line of the table."""
    again = ours.weights_again()
    return {
        FORWARD: (ours.forward, plain.forward),
        BOTH: (ours.both, plain.both),
        BOTH_ONCE: (lambda: ours.backward(ours.forward(), again), plain.both),
    }


def table(names: list[str], seconds: np.ndarray, peaks: list[tuple[int | None, int | None]]) -> list[ExpertRow]:
    """Rows of seconds (rounds, passes, 2), ours and BF16's."""
    rows = []
    for column, (name, peak) in enumerate(zip(names, peaks, strict=True)):
        own, other = (float(x) for x in np.median(seconds[:, column], axis=0))
        ratio, target = float(np.median(seconds[:, column, 1] / seconds[:, column, 0])), LEAST.get(name)
        verdict = "" if target is None else "met" if ratio >= target else "missed"
        rows.append(ExpertRow(name, own, other, ratio, target, verdict, *peak))
    return rows


def peak_of(run: Callable[[], Any], device: torch.device) -> int | None:
    """Most device memory that one call takes on top of what stands; CUDA only."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def require(config: ExpertsConfig) -> torch.device:
    """Raises: ValueError for numbers that cannot be or an `out` that cannot be written; DeviceAbsent."""
    device = resolve(config.device)
    for name in ("experts", "repeats", "calls"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: use 1 or more")
    for name in ("width", "hidden"):
        if getattr(config, name) < 32 or getattr(config, name) % 32:
            raise ValueError(f"{name}={getattr(config, name)}: use a positive multiple of 32")
    if config.rows < 1 or config.rows % (32 * config.experts):
        raise ValueError(f"rows={config.rows}: use a positive multiple of {32 * config.experts}, 32 x experts")
    require_writable(config.out)
    return device


def functions(name: str, device: torch.device) -> dict[str, Callable[..., Any]]:
    """The operations that the MLP needs.

    Raises: ValueError if `ops` has not all of them: none is replaced by another's.
    """
    with importable(name if name not in ("emulated", *KERNELS) else None):
        found = implementation(name, device)
    if lacking := [f"{f} ({found.absent[f]})" for f in NEEDED if f not in found.functions]:
        raise ValueError(f"ops={name!r} lacks {', '.join(lacking)}; the MLP needs all of {', '.join(NEEDED)}")
    return {f: found.functions[f] for f in NEEDED}


def measure(config: ExpertsConfig) -> list[ExpertRow]:
    """Raises: as `require` and `functions`."""
    device = require(config)
    ops = functions(config.ops, device)
    given = data(config.rows, config.experts, config.width, config.hidden, device)
    listed = passes(Ours(ops, given, config.accumulator), Plain(given))
    clock: Clock = clock_of(device, config.calls)
    for pair in listed.values():
        for run in (*pair, *pair):
            run()
    rounds = [[(clock(ours), clock(plain)) for ours, plain in listed.values()] for _ in range(config.repeats)]
    peaks = [(peak_of(ours, device), peak_of(plain, device)) for ours, plain in listed.values()]
    return table(list(listed), np.array(rounds), peaks)


def report(rows: list[ExpertRow], flops: float) -> str:
    """The table as text. flops: operations of the forward's products; a backward has twice as many."""
    lines = [
        f"{'pass':<45} {'ms':>9} {'BF16 ms':>9} {'BF16 TFLOP/s':>12} {'ratio':>6}  {'target':<14} GB, ours and BF16"
    ]
    for row in rows:
        work = flops * (1 if row.name == FORWARD else 3)
        target = "" if row.target is None else f">= {row.target:.2f} {row.verdict}"
        memory = "" if row.peak is None else f"{row.peak / 1e9:.2f} {(row.bf16_peak or 0) / 1e9:.2f}"
        lines.append(
            f"{row.name:<45} {row.seconds * 1e3:>9.3f} {row.bf16_seconds * 1e3:>9.3f} "
            f"{work / row.bf16_seconds / 1e12:>12.3g} {row.ratio:>6.3f}  {target:<14} {memory}".rstrip()
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """`fourbit bench experts ...`: print the table; 0 if it ran, whatever it shows, 2 without the device."""
    config = tyro.cli(ExpertsConfig, args=argv, prog="fourbit bench experts")
    try:
        rows = measure(config)
    except DeviceAbsent as error:
        print(f"fourbit: {error}", file=sys.stderr)
        return 2
    shape = f"{config.experts} experts, {config.rows} rows, {config.width} x {config.hidden}"
    print(f"{conditions(resolve(config.device), torch.get_num_threads())}; {shape}; ops {config.ops}")
    print(report(rows, 6.0 * config.rows * config.width * config.hidden))
    if config.out is not None:
        write_csv(rows, config.out)
    return 0
