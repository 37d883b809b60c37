"""Lines of the table that are about how a function is called: in other ways, again, on streams.

    layouts       each way of `ways` to pass the same values
    settings      each setting of torch there, while the function runs
later calls   a call; other values are copied into its arguments, and another call; then the first result must be
              what it was, and the second that of the new values. Finds memory of results that is used again, and
              results remembered by address.
streams       on a GPU: the arguments are written late, on a stream of their own that waits first, and the function
              must wait too; then calls on two streams at once, which must not share memory.
sizes         rows of more than a thousand elements, 80 experts, twelve experts of a token
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

import torch

from .calls import mapped, tensors
from .cases import Inputs, Operation, Outputs
from .cases_ops import LATER, SIZES, STREAMS, SeamCase
from .compare import OpsRow, compare, move
from .judge import Judge
from .ways import FEW_ROWS, MORE_ROWS, OTHER_SIZES, WAYS

WAIT = 50_000_000  # cycles of a GPU, about 30 ms: long beside a launch
ROUNDS = 8


def ways(judge: Judge, row: OpsRow, case: SeamCase) -> None:
    """The same values passed in each way; what they are expected to give is computed once."""
    device = judge.sides.whole.device
    for kind, alike in groupby(WAYS[row.data], attrgetter("data")):
        chosen = [way for way in alike if not way.absent(device)]
        for shape in FEW_ROWS if judge.config.fast else MORE_ROWS:
            where, inputs = judge.drawn(row, case, shape, kind)
            expected = judge.expected(case, inputs)
            for way in chosen:
                name = f"{way.name}, {shape.name}, {where}"
                judge.theirs.passed = way.passed
                judge.tried(row, case, name, inputs, expected, judge.sides.whole.run, way.within(device))
                judge.theirs.passed = None


def _two(judge: Judge, row: OpsRow, case: SeamCase) -> tuple[str, Inputs, Inputs]:
    """A shape, and two draws of its inputs."""
    shape = (FEW_ROWS if judge.config.fast else MORE_ROWS)[0]
    return shape.name, *(judge.drawn(row, case, shape, kind)[1] for kind in ("mixed", "normal"))


def _on(inputs: Inputs, device: torch.device) -> Inputs:
    """Copies of their own."""
    return {name: mapped(move(x, device), torch.clone) for name, x in inputs.items()}


def _write(values: Inputs, into: Inputs) -> None:
    for name, x in values.items():
        for mine, other in zip(tensors(into[name]), tensors(x), strict=True):
            mine.copy_(other, non_blocking=True)


def again(judge: Judge, row: OpsRow, case: SeamCase) -> None:
    """See the module's docstring. An output that is the memory of an argument in the emulation may be so here."""
    shape, first, second = _two(judge, row, case)
    held = _on(first, judge.sides.whole.device)
    raw: Outputs = {}

    def run(values: Inputs) -> Callable[[Operation, Inputs], Outputs]:
        def run(operation: Operation, _: Inputs) -> Outputs:
            _write(values, held)
            out = operation.run(held)
            raw.update(out if values is first else {})
            return {name: x.cpu() for name, x in out.items()}

        return run

    expected = judge.expected(case, first)
    own = {x.untyped_storage().data_ptr() for value in first.values() for x in tensors(value)}
    passed_on = {name for name, x in expected.outputs.items() if x.untyped_storage().data_ptr() in own}
    kept = judge.tried(row, case, f"{shape}, first values", first, expected, run(first))
    where = f"{shape}, other values in the same memory"
    judge.tried(row, case, where, second, judge.expected(case, second), run(second))
    kept = {name: x for name, x in kept.items() if name not in passed_on}
    now = {name: raw[name].detach().cpu() for name in kept}
    compare(row, f"{shape}, an earlier result after a later call", kept, now, None)


def streams(judge: Judge, row: OpsRow, case: SeamCase) -> None:
    """See the module's docstring. Nothing else is looked at meanwhile, since that would wait for the GPU."""
    device = judge.sides.whole.device
    shape, first, second = _two(judge, row, case)
    one, other = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def late(operation: Operation, inputs: Inputs) -> Outputs:
        there = _on(inputs, device)
        held = {name: mapped(x, torch.zeros_like) for name, x in there.items()}
        torch.cuda.synchronize(device)
        with torch.cuda.stream(one):
            torch.cuda._sleep(WAIT)
            _write(there, held)
            out = {name: x.clone() for name, x in operation.run(held).items()}
        one.synchronize()
        return {name: x.cpu() for name, x in out.items()}

    together: Outputs = {}  # what the calls on the second stream gave

    def both(operation: Operation, inputs: Inputs) -> Outputs:
        mine, its = _on(inputs, device), _on(second, device)
        torch.cuda.synchronize(device)
        with torch.cuda.stream(one):
            out = {name: x.clone() for name, x in operation.run(mine).items()}
        with torch.cuda.stream(other):
            together.update({name: x.clone() for name, x in operation.run(its).items()})
        torch.cuda.synchronize(device)
        return {name: x.cpu() for name, x in out.items()}

    judge.theirs.looks = False
    try:
        for inputs in (first, second):
            where = f"{shape}, arguments that come late"
            judge.tried(row, case, where, inputs, judge.expected(case, inputs), late)
        mine, its = (replace(judge.expected(case, inputs), returned=None) for inputs in (first, second))
        for _ in range(ROUNDS):
            where = f"{shape}, two streams at once"
            judge.tried(row, case, where, first, mine, both)
            judge.tried(row, case, where, second, its, lambda *_: {name: x.cpu() for name, x in together.items()})
    finally:
        judge.theirs.looks = True


def sizes(judge: Judge, row: OpsRow, case: SeamCase) -> None:
    """See the module's docstring."""
    for shape in OTHER_SIZES:
        where, inputs = judge.drawn(row, case, shape, "mixed")
        judge.judge(row, case, shape.name, f"{shape.name}, {where}", inputs)


CALLS: dict[str, Callable[[Judge, OpsRow, SeamCase], None]] = {
    **dict.fromkeys(WAYS, ways),
    LATER: again,
    STREAMS: streams,
    SIZES: sizes,
}
