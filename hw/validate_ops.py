"""`fourbit validate --ops`: an implementation of the seam, function by function, against the emulation on the CPU.

Each case draws inputs by seed, shape and kind of data; `numerics.ops` makes the expected outputs on one thread of the
CPU, and the implementation the found ones on the device: all at once and, where rows or experts must not see each
other, in pieces. Outputs, and the kind of what is returned, must be equal, bit for bit; arguments, torch's settings and
earlier results must stay as they are (`calls`). Sums whose order is not defined are judged by a derived bound
(`bounds`). With --ops emulated small cases are compared with the scalar oracle as well (`slow`), since otherwise the
emulation would on a CPU only meet itself.

The table has one line for each operation and kind of data, over all shapes and seeds; then for each operation

    layouts, settings    the same values as other views of memory, and under other settings of torch (`ways`)
    later calls          other values in the same memory; results after later calls (`judge_calls`)
    streams              on a GPU: arguments that come late, two streams at once
    sizes                rows of more than a thousand elements, 80 experts, twelve experts of a token
    draws                with --own-random: stochastic rounding by words of its own, over many draws (`draws`)
    2^16, 2^31           tensors of a few more elements than that; 2^31 with --huge (`judge_huge`)

Under a line that failed stands how the first wrong element should come to be, by the contract's own law. What an
implementation lacks is "not run": neither passed nor failed; so are exact products of one that raises a
NotImplementedError about "exact", as tensor cores must. The summary lists the ways in which arguments were passed, and
those that were not tried.

Exit status: 0 if something was compared and nothing differs, 1 if something does, 2 if nothing could be compared.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace

import torch

from . import recorded, slow
from .calls import Calls
from .cases_ops import DRAWS, FEW, HUGE, KINDS, LARGE, RECORDED, STREAMS, WAYS, SeamCase, seam_cases
from .compare import HEADER, OpsRow, Sides
from .device import DeviceAbsent, describe, resolve
from .judge import Judge
from .judge_calls import CALLS
from .judge_draws import draws
from .judge_huge import huge, made
from .record import date, versions, write_record, write_whole
from .seam import Implementation, implementation, importable, seam
from .validate_config import ValidateConfig
from .validate_page import page
from .ways import tried

OTHER_WORDS = (
    "these codes are their elements' neighbours, as other random words give them: --own-random judges such words over "
    "many draws"
)
LINES = CALLS | {DRAWS: draws, LARGE: huge, HUGE: huge}


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
        judge = Judge(config, sides, Calls(seam()), Calls(judged.functions, careful=True), activations)
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
        if data != STREAMS or judge.sides.whole.device.type == "cuda"
    ]
    all_cases = list(dict.fromkeys(case for case, _ in cases))
    if judge.config.own_random:
        cases += [(case, DRAWS) for case in all_cases if judge.draws_words(case)]
    for data in (LARGE, *[HUGE] * judge.config.huge):
        cases += [(case, data) for case in all_cases if made(case) is not None]
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
    rows = [judge.row(case, data, LINES.get(data))]
    kinds = FEW if judge.config.fast else (*KINDS, RECORDED)
    if judge.config.ops == "emulated" and data in kinds and not case.again and slow.reaches(case):
        rows.append(judge.against_oracle(case, data))
    for row in rows:
        row.derivation = (*_diagnosis(judge, case, row), *row.derivation)
        row.repeat = _command(judge.config, row) if row.failed else None
        print(row, flush=True)
        yield row


def _diagnosis(judge: Judge, case: SeamCase, row: OpsRow) -> tuple[str, ...]:
    """Of codes that other random words give: what many draws say of them, once for each function."""
    if not row.other_words:
        return ()
    lines = [OTHER_WORDS]
    if case.function not in judge.diagnosed:
        judge.diagnosed.add(case.function)
        config = replace(judge.config, own_random=True, fast=True)
        told = replace(judge, config=config).row(case, DRAWS, draws)
        lines += [f"over many draws, {text}" for text in (told.first, *told.derivation) if text is not None]
    return tuple(lines)


def _command(config: ValidateConfig, row: OpsRow) -> str:
    """What repeats one line of the table."""
    words = ["fourbit", "validate", "--ops", config.ops or "", "--device", config.device]
    words += ["--rows", str(config.rows)] if config.rows is not None else []
    words += ["--seeds", *map(str, config.seeds)] + ["--fast"] * config.fast
    words += ["--own-random"] * config.own_random + ["--huge"] * config.huge
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
    ways, not_tried = _inputs(rows, device)
    line += f"; inputs: {', '.join(ways)}" * bool(ways) + f"; not tried: {', '.join(not_tried)}" * bool(not_tried)
    line += "; recorded activations not run: none given" * (config.activations is None)
    line = f"{'FAILED' if failed else status}: {line}"
    print(line)
    result = {"status": status, "device": about, "compared": f"numerics.ops against {config.ops}"}
    totals: dict[str, object] = {
        "elements": elements,
        "differing": differing,
        "failed": len(failed),
        "not_run": len(absent),
    }
    totals |= {"inputs": ways, "not_tried": not_tried}
    write_record(config.out, config.asked(), result | totals | {"cases": [asdict(row) for row in rows]})
    if config.html is not None:
        facts = {"date": date(), **versions(), **{k: str(v) for k, v in (about or {"device": config.device}).items()}}
        write_whole(config.html, page(config.ops or "", line, facts, rows))
    return {"passed": 0, "failed": 1, "not run": 2}[status]


def _inputs(rows: list[OpsRow], device: torch.device | None) -> tuple[list[str], list[str]]:
    """In which dtypes and ways arguments were passed, and the ways that this device, or what was chosen, left out."""
    run = [row for row in rows if row.not_run is None]
    ways, lacking = tried((row.data for row in run), device or torch.device("cpu"))
    dtypes = dict.fromkeys(row.dtype for row in run)
    left = [kind for kind in (*WAYS, HUGE) if all(row.data != kind for row in run)] if run else []
    return [*dtypes, *ways], [*lacking, *left]
