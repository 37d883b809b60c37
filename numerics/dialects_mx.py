"""MX rules of public quantizers: an E8M0 scale per 32 values, one function each; any element format.

Notation: b the block's amax, e(b) its exponent, max and emax the element format's largest value and its exponent. The
byte of 2^k is k + 127. Exponents and mantissas are read off the bits; where the quantizer takes a logarithm, fl(log2 b)
is the real one rounded once to float32 (or to x's dtype), which rounds up to k already just below 2^k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .codes import encode_tensor
from .dialects_casts import const, least_error, nearest, nearest_plus_zero, poisoned, rounded_logarithm, ties_to_zero
from .dialects_core import Blocks, Outer, Steps
from .formats import E2M1, E8M0, Format
from .rounding import Rounding, pattern

NAN = 255


def power(byte: Tensor) -> Tensor:
    """2^(byte - 127) of int32 bytes 0 to 254, float32; byte 0 gives the subnormal 2^-127, 255 infinity."""
    return torch.where(byte == 0, 0x00400000, byte << 23).view(torch.float32)


def _reciprocal_power(byte: Tensor) -> Tensor:
    """2^(127 - byte) of int32 bytes 0 to 254, float32."""
    return torch.where(byte == 254, 0x00400000, (254 - byte).clamp(min=0) << 23).view(torch.float32)


def emax(element: Format) -> int:
    return (pattern(element.max, torch.float32) >> 23) - 127


def _exponent(b: Tensor) -> Tensor:
    """The biased exponent field, int32: 0 for subnormals, 255 for infinity."""
    return b.view(torch.int32) >> 23


def _ratio_of_power(blocks: Blocks) -> Tensor:
    return blocks.amax / const(blocks.amax, 2.0 ** emax(blocks.element))


def _ratio_of_max(blocks: Blocks) -> Tensor:
    return blocks.amax / const(blocks.amax, blocks.element.max)


def ocp_floor(blocks: Blocks, outer: Outer) -> Steps:
    """2^(e(b) - emax), at least 2^-127; q rounds x / 2^k (OCP Microscaling v1.0, section 6.3)."""
    byte = (_exponent(blocks.amax) - emax(blocks.element)).clamp(0, 254)
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
    return _torchao(blocks, rounded_up_at_half(blocks.amax, blocks.element.mantissa_bits))


def rounded_up_at_half(b: Tensor, mantissa_bits: int) -> Tensor:
    """The power of two below b + half a unit in the place of `mantissa_bits`; NaN stays."""
    power = ((b.view(torch.int32) + (1 << (22 - mantissa_bits))) & 0x7F800000).view(torch.float32)
    return torch.where(torch.isnan(b), b, power)


def torchao_floor(blocks: Blocks, outer: Outer) -> Steps:
    """2^(e(b) - emax), at least 2^-127; q rounds x / max(2^k, 2^-126), saturating."""
    return _torchao(blocks, blocks.amax)


def _torchao(blocks: Blocks, b: Tensor) -> Steps:
    byte = (_exponent(b) - emax(blocks.element)).clamp(0, 255)
    byte = torch.where(torch.isnan(b), NAN, byte)
    scaled = blocks.x / power(byte.clamp(min=1))
    return Steps(_ratio_of_power(blocks), byte.to(torch.uint8), scaled, nearest(scaled, blocks.element))


def torchao_rceil(blocks: Blocks, outer: Outer) -> Steps:
    """ceil(fl(log2(b / max))), on a CPU; q rounds x 2^-k, or x itself where the byte is 0, saturating.

    log2 rounded to float32 is k for a ratio just above 2^k, whose scale therefore is not rounded up: the further k is
    from 0, the more ratios.
    """
    ratio = _ratio_of_max(blocks)
    byte = torch.where(torch.isfinite(ratio), torch.ceil(rounded_logarithm(ratio)).clamp(-127, 127) + 127, 254).to(
        torch.int32
    )
    byte = torch.where(torch.isnan(ratio), NAN, byte)
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
    b = rounded_up_at_half(blocks.amax, 1)
    byte = (_exponent(b) - emax(blocks.element)).clamp(0, 255)
    scaled = (blocks.x / power(byte)).to(blocks.dtype).to(torch.float32)
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


# ---- libraries that run models ---------------------------------------------------------------------------------------


def triton_up(blocks: Blocks, outer: Outer) -> Steps:
    """fl(b / max) rounded up to a power of two by its mantissa; q rounds x * 2^-k, x * 0 where the byte is 0."""
    ratio = _ratio_of_max(blocks)
    return _triton(blocks, ratio, ((ratio.view(torch.int32) + 0x7FFFFF) >> 23) & 0xFF)


def triton_down(blocks: Blocks, outer: Outer) -> Steps:
    """2^(e(b) - emax) by cutting off the mantissa; elements as `triton_up`."""
    ratio = _ratio_of_power(blocks)
    return _triton(blocks, ratio, (ratio.view(torch.int32) >> 23) & 0xFF)


def _triton(blocks: Blocks, ratio: Tensor, byte: Tensor) -> Steps:
    multiplier = torch.where((byte == 0) | (byte == NAN), const(ratio, 0.0), _reciprocal_power(byte))
    scaled = blocks.x * multiplier
    return Steps(ratio, byte.to(torch.uint8), scaled, nearest(scaled, blocks.element))


def deepgemm(blocks: Blocks, outer: Outer) -> Steps:
    """fl(max(b, 1e-4) / 6) rounded up to a power of two, byte 1 to 254; q rounds x * 2^-k, ties toward zero."""
    ratio = blocks.amax.clamp(min=1e-4) / const(blocks.amax, blocks.element.max)
    bits = ratio.view(torch.int32)
    byte = ((bits >> 23) + ((bits & 0x7FFFFF) != 0)).clamp(1, 254)
    scaled = blocks.x * _reciprocal_power(byte)
    return Steps(ratio, byte.to(torch.uint8), scaled, ties_to_zero(scaled, blocks.element))


def ggml(blocks: Blocks, outer: Outer) -> Steps:
    """2^(floor(fl(log2 b)) - 2), byte 0 for zeros; q the code with the least |q 2^k - x|, ties toward zero."""
    byte = torch.where(blocks.amax == 0, 0, torch.floor(rounded_logarithm(blocks.amax)) + (127 - emax(blocks.element)))
    byte = byte.clamp(0, 254).to(torch.int32)
    scaled = blocks.x * _reciprocal_power(byte)
    return Steps(_ratio_of_power(blocks), byte.to(torch.uint8), scaled, ties_to_zero(scaled, blocks.element))


def mlx(blocks: Blocks, outer: Outer) -> Steps:
    """Its Metal kernel: fl(b / max) rounded up to a power of two; q rounds x * 2^-k."""
    ratio = _ratio_of_max(blocks)
    bits = ratio.view(torch.int32)
    low = torch.where(bits < 0x800000, 0x400000, 0)  # 2^-127, the least scale, is a subnormal number
    byte = ((bits >> 23) + ((bits & 0x7FFFFF) > low)).clamp(max=254)
    return _mlx(blocks, ratio, byte)


def mlx_before(blocks: Blocks, outer: Outer) -> Steps:
    """As `mlx`, but fl(log2(b / max)) to the nearest integer, halves away from 0."""
    ratio = _ratio_of_max(blocks)
    exponent = rounded_logarithm(ratio)
    whole = torch.trunc(exponent)
    whole = whole + torch.where((exponent - whole).abs() >= 0.5, torch.sign(exponent), 0)
    return _mlx(blocks, ratio, (whole.nan_to_num().clamp(-127, 127) + 127).to(torch.int32))


def _mlx(blocks: Blocks, ratio: Tensor, byte: Tensor) -> Steps:
    byte = torch.where(torch.isfinite(ratio), byte, NAN)
    scaled = blocks.x * torch.where(byte == NAN, const(ratio, 0.0), _reciprocal_power(byte))
    return Steps(ratio, byte.to(torch.uint8), scaled, _saturating(scaled, blocks.element))


def mlx_cpu_before(blocks: Blocks, outer: Outer) -> Steps:
    """Its graph of operations elsewhere, in x's dtype: fl(log2(b / max)) to the nearest integer, halves to even, 0 for
    zeros; q rounds x / 2^k, in E2M1 to the first code with the least error."""

    def rounded(t: Tensor) -> Tensor:
        return t.to(blocks.dtype).to(torch.float32)

    ratio = rounded(_ratio_of_max(blocks))
    byte = torch.where(ratio == 0, 0, torch.round(rounded_logarithm(ratio, blocks.dtype))).clamp(-127, 127) + 127
    byte = torch.where(torch.isnan(byte), 127, byte).to(torch.int32)
    scaled = rounded(blocks.x / power(byte))
    if blocks.element == E2M1:
        return Steps(ratio, byte.to(torch.uint8), scaled, least_error(scaled, torch.ones_like(ratio), blocks.dtype))
    return Steps(ratio, byte.to(torch.uint8), scaled, _saturating(scaled, blocks.element))


def _saturating(scaled: Tensor, element: Format) -> Tensor:
    """As `nearest`, but NaN becomes the largest value with the NaN's sign in a format that has a NaN."""
    numbers = torch.where(torch.isnan(scaled), torch.copysign(const(scaled, element.max), scaled), scaled)
    return nearest(scaled if element == E2M1 else numbers, element)


def vllm_mxfp4(blocks: Blocks, outer: Outer) -> Steps:
    """`even` with x * 2^-k for every byte, 2^-127 too."""
    b = torch.where(blocks.amax == 0, const(blocks.amax, 2.0**-126), rounded_up_at_half(blocks.amax, 1))
    byte = torch.where(torch.isnan(b), NAN, (_exponent(b) - emax(blocks.element)).clamp(0, 254))
    scaled = blocks.x * _reciprocal_power(byte)
    return Steps(_ratio_of_power(blocks), byte.to(torch.uint8), scaled, nearest(scaled, blocks.element))


def vllm_mxfp8(blocks: Blocks, outer: Outer) -> Steps:
    """ceil(fl(log2(max(b, 2^-126) / 448))); q rounds x / 2^k."""
    ratio = blocks.amax.clamp(min=2.0**-126) / const(blocks.amax, blocks.element.max)
    return _vllm(blocks, ratio, torch.ceil(rounded_logarithm(ratio)))


def vllm_mxfp8_floor(blocks: Blocks, outer: Outer) -> Steps:
    """floor(fl(log2 max(b, 2^-126))): the block maximum becomes 1 to 2; q rounds x / 2^k."""
    b = blocks.amax.clamp(min=2.0**-126)
    return _vllm(blocks, b, torch.floor(rounded_logarithm(b)))


def _vllm(blocks: Blocks, ratio: Tensor, exponent: Tensor) -> Steps:
    byte = torch.where(torch.isnan(exponent), 0, (exponent + 127).clamp(0, 254)).to(torch.int32)
    scaled = blocks.x / torch.where(torch.isnan(exponent), exponent, power(byte))
    return Steps(ratio, byte.to(torch.uint8), scaled, nearest(scaled, blocks.element))
