"""What a model is made of: its sizes and options, checked against each other and a recipe; one dial for all sizes.

    dial L:   depth L, width 16 L, 8 experts of width 32 L / 3, two per token and a shared one   about 5,900 L^3 weights

L is a multiple of 6, so that the last sixth of the layers is whole, and every width a multiple of 32, a block. The
options are those of the article and of the model that it trained: a short causal convolution after the experts' output,
sigmoid scores with biases that balance the load (DeepSeek-V3, arXiv 2412.19437, section 2.1.2), a shared expert, first
layers without experts, fewer heads for keys and values (arXiv 2305.13245), a sliding window, no positions at all.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from .recipe import ExpertRecipe, Recipe

LARGEST_DIAL = 54  # 0.9 billion weights


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
    """Width of the shared expert, which every token passes; 0 for none."""
    sequence: int = 128
    """Tokens in a sequence."""
    balance: float = 0.01
    """Weight of the load-balancing loss of the softmax router."""
    kv_heads: int | None = None
    """Heads of keys and values, dividing heads; as many as heads if left out."""
    window: int | None = None
    """Tokens that a token attends to, itself included; all before it if left out."""
    full_every: int = 6
    """With a window: every so many layers one attends to everything before it; 1 for every layer."""
    positions: Literal["rotary", "none"] = "rotary"
    """How attention knows positions: rotary embedding, or by causality alone."""
    router: Literal["softmax", "sigmoid"] = "softmax"
    """Scores of experts: softmax with a load-balancing loss, or sigmoid with biases that balance the load."""
    bias_speed: float = 0.001
    """Step of the sigmoid router's biases after each optimizer step."""
    convolution: int = 0
    """Width of a causal depthwise convolution after the experts' output, such as 4; 0 for none."""
    dense_layers: int = 0
    """First layers that have a plain MLP instead of experts."""
    dense_dim: int | None = None
    """Its width; top_k x expert_dim + shared_dim if left out."""

    @staticmethod
    def dial(depth: int, **changes: object) -> ModelConfig:
        """The sizes that belong to `depth`. Raises ValueError for one that is no multiple of 6 from 6 to 54."""
        if depth % 6 or not 6 <= depth <= LARGEST_DIAL:
            raise ValueError(f"dial={depth}: use a multiple of 6 from 6 to {LARGEST_DIAL}")
        sixth, wide = depth // 6, depth // 6 * 64
        sizes = {"dim": 96 * sixth, "depth": depth, "heads": 4 if depth == 6 else 2 * sixth}
        return ModelConfig(**(sizes | {"expert_dim": wide, "shared_dim": wide} | changes))  # type: ignore[arg-type]

    @property
    def dense_width(self) -> int:
        """Width of the MLP of first layers."""
        return self.top_k * self.expert_dim + self.shared_dim if self.dense_dim is None else self.dense_dim

    @property
    def key_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    def window_of(self, layer: int) -> int | None:
        """How far layer `layer` looks back; None: to the start."""
        return None if self.window is None or (layer + 1) % self.full_every == 0 else self.window

    def check(self, recipe: Recipe) -> None:
        """Raises ValueError for sizes that do not fit each other or the recipe's blocks."""
        for name in ("vocab", "dim", "depth", "heads", "experts", "top_k", "expert_dim", "sequence", "full_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: use 1 or more")
        for name in ("balance", "bias_speed", "shared_dim", "convolution", "dense_layers"):
            if not getattr(self, name) >= 0:  # NaN too
                raise ValueError(f"{name}={getattr(self, name)}: use 0 or more")
        for name in ("kv_heads", "window", "dense_dim"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: use 1 or more, or leave it out")
        if self.depth % 6:
            raise ValueError(f"depth={self.depth}: the last sixth must be whole; use {self.depth // 6 * 6 + 6}")
        layers = tuple(recipe.layer(layer, self.depth) for layer in range(self.depth))
        if self.dim % (2 * self.heads):
            step = math.lcm(2 * self.heads, *(layer.row_block for layer in layers))
            raise ValueError(f"dim={self.dim}: {self.heads} heads need even parts of it; use {_near(self.dim, step)}")
        if self.heads % self.key_heads:
            raise ValueError(f"kv_heads={self.kv_heads}: it must divide heads={self.heads}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k}: there are {self.experts} experts; use at most {self.experts}")
        if self.dense_layers >= self.depth:
            raise ValueError(f"dense_layers={self.dense_layers}: of {self.depth} layers one at least has experts")
        for name, value in (("router", ("softmax", "sigmoid")), ("positions", ("rotary", "none"))):
            if getattr(self, name) not in value:
                raise ValueError(f"{name}={getattr(self, name)!r}: use {' or '.join(value)}")
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


def stated(config: ModelConfig) -> dict[str, object]:
    """The fields of `config`, those that came later only where they are set: what names a run."""
    late = {f.name: f.default for f in dataclasses.fields(ModelConfig)[10:]}
    fields = dataclasses.asdict(config)
    return {name: value for name, value in fields.items() if name not in late or value != late[name]}


def _near(value: int, multiple: int) -> str:
    """The multiples around a value, for an error's remedy."""
    lower, upper = value // multiple * multiple, value // multiple * multiple + multiple
    return f"{lower} or {upper}" if lower else f"{upper}"
