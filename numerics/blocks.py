"""The tensor that a block format makes: element codes, one scale per block, and an outer scale.

    value = (code value * block scale) * outer          two FP32 products, in this order; the first is exact with
                                                        E4M3 and, within float32's range, E8M0 scales

Blocks run along one axis, from its start (or from the start of each expert group), and the last one may be short.
`quantizer` makes these tensors; everything here only reads codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor

from . import block_html
from .arguments import FLOATS, integer, require_kind, require_row_numbers, require_same_device, require_tensor
from .block_formats import BlockFormat as BlockFormat
from .codes import chunks, decode_tensor, step_by_step
from .folding import partner
from .formats import E4M3
from .layout import pack_nibbles, unpack_nibbles
from .outer import FLT_MAX
from .partition import Partition, check_groups
from .subnormals import kept


@dataclass(frozen=True, eq=False, repr=False)
class BlockTensor:
    """A quantized tensor.

    Args:
        codes: uint8, one per value, the tensor's shape. scales: uint8 scale codes (float32 scales if the format has
            them so), that shape with the length of `axis` replaced by the number of blocks, and with tiles the other
            of the last two axes by the number of tiles. outer: float32 that broadcasts to the shape, or None.
        fmt, rule: how it was made. axis: the blocks' axis, counted from the front.
        groups: offsets of expert groups along `axis` (first 0, last the length), or None for one group.
        outer_block: None, or the run of values along `axis` that shares an outer scale: `outer` then has one entry
            per run there.

    Raises:
        TypeError: a part of another kind or dtype. ValueError: shapes that do not belong together, an axis or groups
        that do not fit, codes out of the element's range.
    """

    codes: Tensor
    scales: Tensor
    outer: Tensor | None
    fmt: BlockFormat
    rule: str
    axis: int
    groups: tuple[int, ...] | None = None
    outer_block: int | None = None

    def __post_init__(self) -> None:
        """Everything is checked here, once: what follows may rely on it."""
        require_kind(self.fmt, BlockFormat, "fmt", "pass a block format such as nm.NVFP4")
        require_tensor(self.codes, "codes", (torch.uint8,))
        ndim, bits = self.codes.ndim, self.fmt.element.bits
        if not 0 <= integer(self.axis, "axis", "count it from the front") < ndim:
            raise ValueError(f"axis={self.axis}: codes have shape {tuple(self.shape)}; count axes from the front")
        object.__setattr__(self, "groups", check_groups(self.groups, self.shape[self.axis]))
        require_kind(self.rule, str, "rule", "pass the name of the rule that made the scales")
        require_tensor(self.scales, "scales", (torch.float32 if self.fmt.scale is None else torch.uint8,))
        require_same_device(self.scales, "scales", self.codes, "codes")
        shape = self._entries(self.fmt.block)
        if self.fmt.tile > 1:
            other = partner(self.axis, ndim)
            shape[other] = -(-shape[other] // self.fmt.tile)
        if list(self.scales.shape) != shape:
            raise ValueError(
                f"scales have shape {tuple(self.scales.shape)}: {self.fmt.name} codes of shape {tuple(self.shape)}, "
                f"blocks along axis {self.axis} and groups={self.groups}, take scales of shape {tuple(shape)}"
            )
        if self.outer is not None:
            self._check_outer(self.outer)
        elif self.outer_block is not None:
            raise ValueError(f"outer_block={self.outer_block} without outer: pass None")
        looks = bits < 8 and self.codes.numel() and not torch.compiler.is_compiling()  # a value would end the graph
        highest = int(self.codes.max()) if looks else 0
        if highest >= 1 << bits:
            raise ValueError(f"codes reach up to {highest}: {self.fmt.element.name} has codes 0 to {(1 << bits) - 1}")

    def _entries(self, run: int) -> list[int]:
        """The shape of the codes with the number of runs of `run` values in the place of the axis."""
        shape = list(self.shape)
        shape[self.axis] = Partition.of(shape[self.axis], run, self.groups).blocks
        return shape

    def _check_outer(self, outer: Tensor) -> None:
        require_tensor(outer, "outer", (torch.float32,))
        require_same_device(outer, "outer", self.codes, "codes")
        run = 0 if self.outer_block is None else integer(self.outer_block, "outer_block", "pass an integer or None")
        if self.outer_block is not None and (run < 1 or run % self.fmt.block):
            raise ValueError(f"outer_block={self.outer_block}: pass a multiple of the block {self.fmt.block}, or None")
        shape = list(self.shape) if self.outer_block is None else self._entries(self.outer_block)
        fits = outer.ndim == len(shape) and all(n in (1, size) for n, size in zip(outer.shape, shape, strict=True))
        if not fits or (self.outer_block is not None and outer.shape[self.axis] != shape[self.axis]):
            raise ValueError(
                f"outer has shape {tuple(outer.shape)}: codes of shape {tuple(self.shape)} take {tuple(shape)}, or 1 "
                "in the place of any axis" + ("" if self.outer_block is None else f" but {self.axis}")
            )

    def derived(self, **parts: Any) -> BlockTensor:
        """Itself with other fields, unchecked: for parts that belong together because of how they were made."""
        return made(*(parts.get(name, getattr(self, name)) for name in _PARTS))

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def __repr__(self) -> str:
        outer = "none" if self.outer is None else tuple(self.outer.shape)
        return (
            f"BlockTensor({self.fmt.name} by {self.rule}, shape {tuple(self.shape)}, axis {self.axis}, outer {outer})"
        )

    def _repr_html_(self) -> str:
        """What it is, and its first blocks: what a notebook shows."""
        return block_html.page(self)

    def corner(self, blocks: int) -> BlockTensor:
        """The first `blocks` blocks of the first line, or as many as there are, on the CPU; nothing else is copied."""
        groups = self.groups or (0, self.shape[self.axis])
        starts = (start for a, b in pairwise(groups) for start in range(a, b, self.fmt.block))
        length = next(islice(starts, blocks, None), groups[-1])  # groups follow each other: where the next block starts

        def cut(x: Tensor, run: int) -> Tensor:
            """Entry 0 of every axis but the blocks'; there those that begin inside, each for `run` values."""
            count = sum(len(range(a, min(b, length), run)) for a, b in pairwise(groups))
            for dim, size in enumerate(x.shape):
                x = x.narrow(dim, 0, min(size, count if dim == self.axis else 1))
            return x.cpu()

        outer = None if self.outer is None else cut(self.outer, self.outer_block or 1)
        inside = None if self.groups is None else tuple(min(offset, length) for offset in groups)
        return self.derived(
            codes=cut(self.codes, 1), scales=cut(self.scales, self.fmt.block), outer=outer, groups=inside
        )

    @property
    def mT(self) -> BlockTensor:
        """The view with its last two axes exchanged; blocks, groups and outer follow."""
        ndim = self.codes.ndim
        if ndim < 2:
            raise ValueError(f"mT needs two axes; this tensor has shape {tuple(self.shape)}")
        axis = {ndim - 1: ndim - 2, ndim - 2: ndim - 1}.get(self.axis, self.axis)
        outer = None if self.outer is None else self.outer.mT
        return self.derived(codes=self.codes.mT, scales=self.scales.mT, outer=outer, axis=axis)

    @kept
    def values(self) -> Tensor:
        """Code value * block scale, without the outer scale: float32, the shape of the tensor.

        Exact where the product is a float32 number: with E8M0 scales a block at the ends of float32's range may
        lose bits to underflow, or saturate at float32's largest number. Only NaN scales give NaN; nothing is infinite.
        """
        return self._times(None)

    def _times(self, outer: Tensor | None) -> Tensor:
        """(code value * block scale) * outer, or without it."""
        fmt, length = self.fmt, self.shape[self.axis]
        varies = outer is not None and outer.shape[self.axis] != 1  # inside a block
        if varies or fmt.tile > 1 or fmt.alternative is not None or self.groups is not None or length % fmt.block:
            values = self._looked_up()
            return values if outer is None else _finite(values * outer)
        blocks = self.scales.shape[self.axis]
        if not step_by_step(self.codes.device):
            element: Tensor = decode_tensor(self.codes, fmt.element).unflatten(self.axis, (blocks, fmt.block))
            values = self._inner(element, self._decoded(self.scales).unsqueeze(self.axis + 1))
            if outer is not None:
                values = _finite(values * outer.unsqueeze(self.axis + 1))
            return values.flatten(self.axis, self.axis + 1)
        # whole blocks as rows (B, trail), in pieces that stay in a CPU's cache
        rows, trail = self.scales.shape[: self.axis + 1].numel(), self.shape[self.axis + 1 :].numel()
        codes, scales = self.codes.reshape(rows, fmt.block, trail), self.scales.reshape(rows, 1, trail)
        if outer is not None:
            outer = outer.expand(self.scales.shape).reshape(rows, 1, trail)
        out = torch.empty(codes.shape, dtype=torch.float32)
        for part in chunks(rows, fmt.block * trail, codes.device):
            element = decode_tensor(codes[part], fmt.element)
            values = self._inner(element, self._decoded(scales[part]), out[part])
            if outer is not None:
                _finite(values.mul_(outer[part]))
        return out.view(self.shape)

    def _inner(self, element: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
        values = torch.mul(element, scale, out=out)
        return values if self.fmt.scale is E4M3 else _finite(values)  # at most 448 * 448 with E4M3

    def _decoded(self, scales: Tensor) -> Tensor:
        return scales if self.fmt.scale is None else decode_tensor(scales, self.fmt.scale)

    def _looked_up(self) -> Tensor:
        """Code value * block scale, the scale looked up for every value: tiles, ragged blocks, groups, alternatives."""
        fmt = self.fmt
        scale = self._decoded(self.scales)
        element = decode_tensor(self.codes, fmt.element)
        if fmt.alternative is not None:  # the scale's sign bit says which element format a block has
            chosen = self._per_value((self.scales & 0x80) > 0, fmt.block)
            element, scale = torch.where(chosen, decode_tensor(self.codes, fmt.alternative), element), scale.abs()
        return self._inner(element, self._per_value(scale, fmt.block))

    def _per_value(self, x: Tensor, block: int) -> Tensor:
        """One entry per block, or per outer run, repeated for each of its values along `axis` (and for its tile)."""
        index = Partition.of(self.shape[self.axis], block, self.groups).block_of
        x = x.index_select(self.axis, index.to(x.device))
        if self.fmt.tile > 1 and x.ndim >= 2:
            other = partner(self.axis, x.ndim)
            if x.shape[other] != self.shape[other]:
                index = Partition.of(self.shape[other], self.fmt.tile, None).block_of
                x = x.index_select(other, index.to(x.device))
        return x

    def scales_per_value(self) -> Tensor:
        """The stored scales, shape of the tensor: each block's repeated for its values."""
        return self._per_value(self.scales, self.fmt.block)

    def outer_per_value(self) -> Tensor | None:
        """The outer scale as float32 that broadcasts to the tensor's shape, runs repeated; None without one."""
        if self.outer is None or self.outer_block is None:
            return self.outer
        return self._per_value(self.outer, self.outer_block)

    @kept
    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Values with the outer scale, shape of the tensor, rounded to FP32 and then to `dtype`.

        Raises: TypeError unless `dtype` is a floating torch dtype.
        """
        require_kind(dtype, torch.dtype, "dtype", "pass a torch dtype such as torch.float32")
        if dtype not in FLOATS:
            raise TypeError(f"dtype={dtype}: pass float32, float64, float16 or bfloat16")
        outer = self.outer_per_value()
        if outer is None or self.outer_block is None:
            return self._times(outer).to(dtype)
        return _finite(self._times(None) * outer).to(dtype)

    def packed(self) -> Tensor:
        """Codes as bytes: two 4-bit codes per byte, the even index in the low nibble; other formats as they are."""
        return pack_nibbles(self.codes) if self.fmt.element.bits == 4 else self.codes

    def stored(self) -> tuple[list[Tensor], Callable[[list[Tensor]], BlockTensor]]:
        """The tensors to keep of it, codes packed, scales and the outer scale if it has one; what makes it of them."""
        tensors = [self.packed(), self.scales] + ([] if self.outer is None else [self.outer])
        return tensors, partial(_restored, self.fmt, self.rule, self.axis, self.groups, self.outer_block)

    def rows(self, index: Tensor) -> BlockTensor:
        """The rows `index` (int64) of axis 0: what a dispatch sends. Neither blocks nor tiles may run along it."""
        require_tensor(index, "index", (torch.int64, torch.int32))
        if index.ndim != 1:
            raise ValueError(f"index has shape {tuple(index.shape)}: pass one axis of row numbers")
        require_row_numbers(index, "index", self.shape[0])
        if self.axis == 0 or (self.fmt.tile > 1 and partner(self.axis, self.codes.ndim) == 0):
            raise ValueError("rows(index) cuts blocks, which run along axis 0 here; quantize along another axis")
        outer = self.outer
        if outer is not None and outer.shape[0] != 1:
            outer = outer.index_select(0, index)
        codes, scales = self.codes.index_select(0, index), self.scales.index_select(0, index)
        return self.derived(codes=codes, scales=scales, outer=outer)


_PARTS = tuple(field.name for field in fields(BlockTensor))


def made(*parts: Any) -> BlockTensor:
    """A BlockTensor of all its fields in order, unchecked; see `BlockTensor.derived`."""
    q = object.__new__(BlockTensor)
    for name, part in zip(_PARTS, parts, strict=True):
        object.__setattr__(q, name, part)
    return q


def _restored(fmt: BlockFormat, rule: str, axis: int, groups: Any, run: int | None, kept: list[Tensor]) -> BlockTensor:
    """See `BlockTensor.stored`."""
    codes = unpack_nibbles(kept[0]) if fmt.element.bits == 4 else kept[0]
    return made(codes, kept[1], kept[2] if len(kept) > 2 else None, fmt, rule, axis, groups, run)


def _finite(x: Tensor) -> Tensor:
    """`x` with infinity replaced by float32's largest number: a product of finite numbers. NaN stays.

    Compiled, one step down from infinity's bits is a third of the work of a clamp that keeps NaN.
    """
    if step_by_step(x.device):
        return x.clamp_(-FLT_MAX, FLT_MAX)
    bits = x.view(torch.int32)
    return (bits - ((bits & 0x7FFFFFFF) == 0x7F800000).to(torch.int32)).view(torch.float32)
