"""Several runs at once, each in a process of its own on one thread.

A small model's step is thousands of short operations. Threads would share each of them and wait for one another, which
on a busy machine costs far more than it gains; whole runs share nothing. A run's bits do not depend on its neighbours.

A worker ends when its parent has died, so no orphan holds a run's folder. All of it is resumable: what a stopped run
has not saved is computed again by the next call.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hw.choose import operations
from reference.checkpoint import checkpoint_path
from reference.train import Result, TrainConfig, TrainingStopped, train


class Job(Protocol):
    """What a process does: `out` is its own folder, `preset` its name."""

    @property
    def out(self) -> Path: ...

    @property
    def preset(self) -> str: ...


Tell = Callable[[dict[str, Any]], None]
J = TypeVar("J", bound=Job)
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class _Worker:
    config: Any
    process: BaseProcess
    messages: Connection


def train_all(
    configs: Sequence[TrainConfig],
    workers: int,
    on_step: Callable[[TrainConfig, dict[str, Any]], None],
    on_end: Callable[[TrainConfig, Result], None],
) -> list[Result]:
    """Train, or resume, every run; at most `workers` at the same time, started in order.

    Args:
        configs: the runs, each with its own `out`. workers: 1 or more.
        on_step: called in this process with a run and the log record of its step. on_end: likewise with its result.

    Returns:
        The results in the order of `configs`.

    Raises:
        ValueError, TrainingStopped, OSError: as `train`, for the first run that fails; the others are stopped.
        ChildProcessError: a worker ended without a result.
    """
    return run_all(configs, _train, _is_trained, workers, on_step, on_end)


def run_all(
    jobs: Sequence[J],
    work: Callable[[J, Tell], R],
    is_done: Callable[[J], bool],
    workers: int,
    on_step: Callable[[J, dict[str, Any]], None],
    on_end: Callable[[J, R], None],
) -> list[R]:
    """Do, or take up again, every job; as `train_all` for the rest.

    Args:
        work: a function of a module, which does a job and tells of each step by a record.
        is_done: whether a job was finished before: then `work` is called here, in no process of its own.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: use 1 or more")
    waiting, running, results = list(jobs), {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                config = waiting.pop(0)
                if is_done(config):
                    results[config.out] = work(config, lambda _: None)  # finished before: it is only read
                    on_end(config, results[config.out])
                else:
                    worker = _start(config, work)
                    running[worker.messages] = worker
            for messages in wait(list(running)) if running else ():
                worker = running[messages]
                kind, value = _receive(worker)
                if kind == "step":
                    on_step(worker.config, value)
                elif kind == "result":
                    results[worker.config.out] = value
                    on_end(worker.config, value)
                    worker.process.join()
                    del running[messages]
                else:
                    raise value
    finally:
        for worker in running.values():
            worker.process.terminate()
            worker.process.join()
    return [results[config.out] for config in jobs]


def _train(config: TrainConfig, tell: Tell) -> Result:
    return train(config, operations(config.ops, config.device), tell)


def _is_trained(config: TrainConfig) -> bool:
    return checkpoint_path(config.out, config.steps).exists()


def _start(config: Any, work: Callable[[Any, Tell], Any]) -> _Worker:
    # a new interpreter: a forked one would inherit torch's thread pool without its threads
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(config, work, sender, os.getpid()), name=config.preset, daemon=True)
    process.start()
    sender.close()  # the worker's copy is then the only one, and its end is seen here
    return _Worker(config, process, receiver)


def _receive(worker: _Worker) -> tuple[str, Any]:
    try:
        return worker.messages.recv()
    except EOFError:
        worker.process.join()
        raise ChildProcessError(
            f"training {worker.config.preset} in {worker.config.out} ended early (exit code "
            f"{worker.process.exitcode}); the same command resumes it"
        ) from None


def _work(config: Any, work: Callable[[Any, Tell], Any], messages: Connection, parent: int) -> None:
    """The worker: work, and tell of each step, of the result or of the user's mistake."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process with SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the default would leave semaphores behind

    def tell(record: dict[str, Any]) -> None:
        if os.getppid() != parent:
            raise SystemExit(1)
        messages.send(("step", record))

    try:
        messages.send(("result", work(config, tell)))
    except (ValueError, OSError, TrainingStopped) as error:
        messages.send(("error", error))
    finally:
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # it ends by itself now; a SystemExit in its last lines would show
