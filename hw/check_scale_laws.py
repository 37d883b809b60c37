"""The search for the law of a tensor's scales: sound dialects first, then faults (`check_scale_guesses`).

Each fault is proved on every scale that differs, in order from the simplest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

import numerics as nm
from numerics.dialects_core import Dialect

from .check_folded import Folded, Sample
from .check_laws import BASES, ScaleLaw, distinct_laws, outers_without_fault, plain_laws, scales_differ
from .check_proof import Guess, enough, proofs, within
from .check_scale_guesses import rounded_guesses, scale_guesses
from .check_where import places


def scale_laws(f: Folded, dialects: list[Dialect]) -> list[ScaleLaw]:
    """Laws of the scales, the best first: dialects that make every one; or a fault that does; or the nearest ones."""
    plain = plain_laws(f, dialects)
    nearest = min((law for law in plain if law.fault is None), key=lambda law: law.count, default=plain[0])
    if nearest.count == 0 or not enough(nearest.wrong):
        return plain
    found, none = None, torch.zeros_like(nearest.wrong)
    for guess in proofs(f, nearest.wrong.unsqueeze(-1), scales_differ, _guesses(f, dialects, plain, nearest)):
        law = replace(guess.of, fault=guess.fault, wrong=none)
        found = found or law
        if _of_the_codes(f, law):
            found = law
            break
    return plain if found is None else [found, *(law for law in plain if law is not found)]


def _guesses(f: Folded, dialects: list[Dialect], plain: list[ScaleLaw], nearest: ScaleLaw) -> Iterator[Guess]:
    """Faults, in order: other roundings; outer scales that are at fault with all scales right; all others; and the same
    in one place."""
    sample = Sample.of_wrong(f, nearest.wrong)
    bases = distinct_laws(sample, [(d, outer) for d in dialects for outer in outers_without_fault(f, d)])
    yield from rounded_guesses(sample, bases)
    yield from (Guess(law.fault or "", lambda g, law=law: law.steps(g).scales, law) for law in plain if not law.count)
    yield from scale_guesses(sample, bases[:BASES])
    names = ("column" if f.case.turned else "row", "block")
    for place, mask in places(nearest.wrong, names, nearest.count):
        for guesses in (rounded_guesses, scale_guesses):
            for guess in guesses(sample, bases[:1]):
                yield within(guess, place.words, mask.unsqueeze(-1), lambda g: nearest.steps(g).scales)


def _of_the_codes(f: Folded, law: ScaleLaw) -> bool:
    """Whether a sample's codes are those of x over the law's scales and outer, or the dialect's."""
    g = Sample.of_wrong(f, torch.zeros_like(law.wrong))
    made = nm.encode(law.quotient(g), g.case.layout.element), law.steps(g).codes
    return any(not bool(((codes != g.codes) & g.real).any()) for codes in made)
