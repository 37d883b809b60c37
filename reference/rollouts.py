"""What a step of reinforcement learning learns from: completions in rows with their advantages; and its formulas.

Shapes: P problems, G completions of each, N rows of S packed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .examples import Example
from .packing import Rows, pack
from .sample import Completion


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Packed completions, equal ones of a problem once, those that teach first: `rows`, and beside each token to be
    learned the sampler's log probability of it, the advantage, and how often it was drawn, float32 (N, S). `taught`:
    rows that hold a completion that teaches."""

    rows: Rows
    old: Tensor
    advantages: Tensor
    times: Tensor
    taught: int

    def part(self, first: int, last: int, device: str) -> tuple[Tensor, ...]:
        """Of some rows, on the device: tokens, targets, segments, old, advantages, times."""
        r = self.rows
        found = r.tokens, r.targets, r.segments, self.old, self.advantages, self.times
        return tuple(t[first:last].to(device) for t in found)


def rollouts_of(
    prompts: Sequence[tuple[int, ...]],
    done: Sequence[Completion],
    advantages: Sequence[float],
    group: int,
    sequence: int,
) -> Rollouts:
    """Put completions in rows of `sequence` tokens. Equal ones of a problem, of equal rewards, are put there once.

    Args: prompts, done, advantages: of each completion; those of a problem, `group` of them, lie side by side.
    """
    same: dict[tuple[float, ...], list[int]] = {}
    for i, found in enumerate(done):
        same.setdefault((i // group, advantages[i], *found.tokens), []).append(i)
    drawn = {those[0]: len(those) for those in same.values()}
    order = sorted(drawn, key=lambda i: advantages[i] == 0)
    texts = []
    for i in order:
        before, after = prompts[i], done[i].tokens
        texts.append(Example((*before, *after), (False,) * len(before) + (True,) * len(after)))
    rows = pack(texts, sequence)
    old, advantage, times = (torch.zeros(rows.tokens.shape) for _ in range(3))
    taught = 0
    for i, text, (row, column) in zip(order, texts, rows.places, strict=True):
        last = column + len(text.tokens) - 1
        at = row, slice(last - len(done[i].tokens), last)
        old[at], advantage[at], times[at] = torch.tensor(done[i].logprobs), advantages[i], drawn[i]
        taught = row + 1 if advantages[i] != 0 else taught
    return Rollouts(rows, old, advantage, times, taught)


def group_advantages(rewards_PG: Tensor) -> Tensor:
    """(reward - mean) / (deviation + 1e-6) within each row; zeros where all are equal. float32 (P, G)."""
    centred = rewards_PG - rewards_PG.mean(1, keepdim=True)
    equal = (rewards_PG == rewards_PG[:, :1]).all(1, keepdim=True)  # where the mean may be an ulp off
    return torch.where(equal, torch.zeros_like(centred), centred / (rewards_PG.std(1, keepdim=True) + 1e-6))


def clipped_surrogate(new: Tensor, old: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """(min(r A, clip(r) A), whether the second is the smaller one), (N,) each, of log-probabilities (N,)."""
    ratio = (new - old).exp()
    plain, limited = ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages
    return torch.minimum(plain, limited), (limited < plain).detach()


def deviation(d: Tensor) -> Tensor:
    """exp(d) - 1 - d >= 0, whose mean over draws of q is KL(q || p) where d = log p - log q."""
    return d.expm1() - d
