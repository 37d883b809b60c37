"""Any recipe on your own model: its linear layers and experts follow a recipe, in place, until they are told not to.

    print(reference.apply(model, "fourbit"))          # a table of what follows what
    loss = model(batch).loss; loss.backward()          # every product of these layers, forward and backward
    with reference.step(model, 1000): ...              # the step whose random words the backward draws
    reference.remove(model)                            # as it was

A module's class is exchanged for one derived from it that computes by `linear.LinearUnder` or `expert.ExpertMLP`;
nothing else of it changes: parameters are the same objects under the same names, so `state_dict`, optimizers, hooks,
devices and `copy.deepcopy` work as before, and a step of an optimizer moves the masters, float32 or bfloat16. What a
model does between these layers stays its own. Under autocast they read and return autocast's dtype, as nn.Linear does.

Random words: key (seed, step), counter (number of the module among the model's candidates, call within the step). The
step goes up by one whenever the model is called in training, so micro-batches draw words of different steps;
`with step(model, n)` pins it, and calls inside are counted instead. Only steps that are named so repeat after a resume.

Not here: a recipe's `osci_reset`, which is the optimizer's; dispatch and combine of a linear layer, which has none.
Wrap afterwards: torch.compile leaves these layers as they are (graph breaks), fully_shard and DDP call them as ever.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from numerics import hadamard_signs, ops as emulated
from numerics.arguments import integer, require_kind

from .apply_find import Candidate, Where, candidates, select
from .apply_report import Line, Report
from .expert import Draw, ExpertMLP, Setting, route
from .linear import LinearUnder, blocks
from .presets import preset
from .recipe import ExpertRecipe, Recipe


@dataclass(eq=False)
class Steps:
    """Where a model is: its step, -1 before the first, whether a user pins it, and calls of each module within it."""

    step: int = -1
    pinned: bool = False
    calls: dict[int, int] = field(default_factory=dict)

    def go(self, step: int) -> None:
        self.step = step
        self.calls.clear()

    def draw(self, seed: int, number: int) -> Draw:
        """The words of the next call of a module. Calls without gradients draw none and are not counted."""
        call = self.calls.get(number, 0)
        if torch.is_grad_enabled():
            self.calls[number] = call + 1
        return Draw(seed, max(self.step, 0), call)


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

    def setting(self, device: torch.device) -> Setting:
        signs = {size: hadamard_signs(size, (self.seed, 0)).to(device) for size in self.recipe.hadamard_sizes}
        draw = self.steps.draw(self.seed, self.number)
        return Setting(self.ops, self.recipe, signs, self.number, draw, self.accumulator)

    def __deepcopy__(self, memo: dict[int, Any]) -> Followed:
        return replace(self, steps=copy.deepcopy(self.steps, memo))  # recipes and operations are shared


def apply(
    model: nn.Module,
    recipe: str | Recipe,
    where: Where = None,
    *,
    ops: ModuleType = emulated,
    seed: int = 0,
    accumulator: str = "library",
) -> Report:
    """From now on linear layers and experts of `model` compute under `recipe`, forward and backward.

    Args:
        recipe: a name in `presets`, or a Recipe. Its `last` part is for layers by their index in a numbered list.
        where: which: a glob on module names, a list of globs, or (name, module) -> bool. None: every nn.Linear and
            known experts but the output head, tied weights and routers.
        ops: the module that provides the seam. seed: of the random words. accumulator: of `numerics.ACCUMULATORS`.

    Returns: what was done; print it.

    Raises:
        ValueError: widths that blocks do not divide, modules that cannot follow a recipe or follow one already, a
            pattern that matches nothing, a recipe of first or last layers for a model without numbered ones, a model
            already compiled or sharded. The model is unchanged then. TypeError: another kind of argument.
    """
    require_kind(model, nn.Module, "model", "pass a torch.nn.Module")
    require_kind(recipe, (str, Recipe), "recipe", "pass a preset's name, or a Recipe")
    recipe = preset(recipe) if isinstance(recipe, str) else recipe
    seed = integer(seed, "seed", "pass an int")
    found = candidates(model)
    chosen = select(found, where)
    parts = _parts(recipe, chosen)
    _require_fit(chosen, parts)
    lines = []
    steps = model.__dict__.get("_steps") or Steps()
    for c, (part, words) in zip(chosen, parts, strict=True):
        place = "" if c.place is None else f"{c.place[1] + 1} of {c.place[2]}"
        line = Line(c.name, "experts" if c.experts else "linear", c.shape, place, words, *Line.formats(part))
        told = f"{recipe.name}, {words}" if words else recipe.name
        c.module._followed = Followed(
            *(c.name, c.number, type(c.module), part, told, ops, accumulator, seed, steps)
        )
        c.module.__class__ = _derived(type(c.module), c.experts)
        lines.append(line)
    if "_steps" not in model.__dict__:
        model._steps = steps
        model.register_forward_pre_hook(_advance)
    left = tuple((c.name, c.left or "not selected") for c in found if "_followed" not in c.module.__dict__)
    return Report(recipe.name, tuple(lines), left, tuple(_notes(recipe, chosen)))


def remove(model: nn.Module) -> None:
    """Every module at or below `model` computes as it did before `apply`.

    Raises: ValueError if none follows a recipe, or one changed its class since (undo that first); nothing changes then.
    """
    require_kind(model, nn.Module, "model", "pass the model that was given to apply")
    followed = [m for m in model.modules() if "_followed" in m.__dict__]
    if not followed and "_steps" not in model.__dict__:
        raise ValueError(f"no module of this {type(model).__name__} follows a recipe: nothing to remove")
    for m in followed:
        state = m._followed
        if not isinstance(m, _Follows) or type(m).__bases__ != (_Follows, state.original):
            raise ValueError(f"{state.name} became a {type(m).__name__} since apply: undo that first, then remove")
    for m in followed:
        m.__class__ = m._followed.original
        del m.__dict__["_followed"]
    if "_steps" in model.__dict__:
        hooks: Any = model._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is _advance]:
            del hooks[key]
        del model.__dict__["_steps"]


@contextmanager
def step(model: nn.Module, n: int) -> Iterator[None]:
    """Inside, the model is at step `n`, from 0, however often it is called: the n-th call of a module draws the n-th
    words. Call the forward inside; the backward may come later. Afterwards it goes on from `n`.

    Raises: ValueError for a model that follows no recipe, or an n outside 32 bits.
    """
    n = integer(n, "n", "pass a step as int")
    if not 0 <= n < 2**32:
        raise ValueError(f"n={n}: pass a step from 0 to 2**32 - 1")
    every = [m.__dict__["_steps"] for m in model.modules() if "_steps" in m.__dict__]
    if not every:
        raise ValueError(f"no part of this {type(model).__name__} was given to apply, so it has no step")
    before = [steps.pinned for steps in every]
    for steps in every:
        steps.go(n)
        steps.pinned = True
    try:
        yield
    finally:
        for steps, pinned in zip(every, before, strict=True):
            steps.pinned = pinned


def _advance(model: nn.Module, args: Any) -> None:
    """Forward pre-hook of the model; holds nothing, so that a copy of the model counts for itself."""
    steps = model.__dict__.get("_steps")
    if steps is not None and not steps.pinned and model.training and torch.is_grad_enabled():
        steps.go(steps.step + 1)


class _Follows(nn.Module):
    """Mixed into the class of a module that follows a recipe."""

    _followed: Followed

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (super().extra_repr(), f"recipe={self._followed.words}")))


@functools.cache
def _derived(original: type[nn.Module], experts: bool) -> type[nn.Module]:
    compute = torch.compiler.disable(_experts if experts else _linear)  # the compiler would change bits

    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        return compute(self, *args, **kwargs)

    return type(original.__name__, (_Follows, original), {"forward": forward, "__module__": original.__module__})


def _linear(module: Any, input: Tensor) -> Tensor:  # noqa: A002  nn.Linear's name
    x = _entering(module, input, module.in_features)
    with torch.autocast(x.device.type, enabled=False):
        rows = x.reshape(-1, x.shape[-1])
        y = LinearUnder.apply(rows, module.weight, module.bias, module._followed.setting(x.device))
    return y.reshape(*x.shape[:-1], module.out_features)


def _experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    w13, w2 = module.gate_up_proj, module.down_proj
    x = _entering(module, hidden_states, w13.shape[-1])
    with torch.autocast(x.device.type, enabled=False):
        chosen, order = top_k_index.sort(-1)  # sums over a token's experts have one order
        weights = top_k_weights.to(torch.float32).gather(-1, order)
        setting = module._followed.setting(x.device)
        out = _Experts.apply(x, weights, w13, w2, route(chosen, len(w2)), setting)
    return out.to(x.dtype)


class _Experts(ExpertMLP):
    """`ExpertMLP` whose backward computes the same when it is called inside autocast."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grads[0].device.type, enabled=False):
            return ExpertMLP.backward(ctx, *grads)


def _entering(module: Any, x: Tensor, width: int) -> Tensor:
    """The input in the dtype that nn.Linear would read. Raises TypeError or ValueError that names the layer."""
    name = module._followed.name
    require_kind(x, Tensor, f"the input of {name}", "pass a torch tensor")
    if x.ndim == 0 or x.shape[-1] != width:
        raise ValueError(f"the input of {name} has shape {tuple(x.shape)}: pass (.., {width})")
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"the input of {name} has dtype {x.dtype}: pass float32, bfloat16 or float16")
    return x


def _parts(recipe: Recipe, chosen: list[Candidate]) -> list[tuple[ExpertRecipe, str]]:
    """Of each module its part of the recipe, and which layers' it is in words."""
    if recipe.other_layers and not any(c.place for c in chosen):
        raise ValueError(
            f"recipe {recipe.name} has another part for {recipe.other_layers}, and none of the chosen modules is in "
            "a numbered list (nn.ModuleList): use a recipe of one part, such as fourbit_all_layers, or "
            "dataclasses.replace(recipe, first_share=0.0, last_share=0.0)"
        )
    parts = []
    for c in chosen:
        part = recipe.experts if c.place is None else recipe.layer(*c.place[1:])
        other = part is not recipe.experts and bool(recipe.other_layers)
        parts.append((part, recipe.other_layers if other else "most layers" if recipe.other_layers else ""))
    return parts


def _require_fit(chosen: list[Candidate], parts: list[tuple[ExpertRecipe, str]]) -> None:
    """Raises ValueError that names every module which cannot follow its part."""
    wrong = []
    for c, (part, _) in zip(chosen, parts, strict=True):
        if "_followed" in c.module.__dict__:
            wrong.append(f"{c.name} follows {c.module._followed.words} already: call remove first")
        elif c.unfit:
            wrong.append(f"{c.name}: {c.unfit}")
        elif misfit := _misfit(c, part):
            wrong.append(f"{c.name}: {misfit}")
    if wrong:
        more = f"\n  and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        told = "\n  ".join(wrong[:8]) + more
        raise ValueError(f"{len(wrong)} of {len(chosen)} modules cannot follow; leave them out by where=:\n  {told}")


def _misfit(c: Candidate, part: ExpertRecipe) -> str:
    """Which width blocks do not divide, or ""."""
    names = ("width", "expert width") if c.experts else ("out_features", "in_features")
    multiples = (part.row_block, part.row_block) if c.experts else blocks(part)[::-1]
    for name, size, multiple in zip(names, c.shape[-2:], multiples, strict=True):
        if size % multiple:
            return f"{name}={size} is no multiple of {multiple}, this recipe's blocks"
    return ""


def _notes(recipe: Recipe, chosen: list[Candidate]) -> Iterator[str]:
    if any(part.osci_reset for part in (recipe.experts, recipe.last)):
        yield "master weights that oscillate are not reset: the recipe's osci_reset is the optimizer's part"
    for c in chosen:
        if c.tied:
            yield f"{c.name} follows the recipe; its weight is also that of {', '.join(c.tied)}"
    if recipe.other_layers and any(c.place is None for c in chosen):
        names = ", ".join(c.name or "(the model)" for c in chosen if c.place is None)
        yield f"in no numbered list, so as most layers: {names}"
