"""What a dialect is: one public quantizer's rule, with every intermediate value kept.

    stored outer = outer_of(amax of its scope)
    steps(blocks, outer): amax -> ratio -> scale byte -> scaled element -> code
    values = decode(element value, scale value, stored outer)

`ratio` is the block scale before it is rounded to its format, `scaled` the element before it is rounded to E2M1 (or
another element format). The stored outer is what the quantizer keeps beside the bytes, in its own direction: the
tensor's amax, a factor to multiply by ("decode", amax / 2688) or to divide by ("encode", 2688 / amax).

All operations are float32 unless a dialect says otherwise, in the order written, each rounded once; divisions are
tensor by tensor. Shapes: x (..., blocks, B), scales and ratio (..., blocks, 1); the B values of a tile are those of
its first line, then of the second, and so on. Exact on every device. Nothing is copied from a quantizer's code; each
formula was read there and is checked against its bytes where it runs on a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .arguments import axis_of, require_same_device
from .codes import as_tensor, decode_tensor, require_float
from .dialects_layout import LAYOUTS as LAYOUTS
from .dialects_layout import Layout as Layout
from .dialects_layout import scale_values
from .folding import partner
from .formats import E4M3, Format
from .partition import Partition
from .subnormals import kept

# how a dialect rounds an element between two codes: to the nearer one, with ties as named, or to the smaller magnitude
ROUNDINGS = ("ties to even", "ties away from zero", "ties toward +infinity", "ties toward zero", "truncated")


@dataclass(frozen=True)
class Blocks:
    """What a dialect sees.

    Args:
        x: float32 (..., n, B), exact from its dtype. amax: largest magnitude of each block, float32 (..., n, 1),
            under the dialect's `nonfinite` rule. element: the element format. dtype: that of the tensor, since some
            quantizers compute in it.
    """

    x: Tensor
    amax: Tensor
    element: Format
    dtype: torch.dtype


@dataclass(frozen=True)
class Steps:
    """What a dialect made of blocks, with the values before each rounding.

    Args:
        ratio: the block scale before rounding, (..., n, 1), float32 or float64. scales: its code bytes, uint8, or the
            scale itself, float32, where the dialect's `scale_format` is None.
        scaled: elements before rounding, (..., n, B), float32 or float64. codes: uint8.
    """

    ratio: Tensor
    scales: Tensor
    scaled: Tensor
    codes: Tensor


@dataclass(frozen=True)
class Outer:
    """An outer scale as a dialect meets it: `stored`, what is kept, and the amax it came from, or None where the outer
    was given; both float32, shaped to broadcast to the blocks' amax."""

    stored: Tensor
    amax: Tensor | None


@dataclass(frozen=True)
class Quantized:
    """A dialect's bytes in the tensor's own shape: codes (uint8, one per value), scales (uint8 or float32, one per
    block along the axis, or per tile), the stored outer (float32, 1 or a run's number along the axis; None without
    one); format and axis."""

    codes: Tensor
    scales: Tensor
    outer: Tensor | None
    fmt: str
    axis: int


@dataclass(frozen=True)
class Prose:
    """A dialect in words, for messages: one short phrase per decision.

    Args:
        outer: its direction and formula. scale: the formula. zero: the scale byte of an all-zero block, and of one
            whose scale underflows. elements: how they are scaled and rounded. nonfinite: what NaN and Inf do.
        decode: the order of the products. limits: what is not claimed.
    """

    outer: str
    scale: str
    zero: str
    elements: str
    nonfinite: str
    decode: str
    limits: str = ""


@dataclass(frozen=True)
class Dialect:
    """One public quantizer's rule.

    Args:
        name: the key in `DIALECTS`. source: "owner/repository version, file, function", or paper and section.
        formats: names of the block formats that it makes. prose: its decisions in words.
        steps: (blocks, outer) -> Steps. decode: (element values, scale values, stored outer) -> values.
        direction: of the stored outer: "amax", "decode", "encode", or None without one.
        outer_of: amax of the scope, dtype of the tensor -> stored outer, float32; None without one.
        nonfinite: how amax treats NaN and Inf: "propagate", "skip" (NaN is ignored, as by fmaxf), or "block" (a block
            that holds one is left out and marked).
        defined_nan: whether the code of a NaN element is a rule of the quantizer, and no accident of NaN's payload.
        run: values along the axis that share an outer; None: the tensor, or with `rows` each row.
        scale_format: of the block scales; None: float32. rows: whether every row (index of the other axes) has an outer
            of its own.
        rounding: of the elements, one of `ROUNDINGS`.
    """

    name: str
    source: str
    formats: tuple[str, ...]
    prose: Prose
    steps: Callable[[Blocks, Outer], Steps]
    decode: Callable[[Tensor, Tensor, Tensor], Tensor]
    direction: str | None = None
    outer_of: Callable[[Tensor, torch.dtype], Tensor] | None = None
    nonfinite: str = "propagate"
    defined_nan: bool = True
    run: int | None = None
    scale_format: Format | None = field(default=E4M3)
    rows: bool = False
    rounding: str = "ties to even"

    @property
    def origin(self) -> tuple[str, str]:
        """Repository and the version or commit that was read, or paper and its number."""
        where, _, version = re.split("[,;:]", self.source)[0].partition(" ")
        return where, version

    @kept
    def quantize(self, x: Any, fmt: Any = None, axis: int = -1, outer: Any = None) -> Quantized:
        """The bytes that this quantizer makes of `x`.

        Args:
            x: floating point, torch or numpy, at least one axis. axis: along which blocks run.
            fmt: a block format or its name, of `formats`; None: the first of them.
            outer: what the quantizer stores beside the bytes, in its own direction, float32: one value, or one per
                index of the other axes (`x.ndim` axes, 1 along `axis`); None: what it derives from `x`, per tensor
                (or per run).

        Raises:
            TypeError: `x` is not floating point, `outer` no float32. ValueError: another format, axis or shape of
            `outer`; an outer for a quantizer without one.
        """
        x, axis, layout = checked(x, axis, self.formats[0] if fmt is None else fmt)
        if layout.name not in self.formats:
            raise ValueError(f"fmt={layout.name}: {self.name} makes {', '.join(self.formats)}")
        folding = layout.folding(x.shape, axis)
        blocks = self.blocks(folding.fold(x).flatten(-2), layout.per_scale, layout.element)
        if outer is None:
            factor = self.own_outer(blocks)
        else:
            if self.outer_of is None:
                raise ValueError(f"outer given: {self.name} has one level of scales; pass None")
            factor = Outer(outer_of_blocks(outer, x, axis, layout, self.run, blocks), None)
        steps = self.steps(blocks, factor)
        stored = None if self.outer_of is None else unfolded_outer(factor.stored, axis, layout.block, self.run)
        return Quantized(folding.unfold(steps.codes), folding.scales(steps.scales), stored, layout.name, axis)

    @kept
    def dequantize(self, q: Quantized) -> Tensor:
        """Values of what `quantize` made, float32, the shape of its codes, in this quantizer's order of products."""
        layout = LAYOUTS[q.fmt]
        folding = layout.folding(q.codes.shape, q.axis)
        scales = q.scales.movedim(q.axis, -1).unsqueeze(-1)
        factor = torch.ones(1)
        if q.outer is not None:
            factor = folded_outer(q.outer, q.axis, layout.block, self.run, scales.shape[-2])
        element, scale = decode_tensor(folding.fold(q.codes), layout.element), scale_values(scales, self.scale_format)
        return folding.unfold(self.decode(element, scale, factor))

    def blocks(self, x: Tensor, block: int, element: Format) -> Blocks:
        """The blocks of `x`, whose last axis is cut; the last one is padded with zeros."""
        values = Partition.of(x.shape[-1], block, None).split(x.to(torch.float32), block)
        return Blocks(values, block_amax(values, self.nonfinite), element, x.dtype)

    def own_outer(
        self, blocks: Blocks, scope: tuple[int, ...] | None = None, experts: tuple[int, ...] | None = None
    ) -> Outer:
        """The outer that the quantizer would store, shaped (..., n or 1, 1) like the blocks' amax; ones without one.

        `scope`: extents of the axes other than blocks and values, 1 where one outer serves all; None: one for the
        tensor. A dialect with `rows` has one per row whatever the scope, one with a `run` one per run of blocks,
        repeated for each. `experts`: offsets along the axis before the blocks', each of which has one, repeated for
        each row.
        """
        amax = blocks.amax
        if self.outer_of is None:
            ones = amax.new_ones([1] * amax.ndim)
            return Outer(ones, ones)
        if self.run is not None:
            per_run = self.run // blocks.x.shape[-1]
            runs = Partition.of(amax.shape[-2], per_run, None).split(amax.squeeze(-1), per_run)
            amax = _largest(runs, (-1,)).repeat_interleave(per_run, -2)[..., : blocks.amax.shape[-2], :]
        else:
            dims = range(amax.ndim - 2) if scope is None else [d for d, n in enumerate(scope) if n == 1]
            amax = _largest(amax, (-2,) if self.rows or experts is not None else (*dims, -2))
        if experts is not None and not self.rows:
            parts = amax.split([end - start for start, end in pairwise(experts)], -3)
            amax = torch.cat([_largest(part, (-3,)).expand_as(part) for part in parts], -3)
        return Outer(self.outer_of(amax, blocks.dtype), amax)

    def __str__(self) -> str:
        p = self.prose
        parts = {"outer": p.outer, "scale": p.scale, "zero": p.zero, "elements": p.elements, "NaN, Inf": p.nonfinite}
        parts |= {"decode": p.decode, "not claimed": p.limits}
        lines = [f"{self.name}: {self.source}"] + [f"    {key:<12}{text}" for key, text in parts.items() if text]
        return "\n".join(lines)


def checked(x: Any, axis: Any, fmt: Any) -> tuple[Tensor, int, Layout]:
    """`x` as a tensor, its axis from the front and the layout; see `Dialect.quantize` for errors."""
    tensor, _ = as_tensor(x, "x")
    require_float(tensor, "x")
    name = fmt if isinstance(fmt, str) else getattr(fmt, "name", None)
    if name not in LAYOUTS:
        raise ValueError(f"fmt={fmt!r}: dialects make {', '.join(LAYOUTS)}; pass one of these names or block formats")
    return tensor.detach(), axis_of(axis, tensor.shape), LAYOUTS[name]


def outer_of_blocks(outer: Any, x: Tensor, axis: int, layout: Layout, run: int | None, blocks: Blocks) -> Tensor:
    """A given outer, checked, shaped to broadcast to the blocks' amax."""
    tensor = given_outer(outer, x, axis, layout, run)
    return folded_outer(tensor, axis, layout.block, run, blocks.amax.shape[-2])


def given_outer(outer: Any, x: Tensor, axis: int, layout: Layout, run: int | None) -> Tensor:
    """A given outer as a tensor with as many axes as `x`. `run`: values along the axis that may share one.

    Raises: TypeError for another dtype than float32. ValueError for another device or shape.
    """
    tensor = torch.tensor(outer, dtype=torch.float32) if isinstance(outer, float) else as_tensor(outer, "outer")[0]
    if tensor.dtype != torch.float32:
        raise TypeError(f"outer has dtype {tensor.dtype}: pass float32")
    require_same_device(tensor, "outer", x, "x")
    if tensor.numel() == 1:
        return tensor.reshape([1] * x.ndim)
    shape = list(x.shape)
    shape[axis] = 1 if run is None else Partition.of(x.shape[axis], run, None).blocks
    if layout.tile > 1:  # the lines of a tile share one
        shape[axis] = shape[partner(axis, x.ndim)] = 1
    fits = tensor.ndim == x.ndim and tensor.shape[axis] in (1, shape[axis])
    if not fits or any(n not in (1, m) for n, m in zip(tensor.shape, shape, strict=True)):
        raise ValueError(
            f"outer has shape {tuple(tensor.shape)}: pass one value, or {tuple(shape)} with 1 for any axis"
        )
    return tensor


def folded_outer(outer: Tensor, axis: int, block: int, run: int | None, blocks: int) -> Tensor:
    """(..., runs or 1 along `axis`) -> (..., blocks or 1, 1)."""
    outer = outer.movedim(axis, -1)
    if run is not None and outer.shape[-1] != 1:
        outer = outer.repeat_interleave(run // block, -1)[..., :blocks]
    return outer.unsqueeze(-1)


def unfolded_outer(outer: Tensor, axis: int, block: int, run: int | None) -> Tensor:
    """Inverse of `folded_outer`."""
    outer = outer.squeeze(-1)
    if run is not None:
        outer = outer[..., :: run // block]
    return outer.movedim(-1, axis)


def _largest(amax: Tensor, dims: tuple[int, ...]) -> Tensor:
    """amax over `dims`, kept; NaN propagates; zero where there is nothing."""
    if amax.numel() == 0:
        return amax.new_zeros([1 if d in {n % amax.ndim for n in dims} else n for d, n in enumerate(amax.shape)])
    return amax.amax(dims, keepdim=True)


def block_amax(x: Tensor, nonfinite: str) -> Tensor:
    """Largest magnitude of each block, (..., n, 1), under a dialect's rule for NaN and Inf."""
    size = x.abs()
    if nonfinite == "skip":
        size = torch.where(torch.isnan(size), 0, size)
    largest = size.amax(-1, keepdim=True)
    return torch.where(torch.isfinite(largest), largest, 0) if nonfinite == "block" else largest
