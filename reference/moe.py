"""Mixture of experts: router, permutation, routed experts under a recipe, a shared expert in BF16.

Router: logits = x bf16(W_r)^T, summed in FP32 and not rounded; probabilities = softmax(logits); the K most probable
experts, their probabilities divided by their sum, weigh the expert outputs. Load balance (Switch Transformers, arXiv
2101.03961, section 2.2):

    balance = E sum_e f_e P_e        f_e: share of rows sent to expert e, P_e: mean probability of e

over the tokens of one grain. Shapes: B sequences, S positions, T = B S tokens, D width, E experts, K per token.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from .dense import Linear, swiglu_mlp
from .expert import SHARED, ExpertMLP, Routing, Setting, route


class MoE(nn.Module):
    """A layer of `experts` routed experts of width `expert_dim`, `top_k` per token, and one shared expert.

    Parameters: router (E, D), w13 (E, 2F, D), w2 (E, D, F), float32 masters.
    """

    def __init__(self, dim: int, experts: int, top_k: int, expert_dim: int, shared_dim: int) -> None:
        super().__init__()
        self.experts, self.top_k = experts, top_k
        self.router = nn.Parameter(torch.empty(experts, dim))
        self.w13 = nn.Parameter(torch.empty(experts, 2 * expert_dim, dim))
        self.w2 = nn.Parameter(torch.empty(experts, dim, expert_dim))
        self.shared_in = Linear(dim, 2 * shared_dim)
        self.shared_out = Linear(shared_dim, dim)

    def forward(self, x_BSD: Tensor, setting: Setting) -> tuple[Tensor, Tensor]:
        """x (B, S, D) BF16 -> (out (B, S, D) BF16, balance FP32 scalar, the mean over grains).

        Grains are computed one by one, the router too: their bits do not depend on their neighbours.
        """
        parts = x_BSD.flatten(0, 1).chunk(setting.grains)
        done = [self._grain(x_TD, alone) for x_TD, alone in zip(parts, setting.each(), strict=True)]
        outs, balances = zip(*done, strict=True)
        return torch.cat(outs).view(x_BSD.shape), torch.stack(balances).mean()

    def _grain(self, x_TD: Tensor, setting: Setting) -> tuple[Tensor, Tensor]:
        # the rounded weights, exactly, with the gradient of the masters
        router_ED = self.router + (self.router.to(torch.bfloat16).to(torch.float32) - self.router).detach()
        probabilities_TE = (x_TD.to(torch.float32) @ router_ED.T).softmax(-1)
        # the K experts in ascending order: sums over experts then have one order
        chosen_TK = probabilities_TE.topk(self.top_k, dim=-1).indices.sort(-1).values
        weights_TK = probabilities_TE.gather(1, chosen_TK)
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
        routing = route(chosen_TK, self.experts)
        routed_TD = ExpertMLP.apply(x_TD, weights_TK, self.w13, self.w2, routing, setting)
        shared_TD = self._shared(x_TD, setting)
        share_E = torch.tensor(routing.groups, device=x_TD.device).diff() / routing.groups[-1]
        balance = self.experts * (share_E * probabilities_TE.mean(0)).sum()
        return routed_TD + shared_TD, balance

    def _shared(self, x_TD: Tensor, setting: Setting) -> Tensor:
        """The shared expert: BF16, or under the recipe as one expert that every token visits with weight 1."""
        if not setting.shared:
            return swiglu_mlp(x_TD, self.shared_in, self.shared_out)
        tokens = torch.arange(len(x_TD), device=x_TD.device)
        routing = Routing(tokens[:, None], tokens, (0, len(x_TD)))
        weights_T1 = torch.ones(len(x_TD), 1, device=x_TD.device)
        w13, w2 = self.shared_in.weight[None], self.shared_out.weight[None]
        return ExpertMLP.apply(x_TD, weights_T1, w13, w2, routing, replace(setting, slot=SHARED))
