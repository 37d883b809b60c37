"""The seam as Triton kernels: the functions of `numerics.ops` with their bits, on a GPU or in the interpreter.

    quantizers     one launch each, from whatever the rows come about as (`sources`) to packed codes (`packed`)
    products       operands decoded once to BF16, exact, then the library's product with FP32 sums; on a Blackwell of
                   codes as they are (`grouped`); outer scales, SwiGLU, Hadamard and quantizer follow in one launch
    accumulator    "library" is that product; every other name is a model of sums, which `numerics.matmul` computes from
                   the same codes

Where a recipe says BF16, operands are plain tensors and torch's own operations make them. What no kernel can do is
refused (`casts`), never computed otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from numerics import BlockTensor, Random, Rounding, matmul
from numerics import ops as emulated
from numerics.arguments import require_kind, require_same_shape, require_tensor
from numerics.codes import require_float
from numerics.ops import Cast as Cast
from numerics.ops import Operand as Operand
from numerics.ops import Recast as Recast
from numerics.ops import Wire as Wire
from numerics.ops_arguments import draws, require_experts, require_operand, require_rows
from numerics.partition import check_groups
from numerics.subnormals import kept

from .casts import along_features, along_tokens, plain, refuse, require_blocks, require_known
from .grouped import decoded, per_row, row_factors, sums_of_columns, sums_of_rows
from .indices import require_index
from .kernel_aggregate import aggregate as sum_rows
from .kernel_glu_backward import glu_backward as gradient_of_glu
from .kernel_router import router_gradient as gradient_of_weights
from .kernel_rows import rows as rows_in_bf16
from .packed import packed_bytes
from .sources import Source


@kept
def quantize_tokens(
    x: Tensor,
    cast: Cast,
    random: Random | None = None,
    groups: Any = None,
    axis: int = -1,
    signs: Tensor | None = None,
) -> Operand:
    """See `numerics.ops.quantize_tokens`."""
    require_tensor(x, "x")
    require_float(x, "x")
    require_kind(cast, Cast, "cast", "pass a Cast")
    _require_axis(x, axis)
    if cast.fmt is None:
        if signs is not None:
            raise refuse("a Hadamard transform of BF16 rows")
        return x.to(torch.bfloat16)
    require_known(cast.fmt)
    random = _words(cast.fmt, cast.rounding, random)
    x = plain(x)
    if axis % x.ndim == x.ndim - 1:
        if groups is not None:
            raise refuse("groups along features")
        lead = x.shape[:-1]
        weight = x.ndim == 3 and x.is_cuda  # multiplied more than once: its BF16 values are kept
        return along_features(Source(x.view(lead.numel(), x.shape[-1])), cast, tuple(lead), random, signs, weight)
    return along_tokens(x, cast, groups, random, signs)


def _require_axis(x: Tensor, axis: int) -> None:
    if x.ndim < 2 or axis % x.ndim not in (x.ndim - 1, x.ndim - 2) or not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis={axis} of x, of shape {tuple(x.shape)}: use -1 or -2 of a matrix, or a batch of them")


def _words(fmt: Any, rounding: Any, random: Random | None) -> Random | None:
    if rounding not in (Rounding.NEAREST_EVEN, Rounding.STOCHASTIC):
        raise refuse(f"rounding={rounding}")
    if not draws(fmt, rounding):
        return None
    if random is None:
        raise ValueError(f"rounding={rounding} with random=None: STOCHASTIC needs random=nm.Random(...)")
    return random


def _sums(x: Operand, w: Operand, groups: Any, accumulator: str, rounded: bool = False) -> tuple[Tensor, Tensor | None]:
    """Product of rows and their experts' matrices, and factors of its rows that are still to be applied; float32, or
    where the caller will round it to BF16 and no factor comes before, `rounded` by the library already."""
    if accumulator != "library":
        return matmul(x, w, accumulator, groups=groups), None
    offsets = check_groups(groups, x.shape[0])
    assert offsets is not None
    if x.shape[1] != w.shape[2] or len(offsets) != w.shape[0] + 1:
        raise ValueError(
            f"rows have shape {tuple(x.shape)}, matrices {tuple(w.shape)}, groups {len(offsets)} offsets: pass (R, K), "
            "(E, N, K) and E + 1"
        )
    for name, q in (("rows", x), ("matrices", w)):
        if isinstance(q, BlockTensor) and q.axis != len(q.shape) - 1:
            raise ValueError(f"{name} have their blocks along axis {q.axis}: the contraction is the last one")
    plain_sums = all(isinstance(q, Tensor) or q.outer is None for q in (x, w))
    return sums_of_rows(x, w, offsets, rounded=rounded and plain_sums), row_factors(x, w, offsets)


@kept
def gate_up_glu(
    x: Operand, w13: Operand, groups: Any, hidden: Cast, accumulator: str = "library"
) -> tuple[Operand, Tensor]:
    """See `numerics.ops.gate_up_glu`."""
    require_experts(groups, x=x, w13=w13)
    if w13.shape[1] % 2:
        raise ValueError(f"w13 has shape {tuple(w13.shape)}: axis 1 stacks gate above up and must be even")
    return glu_of_sums(*_sums(x, w13, groups, accumulator, rounded=True), hidden)


def glu_of_sums(sums: Tensor, factors: Tensor | None, hidden: Cast) -> tuple[Operand, Tensor]:
    """h and gate_up of `gate_up_glu` from the product's sums, FP32 or already rounded, and the factors of its rows."""
    done = sums.dtype == torch.bfloat16
    gate_up = sums if done else torch.empty_like(sums, dtype=torch.bfloat16)
    source = Source(sums, None, factors, True, None if done else gate_up)
    if hidden.fmt is None:
        return rows_in_bf16(source), gate_up
    require_known(hidden.fmt)
    _words(hidden.fmt, hidden.rounding, None)
    return along_features(source, hidden, (len(sums),), values=sums.is_cuda), gate_up


@kept
def down_to_wire(h: Operand, w2: Operand, groups: Any, wire: Wire, accumulator: str = "library") -> Operand:
    """See `numerics.ops.down_to_wire`."""
    require_experts(groups, h=h, w2=w2)
    require_kind(wire, Wire, "wire", "pass a Wire")
    return wire_of_sums(*_sums(h, w2, groups, accumulator, rounded=wire.fmt is None), wire)


def wire_of_sums(sums: Tensor, factors: Tensor | None, wire: Wire) -> Operand:
    """The payload of `down_to_wire` from the product's sums, FP32 or, for a BF16 wire, already rounded, and the factors
    of its rows."""
    source = Source(sums, None, factors)
    if wire.fmt is None:
        if wire.signs is not None:
            raise refuse("a Hadamard transform of BF16 rows")
        return sums if sums.dtype == torch.bfloat16 else rows_in_bf16(source)
    return along_features(source, Cast(wire.fmt), (len(sums),), signs=wire.signs)


@kept
def aggregate(payload: Operand, slots: Tensor, weights: Tensor | None, wire: Wire) -> tuple[Tensor, Tensor]:
    """See `numerics.ops.aggregate`."""
    require_operand(payload, "payload", 2)
    require_kind(wire, Wire, "wire", "pass a Wire")
    require_index(slots, "slots", 2, payload.shape[0])
    if weights is not None:
        require_tensor(weights, "weights")
        require_float(weights, "weights")
        require_same_shape({"slots": slots, "weights": weights})
        weights = weights.to(torch.float32)
    signs = wire.signs
    if signs is not None and payload.shape[1] % len(signs):
        raise ValueError(f"payload has rows of {payload.shape[1]} values: signs of {len(signs)} must divide them")
    if isinstance(payload, Tensor):
        payload = plain(payload)
        return sum_rows(payload, slots, weights, signs), payload.to(torch.float32)
    rows = decoded(payload, outer=None if payload.outer is None else per_row(payload))[0]
    if payload.fmt.element.name == "E2M1" or payload.outer is not None or payload.axis != 1:
        return sum_rows(rows, slots, weights, signs), rows
    out = sum_rows(packed_bytes(payload), slots, weights, signs, payload.scales, payload.fmt.element)
    return out, rows


@kept
def router_gradient(g: Tensor, decoded: Tensor, slots: Tensor, wire: Wire) -> Tensor:
    """See `numerics.ops.router_gradient`."""
    for name, t in (("g", g), ("decoded", decoded)):
        require_tensor(t, name)
        require_operand(t, name, 2)
    require_kind(wire, Wire, "wire", "pass a Wire")
    require_index(slots, "slots", 2, len(decoded))
    if g.shape != (len(slots), decoded.shape[1]):
        raise ValueError(f"g has shape {tuple(g.shape)}: pass one row per token, {(len(slots), decoded.shape[1])}")
    return gradient_of_weights(plain(g), plain(decoded), slots, wire.signs)


@kept
def grad_to_wire(g: Tensor, tokens: Tensor, row_weights: Tensor, cast: Cast, random: Random | None = None) -> Operand:
    """See `numerics.ops.grad_to_wire`."""
    require_tensor(g, "g")
    require_operand(g, "g", 2)
    require_index(tokens, "tokens", 1, len(g))
    require_rows(row_weights, "row_weights", len(tokens))
    require_kind(cast, Cast, "cast", "pass a Cast")
    source = Source(plain(g), tokens.contiguous(), row_weights.to(torch.float32).flatten().contiguous())
    if cast.fmt is None:
        return rows_in_bf16(source)
    return along_features(source, cast, (len(tokens),), _words(cast.fmt, cast.rounding, random))


def row_scale(q: Operand, recast: Recast) -> Tensor | None:
    """See `numerics.ops.row_scale`."""
    return emulated.row_scale(q, recast)


@kept
def requantize_transpose(
    q: Operand,
    recast: Recast,
    groups: Any = None,
    random: Random | None = None,
    rows: Tensor | None = None,
    signs: Tensor | None = None,
) -> Operand:
    """See `numerics.ops.requantize_transpose`."""
    require_operand(q, "q")
    require_kind(recast, Recast, "recast", "pass a Recast")
    if rows is not None:
        require_operand(q, "q", 2)
        require_rows(rows, "rows", q.shape[0])
    factor = None if rows is None else rows.to(torch.float32).flatten().contiguous()
    random = _words(recast.fmt, recast.rounding, random)
    cast = Cast(recast.fmt, recast.scope, recast.rounding)
    require_known(recast.fmt)
    if isinstance(q, Tensor):
        x = plain(q)
        if recast.fmt is None:
            return Source(x, None, factor).tensor().to(torch.bfloat16)
        return along_tokens(x, cast, groups, random, signs, factor=factor)
    own = recast.scope is not None or rows is not None or signs is not None
    kept = None
    if recast.fmt is not None and not own and recast.outer == "keep":
        kept = q.outer
        if kept is not None and (kept.shape[-2] != 1 or q.outer_block is not None):
            raise ValueError(
                f"outer='keep': the outer scale of shape {tuple(kept.shape)} varies along the rows, the new "
                "contraction; use 'multiply', or 'gradient'"
            )
    dropped = not own and recast.fmt is not None and recast.outer != "multiply"
    outer = None if dropped or q.outer is None else per_row(q)
    made = _requantized(q, cast, groups, random, signs, outer, factor)
    return made if kept is None or isinstance(made, Tensor) else made.derived(outer=kept)


def _requantized(
    q: BlockTensor, cast: Cast, groups: Any, random: Random | None, signs: Any, outer: Any, factor: Any
) -> Operand:
    """Codes to codes in one launch where there is a kernel for both formats, else by way of their FP32 values."""
    fmt, width = q.fmt, q.shape[-1]
    require_blocks(q)
    fast = fmt.name in ("NVFP4", "NVFP4_46", "MXFP8") and width % fmt.block == 0 and q.axis == len(q.shape) - 1
    if fast and cast.fmt is not None and cast.fmt.name == "MXFP8" and signs is None and len(q.shape) <= 3:
        scales = q.scales.reshape(q.shape[:-1].numel(), q.scales.shape[-1]).contiguous()
        return along_tokens(packed_bytes(q), cast, groups, random, None, scales, outer, factor)
    if cast.fmt is None:
        return decoded(q, True, outer, factor)[0]
    return along_tokens(decoded(q, False, outer, factor)[0], cast, groups, random, signs)


@kept
def grad_products(
    g: Operand, g_tokens: Operand, w: Operand, x: Operand, groups: Any, accumulator: str = "library"
) -> tuple[Tensor, Tensor]:
    """See `numerics.ops.grad_products`."""
    require_experts(groups, g=g, g_tokens=g_tokens, w=w, x=x)
    if accumulator != "library":
        return emulated.grad_products(g, g_tokens, w, x, groups, accumulator)
    offsets = check_groups(groups, g.shape[0])
    along = g_tokens.groups if isinstance(g_tokens, BlockTensor) and g_tokens.groups is not None else offsets
    assert offsets is not None and along is not None
    if (g.shape[1], len(offsets)) != (w.shape[1], w.shape[0] + 1) or g_tokens.shape[0] != x.shape[0]:
        raise ValueError(
            f"g has shape {tuple(g.shape)}, w {tuple(w.shape)}, g_tokens {tuple(g_tokens.shape)}, x {tuple(x.shape)}, "
            f"groups {len(offsets)} offsets: pass (R, N), (E, N, K), (S, N), (S, K) and E + 1"
        )
    dx = sums_of_rows(g, w, offsets, axis=1)
    factors = row_factors(g, w, offsets)
    if factors is not None:
        dx.mul_(factors[:, None])
    dw = sums_of_columns(g_tokens, x, along)
    scale = _tensor_factor(g_tokens, x)
    return dx, dw if scale is None else dw.mul_(scale)


def _tensor_factor(a: Operand, b: Operand) -> Tensor | None:
    """Product of the tensors' outer scales, or what there is of them."""
    outers = [q.outer for q in (a, b) if isinstance(q, BlockTensor) and q.outer is not None]
    if any(outer.numel() != 1 for outer in outers):
        raise refuse("products of outer scales that vary along the contraction")
    factors = [outer.view(1, 1, 1) for outer in outers]
    return None if not factors else factors[0] if len(factors) == 1 else factors[0] * factors[1]


@kept
def glu_backward(dh: Tensor, gate_up: Tensor) -> Tensor:
    """See `numerics.ops.glu_backward`."""
    require_tensor(dh, "dh", (torch.float32,))
    require_tensor(gate_up, "gate_up", (torch.bfloat16,))
    if dh.ndim == 0 or gate_up.shape != (*dh.shape[:-1], 2 * dh.shape[-1]):
        raise ValueError(f"gate_up has shape {tuple(gate_up.shape)} and dh {tuple(dh.shape)}: pass (R, 2F) and (R, F)")
    rows = dh.shape[:-1].numel()
    flat = gradient_of_glu(dh.reshape(rows, dh.shape[-1]), gate_up.reshape(rows, gate_up.shape[-1]))
    return flat.view(gate_up.shape)
