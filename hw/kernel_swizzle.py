"""Block scales in the 128x4 layout, group by group: what block-scaled products of Blackwell read.

An atom holds the scales of 128 rows of an operand (lines of its result) by 4 blocks along the contraction, in 512
bytes: that of row r and block c is byte (r % 32) * 16 + (r // 32) * 4 + c, as in `numerics.layout.swizzle_scales`. Each
group of rows, or each group along the contraction, starts atoms of its own, and atoms of a group follow each other as
there, along the contraction first; so that a product may start at any group. What an atom has beyond its group is zero
bytes: 0 in E4M3, 2^-127 in E8M0, and no NaN in either.

A program writes four atoms: along the contraction where scales lie so, else along the rows. Bytes only: exact.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerics.cache import cached

from .device import require_launch
from .launches import launch
from .sources import block_table, sent

ROWS, BLOCKS, BYTES = 128, 4, 512  # of an atom


@triton.jit
def _swizzle(scales, table, out, width, count, ACROSS: tl.constexpr, ATOMS: tl.constexpr):
    """ATOMS of the `count` atoms of line program_id(0) of the table: 128 lines of scales, or, ACROSS, 4.

    table: int32 (lines, 4): first line, number of lines, and if ACROSS the atoms along the contraction before this
    group and in it. width: scales in a line.
    """
    entry = tl.program_id(0)
    first, lines = tl.load(table + 4 * entry).to(tl.int64), tl.load(table + 4 * entry + 1)
    place = tl.arange(0, 512 * ATOMS)
    atom = tl.program_id(1) * ATOMS + place // 512
    byte = place % 512
    row, block = byte // 16 + byte // 4 % 4 * 32, byte % 4
    if ACROSS:
        line, column = block, atom * 128 + row
        before, own = tl.load(table + 4 * entry + 2), tl.load(table + 4 * entry + 3)
        to = before.to(tl.int64) * count + (entry - before) + atom.to(tl.int64) * own
    else:
        line, column = row, atom * 4 + block
        to = entry.to(tl.int64) * count + atom
    value = tl.load(scales + (first + line) * width + column, mask=(line < lines) & (column < width), other=0)
    tl.store(out + to * 512 + byte, value, mask=atom < count)


def _swizzled(scales: Tensor, table: Tensor, across: bool) -> Tensor:
    require_launch(_swizzle, scales, "scales")
    count = triton.cdiv(scales.shape[1], ROWS if across else BLOCKS)
    out = scales.new_empty(len(table), count, BYTES)
    if out.numel():
        atoms = min(4, triton.next_power_of_2(count))
        launch(
            _swizzle, (len(table), triton.cdiv(count, atoms)), scales, table, out, scales.shape[1], count,
            ACROSS=across, ATOMS=atoms,
        )  # fmt: skip
    return out


def swizzle_rows(scales: Tensor, groups: tuple[int, ...] | None = None) -> Tensor:
    """Scales along features: uint8 (R, blocks), contiguous -> (tiles, ceil(blocks / 4), 512), tiles of 128 rows that
    start anew at each group.

    Raises: ValueError where the kernel cannot run.
    """
    return _swizzled(scales, block_table(len(scales), ROWS, groups, str(scales.device)), False)


def swizzle_columns(scales: Tensor, groups: tuple[int, ...] | None = None) -> Tensor:
    """Scales of blocks along the first axis: uint8 (blocks, C), contiguous, groups offsets of blocks ->
    (atoms along the contraction, ceil(C / 128), 512) bytes, in which a group's atoms lie as its own transposed matrix
    has them: (ceil(C / 128), its atoms along the contraction, 512).

    Raises: ValueError where the kernel cannot run.
    """
    return _swizzled(scales, _columns_table((0, len(scales)) if groups is None else groups, str(scales.device)), True)


@cached(maxsize=64)
def _columns_table(groups: tuple[int, ...], device: str) -> Tensor:
    """int32 (atoms along the contraction, 4): see `_swizzle`."""
    own = [-(-(j - i) // BLOCKS) for i, j in pairwise(groups)]
    lines = [
        (first, min(BLOCKS, j - first), before, n)
        for (i, j), n, before in zip(pairwise(groups), own, accumulate(own, initial=0), strict=False)
        for first in range(i, j, BLOCKS)
    ]
    return sent(torch.tensor(lines, dtype=torch.int32).view(-1, 4), device)


def samples() -> dict[str, Callable[[], Tensor]]:
    """Launches of each variant by name, of tensors without storage: for `launches.catching`."""
    along, across = (torch.empty(n, m, dtype=torch.uint8, device="meta") for n, m in ((1000, 128), (64, 512)))
    return {"rows": lambda: swizzle_rows(along, (0, 100, 100, 1000)), "columns": lambda: swizzle_columns(across)}
