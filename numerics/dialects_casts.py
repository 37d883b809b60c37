"""What the rules of `dialects_nv` and `dialects_mx` are made of: constants, casts, sums, choices.

Everything is exact or rounded once to float32; casts round to nearest.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .codes import decode_tensor, encode_tensor
from .dialects_core import Blocks, Steps
from .formats import E2M1, E4M3, Format
from .outer import FLT_MAX
from .rounding import Rounding, pattern


def const(like: Tensor, value: float) -> Tensor:
    """A float32 constant to divide by, or to divide."""
    return like.new_tensor(value)


def e4m3(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Scale codes, nearest even, saturating at 448, NaN 0x7F; and their float32 values."""
    codes = encode_tensor(ratio, E4M3, Rounding.NEAREST_EVEN)
    return codes, decode_tensor(codes, E4M3)


def nearest(scaled: Tensor, element: Format = E2M1, rounding: Rounding = Rounding.NEAREST_EVEN) -> Tensor:
    """Element codes as the hardware's cvt...satfinite gives them: -0 kept, NaN +max (or the format's NaN)."""
    return encode_tensor(scaled, element, rounding)


def nearest_plus_zero(scaled: Tensor, nan: int = 0) -> Tensor:
    """E2M1 codes of a cast by comparisons: -0 becomes +0 (a negative number that rounds to zero keeps its sign), NaN
    becomes `nan`."""
    codes = torch.where(scaled == 0, 0, nearest(scaled))
    return torch.where(torch.isnan(scaled), nan, codes).to(torch.uint8)


def ties_to_zero(scaled: Tensor, element: Format = E2M1) -> Tensor:
    """Codes of the nearest values, ties toward zero; every zero becomes +0, NaN 0."""
    codes = nearest(torch.nextafter(scaled, torch.zeros_like(scaled)), element)
    return torch.where((decode_tensor(codes, element) == 0) | torch.isnan(scaled), 0, codes).to(torch.uint8)


def least_error(x: Tensor, step: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """E2M1 codes by a search: the first of 0, 0.5, .. 6 with the least |q step - |x||, rounded to `dtype`.

    Ties go toward zero. So does what is so large that rounding makes the errors equal, and NaN. Every zero becomes +0.
    """
    size = x.abs()
    codes, least = torch.zeros_like(x, dtype=torch.uint8), size
    for code in range(1, E2M1.max_code + 1):
        error = (E2M1.value(code) * step - size).to(dtype).to(torch.float32).abs()
        better = error < least
        codes = torch.where(better, code, codes)
        least = torch.where(better, error, least)
    return torch.where((x < 0) & (codes > 0), codes | 8, codes).to(torch.uint8)


def rounded_logarithm(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """log2 of float32 `x`, rounded to float32 and then to `dtype`, as float32.

    float64's own relative error, below 2^-48, decides nothing where whole and half exponents are told apart: no
    float32 has a logarithm so near to where rounding to one of them begins.
    """
    return torch.log2(x.to(torch.float64)).to(torch.float32).to(dtype).to(torch.float32)


def square(d: Tensor) -> Tensor:
    """d^2, rounded."""
    return d * d


def cap(x: Tensor) -> Tensor:
    """min(x, FLT_MAX); NaN stays."""
    return x.clamp(max=FLT_MAX)


def tree(x: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine the last axis (a power of two long) as a binary tree over adjacent pairs; keeps the axis."""
    while x.shape[-1] > 1:
        x = combine(x[..., 0::2], x[..., 1::2])
    return x


def halves(x: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine the last axis (a power of two long) by adding its second half to its first, again and again; keeps the
    axis."""
    while x.shape[-1] > 1:
        x = combine(*x.chunk(2, -1))
    return x


def one_by_one(x: Tensor) -> Tensor:
    """Sum of the last axis from the first to the last value; keeps the axis."""
    total = torch.zeros_like(x[..., :1])
    for i in range(x.shape[-1]):
        total = total + x[..., i : i + 1]
    return total


def choose(four: Tensor, if_four: Steps, otherwise: Steps) -> Steps:
    """The steps of each block by a mask (..., n, 1)."""
    pairs = [(if_four.ratio, otherwise.ratio), (if_four.scales, otherwise.scales)]
    pairs += [(if_four.scaled, otherwise.scaled), (if_four.codes, otherwise.codes)]
    return Steps(*(torch.where(four, a, b) for a, b in pairs))


def poisoned(blocks: Blocks, steps: Steps, scale_format: Format | None) -> Steps:
    """A NaN scale and codes of +max where a block is not finite: fourbit's own rule."""
    size = (blocks.x.view(torch.int32) & 0x7FFFFFFF).amax(-1, keepdim=True)
    finite = size < pattern(float("inf"), torch.float32)
    nan = float("nan") if scale_format is None else scale_format.nan_code
    assert nan is not None
    scales = torch.where(finite, steps.scales, nan).to(torch.float32 if scale_format is None else torch.uint8)
    return Steps(
        steps.ratio, scales, steps.scaled, torch.where(finite, steps.codes, blocks.element.max_code).to(torch.uint8)
    )
