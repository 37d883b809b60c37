"""MX rules of public quantizers: an E8M0 scale per 32 values, one function each; any element format.

Notation: b the block's amax, e(b) its exponent, max and emax the element format's largest value and its exponent. The
byte of 2^k is k + 127. Exponents and mantissas are read off the bits; no logarithm is taken, not even where the
quantizer takes one: what its rounding does is a comparison of mantissas (`torchao_rceil`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .codes import encode_tensor
from .dialects_casts import const, nearest, nearest_plus_zero, poisoned
from .dialects_core import Blocks, Outer, Steps
from .formats import E2M1, E8M0, Format
from .rounding import Rounding, pattern

NAN = 255


def _power(byte: Tensor) -> Tensor:
    """2^(byte - 127) of int32 bytes 0 to 254, float32; byte 0 gives the subnormal 2^-127, 255 infinity."""
    return torch.where(byte == 0, 0x00400000, byte << 23).view(torch.float32)


def _reciprocal_power(byte: Tensor) -> Tensor:
    """2^(127 - byte) of int32 bytes 0 to 254, float32."""
    return torch.where(byte == 254, 0x00400000, (254 - byte).clamp(min=0) << 23).view(torch.float32)


def _emax(element: Format) -> int:
    return (pattern(element.max, torch.float32) >> 23) - 127


def _exponent(b: Tensor) -> Tensor:
    """The biased exponent field, int32: 0 for subnormals, 255 for infinity."""
    return b.view(torch.int32) >> 23


def _ratio_of_power(blocks: Blocks) -> Tensor:
    return blocks.amax / const(blocks.amax, 2.0 ** _emax(blocks.element))


def _ratio_of_max(blocks: Blocks) -> Tensor:
    return blocks.amax / const(blocks.amax, blocks.element.max)


def ocp_floor(blocks: Blocks, outer: Outer) -> Steps:
    """2^(e(b) - emax), at least 2^-127; q rounds x / 2^k (OCP Microscaling v1.0, section 6.3)."""
    byte = (_exponent(blocks.amax) - _emax(blocks.element)).clamp(0, 254)
    scaled = blocks.x * _reciprocal_power(byte)
    return poisoned(blocks, Steps(_ratio_of_power(blocks), byte, scaled, nearest(scaled, blocks.element)), E8M0)


def rceil(blocks: Blocks, outer: Outer) -> Steps:
    """The least 2^k with 2^k max >= b, within 2^-127 to 2^127; q rounds x / 2^k."""
    limit, bits = pattern(blocks.element.max, torch.float32), blocks.amax.view(torch.int32)
    byte = (bits >> 23) - (limit >> 23) + 127
    mantissa = limit & 0x7FFFFF
    byte = byte + ((bits & 0x7FFFFF) > torch.where(bits < 0x800000, (mantissa | 0x800000) >> 1, mantissa))
    byte = byte.clamp(0, 254)
    scaled = blocks.x * _reciprocal_power(byte)
    return poisoned(blocks, Steps(_ratio_of_max(blocks), byte, scaled, nearest(scaled, blocks.element)), E8M0)


def even(blocks: Blocks, outer: Outer) -> Steps:
    """torchao's EVEN: `torchao_floor` of b rounded half up to the element's significand."""
    return _torchao(blocks, _rounded(blocks.amax, blocks.element.mantissa_bits))


def _rounded(b: Tensor, mantissa_bits: int) -> Tensor:
    """The power of two below b + half a unit in the place of `mantissa_bits`; NaN stays."""
    power = ((b.view(torch.int32) + (1 << (22 - mantissa_bits))) & 0x7F800000).view(torch.float32)
    return torch.where(torch.isnan(b), b, power)


def torchao_floor(blocks: Blocks, outer: Outer) -> Steps:
    """2^(e(b) - emax), at least 2^-127; q rounds x / max(2^k, 2^-126), saturating."""
    return _torchao(blocks, blocks.amax)


def _torchao(blocks: Blocks, b: Tensor) -> Steps:
    byte = (_exponent(b) - _emax(blocks.element)).clamp(0, 255)
    byte = torch.where(torch.isnan(b), NAN, byte)
    scaled = blocks.x / _power(byte.clamp(min=1))
    return Steps(_ratio_of_power(blocks), byte.to(torch.uint8), scaled, nearest(scaled, blocks.element))


# How many units in the last place above 2^k a float32 may lie and still have a float32 logarithm of k, for |k| of 64 to
# 126: 2^-18 is half the distance of float32 numbers there, and 2^(2^-18) - 1 = 22.2 * 2^-23. Half as many for 32 to 63.
_SLACK = 22


def torchao_rceil(blocks: Blocks, outer: Outer) -> Steps:
    """ceil(fl(log2(b / max))), on a CPU; q rounds x 2^-k, or x itself where the byte is 0, saturating.

    log2 rounded to float32 is k for a ratio just above 2^k, whose scale therefore is not rounded up: the further k is
    from 0, the more ratios.
    """
    ratio = _ratio_of_max(blocks)
    fraction, exponent = torch.frexp(ratio)  # ratio = fraction * 2^exponent, 0.5 <= fraction < 1
    k = exponent.to(torch.int32) - 1
    above = ((fraction - 0.5) * 2.0**24).to(torch.int32)  # units of 2^-23 above 2^k
    near = torch.where(k < 0, -k - 1, k)  # below a power of two the numbers lie twice as dense
    slack = torch.zeros_like(k)
    for j in range(7):
        slack = torch.where(near >= 1 << j, _SLACK >> (6 - j), slack)
    byte = (k + (above > slack).to(torch.int32)).clamp(-127, 127) + 127
    byte = torch.where(ratio == 0, 0, byte)
    byte = torch.where(torch.isinf(ratio), 254, torch.where(torch.isnan(ratio), NAN, byte))
    multiplier = torch.where(byte == 0, const(ratio, 1.0), _reciprocal_power(byte))
    multiplier = torch.where(byte == NAN, ratio, multiplier)
    scaled = blocks.x * multiplier
    return Steps(ratio, byte.to(torch.uint8), scaled, nearest(scaled, blocks.element))


def te_mxfp8(blocks: Blocks, outer: Outer) -> Steps:
    """fl(b * fl(1 / max)) rounded up to a power of two; q rounds x * 2^-k."""
    largest = const(blocks.amax, blocks.element.max)
    ratio = blocks.amax * (const(blocks.amax, 1.0) / largest)
    bits = ratio.view(torch.int32)
    mantissa = bits & 0x7FFFFF
    up = (mantissa > 0) & (bits >> 23 != 254) & ~((bits < 0x800000) & (mantissa <= 0x400000))
    byte = (bits >> 23) + up
    byte = torch.where(torch.isinf(ratio), 254, torch.where(torch.isnan(ratio), NAN, byte))
    scaled = blocks.x * _reciprocal_power(byte)
    return Steps(ratio, byte.to(torch.uint8), scaled, nearest(scaled, blocks.element))


def compressed_tensors_mx(blocks: Blocks, outer: Outer) -> Steps:
    """As `even`, but b is rounded to one mantissa bit whatever the element; q rounds x / 2^k in x's dtype."""
    b = _rounded(blocks.amax, 1)
    byte = (_exponent(b) - _emax(blocks.element)).clamp(0, 255)
    scaled = (blocks.x / _power(byte)).to(blocks.dtype).to(torch.float32)
    largest = blocks.element.max
    scaled = scaled.clamp(-largest, largest)
    codes = nearest_plus_zero(scaled) if blocks.element == E2M1 else nearest(scaled, blocks.element)
    return Steps(_ratio_of_power(blocks), byte.to(torch.uint8), scaled, codes)


def fouroversix_mx(blocks: Blocks, outer: Outer) -> Steps:
    """fl(b / 6) rounded up to a power of two by its mantissa; q rounds x / 2^k, zero where the byte is 0."""
    ratio = _ratio_of_max(blocks)
    bits = ratio.view(torch.int32)
    byte = ((bits >> 23) + ((bits & 0x7FFFFF) != 0)) & 0xFF
    scaled = torch.where(byte == 0, const(ratio, 0.0), blocks.x / (byte << 23).view(torch.float32))
    codes = torch.where(scaled == 0, 0, encode_tensor(scaled, E2M1, Rounding.NEAREST_EVEN))
    return Steps(ratio, byte.to(torch.uint8), scaled, codes.to(torch.uint8))
