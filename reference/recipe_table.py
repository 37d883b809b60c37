"""`fourbit recipes`: what every operand of a recipe is, role by role, and how two recipes differ.

    fourbit recipes               every recipe in a line
    fourbit recipes fourbit       role by role
    fourbit recipes fourbit mxfp8_floor        the roles that differ

Products of one expert matrix y = x w^T: fprop x w^T, dgrad g w, wgrad g^T x. Blocks run along the contraction of each.
"""

from __future__ import annotations

import inspect

from .presets import PRESETS, preset
from .recipe import Recipe


def roles(recipe: Recipe) -> dict[str, str]:
    """Role -> what it is, in words, in the order of a step."""
    told = {name: role.words for name, role in recipe.experts.roles().items()}
    if recipe.other_layers:
        last = {name: role.words for name, role in recipe.last.roles().items()}
        differing = {f"  {name}": words for name, words in last.items() if words != told[name]}
        told |= {"other layers": recipe.other_layers, **differing}
    else:
        told["other layers"] = "none"
    return told | recipe.remarks


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
