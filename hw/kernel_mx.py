"""Blocks of 32 along features under E8M0 scales by rceil: E4M3, E2M1 or S2F6 codes, after a Hadamard-32 or not.

What is quantized, x (R, K), comes about as `kernel_pieces` says; K is a multiple of 32. A thread holds a whole block in
four pieces of eight, so that the butterfly's first three stages stay in a piece and the last two go between pieces. The
bits are those of `numerics.quantize` by rule rceil, of `numerics.hadamard` before it.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerics.layout import padded_scales

from .contracts import TO_E2M1, TO_E4M3, TO_E4M3_DRAWN, TO_E8M0, TO_S2F6, Case, Contract, at_least, exactly, meta
from .device import require_launch
from .kernel_blocks32 import hadamard32, sign_piece
from .kernel_casts import (
    E2M1,
    E4M3,
    INFINITY_BITS,
    S2F6,
    bits_of,
    e2m1_code,
    e2m1_drawn,
    e4m3_drawn,
    e4m3_signed,
    float_of,
    four_bytes,
    nibbles,
    power_reciprocal,
    s2f6_signed,
)
from .kernel_nvfp4 import Quantized, largest_bits, scale_place
from .kernel_pieces import drawn_fields, drawn_words, eight
from .kernel_ptx import e2m1_eight, e2m1_eight_drawn, e4m3_eight, e4m3_eight_drawn, s2f6_eight
from .kernel_scales import rceil
from .launches import launch
from .sources import Source, Words

ELEMENTS = {"E2M1": E2M1, "E4M3": E4M3, "S2F6": S2F6}


@triton.jit
def _piece(y, field, finite, ELEMENT: tl.constexpr, DRAWN: tl.constexpr, N: tl.constexpr):
    """Codes of eight scaled values a block, int32: (N, 2) of four bytes, or (N,) of eight nibbles."""
    if ELEMENT == E2M1:
        if DRAWN:
            code = e2m1_drawn(tl.abs(y), field)
        else:
            code = e2m1_code(tl.abs(y))
        return tl.where(finite, nibbles(code, y, N), 0x77777777)
    elif ELEMENT == E4M3:
        if DRAWN:
            code = e4m3_drawn(tl.minimum(tl.abs(y), 448.0), field) | ((bits_of(y) >> 24) & 0x80)
        else:
            code = e4m3_signed(y)
        return tl.where(finite[:, None], four_bytes(code, N), 0x7E7E7E7E)
    else:
        return tl.where(finite[:, None], four_bytes(bits_of(s2f6_signed(y)), N), 0x7F7F7F7F)


@triton.jit
def _native(y, u, v, finite, ELEMENT: tl.constexpr, DRAWN: tl.constexpr, N: tl.constexpr):
    """`_piece` by the instructions. u, v: random words (N,) of the first four and the last four; S2F6: u the scale."""
    if ELEMENT == E2M1:
        code = e2m1_eight_drawn(y, u, v, N) if DRAWN else e2m1_eight(y, N)
        return tl.where(finite, code, 0x77777777)
    elif ELEMENT == E4M3:
        code = e4m3_eight_drawn(y, u, v, N) if DRAWN else e4m3_eight(y, N)
        return tl.where(finite[:, None], code, 0x7E7E7E7E)
    else:
        return tl.where(finite[:, None], s2f6_eight(y, u, N), 0x7F7F7F7F)


@triton.jit
def _s2f6_operands(a, b, c, d, scale, inverse):
    """Numbers and scale codes for S2F6's instruction, which divides.

    Blocks at the ends divide before: under codes below 8 the instruction might take subnormal numbers for zero, under
    the largest -FLT_MAX lies beyond the symmetric range.
    """
    code = scale
    if tl.max(((scale < 8) | (scale == 254)).to(tl.int32), 0) != 0:
        most: tl.constexpr = 1.984375
        a, b = tl.maximum(tl.minimum(a * inverse, most), -most), tl.maximum(tl.minimum(b * inverse, most), -most)
        c, d = tl.maximum(tl.minimum(c * inverse, most), -most), tl.maximum(tl.minimum(d * inverse, most), -most)
        code = scale * 0 + 127
    return a, b, c, d, code


@triton.jit
def _side_by_side(a, b):
    """Two (N, 2) as (N, 4)."""
    return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (a.shape[0], 4))


@triton.jit
def _mx(
    x, index, factors, table, kept, signs, experts, lines, key, codes, scales, rows,
    GATHER: tl.constexpr, FACTOR: tl.constexpr, GLU: tl.constexpr, KEEP: tl.constexpr, HADAMARD: tl.constexpr,
    ELEMENT: tl.constexpr, DRAWN: tl.constexpr, SWIZZLED: tl.constexpr, BLOCKS: tl.constexpr, N: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """N blocks, BLOCKS of them a row."""
    block = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    row, place = block // BLOCKS, (block % BLOCKS).to(tl.int32)
    inside = row < rows
    m = inside[:, None]
    source = tl.load(index + row, mask=inside, other=0) if GATHER else row
    factor = tl.load(factors + row, mask=inside, other=1.0) if FACTOR else tl.zeros((N,), tl.float32)
    width, at = BLOCKS * 32, place * 32
    a = eight(x, factor, table, kept, source, at, width, inside, FACTOR, GLU, KEEP)
    b = eight(x, factor, table, kept, source, at + 8, width, inside, FACTOR, GLU, KEEP)
    c = eight(x, factor, table, kept, source, at + 16, width, inside, FACTOR, GLU, KEEP)
    d = eight(x, factor, table, kept, source, at + 24, width, inside, FACTOR, GLU, KEEP)
    if HADAMARD:
        a, b = a * sign_piece(signs, 0), b * sign_piece(signs, 1)
        c, d = c * sign_piece(signs, 2), d * sign_piece(signs, 3)
        a, b, c, d = hadamard32(a, b, c, d, N)
    largest = tl.maximum(tl.maximum(largest_bits(a), largest_bits(b)), tl.maximum(largest_bits(c), largest_bits(d)))
    finite = largest < INFINITY_BITS
    scale = rceil(float_of(tl.where(finite, largest, 0)), ELEMENT, NATIVE)
    inverse = power_reciprocal(scale)[:, None]
    spot = scale_place(row, place, BLOCKS, SWIZZLED)
    tl.store(scales + spot, tl.where(finite, scale, 0xFF).to(tl.uint8), mask=inside)
    if DRAWN:
        expert = tl.load(experts + row, mask=inside, other=0)
        line = tl.load(lines + row, mask=inside, other=0)
        if NATIVE:
            w0, w1, w2, w3 = drawn_words(key, expert, line, place * 2)
            w4, w5, w6, w7 = drawn_words(key, expert, line, place * 2 + 1)
        else:
            fa, fb = drawn_fields(key, expert, line, place * 2, N, ELEMENT == E2M1)
            fc, fd = drawn_fields(key, expert, line, place * 2 + 1, N, ELEMENT == E2M1)
    else:
        fa, fb, fc, fd = a, a, a, a
        w0, w1, w2, w3, w4, w5, w6, w7 = scale, scale, scale, scale, scale, scale, scale, scale
    if NATIVE:
        if ELEMENT == S2F6:
            a, b, c, d, w0 = _s2f6_operands(a, b, c, d, scale, inverse)
            w2, w4, w6 = w0, w0, w0
        else:
            a, b, c, d = a * inverse, b * inverse, c * inverse, d * inverse
        qa, qb = _native(a, w0, w1, finite, ELEMENT, DRAWN, N), _native(b, w2, w3, finite, ELEMENT, DRAWN, N)
        qc, qd = _native(c, w4, w5, finite, ELEMENT, DRAWN, N), _native(d, w6, w7, finite, ELEMENT, DRAWN, N)
    else:
        qa, qb = _piece(a * inverse, fa, finite, ELEMENT, DRAWN, N), _piece(b * inverse, fb, finite, ELEMENT, DRAWN, N)
        qc, qd = _piece(c * inverse, fc, finite, ELEMENT, DRAWN, N), _piece(d * inverse, fd, finite, ELEMENT, DRAWN, N)
    j = tl.arange(0, 4)[None, :]
    if ELEMENT == E2M1:
        tl.store(codes + block[:, None] * 4 + j, _side_by_side(tl.join(qa, qb), tl.join(qc, qd)), mask=m)
    else:
        tl.store(codes + block[:, None] * 8 + j, _side_by_side(qa, qb), mask=m)
        tl.store(codes + block[:, None] * 8 + 4 + j, _side_by_side(qc, qd), mask=m)


def mx(
    source: Source,
    element: str,
    signs: Tensor | None = None,
    words: Words | None = None,
    swizzled: bool = False,
) -> Quantized:
    """Quantize a source along features.

    Args:
        element: "E4M3", "E2M1" or "S2F6". signs: float32 (32,) of a Hadamard-32 that comes first. words: for stochastic
            rounding of E4M3 or E2M1. swizzled: scales in the 128x4 layout.

    Returns: codes (R, K) or packed (R, K / 2), scales (R, K / 32) or swizzled; no outer scales.
    Raises: ValueError where the kernel cannot run.
    """
    x, rows, blocks = source.x, source.rows, source.width // 32
    require_launch(_mx, x, "x")
    codes = x.new_empty(rows, blocks * (16 if element == "E2M1" else 32), dtype=torch.uint8)
    scales = x.new_empty(rows, blocks, dtype=torch.uint8)
    if swizzled:
        scales = x.new_zeros(math.prod(padded_scales(rows, blocks)), dtype=torch.uint8)
    if rows and blocks:
        some = min(128, triton.next_power_of_2(rows * blocks))
        launch(
            _mx, (triton.cdiv(rows * blocks, some),), *source.arguments, x if signs is None else signs,
            *((x, x, x) if words is None else (words.experts, words.lines, words.key)),
            codes.view(torch.int32), scales, rows, **source.constants, HADAMARD=signs is not None,
            ELEMENT=ELEMENTS[element], DRAWN=words is not None, SWIZZLED=swizzled, BLOCKS=blocks, N=some,
        )  # fmt: skip
    return Quantized(codes, scales, None, None)


def _words() -> Words:
    return Words(meta(4, dtype=torch.int64), meta(256, dtype=torch.int32), meta(256, dtype=torch.int32))


CONTRACT = Contract(  # a thread has a block of 32
    (
        Case(
            "MXFP8, nearest", lambda: mx(Source(meta(256, 4096)), "E4M3"),
            native=(exactly(TO_E4M3, 16), at_least(TO_E8M0, 1)), portable=(exactly(TO_E4M3, 16),),
        ),
        Case(
            "MXFP8 of weighted rows, stochastic",
            lambda: mx(
                Source(meta(512, 4096), meta(256, dtype=torch.int64), meta(256, dtype=torch.float32)), "E4M3",
                words=_words(), swizzled=True,
            ),
            native=(exactly(TO_E4M3_DRAWN, 16), at_least(TO_E8M0, 1)),
        ),
        Case(
            "MXFP4, nearest", lambda: mx(Source(meta(256, 4096)), "E2M1"),
            native=(exactly(TO_E2M1, 16), at_least(TO_E8M0, 1)),
        ),
        Case(
            "Hadamard-32 and MXS2F6",
            lambda: mx(Source(meta(256, 4096, dtype=torch.float32)), "S2F6", meta(32, dtype=torch.float32)),
            native=(exactly(TO_S2F6, 16), at_least(TO_E8M0, 1)),
        ),
    ),
    ran="h200_triton",
    interpreted="test_hw_mx.py",
    native="test_hw_native.py",
)  # fmt: skip
