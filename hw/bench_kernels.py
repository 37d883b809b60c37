"""What `fourbit bench hw` times: this folder's kernels, each with what it reads.

To add one, append to KERNELS:

    def _double(device, rows, width):
        x = normal(device, rows, width)
        return Work(lambda: double(x), (x,))

    Timed("double", _double, floor=0.9)

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

import numerics as nm
from numerics.hadamard import hadamard_signs


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


def _nvfp4(four_over_six: bool) -> Callable[[torch.device, int, int], Work]:
    """BF16 to packed codes, block scales and outer scales of rows."""

    def make(device: torch.device, rows: int, width: int) -> Work:
        from .kernel_nvfp4 import nvfp4
        from .sources import Source

        x = normal(device, rows, width)
        return Work(lambda: nvfp4(Source(x), four_over_six), (x,))

    return make


def _swiglu(device: torch.device, rows: int, width: int) -> Work:
    """gate_up in BF16, (rows, 2 width), to h in NVFP4 with four-over-six."""
    from .kernel_nvfp4 import nvfp4
    from .sources import Source

    x = normal(device, rows, 2 * width)
    return Work(lambda: nvfp4(Source(x, glu=True), True), (x,))


def _mx(element: str, rotated: bool) -> Callable[[torch.device, int, int], Work]:
    """BF16 to codes and power-of-two scales along features."""

    def make(device: torch.device, rows: int, width: int) -> Work:
        from .kernel_mx import mx
        from .sources import Source

        x, signs = normal(device, rows, width), hadamard_signs(32, (1, 2)).to(device, torch.float32)
        return Work(lambda: mx(Source(x), element, signs if rotated else None), (x,))

    return make


def _tokens(device: torch.device, rows: int, width: int) -> Work:
    """Saved NVFP4 rows of eight experts to MXFP8 along tokens, stochastically."""
    from .kernel_nvfp4 import nvfp4
    from .kernel_tokens import tokens
    from .sources import Source

    q = nvfp4(Source(normal(device, rows, width)), True)
    groups, outer, random = tuple(range(0, rows + 1, rows // 8)), q.outer.flatten(), nm.Random((0, 1))
    return Work(
        lambda: tokens(q.codes, groups, q.scales, outer, random=random), (q.codes, q.scales, outer), TOKENS_TRIPS
    )


def _tokens_plain(device: torch.device, rows: int, width: int) -> Work:
    """BF16 rows of eight experts to MXFP8 along tokens, nearest."""
    from .kernel_tokens import tokens

    x, groups = normal(device, rows, width), tuple(range(0, rows + 1, rows // 8))
    return Work(lambda: tokens(x, groups), (x,), PLAIN_TRIPS)


def _both(device: torch.device, rows: int, width: int) -> Work:
    """BF16 rows of eight experts to MXFP8 along both axes."""
    from .kernel_both import both

    x, groups = normal(device, rows, width), tuple(range(0, rows + 1, rows // 8))
    return Work(lambda: both(x, groups), (x,))


def _decode_nvfp4(device: torch.device, rows: int, width: int) -> Work:
    """Packed NVFP4 to BF16."""
    from .kernel_decode_nvfp4 import decode_nvfp4
    from .kernel_nvfp4 import nvfp4
    from .sources import Source

    q = nvfp4(Source(normal(device, rows, width)))
    return Work(lambda: decode_nvfp4(q.codes, q.scales), (q.codes, q.scales))


def _decode_mxfp8(device: torch.device, rows: int, width: int) -> Work:
    """MXFP8 along features to BF16."""
    from .kernel_decode import decode
    from .kernel_mx import mx
    from .sources import Source

    q = mx(Source(normal(device, rows, width)), "E4M3")
    given = q.codes, q.scales, torch.arange(rows, device=device, dtype=torch.int32)
    return Work(lambda: decode(*given, "E4M3", 32, powers=True, narrow=True), given)


def _router(device: torch.device, rows: int, width: int) -> Work:
    """Gradients of one weight a token, from decoded FP32 rows."""
    from .kernel_router import router_gradient

    g, decoded = normal(device, rows, width), normal(device, rows, width, dtype=torch.float32)
    signs, slots = hadamard_signs(32, (1, 2)).to(device, torch.float32), torch.arange(rows, device=device)[:, None]
    return Work(lambda: router_gradient(g, decoded, slots, signs), (g, decoded, slots))


def _aggregate(device: torch.device, rows: int, width: int) -> Work:
    """Rows in S2F6, one for each token, weighted, out of the Hadamard into BF16."""
    from .kernel_aggregate import aggregate
    from .kernel_mx import mx
    from .sources import Source

    signs = hadamard_signs(32, (1, 2)).to(device, torch.float32)
    q = mx(Source(normal(device, rows, width)), "S2F6", signs)
    slots, weights = torch.arange(rows, device=device)[:, None], torch.ones(rows, 1, device=device)
    return Work(
        lambda: aggregate(q.codes, slots, weights, signs, q.scales, nm.S2F6), (q.codes, q.scales, slots, weights)
    )


def _glu_backward(device: torch.device, rows: int, width: int) -> Work:
    """dh float32 and gate_up BF16 to d_gate_up BF16."""
    from .kernel_glu_backward import glu_backward

    dh, gate_up = normal(device, rows, width, dtype=torch.float32), normal(device, rows, 2 * width)
    return Work(lambda: glu_backward(dh, gate_up), (dh, gate_up))


def _permute(device: torch.device, rows: int, width: int) -> Work:
    """Packed codes and scales of tokens, gathered in another order."""
    from .kernel_nvfp4 import nvfp4
    from .kernel_permute import permute
    from .sources import Source

    q = nvfp4(Source(normal(device, rows, width)))
    index = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(device)
    return Work(lambda: permute(index, q.codes, q.scales, q.outer), (index, q.codes, q.scales, q.outer))


TOKENS_TRIPS: Mapping[str, tuple[int, ...]] = {"_tokens": (8, 2)}
PLAIN_TRIPS: Mapping[str, tuple[int, ...]] = {"_tokens": (2,)}  # the loop of maxima is unrolled

KERNELS: tuple[Timed, ...] = (
    Timed("NVFP4", _nvfp4(False), 0.50),
    Timed("NVFP4, four-over-six", _nvfp4(True), 0.30),
    Timed("SwiGLU, NVFP4, four-over-six", _swiglu),
    Timed("MXFP8 along features", _mx("E4M3", False)),
    Timed("NVFP4 to MXFP8 tokens, stochastic", _tokens, 0.25),
    Timed("MXFP8 along tokens", _tokens_plain),
    Timed("MXFP8 along both axes", _both),
    Timed("NVFP4 to BF16", _decode_nvfp4, 0.85),
    Timed("MXFP8 to BF16", _decode_mxfp8),
    Timed("RHT-32 and S2F6", _mx("S2F6", True), 0.60),
    Timed("aggregate", _aggregate),
    Timed("router's gradient", _router),
    Timed("SwiGLU backward", _glu_backward),
    Timed("rows permuted", _permute),
    Timed("Philox words", _words),
    Timed("Philox fields, 4 bits", _fields(True)),
    Timed("Philox fields, 8 bits", _fields(False)),
)
