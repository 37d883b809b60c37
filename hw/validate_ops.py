"""`fourbit validate --ops`: an implementation of the seam, function by function, against the emulation on the CPU.

Each case draws inputs by seed, shape and kind of data; `numerics.ops` makes the expected outputs on one thread of the
CPU, and the implementation the found ones on the device: all at once and, where rows or experts must not see each
other, in pieces. Outputs, and the kind of what is returned, must be equal, bit for bit; inputs must not change. Sums
whose order is not defined are judged by a derived bound (`bounds`). With --ops emulated small cases are compared with
the scalar oracle as well (`slow`), since otherwise the emulation would on a CPU only meet itself.

The table has one line for each operation and kind of data, over all shapes and seeds; under a line that failed stands
how the first wrong element should come to be. What an implementation lacks is "not run": neither passed nor failed; so
are exact products of one that raises a NotImplementedError about "exact", as tensor cores must.

Exit status: 0 if something was compared and nothing differs, 1 if something does, 2 if nothing could be compared.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import numerics as nm

from . import bounds, recorded, slow
from .cases import Draw, Inputs, Operation, Outputs, Shape
from .cases_ops import FEW, KINDS, RECORDED, SHAPES, SeamCase, seam_cases
from .compare import HEADER, OpsRow, Place, Sides, bits_of, compare
from .derive import derivation
from .device import DeviceAbsent, describe, resolve
from .record import date, versions, write_record, write_whole
from .seam import Calls, Implementation, Wrong, implementation, importable, seam
from .validate_config import ValidateConfig
from .validate_page import page

ORACLE = "scalar oracle"
CUT = ("ragged", "empty experts", "odd widths")  # shapes that are computed in pieces too


@dataclass(frozen=True)
class Judge:
    """Runs cases. `ours`, `theirs`: the functions of both sides."""

    config: ValidateConfig
    sides: Sides
    ours: Calls
    theirs: Calls
    recorded: dict[str, Tensor]

    def row(self, case: SeamCase, data: str) -> OpsRow:
        """One case, over all shapes and seeds."""
        against = "n u bound" if case.bounded else "numerics.ops"
        row = OpsRow(case.name, data, _dtype(case), function=case.function, against=against)
        for shape in SHAPES:
            for where, draw in self.draws(row, shape, case.ours.dtypes[0]):
                self.judge(row, case, shape.name, f"{shape.name}, {where}", case.ours.make(draw))
                if row.not_run is not None:
                    return row
        return row

    def against_oracle(self, case: SeamCase, data: str) -> OpsRow:
        """The same on a shape that the oracle is fast enough for."""
        row = OpsRow(case.name, data, _dtype(case), function=case.function, against=ORACLE)
        for where, draw in self.draws(row, slow.SHAPE, case.ours.dtypes[0]):
            inputs = case.ours.make(draw)
            self.ours.expect(None)
            expected = _causal(slow.outputs(case, inputs))
            found = self.sides.whole.run(case.ours, inputs)
            self.note(row, case, where, inputs, compare(row, where, expected, found, None), expected, found)
        return row

    def draws(self, row: OpsRow, shape: Shape, dtype: torch.dtype) -> Iterator[tuple[str, Draw]]:
        """What is drawn for a shape, by seed, or by recorded tensor."""
        rows = self.config.rows or (40 if self.config.fast else 96)
        rows = rows if shape.rows is None else shape.rows
        matrices = list(self.recorded.items())[: 1 if self.config.fast else None] if row.data == RECORDED else []
        for seed in self.config.seeds[:1] if self.config.fast else self.config.seeds:
            key = seed, zlib.crc32(f"{row.operation}, {row.data}, {shape.name}".encode())
            for name, matrix in matrices or [("", None)]:
                rng = np.random.default_rng(key)
                where = f"seed {seed}" + f", {name!r}" * (matrix is not None)
                yield where, Draw(rng, row.data, dtype, rows, shape, KINDS, matrix)

    def judge(self, row: OpsRow, case: SeamCase, shape: str, where: str, inputs: Inputs) -> None:
        """One drawn case: run both sides, compare, whole and in pieces."""
        self.ours.expect(None)
        expected = _causal(self.sides.reference.run(case.ours, inputs))
        theirs = replace(case.theirs, run=_careful(case.theirs))
        found: Outputs = {}
        try:
            self.theirs.expect(list(self.ours.returned))
            found = self.sides.whole.run(theirs, inputs)
            place = self.bounded(row, case, where, inputs, expected, found)
            if not case.bounded:
                place = compare(row, where, expected, found, inputs.get("x"))
            self.note(row, case, where, inputs, place, expected, found)
            if case.ours.cut is not None and shape in CUT:
                where += ", in pieces"
                self.theirs.expect(None)
                found = self.sides.pieces.run_in_pieces(theirs, case.ours.cut, inputs)
                self.note(row, case, where, inputs, compare(row, where, expected, found, None), expected, found)
        except Exception as error:  # of a stranger's function: the other cases still count
            if isinstance(error, NotImplementedError) and "exact" in str(error) and row.elements == 0 and case.exact:
                row.not_run = f"it refuses accumulator='exact' ({' '.join(str(error).split())[:120]})"
                return
            count = max(sum(x.numel() for x in expected.values()), 1)
            row.elements, row.differing = row.elements + count, row.differing + count
            said = " ".join(str(error).split())[:300]
            row.first = (
                row.first or f"{where}: {said if isinstance(error, Wrong) else f'{type(error).__name__}: {said}'}"
            )

    def bounded(
        self, row: OpsRow, case: SeamCase, where: str, inputs: Inputs, expected: Outputs, found: Outputs
    ) -> Place | None:
        """The comparison by intervals; nothing for other cases."""
        if not case.bounded:
            return None
        odd = {name: e for name, e in expected.items() if not _alike(e, found.get(name))}
        if odd or found.keys() != expected.keys():
            return compare(row, where, odd, {name: x for name, x in found.items() if name in odd}, None)
        ends, follows = bounds.judged(case.function, case.path, inputs, found)
        place = bounds.compare_within(row, where, ends, found, case.path)
        followed = compare(row, where, follows, {name: found[name] for name in follows}, None)
        return place or followed

    def note(
        self,
        row: OpsRow,
        case: SeamCase,
        where: str,
        inputs: Inputs,
        place: Place | None,
        expected: Outputs,
        found: Outputs,
    ) -> None:
        """The derivation of the row's first wrong element."""
        if place is None or row.derivation or not (row.first or "").startswith(f"{where}: {place[0]}["):
            return
        try:
            row.derivation = derivation(case, inputs, *place, expected, found)
        except (RuntimeError, IndexError, ValueError, TypeError, KeyError) as error:
            row.derivation = (f"no derivation of these outputs ({type(error).__name__}: {error})",)


def _dtype(case: SeamCase) -> str:
    return str(case.ours.dtypes[0]).removeprefix("torch.")


def _alike(e: Tensor, f: Tensor | None) -> bool:
    return f is not None and f.shape == e.shape and f.dtype == e.dtype


def _causal(outputs: Outputs) -> Outputs:
    """Of each operand the outer scale, then scales, then codes: the first difference is then not a consequence."""
    operands = list(dict.fromkeys(name.partition(".")[0] for name in outputs))
    parts = ("", "outer", "scales", "codes")
    place = {name: (operands.index(name.partition(".")[0]), parts.index(name.partition(".")[2])) for name in outputs}
    return {name: outputs[name] for name in sorted(outputs, key=place.__getitem__)}


def _tensors(x: Any) -> list[Tensor]:
    if isinstance(x, nm.BlockTensor):
        return [x.codes, x.scales] if x.outer is None else [x.codes, x.scales, x.outer]
    return [x] if isinstance(x, Tensor) else []


def _careful(operation: Operation) -> Any:
    """Its calls on copies of their own, which must be as they were afterwards."""

    def run(inputs: Inputs) -> Outputs:
        kept = {name: [x.clone() for x in _tensors(value)] for name, value in inputs.items()}
        changed = []
        try:
            out = {name: x.clone() for name, x in operation.run(inputs).items()}
        finally:
            for name, before in kept.items():
                for old, x in zip(before, _tensors(inputs[name]), strict=True):
                    if not torch.equal(bits_of(old), bits_of(x)):
                        changed.append(name)
                        x.copy_(old)  # on a CPU it is an input of the other side too
        if changed:
            raise Wrong(f"{operation.name.split()[0]} changes its argument {changed[0]}")
        return out

    return run


def main(config: ValidateConfig) -> int:
    """Judge the implementation that `config.ops` names; return the exit status of the module's docstring.

    Raises:
        ValueError: an implementation or activations that cannot be used, no case of the name; nothing has run then.
    """
    assert config.ops is not None
    device, lacking = None, None
    try:
        device = resolve(config.device)
    except DeviceAbsent as error:
        lacking = str(error)
    with importable(config.ops):
        judged = implementation(config.ops, device)
        activations = {} if config.activations is None else recorded.load(config.activations)
        threads = torch.get_num_threads()
        sides = Sides.of(device or torch.device("cpu"), threads, lambda run: run)
        judge = Judge(config, sides, Calls(seam()), Calls(judged.functions), activations)
        try:
            rows = list(_table(judge, judged, lacking))
        finally:
            torch.set_num_threads(threads)
    return _conclude(config, device, max(2, threads), rows)


def _table(judge: Judge, judged: Implementation, lacking: str | None) -> Iterator[OpsRow]:
    """Print the table, a line as soon as it is known, and yield its rows."""
    extra = (RECORDED,) if judge.recorded else ()
    cases = [
        (case, data)
        for case in seam_cases(judge.ours, judge.theirs)
        for data in (*case.data(judge.config.fast), *extra)
    ]
    only = judge.config.only
    chosen = [(case, data) for case, data in cases if not only or any(t in f"{case.name}, {data}" for t in only)]
    if not chosen:
        raise ValueError(
            f"only={only}: no case has such a name; the first one is {cases[0][0].name + ', ' + cases[0][1]!r}"
        )
    print(HEADER, flush=True)
    for function in dict.fromkeys(case.function for case, _ in chosen):
        reason = judged.absent.get(function) or lacking
        if reason is not None:
            row = OpsRow(function, "all", "", function=function, not_run=reason)
            print(row, flush=True)
            yield row
            continue
        for case, data in chosen:
            if case.function == function:
                yield from _rows(judge, case, data)


def _rows(judge: Judge, case: SeamCase, data: str) -> Iterator[OpsRow]:
    """The lines of one case."""
    rows = [judge.row(case, data)]
    slowly = judge.config.ops == "emulated" and (not judge.config.fast or data in FEW)
    if slowly and slow.reaches(case):
        rows.append(judge.against_oracle(case, data))
    for row in rows:
        row.repeat = _command(judge.config, row) if row.failed else None
        print(row, flush=True)
        yield row


def _command(config: ValidateConfig, row: OpsRow) -> str:
    """What repeats one line of the table."""
    words = ["fourbit", "validate", "--ops", config.ops or "", "--device", config.device]
    words += ["--rows", str(config.rows)] if config.rows is not None else []
    words += ["--seeds", *map(str, config.seeds)] + ["--fast"] * config.fast
    words += ["--activations", str(config.activations)] if config.activations is not None else []
    return shlex.join([*words, "--only", f"{row.operation}, {row.data}"])


def _conclude(config: ValidateConfig, device: torch.device | None, threads: int, rows: list[OpsRow]) -> int:
    """Print the summary, write record and page, return the exit status."""
    failed, absent = [row for row in rows if row.failed], [row for row in rows if row.not_run is not None]
    elements, differing = sum(row.elements for row in rows), sum(row.differing for row in rows)
    status = "not run" if len(absent) == len(rows) else "failed" if failed else "passed"
    about = None if device is None else describe(device)
    place = config.device if about is None else f"{about['device']} ({about['name']})"
    place += f", 1 thread against {threads}" * (device is not None and device.type == "cpu")
    counts = f"{len(rows) - len(absent)} cases, {elements} elements compared"
    found = "none differs" if not failed else f"{differing} differ, {len(failed)} cases failed"
    line = f"numerics.ops against {config.ops} on {place}: {counts}, {found}"
    line = f"{config.ops} on {place}: nothing was compared" if status == "not run" else line
    line += f"; {len(absent)} cases not run" * bool(absent)
    line += "; recorded activations not run: none given" * (config.activations is None)
    line = f"{'FAILED' if failed else status}: {line}"
    print(line)
    result = {"status": status, "device": about, "compared": f"numerics.ops against {config.ops}"}
    totals = {"elements": elements, "differing": differing, "failed": len(failed), "not_run": len(absent)}
    write_record(config.out, config.asked(), result | totals | {"cases": [asdict(row) for row in rows]})
    if config.html is not None:
        facts = {"date": date(), **versions(), **{k: str(v) for k, v in (about or {"device": config.device}).items()}}
        write_whole(config.html, page(config.ops or "", line, facts, rows))
    return {"passed": 0, "failed": 1, "not run": 2}[status]
