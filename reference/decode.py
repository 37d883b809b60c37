"""A model's forward over tokens that come in pieces, with a cache: training's operations, on frozen weights.

Sequences of unequal length go together. Everything but attention and convolution sees the new tokens of all of them as
T rows without padding; keys and values of a sequence lie in the cache at the tokens' own positions, so that a row of
the cache is filled from the left and what is to the right of it is not looked at.

Shapes: B sequences, T new tokens of all of them, L of the one with most, S positions of the cache, D width, H heads, G
of keys and values, C = D / H, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Attention
from .dense import ShortConvolution
from .expert import Draw, Routing, Setting, route
from .frozen import FrozenExperts, FrozenLinear, FrozenMLP
from .fused import eager
from .model import Transformer
from .moe import DenseMLP, MoE
from .router import choose

T = TypeVar("T")


@dataclass(eq=False)
class Cache:
    """What was seen of B sequences.

    Attributes: lengths: tokens of each. keys, values: (B, S, G, C) of each layer. outputs: (B, S, D) BF16, what a
    layer's convolution reads; None without one.
    """

    lengths: list[int]
    keys: list[Tensor]
    values: list[Tensor]
    outputs: list[Tensor | None]

    def rows(self, index: list[int]) -> Cache:
        """The sequences `index`, in that order, copied; one may be there several times."""
        at = torch.tensor(index, device=self.keys[0].device)
        keys, values = ([t.index_select(0, at) for t in ts] for ts in (self.keys, self.values))
        outputs = [None if t is None else t.index_select(0, at) for t in self.outputs]
        return Cache([self.lengths[i] for i in index], keys, values, outputs)


@dataclass(frozen=True, eq=False)
class Places:
    """Where T new tokens are: sequence, position in it, number within its piece, int64 (T,); L; S that are in use.

    each: whether every sequence has one, so that the rows T are the sequences B. kept: what layers have computed of
    this alone."""

    rows: Tensor
    positions: Tensor
    within: Tensor
    longest: int
    used: int
    each: bool
    kept: dict[object, Any] = field(default_factory=dict)

    @staticmethod
    def of(starts: list[int], counts: list[int], device: torch.device) -> Places:
        """Of pieces of `counts` tokens that begin at `starts`."""
        rows = [row for row, count in enumerate(counts) for _ in range(count)]
        within = [i for count in counts for i in range(count)]
        positions = [starts[row] + i for row, i in zip(rows, within, strict=True)]
        made = torch.tensor([rows, positions, within], device=device).unbind(0)
        used = max(s + c for s, c in zip(starts, counts, strict=True))
        return Places(*made, max(counts), used, set(counts) == {1})

    def once(self, what: object, make: Callable[[], T]) -> T:
        """`make()`, made the first time that `what` is asked for."""
        if what not in self.kept:
            self.kept[what] = make()
        found: T = self.kept[what]
        return found

    def spread(self, x: Tensor, sequences: int) -> Tensor:
        """(T, ..) -> (B, L, ..), zeros where there is no token."""
        if self.each:
            return x[:, None]
        out = x.new_zeros(sequences, self.longest, *x.shape[1:])
        out[self.rows, self.within] = x
        return out

    def gathered(self, x: Tensor) -> Tensor:
        """(B, L, ..) -> (T, ..)."""
        return x[:, 0] if self.each else x[self.rows, self.within]

    def visible(self, window: int | None, sequences: int) -> Tensor:
        """bool (B, L, S): which positions a token sees."""

        def make() -> Tensor:
            t_BL = self.spread(self.positions, sequences)
            distance_BLS = t_BL[..., None] - torch.arange(self.used, device=t_BL.device)
            seen = distance_BLS >= 0
            return seen if window is None else seen & (distance_BLS < window)

        return self.once(("visible", window), make)


def frozen(part: T) -> T:
    """A copy of a small part as it is now, without gradients."""
    copied = deepcopy(part)
    if isinstance(copied, torch.nn.Module):
        copied.requires_grad_(False)
    return copied


class _FrozenAttention:
    def __init__(self, attention: Attention, sequence: int) -> None:
        self.module, self.sequence = attention, sequence
        self.qkv, self.out = FrozenLinear(attention.qkv), FrozenLinear(attention.out)

    def __call__(self, x_TD: Tensor, places: Places, keys: Tensor, values: Tensor) -> Tensor:
        """(T, D) BF16 -> (T, D) BF16. keys, values: (B, S, G, C), to which those of the new tokens are added."""
        module, used = self.module, places.used
        split_TNC = self.qkv(x_TD).unflatten(-1, (module.heads + 2 * module.kv_heads, -1))
        turns = places.once("turns", lambda: module.turns_at(places.positions, self.sequence))
        q_THC, k_TGC, v_TGC = module.heads_of(split_TNC, turns)
        keys[places.rows, places.positions] = k_TGC
        values[places.rows, places.positions] = v_TGC
        q_BLHC, visible_BLS = places.spread(q_THC, len(keys)), places.visible(module.window, len(keys))
        y_BHLC = module.mix(*(t.transpose(1, 2) for t in (q_BLHC, keys[:, :used], values[:, :used])), visible_BLS)
        return self.out(places.gathered(y_BHLC.transpose(1, 2)).flatten(-2).to(torch.bfloat16))


class _FrozenLayer:
    """A layer of the model; `setting`: what its experts compute with."""

    def __init__(self, layer: torch.nn.Module, setting: Setting, sequence: int) -> None:
        self.attention_norm, self.moe_norm = frozen(layer.attention_norm), frozen(layer.moe_norm)
        self.attention = _FrozenAttention(layer.attention, sequence)
        self.setting = setting
        moe: MoE | DenseMLP = layer.moe
        self.top_k, self.parity = 0, layer.attention.parity
        self.dense = FrozenMLP.of(moe.w_in, moe.w_out) if isinstance(moe, DenseMLP) else None
        self.experts = self.shared_experts = self.shared = None
        self.convolution: ShortConvolution | None = None
        if isinstance(moe, MoE):
            self.top_k, self.router, self.balancer = moe.top_k, moe.router.detach().clone(), frozen(moe.balancer)
            self.convolution = frozen(moe.convolution)
            self.experts = FrozenExperts.of(moe.w13, moe.w2, setting)
            if moe.has_shared and setting.shared:
                w13, w2 = moe.shared_in.weight[None], moe.shared_out.weight[None]
                self.shared_experts = FrozenExperts.of(w13, w2, setting)
            elif moe.has_shared:
                self.shared = FrozenMLP.of(moe.shared_in, moe.shared_out)

    def mlp(self, x_TD: Tensor, places: Places, outputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(T, D) BF16 -> (T, D) BF16, and the experts (T, K) of each token, None without any."""
        if self.dense is not None:
            return self.dense(x_TD), None
        assert self.experts is not None
        choice = choose(x_TD, self.router, self.top_k, self.balancer, self.parity)
        out_TD = self.experts.forward(x_TD, choice.weights, route(choice.experts, len(self.router)), self.setting)
        if self.shared is not None:
            out_TD = out_TD + self.shared(x_TD)
        elif self.shared_experts is not None:
            out_TD = out_TD + self._shared(x_TD, self.shared_experts)
        if self.convolution is not None and outputs is not None:
            out_TD = convolved(self.convolution, out_TD, places, outputs)
        return out_TD, choice.experts

    def _shared(self, x_TD: Tensor, experts: FrozenExperts) -> Tensor:
        tokens = torch.arange(len(x_TD), device=x_TD.device)
        weights_T1 = torch.ones(len(x_TD), 1, device=x_TD.device)
        return experts.forward(x_TD, weights_T1, Routing(tokens[:, None], tokens, (0, len(x_TD))), self.setting)


def convolved(convolution: ShortConvolution, x_TD: Tensor, places: Places, outputs: Tensor) -> Tensor:
    """`ShortConvolution` of new tokens. outputs (B, S, D): of those before, to which the new ones are added."""
    outputs[places.rows, places.positions] = x_TD
    y_TD = x_TD.to(torch.float32)
    for j in range(convolution.taps.shape[1]):
        before = places.positions - j
        x = outputs[places.rows, before.clamp(min=0)].to(torch.float32)
        y_TD = y_TD + torch.where(before[:, None] < 0, 0.0, x) * convolution.taps[:, j]
    return y_TD.to(torch.bfloat16)


class Frozen:
    """A model's weights as they are now, and its forward. Raises ValueError as the operations do."""

    def __init__(self, model: Transformer) -> None:
        self.config = model.config
        self._embed = model.embed.detach().to(torch.bfloat16)
        self._norm, self._head = frozen(model.norm), FrozenLinear(model.head)
        self.layers = [
            _FrozenLayer(layer, self._setting(model, i), model.config.sequence) for i, layer in enumerate(model.layers)
        ]

    @staticmethod
    def _setting(model: Transformer, index: int) -> Setting:
        recipe = model.recipes[index]
        signs = {size: model.signs[size].to(model.embed.device) for size in recipe.hadamard_sizes}
        # nothing is drawn in a forward
        return Setting(model.ops, recipe, signs, index, Draw(0, -1, 0), model.accumulator, model.recipe.shared)

    def cache(self, sequences: int, positions: int) -> Cache:
        """An empty cache for so many sequences of so many tokens each."""
        c, device = self.config, self._embed.device
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        shape = sequences, positions, c.key_heads, c.dim // c.heads
        keys, values = ([torch.zeros(shape, dtype=kind, device=device) for _ in self.layers] for _ in range(2))
        rows = sequences, positions, c.dim
        outputs = [
            None if layer.convolution is None else torch.zeros(rows, dtype=torch.bfloat16, device=device)
            for layer in self.layers
        ]
        return Cache([0] * sequences, keys, values, outputs)

    @torch.no_grad()
    def feed(self, cache: Cache, pieces: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Add tokens to each sequence, to some of them perhaps none.

        Returns: logits (B, V) BF16 after the last token of each sequence, zeros where none was added, and the experts
        int64 (layers with experts, T, K) of the new tokens, those of a sequence one after the other.
        """
        device, counts = self._embed.device, [len(piece) for piece in pieces]
        places = Places.of(cache.lengths, counts, device)
        ids_T = torch.tensor([token for piece in pieces for token in piece], device=device)
        x_TD, chosen = F.embedding(ids_T, self._embed.to(torch.float32)), []
        with eager():  # shapes change from call to call: nothing is worth compiling
            for layer, keys, values, outputs in zip(self.layers, cache.keys, cache.values, cache.outputs, strict=True):
                y_TD = layer.attention(layer.attention_norm(x_TD), places, keys, values)
                x_TD, normed_TD = layer.moe_norm.after(x_TD, y_TD)
                y_TD, experts_TK = layer.mlp(normed_TD, places, outputs)
                x_TD = x_TD + y_TD
                chosen += [] if experts_TK is None else [experts_TK]
            fed = [row for row, count in enumerate(counts) if count]
            ends = list(accumulate(counts))
            last = torch.tensor([ends[row] - 1 for row in fed], device=device)
            found = self._head(self._norm(x_TD[last]))
        logits_BV = found.new_zeros(len(pieces), found.shape[-1])
        logits_BV[fed] = found
        cache.lengths = [length + count for length, count in zip(cache.lengths, counts, strict=True)]
        return logits_BV, torch.stack(chosen)

    @property
    def expert_bytes(self) -> int:
        """Of the weights of routed experts."""
        return sum(layer.experts.bytes for layer in self.layers if layer.experts is not None)


def release_experts(model: Transformer) -> None:
    """Give back the memory of the routed experts' masters, once a `Frozen` has been made of them. The model itself
    cannot compute any more, nor be frozen again."""
    for part in model.modules():
        if isinstance(part, MoE):
            for master in (part.w13, part.w2):
                master.data = master.data.new_empty(0)
