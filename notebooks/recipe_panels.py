"""Notebook 6: recipes to choose and compare, and one to make: pictures by `diagram`, words by `recipe_table`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets

import numerics as nm
from numerics import Rounding
from numerics.ops import Cast, Recast
from reference import recipe_table
from reference.presets import PRESETS, preset
from reference.recipe import Recipe
from reference.recipe_table import roles

from . import diagram
from .panel import Panel, Picture
from .readout import paragraphs, table

SAME = "as in the other layers"
_STOCHASTIC = Rounding.STOCHASTIC

ACTIVATIONS = {
    "BF16": Cast(None),
    "MXFP8": Cast(nm.MXFP8),
    "NVFP4, outer per token": Cast(nm.NVFP4, "row"),
    "NVFP4, outer per tensor": Cast(nm.NVFP4, "tensor"),
    "four-over-six, outer per token": Cast(nm.NVFP4_46, "row"),
    "four-over-six, outer per tensor": Cast(nm.NVFP4_46, "tensor"),
}
WEIGHTS = {
    "BF16": Cast(None),
    "MXFP8": Cast(nm.MXFP8),
    "NVFP4, outer per expert": Cast(nm.NVFP4, "leading"),
    "NVFP4 in 16x16 tiles, outer per expert": Cast(nm.NVFP4_2D, "leading"),
    "four-over-six, outer per expert": Cast(nm.NVFP4_46, "leading"),
}
GRADIENTS = {
    "BF16": Cast(None),
    "MXFP8, to nearest": Cast(nm.MXFP8),
    "MXFP8, stochastic": Cast(nm.MXFP8, None, _STOCHASTIC),
}
SAVED = {
    "BF16": Recast(None),
    "MXFP8 to nearest, outer kept outside": Recast(nm.MXFP8),
    "MXFP8 to nearest, outer multiplied in": Recast(nm.MXFP8, "multiply"),
    "MXFP8 stochastic, outer kept outside": Recast(nm.MXFP8, "keep", _STOCHASTIC),
    "MXFP8 stochastic, outer multiplied in": Recast(nm.MXFP8, "multiply", _STOCHASTIC),
    "MXFP8 stochastic, outer to the gradient": Recast(nm.MXFP8, "gradient", _STOCHASTIC),
}
ROTATIONS = {"none": None} | {f"RHT-{size}": size for size in (16, 32, 64, 128)}
COMBINES = {
    "BF16": (None, None),
    "MXFP8": (nm.MXFP8, None),
    "RHT-32, then MXFP8": (nm.MXFP8, 32),
    "S2F6": (nm.MXS2F6, None),
    "RHT-32, then S2F6": (nm.MXS2F6, 32),
}
# control -> (what it says, fields of the layers under `experts` that it sets, its choices)
FIELDS: dict[str, tuple[str, tuple[str, ...], Mapping[str, Any]]] = {
    "activations": ("x and h", ("input", "hidden"), ACTIVATIONS),
    "weights": ("weights", ("weight",), WEIGHTS),
    "gradients": ("gradients", ("grad",), GRADIENTS),
    "saved_weight": ("w, saved", ("saved_weight",), SAVED),
    "saved_input": ("x, h, saved", ("saved_input",), SAVED),
    "rotation": ("wgrad", ("wgrad_hadamard",), ROTATIONS),
    "combine": ("combine", ("combine_fmt", "combine_hadamard"), COMBINES),
}


def picture(recipe: Recipe, other: Recipe | None = None, which: str = "both", layer: str = "experts") -> Picture:
    """The diagram of a recipe, or of what differs from another, and the same in a table.

    Raises:
        ValueError: another pass or layer than `diagram.draw` knows.
    """
    words: list[str] = []
    rows: Sequence[Sequence[str]]
    recipes = [recipe] if other is None else [recipe, other]
    for each in recipes if layer == "last" else []:
        if not any(run.field == "last" for run in diagram.strip(each, diagram.DEPTH)):
            words.append(f"No layer of {each.name} follows its field last.")
    if other is None:
        words.append(_summary(recipe))
        rows = list(roles(recipe).items())
    else:
        rows = differences(recipe, other)
        if not rows:
            words.append(f"{recipe.name} and {other.name} differ in nothing.")
    head = ["role", *(each.name for each in recipes)]
    told = paragraphs(filter(None, words)) + (table(head, rows, align="left") if rows else "")
    return Picture(diagram.draw(recipe, other, which, layer), told)


def differences(one: Recipe, other: Recipe) -> list[tuple[str, str, str]]:
    """(role, what it is in one, in the other) of every role that differs, as `fourbit recipes ONE OTHER` has them."""
    told = roles(one), roles(other)
    pairs = [(role, *(t.get(role, SAME) for t in told)) for role in dict.fromkeys([*told[0], *told[1]])]
    return [(role, a, b) for role, a, b in pairs if a != b]


def chooser(name: str, other: str = "", which: str = "both", layer: str = "experts") -> Panel:
    """Any preset, and any other to compare it with."""
    passes = {"forward and backward": "both", "forward": "forward", "backward": "backward"}
    layers = {"most layers: experts": "experts", "the other layers: last": "last"}
    controls = {
        "name": _dropdown("recipe", {n: n for n in PRESETS}, name),
        "other": _dropdown("beside", {"no other": ""} | {n: n for n in PRESETS}, other),
        "which": _dropdown("pass", passes, which),
        "layer": _dropdown("layers", layers, layer),
    }

    def draw(name: str, other: str, which: str, layer: str) -> Picture:
        return picture(preset(name), preset(other) if other else None, which, layer)

    return Panel(controls, draw, rows=[["name", "other"], ["which", "layer"]])


def bench(base: Recipe, which: str = "forward", **choices: str) -> Panel:
    """A recipe of one's own: `base` with other fields, drawn beside it. `choices`: control -> the label it starts with.

    A recipe that contradicts itself is refused where it is made; the panel tells why.
    """
    same = f"as in {base.name}"
    controls = {
        key: _dropdown(says, {label: label for label in (same, *options)}, choices.get(key, same))
        for key, (says, _, options) in FIELDS.items()
    }
    controls["claim"] = _dropdown(
        "unbiased", {same: same, "claimed": "claimed", "not claimed": "not claimed"}, choices.get("claim", same)
    )
    controls["which"] = _dropdown("pass", {"forward": "forward", "backward": "backward", "both": "both"}, which)

    def draw(which: str, **labels: str) -> Picture:
        mine = made(replace(base, name="mine"), {key: label for key, label in labels.items() if label != same})
        return picture(base, None if replace(mine, name=base.name) == base else mine, which)

    rows = [
        ["activations", "weights"],
        ["gradients", "rotation"],
        ["saved_weight", "saved_input"],
        ["combine", "claim"],
    ]
    return Panel(controls, draw, rows=[*rows, ["which"]])


def made(base: Recipe, labels: Mapping[str, str]) -> Recipe:
    """`base` with what the controls say. Raises ValueError, of the recipe, for one that contradicts itself."""
    fields: dict[str, Any] = {}
    for key, label in labels.items():
        if key in FIELDS:
            _, names, options = FIELDS[key]
            value = options[label]
            fields |= dict(zip(names, value, strict=True)) if key == "combine" else dict.fromkeys(names, value)
    claims = {"claimed": True, "not claimed": False}.get(labels.get("claim", ""), base.claims_unbiased)
    return replace(base, experts=replace(base.experts, **fields), claims_unbiased=claims)


def _summary(recipe: Recipe) -> str:
    """What a preset says of itself; nothing for another recipe."""
    known = recipe.name in PRESETS and preset(recipe.name) == recipe
    return recipe_table.table([recipe.name]).splitlines()[0] + "." if known else ""


def _dropdown(name: str, options: Mapping[str, str], value: str) -> ipywidgets.Dropdown:
    style = {"description_width": "5.5em"}
    return ipywidgets.Dropdown(options=list(options.items()), value=value, description=name, style=style)
