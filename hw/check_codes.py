"""Laws that may have made a tensor's codes, and what goes wrong in kernels.

A law of codes divides x by the scales that are stored, whatever made them, so that a wrong scale does not hide a right
payload: to nearest even, in real numbers or in one of FP32's orders of operations, or with a fault
(`check_code_guesses`). A fault is a law only if it makes every code; otherwise the answer is the nearest sound law, and
what is known of the codes that differ from it.

Blocks that hold NaN or Inf are left out, as in `check_laws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm

from .check_chance import drawings, one_threshold, shared_words
from .check_code_guesses import Way, code_guesses, distinct, exact_quotient, sound, ways
from .check_folded import Folded, Sample
from .check_laws import ScaleLaw
from .check_proof import Guess, enough, proofs, within
from .check_roundings import ROUNDINGS
from .check_where import places

FAULTY = 4  # orders of operations that are tried with each fault
Make = Callable[[Folded], Tensor]


@dataclass(frozen=True)
class CodeLaw:
    """What may have made the codes from x and the stored scales. words: the law. fault: what is wrong with it, or None.
    wrong: codes that differ, bool (..., n, B), False where a block is not finite or there is padding. make: the codes
    of blocks."""

    words: str
    fault: str | None
    wrong: Tensor
    make: Make | None = None

    @property
    def count(self) -> int:
        """How many differ."""
        return int(self.wrong.sum())


def code_laws(f: Folded, law: ScaleLaw) -> list[CodeLaw]:
    """Laws of the codes, the best first. `law`: of the scales. Stochastic rounding explains nearly everything, so it
    is thought of where no other law explains all of it."""
    first = exact_quotient(law)
    wrong = codes_differ(f, first.codes(f))
    sample = Sample.of_wrong(f, wrong.any(-1))
    plain = _plain(f, law, sample, CodeLaw(first.words, None, wrong, first.codes))
    if plain.count == 0:
        return [plain]
    found = _proved(f, sample, law, plain)
    return [found] if found is not None else [*_stochastic(f, law), plain]


def _plain(f: Folded, law: ScaleLaw, sample: Sample, first: CodeLaw) -> CodeLaw:
    """The sound law that makes every code, else the nearest of those that miss the fewest of a sample."""
    if first.count == 0:
        return first
    found, laws = distinct(sample, ways(law)), [first]
    tried = [(int(codes_differ(sample, make(sample)).sum()), words, make) for words, make in sound(law, found)]
    for missed, words, make in tried[1:]:
        if missed == 0 or (missed < tried[0][0] and missed == min(tried)[0]):
            laws.append(CodeLaw(words, None, codes_differ(f, make(f)), make))
            if laws[-1].count == 0:
                return laws[-1]
    return min(laws, key=lambda law: law.count)


def _proved(f: Folded, sample: Sample, law: ScaleLaw, plain: CodeLaw) -> CodeLaw | None:
    """The fault that makes every code, of all blocks or of those in one place. What was refuted under another law of
    the scales, with the same quotients, is not tried again."""
    if not enough(plain.wrong):
        return None
    tried = f.memo.setdefault("refuted quotients", [])
    new = [way for way in distinct(sample, ways(law))[:FAULTY] if not any(_alike(way, sample, q) for q in tried)]
    guess = next(proofs(f, plain.wrong, codes_differ, _guesses(f, sample, law, plain, new)), None)
    tried += [(sample.at, way.of(sample)) for way in new]
    return None if guess is None else CodeLaw(plain.words, guess.fault, torch.zeros_like(plain.wrong), guess.make)


def _guesses(f: Folded, sample: Sample, law: ScaleLaw, plain: CodeLaw, new: list[Way]) -> Iterator[Guess]:
    """Faults of all codes, then of those in one place."""
    assert plain.make is not None
    yield from code_guesses(sample, law, new)
    names = ("column", "row") if f.case.turned else ("row", "column")
    for place, mask in places(f.lines(plain.wrong), names, int(plain.wrong.any(-1).sum())) if new else ():
        for guess in code_guesses(sample, law, new[:1]):
            yield within(guess, place.words, f.blocked(mask), plain.make)


def _alike(way: Way, sample: Sample, other: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(sample.at, other[0]) and torch.equal(way.of(sample), other[1])


def codes_differ(f: Folded, codes: Tensor) -> Tensor:
    """Which codes of finite blocks are not those that were made, bool (..., n, B)."""
    return (codes != f.codes) & f.real & f.finite


def how_scaled(f: Folded, law: ScaleLaw) -> str | None:
    """What a dialect does otherwise whose scales these are and whose codes these are not: it divides, or multiplies."""
    d = law.dialect
    wrong = codes_differ(f, law.steps(f).codes).any(-1)
    if not bool(wrong.any()):
        return None
    sample, its = Sample.of_wrong(f, wrong), d.prose.elements
    same = [
        way.words
        for way in distinct(sample, ways(law))
        if not any(bool(codes_differ(g, way.codes(g)).any()) for g in (sample, f))
    ]
    if not same:
        return None
    other = [words for words in same if _divides(words) != _divides(its)]
    codes = f"codes are those of {(other or same)[0]}, {d.name} takes {its}"
    if not other:
        return f"another order of operations: {codes}"
    divide, multiply = ("you divide", "multiplies") if _divides(other[0]) else ("you multiply", "divides")
    return f"{divide}, {d.name} {multiply}: {codes}"


def _divides(formula: str) -> bool:
    """Whether a formula that starts with x divides it, rather than multiplies it."""
    first = next((c for c in formula if c in "*/"), "/")
    return first == "/"


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
    q = exact_quotient(law).of(f)
    low, high = (
        nm.encode(q, f.case.layout.element, mode) for mode in (nm.Rounding.TOWARD_NEGATIVE, nm.Rounding.TOWARD_POSITIVE)
    )
    return q, low, high


def _nearest(q: Tensor, element: nm.Format) -> Iterator[Tensor]:
    """Codes of the nearest values, ties to even, away from zero and toward it."""
    yield nm.encode(q, element)
    yield nm.encode(q, element, nm.Rounding.NEAREST_AWAY)
    yield ROUNDINGS["with ties toward zero instead of to even"](q, element)


def other_signs(f: Folded, law: ScaleLaw, wrong: Tensor) -> bool:
    """Whether the codes `wrong` are zeros, where x makes zeros of the other sign."""
    q = exact_quotient(law).of(f)
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
