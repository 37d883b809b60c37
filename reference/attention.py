"""Causal self-attention in BF16: rotary positions or none, fewer heads of keys, a sliding window.

    q, k, v = x W_qkv;  y_t = sum_s softmax_s(q_t k_s / sqrt(C)) v_s over s <= t, and t - s < window;  out = y W_out

On a CPU the scores and sums are FP32 on BF16 inputs; on a GPU the library's kernel takes BF16 q, k, v, rotated in FP32
and rounded once. Shapes: B sequences, S positions, D width, H heads, G of keys and values, C = D / H.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerics.cache import cached

from . import parity
from .dense import Linear
from .fused import fused
from .segments import Segments


@cached(maxsize=8)
def _angles(positions: int, half: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(cos, sin) of position * 10000^(-i / half), FP32 (S, half)."""
    frequency = 10000.0 ** -(torch.arange(half, device=device, dtype=torch.float32) / half)
    angle_SC = torch.arange(positions, device=device)[:, None] * frequency
    return angle_SC.cos(), angle_SC.sin()


def rotate(x_BSHC: Tensor, cos_SC: Tensor, sin_SC: Tensor) -> Tensor:
    """Rotary position embedding (arXiv 2104.09864) of (B, S, H, C) in FP32: pairs (i, i + C/2), base 10,000. Angles of
    the positions (S, C/2), or of each sequence's own ones (B, S, C/2)."""
    half = x_BSHC.shape[-1] // 2
    cos, sin = cos_SC[..., None, :], sin_SC[..., None, :]
    a, b = x_BSHC[..., :half], x_BSHC[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def _plain_heads(
    split_BSNC: Tensor, cos_SC: Tensor | None, sin_SC: Tensor | None, heads: int, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q (B, S, H, C), k and v (B, S, G, C) of N = H + 2 G, rotated in FP32; BF16 on a GPU, else FP32."""
    q, k, v = split_BSNC.to(torch.float32).split((heads, groups, groups), dim=2)
    if cos_SC is not None and sin_SC is not None:
        q, k = rotate(q, cos_SC, sin_SC), rotate(k, cos_SC, sin_SC)
    if not split_BSNC.is_cuda:
        return q, k, v
    return q.to(torch.bfloat16), k.to(torch.bfloat16), v.to(torch.bfloat16)


_heads = fused(_plain_heads)


@cached(maxsize=8)
def _visible(positions: int, window: int, device: torch.device) -> Tensor:
    """bool (S, S): whether position t (rows) attends to s."""
    t = torch.arange(positions, device=device)
    distance = t[:, None] - t[None, :]
    return (distance >= 0) & (distance < window)


class Attention(nn.Module):
    """Args: dim, heads: D, H. kv_heads: G, dividing H; H if None. window: see the module; None: no bound. rotary:
    whether positions turn queries and keys."""

    parity = False

    def __init__(
        self, dim: int, heads: int, kv_heads: int | None = None, window: int | None = None, rotary: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.window, self.rotary = heads, kv_heads or heads, window, rotary
        self.qkv = Linear(dim, dim // heads * (heads + 2 * self.kv_heads))
        self.out = Linear(dim, dim)

    def forward(self, x_BSD: Tensor, segments: Segments | None = None) -> Tensor:
        """(B, S, D) BF16 -> (B, S, D) BF16. segments: attention stays inside each, and positions start with it."""
        split = self.qkv(x_BSD).unflatten(-1, (self.heads + 2 * self.kv_heads, -1))
        half = split.shape[-1] // 2
        turns = self._turns(split.shape[1], half, split.device)
        if segments is not None:
            turns = tuple(None if t is None else t[segments.positions_BS] for t in turns)
        # in memory by position first, as the library's kernel leaves its result too
        q, k, v = (t.transpose(1, 2) for t in self._heads(split, *turns, self.heads, self.kv_heads))
        visible = None if segments is None else segments.visible(self.window)
        if visible is None and self.parity:
            visible = _visible(x_BSD.shape[1], self.window or x_BSD.shape[1], x_BSD.device)[None]
        if visible is not None:
            return self.out(self.mix(q, k, v, visible).transpose(1, 2).flatten(-2).to(torch.bfloat16))
        if self.kv_heads != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        if self.window is None or self.window >= x_BSD.shape[1]:
            y_BHSC = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = _visible(x_BSD.shape[1], self.window, x_BSD.device)
            y_BHSC = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y_BHSC.transpose(1, 2).flatten(-2).to(torch.bfloat16))

    @property
    def _heads(self) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        return _plain_heads if self.parity else _heads

    def _turns(self, positions: int, half: int, device: torch.device) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """(cos, sin), (positions, half); None each without positions."""
        if not self.rotary:
            return None, None
        return (parity.angles if self.parity else _angles)(positions, half, device)

    def turns_at(self, positions_T: Tensor, sequence: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """(cos, sin) of tokens at any positions below `sequence`, (T, C / 2); None each without positions."""
        turns = self._turns(sequence, self.out.weight.shape[0] // self.heads // 2, positions_T.device)
        return (None, None) if turns[0] is None else (turns[0][positions_T], turns[1][positions_T])

    def heads_of(
        self, split_TNC: Tensor, turns: tuple[Tensor, Tensor] | tuple[None, None]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (T, H, C), k and v (T, G, C); split_TNC: of `qkv`; turns: of `turns_at`."""
        q, k, v = self._heads(split_TNC[None], *turns, self.heads, self.kv_heads)
        return q[0], k[0], v[0]

    def mix(self, q_BHLC: Tensor, k_BGSC: Tensor, v_BGSC: Tensor, visible_BLS: Tensor) -> Tensor:
        """(B, H, L, C): the values of what each query sees, weighted."""
        if self.kv_heads != self.heads:
            k_BGSC, v_BGSC = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k_BGSC, v_BGSC))
        mask = visible_BLS[:, None]
        if self.parity:
            return parity.attend(q_BHLC, k_BGSC, v_BGSC, mask)
        return F.scaled_dot_product_attention(q_BHLC, k_BGSC, v_BGSC, attn_mask=mask)
