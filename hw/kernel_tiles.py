"""NVFP4 in tiles of 16 x 16: one E4M3 scale a tile, so that a weight and its transpose have the same codes.

A program takes one tile, of which rows and columns beyond the matrix are zeros. The outer scale is given by matrix. The
bits are those of `numerics.quantize` in NVFP4_2D along either axis.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contracts import TO_E2M1, TO_E4M3, Case, Contract, at_least, meta
from .device import require_launch
from .kernel_casts import INFINITY_BITS, bits_of, e2m1_code, float_of, widen
from .kernel_ptx import e2m1_one
from .kernel_scales import nvfp4_scale
from .launches import launch


@triton.jit
def _tile(x, rows, width):
    """float32 (16, 16) of this program, where it lies, and which of it is inside."""
    row, column = tl.program_id(0) * 16 + tl.arange(0, 16), tl.program_id(1) * 16 + tl.arange(0, 16)
    at = (tl.program_id(2).to(tl.int64) * rows + row)[:, None] * width + column[None, :]
    mask = (row < rows)[:, None] & (column < width)[None, :]
    return widen(tl.load(x + at, mask=mask, other=0.0)), at, mask


@triton.jit
def _tiles(x, largest, encodes, codes, scales, rows, width, MEASURE: tl.constexpr, NATIVE: tl.constexpr):
    """Tile (program_id(0), program_id(1)) of matrix program_id(2). MEASURE: only its maximum, as bits, to `largest`."""
    y, at, mask = _tile(x, rows, width)
    bits = tl.max(tl.max(bits_of(y) & 0x7FFFFFFF, 1), 0)
    finite = bits < INFINITY_BITS
    bits = tl.where(finite, bits, 0)
    if MEASURE:
        tl.atomic_max(largest + tl.program_id(2), bits)
    else:
        encode = tl.load(encodes + tl.program_id(2))
        code, factor = nvfp4_scale(float_of(bits), encode, tl.div_rn(1.0, encode), NATIVE)
        place = (tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)) * tl.num_programs(1) + tl.program_id(1)
        tl.store(scales + place, tl.where(finite, code, 0x7F).to(tl.uint8))
        if NATIVE:
            code = e2m1_one(y * factor)
        else:
            code = e2m1_code(tl.abs(y) * factor) | ((bits_of(y) >> 28) & 8)
        code = tl.where(finite, code, 7)
        tl.store(codes + at, code.to(tl.uint8), mask=mask)


def tile_amax(x: Tensor) -> Tensor:
    """float32 (E,): the largest maximum of a finite tile of each matrix of x (E, R, K), FP32 or BF16, contiguous."""
    require_launch(_tiles, x, "x")
    largest = torch.zeros(len(x), dtype=torch.int32, device=x.device)
    if x.numel():
        launch(_tiles, _grid(x), x, largest, x, x, x, *x.shape[1:], MEASURE=True, num_warps=1)
    return largest.view(torch.float32)


def tiles(x: Tensor, encode: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (E, R, K), one a byte, and scales (E, ceil(R / 16), ceil(K / 16)) of x (E, R, K), FP32 or BF16, contiguous.

    Args: encode: float32 (E,), encode scales. Raises: ValueError where the kernel cannot run.
    """
    require_launch(_tiles, x, "x")
    codes = x.new_empty(x.shape, dtype=torch.uint8)
    scales = x.new_empty(len(x), triton.cdiv(x.shape[1], 16), triton.cdiv(x.shape[2], 16), dtype=torch.uint8)
    if x.numel():
        launch(_tiles, _grid(x), x, x, encode, codes, scales, *x.shape[1:], MEASURE=False, num_warps=1)
    return codes, scales


def _grid(x: Tensor) -> tuple[int, int, int]:
    return triton.cdiv(x.shape[1], 16), triton.cdiv(x.shape[2], 16), len(x)


CONTRACT = Contract(  # a thread has 8 values of a tile
    (
        Case(
            "codes",
            lambda: tiles(meta(8, 512, 512), meta(8, dtype=torch.float32)),
            native=(at_least(TO_E2M1, 4), at_least(TO_E4M3, 1)),
        ),
        Case("largest first", lambda: tile_amax(meta(8, 512, 512))),
    ),
    ran="h200_triton",
    interpreted="test_hw_ops.py",
    native="test_hw_native.py",
)
