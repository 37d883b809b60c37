"""Scales of blocks as Triton device functions: by Blackwell's conversions, or in FP32 and integers, for the same bits.

NATIVE: the instructions of `kernel_ptx`; else those of `kernel_casts`.
"""

import triton
import triton.language as tl

from .kernel_casts import E4M3, FLT_MAX, S2F6, bits_of, e4m3_scale, float_of, rceil_scale
from .kernel_ptx import e4m3_there_and_back, e8m0_up


@triton.jit
def e4m3_code_and_value(x, NATIVE: tl.constexpr):
    """E4M3 code (int32) of x >= 0, nearest even, saturating at 448, and its value."""
    if NATIVE:
        return e4m3_there_and_back(tl.minimum(x, 448.0))
    else:
        return e4m3_scale(x)


@triton.jit
def nvfp4_scale(amax, encode, decode, NATIVE: tl.constexpr):
    """Rule `nvfp4`: scale code (int32) of blocks, and what multiplies their values. decode: RN(1 / encode)."""
    code, scale = e4m3_code_and_value(amax * (encode * 0.1666666716337204), NATIVE)  # fl(1 / 6)
    step = scale * decode
    return code, tl.where(step == 0, FLT_MAX, tl.minimum(tl.div_rn(1.0, tl.where(step == 0, 1.0, step)), FLT_MAX))


@triton.jit
def rceil(amax, ELEMENT: tl.constexpr, NATIVE: tl.constexpr):
    """E8M0 code (int32) of the least power of two p with p * max >= amax, which is finite; see `numerics.scales_power`.

    Natively: taken off amax's bits, the bits of max / 2 leave those of twice the scale if amax is max times a power of
    two, less if it is less, and more if it is more: rounded up and halved it is the scale. (Twice, since codes 0 and 1
    may not fall among subnormal numbers; not twice for S2F6, whose scale may be the largest: its codes 0 and 1 are told
    apart by numbers of their own, at 127/64 2^-127 the bits of 2^-127 and then at most those of 2^-126.)
    """
    if NATIVE:
        bits = bits_of(amax)
        if ELEMENT == S2F6:  # max = 127/64
            low = tl.maximum(tl.minimum(bits - 0x3F0000, 0x800000), 0)
            return e8m0_up(float_of(tl.maximum(bits - 0x7E0000, low)))
        else:  # max / 2 = 1.75 2^7, 1.5 2^1
            half: tl.constexpr = 0x3E00000 if ELEMENT == E4M3 else 0xC00000
            return tl.maximum(e8m0_up(float_of(tl.maximum(bits - half, 0))) - 1, 0)
    else:
        return rceil_scale(amax, ELEMENT)
