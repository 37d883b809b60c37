"""The expert MLP whose experts live on several ranks: `expert.ExpertMLP` with its two wires between processes.

    rank of a token                                rank of an expert, for the tokens of each rank apart
    x_q = cast(x), rows by expert        -> dispatch ->   h_q = cast(swiglu(x_q w13_q^T)),  wire(H h_q w2_q^T)
    out = H^-1 sum_k weight_k y_k        <- combine  <-
    grad_wire(weight_k g)                -> dispatch ->   three products per matrix
    dx = sum_k                           <- combine  <-

The ranks of a group hold experts / ranks neighbours each, in rank order, so rows sorted by expert are sorted by rank.
What a rank sends is one grain, and an expert's rank computes each grain alone, with the offsets that its rows have and
the random words that (grain, expert) name: every code, scale, product and gradient of a grain has the bits of one
process. Weights are quantized once, for all grains that arrive. What is saved for the backward is what was received;
the router's gradient is made of the payload that came back.

Gradients of w13 and w2 are summed over the ranks of the group in grain order here, or left apart, as `parts`, for a sum
that ranks outside it take part in.

Shapes as in `expert`; E experts in all, of which w13 and w2 hold E / N on each of N ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from .collectives import Traffic, exchange_counts
from .expert import Routing, Setting, decoded
from .expert_waves import Kept, Parts, Visits, experts_backward, experts_forward
from .recipe import ExpertRecipe
from .saved import restore, save
from .waves import plan


@dataclass(eq=False)
class Placement:
    """Where a layer's experts are.

    Attributes:
        group: the ranks that hold them together; ranks, index: how many, and which of them this is.
        experts: in all.
        parts: None: gradients of grains are added where they are made. Else they are kept here, for each pass
            (d_w13, d_w2) of every rank's grain, in rank order.
        waves: runs of experts that follow each other, see `waves`.
        traffic: counts what is sent.
    """

    group: dist.ProcessGroup
    ranks: int
    index: int
    experts: int
    parts: Parts | None = None
    waves: int = 1
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        if self.experts % self.ranks:
            raise ValueError(f"model.experts {self.experts} are not divisible by ep {self.ranks}; use a divisor as ep")

    @property
    def local(self) -> int:
        """Experts on each rank."""
        return self.experts // self.ranks

    @property
    def first(self) -> int:
        """The number of the first expert here."""
        return self.index * self.local

    def visits(self, routing: Routing, grain: int) -> Visits:
        """Tell the other ranks what comes: the grain, and how many rows for each of their experts."""
        counts = torch.tensor(routing.groups).diff().view(self.ranks, self.local)
        told = torch.cat([torch.full((self.ranks, 1), grain), counts], dim=1)  # [N, 1 + E / N]
        met = exchange_counts(told.flatten(), self.group, self.traffic)
        waves = plan(counts, met[:, 1:], self.waves, self.group, self.traffic)
        return Visits(met[:, 0].tolist(), waves, self.first, self.experts)


class ParallelExperts(torch.autograd.Function):
    """(x (T, D), weights (T, K), w13 (E / N, 2F, D), w2 (E / N, D, F)) -> out (T, D) BF16; every rank of the group
    calls it, and its backward, in the same order."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor,
        w13: Tensor,
        w2: Tensor,
        routing: Routing,
        setting: Setting,
        placement: Placement,
    ) -> Tensor:
        visits = placement.visits(routing, setting.draw.grain)
        payload, kept = experts_forward(x, w13, w2, routing, setting, visits)
        out, _ = setting.ops.aggregate(payload, routing.slots, weights, setting.wire)
        ctx.routing, ctx.setting, ctx.visits, ctx.placement = routing, setting, visits, placement
        extra = [] if setting.recompute_glu else [gate_up for one in kept for gate_up in one.gate_ups]
        operands = [part for one in kept for part in (one.w13, one.w2, *one.arrived, *one.hidden)]
        ctx.operands = save(ctx, [payload, *operands], [weights, *extra])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), setting, routing, visits = grads, ctx.setting, ctx.routing, ctx.visits
        ops, ranks = setting.ops, len(visits.grains)
        (payload, *operands), (weights, *gate_ups) = restore(ctx)
        size = 2 + 2 * ranks  # of what a wave keeps
        kept = [
            Kept(*part[:2], part[2 : 2 + ranks], part[2 + ranks :], gate_ups[i * ranks : (i + 1) * ranks])
            for i, part in enumerate(operands[j : j + size] for j in range(0, len(operands), size))
        ]
        d_weights = ops.router_gradient(g, decoded(payload), routing.slots, setting.wire)
        came, parts = experts_backward(g, weights, routing, setting, visits, kept)
        dx, _ = ops.aggregate(came, routing.slots, None, ops.Wire(None))
        return dx.to(g.dtype), d_weights, *_kept(ctx.placement, parts), None, None, None


def _kept(placement: Placement, parts: Parts) -> tuple[Tensor | None, Tensor | None]:
    """The sums of the grains' gradients, in their order; None if they are kept apart."""
    if placement.parts is not None:
        placement.parts += parts
        return None, None
    d_w13, d_w2 = parts[0]
    for more13, more2 in parts[1:]:
        d_w13, d_w2 = d_w13 + more13, d_w2 + more2
    return d_w13, d_w2


def require_placeable(name: str, recipe: ExpertRecipe) -> None:
    """Raises ValueError for a recipe of experts whose bits need what lies on other ranks."""
    casts = {role: getattr(recipe, role) for role in ("hidden", "weight", "grad", "grad_wire")}
    recasts = {role: getattr(recipe, role) for role in ("saved_weight", "saved_input")}
    scopes = {f"{role}.outer": cast.outer for role, cast in casts.items() if cast is not None}
    scopes |= {f"{role}.scope": recast.scope for role, recast in recasts.items()}
    whole = [role for role, scope in scopes.items() if scope == "tensor"]
    if whole:
        raise ValueError(
            f"preset {name!r} has one outer scale per tensor ({', '.join(whole)}), whose rows lie on several ranks "
            "with ep above 1; use ep 1 with more fsdp or dp, or a recipe with a scale per token, such as fourbit"
        )
    if recipe.originals:
        raise ValueError(
            f"preset {name!r} starts its backward from originals, which do not travel with ep above 1; use ep 1 with "
            "more fsdp or dp, or a recipe that starts from what was received"
        )


def place_experts(model: nn.Module, group: dist.ProcessGroup, ordered: bool, waves: int, traffic: Traffic) -> None:
    """Keep this rank's experts of every layer of `model` alone, and tell its layers so; alone in the group, all.

    Args:
        model: a `Transformer`, whole. ordered: whether gradients of grains stay apart, in `Placement.parts`.
        waves: of each layer, see `waves`. traffic: counts what is sent.
    """
    ranks, index = dist.get_world_size(group), dist.get_rank(group)
    for module in model.modules():
        if ranks == 1 or not hasattr(module, "w13"):
            continue
        parts: Parts | None = [] if ordered else None
        module.placement = placement = Placement(group, ranks, index, module.experts, parts, waves, traffic)
        for part in ("w13", "w2"):
            whole = getattr(module, part).detach()
            own = whole[placement.first : placement.first + placement.local].clone()
            setattr(module, part, nn.Parameter(own))


def expert_parts(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of which a rank has its experts alone, by name."""
    return {
        f"{name}.{part}": getattr(module, part)
        for name, module in model.named_modules()
        if getattr(module, "placement", None) is not None
        for part in ("w13", "w2")
    }
