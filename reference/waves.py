"""Experts in waves: while the rows of some experts are computed, those of the next ones are on the wire.

    wave 0   dispatch -> experts -> combine
    wave 1               dispatch -> experts -> combine
    wave 2                           dispatch -> experts -> combine

A wave is a run of neighbouring experts of every rank. Each expert's rows are computed in one wave, as they are without
waves, so the bits do not depend on how many there are; and every rank starts its exchanges in the same order. A rank
adds up what came back when all of it has.

Shapes: N ranks, L experts on each, R rows of this rank sorted by expert, B bytes of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from .collectives import Handle, Traffic, exchange
from .wires import Layout


@dataclass(frozen=True, eq=False)
class Wave:
    """One wave of a layer's pass. Its phases carry the name of what travels: "dispatch NVFP4_46".

    Attributes:
        group, traffic: of its exchanges. experts: which of the experts here, a slice.
        rows: int64, the numbers of this rank's rows that leave, in their order. sends: how many to every rank.
        groups: the row offsets, among these experts, of the rows that arrive from every rank.
    """

    group: Any
    traffic: Traffic
    experts: slice
    rows: Tensor
    sends: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def arrives(self) -> list[int]:
        """Rows from every rank."""
        return [offsets[-1] for offsets in self.groups]

    def go(self, packed: Tensor, layout: Layout, phase: str) -> Handle:
        """`packed` (rows, B) starts for the experts: what arrives is rank after rank."""
        return exchange(
            packed, self.sends, self.arrives, self.group, f"{phase} {layout.name}", layout.width, self.traffic
        )

    def come_back(self, packed: Tensor, layout: Layout, phase: str) -> Handle:
        """Rows for every rank, rank after rank, start for where they came from: they arrive in the order of `rows`."""
        return exchange(
            packed, self.arrives, self.sends, self.group, f"{phase} {layout.name}", layout.width, self.traffic
        )


def plan(leaving: Tensor, arriving: Tensor, waves: int, group: Any, traffic: Traffic) -> list[Wave]:
    """The waves of a pass.

    Args:
        leaving: int64 (N, L) on the CPU, rows of this rank for every expert. arriving: int64 (N, L), rows of every
            rank for each expert here. waves: how many, at most L.

    Raises: ValueError for a number of waves that the experts of a rank do not give.
    """
    ranks, local = leaving.shape
    if not 1 <= waves <= local:
        raise ValueError(f"waves={waves}: a rank has {local} experts; use 1 to {local}")
    offsets = torch.cat([leaving.new_zeros(1), leaving.flatten().cumsum(0)]).tolist()
    made = []
    for wave in range(waves):
        low, high = wave * local // waves, (wave + 1) * local // waves
        spans = [(offsets[p * local + low], offsets[p * local + high]) for p in range(ranks)]
        groups = tuple((0, *each) for each in arriving[:, low:high].cumsum(1).tolist())
        rows = torch.cat([torch.arange(*span) for span in spans])
        made.append(Wave(group, traffic, slice(low, high), rows, tuple(b - a for a, b in spans), groups))
    return made


def in_turn(
    waves: Sequence[Wave],
    dispatch: Callable[[Wave], Handle],
    compute: Callable[[Wave, Tensor], Tensor],
    combine: Callable[[Wave, Tensor], Handle],
    name: str,
) -> Tensor:
    """Take every wave through its three steps, the next one's dispatch started before a wave is computed.

    Args:
        dispatch, combine: start an exchange. compute: from bytes that arrived to bytes that leave, in a profiler the
            range "fourbit::NAME".

    Returns:
        What came back, (R, B), in the order of this rank's rows.
    """
    going, coming = [], dispatch(waves[0])
    for number, wave in enumerate(waves):
        following = dispatch(waves[number + 1]) if number + 1 < len(waves) else coming
        arrived = coming.wait()
        with record_function(f"fourbit::{name}"):
            made = compute(wave, arrived)
        going.append(combine(wave, made))
        coming = following
    back = [handle.wait() for handle in going]
    if len(waves) == 1:
        return back[0]
    joined = torch.cat(back)
    rows = torch.cat([wave.rows for wave in waves]).to(joined.device)
    return torch.empty_like(joined).index_copy_(0, rows, joined)
