"""Element-wise parts of the model in one kernel each on a GPU: compiled there, run as they are on a CPU.

Compiled functions keep the bits of element-wise operations (`numerics.compiled`), not those of sums such as a norm's,
which are promised only on one device. Where nothing can be compiled they run as they are, and a line on stderr says so;
inside `eager` they do so anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from numerics import compiled

F = TypeVar("F", bound=Callable[..., Any])
_eager = [False]


@contextmanager
def eager(chosen: bool = True) -> Iterator[None]:
    """Inside, fused functions are not compiled, if `chosen`."""
    before, _eager[0] = _eager[0], chosen
    try:
        yield
    finally:
        _eager[0] = before


def fused(function: F) -> F:
    """`function` of tensors, the first of which says where it runs."""
    fast = compiled.compile(function)

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return fast(*args) if args[0].is_cuda and not _eager[0] else function(*args)

    return run  # type: ignore[return-value]
