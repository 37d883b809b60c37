"""Why a run cannot go on, in one sentence: a number that is not finite, or memory that is not enough.

Both name the checkpoint that is kept. Python, numpy and torch tell of memory in exceptions of their own, and of torch
only the words say which ones; a system that ends a process without asking it is told by nobody.
"""

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path

from . import checkpoint

# of torch's allocators, on the CPU and on GPUs, and of sizes that 64 bits do not hold
_MEMORY = re.compile(r"out of memory|(can't|cannot) allocate memory|not enough memory|calculation overflowed", re.I)


class TrainingStopped(RuntimeError):
    """The run cannot go on: a loss, a gradient or a weight is NaN or infinite, or memory is not enough for a step. The
    message is one sentence."""


def require_finite(folder: Path, step: int, name: str, value: float) -> None:
    """Check one number of a step.

    Args:
        folder: the run folder, whose last checkpoint the message names.
        step: the step that the number belongs to.
        name: what the number is, for example "loss".
        value: the number.

    Raises:
        TrainingStopped: it is NaN or infinite.
    """
    if math.isfinite(value):
        return
    raise TrainingStopped(
        f"training stopped at step {step}: the {name} is {value}; {_kept(folder)}; try a lower lr or a longer "
        "warmup in another run folder"
    )


@contextlib.contextmanager
def step_in_memory(folder: Path, step: int) -> Iterator[None]:
    """Take a step in it: memory that is not enough for that, for the optimizer's state or for a checkpoint raises
    TrainingStopped. Args: the run folder, and the step."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not lacks_memory(error):
            raise
        raise TrainingStopped(
            f"training stopped at step {step}: it does not fit into memory ({_first_sentence(error)}); "
            f"{_kept(folder)}; go on with --recompute layers, or use smaller sizes, a smaller grain or narrower "
            "moments in another run folder"
        ) from error


@contextlib.contextmanager
def model_in_memory(model: object) -> Iterator[None]:
    """Make a model in it, or load one: ValueError if it does not fit. Args: the sizes, for the message."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not lacks_memory(error):
            raise
        raise ValueError(f"model {model} does not fit into memory; use smaller sizes") from error


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception tells of memory that is not there."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_MEMORY.search(str(error))))


def _kept(folder: Path) -> str:
    last = checkpoint.latest(folder)
    return f"the last good checkpoint is {last}" if last else "no checkpoint had been written"


def _first_sentence(error: BaseException) -> str:
    """Of an error's words: torch adds advice and a stack to them."""
    return re.split(r"\.\s", " ".join(str(error).split()), maxsplit=1)[0] or type(error).__name__
