"""Many training runs that advance together, stage by stage, until all are done or the time is up.

`parallel` trains one run after the other to its end; when time runs out, some runs are finished and others not begun,
which compares nothing. Here a free worker always takes a run that is furthest behind, trains it for one stage
(`eval_every` steps, at whose end the run is evaluated) and leaves it at the checkpoint there. So at any moment all runs
have reached about the same step, and whatever all have reached can be compared.

Workers are processes that live through many stages, because starting one costs more than going on with a run does. A
run that fails is put aside with its reason, and the others go on: with many runs, a recipe that diverges is a result.
Bits do not depend on workers or stages. On GPUs workers take the visible ones in turn; NVIDIA's MPS, if it runs, lets
those of one GPU compute at the same time, two to three times as fast. A worker ends when its parent has died.
"""

import itertools
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from hw.choose import operations
from reference.checkpoint import latest
from reference.train import TrainConfig, TrainingStopped, train

_PATIENCE = 10.0  # seconds that a worker has to end by itself


@dataclass(frozen=True)
class Outcome:
    """How a campaign ended: reasons of failed runs by their folders, and whether all the others are finished."""

    failed: dict[Path, str] = field(default_factory=dict)
    finished: bool = True


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    channel: Connection


class _StageEnd(Exception):
    """Leaves a run at a checkpoint."""


def reached(folder: Path) -> int:
    """The step of a run's newest checkpoint; 0 without one."""
    path = latest(folder) if folder.is_dir() else None
    return 0 if path is None else int(path.stem.split("-")[1])


def stage_end(config: TrainConfig, step: int) -> int:
    """Where the stage that follows `step` ends."""
    return min(config.steps, (step // config.eval_every + 1) * config.eval_every)


def advance_all(
    configs: Sequence[TrainConfig],
    workers: int,
    on_step: Callable[[TrainConfig, dict[str, Any]], None],
    deadline: float = math.inf,
) -> Outcome:
    """Train, or resume, all runs together, at most `workers` at the same time.

    Args:
        configs: the runs, each with its own `out`, and `checkpoint_every` equal to `eval_every`.
        workers: 1 or more. on_step: called in this process with a run and the log record of its step.
        deadline: when to stop, in the seconds of `time.monotonic`. What a run has done since its last checkpoint is
            then in its log alone, and done again by the next call.

    Raises:
        ValueError: a bad argument.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: use 1 or more")
    for config in configs:
        if config.checkpoint_every != config.eval_every:
            raise ValueError(
                f"checkpoint_every={config.checkpoint_every} of {str(config.out)!r}: stages end at evaluations; use "
                f"eval_every, {config.eval_every}"
            )
    at = {config.out: reached(config.out) for config in configs}
    waiting = [config for config in configs if at[config.out] < config.steps]
    idle: list[_Worker] = []
    places = itertools.cycle(visible_gpus() if any(config.device == "cuda" for config in configs) else [None])
    running: dict[Connection, tuple[_Worker, TrainConfig]] = {}
    failed: dict[Path, str] = {}
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < workers:
                config = min(waiting, key=lambda run: at[run.out])  # of equals the first
                waiting.remove(config)
                worker = idle.pop() if idle else _start(next(places))
                worker.channel.send((config, stage_end(config, at[config.out])))
                running[worker.channel] = worker, config
            for channel in wait(list(running), max(0.0, min(1.0, deadline - time.monotonic()))):
                worker, config = running[channel]
                kind, value = _receive(worker)
                if kind == "step":
                    on_step(config, value)
                    continue
                del running[channel]
                if kind == "failed":
                    failed[config.out] = value
                    _end([worker])  # its CUDA context may be broken
                    continue
                at[config.out] = value
                idle.append(worker)
                waiting += [config] if value < config.steps else []
    finally:
        _end([*idle, *(worker for worker, _ in running.values())])
    return Outcome(failed, not waiting and not running)


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; at least one."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [name for name in named if name] or [str(i) for i in range(max(1, torch.cuda.device_count()))]


def _start(gpu: str | None) -> _Worker:
    # a new interpreter: a forked one would inherit torch's thread pool without its threads
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    process = context.Process(target=_work, args=(other, os.getpid(), gpu), daemon=True)
    process.start()
    other.close()  # the worker's copy is then the only one, and its end is seen here
    return _Worker(process, own)


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(_PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.channel.close()


def _receive(worker: _Worker) -> tuple[str, Any]:
    try:
        return worker.channel.recv()
    except (EOFError, OSError):
        worker.process.join()
        return "failed", f"its process ended early (exit code {worker.process.exitcode})"


def _work(channel: Connection, parent: int, gpu: str | None) -> None:
    """The worker: for each run and step that it is sent, train to that step; tell of each step and of the end."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # read when CUDA is first used
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process with SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the default would leave semaphores behind
    while True:
        try:
            config, stop = channel.recv()
        except EOFError:
            return
        kind, value = _stage(config, stop, channel, parent)
        channel.send((kind, value))
        if kind == "failed":
            return


def _stage(config: TrainConfig, stop: int, channel: Connection, parent: int) -> tuple[str, int | str]:
    def tell(record: dict[str, Any]) -> None:
        if os.getppid() != parent:
            raise SystemExit(1)
        channel.send(("step", record))
        if record["step"] == stop < config.steps:
            raise _StageEnd

    try:
        train(config, operations(config.ops, config.device), tell)
    except _StageEnd:
        pass
    except (ValueError, OSError, TrainingStopped) as error:
        return "failed", str(error)
    except Exception as error:  # of any kind: it concerns one run of many
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "end", stop
