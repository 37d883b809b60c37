"""Byte layouts: how codes and block scales lie in memory. Nothing here changes a value.

Nibbles. Byte i holds code 2i in its low half and code 2i + 1 in its high half (PTX `e2m1x2`: the second operand is the
low nibble), the order of torch's `float4_e2m1fn_x2` and of every NVFP4 checkpoint format in common use.

Block scales, 128x4. The block-scaled products of Blackwell read the one-byte scales of an operand, a matrix of
`rows` (M or N) by `k` (blocks along the contraction), in tiles of 128 rows by 4 columns. A tile is 512 bytes; tiles
follow each other along k first. With tiles_k = ceil(k / 4) the scale of row r and column c lies at byte

    ((r // 128) * tiles_k + c // 4) * 512  +  (r % 32) * 16  +  ((r % 128) // 32) * 4  +  c % 4

Source: cuBLAS, "1D block scaling factors layout"; CUTLASS `Sm1xxBlockScaledConfig` and torch's
`SwizzleType.SWIZZLE_32_4_4` are the same. Rows up to a multiple of 128 and columns up to a multiple of 4 are padding;
here it is defined as zero bytes, which are no NaN in any scale format.

Everything is exact, and works on every device and on any strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import integer, require_kind, require_tensor

TILE_ROWS, TILE_COLUMNS = 128, 4
SCALE_DTYPES = (torch.uint8, torch.float8_e4m3fn, torch.float8_e8m0fnu)


def pack_nibbles(codes: Tensor) -> Tensor:
    """4-bit codes (..., n), uint8, n even -> bytes (..., n / 2), uint8, the even index in the low nibble.

    Raises: TypeError for another dtype. ValueError for an odd last axis, or a code above 15.
    """
    require_tensor(codes, "codes")
    if codes.dtype != torch.uint8:
        raise TypeError(f"codes have dtype {codes.dtype}: pass uint8")
    if codes.ndim == 0 or codes.shape[-1] % 2:
        raise ValueError(f"codes of shape {tuple(codes.shape)}: the last axis must be even to pack two per byte")
    highest = int(codes.max()) if codes.numel() else 0
    if highest > 15:
        raise ValueError(f"codes reach up to {highest}: a nibble holds 0 to 15")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Inverse of `pack_nibbles`: bytes (..., n), uint8 -> codes (..., 2n), uint8.

    Raises: TypeError for another dtype (a `float4_e2m1fn_x2` tensor can be viewed as uint8). ValueError without axes.
    """
    require_tensor(packed, "packed")
    if packed.dtype != torch.uint8:
        raise TypeError(f"packed has dtype {packed.dtype}: pass uint8, or packed.view(torch.uint8)")
    if packed.ndim == 0:
        raise ValueError("packed has no axis: pass bytes of shape (..., n)")
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def padded_scales(rows: int, k: int) -> tuple[int, int]:
    """Rows and columns of a (rows, k) matrix of scales when it is padded to whole tiles; their product is its bytes.

    Raises: TypeError for no integers, ValueError for negative ones.
    """
    for name, n in (("rows", rows), ("k", k)):
        if integer(n, name, "pass an integer") < 0:
            raise ValueError(f"{name}={n}: pass 0 or more")
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-k // TILE_COLUMNS) * TILE_COLUMNS


def swizzle_scales(scales: Tensor) -> Tensor:
    """Block scales in the 128x4 layout.

    Args:
        scales: uint8 codes, or their float8_e4m3fn or float8_e8m0fnu view; (..., rows, k). Leading axes are matrices
            of their own, one per expert.

    Returns:
        A new contiguous tensor (..., n), dtype and device of `scales`: n = padded rows x padded k bytes per matrix.

    Raises:
        TypeError: another dtype. ValueError: fewer than two axes.
    """
    _require_scales(scales, "scales")
    if scales.ndim < 2:
        raise ValueError(f"scales have shape {tuple(scales.shape)}: pass (..., rows, k)")
    *lead, rows, k = scales.shape
    padded = padded_scales(rows, k)
    grid = scales.view(torch.uint8)
    if padded != (rows, k):
        grid = grid.new_zeros(*lead, *padded)
        grid[..., :rows, :k] = scales.view(torch.uint8)
    tiles = grid.reshape(*lead, padded[0] // TILE_ROWS, 4, 32, padded[1] // TILE_COLUMNS, TILE_COLUMNS)
    # row = 128 tile + 32 a + b: (tile, a, b, tile_k, c) -> (tile, tile_k, b, a, c)
    swizzled = tiles.transpose(-4, -2).contiguous()
    return swizzled.view(*lead, padded[0] * padded[1]).view(scales.dtype)


def unswizzle_scales(swizzled: Tensor, shape: Sequence[int], check_padding: bool = False) -> Tensor:
    """Inverse of `swizzle_scales`.

    Args:
        swizzled: bytes as there; any shape whose elements, in row-major order, are the bytes of the layout, so that a
            padded matrix will do.
        shape: (..., rows, k), without padding.
        check_padding: raise if a padding byte is not zero. Products never read padding, and other libraries leave
            what they like in it.

    Returns:
        A new contiguous tensor of `shape`, dtype and device of `swizzled`.

    Raises:
        TypeError: another dtype. ValueError: fewer than two axes in `shape`; a size that does not belong to it;
        non-zero padding under check_padding (how many bytes, the first index).
    """
    _require_scales(swizzled, "swizzled")
    remedy = "pass integers (..., rows, k), the scales' shape without padding"
    require_kind(shape, (tuple, list), "shape", remedy)  # torch.Size is a tuple
    shape = tuple(integer(n, f"shape[{i}]", remedy) for i, n in enumerate(shape))
    if len(shape) < 2 or min(shape) < 0:
        raise ValueError(f"shape={tuple(shape)}: pass (..., rows, k), the scales' shape without padding")
    *lead, rows, k = shape
    padded = padded_scales(rows, k)
    expected = math.prod(lead) * padded[0] * padded[1]
    if swizzled.numel() != expected:
        raise ValueError(
            f"swizzled has {swizzled.numel()} bytes: scales of shape {tuple(shape)} have {expected}, "
            f"{padded[0]} rows by {padded[1]} columns with padding"
        )
    flat = swizzled.view(torch.uint8)
    tiles = flat.reshape(*lead, padded[0] // TILE_ROWS, padded[1] // TILE_COLUMNS, 32, 4, TILE_COLUMNS)
    grid = tiles.transpose(-4, -2).reshape(*lead, *padded)
    if check_padding:
        _require_zero_padding(grid, rows, k)
    return grid[..., :rows, :k].contiguous().view(swizzled.dtype)


def _require_scales(scales: Tensor, name: str) -> None:
    require_tensor(scales, name)
    if scales.dtype not in SCALE_DTYPES:
        raise TypeError(f"{name} has dtype {scales.dtype}: pass uint8, float8_e4m3fn or float8_e8m0fnu")


def _require_zero_padding(grid: Tensor, rows: int, k: int) -> None:
    outside = torch.ones_like(grid, dtype=torch.bool)
    outside[..., :rows, :k] = False
    bad = (outside & (grid != 0)).nonzero()
    if len(bad):
        raise ValueError(
            f"swizzled has {len(bad)} non-zero bytes of padding, the first at index {tuple(bad[0].tolist())} of the "
            f"padded scales: zero them, or pass check_padding=False"
        )
