"""How the next token is chosen from a model's logits: greedy, or drawn from a nucleus, by a seed.

softmax(logits / temperature) is cut to the fewest tokens that hold `top_p` of it (nucleus sampling, arXiv 1904.09751);
at temperature 0 the likeliest token is taken. The token at `place` of completion `number` is drawn with word
(seed, number 2^32 + place) of numpy's Philox: a completion does not depend on those made beside it.

Shapes: B completions, V vocabulary. Probabilities are float64 on the CPU.
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
        return self.choose_each(logits_V[None], [place], [number])[0]

    def choose_each(self, logits_BV: Tensor, places: list[int], numbers: list[int]) -> list[int]:
        """One token of each of B completions, see `choose`. logits_BV: (B, V)."""
        likeliest_B = logits_BV.argmax(-1)
        if self.temperature == 0:
            found: list[int] = likeliest_B.tolist()
            return found
        logits_BV = logits_BV.double().cpu()
        # the largest is 0 before it is divided, so that a small temperature makes no infinity
        largest_B1 = logits_BV.gather(1, likeliest_B[:, None].cpu())
        scaled_BV = (logits_BV - largest_B1) / torch.full((), self.temperature, dtype=torch.float64)
        ranked = scaled_BV.softmax(-1).sort(dim=-1, descending=True, stable=True)
        upto_BV = ranked.values.cumsum(-1)
        count_B1 = (upto_BV < self.top_p * upto_BV[:, -1:]).sum(-1, keepdim=True)  # tokens that are kept, but one
        words = [
            np.random.Philox(key=np.array([self.seed, (number << 32) + place], dtype=np.uint64)).random_raw() >> 11
            for place, number in zip(places, numbers, strict=True)
        ]
        # uniform below what is kept
        below_B1 = torch.tensor(words, dtype=torch.float64)[:, None] * 2.0**-53 * upto_BV.gather(1, count_B1)
        rank_B1 = (upto_BV <= below_B1).sum(-1, keepdim=True).minimum(count_B1)
        chosen: list[int] = ranked.indices.gather(1, rank_B1)[:, 0].tolist()
        return chosen
