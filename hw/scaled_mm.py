"""Block-scaled products by the library: stored codes and scales as arguments of torch.nn.functional.scaled_mm.

A product of experts is one call of scaled_mm for each expert that has rows:

    rows by experts       fprop, dgrad: rows (R_e, K) times the expert's matrix (N, K), transposed
    columns by experts    wgrad: (N, R_e) times (K, R_e), transposed; each expert's blocks start anew at its first row

What torch asks (2.13: `_check_scaled_mm_sizes_v2` in _meta_registrations.py; ScaledBlas.cpp on the GPU) of a matrix of
`lines` (rows of a, columns of b) by a contraction of k values:

    NVFP4    float4_e2m1fn_x2, the even value in the low nibble; recipe [BlockWise1x16, TensorWise], swizzle
             [SWIZZLE_32_4_4, NO_SWIZZLE], scales [float8_e4m3fn, one float32]
    MXFP8    float8_e4m3fn; recipe BlockWise1x32, swizzle SWIZZLE_32_4_4, scales float8_e8m0fnu
    codes    mat_a row-major, mat_b column-major: the contraction is contiguous in both, at multiples of 16 bytes. k is
             a multiple of 32, the lines of b one of 16: zero codes fill up what is missing, and add nothing to a sum
    scales   `numerics.layout.swizzle_scales` of each matrix: round_up(lines, 128) * round_up(blocks, 4) bytes

The second scale of NVFP4 is 1: torch takes one number for a whole tensor there, so outer scales of rows and of experts
multiply the sums afterwards. Operands whose codes lie the other way are transposed as bytes.

Why one call an expert and not scaled_grouped_mm: that writes BF16 only, a rounding more of every sum, before the outer
scales, and of every weight gradient; scaled_mm writes the FP32 sums that the seam speaks of. The price is a launch for
each expert. Everything here up to the call is exact and works on any device, "meta" too. The call itself has never run:
no GPU with block-scaled products was at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import pad

from numerics import E2M1, E4M3, E8M0, BlockFormat, BlockTensor
from numerics.cache import cached
from numerics.layout import TILE_ROWS, padded_scales, swizzle_scales
from numerics.matmul_arguments import varies

from .packed import packed_bytes

CONTRACTION = 32  # values: 16 bytes of E2M1; torch's checks ask 16 bytes of E4M3, its cuBLAS tests whole MX blocks
COLUMNS = 16  # lines of mat_b


def refuse(what: str) -> ValueError:
    """The error for what torch's block-scaled products do not take."""
    return ValueError(
        f"torch's scaled_mm multiplies NVFP4 by NVFP4 and MXFP8 by MXFP8, not {what}; use --ops triton or emulated, or "
        "a recipe without it"
    )


@dataclass(frozen=True, eq=False)
class Piece:
    """One operand of one call.

    Args:
        codes: (lines, bytes) of float4_e2m1fn_x2 or float8_e4m3fn, the contraction contiguous. scales: their block
            scales, one axis, swizzled. lines: how many count; what follows fills up.
    """

    codes: Tensor
    scales: Tensor
    lines: int


def is_nvfp4(fmt: BlockFormat) -> bool:
    """E2M1 in blocks of 16 under E4M3 scales, whatever the rule that made them."""
    return fmt.element == E2M1 and fmt.block == 16 and fmt.scale == E4M3 and fmt.alternative is None


def _is_mxfp8(fmt: BlockFormat) -> bool:
    return fmt.element == E4M3 and fmt.block == 32 and fmt.scale == E8M0


def require_operands(a: BlockTensor, b: BlockTensor) -> None:
    """Raises ValueError unless scaled_mm takes this pair of formats, with blocks along the last axis of both."""
    both = is_nvfp4(a.fmt) and is_nvfp4(b.fmt)
    if not both and not (_is_mxfp8(a.fmt) and _is_mxfp8(b.fmt)):
        raise refuse(f"{a.fmt.name} by {b.fmt.name}")
    for name, q in (("a", a), ("b", b)):
        if q.axis != len(q.shape) - 1:
            raise ValueError(f"{name} has its blocks along axis {q.axis}: the contraction is the last one; use .mT")
        if varies(q):
            raise refuse("outer scales that vary along the contraction")
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}: their last axes, the contraction, differ"
        )


def _dtypes(fmt: BlockFormat) -> tuple[torch.dtype, torch.dtype]:
    """Of codes and of block scales."""
    if is_nvfp4(fmt):
        return torch.float4_e2m1fn_x2, torch.float8_e4m3fn
    return torch.float8_e4m3fn, torch.float8_e8m0fnu


def _filled(x: Tensor, lines: int, last: int) -> Tensor:
    """Bytes (..., n, m), contiguous, at a multiple of 16, with zeros up to multiples of `lines` and `last`."""
    missing = -x.shape[-2] % lines, -x.shape[-1] % last
    x = pad(x, (0, missing[1], 0, missing[0])) if any(missing) else x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _bytes(q: BlockTensor, lines: int) -> Tensor:
    """Codes (..., n, k) as bytes, filled up; 4-bit ones two to a byte."""
    narrow = is_nvfp4(q.fmt)
    if narrow and q.shape[-1] % 2:
        q = q.derived(codes=pad(q.codes, (0, 1)))
    return _filled(packed_bytes(q), lines, CONTRACTION // 2 if narrow else CONTRACTION)


def _scales(q: BlockTensor) -> Tensor:
    """Scale codes (..., lines, blocks): those of tiles once for each line."""
    return q.scales if q.fmt.tile == 1 else q.scales.repeat_interleave(q.fmt.tile, -2)[..., : q.shape[-2], :]


def matrices(q: BlockTensor) -> list[Piece]:
    """Each expert's matrix of q (E, N, K), as mat_b."""
    codes, scales = _dtypes(q.fmt)
    flat, swizzled = _bytes(q, COLUMNS).view(codes), swizzle_scales(_scales(q)).view(scales)
    return [Piece(c, s, q.shape[-2]) for c, s in zip(flat.unbind(), swizzled.unbind(), strict=True)]


def rows(q: BlockTensor, groups: tuple[int, ...]) -> list[Piece]:
    """Each expert's rows of q (R, K), as mat_a. Scales are swizzled together: every expert's start a tile of 128."""
    codes, scales = _dtypes(q.fmt)
    flat, kept = _bytes(q, 1).view(codes), _scales(q)
    starts = _starts(groups, TILE_ROWS)
    grid = kept.new_zeros(starts[-1], kept.shape[-1])
    grid.index_copy_(0, _places(groups, TILE_ROWS, str(kept.device)), kept)
    width = padded_scales(0, kept.shape[-1])[1]
    swizzled = swizzle_scales(grid).view(scales)
    return [
        Piece(flat[i:j], swizzled[first * width : last * width], j - i)
        for (i, j), (first, last) in zip(pairwise(groups), pairwise(starts), strict=True)
    ]


def columns(q: BlockTensor, groups: tuple[int, ...]) -> list[Piece]:
    """Each expert's part of the contraction of q (N, R), whose blocks start anew at `groups`, as mat_a or mat_b."""
    codes, scales = _dtypes(q.fmt)
    starts = _starts(groups, CONTRACTION)
    flat = q.codes
    if starts != groups:
        places = _places(groups, CONTRACTION, str(flat.device))
        flat = flat.new_zeros(flat.shape[0], starts[-1]).index_copy_(1, places, flat)
    values = 2 if is_nvfp4(q.fmt) else 1
    if values == 2:
        flat = flat[:, 0::2] | (flat[:, 1::2] << 4)
    flat, kept = _filled(flat, COLUMNS, 1).view(codes), _scales(q)
    cuts = _block_cuts(groups, q.fmt.block)
    return [
        Piece(flat[:, i // values : j // values], swizzle_scales(kept[:, first:last]).view(scales), q.shape[0])
        for (i, j), (first, last) in zip(pairwise(starts), pairwise(cuts), strict=True)
    ]


def _starts(groups: tuple[int, ...], step: int) -> tuple[int, ...]:
    """Offsets of the groups when each is filled up to a multiple of `step`."""
    return tuple(accumulate((-(-(j - i) // step) * step for i, j in pairwise(groups)), initial=0))


def _block_cuts(groups: tuple[int, ...], block: int) -> tuple[int, ...]:
    """Offsets of the groups in blocks."""
    return tuple(accumulate((-(-(j - i) // block) for i, j in pairwise(groups)), initial=0))


@cached(maxsize=64)
def _places(groups: tuple[int, ...], step: int, device: str) -> Tensor:
    """int64 (groups[-1],): where each entry lies when groups are filled up to multiples of `step`."""
    moved = [start - first for start, first in zip(_starts(groups, step), groups, strict=True)][:-1]
    counts = torch.tensor([j - i for i, j in pairwise(groups)])
    return (torch.arange(groups[-1]) + torch.tensor(moved).repeat_interleave(counts)).to(device)


@cached(maxsize=8)
def _one(device: str) -> Tensor:
    return torch.ones((), dtype=torch.float32, device=device)


def arguments(a: Piece, b: Piece) -> dict[str, Any]:
    """What scaled_mm is called with for a (M, K) @ b (N, K).T in FP32 sums."""
    kinds, swizzles = functional.ScalingType, functional.SwizzleType
    if a.codes.dtype == torch.float4_e2m1fn_x2:
        recipe, swizzle = [kinds.BlockWise1x16, kinds.TensorWise], [swizzles.SWIZZLE_32_4_4, swizzles.NO_SWIZZLE]
        second = [_one(str(a.codes.device))]
    else:
        recipe, swizzle, second = [kinds.BlockWise1x32], [swizzles.SWIZZLE_32_4_4], []
    return {
        "mat_a": a.codes,
        "mat_b": b.codes.T,
        "scale_a": [a.scales, *second],
        "scale_recipe_a": recipe,
        "scale_b": [b.scales, *second],
        "scale_recipe_b": recipe,
        "swizzle_a": swizzle,
        "swizzle_b": swizzle,
        "output_dtype": torch.float32,
    }


def _product(a: Piece, b: Piece) -> Tensor:
    """float32 (lines of a, lines of b)."""
    return functional.scaled_mm(**arguments(a, b))[: a.lines, : b.lines]


def rows_by_experts(a: BlockTensor, b: BlockTensor, groups: tuple[int, ...]) -> Tensor:
    """float32 (R, N): rows a (R, K) of each group times their expert's b (E, N, K), transposed; no outer scales."""
    require_operands(a, b)
    out = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32, device=a.scales.device)
    if 0 in (*out.shape, a.shape[-1]):
        return out
    for first, second, part in zip(rows(a, groups), matrices(b), out.split(_sizes(groups)), strict=True):
        if first.lines:
            part.copy_(_product(first, second))
    return out


def columns_by_experts(a: BlockTensor, b: BlockTensor, groups: tuple[int, ...]) -> Tensor:
    """float32 (E, N, K): of each group a (N, R) times b (K, R), transposed; zeros of an empty group.

    Raises: ValueError if blocks straddle groups.
    """
    require_operands(a, b)
    for name, q in (("a", a), ("b", b)):
        if q.groups != groups and (q.groups is not None or any(cut % q.fmt.block for cut in groups[:-1])):
            raise ValueError(
                f"{name} has its blocks from offsets {q.groups or (0, q.shape[-1])}, the experts are at {groups}: "
                "quantize along tokens with the experts' groups"
            )
    out = torch.zeros(len(groups) - 1, a.shape[0], b.shape[0], dtype=torch.float32, device=a.scales.device)
    if 0 in out.shape:
        return out
    pieces = zip(columns(a, groups), columns(b, groups), _sizes(groups), out.unbind(), strict=True)
    for first, second, count, part in pieces:
        if count:
            part.copy_(_product(first, second))
    return out


def _sizes(groups: tuple[int, ...]) -> list[int]:
    return [j - i for i, j in pairwise(groups)]
