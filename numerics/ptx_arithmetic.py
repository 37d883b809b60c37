"""The arithmetic of one `cvt` instruction on one element, and the fields that elements occupy in a word.

    down    x -> x / scale -> relu -> code                      scale is 2^(byte - 127), the division exact
    up      code -> value x scale -> relu -> float16 or bfloat16

Rounding is `numerics.codes.encode_tensor`; here is what the hardware adds to it (PTX ISA 9.7.9.22, "cvt"):

    .satfinite  numbers beyond the largest one, and infinities, become it with their sign
    otherwise   float16 and bfloat16 overflow to infinity, UE8M0 to NaN
    NaN         all ones without sign (0x7F, 0x7FFF, 0xFF), +largest where the format has no NaN
    .relu       negative numbers and -0 become +0, NaN stays
    UE8M0       takes the magnitude: a negative number is converted like its positive twin

`.rs` adds 16 (13 for float16) random bits to as many leading discarded bits and takes the carry; `random_fields` says
which bits of the word `rbits` an element gets. Exact everywhere, no tolerance. Where no source settles a bit, `assumed`
of `ptx_questions` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .codes import decode_tensor, encode_tensor
from .formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, FP16, S2F6, Format
from .philox import reverse16
from .ptx_questions import assumed
from .rounding import Rounding

ROUNDINGS = {
    "rn": Rounding.NEAREST_EVEN,
    "rz": Rounding.TOWARD_ZERO,
    "rp": Rounding.TOWARD_POSITIVE,
    "rs": Rounding.STOCHASTIC,
}
# format and width of the field that one element occupies
ELEMENTS: dict[str, tuple[Format, int]] = {
    "e2m1": (E2M1, 4),
    "e2m3": (E2M3, 8),
    "e3m2": (E3M2, 8),
    "e4m3": (E4M3, 8),
    "e5m2": (E5M2, 8),
    "s2f6": (S2F6, 8),
    "ue8m0": (E8M0, 8),
    "f16": (FP16, 16),
    "bf16": (BF16, 16),
}


@dataclass(frozen=True)
class Packed:
    """A packed operand type such as "e4m3x2": `count` elements of `fmt`, each in `field` bits, the first uppermost."""

    name: str

    @property
    def element(self) -> str:
        return self.name.rsplit("x", 1)[0]

    @property
    def count(self) -> int:
        return int(self.name.rsplit("x", 1)[1])

    @property
    def fmt(self) -> Format:
        return ELEMENTS[self.element][0]

    @property
    def field(self) -> int:
        return ELEMENTS[self.element][1]

    @property
    def width(self) -> int:
        """Bits of the whole operand: 8, 16 or 32."""
        return self.count * self.field

    @property
    def shifts(self) -> list[int]:
        """Position of each element's lowest bit, the uppermost element first."""
        return [self.field * place for place in reversed(range(self.count))]

    def split(self, word: Tensor) -> list[Tensor]:
        """Fields of int64 words, the upper first."""
        return [(word >> shift) & ((1 << self.field) - 1) for shift in self.shifts]

    def join(self, codes: list[Tensor]) -> Tensor:
        """The inverse of `split` on int32 codes, as uint8, uint16 or uint32."""
        word = codes[0].to(torch.int64 if self.width == 32 else torch.int32)
        for code in codes[1:]:
            word = (word << self.field) | code
        return word.to({8: torch.uint8, 16: torch.uint16, 32: torch.uint32}[self.width])


_NAN_SCALE = 0xFF  # UE8M0


def random_fields(rbits: Tensor, destination: Packed) -> list[Tensor]:
    """The 16 random bits of each element, the upper element first, from int64 words `rbits`.

    f16x2: 13 bits, rbits[28:16] and rbits[12:0], here shifted up to 16: the three lowest of 16 leading discarded bits
    then meet zeros, which make no carry. 8-bit fields: the halves; 4-bit: {bytes 3, 1} and {bytes 2, 0}; the second
    element of a pair reads its 16 bits straight, the first in reverse.
    """
    upper, lower = rbits >> 16, rbits & 0xFFFF
    if destination.fmt is FP16:
        return [(half & 0x1FFF) << 3 for half in (upper, lower)]
    if destination.fmt is BF16:
        return [upper, lower]
    if destination.field == 4:
        upper, lower = (upper & 0xFF00) | (lower >> 8), ((upper & 0xFF) << 8) | (lower & 0xFF)
    if destination.fmt.bits == 6 and assumed("6-bit random bits") == "straight":
        return [upper, upper, lower, lower]
    return [reverse16(upper), upper, reverse16(lower), lower]


def spare_units(rbits: Tensor, destination: Packed) -> list[Tensor] | None:
    """What the three bits above each 13-bit field of f16x2 add to a magnitude; None: nothing."""
    if destination.fmt is FP16 and assumed("f16x2 spare random bits") == "added":
        return [rbits >> 29, (rbits >> 13) & 7]
    return None


def values(codes: Tensor, source: Packed) -> Tensor:
    """Numbers of int64 codes, float32, exact."""
    if source.fmt is BF16 or source.fmt is FP16:
        dtype = torch.bfloat16 if source.fmt is BF16 else torch.float16
        return codes.to(torch.uint16).view(dtype).to(torch.float32)
    return decode_tensor(codes, source.fmt)


def divided(x: Tensor, scale: Tensor) -> Tensor:
    """x / 2^(scale - 127), float64, exact; scale: UE8M0 bytes, int64."""
    if assumed("s2f6 subnormal operand") == "flushed":
        x = x.masked_fill(x.abs() < torch.finfo(torch.float32).smallest_normal, 0.0)
    nan: Tensor = (
        scale.eq(_NAN_SCALE) if assumed("s2f6 NaN scale") == "NaN" else torch.zeros_like(scale, dtype=torch.bool)
    )
    return (x.to(torch.float64) * _power_of_two(127 - scale)).masked_fill(nan, torch.nan)


def multiplied(x: Tensor, scale: Tensor, source: Packed) -> Tensor:
    """x 2^(scale - 127), float64, exact; scale: UE8M0 bytes, int64."""
    product = (x.to(torch.float64) * _power_of_two(scale - 127)).masked_fill(scale.eq(_NAN_SCALE), torch.nan)
    if source.fmt.bits == 8 and source.fmt is not S2F6 and assumed("underflow of a scaled product") == "flushed":
        product = torch.where(product.abs() < BF16.min_normal, product * 0.0, product)
    return product


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent for int64 exponents of normal float64 numbers, by their bits."""
    return ((exponent + 1023) << 52).view(torch.float64)


def relu(x: Tensor) -> Tensor:
    """Negative numbers and -0 to +0, NaN of either sign to +NaN."""
    return x.masked_fill(torch.signbit(x), 0.0).masked_fill(torch.isnan(x), torch.nan)


def to_narrow(x: Tensor, fmt: Format, rounding: Rounding, satfinite: bool, random: Tensor | None) -> Tensor:
    """Codes of x in a format of at most 8 bits by the rules of the module docstring, int32."""
    if fmt is E8M0:
        x = x.abs()
    codes = encode_tensor(x, fmt, rounding, _field(random)).to(torch.int32)
    if fmt is E8M0 and not satfinite:
        beyond = x > E8M0.max if rounding is Rounding.TOWARD_POSITIVE else torch.isinf(x)
        codes = codes.masked_fill(beyond, 0xFF)
    if fmt is E5M2:
        codes = codes.masked_fill(torch.isnan(x), 0x7F)
    if fmt is S2F6 and assumed("s2f6 negative saturation") == "0x81":
        codes = codes.masked_fill(codes == 0x80, 0x81)
    if fmt.bits == 8 and random is not None and assumed("rs NaN sign") == "kept":
        codes = torch.where(torch.isnan(x) & torch.signbit(x), codes | 0x80, codes)
    return codes


def to_half(
    x: Tensor,
    fmt: Format,
    rounding: Rounding,
    satfinite: bool,
    random: Tensor | None = None,
    units: Tensor | None = None,
    nan_code: int = 0x7FFF,
) -> Tensor:
    """Codes of x in FP16 or BF16 by the rules of the module docstring, int32; units: added to the magnitude."""
    codes = encode_tensor(x, fmt, rounding, _field(random)).to(torch.int32)
    # Half of a number that rounds beyond the largest one rounds beyond half the largest: the same mantissa bits go.
    half = encode_tensor(x.abs() * 0.5, fmt, rounding, _field(random)).to(torch.int32)
    beyond = half > fmt.max_code - (1 << fmt.mantissa_bits)
    magnitude, sign = codes & 0x7FFF, codes & 0x8000
    if units is not None:
        beyond |= magnitude + units > fmt.max_code
        magnitude = magnitude + units.to(torch.int32)
    saturates = satfinite or (random is not None and assumed("rs overflow") == "largest")
    magnitude = magnitude.masked_fill(beyond, fmt.max_code if saturates else fmt.max_code + 1)
    return torch.where(torch.isnan(x), nan_code, sign | magnitude)


def _field(random: Tensor | None) -> Tensor | None:
    return None if random is None else random.to(torch.int32)
