"""Block tensors as torch's own block-scaled products take them, and back. Bytes only: no value changes.

`torch.nn.functional.scaled_mm` and `scaled_grouped_mm` multiply packed E2M1 or FP8 data by one-byte block scales in
the 128x4 layout (`layout.swizzle_scales`). For y = x @ w.T with x (M, K) and w (N, K), blocks along K:

    a, b = as_torch(nm.quantize(x, nm.NVFP4)), as_torch(nm.quantize(w, nm.NVFP4))
    y = scaled_mm(a.data, b.data.mT, a.scales, a.recipes, b.scales, b.recipes, a.swizzles, b.swizzles)

    numerics                               data                        scales
    E2M1 x 16, E4M3 scales (NVFP4)         float4_e2m1fn_x2 (M, K/2)   float8_e4m3fn, BlockWise1x16
    E2M1 x 32, E8M0 scales (MXFP4)         float4_e2m1fn_x2 (M, K/2)   float8_e8m0fnu, BlockWise1x32
    E4M3 or E5M2 x 32, E8M0 (MXFP8)        float8_... (M, K)           float8_e8m0fnu, BlockWise1x32
    E4M3 x 128, FP32 scales                float8_e4m3fn (M, K)        float32, BlockWise1x128
    E4M3 x 128 x 128, FP32 scales          float8_e4m3fn (M, K)        float32, BlockWise128x128

`torch_scales` has the forms of the scales. torch has no dtype for other elements. Its float4 and float8_e8m0 dtypes do
little more than being viewed: every operation on them here is on uint8. K, and N of the second operand, must be
multiples of 16 (torch checks it). The one-byte recipes run on Blackwell, those with FP32 scales on Hopper, which wants
the 1 x 128 form in at least one operand.

Experts (`scaled_grouped_mm`). Each expert's scales are padded and swizzled alone, and lie one after the other:
    (E, N, K) weights      scales (E, bytes per expert)
    (T, K) tokens          row_groups: offsets of experts along the rows; scales (sum of padded rows, padded k)
    (T, K), blocks along K cut by q.groups (weight gradients): scales (padded rows, sum of padded k)

The outer scale. NVFP4's has a place in torch (the second scale, TensorWise): the sums are multiplied by
fl(outer of a x outer of b), as by `nm.matmul`. Either both operands have one or neither. MX formats have no place for
it, and nothing has one for a scale per row: pass outer="outside", for both operands, and multiply the product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

from .arguments import require_kind, require_same_device, require_tensor
from .blocks import BlockFormat, BlockTensor
from .formats import E2M1, E4M3, E5M2, E8M0, UE4M3, Format
from .layout import unpack_nibbles
from .partition import check_groups
from .torch_scales import (
    merge_tiles,
    pad_tiled,
    repeat_tiles,
    rows_contiguous,
    swizzle_groups,
    unpad_tiled,
    unswizzle_groups,
)


@dataclass(frozen=True)
class Product:
    """What torch calls one kind of operand: dtypes of data and block scales, and the recipe."""

    data: torch.dtype
    scale: torch.dtype
    recipe: ScalingType


_FP4, _FP8, _POWER = torch.float4_e2m1fn_x2, torch.float8_e4m3fn, torch.float8_e8m0fnu
# (element, scale, block length, tile of FP32 scales): every block-scaled operand that torch has a product for
PRODUCTS: dict[tuple[Format, Format | None, int, int], Product] = {
    (E2M1, E4M3, 16, 1): Product(_FP4, _FP8, ScalingType.BlockWise1x16),
    (E2M1, UE4M3, 16, 1): Product(_FP4, _FP8, ScalingType.BlockWise1x16),
    (E2M1, E8M0, 32, 1): Product(_FP4, _POWER, ScalingType.BlockWise1x32),
    (E4M3, E8M0, 32, 1): Product(_FP8, _POWER, ScalingType.BlockWise1x32),
    (E5M2, E8M0, 32, 1): Product(torch.float8_e5m2, _POWER, ScalingType.BlockWise1x32),
    (E4M3, None, 128, 1): Product(_FP8, torch.float32, ScalingType.BlockWise1x128),
    (E4M3, None, 128, 128): Product(_FP8, torch.float32, ScalingType.BlockWise128x128),
}


@dataclass(frozen=True, eq=False)
class TorchOperand:
    """One operand of torch's block-scaled products; see the module docstring for shapes.

    Args:
        data: contiguous, the contraction last: float4_e2m1fn_x2 (two codes per element), float8_e4m3fn or float8_e5m2.
        scales: the block scales and, where torch takes it, the outer scale, float32: () or one per expert (E,).
        recipes, swizzles: one for each of `scales`.
        outer: float32, what the caller must still multiply the product by; None if nothing is left.
        groups, row_groups: offsets of experts along the contraction or along the rows, or None.
    """

    data: Tensor
    scales: list[Tensor]
    recipes: list[ScalingType]
    swizzles: list[SwizzleType]
    outer: Tensor | None = None
    groups: tuple[int, ...] | None = None
    row_groups: tuple[int, ...] | None = None

    @property
    def offs(self) -> Tensor | None:
        """Where each expert ends, int32 (E,), as `scaled_grouped_mm` takes it; None without groups."""
        offsets = self.row_groups or self.groups
        return None if offsets is None else torch.tensor(offsets[1:], dtype=torch.int32, device=self.data.device)


def as_torch(
    q: BlockTensor,
    row_groups: Any = None,
    outer: Literal["inside", "outside"] = "inside",
    swizzle: SwizzleType = SwizzleType.SWIZZLE_32_4_4,
) -> TorchOperand:
    """`q` as an operand of torch's block-scaled products. 8-bit data are a view of `q.codes` if those are contiguous.

    Args:
        q: (rows, K) or (E, rows, K), blocks along K. A tensor with blocks along axis -2: pass `q.mT`.
        row_groups: offsets of experts along the rows (first 0, last their number) for a (rows, K) operand of
            `scaled_grouped_mm`.
        outer: "inside": the outer scale goes into the product; "outside": it is left to the caller.
        swizzle: of one-byte scales; NO_SWIZZLE leaves them (..., rows, k), for a reader other than NVIDIA's products.

    Raises:
        TypeError: arguments of another kind. ValueError: elements, scales or axes that torch does not take; an odd K or
        an odd group, in E2M1; an outer scale that torch has no place for; groups that do not fit.
    """
    require_kind(q, BlockTensor, "q", "pass what nm.quantize returns")
    require_kind(swizzle, SwizzleType, "swizzle", "use a member of torch.nn.functional.SwizzleType")
    product = _product(q.fmt)
    _require_operand(q)
    rows = check_groups(row_groups, q.shape[-2], "row_groups")
    if rows is not None and (q.codes.ndim != 2 or q.groups is not None or q.fmt.scale is None):
        raise ValueError(
            f"row_groups={list(rows)} with {q.fmt.name}, shape {tuple(q.shape)} and groups={q.groups}: they cut a "
            "(rows, K) tensor with one-byte scales and without groups along K"
        )
    if outer not in ("inside", "outside"):
        raise ValueError(f"outer={outer!r}: use 'inside' or 'outside'")
    scales = repeat_tiles(q.scales, q.fmt.tile, q.shape[-2]) if q.fmt.scale is not None else q.scales
    if q.fmt.scale is None:
        swizzle = SwizzleType.NO_SWIZZLE
        scales = rows_contiguous(scales) if q.fmt.tile == 1 else pad_tiled(scales)
    elif swizzle is SwizzleType.NO_SWIZZLE:
        scales = scales.contiguous()
    else:
        columns = None if q.groups is None else _scale_columns(q.shape[-1], q.fmt.block, q.groups)
        scales = swizzle_groups(scales, columns, rows)
    data = q.packed().contiguous().view(product.data)
    operand = TorchOperand(data, [scales.view(product.scale)], [product.recipe], [swizzle], q.outer, q.groups, rows)
    return _with_outer_inside(operand, q) if outer == "inside" and q.outer is not None else operand


def from_torch(operand: TorchOperand, fmt: BlockFormat, rule: str = "unknown") -> BlockTensor:
    """Inverse of `as_torch`: codes, scales and outer as they were; an outer scale per expert comes back as one per
    row, or per position along K, of that expert.

    Args:
        operand: the tensors, of `as_torch` or of another library. fmt: what they are.
        rule: how they were made, a label for `BlockTensor.rule`.

    Raises:
        TypeError: arguments of another kind. ValueError: dtypes or sizes that do not belong to `fmt`; lists that differ
        in length; a second scale that is not one for the whole tensor or expert; two outer scales, as second scale and
        as `operand.outer`.
    """
    require_kind(fmt, BlockFormat, "fmt", "pass a block format such as nm.NVFP4")
    _require_torch_operand(operand)
    product, data = _product(fmt), operand.data
    found = Product(data.dtype, operand.scales[0].dtype, operand.recipes[0])
    if found != product:
        raise ValueError(f"operand is {found}: {fmt.name} is {product}")
    if data.ndim not in (2, 3):
        raise ValueError(f"operand.data has shape {tuple(data.shape)}: pass (rows, K) or (E, rows, K)")
    codes = data.view(torch.uint8)
    codes = unpack_nibbles(codes) if fmt.element == E2M1 else codes
    groups, rows = (
        check_groups(operand.groups, codes.shape[-1]),
        check_groups(operand.row_groups, codes.shape[-2], "row_groups"),
    )
    columns = _scale_columns(codes.shape[-1], fmt.block, groups)
    scales, shape = operand.scales[0], (*codes.shape[:-1], columns[-1])
    if fmt.scale is None and fmt.tile > 1:
        scales = unpad_tiled(scales, -(-shape[0] // fmt.tile), shape[1])
    elif operand.swizzles[0] is not SwizzleType.NO_SWIZZLE:
        scales = unswizzle_groups(scales.view(torch.uint8), shape, None if groups is None else columns, rows)
    elif tuple(scales.shape) != shape:
        raise ValueError(f"operand.scales[0] has shape {tuple(scales.shape)}: plain scales of these data have {shape}")
    if fmt.scale is not None:
        scales = scales.view(torch.uint8)
        scales = scales if fmt.tile == 1 else merge_tiles(scales, fmt.tile)
    outer = _outer_as_factor(operand) if len(operand.scales) > 1 else operand.outer
    return BlockTensor(codes, scales, outer, fmt, rule, codes.ndim - 1, groups)


def _require_torch_operand(operand: Any) -> None:
    require_kind(operand, TorchOperand, "operand", "pass a TorchOperand")
    require_tensor(operand.data, "operand.data")
    for name in ("scales", "recipes", "swizzles"):
        parts = getattr(operand, name)
        require_kind(parts, (list, tuple), f"operand.{name}", "pass a list, the block scales' entry first")
        if len(parts) not in (1, 2):
            raise ValueError(f"operand.{name} has {len(parts)} entries: pass one, or two with an outer scale")
    counts = [len(operand.scales), len(operand.recipes), len(operand.swizzles)]
    if len(set(counts)) > 1:
        raise ValueError(
            f"operand has {counts[0]} scales, {counts[1]} recipes and {counts[2]} swizzles: pass as many of each"
        )
    for place, scale in enumerate(operand.scales):
        require_tensor(scale, f"operand.scales[{place}]")
        require_same_device(scale, f"operand.scales[{place}]", operand.data, "operand.data")
        for name, kind in (("recipes", ScalingType), ("swizzles", SwizzleType)):
            remedy = f"use a member of torch.nn.functional.{kind.__name__}"
            require_kind(getattr(operand, name)[place], kind, f"operand.{name}[{place}]", remedy)
    if operand.outer is not None:
        require_tensor(operand.outer, "operand.outer", (torch.float32,))
    if counts[0] == 2:
        _require_second_scale(operand)


def _require_second_scale(operand: TorchOperand) -> None:
    """The second of two scales is the outer scale, one per tensor or expert, and the only one."""
    if operand.recipes[1] is not ScalingType.TensorWise:
        raise ValueError(f"operand.recipes[1] is {operand.recipes[1]}: an outer scale has ScalingType.TensorWise")
    if operand.swizzles[1] is not SwizzleType.NO_SWIZZLE:
        raise ValueError(f"operand.swizzles[1] is {operand.swizzles[1]}: an outer scale has SwizzleType.NO_SWIZZLE")
    if operand.outer is not None:
        raise ValueError(
            f"operand has an outer of shape {tuple(operand.outer.shape)} and a second scale: pass one, their product"
        )


def _product(fmt: BlockFormat) -> Product:
    key = (fmt.element, fmt.scale, fmt.block, fmt.tile if fmt.scale is None else 1)
    if key not in PRODUCTS or fmt.alternative is not None:
        known = ", ".join(f"{e.name} x {block} with {s.name if s else 'FP32'}" for e, s, block, _ in PRODUCTS)
        raise ValueError(f"{fmt!r} has no product in torch, which knows elements and scales {known}; use nm.matmul")
    return PRODUCTS[key]


def _require_operand(q: BlockTensor) -> None:
    ndim, shape = q.codes.ndim, tuple(q.shape)
    if ndim not in (2, 3):
        raise ValueError(f"q has shape {shape}: torch's products take (rows, K) and (E, rows, K)")
    if q.axis != ndim - 1:
        raise ValueError(f"q has its blocks along axis {q.axis} of {ndim}: they must be last; pass q.mT")
    if q.fmt.scale is None and (ndim != 2 or q.groups is not None):
        raise ValueError(f"q has shape {shape}, groups={q.groups} and FP32 scales: torch takes such (rows, K) only")
    if q.groups is not None and ndim != 2:
        raise ValueError(f"q has shape {shape} and groups={q.groups}: torch's groups cut (rows, K) tensors")
    if q.fmt.element == E2M1 and any(offset % 2 for offset in q.groups or ()):
        raise ValueError(f"groups={q.groups}: a byte holds two E2M1 codes, so groups must start at even positions")
    if q.outer is not None and (q.outer_block is not None or q.outer.shape[-1] != 1):
        raise ValueError(
            f"q has an outer scale of shape {tuple(q.outer.shape)} that varies along the contraction: torch has no "
            "place for it; requantize with outer='multiply', or use nm.matmul"
        )


def _scale_columns(length: int, block: int, groups: tuple[int, ...] | None) -> tuple[int, ...]:
    """Where each group's scales start and end: (0, number of blocks) without groups."""
    sizes = [end - start for start, end in pairwise(groups or (0, length))]
    return tuple(accumulate((-(-size // block) for size in sizes), initial=0))


def _with_outer_inside(operand: TorchOperand, q: BlockTensor) -> TorchOperand:
    """The outer scale as torch's second scale: () for one product, (E,) for grouped ones."""
    assert q.outer is not None
    per_expert = q.codes.ndim == 3 and tuple(q.outer.shape) == (q.shape[0], 1, 1)
    if operand.recipes[0] is not ScalingType.BlockWise1x16 or not (q.outer.numel() == 1 or per_expert):
        raise ValueError(
            f"outer='inside': torch has no place for the outer scale of shape {tuple(q.outer.shape)} of {q.fmt.name} "
            f"{tuple(q.shape)}; pass outer='outside' and multiply the product by it"
        )
    offsets = operand.row_groups or operand.groups
    experts = q.shape[0] if q.codes.ndim == 3 else None if offsets is None else len(offsets) - 1
    scale = q.outer.reshape(()) if experts is None else q.outer.reshape(-1).expand(experts).contiguous()
    return replace(
        operand,
        scales=[*operand.scales, scale],
        recipes=[*operand.recipes, ScalingType.TensorWise],
        swizzles=[*operand.swizzles, SwizzleType.NO_SWIZZLE],
        outer=None,
    )


def _outer_as_factor(operand: TorchOperand) -> Tensor:
    """The second scale as a BlockTensor's outer: broadcasting to the values."""
    scale, ndim = operand.scales[1], operand.data.ndim
    offsets = operand.row_groups or operand.groups
    experts = operand.data.shape[0] if ndim == 3 else 1 if offsets is None else len(offsets) - 1
    if scale.dtype != torch.float32 or scale.numel() not in (1, experts):
        raise ValueError(
            f"operand.scales[1] has shape {tuple(scale.shape)}, {scale.dtype}: pass float32, one or one per expert"
        )
    if scale.numel() == 1:
        return scale.reshape((1,) * ndim)
    if ndim == 3:
        return scale.reshape(-1, 1, 1)
    assert offsets is not None
    sizes = torch.tensor(offsets, device=scale.device).diff()
    factor = scale.reshape(-1).repeat_interleave(sizes)
    return factor[:, None] if operand.row_groups else factor[None, :]
