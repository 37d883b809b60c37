"""`fourbit census`: every kernel compiled ahead of time, without a GPU, its machine code judged by its contract.

Each kernel's module declares what its code must have (`contracts`); `census_judge` says what no code may have. Needs
pip packages alone: triton, whose wheel has ptxas and nvdisasm; `toolchain` says which others are taken.

What this proves: the instructions, formats, scale types and tile shapes, registers and memory of the code for each
architecture. What it does not: that native code computes the same numbers, or how fast; that needs the hardware. K of a
block-scaled product of 4-bit values is 64 here: Triton has no K = 96 ("ultra") of sm_103a.

Exit code: 0 if every contract holds and every kernel has one, 1 if not, 2 if nothing could be compiled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from . import census_run, toolchain
from .census_judge import Row
from .census_run import Job, contracted, launched
from .record import date, require_writable, versions, write_csv, write_whole


@dataclass(frozen=True)
class CensusConfig:
    """Compile every kernel for some architectures, on no GPU, and judge its machine code."""

    arch: tuple[str, ...] = toolchain.ARCHITECTURES
    """Architectures: sm_103a, sm_100a, sm_90a."""
    only: tuple[str, ...] = ()
    """Parts of names of kernels' modules, such as nvfp4; all if left out."""
    out: Path | None = None
    """File for the table, .json or .csv."""
    jobs: int = 0
    """Worker processes; 0: one for each core."""


@dataclass(frozen=True)
class Kernel:
    """A module's contract: its cases' names and architectures, where portable code ran, which tests interpret it
    and its native branch."""

    module: str
    cases: tuple[tuple[str, tuple[str, ...]], ...]
    ran: str | None
    interpreted: str | None
    native: str | None


@dataclass(frozen=True)
class Census:
    """tools: ptxas and nvdisasm by architecture. uncovered: kernels that no case makes."""

    tools: dict[str, dict[str, str]]
    kernels: tuple[Kernel, ...]
    rows: tuple[Row, ...]
    uncovered: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.uncovered and not any(row.faults for row in self.rows)


def taken(config: CensusConfig) -> list[str]:
    """The modules that a config asks for.

    Raises: ValueError for anything in it that cannot be, and without triton.
    """
    if importlib.util.find_spec("triton") is None:
        raise ValueError("triton is not installed, and it is the compiler; pip install 'fourbit[hw]' (Linux)")
    for name in config.arch:
        toolchain.require_architecture(name)
    if len(set(config.arch)) < len(config.arch):
        raise ValueError(f"arch={config.arch} names one twice: name each once")
    if not config.arch:
        raise ValueError(f"arch=(): name one of {', '.join(toolchain.ARCHITECTURES)}")
    if config.jobs < 0:
        raise ValueError(f"jobs={config.jobs}: use 1 or more, or 0 for one for each core")
    if config.out is not None and config.out.suffix not in (".json", ".csv"):
        raise ValueError(f"out={str(config.out)!r}: name a .json or .csv file")
    require_writable(config.out)
    known = contracted()
    found = [name for name in known if not config.only or any(part in name for part in config.only)]
    if not found:
        raise ValueError(f"only={config.only}: no kernel's module has such a name; there are {', '.join(known)}")
    return found


def measure(modules: Sequence[str], archs: Sequence[str], jobs: int = 0, folder: Path = census_run.HERE) -> Census:
    """The census of some modules.

    Args: folder: where the modules lie: this one, or one whose modules are imported by their own names.

    Raises: ValueError: an architecture that is none, no ptxas, no disassembler, a case that launches nothing.
    """
    for arch in archs:
        toolchain.require_architecture(arch)
    count = jobs or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    own = folder == census_run.HERE
    names = [f"{__package__}.{m}" if own else m for m in modules]
    with census_run.workers(count, () if own else (folder,)) as idle:
        first = idle.get()
        try:
            tools = {arch: first.ask({"tools": arch}) for arch in archs}
            kernels = tuple(_kernel(m, first.ask({"list": name})) for m, name in zip(modules, names, strict=True))
        except census_run.Aborted as error:
            raise ValueError(f"a worker of the census ended: {error}") from error
        idle.put(first)
        work = [
            Job(name, place, case, arch)
            for arch in archs
            for name, kernel in zip(names, kernels, strict=True)
            for place, (case, own_archs) in enumerate(kernel.cases)
            if arch in own_archs
        ]
        rows = census_run.judged(idle, count, work, lambda done, name: _progress(done, len(work), name))
    whole = own and list(modules) == contracted()  # then modules without any contract count too
    missing = sorted(launched(folder) - {row.kernel for row in rows})
    uncovered = [kernel for kernel in missing if whole or kernel.split(".")[0] in modules]
    return Census(tools, kernels, tuple(rows), tuple(uncovered))


def _kernel(module: str, told: dict[str, Any]) -> Kernel:
    cases = tuple((case["case"], tuple(case["archs"])) for case in told["cases"])
    return Kernel(module, cases, told["ran"], told["interpreted"], told["native"])


def _progress(done: int, total: int, name: str) -> None:
    """A bar on a terminal; elsewhere a line now and then."""
    if sys.stderr.isatty():
        filled = 30 * done // total
        text = f"\r[{'#' * filled}{'.' * (30 - filled)}] {done} of {total} {name[:40]:<40}"
        print(text, end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done % 20 == 0 or done == total:
        print(f"fourbit: {done} of {total} compiled", file=sys.stderr, flush=True)


def table(found: Census) -> str:
    """The census as text: tools, a line for each row and its faults, states of the kernels, the verdict."""
    lines = [
        f"{arch}: ptxas {tool['version']} ({tool['path']}), read by {tool['nvdisasm']}"
        for arch, tool in found.tools.items()
    ]
    lines += [note for note in (toolchain.driver_note(tool["version"]) for tool in found.tools.values()) if note][:1]
    wide = max((len(f"{row.kernel}: {row.case}") for row in found.rows), default=0)
    lines += [
        "",
        f"{'kernel: case':<{wide}} {'arch':<7} {'mode':<8} {'regs':>4} {'shared':>6} {'TMEM':>4} {'spills':>6} "
        f"{'UTCCP':>5} {'TMA':>3} verdict  products and conversions",
    ]
    for row in found.rows:
        what = "; ".join(filter(None, (row.mma, row.products, row.converted)))
        lines.append(
            f"{f'{row.kernel}: {row.case}':<{wide}} {row.arch:<7} {row.mode:<8} {row.registers:>4} {row.shared:>6} "
            f"{row.tmem:>4} {row.spills:>6} {row.ccp:>5} {row.tma:>3} {'FAILED' if row.faults else 'passed':<8} {what}"
        )
        lines += [f"    {fault}" for fault in row.faults]
    lines += [f"{name} is launched, and no contract has a case that makes it" for name in found.uncovered]
    return "\n".join([*lines, "", *states(found), "", _verdict(found)])


def states(found: Census) -> list[str]:
    """For each kernel what was done: compiled here, by mode; run; interpreted; and what has never run."""
    lines = []
    for kernel in found.kernels:
        rows = [row for row in found.rows if row.kernel.split(".")[0] == kernel.module]
        native = [row.arch for row in rows if row.mode == "native" and not row.faults]
        other = [row.arch for row in rows if row.mode != "native" and not row.faults]
        parts = []
        if other:
            parts.append(f"compiled for {', '.join(dict.fromkeys(other))}")
        parts.append(f"run on a Hopper ({kernel.ran})" if kernel.ran else "never run on a Hopper")
        parts.append(f"interpreted ({kernel.interpreted})" if kernel.interpreted else "not interpreted")
        if native:
            by = f"interpreted ({kernel.native})" if kernel.native else "not interpreted"
            parts.append(f"native: compiled for {', '.join(dict.fromkeys(native))}; {by}; never run")
        lines.append(f"{kernel.module}: {'; '.join(parts)}")
    return lines


def _verdict(found: Census) -> str:
    failed = sum(bool(row.faults) for row in found.rows)
    return (
        f"{len(found.rows)} compiled, {failed} failed, {len(found.uncovered)} kernels without a contract. Not proven "
        "without the hardware: native results, sums' order, races, speed"
    )


def write(found: Census, out: Path) -> None:
    """The record, .json, or the rows alone, .csv."""
    if out.suffix == ".csv":
        write_csv([replace(row, faults=" | ".join(row.faults)) for row in found.rows], out)  # type: ignore[arg-type]
        return
    about = {
        "command": "census", "date": date(), "versions": versions(), "tools": found.tools,
        "status": "passed" if found.passed else "failed", "uncovered": found.uncovered,
        "kernels": [asdict(kernel) for kernel in found.kernels],
    }  # fmt: skip
    lines = ",\n  ".join(json.dumps(asdict(row)) for row in found.rows)
    write_whole(out, f'{json.dumps(about, indent=1)[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n')


def main(argv: list[str]) -> int:
    """`fourbit census ...`: print the table; see the module for the exit code."""
    config = tyro.cli(CensusConfig, args=argv, prog="fourbit census")
    found = measure(taken(config), config.arch, config.jobs)
    print(table(found))
    if config.out is not None:
        write(found, config.out)
    return 0 if found.passed else 1
