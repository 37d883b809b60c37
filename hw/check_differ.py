"""What is known of bytes that no law makes: where they differ from the nearest law, under which condition, by how much.

    codes: x / (scale * outer) is the nearest law; 96 of 24,576 differ: all in rows 0 to 23, ties alone, all by +1 code

A place or a condition is stated if all that differ are there, and so many would not be by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from numerics.dialects_core import Dialect

from .check_code_guesses import exact_quotient, stored
from .check_codes import CodeLaw, code_laws, how_scaled, other_signs, tie_distance
from .check_folded import Folded, Sample
from .check_laws import ScaleLaw
from .check_roundings import is_subnormal, is_tie, magnitude
from .check_scale_laws import scale_laws
from .check_where import code_distance, likely, places, scale_distance

Masks = Iterator[tuple[str, Tensor]]


def scales_words(f: Folded, law: ScaleLaw) -> str:
    """Of the scales that differ from a law's."""
    wrong = law.wrong.unsqueeze(-1)

    def conditions(g: Folded) -> Masks:
        steps, fmt = law.steps(g), g.case.scale_format
        yield "short last blocks", ~g.real.all(-1, keepdim=True)
        if fmt is not None:
            yield "ties", is_tie(steps.ratio, fmt)
            yield "subnormal scales", is_subnormal(steps.scales, fmt)
            yield "scales that are the largest", steps.scales == fmt.max_code
        yield "zero scales", steps.scales == 0
        at = g.x.abs().argmax(-1, keepdim=True)
        yield "blocks whose largest value is negative", g.x.gather(-1, at) < 0
        yield "blocks whose largest value is positive", g.x.gather(-1, at) > 0

    made = law.steps(f).scales
    there = wrong.expand(made.shape)
    distance = scale_distance(f.scales[there], made[there], f.case.scale_format)
    return _joined(f, wrong, conditions, distance)


def codes_words(f: Folded, scales: ScaleLaw, law: CodeLaw) -> str:
    """Of the codes that differ from a law's."""
    assert law.make is not None
    element = f.case.layout.element

    def conditions(g: Folded) -> Masks:
        q, made, fmt = exact_quotient(scales).of(g), law.make(g), g.case.scale_format
        yield "short last blocks", ~g.real.all(-1, keepdim=True)
        yield "blocks whose scale is not the law's", g.pick(scales.wrong.unsqueeze(-1))
        yield "ties", is_tie(q, element)
        yield "subnormal elements", is_subnormal(made, element)
        yield "zeros of x", g.x == 0
        yield "elements that become zero", magnitude(made, element) == 0
        yield f"elements beyond {element.max:g}, which saturate", q.abs() > element.max
        yield "the largest codes", magnitude(made, element) == element.max_code
        yield "the largest value of each block", g.x.abs() == g.x.abs().amax(-1, keepdim=True)
        if fmt is not None:
            yield "blocks with the largest scale", g.scales == fmt.max_code
            yield "blocks with a subnormal scale", is_subnormal(g.scales, fmt)
        yield "blocks with a scale of zero", stored(g) == 0
        yield "negative elements", g.x < 0
        yield "positive elements", g.x > 0

    made = law.make(f)
    distance = code_distance(f.codes[law.wrong], made[law.wrong], element)
    return _joined(f, law.wrong, conditions, distance) + _near_ties(f, scales, law)


def reasons(f: Folded, d: Dialect) -> list[str]:
    """Why bytes are not those of a dialect, as far as laws prove it: of scales, then of codes."""
    scales = scale_laws(f, [d])[0]
    codes = code_laws(f, scales)[0]
    scaled = how_scaled(f, scales) if scales.faultless and codes.fault is None and not codes.count else None
    return [reason for reason in (scales.fault, codes.fault, scaled) if reason is not None]


def _near_ties(f: Folded, scales: ScaleLaw, law: CodeLaw) -> str:
    """Whether codes that differ are all zeros of the other sign, or all near ties of quotients that are rounded."""
    if other_signs(f, scales, law.wrong):
        return ", all of them zeros: their sign is lost"
    divisor = (stored(f).to(torch.float64) * scales.factor.to(torch.float64)).expand(law.wrong.shape)[law.wrong]
    if bool((torch.frexp(divisor).mantissa == 0.5).any()):
        return ""  # a division by a power of two is exact
    distance = tie_distance(f, scales, law.wrong)
    if distance < 2.0**-16:
        return f", all within {distance:.1e} of a tie: an approximate division, or another order of operations"
    return ""


def _joined(f: Folded, wrong: Tensor, conditions: Callable[[Folded], Masks], distance: str) -> str:
    of_scales, row, column = wrong.shape[-1] == 1, *(("column", "row") if f.case.turned else ("row", "column"))
    if of_scales and f.case.layout.tile > 1:
        row = f"row of {f.case.layout.tile} x {f.case.layout.block} tiles"
    lines, names = (wrong.squeeze(-1), (row, "block")) if of_scales else (f.lines(wrong), (row, column))
    where = places(lines, names, int(wrong.any(-1).sum()))
    parts = [f"all in {' of '.join(place.words for place, _ in reversed(where))}"] if where else []
    return ": " + ", ".join([*parts, *_holding(f, wrong, conditions), distance])


def _holding(f: Folded, wrong: Tensor, conditions: Callable[[Folded], Masks]) -> list[str]:
    """The rarest condition that holds for all that differ, if it does not by chance."""
    g = Sample.at_blocks(f, wrong.any(-1).flatten().nonzero().squeeze(-1))
    there, events = g.pick(wrong), int(wrong.any(-1).sum())
    usual = Sample.of_wrong(f, torch.zeros_like(wrong.any(-1)))
    shares = {words: _share(mask, usual) for words, mask in conditions(usual)}
    found = []
    for words, mask in conditions(g):
        if not bool((there & ~mask).any()) and likely(max(shares[words], 1e-4), events):
            found.append((shares[words], f"{words} alone"))
    return [min(found)[1]] if found else []


def _share(mask: Tensor, g: Folded) -> float:
    counted = (g.real & g.finite).expand(g.x.shape) if mask.shape[-1] > 1 else g.finite
    return float((mask.expand(counted.shape) & counted).sum()) / max(int(counted.sum()), 1)
