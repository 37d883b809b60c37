"""The census's processes: every case of every contract, compiled by workers in parallel, rows in a fixed order.

Workers are processes of their own, whose environment has TRITON_INTERPRET unset and names the ptxas that was chosen, so
that the caller may be interpreted, and a compiler that aborts takes one case along and not the census.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from . import toolchain
from .census_judge import Row
from .device import INTERPRET

HERE = Path(__file__).resolve().parent


class Aborted(Exception):
    """A worker that ended without an answer. Its text: the signal, and the last that was said."""


class Worker:
    """A process that answers requests, one at a time."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = folders
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises: Aborted; ValueError with the worker's words."""
        if self._process is None:
            self._said = tempfile.TemporaryFile("w+")
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.census_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._said, env=environment(self._folders), text=True,
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._start = self._said.seek(0, os.SEEK_END)
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Aborted(self._ending())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ValueError(reply["error"])
        return reply

    def _ending(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._said.seek(self._start)
        lines = [line.strip() for line in self._said.read().splitlines() if line.strip()]
        self.close()
        told = next((line for line in lines if "Assertion" in line), lines[-1] if lines else "nothing")
        return f"{f'signal {-code}' if code < 0 else f'exit code {code}'}, {told[-200:]}"

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._said.close()
            self._process = None


def environment(folders: Sequence[Path] = ()) -> dict[str, str]:
    """That of a worker. folders: where it finds modules, beside the project's own.

    Raises: ValueError if it names a ptxas that is none.
    """
    unset = (INTERPRET, "TRITON_ALWAYS_COMPILE", "PYTHONPATH")
    found = {name: value for name, value in os.environ.items() if name not in unset}
    path, _ = toolchain.chosen()
    if path is not None:
        found[toolchain.BLACKWELL_PATH] = str(path)
    paths = [str(HERE.parent), *map(str, folders), os.environ.get("PYTHONPATH", "")]
    return found | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


@contextmanager
def workers(count: int, folders: Sequence[Path] = ()) -> Iterator[SimpleQueue[Worker]]:
    """Idle workers, to be taken and put back."""
    all_of_them = [Worker(folders) for _ in range(count)]
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in all_of_them:
        idle.put(worker)
    try:
        yield idle
    finally:
        for worker in all_of_them:
            worker.close()


@dataclass(frozen=True)
class Job:
    """A case to compile. case: its place in the contract."""

    module: str
    case: int
    name: str
    arch: str


def contracted(folder: Path = HERE) -> list[str]:
    """Modules of a folder that declare a contract, by their source text: nothing is imported."""
    return [path.stem for path in sorted(folder.glob("*.py")) if "CONTRACT" in _assigned(path)]


def launched(folder: Path = HERE) -> set[str]:
    """Kernels of a folder as "module.function": what is decorated by triton.jit there and launched in any of its
    modules, by source text."""
    trees = {path.stem: ast.parse(path.read_text("utf-8")) for path in sorted(folder.glob("*.py"))}
    jitted = {f"{module}.{name}" for module, tree in trees.items() for name in _jitted(tree)}
    found = set()
    for module, tree in trees.items():
        known = {name.split(".")[1]: name for name in jitted if name.startswith(f"{module}.")}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                whole = [f"{node.module}.{a.name}" if node.module else a.name for a in node.names]
                known |= {a.asname or a.name: name for a, name in zip(node.names, whole, strict=True)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                first = node.args[0] if ast.unparse(node.func).split(".")[-1] == "launch" and node.args else None
                taken = node.func.value if isinstance(node.func, ast.Subscript) else first
                if isinstance(taken, ast.Name | ast.Attribute):
                    head, _, tail = ast.unparse(taken).partition(".")
                    found.add(f"{known.get(head, head)}{tail and '.'}{tail}")
    return found & jitted


def _jitted(tree: ast.Module) -> set[str]:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {f.name for f in functions if any("jit" in ast.unparse(d) for d in f.decorator_list)}


def _assigned(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    return {t.id for t in targets if isinstance(t, ast.Name)}


def judged(idle: SimpleQueue[Worker], count: int, jobs: Sequence[Job], tell: Callable[[int, str], None]) -> list[Row]:
    """The rows of some jobs, in their order. tell: how many are done, and which case was the last.

    Raises: ValueError: a case that launches nothing, or no disassembler.
    """
    done = 0

    def one(job: Job) -> Row:
        nonlocal done
        worker = idle.get()
        try:
            reply = worker.ask({"module": job.module, "case": job.case, "arch": job.arch})["row"]
            row = Row(**reply | {"faults": tuple(reply["faults"])})
        except Aborted as error:
            kernel = job.module.rsplit(".", 1)[-1]
            row = Row(kernel, job.name, job.arch, "", "", "", 0, 0, "", 0, 0, 0, 0, (f"the compiler died: {error}",))
        finally:
            idle.put(worker)
        done += 1
        tell(done, f"{job.name} for {job.arch}")
        return row

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, jobs))
