"""The same arguments passed in other ways, and under other settings of torch: a function's bits must not change.

    layouts      views of larger memory that holds other things: gaps between elements, rows or matrices that lie apart,
                 columns before rows, a start that no vector load divides; stride 0; rows that overlap
    settings     torch's default dtype and device, leave to multiply FP32 in less, autocast, flushing of subnormals,
                 gradients wanted, inference mode, uninitialized memory that is filled
    later calls  other values in the same memory, and results looked at again after later calls: see `judge`
    streams      on a GPU: arguments that a stream of its own writes first, and two streams at once: see `judge`

Memory around a view holds NaN, in integers of one byte 255, and index 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .cases import Shape
from .cases_ops import DRAWS, HUGE, KINDS, LARGE, LATER, SHAPES, SIZES, STREAMS, Kind
from .compare import bits_of

Passed = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Way:
    """One way to pass arguments.

    Args:
        passed: what stands in the place of each tensor. within: the settings while the function runs on a device.
        data: the kind of data. absent: whether a device cannot have it.
    """

    name: str
    passed: Passed | None = None
    within: Callable[[torch.device], AbstractContextManager[object]] = lambda device: nullcontext()
    data: str = "mixed"
    absent: Callable[[torch.device], bool] = lambda device: False


# Layouts.


def _room(x: Tensor, *shape: int) -> Tensor:
    """Memory that holds other things."""
    other = torch.nan if x.is_floating_point() else 255 if x.dtype == torch.uint8 else 0
    return torch.full(shape, other, dtype=x.dtype, device=x.device)


def strided(x: Tensor) -> Tensor:
    """Every other element of every axis."""
    return _room(x, *(2 * n + 1 for n in x.shape))[tuple(slice(1, 2 * n + 1, 2) for n in x.shape)].copy_(x)


def rows_apart(x: Tensor) -> Tensor:
    """Columns of wider rows, as a slice of a fused projection."""
    if x.ndim == 0:
        return x
    return _room(x, *x.shape[:-1], x.shape[-1] + 24)[..., 8 : 8 + x.shape[-1]].copy_(x)


def rows_oddly_apart(x: Tensor) -> Tensor:
    """Rows whose distance no vector load divides, though the first one starts at whole vectors."""
    if x.ndim == 0:
        return x
    return _room(x, *x.shape[:-1], (x.shape[-1] + 8) | 1)[..., : x.shape[-1]].copy_(x)


def matrices_apart(x: Tensor) -> Tensor:
    """Some of the rows of larger matrices; each matrix is contiguous."""
    if x.ndim < 2:
        return x
    *lead, rows, columns = x.shape
    return _room(x, *lead, rows + 3, columns)[..., 2 : 2 + rows, :].copy_(x)


def transposed(x: Tensor) -> Tensor:
    """Columns whose elements lie beside each other."""
    return x.mT.contiguous().mT if x.ndim > 1 else x


def shifted(x: Tensor) -> Tensor:
    """Contiguous, one element behind the start of its memory."""
    return _room(x, x.numel() + 3)[1 : 1 + x.numel()].view(x.shape).copy_(x)


def expanded(x: Tensor) -> Tensor:
    """Stride 0 along every axis whose entries are all equal, bit for bit."""
    bits, first = bits_of(x), x
    for axis, n in enumerate(x.shape):
        if n > 1 and torch.equal(bits.narrow(axis, 0, 1).expand_as(bits), bits):
            first = first.narrow(axis, 0, 1)
    return x if first is x else first.clone().expand(x.shape)


def overlapping(x: Tensor) -> Tensor:
    """Rows that start one element after each other in the same memory, where their values allow it."""
    if x.ndim != 2 or 0 in x.shape or not torch.equal(x[1:, :-1], x[:-1, 1:]):
        return x
    return torch.cat([x[0], x[1:, -1]]).as_strided(x.shape, (1, 1))


LAYOUTS = (
    Way("strided", strided),
    Way("rows apart", rows_apart),
    Way("rows oddly apart", rows_oddly_apart),
    Way("matrices apart", matrices_apart),
    Way("transposed", transposed),
    Way("not aligned", shifted),
    Way("equal rows expanded", expanded, data="equal rows"),
    Way("one value expanded", expanded, data="one value"),
    Way("overlapping rows", overlapping, data="sliding"),
)


# Settings.


@contextmanager
def _set(get: Callable[[], object], put: Callable[..., object], value: object) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def _default(dtype: torch.dtype) -> Callable[[torch.device], AbstractContextManager[None]]:
    return lambda device: _set(torch.get_default_dtype, torch.set_default_dtype, dtype)


def _less(device: torch.device) -> AbstractContextManager[None]:
    return _set(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium")


def _autocast(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16)


def _flush(device: torch.device) -> AbstractContextManager[None]:
    return _set(lambda: False, torch.set_flush_denormal, True)


def _filled(device: torch.device) -> AbstractContextManager[None]:
    """Torch fills what it allocates without a value with NaN and the largest integers."""
    return _set(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, "warn")


def _other(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device((device.index or 0) ^ 1)


def _alone(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.device_count() <= ((device.index or 0) ^ 1)


def _wants_gradient(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_() if x.is_floating_point() else x


SETTINGS = (
    Way("default dtype float64", within=_default(torch.float64)),
    Way("default dtype bfloat16", within=_default(torch.bfloat16)),
    Way("another default device", within=lambda device: torch.device("meta")),
    Way("FP32 products in less", within=_less),
    Way("autocast", within=_autocast),
    Way("subnormals flushed", within=_flush, data="small"),
    Way("gradients wanted", _wants_gradient),
    Way("inference mode", torch.clone, lambda device: torch.inference_mode()),
    Way("memory filled", within=_filled),
    Way("another current device", within=_other, absent=_alone),
)

WAYS = {"layouts": LAYOUTS, "settings": SETTINGS}


def tried(data: Iterable[str], device: torch.device) -> tuple[list[str], list[str]]:
    """The ways among kinds of data that a device can have, and those that it cannot; for the summary."""
    found: tuple[list[str], list[str]] = [], []
    for kind in dict.fromkeys(data):
        for way in WAYS.get(kind, ()):
            found[way.absent(device)].append(way.name)
        if kind in (LATER, STREAMS, SIZES, DRAWS, LARGE, HUGE):
            found[kind == STREAMS and device.type != "cuda"].append(f"{kind} elements" if "^" in kind else kind)
    return found


# Data whose values allow a layout, or show a setting.


def _rows_of(*names: str) -> Kind:
    """Each row of a kind of its own, at random, so that several arguments meet in every pair of kinds."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        which = rng.integers(0, len(names), (*shape[:-1], 1))
        return np.select([which == i for i in range(len(names))], [KINDS[name](rng, shape) for name in names])

    return draw


def _sliding(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Each row is the one before, moved by one element."""
    *lead, rows, columns = shape
    line = rng.standard_normal((*lead, max(rows + columns - 1, 0)))
    return np.lib.stride_tricks.sliding_window_view(line, columns, -1) if rows and columns else np.zeros(shape)


def fractions(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """For E4M3 elements under a block scale of 1: fractions of a step, see `draws`, of every size.

    Half are values of every size up to 448; the others lie between 0 and the least value 2^-9, at 2^-k of it, or as
    near to it. k goes as far as the draws of so many elements can tell; each is half as often as the next, so that each
    rounds away as often. Half of the odd rows hold such small ones alone, where a row has a scale of its own.
    """
    large = rng.uniform(0.5, 1.0, shape) * 448 * 2.0 ** -(rng.integers(0, 15, shape) * (rng.random(shape) < 0.7))
    deepest = int(np.log2(max(np.prod(shape), 1) / 4).clip(3, 16))
    k = np.maximum(deepest + 1 - rng.geometric(0.5, shape), 1)
    small = 2.0**-9 * np.where(rng.random(shape) < 0.25, 1 - 2.0**-k, 2.0**-k)
    alone = (np.arange(shape[-2])[:, None] % 2 == 1) & (rng.random((*shape[:-1], 1)) < 0.5)
    x = np.where(alone | (rng.random(shape) < 0.5), small, large)
    return x * rng.choice([-1.0, 1.0], shape)


WAYS_KINDS: dict[str, Kind] = {
    "mixed": _rows_of("normal", "tails", "ties", "denormals"),
    "small": _rows_of("normal", "tails", "denormals"),
    "equal rows": lambda rng, shape: np.broadcast_to(rng.standard_normal((*shape[:-2], 1, shape[-1])), shape),
    "one value": lambda rng, shape: np.full(shape, rng.standard_normal()),
    "sliding": _sliding,
    DRAWS: fractions,
}
FEW_ROWS = (  # with --fast, of as many rows
    Shape("small", lambda n: (0, 0, n // 3 + 1, n // 3 + 1, n, n), rows=24, model=64, hidden=32),
    Shape("small odd widths", lambda n: (0, n // 4 + 3, n // 2 + 1, n // 2 + 1, n - 5, n), 24, 40, 24, top=3),
)
OTHER_SIZES = (
    Shape("wide tokens", lambda n: (0, n - 1, n), rows=4, model=1056, hidden=16, top=3),
    Shape("wide experts", lambda n: (0, 1, n), rows=4, model=32, hidden=1040, top=3),
    # every fifth expert has no row, others have one or two
    Shape("many experts", lambda n: tuple(n * (e - e // 5) // 64 for e in range(81)), 96, 32, 16, top=12),
)
MORE_ROWS = tuple(shape for shape in SHAPES if shape.name in ("ragged", "odd widths"))
