"""Parity: a forward in which a token's bits depend on its own sequence alone, whatever it is computed beside.

Of torch's operations these have bits that depend on shapes, and are replaced:

    products                       by the exact sum rounded once to FP32, `exact.dot`; of experts "exact", or another
                                   order of `numerics.ACCUMULATORS` that is the row's own
    sums of a norm, a softmax,     by exact sums too: zeros, such as masked or absent places, change nothing
    and of router weights          (of K weights: one after the other)
    exp, log, cos, sin             by polynomials, operation by operation; angles by the host's library, one by one
    topk                           by a stable sort: of equals the first

What remains is elementwise and IEEE's, or moves numbers: sums of two, products, quotients, square roots, roundings,
tables, the butterfly of a Hadamard transform, quantizing a row by its own scales. A recipe whose activations share an
outer scale, or a tile, between tokens cannot have parity, and is refused.

Gradients are those of the same functions, by the library's sums: they are promised nothing.
Shapes: B sequences, H heads, L queries, S keys, C width of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from numerics import ACCUMULATORS
from numerics.cache import cached

from .exact import dot, exp, log, total
from .recipe import ExpertRecipe

_SCORES = 1 << 20  # of queries that are computed at a time


def mixing(recipe: ExpertRecipe) -> str | None:
    """How a layer's recipe makes a token's bits depend on others beside it; None if it does not."""
    for role, cast in (("input", recipe.input), ("hidden", recipe.hidden)):
        if cast.outer not in (None, "row") and not isinstance(cast.outer, int):
            return f"the outer scale of its {role} ({cast.outer!r}) is that of all tokens together"
        if cast.fmt is not None and cast.fmt.tile > 1:
            return f"tiles of its {role} ({cast.fmt.name}) span tokens"
    return None


def require_parity(recipes: tuple[ExpertRecipe, ...], accumulator: str) -> None:
    """Raises ValueError for recipes of layers, or an accumulator of products, that mix tokens."""
    if accumulator == "library":
        others = ", ".join(name for name in ACCUMULATORS if name != "library")
        raise ValueError(f"products 'library' cannot have parity: sums depend on what is beside; use one of {others}")
    for layer, recipe in enumerate(recipes):
        reason = mixing(recipe)
        if reason is not None:
            raise ValueError(
                f"layer {layer} cannot have parity: {reason}; use a recipe with one per token, such as fourbit, or "
                "none, such as mxfp8"
            )


def inverse_rms(x: Tensor) -> Tensor:
    """1 / sqrt(mean of squares + 1e-6), float32 (..., 1). x: float32 (..., D)."""
    mean = total(x * x) * (1 / x.shape[-1])
    return torch.ones_like(mean) / (mean + 1e-6).sqrt()


class _Norm(torch.autograd.Function):
    """RMSNorm: (x float32 (..., D), gain (D,)) -> bf16((x * (1 / sqrt(mean + 1e-6))) * gain)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        r = inverse_rms(x)
        ctx.save_for_backward(x, r, gain)
        return ((x * r) * gain).to(torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, r, gain = ctx.saved_tensors
        g = grads[0].to(torch.float32)
        scaled = x * r
        d = g * gain
        dx = (d - scaled * (d * scaled).mean(-1, keepdim=True)) * r
        return dx, (g * scaled).flatten(0, -2).sum(0)


def norm(x: Tensor, gain: Tensor) -> Tensor:
    """RMSNorm in FP32, rounded once to BF16. x (..., D) float32 or bfloat16; gain (D,) float32."""
    out: Tensor = _Norm.apply(x.to(torch.float32), gain)
    return out


class _Softmax(torch.autograd.Function):
    """p = e^(x - max) / sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        e = exp(x - x.amax(-1, keepdim=True))
        p = e / total(e)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (p,), (g,) = ctx.saved_tensors, grads
        return (g - (g * p).sum(-1, keepdim=True)) * p


def softmax(x: Tensor) -> Tensor:
    """Over the last axis, float32."""
    out: Tensor = _Softmax.apply(x)
    return out


class _LogSoftmax(torch.autograd.Function):
    """(x - max) - ln sum e^(x - max), the last difference in float64."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        d = x - x.amax(-1, keepdim=True)
        out = (d.to(torch.float64) - log(total(exp(d)))).to(torch.float32)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (out,), (g,) = ctx.saved_tensors, grads
        return g - out.exp() * g.sum(-1, keepdim=True)


def log_softmax(x: Tensor) -> Tensor:
    """Over the last axis, float32; x: float32 or bfloat16."""
    out: Tensor = _LogSoftmax.apply(x.to(torch.float32))
    return out


class _Sigmoid(torch.autograd.Function):
    """1 / (1 + e^-x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        one = torch.ones_like(x)
        s = one / (one + exp((-x).clamp(max=88.0)))
        ctx.save_for_backward(s)
        return s

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (s,) = ctx.saved_tensors
        return grads[0] * (s * (1 - s))


def sigmoid(x: Tensor) -> Tensor:
    """Float32."""
    out: Tensor = _Sigmoid.apply(x)
    return out


def largest(scores_TE: Tensor, k: int) -> Tensor:
    """int64 (T, k): where the k largest of each row are, of equals the first."""
    return scores_TE.sort(dim=-1, descending=True, stable=True).indices[:, :k]


def normalized(weights_TK: Tensor) -> Tensor:
    """Rows divided by their sums, added in order."""
    first, *rest = weights_TK.unbind(-1)
    for column in rest:
        first = first + column
    return weights_TK / first[:, None]


@cached(maxsize=8)
def angles(positions: int, half: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(cos, sin) of position * 10000^(-i / half), FP32 (S, half), each number for itself."""
    table = [[p * 10000.0 ** (-i / half) for i in range(half)] for p in range(positions)]
    cos, sin = (torch.tensor([list(map(f, row)) for row in table], device=device) for f in (math.cos, math.sin))
    return cos, sin


class _Attend(torch.autograd.Function):
    """sum_s p_s v_s / sum_s p_s, p_s = e^(q k_s C^-1/2 - max) where visible, else 0."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v, visible)
        step = max(_SCORES // max(q.shape[0] * q.shape[1] * k.shape[2], 1), 1)
        visible = visible.expand(*visible.shape[:2], q.shape[2], k.shape[2])
        parts = zip(q.split(step, 2), visible.split(step, 2), strict=True)
        return torch.cat([_attend(part, k, v, seen) for part, seen in parts], 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, visible = ctx.saved_tensors
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in inputs]
            y = F.scaled_dot_product_attention(*inputs, attn_mask=visible)
            return *torch.autograd.grad(y, inputs, grads[0].to(y.dtype)), None


def _attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    q, k, v = (t.to(torch.float32) for t in (q, k, v))
    scores = (dot(q, k) * q.shape[-1] ** -0.5).masked_fill(~visible, -math.inf)  # [.., L, C] @ [.., C, S] -> [.., L, S]
    p = exp(scores - scores.amax(-1, keepdim=True))
    return dot(p, v.mT) / total(p)  # [.., L, S] @ [.., S, C] -> [.., L, C]


def attend(q_BHLC: Tensor, k_BHSC: Tensor, v_BHSC: Tensor, visible: Tensor) -> Tensor:
    """Attention in FP32: (B, H, L, C). visible: bool, broadcasts to (B, H, L, S); every query sees a key."""
    out: Tensor = _Attend.apply(q_BHLC, k_BHSC, v_BHSC, visible)
    return out
