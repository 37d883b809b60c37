"""What a golden vector is, and where its inputs come from: bit patterns and Philox words, nothing else.

A case names an operation, tells its contract in words and formulas, and holds inputs and expected outputs as numpy
arrays of uint8, uint16, uint32, int64 and float32. BF16 data are float32 numbers whose low 16 bits are zero. Inputs
are made from integers by exact steps, or by one multiplication in float32, so that every machine makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import numerics as nm

SEED = 0x34626974  # the first word of the Philox key of all inputs; the second one is a stream's number
NAN = 0x7FC00000
INFINITY = 0x7F800000
SIGN = -(1 << 31)
FLT_MAX = torch.finfo(torch.float32).max
SPECIAL = (0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, INFINITY, INFINITY + 1, NAN, 0x7FFFFFFF)


@dataclass(frozen=True, eq=False)
class Case:
    """One golden vector.

    Args:
        name: unique, "cast/E2M1/nearest_even/breakpoints". operation: what a kernel dispatches on, "cast".
        prose: the contract, complete without this code. parameters: what JSON can hold.
        inputs, outputs: arrays by name; a NaN of a float32 output stands for any NaN.
    """

    name: str
    operation: str
    prose: str
    parameters: dict[str, Any]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def case(
    name: str, operation: str, prose: str, parameters: dict[str, Any], inputs: dict[str, Any], outputs: dict[str, Any]
) -> Case:
    """A Case from torch tensors or numpy arrays; NaNs of outputs made canonical, since their bits vary by machine."""
    expected = {key: array(value) for key, value in outputs.items()}
    for value in expected.values():
        if value.dtype == np.float32:
            value.view(np.uint32)[np.isnan(value)] = NAN
    return Case(
        name, operation, " ".join(prose.split()), parameters, {k: array(v) for k, v in inputs.items()}, expected
    )


def array(x: Any) -> np.ndarray:
    """A contiguous numpy copy of a tensor or array, shape kept."""
    return np.array(x.numpy() if isinstance(x, Tensor) else x, order="C")


def from_bits(bits: Iterable[int] | Tensor) -> Tensor:
    """float32 numbers from their bits, signed or unsigned integers."""
    whole = bits if isinstance(bits, Tensor) else torch.tensor(list(bits), dtype=torch.int64)
    return whole.to(torch.int64).to(torch.int32).view(torch.float32)  # keeps the low 32 bits


def powers(exponents: Tensor | list[int]) -> Tensor:
    """2^k as float32 for k from -126 to 127, by their bits: a library's power function need not be exact."""
    return from_bits((torch.as_tensor(exponents) + 127) << 23)


def words(count: int, stream: int) -> Tensor:
    """The first `count` words of a stream: counters (0, 0, 0, 0), (1, 0, 0, 0), .. of key (SEED, stream); int64."""
    counter = torch.zeros(-(-count // 4), 4, dtype=torch.int64)
    counter[:, 0] = torch.arange(len(counter))
    drawn: Tensor = nm.philox([SEED, stream], counter)
    return drawn.flatten()[:count]


def bell(shape: tuple[int, ...], stream: int, bfloat16: bool = False) -> Tensor:
    """Roughly normal float32 numbers, |x| < 4: the sum of four 16-bit numbers, centred, in units of 2^-15.

    bfloat16: cut to BF16 numbers (toward zero).
    """
    count = int(np.prod(shape))
    total = (words(4 * count, stream) >> 16).view(count, 4).sum(-1) - 131070
    x = total.to(torch.float32) * 2.0**-15
    return (truncated(x) if bfloat16 else x).view(shape)


def truncated(x: Tensor) -> Tensor:
    """float32 numbers cut to BF16 numbers."""
    return (x.view(torch.int32) & -65536).view(torch.float32)


def outliers(shape: tuple[int, ...], stream: int) -> Tensor:
    """`bell` with one value in 32 times 16, 64 or 256: heavy tails, exact."""
    draw = words(int(np.prod(shape)), stream + 1).view(shape)
    factor = powers(torch.where(draw % 32 == 0, 4 + 2 * ((draw >> 8) % 3), 0))
    return bell(shape, stream, bfloat16=True) * factor


def wide(count: int, stream: int, low: int, high: int) -> Tensor:
    """float32 numbers of either sign with all mantissa bits random and exponents from `low` to `high`."""
    draw = words(2 * count, stream)
    exponent = 127 + low + draw[:count] % (high - low + 1)
    return from_bits((draw[count:] & 0x807FFFFF) | (exponent << 23))


def neighbours(magnitudes: Tensor) -> Tensor:
    """Positive float32 numbers with the float32 numbers just below and above each: (n,) -> (3n,), three together."""
    bits = magnitudes.view(torch.int32)
    return torch.stack((bits - 1, bits, bits + 1), -1).flatten().view(torch.float32)


def values_and_midpoints(fmt: nm.Format) -> tuple[Tensor, Tensor]:
    """The magnitudes of a format, ascending from the least, and the midpoints between them; float64, exact."""
    values = torch.unique(fmt.values().abs().to(torch.float64))
    return values, (values[1:] + values[:-1]) / 2


def breakpoints(fmt: nm.Format) -> Tensor:
    """Where a cast to `fmt` can go wrong: every value and midpoint, what lies just beyond the largest, the float32
    neighbours of each, zeros, subnormals, infinities and NaNs; all of both signs. float32 (n,)."""
    values, midpoints = values_and_midpoints(fmt)
    step = values[-1] - values[-2]
    beyond = torch.stack((values[-1] + step / 2, values[-1] + step, values[-1] * 4))
    points = torch.cat((values, midpoints, beyond[beyond < 2.0**128])).to(torch.float32)
    bits = neighbours(points[points > 0]).view(torch.int32)
    special = torch.tensor([b for b in SPECIAL if b < 1 << 31], dtype=torch.int32)
    bits = torch.unique(torch.cat((bits, special)))
    return from_bits(torch.cat((bits, bits | SIGN)))


def all_bfloat16() -> Tensor:
    """Every BF16 pattern, NaNs included, as float32, in the order of its bits; (65536,)."""
    return from_bits(torch.arange(1 << 16) << 16)


def element_fields(
    random: nm.Random, expert: Tensor | int, line: Tensor, position: Tensor, element_bits: int
) -> np.ndarray:
    """The 16-bit field of each element, uint16: position counts along the quantized axis from the expert's start.

    expert, line, position: int64, broadcast against each other to the shape of the tensor.
    """
    expert, line, position = torch.broadcast_tensors(torch.as_tensor(expert), line, position)
    fields = random.fields(expert, line, position // 16, element_bits)
    return array(fields.gather(-1, (position % 16).unsqueeze(-1)).squeeze(-1)).astype(np.uint16)
