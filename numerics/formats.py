"""Element formats as data: what every code of a small number format means.

A `Format` is frozen and hashable; functions take it as an argument and nothing else in fourbit re-derives its
properties. Three kinds exist:

    float     sign, exponent field E, mantissa field M:   (-1)^s 2^(E - bias) (1 + M / 2^m)     E > 0
                                                          (-1)^s 2^(1 - bias) (M / 2^m)         E = 0 (subnormal)
              an unsigned one has no sign bit
    fixed     two's complement integer i:                 i / 2^m
    exponent  unsigned exponent field E:                  2^(E - bias), no zero, the last code is NaN

Sources: OCP Microscaling Formats v1.0 (E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, INT8), PTX ISA 9.1 section 5.2.3 (UE4M3)
and 5.2.4 (S2F6, the element of MXINT8), IEEE 754 (FP16). BF16 and TF32 are float32 with a shorter mantissa.
Everything here is exact: the value of each code is a dyadic rational that float32 holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from .arguments import integer
from .cache import cached
from .exact_text import exact
from .markup import Html, chip, escaped, joined, mathematical, table

TABLE_BITS = 16  # formats up to this width decode by table
LISTED_BITS = 6  # and up to this one show every value
_KINDS = {"float": "floating-point format", "fixed": "fixed-point format", "exponent": "powers of two, format"}
_HUES = {"sign": "sign", "exponent": "exponent", "integer": "exponent", "mantissa": "mantissa", "fraction": "mantissa"}


@dataclass(frozen=True)
class Format:
    """One element format.

    Args:
        name: the field's usual name, "E4M3".
        kind: "float", "fixed" or "exponent" (see the module docstring).
        bits: width of a code in bits, at most 32.
        exponent_bits, mantissa_bits: field widths; for a fixed-point format `mantissa_bits` counts fraction bits.
        bias: exponent bias; 0 for a fixed-point format.
        specials: which codes are not numbers. "none"; "nan": only the all-ones magnitude, NaN (E4M3, E8M0);
            "ieee": the all-ones exponent holds infinity and NaNs (FP16).
        signed: whether a float format has a sign bit; the other kinds have no choice.

    Raises:
        ValueError: widths that do not add up, or values that float32 cannot hold.
    """

    name: str
    kind: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: str = "none"
    signed: bool = True

    def __post_init__(self) -> None:
        def need(good: bool, field: str, remedy: str) -> None:
            if not good:
                raise ValueError(f"{field}={getattr(self, field)!r} of format {self.name}: {remedy}")

        for field in ("bits", "exponent_bits", "mantissa_bits", "bias"):
            integer(getattr(self, field), field, f"format {self.name} needs an integer")
        need(self.kind in ("float", "fixed", "exponent"), "kind", "use 'float', 'fixed' or 'exponent'")
        need(self.specials in ("none", "nan", "ieee"), "specials", "use 'none', 'nan' or 'ieee'")
        need(isinstance(self.signed, bool), "signed", "use True or False")
        need(2 <= self.bits <= 32, "bits", "use 2 to 32")
        need(self.mantissa_bits >= 0 and self.exponent_bits >= 0, "mantissa_bits", "field widths start at 0")
        if self.kind == "float":
            width = self.signed + self.exponent_bits + self.mantissa_bits
            need(self.bits == width, "bits", f"sign, exponent and mantissa need {width}")
            need(1 <= self.exponent_bits <= 8, "exponent_bits", "use 1 to 8")
            need(self.mantissa_bits <= 23, "mantissa_bits", "float32 holds at most 23")
            need(self.specials != "ieee" or self.exponent_bits >= 2, "specials", "'ieee' needs 2 exponent bits or more")
            need(self.specials != "ieee" or self.mantissa_bits >= 1, "specials", "'ieee' needs a mantissa bit for NaN")
            lowest, highest = 1 - self.bias - self.mantissa_bits, (1 << self.exponent_bits) - 1 - self.bias
            need(lowest >= -149 and highest - (self.specials == "ieee") <= 127, "bias", "values leave float32's range")
        if self.kind == "fixed":
            need(self.signed and self.specials == "none", "specials", "fixed-point codes are all signed numbers")
            need(
                self.bits <= 24 and self.exponent_bits == 0 == self.bias, "bits", "use at most 24, no exponent, no bias"
            )
            need(self.mantissa_bits < 126, "mantissa_bits", "use fewer fraction bits than 126")
        if self.kind == "exponent":
            need(self.bits == self.exponent_bits <= 8, "bits", "an exponent format is all exponent, at most 8 bits")
            need(self.mantissa_bits == 0, "mantissa_bits", "an exponent format has none")
            need(self.specials == "nan", "specials", "the last code of an exponent format is NaN: use 'nan'")
            need(
                0 <= self.bias <= 149 and (1 << self.bits) - 2 - self.bias <= 127,
                "bias",
                "values leave float32's range",
            )

    @property
    def _sign_bits(self) -> int:
        return int(self.kind == "float" and self.signed)

    @property
    def fields(self) -> tuple[tuple[str, int], ...]:
        """Name and width in bits of each field that a code has, from the most significant bit."""
        if self.kind == "fixed":  # fraction bits beyond the width are not stored
            fraction = min(self.bits, self.mantissa_bits)
            named: tuple[tuple[str, int], ...] = (("integer", self.bits - fraction), ("fraction", fraction))
        else:
            named = (("sign", self._sign_bits), ("exponent", self.exponent_bits), ("mantissa", self.mantissa_bits))
        return tuple((name, width) for name, width in named if width > 0)

    @property
    def formula(self) -> str:
        """The value of a code in words: E and M the exponent and mantissa fields, s the sign, i the whole code."""
        if self.kind == "fixed":
            return f"i / 2^{self.mantissa_bits}, i in two's complement" if self.mantissa_bits else "i, two's complement"
        if self.kind == "exponent":
            return f"2^(E - {self.bias})"
        sign, steps = "(-1)^s x " if self.signed else "", 1 << self.mantissa_bits
        return f"{sign}2^(E - {self.bias}) x (1 + M/{steps}); {sign}2^{self.min_exponent} x M/{steps} where E = 0"

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number (and of all subnormals)."""
        return (1 if self.kind == "float" else 0) - self.bias

    @property
    def max_code(self) -> int:
        """Code of the largest finite value."""
        if self.kind == "fixed":
            return (1 << (self.bits - 1)) - 1
        top = (1 << (self.bits - self._sign_bits)) - 1  # the all-ones magnitude
        if self.specials == "ieee":
            return top - (1 << self.mantissa_bits)
        return top - (self.specials == "nan")

    @property
    def nan_code(self) -> int | None:
        """Code of the canonical NaN, or None where the format has none."""
        if self.specials == "none":
            return None
        top = (1 << (self.bits - self._sign_bits)) - 1
        return top - (1 << (self.mantissa_bits - 1)) + 1 if self.specials == "ieee" else top

    @property
    def infinity_code(self) -> int | None:
        """Code of +infinity, or None where the format has none."""
        return self.max_code + 1 if self.specials == "ieee" else None

    @property
    def special_codes(self) -> str:
        """The specials with their positive, canonical codes: "inf 0x7C, NaN 0x7E"; empty without any."""
        named = (("inf", self.infinity_code), ("NaN", self.nan_code))
        return ", ".join(f"{name} {self.hex(code)}" for name, code in named if code is not None)

    @property
    def count(self) -> int:
        """How many finite values there are; -0 is not counted beside 0."""
        if self.kind == "fixed":
            return 1 << self.bits
        return 2 * self.max_code + 1 if self._sign_bits else self.max_code + 1

    @property
    def max(self) -> float:
        """Largest finite value."""
        return self.value(self.max_code)

    @property
    def min(self) -> float:
        """Least finite value: -max, one step further in a fixed-point format, 0 or 2^-bias in an unsigned one."""
        if self.kind == "fixed":
            return self.value(1 << (self.bits - 1))
        return -self.max if self._sign_bits else self.value(0)

    @property
    def min_normal(self) -> float:
        """Smallest positive value with full precision (one step of a fixed-point format)."""
        return 2.0**self.min_exponent if self.kind != "fixed" else self.min_subnormal

    @property
    def min_subnormal(self) -> float:
        """Smallest positive value."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def code_dtype(self) -> torch.dtype:
        """Integer type that holds a code: uint8 up to 8 bits, uint16 up to 16, else int32."""
        return torch.uint8 if self.bits <= 8 else torch.uint16 if self.bits <= 16 else torch.int32

    def value(self, code: int) -> float:
        """Value of one code by the formula of the module docstring; the definition that every decoder follows."""
        if not 0 <= integer(code, "code", f"use 0 to {(1 << self.bits) - 1}") < 1 << self.bits:
            raise ValueError(f"code={code} is not a code of {self.name}: use 0 to {(1 << self.bits) - 1}")
        if self.kind == "fixed":
            signed = code - (1 << self.bits) if code >> (self.bits - 1) else code
            return signed * 2.0**-self.mantissa_bits
        if self.kind == "exponent":
            return float("nan") if code == self.nan_code else 2.0 ** (code - self.bias)
        sign = -1.0 if self.signed and code >> (self.bits - 1) else 1.0
        magnitude = code & ((1 << (self.bits - self._sign_bits)) - 1)
        if magnitude > self.max_code:
            is_infinity = self.specials == "ieee" and magnitude == self.max_code + 1
            return sign * float("inf") if is_infinity else float("nan")
        exponent, mantissa = divmod(magnitude, 1 << self.mantissa_bits)
        significand = mantissa + ((1 << self.mantissa_bits) if exponent else 0)
        return sign * significand * 2.0 ** (max(exponent, 1) - self.bias - self.mantissa_bits)

    def hex(self, code: int) -> str:
        """A code as it is written: 0x, and a digit for every 4 bits."""
        return f"0x{code:0{-(-self.bits // 4)}X}"

    def values(self) -> torch.Tensor:
        """Every finite value once, ascending, float32, shape (n,); -0 is not repeated beside 0.

        Raises: ValueError for a format wider than 16 bits, whose values are too many to list.
        """
        table = self.table()
        values: torch.Tensor = torch.unique(table[torch.isfinite(table)] + 0.0)  # sorted; -0 + 0 = 0
        return values

    def table(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Value of every code in code order, float32, shape (2^bits,), on `device`. Errors as `values`."""
        if self.bits > TABLE_BITS:
            raise ValueError(f"{self.name} has {self.bits} bits: tables end at {TABLE_BITS}; use nm.decode")
        return cached_table(self, str(device)).clone()  # what is memoized stays ours

    def __repr__(self) -> str:
        return (
            f"{self.name}({self.bits} bits, max {self.max:g}, min normal {self.min_normal:g}, "
            f"min subnormal {self.min_subnormal:g})"
        )

    def _repr_html_(self) -> str:
        """Fields, formula, range and specials as a table and, up to 6 bits, every value: what a notebook shows."""
        tinted = joined((chip(f"{width} {name}", _HUES[name]) for name, width in self.fields), " ")
        smallest = f"{exact(self.min_subnormal)} positive"
        if self.kind == "float":
            smallest += f", {exact(self.min_normal)} normal"
        rows = [
            ("fields", tinted),
            ("value", mathematical(self.formula)),
            ("range", mathematical(f"{exact(self.min)} to {exact(self.max)}; smallest {smallest}")),
            ("numbers", f"{self.count} finite values in {1 << self.bits} codes"),
            ("specials", self.special_codes or "none: neither NaN nor infinity"),
        ]
        if self.bits <= LISTED_BITS:
            rows.append(("values", self._listed()))
        named = joined([Html(f"<b>{escaped(self.name)}</b>"), f": {_KINDS[self.kind]} of {self.bits} bits"])
        return table(rows, caption=named)

    def _listed(self) -> Html:
        """Every value; of a format with a sign bit the magnitudes."""
        values = self.values()
        magnitudes = values[values >= 0] if self._sign_bits else values
        return mathematical(("\u00b1 " if self._sign_bits else "") + ", ".join(map(exact, magnitudes.tolist())))


@cached(maxsize=64)
def cached_table(fmt: Format, device: str) -> torch.Tensor:
    """`Format.table` itself, memoized: not to be written to."""
    return torch.tensor([fmt.value(code) for code in range(1 << fmt.bits)], dtype=torch.float32).to(device)


E2M1 = Format("E2M1", "float", 4, 2, 1, bias=1)
E2M3 = Format("E2M3", "float", 6, 2, 3, bias=1)
E3M2 = Format("E3M2", "float", 6, 3, 2, bias=3)
E4M3 = Format("E4M3", "float", 8, 4, 3, bias=7, specials="nan")
E5M2 = Format("E5M2", "float", 8, 5, 2, bias=15, specials="ieee")
UE4M3 = Format("UE4M3", "float", 7, 4, 3, bias=7, specials="nan", signed=False)
E8M0 = Format("E8M0", "exponent", 8, 8, 0, bias=127, specials="nan")
S2F6 = Format("S2F6", "fixed", 8, 0, 6, bias=0)
INT8 = Format("INT8", "fixed", 8, 0, 0, bias=0)
INT4 = Format("INT4", "fixed", 4, 0, 0, bias=0)
FP16 = Format("FP16", "float", 16, 5, 10, bias=15, specials="ieee")
BF16 = Format("BF16", "float", 16, 8, 7, bias=127, specials="ieee")
TF32 = Format("TF32", "float", 19, 8, 10, bias=127, specials="ieee")

FORMATS: dict[str, Format] = {
    f.name: f for f in (E2M1, E2M3, E3M2, E4M3, E5M2, UE4M3, E8M0, S2F6, INT8, INT4, FP16, BF16, TF32)
}

_WRITTEN = re.compile(r"(U?)E(\d+)M(\d+)(FNU|FN)?|INT(\d+)|S(\d+)F(\d+)")


def format_named(name: str) -> Format:
    """The format that `name` writes down: one of `FORMATS`, or one of your own.

        E3M2FN    finite: no infinity; the all-ones magnitude is NaN from 8 bits on, as in E4M3, and a number below
        E3M4      with infinity and NaN as IEEE 754 has them; finite where E1 or M0 leaves no code for them
        UE5M3FN   without a sign bit
        E5M0FNU   powers of two alone, as E8M0: no sign, no zero, the last code is NaN
        INT6      integers. S3F4: two's complement with 3 integer and 4 fraction bits

    The bias is 2^(e - 1) - 1 for e exponent bits. E4M3, E2M1 and others of `FORMATS` are what they are there, with FN
    or without. Case does not matter. Names are those of ml_dtypes, without `float8_`.

    Raises: ValueError for a name of no such shape, or widths that `Format` refuses.
    """
    upper = name.upper()
    plain = "E8M0" if upper == "E8M0FNU" else upper.removesuffix("FN")
    if upper in FORMATS or (plain in FORMATS and FORMATS[plain].specials != "ieee"):
        return FORMATS[plain]
    found = _WRITTEN.fullmatch(upper)
    if found is None or (found[4] == "FNU" and (found[1] or found[3] != "0")):
        raise ValueError(
            f"FORMAT={name!r} is unknown: use one of {', '.join(FORMATS)}, or write one down: E3M2FN, E3M4, UE5M3FN, "
            "E5M0FNU, INT6 or S3F4"
        )
    unsigned, exponent, mantissa, suffix, integers, whole, fraction = found.groups()
    if exponent is None:
        bits, steps = (int(integers), 0) if whole is None else (int(whole) + int(fraction), int(fraction))
        return Format(upper, "fixed", bits, 0, steps, 0)
    e, m = int(exponent), int(mantissa)
    bits, bias = (not unsigned) + e + m, (1 << max(e - 1, 0)) - 1
    if suffix == "FNU":
        return Format(upper, "exponent", e, e, 0, bias, "nan")
    specials = "ieee" if suffix is None and e > 1 and m > 0 else "nan" if bits >= 8 else "none"
    return Format(upper, "float", bits, e, m, bias, specials, not unsigned)
