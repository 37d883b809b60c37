"""Rows of up to three tensors gathered by one index, in one launch: codes, scales and outer scales of a dispatch.

    out[m] = rows[index[m]]

Bytes are moved, so that any dtype keeps its bits, NaN payloads too: as int32 words where a row is whole words, else one
by one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contracts import Case, Contract, meta
from .device import require_launch
from .launches import launch

MOST = 3
TILE = 1024  # words of a program


@triton.jit
def _copy(index, source, out, count, width, program, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Tile number `program` of out (count, width), ROWS by WIDTH."""
    across = tl.cdiv(width, WIDTH)
    row = (program // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % across) * WIDTH + tl.arange(0, WIDTH)[None, :]
    taken = tl.load(index + row, mask=row < count, other=0)[:, None]
    inside = (row < count)[:, None] & (column < width)
    tl.store(out + row[:, None] * width + column, tl.load(source + taken * width + column, mask=inside), mask=inside)


@triton.jit
def _permute(
    index, x, y, z, to_x, to_y, to_z, count, width_x, width_y, width_z, first_y, first_z,
    ROWS_X: tl.constexpr, ROWS_Y: tl.constexpr, ROWS_Z: tl.constexpr,
    WIDTH_X: tl.constexpr, WIDTH_Y: tl.constexpr, WIDTH_Z: tl.constexpr,
):  # fmt: skip
    """Programs before first_y have tiles of x, those before first_z of y, the others of z."""
    program = tl.program_id(0)
    if program < first_y:
        _copy(index, x, to_x, count, width_x, program, ROWS_X, WIDTH_X)
    elif program < first_z:
        _copy(index, y, to_y, count, width_y, program - first_y, ROWS_Y, WIDTH_Y)
    else:
        _copy(index, z, to_z, count, width_z, program - first_z, ROWS_Z, WIDTH_Z)


def _words(x: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Both as int32 words where a row of `like`, (R, W) and contiguous, is whole words, else as bytes."""
    whole = like.shape[1] * like.element_size() % 4 == 0 and like.data_ptr() % 4 == 0
    aligned = like.storage_offset() * like.element_size() % 4 == 0  # what `view` asks for
    dtype = torch.int32 if whole and aligned else torch.uint8
    return x.view(dtype), like.view(dtype)


def permute(index: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """Rows `index` of each tensor, as `index_select(0, index)` gives them.

    Args: index: int64 (M,). rows: one to three tensors (R, W) of any dtypes and widths, with the same R.

    Returns: a tuple of tensors (M, W), in their order.
    Raises: ValueError for another number of tensors, or without a device that kernels can run on. All else is the
        caller's to check.
    """
    require_launch(_permute, index, "index")
    if not 1 <= len(rows) <= MOST:
        raise ValueError(f"rows are {len(rows)} tensors: pass 1 to {MOST}")
    outs = tuple(torch.empty(len(index), x.shape[1], dtype=x.dtype, device=x.device) for x in rows)
    pairs = [_words(out, x.contiguous()) for out, x in zip(outs, rows, strict=True) if out.numel()]
    if not pairs:
        return outs
    pairs += [pairs[-1]] * (MOST - len(pairs))  # absent ones have no programs
    sources, targets = [x for _, x in pairs], [out for out, _ in pairs]
    widths = [out.shape[1] for out in targets]
    wide = [min(triton.next_power_of_2(width), TILE) for width in widths]
    high = [TILE // w for w in wide]
    present = sum(out.numel() > 0 for out in outs)
    tiles = [
        triton.cdiv(len(index), high[i]) * triton.cdiv(widths[i], wide[i]) if i < present else 0 for i in range(MOST)
    ]
    launch(
        _permute, (sum(tiles),),
        index.contiguous(), *sources, *targets, len(index), *widths, tiles[0], tiles[0] + tiles[1],
        *high, *wide,
    )  # fmt: skip
    return outs


def _dispatched() -> tuple[Tensor, ...]:
    codes, scales = meta(256, 2048, dtype=torch.uint8), meta(256, 256, dtype=torch.uint8)
    return permute(meta(512, dtype=torch.int64), codes, scales, meta(256, 1, dtype=torch.float32))


CONTRACT = Contract(
    (Case("codes, scales and outer scales", _dispatched),), ran="h200_tests.json", interpreted="test_hw_permute.py"
)
