"""`fourbit bench hw`: how near this folder's kernels come to what the chip allows; the bounds are those of `roofline`.

Every kernel has a copy of a BF16 matrix right before and right after each sample; the copy's speed is the mean of both.
A sample is the device's own time for several calls in its queue, medians over the samples count, and the matrix is much
larger than the cache, so nothing stays there from call to call. Outputs that a kernel's function makes anew come from
torch's allocator, as in use. Peak memory is the most that one call takes, inputs included, over inputs and outputs.

`fourbit bench experts` times the expert MLP that is made of such kernels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from . import bench_kernels
from .bench_kernels import Timed, Work, tensors
from .clocks import Clock, device_clock
from .device import INTERPRET, DeviceAbsent, conditions, describe, resolve, triton_absent
from .launches import recording
from .record import require_writable, write_csv, write_whole
from .roofline import MOST, Chip, Row, chip, counted, draw, placed, require_figure


@dataclass(frozen=True)
class HwConfig:
    """Time the kernels of this machine's GPU and place each on a roofline."""

    device: str = "cuda"
    """Where to run: cuda or cuda:1."""
    rows: int = 65536
    """Rows of the matrix, a multiple of 128."""
    width: int = 4096
    """Columns of the matrix, a multiple of 128."""
    repeats: int = 15
    """Measured samples of each kernel."""
    calls: int = 10
    """Calls in a sample."""
    only: tuple[str, ...] = ()
    """Parts of names of kernels, such as NVFP4 or Philox; all if left out."""
    out: Path | None = None
    """CSV file for the table."""
    figure: Path | None = None
    """File for the roofline: .png, .svg or .pdf."""


def chosen(only: Sequence[str], kernels: Sequence[Timed]) -> list[Timed]:
    """Raises: ValueError if no name has such a part."""
    found = [timed for timed in kernels if not only or any(part in timed.name for part in only)]
    if not found:
        known = ", ".join(timed.name for timed in kernels)
        raise ValueError(f"only={tuple(only)}: no kernel has such a name; there are {known}")
    return found


def require(config: HwConfig) -> torch.device:
    """The device of a config that can be measured.

    Raises: ValueError for sizes, numbers or files that cannot be, a CPU, or the interpreter; DeviceAbsent.
    """
    device = resolve(config.device)
    for name in ("rows", "width"):
        if getattr(config, name) < 128 or getattr(config, name) % 128:
            raise ValueError(f"{name}={getattr(config, name)}: use a positive multiple of 128")
    for name in ("repeats", "calls"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: use 1 or more")
    require_figure(config.figure)
    require_writable(config.out)
    require_writable(config.figure, "figure")
    if device.type != "cuda":
        raise ValueError(f"device={config.device!r}: compiled kernels are timed, and those run on a GPU; use 'cuda'")
    if (reason := triton_absent(device)) is not None:
        raise DeviceAbsent(reason)
    if os.environ.get(INTERPRET) == "1":
        raise ValueError(f"{INTERPRET}=1 runs kernels in an interpreter, whose time says nothing; unset it")
    return device


def samples(work: Work, copy: Callable[[], Any], clock: Clock, repeats: int, warm_up: int = 3) -> np.ndarray:
    """Seconds of the copies, the mean of one before and one after, and of the work: (repeats, 2)."""
    for _ in range(warm_up):
        copy()
        work.run()
    found = []
    for _ in range(repeats):
        before, own, after = clock(copy), clock(work.run), clock(copy)
        found.append(((before + after) / 2, own))
    return np.array(found)


def peak_of(work: Work, device: torch.device) -> float:
    """Most device memory of one call, inputs included, over inputs and outputs; 1 is the least.

    Outputs that were there before the call are not counted twice.
    """
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    outputs = tensors(work.run())
    torch.cuda.synchronize(device)
    new = torch.cuda.max_memory_allocated(device) - before
    inputs, made = (sum(t.nbytes for t in group) for group in (work.inputs, outputs))
    standing = made if torch.cuda.memory_allocated(device) == before else 0
    return (inputs + standing + new) / (inputs + made)


def measured(
    timed: Timed, work: Work, copy: tuple[Callable[[], Any], int], clock: Clock, repeats: int, at: Chip
) -> Row:
    """The row of one kernel, without its peak. copy: a copy and the bytes that it reads and writes."""
    with recording() as launches:
        outputs = tensors(work.run())
    found = counted(launches, work.trips)
    necessary = work.necessary or sum(t.nbytes for t in (*work.inputs, *outputs))
    copied, own = np.median(samples(work, copy[0], clock, repeats), axis=0)
    return placed(
        timed.name, float(own), copy[1] / float(copied), necessary, found, at.issue_rate, timed.floor, peak=None
    )


HEAD = (
    f"{'kernel':<34} {'ms':>8} {'GB':>6} {'bytes ms':>8} {'issue ms':>8} {'ratio':>6} {'limit':<5} "
    f"{'of copy':>7} {'floor':>5} {'peak':>5}  verdict"
)


def line(row: Row) -> str:
    """A row as text; below a figure that is not met, its most frequent instructions or what is missing."""
    issue = "" if row.t_issue is None else f"{row.t_issue * 1e3:.3f}"
    floor, peak = ("" if x is None else f"{x:.2f}" for x in (row.floor, row.peak))
    text = (
        f"{row.kernel:<34} {row.seconds * 1e3:>8.3f} {row.bytes / 1e9:>6.2f} {row.t_bytes * 1e3:>8.3f} {issue:>8} "
        f"{row.ratio:>6.2f} {row.limit:<5} {row.share:>7.2f} {floor:>5} {peak:>5}  {row.verdict}"
    )
    if row.verdict != "met" and row.opcodes:
        per_byte = (row.instructions or 0) / row.bytes
        text += f"\n    limited by {row.limit}; {per_byte:.3f} instructions of a warp per byte: {row.opcodes}"
    return text + (f"\n    instructions are not counted: {row.note}" if row.note else "")


def measure(config: HwConfig, tell: Callable[[str], None] = print) -> list[Row]:
    """The rows of one run, each told as soon as it is there.

    Raises: as `require`, and ValueError for names that no kernel has. Nothing is measured then.
    """
    names = chosen(config.only, bench_kernels.KERNELS)
    device = require(config)
    at, clock = chip(device), device_clock(device, config.calls)
    x = bench_kernels.normal(device, config.rows, config.width)
    y = torch.empty_like(x)
    tell(
        f"{conditions(device, torch.get_num_threads())}; {config.rows} x {config.width}; {at.sms} SMs at "
        f"{at.clock / 1e6:.0f} MHz issue {at.issue_rate / 1e9:.0f} instructions of a warp per ns; ratio at most {MOST} "
        "is asked for"
    )
    tell(HEAD)
    rows = []
    for number, timed in enumerate(names, 1):
        print(f"fourbit: {number} of {len(names)}, {timed.name}", file=sys.stderr, flush=True)
        work = timed.make(device, config.rows, config.width)
        row = measured(timed, work, (lambda: y.copy_(x), x.nbytes + y.nbytes), clock, config.repeats, at)
        row = replace(row, peak=peak_of(work, device))
        rows.append(row)
        tell(line(row))
    return rows


def main(argv: list[str]) -> int:
    """`fourbit bench hw ...`: print the table; 0 if it ran, whatever it shows, 2 without the device."""
    config = tyro.cli(HwConfig, args=argv, prog="fourbit bench hw")
    try:
        rows = measure(config, lambda text: print(text, flush=True))
    except DeviceAbsent as error:
        print(f"fourbit: {error}", file=sys.stderr)
        return 2
    if config.out is not None:
        write_csv(rows, config.out)
    if config.figure is not None:
        device = resolve(config.device)
        title = f"{describe(device)['name']}, {config.rows} x {config.width}"
        write_whole(config.figure, draw(rows, chip(device).issue_rate, title, config.figure.suffix[1:]))
    return 0
