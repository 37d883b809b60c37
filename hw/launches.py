"""How this folder starts its Triton kernels: without contraction to FMAs, and seen by whoever counts or compiles.

A kernel with a parameter NATIVE is compiled with Blackwell's own instructions where the chip has them, and else with
FP32 and integers, for the same bits. `catching` takes the launches of host code without running them, so that a
compiler can have them on a machine without any GPU; tensors on "meta" are enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import device


@dataclass(frozen=True)
class Call:
    """A launch that was not run: what a compiler needs to know of it."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]  # num_warps and what else a compiler is told
    constants: dict[str, Any]


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


def launch(
    kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int = 4, num_stages: int | None = None, **constants: Any
) -> Any:
    """Run `kernel` on a grid. FMAs are only those that the source names: bits must not depend on a compiler's taste.

    Args: constants: its constexpr parameters but NATIVE, which follows the device of the first tensor (`native`).

    Returns: what Triton compiled; None in its interpreter, and where launches are taken instead of run.
    """
    options: dict[str, Any] = {"num_warps": num_warps, "enable_fp_fusion": False}
    if num_stages is not None:
        options["num_stages"] = num_stages
    if "NATIVE" in getattr(kernel, "arg_names", ()):
        constants["NATIVE"] = native(next(x for x in args if isinstance(x, Tensor)))
    if device.catching:
        device.catching[-1].append(Call(kernel, grid, args, options, constants))
        return None
    with _current(next((x.device for x in args if isinstance(x, Tensor)), None)):
        compiled = kernel[grid](*args, **options, **constants)
    for kept in _recordings:
        kept.append(Launch(kernel.fn.__name__, compiled, grid, num_warps))
    return compiled


def _current(where: torch.device | None) -> AbstractContextManager[Any]:
    """Triton launches on torch's current device, which the tensors' need not be."""
    there = where is not None and where.type == "cuda" and where.index != torch.cuda.current_device()
    return torch.cuda.device(where) if there else nullcontext()


def native(x: Tensor) -> bool:
    """Whether kernels with tensors where `x` is use Blackwell's own instructions."""
    return _forced[-1] if _forced else device.is_blackwell(x.device)


_forced: list[bool] = []


@contextmanager
def forced(chosen: bool) -> Iterator[None]:
    """NATIVE is `chosen` inside, whatever the device: for compilers, and for an interpreter of the instructions."""
    _forced.append(chosen)
    try:
        yield
    finally:
        _forced.pop()


@contextmanager
def catching() -> Iterator[list[Call]]:
    """The launches inside, in order, none of which is run: results are not computed."""
    kept: list[Call] = []
    device.catching.append(kept)
    try:
        yield kept
    finally:
        device.catching.pop()


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """The launches inside, in order."""
    kept: list[Launch] = []
    _recordings.append(kept)
    try:
        yield kept
    finally:
        _recordings[:] = [other for other in _recordings if other is not kept]  # not one of equal contents
