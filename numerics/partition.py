"""How an axis splits into blocks, and which random word serves which element.

Blocks start at the start of the axis or of each expert group, and the last block of a group may be short: it is
padded with zeros while it is quantized, and the padding is never stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .arguments import integer, require_integers, require_kind, shown
from .cache import cached
from .philox import GROUP, Random


@dataclass(frozen=True)
class Partition:
    """How an axis splits into blocks: each group starts a block, and its last block is padded.

    Args:
        length: of the axis. blocks: their number. block_of: block index of each position, int64 (length,).
        slot: position of each value in the padded axis, int64 (length,), or None where padding, if any, is at the end.
        source: the way back, int64 (blocks * block,): which value is at each position of the padded axis; `length`
            at padding. None where `slot` is.
        group_of, index_in_group: group of each block and its index there, int64 (blocks,). groups: their offsets.
    """

    length: int
    blocks: int
    block_of: Tensor
    slot: Tensor | None
    source: Tensor | None
    group_of: Tensor
    index_in_group: Tensor
    groups: tuple[int, ...] | None

    @staticmethod
    @cached(maxsize=256)
    def of(length: int, block: int, groups: tuple[int, ...] | None) -> Partition:
        """The partition of `length` positions into blocks of `block`, by group offsets if given."""
        return partition_of(length, block, groups)

    def split(self, x: Tensor, block: int) -> Tensor:
        """(..., length) -> (..., blocks, block), padding with zeros."""
        if self.source is not None:  # one zero behind the values, taken wherever padding is
            x = pad(x, (0, 1)).index_select(-1, self.source.to(x.device))
        elif self.blocks * block != self.length:
            x = pad(x, (0, self.blocks * block - self.length))
        return x.reshape(*x.shape[:-1], self.blocks, block)

    def join(self, x: Tensor) -> Tensor:
        """Inverse of `split`: (..., blocks, block) -> (..., length)."""
        x = x.flatten(-2)
        return x[..., : self.length].contiguous() if self.slot is None else x.index_select(-1, self.slot.to(x.device))


def partition_of(length: int, block: int, groups: tuple[int, ...] | None) -> Partition:
    """`Partition.of` without its memory: tensor operations on positions alone, which a compiler can follow."""
    position = torch.arange(length)
    if groups is None or len(groups) == 2:
        blocks = -(-length // block)
        index = torch.arange(blocks)
        return Partition(length, blocks, position // block, None, None, torch.zeros_like(index), index, groups)
    counts = [-(-(end - start) // block) for start, end in pairwise(groups)]
    first = list(accumulate(counts, initial=0))  # block of each group
    starts, firsts, sizes = (torch.tensor(t) for t in (groups[:-1], first[:-1], [b - a for a, b in pairwise(groups)]))
    group = torch.bucketize(position, torch.tensor(groups[1:]), right=True)  # empty groups are passed over
    slot = firsts[group] * block + position - starts[group]
    index = torch.arange(first[-1])
    group_of = torch.bucketize(index, torch.tensor(first[1:]), right=True)
    index_in_group = index - firsts[group_of]
    if first[-1] * block == length:
        return Partition(length, first[-1], slot // block, None, None, group_of, index_in_group, groups)
    place = torch.arange(first[-1] * block)
    owner = group_of[place // block]
    inside = place - firsts[owner] * block
    source = torch.where(inside < sizes[owner], starts[owner] + inside, length)
    return Partition(length, first[-1], slot // block, slot, source, group_of, index_in_group, groups)


_OFFSETS = "pass integer offsets, first 0, last the length of the axis, such as (0, 128, 256)"


def check_groups(groups: Any, length: int, name: str = "groups") -> tuple[int, ...] | None:
    """Group offsets as a tuple of ints, checked against the axis. `name`: of the argument.

    Raises:
        TypeError: neither integers in a tuple or list, nor an integer tensor or array of one axis.
        ValueError: offsets that do not start at 0, end at `length` and never fall.
    """
    if groups is None:
        return None
    if isinstance(groups, np.ndarray) and groups.dtype.kind in "iu":
        groups = torch.from_numpy(groups.astype(np.int64))
    if isinstance(groups, Tensor):
        require_integers(groups, name, _OFFSETS)
        if groups.ndim != 1:
            raise ValueError(f"{name} is {shown(groups)}: {_OFFSETS}")
        groups = groups.tolist()
    require_kind(groups, (tuple, list, range), name, _OFFSETS)
    offsets = tuple(integer(g, f"{name}[{i}]", _OFFSETS) for i, g in enumerate(groups))
    fits = len(offsets) >= 2 and offsets[0] == 0 and offsets[-1] == length
    if not fits or any(later < earlier for earlier, later in pairwise(offsets)):
        raise ValueError(
            f"{name}={list(offsets)}: offsets must start at 0, never fall, and end at the axis length {length}"
        )
    return offsets


def random_fields(
    random: Random,
    shape: torch.Size,
    axis: int,
    grouped: bool,
    partition: Partition,
    block: int,
    element_bits: int,
    device: torch.device,
) -> Tensor:
    """Random fields (..., blocks, B) for a tensor whose `axis` was moved last; see `philox`.

    Expert: the group along `axis` if there are groups, else the index of axis 0 of a tensor with three or more axes,
    else 0. Line: the index of the remaining axes, flattened. `random.rows` sets both for a tensor of two axes. Group of
    16: counted from the start of the expert's group.
    """
    if block % GROUP:
        raise ValueError(f"random={random} with blocks of {block}: random words serve groups of {GROUP}; pass None")
    per_block = block // GROUP
    lines = [n for d, n in enumerate(shape) if d != axis]
    experts = lines.pop(0) if len(shape) >= 3 and axis != 0 and not grouped else None
    group = (partition.index_in_group[:, None] * per_block + torch.arange(per_block)).flatten().to(device)
    line = torch.arange(math.prod(lines), device=device).view(*lines, 1)
    if random.rows is not None and not grouped:
        if len(shape) != 2:
            raise ValueError(f"random.rows={random.rows} with x of shape {tuple(shape)}: rows need two axes; use None")
        by_row = Partition.of(lines[0], 1, check_groups(random.rows, lines[0], "random.rows"))  # blocks of one row
        expert, line = (t.to(device)[:, None] for t in (by_row.group_of, by_row.index_in_group))
        lead = lines
    elif experts is None:
        expert = partition.group_of.repeat_interleave(per_block).to(device)
        lead = lines
    else:
        expert = torch.arange(experts, device=device).view(-1, *[1] * len(lines), 1)
        lead = [experts, *lines]
    return random.fields(expert, line, group, element_bits).reshape(*lead, partition.blocks, block)
