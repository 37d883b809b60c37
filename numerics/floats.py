"""Powers of two and rounding toward zero by bits: exact on every device, without log2, pow or ldexp.

`torch.ldexp` multiplies by a float32 power, which ends at 2^127, and a device's pow need not be exact.
"""

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
    unit = 2.0 ** (126 + fraction_bits)
    small = torch.trunc(x * unit) * (1 / unit)
    return (torch.where(x.abs() < 2.0**-126, small, kept) + 0.0).to(torch.float32)
