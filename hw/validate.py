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

With --conversions the GPU's own `cvt` instructions are compared instead: see `conversions`; with --products the sums of
its tensor cores: see `products`. With --ops somebody's
implementation of the seam is judged, ours included: see `validate_ops`; with --mutants that judge is: see `kill_score`.

Exit status: 0 if something was compared and nothing differs, 1 if not, 2 if there is no such device; with --ops also 2
if nothing of the implementation could run.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import torch
import tyro
from tqdm import tqdm

from numerics import compiled

from . import conversions, kill_score, products, validate_ops
from .cases import Cut as Cut
from .cases import Draw, Operation, Run
from .cases_compiled import compiled_operations
from .cases_numerics import block_operations, element_operations, product_operations
from .cases_seam import seam_operations
from .compare import Row, Sides, compare
from .device import INTERPRET, DeviceAbsent, describe, resolve, triton_absent
from .record import date, versions, write_record, write_whole
from .validate_config import ValidateConfig


def operations() -> list[Operation]:
    """Everything that is validated, in the order of the table."""
    return [*element_operations(), *block_operations(), *product_operations(), *seam_operations()]


# Running.


@functools.lru_cache(maxsize=1)
def _compiled(run: Run) -> Run:
    """`run` compiled, once for all its data. What was compiled before is forgotten: the compiler bounds its number."""
    torch._dynamo.reset()
    return compiled.compile(run)


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
    config.check()
    if config.ops is not None:
        return validate_ops.main(config)
    if config.mutants:
        return kill_score.main(config)
    try:
        device = resolve(config.device)
        if config.compiled:
            _require_compiler(device)
    except DeviceAbsent as error:
        print(f"not run: {error}")
        write_record(config.out, config.asked(), {"status": "not run", "reason": str(error)})
        return 2
    if config.conversions:
        return _conversions(config, device)
    if config.products:
        return _products(config, device)
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
        write_record(config.out, config.asked(), {"status": "not run", "reason": absent})
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
    write_record(config.out, config.asked(), result)
    return 0 if result["status"] == "passed" else 1


def _products(config: ValidateConfig, device: torch.device) -> int:
    """The same for --products."""
    absent = "a CPU has no tensor cores; name a CUDA device" if device.type == "cpu" else triton_absent(device)
    if absent is None and os.environ.get(INTERPRET) == "1":
        absent = f"{INTERPRET}=1 has Triton interpret its kernels, without tensor cores; unset it"
    if absent is not None:
        print(f"not run: device={config.device!r}: {absent}")
        write_record(config.out, config.asked(), {"status": "not run", "reason": absent})
        return 2
    from triton.compiler.errors import CompilationError

    from . import tensor_core  # needs triton

    capability = torch.cuda.get_device_capability(device)
    return judge_products(config, products.Comparison(device, tensor_core.product, capability, (CompilationError,)))


def judge_products(config: ValidateConfig, comparison: products.Comparison) -> int:
    """Print the table of --products, write record and vectors, return the exit status."""
    print(products.HEAD, flush=True)
    seeds, longest = (config.seeds[:1], 128) if config.fast else (config.seeds, 4096)
    rows = []
    for fmt in products.FORMATS:
        for row in comparison.run(fmt, config.rows or products.ROWS, seeds, longest):
            print(row, flush=True)
            rows.append(row)
    about = describe(comparison.device)
    line, result = products.conclude(rows, about)
    print(line)
    write_record(config.out, config.asked(), result)
    if config.vectors is not None:
        made = {"command": "fourbit validate --products", "date": date(), "versions": versions(), "device": about}
        write_whole(config.vectors, products.vectors(comparison.kept, made))
    return 0 if result["status"] == "passed" else 1


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
    write_record(config.out, config.asked(), result | totals | {"cases": [asdict(row) for row in rows]})
    return 0 if passed else 1
