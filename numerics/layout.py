"""Byte layouts: how codes and block scales lie in memory. Nothing here changes a value.

Nibbles. Byte i holds code 2i in its low half and code 2i + 1 in its high half (PTX `e2m1x2`: the second operand is the
low nibble), the order of torch's `float4_e2m1fn_x2` and of every NVFP4 checkpoint format in common use. GGML packs the
two halves of a block of B instead: byte i of the block holds code i in its low half and code i + B/2 in its high half.

Block scales, 128x4. The block-scaled products of Blackwell read the one-byte scales of an operand, a matrix of
`rows` (M or N) by `k` (blocks along the contraction), in tiles of 128 rows by 4 columns. A tile is 512 bytes; tiles
follow each other along k first. With tiles_k = ceil(k / 4) the scale of row r and column c lies at byte

    ((r // 128) * tiles_k + c // 4) * 512  +  (r % 32) * 16  +  ((r % 128) // 32) * 4  +  c % 4

Source: cuBLAS, "1D block scaling factors layout"; CUTLASS `Sm1xxBlockScaledConfig` and torch's
`SwizzleType.SWIZZLE_32_4_4` are the same. Rows up to a multiple of 128 and columns up to a multiple of 4 are padding;
here it is defined as zero bytes, which are no NaN in any scale format.

Block scales, 8x4. TensorRT-LLM's and FlashInfer's kernels for few rows (`SfLayout.layout_8x4`, `SWIZZLED_8x4`) take
tiles of 8 rows by 4 columns, 32 bytes each, row by row; padding likewise, to a multiple of 8:

    ((r // 8) * tiles_k + c // 4) * 32  +  (r % 8) * 4  +  c % 4

Everything is exact, and works on every device and on any strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import integer, require_kind, require_tensor

TILE_ROWS, TILE_COLUMNS = 128, 4
SMALL_TILE_ROWS = 8
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


def pack_halves(codes: Tensor, block: int) -> Tensor:
    """4-bit codes (..., n), uint8 -> bytes (..., n / 2), uint8, in GGML's order: of each block of `block` codes the
    first half in the low nibbles, the second in the high ones.

    Raises: TypeError for another dtype. ValueError for a last axis that is no whole number of blocks, an odd block or a
    code above 15.
    """
    require_tensor(codes, "codes")
    _require_blocks(codes, "codes", block, block)
    first, second = codes.unflatten(-1, (-1, 2, block // 2)).unbind(-2)
    return pack_nibbles(torch.stack((first, second), -1).flatten(-3))


def unpack_halves(packed: Tensor, block: int) -> Tensor:
    """Inverse of `pack_halves`: bytes (..., n), uint8 -> codes (..., 2n), uint8.

    Raises: TypeError for another dtype. ValueError for a last axis that is no whole number of blocks, or an odd block.
    """
    require_tensor(packed, "packed")
    _require_blocks(packed, "packed", block, block // 2)
    halves: Tensor = unpack_nibbles(packed).unflatten(-1, (-1, block // 2, 2)).mT
    return halves.flatten(-3)


def _require_blocks(t: Tensor, name: str, block: int, width: int) -> None:
    if integer(block, "block", "pass an integer") < 2 or block % 2:
        raise ValueError(f"block={block}: pass an even number of codes, such as 32")
    if t.ndim == 0 or t.shape[-1] % width:
        raise ValueError(f"{name} of shape {tuple(t.shape)}: the last axis must be whole blocks of {block} codes")


def padded_scales(rows: int, k: int, tile_rows: int = TILE_ROWS) -> tuple[int, int]:
    """Rows and columns of a (rows, k) matrix of scales when it is padded to whole tiles of `tile_rows` by 4; their
    product is its bytes.

    Raises: TypeError for no integers, ValueError for negative ones.
    """
    for name, n in (("rows", rows), ("k", k)):
        if integer(n, name, "pass an integer") < 0:
            raise ValueError(f"{name}={n}: pass 0 or more")
    return -(-rows // tile_rows) * tile_rows, -(-k // TILE_COLUMNS) * TILE_COLUMNS


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
    grid = _padded(scales, TILE_ROWS)
    tiles = grid.unflatten(-1, (-1, TILE_COLUMNS)).unflatten(-3, (-1, 4, 32))
    # row = 128 tile + 32 a + b: (tile, a, b, tile_k, c) -> (tile, tile_k, b, a, c)
    return _flat(tiles.transpose(-4, -2), scales)


def swizzle_scales_8x4(scales: Tensor) -> Tensor:
    """Block scales in the 8x4 layout; arguments, result and errors as of `swizzle_scales`."""
    grid = _padded(scales, SMALL_TILE_ROWS)
    tiles = grid.unflatten(-1, (-1, TILE_COLUMNS)).unflatten(-3, (-1, SMALL_TILE_ROWS))
    return _flat(tiles.transpose(-3, -2), scales)  # (tile, row, tile_k, c) -> (tile, tile_k, row, c)


def _padded(scales: Tensor, tile_rows: int) -> Tensor:
    """Bytes of scales with zeros up to whole tiles."""
    _require_scales(scales, "scales")
    if scales.ndim < 2:
        raise ValueError(f"scales have shape {tuple(scales.shape)}: pass (..., rows, k)")
    *lead, rows, k = scales.shape
    padded = padded_scales(rows, k, tile_rows)
    grid = scales.view(torch.uint8)
    if padded != (rows, k):
        grid = grid.new_zeros(*lead, *padded)
        grid[..., :rows, :k] = scales.view(torch.uint8)
    return grid


def _flat(tiles: Tensor, scales: Tensor) -> Tensor:
    """The bytes of each matrix in a row, with the dtype of `scales`."""
    *lead, _, _ = scales.shape
    return tiles.contiguous().view(*lead, tiles.shape[len(lead) :].numel()).view(scales.dtype)


def unswizzle_scales(swizzled: Tensor, shape: Sequence[int], check_padding: bool = False) -> Tensor:
    """Inverse of `swizzle_scales`.

    Args:
        swizzled: bytes as there; any shape whose elements, in row-major order, are the bytes of the layout, so that a
            padded matrix will do.
        shape: (..., rows, k), without padding.
        check_padding: raise if a padding byte is not zero. Nobody keeps what padding rows give, but products may read
            padding columns; other libraries leave what they like in both.

    Returns:
        A new contiguous tensor of `shape`, dtype and device of `swizzled`.

    Raises:
        TypeError: another dtype. ValueError: fewer than two axes in `shape`; a size that does not belong to it;
        non-zero padding under check_padding (how many bytes, the first index).
    """
    flat, (*lead, rows, k), padded = _tiled(swizzled, shape, TILE_ROWS)
    tiles = flat.reshape(*lead, padded[0] // TILE_ROWS, padded[1] // TILE_COLUMNS, 32, 4, TILE_COLUMNS)
    grid = tiles.transpose(-4, -2).reshape(*lead, *padded)
    if check_padding:
        _require_zero_padding(grid, rows, k)
    return grid[..., :rows, :k].contiguous().view(swizzled.dtype)


def unswizzle_scales_8x4(swizzled: Tensor, shape: Sequence[int]) -> Tensor:
    """Inverse of `swizzle_scales_8x4`; arguments, result and errors as of `unswizzle_scales`."""
    flat, (*lead, rows, k), padded = _tiled(swizzled, shape, SMALL_TILE_ROWS)
    tiles = flat.reshape(*lead, padded[0] // SMALL_TILE_ROWS, padded[1] // TILE_COLUMNS, SMALL_TILE_ROWS, TILE_COLUMNS)
    grid = tiles.transpose(-3, -2).reshape(*lead, *padded)
    return grid[..., :rows, :k].contiguous().view(swizzled.dtype)


def _tiled(swizzled: Tensor, shape: Sequence[int], tile_rows: int) -> tuple[Tensor, tuple[int, ...], tuple[int, int]]:
    """(bytes, checked shape, rows and columns with padding) of a swizzled tensor."""
    _require_scales(swizzled, "swizzled")
    remedy = "pass integers (..., rows, k), the scales' shape without padding"
    require_kind(shape, (tuple, list), "shape", remedy)  # torch.Size is a tuple
    shape = tuple(integer(n, f"shape[{i}]", remedy) for i, n in enumerate(shape))
    if len(shape) < 2 or min(shape) < 0:
        raise ValueError(f"shape={tuple(shape)}: pass (..., rows, k), the scales' shape without padding")
    *lead, rows, k = shape
    padded = padded_scales(rows, k, tile_rows)
    expected = math.prod(lead) * padded[0] * padded[1]
    if swizzled.numel() != expected:
        raise ValueError(
            f"swizzled has {swizzled.numel()} bytes: scales of shape {tuple(shape)} have {expected}, "
            f"{padded[0]} rows by {padded[1]} columns with padding"
        )
    return swizzled.view(torch.uint8), shape, padded


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
