"""BF16 experts on a GPU, without a wait for the host: the same sums and roundings as the seam's BF16 recipe.

    rows = x[tokens];  gate_up = bf16(rows w13^T);  h = swiglu;  y = bf16(h w2^T);  out = bf16(sum_k weight_k y_k)
    dy = bf16(weight g);  dh = dy w2 in FP32;  d_gate_up = bf16(..);  dx = bf16(sum_k bf16(d_gate_up w13)_k)

The forward's products take the experts' row offsets on the device (`torch._grouped_mm`). The backward's take them on
the host, where they have long arrived, and sum weight gradients in FP32, one product per expert. A baseline for the
speed of recipes must not wait where it need not; recipes' own operations take offsets from the host.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .ablations import PLAIN
from .dense import glu, glu_backward
from .expert import Routing, Setting
from .fused import fused


def applies(x: Tensor, setting: Setting) -> bool:
    """Whether a layer's experts can go this way: BF16 throughout, on a GPU, sums by the library, nobody watching."""
    same = setting.recipe == PLAIN and setting.accumulator == "library" and setting.observer is None
    return same and x.is_cuda and not setting.recompute_glu


@fused
def _combine(y_RD: Tensor, weights_TK: Tensor, slots_TK: Tensor) -> Tensor:
    total = y_RD.index_select(0, slots_TK[:, 0]).to(torch.float32) * weights_TK[:, :1]
    for k in range(1, slots_TK.shape[1]):
        total = total + y_RD.index_select(0, slots_TK[:, k]).to(torch.float32) * weights_TK[:, k : k + 1]
    return total.to(torch.bfloat16)


@fused
def _add(d_RD: Tensor, slots_TK: Tensor) -> Tensor:
    total = d_RD.index_select(0, slots_TK[:, 0]).to(torch.float32)
    for k in range(1, slots_TK.shape[1]):
        total = total + d_RD.index_select(0, slots_TK[:, k]).to(torch.float32)
    return total.to(torch.bfloat16)


@fused
def _weight_gradient(g_TD: Tensor, y_RD: Tensor, slots_TK: Tensor) -> Tensor:
    g = g_TD.to(torch.float32)
    parts = [(g * y_RD.index_select(0, rows).to(torch.float32)).sum(-1) for rows in slots_TK.unbind(1)]
    return torch.stack(parts, dim=1)


@fused
def _weighted(g_TD: Tensor, tokens_R: Tensor, weights_R: Tensor) -> Tensor:
    return (g_TD.index_select(0, tokens_R).to(torch.float32) * weights_R[:, None]).to(torch.bfloat16)


class PlainExperts(torch.autograd.Function):
    """(x (T, D) BF16, weights (T, K), w13 (E, 2F, D), w2 (E, D, F), routing) -> out (T, D) BF16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, routing: Routing) -> Tensor:
        ctx.routing = routing
        w13, w2 = w13.to(torch.bfloat16), w2.to(torch.bfloat16)
        rows = x.index_select(0, routing.tokens)
        gate_up = torch._grouped_mm(rows, w13.mT, offs=routing.ends)  # [R, D] @ [E, D, 2F] -> [R, 2F]
        h = glu(gate_up)
        y = torch._grouped_mm(h, w2.mT, offs=routing.ends)  # [R, F] @ [E, F, D] -> [R, D]
        ctx.save_for_backward(rows, weights, w13, w2, gate_up, h, y)
        return _combine(y, weights, routing.slots)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), routing = grads, ctx.routing
        rows, weights, w13, w2, gate_up, h, y = ctx.saved_tensors
        d_weights = _weight_gradient(g, y, routing.slots)
        by_row = torch.empty_like(weights).view(-1)
        by_row[routing.slots.flatten()] = weights.reshape(-1)
        groups = routing.groups
        dy = _weighted(g, routing.tokens, by_row)
        dh = torch.empty(h.shape, dtype=torch.float32, device=h.device)
        dx = torch.empty_like(rows)
        d_w13, d_w2 = (torch.empty(w.shape, dtype=torch.float32, device=w.device) for w in (w13, w2))
        for e, (i, j) in enumerate(pairwise(groups)):
            product(dy[i:j], w2[e], dh[i:j])  # [R_e, D] @ [D, F] -> [R_e, F]
            product(dy[i:j].T, h[i:j], d_w2[e])  # [D, R_e] @ [R_e, F] -> [D, F]
        d_gate_up = glu_backward(dh, gate_up)
        for e, (i, j) in enumerate(pairwise(groups)):
            product(d_gate_up[i:j], w13[e], dx[i:j])  # [R_e, 2F] @ [2F, D] -> [R_e, D]
            product(d_gate_up[i:j].T, rows[i:j], d_w13[e])  # [2F, R_e] @ [R_e, D] -> [2F, D]
        return _add(dx, routing.slots), d_weights, d_w13, d_w2, None


def product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """a @ b of BF16 matrices into `out`, float32 or bfloat16; sums in FP32."""
    if a.shape[1] == 0:
        out.zero_()
    elif not out.numel():
        return
    elif not a.is_cuda:
        out.copy_(a.to(torch.float32) @ b.to(torch.float32))
    elif out.dtype == torch.float32:
        torch.mm(a, b, out_dtype=torch.float32, out=out)
    else:
        torch.mm(a, b, out=out)
