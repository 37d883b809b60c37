"""A layer's forward computed again for its backward instead of kept: the same bits, the memory of its input alone.

Autograd keeps a layer's input and balance; when the backward reaches the layer, its forward runs once more and what it
makes is kept until that layer is done. Every operation of a layer repeats its bits on one device, so the gradients are
those without. The second forward is no pass of training: it adds to no router's load, and an observer, which has seen
the first one and sees the backward, is shown nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .expert import Setting
from .router import uncounted

Layer = Callable[[Tensor, Setting], tuple[Tensor, Tensor]]


class Unseen:
    """An `expert.Observer` that looks away. In the place of none: a layer that is observed may go another way."""

    def weight(self, *_: Any) -> None:
        """Nothing."""

    cast = recast = output = weight


class _Again:
    """The context of a second forward, entered once for every backward; `on` once it has been."""

    def __init__(self) -> None:
        self.on = False

    def __enter__(self) -> None:
        self.on = True
        self._inside = uncounted()
        self._inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)


def recomputed(layer: Layer, x_BSD: Tensor, setting: Setting) -> tuple[Tensor, Tensor]:
    """`layer(x, setting)`, of which autograd keeps x alone.

    Args: x_BSD: (B, S, D), the residual stream. setting: of the layer.
    """
    again = _Again()
    unseen = setting if setting.observer is None else replace(setting, observer=Unseen())

    def run(x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        return layer(x_BSD, unseen if again.on else setting)

    # no layer draws from torch's generators, so their state need not be kept
    found: tuple[Tensor, Tensor] = checkpoint(
        run, x_BSD, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: (nullcontext(), again)
    )
    return found
