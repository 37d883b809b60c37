"""Ways in which block scales may lie in memory: every one that shape and dtype allow.

    numbers      bytes; four bytes in an int32; for E8M0 also float32 powers of two; for FP8 blocks float32 (or
                 narrower), UE8M0 bytes, or four of those in an int32, along k or along the rows
    places       row-major; transposed; padded; 128x4- or 8x4-swizzled; of the padded shape of a swizzle, but row-major
    matrices     each on its own; the rows of all as one matrix; the rows of stacked experts, each expert padded to
                 whole tiles of the swizzle
    tiles        one for each tile, or repeated for each of its rows (Transformer Engine, DeepGEMM)

Readings as in `check_layouts`, (..., rows, n) or (..., tiles, n). Sources: `numerics.layout`; DeepGEMM's
`get_mn_major_tma_aligned_packed_ue8m0_tensor` (transposed, rows padded to 16 bytes); Transformer Engine's
`NVFP4Quantizer.get_scale_shape` (padded as for the swizzle, which follows before the product).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

import numerics as nm
from numerics import layout as layouts
from numerics.dialects_layout import LAYOUTS, Layout

from .check_layouts import PADS, Reading, bytes_of, cut, one_each, padded

WORDS = (1, 4)  # of FP8 blocks' scales: 16 bytes of float32, or four in an int32

UNPADDED = (
    "expert padding is missing: the rows of all experts are swizzled as one matrix, where a grouped product starts "
    "each expert at a whole tile"
)
SWIZZLES: tuple[tuple[str, int, Callable[..., Tensor]], ...] = (
    ("128x4", layouts.TILE_ROWS, layouts.unswizzle_scales),
    ("8x4", layouts.SMALL_TILE_ROWS, layouts.unswizzle_scales_8x4),
)


@dataclass(frozen=True)
class _Numbers:
    """What the stored entries say.

    Args:
        words: how. fault: what is wrong with it, or None. scales: uint8, or float32. pads: the multiples that rows and
            columns may be padded to. swizzled: whether they may be. fours: whether columns come in fours.
    """

    words: str
    fault: str | None
    scales: Tensor
    pads: tuple[tuple[int, ...], tuple[int, ...]]
    swizzled: bool = False
    fours: bool = False


def scale_readings(
    scales: Tensor,
    shape: tuple[int, ...],
    layout: Layout = LAYOUTS["NVFP4"],
    experts: tuple[int, ...] | None = None,
) -> list[Reading]:
    """Readings of `scales`, the usual ones first.

    Args:
        scales: uint8, int32 (four bytes each) or floating point. shape: (..., rows, n), one per row and block. layout:
            the format: of scales, and of tiles, whose readings are (..., ceil(rows / tile), n). experts: offsets of
            stacked experts along the rows, or None.

    Raises: ValueError if no layout explains shape and dtype.
    """
    found: list[Reading] = []
    for numbers in _numbers(scales, layout):
        for r in _of_numbers(numbers, shape, layout, experts):
            found.append(replace(r, words=r.words + numbers.words, fault=r.fault or numbers.fault))
    if not found:
        raise ValueError(_unread(scales, shape, layout))
    return found


def _unread(scales: Tensor, shape: tuple[int, ...], layout: Layout) -> str:
    *lead, rows, n = shape
    if scales.is_floating_point() and layout.scale is not None:
        return f"scales has dtype {scales.dtype}: pass bytes (uint8, or a float8 dtype); {layout.name} has no others"
    size = math.prod(lead) * math.prod(layouts.padded_scales(rows, n))
    tiles = f"{(*lead, -(-rows // layout.tile), n)}, one per tile, or " if layout.tile > 1 else ""
    return (
        f"scales have shape {tuple(scales.shape)}, which no layout explains: pass {tiles}{tuple(shape)}, one per "
        f"block, or {size} bytes, 128x4-swizzled"
    )


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _numbers(scales: Tensor, layout: Layout) -> Iterator[_Numbers]:
    if scales.is_floating_point():
        yield from _floats(scales, layout)
        return
    for words, fault, t in _bytes(scales):
        if layout.scale is not None:
            yield _Numbers(words, fault, t, (PADS, PADS), True, "four" in words)
        else:
            pads = WORDS if words else (1,)
            yield _Numbers(words or ", UE8M0 bytes", fault, nm.decode(t, nm.E8M0).to(torch.float32), (pads, pads))


def _bytes(scales: Tensor) -> Iterator[tuple[str, str | None, Tensor]]:
    """(words, fault, bytes): themselves, one in each int32, or four in each, which lie along k."""
    if scales.dtype == torch.uint8:
        yield "", None, scales
        return
    if one_each(scales):
        yield "", None, scales.bitwise_and(255).to(torch.uint8)
    for turned, t in (("", scales), (", transposed", scales.mT if scales.ndim > 1 else None)):
        if t is None:
            continue
        one = bytes_of(t)
        yield f"{turned}, four bytes in an int32, the first in the lowest", None, one
        other = one.unflatten(-1, (-1, 4)).flip(-1).flatten(-2)
        fault = "the four scales of each int32 are in the wrong byte order: the first must be the lowest byte"
        yield f"{turned}, four bytes in an int32", fault, other


def _floats(scales: Tensor, layout: Layout) -> Iterator[_Numbers]:
    """Floating-point scales of formats that have such, or powers of two for E8M0 bytes."""
    values = scales.to(torch.float32)
    narrow = "" if scales.dtype == torch.float32 else f", {str(scales.dtype).removeprefix('torch.')}"
    if layout.scale is None:
        yield _Numbers(narrow, None, values, (WORDS, WORDS))
        fault = "the scales are upside down: each is 1 over the factor to multiply by"
        yield _Numbers(narrow, fault, 1 / values, (WORDS, WORDS))
    elif layout.scale == nm.E8M0:
        codes = nm.encode(values, nm.E8M0).to(torch.uint8)
        read = nm.decode(codes, nm.E8M0).to(torch.float32)
        wrong = int(((read != values) & ~(read.isnan() & values.isnan())).sum())
        if 2 * wrong < values.numel():
            fault = f"{wrong} of {values.numel()} scales are no powers of two" if wrong else None
            yield _Numbers(f"{narrow or ', float32'} powers of two", fault, codes, (PADS, PADS), True)


# ---- places ----------------------------------------------------------------------------------------------------------


def _of_numbers(
    numbers: _Numbers, shape: tuple[int, ...], layout: Layout, experts: tuple[int, ...] | None
) -> Iterator[Reading]:
    """Readings of one kind of numbers: by tile, by tile and row, or by row."""
    *lead, rows, n = shape
    if layout.tile == 1:
        yield from _places(numbers, shape, experts)
        return
    pads = ((1,), (1,) if numbers.swizzled else numbers.pads[1])
    yield from _places(replace(numbers, pads=pads, swizzled=False), (*lead, -(-rows // layout.tile), n), None)
    for r in _places(numbers, shape, experts):
        yield from _of_tiles(r, layout.tile)


def _of_tiles(r: Reading, tile: int) -> Iterator[Reading]:
    """A reading that has one scale per row, as one that has one per tile; nothing where the rows of most differ."""
    rows = r.tensor.shape[-2]
    first = r.tensor[..., ::tile, :].contiguous()
    bits = r.tensor.view(torch.int32) if r.tensor.is_floating_point() else r.tensor
    same = bits == bits[..., ::tile, :].repeat_interleave(tile, -2)[..., :rows, :]
    wrong = ~torch.stack([part.all(-2) for part in same.split(tile, -2)], -2) if rows else first.bool()
    count, total = int(wrong.sum()), wrong.numel()
    if 2 * count > total:
        return
    words = f"{r.words}, repeated for each row of a tile"
    fault = f"the rows of {count:,} of {total:,} tiles have different scales" if count else None
    yield replace(r, words=words, tensor=first, fault=r.fault or fault)


def _places(numbers: _Numbers, shape: tuple[int, ...], experts: tuple[int, ...] | None) -> Iterator[Reading]:
    """Where the scale of each row and block lies: (..., rows, n)."""
    *lead, rows, n = shape
    found = list(_matrices(numbers, shape, experts))
    yield from found
    if math.prod(lead) == 1 or numbers.scales.ndim > 2:
        return
    for r in _matrices(numbers, (math.prod(lead) * rows, n), None):
        tensor = r.tensor.reshape(shape)
        if not any(f.layout == r.layout and torch.equal(f.tensor, tensor) for f in found):
            columns = None if r.columns is None else r.columns.reshape(*lead, rows, -1)
            yield replace(r, words=r.words + ", the rows of all matrices as one", tensor=tensor, columns=columns)


def _matrices(numbers: _Numbers, shape: tuple[int, ...], experts: tuple[int, ...] | None) -> Iterator[Reading]:
    t, size = numbers.scales, torch.Size(shape)
    if t.numel() == math.prod(shape) and (t.ndim == 1 or t.shape == size):
        yield Reading("row-major", t.reshape(shape))
    if t.ndim == len(shape) and t.mT.shape == size:
        yield Reading("transposed", t.mT.contiguous(), layout="transposed")
    grid = layouts.padded_scales(*shape[-2:])
    whole = numbers.swizzled and t.numel() == math.prod(shape[:-2]) * math.prod(grid)
    if numbers.swizzled:
        yield from _swizzled(t.contiguous(), shape, experts)
    columns_alone = numbers.fours and grid[0] == shape[-2]
    if whole and not columns_alone and grid != tuple(shape[-2:]):
        fault = (
            f"the scales are not swizzled: they have the padded shape {grid[0]} x {grid[1]} of the 128x4 layout, but "
            "lie in row-major order"
        )
        yield cut(t.reshape(*shape[:-2], *grid), shape, "row-major in a padded matrix", fault, "padded")
    if (whole and not columns_alone) or t.ndim != len(shape) or t.shape[:-2] != size[:-2]:
        return
    for words, stored in (("row-major", t), ("transposed", t.mT)):
        if stored.shape != size and all(map(padded, stored.shape[-2:], shape[-2:], numbers.pads)):
            yield cut(stored, shape, f"{words}, padded", layout=words)


def _swizzled(t: Tensor, shape: tuple[int, ...], experts: tuple[int, ...] | None) -> Iterator[Reading]:
    """128x4- and 8x4-swizzled bytes."""
    *lead, rows, n = shape
    for name, tile_rows, unswizzle in SWIZZLES:
        grid = (*lead, *layouts.padded_scales(rows, n, tile_rows))
        whole, fault = t.numel() == math.prod(grid), None
        if experts is not None:
            yield from _of_experts(t, shape, experts, name)
            whole = whole and any(start % tile_rows for start, end in pairwise(experts) if start < end)
            fault = UNPADDED
        if whole:
            yield cut(unswizzle(t, grid), shape, f"{name}-swizzled", fault, name)


def _of_experts(t: Tensor, shape: tuple[int, ...], experts: tuple[int, ...], name: str) -> Iterator[Reading]:
    """Swizzled bytes in which the rows of each expert are padded to whole tiles."""
    (_, tile_rows, unswizzle), n = next(s for s in SWIZZLES if s[0] == name), shape[-1]
    grids = [layouts.padded_scales(end - start, n, tile_rows) for start, end in pairwise(experts)]
    width = layouts.padded_scales(0, n)[1]
    needed = sum(rows for rows, _ in grids)
    there = t.numel() // width if width and t.numel() % width == 0 else 0
    if there < needed or there > needed + tile_rows * len(grids):
        return
    parts = t.flatten()[: needed * width].split([rows * width for rows, _ in grids])
    made = [
        cut(unswizzle(part, grid), (end - start, n), "")
        for part, grid, (start, end) in zip(parts, grids, pairwise(experts), strict=True)
    ]
    columns = None if n == width else torch.cat([r.columns for r in made if r.columns is not None])
    below = sum(r.below for r in made) + int((t.flatten()[needed * width :] != 0).sum())
    rest = f", and {there - needed:,} rows that belong to none" if there > needed else ""
    words = f"{name}-swizzled, the rows of each expert padded to {tile_rows}{rest}"
    yield Reading(words, torch.cat([r.tensor for r in made]), None, columns, below, name)
