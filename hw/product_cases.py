"""Operands that try a tensor core's sums: a (M, K) and b (N, K) as codes, c (M, N) as float32 patterns.

Every pair of a row of a and a row of b is one dot product, so a kind of data puts what it is after into every pair:
cancellation by rows that repeat themselves with the sign of one operand turned, lost bits by leaders whose products
exceed the others' by about as much as the alignment keeps. All of it is integer arithmetic on Philox words, so that a
seed gives the same operands on every device:

    ordinary     exponents fall off geometrically from 2^0, as a bell's do
    wide         all exponents of the format; of one with 8 exponent bits, 33 of them
    full         all exponents of a format with 8 bits: sums overflow and underflow
    within       each product follows its negative, but for a last place now and then: groups cancel
    across       the second half of K is the negative of the first, likewise: the accumulator cancels
    subnormal    a has the format's least exponents; products are subnormal for a third of the rows of b
    tiny         products around 2^-138, below float32's numbers (8 exponent bits)
    truncation   one leader in 16 products, the others near the last bit that alignment keeps
    ties         the same with powers of two: halves, and sums that lie between two numbers of the output
    zeros        7 of 8 elements are +0 or -0, every other 32 of a row all are, every eighth row all are
    specials     Inf and NaN, one to a row at most, and zeros for them to meet
    overflow     products around float32's largest number (8 exponent bits), or the format's largest numbers

    c: none      no accumulator       zero  +0 and -0        near, far  exponents near those of the products, or beyond
    c: opposed   minus the sum of the products, but for last bits    wild  any pattern: Inf, NaN, subnormal, the largest
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm
from numerics.philox import philox_words


@dataclass(frozen=True)
class Fields:
    """Random numbers, one of each per element of an operand, int64: sign 0 or 1, mantissa, and 20 bits for whatever
    else is drawn. `line` (rows, 1) and `place` (K,) are the element's indices."""

    sign: Tensor
    mantissa: Tensor
    draw: Tensor
    line: Tensor
    place: Tensor


@dataclass(frozen=True)
class Case:
    """One product, with every kind of c. seed and names determine its operands."""

    fmt: nm.Format
    data: str
    k: int
    rows: int
    seed: int

    def operands(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """a (rows, K), b (rows, K): codes of `fmt`."""
        make = DATA[self.data]
        return make(self, self._fields("a", device), 0), make(self, self._fields("b", device), 1)

    def starts(self, a: Tensor, b: Tensor, product: Tensor) -> dict[str, Tensor]:
        """c of every kind but "none", float32 (rows, rows). product: a @ b.T, for the one that opposes it."""
        word = {kind: self.words(f"c {kind}", product.shape, a.device) for kind in STARTS[1:]}
        largest = exponents(a, self.fmt).amax(1)[:, None] + exponents(b, self.fmt).amax(1)
        return {
            "zero": _pattern(word["zero"] & 0x80000000),
            "near": _relative(word["near"], largest, 11, -6),
            "far": _relative(word["far"], largest, 71, -35),
            "opposed": _opposed(word["opposed"], product),
            "wild": _anything(word["wild"]),
        }

    def words(self, role: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Random words in [0, 2^32), int64."""
        count = torch.Size(shape).numel()
        stream = zlib.crc32(f"{self.fmt.name} {self.data} {self.k} {role}".encode())
        index = torch.arange(-(-count // 4), device=device)
        zero = torch.zeros_like(index)
        found = philox_words((self.seed & 0xFFFFFFFF, 8), (index, zero + stream, zero, zero))
        return torch.stack(found, -1).flatten()[:count].view(shape)

    def _fields(self, role: str, device: torch.device) -> Fields:
        word = self.words(role, (self.rows, self.k), device)
        mantissa = (word >> 1) & ((1 << self.fmt.mantissa_bits) - 1)
        line, place = torch.arange(self.rows, device=device)[:, None], torch.arange(self.k, device=device)
        return Fields(word & 1, mantissa, word >> 12, line, place)


# Codes from fields.


def _compose(fmt: nm.Format, sign: Tensor, exponent: Tensor, mantissa: Tensor) -> Tensor:
    """Codes of finite numbers, int64. exponent: of the number; clamped to the format's, so that what lies below its
    normal numbers becomes subnormal with the same mantissa, and what lies above takes its largest exponent."""
    field = (exponent + fmt.bias).clamp(0, fmt.max_code >> fmt.mantissa_bits)
    return (sign << (fmt.bits - 1)) | ((field << fmt.mantissa_bits) | mantissa).clamp(max=fmt.max_code)


def _codes(case: Case, code: Tensor) -> Tensor:
    return code.to(torch.int32).to(case.fmt.code_dtype)


def exponents(codes: Tensor, fmt: nm.Format) -> Tensor:
    """Exponents of numbers, int64: the format's least for subnormal numbers and zero."""
    field = (codes.to(torch.int64) >> fmt.mantissa_bits) & ((1 << fmt.exponent_bits) - 1)
    return field.clamp(min=1) - fmt.bias


def _falling(draw: Tensor, most: int) -> Tensor:
    """0 for half of the draws, -1 for a quarter, and so on down to -most."""
    steps = sum(((draw & ((1 << n) - 1)) == 0).to(torch.int64) for n in range(1, most + 1))
    return -torch.as_tensor(steps)


def _wide(case: Case) -> bool:
    return case.fmt.exponent_bits == 8


def _ordinary(case: Case, f: Fields, side: int) -> Tensor:
    return _codes(case, _compose(case.fmt, f.sign, _falling(f.draw, 9), f.mantissa))


def _any_exponent(case: Case, f: Fields, side: int) -> Tensor:
    top = (case.fmt.max_code >> case.fmt.mantissa_bits) + 1
    exponent = f.draw % 33 - 16 if _wide(case) and case.data == "wide" else f.draw % top - case.fmt.bias
    return _codes(case, _compose(case.fmt, f.sign, exponent, f.mantissa))


def _cancelling(case: Case, f: Fields, side: int) -> Tensor:
    """Columns p and its partner q: b has opposite signs, and in one of 16 elements the last place of q differs."""
    exponent = f.draw % 11 - 5
    code = _compose(case.fmt, f.sign, exponent, f.mantissa)
    half = case.k // 2
    if case.data == "within":
        first, second = f.place[0::2], f.place[1::2]
    else:
        first, second = f.place[:half], f.place[half:]
    other = code[:, first] ^ ((f.draw[:, second] >> 8) % 16 == 0).to(torch.int64)
    magnitude = other & ((1 << (case.fmt.bits - 1)) - 1)
    other = torch.where(magnitude > case.fmt.max_code, code[:, first], other)
    code[:, second] = other ^ (side << (case.fmt.bits - 1))
    return _codes(case, code)


def _subnormal(case: Case, f: Fields, side: int) -> Tensor:
    least, span = case.fmt.min_exponent, case.fmt.max_code >> case.fmt.mantissa_bits
    if side == 0:
        return _codes(case, _compose(case.fmt, f.sign, least - 1 + f.draw % 3, f.mantissa))
    if not _wide(case):
        return _codes(case, _compose(case.fmt, f.sign, least - 1 + f.draw % (span + 1), f.mantissa))
    center = torch.tensor([-20, 4, 60], device=f.line.device)[f.line % 3]
    return _codes(case, _compose(case.fmt, f.sign, center + f.draw % 13 - 6, f.mantissa))


def _tiny(case: Case, f: Fields, side: int) -> Tensor:
    return _codes(case, _compose(case.fmt, f.sign, f.draw % 9 - 4 - (63, 75)[side], f.mantissa))


def _truncation(case: Case, f: Fields, side: int) -> Tensor:
    """Leaders have 2^F times the others' products, give or take 2^3. F: what FP8 and the wider formats keep."""
    kept = 13 if case.fmt.bits == 8 else 25
    top = min(case.fmt.max_code >> case.fmt.mantissa_bits, case.fmt.bias + 20) - case.fmt.bias
    leads = f.place % 16 == (f.line[0, 0] + 5 * (f.place // 16)) % 16
    others = top - (kept // 2, kept - kept // 2)[side] + f.draw % 4 - 2
    exponent = torch.where(leads, top - (f.draw >> 4) % 2, others)
    mantissa = f.mantissa & ~((1 << case.fmt.mantissa_bits - 1) - 1) if case.data == "ties" else f.mantissa
    mantissa = torch.where((f.draw >> 8) % 4 != 0, 0, mantissa) if case.data == "ties" else mantissa
    return _codes(case, _compose(case.fmt, f.sign, exponent, mantissa))


def _zeros(case: Case, f: Fields, side: int) -> Tensor:
    code = _compose(case.fmt, f.sign, _falling(f.draw >> 8, 9), f.mantissa)
    gone = (f.draw % 8 != 0) | ((f.place // 32 + f.line) % 2 == 0) | (f.line % 8 == 0)
    return _codes(case, torch.where(gone, f.sign << (case.fmt.bits - 1), code))


def _specials(case: Case, f: Fields, side: int) -> Tensor:
    """Half of the rows hold none; the others Inf, -Inf, NaN or the largest number at one place."""
    code = _compose(case.fmt, f.sign, _falling(f.draw, 9), f.mantissa)
    code = torch.where((f.draw >> 10) % 16 == 0, f.sign << (case.fmt.bits - 1), code)
    sign, top = 1 << (case.fmt.bits - 1), case.fmt.max_code
    infinity = top + 1 if case.fmt.specials == "ieee" else top
    nan = case.fmt.nan_code or 0
    kinds = [infinity, infinity | sign, nan, nan | sign | 1, top, infinity, infinity | sign, nan]
    special = torch.tensor(kinds, device=code.device)[(f.line // 2) % 8]
    here = (f.place == (f.line * 7 + 3 * side) % case.k) & (f.line % 2 == side)
    return _codes(case, torch.where(here, special, code))


def _overflow(case: Case, f: Fields, side: int) -> Tensor:
    top = (case.fmt.max_code >> case.fmt.mantissa_bits) - case.fmt.bias
    exponent = (f.draw % 3 + 62 if _wide(case) else top - f.draw % 2) - (f.draw >> 4) % 4 * (f.line % 2)
    return _codes(case, _compose(case.fmt, f.sign & (f.line >> 1), exponent, f.mantissa))


DATA: dict[str, Callable[[Case, Fields, int], Tensor]] = {
    "ordinary": _ordinary,
    "wide": _any_exponent,
    "full": _any_exponent,
    "within": _cancelling,
    "across": _cancelling,
    "subnormal": _subnormal,
    "tiny": _tiny,
    "truncation": _truncation,
    "ties": _truncation,
    "zeros": _zeros,
    "specials": _specials,
    "overflow": _overflow,
}


# Accumulators.


def _pattern(bits: Tensor) -> Tensor:
    """int64 patterns in [0, 2^32) as float32."""
    return ((bits ^ 0x80000000) - 0x80000000).to(torch.int32).view(torch.float32)


def _relative(word: Tensor, largest: Tensor, count: int, least: int) -> Tensor:
    """24 random bits under an exponent `least` to `least + count - 1` beyond the largest of a pair's products."""
    field = (largest + least + (word >> 23 & 0xFF) % count + 127).clamp(0, 254)
    return _pattern((word & 0x807FFFFF) | (field << 23))


def _opposed(word: Tensor, product: Tensor) -> Tensor:
    """Minus the sum; in half of them some of the last bits, of float32 or of 13 bits, are turned."""
    bits = product.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    turned = (word & 0b111) * (word >> 3 & 1) | ((word >> 4 & 0b11) << 10) * (word >> 6 & 1)
    return _pattern(bits ^ turned ^ 0x80000000)


def _anything(word: Tensor) -> Tensor:
    """Random patterns; in one of four the exponent is all zeros or all ones, or float32's largest."""
    field = torch.tensor([0, 255, 254, 1], device=word.device)[word >> 5 & 3]
    drawn = torch.where((word & 0b11) == 0, (word & 0x807FFFFF) | (field << 23), word)
    # some infinities, and largest numbers, among the NaNs and what lies below the largest
    drawn = torch.where((word & 0b111100) == 0b100000, drawn & 0xFF800000, drawn)
    return _pattern(torch.where((word & 0b1111100) == 0b1000000, drawn | 0x007FFFFF, drawn))


STARTS = ("none", "zero", "near", "far", "opposed", "wild")


def lengths(fmt: nm.Format) -> tuple[int, ...]:
    """K of the cases: one group, several, an odd number of them, chains up to 4096."""
    least = (32, 64, 96, 128, 256, 512) if fmt.bits == 8 else (16, 32, 64, 96, 128, 512)
    return (*least, 1024, 4096)


def cases(fmt: nm.Format, data: str, rows: int, seeds: tuple[int, ...], longest: int = 4096) -> list[Case]:
    """Every product of a format and a kind of data, K up to `longest`."""
    return [Case(fmt, data, k, rows, seed) for seed in seeds for k in lengths(fmt) if k <= longest]


def kinds(fmt: nm.Format) -> list[str]:
    """The kinds of data of a format: two of them need 8 exponent bits."""
    return [data for data in DATA if fmt.exponent_bits == 8 or data not in ("full", "tiny")]
