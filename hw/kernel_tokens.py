"""MXFP8 along tokens: blocks of 32 rows of one expert, E4M3 codes under E8M0 scales by rceil, nearest or stochastic.

A program takes one block of rows and some columns, and a thread whole columns of it, so that maxima need no other
thread; it reads the block twice, the second time from the cache. Sources: FP32 or BF16 values, or the codes of saved
operands along features, NVFP4 (packed) or MXFP8, which are decoded on the way: (code * block scale) * outer, and then
times a factor of the row, each an FP32 product. The bits are those of `numerics.ops.requantize_transpose`.

Random words: counter (c0, c1 + expert, column, group of 16 rows within the expert), see `numerics.partition`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerics import Random

from .contracts import E2M1_TO_F16, TO_E4M3, TO_E4M3_DRAWN, TO_E8M0, Case, Contract, at_least, exactly, meta
from .device import require_launch
from .kernel_casts import (
    E4M3,
    INFINITY_BITS,
    bits_of,
    e4m3_byte,
    e4m3_decoded,
    e4m3_drawn,
    e4m3_signed,
    e8m0_value,
    finite,
    float_of,
    power_reciprocal,
    widen,
)
from .kernel_ptx import e2m1_pair, e4m3_four_drawn, e4m3_number
from .kernel_scales import rceil
from .launches import launch
from .philox import philox_words, reverse32
from .sources import block_table, key_words

TWO_63 = tl.constexpr(9.223372036854775808e18)
FLOATS, NVFP4, MXFP8 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _raw(byte, SHIFT: tl.constexpr):
    """float32 of the E2M1 codes that a shift moves to the top of an int32, times 2^-126: sign and magnitude bits in
    their places."""
    return float_of(((byte << SHIFT) >> 6) & -0x7E400000)


@triton.jit
def _nvfp4(x, scales, row, width, ok, COLUMNS: tl.constexpr):
    """float32 (COLUMNS,): a row of packed codes times block scales, times 2^-63, from program_id(1) * COLUMNS on."""
    block = tl.program_id(1) * (COLUMNS // 16) + tl.arange(0, COLUMNS // 16)
    mask = (block < width // 16) & ok
    at = (row * (width // 16) + block)[:, None] * 8 + tl.arange(0, 8)[None, :]
    byte = tl.load(x + at, mask=mask[:, None], other=0).to(tl.int32)
    scale = e4m3_decoded(tl.load(scales + row * (width // 16) + block, mask=mask, other=0).to(tl.int32))
    scale = (scale * TWO_63)[:, None]
    return tl.reshape(tl.join(_raw(byte, 28) * scale, _raw(byte, 24) * scale), (COLUMNS,))


@triton.jit
def _nvfp4_native(x, scales, row, width, ok, COLUMNS: tl.constexpr):
    """float32 (COLUMNS,): a row of packed codes times block scales."""
    block = tl.program_id(1) * (COLUMNS // 16) + tl.arange(0, COLUMNS // 16)
    mask = (block < width // 16) & ok
    at = (row * (width // 16) + block)[:, None] * 8 + tl.arange(0, 8)[None, :]
    low, high = e2m1_pair(tl.load(x + at, mask=mask[:, None], other=0).to(tl.int32))
    scale = e4m3_number(tl.load(scales + row * (width // 16) + block, mask=mask, other=0).to(tl.int32))[:, None]
    return tl.reshape(tl.join(low * scale, high * scale), (COLUMNS,))


@triton.jit
def _mxfp8(x, scales, row, width, ok, COLUMNS: tl.constexpr):
    """float32 (COLUMNS,): a row of codes times block scales, finite."""
    block = tl.program_id(1) * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
    mask = (block < width // 32) & ok
    at = (row * (width // 32) + block)[:, None] * 32 + tl.arange(0, 32)[None, :]
    code = tl.load(x + at, mask=mask[:, None], other=0)
    power = tl.load(scales + row * (width // 32) + block, mask=mask, other=127).to(tl.int32)
    y = e4m3_byte(code) * e8m0_value(power)[:, None]
    if tl.max(power, 0) >= 246:  # 448 * 2^119 may be beyond float32
        y = finite(y)
    return tl.reshape(y, (COLUMNS,))


@triton.jit
def _row(
    x, scales, outers, factors, row, width, ok,
    SOURCE: tl.constexpr, OUTER: tl.constexpr, FACTOR: tl.constexpr, COLUMNS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """float32 (COLUMNS,): row `row`, or zeros where it is not `ok`."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if SOURCE == NVFP4 and NATIVE:
        y = _nvfp4_native(x, scales, row, width, ok, COLUMNS)
        if OUTER:
            outer = tl.load(outers + row, mask=ok, other=0.0)
            y = y * outer
            if outer > 1e15:
                y = finite(y)
    elif SOURCE == NVFP4:
        y = _nvfp4(x, scales, row, width, ok, COLUMNS)
        if OUTER:
            outer = tl.load(outers + row, mask=ok, other=0.0)
            if outer > 1e15:
                y = finite(y * TWO_63 * outer)
            else:  # 2^63 passes from one factor to the other: both are exact, and so is what the product is of
                y = y * (outer * TWO_63)
        else:
            y = y * TWO_63
    else:
        if SOURCE == MXFP8:
            y = _mxfp8(x, scales, row, width, ok, COLUMNS)
        else:
            y = widen(tl.load(x + row * width + column, mask=(column < width) & ok, other=0.0))
        if OUTER:
            y = finite(y * tl.load(outers + row, mask=ok, other=0.0))
    if FACTOR:
        y = y * tl.load(factors + row, mask=ok, other=0.0)
    return y


@triton.jit
def _word(w0, w1, w2, w3, J: tl.constexpr):
    """The word of a group that serves element J of 16."""
    return w0 if J // 4 == 0 else w1 if J // 4 == 1 else w2 if J // 4 == 2 else w3


@triton.jit
def _field(w0, w1, w2, w3, J: tl.constexpr):
    """Field (uint32 below 2^16) of element J of 16 from the words of its group: see `philox.group_fields`."""
    word = _word(w0, w1, w2, w3, J)
    if J % 2 == 1:  # the halves of a reversed word are the reversed halves, in the other order
        word = reverse32(word)
    return word & 0xFFFF if J % 4 == 0 or J % 4 == 3 else word >> 16


@triton.jit
def _tokens(
    x, scales_in, outers, factors, table, key, codes, scales, width,
    SOURCE: tl.constexpr, OUTER: tl.constexpr, FACTOR: tl.constexpr, DRAWN: tl.constexpr, COLUMNS: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Block program_id(0), columns of program_id(1)."""
    block = tl.program_id(0)
    first = tl.load(table + 4 * block).to(tl.int64)
    count = tl.load(table + 4 * block + 1)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < width
    # rows are counted from the block's first one: what lies inside a block needs no 64-bit places
    if SOURCE == NVFP4:
        x += first * (width // 2)
        scales_in += first * (width // 16)
    else:
        x += first * width
        if SOURCE == MXFP8:
            scales_in += first * (width // 32)
    codes += first * width
    outers += first
    factors += first
    largest = tl.zeros((COLUMNS,), tl.int32)
    for quarter in range(8):
        for i in tl.static_range(4):
            place = quarter * 4 + i
            y = _row(x, scales_in, outers, factors, place, width, place < count, SOURCE, OUTER, FACTOR, COLUMNS, NATIVE)
            largest = tl.maximum(largest, bits_of(y) & 0x7FFFFFFF)
    finite_block = largest < INFINITY_BITS
    scale = rceil(float_of(tl.where(finite_block, largest, 0)), E4M3, NATIVE)
    inverse = power_reciprocal(scale)
    tl.store(scales + block.to(tl.int64) * width + column, tl.where(finite_block, scale, 0xFF).to(tl.uint8), mask=mask)
    zero = (column ^ column).to(tl.uint32)
    for g in range(2):
        if DRAWN:
            w0, w1, w2, w3 = philox_words(
                zero + tl.load(key).to(tl.uint32), zero + tl.load(key + 1).to(tl.uint32),
                zero + tl.load(key + 2).to(tl.uint32),
                zero + tl.load(key + 3).to(tl.uint32) + tl.load(table + 4 * block + 2).to(tl.uint32),
                column.to(tl.uint32), zero + (tl.load(table + 4 * block + 3) * 2 + g).to(tl.uint32),
            )  # fmt: skip
        for j in tl.static_range(16):
            row = g * 16 + j
            y = _row(x, scales_in, outers, factors, row, width, row < count, SOURCE, OUTER, FACTOR, COLUMNS, NATIVE)
            y = y * inverse
            if DRAWN and NATIVE:
                # the instruction takes four rows, the numbers of one random word: their codes are stored behind them
                if j % 4 == 0:
                    y0 = y
                elif j % 4 == 1:
                    y1 = y
                elif j % 4 == 2:
                    y2 = y
                else:
                    word = e4m3_four_drawn(y0, y1, y2, y, _word(w0, w1, w2, w3, j))
                    word = tl.where(finite_block, word, 0x7E7E7E7E)
                    for i in tl.static_range(4):
                        at = codes + (row - 3 + i) * width + column
                        tl.store(at, (word >> (8 * i)).to(tl.uint8), mask=mask & (row - 3 + i < count))
            else:
                if DRAWN:
                    field = _field(w0, w1, w2, w3, j).to(tl.int32)
                    code = e4m3_drawn(tl.minimum(tl.abs(y), 448.0), field) | ((bits_of(y) >> 24) & 0x80)
                else:
                    code = e4m3_signed(y)
                code = tl.where(finite_block, code, 0x7E)
                tl.store(codes + row * width + column, code.to(tl.uint8), mask=mask & (row < count))


def tokens(
    x: Tensor,
    groups: tuple[int, ...] | None,
    scales: Tensor | None = None,
    outer: Tensor | None = None,
    factor: Tensor | None = None,
    random: Random | None = None,
) -> tuple[Tensor, Tensor]:
    """MXFP8 codes (R, K) and scales (blocks, K) of rows, blocks starting anew at each group.

    Args:
        x: contiguous: FP32 or BF16 values (R, K); or with `scales` (R, K / 16) packed E2M1 codes (R, K / 2); or with
            `scales` (R, K / 32) E4M3 codes (R, K), uint8. outer: float32 (R,) of those. factor: float32 (R,), the last
            factor. random: for stochastic rounding.

    Raises: ValueError where the kernel cannot run.
    """
    require_launch(_tokens, x, "x")
    packed = scales is not None and scales.shape[1] * 8 == x.shape[1]
    rows, width = x.shape[0], x.shape[1] * (2 if packed else 1)
    table = block_table(rows, 32, groups, str(x.device))
    codes = x.new_empty(rows, width, dtype=torch.uint8)
    out = x.new_empty(len(table), width, dtype=torch.uint8)
    if codes.numel():
        columns = min(512 if scales is not None else 256, max(32, triton.next_power_of_2(width)))
        launch(
            _tokens, (len(table), triton.cdiv(width, columns)), x, x if scales is None else scales,
            x if outer is None else outer, x if factor is None else factor, table,
            table if random is None else key_words(random, x.device), codes, out, width,
            SOURCE=FLOATS if scales is None else NVFP4 if packed else MXFP8, OUTER=outer is not None,
            FACTOR=factor is not None, DRAWN=random is not None, COLUMNS=columns,
        )  # fmt: skip
    return codes, out


def _saved(width: int) -> tuple[Tensor, Tensor]:
    return meta(1024, width // 2, dtype=torch.uint8), meta(1024, width // 16, dtype=torch.uint8)


CONTRACT = Contract(  # in a loop of 16 rows, 2 columns a thread, of codes 4
    (
        Case(
            "values, nearest", lambda: tokens(meta(1024, 4096), (0, 500, 1024)),
            native=(exactly(TO_E4M3, 16), at_least(TO_E8M0, 1)), portable=(exactly(TO_E4M3, 16),),
        ),
        Case(
            "saved NVFP4, stochastic",
            lambda: tokens(
                _saved(4096)[0], (0, 500, 1024), _saved(4096)[1], meta(1024, dtype=torch.float32),
                meta(1024, dtype=torch.float32), Random((0, 1)),
            ),
            native=(exactly(TO_E4M3_DRAWN, 32), at_least(E2M1_TO_F16, 32), at_least(TO_E8M0, 1)),
        ),
        Case(
            "saved MXFP8, stochastic",
            lambda: tokens(
                meta(1024, 4096, dtype=torch.uint8), (0, 500, 1024), meta(1024, 128, dtype=torch.uint8),
                random=Random((0, 1)),
            ),
            native=(exactly(TO_E4M3_DRAWN, 32), at_least(TO_E8M0, 1)),
        ),
    ),
    ran="h200_triton",
    interpreted="test_hw_tokens.py",
    native="test_hw_native.py",
)  # fmt: skip
