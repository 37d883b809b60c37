"""Outer scales: one FP32 factor per tensor, token, expert or run of blocks, outside the block scales.

    outer = amax / outer_max        one correctly rounded division; 1 for an all-zero scope; at least 2^-128
    s_enc = outer_max / amax        the same factor in the other direction, as Transformer Engine computes it

outer_max is the largest product of element and block scale that a rule aims at: 6 * 448 = 2688 for NVFP4, 6 * 256 =
1536 for four-over-six.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from .partition import Partition

FLT_MAX = torch.finfo(torch.float32).max
LEAST_OUTER = 2.0**-128  # 1 / FLT_MAX in float32: below it the encode scale is capped


def constant(value: float, like: Tensor) -> Tensor:
    """`value` as a float32 tensor that `like`, finite, may be divided by.

    A compiler takes a tensor made of a number for that number, and a division by a number for a product with its
    reciprocal; it cannot know what `like` times zero is.
    """
    if torch.compiler.is_compiling():
        return like * 0.0 + value
    return like.new_tensor(value)


def outer_scale(amax: Tensor, outer_max: float) -> tuple[Tensor, Tensor]:
    """The outer scale of a scope and the encode scale that Transformer Engine derives from the same amax.

    outer = amax / outer_max, one division; s_enc = min(outer_max / amax, FLT_MAX). An all-zero scope has both 1.
    Where s_enc is capped (amax below 7.9e-36) outer is 1 / FLT_MAX, so that codes and outer still decode to x.

    Args: amax: float32, finite, any shape. Returns: (outer, s_enc), float32 like `amax`.
    """
    limit, one = constant(outer_max, amax), torch.ones_like(amax)
    s_enc = (limit / amax).clamp(max=FLT_MAX)
    outer = (amax / limit).clamp(min=LEAST_OUTER)
    zero = amax == 0
    return torch.where(zero, one, outer), torch.where(zero | (s_enc == 0), one, s_enc)


def outer_of_scope(
    shape: torch.Size, amax: Tensor, axis: int, outer: str | Tensor, outer_max: float | None
) -> tuple[Tensor, Tensor]:
    """Outer and encode scale of the scopes "tensor", "row", "leading", or of a given tensor.

    Args:
        shape: of the tensor, whose `axis` is quantized. amax: of each block, (..., blocks, 1), `axis` moved last.
        outer: the scope, or the outer scales themselves. outer_max: what the rule divides a scope's amax by.

    Returns:
        float32 that broadcasts to `amax`.

    Raises:
        ValueError: an unknown scope, a scope that this axis or rule does not have, a tensor that does not fit.
    """
    if isinstance(outer, Tensor):
        fits = outer.ndim == len(shape) and outer.dtype == torch.float32 and outer.shape[axis] == 1
        if not fits or any(n not in (1, size) for n, size in zip(outer.shape, shape, strict=True)):
            raise ValueError(
                f"outer of shape {tuple(outer.shape)}, {outer.dtype}: pass float32 with the {len(shape)} axes of x "
                f"{tuple(shape)}, each 1 or the same, and 1 along axis {axis}"
            )
        if outer.device != amax.device:
            raise ValueError(f"outer is on {outer.device}: x is on {amax.device}; move one of them")
        # compiled code cannot look at values without ending the graph: there the caller answers for them
        if (
            not torch.compiler.is_compiling()
            and outer.numel()
            and not bool((outer >= LEAST_OUTER).all() & torch.isfinite(outer).all())
        ):
            raise ValueError(f"outer reaches down to {float(outer.min())}: use finite scales of at least 2^-128")
        moved = outer.movedim(axis, -1).unsqueeze(-1)
        return moved, _reciprocal(moved)
    if outer not in ("tensor", "row", "leading"):
        raise ValueError(f"outer={outer!r}: use None, 'tensor', 'row', 'leading', a multiple of the block or a tensor")
    if outer_max is None:
        raise ValueError(f"outer={outer!r}: the format's rule sets no outer scale of its own; use None or a tensor")
    if outer == "leading" and axis == 0:
        raise ValueError("outer='leading' with axis=0: blocks along axis 0 would mix its scales; use another axis")
    dims = {"tensor": range(amax.ndim), "row": (amax.ndim - 2,), "leading": range(1, amax.ndim)}[outer]
    scope = amax.new_zeros([1 if d in dims else n for d, n in enumerate(amax.shape)])
    if amax.numel():
        scope = amax.amax(tuple(dims), keepdim=True)
    return outer_scale(scope, outer_max)


def outer_of_runs(
    amax: Tensor, run: int, partition: Partition, block: int, outer_max: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """One outer scale per run of `run` values along the axis (TetraJet-v2, arXiv 2510.27527), runs within groups.

    Args:
        amax: of each block, (..., blocks, 1). partition: of the axis into blocks of `block`.

    Returns:
        (outer, s_enc) (..., runs, 1), and the run of each block, int64 (blocks,).

    Raises:
        ValueError: a run that is no multiple of the block; a rule without outer scales.
    """
    if outer_max is None or run < block or run % block:
        raise ValueError(f"outer={run}: use a multiple of the block {block}, with a rule that sets outer scales")
    per_run = run // block
    runs = Partition.of(partition.length, run, partition.groups)
    ends = (0, partition.length) if partition.groups is None else partition.groups
    counts = [-(-(end - start) // run) for start, end in pairwise(ends)]
    first = torch.tensor(list(accumulate(counts, initial=0)))
    run_of_block = first[partition.group_of] + partition.index_in_group // per_run
    slots = run_of_block * per_run + partition.index_in_group % per_run
    padded = amax.new_zeros(*amax.shape[:-2], runs.blocks * per_run)
    padded = padded.index_copy(-1, slots.to(amax.device), amax.squeeze(-1))
    outer, s_enc = outer_scale(padded.unflatten(-1, (runs.blocks, per_run)).amax(-1, keepdim=True), outer_max)
    return outer, s_enc, run_of_block.to(amax.device)


def round_outer(outer: Tensor) -> tuple[Tensor, Tensor]:
    """Outer scale rounded up to a power of two, and its reciprocal, both exact."""
    fraction, exponent = torch.frexp(outer)
    outer = torch.ldexp(torch.ones_like(outer), exponent - (fraction == 0.5).to(exponent.dtype))
    return outer, _reciprocal(outer)


def _reciprocal(outer: Tensor) -> Tensor:
    return (torch.ones_like(outer) / outer).clamp(max=FLT_MAX)  # 1 / 2^-128 is beyond float32
