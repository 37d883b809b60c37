"""Blackwell's conversions as Triton device functions around inline PTX: the bits of `kernel_casts`, for sm_100a and
sm_103a.

    down    E2M1, E4M3 nearest (cvt.rn) and stochastic (cvt.rs), S2F6 divided by its scale, E8M0 up (cvt.rp)
    up      E2M1 and E4M3 by way of float16, S2F6 times its scale by way of bfloat16, all exact

Every string of PTX stands here; `hw.ptx_run` executes each with `numerics.ptx`. In an instruction's text the first
operand goes to the upper element, so the neighbours 0, 1, 2, 3 of a row stand as 1, 0 and 3, 2, and as {3, 2, 1, 0}. A
random word belongs to four neighbours, see `numerics.philox`. An output of a string is written after the last input is
read: the compiler may give both one register.

Codes carry their number's sign, -0 too, and saturate. NaN becomes what the instruction makes of it: callers replace the
codes of blocks that are not finite. S2F6 needs ptxas 13.1 or newer, all else 12.9 (PTX ISA 9.1 and 8.7).
"""

import triton
import triton.language as tl

from .kernel_casts import float_of

# Eight numbers to a word of nibbles, the first in the lowest.
E2M1_EIGHT = tl.constexpr("""{
    .reg .b8 c0, c1, c2, c3;
    cvt.rn.satfinite.e2m1x2.f32 c0, $2, $1;
    cvt.rn.satfinite.e2m1x2.f32 c1, $4, $3;
    cvt.rn.satfinite.e2m1x2.f32 c2, $6, $5;
    cvt.rn.satfinite.e2m1x2.f32 c3, $8, $7;
    mov.b32 $0, {c0, c1, c2, c3};
}""")
# The same with two random words.
E2M1_EIGHT_DRAWN = tl.constexpr("""{
    .reg .b16 low, high;
    cvt.rs.satfinite.e2m1x4.f32 low, {$4, $3, $2, $1}, $9;
    cvt.rs.satfinite.e2m1x4.f32 high, {$8, $7, $6, $5}, $10;
    mov.b32 $0, {low, high};
}""")
# One number to a code.
E2M1_ONE = tl.constexpr("""{
    .reg .b8 c;
    .reg .f32 zero;
    mov.f32 zero, 0f00000000;
    cvt.rn.satfinite.e2m1x2.f32 c, zero, $1;
    cvt.u32.u8 $0, c;
}""")
# Four numbers to a word of bytes, the first in the lowest.
E4M3_FOUR = tl.constexpr("""{
    .reg .b16 low, high;
    cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
}""")
# The same with a random word.
E4M3_FOUR_DRAWN = tl.constexpr("cvt.rs.satfinite.e4m3x4.f32 $0, {$4, $3, $2, $1}, $5;")
# A number to a code and its value.
E4M3_THERE_AND_BACK = tl.constexpr("""{
    .reg .b16 code, value, rest;
    .reg .b32 pair;
    .reg .f32 zero;
    mov.f32 zero, 0f00000000;
    cvt.rn.satfinite.e4m3x2.f32 code, zero, $2;
    cvt.rn.f16x2.e4m3x2 pair, code;
    mov.b32 {value, rest}, pair;
    cvt.u32.u16 $0, code;
    cvt.f32.f16 $1, value;
}""")
# Four numbers to a word of bytes, divided by the scales in the low half of a word. ptxas 13.1 to 13.5 fail (C7907)
# where all threads of a warp surely have one scale: a zero that depends on the thread says that they may not. It is the
# upper half of a square below 2^32; of a shift ptxas knows that it is zero, once it knows the size of a block.
S2F6_FOUR = tl.constexpr("""{
    .reg .b16 low, high, scale;
    .reg .b32 own;
    mov.u32 own, %tid.x;
    mul.hi.u32 own, own, own;
    or.b32 own, own, $5;
    cvt.u16.u32 scale, own;
    cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32 low, $2, $1, scale;
    cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32 high, $4, $3, scale;
    mov.b32 $0, {low, high};
}""")
# A magnitude to the code of the least power of two that is not less; beyond 2^127 code 254.
E8M0_UP = tl.constexpr("""{
    .reg .b16 code;
    .reg .f32 zero;
    mov.f32 zero, 0f00000000;
    cvt.rp.satfinite.ue8m0x2.f32 code, zero, $1;
    cvt.u32.u16 $0, code;
}""")
# A word of nibbles to eight numbers.
E2M1_EIGHT_BACK = tl.constexpr("""{
    .reg .b8 c0, c1, c2, c3;
    .reg .b32 p0, p1, p2, p3;
    .reg .b16 h0, h1, h2, h3, h4, h5, h6, h7;
    mov.b32 {c0, c1, c2, c3}, $8;
    cvt.rn.f16x2.e2m1x2 p0, c0;
    cvt.rn.f16x2.e2m1x2 p1, c1;
    cvt.rn.f16x2.e2m1x2 p2, c2;
    cvt.rn.f16x2.e2m1x2 p3, c3;
    mov.b32 {h0, h1}, p0;
    mov.b32 {h2, h3}, p1;
    mov.b32 {h4, h5}, p2;
    mov.b32 {h6, h7}, p3;
    cvt.f32.f16 $0, h0;
    cvt.f32.f16 $1, h1;
    cvt.f32.f16 $2, h2;
    cvt.f32.f16 $3, h3;
    cvt.f32.f16 $4, h4;
    cvt.f32.f16 $5, h5;
    cvt.f32.f16 $6, h6;
    cvt.f32.f16 $7, h7;
}""")
# The low byte of a word, two nibbles, to two numbers.
E2M1_TWO_BACK = tl.constexpr("""{
    .reg .b8 c;
    .reg .b32 pair;
    .reg .b16 low, high;
    cvt.u8.u32 c, $2;
    cvt.rn.f16x2.e2m1x2 pair, c;
    mov.b32 {low, high}, pair;
    cvt.f32.f16 $0, low;
    cvt.f32.f16 $1, high;
}""")
# A code, the low byte of a word, to its value.
E4M3_BACK = tl.constexpr("""{
    .reg .b16 code, value, rest;
    .reg .b32 pair;
    cvt.u16.u32 code, $1;
    cvt.rn.f16x2.e4m3x2 pair, code;
    mov.b32 {value, rest}, pair;
    cvt.f32.f16 $0, value;
}""")
# A code times a scale, each the low byte of a word; bfloat16 is the upper half of float32.
S2F6_BACK = tl.constexpr("""{
    .reg .b16 code, scale;
    .reg .b32 pair;
    cvt.u16.u32 code, $1;
    cvt.u16.u32 scale, $2;
    cvt.rn.scaled::n2::ue8m0.bf16x2.s2f6x2 pair, code, scale;
    shl.b32 $0, pair, 16;
}""")


@triton.jit
def parts(x, N: tl.constexpr):
    """The columns of (N, 8), each (N,)."""
    even, odd = tl.split(tl.reshape(x, (N, 4, 2)))
    x04, x26 = tl.split(tl.reshape(even, (N, 2, 2)))
    x15, x37 = tl.split(tl.reshape(odd, (N, 2, 2)))
    x0, x4 = tl.split(x04)
    x1, x5 = tl.split(x15)
    x2, x6 = tl.split(x26)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def whole(x0, x1, x2, x3, x4, x5, x6, x7, N: tl.constexpr):
    """(N, 8) of its columns."""
    even = tl.reshape(tl.join(tl.join(x0, x4), tl.join(x2, x6)), (N, 4))
    odd = tl.reshape(tl.join(tl.join(x1, x5), tl.join(x3, x7)), (N, 4))
    return tl.reshape(tl.join(even, odd), (N, 8))


@triton.jit
def e2m1_word(x0, x1, x2, x3, x4, x5, x6, x7):
    """Codes of eight numbers, nearest even, in an int32, the first in the low nibble."""
    return tl.inline_asm_elementwise(
        E2M1_EIGHT, "=r,f,f,f,f,f,f,f,f", [x0, x1, x2, x3, x4, x5, x6, x7], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def e2m1_eight(x, N: tl.constexpr):
    """`e2m1_word` of each row of (N, 8)."""
    x0, x1, x2, x3, x4, x5, x6, x7 = parts(x, N)
    return e2m1_word(x0, x1, x2, x3, x4, x5, x6, x7)


@triton.jit
def e2m1_word_drawn(x0, x1, x2, x3, x4, x5, x6, x7, u, v):
    """Codes of eight numbers under the random words u, of the first four, and v, uint32; packed as by `e2m1_word`."""
    return tl.inline_asm_elementwise(
        E2M1_EIGHT_DRAWN, "=r,f,f,f,f,f,f,f,f,r,r", [x0, x1, x2, x3, x4, x5, x6, x7, u, v],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def e2m1_eight_drawn(x, u, v, N: tl.constexpr):
    """`e2m1_word_drawn` of each row of (N, 8), words (N,)."""
    x0, x1, x2, x3, x4, x5, x6, x7 = parts(x, N)
    return e2m1_word_drawn(x0, x1, x2, x3, x4, x5, x6, x7, u, v)


@triton.jit
def e2m1_one(x):
    """Codes of x, nearest even, int32."""
    return tl.inline_asm_elementwise(E2M1_ONE, "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def e4m3_eight(x, N: tl.constexpr):
    """Codes of (N, 8), nearest even, as int32 (N, 2), the first in the low byte."""
    x0, x1, x2, x3, x4, x5, x6, x7 = parts(x, N)
    low = tl.inline_asm_elementwise(
        E4M3_FOUR, "=r,f,f,f,f", [x0, x1, x2, x3], dtype=tl.int32, is_pure=True, pack=1
    )  # fmt: skip
    high = tl.inline_asm_elementwise(
        E4M3_FOUR, "=r,f,f,f,f", [x4, x5, x6, x7], dtype=tl.int32, is_pure=True, pack=1
    )  # fmt: skip
    return tl.join(low, high)


@triton.jit
def e4m3_four_drawn(a, b, c, d, word):
    """Codes of four numbers under a random word, uint32, in an int32, the first in the low byte."""
    return tl.inline_asm_elementwise(
        E4M3_FOUR_DRAWN, "=r,f,f,f,f,r", [a, b, c, d, word], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def e4m3_eight_drawn(x, u, v, N: tl.constexpr):
    """Codes of (N, 8) under the random words u, of the first four, and v, uint32 (N,); packed as `e4m3_eight`."""
    x0, x1, x2, x3, x4, x5, x6, x7 = parts(x, N)
    return tl.join(e4m3_four_drawn(x0, x1, x2, x3, u), e4m3_four_drawn(x4, x5, x6, x7, v))


@triton.jit
def e4m3_there_and_back(x):
    """Codes (int32) of x, nearest even, and their values."""
    return tl.inline_asm_elementwise(
        E4M3_THERE_AND_BACK, "=r,=f,f", [x], dtype=(tl.int32, tl.float32), is_pure=True, pack=1
    )


@triton.jit
def s2f6_eight(x, scale, N: tl.constexpr):
    """Codes of (N, 8) / 2^(scale - 127), scale int32 (N,), nearest even, as int32 (N, 2), the first in the low byte."""
    x0, x1, x2, x3, x4, x5, x6, x7 = parts(x, N)
    pair = scale * 0x0101
    low = tl.inline_asm_elementwise(
        S2F6_FOUR, "=r,f,f,f,f,r", [x0, x1, x2, x3, pair], dtype=tl.int32, is_pure=True, pack=1
    )
    high = tl.inline_asm_elementwise(
        S2F6_FOUR, "=r,f,f,f,f,r", [x4, x5, x6, x7, pair], dtype=tl.int32, is_pure=True, pack=1
    )
    return tl.join(low, high)


@triton.jit
def e8m0_up(x):
    """E8M0 code (int32) of the least power of two that is not less than x >= 0; at most 254."""
    return tl.inline_asm_elementwise(E8M0_UP, "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def e2m1_values(word, N: tl.constexpr):
    """float32 (N, 8) of eight codes in each int32 (N,), the first in the low nibble."""
    x0, x1, x2, x3, x4, x5, x6, x7 = tl.inline_asm_elementwise(
        E2M1_EIGHT_BACK, "=f,=f,=f,=f,=f,=f,=f,=f,r", [word],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True, pack=1,
    )  # fmt: skip
    return whole(x0, x1, x2, x3, x4, x5, x6, x7, N)


@triton.jit
def e2m1_pair(byte):
    """float32 of the low nibble and of the high one of an int32 below 256."""
    return tl.inline_asm_elementwise(
        E2M1_TWO_BACK, "=f,=f,r", [byte], dtype=(tl.float32, tl.float32), is_pure=True, pack=1
    )


@triton.jit
def e4m3_number(code):
    """float32 of E4M3 codes, int32 0 to 255."""
    return tl.inline_asm_elementwise(E4M3_BACK, "=f,r", [code], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def s2f6_scaled(code, scale):
    """float32 of S2F6 codes times 2^(scale - 127), int32 0 to 255 each; -2 2^127 gives -infinity, scale 255 NaN."""
    return float_of(tl.inline_asm_elementwise(S2F6_BACK, "=r,r,r", [code, scale], dtype=tl.int32, is_pure=True, pack=1))
