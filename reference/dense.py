"""The dense parts in BF16: a linear layer with FP32 sums, RMSNorm, SwiGLU, a short convolution.

BF16 on a CPU is a rounding, not a compute type (torch's BF16 product is ten times slower there than FP32): products
run in FP32 on BF16-representable values and are rounded once. A GPU's BF16 product, with sums in FP32, is just that.
Activations and their gradients are bfloat16 tensors, parameters FP32 masters, weight gradients FP32. Bits are promised
only on one device at equal shapes and threads.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerics.swiglu import silu_tables, swiglu, swiglu_backward

from . import parity
from .exact import dot
from .fused import fused
from .segments import Segments


class _Bf16Linear(torch.autograd.Function):
    """y = bf16(x bf16(w)^T); dx = bf16(g bf16(w)); dw = g^T x in FP32. x (..., K) BF16, w (N, K) FP32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        w = w.to(torch.bfloat16)
        ctx.save_for_backward(x, w)
        if x.is_cuda:
            return x @ w.T
        return (x.to(torch.float32) @ w.to(torch.float32).T).to(torch.bfloat16)  # [T, K] @ [K, N] -> [T, N]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        (g,) = grads
        if g.is_cuda:
            rows, columns = g.flatten(0, -2), x.flatten(0, -2)
            return g @ w, torch.mm(rows.T, columns, out_dtype=torch.float32)
        x, w, g = (t.to(torch.float32) for t in (x, w, g))
        dx = (g @ w).to(torch.bfloat16)  # [T, N] @ [N, K] -> [T, K]
        return dx, g.flatten(0, -2).T @ x.flatten(0, -2)  # [N, T] @ [T, K] -> [N, K]


class _ExactLinear(_Bf16Linear):
    """The same with exact sums in the forward, see `parity`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        w = w.to(torch.bfloat16)
        ctx.save_for_backward(x, w)
        return dot(x, w, torch.bfloat16)  # [T, K] @ [K, N] -> [T, N]


class Linear(nn.Module):
    """Bias-free linear layer: weight (out_features, in_features) FP32, input and output bfloat16."""

    parity = False

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> Tensor:
        return (_ExactLinear if self.parity else _Bf16Linear).apply(x, self.weight)


def glu(gate_up: Tensor) -> Tensor:
    """`numerics.swiglu` of one BF16 tensor that holds gate and up side by side, in one kernel on a GPU."""
    if not gate_up.is_cuda:
        return swiglu(*gate_up.chunk(2, dim=-1))
    return _glu(gate_up, silu_tables(str(gate_up.device))[0])


def glu_backward(dh: Tensor, gate_up: Tensor) -> Tensor:
    """Its gradient, BF16, side by side too. dh: BF16 or FP32."""
    if not gate_up.is_cuda:
        return torch.cat(swiglu_backward(dh.to(torch.float32), *gate_up.chunk(2, dim=-1)), dim=-1)
    return _glu_backward(dh, gate_up, *silu_tables(str(gate_up.device)))


def _pattern(x: Tensor) -> Tensor:
    """BF16 bits as numbers of table entries, where a compiler can see them."""
    return x.contiguous().view(torch.int16).to(torch.int64) & 0xFFFF


@fused
def _glu(gate_up: Tensor, silu: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return (silu[_pattern(gate)].to(torch.float32) * up.to(torch.float32)).to(torch.bfloat16)


@fused
def _glu_backward(dh: Tensor, gate_up: Tensor, silu: Tensor, slope: Tensor) -> Tensor:
    (gate, up), dh = gate_up.chunk(2, dim=-1), dh.to(torch.float32)
    pattern = _pattern(gate)
    d_gate = ((dh * up.to(torch.float32)) * slope[pattern]).to(torch.bfloat16)
    return torch.cat([d_gate, (dh * silu[pattern].to(torch.float32)).to(torch.bfloat16)], dim=-1)


class _SwiGLU(torch.autograd.Function):
    """`numerics.swiglu` on one tensor that holds gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return glu(gate_up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        return glu_backward(grads[0], gate_up)


def swiglu_mlp(x: Tensor, w_in: Linear, w_out: Linear) -> Tensor:
    """w_out(swiglu(w_in(x))), BF16."""
    return w_out(_SwiGLU.apply(w_in(x)))


@fused
def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return F.rms_norm(x.to(torch.float32), gain.shape, gain, eps=1e-6).to(torch.bfloat16)


@fused
def _add_norm(x: Tensor, y: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, F.rms_norm(total, gain.shape, gain, eps=1e-6).to(torch.bfloat16)


class RMSNorm(nn.Module):
    """x / rms(x) * gain, in FP32, rounded once to BF16. gain (D,) FP32."""

    parity = False

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return parity.norm(x, self.gain) if self.parity else _norm(x, self.gain)

    def after(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """x + y, FP32, and its norm."""
        if self.parity:
            return x + y, parity.norm(x + y, self.gain)
        return _add_norm(x, y, self.gain)


class ShortConvolution(nn.Module):
    """y_t = x_t + sum_j taps_j x_(t - j), channel by channel, in FP32, rounded once to BF16. taps (D, J) FP32, zeros at
    first; what lies before a sequence is zero."""

    def __init__(self, dim: int, taps: int) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.zeros(dim, taps))

    def forward(self, x_BSD: Tensor, segments: Segments | None = None) -> Tensor:
        """(B, S, D) BF16 -> (B, S, D) BF16. segments: what lies before each is zero too."""
        positions, taps = x_BSD.shape[1], self.taps.shape[1]
        padded = F.pad(x_BSD.to(torch.float32), (0, 0, taps - 1, 0))
        y = x_BSD.to(torch.float32)
        for j in range(taps):
            before = padded[:, taps - 1 - j : taps - 1 - j + positions]
            if segments is not None and j:
                before = before.masked_fill((segments.positions_BS < j)[..., None], 0.0)
            y = y + before * self.taps[:, j]
        return y.to(torch.bfloat16)
