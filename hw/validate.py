"""`fourbit validate`: does `numerics` give the same bits on the device at hand as on the CPU?

A case is an operation, a kind of data and a dtype. Its inputs are drawn and prepared once, on the CPU, and the same
bits go to both sides. Every output is compared element by element, as integers:

    --device cuda   the CPU against the device
    --device cpu    the CPU on 1 thread against the CPU on all threads, at least 2

and then against pieces computed on the device: ragged ranges of rows or columns, or each expert alone, joined again.
A token's bits must not depend on which other tokens, or experts, are computed beside it.

    --compiled      the second side runs compiled, by `numerics.compiled`; fewer cases, no pieces

The claim covers codes, scales, outer scales, random words, Hadamard transforms, SwiGLU, exact products, and the
operations of `numerics.ops` under accumulator="exact"; and the Triton kernels of this folder, which run on the device
while the CPU runs the emulation. Where Triton cannot run, their cases are "not run": neither passed nor failed.

Not promised, hence not compared: FP32 products, which have the library's order of summation, and `router_gradient`,
whose sum has too. Any NaN equals any NaN, since IEEE 754 leaves sign and payload to the machine. The sign of zero is
compared.

With --conversions the GPU's own `cvt` instructions are compared instead: see `conversions`.

Exit status: 0 if something was compared and nothing differs, 1 if not, 2 if there is no such device.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor
from tqdm import tqdm

import numerics as nm
from numerics import compiled

from . import conversions
from .cases import Cut, Draw, Inputs, Operation, Outputs, Run
from .cases_compiled import compiled_operations
from .cases_numerics import block_operations, element_operations, product_operations
from .cases_seam import seam_operations
from .device import DeviceAbsent, describe, resolve, triton_absent
from .record import require_writable, write_record


@dataclass(frozen=True)
class ValidateConfig:
    """Compare the arithmetic of a device with the CPU's, bit for bit; the exit status is 0 if all of it is equal."""

    device: str = "cuda"
    """What to compare with the CPU: cuda or cuda:1; with cpu, 1 thread is compared with several."""
    rows: int | None = None
    """Rows of each input; 384, or 160 with --fast."""
    seeds: tuple[int, ...] = (0, 1)
    """Each draws all inputs anew."""
    compiled: bool = False
    """Compile what runs on the device; cases of `cases_compiled`. With cpu, eager is compared with compiled."""
    fast: bool = False
    """Fewer rows, the first seed and, of each operation, the first dtype only; of each conversion, 2^24 inputs."""
    conversions: bool = False
    """Instead, compare the GPU's own cvt instructions with the emulator, over all 2^32 inputs."""
    out: Path | None = None
    """JSON file for versions, device, date and the count of every case."""


def operations() -> list[Operation]:
    """Everything that is validated, in the order of the table."""
    return [*element_operations(), *block_operations(), *product_operations(), *seam_operations()]


# Running and comparing.


@dataclass(frozen=True)
class Side:
    """Where a case runs: a device, the number of CPU threads, and how: as it is, or compiled."""

    device: torch.device
    threads: int
    how: Callable[[Run], Run] = lambda run: run

    def run(self, operation: Operation, inputs: Inputs) -> Outputs:
        torch.set_num_threads(self.threads)
        there = {name: _move(x, self.device) for name, x in inputs.items()}
        return {name: x.cpu() for name, x in self.how(operation.run)(there).items()}

    def run_in_pieces(self, operation: Operation, cut: Cut, inputs: Inputs) -> Outputs:
        pieces = [self.run(operation, piece) for piece in cut.pieces(inputs)]
        return {name: torch.cat([piece[name] for piece in pieces], cut.axis) for name in pieces[0]}


@dataclass(frozen=True)
class Sides:
    """The CPU that others are compared with, and where the whole and the pieces run."""

    reference: Side
    whole: Side
    pieces: Side

    @staticmethod
    def of(device: torch.device, threads: int, how: Callable[[Run], Run]) -> Sides:
        """For --device `device`, with torch's usual number of CPU threads."""
        if device.type == "cpu":
            return Sides(Side(device, 1), Side(device, max(2, threads), how), Side(device, 1))
        return Sides(Side(torch.device("cpu"), threads), Side(device, threads, how), Side(device, threads))


@functools.lru_cache(maxsize=1)
def _compiled(run: Run) -> Run:
    """`run` compiled, once for all its data. What was compiled before is forgotten: the compiler bounds its number."""
    torch._dynamo.reset()
    return compiled.compile(run)


def _move(x: Any, device: torch.device) -> Any:
    if isinstance(x, nm.BlockTensor):
        outer = None if x.outer is None else x.outer.to(device)
        return replace(x, codes=x.codes.to(device), scales=x.scales.to(device), outer=outer)
    return x.to(device) if isinstance(x, Tensor) else x


@dataclass
class Row:
    """A line of the table. `first`: the first difference in words, or why nothing was compared. `not_run`: what this
    machine lacks; such a case neither passes nor fails."""

    operation: str
    data: str
    dtype: str
    elements: int = 0
    differing: int = 0
    first: str | None = None
    not_run: str | None = None

    @property
    def failed(self) -> bool:
        return self.not_run is None and (self.elements == 0 or self.differing > 0 or self.first is not None)

    def __str__(self) -> str:
        first = "" if self.first is None else f"  {self.first}"
        first = first if self.not_run is None else f"  not run: {self.not_run}"
        return f"{self.operation:<30} {self.data:<10} {self.dtype:<8} {self.elements:>9} {self.differing:>9}{first}"


def compare(row: Row, where: str, expected: Outputs, found: Outputs, x: Any) -> None:
    """Count every element of `expected` in `row`, and those that `found` lacks or has otherwise.

    Args:
        where: names this comparison. x: the input; if it is a tensor, shown beside outputs of its shape.
    """
    for name, e in expected.items():
        f = found.get(name)
        row.elements += e.numel()
        if f is None or f.shape != e.shape or f.dtype != e.dtype:
            row.differing += max(e.numel(), 1)
            got = "is missing" if f is None else f"has {f.dtype} {tuple(f.shape)}"
            row.first = row.first or f"{where}: {name} {got} instead of {e.dtype} {tuple(e.shape)}"
            continue
        differs = _bits(e) != _bits(f)
        if e.is_floating_point():
            differs &= ~(torch.isnan(e) & torch.isnan(f))
        count = int(differs.sum())
        row.differing += count
        if count and row.first is None:
            at = tuple(differs.nonzero()[0].tolist())
            value = f", input {x[at].item()!r}" if isinstance(x, Tensor) and x.shape == e.shape else ""
            row.first = f"{where}: {name}{list(at)} is {_show(f[at])}, should be {_show(e[at])}{value}"
    for name in found.keys() - expected.keys():
        row.differing += found[name].numel()
        row.first = row.first or f"{where}: {name} should not be there"


def _bits(x: Tensor) -> Tensor:
    """`x` as signed integers, for which torch has every operation."""
    if x.is_floating_point():
        return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
    return x.to(torch.int64)


def _show(x: Tensor) -> str:
    pattern = f"0x{int(_bits(x)) & ((1 << 8 * x.element_size()) - 1):0{2 * x.element_size()}x}"
    return f"{x.item()!r} ({pattern})" if x.is_floating_point() else pattern


def run_case(operation: Operation, data: str, dtype: torch.dtype, config: ValidateConfig, sides: Sides) -> Row:
    """One case, for every seed."""
    row = Row(operation.name, data, str(dtype).removeprefix("torch."))
    rows = config.rows or (160 if config.fast else 384)
    theirs = operation
    if operation.kernel is not None:
        row.not_run = triton_absent(sides.whole.device)
        theirs = replace(operation, run=operation.kernel)
    if row.not_run is not None:
        return row
    for seed in config.seeds[:1] if config.fast else config.seeds:
        rng = np.random.default_rng((seed, zlib.crc32(f"{row.operation}, {row.data}, {row.dtype}".encode())))
        try:
            inputs = operation.make(Draw(rng, data, dtype, rows))
            expected = sides.reference.run(operation, inputs)
            compare(row, f"seed {seed}", expected, sides.whole.run(theirs, inputs), inputs.get("x"))
            if operation.cut is not None:
                found = sides.pieces.run_in_pieces(theirs, operation.cut, inputs)
                compare(row, f"seed {seed}, in pieces", expected, found, inputs.get("x"))
        except RuntimeError as error:  # an operation that the device lacks, or no memory: the others still count
            row.first = row.first or f"seed {seed}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            break
    return row


def main(argv: list[str]) -> int:
    """Run `fourbit validate` with `argv`; return the exit status of the module's docstring.

    Raises:
        ValueError: a bad argument, an `out` that cannot be written included; nothing has run then.
    """
    config = tyro.cli(ValidateConfig, args=argv, prog="fourbit validate")
    _check(config)
    try:
        device = resolve(config.device)
        if config.compiled:
            _require_compiler(device)
    except DeviceAbsent as error:
        print(f"not run: {error}")
        _record(config, {"status": "not run", "reason": str(error)})
        return 2
    if config.conversions:
        return _conversions(config, device)
    threads = torch.get_num_threads()
    try:
        rows = list(_table(config, Sides.of(device, threads, _compiled if config.compiled else lambda run: run)))
    finally:
        torch.set_num_threads(threads)
    return _conclude(config, device, max(2, threads), rows)


def _require_compiler(device: torch.device) -> None:
    """Raises DeviceAbsent where nothing can be compiled for `device`."""
    compiled.compile(lambda x: x + 1)(torch.ones(2, device=device))
    if compiled.fallback():
        raise DeviceAbsent(f"nothing can be compiled for {device}: {compiled.fallback()}")


def _conversions(config: ValidateConfig, device: torch.device) -> int:
    """The same for --conversions."""
    absent = "a CPU has no cvt instructions; name a CUDA device" if device.type == "cpu" else triton_absent(device)
    if absent is not None:
        print(f"not run: device={config.device!r}: {absent}")
        _record(config, {"status": "not run", "reason": absent})
        return 2
    from triton.runtime.errors import PTXASError

    from . import cvt  # needs triton

    print(f"{'instruction':<55} {'words':>10} {'differing':>10}  first difference", flush=True)
    limit = conversions.FAST if config.fast else 1 << 32
    rows = []
    for row in conversions.run(device, cvt.issue, limit, PTXASError):
        tqdm.write(str(row))  # beside the bar
        rows.append(row)
    line, result = conversions.conclude(rows, describe(device))
    print(line)
    _record(config, result)
    return 0 if result["status"] == "passed" else 1


def _check(config: ValidateConfig) -> None:
    if config.rows is not None and not 16 <= config.rows <= 8192:
        raise ValueError(f"rows={config.rows} cannot be used; use 16 to 8192")
    if not config.seeds or min(config.seeds) < 0:
        raise ValueError(f"seeds={config.seeds} cannot be used; name one or more integers from 0")
    if config.conversions and (config.rows is not None or config.seeds != ValidateConfig.seeds):
        raise ValueError("rows and seeds draw inputs, and --conversions takes all there are; leave them out")
    require_writable(config.out)


def _table(config: ValidateConfig, sides: Sides) -> Iterator[Row]:
    """Print the table, a line as soon as it is known, and yield its rows."""
    print(f"{'operation':<30} {'data':<10} {'dtype':<8} {'elements':>9} {'differing':>9}  first difference", flush=True)
    for operation in compiled_operations() if config.compiled else operations():
        for dtype in operation.dtypes[:1] if config.fast else operation.dtypes:
            for data in operation.data:
                row = run_case(operation, data, dtype, config, sides)
                print(row, flush=True)
                yield row


def _conclude(config: ValidateConfig, device: torch.device, threads: int, rows: list[Row]) -> int:
    """Print the summary, write the record, return the exit status."""
    about, failed = describe(device), [row for row in rows if row.failed]
    elements, differing = sum(row.elements for row in rows), sum(row.differing for row in rows)
    passed, absent = elements > 0 and not failed, sum(row.not_run is not None for row in rows)
    against = f"1 thread of the CPU against {threads}" if device.type == "cpu" else f"the CPU against {device}"
    counts = f"{len(rows) - absent} cases, {elements} elements compared"
    found = "none differs" if passed else f"{differing} differ, {len(failed)} cases failed"
    print(
        f"{'passed' if passed else 'FAILED'}: {against} ({about['name']}): {counts}, {found}"
        + f"; {absent} cases not run" * (absent > 0)
    )
    result = {"status": "passed" if passed else "failed", "device": about, "compared": against}
    totals = {"elements": elements, "differing": differing, "failed": len(failed), "not_run": absent}
    _record(config, result | totals | {"cases": [asdict(row) for row in rows]})
    return 0 if passed else 1


def _record(config: ValidateConfig, result: dict[str, Any]) -> None:
    asked = {name: value for name, value in asdict(config).items() if name != "out"}
    write_record(config.out, asked, result)
