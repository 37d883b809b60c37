"""`fourbit bench numerics`: how fast `numerics` is, beside a copy, beside other packages, eager and compiled.

After runs that are not measured come rounds in which every operation has its turn, its reference right before it;
medians over the rounds count. On a GPU it is the device's time, without the host's for a first call. A ratio is the
time of that reference over the operation's own: above 1 it is faster. The reference is a copy of the float32 matrix, or
for an element encode the other package that it competes with. What a target asks of a ratio on this device is told
beside it, met or missed; ratios move with whatever else the machine does.

Operations: encoding to E2M1 and E4M3; NVFP4 and four-over-six quantized and dequantized, with the outer scale given and
found; stochastic requantization of NVFP4 to MXFP8 along the other axis. Codes are kept, as a product would need them.
Peers: ml_dtypes and torch's own casts; gfloat and torchao where they are installed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import torch
import tyro
from torch import Tensor

import numerics as nm
from numerics import compiled

from .clocks import clock_of
from .device import DeviceAbsent, conditions, resolve
from .record import require_writable, write_csv

COPY, E2M1_PEER, E4M3_PEER = "copy", "E2M1 encode, ml_dtypes", "E4M3 encode, torch"
QUANTIZE, FOUR_OVER_SIX, REQUANTIZE = "NVFP4", "four-over-six", "NVFP4 to MXFP8, stochastic"
GIVEN, FOUND = ", outer given", ", outer found"

# (device type, operation, mode) -> least ratio to its reference
TARGETS = {
    ("cpu", "E2M1 encode", "eager"): 2.0,
    ("cpu", "E4M3 encode", "eager"): 0.2,
    ("cpu", QUANTIZE, "compiled"): 0.15,
    ("cpu", FOUR_OVER_SIX, "compiled"): 0.06,
    ("cpu", REQUANTIZE, "compiled"): 0.06,
    ("cuda", QUANTIZE + GIVEN, "compiled"): 0.95,
    ("cuda", FOUR_OVER_SIX + GIVEN, "compiled"): 0.6,
    ("cuda", QUANTIZE + FOUND, "compiled"): 0.6,
}


@dataclass(frozen=True)
class BenchConfig:
    """Time the emulation's basic operations beside a copy and beside other packages, and print their ratios."""

    device: str = "cpu"
    """Where to run: cpu, cuda or cuda:1."""
    size: int | None = None
    """Elements, a multiple of 131072; default 2^24 on a CPU, 2^28 on a GPU, a quarter of that with --fast."""
    threads: int = 2
    """CPU threads of torch."""
    repeats: int = 15
    """Measured runs of each operation; 5 with --fast."""
    modes: tuple[Literal["eager", "compiled"], ...] | None = None
    """How ours run; default both, on a CPU with --fast eager alone."""
    fast: bool = False
    """A smaller matrix, fewer runs and, unless --modes says so, nothing compiled on a CPU."""
    out: Path | None = None
    """CSV file for the table."""


@dataclass(frozen=True)
class Operation:
    """One thing to time.

    Args:
        name: of the operation. mode: "eager", "compiled" or the name of a package. run: does it once.
        reference: the operation whose time is divided by this one's.
    """

    name: str
    mode: str
    run: Callable[[], Any]
    reference: str = COPY


@dataclass(frozen=True)
class Row:
    """One line of the table. seconds: median of a run; peak: see `peak_memory`."""

    operation: str
    mode: str
    seconds: float
    mega_elements_per_second: float
    reference: str
    ratio: float
    target: float | None
    verdict: str
    peak: float | None


def durations(operations: list[Operation], rounds: int, device: torch.device, warm_up: int = 2) -> np.ndarray:
    """Seconds per run of each operation and of its reference right before it, (rounds, operations, 2)."""
    clock = clock_of(device)
    references = {op.name: op.run for op in reversed(operations)}  # the first of a name
    for op in operations:
        for _ in range(warm_up):
            op.run()
    return np.array([[(clock(references[op.reference]), clock(op.run)) for op in operations] for _ in range(rounds)])


def peak_memory(run: Callable[[], Any], x: Tensor) -> float | None:
    """Most device memory that one run on `x` takes, `x` included, over the bytes of `x` and of its results; CUDA only.

    1 is the least there can be: input and results, nothing beside them.
    """
    if x.device.type != "cuda":
        return None
    before = torch.cuda.memory_allocated(x.device)
    torch.cuda.reset_peak_memory_stats(x.device)
    result = run()
    torch.cuda.synchronize(x.device)
    results = (result,) if isinstance(result, Tensor) else result
    out = sum(t.nbytes for t in results if isinstance(t, Tensor))
    return (torch.cuda.max_memory_allocated(x.device) - before + x.nbytes) / (x.nbytes + out)


def table(
    operations: list[Operation], seconds: np.ndarray, peaks: list[float | None], size: int, kind: str
) -> list[Row]:
    """The rows of operations measured on a device of type `kind`, ratios and verdicts filled in.

    Args: seconds: as `durations` gives them. peaks: of each operation. size: elements.
    """
    rows = []
    for column, (op, peak) in enumerate(zip(operations, peaks, strict=True)):
        own = float(np.median(seconds[:, column, 1]))
        ratio = float(np.median(seconds[:, column, 0] / seconds[:, column, 1]))
        target = TARGETS.get((kind, op.name, op.mode))
        verdict = "" if target is None else "met" if ratio >= target else "missed"
        rows.append(Row(op.name, op.mode, own, size / own / 1e6, op.reference, ratio, target, verdict, peak))
    return rows


def _quantize(x: Tensor, fmt: nm.BlockFormat, outer: Any = "format") -> tuple[Tensor, ...]:
    q = nm.quantize(x, fmt, outer=outer)
    return q.codes, q.scales, q.dequantize()


def _requantize(codes: Tensor, scales: Tensor, random: nm.Random) -> tuple[Tensor, Tensor]:
    fmt = nm.NVFP4
    q = nm.requantize(nm.BlockTensor(codes, scales, None, fmt, fmt.rule.name, 1), nm.MXFP8, random=random)
    return q.codes, q.scales


def operations(x: Tensor, modes: tuple[str, ...] = ("eager", "compiled")) -> list[Operation]:
    """Everything to time on the float32 matrix `x`: references first, then peers, then ours in the given modes."""
    out, device = torch.empty_like(x), x.device
    # on a GPU into new memory, as the others: where a block of memory lies changes its speed by some percent
    listed = [Operation(COPY, "torch", x.clone if device.type == "cuda" else lambda: out.copy_(x))]
    listed += _peers(x)
    outers = {fmt: nm.quantize(x, fmt).outer for fmt in (nm.NVFP4, nm.NVFP4_46)}
    q, random = nm.quantize(x, nm.NVFP4), nm.Random((0, 1))
    for mode in modes:
        wrap = compiled.compile if mode == "compiled" else (lambda function: function)
        for fmt, peer in ((nm.E2M1, E2M1_PEER), (nm.E4M3, E4M3_PEER)):
            encode = wrap(lambda y, fmt=fmt: nm.encode(y, fmt))
            reference = peer if device.type == "cpu" or fmt is nm.E4M3 else COPY
            listed.append(Operation(f"{fmt.name} encode", mode, lambda f=encode: f(x), reference))
        quantize, requantize = wrap(_quantize), wrap(_requantize)
        for name, fmt in ((QUANTIZE, nm.NVFP4), (FOUR_OVER_SIX, nm.NVFP4_46)):
            listed.append(Operation(name, mode, lambda f=quantize, fmt=fmt: f(x, fmt)))
            # in and out alone, as between two layers: no codes are kept
            pure = compiled.quantize_dequantize if mode == "compiled" else _dequantized
            listed.append(Operation(name + GIVEN, mode, lambda f=pure, fmt=fmt: f(x, fmt, outers[fmt])))
            listed.append(Operation(name + FOUND, mode, lambda f=pure, fmt=fmt: f(x, fmt, "tensor")))
        listed.append(Operation(REQUANTIZE, mode, lambda f=requantize: f(q.codes, q.scales, random)))
    return listed


def _dequantized(x: Tensor, fmt: nm.BlockFormat, outer: Any) -> Tensor:
    return nm.quantize(x, fmt, outer=outer).dequantize()


def _peers(x: Tensor) -> list[Operation]:
    """Encodes of other packages: ml_dtypes on a CPU, torch's cast, and gfloat and torchao where they are installed."""
    listed = [Operation(E4M3_PEER, "torch", lambda: x.clamp(-448, 448).to(torch.float8_e4m3fn))]
    if x.device.type == "cpu":
        array = x.numpy()
        listed.append(Operation(E2M1_PEER, "ml_dtypes", lambda: array.astype(ml_dtypes.float4_e2m1fn)))
        listed.append(Operation("E4M3 encode", "ml_dtypes", lambda: array.astype(ml_dtypes.float8_e4m3fn), E4M3_PEER))
        if importlib.util.find_spec("gfloat"):
            from gfloat import encode_ndarray, formats, round_ndarray

            part, info = np.float64(array.reshape(-1)), formats.format_info_ocp_e2m1
            run = lambda: encode_ndarray(info, round_ndarray(info, part, sat=True))  # noqa: E731
            listed.append(Operation("E2M1 encode", "gfloat", run, E2M1_PEER))
    if importlib.util.find_spec("torchao"):
        try:
            from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
        except ImportError as error:  # a prototype: its place changes from release to release
            print(f"fourbit: torchao is left out: {error}", file=sys.stderr)
        else:
            listed.append(Operation(QUANTIZE + ", codes alone", "torchao", lambda: nvfp4_quantize(x)))
    return listed


def measure(config: BenchConfig) -> list[Row]:
    """The table of one run.

    Raises: ValueError for a size, modes, a number of threads or of repeats that cannot be, or an `out` that cannot be
    written; DeviceAbsent. Nothing is measured then.
    """
    device = resolve(config.device)
    columns, whole = 4096, 1 << (28 if device.type == "cuda" else 24)
    size = config.size if config.size is not None else whole // (4 if config.fast else 1)
    if size < 1 or size % (32 * columns):
        raise ValueError(f"size={size}: use a positive multiple of {32 * columns}, rows of {columns} in blocks of 32")
    for name in ("threads", "repeats"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: use 1 or more")
    if config.modes == ():
        raise ValueError("modes=(): name eager, compiled or both, or leave it out")
    require_writable(config.out)
    repeats, before = min(config.repeats, 5) if config.fast else config.repeats, torch.get_num_threads()
    usual = ("eager",) if config.fast and device.type == "cpu" else ("eager", "compiled")
    modes = usual if config.modes is None else config.modes
    x = torch.randn(size // columns, columns, generator=torch.Generator().manual_seed(0)).to(device)
    torch.set_num_threads(config.threads)
    try:
        listed = operations(x, modes)
        seconds = durations(listed, repeats, device)
        peaks = [peak_memory(op.run, x) for op in listed]
    finally:
        torch.set_num_threads(before)
    return table(listed, seconds, peaks, size, device.type)


def report(rows: list[Row]) -> str:
    """The table as text."""
    lines = [f"{'operation':<28} {'mode':<10} {'M elem/s':>9} {'ratio':>6}  {'to':<24} {'target':<14} peak memory"]
    for row in rows:
        target = "" if row.target is None else f">= {row.target:<4g} {row.verdict}"
        peak = "" if row.peak is None else f"{row.peak:.2f}"
        lines.append(
            f"{row.operation:<28} {row.mode:<10} {row.mega_elements_per_second:>9.0f} {row.ratio:>6.3f}  "
            f"{row.reference:<24} {target:<14} {peak}".rstrip()
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """`fourbit bench numerics ...`: print the table; 0 if it ran, whatever it shows, 2 without the device."""
    if argv[:1] != ["numerics"]:
        if argv[:1] in (["-h"], ["--help"]):
            print("usage: fourbit bench numerics|matmul|training|monitor|hw|experts [OPTIONS]; each has its own --help")
            return 0
        raise ValueError(
            f"bench {' '.join(argv[:1]) or 'of nothing'}: use `fourbit bench numerics`, matmul, training, monitor, hw "
            "or experts"
        )
    config = tyro.cli(BenchConfig, args=argv[1:], prog="fourbit bench numerics")
    try:
        rows = measure(config)
    except DeviceAbsent as error:
        print(f"fourbit: {error}", file=sys.stderr)
        return 2
    size = round(rows[0].mega_elements_per_second * rows[0].seconds * 1e6)
    print(f"{conditions(resolve(config.device), config.threads)}; {size} float32 elements")
    print(report(rows))
    if config.out is not None:
        write_csv(rows, config.out)
    return 0
