"""What flows along each edge of an expert layer under a recipe, read off the `ExpertRecipe` object: data, no drawing.

Keys of `edges`, in the order of a step; for y = x w^T, w13 is gate and up, w2 is down:

    x, w13, h, w2, combine            fprop: operands and the wire back
    dy wire, dx wire                  gradients on the wires of combine and dispatch
    dgrad dy, dgrad w2, dgrad dz, dgrad w13        operands of the products with blocks along features
    wgrad dy, wgrad h, wgrad dz, wgrad x           operands with blocks along tokens
    masters                           the weights that the optimizer keeps

An edge is what `reference.expert` makes of the fields, no more: two recipes whose edges are equal here compute equal
bits in these layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby

from numerics import BlockFormat, Rounding
from numerics.ops import Cast, Recast
from reference.recipe import ExpertRecipe, Recipe
from studies import plots

FORWARD = ("x", "w13", "h", "w2", "combine")
MASTERS = "masters"


@dataclass(frozen=True)
class Kind:
    """A family of formats, and the colour of its edges."""

    label: str
    colour: str


BF16, FP32 = Kind("BF16", plots.GREY), Kind("FP32", plots.BLACK)
NVFP4, FOUR_OVER_SIX, TILES = (
    Kind("NVFP4", plots.BLUE),
    Kind("four-over-six", plots.SKY),
    Kind("NVFP4 2D", plots.PURPLE),
)
_OTHER = "#8a7a00"  # the palette's yellow, darker; such formats are told apart by their names
_KINDS = {
    ("E4M3", "E8M0"): Kind("MXFP8", plots.ORANGE),
    ("E5M2", "E8M0"): Kind("MXFP8", plots.ORANGE),
    ("E4M3", "FP32"): Kind("FP8, FP32 scales", _OTHER),
    ("S2F6", "E8M0"): Kind("S2F6", plots.GREEN),
    ("E2M1", "E8M0"): Kind("MXFP4", plots.VERMILION),
}


@dataclass(frozen=True)
class Edge:
    """One operand or wire.

    Args:
        title: which one. source: the kind of what it is made from. kind, name: its format. lines: block and axis,
            element and scale format, scale rule, outer scale, rounding. stochastic: how it is rounded. hadamard: the
            transform that comes first, or "".
    """

    title: str
    source: Kind
    kind: Kind
    name: str
    lines: tuple[str, ...] = ()
    stochastic: bool = False
    hadamard: str = ""


def kind(fmt: BlockFormat | None) -> Kind:
    """The family of a format; None is BF16."""
    if fmt is None:
        return BF16
    pair = (fmt.element.name, "FP32" if fmt.scale is None else fmt.scale.name)
    if pair == ("E2M1", "E4M3") and fmt.alternative is None:
        six = fmt.rule.name.startswith("four_over_six")
        return TILES if fmt.tile > 1 else FOUR_OVER_SIX if six else NVFP4
    return _KINDS.get(pair, Kind(fmt.name, _OTHER))


def edges(r: ExpertRecipe) -> dict[str, Edge]:
    """Every edge of a layer whose experts follow `r`."""
    forward = {
        "x": _cast("x, dispatch wire", r.input, "features"),
        "w13": _cast("w₁₃, gate and up", r.weight, "in-features", FP32),
        "h": _cast("h", r.hidden, "features"),
        "w2": _cast("w₂, down", r.weight, "in-features", FP32),
        "combine": replace(
            _cast("y, combine wire", Cast(r.combine_fmt), "features", FP32), hadamard=_hadamard(r.combine_hadamard)
        ),
    }
    wire = r.grad_wire or r.grad
    gradients = {
        "dy wire": _cast("dy, gradient wire", wire, "features"),
        "dx wire": _cast("dx, gradient wire", wire, "features", FP32),
    }
    return forward | gradients | _dgrad(r) | _wgrad(r) | {MASTERS: _masters(r)}


def _dgrad(r: ExpertRecipe) -> dict[str, Edge]:
    """Blocks along the features that dgrad sums over."""
    rotated = _hadamard(r.dgrad_hadamard, r.fresh_signs)
    received = kind((r.grad_wire or r.grad).fmt)
    again = r.grad_wire is not None and r.grad.fmt is not None
    dy = _cast("dy, cast again" if again else "dy as received", r.grad, "features", received)
    dz = _cast("dz, gate and up", r.grad, "features")
    w = {
        key: _recast(f"{short}, from", r.saved_weight, r.weight, "out-features", r.originals, FP32)
        for key, short in (("dgrad w2", "w₂"), ("dgrad w13", "w₁₃"))
    }
    found = {"dgrad dy": dy, "dgrad w2": w["dgrad w2"], "dgrad dz": dz, "dgrad w13": w["dgrad w13"]}
    return {key: replace(edge, hadamard=rotated) for key, edge in found.items()}


def _wgrad(r: ExpertRecipe) -> dict[str, Edge]:
    """Blocks along the tokens that wgrad sums over."""
    rotated = _hadamard(r.wgrad_hadamard, r.fresh_signs)
    received = kind((r.grad_wire or r.grad).fmt)
    found = {}
    for gradient, source, partner, saved in (("dy", received, "h", r.hidden), ("dz", BF16, "x", r.input)):
        again = "dy, cast again" if r.grad.fmt is not None else "dy as received"
        title = again if gradient == "dy" else "dz, gate and up"
        edge = _cast(title, r.grad, "tokens", source)
        left = not r.originals and None not in (saved.fmt, saved.outer, r.saved_input.fmt)
        if left and r.saved_input.outer == "gradient":
            edge = replace(edge, lines=(*edge.lines[:3], f"times {partner}'s outer", *edge.lines[3:]))
        found[f"wgrad {gradient}"] = edge
        found[f"wgrad {partner}"] = _recast(f"{partner}, from", r.saved_input, saved, "tokens", r.originals, BF16)
    return {key: replace(edge, hadamard=rotated) for key, edge in found.items()}


def _cast(title: str, cast: Cast, axis: str, source: Kind = BF16) -> Edge:
    if cast.fmt is None:
        return Edge(title, source, BF16, BF16.label)
    power = ", pow2" if cast.outer_rounding else ""
    outer = () if cast.outer is None else (f"outer per {_scope(cast.outer, axis)}{power}",)
    return _edge(title, source, cast.fmt, axis, outer, cast.rounding)


def _recast(title: str, recast: Recast, saved: Cast, axis: str, originals: bool, original: Kind) -> Edge:
    source = original if originals else kind(saved.fmt)
    title = f"{title} {'original' if originals else 'codes' if saved.fmt is not None else 'BF16'}"
    if recast.fmt is None:
        return Edge(title, source, BF16, BF16.label)
    outers = {"keep": "outer kept outside", "multiply": "outer multiplied in", "gradient": "outer to gradient"}
    old = () if originals or saved.fmt is None or saved.outer is None else (outers[recast.outer],)
    own = () if recast.scope is None else (f"own outer per {_scope(recast.scope, axis)}",)
    return _edge(title, source, recast.fmt, axis, old + own, recast.rounding)


def _edge(title: str, source: Kind, fmt: BlockFormat, axis: str, outer: tuple[str, ...], rounding: Rounding) -> Edge:
    scale = "FP32" if fmt.scale is None else fmt.scale.name
    stochastic = rounding is Rounding.STOCHASTIC
    lines = (f"{fmt.tile}x{fmt.block} {axis}", f"{fmt.element.name}, {scale} scales", f"by {fmt.rule.name}", *outer)
    return Edge(title, source, kind(fmt), fmt.name, (*lines, "stochastic" if stochastic else "to nearest"), stochastic)


def _scope(scope: str | int, axis: str) -> str:
    """What shares an outer scale: "row" is a line of the tensor, a token's where blocks run along features."""
    if isinstance(scope, int):
        return f"{scope}"
    line = {"features": "token", "tokens": "feature"}.get(axis, "row")
    return {"row": line, "leading": "expert", "tensor": "tensor"}[scope]


def _hadamard(size: int | None, fresh: bool = False) -> str:
    return "" if size is None else f"RHT-{size}" + (" fresh" if fresh else "")


def _masters(r: ExpertRecipe) -> Edge:
    rule = r.osci_reset
    if rule is None:
        return Edge("masters", FP32, FP32, FP32.label)
    start = f" from {Fraction(rule.start_share).limit_denominator(100)} of the run" if rule.start_share else ""
    every = f"reset every {rule.period} steps{start}"
    moved = f"where {rule.detect_steps} steps moved codes {rule.ratio:g} times as far"
    return Edge("masters", FP32, FP32, FP32.label, (every, moved))


@dataclass(frozen=True)
class Run:
    """Consecutive layers under one field of the recipe, "experts" or "last"; start counts from 0."""

    field: str
    start: int
    count: int


def strip(recipe: Recipe, depth: int) -> tuple[Run, ...]:
    """Which of `depth` layers follow `experts`, which `last`."""
    two = recipe.last != recipe.experts
    names = ["last" if two and recipe.layer(i, depth) is recipe.last else "experts" for i in range(depth)]
    runs, start = [], 0
    for field, same in groupby(names):
        count = len(list(same))
        runs.append(Run(field, start, count))
        start += count
    return tuple(runs)
