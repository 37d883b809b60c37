"""The mixture-of-experts trainer: recipe, model, data, checkpoints and the training loop.

Its modules build on `numerics` alone. The operations of the expert path come in as an `ops` module, so the same
trainer runs them in emulation or as kernels. Import the module you need: `reference.train`, `reference.data`, ...

For a model of your own, `reference.apply(model, "fourbit")`, `reference.step`, `reference.remove` and, for the Trainer
of `transformers`, `reference.trainer_callback`: see `apply_model`, which is imported when one of them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .apply_model import apply as apply
    from .apply_model import remove as remove
    from .apply_model import step as step
    from .apply_model import trainer_callback as trainer_callback

_LATE = ("apply", "remove", "step", "trainer_callback")


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import apply_model

    return getattr(apply_model, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATE])
