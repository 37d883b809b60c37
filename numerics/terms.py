"""Operands as a tensor core sees them: values of its formats, their raw exponents, and block scales.

A `Terms` holds planes of one shape (..., rows, K). The exponent is that of the stored format: E - bias of a normal
number, the format's least for a subnormal one, whatever the leading bit; `ZERO` for zero. A power-of-two block scale
joins value and exponent. Where products of a group are summed before they are scaled ("groups"), the value is the bare
element, the exponent the scale's, and `scale` the scale's significand.

Plain tensors are taken as the first of the accumulator's formats that holds every value, so E4M3 before E5M2: below
2^-6 the two give one number different exponents. A tensor of dtype float8_e5m2 is E5M2 in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .accumulators import ACCUMULATORS, Accumulator
from .blocks import BlockTensor
from .codes import decode_tensor, round_to
from .floats import power_of_two
from .formats import BF16, E4M3, E5M2, E8M0, FP16, TF32, Format

ZERO = -10000  # exponent of a zero: below every other, and twice it fits 16 bits
FLOAT8 = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}
_SUBSETS = {(torch.bfloat16, BF16), (torch.float16, FP16), (torch.float16, TF32), (torch.bfloat16, TF32)}


@dataclass(frozen=True)
class Terms:
    """Planes of one shape: see the module docstring. value: float32 or float64; exponent: int16; scale: float32."""

    value: Tensor
    exponent: Tensor
    scale: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Of every plane."""
        return self.value.shape

    @property
    def device(self) -> torch.device:
        """Of every plane."""
        return self.value.device

    def __getitem__(self, index: Any) -> Terms:
        return Terms(self.value[index], self.exponent[index], None if self.scale is None else self.scale[index])

    def expand(self, lead: torch.Size) -> Terms:
        """With other leading axes."""
        planes = (self.value, self.exponent, self.scale)
        return Terms(*(None if p is None else p.expand(*lead, *p.shape[-2:]) for p in planes))  # type: ignore[arg-type]


def terms(x: BlockTensor | Tensor, name: str, row: Accumulator) -> Terms:
    """The operand `x`, outer scale left aside.

    Raises:
        TypeError, ValueError: an operand that the accumulator does not take; the message names the kinds that do.
    """
    if isinstance(x, BlockTensor):
        return _of_blocks(x, name, row)
    if not row.takes_plain:
        raise TypeError(
            f"{name} is {_shown(x)}: {row.name} takes blocks of {_names(row)}; pass what nm.quantize returns, or use "
            f"one of {', '.join(other.name for other in ACCUMULATORS.values() if other.takes_plain)}"
        )
    fmt = _format_of(x, name, row)
    value = decode_tensor(x.view(torch.uint8), fmt) if x.dtype in FLOAT8 else x.to(torch.float32)
    return Terms(value, raw_exponent(value, FP16 if row.rule == "halves" else fmt))  # "halves" multiplies as FP16


def _of_blocks(x: BlockTensor, name: str, row: Accumulator) -> Terms:
    if not row.takes(x.fmt) or row.takes_plain:
        fit = ", ".join(other.name for other in ACCUMULATORS.values() if other.takes(x.fmt))
        raise ValueError(
            f"{name} is a BlockTensor of {x.fmt.name}: {row.name} takes {_names(row)}; {x.fmt.name} is taken by {fit}"
        )
    element, exponent = decode_tensor(x.codes, x.fmt.element), None
    codes = x.scales_per_value()
    if x.fmt.scale is E8M0:
        scale = codes.to(torch.int16) - 127
        significand = torch.ones(codes.shape, dtype=torch.float32, device=codes.device).masked_fill_(
            codes == 0xFF, torch.nan
        )
    else:
        value = decode_tensor(codes & 0x7F, E4M3)  # UE4M3: the sign bit is not looked at
        scale = raw_exponent(value, E4M3)
        significand = torch.where(value == 0, value, value * power_of_two(-scale.clamp(min=-6), torch.float32))
    if row.rule == "groups":
        return Terms(element, scale, significand)
    exponent = raw_exponent(element, x.fmt.element)
    value = element.to(torch.float64) * power_of_two(scale, torch.float64) * significand
    return Terms(value, torch.where(exponent == ZERO, exponent, exponent + scale))


def raw_exponent(x: Tensor, fmt: Format) -> Tensor:
    """Exponents of float32 values of a format as it stores them, int16; ZERO for zero."""
    exponent = ((x.view(torch.int32) >> 23) & 0xFF) - 127
    return torch.where(x == 0, ZERO, exponent.clamp(min=fmt.min_exponent)).to(torch.int16)


def _format_of(x: Tensor, name: str, row: Accumulator) -> Format:
    """The format as which a plain tensor is taken."""
    formats = [fmt for fmt in row.operands if isinstance(fmt, Format)]
    if x.dtype in FLOAT8:
        fmt = FLOAT8[x.dtype]
        if fmt not in formats:
            raise TypeError(_refused(f"{name} is {x.dtype}", row, fmt))
        return fmt
    wrong = []
    for fmt in formats:
        if (x.dtype, fmt) in _SUBSETS:
            return fmt
        wrong.append(~_holds(fmt, x))
        if not bool(wrong[-1].any()):
            return fmt
    nowhere = torch.stack(wrong).all(0)  # or values of both formats, none of which holds all
    at = tuple(int(i) for i in (nowhere if bool(nowhere.any()) else wrong[0]).nonzero()[0])
    raise ValueError(_refused(f"{name}[{', '.join(map(str, at))}] is {float(x[at])!r}", row, formats[0]))


def _refused(what: str, row: Accumulator, fmt: Format) -> str:
    return f"{what}: {row.name} takes values of {_names(row)}; round with nm.round_to(x, nm.{fmt.name}), or use exact"


def _holds(fmt: Format, x: Tensor) -> Tensor:
    """Where `x` is a value of `fmt`; NaN and infinity too if it has them."""
    x = x.to(torch.float32)
    if fmt in (BF16, TF32):
        return (x.view(torch.int32) & ((1 << (23 - fmt.mantissa_bits)) - 1)) == 0
    special: Tensor = torch.isnan(x) & (fmt.specials != "none") | torch.isinf(x) & (fmt.specials == "ieee")
    held: Tensor = special | (round_to(x, fmt) == x)
    return held


def _names(row: Accumulator) -> str:
    return " or ".join(fmt.name for fmt in row.operands)


def _shown(x: Tensor) -> str:
    return f"a plain {x.dtype} tensor"
