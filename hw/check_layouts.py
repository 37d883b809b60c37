"""Ways in which codes and scales may lie in memory: every one that the shapes allow.

A reading says in words how the bytes lie and holds them as they are meant: codes (..., rows, k), one per byte, and
scales (..., rows, n). What is wrong with the layout itself, whatever the values, is its fault. Which reading is right
only the values tell: see `check`.

    codes    one per byte; two per byte, the even index in the low or in the high nibble; either transposed; padded
    scales   row-major; transposed; 128x4-swizzled; of the padded shape of a swizzle, but row-major
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from numerics import layout

PADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Reading:
    """One way to read bytes.

    Args:
        words: how they lie. tensor: what they say, uint8. fault: what is wrong with lying so, or None.
        stale: bytes of padding that are not zero.
    """

    words: str
    tensor: Tensor
    fault: str | None = None
    stale: int = 0


def code_readings(codes: Tensor, shape: tuple[int, ...], bits: int) -> list[Reading]:
    """Readings of `codes` as (..., rows, k) codes of `bits` bits, the usual ones first.

    Raises: ValueError if no layout explains the shape.
    """
    found = list(_fitting(_unpacked(codes, shape, bits), shape))
    if not found:
        packed = f", or with half of the last axis, two per byte {(*shape[:-1], -(-shape[-1] // 2))}" * (bits <= 4)
        above = int(codes.max()) if codes.numel() else 0
        if codes.shape == torch.Size(shape) and above >= 1 << bits:
            raise ValueError(f"codes reach up to {above}, one per byte: this format has codes 0 to {(1 << bits) - 1}")
        raise ValueError(
            f"codes have shape {tuple(codes.shape)}, which no layout of x {tuple(shape)} explains: pass one per byte "
            f"{tuple(shape)}{packed}; transposed or padded ones are read too"
        )
    return found


def _unpacked(codes: Tensor, shape: tuple[int, ...], bits: int) -> Iterator[tuple[str, Tensor, str | None]]:
    """(words, codes one per byte, fault) of every order of nibbles and axes."""
    if codes.ndim == 1 and len(shape) > 1 and math.prod(shape[:-1]):
        if codes.numel() % math.prod(shape[:-1]) == 0:
            codes = codes.reshape(*shape[:-1], -1)
    if codes.ndim != len(shape):
        return
    if not codes.numel() or int(codes.max()) < 1 << bits:
        yield "one code per byte", codes, None
        yield "one code per byte, transposed", codes.mT, None
    if bits > 4:
        return
    swapped = "the nibbles are swapped: PTX, cuBLAS and checkpoints keep the even index in the low nibble"
    for along, stored in (("", codes), (" along the last but one axis", codes.mT)):
        low = layout.unpack_nibbles(stored.contiguous())
        high = low.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        for order, t, fault in (("low", low, None), ("high", high, swapped)):
            words = f"two codes per byte{along}, the even index in the {order} nibble"
            yield words, t, fault
            yield words + ", transposed", t.mT, fault


def _fitting(found: Iterator[tuple[str, Tensor, str | None]], shape: tuple[int, ...]) -> Iterator[Reading]:
    """Those of the right shape, padding cut off."""
    rows, k = shape[-2:]
    for words, t, fault in found:
        if t.shape[:-2] != torch.Size(shape[:-2]) or not (_padded(t.shape[-2], rows) and _padded(t.shape[-1], k)):
            continue
        inside = t[..., :rows, :k]
        stale = int((t != 0).sum()) - int((inside != 0).sum())
        padding = "" if t.shape == torch.Size(shape) else f", padded to {t.shape[-2]} x {t.shape[-1]}"
        yield Reading(words + padding, inside.contiguous(), fault, stale)


def _padded(length: int, wanted: int) -> bool:
    """Whether `length` is `wanted`, perhaps rounded up to a usual multiple."""
    return any(-(-wanted // pad) * pad == length for pad in PADS)


def scale_readings(scales: Tensor, shape: tuple[int, ...]) -> list[Reading]:
    """Readings of `scales` as (..., rows, n), the usual ones first.

    Raises: ValueError if no layout explains the shape.
    """
    *lead, rows, n = shape
    padded = layout.padded_scales(rows, n)
    found = []
    if scales.numel() == math.prod(shape):
        if scales.shape == torch.Size(shape) or scales.ndim == 1:
            found.append(Reading("row-major", scales.reshape(shape)))
        if scales.ndim == len(shape) and scales.mT.shape == torch.Size(shape):
            found.append(Reading("transposed", scales.mT.contiguous()))
    if scales.numel() == math.prod(lead) * math.prod(padded):
        swizzled = layout.unswizzle_scales(scales.contiguous(), shape)
        grid = layout.unswizzle_scales(scales.contiguous(), (*lead, *padded))
        stale = int((grid != 0).sum()) - int((swizzled != 0).sum())
        found.append(Reading("128x4-swizzled", swizzled, None, stale))
        if padded != (rows, n):
            flat = scales.reshape(*lead, *padded)
            stale = int((flat != 0).sum()) - int((flat[..., :rows, :n] != 0).sum())
            fault = (
                f"the scales are not swizzled: they have the padded shape {padded[0]} x {padded[1]} of the 128x4 "
                "layout, but lie in row-major order"
            )
            found.append(Reading("row-major in a padded matrix", flat[..., :rows, :n].contiguous(), fault, stale))
    elif scales.ndim == len(shape) and scales.shape[:-2] == torch.Size(lead):
        if _padded(scales.shape[-2], rows) and _padded(scales.shape[-1], n):
            inside = scales[..., :rows, :n].contiguous()
            stale = int((scales != 0).sum()) - int((inside != 0).sum())
            found.append(Reading("row-major, padded", inside, None, stale))
    if not found:
        raise ValueError(
            f"scales have shape {tuple(scales.shape)}, which no layout explains: pass {tuple(shape)}, one per block, "
            f"or {math.prod(lead) * math.prod(padded)} bytes, 128x4-swizzled"
        )
    return found
