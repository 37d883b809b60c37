"""Processes that act as ranks: the same environment that torchrun gives, started by a test and watched by it.

A rank runs a function of a test file and prints what it found as one JSON line. The ranks are forks of one process that
has imported that file, torch included: importing takes longer than what they do. A watchdog ends all of them when they
take too long: a hang is a failure, not a wait.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

_FORKS = """
import json, os, sys
from tests.{module} import {name}
folder, world, *arguments = sys.argv[1:]
children = []
for rank in range(int(world)):
    child = os.fork()
    if child == 0:
        for descriptor, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{{folder}}/{{rank}}.{{kind}}", os.O_WRONLY | os.O_CREAT), descriptor)
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        print(json.dumps({name}(*arguments)))
        sys.exit()
    children.append(child)
for rank, child in enumerate(children):
    with open(f"{{folder}}/{{rank}}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""


@dataclass(frozen=True)
class Ended:
    """A rank that has ended: its exit code (negative: the signal), what it printed, and what it said on stderr."""

    code: int
    out: str
    err: str

    @property
    def found(self) -> Any:
        """The JSON of its last line."""
        assert self.code == 0, self.err
        return json.loads(self.out.splitlines()[-1])


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def ranks(file: str, name: str, world: int, *arguments: str, seconds: float = 100) -> list[Ended]:
    """Run `name(*arguments)` of a test file on `world` ranks."""
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    environment = os.environ | given | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    text = _FORKS.format(module=Path(file).stem, name=name)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", text, folder, str(world), *arguments]
        process = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
        late = ""
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = f"ranks hung for {seconds:g} s: "
            os.killpg(process.pid, signal.SIGKILL)
            _, said = process.communicate()
        texts = [[_text(folder, rank, kind) for kind in ("code", "out", "err")] for rank in range(world)]
    assert not late and all(code for code, *_ in texts), (
        late + said.decode() + "".join(err[-2000:] for *_, err in texts)
    )
    return [Ended(int(code), out, err) for code, out, err in texts]


def _text(folder: str, rank: int, kind: str) -> str:
    path = Path(folder) / f"{rank}.{kind}"
    return path.read_text() if path.exists() else ""
