"""Any recipe on your own model: its linear layers and experts follow a recipe, in place, until they are told not to.

    print(reference.apply(model, "fourbit"))          # a table of what follows what
    loss = model(batch).loss; loss.backward()          # every product of these layers, forward and backward
    with reference.step(model, 1000): ...              # the step whose random words the backward draws
    reference.remove(model)                            # as it was

A module's class is exchanged for one derived from it that computes by `linear.LinearUnder` or `expert.ExpertMLP`;
nothing else of it changes: parameters are the same objects under the same names, so `state_dict`, optimizers, hooks,
devices and `copy.deepcopy` work as before, and a step of an optimizer moves the masters, float32 or bfloat16. What a
model does between these layers stays its own. Under autocast they read and return autocast's dtype, as nn.Linear does.

Random words: key (seed, step), counter (number of the module among the model's candidates, call within the step).
Replicas that average gradients (DistributedDataParallel, FSDP) draw from seeds of their own, see `apply_steps`. The
step goes up by one whenever the model is called in training, so micro-batches draw words of different steps;
`with step(model, n)` pins it, and calls inside are counted instead. Only steps that are named so repeat after a resume;
`trainer_callback` names them for the Trainer of `transformers`.
Models, or parts of one, that are given to `apply` apart each count their modules from 0: give each a seed of its own.

Not here: a recipe's `osci_reset`, which is the optimizer's; dispatch and combine of a linear layer, which has none.
A recomputed forward of torch.utils.checkpoint with use_reentrant=False is a call, too. A model that follows a recipe is
saved by its state_dict: its classes are made at run time, so pickle refuses it.
Wrap afterwards: torch.compile leaves these layers as they are (graph breaks), fully_shard and DDP call them as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torch import nn

from numerics import ACCUMULATORS
from numerics import ops as emulated
from numerics.arguments import integer, require_kind

from .apply_find import Candidate, Where, candidates, others, select
from .apply_layers import Followed, Follows, derived
from .apply_report import Line, Report
from .apply_steps import Steps, advance
from .apply_steps import step as step
from .apply_steps import trainer_callback as trainer_callback
from .linear import blocks
from .presets import preset
from .recipe import ExpertRecipe, Recipe

SEAM = ("quantize_tokens", "gate_up_glu", "down_to_wire", "aggregate", "requantize_transpose", "grad_products")


def apply(
    model: nn.Module,
    recipe: str | Recipe,
    where: Where = None,
    *,
    ops: ModuleType = emulated,
    seed: int = 0,
    accumulator: str = "library",
    replica: int | None = None,
) -> Report:
    """From now on linear layers and experts of `model` compute under `recipe`, forward and backward.

    Args:
        recipe: a name in `presets`, or a Recipe. Its `last` part is for layers by their index in a numbered list.
        where: which: a glob on module names, a list of globs, or (name, module) -> bool. None: every nn.Linear and
            known experts but the output head, tied weights and routers.
        ops: the module that provides the seam. seed: of the random words. accumulator: of `numerics.ACCUMULATORS`.
        replica: which of the processes that average gradients this is. None: its rank in torch.distributed. Ranks that
            share one replica (tensor or pipeline parallelism) pass its number in common.

    Returns: what was done; print it.

    Raises:
        ValueError: widths that blocks do not divide, modules that cannot follow a recipe or follow one already, a
            pattern that matches nothing, a recipe of first or last layers for a model without numbered ones, a model
            already compiled or sharded. The model is unchanged then. TypeError: another kind of argument.
    """
    require_kind(model, nn.Module, "model", "pass a torch.nn.Module")
    require_kind(recipe, (str, Recipe), "recipe", "pass a preset's name, or a Recipe")
    recipe = preset(recipe) if isinstance(recipe, str) else recipe
    seed = _checked(ops, seed, accumulator)
    if replica is not None and not 0 <= integer(replica, "replica", "pass an int, or None") < 2**32:
        raise ValueError(f"replica={replica}: pass one from 0 to 2**32 - 1, or None")
    found = candidates(model)
    chosen = select(found, where)
    parts = _parts(recipe, chosen)
    _require_fit(chosen, parts)
    classes = [_derived(c) for c in chosen]  # before anything changes, since a class may refuse to be derived from
    lines = []
    steps = model.__dict__.get("_fourbit_steps") or Steps()
    for c, (part, words), following in zip(chosen, parts, classes, strict=True):
        kind = "experts" if c.experts else "linear"
        lines.append(Line(c.name, kind, c.shape, c.place, words, *Line.formats(part)))
        told = f"{recipe.name}, {words}" if words else recipe.name
        followed = Followed(*(c.name, c.number, type(c.module), part, told, ops, accumulator, seed, steps, replica))
        c.module.__dict__["_fourbit"] = followed  # past any __setattr__ of the module's own
        c.module.__class__ = following
    if "_fourbit_steps" not in model.__dict__:
        model._fourbit_steps = steps
        model.register_forward_pre_hook(advance)
    left = [(c.name, c.left or "not selected") for c in found if "_fourbit" not in c.module.__dict__]
    return Report(recipe.name, tuple(lines), (*left, *others(model)), tuple(_notes(recipe, chosen)))


def remove(model: nn.Module) -> None:
    """Every module at or below `model` computes as it did before `apply`, which may have been given a part of it.

    Raises: ValueError if none follows a recipe, or if somebody changed the class or forward of one since (undo that
        first); nothing changes then.
    """
    require_kind(model, nn.Module, "model", "pass the model that was given to apply")
    followed = [m for m in model.modules() if "_fourbit" in m.__dict__]
    stepping = [m for m in model.modules() if "_fourbit_steps" in m.__dict__]
    if not followed and not stepping:
        raise ValueError(f"no module of this {type(model).__name__} follows a recipe: nothing to remove")
    for m in followed:
        state = m._fourbit
        if not isinstance(m, Follows) or type(m).__bases__ != (Follows, state.original):
            raise ValueError(f"{state.name} became a {type(m).__name__} since apply: undo that first, then remove")
        if "forward" in m.__dict__:  # it holds the forward that follows the recipe
            raise ValueError(f"somebody replaced the forward of {state.name} since apply: undo that first, then remove")
    for m in followed:
        m.__class__ = m._fourbit.original
        del m.__dict__["_fourbit"]
    for m in stepping:
        hooks: Any = m._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is advance]:
            del hooks[key]
        del m.__dict__["_fourbit_steps"]


def _derived(c: Candidate) -> type[nn.Module]:
    """The class that a module gets. Raises ValueError if its own refuses to be derived from."""
    kind = type(c.module)
    try:
        return derived(kind, c.experts)
    except Exception as error:  # whatever its __init_subclass__ or metaclass raises
        told = f"{c.name}: {kind.__module__}.{kind.__qualname__} cannot be derived from"
        raise ValueError(f"{told} ({error}); leave it out by where=") from error


def _checked(ops: Any, seed: Any, accumulator: Any) -> int:
    """The seed, when all three can be used."""
    lacking = [name for name in SEAM if not callable(getattr(ops, name, None))]
    if lacking:
        raise TypeError(f"ops lacks {', '.join(lacking)}: pass a module of the seam, such as numerics.ops")
    if accumulator not in ACCUMULATORS:
        raise ValueError(f"accumulator={accumulator!r}: use one of {', '.join(ACCUMULATORS)}")
    seed = integer(seed, "seed", "pass an int")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed}: pass one from 0 to 2**32 - 1")
    return seed


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
        if "_fourbit" in c.module.__dict__:
            wrong.append(f"{c.name} follows {c.module._fourbit.words} already: call remove first")
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
