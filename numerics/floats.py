"""Powers of two and rounding toward zero by bits and integers: exact on every device, which a pow need not be."""

from __future__ import annotations

import torch
from torch import Tensor


def power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent of integers in the range of the normal numbers of `dtype`, float32 or float64."""
    if dtype == torch.float32:
        return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def toward_zero(x: Tensor, fraction_bits: int) -> Tensor:
    """float64 values rounded toward zero to float32 with `fraction_bits` bits after the leading one.

    Subnormal results are multiples of 2^(-126 - fraction_bits). A value of 2^128 or more becomes infinity. Zero, also
    what becomes zero, is +0.
    """
    kept = (x.view(torch.int64) & -(1 << (52 - fraction_bits))).view(torch.float64)
    tiny, unit = x.abs() < 2.0**-126, 2.0 ** (126 + fraction_bits)
    small = whole(torch.where(tiny, x, 0.0) * unit) * (1 / unit)
    return torch.where(tiny, small, kept).to(torch.float32)


def whole(x: Tensor) -> Tensor:
    """float64 values below 2^63 rounded toward zero to integers; -0 becomes 0.

    `torch.trunc` splits even small tensors between threads, which takes longer than the work.
    """
    return x.to(torch.int64).to(torch.float64)
