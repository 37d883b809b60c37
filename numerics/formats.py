"""Element formats as data: what every code of a small number format means.

A `Format` is frozen and hashable; functions take it as an argument and nothing else in fourbit re-derives its
properties. Three kinds exist:

    float     sign, exponent field E, mantissa field M:   (-1)^s 2^(E - bias) (1 + M / 2^m)     E > 0
                                                          (-1)^s 2^(1 - bias) (M / 2^m)         E = 0 (subnormal)
    fixed     two's complement integer i:                 i / 2^m
    exponent  unsigned exponent field E:                  2^(E - bias), no zero, the last code is NaN

Sources: OCP Microscaling Formats v1.0 (E2M1, E4M3, E8M0), PTX ISA 9.1 section 5.2.4 (S2F6, the element of MXINT8).
Everything here is exact: the value of each code is a dyadic rational that float32 holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Format:
    """One element format.

    Args:
        name: the field's usual name, "E4M3".
        kind: "float", "fixed" or "exponent" (see the module docstring).
        bits: width of a code in bits, at most 16.
        exponent_bits, mantissa_bits: field widths; for a fixed-point format `mantissa_bits` counts fraction bits.
        bias: exponent bias; 0 for a fixed-point format.
        specials: which codes are not numbers. "none"; "nan": only the all-ones magnitude, NaN (E4M3, E8M0);
            "ieee": the all-ones exponent holds infinity and NaNs (BF16).
    """

    name: str
    kind: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: str = "none"

    def __post_init__(self) -> None:
        if self.kind not in ("float", "fixed", "exponent"):
            raise ValueError(f"kind={self.kind!r} of format {self.name}: use 'float', 'fixed' or 'exponent'")
        if self.specials not in ("none", "nan", "ieee"):
            raise ValueError(f"specials={self.specials!r} of format {self.name}: use 'none', 'nan' or 'ieee'")
        if not 2 <= self.bits <= 16:
            raise ValueError(f"bits={self.bits} of format {self.name}: use 2 to 16")
        if self.kind == "float" and self.bits != 1 + self.exponent_bits + self.mantissa_bits:
            raise ValueError(
                f"bits={self.bits} of format {self.name}: sign, exponent and mantissa need "
                f"{1 + self.exponent_bits + self.mantissa_bits}"
            )

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number (and of all subnormals)."""
        return (1 if self.kind == "float" else 0) - self.bias

    @property
    def max_code(self) -> int:
        """Code of the largest finite value."""
        if self.kind == "fixed":
            return (1 << (self.bits - 1)) - 1
        top = (1 << (self.bits - (self.kind == "float"))) - 1  # the all-ones magnitude
        if self.specials == "ieee":
            return top - (1 << self.mantissa_bits)
        return top - (self.specials == "nan")

    @property
    def nan_code(self) -> int | None:
        """Code of the canonical NaN, or None where the format has none."""
        if self.specials == "none":
            return None
        top = (1 << (self.bits - (self.kind == "float"))) - 1
        return top - (1 << (self.mantissa_bits - 1)) + 1 if self.specials == "ieee" else top

    @property
    def max(self) -> float:
        """Largest finite value."""
        return self.value(self.max_code)

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
        """Integer type that holds a code: uint8 up to 8 bits, else uint16."""
        return torch.uint8 if self.bits <= 8 else torch.uint16

    def value(self, code: int) -> float:
        """Value of one code by the formula of the module docstring; the definition that every decoder follows."""
        if not 0 <= code < 1 << self.bits:
            raise ValueError(f"code={code} is not a code of {self.name}: use 0 to {(1 << self.bits) - 1}")
        if self.kind == "fixed":
            signed = code - (1 << self.bits) if code >> (self.bits - 1) else code
            return signed * 2.0**-self.mantissa_bits
        if self.kind == "exponent":
            return float("nan") if code == self.nan_code else 2.0 ** (code - self.bias)
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        magnitude = code & ((1 << (self.bits - 1)) - 1)
        if magnitude > self.max_code:
            is_infinity = self.specials == "ieee" and magnitude == self.max_code + 1
            return sign * float("inf") if is_infinity else float("nan")
        exponent, mantissa = divmod(magnitude, 1 << self.mantissa_bits)
        significand = mantissa + ((1 << self.mantissa_bits) if exponent else 0)
        return sign * significand * 2.0 ** (max(exponent, 1) - self.bias - self.mantissa_bits)

    def values(self) -> torch.Tensor:
        """Every finite value once, ascending, float32, shape (n,); -0 is not repeated beside 0."""
        finite = {v for v in map(self.value, range(1 << self.bits)) if abs(v) < float("inf")}
        return torch.tensor(sorted(finite), dtype=torch.float32)

    def table(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Value of every code in code order, float32, shape (2^bits,), on `device`."""
        return _table(self, str(device))

    def __repr__(self) -> str:
        return (
            f"{self.name}({self.bits} bits, max {self.max:g}, min normal {self.min_normal:g}, "
            f"min subnormal {self.min_subnormal:g})"
        )


@lru_cache(maxsize=64)
def _table(fmt: Format, device: str) -> torch.Tensor:
    return torch.tensor([fmt.value(code) for code in range(1 << fmt.bits)], dtype=torch.float32, device=device)


E2M1 = Format("E2M1", "float", 4, 2, 1, bias=1)
E4M3 = Format("E4M3", "float", 8, 4, 3, bias=7, specials="nan")
E8M0 = Format("E8M0", "exponent", 8, 8, 0, bias=127, specials="nan")
S2F6 = Format("S2F6", "fixed", 8, 0, 6, bias=0)
BF16 = Format("BF16", "float", 16, 8, 7, bias=127, specials="ieee")

FORMATS: dict[str, Format] = {f.name: f for f in (E2M1, E4M3, E8M0, S2F6, BF16)}
