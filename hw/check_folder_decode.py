"""Rows of a quantized matrix decoded, as its names say it or in another reading.

    values = codes * scale * outer, float32, each product rounded; scales are factors to multiply by
    outer = weight_scale_2, or 1 / weight_global_scale

A reading changes one thing: the order of nibbles, the order or the direction of scales. Exact up to two roundings of
float32. Memory: the rows that are asked for, and the scales of one matrix.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

import numerics as nm
from numerics.layout import padded_scales, swizzle_scales, unswizzle_scales

from .check_folder_files import DTYPES, Entry
from .check_folder_parts import ENCODE, Matrix


@functools.cache
def _pairs(swapped: bool) -> np.ndarray:
    """The two E2M1 values of every byte, as one complex64, which numpy takes at once."""
    value = nm.decode(torch.arange(16, dtype=torch.uint8), nm.E2M1).numpy()
    byte = np.arange(256)
    low, high = value[byte & 15], value[byte >> 4]
    return np.stack((high, low) if swapped else (low, high), -1).astype(np.float32).view(np.complex64).reshape(-1)


@functools.cache
def _eight(dtype: str) -> np.ndarray:
    """The value of every FP8 byte."""
    return torch.arange(256).to(torch.uint8).view(DTYPES[dtype]).to(torch.float32).numpy()


def elements(m: Matrix, of: int, first: int, last: int, swapped: bool = False) -> Tensor:
    """Values of the codes of rows `first` to `last` of matrix `of`, float32 (rows, K), without scales."""
    codes = m.module.parts["codes"]
    last = min(last, m.rows)
    if m.turned:
        whole = codes.read(of, of + 1, m.lead).view(torch.uint8).view(-1, m.rows)
        raw = whole[:, first:last].mT.contiguous().numpy()
    else:
        raw = codes.read(of * m.rows + first, of * m.rows + last, m.lead * m.rows).view(torch.uint8).numpy()
    table = _pairs(swapped) if m.packed else _eight(codes.dtype)
    return torch.from_numpy(np.take(table, raw).view(np.float32)).view(last - first, m.columns)


def raw_scales(m: Matrix, of: int) -> Tensor:
    """Everything stored as scales of matrix `of`, flat, in its dtype."""
    scale = m.module.parts["scale"]
    return scale.read().reshape(-1) if scale.numel == 1 else scale.read(of, of + 1, m.lead).reshape(-1)


def stored_grid(m: Matrix, of: int) -> Tensor:
    """The scales of matrix `of` in its reading, in the stored dtype, (grid)."""
    raw, (n, k) = raw_scales(m, of), m.grid
    if m.reading == "transposed" or m.turned:
        return raw.view(k, n).mT.contiguous()
    if m.reading in ("padded", "swizzled"):
        flat = raw.view(torch.uint8)
        if m.reading == "swizzled":
            return unswizzle_scales(flat, (n, k)).view(raw.dtype)
        return flat.view(padded_scales(n, k))[:n, :k].contiguous().view(raw.dtype)
    return raw.view(n, k)


def settled(m: Matrix) -> Matrix:
    """A matrix whose scales have the padded shape of the swizzle, in the reading whose padding holds fewer bytes that
    are not zero: row by row, or swizzled. Others as they are."""
    if m.reading != "padded":
        return m
    return min((m, replace(m, reading="swizzled")), key=lambda r: sum(padding_bytes(r, of) for of in range(m.lead)))


def padding_bytes(m: Matrix, of: int) -> int:
    """Bytes that are not zero around the scales of matrix `of`."""
    raw, (n, k) = raw_scales(m, of).view(torch.uint8), m.grid
    padded = padded_scales(n, k)
    grid = raw.view(padded) if m.reading == "padded" else unswizzle_scales(raw, padded)
    return int((grid != 0).sum()) - int((grid[:n, :k] != 0).sum())


def factors(grid: Tensor, fmt: str) -> Tensor:
    """Scales as float32 factors. E8M0: 2^(byte - 127), 255 is NaN; uint8 of NVFP4 are the bytes of E4M3."""
    if grid.dtype == torch.uint8:
        grid = grid.view(torch.float8_e4m3fn if fmt == "NVFP4" else torch.float8_e8m0fnu)
    return grid.to(torch.float32)


def outer_of(m: Matrix) -> Tensor:
    """The factor of every matrix beyond its scales, float32 (L,); 1 without one. NaN where there are not L."""
    entry = m.module.parts.get("outer")
    if entry is None:
        return torch.ones(m.lead)
    return factor_of(entry, m.module.suffix["outer"], m.lead)


def factor_of(entry: Entry, suffix: str, count: int) -> Tensor:
    """An outer scale or one of activations as `count` factors to multiply by."""
    found = entry.read().reshape(-1).to(torch.float32)
    found = 1 / found if suffix in ENCODE else found
    return found.expand(count) if found.numel() in (1, count) else found.new_full((count,), float("nan"))


def scaled(values: Tensor, scales: Tensor, m: Matrix, first: int) -> Tensor:
    """Elements of rows from `first` times the grid's factors."""
    rows = torch.arange(first, first + len(values)) // m.block[0]
    own = scales[rows]
    width = m.block[1]
    if values.shape[-1] == own.shape[-1] * width:
        return (values.view(len(values), -1, width) * own.unsqueeze(-1)).view_as(values)
    return values * own.repeat_interleave(width, -1)[:, : values.shape[-1]]


def decoded(m: Matrix, of: int, first: int, last: int, scales: Tensor | None = None) -> Tensor:
    """Rows `first` to `last` of matrix `of`, float32 (rows, K). scales: the grid's factors, if they are at hand."""
    scales = factors(stored_grid(m, of), m.fmt) if scales is None else scales
    return scaled(elements(m, of, first, last), scales, m, first) * outer_of(m)[of]


@dataclass(frozen=True)
class Reading:
    """Another way to read a matrix. words: what is wrong if it is the right one. swapped: the order of nibbles.
    grid: the factors."""

    words: tuple[str, ...]
    swapped: bool
    grid: Tensor


NIBBLES = "the nibbles are swapped: the even index is in the high nibble, and readers take it from the low one"


def readings(m: Matrix, of: int) -> list[Reading]:
    """Every other way to read matrix `of` that its shapes allow, beginning with how it is stored."""
    stored = stored_grid(m, of)
    every = [((), stored), *(((words,), grid) for words, grid in orders(stored))]
    found = []
    for swapped in (False, True) if m.packed else (False,):
        for words, grid in every:
            said = (*((NIBBLES,) if swapped else ()), *words)
            found.append(Reading(said, swapped, factors(grid, m.fmt)))
        if m.fmt != "NVFP4":
            text = f"the scales are inverted: {'1 / scale' if m.fmt == 'FP8' else '254 - byte'} decodes to the original"
            found.append(Reading((*((NIBBLES,) if swapped else ()), text), swapped, 1 / factors(stored, m.fmt)))
    return found


def orders(stored: Tensor) -> list[tuple[str, Tensor]]:
    """(what is wrong, grid) of other orders of the same scales."""
    n, k = stored.shape
    flat = stored.contiguous().view(-1)
    found = []
    if n > 1 and k > 1:
        grid = flat.view(k, n).mT.contiguous()
        found.append(("the scale is transposed: its numbers lie column by column", grid))
    if padded_scales(n, k) == (n, k) and stored.element_size() == 1:
        code = flat.view(torch.uint8)
        grid = unswizzle_scales(code, (n, k)).view(stored.dtype)
        found.append(("the scale is 128x4-swizzled under the name of a row-major one", grid))
        grid = swizzle_scales(code.view(n, k)).view(n, k).view(stored.dtype)
        found.append(("the scale has been unswizzled, and it was row-major", grid))
    return found
