"""Which experts serve a token, and with what weight: softmax with a balancing loss, or sigmoid with balancing biases.

    logits = x bf16(W_r)^T, summed in FP32 and not rounded

softmax    p = softmax(logits); the K most probable experts, weights p / their sum; load-balancing loss (Switch
           Transformers, arXiv 2101.03961, section 2.2): E sum_e f_e P_e, f_e the share of rows sent to e, P_e its mean
sigmoid    s = sigmoid(logits); the K largest of s + bias, weights s / their sum; no loss: after each step
           bias += speed * sign(mean load - load) (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)

Loads are numbers of rows, integers, so that they do not depend on how a step is cut into passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import parity
from .exact import dot
from .fused import fused


class _Logits(torch.autograd.Function):
    """x bf16(w)^T in FP32; dx = bf16(g bf16(w)), dw = g^T x in FP32. x (T, D) BF16, w (E, D) FP32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w.to(torch.bfloat16))
        if x.is_cuda:
            return torch.mm(x, w.to(torch.bfloat16).T, out_dtype=torch.float32)
        return x.to(torch.float32) @ w.to(torch.bfloat16).to(torch.float32).T  # [T, D] @ [D, E] -> [T, E]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        (g,) = grads
        if g.is_cuda:
            parts = _parts(g)  # [3, T, E]
            dx = parts.transpose(0, 1).flatten(1) @ w.repeat(3, 1)  # [T, 3E] @ [3E, D] -> [T, D]
            dw = torch.mm(parts.transpose(1, 2).flatten(0, 1), x, out_dtype=torch.float32)  # [3E, T] @ [T, D]
            return dx, dw.unflatten(0, (3, -1)).sum(0)
        x, w = x.to(torch.float32), w.to(torch.float32)
        dx = (g @ w).to(torch.bfloat16)  # [T, E] @ [E, D] -> [T, D]
        return dx, g.T @ x  # [E, T] @ [T, D] -> [E, D]


class _ExactLogits(_Logits):
    """The same with exact sums in the forward, see `parity`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        w = w.to(torch.bfloat16)
        ctx.save_for_backward(x, w)
        return dot(x, w)  # [T, D] @ [D, E] -> [T, E]


@fused
def _parts(g: Tensor) -> Tensor:
    """Three BF16 tensors whose sum is the FP32 `g`, so that their products with BF16 are exact."""
    high = g.to(torch.bfloat16)
    rest = g - high.to(torch.float32)
    middle = rest.to(torch.bfloat16)
    return torch.stack([high, middle, (rest - middle.to(torch.float32)).to(torch.bfloat16)])


@dataclass(frozen=True, eq=False)
class Choice:
    """experts int64 (T, K), ascending; weights float32 (T, K); scores float32 (T, E) of all experts."""

    experts: Tensor
    weights: Tensor
    scores: Tensor

    def of(self, index: Tensor) -> Choice:
        """Of some tokens."""
        return Choice(*(t.index_select(0, index) for t in (self.experts, self.weights, self.scores)))


_counts_nothing = [False]


@contextmanager
def uncounted() -> Iterator[None]:
    """Forward passes inside, such as one that is computed again for its backward, add to no load."""
    before, _counts_nothing[0] = _counts_nothing[0], True
    try:
        yield
    finally:
        _counts_nothing[0] = before


class Bias(nn.Module):
    """The sigmoid router's biases, float32 (E,), and the loads int64 (E,) since they last moved."""

    bias: Tensor
    load: Tensor

    def __init__(self, experts: int, speed: float) -> None:
        super().__init__()
        self.speed = speed
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts, dtype=torch.int64), persistent=False)

    def count(self, counts: Tensor) -> None:
        """Add the rows of each expert in a pass of training to the loads."""
        if self.training and torch.is_grad_enabled() and not _counts_nothing[0]:
            self.load += counts

    @torch.no_grad()
    def move(self) -> None:
        """One step of `speed` against the loads' deviations from their mean, and start counting anew."""
        deviation = self.load.sum() - self.load * len(self.load)  # E times (mean - load): an integer
        self.bias += self.speed * deviation.sign()
        self.load.zero_()


def rebalance(model: nn.Module) -> None:
    """After an optimizer step: move the biases of a model's sigmoid routers against the loads that it has seen."""
    for module in model.modules():
        if isinstance(module, Bias):
            module.move()


def choose(x_TD: Tensor, router: Tensor, top_k: int, bias: Bias | None, exactly: bool = False) -> Choice:
    """The experts of each token. x_TD: BF16; router: float32 masters (E, D); bias: None for softmax; exactly: in the
    forms of `parity`."""
    logits_TE = (_ExactLogits if exactly else _Logits).apply(x_TD, router)
    if exactly:
        scores_TE = parity.softmax(logits_TE) if bias is None else parity.sigmoid(logits_TE)
    else:
        scores_TE = logits_TE.softmax(-1) if bias is None else logits_TE.sigmoid()
    ranked = scores_TE if bias is None else scores_TE.detach() + bias.bias
    found_TK = parity.largest(ranked, top_k) if exactly else ranked.topk(top_k, dim=-1).indices
    # the K experts in ascending order: sums over experts then have one order
    chosen_TK = found_TK.sort(-1).values
    weights_TK = scores_TE.gather(1, chosen_TK)
    if exactly:
        return Choice(chosen_TK, parity.normalized(weights_TK), scores_TE)
    return Choice(chosen_TK, weights_TK / weights_TK.sum(-1, keepdim=True), scores_TE)


def balance(choice: Choice, counts: Tensor) -> Tensor:
    """The softmax router's loss, FP32 scalar. counts: rows of each expert."""
    share_E = counts / choice.experts.numel()
    return len(counts) * (share_E * choice.scores.mean(0)).sum()
