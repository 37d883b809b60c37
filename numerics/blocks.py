"""Block formats: a tensor as element codes, one scale per block, and an outer scale.

    value = (code value * block scale) * outer          two FP32 products, in this order; the first is exact

Blocks run along one axis, from its start (or from the start of each expert group), and the last one may be short.
`quantize` makes a `BlockTensor`, `BlockTensor.dequantize` reads it, `requantize` makes another from its values,
never from the originals. Codes, scales and outers are equal on every device.

NaN and Inf: a block that holds one gets a NaN scale and codes of +max; outer scales follow the other blocks. Zero
rows, empty groups, all-zero blocks and tensors are ordinary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .codes import as_tensor, decode_tensor, require_float
from .formats import E2M1, E4M3, E8M0, S2F6, Format
from .layout import pack_nibbles
from .partition import Partition, check_groups, random_fields
from .philox import Random
from .rounding import Rounding
from .scales import (
    FOUR_OVER_SIX_RULE,
    NVFP4_RULE,
    RCEIL_RULE,
    RULES,
    Block,
    Rule,
    outer_of_scope,
    round_outer,
)


@dataclass(frozen=True)
class BlockFormat:
    """A block format: elements, block length, scale format, the default rule and the default outer scope."""

    name: str
    element: Format
    block: int
    scale: Format
    rule: Rule
    outer: str | None

    @property
    def bits_per_value(self) -> float:
        """Stored bits per value, outer scale excluded."""
        return self.element.bits + self.scale.bits / self.block

    def __repr__(self) -> str:
        return (
            f"{self.name}({self.element.name} x {self.block}, {self.scale.name} scale by {self.rule.name}, "
            f"outer {self.outer}, {self.bits_per_value:g} bits per value)"
        )


NVFP4 = BlockFormat("NVFP4", E2M1, 16, E4M3, NVFP4_RULE, "tensor")
NVFP4_46 = BlockFormat("NVFP4_46", E2M1, 16, E4M3, FOUR_OVER_SIX_RULE, "tensor")
MXFP8 = BlockFormat("MXFP8", E4M3, 32, E8M0, RCEIL_RULE, None)
MXS2F6 = BlockFormat("MXS2F6", S2F6, 32, E8M0, RCEIL_RULE, None)

BLOCK_FORMATS: dict[str, BlockFormat] = {f.name: f for f in (NVFP4, NVFP4_46, MXFP8, MXS2F6)}


@dataclass(frozen=True, eq=False, repr=False)
class BlockTensor:
    """A quantized tensor.

    Args:
        codes: uint8, one per value, the tensor's shape. scales: uint8 scale codes, that shape with the length of
            `axis` replaced by the number of blocks. outer: float32 that broadcasts to the shape, or None.
        fmt, rule: how it was made. axis: the blocks' axis, counted from the front.
        groups: offsets of expert groups along `axis` (first 0, last the length), or None for one group.
    """

    codes: Tensor
    scales: Tensor
    outer: Tensor | None
    fmt: BlockFormat
    rule: str
    axis: int
    groups: tuple[int, ...] | None = None

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def __repr__(self) -> str:
        outer = "none" if self.outer is None else tuple(self.outer.shape)
        return (
            f"BlockTensor({self.fmt.name} by {self.rule}, shape {tuple(self.shape)}, axis {self.axis}, outer {outer})"
        )

    @property
    def mT(self) -> BlockTensor:
        """The view with its last two axes exchanged; blocks, groups and outer follow."""
        ndim = self.codes.ndim
        if ndim < 2:
            raise ValueError(f"mT needs two axes; this tensor has shape {tuple(self.shape)}")
        axis = {ndim - 1: ndim - 2, ndim - 2: ndim - 1}.get(self.axis, self.axis)
        outer = None if self.outer is None else self.outer.mT
        return replace(self, codes=self.codes.mT, scales=self.scales.mT, outer=outer, axis=axis)

    def values(self) -> Tensor:
        """Code value * block scale, without the outer scale: float32, exact (E4M3 x E8M0 within float32's range)."""
        element, scale = decode_tensor(self.codes, self.fmt.element), decode_tensor(self.scales, self.fmt.scale)
        length, block = self.shape[self.axis], self.fmt.block
        if self.groups is None and length % block == 0:
            return (element.unflatten(self.axis, (-1, block)) * scale.unsqueeze(self.axis + 1)).flatten(
                self.axis, self.axis + 1
            )
        blocks = Partition.of(length, block, self.groups).block_of.to(scale.device)
        return element * scale.index_select(self.axis, blocks)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Values with the outer scale, shape of the tensor, rounded to FP32 and then to `dtype`."""
        values = self.values()
        return (values if self.outer is None else values * self.outer).to(dtype)

    def packed(self) -> Tensor:
        """Codes as bytes: two E2M1 codes per byte, the even index in the low nibble; other formats as they are."""
        return pack_nibbles(self.codes) if self.fmt.element.bits == 4 else self.codes

    def rows(self, index: Tensor) -> BlockTensor:
        """The rows `index` (int64) of axis 0: what a dispatch sends. Blocks must run along another axis."""
        if self.axis == 0:
            raise ValueError("rows(index) cuts blocks, which run along axis 0 here; quantize along another axis")
        outer = self.outer
        if outer is not None and outer.shape[0] != 1:
            outer = outer.index_select(0, index)
        codes, scales = self.codes.index_select(0, index), self.scales.index_select(0, index)
        return replace(self, codes=codes, scales=scales, outer=outer)


def quantize(
    x: Any,
    fmt: BlockFormat,
    axis: int = -1,
    outer: str | Tensor | None = "format",
    outer_rounding: str | None = None,
    groups: Any = None,
    rule: str | Rule | None = None,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    random: Random | None = None,
    check_finite: bool = False,
) -> BlockTensor:
    """Quantize `x` in blocks along `axis`.

    Args:
        x: floating point, torch (any device) or numpy, at least one axis; rounded to float32 first if it is float64.
        fmt: the block format.
        outer: scope of the FP32 outer scale: None, "tensor", "row" (one per index of the other axes: one per token),
            "leading" (one per index of axis 0: one per expert), a float32 tensor that broadcasts to `x`, or
            "format": the format's own ("tensor" for NVFP4, None for MX).
        outer_rounding: None, or "pow2": outer rounded up to a power of two.
        groups: offsets of expert groups along `axis`, non-decreasing, first 0, last the length; blocks never
            straddle them.
        rule: a name in `scales.RULES` or a Rule; None: the format's.
        rounding: of the elements. random: words for STOCHASTIC.
        check_finite: raise on NaN and Inf instead of giving the block a NaN scale.

    Returns:
        BlockTensor of torch tensors on the device of `x`.

    Raises:
        TypeError: `x` is not floating point. ValueError: axis, groups, outer, rule or random words that do not fit;
        non-finite values under check_finite.
    """
    tensor, _ = as_tensor(x, "x")
    require_float(tensor, "x")
    axis = _axis(tensor, axis)
    chosen = fmt.rule if rule is None else _rule(rule)
    offsets = check_groups(groups, tensor.shape[axis])
    if (rounding is Rounding.STOCHASTIC) != (random is not None):
        raise ValueError(
            f"rounding={rounding} with random={random}: STOCHASTIC needs random=nm.Random(...), others None"
        )
    if check_finite:
        _require_finite(tensor)
    partition = Partition.of(tensor.shape[axis], fmt.block, offsets)
    blocks = partition.split(tensor.to(torch.float32).movedim(axis, -1), fmt.block)
    least, greatest = torch.aminmax(blocks, dim=-1, keepdim=True)  # NaN in, NaN out
    amax = torch.maximum(least.abs(), greatest.abs())
    finite = torch.isfinite(amax)
    amax = torch.where(finite, amax, 0.0)
    scope = fmt.outer if isinstance(outer, str) and outer == "format" else outer
    scale, s_enc = outer_of_scope(tensor, amax, axis, scope, chosen)
    if outer_rounding is not None and scale is not None:
        scale, s_enc = round_outer(scale, outer_rounding)
    bits = None
    if random is not None:
        grouped = offsets is not None
        bits = random_fields(random, tensor.shape, axis, grouped, partition, fmt.block, fmt.element.bits, blocks.device)
    scales, codes = chosen.apply(Block(blocks, amax, scale, s_enc, fmt.element, rounding, bits))
    assert fmt.scale.nan_code is not None
    scales = torch.where(finite, scales, fmt.scale.nan_code).to(torch.uint8)
    codes = torch.where(finite, codes, fmt.element.max_code).to(torch.uint8)  # a computed NaN has no defined sign
    return BlockTensor(
        codes=partition.join(codes).movedim(-1, axis),
        scales=scales.squeeze(-1).movedim(-1, axis),
        outer=None if scale is None else scale.squeeze(-1).movedim(-1, axis),
        fmt=fmt,
        rule=chosen.name,
        axis=axis,
        groups=offsets,
    )


def dequantize(q: BlockTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`q.dequantize(dtype)`."""
    return q.dequantize(dtype)


def requantize(
    q: BlockTensor,
    fmt: BlockFormat,
    axis: int = -2,
    groups: Any = None,
    outer: str = "keep",
    rounding: Rounding = Rounding.STOCHASTIC,
    random: Random | None = None,
) -> BlockTensor:
    """Quantize the values of `q` again, in `fmt` along `axis`: how a saved operand becomes a backward operand.

    Args:
        outer: "keep": the outer scale stays a factor outside, exact, and must not vary along `axis`, the new
            contraction; "multiply": it multiplies the values first (rounded to FP32); "drop": it is left out, for
            a caller who applies it elsewhere.
        axis, groups, rounding, random: as in `quantize`.

    Raises:
        ValueError: an unknown `outer`; "keep" with an outer scale that varies along `axis`; as `quantize`.
    """
    axis = _axis(q.codes, axis)
    if outer not in ("keep", "multiply", "drop"):
        raise ValueError(f"outer={outer!r}: use 'keep', 'multiply' or 'drop'")
    if outer == "keep" and q.outer is not None and q.outer.shape[axis] != 1:
        raise ValueError(
            f"outer='keep': the outer scale of shape {tuple(q.outer.shape)} varies along axis {axis}, the new "
            "contraction; use 'multiply', or 'drop' and fold it into the other operand"
        )
    values = q.dequantize() if outer == "multiply" else q.values()
    new = quantize(values, fmt, axis, outer=None, groups=groups, rounding=rounding, random=random)
    return replace(new, outer=q.outer) if outer == "keep" else new


def _axis(x: Tensor, axis: int) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis={axis}: the tensor has shape {tuple(x.shape)}; use {-x.ndim} to {x.ndim - 1}")
    return axis % x.ndim


def _rule(rule: str | Rule) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if rule not in RULES:
        raise ValueError(f"rule={rule!r}: known rules are {', '.join(RULES)}")
    return RULES[rule]


def _require_finite(x: Tensor) -> None:
    bad = (~torch.isfinite(x)).nonzero()
    if len(bad):
        raise ValueError(f"x holds {len(bad)} non-finite values, the first at index {tuple(bad[0].tolist())}")
