"""Ranks that die, err or are slow.

Contract: a rank that is killed, stopped or meets a mistake ends all others, within the timeout, with one message that
names it, wherever they wait; a mistake of all is told once; a slow rank is named and the run goes on. Oracle: real
processes over gloo that kill, stop or delay themselves; messages counted over the stderr of all.
"""

import json
import os
import re
import signal
import subprocess
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reference import signs
from reference.ranks import leave, ranks_of
from reference.signs import Sign, Slow
from reference.waiting import snapshot, waiting
from reference.watch import shared_fate
from tests.rank_processes import Ended, Placed, ranks


def run(how: str) -> str:
    """Rank 1 is slow at first, if that is asked for; then it ends in a way that `how` names, while the others wait."""
    signs.SLOW = 1.0
    placed = Placed(dp=3, timeout=4.0 if how == "stopped" else 60.0)
    try:
        with shared_fate(placed.timeout) as watch:
            here = ranks_of(placed, {"lr": int(os.environ["RANK"]) if how == "different" else 0})
            watch.start()
            if how == "slow" and here.rank == 1:
                time.sleep(3)
            with waiting("a sum of step 3"):
                dist.all_reduce(torch.ones(1))
            if how in ("all", "slow"):
                if how == "all":
                    raise ValueError("data is missing")
            elif here.rank == 1:
                end_by(how)
            if how == "different host":  # as if its processes were not to be seen
                Sign.gone = property(lambda self: False)
            dist.all_reduce(torch.ones(1))
    finally:
        leave()
    return "finished"


def end_by(how: str) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stopped":
        subprocess.Popen(["sh", "-c", f"sleep 9; kill -9 {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "mistaken":
        raise ValueError("its shard\nis missing")
    raise KeyError("a defect")


def messages(ended: list[Ended]) -> list[str]:
    return [line for one in ended for line in one.err.splitlines() if line.startswith("fourbit:")]


def test_a_killed_rank_ends_all_with_one_message() -> None:
    ended = ranks(__file__, "run", 3, "killed")
    assert [one.code for one in ended] == [2, -signal.SIGKILL, 2], [one.err for one in ended]
    (said,) = messages(ended)
    assert said.startswith("fourbit: error: rank 1 of 3 has died (its process has ended); the job ends")
    assert not any("Traceback" in one.err for one in ended)


def test_a_rank_that_stops_ends_all_within_the_timeout() -> None:
    began = time.monotonic()
    ended = ranks(__file__, "run", 3, "stopped")
    assert [one.code for one in ended] == [2, -signal.SIGKILL, 2] and time.monotonic() - began < 60
    assert [line for line in messages(ended) if "error" in line] == [
        "fourbit: error: rank 1 of 3 has died (no sign of life for 4 s); the job ends, and the same command, or "
        "torchrun's --max-restarts, goes on from the last complete checkpoint"
    ]


def test_a_mistake_of_one_rank_ends_all_and_is_told_once() -> None:
    ended = ranks(__file__, "run", 3, "mistaken")
    assert [one.code for one in ended] == [2, 2, 2], [one.err for one in ended]
    assert messages(ended) == ["fourbit: error: rank 1: its shard is missing"]


@pytest.mark.exhaustive
def test_a_mistake_of_all_is_told_once() -> None:
    ended = ranks(__file__, "run", 3, "all")
    assert {one.code for one in ended} == {2} and len(messages(ended)) == 1


@pytest.mark.exhaustive
def test_ranks_that_differ_say_so_once() -> None:
    ended = ranks(__file__, "run", 3, "different")
    assert {one.code for one in ended} == {2}
    (said,) = messages(ended)
    assert said.startswith("fourbit: error: ranks differ: lr is ")


@pytest.mark.exhaustive
def test_a_defect_keeps_its_traceback() -> None:
    ended = ranks(__file__, "run", 3, "defect")
    assert "KeyError: 'a defect'" in ended[1].err and all(one.code for one in ended)
    assert messages(ended) == [] and sum("Traceback" in one.err for one in ended) == 1


def test_a_slow_rank_is_named_and_waited_for() -> None:
    ended = ranks(__file__, "run", 3, "slow")
    assert [one.found for one in ended] == ["finished"] * 3
    (said,) = messages(ended)
    # who is seen to wait depends on when rank 0 looks
    assert re.fullmatch(r"fourbit: rank 1 is slow: rank.* waited \d s for it \(a sum of step 3\)", said)


def sign(busy: float = 0.0, waits: str | None = None, seconds: float = 0.0, **more: Any) -> Sign:
    return Sign(1, "host", 1, busy, waits, seconds, **more)


def test_who_waits_for_nobody_while_others_wait_is_slow_once() -> None:
    slow = Slow(0, 3)
    told = {0: sign(waits="x", seconds=11.0), 1: sign(), 2: sign(waits="y", seconds=12.0)}
    assert slow.look(told) == ["rank 1 is slow: ranks 0, 2 waited 12 s for it (y)"]
    assert slow.look(told) == []
    assert Slow(0, 3).look({r: sign(waits="x", seconds=9.0) for r in (0, 1)} | {2: sign()}) == []
    assert Slow(0, 3).look({r: sign(waits="x", seconds=99.0) for r in range(3)}) == []  # the network, not a rank
    assert Slow(0, 2).look({0: sign(waits="x", seconds=99.0), 1: sign(left=True)}) == []


def test_whose_own_work_takes_twice_the_median_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(signs.time, "monotonic", lambda: now[0])
    slow = Slow(0, 4)
    assert slow.look({r: sign(5.0) for r in range(4)}) == []
    now[0] += 59
    assert slow.look({r: sign(5.0 + 59.0 * (r == 2)) for r in range(4)}) == []
    now[0] += 2
    busy = {0: 30.0, 1: 25.0, 2: 65.0, 3: 35.0}
    assert slow.look({r: sign(b) for r, b in busy.items()}) == [
        "rank 2 is slow: of 61 s its own work took 60, the others' 25"
    ]
    now[0] += 61
    assert slow.look({r: sign(b + 20 + 70 * (r == 2)) for r, b in busy.items()}) == []


def test_waits_add_up_and_the_outer_one_counts() -> None:
    before = snapshot().seconds
    with waiting("a"), waiting("b"):
        inside = snapshot()
        time.sleep(0.05)
    assert inside.what == "a" and snapshot().what is None and 0.05 <= snapshot().seconds - before < 5


def test_signs_survive_json() -> None:
    there = Sign(3, "h", 5, 1.5, "dispatch", 0.25, True, "é")
    assert Sign(**json.loads(json.dumps(there.__dict__))) == there


def test_without_torchrun_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="as it was"), shared_fate(5.0) as watch:
        assert watch is None and signal.getsignal(signal.SIGTERM) is before
        raise ValueError("as it was")
