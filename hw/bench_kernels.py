"""What `fourbit bench hw` times: this folder's kernels, each with what it reads.

To add one, append to KERNELS:

    def _nvfp4(device, rows, width):
        x = normal(device, rows, width)
        return Work(lambda: kernel_nvfp4.quantize_nvfp4(x), (x,))

    Timed("NVFP4 quantize", _nvfp4, floor=0.50)

Outputs are the tensors in what `run` returns, wherever they stand in tuples and dataclasses. A run launches through
`hw.launches.launch`, which is how its machine code is found. Kernels with loops need the turns of each loop of their
machine code: `trips={"_kernel": (turns of the first loop, ...)}`; without them the bench's note says which loops it
found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Work:
    """One thing to run.

    Args:
        run: does it once and returns its results. inputs: all that it reads. trips: turns of loops, by the kernel's
            function name, as `machine_code.count` takes them. necessary: bytes, where they are not those of inputs and
            results, such as results padded to the machine's layout.
    """

    run: Callable[[], Any]
    inputs: tuple[Tensor, ...]
    trips: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    necessary: int | None = None


@dataclass(frozen=True)
class Timed:
    """A kernel by name. make(device, rows, width): its work on a matrix of that shape. floor: the least share of a
    copy's speed that is asked for, at 65,536 x 4096 on an H200."""

    name: str
    make: Callable[[torch.device, int, int], Work]
    floor: float | None = None


def tensors(result: Any) -> list[Tensor]:
    """The tensors in a result, each memory once, from tuples, lists, dictionaries and dataclasses."""
    found: dict[tuple[int, int], Tensor] = {}

    def look(item: Any) -> None:
        if isinstance(item, Tensor):
            found[(item.data_ptr(), item.nbytes)] = item
        elif isinstance(item, dict):
            look(tuple(item.values()))
        elif isinstance(item, (tuple, list)):
            for part in item:
                look(part)
        elif is_dataclass(item) and not isinstance(item, type):
            look(tuple(getattr(item, part.name) for part in fields(item)))

    look(result)
    return list(found.values())


def normal(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal numbers, the same in every run on one kind of device."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(*shape, generator=generator, device=device).to(dtype)


def _words(device: torch.device, rows: int, width: int) -> Work:
    """Philox words, four for each sixteen elements, each with a key and a counter of its own."""
    import triton

    from . import philox
    from .launches import launch

    n = rows * width // 16
    key = torch.arange(2 * n, device=device).view(n, 2) & 0xFFFFFFFF
    counter = torch.arange(4 * n, device=device).view(n, 4) & 0xFFFFFFFF
    out = torch.empty_like(counter)

    def run() -> Tensor:
        grid = (triton.cdiv(n, philox.BLOCK),)
        launch(philox._words_kernel, grid, key, counter, out, n, ROUNDS=10, BLOCK=philox.BLOCK)
        return out

    return Work(run, (key, counter))


def _fields(narrow: bool) -> Callable[[torch.device, int, int], Work]:
    """The random field of each element of a matrix."""

    def make(device: torch.device, rows: int, width: int) -> Work:
        import triton

        from . import philox
        from .launches import launch

        n = rows * width // 16
        key = torch.tensor([1, 2], device=device)
        counter = torch.arange(4 * n, device=device).view(n, 4) & 0xFFFFFFFF
        out = torch.empty(n, 16, dtype=torch.int32, device=device)

        def run() -> Tensor:
            grid = (triton.cdiv(n, philox.BLOCK),)
            launch(philox._fields_kernel, grid, key, counter, out, n, NARROW=narrow, BLOCK=philox.BLOCK)
            return out

        return Work(run, (key, counter))

    return make


KERNELS: tuple[Timed, ...] = (
    Timed("Philox words", _words),
    Timed("Philox fields, 4 bits", _fields(True)),
    Timed("Philox fields, 8 bits", _fields(False)),
)
