"""Mixture of experts: router, permutation, routed experts under a recipe, a shared expert in BF16, a short convolution.

    out = experts(x) + shared(x);  with a convolution  out_t + sum_j c_j out_(t - j), channel by channel

Grains are routed and computed one by one; the routed experts may live on several ranks, see `parallel_experts`.
Shapes: B sequences, S positions, T = B S tokens, D width, E experts, K per token.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from .dense import Linear, ShortConvolution, swiglu_mlp
from .expert import SHARED, ExpertMLP, Routing, Setting, route
from .parallel_experts import ParallelExperts, Placement
from .plain_experts import PlainExperts, applies
from .router import Bias, balance, choose


class MoE(nn.Module):
    """A layer of `experts` routed experts of width `expert_dim`, `top_k` per token, and a shared one if it has a width.

    Parameters: router (E, D), w13 (E, 2F, D), w2 (E, D, F), float32 masters. bias_speed: of the
    sigmoid router's biases; None: softmax.
    convolution: taps of the convolution, 0 for none.
    """

    parity = False

    def __init__(
        self,
        dim: int,
        experts: int,
        top_k: int,
        expert_dim: int,
        shared_dim: int,
        bias_speed: float | None = None,
        convolution: int = 0,
    ) -> None:
        super().__init__()
        self.experts, self.top_k = experts, top_k
        self.router = nn.Parameter(torch.empty(experts, dim))
        self.w13 = nn.Parameter(torch.empty(experts, 2 * expert_dim, dim))
        self.w2 = nn.Parameter(torch.empty(experts, dim, expert_dim))
        if shared_dim:
            self.shared_in = Linear(dim, 2 * shared_dim)
            self.shared_out = Linear(shared_dim, dim)
        self.has_shared = shared_dim > 0
        self.balancer = None if bias_speed is None else Bias(experts, bias_speed)
        self.convolution = ShortConvolution(dim, convolution) if convolution else None
        self.placement: Placement | None = None  # where its experts are on several ranks

    def forward(self, x_BSD: Tensor, setting: Setting) -> tuple[Tensor, Tensor]:
        """x (B, S, D) BF16 -> (out (B, S, D) BF16, balance FP32 scalar, the mean over grains).

        Grains are computed one by one, the router too: their bits do not depend on their neighbours.
        """
        parts, segments = x_BSD.flatten(0, 1).chunk(setting.grains), setting.segments
        real = [None] * setting.grains if segments is None else segments.real(setting.grains)
        done = [self._grain(x_TD, index, alone) for x_TD, index, alone in zip(parts, real, setting.each(), strict=True)]
        outs, balances = zip(*done, strict=True)
        out_BSD = torch.cat(outs).view(x_BSD.shape)
        if self.convolution is not None:
            out_BSD = self.convolution(out_BSD, setting.segments)
        return out_BSD, torch.stack(balances).mean()

    def _grain(self, all_TD: Tensor, index: Tensor | None, setting: Setting) -> tuple[Tensor, Tensor]:
        """The output and balance of a grain, of which the tokens `index` are given to the experts: all if None."""
        choice, x_TD = choose(all_TD, self.router, self.top_k, self.balancer, self.parity), all_TD
        if index is not None:
            choice, x_TD = choice.of(index), x_TD.index_select(0, index)
        if not len(x_TD):
            return torch.zeros_like(all_TD), all_TD.new_zeros((), dtype=torch.float32)
        routing = route(choice.experts, self.experts)
        if self.balancer is not None:
            self.balancer.count(routing.counts)
        operands = x_TD, choice.weights, self.w13, self.w2, routing
        if self.placement is not None:
            out_TD = ParallelExperts.apply(*operands, setting, self.placement)
        else:
            out_TD = PlainExperts.apply(*operands) if applies(x_TD, setting) else ExpertMLP.apply(*operands, setting)
        if self.has_shared:
            out_TD = out_TD + self._shared(x_TD, setting)
        if index is not None:
            out_TD = torch.zeros_like(all_TD).index_copy(0, index, out_TD)
        return out_TD, x_TD.new_zeros((), dtype=torch.float32) if self.balancer else balance(choice, routing.counts)

    def _shared(self, x_TD: Tensor, setting: Setting) -> Tensor:
        """The shared expert: BF16, or under the recipe as one expert that every token visits with weight 1."""
        if not setting.shared:
            return swiglu_mlp(x_TD, self.shared_in, self.shared_out)
        tokens = torch.arange(len(x_TD), device=x_TD.device)
        routing = Routing(tokens[:, None], tokens, (0, len(x_TD)))
        weights_T1 = torch.ones(len(x_TD), 1, device=x_TD.device)
        w13, w2 = self.shared_in.weight[None], self.shared_out.weight[None]
        return ExpertMLP.apply(x_TD, weights_T1, w13, w2, routing, replace(setting, slot=SHARED))


class DenseMLP(nn.Module):
    """The MLP of a layer without experts, BF16, with the same signature; its balance is 0."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.w_in, self.w_out = Linear(dim, 2 * width), Linear(width, dim)

    def forward(self, x_BSD: Tensor, setting: Setting) -> tuple[Tensor, Tensor]:
        return swiglu_mlp(x_BSD, self.w_in, self.w_out), x_BSD.new_zeros((), dtype=torch.float32)
