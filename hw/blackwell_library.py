"""The seam for Blackwell with the library's products: `hw.ops`, but for products of block-scaled operands.

    quantizers and all else    the Triton kernels of `hw.ops`
    NVFP4, MXFP8 products      torch's scaled_mm, FP32 sums, one call for each expert (`scaled_mm`)
    BF16 products              the library's BF16 product with FP32 sums (`grouped`)
    outer scales               fl(row's * expert's) multiplies the FP32 sums, as everywhere

Block scales enter the tensor core with the codes, so sums round where the hardware rounds them: they differ from the
emulation's within `numerics.matmul_bound`, and everything but sums has its bits. What torch does not take is refused in
words, never computed otherwise: other formats, two different ones, outer scales that vary along the contraction.
An accumulator other than "library" is a model of sums, as in `hw.ops`. It has never run: no such GPU was at hand.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from numerics import BlockTensor
from numerics.arguments import require_kind
from numerics.ops_arguments import require_experts
from numerics.partition import check_groups

from . import grouped, ops, scaled_mm
from .device import library_absent
from .ops import Cast as Cast
from .ops import Operand as Operand
from .ops import Recast as Recast
from .ops import Wire as Wire
from .ops import aggregate as aggregate
from .ops import glu_backward as glu_backward
from .ops import grad_to_wire as grad_to_wire
from .ops import quantize_tokens as quantize_tokens
from .ops import requantize_transpose as requantize_transpose
from .ops import router_gradient as router_gradient
from .ops import row_scale as row_scale


def gate_up_glu(
    x: Operand, w13: Operand, groups: Any, hidden: Cast, accumulator: str = "library"
) -> tuple[Operand, Tensor]:
    """See `numerics.ops.gate_up_glu`."""
    if accumulator != "library":
        return ops.gate_up_glu(x, w13, groups, hidden, accumulator)
    require_experts(groups, x=x, w13=w13)
    if w13.shape[1] % 2:
        raise ValueError(f"w13 has shape {tuple(w13.shape)}: axis 1 stacks gate above up and must be even")
    return ops.glu_of_sums(*_sums(x, w13, groups), hidden)


def down_to_wire(h: Operand, w2: Operand, groups: Any, wire: Wire, accumulator: str = "library") -> Operand:
    """See `numerics.ops.down_to_wire`."""
    if accumulator != "library":
        return ops.down_to_wire(h, w2, groups, wire, accumulator)
    require_experts(groups, h=h, w2=w2)
    require_kind(wire, Wire, "wire", "pass a Wire")
    return ops.wire_of_sums(*_sums(h, w2, groups), wire)


def grad_products(
    g: Operand, g_tokens: Operand, w: Operand, x: Operand, groups: Any, accumulator: str = "library"
) -> tuple[Tensor, Tensor]:
    """See `numerics.ops.grad_products`."""
    if accumulator != "library":
        return ops.grad_products(g, g_tokens, w, x, groups, accumulator)
    require_experts(groups, g=g, g_tokens=g_tokens, w=w, x=x)
    dx, factors = _sums(g, w.mT, groups)  # [R, N] @ [E, N, K] -> [R, K]
    if factors is not None:
        dx.mul_(factors[:, None])
    along = g_tokens.groups if isinstance(g_tokens, BlockTensor) and g_tokens.groups is not None else groups
    offsets = check_groups(along, g_tokens.shape[0])
    assert offsets is not None
    if g_tokens.shape[0] != x.shape[0]:
        raise ValueError(
            f"g_tokens has shape {tuple(g_tokens.shape)}, x {tuple(x.shape)}: pass (S, N) and (S, K), the same rows"
        )
    if isinstance(g_tokens, Tensor) and isinstance(x, Tensor):
        return dx, grouped.columns_by_experts(*grouped.pair(g_tokens, x), offsets)
    first, second = _both_scaled(g_tokens.mT, x.mT)
    scale = _tensor_factor(first, second)
    dw = scaled_mm.columns_by_experts(first, second, offsets)  # [N, R_e] @ [R_e, K] -> [E, N, K]
    return dx, dw if scale is None else dw.mul_(scale)


def _sums(x: Operand, w: Operand, groups: Any) -> tuple[Tensor, Tensor | None]:
    """FP32 sums of rows (R, K) and their experts' matrices (E, N, K), and factors of rows that are still to be
    applied."""
    offsets = check_groups(groups, x.shape[0])
    assert offsets is not None
    if x.shape[1] != w.shape[2] or len(offsets) != w.shape[0] + 1:
        raise ValueError(
            f"rows have shape {tuple(x.shape)}, matrices {tuple(w.shape)}, contraction last, groups {len(offsets)} "
            "offsets: pass (R, K), (E, N, K) and E + 1"
        )
    if isinstance(x, Tensor) and isinstance(w, Tensor):
        return grouped.rows_by_experts(*grouped.pair(x, w), offsets), None
    first, second = _both_scaled(x, w)
    if second.outer is not None and second.outer.shape[-2:] != (1, 1):
        raise scaled_mm.refuse("outer scales of a weight that vary within an expert")
    return scaled_mm.rows_by_experts(first, second, offsets), grouped.row_factors(first, second, offsets)


def _both_scaled(a: Operand, b: Operand) -> tuple[BlockTensor, BlockTensor]:
    """Both operands, where scaled_mm takes them and can run. Raises ValueError in words."""
    if not isinstance(a, BlockTensor) or not isinstance(b, BlockTensor):
        names = [q.fmt.name if isinstance(q, BlockTensor) else str(q.dtype).removeprefix("torch.") for q in (a, b)]
        raise scaled_mm.refuse(" by ".join(names))
    scaled_mm.require_operands(a, b)
    reason = library_absent(a.scales.device)
    if reason is not None:
        raise ValueError(f"{reason}; or use --ops triton or emulated")
    return a, b


def _tensor_factor(a: BlockTensor, b: BlockTensor) -> Tensor | None:
    """fl(outer of a * outer of b), or what there is of them: one number each."""
    outers = [q.outer for q in (a, b) if q.outer is not None]
    if any(outer.numel() != 1 for outer in outers):
        raise scaled_mm.refuse("outer scales that vary over a weight gradient")
    factors = [outer.view(()) for outer in outers]
    return None if not factors else factors[0] if len(factors) == 1 else factors[0] * factors[1]
