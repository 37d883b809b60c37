"""MXFP8 along features and along tokens in one read: a gradient that both products of its matrix take.

A program takes 32 rows of one expert and some columns, finds the maximum of every 32 values of a row and of every
column, and writes E4M3 codes under E8M0 scales by rceil twice, nearest. The bits are those of two `numerics.quantize`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contracts import TO_E4M3, TO_E8M0, Case, Contract, at_least, exactly, meta
from .device import require_launch
from .kernel_casts import E4M3, INFINITY_BITS, bits_of, e4m3_signed, float_of, power_reciprocal, widen
from .kernel_scales import rceil
from .launches import launch
from .sources import block_table


@triton.jit
def _scale(largest, NATIVE: tl.constexpr):
    """E8M0 codes to store, factors and which blocks are finite, of maxima as bits."""
    finite = largest < INFINITY_BITS
    scale = rceil(float_of(tl.where(finite, largest, 0)), E4M3, NATIVE)
    return tl.where(finite, scale, 0xFF).to(tl.uint8), power_reciprocal(scale), finite


@triton.jit
def _both(x, table, codes, scales, codes_tokens, scales_tokens, width, COLUMNS: tl.constexpr, NATIVE: tl.constexpr):
    """Block of rows program_id(0), columns of program_id(1)."""
    WIDE: tl.constexpr = COLUMNS // 32
    block = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, 32)
    inside = row < tl.load(table + 4 * block + 1)
    row = tl.load(table + 4 * block).to(tl.int64) + row
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    y = widen(tl.load(x + at, mask=mask, other=0.0))
    bits = bits_of(y) & 0x7FFFFFFF

    stored, factor, finite = _scale(tl.max(tl.reshape(bits, (32, WIDE, 32)), 2), NATIVE)
    code = e4m3_signed(tl.reshape(y, (32, WIDE, 32)) * factor[:, :, None])
    code = tl.reshape(tl.where(finite[:, :, None], code, 0x7E), (32, COLUMNS))
    tl.store(codes + at, code.to(tl.uint8), mask=mask)
    place = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    there = inside[:, None] & (place < width // 32)[None, :]
    tl.store(scales + row[:, None] * (width // 32) + place[None, :], stored, mask=there)

    stored, factor, finite = _scale(tl.max(bits, 0), NATIVE)
    code = tl.where(finite[None, :], e4m3_signed(y * factor[None, :]), 0x7E)
    tl.store(codes_tokens + at, code.to(tl.uint8), mask=mask)
    tl.store(scales_tokens + block * width + column, stored, mask=column < width)


def both(x: Tensor, groups: tuple[int, ...] | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes (R, K) and scales (R, K / 32) along features, codes (R, K) and scales (blocks, K) along tokens.

    Args: x: FP32 or BF16 (R, K), contiguous, K a multiple of 32. groups: offsets at which blocks of rows start anew.
    Raises: ValueError where the kernel cannot run, or for another width.
    """
    require_launch(_both, x, "x")
    rows, width = x.shape
    if width % 32:
        raise ValueError(f"x has rows of {width} values: this kernel takes multiples of 32; quantize along each axis")
    table = block_table(rows, 32, groups, str(x.device))
    codes, codes_tokens = x.new_empty(2, rows, width, dtype=torch.uint8).unbind(0)
    scales, scales_tokens = (
        x.new_empty(rows, width // 32, dtype=torch.uint8),
        x.new_empty(len(table), width, dtype=torch.uint8),
    )
    if x.numel():
        columns = min(256, triton.next_power_of_2(width))
        grid = len(table), triton.cdiv(width, columns)
        launch(
            _both, grid, x, table, codes, scales, codes_tokens, scales_tokens, width, COLUMNS=columns
        )  # fmt: skip
    return codes, scales, codes_tokens, scales_tokens


CONTRACT = Contract(  # a thread has 64 values, along two axes
    (
        Case(
            "rows of experts", lambda: both(meta(1024, 4096), (0, 500, 1024)),
            native=(exactly(TO_E4M3, 64), at_least(TO_E8M0, 2)), portable=(exactly(TO_E4M3, 64),),
        ),
    ),
    ran="h200_tests.json",
    interpreted="test_hw_both.py",
    native="test_hw_native.py",
)  # fmt: skip
