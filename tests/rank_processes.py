"""Processes that act as ranks: the same environment that torchrun gives, started by a test and watched by it.

A rank runs a function of a test file, `name(rank)`, and prints what it found as one JSON line; `ranks` returns these by
rank. A watchdog ends all of them when they take too long: a hang is a failure, not a wait.
"""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


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


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun sets, and one thread."""
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    return os.environ | {"MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(ROOT)} | {k: str(v) for k, v in given.items()}


def start(command: list[str], rank: int, world: int, port: int) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment(rank, world, port), cwd=ROOT)


def wait(processes: list[subprocess.Popen[str]], seconds: float) -> list[Ended]:
    """All of them, ended; whatever runs after `seconds` is killed and fails the test."""
    until = time.monotonic() + seconds
    late, found = [], []
    for rank, process in enumerate(processes):
        try:
            out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            late.append(rank)
            process.kill()
            out, err = process.communicate()
        found.append(Ended(process.returncode, out, err))
    assert not late, f"ranks {late} hung: " + "\n".join(one.err[-2000:] for one in found)
    return found


def ranks(file: str, name: str, world: int, *arguments: str, seconds: float = 60) -> list[Ended]:
    """Run `name(*arguments)` of a test file on `world` ranks."""
    module = Path(file).stem
    text = f"import json, sys; from tests.{module} import {name}; print(json.dumps({name}(*sys.argv[1:])))"
    command, port = [sys.executable, "-c", text, *arguments], free_port()
    return wait([start(command, rank, world, port) for rank in range(world)], seconds)
