"""What kernels along features quantize, and what they round by: tensors gathered for a launch, on the host."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from numerics import Random
from numerics.cache import cached
from numerics.partition import Partition, check_groups
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
    if offsets is None:
        offsets = (0, rows)
    starts = torch.tensor(offsets[:-1], dtype=torch.int32)
    counts = torch.tensor([b - a for a, b in pairwise(offsets)])
    group = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), counts)
    line = torch.arange(rows, dtype=torch.int32) - starts[group.long()]
    return sent(group, device), sent(line, device)


@cached(maxsize=64)
def block_table(rows: int, block: int, groups: tuple[int, ...] | None, device: str) -> Tensor:
    """int32 (blocks, 4): first row, number of rows, group, and index in the group, of each block of rows."""
    p = Partition.of(rows, block, groups)
    offsets = torch.tensor((0, rows) if groups is None else groups)
    starts = offsets[:-1][p.group_of] + block * p.index_in_group
    counts = (offsets[1:][p.group_of] - starts).clamp(max=block)
    return sent(torch.stack([starts, counts, p.group_of, p.index_in_group], 1).to(torch.int32), device)
