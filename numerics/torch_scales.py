"""Block scales in the forms that torch's block-scaled products read, and back. Values stay what they are.

    one byte     128x4 layout (`layout.swizzle_scales`). Experts' scales are padded and swizzled each alone and lie one
                 after the other. A scale that a tile of rows shares is repeated for each of its rows.
    float32      1 x 128: (rows, k), rows contiguous: strides (1, rows)
                 128 x 128: (k padded to 4, rows / 128), the contraction contiguous, padding zero

`rows` and `columns` are offsets of experts along the rows and along the scales' columns, or None.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from .layout import padded_scales, swizzle_scales, unswizzle_scales

Offsets = tuple[int, ...] | None


def swizzle_groups(scales: Tensor, columns: Offsets, rows: Offsets) -> Tensor:
    """Swizzled scales of (..., rows, k). With groups as one matrix (padded rows, padded k): torch asks for two axes
    there, though only the order of the bytes counts."""
    if columns is None and rows is None:
        return swizzle_scales(scales)
    pieces, shape = _pieces(tuple(scales.shape), columns, rows)
    parts = torch.split(scales, [piece[0 if rows else 1] for piece in pieces], dim=0 if rows else 1)
    return torch.cat([swizzle_scales(part) for part in parts]).view(shape)


def unswizzle_groups(swizzled: Tensor, shape: tuple[int, ...], columns: Offsets, rows: Offsets) -> Tensor:
    """Inverse of `swizzle_groups`; `shape` is that of the scales without padding. ValueError for another size."""
    if columns is None and rows is None:
        return unswizzle_scales(swizzled, shape)
    pieces, padded = _pieces(shape, columns, rows)
    if swizzled.numel() != math.prod(padded):
        raise ValueError(f"scales have {swizzled.numel()} bytes: these groups have {math.prod(padded)} with padding")
    parts = torch.split(swizzled.reshape(-1), [math.prod(padded_scales(*piece)) for piece in pieces])
    whole = [unswizzle_scales(part, piece) for part, piece in zip(parts, pieces, strict=True)]
    return torch.cat(whole, dim=0 if rows else 1)


def _pieces(shape: tuple[int, ...], columns: Offsets, rows: Offsets) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Shape of each group's scales, and of all of them, each padded, as one matrix."""
    if rows is not None:
        pieces = [(end - start, shape[1]) for start, end in pairwise(rows)]
        padded = [padded_scales(*piece) for piece in pieces]
        return pieces, (sum(height for height, _ in padded), padded[0][1])
    assert columns is not None
    pieces = [(shape[0], end - start) for start, end in pairwise(columns)]
    padded = [padded_scales(*piece) for piece in pieces]
    return pieces, (padded[0][0], sum(width for _, width in padded))


def repeat_tiles(scales: Tensor, tile: int, rows: int) -> Tensor:
    """Scales (..., tiles, k), one per tile of rows -> (..., rows, k), one per row."""
    return scales if tile == 1 else scales.repeat_interleave(tile, dim=-2)[..., :rows, :]


def merge_tiles(scales: Tensor, tile: int) -> Tensor:
    """Inverse of `repeat_tiles`. ValueError where the rows of a tile differ."""
    merged = scales[..., ::tile, :]
    if not torch.equal(repeat_tiles(merged, tile, scales.shape[-2]), scales):
        raise ValueError(f"scales differ within tiles of {tile} rows: these are not one per tile")
    return merged.contiguous()


def rows_contiguous(scales: Tensor) -> Tensor:
    """A matrix anew, its first axis contiguous, its second strided by the first's length even if that is 1."""
    return scales.new_empty(0).new_empty_strided(tuple(scales.shape), (1, max(1, scales.shape[0]))).copy_(scales)


def pad_tiled(scales: Tensor) -> Tensor:
    """Scales of 128 x 128 tiles (tiles, k) -> (k padded to 4, tiles), strides (1, padded k), zeros in the padding."""
    tiles, k = scales.shape
    padded = scales.new_zeros(tiles, padded_scales(0, k)[1])
    padded[:, :k] = scales
    return rows_contiguous(padded.T)


def unpad_tiled(padded: Tensor, tiles: int, k: int) -> Tensor:
    """Inverse of `pad_tiled`. ValueError for another size."""
    expected = (padded_scales(0, k)[1], tiles)
    if tuple(padded.shape) != expected:
        raise ValueError(f"scales have shape {tuple(padded.shape)}: {tiles} x {k} tiles have {expected}")
    return padded.T[:, :k].contiguous()
