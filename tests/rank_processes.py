"""Processes that act as ranks: the same environment that torchrun gives, started by a test and watched by it.

A rank runs a function of a test file and prints what it found as one JSON line. All ranks of a run of the tests are
forks of one process, which has imported torch, and each test file that asked for ranks, once: importing takes longer
than what most of them do. A watchdog ends those of a call when they take too long: a hang is a failure, not a wait.

That process takes one JSON line per call. It answers with the id of a child, which leads the session of that call's
ranks, and then with a line when the child has ended.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent

_FIXED = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
# what a rank would import late, each one on its own: torch's optimizers ask for the compiler at their first step
_LATE = "torch._dynamo torch.distributed.checkpoint torch.distributed.fsdp torch.distributed.tensor".split()


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


@dataclass(frozen=True)
class Placed:
    """What `ranks_of` reads of a configuration."""

    ep: int = 1
    fsdp: int = 1
    dp: int = 1
    timeout: float = 20.0
    device: str = "cpu"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def ranks(file: str, name: str, world: int, *arguments: str, seconds: float = 100) -> list[Ended]:
    """Run `name(*arguments)` of a test file on `world` ranks."""
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    given["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    with tempfile.TemporaryDirectory() as folder:
        asked = {"module": f"tests.{Path(file).stem}", "name": name, "arguments": arguments, "folder": folder}
        late = _ended({**asked, "world": world, "environment": {**os.environ, **given, **_FIXED}}, seconds)
        texts = [[_text(folder, rank, kind) for kind in ("code", "out", "err")] for rank in range(world)]
        said = _text(folder, "leader", "err")
    assert not late and all(code for code, *_ in texts), late + said + "".join(err[-2000:] for *_, err in texts)
    return [Ended(int(code), out, err) for code, out, err in texts]


@functools.cache
def _server() -> "subprocess.Popen[bytes]":
    """Of this process; it ends with it, when nobody can write to it any more."""
    command, pipe = [sys.executable, "-c", "from tests.rank_processes import _serve; _serve()"], subprocess.PIPE
    server = subprocess.Popen(command, bufsize=0, env=os.environ | _FIXED, cwd=ROOT, stdin=pipe, stdout=pipe)
    atexit.register(server.kill)
    return server


def _ended(asked: dict[str, Any], seconds: float) -> str:
    """Wait until the ranks of a call have ended; what is to be said if they had to be ended."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(asked).encode() + b"\n")
    leader = int(server.stdout.readline())
    ready: list[Any] = []
    try:
        ready = select.select([server.stdout], [], [], seconds)[0]
    finally:
        if not ready:
            os.killpg(leader, signal.SIGKILL)
        server.stdout.readline()
    return "" if ready else f"ranks hung for {seconds:g} s: "


def _serve() -> None:
    """Until nobody can ask any more."""
    for late in _LATE:
        importlib.import_module(late)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.suppress(Exception):  # raised again by the child, whose words are kept
            importlib.import_module(asked["module"])
        leader = os.fork()
        if leader == 0:
            answers.close()
            _lead(**asked)
        answers.write(f"{leader}\n")
        os.waitpid(leader, 0)
        answers.write("ended\n")


def _lead(module: str, name: str, arguments: list[str], folder: str, world: int, environment: dict[str, str]) -> None:
    """Fork the ranks and wait for them. This process, and each of them, ends here or by its error."""
    os.setsid()
    _say_into(folder, "leader")
    os.environ.clear()
    os.environ.update(environment)
    function = getattr(importlib.import_module(module), name)
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            _say_into(folder, str(rank))
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
            _be(lambda: print(json.dumps(function(*arguments))))
        children.append(child)
    # as torchrun's, it outlives every rank: the last one to end still reads who has told what
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = dist.TCPStore(address, port, None, True, wait_for_workers=False)
    for rank, child in enumerate(children):
        Path(folder, f"{rank}.code").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    del store
    os._exit(0)


def _be(rank: Callable[[], None]) -> NoReturn:
    """Run it and end at once, as a run of ranks does: to take down an interpreter full of modules takes seconds."""
    code = 1
    try:
        rank()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else error.code is not None
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say_into(folder: str, who: str) -> None:
    """What this process prints and says on stderr goes into files."""
    for descriptor, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{who}.{kind}", os.O_WRONLY | os.O_CREAT), descriptor)


def _text(folder: str, rank: int | str, kind: str) -> str:
    path = Path(folder) / f"{rank}.{kind}"
    return path.read_text() if path.exists() else ""
