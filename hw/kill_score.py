"""`fourbit validate --mutants`: how many of the deliberate faults of `mutants` do the cases of `validate --ops` find?

Each mutant is judged as anybody's implementation of one operation, by the cases of that operation in the order of the
table, on the CPU and the first seed. Without --fast all of them run, and the last column counts those that fail;
with --fast a mutant is dead at its first failing case.

Exit status: 0 if every mutant is killed, else 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch
from tqdm import tqdm

from .calls import Calls
from .cases_ops import STREAMS, SeamCase, seam_cases
from .compare import OpsRow, Sides
from .judge import Judge
from .mutants import Mutant, function, mutants
from .record import write_record
from .seam import seam
from .validate_config import ValidateConfig
from .validate_ops import LINES

ROWS = 40


@dataclass(frozen=True)
class Kill:
    """What became of a mutant.

    Args:
        case: "operation, data" of the first case that fails; None: it survived. first: the difference there, in words.
        failed, cases: how many of the operation's cases fail, of those that ran.
    """

    operation: str
    mutant: str
    case: str | None
    first: str
    failed: int
    cases: int

    def __str__(self) -> str:
        more = f" and {self.failed - 1} more of {self.cases} cases" * (self.failed > 1)
        return f"{self.operation:<21} {self.mutant:<58} {f'killed by {self.case}{more}' if self.case else 'SURVIVED'}"


def judge_of(mutant: Mutant) -> Judge:
    """Judges the emulation with the mutant in the place of its operation; a case ends at its first failing shape."""
    config = ValidateConfig(device="cpu", rows=ROWS, seeds=(0,), ops=mutant.key)
    threads = torch.get_num_threads()
    sides = Sides.of(torch.device("cpu"), threads, lambda run: run)
    functions = {**seam(), mutant.operation: function(mutant)}
    return Judge(config, sides, Calls(seam()), Calls(functions, careful=True), {}, at_once=True)


def cases(judge: Judge, operation: str) -> list[tuple[SeamCase, str]]:
    """Every case of an operation and kind of data that a CPU can have."""
    found = [case for case in seam_cases(judge.ours, judge.theirs) if case.function == operation]
    return [(case, data) for case in found for data in case.data(False) if data != STREAMS]


def killed(mutant: Mutant, only: str | None = None, at_once: bool = False) -> Kill:
    """Judge a mutant: by all cases, by the one of the name `only`; until something differs (`at_once`).

    Raises: ValueError if there is no case `only`.
    """
    judge, threads = judge_of(mutant), torch.get_num_threads()
    chosen = [(case, data) for case, data in cases(judge, mutant.operation) if only in (None, f"{case.name}, {data}")]
    if not chosen:
        raise ValueError(f"only={only!r}: {mutant.operation} has no such case")
    failed: list[OpsRow] = []
    count = 0
    try:
        for case, data in chosen:
            row, count = judge.row(case, data, LINES.get(data)), count + 1
            failed += [row] if row.failed else []
            if failed and at_once:
                break
    finally:
        torch.set_num_threads(threads)
    case = f"{failed[0].operation}, {failed[0].data}" if failed else None
    return Kill(mutant.operation, mutant.name, case, (failed[0].first or "") if failed else "", len(failed), count)


def table(config: ValidateConfig) -> Iterator[Kill]:
    """The mutants whose names contain a text of `config.only`, all without one. ValueError: there is none."""
    chosen = [m for m in mutants() if not config.only or any(text in m.key for text in config.only)]
    if not chosen:
        raise ValueError(f"only={config.only}: no mutant has such a name; the first one is {mutants()[0].key!r}")
    for mutant in tqdm(chosen, unit="mutant", disable=None):
        yield killed(mutant, at_once=config.fast)


def main(config: ValidateConfig) -> int:
    """Print the table and the score; return the exit status of the module's docstring."""
    found = []
    for kill in table(config):
        tqdm.write(str(kill))
        found.append(kill)
    dead = sum(kill.case is not None for kill in found)
    print(f"{'passed' if dead == len(found) else 'FAILED'}: {dead} of {len(found)} mutants of the seam killed")
    totals = {"status": "passed" if dead == len(found) else "failed", "mutants": len(found), "killed": dead}
    asked = replace(config, device="cpu", rows=ROWS, seeds=(0,)).asked()  # whatever was asked
    write_record(config.out, asked, totals | {"cases": [asdict(kill) for kill in found]})
    return 0 if dead == len(found) else 1
