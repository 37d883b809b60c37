"""The dense parts in BF16: a linear layer with FP32 sums, RMSNorm, rotary attention.

BF16 on a CPU is a rounding, not a compute type (torch's BF16 product is ten times slower there than FP32): products
run in FP32 on BF16-representable values and are rounded once. Activations and their gradients are bfloat16 tensors,
parameters FP32 masters, weight gradients FP32. Bits are promised only on one device at equal shapes and threads.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerics.cache import cached
from numerics.swiglu import swiglu, swiglu_backward


class _Bf16Linear(torch.autograd.Function):
    """y = bf16(x bf16(w)^T); dx = bf16(g bf16(w)); dw = g^T x in FP32. x (..., K) BF16, w (N, K) FP32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        w = w.to(torch.bfloat16)
        ctx.save_for_backward(x, w)
        return (x.to(torch.float32) @ w.to(torch.float32).T).to(torch.bfloat16)  # [T, K] @ [K, N] -> [T, N]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = (t.to(torch.float32) for t in ctx.saved_tensors)
        g = grads[0].to(torch.float32)
        dx = (g @ w).to(torch.bfloat16)  # [T, N] @ [N, K] -> [T, K]
        return dx, g.flatten(0, -2).T @ x.flatten(0, -2)  # [N, T] @ [T, K] -> [N, K]


class Linear(nn.Module):
    """Bias-free linear layer: weight (out_features, in_features) FP32, input and output bfloat16."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> Tensor:
        return _Bf16Linear.apply(x, self.weight)


class _SwiGLU(torch.autograd.Function):
    """`numerics.swiglu` on one tensor that holds gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return swiglu(*gate_up.chunk(2, dim=-1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        return torch.cat(swiglu_backward(grads[0].to(torch.float32), *gate_up.chunk(2, dim=-1)), dim=-1)


def swiglu_mlp(x: Tensor, w_in: Linear, w_out: Linear) -> Tensor:
    """w_out(swiglu(w_in(x))), BF16."""
    return w_out(_SwiGLU.apply(w_in(x)))


class RMSNorm(nn.Module):
    """x / rms(x) * gain, in FP32, rounded once to BF16. gain (D,) FP32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.to(torch.float32), self.gain.shape, self.gain, eps=1e-6).to(torch.bfloat16)


@cached(maxsize=8)
def _angles(positions: int, half: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(cos, sin) of position * 10000^(-i / half), FP32 (S, half)."""
    frequency = 10000.0 ** -(torch.arange(half, device=device, dtype=torch.float32) / half)
    angle_SC = torch.arange(positions, device=device)[:, None] * frequency
    return angle_SC.cos(), angle_SC.sin()


def rotate(x_BHSC: Tensor) -> Tensor:
    """Rotary position embedding (arXiv 2104.09864) of (B, H, S, C) in FP32: pairs (i, i + C/2), base 10,000."""
    half = x_BHSC.shape[-1] // 2
    cos, sin = _angles(x_BHSC.shape[-2], half, x_BHSC.device)
    a, b = x_BHSC[..., :half], x_BHSC[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Attention(nn.Module):
    """Causal multi-head attention with rotary positions: FP32 inside on BF16 inputs, D = heads x C."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(dim, 3 * dim)
        self.out = Linear(dim, dim)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) BF16 -> (B, S, D) BF16."""
        q, k, v = self.qkv(x_BSD).to(torch.float32).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y_BHSC = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.out(y_BHSC.transpose(1, 2).flatten(-2).to(torch.bfloat16))
