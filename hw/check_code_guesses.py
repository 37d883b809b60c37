"""What may have made codes of x and the stored scales: orders of operations, and faults from the simplest on.

Quotients are those of real numbers, in float64, which divides two products of float32 and small codes exactly enough
that no quotient lies within its error of a tie without being one; or FP32's, in each usual order of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import numerics as nm

from .check_folded import Folded, Sample
from .check_laws import ScaleLaw, scale_name
from .check_outer_guesses import other_outers, solved_elements
from .check_proof import Guess
from .check_roundings import ROUNDINGS, by_value, cuts, flushed, inverse_cuts, is_subnormal, magnitude, overflowed

Quotient = Callable[[Folded], Tensor]


@dataclass(frozen=True)
class Way:
    """Elements before rounding: the formula in words, and what it makes of blocks (..., n, B)."""

    words: str
    of: Quotient

    def codes(self, g: Folded) -> Tensor:
        """Rounded to nearest, ties to even."""
        return nm.encode(self.of(g), g.case.layout.element)


Order = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# x, scale, outer (float32) -> elements before rounding; e = 1 / outer
ORDERS: dict[str, Order] = {
    "x / (scale * outer)": lambda x, s, o, e: x / (s * o),
    "x * (1 / (scale * outer))": lambda x, s, o, e: x * (1 / (s * o)),
    "x * (1 / (scale * (1 / (1 / outer))))": lambda x, s, o, e: x * (1 / (s * (1 / e))),
    "x * ((1 / outer) / scale)": lambda x, s, o, e: x * (e / s),
    "x / (scale / (1 / outer))": lambda x, s, o, e: x / (s / e),
    "(x / scale) / outer": lambda x, s, o, e: (x / s) / o,
    "(x / outer) / scale": lambda x, s, o, e: (x / o) / s,
    "(x * (1 / outer)) / scale": lambda x, s, o, e: (x * e) / s,
    "(x * (1 / scale)) / outer": lambda x, s, o, e: (x * (1 / s)) / o,
    "(x * (1 / scale)) * (1 / outer)": lambda x, s, o, e: (x * (1 / s)) * e,
    "x * ((1 / scale) * (1 / outer))": lambda x, s, o, e: x * ((1 / s) * e),
}


def stored(g: Folded) -> Tensor:
    """The numbers of the stored scales, float32."""
    return g.scale_values


def seen(g: Folded, law: ScaleLaw) -> Tensor:
    """x, through the cut that the scales say that it went through."""
    return g.x if law.cut is None else law.cut(g.x)


def over(x: Tensor, divisor: Tensor) -> Tensor:
    """x / divisor; signed zero for a zero, saturating codes for a scale of zero."""
    return torch.where(x == 0, x, x / divisor)


def exact_quotient(law: ScaleLaw) -> Way:
    """Real quotients by the stored scales and the law's outer."""
    words = "x / scale" if law.dialect.outer_of is None else "x / (scale * outer)"
    return Way(words, law.quotient)


def _divisor(g: Folded, law: ScaleLaw) -> Tensor:
    return stored(g).to(torch.float64) * g.pick(law.factor).to(torch.float64)


def ways(law: ScaleLaw) -> Iterator[Way]:
    """Sound ways to scale elements, the real quotient first."""
    yield exact_quotient(law)
    if law.faultless:
        yield Way(f"elements as {law.dialect.name} scales them", lambda g: law.steps(g).scaled)
    if law.dialect.outer_of is None:
        yield Way("x * (1 / scale) in FP32", lambda g: over32(g, seen(g, law) * (1 / stored(g))))
        return
    for name, factor in factors(law).items():
        for words, order in ORDERS.items():
            formula = words.replace("outer", name)
            yield Way(f"{formula} in FP32", lambda g, k=order, o=factor: over32(g, _ordered(g, law, k, o)))


def factors(law: ScaleLaw) -> dict[str, Tensor]:
    """The outer scale to multiply decoded values by, float32, in the usual orders of operations."""
    found = {"outer": law.factor}
    if law.outer.amax is not None and law.dialect.scale_format == nm.E4M3:
        amax = law.outer.amax
        bound = min((2688.0, 1536.0, 1792.0), key=lambda m: float((amax / law.factor - m).abs().nan_to_num().max()))
        found |= {
            f"(A / {bound:g})": amax / bound,
            f"(A * (1 / {bound:g}))": amax * (1 / torch.tensor(bound)),
            f"(1 / ({bound:g} / A))": 1 / (bound / amax),
            f"((A / 6) / {bound / 6:g})": amax / 6 / (bound / 6),
        }
    return {name: t for name, t in found.items() if name == "outer" or not torch.equal(t, law.factor)}


def _ordered(g: Folded, law: ScaleLaw, order: Order, factor: Tensor) -> Tensor:
    o = g.pick(factor)
    return order(seen(g, law), stored(g), o, 1 / o)


def over32(g: Folded, q: Tensor) -> Tensor:
    """q, but zeros where x is."""
    return torch.where(g.x == 0, g.x, q)


def distinct(sample: Sample, found: Iterable[Way]) -> list[Way]:
    """Those that differ on a sample; the first of each kind."""
    kept: list[tuple[Way, Tensor]] = []
    for way in found:
        q = way.of(sample).to(torch.float64)
        if not any(torch.equal(q, other) for _, other in kept):
            kept.append((way, q))
    return [way for way, _ in kept]


def sound(law: ScaleLaw, ways: list[Way]) -> Iterator[tuple[str, Quotient]]:
    """(words, codes) of ways without a fault, the usual first."""
    first, *others = ways
    yield first.words, first.codes
    its = "" if law.faultless else ", by scales of its own"
    yield f"as {law.dialect.name} makes them{its}", lambda g: law.steps(g).codes
    for way in others:
        yield way.words, way.codes
    yield f"{first.words}, zeros where the scale is", lambda g: torch.where(stored(g) == 0, 0, first.codes(g))
    yield f"{first.words}, -0 becoming +0", lambda g: torch.where(g.x == 0, 0, first.codes(g))


def code_guesses(s: Sample, law: ScaleLaw, ways: list[Way]) -> Iterator[Guess]:
    """What may have gone wrong with codes."""
    for family in (_rounded, _bytes, _shortened, _inverses):
        for way in ways:
            yield from family(s, law, way)
    if not ways:
        return
    yield from _divided_by_others(s, law)
    yield from solved_elements(s, law.factor, ways[0].of)


def _rounded(s: Sample, law: ScaleLaw, way: Way) -> Iterator[Guess]:
    element = s.case.layout.element
    for words, rounding in ROUNDINGS.items():
        yield Guess(f"codes are rounded {words}", lambda g, r=rounding: r(way.of(g), element))


def _bytes(s: Sample, law: ScaleLaw, way: Way) -> Iterator[Guess]:
    """Other codes where they are zero, subnormal or too large; or copied by value."""
    element = s.case.layout.element

    def unsigned(g: Folded) -> Tensor:
        codes = way.codes(g)
        return torch.where(magnitude(codes, element) == 0, 0, codes)

    yield Guess("the codes that differ are all of them zeros: their sign is lost", unsigned)
    kinds: list[tuple[str, Callable[[Tensor, Tensor], Iterable[tuple[str, Tensor]]]]] = [
        ("subnormal elements are ", lambda c, q: flushed(c, element)),
        ("elements ", lambda c, q: overflowed(c, q, element)),
        ("codes are ", lambda c, q: by_value(c, element)),
    ]
    for start, kind in kinds:
        for words, _ in kind(s.codes[:0], s.x[:0]):
            yield Guess(start + words, lambda g, k=kind, w=words: dict(k(way.codes(g), way.of(g)))[w])
    for tiny, words in ((torch.finfo(s.case.x.dtype).tiny, str(s.case.x.dtype)[6:]), (2.0**-126, "float32")):
        fault = f"values of x that are subnormal in {words} are flushed to zero"
        yield Guess(fault, lambda g, t=tiny: nm.encode(torch.where(g.x.abs() < t, g.x * 0, way.of(g)), element))


def _shortened(s: Sample, law: ScaleLaw, way: Way) -> Iterator[Guess]:
    """Elements or x that lost bits."""
    element = s.case.layout.element
    for name, cut in cuts(s.case.dtypes).items():
        twice = f"elements are rounded twice: to {name} before {element.name}"
        yield Guess(twice, lambda g, c=cut: nm.encode(c(way.of(g).to(torch.float32)), element))
        if s.case.x.dtype == torch.float32:
            fault = f"x is rounded to {name} before it is scaled and rounded to {element.name}"
            yield Guess(fault, lambda g, c=cut: nm.encode(over(c(g.x).to(torch.float64), _divisor(g, law)), element))


def _inverses(s: Sample, law: ScaleLaw, way: Way) -> Iterator[Guess]:
    """Elements that were multiplied by a reciprocal of few bits."""
    if way.words.endswith("FP32"):
        return  # they are orders of their own
    element = s.case.layout.element
    for name, cut in inverse_cuts(s.case.dtypes).items():
        for what, multiplier in _reciprocals(law).items():
            for after, again in (("", lambda t: t), (", and so are products with it", cut)):
                if again is cut and name == "E4M3":
                    continue
                fault = f"the reciprocal of {what} is rounded to {name}{after}; elements are multiplied by it"
                for wide in (torch.float32, torch.float64):
                    yield Guess(
                        fault,
                        lambda g, m=multiplier, c=cut, a=again, w=wide: nm.encode(a(m(g, c, g.x.to(w))), element),
                    )


def _reciprocals(law: ScaleLaw) -> dict[str, Callable[[Folded, Callable[[Tensor], Tensor], Tensor], Tensor]]:
    """Products of x with a reciprocal that is cut, in the precision of x."""

    def outer(g: Folded, x: Tensor) -> Tensor:
        return g.pick(law.factor).to(x.dtype)

    def scale(g: Folded, x: Tensor) -> Tensor:
        return stored(g).to(x.dtype)

    if law.dialect.outer_of is None:
        return {"the scale": lambda g, c, x: over_zero(x, c(1 / scale(g, x)))}
    return {
        "scale * outer": lambda g, c, x: over_zero(x, c(1 / (scale(g, x) * outer(g, x)))),
        "the scale": lambda g, c, x: over_zero(x, c(1 / scale(g, x))) / outer(g, x),
        "the outer scale": lambda g, c, x: over_zero(x, c(1 / outer(g, x)) / scale(g, x)),
        "the scale, and that of the outer scale,": lambda g, c, x: over_zero(
            x, c(1 / scale(g, x)) * c(1 / outer(g, x))
        ),
    }


def over_zero(x: Tensor, multiplier: Tensor) -> Tensor:
    """x * multiplier, zeros where x is, also beside an infinite multiplier."""
    return torch.where(x == 0, x, x * multiplier)


def _divided_by_others(s: Sample, law: ScaleLaw) -> Iterator[Guess]:
    """Elements divided by another scale than the stored one."""
    element, fmt = s.case.layout.element, s.case.scale_format

    def of(divisor: Quotient) -> Quotient:
        return lambda g: nm.encode(over(g.x.to(torch.float64), divisor(g).to(torch.float64)), element)

    factor = law.factor.to(torch.float64)
    bare = (
        "the scale byte is rounded, the payload is not: elements are divided by the scale as it was before it was "
        f"rounded to {scale_name(fmt)}"
    )
    yield Guess(bare, of(lambda g: law.steps(g).ratio.to(torch.float64) * g.pick(factor)))
    yield Guess(bare, of(lambda g: g.x.abs().amax(-1, keepdim=True).to(torch.float64) / element.max))
    if s.outer is not None:
        yield Guess("the outer scale is lost: elements are divided by the block scale alone", of(stored))
        upside_down = "the outer scale is used in the wrong direction where elements are scaled"
        yield Guess(upside_down, of(lambda g: stored(g).to(torch.float64) / g.pick(factor)))
    if law.dialect.outer_of is not None:
        for fault, other in other_outers(s, law.dialect, law.outer):
            its = replace(law, outer=other).factor.double()
            yield Guess(f"where elements are scaled, {fault}", of(lambda g, t=its: stored(g).double() * g.pick(t)))
    if fmt is not None:
        small = "scales that are subnormal are taken as zero where elements are scaled"
        zeroed = of(lambda g: torch.where(is_subnormal(g.scales, fmt), 0.0, stored(g)).double() * g.pick(factor))
        yield Guess(small, zeroed)
    yield Guess("elements are multiplied by the scale, not divided", of(lambda g: g.pick(factor) / stored(g).double()))
    if fmt == nm.E8M0:
        lost = "the reciprocal of a scale of 2^127, which is subnormal in float32, is flushed to zero"
        yield Guess(lost, lambda g: nm.encode(torch.where(g.scales == 254, g.x * 0, over(g.x, stored(g))), element))
    lead = s.whole.x.shape[:-1]
    for axis, what in {-2: "block", -3: "row", -4: "expert"}.items():
        if len(lead) >= -axis - 1 and lead[axis + 1] > 1:
            for step in (1, -1):
                fault = f"elements are divided by the scale of their {what} {-step:+d}"
                yield Guess(
                    fault,
                    of(lambda g, a=axis, k=step: g.rolled(stored, a, k).double() * g.pick(factor)),
                )
