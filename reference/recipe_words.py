"""The operands of a recipe in words: what tables, comparisons and notebooks say of a cast, a recast or a wire."""

from __future__ import annotations

from dataclasses import dataclass

from numerics import BlockFormat, Rounding
from numerics.markup import Html, chip
from numerics.ops import Cast, Recast

_ROUNDINGS = {Rounding.NEAREST_EVEN: "to nearest", Rounding.STOCHASTIC: "stochastic"}
_SCOPES = {"row": "per token", "leading": "per expert", "tensor": "per tensor"}


@dataclass(frozen=True)
class Role:
    """What an operand is: its block format, or None and what its numbers are called, and all about it in words."""

    fmt: BlockFormat | None
    words: str
    plain: str = "BF16"

    @property
    def chip(self) -> Html:
        """The format's name on the colour of its elements."""
        return chip(self.plain if self.fmt is None else self.fmt.name, hue(self.fmt))


def of_format(fmt: BlockFormat, axis: str = "") -> str:
    """`E2M1 1x16 along tokens, E4M3 scales by nvfp4`."""
    along = f" along {axis}" if axis else ""
    scales = "FP32" if fmt.scale is None else fmt.scale.name
    return f"{fmt.element.name} {fmt.tile}x{fmt.block}{along}, {scales} scales by {fmt.rule.name}"


def of_cast(cast: Cast, axis: str, hadamard: str = "") -> Role:
    """A tensor quantized along `axis`, after the transform that `hadamard` names."""
    if cast.fmt is None:
        return Role(None, f"{hadamard}BF16")
    outer = "" if cast.outer is None else f", outer {_SCOPES.get(str(cast.outer), f'per {cast.outer} values')}"
    rounded = "" if cast.outer_rounding is None else ", a power of two"
    return Role(cast.fmt, f"{hadamard}{of_format(cast.fmt, axis)}{outer}{rounded}; {_ROUNDINGS[cast.rounding]}")


def of_recast(recast: Recast, axis: str, source: str, saved: Cast, hadamard: str = "") -> Role:
    """An operand of the backward, made from `source`, which the forward quantized as `saved`."""
    if recast.fmt is None:
        return Role(None, hadamard + ("BF16" if saved.fmt is None else f"BF16 of {source}"))
    outers = {"keep": "outside", "multiply": "multiplied in", "gradient": "on the gradient's rows"}
    words = of_cast(Cast(recast.fmt, recast.scope, recast.rounding), axis, hadamard).words
    outer = f", their outer {outers[recast.outer]}" if source == "saved codes" and saved.outer else ""
    return Role(recast.fmt, f"{words}; from {source}{outer}")


def of_wire(fmt: BlockFormat | None, hadamard: str = "") -> Role:
    """Expert outputs on their way."""
    return Role(fmt, hadamard + ("BF16" if fmt is None else of_format(fmt)))


def of_hadamard(size: int | None, fresh: bool = False) -> str:
    """The transform that comes first, or nothing."""
    signs = " with signs of this product" if fresh else ""
    return "" if size is None else f"RHT-{size}{signs}, then "


def hue(fmt: BlockFormat | None) -> str:
    """The colour of a format, one of `markup.HUES`: by what its elements are."""
    if fmt is None:
        return "grey"
    if fmt.element.bits == 4:
        return "orange"
    return "mantissa" if fmt.element.kind == "fixed" else "exponent"
