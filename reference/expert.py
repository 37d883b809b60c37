"""The expert MLP under a recipe: one autograd.Function from dispatch to combine, three products per matrix.

    x_q = cast(x)  ->  rows to experts  ->  gate, up = x_q w13_q^T  ->  h_q = cast(swiglu)  ->  y = h_q w2_q^T
    ->  wire(H y)  ->  out = H^-1 sum_k weight_k y_k

Saved for the backward: the codes (4-bit ones packed), scales and outers of x_q, h_q, w13_q, w2_q and of the payload,
and gate, up in BF16 unless they are computed again. Each quantizer is passed through straight: the gradient is that of
the unquantized function, evaluated at the quantized values. Shapes as in `numerics.ops`: T tokens, K experts per
token, R = T K rows, E experts, D, F widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from numerics import BlockTensor, Random, hadamard_signs, philox
from numerics.ops import Recast
from numerics.swiglu import swiglu

from .recipe import ExpertRecipe
from .routing import Routing as Routing
from .routing import route as route
from .saved import restore, save
from .segments import Segments


class Role(IntEnum):
    """Which tensor of a layer draws random words; part of the counter.

    DY, DZ and DX are the gradients of a row's output, of its gate and up, and of its input, along features; those with
    TOKENS are along tokens.
    """

    W13 = 0
    W2 = 1
    X = 2
    H = 3
    DY = 4
    DY_TOKENS = 5
    DZ = 6
    DZ_TOKENS = 7
    DX = 8


_SIGNS = 1  # last word of the counter that signs are drawn by, which is 0 for a tensor's own words
SHARED = 32  # added to the roles of a layer's shared expert


@dataclass(frozen=True)
class Draw:
    """Names the random words of one grain of one optimizer step. `first` and `experts`: where a layer's experts are on
    several ranks, the number of the first one at hand, and how many there are; None: all at hand."""

    seed: int
    step: int
    grain: int
    first: int = 0
    experts: int | None = None

    def random(self, slot: int, role: Role, groups: tuple[int, ...]) -> Random:
        """Words of one tensor: key (seed, step), counter (slot + role, grain * experts + first).

        `slot` is layer * 64, plus SHARED for the shared expert; `groups` are the rows' offsets. Weights draw once a
        step, for grain 0.
        """
        grain = 0 if role in (Role.W13, Role.W2) else self.grain
        rows = groups if role in (Role.DY, Role.DZ, Role.DX) else None  # quantized along features
        experts = len(groups) - 1 if self.experts is None else self.experts
        return Random((self.seed, self.step), (slot + role, grain * experts + self.first), rows)

    def signs(self, slot: int, role: Role, size: int) -> Tensor:
        """Signs of a Hadamard transform of both operands of one product; `role`: its gradient's."""
        key = philox((self.seed, self.step), (slot + role, self.grain, 0, _SIGNS)).tolist()
        return hadamard_signs(size, (key[0], key[1]))


class Observer(Protocol):
    """Is shown the operands of a layer beside what they were made from, and changes neither; see `monitor`."""

    def weight(self, setting: Setting, role: Role, w: Tensor, q: Any) -> None: ...
    def cast(self, setting: Setting, role: Role, x: Tensor, q: Any, signs: Tensor | None = None) -> None: ...
    def recast(
        self, setting: Setting, role: Role, source: Any, recast: Recast, q: Any, groups: Any, rows: Any, signs: Any
    ) -> None: ...
    def output(
        self, setting: Setting, routing: Routing, x: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, out: Tensor
    ) -> None: ...


@dataclass(frozen=True, eq=False)
class Setting:
    """What an expert layer computes with: the operations, its recipe, the signs of Hadamard transforms by size, its
    place and its random words. `shared` says that the shared expert follows the recipe too, `recompute_glu` that the
    backward computes gate and up again instead of keeping them; `grains`: how many there are, from `draw`'s on;
    `segments`: of the sequences, if several texts lie in one."""

    ops: ModuleType
    recipe: ExpertRecipe
    signs: Mapping[int, Tensor]
    layer: int
    draw: Draw
    accumulator: str = "library"
    shared: bool = False
    slot: int = 0
    recompute_glu: bool = False
    grains: int = 1
    observer: Observer | None = None
    segments: Segments | None = None

    def each(self) -> Iterator[Setting]:
        """The setting of each grain alone; the first one is observed."""
        for i in range(self.grains):
            draw, observer = replace(self.draw, grain=self.draw.grain + i), None if i else self.observer
            yield replace(self, draw=draw, grains=1, observer=observer)

    @property
    def place(self) -> int:
        """Base of the random counters of this layer's tensors."""
        return self.layer * 64 + self.slot

    @property
    def wire(self) -> Any:
        """How expert outputs travel."""
        return self.ops.Wire(self.recipe.combine_fmt, self.rotation(self.recipe.combine_hadamard))

    def rotation(self, size: int | None) -> Tensor | None:
        """The signs of a transform of `size`, or None."""
        return None if size is None else self.signs[size]


class ExpertMLP(torch.autograd.Function):
    """(x (T, D), weights (T, K), w13 (E, 2F, D), w2 (E, D, F)) -> out (T, D) BF16; `routing` and `setting` are data."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, routing: Routing, setting: Setting
    ) -> Tensor:
        ops, recipe = setting.ops, setting.recipe
        wire = setting.wire
        w13_q, w2_q = ops.quantize_tokens(w13, recipe.weight), ops.quantize_tokens(w2, recipe.weight)
        sent = ops.quantize_tokens(x, recipe.input)
        x_q = _rows(sent, routing.tokens)  # dispatch: a token's payload to each expert
        h_q, gate_up = ops.gate_up_glu(x_q, w13_q, routing.groups, recipe.hidden, setting.accumulator)
        payload = ops.down_to_wire(h_q, w2_q, routing.groups, wire, setting.accumulator)
        out, _ = ops.aggregate(payload, routing.slots, weights, wire)
        if setting.observer is not None:
            setting.observer.weight(setting, Role.W13, w13, w13_q)
            setting.observer.weight(setting, Role.W2, w2, w2_q)
            setting.observer.cast(setting, Role.X, x, sent)
            setting.observer.cast(setting, Role.H, swiglu(*gate_up.chunk(2, -1)), h_q)
            setting.observer.output(setting, routing, x, weights, w13, w2, out)
        ctx.routing, ctx.setting = routing, setting
        extra = [] if setting.recompute_glu else [gate_up]
        extra += [x, w13, w2] if recipe.originals else []
        ctx.operands = save(ctx, [x_q, h_q, w13_q, w2_q, payload], [weights, *extra])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        setting, routing = ctx.setting, ctx.routing
        ops, recipe, groups = setting.ops, setting.recipe, routing.groups
        (x_q, h_q, w13_q, w2_q, payload), (weights, *extra) = restore(ctx)
        if setting.recompute_glu:  # the same operation on the same operands: the same bits
            _, gate_up = ops.gate_up_glu(x_q, w13_q, groups, recipe.hidden, setting.accumulator)
        else:
            gate_up = extra.pop(0)
        saved = {Role.X: x_q, Role.H: h_q, Role.W13: w13_q, Role.W2: w2_q}
        if recipe.originals:
            x, w13, w2 = extra
            h = swiglu(*gate_up.chunk(2, -1))
            saved = {Role.X: x.index_select(0, routing.tokens), Role.H: h, Role.W13: w13, Role.W2: w2}
        again = Again(setting, groups, saved, g.device)
        wire, plain, cast = setting.wire, ops.Wire(None), recipe.grad_wire or recipe.grad

        d_weights = ops.router_gradient(g, decoded(payload), routing.slots, wire)
        row_weights = torch.empty_like(weights).view(-1, 1)
        row_weights[routing.slots.flatten()] = weights.reshape(-1, 1)
        sent = ops.grad_to_wire(g, routing.tokens, row_weights, cast, again.words(Role.DY))  # [R, D]
        # what arrived on the wire is quantized again along tokens; d_gate_up is at hand and quantized twice
        if setting.observer is not None:
            setting.observer.cast(setting, Role.DY, g.to(torch.float32)[routing.tokens] * row_weights, sent)
        dy = sent if recipe.grad_wire is None else again.along_features(decoded(sent), Role.DY)
        dy_tokens = again.along_tokens(sent, Role.DY_TOKENS, Role.H)
        operands = dy, dy_tokens, again.weight(Role.W2, Role.DY), again.input(Role.H, Role.DY_TOKENS)
        dh, d_w2 = ops.grad_products(*operands, groups, setting.accumulator)
        d_gate_up = ops.glu_backward(dh, gate_up)  # [R, 2F]
        dz, dz_tokens = again.along_features(d_gate_up, Role.DZ), again.along_tokens(d_gate_up, Role.DZ_TOKENS, Role.X)
        operands = dz, dz_tokens, again.weight(Role.W13, Role.DZ), again.input(Role.X, Role.DZ_TOKENS)
        dx_R, d_w13 = ops.grad_products(*operands, groups, setting.accumulator)
        returned = ops.quantize_tokens(dx_R, cast, again.words(Role.DX))
        if setting.observer is not None:
            setting.observer.cast(setting, Role.DX, dx_R, returned)
        dx, _ = ops.aggregate(returned, routing.slots, None, plain)
        return dx.to(g.dtype), d_weights, d_w13, d_w2, None, None


@dataclass(frozen=True, eq=False)
class Again:
    """Backward operands of a layer, from its saved operands and its gradients."""

    setting: Setting
    groups: tuple[int, ...]
    saved: dict[Role, Any]
    device: torch.device

    def words(self, role: Role) -> Random:
        return self.setting.draw.random(self.setting.place, role, self.groups)

    def rotation(self, size: int | None, role: Role) -> Tensor | None:
        """Signs for the product with the gradient `role`, or None."""
        setting = self.setting
        if size is None or not setting.recipe.fresh_signs:
            return setting.rotation(size)
        return setting.draw.signs(setting.place, role, size).to(self.device)

    def weight(self, role: Role, gradient: Role) -> Any:
        recipe = self.setting.recipe
        signs = self.rotation(recipe.dgrad_hadamard, gradient)
        return self.recast(role, self.saved[role], recipe.saved_weight, None, None, signs)

    def input(self, role: Role, gradient: Role) -> Any:
        recipe = self.setting.recipe
        signs = self.rotation(recipe.wgrad_hadamard, gradient)
        return self.recast(role, self.saved[role], recipe.saved_input, self.groups, None, signs)

    def along_features(self, g: Tensor, role: Role) -> Any:
        recipe = self.setting.recipe
        signs = self.rotation(recipe.dgrad_hadamard, role)
        q = self.setting.ops.quantize_tokens(g, recipe.grad, self.words(role), None, -1, signs)
        if self.setting.observer is not None:
            self.setting.observer.cast(self.setting, role, g, q, signs)
        return q

    def along_tokens(self, g: Any, role: Role, partner: Role) -> Any:
        """For the product with the saved operand `partner`, whose outer scale may be left to the gradient's rows."""
        ops, recipe = self.setting.ops, self.setting.recipe
        signs = self.rotation(recipe.wgrad_hadamard, role)
        recast = ops.Recast(recipe.grad.fmt, "multiply", recipe.grad.rounding, recipe.grad.outer)
        scale = ops.row_scale(self.saved[partner], recipe.saved_input)
        return self.recast(role, g, recast, self.groups, scale, signs)

    def recast(self, role: Role, source: Any, recast: Recast, groups: Any, rows: Any, signs: Any) -> Any:
        q = self.setting.ops.requantize_transpose(source, recast, groups, self.words(role), rows, signs)
        if self.setting.observer is not None:
            self.setting.observer.recast(self.setting, role, source, recast, q, groups, rows, signs)
        return q


def _rows(q: Any, index: Tensor) -> Any:
    return q.rows(index) if isinstance(q, BlockTensor) else q.index_select(0, index)


def decoded(payload: Any) -> Tensor:
    """The received rows, still rotated, with the values that `aggregate` decoded in the forward."""
    return payload.dequantize() if isinstance(payload, BlockTensor) else payload
