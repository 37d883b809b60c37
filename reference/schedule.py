"""Which recipe each layer follows at each step.

    from the start       `preset`'s, or that of `layer_presets` for a layer named there
    after `switch_at`    `switch_to`'s operands of `switch_pass` in the place of those, in every layer that has not been
                         raised: also in one that `layer_presets` names, whose other operands stay its own
    once raised          `raise_to`'s, to the end of the run: the late switch passes a raised layer by; a layer that
                         would gain bits in no operand and lose some, such as one in BF16, is never raised

The presets named here rule the routed experts; whether shared experts follow is `preset`'s to say.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from .config import TrainConfig
from .parity import require_parity
from .presets import PRESETS, preset
from .recipe import ExpertRecipe, Recipe, switched


@dataclass(frozen=True)
class Schedule:
    """One recipe per layer: from the `start`, after step `switch_step` (`later`; None: no switch), and once raised
    (None: nothing raises)."""

    start: tuple[ExpertRecipe, ...]
    later: tuple[ExpertRecipe, ...] | None = None
    switch_step: int = 0
    raised: tuple[ExpertRecipe, ...] | None = None

    def at(self, step: int, raised: Collection[int]) -> tuple[ExpertRecipe, ...]:
        """The layers' recipes in `step`, of which the layers `raised` have been raised before it."""
        recipes = self.start if self.later is None or step <= self.switch_step else self.later
        if self.raised is None or not raised:
            return recipes
        return tuple(self.raised[i] if i in raised else recipe for i, recipe in enumerate(recipes))


def schedule(config: TrainConfig) -> Schedule:
    """The schedule of a run.

    Raises:
        ValueError: a layer that does not exist or has no experts, an unknown preset, widths that do not fit one of
            them, a switch whose halves contradict each other, a recipe that cannot have the parity that is asked for.
    """
    main, depth, dense = preset(config.preset), config.model.depth, config.model.dense_layers
    for layer in config.layer_presets:
        if not 0 <= layer < depth:
            raise ValueError(f"layer_presets names layer {layer}: model.depth is {depth}; use layers 0 to {depth - 1}")
        if layer < dense:
            raise ValueError(
                f"layer_presets names layer {layer}, which has no experts: model.dense_layers is {dense}; use layers "
                f"{dense} to {depth - 1}"
            )
    start = list(_layers(main, depth))
    for layer, name in config.layer_presets.items():
        recipe = _named("layer_presets", name)
        start[layer] = recipe.layer(layer, depth)
        _check_widths(config, recipe, main, (start[layer],))
    found = Schedule(tuple(start))
    if config.switch_at is not None:
        second = _named("switch_to", config.switch_to)
        later = tuple(
            switched(old, new, config.switch_pass) for old, new in zip(start, _layers(second, depth), strict=True)
        )
        _check_widths(config, second, main, later)
        found = replace(found, later=later, switch_step=_last_before(config.switch_at, config.steps))
    if config.thresholds:
        recipe = _named("raise_to", config.raise_to)
        _check_widths(config, recipe, main, _layers(recipe, depth))
        found = replace(found, raised=_layers(recipe, depth))
    if config.parity:
        for layers in (found.start, found.later, found.raised):
            require_parity(layers or (), config.accumulator)
    return found


def raises(old: ExpertRecipe, new: ExpertRecipe) -> bool:
    """Whether a layer changes under `new`, and not only to fewer bits."""
    pairs = list(zip(_bits(old), _bits(new), strict=True))
    return old != new and not (any(a > b for a, b in pairs) and all(a >= b for a, b in pairs))


def _bits(recipe: ExpertRecipe) -> list[int]:
    """Of an element of every operand and of the combine."""
    r = recipe
    operands = (r.input, r.hidden, r.weight, r.grad, r.grad_wire or r.grad, r.saved_weight, r.saved_input)
    formats = [*(operand.fmt for operand in operands), r.combine_fmt]
    return [16 if fmt is None else fmt.element.bits for fmt in formats]


def _last_before(share: float, steps: int) -> int:
    """The last of `steps` steps n that is not after `share` of them: n / steps <= share. The product alone, rounded,
    would put 0.29 of 100 below 29."""
    return max(n for n in (int(share * steps) + d for d in (-1, 0, 1)) if n / steps <= share)


def _layers(recipe: Recipe, depth: int) -> tuple[ExpertRecipe, ...]:
    return tuple(recipe.layer(i, depth) for i in range(depth))


def _named(field: str, name: str) -> Recipe:
    if name not in PRESETS:
        raise ValueError(f"{field}: preset={name!r} is unknown: use one of {', '.join(PRESETS)}")
    return preset(name)


def _check_widths(config: TrainConfig, recipe: Recipe, main: Recipe, layers: tuple[ExpertRecipe, ...]) -> None:
    """As the model will be checked when it follows these `layers`; the message names `recipe`."""
    config.model.check_widths(replace(recipe, shared=main.shared, claims_unbiased=False), layers)
