"""`fourbit recipes`: what every operand of a recipe is, role by role, and how two recipes differ.

    fourbit recipes               every recipe in a line
    fourbit recipes fourbit       role by role
    fourbit recipes fourbit mxfp8_floor        the roles that differ

Products of one expert matrix y = x w^T: fprop x w^T, dgrad g w, wgrad g^T x. Blocks run along the contraction of each.
"""

from __future__ import annotations

import inspect
from fractions import Fraction

from numerics import BlockFormat, Rounding
from numerics.ops import Cast, Recast

from .presets import PRESETS, preset
from .recipe import ExpertRecipe, OsciReset, Recipe

_ROUNDINGS = {Rounding.NEAREST_EVEN: "to nearest", Rounding.STOCHASTIC: "stochastic"}
_SCOPES = {"row": "per token", "leading": "per expert", "tensor": "per tensor"}


def roles(recipe: Recipe) -> dict[str, str]:
    """Role -> what it is, in words, in the order of a step."""
    told = _roles(recipe.experts)
    higher = {name: words for name, words in _roles(recipe.last).items() if words != told[name]}
    shares = [f"the {which} {Fraction(share).limit_denominator(100)}" for which, share in _shares(recipe) if share]
    told["other layers"] = f"{' and '.join(shares)} of the layers" if shares else "none"
    if shares:
        told |= {f"  {name}": words for name, words in higher.items()}
    told["shared experts"] = "as the routed ones" if recipe.shared else "BF16"
    told["unbiased"] = (
        "claimed, for backward operands given the saved values" if recipe.claims_unbiased else "not claimed"
    )
    return told


def _shares(recipe: Recipe) -> tuple[tuple[str, float], ...]:
    return ("first", recipe.first_share), ("last", recipe.last_share)


def _roles(r: ExpertRecipe) -> dict[str, str]:
    source = "the originals" if r.originals else "saved codes"
    combine = "BF16" if r.combine_fmt is None else _format(r.combine_fmt)
    return {
        "fprop x, dispatch": _cast(r.input, "features"),
        "fprop h": _cast(r.hidden, "features"),
        "fprop w": _cast(r.weight, "input features"),
        "combine": _rotated(r.combine_hadamard) + combine,
        "gradient wires": _cast(r.grad_wire or r.grad, "features"),
        "dgrad g": _rotated(r.dgrad_hadamard, r.fresh_signs) + _cast(r.grad, "features"),
        "dgrad w": _rotated(r.dgrad_hadamard, r.fresh_signs)
        + _recast(r.saved_weight, "output features", source, r.weight),
        "wgrad g": _rotated(r.wgrad_hadamard, r.fresh_signs) + _cast(r.grad, "tokens"),
        "wgrad x": _rotated(r.wgrad_hadamard, r.fresh_signs) + _recast(r.saved_input, "tokens", source, r.input),
        "masters": _masters(r.osci_reset),
    }


def _masters(rule: OsciReset | None) -> str:
    if rule is None:
        return "FP32"
    start = "" if not rule.start_share else f" after {Fraction(rule.start_share).limit_denominator(100)} of the run"
    return (
        f"FP32; every {rule.period} steps{start} those whose quantized value moved {rule.ratio:g} times as far as "
        f"they did in {rule.detect_steps} steps are reset to it"
    )


def _rotated(size: int | None, fresh: bool = False) -> str:
    signs = " with signs of this product" if fresh else ""
    return "" if size is None else f"RHT-{size}{signs}, then "


def _format(fmt: BlockFormat, axis: str = "") -> str:
    along = f" along {axis}" if axis else ""
    scales = "FP32" if fmt.scale is None else fmt.scale.name
    return f"{fmt.element.name} {fmt.tile}x{fmt.block}{along}, {scales} scales by {fmt.rule.name}"


def _cast(cast: Cast, axis: str) -> str:
    if cast.fmt is None:
        return "BF16"
    outer = "" if cast.outer is None else f", outer {_SCOPES.get(cast.outer, f'per {cast.outer} values')}"
    rounded = "" if cast.outer_rounding is None else ", a power of two"
    return f"{_format(cast.fmt, axis)}{outer}{rounded}; {_ROUNDINGS[cast.rounding]}"


def _recast(recast: Recast, axis: str, source: str, saved: Cast) -> str:
    if recast.fmt is None:
        return "BF16" if saved.fmt is None else f"BF16 of {source}"
    outers = {"keep": "outside", "multiply": "multiplied in", "gradient": "on the gradient's rows"}
    words = _cast(Cast(recast.fmt, recast.scope, recast.rounding), axis)
    outer = f", their outer {outers[recast.outer]}" if source == "saved codes" and saved.outer else ""
    return f"{words}; from {source}{outer}"


def _lines(told: dict[str, str]) -> list[str]:
    width = max(map(len, told))
    return [f"    {role:<{width}}  {words}" for role, words in told.items()]


def table(names: list[str]) -> str:
    """What the command prints.

    Raises: ValueError for an unknown recipe, or more than two.
    """
    if not names:
        width = max(map(len, PRESETS))
        return "\n".join(f"{name:<{width}}  {_summary(name)}" for name in PRESETS)
    if len(names) > 2:
        raise ValueError(f"recipes {' '.join(names)}: name one recipe, two to compare, or none")
    told = [roles(preset(name)) for name in names]
    if len(names) == 1:
        return "\n".join([f"{names[0]}: {_summary(names[0])}", *_lines(told[0])])
    lines = []
    for role in dict.fromkeys([*told[0], *told[1]]):
        if told[0].get(role) != told[1].get(role):
            lines += [
                role,
                *(f"    {name}: {t.get(role, 'as in the other layers')}" for name, t in zip(names, told, strict=True)),
            ]
    return "\n".join(lines or [f"{names[0]} and {names[1]} are the same"])


def _summary(name: str) -> str:
    """The first sentence of a recipe's docstring."""
    text = " ".join((inspect.getdoc(PRESETS[name]) or "").split())
    return text.split(". ")[0].rstrip(".")


def main(argv: list[str]) -> int:
    """`fourbit recipes [A [B]]`."""
    if argv[:1] in (["-h"], ["--help"]):
        print("usage: fourbit recipes [NAME [OTHER]]: every recipe, one role by role, or what two differ in")
        return 0
    print(table(argv))
    return 0
