"""Rows to other ranks and back, every byte counted: the collectives of expert parallelism.

    counts = exchange_counts(rows per expert)      how many rows come from where
    handle = exchange(bytes, send, receive, ..)    starts; rows to rank 0 first, then those to rank 1, ..
    bytes = handle.wait()                          rows of rank 0, then those of rank 1, ..

A group of None is this process alone: what it sends it receives. A phase ("dispatch", "combine", ..) names what a
collective is for, in the counts and in the ranges that a torch.profiler shows: "fourbit::dispatch" where it starts and
"fourbit::dispatch wait" where its rows are needed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from numerics.arguments import require_tensor

from .waiting import waiting

BF16_BITS = 16
COUNTS = "counts"


@dataclass
class Count:
    """What the collectives of a phase have moved: `bytes` that this rank handed over, of them those that stayed on it,
    and the values that they stand for. seconds: spent waiting for rows."""

    calls: int = 0
    rows: int = 0
    values: int = 0
    bytes: int = 0
    bytes_kept: int = 0
    seconds: float = 0.0

    @property
    def bits_per_value(self) -> float:
        """Measured: 8 bytes / values; NaN before a value has moved."""
        return 8 * self.bytes / self.values if self.values else float("nan")


@dataclass
class Traffic:
    """What a rank has sent, by phase, since it was made or last taken."""

    phases: dict[str, Count] = field(default_factory=dict)

    def of(self, phase: str) -> Count:
        return self.phases.setdefault(phase, Count())

    def sent(self, phase: str, whole: int, kept: int = 0) -> None:
        """Count one collective to which this rank handed `whole` bytes, of them `kept` for itself."""
        count = self.of(phase)
        count.calls += 1
        count.bytes += whole
        count.bytes_kept += kept

    def take(self) -> dict[str, Count]:
        """The counts, which start at 0 again."""
        taken, self.phases = self.phases, {}
        return taken

    def add(self, phases: Mapping[str, Count]) -> None:
        """Add other counts: of a later time, or of another rank."""
        for phase, other in phases.items():
            own = self.of(phase)
            for one in fields(Count):
                setattr(own, one.name, getattr(own, one.name) + getattr(other, one.name))

    def wires(self) -> dict[str, dict[str, float]]:
        """Of the phases in which values moved, what a log holds: phase -> bytes and measured bits per value."""
        return {
            phase: {"bytes": count.bytes, "bits_per_value": count.bits_per_value}
            for phase, count in self.phases.items()
            if count.values
        }

    def summary(self) -> str:
        """A line for each phase: the bytes, and where values moved measured bits per value beside BF16's 16."""
        width = max(map(len, ("on the wire", *self.phases)))
        lines = [f"{'on the wire':<{width}}  bits per value  beside BF16's 16  bytes sent"]
        for phase, count in sorted(self.phases.items(), key=lambda item: item[1].values == 0):  # wires first
            bits = count.bits_per_value
            share = "the same" if bits == BF16_BITS else f"{BF16_BITS / bits:.3f}x fewer"
            told = f"{bits:14.4f}  {share:>16}" if count.values else " " * 32
            lines.append(f"{phase:<{width}}  {told}  {count.bytes:>10,}")
        return "\n".join(lines)


@dataclass(eq=False)
class Handle:
    """An exchange on its way. `wait` once or more; the tensors stay alive until then."""

    received: Tensor
    sent: Tensor
    work: Any
    phase: str
    count: Count

    def wait(self) -> Tensor:
        """The received rows, uint8 (sum of receive, B). Raises RuntimeError if a rank is gone or too late."""
        start = time.perf_counter()
        with record_function(f"fourbit::{self.phase} wait"), waiting(self.phase):
            if self.work is not None:
                self.work.wait()
        self.count.seconds += time.perf_counter() - start
        self.work = None
        return self.received


def exchange(
    buffer: Tensor,
    send: Sequence[int],
    receive: Sequence[int],
    group: Any,
    phase: str,
    width: int = 0,
    traffic: Traffic | None = None,
) -> Handle:
    """Start to send rows to every rank of a group, and to receive theirs.

    Args:
        buffer: uint8 (R, B), contiguous: send[0] rows for rank 0 of the group, then send[1] for rank 1, ..; it must
            not change before `wait`. receive: rows that come from each rank. group: a process group, or None.
        width: values of a row, which `traffic` counts beside the bytes.

    Raises:
        TypeError: another dtype. ValueError: another shape, splits that do not add up to the rows or do not have one
        entry per rank.
    """
    require_tensor(buffer, "buffer", (torch.uint8,))
    if buffer.ndim != 2 or not buffer.is_contiguous():
        raise ValueError(f"buffer has shape {tuple(buffer.shape)}, strides {buffer.stride()}: pass contiguous rows")
    ranks = 1 if group is None else dist.get_world_size(group)
    for name, splits in (("send", send), ("receive", receive)):
        if len(splits) != ranks or min(splits) < 0:
            raise ValueError(f"{name}={list(splits)}: pass rows for each of {ranks} ranks, 0 or more")
    if sum(send) != len(buffer):
        raise ValueError(f"send={list(send)} adds up to {sum(send)} rows: buffer has {len(buffer)}")
    traffic = Traffic() if traffic is None else traffic
    own = 0 if group is None else dist.get_rank(group)
    traffic.sent(phase, buffer.numel(), send[own] * buffer.shape[1])
    count = traffic.of(phase)
    count.rows += len(buffer)
    count.values += len(buffer) * width
    if group is None:
        if list(send) != list(receive):
            raise ValueError(f"receive={list(receive)} with send={list(send)}: a process alone receives what it sends")
        with record_function(f"fourbit::{phase}"):
            return Handle(buffer, buffer, None, phase, count)
    received = buffer.new_empty(sum(receive), buffer.shape[1])
    with record_function(f"fourbit::{phase}"):
        work = dist.all_to_all_single(received, buffer, list(receive), list(send), group=group, async_op=True)
    return Handle(received, buffer, work, phase, count)


def exchange_counts(rows: Tensor, group: Any, traffic: Traffic | None = None) -> Tensor:
    """Tell every rank how many rows it gets for each of its experts.

    Args: rows: int64 (E,), this rank's rows per expert; rank p of N has experts p E / N to (p + 1) E / N.
    Returns: int64 (N, E / N): the rows that each rank has for each of this rank's experts.
    Raises: TypeError for another dtype, ValueError for experts that do not divide among the ranks.
    """
    require_tensor(rows, "rows", (torch.int64,))
    ranks = 1 if group is None else dist.get_world_size(group)
    if rows.ndim != 1 or len(rows) % ranks:
        raise ValueError(f"rows has shape {tuple(rows.shape)}: pass (E,), E a multiple of {ranks} ranks")
    if traffic is not None:
        traffic.sent(COUNTS, rows.nbytes, rows.nbytes // ranks)
    received = torch.empty_like(rows)
    with record_function(f"fourbit::{COUNTS}"), waiting(COUNTS):
        if group is None:
            received.copy_(rows)
        else:
            dist.all_to_all_single(received, rows.contiguous(), group=group)
    return received.view(ranks, -1)
