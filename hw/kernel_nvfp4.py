"""NVFP4 along features: blocks of 16, E2M1 codes under E4M3 scales and an FP32 outer scale, `nvfp4` or `four_over_six`.

What is quantized, x (R, K), comes about as `kernel_pieces` says. The outer scale is each row's own, found in the same
pass, or given. The bits are those of `numerics.quantize`. K is a multiple of 16.

Quotients by three operations hold for outer scales in [1e-27, 1e27], where block scale * outer and its reciprocal are
normal numbers and what underflows beside them rounds to code 0 anyway; one row beyond sends its program to divisions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerics.layout import padded_scales

from .contracts import E2M1_TO_F16, TO_E2M1, TO_E2M1_DRAWN, TO_E4M3, Case, Contract, at_least, exactly, meta
from .device import require_launch
from .kernel_casts import (
    FLT_MAX,
    INFINITY_BITS,
    bits_of,
    e2m1_code,
    e2m1_code_of_value,
    e2m1_decoded,
    e2m1_drawn,
    e2m1_value,
    e4m3_value,
    float_of,
    nibbles,
    quotient,
    three_stages,
    tree8,
)
from .kernel_pieces import drawn_fields, drawn_words, eight
from .kernel_ptx import e2m1_eight, e2m1_eight_drawn, e2m1_values
from .kernel_scales import e4m3_code_and_value, nvfp4_scale
from .launches import launch
from .sources import Source, Words

MOST_BLOCKS = 4096  # of a row: 65,536 values


@triton.jit
def largest_bits(x):
    """Bits of the largest magnitude of each row: as integers NaN exceeds infinity, and infinity every number."""
    return tl.max(bits_of(x) & 0x7FFFFFFF, 1)


@triton.jit
def sixteen(
    x, factor, table, kept, signs, row, block, width, inside,
    FACTOR: tl.constexpr, GLU: tl.constexpr, KEEP: tl.constexpr, HADAMARD: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A block of 16 of each row in two pieces, after a Hadamard-16 or not."""
    a = eight(x, factor, table, kept, row, block * 16, width, inside, FACTOR, GLU, KEEP)
    b = eight(x, factor, table, kept, row, block * 16 + 8, width, inside, FACTOR, GLU, KEEP)
    if HADAMARD:
        i = tl.arange(0, 8)
        a = three_stages(a * tl.load(signs + i)[None, :], N)
        b = three_stages(b * tl.load(signs + 8 + i)[None, :], N)
        a, b = (a + b) * 0.25, (a - b) * 0.25
    return a, b


@triton.jit
def _candidate(xa, xb, code, outer, N: tl.constexpr, WILD: tl.constexpr, NATIVE: tl.constexpr):
    """Four-over-six: element values, or natively codes in a word (N,), of both pieces; squared error under a scale."""
    scale = e4m3_value(code)
    step = scale * outer
    inverse = tl.where(step == 0, 0.0, tl.div_rn(1.0, tl.where(step == 0, 1.0, step)))
    if NATIVE:
        a = e2m1_eight(quotient(xa, step[:, None], inverse[:, None], WILD), N)
        b = e2m1_eight(quotient(xb, step[:, None], inverse[:, None], WILD), N)
        va, vb = e2m1_values(a, N), e2m1_values(b, N)
    else:
        va = e2m1_value(quotient(xa, step[:, None], inverse[:, None], WILD), WILD)
        vb = e2m1_value(quotient(xb, step[:, None], inverse[:, None], WILD), WILD)
        a, b = va, vb
    da = va * scale[:, None] * outer[:, None] - xa
    db = vb * scale[:, None] * outer[:, None] - xb
    return a, b, tree8(da * da, N) + tree8(db * db, N)


@triton.jit
def _four_over_six(xa, xb, code6, code4, outer, N: tl.constexpr, WILD: tl.constexpr, NATIVE: tl.constexpr):
    """Scale codes, and element values, or natively words of codes, of both pieces."""
    a6, b6, e6 = _candidate(xa, xb, code6, outer, N, WILD, NATIVE)
    a4, b4, e4 = _candidate(xa, xb, code4, outer, N, WILD, NATIVE)
    use4 = e4 < e6
    if NATIVE:
        a, b = tl.where(use4, a4, a6), tl.where(use4, b4, b6)
    else:
        a, b = tl.where(use4[:, None], a4, a6), tl.where(use4[:, None], b4, b6)
    return tl.where(use4, code4, code6), a, b


@triton.jit
def _own_scale(largest, OUTER_MAX: tl.constexpr, POW2: tl.constexpr):
    """Outer and encode scale of a scope; see `numerics.outer`."""
    zero = largest == 0
    outer = tl.maximum(tl.div_rn(largest, OUTER_MAX), float_of(tl.full((), 0x00200000, tl.int32)))  # 2^-128
    outer = tl.where(zero, 1.0, outer)
    if POW2:
        bits = bits_of(outer)
        tiny = tl.where(bits <= 0x00200000, 0x00200000, tl.where(bits <= 0x00400000, 0x00400000, 0x00800000))
        outer = float_of(tl.where(bits < 0x00800000, tiny, (bits + 0x7FFFFF) & INFINITY_BITS))
        encode = tl.minimum(tl.div_rn(1.0, outer), FLT_MAX)
    else:
        encode = tl.minimum(tl.div_rn(OUTER_MAX, tl.where(zero, 1.0, largest)), FLT_MAX)
        encode = tl.where(zero | (encode == 0), 1.0, encode)
    return outer, encode


@triton.jit
def _per_block(one, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    return tl.reshape(tl.broadcast_to(one[:, None], (ROWS, WIDTH)), (ROWS * WIDTH,))


@triton.jit
def scale_place(row, block, blocks, SWIZZLED: tl.constexpr):
    """Where the scale of a block lies: row by row, or in the 128x4 layout of `numerics.layout`."""
    if SWIZZLED:
        tile = (row // 128) * ((blocks + 3) // 4) + block // 4
        return tile * 512 + (row % 32) * 16 + ((row % 128) // 32) * 4 + block % 4
    else:
        return row * blocks + block


@triton.jit
def _nvfp4(
    x, index, factors, table, kept, signs, experts, lines, key, codes, scales, outers, encodes, values,
    rows, blocks, span,
    GATHER: tl.constexpr, FACTOR: tl.constexpr, GLU: tl.constexpr, KEEP: tl.constexpr, HADAMARD: tl.constexpr,
    OWN: tl.constexpr, POW2: tl.constexpr, FOUR_OVER_SIX: tl.constexpr, DRAWN: tl.constexpr, VALUES: tl.constexpr,
    SWIZZLED: tl.constexpr, OUTER_MAX: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """ROWS rows of up to WIDTH blocks. OWN: each row's outer scale is found here and stored; else `span` rows share one
    of the given."""
    N: tl.constexpr = ROWS * WIDTH
    i = tl.arange(0, N)
    row = tl.program_id(0).to(tl.int64) * ROWS + i // WIDTH
    place = i % WIDTH
    inside = (row < rows) & (place < blocks)
    source = tl.load(index + row, mask=row < rows, other=0) if GATHER else row
    factor = tl.load(factors + row, mask=row < rows, other=1.0) if FACTOR else tl.zeros((N,), tl.float32)
    xa, xb = sixteen(
        x, factor, table, kept, signs, source, place, blocks * 16, inside, FACTOR, GLU, KEEP, HADAMARD, N
    )  # fmt: skip
    largest = tl.maximum(largest_bits(xa), largest_bits(xb))
    finite = largest < INFINITY_BITS
    amax = float_of(tl.where(finite, largest, 0))
    if OWN:
        one, inverse = _own_scale(tl.max(tl.reshape(amax, (ROWS, WIDTH)), 1), OUTER_MAX, POW2)
        own = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        tl.store(outers + own, one, mask=own < rows)
        outer, encode = _per_block(one, ROWS, WIDTH), _per_block(inverse, ROWS, WIDTH)
        decode = _per_block(tl.div_rn(1.0, inverse), ROWS, WIDTH)
    else:
        outer = tl.load(outers + row // span, mask=inside, other=1.0)
        encode = tl.load(encodes + row // span, mask=inside, other=1.0)
        decode = tl.div_rn(1.0, encode)
    a, b = tl.abs(xa), tl.abs(xb)  # what becomes their codes: (N, 8), or words (N,) natively
    if FOUR_OVER_SIX:
        code6, _ = e4m3_code_and_value(tl.div_rn(amax, outer * 6.0), NATIVE)
        code4, _ = e4m3_code_and_value(tl.div_rn(amax, outer * 4.0), NATIVE)
        # scales of a normal number, not saturated, are off by 1/16 at most: no quotient reaches 7
        wild = ((code6 < 8) & (amax > 0)) | (code4 >= 126) | (outer < 1e-27) | (outer > 1e27)
        if tl.max(wild.to(tl.int32)) != 0:
            code, va, vb = _four_over_six(a, b, code6, code4, outer, N, True, NATIVE)
        else:
            code, va, vb = _four_over_six(a, b, code6, code4, outer, N, False, NATIVE)
        if NATIVE:
            ca, cb = _signed_word(va, xa, N), _signed_word(vb, xb, N)
        else:
            ca, cb = e2m1_code_of_value(va), e2m1_code_of_value(vb)
    else:
        code, multiplier = nvfp4_scale(amax, encode, decode, NATIVE)
        if NATIVE:
            a, b = xa * multiplier[:, None], xb * multiplier[:, None]
        else:
            a, b = a * multiplier[:, None], b * multiplier[:, None]
        if DRAWN:
            expert = tl.load(experts + row, mask=row < rows, other=0)
            line = tl.load(lines + row, mask=row < rows, other=0)
            if NATIVE:
                w0, w1, w2, w3 = drawn_words(key, expert, line, place)
                ca, cb = e2m1_eight_drawn(a, w0, w1, N), e2m1_eight_drawn(b, w2, w3, N)
            else:
                fa, fb = drawn_fields(key, expert, line, place, N, True)
                ca, cb = e2m1_drawn(a, fa), e2m1_drawn(b, fb)
        elif NATIVE:
            ca, cb = e2m1_eight(a, N), e2m1_eight(b, N)
        else:
            ca, cb = e2m1_code(a), e2m1_code(b)
    tl.store(scales + scale_place(row, place, blocks, SWIZZLED), tl.where(finite, code, 0x7F).to(tl.uint8), mask=inside)
    both = tl.join(ca, cb) if NATIVE else tl.join(nibbles(ca, xa, N), nibbles(cb, xb, N))
    both = tl.where(finite[:, None], both, 0x77777777)
    at = row * blocks + place
    tl.store(codes + at[:, None] * 2 + tl.arange(0, 2)[None, :], both, mask=inside[:, None])
    if VALUES:
        stored = tl.where(finite, e4m3_value(code), float("nan"))[:, None]
        spot = values + at[:, None] * 16 + tl.arange(0, 8)[None, :]
        tl.store(spot, _value_bits(ca, xa, stored, N, NATIVE).to(tl.int16), mask=inside[:, None])
        tl.store(spot + 8, _value_bits(cb, xb, stored, N, NATIVE).to(tl.int16), mask=inside[:, None])


@triton.jit
def _signed_word(word, x, N: tl.constexpr):
    """A word of codes of magnitudes with the signs of x: a quotient by three operations would lose that of -0."""
    return word | (e2m1_eight(x, N) & -0x77777778)


@triton.jit
def _value_bits(code, x, scale, N: tl.constexpr, NATIVE: tl.constexpr):
    """BF16 bits of code value * block scale, which is exact, with the sign of x, which a native word of codes has."""
    if NATIVE:
        return bits_of(e2m1_values(code, N) * scale) >> 16
    else:
        return (bits_of(e2m1_decoded(code) * scale) >> 16) | ((bits_of(x) >> 16) & 0x8000)


@dataclass(frozen=True, eq=False)
class Quantized:
    """Codes, 4-bit ones packed (R, K / 2); scale codes (R, blocks) or swizzled; outer scales; values without them."""

    codes: Tensor
    scales: Tensor
    outer: Tensor | None
    values: Tensor | None


def nvfp4(
    source: Source,
    four_over_six: bool = False,
    given: tuple[Tensor, Tensor] | None = None,
    pow2: bool = False,
    signs: Tensor | None = None,
    words: Words | None = None,
    values: bool = False,
    swizzled: bool = False,
) -> Quantized:
    """Quantize a source along features.

    Args:
        given: outer and encode scales, float32 (n,), each for R / n rows; None: one of each row's own. pow2: those
            rounded up to powers of two. signs: float32 (16,) of a Hadamard-16 that comes first. words: for stochastic
            rounding. values: BF16 values without the outer scale too, exact. swizzled: scales in the 128x4 layout.

    Returns: outer scales (R, 1), or those given.
    Raises: ValueError where the kernel cannot run, or for rows of more than 65,536 values.
    """
    x, rows, blocks = source.x, source.rows, source.width // 16
    require_launch(_nvfp4, x, "x")
    if blocks > MOST_BLOCKS:
        raise ValueError(f"x has rows of {source.width} values: this kernel takes up to {MOST_BLOCKS * 16}")
    codes, scales = x.new_empty(rows, blocks * 8, dtype=torch.uint8), x.new_empty(rows, blocks, dtype=torch.uint8)
    if swizzled:
        scales = x.new_zeros(math.prod(padded_scales(rows, blocks)), dtype=torch.uint8)
    outer = x.new_ones(rows, 1, dtype=torch.float32) if given is None else given[0]  # a row without values keeps its 1
    out = x.new_empty(rows, blocks * 16, dtype=torch.bfloat16) if values else None
    if rows and blocks:
        wide = triton.next_power_of_2(blocks)
        tall = max(1, 128 // wide)
        warps = max(1, min(32, tall * wide // 64))
        launch(
            _nvfp4, (triton.cdiv(rows, tall),), *source.arguments, x if signs is None else signs,
            *((x, x, x) if words is None else (words.experts, words.lines, words.key)),
            codes.view(torch.int32), scales, outer, outer if given is None else given[1],
            codes if out is None else out.view(torch.int16), rows, blocks, rows // outer.numel(), **source.constants,
            HADAMARD=signs is not None, OWN=given is None, POW2=pow2, FOUR_OVER_SIX=four_over_six,
            DRAWN=words is not None, VALUES=values, SWIZZLED=swizzled,
            OUTER_MAX=1536.0 if four_over_six else 2688.0, ROWS=tall, WIDTH=wide, num_warps=warps,
        )  # fmt: skip
    return Quantized(codes, scales, outer, out)


def _words() -> Words:
    return Words(meta(4, dtype=torch.int64), meta(256, dtype=torch.int32), meta(256, dtype=torch.int32))


def _product() -> Source:
    """Sums with their rows' outer scales, SwiGLU next."""
    return Source(meta(256, 8192, dtype=torch.float32), None, meta(256, dtype=torch.float32), True, meta(256, 8192))


def _given() -> tuple[Tensor, Tensor]:
    return meta(1, dtype=torch.float32), meta(1, dtype=torch.float32)


# both candidates of four-over-six
_TWO = (at_least(TO_E2M1, 32), at_least(E2M1_TO_F16, 32), at_least(TO_E4M3, 4))

CONTRACT = Contract(  # a thread has two blocks of 16
    (
        Case(
            "rows, nearest", lambda: nvfp4(Source(meta(256, 4096))),
            native=(exactly(TO_E2M1, 16), exactly(TO_E4M3, 2)),
        ),
        Case("rows, four-over-six", lambda: nvfp4(Source(meta(256, 4096)), True), native=_TWO),
        Case("SwiGLU of a product, four-over-six", lambda: nvfp4(_product(), True), native=_TWO),
        Case(
            "Hadamard-16, stochastic, swizzled scales",
            lambda: nvfp4(
                Source(meta(256, 4096)), given=_given(), signs=meta(16, dtype=torch.float32), words=_words(),
                values=True, swizzled=True,
            ),
            native=(exactly(TO_E2M1_DRAWN, 16), exactly(TO_E4M3, 2)),
        ),
    ),
    ran="h200_triton",
    interpreted="test_hw_nvfp4.py",
    native="test_hw_native.py",
)  # fmt: skip
