"""Judges one line of the table of `validate --ops`: a case with a kind of data, over shapes, seeds and ways.

The expected outputs are those of `numerics.ops` on one thread of the CPU; the judged functions run on the device,
watched by `calls`. What they raise is a failure of that line alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from . import bounds, slow
from .calls import Calls, Wrong
from .cases import Draw, Inputs, Operation, Outputs, Shape
from .cases_ops import KINDS, RECORDED, SHAPES, SeamCase
from .compare import OpsRow, Place, Sides, compare
from .derive import Neighbours, beyond, derivation, drawn, neighbours
from .validate_config import ValidateConfig
from .ways import WAYS_KINDS

ORACLE = "scalar oracle"
CUT = ("ragged", "empty experts", "odd widths")  # shapes that are computed in pieces too


@dataclass(frozen=True)
class Expected:
    """What a case must give.

    Args: returned: in words, what its calls return; None: they are not looked at. drawn: of operands whose random words
        are the implementation's own, the two codes that each element may have; None: any.
    """

    outputs: Outputs
    returned: list[str] | None
    drawn: Mapping[str, Neighbours | None] = field(default_factory=dict)

    def beside(self, found: Outputs) -> Outputs:
        """The outputs, with found codes where they are among the two."""
        out = dict(self.outputs)
        for operand, pair in self.drawn.items():
            name = f"{operand}.codes"
            if _alike(out[name], found.get(name)):
                out[name] = (
                    found[name] if pair is None else torch.where(beyond(pair, found[name]), out[name], found[name])
                )
        return out


@dataclass(frozen=True)
class Judge:
    """Runs cases. `ours`, `theirs`: the functions of both sides. at_once: a line ends at its first failing shape."""

    config: ValidateConfig
    sides: Sides
    ours: Calls
    theirs: Calls
    recorded: dict[str, Tensor]
    diagnosed: set[str] = field(default_factory=set)
    at_once: bool = False

    def row(self, case: SeamCase, data: str, calls: Callable[[Judge, OpsRow, SeamCase], None] | None = None) -> OpsRow:
        """One case, over all shapes and seeds, or by `calls`."""
        row = OpsRow(
            case.name,
            data,
            _dtype(case),
            function=case.function,
            against="n u bound" if case.bounded else "numerics.ops",
        )
        if calls is not None:
            calls(self, row, case)
        else:
            for shape in SHAPES:
                for where, draw in self.draws(row, shape, case.ours.dtypes[0], data):
                    self.judge(row, case, shape.name, f"{shape.name}, {where}", case.ours.make(draw))
                    if row.not_run is not None or (self.at_once and row.failed):
                        return row
        reused = self.theirs.reused()
        if reused is not None:
            row.differing += 1
            row.first = row.first or f"a result of {reused} changed after later calls: its memory is used again"
        return row

    def drawn(self, row: OpsRow, case: SeamCase, shape: Shape, data: str) -> tuple[str, Inputs]:
        """The first inputs of a shape, and their seed in words."""
        where, draw = next(self.draws(row, shape, case.ours.dtypes[0], data))
        return where, case.ours.make(draw)

    def against_oracle(self, case: SeamCase, data: str) -> OpsRow:
        """The same on a shape that the oracle is fast enough for."""
        row = OpsRow(case.name, data, _dtype(case), function=case.function, against=ORACLE)
        for where, draw in self.draws(row, slow.SHAPE, case.ours.dtypes[0], data):
            inputs = case.ours.make(draw)
            self.ours.expect(None)
            expected = _causal(slow.outputs(case, inputs))
            found = self.sides.whole.run(case.ours, inputs)
            self.note(row, case, where, inputs, compare(row, where, expected, found, None), expected, found)
        return row

    def draws(self, row: OpsRow, shape: Shape, dtype: torch.dtype, data: str) -> Iterator[tuple[str, Draw]]:
        """What is drawn for a shape, by seed, or by recorded tensor."""
        rows = self.config.rows or (40 if self.config.fast else 96)
        rows = rows if shape.rows is None else shape.rows
        matrices = list(self.recorded.items())[: 1 if self.config.fast else None] if data == RECORDED else []
        for seed in self.config.seeds[:1] if self.config.fast else self.config.seeds:
            key = seed, zlib.crc32(f"{row.operation}, {data}, {shape.name}".encode())
            for name, matrix in matrices or [("", None)]:
                rng = np.random.default_rng(key)
                where = f"seed {seed}" + f", {name!r}" * (matrix is not None)
                yield where, Draw(rng, data, dtype, rows, shape, KINDS | WAYS_KINDS, matrix)

    def expected(self, case: SeamCase, inputs: Inputs) -> Expected:
        """What the emulation gives, and the kinds of what its calls return."""
        self.ours.expect(None)
        outputs = _causal(self.sides.reference.run(case.ours, inputs))
        pairs = neighbours(case, inputs, outputs) if self.config.own_random else {}
        return Expected(outputs, list(self.ours.returned), pairs)

    def draws_words(self, case: SeamCase) -> bool:
        """Whether random words reach an output of the case."""
        _, inputs = self.drawn(OpsRow(case.name, "normal", ""), case, slow.SHAPE, "normal")
        return bool(drawn(case, inputs, self.sides.reference.run(case.ours, inputs)))

    def judge(self, row: OpsRow, case: SeamCase, shape: str, where: str, inputs: Inputs) -> None:
        """One drawn case: run both sides, compare, whole and in pieces."""
        expected = self.expected(case, inputs)
        whole = self.tried(row, case, where, inputs, expected, self.sides.whole.run)
        cut = case.ours.cut
        if cut is not None and shape in CUT and whole:

            def run(operation: Operation, inputs: Inputs) -> Outputs:
                return self.sides.pieces.run_in_pieces(operation, cut, inputs)

            self.tried(row, case, f"{where}, in pieces", inputs, replace(expected, returned=None), run)

    def tried(
        self,
        row: OpsRow,
        case: SeamCase,
        where: str,
        inputs: Inputs,
        expected: Expected,
        run: Callable[[Operation, Inputs], Outputs],
        within: AbstractContextManager[object] | None = None,
    ) -> Outputs:
        """Run the judged side once and compare; copies of what it gave, nothing if it raised."""
        found: Outputs = {}
        try:
            self.theirs.expect(expected.returned)
            with within or nullcontext():
                found = run(case.theirs, inputs)
            found = {name: x.detach().clone() for name, x in found.items()}
            due = expected.beside(found)
            if case.bounded:
                place = self.bounded(row, case, where, inputs, due, found)
            else:
                place = compare(row, where, due, found, inputs.get("x"))
            self.note(row, case, where, inputs, place, due, found)
        except Exception as error:  # of a stranger's function: the other cases still count
            if isinstance(error, NotImplementedError) and "exact" in str(error) and row.elements == 0 and case.exact:
                row.not_run = f"it refuses accumulator='exact' ({' '.join(str(error).split())[:120]})"
                return found
            count = max(sum(x.numel() for x in expected.outputs.values()), 1)
            row.elements, row.differing = row.elements + count, row.differing + count
            said = " ".join(str(error).split())[:300]
            row.first = (
                row.first or f"{where}: {said if isinstance(error, Wrong) else f'{type(error).__name__}: {said}'}"
            )
        return found

    def bounded(
        self, row: OpsRow, case: SeamCase, where: str, inputs: Inputs, expected: Outputs, found: Outputs
    ) -> Place | None:
        """The comparison by intervals."""
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
            operand, _, part = place[0].partition(".")
            pairs = neighbours(case, inputs, expected) if part == "codes" and not self.config.own_random else {}
            row.other_words = operand in pairs and not bool(beyond(pairs[operand], found[place[0]]).any())
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
