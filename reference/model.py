"""A decoder-only MoE language model whose expert layers follow a recipe.

    x = embed(tokens);  per layer  x += attention(norm(x)),  x += moe(norm(x));  logits = head(norm(x))

The residual stream is FP32; every branch reads and writes BF16. Experts follow the recipe; attention, router,
embeddings and head are BF16, shared experts too unless the recipe says otherwise. Shapes: B sequences, S
positions, D width, V vocabulary, L layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerics import hadamard_signs
from numerics.hadamard import SIZES

from .dense import Attention, Linear, RMSNorm
from .expert import Draw, Observer, Setting
from .moe import MoE
from .recipe import ExpertRecipe, Recipe


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model."""

    vocab: int = 256
    """Tokens; 256 for bytes."""
    dim: int = 96
    """Width of the residual stream."""
    depth: int = 6
    """Layers; a multiple of 6, so that the last sixth is whole."""
    heads: int = 4
    """Attention heads, dividing dim into even parts."""
    experts: int = 8
    """Routed experts in a layer."""
    top_k: int = 2
    """Routed experts that serve a token."""
    expert_dim: int = 64
    """Width of a routed expert."""
    shared_dim: int = 64
    """Width of the shared expert, which every token passes."""
    sequence: int = 128
    """Tokens in a sequence."""
    balance: float = 0.01
    """Weight of the load-balancing loss."""

    def check(self, recipe: Recipe) -> None:
        """Raises ValueError for sizes that do not fit each other or the recipe's blocks."""
        for name in ("vocab", "dim", "depth", "heads", "experts", "top_k", "expert_dim", "shared_dim", "sequence"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: use 1 or more")
        if not self.balance >= 0:  # NaN too
            raise ValueError(f"balance={self.balance}: use 0 or more")
        if self.depth % 6:
            raise ValueError(f"depth={self.depth}: the last sixth must be whole; use {self.depth // 6 * 6 + 6}")
        layers = tuple(recipe.layer(layer, self.depth) for layer in range(self.depth))
        if self.dim % (2 * self.heads):
            step = math.lcm(2 * self.heads, *(layer.row_block for layer in layers))
            raise ValueError(f"dim={self.dim}: {self.heads} heads need even parts of it; use {_near(self.dim, step)}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k}: there are {self.experts} experts; use at most {self.experts}")
        self.check_widths(recipe, layers)

    def check_widths(self, recipe: Recipe, layers: tuple[ExpertRecipe, ...]) -> None:
        """Raises ValueError for widths that blocks of the layers' recipes do not divide."""
        block = math.lcm(*(layer.row_block for layer in layers))
        step = math.lcm(2 * self.heads, block)
        widths = {"dim": step, "expert_dim": block}
        if recipe.shared:
            widths["shared_dim"] = block
        for name, multiple in widths.items():
            if getattr(self, name) % block:
                raise ValueError(
                    f"{name}={getattr(self, name)}: blocks of {block} of recipe {recipe.name} do not "
                    f"divide it; use {_near(getattr(self, name), multiple)}"
                )


def _near(value: int, multiple: int) -> str:
    """The multiples around a value, for an error's remedy."""
    lower, upper = value // multiple * multiple, value // multiple * multiple + multiple
    return f"{lower} or {upper}" if lower else f"{upper}"


@dataclass(frozen=True, eq=False)
class Losses:
    """ce: mean nats per token; balance: load-balancing loss, weighted. FP32 scalars with gradients."""

    ce: Tensor
    balance: Tensor

    @property
    def total(self) -> Tensor:
        return self.ce + self.balance


class _Layer(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(c.dim), Attention(c.dim, c.heads)
        self.moe_norm, self.moe = RMSNorm(c.dim), MoE(c.dim, c.experts, c.top_k, c.expert_dim, c.shared_dim)

    def forward(self, x_BSD: Tensor, setting: Setting) -> tuple[Tensor, Tensor]:
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD))
        y_BSD, balance = self.moe(self.moe_norm(x_BSD), setting)
        return x_BSD + y_BSD, balance


class Transformer(nn.Module):
    """The model. Initial weights depend on `seed` and the sizes only, never on the recipe.

    Args: config, recipe; ops: the module that provides the seam (`numerics.ops`); seed; accumulator of the experts'
        products, by name: see `numerics.accumulators`; recompute_glu: see `expert.Setting`.
    """

    def __init__(
        self,
        config: ModelConfig,
        recipe: Recipe,
        ops: ModuleType,
        seed: int,
        accumulator: str = "library",
        recompute_glu: bool = False,
    ) -> None:
        super().__init__()
        config.check(recipe)
        self.config, self.recipe, self.ops, self.accumulator = config, recipe, ops, accumulator
        self.recompute_glu = recompute_glu
        self.observer: Observer | None = None
        self.embed = nn.Parameter(torch.empty(config.vocab, config.dim))
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.depth))
        self.norm, self.head = RMSNorm(config.dim), Linear(config.dim, config.vocab)
        self._initialize(seed)
        # one set of signs for the whole run: every expert must share it, and the inverse must know it
        self.signs = {size: hadamard_signs(size, (seed, 0)) for size in SIZES}
        self.recipes = tuple(recipe.layer(i, config.depth) for i in range(config.depth))

    def follow(self, recipes: tuple[ExpertRecipe, ...]) -> None:
        """From now on compute layer i under `recipes[i]`. Raises ValueError for widths that do not fit one of them."""
        self.config.check_widths(self.recipe, recipes)
        self.recipes = recipes

    @torch.no_grad()
    def _initialize(self, seed: int) -> None:
        """Normal, standard deviation fan_in^-1/2; outputs into the residual stream smaller by (2 L)^-1/2."""
        generator = torch.Generator().manual_seed(seed)
        residual = (2 * self.config.depth) ** -0.5
        for name, p in self.named_parameters():
            if p.ndim >= 2:
                scale = residual if name.endswith(("attention.out.weight", "w2", "shared_out.weight")) else 1.0
                std = 0.5 if name == "embed" else scale * p.shape[-1] ** -0.5
                p.copy_(torch.randn(p.shape, generator=generator) * std)

    def forward(self, tokens_BS: Tensor, targets_BS: Tensor, draw: Draw, grains: int = 1) -> Losses:
        """Losses of a batch.

        Args: tokens_BS, targets_BS: int64 (B, S). draw: names the random words of the backward. grains: equal parts of
            B that the experts see one after the other, the first of them under `draw`'s grain.
        """
        logits_BSV, balance = self.logits(tokens_BS, draw, grains)
        ce = F.cross_entropy(logits_BSV.flatten(0, 1).to(torch.float32), targets_BS.flatten())
        return Losses(ce, balance)

    def logits(self, tokens_BS: Tensor, draw: Draw, grains: int = 1) -> tuple[Tensor, Tensor]:
        """(logits (B, S, V) BF16, weighted balance loss)."""
        x_BSD = F.embedding(tokens_BS, self.embed.to(torch.bfloat16).to(torch.float32))
        balance = x_BSD.new_zeros(())
        for index, layer in enumerate(self.layers):
            recipe = self.recipes[index]
            signs = {size: self.signs[size].to(x_BSD.device) for size in recipe.hadamard_sizes}
            setting = Setting(
                *(self.ops, recipe, signs, index, draw, self.accumulator, self.recipe.shared),
                recompute_glu=self.recompute_glu,
                grains=grains,
                observer=self.observer,
            )
            x_BSD, extra = layer(x_BSD, setting)
            balance = balance + extra
        return self.head(self.norm(x_BSD)), balance * (self.config.balance / self.config.depth)
