"""What `validate` compares: kinds of data, how they are drawn, how they are cut into pieces, what an operation is.

Everything is drawn on the CPU in numpy, so that the same bits go to every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from numerics import ops

Inputs = dict[str, Any]  # tensors, block tensors, and what is the same on every device
Outputs = dict[str, Tensor]
Run = Callable[[Inputs], Outputs]


# Data: kinds of float32 arrays (rows, ...), by name.


def _ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """BF16 values halfway between two codes: of E2M1 in odd rows, of S2F6 and E4M3 in even ones."""
    odd = np.arange(shape[-2])[:, None] % 2 == 1
    x = np.where(odd, rng.integers(-24, 25, shape) / 4, rng.integers(-255, 256, shape) / 128)
    x *= 2.0 ** rng.integers(0, 9, (*shape[:-1], 1))
    x[..., :1] = 2688.0  # 6 * 448 in every row: the outer scales are 1 and keep the ties
    return x


def _tails(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal(shape) ** 3
    return np.where(rng.random(shape) < 0.002, np.copysign(3e5, x), x)


def _holes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Rows and whole blocks of zeros of both signs."""
    x = rng.standard_normal(shape)
    x[..., ::3, :] *= 0.0
    x[..., 32:96] *= 0.0
    return x


def _spread(low: float, high: float, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Magnitudes 10^low to 10^high, uniform in the exponent, of both signs."""
    return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(low, high, shape)


def _not_finite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """NaN, infinities and zeros of both signs among others; in a small array more of them, four in the mean."""
    x = rng.standard_normal(shape)
    special = np.copysign(rng.choice([np.nan, np.inf, 0.0], shape, p=[0.4, 0.4, 0.2]), x)
    return np.where(rng.random(shape) < max(0.004, 4 / max(x.size, 1)), special, x)


DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "ties": _ties,
    "tails": _tails,
    "row scales": lambda rng, shape: rng.standard_normal(shape) * np.exp(np.linspace(-4.5, 4.5, shape[-2]))[:, None],
    "zeros": lambda rng, shape: rng.choice([-0.0, 0.0], shape),
    "holes": _holes,
    "denormals": partial(_spread, -44, -38),
    "huge": partial(_spread, 37, 38.5),
    "NaN, Inf": _not_finite,
}
SOME = ("normal", "tails", "huge", "NaN, Inf")
BESIDE = (
    "tails",
    "holes",
    "NaN, Inf",
)  # of every argument, weights and matrices too; beside other data they are normal


@dataclass(frozen=True)
class Shape:
    """Sizes of one case: `groups` gives the offsets of the experts, mostly five, for a number of rows.

    Args:
        rows: of its matrices; None: as many as are asked for. model, hidden: widths D and F of the expert path.
        top: experts of a token; the order of their sum shows from three on.
    """

    name: str
    groups: Callable[[int], tuple[int, ...]]
    rows: int | None = None
    model: int = 128
    hidden: int = 64
    top: int = 2


# ragged, the third expert without rows, the last with one row
USUAL = Shape("usual", lambda n: (0, n // 3 + 1, n // 2 + 2, n // 2 + 2, n - 1, n))


@dataclass(frozen=True)
class Draw:
    """Makes the inputs of one case. `rows`: of its matrices. `recorded`: matrix that takes the place of the data."""

    rng: np.random.Generator
    data: str
    dtype: torch.dtype
    rows: int
    shape: Shape = USUAL
    kinds: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = field(
        default_factory=lambda: DATA
    )
    recorded: Tensor | None = None

    def tested(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The case's data in its dtype, or in `dtype`."""
        if self.recorded is not None:
            return tiled(self.recorded, shape).to(dtype or self.dtype)
        array = self.kinds[self.data](self.rng, shape).astype(np.float32)
        return torch.from_numpy(array).to(dtype or self.dtype)

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.standard_normal(shape).astype(np.float32))

    def beside(self, *shape: int) -> Tensor:
        """Float32 data of an argument beside the tested one."""
        if self.data not in BESIDE:
            return self.normal(*shape)
        return torch.from_numpy(self.kinds[self.data](self.rng, shape).astype(np.float32))

    def integers(self, bits: int, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.integers(0, 1 << bits, shape))

    @property
    def groups(self) -> tuple[int, ...]:
        """Offsets of the experts."""
        return self.shape.groups(self.rows)

    @property
    def experts(self) -> int:
        return len(self.groups) - 1

    @property
    def tokens(self) -> int:
        """Tokens whose experts, two of each, make `rows` rows."""
        return (self.rows + 1) // 2


EXPERTS = 5


def tiled(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The matrix `x` cut, or repeated, to `shape`; leading axes continue its rows."""
    rows = torch.arange(math.prod(shape[:-1])) % x.shape[0]
    columns = torch.arange(shape[-1]) % x.shape[1]
    return x[rows[:, None], columns].reshape(shape)


@dataclass(frozen=True)
class Cut:
    """How inputs come apart; what the pieces give joins along the same axis.

    Args:
        axis, names: the inputs to cut, and where. experts: None: at ragged places; else one piece for each expert of
            `groups`, and these inputs are cut along axis 0, one matrix for each.
    """

    axis: int
    names: tuple[str, ...]
    experts: tuple[str, ...] | None = None

    def pieces(self, inputs: Inputs) -> Iterator[Inputs]:
        length = inputs[self.names[0]].shape[self.axis]
        ragged = (0, 1, length // 3 + 1, length - 3, length) if length > 5 else (0, length // 2, length)
        bounds = ragged if self.experts is None else inputs["groups"]
        for expert, (start, end) in enumerate(pairwise(bounds)):
            piece = inputs | {name: narrow(inputs[name], self.axis, start, end) for name in self.names}
            if self.experts is not None:
                piece |= {name: narrow(inputs[name], 0, expert, expert + 1) for name in self.experts}
                piece["groups"] = (0, end - start)
                if "random" in inputs:  # the counter names the expert, wherever it is computed
                    first, second = inputs["random"].counter
                    piece["random"] = replace(inputs["random"], counter=(first, second + expert))
            yield piece


def narrow(x: ops.Operand, axis: int, start: int, end: int) -> ops.Operand:
    """Indices [start, end) of `axis`, along which a block tensor must not have its blocks."""
    if isinstance(x, Tensor):
        return x.narrow(axis, start, end - start)
    assert axis % len(x.shape) != x.axis
    outer = x.outer
    if outer is not None and outer.shape[axis] != 1:
        outer = outer.narrow(axis, start, end - start)
    codes, scales = (t.narrow(axis, start, end - start) for t in (x.codes, x.scales))
    return replace(x, codes=codes, scales=scales, outer=outer)


@dataclass(frozen=True)
class Operation:
    """What is validated: `make` draws inputs on the CPU, `run` turns them into outputs on any device. `kernel`: the
    same by a Triton kernel, which takes the place of `run` on the device under test."""

    name: str
    make: Callable[[Draw], Inputs]
    run: Run
    cut: Cut | None = None
    data: tuple[str, ...] = tuple(DATA)
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    kernel: Callable[[Inputs], Outputs] | None = None


def parts(name: str, q: ops.Operand) -> Outputs:
    """The tensors of an operand."""
    if isinstance(q, Tensor):
        return {name: q}
    found = {f"{name}.codes": q.codes, f"{name}.scales": q.scales}
    return found if q.outer is None else found | {f"{name}.outer": q.outer}
