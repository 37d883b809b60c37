"""A trial of a run before it begins: whether its accumulator takes what its layers will ever multiply.

The late switch and the monitor's thresholds bring recipes that come long after the first step, so each is computed
once, forward and backward, on one sequence. Accumulators that take every operand need no trial. It leaves no trace: the
model's weights, gradients and loads are as they were.
"""

from __future__ import annotations

import torch

from numerics import ACCUMULATORS

from .config import TrainConfig
from .expert import Draw
from .model import Transformer
from .recipe import ExpertRecipe
from .router import uncounted
from .schedule import Schedule, raises


def require_products(model: Transformer, config: TrainConfig, layers: Schedule) -> None:
    """Raises ValueError if `products` does not take the operands of a recipe that a layer may follow in the run.

    Args: model: of the run, without gradients; it follows the first recipes of `layers` afterwards.
    """
    if not ACCUMULATORS[config.accumulator].operands:
        return
    tokens_BS = torch.zeros(1, config.model.sequence, dtype=torch.int64, device=config.device)
    # step -1: of no step of training, as in evaluations
    draw = Draw(config.seed, -1, 0)
    try:
        for recipes in _followed(layers):
            model.follow(recipes)
            with uncounted():
                model(tokens_BS, tokens_BS, draw).total.backward()
    except (ValueError, TypeError) as error:
        raise ValueError(f"products {config.products!r} does not fit the recipes of the run: {error}") from error
    finally:
        model.zero_grad(set_to_none=True)
        model.follow(layers.start)


def _followed(layers: Schedule) -> list[tuple[ExpertRecipe, ...]]:
    """One recipe per layer, in turn all that a layer may follow."""
    found = [layers.start, *([] if layers.later is None else [layers.later])]
    if layers.raised is not None:
        found += [
            tuple(new if raises(old, new) else old for old, new in zip(before, layers.raised, strict=True))
            for before in found
        ]
    return list(dict.fromkeys(found))
