"""Roundings and scales of the block formats as Triton device functions: the bits of `numerics`, in FP32 and integers.

E2M1, nearest. The code of a magnitude a is piecewise linear in it, and concave:

    code(a) = RNE(min(2 a, a + 2, a / 2 + 4)), at most 7           values 0 0.5 1 1.5 2 | 3 4 | 6

Each line is added to MAGIC = 1.5 2^23, whose unit is 1, so that one addition rounds it to the nearest integer, ties to
even, which are E2M1's ties to even; the least of the three rounded lines is the rounded least line. A "line" below is
that sum, MAGIC + code, a float whose low bits are the code.

Stochastic. A random field of 16 bits is added just below the last bit that the format keeps, and what lies under it is
cut off: `numerics.rounding`, STOCHASTIC. Magnitudes below the least normal number have a fixed unit instead.

Quotients that must be those of a division cost three operations (Markstein 1990): with y = RN(1 / d), q = RN(x y) and
r = x - q d, exact in an FMA, RN(q + r y) is RN(x / d) as long as nothing that matters leaves FP32's normal range:
callers say within which divisors that holds. Beyond them, and in Triton's interpreter, which has no FMA, one divides.
(Other FMAs here have exact products.)

All magnitudes are float32, not negative, and no NaN: the callers replace the codes of blocks that are not finite.
"""

import os

import triton
import triton.language as tl

from .device import INTERPRET

INTERPRETED = tl.constexpr(os.environ.get(INTERPRET) == "1")  # as triton itself decides when it is imported
MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23
MAGIC_BITS = tl.constexpr(0x4B400000)
FLT_MAX = tl.constexpr(3.4028234663852886e38)
INFINITY_BITS = tl.constexpr(0x7F800000)
TWO_120, TWO_126 = tl.constexpr(1.329227995784916e36), tl.constexpr(8.507059173023462e37)
TWO_MINUS_126 = tl.constexpr(1.1754943508222875e-38)
E2M1, E4M3, S2F6 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def bits_of(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def float_of(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def widen(x):
    """float32 of BF16 or FP32 values. Triton's interpreter converts BF16 subnormals wrongly, so bits are moved."""
    if x.dtype == tl.bfloat16:
        return float_of(x.to(tl.int16, bitcast=True).to(tl.int32) << 16)
    else:
        return x


@triton.jit
def bf16_bits(x):
    """Bits (int32, 16 of them) of float32 values rounded to BF16, nearest even; the interpreter's cast truncates."""
    if INTERPRETED:
        bits = bits_of(x)
        near = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF
        return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, near)
    else:
        return x.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@triton.jit
def near_bf16(x):
    """float32 values rounded to BF16."""
    return float_of(bf16_bits(x) << 16)


@triton.jit
def finite(x):
    """float32 values, infinity replaced by the largest number; NaN stays."""
    bits = bits_of(x)
    return float_of(bits - ((bits & 0x7FFFFFFF) == 0x7F800000).to(tl.int32))


@triton.jit
def e2m1_line(a):
    """MAGIC + code of the magnitude a, nearest even, saturating."""
    low = tl.minimum(tl.fma(a, 2.0, MAGIC), a + (MAGIC + 2.0))
    return tl.minimum(tl.minimum(tl.fma(a, 0.5, MAGIC + 4.0), low), MAGIC + 7.0)


@triton.jit
def e2m1_code(a):
    """Code (int32) of the magnitude a, nearest even, saturating."""
    return bits_of(e2m1_line(a)) - MAGIC_BITS


@triton.jit
def e2m1_code_of_value(v):
    """Code (int32) of a magnitude that is an E2M1 value: its bits as a float32 of the same small exponent."""
    return bits_of(v * TWO_MINUS_126) >> 22


@triton.jit
def e2m1_value(a, CLAMP: tl.constexpr):
    """The E2M1 value that the magnitude a rounds to, nearest even; saturating, or below 7.

    A number of binade e >= 0 is rounded to multiples of 2^(e - 1), and one below 1 to multiples of 1/2: adding
    2^(e + 22) does it.
    """
    if CLAMP:
        a = tl.minimum(a, 6.0)
    # 2^22 times the power of two, at least 2^22
    big = float_of(tl.maximum((bits_of(a) & INFINITY_BITS) + 0x0B000000, 0x4A800000))
    return (a + big) - big


@triton.jit
def e2m1_drawn(a, field):
    """Code (int32) of the magnitude a under the random field, saturating."""
    a = tl.minimum(a, 6.0)
    normal = ((bits_of(a) + (field << 6)) >> 22) - 252
    below = ((a * 131072.0).to(tl.int32) + field) >> 16  # 2^17: the unit is 1/2
    return tl.where(a < 1.0, below, normal)


@triton.jit
def e4m3_near(a):
    """Code (int32) of the magnitude a, at most 448, nearest even."""
    bits = bits_of(a)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960  # (127 - 7) << 3
    below = bits_of(a + 24576.0) - 0x46C00000  # 1.5 * 2^14, whose unit is 2^-9
    return tl.where(a < 0.015625, below, normal)


@triton.jit
def e4m3_drawn(a, field):
    """Code (int32) of the magnitude a, at most 448, under the random field."""
    normal = ((bits_of(a) + (field << 4)) >> 20) - 960
    below = ((a * 33554432.0).to(tl.int32) + field) >> 16  # 2^25: the unit is 2^-9
    return tl.where(a < 0.015625, below, normal)


@triton.jit
def e4m3_signed(y):
    """Code (int32) of y, nearest even, saturating at 448: by the instruction where there is one."""
    if INTERPRETED:
        return e4m3_near(tl.minimum(tl.abs(y), 448.0)) | ((bits_of(y) >> 24) & 0x80)
    else:
        return y.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32)


@triton.jit
def e4m3_scale(x):
    """E4M3 code (int32) of x >= 0, nearest even, saturating at 448, and its value."""
    code = e4m3_near(tl.minimum(x, 448.0))
    return code, e4m3_value(code)


@triton.jit
def e4m3_value(code):
    """Value of a code 0 to 126: read as a float32, and scaled by the difference of the biases."""
    return float_of(code << 20) * TWO_120


@triton.jit
def e4m3_decoded(code):
    """Value of a code 0 to 255."""
    magnitude = tl.where((code & 0x7F) == 0x7F, float("nan"), e4m3_value(code & 0x7F))
    return float_of(bits_of(magnitude) | ((code & 0x80) << 24))


@triton.jit
def e4m3_byte(code):
    """float32 of E4M3 codes, uint8: by the instruction where there is one."""
    if INTERPRETED:
        return e4m3_decoded(code.to(tl.int32))
    else:
        return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def e2m1_decoded(code):
    """Value of a code 0 to 15: read as a float32, and scaled by the difference of the biases."""
    return float_of(((code & 7) << 22) | ((code & 8) << 28)) * TWO_126


@triton.jit
def s2f6_decoded(code):
    """Value of a code 0 to 255, two's complement in units of 1/64."""
    return ((code << 24) >> 24).to(tl.float32) * 0.015625


@triton.jit
def e8m0_value(code):
    """Power of two of a code 0 to 254; NaN of 255."""
    power = float_of(tl.maximum(code << 23, 0x00400000))
    return tl.where(code == 0xFF, float("nan"), power)


@triton.jit
def s2f6_signed(y):
    """MAGIC + code of y, a two's complement number of units of 1/64, nearest even, saturating at +-127."""
    return tl.minimum(tl.maximum(tl.fma(y, 64.0, MAGIC), MAGIC - 127.0), MAGIC + 127.0)


@triton.jit
def rceil_scale(amax, ELEMENT: tl.constexpr):
    """E8M0 code (int32) of the least power of two p with p * max >= amax; see `numerics.scales_power`."""
    bits = bits_of(amax)
    if ELEMENT == S2F6:  # max = 127/64 = 1.984375, exponent 0
        top = tl.where(bits < 0x800000, 0x7F0000, 0x7E0000)
        code = (bits >> 23) + ((bits & 0x7FFFFF) > top).to(tl.int32)
    else:  # the carry out of a mantissa beyond that of max: 448 = 1.75 2^8, 6 = 1.5 2^2
        mantissa: tl.constexpr = 0x600000 if ELEMENT == E4M3 else 0x400000
        offset: tl.constexpr = 8 if ELEMENT == E4M3 else 2
        code = ((bits + (0x7FFFFF - mantissa)) >> 23) - offset
    return tl.minimum(tl.maximum(code, 0), 254)


@triton.jit
def power_reciprocal(code):
    """1 / 2^(code - 127) for E8M0 codes 0 to 254, exact (254 gives the subnormal 2^-127)."""
    return float_of(tl.maximum((254 - code) << 23, 0x00400000))


@triton.jit
def quotient(x, d, inverse, DIVIDE: tl.constexpr):
    """RN(x / d); inverse is RN(1 / d), or 0 for a quotient of 0."""
    if DIVIDE or INTERPRETED:
        return tl.where(inverse == 0, 0.0, tl.div_rn(x, tl.where(inverse == 0, 1.0, d)))
    q = x * inverse
    return tl.fma(tl.fma(-q, d, x), inverse, q)


@triton.jit
def tree8(d, N: tl.constexpr):
    """Sum of the last axis of (N, 8) as a binary tree over adjacent pairs."""
    a, b = tl.split(tl.reshape(d, (N, 4, 2)))
    a, b = tl.split(tl.reshape(a + b, (N, 2, 2)))
    a, b = tl.split(a + b)
    return a + b


@triton.jit
def nibbles(code, x, N: tl.constexpr):
    """Eight E2M1 codes (N, 8) of magnitudes, with the signs of x, in an int32 (N,), the first in the low nibble."""
    code = code | ((bits_of(x) >> 28) & 8)
    return tl.sum(code << (tl.arange(0, 8) * 4)[None, :], axis=1)


@triton.jit
def four_bytes(code, N: tl.constexpr):
    """Codes (N, 8), of whose bits the low eight count, as int32 (N, 2), the first in the low byte."""
    shift = (tl.arange(0, 4) * 8)[None, None, :]
    return tl.sum(tl.reshape(code & 0xFF, (N, 2, 4)) << shift, axis=2)


@triton.jit
def stage(x, N: tl.constexpr, S: tl.constexpr):
    """A butterfly stage of stride S, 1 to 4, on the last axis of (N, 8)."""
    pairs = tl.permute(tl.reshape(x, (N, 4 // S, 2, S)), (0, 1, 3, 2))
    a, b = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2)), (N, 8))


@triton.jit
def three_stages(x, N: tl.constexpr):
    """Strides 1, 2 and 4."""
    return stage(stage(stage(x, N, 1), N, 2), N, 4)
