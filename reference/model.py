"""A decoder-only MoE language model whose expert layers follow a recipe.

    x = embed(tokens);  per layer  x += attention(norm(x)),  x += moe(norm(x));  logits = head(norm(x))

The residual stream is FP32; every branch reads and writes BF16. Experts follow the recipe; attention, router,
embeddings and head are BF16, shared experts too unless the recipe says otherwise. Shapes: B sequences, S
positions, D width, V vocabulary, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerics import hadamard_signs
from numerics.hadamard import SIZES

from .attention import Attention
from .dense import Linear, RMSNorm
from .expert import Draw, Observer, Setting
from .moe import DenseMLP, MoE
from .parity import require_parity
from .recipe import ExpertRecipe, Recipe
from .recompute import recomputed
from .segments import Segments
from .sizes import ModelConfig as ModelConfig


@dataclass(frozen=True, eq=False)
class Losses:
    """ce: mean nats per token; balance: load-balancing loss, weighted. FP32 scalars with gradients."""

    ce: Tensor
    balance: Tensor

    @property
    def total(self) -> Tensor:
        return self.ce + self.balance


_INTO_RESIDUAL = ("attention.out.weight", "w2", "shared_out.weight", "w_out.weight")


class _Layer(nn.Module):
    def __init__(self, c: ModelConfig, index: int) -> None:
        super().__init__()
        rotary = c.positions == "rotary"
        self.attention_norm = RMSNorm(c.dim)
        self.attention = Attention(c.dim, c.heads, c.kv_heads, c.window_of(index), rotary)
        self.moe_norm = RMSNorm(c.dim)
        sizes = c.dim, c.experts, c.top_k, c.expert_dim, c.shared_dim
        speed = c.bias_speed if c.router == "sigmoid" else None
        dense = index < c.dense_layers
        self.moe = DenseMLP(c.dim, c.dense_width) if dense else MoE(*sizes, speed, c.convolution)

    def forward(self, x_BSD: Tensor, setting: Setting) -> tuple[Tensor, Tensor]:
        x_BSD, normed_BSD = self.moe_norm.after(x_BSD, self.attention(self.attention_norm(x_BSD), setting.segments))
        y_BSD, balance = self.moe(normed_BSD, setting)
        return x_BSD + y_BSD, balance


class Transformer(nn.Module):
    """The model. Initial weights depend on `seed` and the sizes only, never on the recipe.

    Args: config, recipe; ops: the module that provides the seam (`numerics.ops`); seed; accumulator of the experts'
        products, by name: see `numerics.accumulators`; recompute_glu: see `expert.Setting`.

    `recompute_layers` may be set: a backward then computes each layer again, see `recompute`.
    """

    parity = False

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
        self.recompute_glu, self.recompute_layers = recompute_glu, False
        self.observer: Observer | None = None
        self.embed = nn.Parameter(torch.empty(config.vocab, config.dim))
        self.layers = nn.ModuleList(_Layer(config, index) for index in range(config.depth))
        self.norm, self.head = RMSNorm(config.dim), Linear(config.dim, config.vocab)
        self._initialize(seed)
        # one set of signs for the whole run: every expert must share it, and the inverse must know it
        self.signs = {size: hadamard_signs(size, (seed, 0)) for size in SIZES}
        self.recipes = tuple(recipe.layer(i, config.depth) for i in range(config.depth))

    def follow(self, recipes: tuple[ExpertRecipe, ...]) -> None:
        """From now on compute layer i under `recipes[i]`. Raises ValueError for widths that do not fit one of them."""
        self.config.check_widths(self.recipe, recipes)
        if self.parity:
            require_parity(recipes, self.accumulator)
        self.recipes = recipes

    def keep_parity(self) -> None:
        """From now on a token's bits depend on its sequence alone, see `parity`; products that are the library's become
        exact. Raises ValueError for layers that cannot."""
        accumulator = "exact" if self.accumulator == "library" else self.accumulator
        require_parity(self.recipes, accumulator)
        self.accumulator = accumulator
        for part in self.modules():
            if hasattr(part, "parity"):
                part.parity = True

    @torch.no_grad()
    def _initialize(self, seed: int) -> None:
        """Normal, standard deviation fan_in^-1/2; outputs into the residual stream smaller by (2 L)^-1/2."""
        generator = torch.Generator().manual_seed(seed)
        residual = (2 * self.config.depth) ** -0.5
        for name, p in self.named_parameters():
            if p.ndim >= 2 and not name.endswith("taps"):
                scale = residual if name.endswith(_INTO_RESIDUAL) else 1.0
                std = 0.5 if name == "embed" else scale * p.shape[-1] ** -0.5
                p.copy_(torch.randn(p.shape, generator=generator) * std)

    def forward(
        self, tokens_BS: Tensor, targets_BS: Tensor, draw: Draw, grains: int = 1, segments_BS: Tensor | None = None
    ) -> Losses:
        """Losses of a batch.

        Args: tokens_BS, targets_BS: int64 (B, S). draw: names the random words of the backward. grains: equal parts of
            B that the experts see one after the other, the first of them under `draw`'s grain. segments_BS: int64
            (B, S), see `segments`.
        """
        logits_BSV, balance = self.logits(tokens_BS, draw, grains, segments_BS)
        ce = F.cross_entropy(logits_BSV.flatten(0, 1).to(torch.float32), targets_BS.flatten())
        return Losses(ce, balance)

    def logits(
        self, tokens_BS: Tensor, draw: Draw, grains: int = 1, segments_BS: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(logits (B, S, V) BF16, weighted balance loss). segments_BS: texts in one sequence, see `segments`."""
        x_BSD = F.embedding(tokens_BS, self.embed.to(torch.bfloat16).to(torch.float32))
        balance = x_BSD.new_zeros(())
        segments = None if segments_BS is None else Segments(segments_BS)
        for index, layer in enumerate(self.layers):
            recipe = self.recipes[index]
            signs = {size: self.signs[size].to(x_BSD.device) for size in recipe.hadamard_sizes}
            setting = Setting(
                *(self.ops, recipe, signs, index, draw, self.accumulator, self.recipe.shared),
                recompute_glu=self.recompute_glu,
                grains=grains,
                observer=self.observer,
                segments=segments,
            )
            again = self.recompute_layers and torch.is_grad_enabled()
            x_BSD, extra = recomputed(layer, x_BSD, setting) if again else layer(x_BSD, setting)
            balance = balance + extra
        return self.head(self.norm(x_BSD)), balance * (self.config.balance / self.config.depth)
