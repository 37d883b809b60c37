"""OsciReset (TetraJet-v2, arXiv 2510.27527): expert weights that swing between two codes go to the middle of one.

Around a boundary of two bins a master weight W that hardly moves changes its code again and again. In a window of
`detect_steps` steps both paths are measured, per element, Q being the forward's quantization:

    walked = sum |W_t - W_t-1|      jumped = sum |Q(W_t) - Q(W_t-1)|

and after the step that follows, W := Q(W) where walked > 0 and jumped >= ratio * walked. Q(W) jumps without W where a
neighbour moves the scale of their block; W alone is no oscillation then, and stays. Calendar, t = step - 1 counted
from 0: t a multiple of `period` and not before `start_share` of the run opens a window, t + 1 to t + detect_steps are
measured, t + detect_steps + 1 resets; a run that ends before resets nothing.

Left open by the source, and chosen here: routed experts alone (gate and up, and down); the optimizer's moments are
left as they are; where a late switch changes a layer's rule inside a window, the window is dropped.

Between two steps the last weights of a window are the master weights themselves, so its state is two float32 tensors
a weight, there only while a window is open. All sums are FP32, element by element: exact to repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from numerics import BlockTensor

from .recipe import ExpertRecipe, OsciReset

_PREFIX = "oscillation/"


@dataclass(frozen=True, eq=False)
class Oscillation:
    """What is measured of a model's expert weights, in a run of `steps` steps; nothing where no layer's recipe asks.

    Args:
        model: with `layers`, `recipes` and `ops`, as `model.Transformer`; another module has no experts to watch.
        paths: (walked, jumped) by parameter name, of open windows.
        everywhere: from numbers of the weights at hand to those of all, where a layer's experts are on several ranks.
    """

    model: nn.Module
    steps: int
    paths: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    everywhere: Callable[[list[int]], list[int]] = list

    @torch.no_grad()
    def around(self, step: int, update: Callable[[], Any]) -> float | None:
        """Call `update`, which takes step `step` (from 1) of the master weights; measure it, and reset after it.

        Returns: the share of the watched weights that were reset, or None if no window closed.
        """
        watched = list(self._watched())
        rules = {name: rule for name, _, _, rule in watched}
        for name in set(self.paths) - set(rules):
            del self.paths[name]
        measured = [
            (name, weight, recipe, weight.clone(), self._quantized(weight, recipe))
            for name, weight, recipe, rule in watched
            if name in self.paths and (step - 1) % rule.period <= rule.detect_steps
        ]
        update()
        for name, weight, recipe, before, quantized in measured:
            walked, jumped = self.paths[name]
            walked += (weight - before).abs()
            jumped += (self._quantized(weight, recipe) - quantized).abs()
        sizes = []
        for name, weight, recipe, rule in watched:
            phase = (step - 1) % rule.period
            if phase == 0 and step - 1 >= math.ceil(rule.start_share * self.steps):
                self.paths[name] = torch.zeros_like(weight), torch.zeros_like(weight)
            elif phase == rule.detect_steps + 1 and name in self.paths:
                sizes.append((self._reset(weight, recipe, rule, *self.paths.pop(name)), weight.numel()))
        if not sizes:
            return None
        reset, watching = self.everywhere([sum(numbers) for numbers in zip(*sizes, strict=True)])
        return reset / watching

    def _reset(self, weight: Tensor, recipe: ExpertRecipe, rule: OsciReset, walked: Tensor, jumped: Tensor) -> int:
        """How many elements of `weight` were set to the middle of their bins."""
        oscillating = (walked > 0) & (jumped >= rule.ratio * walked)
        weight.copy_(torch.where(oscillating, self._quantized(weight, recipe), weight))
        return int(oscillating.sum())

    def _watched(self) -> Iterator[tuple[str, Tensor, ExpertRecipe, OsciReset]]:
        layers: Any = getattr(self.model, "layers", ())
        recipes: Any = getattr(self.model, "recipes", ())
        for i, (layer, recipe) in enumerate(zip(layers, recipes, strict=True)):
            if recipe.osci_reset is not None and hasattr(layer.moe, "w13"):  # not a layer without experts
                yield f"layers.{i}.moe.w13", layer.moe.w13, recipe, recipe.osci_reset
                yield f"layers.{i}.moe.w2", layer.moe.w2, recipe, recipe.osci_reset

    def _quantized(self, weight: Tensor, recipe: ExpertRecipe) -> Tensor:
        """The values that the forward multiplies, float32."""
        ops: Any = self.model.ops
        q = ops.quantize_tokens(weight.detach(), recipe.weight)
        values: Tensor = q.dequantize() if isinstance(q, BlockTensor) else q.to(torch.float32)
        return values

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold: "oscillation/<parameter>/walked" and "../jumped" of open windows."""
        return {
            f"{_PREFIX}{name}/{entry}": tensor
            for name, pair in self.paths.items()
            for entry, tensor in zip(("walked", "jumped"), pair, strict=True)
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` returned, out of a checkpoint's tensors."""
        weights = dict(self.model.named_parameters())
        names = {key.removeprefix(_PREFIX).rsplit("/", 1)[0] for key in tensors if key.startswith(_PREFIX)}
        self.paths.clear()
        for name in sorted(names):
            walked, jumped = (tensors[f"{_PREFIX}{name}/{entry}"] for entry in ("walked", "jumped"))
            device = weights[name].device
            self.paths[name] = walked.to(device), jumped.to(device)
