"""Block formats: which element format, how many values share a scale of which kind, by which rule.

Blocks run along one axis. A tiled format shares a scale among `tile` lines of the other of the last two axes as well:
16 x 16, 128 x 128.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .arguments import integer, require_kind
from .formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, INT4, S2F6, Format
from .rounding import working_dtype
from .scales import RULES, Rule

LARGEST_BLOCK = 1 << 16


def _needs_float64(element: Format) -> bool:
    return working_dtype(torch.float32, element) != torch.float32


@dataclass(frozen=True)
class BlockFormat:
    """A block format.

    Args:
        name: the field's usual name. element: of the codes. block: values along the axis that share a scale.
        scale: format of the scale; None: float32. rule: the default rule. outer: the default outer scope.
        tile: lines of the neighbouring axis that share the scale too. alternative: the element format of blocks whose
            scale has its sign bit set.
    """

    name: str
    element: Format
    block: int
    scale: Format | None
    rule: Rule
    outer: str | None = None
    tile: int = 1
    alternative: Format | None = None

    def __post_init__(self) -> None:
        optional = (Format, type(None))
        require_kind(self.element, Format, "element", "pass an element format such as nm.E2M1")
        require_kind(self.scale, optional, "scale", "pass an element format such as nm.E8M0, or None for float32")
        require_kind(self.rule, Rule, "rule", "pass a Rule, such as nm.scales.RULES['rceil']")
        require_kind(self.alternative, optional, "alternative", "pass an element format or None")
        for name, n in (("block", self.block), ("tile", self.tile)):
            if integer(n, name, "pass an integer") < 1 or n > LARGEST_BLOCK or n & (n - 1):
                raise ValueError(f"{name}={n} of format {self.name}: pass a power of two, 1 to {LARGEST_BLOCK}")
        element = self.element
        if element.bits > 8 or not element.signed or element.kind == "exponent" or _needs_float64(element):
            raise ValueError(f"element={element.name} of format {self.name}: pass a signed format of at most 8 bits")
        if not self.takes(self.rule):
            scale = "float32" if self.rule.scale is None else self.rule.scale.name
            raise ValueError(
                f"rule={self.rule.name!r} of format {self.name}: it makes scales of {scale}, alternative elements "
                f"{self.rule.alternative}; give the format the same"
            )

    def takes(self, rule: Rule) -> bool:
        """Whether the rule makes this format's kind of scales."""
        return rule.scale == self.scale and rule.alternative in (None, self.alternative)

    @property
    def bits_per_value(self) -> float:
        """Stored bits per value, outer scale excluded."""
        return self.element.bits + (32 if self.scale is None else self.scale.bits) / (self.block * self.tile)

    def __repr__(self) -> str:
        block = f"{self.tile}x{self.block}" if self.tile > 1 else f"{self.block}"
        scale = "FP32" if self.scale is None else self.scale.name
        return (
            f"{self.name}({self.element.name} x {block}, {scale} scale by {self.rule.name}, outer {self.outer}, "
            f"{self.bits_per_value:g} bits per value)"
        )


NVFP4 = BlockFormat("NVFP4", E2M1, 16, E4M3, RULES["nvfp4"], "tensor")
NVFP4_46 = BlockFormat("NVFP4_46", E2M1, 16, E4M3, RULES["four_over_six"], "tensor")
NVFP4_2D = BlockFormat("NVFP4_2D", E2M1, 16, E4M3, RULES["nvfp4"], "tensor", tile=16)
NVINT4 = BlockFormat("NVINT4", INT4, 16, E4M3, RULES["nvfp4"], "tensor")
IF4 = BlockFormat("IF4", E2M1, 16, E4M3, RULES["if4"], "tensor", alternative=INT4)
MXFP8 = BlockFormat("MXFP8", E4M3, 32, E8M0, RULES["rceil"])
MXFP8_E5M2 = BlockFormat("MXFP8_E5M2", E5M2, 32, E8M0, RULES["rceil"])
MXFP6_E2M3 = BlockFormat("MXFP6_E2M3", E2M3, 32, E8M0, RULES["rceil"])
MXFP6_E3M2 = BlockFormat("MXFP6_E3M2", E3M2, 32, E8M0, RULES["rceil"])
MXFP4 = BlockFormat("MXFP4", E2M1, 32, E8M0, RULES["rceil"])
MXINT4 = BlockFormat("MXINT4", INT4, 32, E8M0, RULES["rceil"])
MXS2F6 = BlockFormat("MXS2F6", S2F6, 32, E8M0, RULES["rceil"])
MXINT8 = MXS2F6  # OCP's MXINT8: two's complement with an implied 2^-6 is S2F6
FP8_1X128 = BlockFormat("FP8_1X128", E4M3, 128, None, RULES["amax"])
FP8_128X128 = BlockFormat("FP8_128X128", E4M3, 128, None, RULES["amax"], tile=128)

BLOCK_FORMATS: dict[str, BlockFormat] = {
    fmt.name: fmt
    for fmt in (
        *(NVFP4, NVFP4_46, NVFP4_2D, NVINT4, IF4, MXFP8, MXFP8_E5M2, MXFP6_E2M3, MXFP6_E3M2, MXFP4, MXINT4, MXS2F6),
        *(FP8_1X128, FP8_128X128),
    )
}
