"""The laws of the seam's scale rules in numbers: what is rounded to a block's scale and to an element's code.

Formulas, and their order, are those of `numerics.scales`, which stand in the lines as they are computed here, FP32 for
FP32. b is the block's largest magnitude, s its scale, x the element; FLT_MAX float32's largest number.

    nvfp4           b * (s_enc * fl(1/6))                 x * min(1 / (s * (1 / s_enc)), FLT_MAX)
    static_M        b / (outer * M)                       x / (s * outer)
    four_over_six   static_6 and static_4, 4 only if its error is smaller
    rceil           b / max, up to a power of two         x / s

Where another law than the contract's gives the code that was found, a line names it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm
from numerics.outer import FLT_MAX
from numerics.rounding import reciprocal
from numerics.rule import Block

RECIPROCAL, QUOTIENT = "x * min(1 / (s * (1 / s_enc)), FLT_MAX)", "x / (s * outer)"
BY_RULE = {
    "nvfp4": RECIPROCAL,
    "static_6": QUOTIENT,
    "static_4": QUOTIENT,
    "four_over_six": QUOTIENT,
    "rceil": "x / s",
}
INSTEAD = {
    RECIPROCAL: "this contract multiplies by the rounded reciprocal",
    QUOTIENT: "this contract divides",
}


@dataclass(frozen=True)
class Law:
    """One block and its rule. block: of one row, as the rule saw it. outer, s_enc: 1 where there is none."""

    rule: str
    block: Block
    fmt: nm.BlockFormat

    @property
    def outer(self) -> Tensor:
        return torch.ones(()) if self.block.outer is None else self.block.outer[0, 0]

    @property
    def s_enc(self) -> Tensor:
        return torch.ones(()) if self.block.s_enc is None else self.block.s_enc[0, 0]

    def scale_lines(self) -> list[str]:
        """From the block's largest magnitude to its scale before rounding."""
        if not bool(torch.isfinite(self.block.x).all()):
            return ["the block holds NaN or Inf: a NaN scale, codes of the largest value"]
        b, largest = self.block.amax[0, 0], self.fmt.element.max
        if self.rule == "nvfp4":
            sixth = reciprocal(largest)
            before = b * (self.s_enc * sixth)
            lines = [] if self.block.s_enc is None else [f"s_enc = {number(self.s_enc)}"]
            return [*lines, f"scale before rounding = b * (s_enc * fl(1/{largest:g})) = {number(before)}"]
        if self.rule == "rceil":
            before = b.double() / largest
            return [f"scale before rounding up to a power of two = b / {largest:g} = {number(before)}"]
        if self.rule in ("static_6", "static_4"):
            return [f"scale before rounding = {self._mapped(int(self.rule[-1]))[0]}"]
        if self.rule != "four_over_six":
            return [f"scale by the rule {self.rule}: see numerics.scales"]
        tried = [(m, *self._mapped(m)) for m in (6, 4)]
        lines = [
            f"mapped to {m}: scale before rounding = {before}, byte {byte:#04x}, {e}" for m, before, byte, e in tried
        ]
        return [*lines, "4 is chosen only if its error is smaller"]

    def _mapped(self, m: int) -> tuple[str, int, str]:
        """The scale of `static_m` before rounding in words, its byte, the block's error in words."""
        x, outer = self.block.x, self.outer.reshape(1)
        before = self.block.amax[0, 0] / (self.outer * m)
        tried = nm.quantize(x[0], self.fmt, outer=outer, rule=f"static_{m}")
        error = nm.scales.tree((tried.dequantize() - x[0]).square()[None], torch.add)
        return f"b / (outer * {m}) = {number(before)}", int(tried.scales[0]), f"error {float(error):.9g}"

    def element(self, law: str, x: Tensor, scale: Tensor) -> Tensor:
        """The element before rounding by a law."""
        if law == RECIPROCAL:
            one = torch.ones(())
            return x * (one / (scale * (one / self.s_enc))).clamp(max=FLT_MAX)
        step = scale if law == "x / s" else scale * self.outer
        return x / torch.where(step == 0, torch.inf, step)

    def element_lines(self, x: Tensor, scale: Tensor, field: int | None, expected: int, found: int | None) -> list[str]:
        """From the element to its code before rounding. scale: as it is stored. field: the random field, if any."""
        law = BY_RULE.get(self.rule)
        if law is None:
            return [f"element by the rule {self.rule}: see numerics.scales"]
        formula = law if self.block.outer is not None else law.replace(" * outer", "")
        zero = "" if bool(scale * self.outer != 0) or law == RECIPROCAL else ", by infinity, since s * outer is 0"
        lines = [f"element before rounding = {formula} = {number(self.element(law, x, scale))}{zero}"]
        other = {RECIPROCAL: QUOTIENT, QUOTIENT: RECIPROCAL}.get(law)
        if other is not None and found not in (None, expected):
            value = self.element(other, x, scale)
            if self._code(value, field) == found:
                lines.append(f"{other} = {number(value)} gives the code that was found: {INSTEAD[law]}")
        return lines

    def _code(self, value: Tensor, field: int | None) -> int:
        if field is None:
            return int(nm.encode(value.reshape(1), self.fmt.element, self.block.rounding))
        bits = torch.tensor([field])
        return int(nm.encode(value.reshape(1), self.fmt.element, nm.Rounding.STOCHASTIC, bits))


def number(value: Tensor) -> str:
    """A value in decimal and exactly."""
    return f"{float(value):.9g} ({float(value).hex()})"
