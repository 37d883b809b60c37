"""Which kernel makes which operand: casts and recasts of the seam as launches, or a refusal in words.

    along features    NVFP4 and four-over-six under outer scales of rows, matrices or the tensor; MXFP8, MXFP4, MXS2F6
    along tokens      MXFP8, nearest or stochastic; NVFP4 under the tensor's outer scale, rotated or not
    in tiles          NVFP4_2D under outer scales of matrices or the tensor

Nothing falls back: what has no kernel is a ValueError that names the format and the remedy. Widths that are no multiple
of a block are filled up with zeros first and cut afterwards.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import numerics as nm
from numerics import BlockFormat, BlockTensor, Random, Rounding
from numerics.ops import Cast
from numerics.outer import outer_scale
from numerics.partition import check_groups

from .kernel_amax import block_amax
from .kernel_mx import mx
from .kernel_nvfp4 import nvfp4
from .kernel_tiles import tile_amax, tiles
from .kernel_tokens import tokens
from .kernel_tokens_nvfp4 import tokens_nvfp4
from .packed import PackedTensor, block_tensor
from .sources import Source, Words

NVFP4_KINDS = (nm.NVFP4, nm.NVFP4_46)
MX_KINDS = (nm.MXFP8, nm.MXFP4, nm.MXS2F6)


def refuse(what: str) -> ValueError:
    """The error for what has no kernel."""
    return ValueError(f"hw has no Triton kernel for {what}; use --ops emulated, or a recipe without it")


def require_known(fmt: BlockFormat | None) -> None:
    """Raises ValueError for formats that no kernel here makes or reads."""
    if fmt is not None and fmt not in (*NVFP4_KINDS, *MX_KINDS, nm.NVFP4_2D):
        raise refuse(f"the format {fmt.name}")


def require_blocks(q: BlockTensor) -> None:
    """Raises ValueError for a format, or blocks starting anew at groups, that no kernel reads: groups of features, and
    of a batch of matrices."""
    require_known(q.fmt)
    if q.groups is not None and len(q.shape) > 2:
        raise refuse("groups of a batch of matrices")
    if straddle(q):
        raise refuse("blocks along features that start anew at groups")


def straddle(q: BlockTensor) -> bool:
    """Whether blocks along the last axis lie elsewhere than every `block` values, since groups start them anew."""
    return q.axis == len(q.shape) - 1 and any(cut % q.fmt.block for cut in (q.groups or ())[:-1])


def plain(x: Tensor) -> Tensor:
    """Values as kernels read them: contiguous, BF16 or FP32."""
    return (x if x.dtype in (torch.bfloat16, torch.float32) else x.to(torch.float32)).detach().contiguous()


def on_device(signs: Tensor, x: Tensor) -> Tensor:
    return signs.to(x.device, torch.float32).contiguous()


def along_features(
    source: Source,
    cast: Cast,
    lead: tuple[int, ...],
    random: Random | None = None,
    signs: Tensor | None = None,
    values: bool = False,
) -> BlockTensor:
    """A source quantized along features; `lead`: the axes that its rows stand for. values: BF16 values too, if the
    kernel can write them."""
    fmt, width = cast.fmt, source.width
    assert fmt is not None
    require_known(fmt)
    if fmt == nm.NVFP4_2D:
        return in_tiles(source.tensor().view(*lead, width), cast, -1)
    if random is not None and fmt in (nm.NVFP4_46, nm.MXS2F6):
        raise refuse(f"{fmt.name} with {cast.rounding}")
    if width % fmt.block:
        if signs is not None:
            raise ValueError(f"x has rows of {width} values: a Hadamard transform of {len(signs)} must divide them")
        source = Source(pad(source.tensor(), (0, -width % fmt.block)))
    matrices = lead[0] if len(lead) > 1 else 1
    words = None if random is None else Words.of(random, source.rows, matrices, source.x.device)
    rotation = None if signs is None else on_device(signs, source.x)
    if fmt in NVFP4_KINDS:
        source, given = _given(source, cast, matrices, len(lead) == 1, signs)
        q = nvfp4(
            source, fmt == nm.NVFP4_46, given, cast.outer_rounding == "pow2", _of_size(rotation, 16), words, values
        )
    else:
        if cast.outer is not None:
            raise ValueError(f"outer={cast.outer!r}: {fmt.name}'s rule sets no outer scale of its own; use None")
        q = mx(source, fmt.element.name, _of_size(rotation, 32), words)
    codes, scales = (t.view(*lead, t.shape[-1]) for t in (q.codes, q.scales))
    outer = None if cast.outer is None or q.outer is None else _outer_view(q.outer, lead, cast.outer)
    if width % fmt.block == 0:
        return PackedTensor.of(fmt, codes, scales, outer, q.values)
    wide = PackedTensor.of(fmt, codes, scales, None).codes[..., :width].contiguous()
    return block_tensor(fmt, wide, scales, outer, len(lead), None)


def _of_size(signs: Tensor | None, size: int) -> Tensor | None:
    if signs is not None and len(signs) != size:
        raise refuse(f"a Hadamard transform of {len(signs)} before blocks of {size}")
    return signs


def _given(
    source: Source, cast: Cast, matrices: int, flat: bool, signs: Tensor | None
) -> tuple[Source, tuple[Tensor, Tensor] | None]:
    """Outer and encode scales that are known before the kernel; None: each row finds its own."""
    if cast.outer == "row" or (cast.outer == "leading" and flat):
        return source, None
    if cast.outer is None:
        one = source.x.new_ones(1, dtype=torch.float32)
        return source, (one, one)
    if cast.outer not in ("tensor", "leading") or signs is not None or cast.outer_rounding is not None:
        raise refuse(f"outer={cast.outer!r}, outer_rounding={cast.outer_rounding!r}, signs={signs is not None}")
    source = Source(source.tensor())
    many = 1 if cast.outer == "tensor" else matrices
    amax = block_amax(source.x, many)
    assert cast.fmt is not None
    return source, outer_scale(amax, 1536.0 if cast.fmt == nm.NVFP4_46 else 2688.0)


def _outer_view(outer: Tensor, lead: tuple[int, ...], scope: Any) -> Tensor:
    if scope == "row" or (scope == "leading" and len(lead) == 1):
        return outer.view(*lead, 1)
    return outer.view(*(lead[0] if d == 0 and scope == "leading" else 1 for d in range(len(lead) + 1)))


def in_tiles(x: Tensor, cast: Cast, axis: int) -> BlockTensor:
    """NVFP4_2D of (R, K) or (E, R, K) values."""
    fmt = cast.fmt
    assert fmt is not None
    if cast.rounding is not Rounding.NEAREST_EVEN or cast.outer_rounding is not None:
        raise refuse(f"{fmt.name} with {cast.rounding}, outer_rounding={cast.outer_rounding!r}")
    stack = x if x.ndim == 3 else x.unsqueeze(0)
    if cast.outer not in ("tensor", "leading", None) or x.ndim > 3 or (x.ndim == 2 and cast.outer == "leading"):
        raise refuse(f"{fmt.name} with outer={cast.outer!r} of {x.ndim} axes")
    stack = plain(stack)
    outer = encode = stack.new_ones(len(stack), dtype=torch.float32)
    if cast.outer is not None:
        amax = tile_amax(stack)
        amax = amax.amax().expand(len(stack)).contiguous() if cast.outer == "tensor" and len(stack) else amax
        outer, encode = outer_scale(amax, 2688.0)
    codes, scales = tiles(stack, encode)
    kept = None if cast.outer is None else outer.view(-1, 1, 1)
    if kept is not None and cast.outer == "tensor":
        kept = kept[:1] if len(stack) else kept.new_ones(1, 1, 1)
    if x.ndim == 2:
        codes, scales, kept = codes[0], scales[0], None if kept is None else kept[0]
    return block_tensor(fmt, codes, scales, kept, axis % x.ndim, None)


def along_tokens(
    x: Tensor,
    cast: Cast,
    groups: Any,
    random: Random | None,
    signs: Tensor | None = None,
    scales: Tensor | None = None,
    outer: Tensor | None = None,
    factor: Tensor | None = None,
) -> BlockTensor:
    """Rows (R, K) or (E, N, K) quantized along the axis before the last; scales, outer, factor: see `tokens`."""
    fmt, shape = cast.fmt, x.shape
    assert fmt is not None
    if fmt == nm.NVFP4_2D:
        if groups is not None:
            raise refuse("tiles of ragged groups")
        return in_tiles(x, cast, -2)
    if x.ndim > 3 or (random is not None and random.rows is not None and groups is None):
        raise refuse(f"{fmt.name} along tokens of {x.ndim} axes, random.rows={random is not None and random.rows}")
    offsets = check_groups(groups, shape[-2])
    if x.ndim == 3:
        if offsets is not None:
            raise refuse("groups along the rows of matrices (E, N, K)")
        offsets = tuple(range(0, shape[0] * shape[1] + 1, shape[1])) if shape[1] else (0,) * (shape[0] + 1)
    flat = x.reshape(shape[:-1].numel(), shape[-1])
    lead = shape[:-2]
    if fmt == nm.MXFP8 and cast.outer is None and signs is None:
        codes, found = tokens(flat, offsets, scales, outer, factor, random)
        kept = offsets if x.ndim == 2 and groups is not None else None
        blocks = len(found) if x.ndim == 2 else -(-shape[-2] // 32)
        codes = codes.view(*shape[:-1], codes.shape[-1])
        return block_tensor(fmt, codes, found.view(*lead, blocks, found.shape[-1]), None, x.ndim - 2, kept)
    scaled = cast.outer == "tensor" and cast.outer_rounding is None
    if fmt == nm.NVFP4 and x.ndim == 2 and scaled and scales is None:
        rotation = None if signs is None else _of_size(on_device(signs, x), 16)
        codes, found, kept = tokens_nvfp4(flat, offsets, rotation, random)
        if signs is None or offsets is None:
            if signs is not None and shape[0] % 16:
                raise ValueError(f"x has {shape[0]} rows: a Hadamard transform of 16 must divide them, or pass groups")
            return block_tensor(fmt, codes, found, kept, 0, offsets)
        whole = tuple(accumulate((-(-(b - a) // 16) * 16 for a, b in pairwise(offsets)), initial=0))
        return block_tensor(fmt, codes, found, kept, 0, whole)
    raise refuse(
        f"{fmt.name} along tokens with outer={cast.outer!r}, {cast.rounding}, signs={signs is not None}, "
        f"{x.ndim} axes, outer_rounding={cast.outer_rounding!r}"
    )
