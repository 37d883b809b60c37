"""Laws that may have made a tensor's codes, and what goes wrong in kernels.

A law of codes divides x by the scales that are stored, whatever made them, so that a wrong scale does not hide a right
payload: to nearest even, or with other ties and directions, through bfloat16 or float16, by the scale before it was
rounded, without the outer scale. Quotients are those of real numbers: float64 divides two products of float32 and
small codes exactly enough that no quotient lies within its error of a tie without being one.

Blocks that hold NaN or Inf are left out, as in `check_laws`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm

from .check_chance import drawings, one_threshold, shared_words
from .check_laws import MODES, NARROW, Folded, ScaleLaw, best_first, scale_name

TIES_DOWN = "with ties toward zero instead of to even"


@dataclass(frozen=True)
class CodeLaw:
    """What may have made the codes from x and the stored scales. words: the law. fault: what is wrong with it, or None.
    wrong: codes that differ, bool (..., n, B), False where a block is not finite or there is padding."""

    words: str
    fault: str | None
    wrong: Tensor

    @property
    def count(self) -> int:
        """How many differ."""
        return int(self.wrong.sum())


def code_laws(f: Folded, law: ScaleLaw) -> list[CodeLaw]:
    """Laws of the codes, the best first. `law`: of the scales. Stochastic rounding explains nearly everything, so it
    is thought of where no other law explains all of it."""
    found = best_first(list(_codes(f, law)))
    return [*_stochastic(f, law), *found] if found[0].count else found


def _codes(f: Folded, law: ScaleLaw) -> Iterator[CodeLaw]:
    element = f.case.layout.element
    for words, q in _quotients(f, law):
        yield CodeLaw(words, None, _wrong(f, nm.encode(q, element)))
        for text, mode in MODES.items():
            yield CodeLaw(words, f"codes are rounded {text}", _wrong(f, nm.encode(q, element, mode)))
        yield CodeLaw(words, f"codes are rounded {TIES_DOWN}", _wrong(f, _ties_down(q, element)))
        for narrow, dtype in NARROW.items():
            twice = q.to(torch.float32).to(dtype).to(torch.float64)
            fault = f"elements are rounded twice: to {narrow} before {element.name}"
            yield CodeLaw(words, fault, _wrong(f, nm.encode(twice, element)))
    for fault, q in _wrong_quotients(f, law):
        yield CodeLaw("", fault, _wrong(f, nm.encode(q, element)))
    its = "" if law.faultless else ", by scales of its own"
    yield CodeLaw(f"as {law.dialect.name} makes them{its}", None, _wrong(f, law.steps(f).codes))


def _stored(f: Folded) -> Tensor:
    return f.scale_values.to(torch.float64)


def _quotients(f: Folded, law: ScaleLaw) -> Iterator[tuple[str, Tensor]]:
    """(words, elements before rounding, float64)."""
    step = _stored(f) * law.factor.to(torch.float64)
    yield "x / scale" if law.dialect.outer_of is None else "x / (scale * outer)", _over(f.x.to(torch.float64), step)
    if law.faultless:
        yield f"elements as {law.dialect.name} scales them", law.steps(f).scaled.to(torch.float64)


def _wrong_quotients(f: Folded, law: ScaleLaw) -> Iterator[tuple[str, Tensor]]:
    """(fault, elements before rounding, float64)."""
    element, scale_format, x = f.case.layout.element, f.case.scale_format, f.x.to(torch.float64)
    scale, factor = _stored(f), law.factor.to(torch.float64)
    if f.case.x.dtype == torch.float32:
        for narrow, dtype in NARROW.items():
            cut = f"x is rounded to {narrow} before it is scaled and rounded to {element.name}"
            yield cut, _over(f.x.to(dtype).to(torch.float64), scale * factor)
    bare = (
        "the scale byte is rounded, the payload is not: elements are divided by the scale as it was before it was "
        f"rounded to {scale_name(scale_format)}"
    )
    yield bare, _over(x, law.steps(f).ratio.to(torch.float64) * factor)
    yield bare, _over(x, f.x.abs().amax(-1, keepdim=True).to(torch.float64) / element.max)
    if f.outer is not None:
        yield "the outer scale is lost: elements are divided by the block scale alone", _over(x, scale)
        yield "the outer scale is used in the wrong direction where elements are scaled", _over(x, scale / factor)


def _over(x: Tensor, divisor: Tensor) -> Tensor:
    """x / divisor; signed zero for a zero, saturating codes for a scale of zero."""
    return torch.where(x == 0, x, x / divisor.expand(torch.broadcast_shapes(x.shape, divisor.shape)))


def _wrong(f: Folded, codes: Tensor) -> Tensor:
    return (codes != f.codes) & f.real & f.finite


def _stochastic(f: Folded, law: ScaleLaw) -> Iterator[CodeLaw]:
    """Every code is one of its element's two neighbours, and as many are not the nearer one, whichever way ties go, as
    chance would have, of enough elements for chance to be told from a few faults. Words that are shared make these
    counts less certain."""
    element = f.case.layout.element
    q, low, high = _neighbours(f, law)
    outside = (f.codes != low) & (f.codes != high) & f.real & f.finite
    inside = f.real & f.finite & (low != high)
    if bool(outside.any()) or not bool(inside.any()):
        return
    below, above = (nm.decode(c, element).to(torch.float64) for c in (low, high))
    share, up = torch.where(inside, (q - below) / (above - below), 0.0), f.codes == high
    variance, expected = float((share * (1 - share)).sum()), float(torch.minimum(share, 1 - share).sum())
    spread = max(variance**0.5, 1.0)
    far = [float(((f.codes != nearest) & inside).sum()) for nearest in _nearest(q, element)]
    if expected < 12 * spread:  # the variance of either count
        return
    kept = [f.case.cut(f.case.folding.unfold(t)) for t in (share, up, q < 0, inside)]
    drawn = drawings(*kept)
    threshold = one_threshold(drawn)
    if threshold is not None:
        fault = f"codes go to the farther neighbour from {threshold:.3f} of the way on, not from half of it"
        yield CodeLaw("", f"{fault}: one random word serves all values, or an offset is added", outside)
    if max(abs(n - expected) for n in far) > expected / 2:
        return
    shared = shared_words(drawn)
    if shared is not None:
        yield CodeLaw("stochastic", f"codes are stochastic, but their random words are correlated: {shared}", outside)
        return
    if max(abs(n - expected) for n in far) > 6 * spread:
        return
    z = float((up.to(torch.float64) - share)[inside].sum()) / spread
    words = f"stochastic: each is one of its element's two neighbours, rounded up {z:+.1f} standard errors too often"
    yield CodeLaw(words, None if abs(z) <= 5 else f"codes are biased; {words}", outside)


def _neighbours(f: Folded, law: ScaleLaw) -> tuple[Tensor, Tensor, Tensor]:
    """Elements before rounding, and the codes below and above them."""
    _, q = next(_quotients(f, law))
    low, high = (
        nm.encode(q, f.case.layout.element, mode) for mode in (nm.Rounding.TOWARD_NEGATIVE, nm.Rounding.TOWARD_POSITIVE)
    )
    return q, low, high


def _ties_down(q: Tensor, element: nm.Format) -> Tensor:
    """Codes of the nearest values, ties toward zero."""
    return nm.encode(torch.nextafter(q, torch.zeros_like(q)), element)


def _nearest(q: Tensor, element: nm.Format) -> Iterator[Tensor]:
    """Codes of the nearest values, ties to even, away from zero and toward it."""
    yield nm.encode(q, element)
    yield nm.encode(q, element, nm.Rounding.NEAREST_AWAY)
    yield _ties_down(q, element)


def other_signs(f: Folded, law: ScaleLaw, wrong: Tensor) -> bool:
    """Whether the codes `wrong` are zeros, where x makes zeros of the other sign."""
    _, q = next(_quotients(f, law))
    element = f.case.layout.element
    both = [nm.decode(codes[wrong], element) for codes in (nm.encode(q, element), f.codes)]
    return all(bool((value == 0).all()) for value in both)


def tie_distance(f: Folded, law: ScaleLaw, wrong: Tensor) -> float:
    """The largest distance of the elements `wrong` from a tie between codes, relative to the element; inf if one of
    their codes is no neighbour of its element."""
    element = f.case.layout.element
    q, low, high = _neighbours(f, law)
    if bool(((f.codes != low) & (f.codes != high) & wrong).any()):
        return float("inf")
    tie = (nm.decode(low, element).to(torch.float64) + nm.decode(high, element).to(torch.float64)) / 2
    away = ((q - tie).abs() / q.abs())[wrong]
    return float(away.max()) if away.numel() else 0.0
