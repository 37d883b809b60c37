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

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from numerics.ops import Cast

from .collectives import Traffic, exchange, exchange_counts
from .expert import Again, Role, Routing, Setting, decoded
from .recipe import ExpertRecipe
from .saved import restore, save
from .wires import Layout, pack, unpack

Parts = list[tuple[Tensor, Tensor]]


@dataclass(eq=False)
class Placement:
    """Where a layer's experts are.

    Attributes:
        group: the ranks that hold them together; ranks, index: how many, and which of them this is.
        experts: in all.
        parts: None: gradients of grains are added where they are made. Else they are kept here, for each pass
            (d_w13, d_w2) of every rank's grain, in rank order.
        traffic: counts what is sent.
    """

    group: dist.ProcessGroup
    ranks: int
    index: int
    experts: int
    parts: Parts | None = None
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
        groups = [(0, *offsets) for offsets in met[:, 1:].cumsum(1).tolist()]
        return Visits(self, met[:, 0].tolist(), groups, counts.sum(1).tolist())


@dataclass(frozen=True, eq=False)
class Visits:
    """Who sends what to whom in one pass of a layer: the `grains` that arrive, by rank, the row offsets of each among
    the experts here, and how many rows this rank `sends` to every rank."""

    placement: Placement
    grains: list[int]
    groups: list[tuple[int, ...]]
    sends: list[int]

    @property
    def arrives(self) -> list[int]:
        """Rows from every rank."""
        return [offsets[-1] for offsets in self.groups]

    def go(self, packed: Tensor, layout: Layout, phase: str) -> list[Any]:
        """Rows (R, bytes) sorted by expert go to their experts: those from every rank, unpacked."""
        arrived = self._exchange(packed, self.sends, self.arrives, layout, phase)
        return [unpack(part, layout) for part in arrived.split(self.arrives)]

    def come_back(self, rows: list[Any], layout: Layout, phase: str) -> Any:
        """Rows for every rank go back: those of this rank's tokens, (R, D), sorted by expert."""
        packed = torch.cat([pack(part) for part in rows])
        return unpack(self._exchange(packed, self.arrives, self.sends, layout, phase), layout)

    def _exchange(self, packed: Tensor, send: list[int], receive: list[int], layout: Layout, phase: str) -> Tensor:
        placement = self.placement
        return exchange(packed, send, receive, placement.group, phase, layout.width, placement.traffic).wait()

    def settings(self, setting: Setting) -> list[Setting]:
        """`setting` with the random words of every grain that arrives, for the experts here."""
        first, experts = self.placement.first, self.placement.experts
        return [
            replace(setting, draw=replace(setting.draw, grain=grain, first=first, experts=experts))
            for grain in self.grains
        ]


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
        ops, recipe, wire = setting.ops, setting.recipe, setting.wire
        w13_q, w2_q = ops.quantize_tokens(w13, recipe.weight), ops.quantize_tokens(w2, recipe.weight)
        visits = placement.visits(routing, setting.draw.grain)
        width = x.shape[1]
        packed = pack(ops.quantize_tokens(x, recipe.input)).index_select(0, routing.tokens)
        arrived, kept, payloads = visits.go(packed, Layout(width, recipe.input), "dispatch"), [], []
        for x_q, groups in zip(arrived, visits.groups, strict=True):
            h_q, gate_up = ops.gate_up_glu(x_q, w13_q, groups, recipe.hidden, setting.accumulator)
            payloads.append(ops.down_to_wire(h_q, w2_q, groups, wire, setting.accumulator))
            kept.append((h_q, gate_up))
        payload = visits.come_back(payloads, Layout(width, Cast(recipe.combine_fmt)), "combine")
        out, _ = ops.aggregate(payload, routing.slots, weights, wire)
        ctx.routing, ctx.setting, ctx.visits = routing, setting, visits
        extra = [] if setting.recompute_glu else [gate_up for _, gate_up in kept]
        operands = [w13_q, w2_q, payload, *arrived, *(h_q for h_q, _ in kept)]
        ctx.operands = save(ctx, operands, [weights, *extra])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), setting, routing, visits = grads, ctx.setting, ctx.routing, ctx.visits
        ops, recipe = setting.ops, setting.recipe
        (w13_q, w2_q, payload, *operands), (weights, *gate_ups) = restore(ctx)
        wire, cast = setting.wire, recipe.grad_wire or recipe.grad
        d_weights = ops.router_gradient(g, decoded(payload), routing.slots, wire)
        row_weights = torch.empty_like(weights).view(-1, 1)
        row_weights[routing.slots.flatten()] = weights.reshape(-1, 1)
        words = setting.draw.random(setting.place, Role.DY, routing.groups)
        sent = ops.grad_to_wire(g, routing.tokens, row_weights, cast, words)  # [R, D]

        layout = Layout(g.shape[1], cast)
        ranks = visits.placement.ranks
        arrived = zip(
            visits.go(pack(sent), layout, "gradient dispatch"), operands[:ranks], operands[ranks:], strict=True
        )
        grains = _Grains(w13_q, w2_q)
        parts, returned = [], []
        for i, (alone, (dy, x_q, h_q)) in enumerate(zip(visits.settings(setting), arrived, strict=True)):
            gate_up = None if setting.recompute_glu else gate_ups[i]
            dx, *part = grains.backward(alone, visits.groups[i], dy, x_q, h_q, gate_up)
            returned.append(dx)
            parts.append((part[0], part[1]))
        came = visits.come_back(returned, layout, "gradient combine")
        dx, _ = ops.aggregate(came, routing.slots, None, ops.Wire(None))
        return dx.to(g.dtype), d_weights, *_kept(visits.placement, parts), None, None, None


def _kept(placement: Placement, parts: Parts) -> tuple[Tensor | None, Tensor | None]:
    """The sums of the grains' gradients, in their order; None if they are kept apart."""
    if placement.parts is not None:
        placement.parts += parts
        return None, None
    d_w13, d_w2 = parts[0]
    for more13, more2 in parts[1:]:
        d_w13, d_w2 = d_w13 + more13, d_w2 + more2
    return d_w13, d_w2


@dataclass
class _Grains:
    """The backward of one grain after the other through the same weights, which are recast once unless the signs of
    their Hadamard are the grain's own."""

    w13: Any
    w2: Any
    recast: dict[Role, Any] = field(default_factory=dict)

    def backward(
        self, setting: Setting, groups: tuple[int, ...], sent: Any, x_q: Any, h_q: Any, gate_up: Tensor | None
    ) -> tuple[Any, Tensor, Tensor]:
        """As `ExpertMLP.backward`, from the gradient of its rows as it arrived to that of what they were made from, as
        it travels (R, D); d_w13, d_w2."""
        ops, recipe = setting.ops, setting.recipe
        if gate_up is None:  # the same operation on the same operands: the same bits
            _, gate_up = ops.gate_up_glu(x_q, self.w13, groups, recipe.hidden, setting.accumulator)
        saved = {Role.X: x_q, Role.H: h_q, Role.W13: self.w13, Role.W2: self.w2}
        again = Again(setting, groups, saved, gate_up.device)
        dy = sent if recipe.grad_wire is None else again.along_features(decoded(sent), Role.DY)
        dy_tokens = again.along_tokens(sent, Role.DY_TOKENS, Role.H)
        operands = dy, dy_tokens, self._weight(again, Role.W2, Role.DY), again.input(Role.H, Role.DY_TOKENS)
        dh, d_w2 = ops.grad_products(*operands, groups, setting.accumulator)
        d_gate_up = ops.glu_backward(dh, gate_up)  # [R, 2F]
        dz, dz_tokens = again.along_features(d_gate_up, Role.DZ), again.along_tokens(d_gate_up, Role.DZ_TOKENS, Role.X)
        operands = dz, dz_tokens, self._weight(again, Role.W13, Role.DZ), again.input(Role.X, Role.DZ_TOKENS)
        dx, d_w13 = ops.grad_products(*operands, groups, setting.accumulator)
        return ops.quantize_tokens(dx, recipe.grad_wire or recipe.grad, again.words(Role.DX)), d_w13, d_w2

    def _weight(self, again: Again, role: Role, gradient: Role) -> Any:
        recipe = again.setting.recipe
        if recipe.fresh_signs and recipe.dgrad_hadamard is not None:
            return again.weight(role, gradient)
        if role not in self.recast:
            self.recast[role] = again.weight(role, gradient)
        return self.recast[role]


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


def place_experts(model: nn.Module, group: dist.ProcessGroup, ordered: bool) -> None:
    """Keep this rank's experts of every layer of `model` alone, and tell its layers so; alone in the group, all.

    Args:
        model: a `Transformer`, whole. ordered: whether gradients of grains stay apart, in `Placement.parts`.
    """
    ranks, index = dist.get_world_size(group), dist.get_rank(group)
    for module in model.modules():
        if ranks == 1 or not hasattr(module, "w13"):
            continue
        module.placement = placement = Placement(group, ranks, index, module.experts, [] if ordered else None)
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
