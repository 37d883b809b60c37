"""Weights as a forward without a backward reads them, made once: experts in the packed codes of their recipe, dense
matrices rounded to BF16.

An expert matrix is kept as `BlockTensor.stored` has it: NVFP4 in 4.5 bits a weight, MXFP8 in 8.25, else BF16. Only the
experts that a batch visits are unpacked, and each operation is the training's own: equal operands give equal bits.
Shapes as in `expert`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from numerics import BlockTensor
from numerics.ops import Cast

from .dense import Linear, glu
from .exact import dot
from .expert import Routing, Setting
from .plain_experts import PlainExperts, applies


@dataclass(frozen=True, eq=False)
class Packed:
    """Matrices (E, N, K) in the bits of their format."""

    tensors: list[Tensor]
    restore: Callable[[list[Tensor]], Any]
    experts: int

    @staticmethod
    def of(w_ENK: Tensor, cast: Cast, ops: Any) -> Packed:
        """Quantized as a training forward does."""
        q = ops.quantize_tokens(w_ENK.detach(), cast)
        if isinstance(q, BlockTensor):
            return Packed(*q.stored(), len(w_ENK))
        return Packed([q], lambda kept: kept[0], len(w_ENK))

    def some(self, index: Tensor | None) -> Any:
        """The operand, or that of the experts `index` alone."""
        if index is None:
            return self.restore(self.tensors)
        # an outer scale may be one for all experts
        return self.restore([t.index_select(0, index) if len(t) == self.experts else t for t in self.tensors])

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors)


@dataclass(frozen=True, eq=False)
class FrozenExperts:
    """The experts of a layer, w13 (E, 2F, D) and w2 (E, D, F)."""

    w13: Packed
    w2: Packed

    @staticmethod
    def of(w13: Tensor, w2: Tensor, setting: Setting) -> FrozenExperts:
        cast = setting.recipe.weight
        return FrozenExperts(Packed.of(w13, cast, setting.ops), Packed.of(w2, cast, setting.ops))

    def forward(self, x_TD: Tensor, weights_TK: Tensor, routing: Routing, setting: Setting) -> Tensor:
        """What `ExpertMLP` computes, (T, D) BF16."""
        if applies(x_TD, setting):
            out: Tensor = PlainExperts.apply(x_TD, weights_TK, self.w13.some(None), self.w2.some(None), routing)
            return out
        ops, recipe, wire = setting.ops, setting.recipe, setting.wire
        visited = [e for e, (i, j) in enumerate(pairwise(routing.groups)) if i < j]
        groups, index = routing.groups, None
        if 2 * len(visited) <= self.w13.experts:  # of more, copying their codes is no less work than unpacking all
            groups = (0, *(groups[e + 1] for e in visited))
            index = torch.tensor(visited, device=x_TD.device)
        sent = ops.quantize_tokens(x_TD, recipe.input)
        by_block = isinstance(sent, BlockTensor)
        x_q = sent.rows(routing.tokens) if by_block else sent.index_select(0, routing.tokens)
        h_q, _ = ops.gate_up_glu(x_q, self.w13.some(index), groups, recipe.hidden, setting.accumulator)
        payload = ops.down_to_wire(h_q, self.w2.some(index), groups, wire, setting.accumulator)
        return ops.aggregate(payload, routing.slots, weights_TK, wire)[0]  # type: ignore[no-any-return]

    @property
    def bytes(self) -> int:
        return self.w13.bytes + self.w2.bytes


class FrozenLinear:
    """A dense layer whose weight was rounded to BF16 once; on a CPU it is kept as FP32, which its products take."""

    def __init__(self, linear: Linear) -> None:
        w = linear.weight.detach().to(torch.bfloat16)
        self._exactly = linear.parity
        self._w = w if w.is_cuda or self._exactly else w.to(torch.float32)

    def __call__(self, x_TK: Tensor) -> Tensor:
        """(T, K) BF16 -> (T, N) BF16."""
        if self._exactly:
            return dot(x_TK, self._w, torch.bfloat16)
        if x_TK.is_cuda:
            return x_TK @ self._w.T
        return (x_TK.to(torch.float32) @ self._w.T).to(torch.bfloat16)  # [T, K] @ [K, N] -> [T, N]


@dataclass(frozen=True, eq=False)
class FrozenMLP:
    """w_out(swiglu(w_in(x)))."""

    w_in: FrozenLinear
    w_out: FrozenLinear

    @staticmethod
    def of(w_in: Linear, w_out: Linear) -> FrozenMLP:
        return FrozenMLP(FrozenLinear(w_in), FrozenLinear(w_out))

    def __call__(self, x_TD: Tensor) -> Tensor:
        return self.w_out(glu(self.w_in(x_TD)))
