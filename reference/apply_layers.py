"""What a linear layer, or experts, of your own model compute while they follow a recipe.

A module's class is exchanged for one derived from it, whose `forward` is `linear.LinearUnder` or `expert.ExpertMLP` on
the module's own parameters. Shapes: T tokens, K experts per token, E experts, D model width, F expert width.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from numerics import hadamard_signs
from numerics.arguments import require_kind
from numerics.cache import cached
from numerics.uncompiled import uncompiled

from .apply_find import MASTERS, sorted_rows
from .apply_steps import Steps, replica_seed
from .expert import ExpertMLP, Setting, route
from .linear import LinearUnder
from .recipe import ExpertRecipe


@dataclass(frozen=True, eq=False)
class Followed:
    """What a module that follows a recipe computes with, and the class that it had."""

    name: str
    number: int
    original: type[nn.Module]
    recipe: ExpertRecipe
    words: str
    ops: ModuleType
    accumulator: str
    seed: int
    steps: Steps
    replica: int | None = None

    def setting(self, device: torch.device) -> Setting:
        signs = {size: _signs(size, self.seed, device) for size in self.recipe.hadamard_sizes}
        draw = self.steps.draw(replica_seed(self.seed, self.replica), self.number)
        return Setting(self.ops, self.recipe, signs, self.number, draw, self.accumulator)

    def __deepcopy__(self, memo: dict[int, Any]) -> Followed:
        return replace(self, steps=copy.deepcopy(self.steps, memo))  # recipes and operations are shared


@cached(maxsize=16)
def _signs(size: int, seed: int, device: torch.device) -> Tensor:
    """One set of signs for the whole model."""
    return hadamard_signs(size, (seed, 0)).to(device)


class Follows(nn.Module):
    """Mixed into the class of a module that follows a recipe."""

    _fourbit: Followed

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (super().extra_repr(), f"recipe={self._fourbit.words}")))


@functools.cache
def derived(original: type[nn.Module], experts: bool) -> type[nn.Module]:
    linear, grouped, choosing = map(uncompiled, (_linear, _sorted, _experts))  # the compiler would change bits

    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not experts:
            return linear(self, *args, **kwargs)
        return (grouped if sorted_rows(self) else choosing)(self, *args, **kwargs)

    return type(original.__name__, (Follows, original), {"forward": forward, "__module__": original.__module__})


def _linear(module: Any, input: Tensor) -> Tensor:
    x = _entering(module, input, module.in_features, module.weight)
    with torch.autocast(x.device.type, enabled=False):
        rows = x.reshape(-1, x.shape[-1])
        y = LinearUnder.apply(rows, module.weight, module.bias, module._fourbit.setting(x.device))
    return y.reshape(*x.shape[:-1], module.out_features)


def _experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    w13, w2 = module.gate_up_proj, module.down_proj
    x = _entering(module, hidden_states, w13.shape[-1], w13)
    with torch.autocast(x.device.type, enabled=False):
        chosen, order = top_k_index.sort(-1)  # sums over a token's experts have one order
        weights = top_k_weights.to(torch.float32).gather(-1, order)
        setting = module._fourbit.setting(x.device)
        out = _Experts.apply(x, weights, w13, w2, route(chosen, len(w2)), setting)
    return out.to(x.dtype)


def _sorted(module: Any, x: Tensor, num_tokens_per_expert: Tensor) -> Tensor:
    """Rows x (R, D) sorted by expert, as torchtitan's dispatcher hands them over; rows beyond the counts become 0."""
    w13, w2 = torch.cat([module.w1, module.w3], 1), module.w2
    rows = _entering(module, x, module.w1.shape[-1], module.w1)
    with torch.autocast(x.device.type, enabled=False):
        experts = torch.arange(len(w2), device=x.device)
        chosen = experts.repeat_interleave(num_tokens_per_expert.to(torch.int64)).unsqueeze(-1)
        ones = torch.ones(len(chosen), 1, device=x.device)
        setting = module._fourbit.setting(x.device)
        out = _Experts.apply(rows[: len(chosen)], ones, w13, w2, route(chosen, len(w2)), setting)
    return torch.cat([out.to(x.dtype), x.new_zeros(len(x) - len(chosen), x.shape[-1])])


class _Experts(ExpertMLP):
    """`ExpertMLP` whose backward computes the same when it is called inside autocast. Differentiable once."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grads[0].device.type, enabled=False):
            return ExpertMLP.backward(ctx, *grads)


def _entering(module: Any, x: Tensor, width: int, master: Tensor) -> Tensor:
    """The input in the dtype that nn.Linear would read. Raises TypeError or ValueError that names the layer."""
    name = module._fourbit.name
    if master.dtype not in MASTERS:
        raise TypeError(f"the weights of {name} became {master.dtype} since apply: use float32 or bfloat16")
    require_kind(x, Tensor, f"the input of {name}", "pass a torch tensor")
    if x.ndim == 0 or x.shape[-1] != width:
        raise ValueError(f"the input of {name} has shape {tuple(x.shape)}: pass (.., {width})")
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"the input of {name} has dtype {x.dtype}: pass float32, bfloat16 or float16")
    return x
