"""The seam: the operations of the expert path, emulated. Their docstrings are the contract that kernels obey.

    forward    quantize_tokens -> (dispatch) -> gate_up_glu -> down_to_wire -> (combine) -> aggregate
    backward   grad_to_wire -> requantize_transpose, grad_products -> glu_backward -> grad_products -> aggregate

Shapes: T tokens, K experts per token, R = T K rows sorted by expert then token, E experts, D model width, F expert
width. `groups` are the E + 1 offsets of the experts' rows. w13 (E, 2F, D) stacks gate above up; w2 is (E, D, F).

An operand is a BlockTensor or, where a recipe says BF16, a bfloat16 tensor. Tensors may be views of any strides and
offsets, expanded and overlapping ones too, and have no rows. The same arguments give the same bits at every call, under
any settings of torch; arguments and earlier results stay as they are. Every product decodes its operands from stored
codes. Arguments of another kind or dtype are a TypeError, shapes that do not fit a ValueError, everywhere here.
Product sums are FP32 under `accumulator`, any name of `accumulators` that takes the operands, then times the outer
scales. "Once" below means one rounding, nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .arguments import require_kind, require_same_shape, require_tensor
from .blocks import BlockFormat, BlockTensor
from .codes import require_float
from .hadamard import SIZES, hadamard, hadamard_inverse
from .matmul import matmul
from .ops_arguments import draws, require_cast, require_experts, require_index, require_operand, require_rows
from .philox import Random
from .quantizer import quantize, requantize
from .rounding import Rounding
from .subnormals import kept
from .swiglu import swiglu, swiglu_backward

Operand = BlockTensor | Tensor


@dataclass(frozen=True)
class Cast:
    """How a tensor becomes an operand: format (None: BF16), outer scope, element rounding; outer_rounding None or
    "pow2", as in `nm.quantize`."""

    fmt: BlockFormat | None
    outer: str | int | None = None
    rounding: Rounding = Rounding.NEAREST_EVEN
    outer_rounding: str | None = None

    def __post_init__(self) -> None:
        require_cast(self.fmt, self.rounding)
        if self.outer_rounding not in (None, "pow2"):
            raise ValueError(f"outer_rounding={self.outer_rounding!r} of a cast: use None or 'pow2'")
        require_kind(self.outer, (str, int, type(None)), "outer", "use a scope such as 'row', or None")


@dataclass(frozen=True)
class Recast:
    """How a saved operand becomes a backward operand: format (None: its values in BF16), what happens to its outer
    scale, element rounding. outer: "keep" it outside, "multiply" it into the values, or leave it to the "gradient",
    whose rows it multiplies instead (a token's scale in wgrad). scope: of an outer scale of the result's own, None or
    as in `Cast`; it takes outer="multiply"."""

    fmt: BlockFormat | None
    outer: str = "keep"
    rounding: Rounding = Rounding.NEAREST_EVEN
    scope: str | int | None = None

    def __post_init__(self) -> None:
        require_cast(self.fmt, self.rounding)
        require_kind(self.outer, str, "outer", "use 'keep', 'multiply' or 'gradient'")
        if self.outer not in ("keep", "multiply", "gradient"):
            raise ValueError(f"outer={self.outer!r} of a recast: use 'keep', 'multiply' or 'gradient'")
        if self.scope is not None and self.outer != "multiply":
            raise ValueError(f"outer={self.outer!r} of a recast with scope={self.scope!r}: use 'multiply'")


@dataclass(frozen=True, eq=False)
class Wire:
    """How expert outputs travel: format (None: BF16) and the signs (n,) of a block Hadamard of size n (None: none)."""

    fmt: BlockFormat | None
    signs: Tensor | None = None

    def __post_init__(self) -> None:
        require_kind(
            self.fmt, (BlockFormat, type(None)), "fmt", "pass a block format such as nm.MXS2F6, or None for BF16"
        )
        if self.signs is not None:
            require_tensor(self.signs, "signs")
            if self.signs.ndim != 1 or len(self.signs) not in SIZES:
                raise ValueError(f"signs has shape {tuple(self.signs.shape)}: pass (n,), n one of {SIZES}")


@kept
def quantize_tokens(
    x: Tensor,
    cast: Cast,
    random: Random | None = None,
    groups: Any = None,
    axis: int = -1,
    signs: Tensor | None = None,
) -> Operand:
    """Quantize rows: the dispatch payload, a weight, or a gradient.

    Args:
        x: (..., rows, features), bfloat16 or float32. axis: -1, features (outer "row": one scale per token), or -2.
        groups: offsets along `axis` when it is the rows'. random: for a stochastic cast, else None.
        signs: (n,) of a block Hadamard along `axis` that comes first, in FP32; with groups each group is filled up
            to whole blocks with zero rows, and the result's own `groups` say where they lie.

    Returns: BlockTensor, or bfloat16 if `cast.fmt` is None. Codes, scales and outers are equal on every device.
    """
    require_tensor(x, "x")
    require_float(x, "x")
    require_kind(cast, Cast, "cast", "pass a Cast")
    if signs is not None and groups is None:
        x = hadamard(x, len(signs), signs, axis)
    elif signs is not None:
        if cast.fmt is None:
            raise ValueError(
                "cast.fmt=None with signs and groups: BF16 rows cannot say where groups lie; pass a format"
            )
        x, groups = hadamard(x, len(signs), signs, axis, groups)
    if cast.fmt is None:
        return x.to(torch.bfloat16)
    random = random if draws(cast.fmt, cast.rounding) else None
    return quantize(x, cast.fmt, axis, cast.outer, cast.outer_rounding, groups, rounding=cast.rounding, random=random)


@kept
def gate_up_glu(
    x: Operand, w13: Operand, groups: Any, hidden: Cast, accumulator: str = "library"
) -> tuple[Operand, Tensor]:
    """Grouped product, SwiGLU, quantize.

    gate_up = bf16(sum_d x[r, d] w13[e, :, d]), rounded once after the outer scales; h = bf16(silu(gate) * up), silu
    correctly rounded to BF16; then h is cast along features.

    Args: x (R, D), w13 (E, 2F, D), both with blocks along D. Returns: h (R, F) and gate_up (R, 2F) bfloat16.
    """
    require_experts(groups, x=x, w13=w13)
    if w13.shape[1] % 2:
        raise ValueError(f"w13 has shape {tuple(w13.shape)}: axis 1 stacks gate above up and must be even")
    gate_up = matmul(x, w13, accumulator, groups=groups).to(torch.bfloat16)  # [R, D] @ [E, D, 2F] -> [R, 2F]
    return quantize_tokens(swiglu(*gate_up.chunk(2, dim=-1)), hidden), gate_up


@kept
def down_to_wire(h: Operand, w2: Operand, groups: Any, wire: Wire, accumulator: str = "library") -> Operand:
    """Grouped product, Hadamard, quantize for the combine.

    The FP32 product (after the outer scales) enters the butterfly directly, then the wire format, nearest; without a
    format it is rounded once to BF16.

    Args: h (R, F), w2 (E, D, F), both with blocks along F. Returns: payload (R, D) with blocks along D.
    """
    require_experts(groups, h=h, w2=w2)
    require_kind(wire, Wire, "wire", "pass a Wire")
    y = matmul(h, w2, accumulator, groups=groups)  # [R, F] @ [E, F, D] -> [R, D]
    if wire.signs is not None:
        y = hadamard(y, len(wire.signs), wire.signs)
    return y.to(torch.bfloat16) if wire.fmt is None else quantize(y, wire.fmt, outer=None)


@kept
def aggregate(payload: Operand, slots: Tensor, weights: Tensor | None, wire: Wire) -> tuple[Tensor, Tensor]:
    """Receive, weight and add the experts' rows of each token, then invert the Hadamard once.

    out[t] = bf16(H^-1 sum_k weights[t, k] * decoded[slots[t, k]]): FP32, product rounded, terms added in the order of
    k, which is the order of experts. With weights None rows are added as they are (gradients of dispatched tokens).

    Args:
        payload: (R, D). slots: int64 (T, K), the row of each token's k-th expert. weights: float32 (T, K) or None.

    Returns:
        out (T, D) bfloat16, and the decoded rows (R, D) float32, still rotated, which the router's gradient needs.
    """
    require_operand(payload, "payload", 2)
    require_kind(wire, Wire, "wire", "pass a Wire")
    require_index(slots, "slots", 2, payload.shape[0])
    if weights is not None:
        require_tensor(weights, "weights")
        require_float(weights, "weights")
        require_same_shape({"slots": slots, "weights": weights})
    decoded = payload.dequantize() if isinstance(payload, BlockTensor) else payload.to(torch.float32)
    total: Tensor | None = None
    for k in range(slots.shape[1]):
        term = decoded.index_select(0, slots[:, k])
        if weights is not None:
            term = term * weights[:, k : k + 1]
        total = term if total is None else total + term
    assert total is not None
    if wire.signs is not None:
        total = hadamard_inverse(total, len(wire.signs), wire.signs)
    return total.to(torch.bfloat16), decoded


@kept
def router_gradient(g: Tensor, decoded: Tensor, slots: Tensor, wire: Wire) -> Tensor:
    """d_weights[t, k] = <H g[t], decoded[slots[t, k]]>, float32 (T, K); its sum has the library's order.

    Args: g (T, D), bfloat16 or float32, the gradient of `aggregate`'s output; decoded (R, D) and slots (T, K) as there.
    """
    for name, t in (("g", g), ("decoded", decoded)):
        require_tensor(t, name)
        require_operand(t, name, 2)
    require_kind(wire, Wire, "wire", "pass a Wire")
    require_index(slots, "slots", 2, len(decoded))
    if g.shape != (len(slots), decoded.shape[1]):
        raise ValueError(f"g has shape {tuple(g.shape)}: pass one row per token, {(len(slots), decoded.shape[1])}")
    g = g.to(torch.float32)
    if wire.signs is not None:
        g = hadamard(g, len(wire.signs), wire.signs)
    return torch.stack([(g * decoded.index_select(0, rows)).sum(-1) for rows in slots.unbind(1)], dim=1)


@kept
def grad_to_wire(g: Tensor, tokens: Tensor, row_weights: Tensor, cast: Cast, random: Random | None = None) -> Operand:
    """The gradient of each expert row as it travels: weight times the token's gradient, FP32, cast along features.

    Args: g (T, D), bfloat16 or float32; tokens int64 (R,), the token of each row; row_weights float32 (R, 1). random:
        for a stochastic cast, else None. Returns: (R, D).
    """
    require_tensor(g, "g")
    require_operand(g, "g", 2)
    require_index(tokens, "tokens", 1, len(g))
    require_rows(row_weights, "row_weights", len(tokens))
    return quantize_tokens(g.to(torch.float32).index_select(0, tokens) * row_weights, cast, random)


def row_scale(q: Operand, recast: Recast) -> Tensor | None:
    """The outer scales (R, 1) that a recast leaves to the gradient's rows, or None."""
    require_operand(q, "q")
    require_kind(recast, Recast, "recast", "pass a Recast")
    if isinstance(q, BlockTensor) and recast.fmt is not None and recast.outer == "gradient":
        return q.outer
    return None


@kept
def requantize_transpose(
    q: Operand,
    recast: Recast,
    groups: Any = None,
    random: Random | None = None,
    rows: Tensor | None = None,
    signs: Tensor | None = None,
) -> Operand:
    """An operand, decoded from its codes, with blocks along the other axis (-2), per expert group.

    Args:
        q: (R, D) with `groups`, or a weight (E, N, K) without. random: for a stochastic recast, else None.
        rows: float32 (R, 1) that multiplies the decoded values first (FP32): what `row_scale` of the other operand
            left to this one; None: nothing.
        signs: of a block Hadamard along axis -2 that comes after that, as in `quantize_tokens`.

    Returns:
        Operand of the shape of `q`, blocks along axis -2; bfloat16 if `recast.fmt` is None, and then `q` itself where
        it is bfloat16 and nothing else is asked for.
    """
    require_operand(q, "q")
    require_kind(recast, Recast, "recast", "pass a Recast")
    if rows is not None:
        require_operand(q, "q", 2)
        require_rows(rows, "rows", q.shape[0])
    random = random if draws(recast.fmt, recast.rounding) else None
    as_it_is = recast.scope is None and rows is None and signs is None
    if isinstance(q, BlockTensor) and recast.fmt is not None and as_it_is:
        outer = "drop" if recast.outer == "gradient" else recast.outer
        return requantize(q, recast.fmt, -2, groups, outer, recast.rounding, random)
    if isinstance(q, Tensor) and q.dtype == torch.bfloat16 and recast.fmt is None and as_it_is:
        return q
    values = q.dequantize() if isinstance(q, BlockTensor) else q.to(torch.float32)
    values = values if rows is None else values * rows
    return quantize_tokens(values, Cast(recast.fmt, recast.scope, recast.rounding), random, groups, -2, signs)


@kept
def grad_products(
    g: Operand, g_tokens: Operand, w: Operand, x: Operand, groups: Any, accumulator: str = "library"
) -> tuple[Tensor, Tensor]:
    """dgrad and wgrad of one matrix y = x w^T.

    Args:
        g: (R, N), blocks along N. w: (E, N, K), blocks along N. g_tokens: (R, N) and x: (R, K), blocks along rows; if
            both were filled up to whole Hadamard blocks they have more rows, in groups of their own.

    Returns:
        dx (R, K) and dw (E, N, K), float32; an expert without rows has dw = 0.
    """
    require_experts(groups, g=g, g_tokens=g_tokens, w=w, x=x)
    dx = matmul(g, w.mT, accumulator, groups=groups)  # [R, N] @ [E, N, K] -> [R, K]
    if isinstance(g_tokens, BlockTensor) and g_tokens.groups is not None:
        groups = g_tokens.groups
    dw = matmul(g_tokens.mT, x.mT, accumulator, groups=groups)  # [N, R_e] @ [R_e, K] -> [E, N, K]
    return dx, dw


@kept
def glu_backward(dh: Tensor, gate_up: Tensor) -> Tensor:
    """Gradient of SwiGLU: bfloat16 (R, 2F) from dh float32 (R, F) and gate_up bfloat16 (R, 2F); see `swiglu`."""
    require_tensor(dh, "dh", (torch.float32,))
    require_tensor(gate_up, "gate_up", (torch.bfloat16,))
    if dh.ndim == 0 or gate_up.shape != (*dh.shape[:-1], 2 * dh.shape[-1]):
        raise ValueError(f"gate_up has shape {tuple(gate_up.shape)} and dh {tuple(dh.shape)}: pass (R, 2F) and (R, F)")
    return torch.cat(swiglu_backward(dh, *gate_up.chunk(2, dim=-1)), dim=-1)
