"""One process of `fourbit bench wires`: it packs, sends, receives and unpacks rows, and measures each part.

Parts of a direction, in order: cast (the recipe's rounding of a row, and its transform), pack (its bytes, gathered in
the order in which they leave), wire (the exchange, until every row has come), unpack. Ranks start each part together.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from numerics import hadamard, hadamard_signs
from numerics.ops import quantize_tokens

from .collectives import Traffic, exchange, exchange_counts
from .wires import WIRES, Layout, pack, unpack

PARTS = ("cast", "pack", "wire", "unpack")
DIRECTIONS = ("dispatch", "combine")
WARM_UP = 2


@dataclass(frozen=True)
class Job:
    """What every process does: `pairs` of wires (dispatch, combine), each once a round."""

    ranks: int
    tokens: int
    top_k: int
    width: int
    rounds: int
    pairs: tuple[tuple[str, str], ...]


class Rank:
    """Tokens of this rank, where their rows go, and outputs of its experts for the rows that come."""

    def __init__(self, job: Job, rank: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        self.job, self.rank, self.group, self.traffic = job, rank, dist.group.WORLD, Traffic()
        # a token goes to experts of different ranks as long as there are some: the loads of a balanced router
        drawn = torch.rand(job.tokens, max(job.ranks, job.top_k), generator=generator)
        to, order = (drawn.argsort(1)[:, : job.top_k] % job.ranks).flatten().sort(stable=True)
        self.rows = order // job.top_k
        send = torch.bincount(to, minlength=job.ranks)
        receive = exchange_counts(send, self.group).flatten()
        self.splits = {"dispatch": (send.tolist(), receive.tolist()), "combine": (receive.tolist(), send.tolist())}
        self.x = {
            "dispatch": torch.randn(job.tokens, job.width, generator=generator).to(torch.bfloat16),
            "combine": torch.randn(int(receive.sum()), job.width, generator=generator),
        }
        self.signs = hadamard_signs(32, (1, 2))
        self.rounded: dict[tuple[int, str], Any] = {}
        self.start_over()

    def start_over(self) -> None:
        """Forget what was measured."""
        self.traffic = Traffic()
        self.seconds: dict[tuple[int, str, str], list[float]] = {}
        self.used: list[list[float]] = [[0.0] * 5 for _ in self.job.pairs]

    def timed(self, pair: int, direction: str, part: str, work: Callable[[], Any]) -> Any:
        """Do it, after all ranks have come here, and note seconds; of a wire what it used of the processors too."""
        dist.barrier()
        before, start = _usage(), time.perf_counter()
        made = work()
        seconds = time.perf_counter() - start
        self.seconds.setdefault((pair, direction, part), []).append(seconds)
        if part == "wire":
            used = [seconds, *(b - a for a, b in zip(before, _usage(), strict=True))]
            self.used[pair] = [a + b for a, b in zip(self.used[pair], used, strict=True)]
        return made

    def cast(self, pair: int, direction: str) -> None:
        """Round the rows, which every round then sends."""
        cast, size = WIRES[self.job.pairs[pair][DIRECTIONS.index(direction)]]
        x = self.x[direction]

        def work() -> Any:
            return quantize_tokens(x if size is None else hadamard(x, size, self.signs), cast)

        self.rounded[pair, direction] = self.timed(pair, direction, "cast", work)

    def travel(self, pair: int, direction: str) -> None:
        """Rows to experts (dispatch), or their outputs back (combine), by the wire of the pair."""
        cast, _ = WIRES[self.job.pairs[pair][DIRECTIONS.index(direction)]]
        q, width, phase = self.rounded[pair, direction], self.job.width, f"{pair} {direction}"
        send, receive = self.splits[direction]
        made = (lambda: pack(q).index_select(0, self.rows)) if direction == "dispatch" else (lambda: pack(q))
        packed = self.timed(pair, direction, "pack", made)
        arrived = self.timed(
            pair,
            direction,
            "wire",
            lambda: exchange(packed, send, receive, self.group, phase, width, self.traffic).wait(),
        )
        self.timed(pair, direction, "unpack", lambda: unpack(arrived, Layout(width, cast)))

    def measure(self) -> dict[str, Any]:
        """All rounds, pairs in an order that rotates; what came of it, as JSON holds it."""
        each = range(len(self.job.pairs))
        places = [(pair, direction) for pair in each for direction in DIRECTIONS]
        for place in places:
            self.cast(*place)
        casts = self.seconds
        for turn in range(self.job.rounds + WARM_UP):
            if turn == WARM_UP:
                self.start_over()
            for pair in each:
                for direction in DIRECTIONS:
                    self.travel((pair + turn) % len(each), direction)
        casts = {key: seconds for key, seconds in casts.items() if key[2] == "cast"}
        seconds = [[*key, found] for key, found in (casts | self.seconds).items()]
        counts = {phase: asdict(count) for phase, count in self.traffic.phases.items()}
        return {"seconds": seconds, "used": self.used, "counts": counts}


def _usage() -> list[float]:
    """Seconds of this process in its own code and in the system's, and those of all cores, busy and at all, so far."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    stat = Path("/proc/stat")  # of Linux; elsewhere 0
    ticks = [int(n) for n in stat.read_text("ascii").splitlines()[0].split()[1:9]] if stat.exists() else [0] * 8
    idle = ticks[3] + ticks[4]
    return [own.ru_utime, own.ru_stime, float(sum(ticks) - idle), float(sum(ticks))]


def run(job: Job, folder: Path, patience: float) -> list[dict[str, Any]]:
    """Start the processes on this machine, over gloo, and return their reports by rank.

    Raises: RuntimeError if one fails, or does not end within `patience` seconds.
    """
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work, args=(job, rank, str(folder)), daemon=True) for rank in range(job.ranks)]
    for process in processes:
        process.start()
    end = time.monotonic() + patience
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in late:
        processes[rank].kill()
    failed = {rank: process.exitcode for rank, process in enumerate(processes) if process.exitcode}
    if late or failed:
        raise RuntimeError(f"of {job.ranks} processes {late} did not end in {patience:g} s, exit codes {failed}")
    return [json.loads((folder / f"{rank}.json").read_text("utf-8")) for rank in range(job.ranks)]


def _work(job: Job, rank: int, folder: str) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", job.ranks), rank=rank, world_size=job.ranks)
    try:
        report = Rank(job, rank).measure()
        Path(folder, f"{rank}.json").write_text(json.dumps(report), "utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()
