"""The step and the call that a module of your own model is at: what names the random words of its backward.

The step goes up by one whenever the model is called in training; `step` pins it. Calls of one module within a step are
counted, so that micro-batches, or a module that is used twice, draw words of their own. Replicas that average their
gradients draw words of their own too: the key of replica r > 0 is (philox((seed, r))_0, step), that of the first one
(seed, step).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from numerics import philox
from numerics.arguments import integer

from .expert import Draw
from .folder_files import names_of
from .notice import notice


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


_REPLICA = 0x5245504C  # the fourth counter word, which no other draw has


def replica_seed(seed: int, replica: int | None) -> int:
    """The seed of the random words of a replica; None: the process's rank in torch.distributed, 0 without it."""
    if replica is None:
        dist = torch.distributed
        replica = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    return _replica_seed(seed, replica)


@functools.cache
def _replica_seed(seed: int, replica: int) -> int:
    return int(philox((seed, replica), (0, 0, 0, _REPLICA))[0]) if replica else seed


def pin(model: nn.Module, n: int) -> list[Steps]:
    """Put a model at step `n` until `Steps.pinned` is taken back; its counters. Errors as `step`."""
    n = integer(n, "n", "pass a step as int")
    if not 0 <= n < 2**32:
        raise ValueError(f"n={n}: pass a step from 0 to 2**32 - 1")
    every = [m.__dict__["_fourbit_steps"] for m in model.modules() if "_fourbit_steps" in m.__dict__]
    if not every:
        raise ValueError(f"no part of this {type(model).__name__} was given to apply, so it has no step")
    for steps in every:
        steps.go(n)
        steps.pinned = True
    return every


@contextmanager
def step(model: nn.Module, n: int) -> Iterator[None]:
    """Inside, the model is at step `n`, from 0, however often it is called: the n-th call of a module draws the n-th
    words. Call the forward inside; the backward may come later. Afterwards it goes on from `n`.

    Raises: ValueError for a model that follows no recipe, or an n outside 32 bits.
    """
    before = {id(m): m.__dict__["_fourbit_steps"].pinned for m in model.modules() if "_fourbit_steps" in m.__dict__}
    every = pin(model, n)
    try:
        yield
    finally:
        for steps, pinned in zip(every, before.values(), strict=True):
            steps.pinned = pinned


def trainer_callback() -> Any:
    """A callback for `transformers.Trainer`: Trainer(.., callbacks=[reference.trainer_callback()]).

    It puts the model that follows a recipe at the step that the Trainer is at, `state.global_step`, which the Trainer
    saves and restores itself. A run that is resumed from a checkpoint, `train(resume_from_checkpoint=True)`, draws the
    words of a run without a break; micro-batches of one step are calls of it.

    The Trainer loads tensors by the names of the model, and goes on with new weights where the library saves them under
    others, as it does with experts (transformers 5.24). The callback reads those, if the checkpoint is the one that
    `resume_from_checkpoint` of the arguments names, or lies in `output_dir`.

    Raises: ImportError without `transformers`.
    """
    from transformers import TrainerCallback

    class StepCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
            if state.global_step:
                named = args.resume_from_checkpoint
                own = Path(args.output_dir, f"checkpoint-{state.global_step}")
                _load_renamed(model, Path(named) if isinstance(named, str) else own)

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
            pin(model, state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
            for steps in pin(model, state.global_step):
                steps.pinned = False

    return StepCallback()


@torch.no_grad()
def _load_renamed(model: Any, folder: Path) -> None:
    """Give a model of `transformers` those tensors of a checkpoint that have other names there than in the model."""
    if not hasattr(type(model), "from_pretrained"):
        return
    if not folder.is_dir():
        notice(
            f"{folder} is not there, so what `transformers` saves under other names is not read from it; name the "
            "checkpoint as resume_from_checkpoint of TrainingArguments too"
        )
    files = sorted(folder.glob("model*.safetensors"))
    state, there = model.state_dict(), {name for path in files for name in names_of(path)}
    renamed = sorted(set(state) - there)
    if not files or not renamed:
        return
    with torch.random.fork_rng():  # loading draws initial weights
        found = type(model).from_pretrained(folder, dtype=torch.float32).state_dict()
    for name in renamed:
        state[name].copy_(found[name])


def advance(model: nn.Module, args: Any) -> None:
    """Forward pre-hook of the model; holds nothing, so that a copy of the model counts for itself."""
    steps = model.__dict__.get("_fourbit_steps")
    if steps is None or steps.pinned or not model.training or not torch.is_grad_enabled():
        return
    if steps.step < 0:
        steps.step = 0  # calls before the first step drew its words, and stay counted
    else:
        steps.go(steps.step + 1)
