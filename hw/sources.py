"""What kernels along features quantize, and what they round by: tensors gathered for a launch, on the host."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from numerics import Random
from numerics.cache import cached
from numerics.partition import check_groups
from numerics.swiglu import silu_tables, swiglu


@dataclass(frozen=True, eq=False)
class Source:
    """Rows (R, K) of FP32 or BF16 values.

    Args:
        x: contiguous (S, K), or (R, 2K) with `glu`. index: int64 (R,), the row of `x` for each row, or None: its own.
        factor: float32 (R,) that multiplies the values. glu: bf16(silu(gate) * up) of the halves of each row, which
            are rounded to BF16 first; those go to `kept`, BF16 (R, 2K), if there is one.
    """

    x: Tensor
    index: Tensor | None = None
    factor: Tensor | None = None
    glu: bool = False
    kept: Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.x) if self.index is None else len(self.index)

    @property
    def width(self) -> int:
        return self.x.shape[1] // 2 if self.glu else self.x.shape[1]

    def tensor(self) -> Tensor:
        """The rows themselves, by torch: for kernels that take nothing else."""
        x = self.x if self.index is None else self.x.index_select(0, self.index)
        if self.factor is not None:
            x = x.to(torch.float32) * self.factor[:, None]
        if self.glu:
            x = x.to(torch.bfloat16)
            if self.kept is not None:
                self.kept.copy_(x)
            x = swiglu(*x.chunk(2, dim=-1))
        return x.contiguous()

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """x, index, factors, table, kept: what a kernel is passed; `x` in the place of what is absent."""
        table = silu_tables(str(self.x.device))[0].view(torch.int16) if self.glu else self.x
        kept = self.x if self.kept is None else self.kept.view(torch.int16)
        return (
            self.x, self.x if self.index is None else self.index, self.x if self.factor is None else self.factor,
            table, kept,
        )  # fmt: skip

    @property
    def constants(self) -> dict[str, bool]:
        """Which of them there are."""
        return {
            "GATHER": self.index is not None,
            "FACTOR": self.factor is not None,
            "GLU": self.glu,
            "KEEP": self.kept is not None,
        }


@dataclass(frozen=True, eq=False)
class Words:
    """Names random words for rows: key int64 (4,), the key and the first half of the counter; experts and lines, int32
    (R,), what each row adds to it. See `numerics.partition.random_fields`."""

    key: Tensor
    experts: Tensor
    lines: Tensor

    @staticmethod
    def of(random: Random, rows: int, experts: int, device: torch.device) -> Words:
        """Words of a matrix along features: rows by expert as `random` says, or evenly by `experts`."""
        groups = tuple(range(0, rows + 1, rows // experts)) if random.rows is None and experts > 1 and rows else None
        offsets = groups if random.rows is None else check_groups(random.rows, rows, "random.rows")
        return Words(key_words(random, device), *numbered(rows, offsets, str(device)))


def sent(x: Tensor, device: torch.device | str) -> Tensor:
    """A small tensor of the host's on a device, without waiting until it is there."""
    device = torch.device(device)
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def key_words(random: Random, device: torch.device) -> Tensor:
    """int64 (4,): key and counter of `random` as words of 32 bits."""
    return sent(torch.tensor([int(w) & 0xFFFFFFFF for w in (*random.key, *random.counter)]), device)


@cached(maxsize=64)
def numbered(rows: int, offsets: tuple[int, ...] | None, device: str) -> tuple[Tensor, Tensor]:
    """Group of each row and its number there, int32 (rows,)."""
    starts = sent(torch.tensor((0, rows) if offsets is None else offsets), device)
    row = torch.arange(rows, device=device)
    group = _last_not_above(starts, row)
    return group.to(torch.int32), (row - starts[group]).to(torch.int32)


def _last_not_above(starts: Tensor, place: Tensor) -> Tensor:
    """int64: the last of the ascending `starts` that is not above each place; of several equal ones the last."""
    return torch.searchsorted(starts, place, right=True) - 1


@cached(maxsize=64)
def block_table(rows: int, block: int, groups: tuple[int, ...] | None, device: str) -> Tensor:
    """int32 (blocks, 4): first row, number of rows, group, and index in the group, of each block of rows."""
    offsets = (0, rows) if groups is None else groups
    firsts = block_offsets(block, offsets)
    starts, before = sent(torch.tensor(offsets), device), sent(torch.tensor(firsts), device)
    number = torch.arange(firsts[-1], device=device)
    group = _last_not_above(before, number)
    index = number - before[group]
    first = starts[group] + block * index
    counts = (starts[group + 1] - first).clamp(max=block)
    return torch.stack([first, counts, group, index], 1).to(torch.int32)


def block_offsets(block: int, offsets: tuple[int, ...]) -> tuple[int, ...]:
    """Blocks before each group of rows, and all of them."""
    return tuple(accumulate((-(-(b - a) // block) for a, b in pairwise(offsets)), initial=0))


@cached(maxsize=64)
def lines(matrices: int, length: int, step: int, groups: tuple[int, ...] | None, device: str) -> Tensor:
    """int32 (matrices * length,): of each row the line of scales, of which `step` rows share one, anew at each group of
    a single matrix and at each matrix."""
    if groups is not None:
        group, line = numbered(length, groups, device)
        before = sent(torch.tensor(block_offsets(step, groups)), device)
        return (before[group] + line // step).to(torch.int32)
    row = torch.arange(matrices * length, device=device)
    return (row // length * -(-length // step) + row % length // step).to(torch.int32)
