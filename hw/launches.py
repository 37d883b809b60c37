"""One way to launch a Triton kernel, which can write down what was launched.

    launch(kernel, grid, x, out, n, BLOCK=256, num_warps=4)
    with recording() as launches:            # [Launch(compiled=..., grid=(256,), warps=4, name="_kernel"), ...]
        quantize(x)

Multiplications and additions are never contracted into an FMA, which has one rounding where the emulation has two. The
interpreter compiles nothing: there a launch has no compiled kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# not a context variable: autograd runs a backward in a thread of its own
_LISTS: list[list[Launch]] = []


@dataclass(frozen=True)
class Launch:
    """compiled: triton's compiled kernel with `asm` and `metadata`, None in the interpreter. grid: programs along each
    axis. warps: of one program. name: the kernel's."""

    compiled: Any
    grid: tuple[int, ...]
    warps: int
    name: str

    @property
    def all_warps(self) -> int:
        """Warps of the whole launch."""
        programs = 1
        for size in self.grid:
            programs *= size
        return programs * self.warps


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> Any:
    """kernel[grid](*args, **kwargs) without contraction.

    Args: kernel: made by triton.jit. grid: one to three numbers of programs; kwargs: constants, num_warps, num_stages.

    Returns: the compiled kernel, None in the interpreter.
    """
    compiled = kernel[grid](*args, enable_fp_fusion=False, **kwargs)
    if _LISTS:
        warps = kwargs.get("num_warps", 4) if compiled is None else compiled.metadata.num_warps
        name = getattr(kernel, "fn", kernel).__name__
        for found in _LISTS:
            found.append(Launch(compiled, tuple(grid), warps, name))
    return compiled


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Everything that is launched while this lasts, in order."""
    found: list[Launch] = []
    _LISTS.append(found)
    try:
        yield found
    finally:
        _LISTS[:] = [other for other in _LISTS if other is not found]
