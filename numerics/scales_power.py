"""Rules whose scales are powers of two, or FP32: see `scales` for notation and formulas."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .outer import constant
from .rounding import pattern
from .rule import Block


def power_of_two(block: Block, up: bool) -> tuple[Tensor, Tensor]:
    """E8M0 scale: rounded up so that no element saturates (arXiv 2506.08027, PTX `cvt.rp.ue8m0x2`), or down to the
    difference of exponents (OCP Microscaling v1.0, section 6.3).

    Mantissas are compared, nothing is divided. The scale is clamped to E8M0, 2^-127 to 2^127: S2F6 elements, whose
    largest is below 2, saturate in blocks above max 2^127 all the same. Scaling by 2^-k is exact except where it
    underflows float32, far below any element's least value.
    """
    x, amax = block.inside()
    limit, bits = pattern(block.element.max, torch.float32), amax.view(torch.int32)
    mantissa, offset = limit & 0x7FFFFF, 127 - (limit >> 23)
    if up and offset < 0:  # the carry out of a larger mantissa; a float32 subnormal stays below scale 1 in any case
        scale = ((bits + (0x7FFFFF - mantissa)) >> 23).add_(offset)
    else:
        scale = (bits >> 23).add_(offset)
    if up and offset >= 0:
        # a float32 subnormal is compared with max * 2^-127, whose leading bit is explicit
        scale += (bits & 0x7FFFFF) > torch.where(bits < 0x800000, (mantissa | 0x800000) >> 1, mantissa)
    scale = scale.clamp_(0, 254)
    return scale.to(torch.uint8), block.encode(x * exponent_reciprocal(scale))


def exponent_reciprocal(code: Tensor) -> Tensor:
    """1 / 2^(code - 127) for int32 E8M0 codes 0 to 254, float32, exact (code 254 gives the subnormal 2^-127)."""
    return ((254 - code) << 23).clamp_(min=0x00400000).view(torch.float32)


def amax(block: Block) -> tuple[Tensor, Tensor]:
    """FP32 scale amax / max, one division (DeepSeek-V3, arXiv 2412.19437, section 3.3); an all-zero block has 1."""
    x, largest = block.inside()
    one = torch.ones_like(largest)
    scale = torch.where(largest == 0, one, largest / constant(block.element.max, largest))
    return scale, block.encode(x / torch.where(scale == 0, float("inf"), scale))


def three_quarters(block: Block) -> tuple[Tensor, Tensor]:
    """`floor` of x, and elements of 3/4 x, which then never saturate: 6 is 3/4 of 8, which no scaled element of E2M1
    reaches. Decoded values are multiplied by 4/3, the rule's gain (arXiv 2502.20586, section 3)."""
    return power_of_two(replace(block, x=block.x * 0.75), up=False)  # amax is still that of x
