"""`quantize` makes block tensors, `requantize` makes another from the values of one, never from the originals.

Blocks of the axis (and with tiles, lines of its neighbour) are folded into the last axis of a (..., blocks, B) view, so
that every rule sees one row per scale. Codes, scales and outers are equal on every device.

NaN and Inf: a block that holds one gets a NaN scale and codes of +max; outer scales follow the other blocks. Zero
rows, empty groups, all-zero blocks and tensors are ordinary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .arguments import axis_of, require_kind, shown
from .blocks import BlockFormat, BlockTensor, made
from .codes import as_tensor, chunks, require_float, step_by_step
from .folding import Folding
from .outer import FLT_MAX, outer_of_runs, outer_of_scope, round_outer
from .partition import check_groups, random_fields
from .philox import Random
from .rounding import Rounding, pattern
from .scales import RULES, Block, Rule
from .subnormals import kept


@kept
def quantize(
    x: Any,
    fmt: BlockFormat,
    axis: int = -1,
    outer: str | int | Tensor | None = "format",
    outer_rounding: str | None = None,
    groups: Any = None,
    rule: str | Rule | None = None,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    random: Random | None = None,
    check_finite: bool = False,
) -> BlockTensor:
    """Quantize `x` in blocks along `axis`. Not differentiable: the result does not follow the gradient of `x`.

    Args:
        x: floating point, torch (any device) or numpy, at least one axis; rounded to float32 first if it is float64.
        fmt: the block format.
        outer: scope of the FP32 outer scale: None, "tensor", "row" (one per index of the other axes: one per token),
            "leading" (one per index of axis 0: one per expert), an int, a multiple of the block (one per so many values
            along `axis`), a float32 tensor with the axes of `x`, each 1 or the same and 1 along `axis`, or "format":
            the format's own ("tensor" for NVFP4, None for MX). A tiled format takes "tensor", "leading", or a tensor
            with 1 on the last two axes.
        outer_rounding: None, or "pow2": outer rounded up to a power of two.
        groups: offsets of expert groups along `axis`, non-decreasing, first 0, last the length; blocks never
            straddle them.
        rule: a name in `scales.RULES` or a Rule; None: the format's.
        rounding: of the elements. random: words for STOCHASTIC, and for rules that draw scales.
        check_finite: raise on NaN and Inf instead of giving the block a NaN scale.

    Returns:
        BlockTensor of torch tensors on the device of `x`.

    Raises:
        TypeError: `x` is not floating point; another kind of argument. ValueError: axis, groups, outer, rule or random
        words that do not fit; non-finite values under check_finite.
    """
    require_kind(fmt, BlockFormat, "fmt", "pass a block format such as nm.NVFP4")
    chosen = fmt.rule if rule is None else _rule(rule, fmt)
    tensor, axis, offsets = _checked(x, axis, groups, rounding, random, chosen, check_finite)
    scope = fmt.outer if isinstance(outer, str) and outer == "format" else outer
    folding = Folding.of(tensor.shape, axis, fmt.block, fmt.tile, offsets)
    partition = folding.blocks
    blocks = folding.fold(tensor)
    largest = _largest(blocks)
    finite = largest < pattern(float("inf"), torch.float32)
    amax = torch.where(finite, largest, 0).view(torch.float32)
    factor, s_enc, kept = _outer_scales(
        tensor, amax, axis, scope, chosen.outer_max(fmt.element), folding, outer_rounding
    )
    if chosen.gain is not None:
        if scope is not None:
            raise ValueError(f"outer={shown(scope)} with rule={chosen.name!r}: its outer scale is a constant; use None")
        kept = torch.full([1] * tensor.ndim, chosen.gain, dtype=torch.float32, device=tensor.device)
    bits = None
    if random is not None:
        grouped = offsets is not None
        bits = random_fields(random, tensor.shape, axis, grouped, partition, fmt.block, fmt.element.bits, blocks.device)
        bits = folding.gather(bits)
    scales, codes = _apply(chosen, Block(blocks, amax, factor, s_enc, fmt.element, rounding, bits), finite, fmt)
    run = scope if isinstance(scope, int) else None
    return made(folding.unfold(codes), folding.scales(scales), kept, fmt, chosen.name, axis, offsets, run)


def _largest(blocks: Tensor) -> Tensor:
    """The bits of the largest magnitude of each block, int32 (..., n, 1): as integers NaN exceeds infinity, and
    infinity every number."""

    def run(x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and x.device.type == "cpu":  # its compiler has vectors for floats' maxima only
            return x.abs().amax(-1, keepdim=True).view(torch.int32) & 0x7FFFFFFF
        return (x.view(torch.int32) & 0x7FFFFFFF).amax(-1, keepdim=True)

    rows = blocks.shape[:-1]
    parts = chunks(rows.numel(), blocks.shape[-1], blocks.device)
    if len(parts) <= 1:
        return run(blocks)
    flat = blocks.reshape(-1, blocks.shape[-1])
    return torch.cat([run(flat[part]) for part in parts]).view(*rows, 1)


def _apply(rule: Rule, block: Block, finite: Tensor, fmt: BlockFormat) -> tuple[Tensor, Tensor]:
    """Scales and codes by `rule`, on a CPU in pieces that stay in its cache; NaN scales where a block is not finite."""
    poison = float("nan") if fmt.scale is None else fmt.scale.nan_code
    assert poison is not None  # every scale format has a NaN

    def run(block: Block, finite: Tensor) -> tuple[Tensor, Tensor]:
        scales, codes = rule.apply(block)
        if not (step_by_step(finite.device) and bool(finite.all())):
            scales = torch.where(finite, scales, poison)
            codes = torch.where(finite, codes, fmt.element.max_code)  # a NaN has no defined sign
        return scales.to(torch.float32 if fmt.scale is None else torch.uint8), codes.to(torch.uint8)

    shape, width = block.amax.shape, block.x.shape[-1]
    parts = chunks(shape.numel(), width, block.x.device)
    if len(parts) <= 1:
        return run(block, finite)

    flat, flat_finite = block.rows(), finite.reshape(-1, 1)
    done = [run(flat[part], flat_finite[part]) for part in parts]
    scales, codes = (torch.cat(pieces) for pieces in zip(*done, strict=True))
    return scales.view(shape), codes.view(block.x.shape)


def _outer_scales(
    x: Tensor,
    amax: Tensor,
    axis: int,
    scope: str | int | Tensor | None,
    outer_max: float | None,
    folding: Folding,
    how: str | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(outer of each block, its encode scale, the outer as it is kept), see `outer`."""
    require_kind(how, (str, type(None)), "outer_rounding", "use None or 'pow2'")
    kinds = (str, int, Tensor, type(None))
    require_kind(
        scope, kinds, "outer", "use None, 'tensor', 'row', 'leading', a multiple of the block or a torch tensor"
    )
    if how not in (None, "pow2"):
        raise ValueError(f"outer_rounding={how!r}: use None or 'pow2'")
    if scope is None:
        return None, None, None
    if folding.lines is not None:
        _require_tile_scope(scope, x)
    if isinstance(scope, int):
        outer, s_enc, run_of_block = outer_of_runs(amax, scope, folding.blocks, folding.block, outer_max)
    else:
        outer, s_enc = outer_of_scope(x.shape, amax, axis, scope, outer_max)
        run_of_block = None
    if how == "pow2":
        outer, s_enc = round_outer(outer)
    kept = folding.scales(outer)
    if run_of_block is not None:
        outer, s_enc = outer.index_select(-2, run_of_block), s_enc.index_select(-2, run_of_block)
    return outer, s_enc, kept


def _require_tile_scope(scope: str | int | Tensor, x: Tensor) -> None:
    """Raises ValueError where lines of one tile would have different outer scales."""
    matrix = x.ndim == 2  # its leading axis is one that tiles reach along
    remedy = f"use 'tensor', {'' if matrix else repr('leading') + ', '}or a tensor with 1 on the last two axes"
    if isinstance(scope, Tensor):
        if scope.ndim < 2 or tuple(scope.shape[-2:]) != (1, 1):
            raise ValueError(f"outer of shape {tuple(scope.shape)}: a tile has one scale; {remedy}")
    elif scope not in ("tensor", "leading") or (matrix and scope == "leading"):
        raise ValueError(f"outer={scope!r}: a tile has one scale for lines with different ones; {remedy}")


def dequantize(q: BlockTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`q.dequantize(dtype)`. Raises: TypeError if `q` is no BlockTensor."""
    require_kind(q, BlockTensor, "q", "pass what nm.quantize returns")
    return q.dequantize(dtype)


@kept
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
        TypeError: `q` is no BlockTensor; as `quantize`. ValueError: an unknown `outer`; "keep" with an outer scale that
        varies along `axis`; as `quantize`.
    """
    require_kind(q, BlockTensor, "q", "pass what nm.quantize returns; plain tensors go to nm.quantize")
    require_kind(outer, str, "outer", "use 'keep', 'multiply' or 'drop'")
    axis = axis_of(axis, q.shape, "q")
    if outer not in ("keep", "multiply", "drop"):
        raise ValueError(f"outer={outer!r}: use 'keep', 'multiply' or 'drop'")
    if outer == "keep" and q.outer is not None and (q.outer.shape[axis] != 1 or q.outer_block is not None):
        raise ValueError(
            f"outer='keep': the outer scale of shape {tuple(q.outer.shape)} varies along axis {axis}, the new "
            "contraction; use 'multiply', or 'drop' and fold it into the other operand"
        )
    values = q.dequantize() if outer == "multiply" else q.values()
    new = quantize(values, fmt, axis, outer=None, groups=groups, rounding=rounding, random=random)
    if outer != "keep" or q.outer is None:
        return new
    return new.derived(outer=q.outer if new.outer is None else q.outer * new.outer)


def _checked(
    x: Any, axis: int, groups: Any, rounding: Rounding, random: Random | None, rule: Rule, check_finite: bool
) -> tuple[Tensor, int, tuple[int, ...] | None]:
    """`x` in float32, its axis from the front, and the group offsets, checked."""
    require_kind(rounding, Rounding, "rounding", "use a member of nm.Rounding")
    require_kind(random, (Random, type(None)), "random", "pass nm.Random(key, counter)")
    tensor, _ = as_tensor(x, "x")
    require_float(tensor, "x")
    tensor, axis = tensor.detach(), axis_of(axis, tensor.shape)
    if (rounding is Rounding.STOCHASTIC or rule.draws) != (random is not None):
        raise ValueError(
            f"rounding={rounding} by rule {rule.name} with random={random}: STOCHASTIC needs random=nm.Random(...), "
            "and so does a rule that draws scales, others None"
        )
    if tensor.dtype == torch.float64:  # finite numbers beyond float32 stay finite
        tensor = torch.where(torch.isinf(tensor), tensor, tensor.clamp(-FLT_MAX, FLT_MAX))
    tensor = tensor.to(torch.float32)
    require_kind(check_finite, bool, "check_finite", "use True or False")
    if check_finite:
        _require_finite(tensor)
    return tensor, axis, check_groups(groups, tensor.shape[axis])


def _rule(rule: str | Rule, fmt: BlockFormat) -> Rule:
    require_kind(rule, (Rule, str), "rule", f"use one of {', '.join(RULES)}, or a Rule")
    if isinstance(rule, str) and rule not in RULES:
        raise ValueError(f"rule={rule!r}: known rules are {', '.join(RULES)}")
    chosen = RULES[rule] if isinstance(rule, str) else rule
    if not fmt.takes(chosen):
        fitting = ", ".join(name for name, other in RULES.items() if fmt.takes(other))
        raise ValueError(f"rule={chosen.name!r} makes no scales of {fmt.name}: use one of {fitting}")
    return chosen


def _require_finite(x: Tensor) -> None:
    bad = (~torch.isfinite(x)).nonzero()
    if len(bad):
        raise ValueError(f"x holds {len(bad)} non-finite values, the first at index {tuple(bad[0].tolist())}")
