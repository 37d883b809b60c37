"""Memoized tensors that any later computation may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch

from .subnormals import kept

F = TypeVar("F", bound=Callable[..., Any])


def cached(maxsize: int) -> Callable[[F], F]:
    """`functools.lru_cache` whose function runs outside inference mode: a tensor made inside it could not be saved for
    a backward later on. Nor are its subnormal numbers flushed."""

    def wrap(function: F) -> F:
        exact = kept(function)

        @lru_cache(maxsize=maxsize)
        @wraps(function)
        def run(*args: Any) -> Any:
            with torch.inference_mode(False):
                return exact(*args)

        return run  # type: ignore[return-value]

    return wrap
