"""Byte layouts: how codes lie in memory. Nothing here changes a value.

Nibbles: byte i holds code 2i in its low half and code 2i + 1 in its high half (PTX `e2m1x2`: the second operand is
the low nibble), the order of every NVFP4 checkpoint format in common use.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pack_nibbles(codes: Tensor) -> Tensor:
    """4-bit codes (..., n), uint8 in [0, 16), n even -> bytes (..., n / 2), the even index in the low nibble.

    Raises: ValueError for an odd last axis.
    """
    if codes.ndim == 0 or codes.shape[-1] % 2:
        raise ValueError(f"codes of shape {tuple(codes.shape)}: the last axis must be even to pack two per byte")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Inverse of `pack_nibbles`: bytes (..., n) -> codes (..., 2n), uint8."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
