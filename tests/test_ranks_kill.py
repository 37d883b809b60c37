"""Ranks killed at random moments, the writing of a checkpoint included.

Contract: torchrun --max-restarts goes on from a complete checkpoint after every kill, and the run ends with the log and
the weights of a run that nobody killed. Oracle: the same configuration in one process. Kills are SIGKILL to a random
rank: in turn after a random part of a step, and as soon as an unfinished checkpoint is seen, plus up to 20 ms.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics import ops
from reference import checkpoint, checkpoint_folder
from reference.command_line import parse
from reference.train import train
from tests.rank_processes import ROOT

KILLS, WORLD, STEPS = 20, 2, 90
SIZES = {"dim": 32, "depth": 6, "experts": 4, "expert-dim": 32, "shared-dim": 32, "heads": 2, "sequence": 32}


def arguments(out: Path, text: Path) -> list[str]:
    common = f"--steps {STEPS} --batch 4 --grain 1 --warmup 1 --eval-every 10 --eval-sequences 4 --checkpoint-every 1"
    sizes = [word for name, size in SIZES.items() for word in (f"--model.{name}", str(size))]
    rest = ["--deterministic", "--timeout", "60", "--monitor-every", "0", "--progress", "hide", *sizes]
    return ["--out", str(out), "--data", str(text), *common.split(), *rest]


def workers(torchrun: int) -> dict[int, int]:
    """pid of every rank that runs."""
    found = {}
    for child in Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split():
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {int(v.removeprefix(b"RANK=")): int(child) for v in environment if v.startswith(b"RANK=")}
    return found


def steps_of(out: Path) -> int:
    log = out / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def until(what: Any, process: subprocess.Popen[bytes], seconds: float = 180) -> None:
    """Wait for it, closely; a job that ends or hangs first fails the test."""
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None and time.monotonic() < end, "the job ended, or hung"
        time.sleep(0.001)


def moments(process: subprocess.Popen[bytes], out: Path, rng: random.Random) -> Iterator[str]:
    """When to kill, after every start."""
    for number in range(KILLS):
        start = steps_of(out)
        # a restarted run cuts its log back first, so that it is never ahead of what it has done
        least = start + rng.randint(0, 2)
        until(lambda least=least: steps_of(out) > least, process)
        if number % 2:
            until(lambda: any(out.glob(".checkpoint-*.tmp")), process)
            time.sleep(rng.uniform(0, 0.02))
            yield "while a checkpoint is written"
        else:
            time.sleep(rng.uniform(0, 1))
            yield "in a step"


def records(out: Path) -> list[dict[str, Any]]:
    """What the log says of the run, without times and without what only ranks send."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("seconds", "wires")} for line in lines]


@pytest.mark.exhaustive
def test_killed_ranks_go_on_to_the_same_end(tmp_path: Path) -> None:
    text, out, alone = tmp_path / "text", tmp_path / "killed", tmp_path / "alone"
    text.write_bytes(b"".join(path.read_bytes() for path in sorted((ROOT / "reference").glob("*.py"))))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(WORLD), "--max-restarts"]
    command += [str(KILLS), "-m", "fourbit", "train", *arguments(out, text), "--ep", str(WORLD)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    rng, unfinished = random.Random(7), 0
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)
    try:
        for _ in moments(process, out, rng):
            os.kill(workers(process.pid)[rng.randrange(WORLD)], signal.SIGKILL)
            before = workers(process.pid)
            until(lambda before=before: not set(workers(process.pid).values()) & set(before.values()), process)
            unfinished += any(out.glob(".checkpoint-*.tmp"))
            if path := checkpoint.latest(out):
                assert checkpoint_folder.load(path)[1]["step"] <= steps_of(out)  # every digest is right
        assert process.wait(timeout=600) == 0, (tmp_path / "said").read_text()[-3000:]
    finally:
        process.kill()
    assert unfinished >= 3  # some were killed while they wrote one
    assert not any(map(checkpoint.is_leftover, out.iterdir()))
    train(parse(arguments(alone, text)), ops)
    assert records(out) == records(alone)
    (ours, _), (theirs, _) = (checkpoint_folder.load(checkpoint.latest(folder)) for folder in (out, alone))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
