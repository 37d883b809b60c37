"""How this folder starts its Triton kernels: without contraction to FMAs, and seen by whoever counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Launch:
    """A kernel that was started. `compiled`: what Triton made of it, None in its interpreter."""

    name: str
    compiled: Any
    grid: tuple[int, ...]
    num_warps: int

    @property
    def warps(self) -> int:
        """Of all programs."""
        return math.prod(self.grid) * self.num_warps


_recordings: list[list[Launch]] = []


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int = 4, **constants: Any) -> None:
    """Run `kernel` on a grid. FMAs are only those that the source names: bits must not depend on a compiler's taste."""
    compiled = kernel[grid](*args, num_warps=num_warps, enable_fp_fusion=False, **constants)
    for kept in _recordings:
        kept.append(Launch(kernel.fn.__name__, compiled, grid, num_warps))


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """The launches inside, in order."""
    kept: list[Launch] = []
    _recordings.append(kept)
    try:
        yield kept
    finally:
        _recordings[:] = [other for other in _recordings if other is not kept]  # not one of equal contents
