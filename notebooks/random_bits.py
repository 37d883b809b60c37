"""The random bits of the hardware's stochastic rounding: one 32-bit word for four numbers, as `cvt.rs` takes it.

    n = kept + carry of (the 16 leading bits that are cut off + 16 random bits)

Source: PTX ISA 9.7.9.22, "cvt"; which bits serve which operand is in `numerics.ptx_arithmetic`. The bits that are cut
off are counted here, not computed: they are the number of random fields of 65,536 that round away from zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import numerics as nm
from numerics.philox import reverse16
from numerics.ptx_arithmetic import Packed, random_fields
from studies.hadamard_data import normal
from studies.requantization_cases import expected

FIELDS = 1 << 16
OPERANDS = ("a", "b", "e", "f")  # in the order of the instruction, the first uppermost in the result


@dataclass(frozen=True)
class Instruction:
    """A stochastic conversion of four numbers: its function, the packed type of its result, and its operands' bits.

    upper, lower: the bytes of the word, 3 uppermost, that serve the pair (a, b) and the pair (e, f).
    """

    function: Callable[..., Tensor]
    packed: Packed
    upper: tuple[int, int]
    lower: tuple[int, int]

    @property
    def fmt(self) -> nm.Format:
        return self.packed.fmt


INSTRUCTIONS = {
    "cvt.rs.satfinite.e2m1x4.f32": Instruction(
        nm.ptx.cvt_rs_satfinite_e2m1x4_f32, Packed("e2m1x4"), upper=(3, 1), lower=(2, 0)
    ),
    "cvt.rs.satfinite.e4m3x4.f32": Instruction(
        nm.ptx.cvt_rs_satfinite_e4m3x4_f32, Packed("e4m3x4"), upper=(3, 2), lower=(1, 0)
    ),
}


@dataclass(frozen=True)
class Converted:
    """One operand: its float32 value, its random field, the bits cut off, code and value of the result.

    inner, outer: its neighbours, toward zero and away from it; equal if it is exact or saturates.
    """

    operand: str
    value: float
    field: int
    cut: int
    code: int
    result: float
    inner: float
    outer: float

    @property
    def total(self) -> int:
        """Cut-off bits + random bits: bit 16 is the carry."""
        return self.cut + self.field

    @property
    def carry(self) -> int:
        return self.total >> 16


def away(value: float, fmt: nm.Format) -> int:
    """How many of the 65,536 random fields round `value` away from zero: tried, each of them."""
    codes = _all_fields(value, fmt, torch.arange(FIELDS))
    return int((codes != codes[0]).sum())


def _all_fields(value: float, fmt: nm.Format, fields: Tensor) -> Tensor:
    x = torch.full(fields.shape, value, dtype=torch.float64)
    return nm.encode(x, fmt, nm.Rounding.STOCHASTIC, fields)


def convert(values: list[float], word: int, instruction: Instruction) -> list[Converted]:
    """The instruction on operands a, b, e, f and the random `word`.

    Raises:
        ValueError: not four values.
    """
    if len(values) != len(OPERANDS):
        raise ValueError(f"values={values}: pass four, for {', '.join(OPERANDS)}")
    fmt, packed = instruction.fmt, instruction.packed
    operands = [torch.tensor([value], dtype=torch.float32) for value in values]
    result = instruction.function(*operands, torch.tensor([word], dtype=torch.int64)).to(torch.int64)
    codes = [int(code) for code in packed.split(result)]
    fields = [int(field) for field in random_fields(torch.tensor([word]), packed)]
    found = []
    for name, x, field, code in zip(OPERANDS, operands, fields, codes, strict=True):
        toward = [float(nm.decode(_all_fields(float(x), fmt, torch.tensor([r])), fmt)) for r in (0, FIELDS - 1)]
        cut = away(float(x), fmt)
        found.append(Converted(name, float(x), field, cut, code, fmt.value(code), *toward))
    return found


@dataclass(frozen=True)
class Pair:
    """Shares of all 65,536 fields in which the straight, the reversed and both operands of a pair round up."""

    value: float
    straight: float
    reverse: float
    both: float

    @property
    def correlation(self) -> float:
        """Of the two operands' carries."""
        spread = (self.straight * (1 - self.straight) * self.reverse * (1 - self.reverse)) ** 0.5
        return (self.both - self.straight * self.reverse) / spread


def pair(value: float, fmt: nm.Format) -> Pair:
    """Both operands of a pair hold `value`; every field once."""
    fields = torch.arange(FIELDS)
    below = _all_fields(value, fmt, torch.zeros(1, dtype=torch.int64))
    straight, reverse = (_all_fields(value, fmt, f) != below for f in (fields, reverse16(fields)))
    shares = [float(each.to(torch.float64).mean()) for each in (straight, reverse, straight & reverse)]
    return Pair(value, *shares)


def lost(bits: int, points: int = 1500, fmt: nm.Format = nm.E2M1, low: float = 2, high: float = 3) -> np.ndarray:
    """(2, points): values from `low` to `high`; the exact mean of each by `bits` random bits, less itself."""
    x = torch.linspace(low, high, points, dtype=torch.float64)
    return torch.stack((x, expected(x, fmt, bits) - x)).numpy()


def shrinkage(bits: int, seed: int = 0, fmt: nm.Format = nm.E2M1) -> float:
    """Of normal numbers within the format's range, rounded with `bits` random bits: the sum of the exact means'
    magnitudes over the sum of their own, less 1."""
    x = (normal(seed, 1 << 14).to(torch.float64) * (fmt.max / 3)).clamp(-fmt.max, fmt.max)
    return float(expected(x, fmt, bits).abs().sum() / x.abs().sum()) - 1
