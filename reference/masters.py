"""FP32 masters for codes: values that a recipe quantizes to these codes and scales again.

The values that codes stand for nearly do that themselves. They do not where rounding hid how large the largest value
of a block was, which decides its scale; such a value is moved inside the cell that its code stands for:

    E8M0    its code is half the largest, 224 or 3: the original was larger, or the scale would be half of what it is
    E4M3    the scale is subnormal, a step h = 2^-9 apart: the original was within 6 (scale +- h / 2) outer
            the scale is 0: everything decodes to 0, and the originals were below 6 (h / 2) outer
    outer   it is rounded up to a power of two, and just twice amax / 2688 (1536 under four-over-six): the original was
            larger, or the outer would be half of what it is

An outer that is not rounded comes back: fl(2688 outer) is no further from 2688 outer than the original amax is, whose
quotient the outer is.
Codes that another rule made, such as one that calibrates, need not come back; their values do. Shapes: N outputs, K
inputs, matrices (N, K).
"""

from __future__ import annotations

import torch
from torch import Tensor

from numerics import E2M1, E4M3, MXFP4, MXFP8, NVFP4, BlockTensor, decode

from . import packed
from .packed import Matrix

_FORMATS = {packed.NVFP4: NVFP4, packed.MXFP8: MXFP8, packed.MXFP4: MXFP4}
_STEP = 2.0**-9  # of E4M3 below 2^-6
_DIVISORS = 2688.0, 1536.0


def masters(m: Matrix) -> Tensor:
    """FP32 (N, K), without a look at other matrices that share its outer scale, see `settle`."""
    fmt = _FORMATS[m.kind]
    outer = m.outer.view(1, 1) if m.kind.scale is E4M3 else None
    values = BlockTensor(m.codes, m.scales, outer, fmt, fmt.rule.name, 1).dequantize()
    values, codes = (x.unflatten(1, (-1, m.kind.block)) for x in (values, decode(m.codes, m.kind.element)))
    scales, size = decode(m.scales, m.kind.scale)[..., None], codes.abs()
    largest = size == size.amax(-1, keepdim=True)
    if m.kind.scale is E4M3:
        moved = torch.where(largest, _hidden(size, scales), size * scales)
        # below half a step the scale is 0, and every code that is not 0 says the same
        moved = torch.where(scales == 0, size * (_STEP / 4), moved) * m.outer
        values = torch.where(scales < 8 * _STEP, moved.copysign(codes), values)
    else:
        half = largest & (size == m.kind.element.max / 2)
        values = torch.where(half, values * (1 + 2.0**-6), values)  # far from the next code
    return values.flatten(1)


def _hidden(size: Tensor, scales: Tensor) -> Tensor:
    """The largest values of blocks with these scales, as multiples of the outer scale: what their codes stand for, or
    the middle of what both allow."""
    points = E2M1.values()
    points = points[points >= 0].to(size.device)
    borders = (points[1:] + points[:-1]) * 0.5
    at = torch.searchsorted(points, size.contiguous())
    lower = torch.where(at > 0, borders[(at - 1).clamp(min=0)], 0.0)
    upper = torch.where(at < len(borders), borders[at.clamp(max=len(borders) - 1)], torch.inf)
    low = torch.maximum(lower * scales, 6 * (scales - _STEP / 2))
    high = torch.minimum(upper * scales, 6 * (scales + _STEP / 2))
    inside = (low < size * scales) & (size * scales < high)
    return torch.where(inside, size * scales, (low + high) * 0.5)


def settle(values: Tensor, outer: Tensor) -> Tensor:
    """All the values that share an outer scale, FP32, with the largest a little larger if the outer scale is a power of
    two that would be half of it else. outer: float32 ()."""
    amax = values.abs().max()
    half = [bool(amax / torch.full_like(amax, divisor) == outer * 0.5) for divisor in _DIVISORS]
    if not any(half) or float(torch.frexp(outer).mantissa) != 0.5:
        return values
    return torch.where(values.abs() == amax, values * (1 + 2.0**-20), values)
