"""`uncompiled`: a function that torch.compile does not enter, since a compiler would change its bits.

`torch.compiler.disable` does the same, but it imports the compiler where it decorates, 0.7 s at every start. Here the
compiler is asked only by a caller that is being compiled, who has imported it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, run eagerly also inside of compiled code, whose graph breaks there."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        eager: Callable[P, T] = torch.compiler.disable(function)  # type: ignore[no-untyped-call,unused-ignore]
        return eager(*args, **kwargs)

    return call
