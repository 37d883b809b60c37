"""How the next token is chosen from a model's logits: greedy, or drawn from a nucleus, by a seed.

softmax(logits / temperature) is cut to the fewest tokens that hold `top_p` of it (nucleus sampling, arXiv 1904.09751);
at temperature 0 the likeliest token is taken. The token at `place` of completion `number` is drawn with word
(seed, number 2^32 + place) of numpy's Philox: a completion does not depend on those made beside it.

Shapes: V vocabulary. Probabilities are float64 on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Raises ValueError for a number out of range."""

    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name, good, remedy in (
            ("temperature", 0 <= self.temperature <= 1e6, "use 0, which takes the likeliest token, or more"),
            ("top_p", 0 < self.top_p <= 1, "use a share above 0, at most 1"),
            ("seed", 0 <= self.seed < 2**64, "use 0 to 2^64 - 1"),
        ):
            if not good:
                raise ValueError(f"{name} {getattr(self, name)} cannot be used; {remedy}")

    def choose(self, logits_V: Tensor, place: int, number: int = 0) -> int:
        """The token at `place` of what is added, from 0, to completion `number`. logits_V: (V,), finite, any device."""
        logits_V = logits_V.double().cpu()
        likeliest = int(logits_V.argmax())
        if self.temperature == 0:
            return likeliest
        # the largest is 0 before it is divided, so that a small temperature makes no infinity
        scaled = (logits_V - logits_V[likeliest]) / torch.full((), self.temperature, dtype=torch.float64)
        ranked = scaled.softmax(0).sort(descending=True, stable=True)
        upto = ranked.values.cumsum(0)
        count = int((upto < self.top_p * upto[-1]).sum()) + 1
        word = np.random.Philox(key=np.array([self.seed, (number << 32) + place], dtype=np.uint64)).random_raw()
        below = (word >> 11) * 2.0**-53 * float(upto[count - 1])  # uniform below what is kept
        return int(ranked.indices[min(int((upto <= below).sum()), count - 1)])

    def choose_each(self, logits_BV: Tensor, places: list[int], numbers: list[int]) -> list[int]:
        """One token of each of B completions; logits_BV: (B, V), finite, any device."""
        if self.temperature == 0:
            found: list[int] = logits_BV.argmax(-1).tolist()
            return found
        rows = zip(logits_BV.double().cpu(), places, numbers, strict=True)
        return [self.choose(logits_V, place, number) for logits_V, place, number in rows]
