"""What a rank computes of a layer whose experts live on several ranks: its experts' work, wave by wave.

The rows that arrive from a rank are one grain, which is computed alone, with the offsets that its rows have and
the random words that (grain, expert) name: every code, scale, product and gradient has the bits of one process. Weights
are quantized once, for all grains that arrive. Shapes as in `parallel_experts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from numerics.ops import Cast

from .collectives import Handle
from .expert import Again, Role, Routing, Setting, decoded
from .waves import Wave, in_turn
from .wires import Layout, pack, unpack

Parts = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Visits:
    """Who sends what to whom in one pass of a layer: the grains that arrive, by rank, and the waves they come in.

    `first`: the number of the first expert here. `experts`: how many there are on all ranks."""

    grains: list[int]
    waves: list[Wave]
    first: int
    experts: int

    def settings(self, setting: Setting, wave: Wave) -> list[Setting]:
        """`setting` with the random words of every grain that arrives, for the experts of a wave."""
        first, experts = self.first + wave.experts.start, self.experts
        return [
            replace(setting, draw=replace(setting.draw, grain=grain, first=first, experts=experts))
            for grain in self.grains
        ]


@dataclass(frozen=True, eq=False)
class Kept:
    """What a wave keeps for the backward: its weights, and what arrived from every rank with what was made of it."""

    w13: Any
    w2: Any
    arrived: list[Any] = field(default_factory=list)
    hidden: list[Any] = field(default_factory=list)
    gate_ups: list[Tensor] = field(default_factory=list)


def experts_forward(
    x: Tensor, w13: Tensor, w2: Tensor, routing: Routing, setting: Setting, visits: Visits
) -> tuple[Any, list[Kept]]:
    """The payload (R, D) of this rank's rows, and what every wave keeps."""
    ops, recipe, wire = setting.ops, setting.recipe, setting.wire
    there, back = Layout(x.shape[1], recipe.input), Layout(x.shape[1], Cast(recipe.combine_fmt))
    packed, kept = pack(ops.quantize_tokens(x, recipe.input)), []

    def dispatch(wave: Wave) -> Handle:
        leaving = packed.index_select(0, routing.tokens[wave.rows.to(packed.device)])
        return wave.go(leaving, there, "dispatch")

    def compute(wave: Wave, arrived: Tensor) -> Tensor:
        w13_q, w2_q = (ops.quantize_tokens(w[wave.experts], recipe.weight) for w in (w13, w2))
        kept.append(own := Kept(w13_q, w2_q))
        payloads = []
        for part, groups in zip(arrived.split(wave.arrives), wave.groups, strict=True):
            x_q = unpack(part, there)
            h_q, gate_up = ops.gate_up_glu(x_q, w13_q, groups, recipe.hidden, setting.accumulator)
            payloads.append(pack(ops.down_to_wire(h_q, w2_q, groups, wire, setting.accumulator)))
            for where, what in ((own.arrived, x_q), (own.hidden, h_q), (own.gate_ups, gate_up)):
                where.append(what)
        return torch.cat(payloads)

    def combine(wave: Wave, payload: Tensor) -> Handle:
        return wave.come_back(payload, back, "combine")

    return unpack(in_turn(visits.waves, dispatch, compute, combine, "experts"), back), kept


def experts_backward(
    g: Tensor, weights: Tensor, routing: Routing, setting: Setting, visits: Visits, kept: list[Kept]
) -> tuple[Any, Parts]:
    """The gradients (R, D) of what this rank dispatched, as they came back, and those of the experts' weights for the
    grain of every rank."""
    ops, cast = setting.ops, setting.recipe.grad_wire or setting.recipe.grad
    row_weights = torch.empty_like(weights).view(-1, 1)
    row_weights[routing.slots.flatten()] = weights.reshape(-1, 1)
    words = setting.draw.random(setting.place, Role.DY, routing.groups)
    layout = Layout(g.shape[1], cast)
    packed = pack(ops.grad_to_wire(g, routing.tokens, row_weights, cast, words))  # [R, bytes]
    made: list[Parts] = []  # of every wave

    def dispatch(wave: Wave) -> Handle:
        return wave.go(packed.index_select(0, wave.rows.to(packed.device)), layout, "gradient dispatch")

    def compute(wave: Wave, arrived: Tensor) -> Tensor:
        own = kept[len(made)]
        grains, parts, returned = _Grains(own.w13, own.w2), [], []
        arrivals = zip(visits.settings(setting, wave), arrived.split(wave.arrives), wave.groups, strict=True)
        for i, (alone, part, groups) in enumerate(arrivals):
            gate_up = None if setting.recompute_glu else own.gate_ups[i]
            dx, d_w13, d_w2 = grains.backward(
                alone, groups, unpack(part, layout), own.arrived[i], own.hidden[i], gate_up
            )
            returned.append(pack(dx))
            parts.append((d_w13, d_w2))
        made.append(parts)
        return torch.cat(returned)

    def combine(wave: Wave, dx: Tensor) -> Handle:
        return wave.come_back(dx, layout, "gradient combine")

    came = in_turn(visits.waves, dispatch, compute, combine, "gradient experts")
    joined = [
        tuple(_joined(list(each)) for each in zip(*of_grain, strict=True)) for of_grain in zip(*made, strict=True)
    ]
    return unpack(came, layout), [(d_w13, d_w2) for d_w13, d_w2 in joined]


def _joined(parts: list[Tensor]) -> Tensor:
    """The experts of all waves."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


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
