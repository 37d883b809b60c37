"""Matrices that make block quantizers go wrong: ties, saturation, subnormal scales, zeros, NaN, tiny and huge numbers.

`e4m3_patterns` serve formats whose blocks of 16 share an E4M3 scale under an FP32 outer scale, `e8m0_patterns` those
whose blocks of 32 share a power of two. Each returns float32 matrices by name, blocks along the last axis.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import numerics as nm

from .vectors_case import FLT_MAX, bell, from_bits, neighbours, outliers, powers, truncated, values_and_midpoints, words


def e4m3_patterns(outer_max: float) -> dict[str, Tensor]:
    """For NVFP4 (outer_max 2688) and four-over-six (1536): most hold that number, so that their outer scale is 1."""
    top = outer_max / nm.E2M1.max
    scales, midpoints = (t[(t > 0) & (t <= top)] for t in values_and_midpoints(nm.E4M3))
    crossings = neighbours(torch.cat((scales, midpoints)).to(torch.float32) * 6)
    crossings = torch.cat((crossings[crossings <= outer_max], from_bits([0x35800000, 0x0DA24260, 0x00800000, 1])))
    subnormal = torch.cat((torch.tensor([outer_max]), crossings[crossings < 6 * 2.0**-6]))
    return {
        **_common(16),
        "huge": huge(16, -1.0),
        "ties": ties(nm.E2M1, scales.to(torch.float32), 16),
        "scale_breakpoints": with_maximum(crossings, 16, 200),
        "subnormal_scales": with_maximum(subnormal, 16, 201),
        "one_value": torch.tensor([[0.3]]),
    }


def e8m0_patterns(element: nm.Format) -> dict[str, Tensor]:
    """For MXFP8, MXFP4, MXS2F6 and the like, by their element format."""
    # max 2^k for every k, where float32 rounds the subnormal ones
    limits = torch.from_numpy(np.ldexp(element.max, np.arange(-158, 128))).to(torch.float32)
    edges = neighbours(torch.unique(limits[(limits > 0) & torch.isfinite(limits)]))
    edges = edges[torch.isfinite(edges) & (edges > 0)]
    return {
        **_common(32),
        "huge": huge(32, -1.0 if element.kind == "float" else 1.0),
        "ties": ties(element, powers([-20, 0, 13]), 32),
        "scale_breakpoints": with_maximum(edges, 32, 202),
        "one_value": torch.tensor([[0.3]]),
    }


def _common(block: int) -> dict[str, Tensor]:
    """Patterns that every block format meets, in blocks of `block`."""
    zero_blocks = bell((4, 4 * block), 210)
    zero_blocks[0, :block] = 0.0
    zero_blocks[1, block : 2 * block] = -0.0
    zero_blocks[2] = 0.0
    zero_tensor = torch.zeros(2, 2 * block)
    zero_tensor[1, ::3] = -0.0
    return {
        "normal_float32": bell((16, 2 * block), 213),
        "normal_bfloat16": bell((32, 2 * block), 214, bfloat16=True),
        "outliers": outliers((32, 2 * block), 215),
        "ragged": bell((4, 2 * block + block // 2 + 3), 217),
        "zero_blocks": zero_blocks,
        "zero_tensor": zero_tensor,
        "not_finite": not_finite(block),
        "tiny": bell((4, 4 * block), 218) * 2.0**-120,
        "subnormal": bell((4, 4 * block), 219) * 2.0**-133,
    }


def huge(block: int, sign: float) -> Tensor:
    """Numbers up to FLT_MAX and `sign` * FLT_MAX. Blocks of S2F6 saturate there, and what a negative number saturates
    to is not settled for the instruction: they get a positive one."""
    x = bell((4, 4 * block), 212) * 2.0**125
    x[0, 0], x[3, block] = FLT_MAX, sign * FLT_MAX
    return x


def not_finite(block: int) -> Tensor:
    """NaN of both signs, infinities, both in one block, a row of nothing else, and ordinary blocks between them."""
    x = bell((5, 4 * block), 211)
    nan, minus_nan, inf = from_bits([0x7FC00000, 0xFFC00001, 0x7F800000])
    x[0, 3], x[0, block], x[1, 2 * block - 1], x[1, 2 * block] = nan, minus_nan, inf, -inf
    x[2, 5], x[2, 6] = inf, nan
    x[3, :] = inf
    return x


def ties(element: nm.Format, scales: Tensor, block: int) -> Tensor:
    """Blocks whose maximum is element.max * scale, so that the scale is exact, and that hold every value and midpoint
    of the element format times the scale, with the float32 neighbours of each; signs alternate."""
    values, midpoints = values_and_midpoints(element)
    points = torch.cat((values, midpoints[midpoints < element.max])).to(torch.float32)
    rows = []
    for scale in scales:
        near = neighbours(points[points > 0] * scale)  # exact products: few bits on both sides
        near = near[near <= scale * element.max]
        near = near * torch.where(torch.arange(len(near)) % 2 == 0, 1.0, -1.0)
        body = torch.zeros(-(-len(near) // (block - 1)) * (block - 1))
        body[: len(near)] = near
        body = body.view(-1, block - 1)
        rows.append(torch.cat(((element.max * scale).expand(len(body), 1), body), 1))
    return torch.cat(rows)


def with_maximum(magnitudes: Tensor, block: int, stream: int) -> Tensor:
    """One block per magnitude, (n, block): it stands somewhere in the block with some sign, below it random fractions
    of it."""
    count = len(magnitudes)
    draw = words(count * block, stream).view(count, block)
    fraction = (draw >> 16).to(torch.float32) * 2.0**-16
    sign = torch.where(draw & 1 == 0, 1.0, -1.0)
    x = fraction * magnitudes[:, None]
    place = torch.arange(count) % block
    x[torch.arange(count), place] = magnitudes
    return x * sign


def close_choices(count: int) -> Tensor:
    """(count, 16): of 2^15 BF16 blocks those where mapping the maximum to 6 and to 4 errs almost equally."""
    x = truncated(bell((1 << 15, 16), 220))
    one = torch.ones(1, 1)
    six, four = (nm.quantize(x, nm.NVFP4_46, outer=one, rule=f"static_{m}") for m in (6, 4))
    error6, error4 = (squared_error(q, x).squeeze(-1) for q in (six, four))
    ratio = (error6 - error4).abs() / torch.maximum(error6, error4)
    return x[torch.sort(ratio, stable=True).indices[:count]]


def squared_error(q: nm.BlockTensor, x: Tensor) -> Tensor:
    """What four-over-six compares, for one block a row: (n, 16) -> (n, 1), added as a tree over adjacent pairs."""
    difference = q.dequantize() - x
    return nm.scales.tree(difference * difference, torch.add)
