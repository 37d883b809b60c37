"""A quantized tensor as a notebook shows it: what it is, what it takes, and its first blocks, code by code.

Only the corner of a tensor is read, `BLOCKS` blocks of its first line, so a large tensor on a GPU is not copied. The
values are those that the corner dequantizes to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from .block_formats import BlockFormat
from .codes import decode
from .markup import Html, code, joined, mathematical, table

BLOCKS, VALUES = 2, 8  # shown of a tensor, and of a block
_GROUPS = 9  # offsets


class Quantized(Protocol):
    """A BlockTensor, as far as it is read here; `blocks`, which defines it, imports this module."""

    @property
    def codes(self) -> Tensor: ...
    @property
    def scales(self) -> Tensor: ...
    @property
    def outer(self) -> Tensor | None: ...
    @property
    def fmt(self) -> BlockFormat: ...
    @property
    def rule(self) -> str: ...
    @property
    def axis(self) -> int: ...
    @property
    def groups(self) -> tuple[int, ...] | None: ...
    @property
    def outer_block(self) -> int | None: ...
    def corner(self, blocks: int) -> Quantized: ...
    def outer_per_value(self) -> Tensor | None: ...
    def dequantize(self) -> Tensor: ...


def page(q: Quantized) -> Html:
    """What `q` is, and the blocks of its corner."""
    caption = joined([Html("<b>BlockTensor</b> "), _dimensions(q.codes.shape), f", {q.fmt.name} by {q.rule}"])
    facts = table(_facts(q), caption=caption)
    if q.codes.numel() == 0:
        return joined([facts, Html("<p>It holds no values.</p>")])
    try:
        corner = q.corner(BLOCKS)
        corner.codes.tolist()
    except RuntimeError:  # meta and fake tensors have no values, and a device may have failed
        return joined(
            [facts, Html("<p>"), f"A {type(q.codes).__name__} on {q.codes.device} has no values to read.", Html("</p>")]
        )
    return joined([facts, table(_blocks(corner), caption="The first blocks of the first line")])


def _dimensions(shape: torch.Size) -> str:
    return " \N{MULTIPLICATION SIGN} ".join(map(str, shape))


def _facts(q: Quantized) -> Iterator[tuple[str, str]]:
    fmt, count = q.fmt, q.codes.numel()
    element = fmt.element.name if fmt.alternative is None else f"{fmt.element.name} or {fmt.alternative.name}"
    scale = "FP32" if fmt.scale is None else fmt.scale.name
    lines = f" on {fmt.tile} lines" if fmt.tile > 1 else ""
    yield "elements", element
    yield "scales", f"{scale}, one for {fmt.block} values along axis {q.axis}{lines}: {_dimensions(q.scales.shape)}"
    if q.outer is None:
        yield "outer scale", "none"
    else:
        run = "" if q.outer_block is None else f", one for {q.outer_block} values along axis {q.axis}"
        yield "outer scale", f"FP32{run}: {_dimensions(q.outer.shape)}"
    if q.groups is not None:
        more = ", …" if len(q.groups) > _GROUPS else ""
        yield "groups", f"{len(q.groups) - 1}, from {', '.join(map(str, q.groups[:_GROUPS]))}{more}"
    bits = {
        "codes": count * fmt.element.bits,
        "scales": q.scales.numel() * (fmt.scale.bits if fmt.scale else 32),
        "outer scale": 0 if q.outer is None else 32 * q.outer.numel(),
    }
    parts, total = ", ".join(f"{name} {-(-n // 8):,}" for name, n in bits.items() if n), sum(bits.values())
    yield "bytes, packed", f"{-(-total // 8):,}" + (f": {parts}" if total else "")
    if count:
        yield "bits per value", f"{total / count:.5g}"
    yield "in memory", f"a byte per code, on {q.codes.device}"


def _blocks(q: Quantized) -> Iterator[list[str]]:
    """Three rows for each block of a corner, which has one line: codes, what they mean, values."""
    fmt, groups = q.fmt, q.groups or (0, q.codes.numel())
    codes, scales, values = q.codes.flatten(), q.scales.flatten(), q.dequantize().flatten()
    spread = q.outer_per_value()
    outer = None if spread is None else spread.expand(q.codes.shape).flatten()
    starts = [start for a, b in pairwise(groups) for start in range(a, b, fmt.block)]
    for number, start in enumerate(starts):
        end = min(start + fmt.block, *(b for b in groups if b > start))
        here, left = slice(start, min(end, start + VALUES)), end - start - VALUES
        element, name, scale = fmt.element, "FP32", float(scales[number])
        if fmt.scale is not None:
            scale, name = float(decode(scales[number], fmt.scale)), fmt.scale.hex(int(scales[number]))
        if fmt.alternative is not None:  # the scale's sign bit says which element format a block has
            element, scale = (fmt.alternative if math.copysign(1, scale) < 0 else element), abs(scale)
        factors = f"\N{MULTIPLICATION SIGN} scale {name} = {_number(scale)}{_times(outer, here)}"
        rest = [] if left <= 0 else [f"… {left} more"]
        yield [f"block {number}, codes", *(code(element.hex(c)) for c in codes[here].tolist()), *rest]
        yield [element.name, *map(_number, decode(codes[here], element).tolist())]
        yield [factors, *map(_number, values[here].tolist())]


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else mathematical(f"{value:.5g}")


def _times(outer: Tensor | None, here: slice) -> str:
    if outer is None:
        return ""
    same = bool((outer[here] == outer[here][0]).all())
    return f" \N{MULTIPLICATION SIGN} outer {_number(float(outer[here][0]))}" if same else ", then its own outer scale"
