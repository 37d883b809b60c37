"""The census's worker: a process with TRITON_INTERPRET unset that compiles what it is asked for, line by line.

    {"list": module}                          -> {"cases": [{"case", "archs"}, ...], "ran", "interpreted", ...}
    {"module": .., "case": 3, "arch": ..}     -> {"row": {...}} or {"error": text}
    {"tools": "sm_103a"}                      -> {"ptxas": .., "version": .., "nvdisasm": ..}

Requests come on stdin, answers go to stdout; all that Triton prints goes to stderr. A compiler that aborts takes its
worker along, and the census says so.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import aot, census_judge, launches, machine_code, toolchain
from .contracts import Contract


def contract(module: str) -> Contract:
    """The CONTRACT of a module."""
    return importlib.import_module(module).CONTRACT


def listed(module: str) -> dict[str, Any]:
    made = contract(module)
    cases = [{"case": case.name, "archs": case.architectures} for case in made.cases]
    return {"cases": cases, "ran": made.ran, "interpreted": made.interpreted, "native": made.native}


def judged(module: str, place: int, arch: str) -> census_judge.Row:
    """Compile one case for one architecture, and judge it."""
    case, number = contract(module).cases[place], toolchain.require_architecture(arch)
    with launches.catching() as calls, launches.forced(number >= 100):
        case.call()
    if not calls:
        raise ValueError(f"{module}, case {case.name!r} launches nothing: give it a call that does")
    call = calls[case.launch]
    kernel = f"{module.rsplit('.', 1)[-1]}.{call.kernel.fn.__name__}"
    has = "NATIVE" in call.kernel.arg_names
    mode = "common" if not has else "native" if call.constants["NATIVE"] else "portable"
    try:
        code = aot.look(aot.compiled(call, number))
    except aot.Refused as error:
        return census_judge.refused(kernel, case, arch, mode, str(error))
    return census_judge.row(kernel, case, arch, mode, code)


def tools(arch: str) -> dict[str, str]:
    """Where the tools are, from the folder of installed packages on if they are in there, and ptxas's version."""
    packages = Path(aot.triton.__file__).parent.parent
    number = toolchain.require_architecture(arch)
    ptxas, reader = toolchain.used(number), toolchain.reader(machine_code.nvdisasm(), number)
    places = [p.relative_to(packages) if p.is_relative_to(packages) else p for p in (ptxas.path, reader.path)]
    return {"path": str(places[0]), "version": ptxas.version, "nvdisasm": str(places[1])}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """ValueErrors are the user's, and are told; others end the worker."""
    try:
        if "list" in request:
            return listed(request["list"])
        if "tools" in request:
            return tools(request["tools"])
        return {"row": asdict(judged(request["module"], request["case"], request["arch"]))}
    except ValueError as error:
        return {"error": str(error)}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
