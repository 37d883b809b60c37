"""Ways in which codes may lie in memory: every one that the shapes allow. Scales: `check_scale_layouts`.

A reading says in words how the bytes lie and holds them as they are meant: codes (..., rows, k), one per byte. What is
wrong with the layout itself, whatever the values, is its fault. Which reading is right only the values tell: see
`check_case`.

    one per byte; two per byte, the even index in the low or in the high nibble, or the halves of each block in the low
    and in the high nibbles (GGML); either transposed; padded; in blocks (gpt-oss); leading axes flattened; four bytes
    in an int32

Padding. A product runs over whole blocks, and kernels over whole tiles of columns: what lies in the padding columns of
real rows meets zeros of the other operand, so that codes there must be zeros, and scales no NaN (0 * NaN is NaN); a
finite scale beside zero codes is harmless. Padding rows give rows of the output that nobody keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm
from numerics import layout
from numerics.dialects_layout import scale_values

PADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Reading:
    """One way to read bytes.

    Args:
        words: how they lie. tensor: what they say: uint8, or float32 scales. fault: what is wrong with lying so, or
            None. columns: what lies in the padding columns of real rows, or None. below: entries of padding rows that
            are not zero. layout: of scales: "row-major", "padded" (the same, in the matrix of a swizzle),
            "transposed", "128x4" or "8x4".
    """

    words: str
    tensor: Tensor
    fault: str | None = None
    columns: Tensor | None = None
    below: int = 0
    layout: str = "row-major"

    @property
    def unread(self) -> int:
        """Entries that are not zero and that it leaves out."""
        return self.below + (0 if self.columns is None else int((self.columns != 0).sum()))


def cut(t: Tensor, shape: tuple[int, ...], words: str, fault: str | None = None, layout: str = "row-major") -> Reading:
    """A reading of (..., rows, k) entries out of a padded tensor."""
    rows, k = shape[-2:]
    columns = t[..., :rows, k:] if t.shape[-1] > k else None
    return Reading(words, t[..., :rows, :k].contiguous(), fault, columns, int((t[..., rows:, :] != 0).sum()), layout)


def bytes_of(t: Tensor) -> Tensor:
    """The four bytes of each int32, the lowest first, along the last axis."""
    return t.flatten().view(torch.uint8).reshape(*t.shape[:-1], 4 * t.shape[-1])


def one_each(t: Tensor) -> bool:
    """Whether every int32 may hold a single byte."""
    return not t.numel() or -128 <= int(t.min()) <= int(t.max()) <= 255


def stale_codes(r: Reading, element: nm.Format) -> str | None:
    """The fault, if codes in padding columns of real rows are not zeros."""
    count = 0 if r.columns is None else int((nm.decode(r.columns, element) != 0).sum())
    if not count:
        return None
    where = f"in the columns beyond {r.tensor.shape[-1]}, which a product reads"
    return f"stale padding: {count:,} bytes around the codes are not zero, {where}"


def stale_scales(r: Reading, fmt: nm.Format | None) -> tuple[str, str | None]:
    """(a fact or nothing, the fault or None) about scales in padding columns of real rows and in padding rows."""
    told, fault = "", None
    if r.columns is not None:
        values = scale_values(r.columns, fmt)
        lost, there = int((~torch.isfinite(values)).sum()), int((r.columns != 0).sum())
        beyond = f"in the columns beyond {r.tensor.shape[-1]}"
        if lost:
            fault = f"stale padding: {lost:,} scales {beyond} are NaN, which a product reads: 0 * NaN is NaN"
        elif there:
            told = f", {there:,} entries {beyond} not zero, but finite: harmless beside codes of zero"
    if r.below:
        told += f", {r.below:,} entries of padding rows not zero, whose outputs nobody keeps"
    return told, fault


def code_readings(codes: Tensor, shape: tuple[int, ...], bits: int, block: int | None = None) -> list[Reading]:
    """Readings of `codes` as (..., rows, k) codes of `bits` bits, the usual ones first.

    Args:
        codes: uint8, or int32 that hold four bytes each. shape: of the tensor that was quantized. block: values that
            share a scale, for the order of GGML's nibbles; None: without it.

    Raises: ValueError if no layout explains the shape.
    """
    found = [
        cut(t, shape, words + there + _padding(t, shape), fault)
        for there, stored in _arranged(codes, shape)
        for words, t, fault in _orders(stored, shape, bits, block)
    ]
    if not found and codes.dtype == torch.int32:
        raise ValueError(
            f"codes reach from {int(codes.min())} to {int(codes.max())}: pass bytes, 0 to 255, or four in an int32"
        )
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


def _arranged(codes: Tensor, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    """(words, bytes with as many axes as the tensor)."""
    words, rows = "", math.prod(shape[:-1])
    if codes.dtype == torch.int32:
        if one_each(codes):
            yield from _arranged(codes.bitwise_and(255).to(torch.uint8), shape)
        words, codes = ", four bytes in an int32", bytes_of(codes)
    if codes.ndim == len(shape) + 1:
        words, codes = words + f", in blocks of {codes.shape[-1]} bytes", codes.flatten(-2)
    if codes.ndim == 1 and len(shape) > 1 and rows and codes.numel() % rows == 0:
        codes = codes.reshape(*shape[:-1], -1)
    elif codes.ndim == 2 < len(shape) and len(codes) == rows:
        codes = codes.reshape(*shape[:-1], -1)
    if codes.ndim == len(shape):
        yield words, codes


def _orders(
    t: Tensor, shape: tuple[int, ...], bits: int, block: int | None
) -> Iterator[tuple[str, Tensor, str | None]]:
    """(words, codes one per byte, fault) of every order of nibbles and axes that fits."""
    if not t.numel() or int(t.max()) < 1 << bits:
        for turned, stored in (("", t), (", transposed", t.mT)):
            if _fits(stored.shape, shape):
                yield f"one code per byte{turned}", stored, None
    if bits > 4:
        return
    for along, stored in (("", t), (" along the last but one axis", t.mT)):
        *lead, rows, width = stored.shape
        plain, mirrored = _fits((*lead, rows, 2 * width), shape), _fits((*lead, 2 * width, rows), shape)
        if not (plain or mirrored):
            continue
        for words, codes, fault in _nibbles(stored.contiguous(), along, block):
            if plain:
                yield words, codes, fault
            if mirrored:
                yield words + ", transposed", codes.mT, fault


def _nibbles(packed: Tensor, along: str, block: int | None) -> Iterator[tuple[str, Tensor, str | None]]:
    """(words, codes, fault) of the orders of nibbles."""
    swapped = "the nibbles are swapped: PTX, cuBLAS and checkpoints keep the even index in the low nibble"
    low = layout.unpack_nibbles(packed)
    high = low.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    for order, codes, fault in (("low", low, None), ("high", high, swapped)):
        yield f"two codes per byte{along}, the even index in the {order} nibble", codes, fault
    if block is not None and low.shape[-1] % block == 0:
        words = f"two codes per byte{along}, each block's first half in the low nibbles, its second in the high (GGML)"
        yield words, layout.unpack_halves(packed, block), None


def _fits(stored: tuple[int, ...] | torch.Size, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of that shape holds one of `shape`, padded or not."""
    return tuple(stored[:-2]) == tuple(shape[:-2]) and all(map(padded, stored[-2:], shape[-2:]))


def padded(length: int, wanted: int, pads: tuple[int, ...] = PADS) -> bool:
    """Whether `length` is `wanted`, perhaps rounded up to a usual multiple."""
    return any(-(-wanted // pad) * pad == length for pad in pads)


def _padding(t: Tensor, shape: tuple[int, ...]) -> str:
    return "" if t.shape == torch.Size(shape) else f", padded to {t.shape[-2]} x {t.shape[-1]}"
