"""The proof of a law, which takes every byte.

A law either makes every byte or is no law. One block that it makes otherwise refutes it, so laws are tried on a sample
of blocks, many of which the plain law does not explain, and only what survives is run on the whole. A block that
refutes a survivor joins the sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .check_folded import Folded, Sample

FEW = 24  # half the blocks on which most laws are refuted
BITS = 10.0  # of evidence: a fault is named only where chance would fit one in 2^10 times or fewer


@dataclass(frozen=True)
class Guess:
    """A law that may explain all bytes: the fault in words, what it makes of blocks, whole or sampled, and whatever
    else the law is made of."""

    fault: str
    make: Callable[[Folded], Tensor]
    of: Any = None


def proofs(
    f: Folded, wrong: Tensor, differ: Callable[[Folded, Tensor], Tensor], guesses: Iterable[Guess]
) -> Iterator[Guess]:
    """The guesses that make every byte. `wrong`: which bytes the plain law does not make, (..., n, B or 1). `differ`:
    which of the bytes that were made are not those of the dump."""
    samples = [Sample.of_wrong(f, wrong.any(-1), size) for size in (FEW, None)]
    for guess in guesses:
        if any(bool(differ(sample, guess.make(sample)).any()) for sample in samples):
            continue
        left = differ(f, guess.make(f)).any(-1).flatten().nonzero().squeeze(-1)
        if len(left):
            samples[0] = samples[0].with_blocks(left)
        else:
            yield guess


def enough(wrong: Tensor) -> bool:
    """Whether bytes that differ from the plain law are too many for a law to fit them by chance: of all the ways to
    choose so many places, and one of two other bytes at each."""
    count, of = int(wrong.sum()), wrong.numel()
    log = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    return log / math.log(2) + count >= BITS


def within(guess: Guess, words: str, place: Tensor, plain: Callable[[Folded], Tensor]) -> Guess:
    """A guess that holds at a place alone, a bool tensor that broadcasts to the whole's blocks and values."""

    def make(g: Folded) -> Tensor:
        return torch.where(g.pick(place), guess.make(g), plain(g))

    return replace(guess, fault=f"{words} alone: {guess.fault}", make=make)
