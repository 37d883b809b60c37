"""`fourbit bench matmul`: how fast products under each accumulator are, beside torch.matmul in float64.

Square matrices. After runs that are not measured come rounds in which every accumulator has its turn, the float64
product of the same shape right before it; medians over the rounds count. A ratio is that product's time over the
accumulator's: above 1 it is faster. Targets: exact products of NVFP4 at 0.25 of float64; the Hopper FP8 model at 1024
within 10 s on a CPU and 0.2 s on a GPU, told as the share of the limit that it takes, whatever the size (2 size^3
operations are set against the limit in proportion). On a GPU the host's time for its many small calls counts: clocks
are the host's, after the device has finished.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from torch import Tensor

import numerics as nm

from .device import DeviceAbsent, conditions, resolve
from .record import require_writable, write_csv

LIMITS = {"cpu": 10.0, "cuda": 0.2}  # seconds of hopper_fp8 at 1024
LEAST = {"exact NVFP4": 0.25}
REFERENCE = "float64"


@dataclass(frozen=True)
class MatmulConfig:
    """Time products under every accumulator beside torch.matmul in float64, and print their ratios."""

    device: str = "cpu"
    """Where to run: cpu, cuda or cuda:1."""
    size: int = 1024
    """M, N and K, a multiple of 64."""
    threads: int = 2
    """CPU threads of torch."""
    repeats: int = 5
    """Measured runs of each product."""
    only: tuple[str, ...] = ()
    """Parts of names of products, such as hopper or exact; all if left out."""
    out: Path | None = None
    """CSV file for the table."""


@dataclass(frozen=True)
class Row:
    """One product. seconds: median; ratio: float64's time over it; target: a ratio, or seconds; verdict: met, missed
    or nothing."""

    name: str
    seconds: float
    ratio: float
    target: str
    verdict: str


def products(size: int, device: torch.device) -> dict[str, Callable[[], Tensor]]:
    """What is timed, by name: operands are quantized beforehand."""
    a, b = (torch.randn(size, size, generator=torch.Generator().manual_seed(s)).to(device) for s in (0, 1))
    wide = a.to(torch.float64), b.to(torch.float64)
    found: dict[str, Callable[[], Tensor]] = {REFERENCE: lambda: wide[0] @ wide[1].mT}
    blocks = {fmt.name: (nm.quantize(a, fmt), nm.quantize(b, fmt)) for fmt in (nm.NVFP4, nm.MXFP8, nm.MXFP4)}
    for name, (x, y) in blocks.items():
        found[f"exact {name}"] = lambda x=x, y=y: nm.matmul(x, y)
    narrow = a.bfloat16(), b.bfloat16()
    for name in ("exact", "fp32", "library"):
        found[f"{name} BF16"] = lambda name=name: nm.matmul(*narrow, name)
    for row in nm.ACCUMULATORS.values():
        if row.steps:
            fmt = row.operands[0]
            x, y = blocks[fmt.name] if isinstance(fmt, nm.BlockFormat) else (nm.round_to(t, fmt) for t in (a, b))
            found[row.name] = lambda x=x, y=y, name=row.name: nm.matmul(x, y, name)
    return found


def durations(runs: dict[str, Callable[[], Tensor]], rounds: int, device: torch.device) -> np.ndarray:
    """Seconds of each product and of the reference right before it, (rounds, products, 2)."""
    for run in runs.values():
        run()

    def clock(run: Callable[[], Tensor]) -> float:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    return np.array([[(clock(runs[REFERENCE]), clock(run)) for run in runs.values()] for _ in range(rounds)])


def table(names: list[str], seconds: np.ndarray, size: int, kind: str) -> list[Row]:
    """Rows of products measured on a device of type `kind`, as `durations` gives them."""
    rows = []
    for column, name in enumerate(names):
        own = float(np.median(seconds[:, column, 1]))
        ratio = float(np.median(seconds[:, column, 0] / seconds[:, column, 1]))
        target, good = "", True
        if name in LEAST:
            target, good = f"ratio >= {LEAST[name]:g}", ratio >= LEAST[name]
        if name == "hopper_fp8":
            limit = LIMITS[kind] * (size / 1024) ** 3
            target, good = f"<= {limit:.3g} s: takes {own / limit:.3f} of it", own <= limit
        rows.append(Row(name, own, ratio, target, ("met" if good else "missed") if target else ""))
    return rows


def measure(config: MatmulConfig) -> list[Row]:
    """Raises: ValueError for a size, threads, repeats, names or an `out` that cannot be; DeviceAbsent."""
    device = resolve(config.device)
    if config.size < 64 or config.size % 64:
        raise ValueError(f"size={config.size}: use a positive multiple of 64")
    for name in ("threads", "repeats"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: use 1 or more")
    require_writable(config.out)
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        runs = products(config.size, device)
        chosen = [n for n in runs if n == REFERENCE or not config.only or any(part in n for part in config.only)]
        if len(chosen) == 1:
            raise ValueError(f"only={config.only}: no product has such a name; there are {', '.join(runs)}")
        seconds = durations({name: runs[name] for name in chosen}, config.repeats, device)
    finally:
        torch.set_num_threads(before)
    return table(chosen, seconds, config.size, device.type)


def report(rows: list[Row]) -> str:
    """The table as text."""
    lines = [f"{'product':<22} {'seconds':>10} {'to float64':>11}  target"]
    lines += [f"{r.name:<22} {r.seconds:>10.4f} {r.ratio:>11.4f}  {r.target} {r.verdict}".rstrip() for r in rows]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """`fourbit bench matmul ...`: print the table; 0 if it ran, whatever it shows, 2 without the device."""
    config = tyro.cli(MatmulConfig, args=argv, prog="fourbit bench matmul")
    try:
        rows = measure(config)
    except DeviceAbsent as error:
        print(f"fourbit: {error}", file=sys.stderr)
        return 2
    print(f"{conditions(resolve(config.device), config.threads)}; {config.size}^3")
    print(report(rows))
    if config.out is not None:
        write_csv(rows, config.out)
    return 0
