"""The global norm of the gradient, defined so that it does not depend on which rank holds what.

    norm = sqrt(sum_i s_i),  s_i the sum of squares of part i in float64, added exactly (fsum)
    g *= min(1, clip / norm)

A part is a parameter, or one expert of those that stack experts along their first axis, which are all of three axes:
the experts of a layer may be on several ranks, one expert is on one. `deterministic` runs use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Parts = Callable[[list[float]], list[float]]


def clip(model: nn.Module, most: float, everywhere: Parts = lambda own: own) -> float:
    """Scale the gradients of `model` down so that their norm is at most `most`; returns the norm before.

    Args: everywhere: from the sums of squares of the experts at hand to those of all.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    dense = squares(p.grad for p in parameters if p.ndim != 3)
    experts = squares(one for p in parameters if p.ndim == 3 for one in p.grad)
    norm = math.sqrt(math.fsum(dense + everywhere(experts)))
    scale = most / (norm + 1e-6)  # as torch's clip_grad_norm_
    if scale < 1:
        for p in parameters:
            p.grad.mul_(scale)
    return norm


def squares(gradients: Iterable[Tensor | None]) -> list[float]:
    """The sum of squares of each, in float64."""
    sums = [g.to(torch.float64).square().sum() for g in gradients if g is not None]
    return torch.stack(sums).tolist() if sums else []
