"""NVFP4 along tokens: blocks of 16 rows of one expert, after a Hadamard-16 along them or not, under a tensor's scale.

A thread holds whole columns of a block, in two pieces of eight rows, or natively row by row: the instructions take
eight numbers of a column. The outer scale comes from the largest block
maximum, which a pass before finds with the same code; a transformed group is filled up with zero rows, which are stored
then. The bits are those of `numerics.quantize` by rule `nvfp4`, of `numerics.hadamard` before it.

Random words: counter (c0, c1 + expert, column, block within the expert), see `numerics.partition`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerics import Random
from numerics.outer import outer_scale

from .contracts import TO_E2M1, TO_E2M1_DRAWN, TO_E4M3, Case, Contract, at_least, exactly, meta
from .device import require_launch
from .kernel_casts import (
    INFINITY_BITS,
    bits_of,
    e2m1_code,
    e2m1_drawn,
    float_of,
    three_stages,
    widen,
)
from .kernel_nvfp4 import largest_bits
from .kernel_pieces import drawn_fields, drawn_words
from .kernel_ptx import e2m1_word, e2m1_word_drawn
from .kernel_scales import nvfp4_scale
from .launches import launch
from .sources import block_table, key_words


@triton.jit
def _eight_rows(x, first, start, count, column, width, COLUMNS: tl.constexpr):
    """float32 (COLUMNS, 8): rows `start` to `start` + 7 of a block of `count`."""
    i = start + tl.arange(0, 8)
    mask = (column < width)[:, None] & (i < count)[None, :]
    return widen(tl.load(x + (first + i)[None, :] * width + column[:, None], mask=mask, other=0.0))


@triton.jit
def _codes(y, field, finite, DRAWN: tl.constexpr):
    """E2M1 codes of scaled values (COLUMNS, 8)."""
    if DRAWN:
        code = e2m1_drawn(tl.abs(y), field)
    else:
        code = e2m1_code(tl.abs(y))
    return tl.where(finite[:, None], code | ((bits_of(y) >> 28) & 8), 7).to(tl.uint8)


@triton.jit
def _row(x, row, count, column, width):
    """float32 (COLUMNS,): a row of a block of `count`, counted from the block's first one, at x."""
    return widen(tl.load(x + row * width + column, mask=(column < width) & (row < count), other=0.0))


@triton.jit
def _eight_apart(x, start, count, column, width, signs, HADAMARD: tl.constexpr):
    """Rows `start` to `start` + 7 of a block at x, each (COLUMNS,), after the first three stages or not."""
    x0, x1 = _row(x, start, count, column, width), _row(x, start + 1, count, column, width)
    x2, x3 = _row(x, start + 2, count, column, width), _row(x, start + 3, count, column, width)
    x4, x5 = _row(x, start + 4, count, column, width), _row(x, start + 5, count, column, width)
    x6, x7 = _row(x, start + 6, count, column, width), _row(x, start + 7, count, column, width)
    if HADAMARD:
        signs += start
        x0, x1, x2, x3 = x0 * tl.load(signs), x1 * tl.load(signs + 1), x2 * tl.load(signs + 2), x3 * tl.load(signs + 3)
        signs += 4
        x4, x5, x6, x7 = x4 * tl.load(signs), x5 * tl.load(signs + 1), x6 * tl.load(signs + 2), x7 * tl.load(signs + 3)
        x0, x1, x2, x3, x4, x5, x6, x7 = x0 + x1, x0 - x1, x2 + x3, x2 - x3, x4 + x5, x4 - x5, x6 + x7, x6 - x7
        x0, x1, x2, x3, x4, x5, x6, x7 = x0 + x2, x1 + x3, x0 - x2, x1 - x3, x4 + x6, x5 + x7, x4 - x6, x5 - x7
        x0, x1, x2, x3, x4, x5, x6, x7 = x0 + x4, x1 + x5, x2 + x6, x3 + x7, x0 - x4, x1 - x5, x2 - x6, x3 - x7
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _largest_apart(x0, x1, x2, x3, x4, x5, x6, x7):
    """Bits of the largest magnitude, as `largest_bits`."""
    low = tl.maximum(tl.maximum(_magnitude(x0), _magnitude(x1)), tl.maximum(_magnitude(x2), _magnitude(x3)))
    high = tl.maximum(tl.maximum(_magnitude(x4), _magnitude(x5)), tl.maximum(_magnitude(x6), _magnitude(x7)))
    return tl.maximum(low, high)


@triton.jit
def _magnitude(x):
    return bits_of(x) & 0x7FFFFFFF


@triton.jit
def _store_apart(to, word, rows, start, width, inside):
    """The codes of eight rows from `start` on, of which the destination has `rows`."""
    for i in tl.static_range(8):
        code = ((word >> (4 * i)) & 15).to(tl.uint8)
        tl.store(to + (start + i) * width, code, mask=inside & (start + i < rows))


@triton.jit
def _native(
    x, table, signs, largest, encodes, key, codes, scales, width,
    HADAMARD: tl.constexpr, DRAWN: tl.constexpr, MEASURE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`_tokens_nvfp4` by the instructions, row by row."""
    block = tl.program_id(0)
    count = tl.load(table + 6 * block + 1)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    x += tl.load(table + 6 * block).to(tl.int64) * width
    a0, a1, a2, a3, a4, a5, a6, a7 = _eight_apart(x, 0, count, column, width, signs, HADAMARD)
    b0, b1, b2, b3, b4, b5, b6, b7 = _eight_apart(x, 8, count, column, width, signs, HADAMARD)
    if HADAMARD:
        a0, b0, a1, b1 = (a0 + b0) * 0.25, (a0 - b0) * 0.25, (a1 + b1) * 0.25, (a1 - b1) * 0.25
        a2, b2, a3, b3 = (a2 + b2) * 0.25, (a2 - b2) * 0.25, (a3 + b3) * 0.25, (a3 - b3) * 0.25
        a4, b4, a5, b5 = (a4 + b4) * 0.25, (a4 - b4) * 0.25, (a5 + b5) * 0.25, (a5 - b5) * 0.25
        a6, b6, a7, b7 = (a6 + b6) * 0.25, (a6 - b6) * 0.25, (a7 + b7) * 0.25, (a7 - b7) * 0.25
    bits = _largest_apart(a0, a1, a2, a3, a4, a5, a6, a7)
    bits = tl.maximum(bits, _largest_apart(b0, b1, b2, b3, b4, b5, b6, b7))
    finite = bits < INFINITY_BITS
    bits = tl.where(finite, bits, 0)
    if MEASURE:
        tl.atomic_max(largest, tl.max(bits, 0))
    else:
        encode = tl.load(encodes)
        code, f = nvfp4_scale(float_of(bits), encode, tl.div_rn(1.0, encode), True)
        inside = column < width
        tl.store(
            scales + block.to(tl.int64) * width + column, tl.where(finite, code, 0x7F).to(tl.uint8), mask=inside
        )  # fmt: skip
        a0, a1, a2, a3, a4, a5, a6, a7 = a0 * f, a1 * f, a2 * f, a3 * f, a4 * f, a5 * f, a6 * f, a7 * f
        b0, b1, b2, b3, b4, b5, b6, b7 = b0 * f, b1 * f, b2 * f, b3 * f, b4 * f, b5 * f, b6 * f, b7 * f
        if DRAWN:
            zero = column ^ column
            expert, group = tl.load(table + 6 * block + 2) + zero, tl.load(table + 6 * block + 3) + zero
            w0, w1, w2, w3 = drawn_words(key, expert, column, group)
            a = e2m1_word_drawn(a0, a1, a2, a3, a4, a5, a6, a7, w0, w1)
            b = e2m1_word_drawn(b0, b1, b2, b3, b4, b5, b6, b7, w2, w3)
        else:
            a, b = e2m1_word(a0, a1, a2, a3, a4, a5, a6, a7), e2m1_word(b0, b1, b2, b3, b4, b5, b6, b7)
        to = codes + tl.load(table + 6 * block + 4).to(tl.int64) * width + column
        rows = tl.load(table + 6 * block + 5)
        _store_apart(to, tl.where(finite, a, 0x77777777), rows, 0, width, inside)
        _store_apart(to, tl.where(finite, b, 0x77777777), rows, 8, width, inside)


@triton.jit
def _tokens_nvfp4(
    x, table, signs, largest, encodes, key, codes, scales, width,
    HADAMARD: tl.constexpr, DRAWN: tl.constexpr, MEASURE: tl.constexpr, COLUMNS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Block program_id(0), columns of program_id(1). MEASURE: only the largest block maximum, as bits, to `largest`."""
    if NATIVE:
        _native(
            x, table, signs, largest, encodes, key, codes, scales, width, HADAMARD, DRAWN, MEASURE, COLUMNS
        )  # fmt: skip
    else:
        _portable(
            x, table, signs, largest, encodes, key, codes, scales, width, HADAMARD, DRAWN, MEASURE, COLUMNS
        )  # fmt: skip


@triton.jit
def _portable(
    x, table, signs, largest, encodes, key, codes, scales, width,
    HADAMARD: tl.constexpr, DRAWN: tl.constexpr, MEASURE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`_tokens_nvfp4` in FP32 and integers, pieces of eight rows."""
    block = tl.program_id(0)
    first, count = tl.load(table + 6 * block).to(tl.int64), tl.load(table + 6 * block + 1)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    a = _eight_rows(x, first, 0, count, column, width, COLUMNS)
    b = _eight_rows(x, first, 8, count, column, width, COLUMNS)
    if HADAMARD:
        i = tl.arange(0, 8)
        a = three_stages(a * tl.load(signs + i)[None, :], COLUMNS)
        b = three_stages(b * tl.load(signs + 8 + i)[None, :], COLUMNS)
        a, b = (a + b) * 0.25, (a - b) * 0.25
    bits = tl.maximum(largest_bits(a), largest_bits(b))
    finite = bits < INFINITY_BITS
    bits = tl.where(finite, bits, 0)
    if MEASURE:
        tl.atomic_max(largest, tl.max(bits, 0))
    else:
        encode = tl.load(encodes)
        code, factor = nvfp4_scale(float_of(bits), encode, tl.div_rn(1.0, encode), False)
        inside = column < width
        place = block.to(tl.int64) * width + column
        tl.store(scales + place, tl.where(finite, code, 0x7F).to(tl.uint8), mask=inside)
        if DRAWN:
            expert = tl.load(table + 6 * block + 2) + (column ^ column)
            fa, fb = drawn_fields(
                key, expert, column, tl.load(table + 6 * block + 3) + (column ^ column), COLUMNS, True
            )
        else:
            fa, fb = a, b
        i = tl.arange(0, 8)
        to = codes + (tl.load(table + 6 * block + 4).to(tl.int64) + i)[None, :] * width + column[:, None]
        rows = tl.load(table + 6 * block + 5)
        tl.store(to, _codes(a * factor[:, None], fa, finite, DRAWN), mask=inside[:, None] & (i < rows)[None, :])
        b = _codes(b * factor[:, None], fb, finite, DRAWN)
        tl.store(to + 8 * width, b, mask=inside[:, None] & (i + 8 < rows)[None, :])


def tokens_nvfp4(
    x: Tensor, groups: tuple[int, ...] | None, signs: Tensor | None = None, random: Random | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (S, K), one a byte, scales (blocks, K) and the tensor's outer scale (1, 1) of FP32 or BF16 rows (R, K).

    Args: x: contiguous. groups: at which blocks start anew. signs: float32 (16,) of a Hadamard-16 along rows; groups
        are then filled up to whole blocks, so that S may exceed R. random: for stochastic rounding.
    Raises: ValueError where the kernel cannot run.
    """
    require_launch(_tokens_nvfp4, x, "x")
    table = block_table(x.shape[0], 16, groups, str(x.device))
    if signs is None:
        table = torch.cat([table, table[:, :2]], 1)
    else:
        index = torch.arange(len(table), dtype=torch.int32, device=x.device)[:, None]
        table = torch.cat([table, index * 16, torch.full_like(index, 16)], 1)
    rows, width = x.shape[0] if signs is None else 16 * len(table), x.shape[1]
    codes = x.new_empty(rows, width, dtype=torch.uint8)
    scales = x.new_empty(len(table), width, dtype=torch.uint8)
    largest = torch.zeros(1, dtype=torch.int32, device=x.device)
    columns = min(256, max(16, triton.next_power_of_2(width)))
    key = table if random is None else key_words(random, x.device)
    encode = x.new_ones(1, dtype=torch.float32)

    def run(measure: bool, encode: Tensor) -> None:
        if codes.numel():
            launch(
                _tokens_nvfp4, (len(table), triton.cdiv(width, columns)), x, table, x if signs is None else signs,
                largest, encode, key, codes, scales, width, HADAMARD=signs is not None, DRAWN=random is not None,
                MEASURE=measure, COLUMNS=columns,
            )  # fmt: skip

    run(True, encode)
    outer, encode = outer_scale(largest.view(torch.float32), 2688.0)
    run(False, encode)
    return codes, scales, outer.view(1, 1)


CONTRACT = Contract(  # a thread has two columns of 16 rows
    (
        Case(
            "nearest",
            lambda: tokens_nvfp4(meta(1024, 4096), (0, 500, 1024)),
            native=(exactly(TO_E2M1, 16), at_least(TO_E4M3, 1)),
        ),
        Case(
            "Hadamard-16, stochastic",
            lambda: tokens_nvfp4(meta(1024, 4096), None, meta(16, dtype=torch.float32), Random((0, 1))),
            native=(exactly(TO_E2M1_DRAWN, 16), at_least(TO_E4M3, 1)),
        ),
        Case("largest first", lambda: tokens_nvfp4(meta(1024, 4096), None), launch=0),
    ),
    ran="h200_triton",
    interpreted="test_hw_tokens.py",
    native="test_hw_native.py",
)
