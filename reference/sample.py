"""Completions of prompts by a model, many at a time, each with the log-probabilities that it was drawn by.

A sampler quantizes the model's weights once, keeps them packed, and computes each token once: what was seen is in a
cache. A completion is a function of the weights, its prompt, its number and the `Sampling`: in parity to the bit, else
but for FP32 sums that depend on what passes together.

    model = load_run(folder).model;  sampler = Sampler(model)
    for completion in sampler.sample([[65, 66], [67]], 20, Sampling(1.0, 1.0), end=None): completion.tokens
    sampler.refresh()                 # after an optimizer step

Shapes: B sequences, P tokens of a prompt, N of a completion, V vocabulary, K experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .decode import Cache, Frozen
from .model import Transformer
from .parity import log_softmax
from .sampling import Sampling as Sampling


@dataclass(frozen=True)
class Completion:
    """What followed a prompt.

    Attributes:
        tokens: the N tokens, the end token included where it came.
        logprobs: log of each one's probability under softmax(logits) of the whole vocabulary, temperature 1, FP32.
        ended: whether the end token came; else the count of tokens or the model's context ended it.
        routing: int64 (P + N - 1, layers with experts, K), the experts of each token that the model has read; None
            unless asked for.
    """

    tokens: list[int]
    logprobs: list[float]
    ended: bool = False
    routing: Tensor | None = None


@dataclass(eq=False)
class _Growing:
    """A completion in progress. `most`: tokens that it may have."""

    number: int
    prompt: int
    most: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False
    routing: list[Tensor] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.ended or len(self.tokens) >= self.most

    def done(self) -> Completion:
        routing = torch.cat(self.routing, 1).transpose(0, 1) if self.routing else None
        return Completion(self.tokens, self.logprobs, self.ended, routing)


class Sampler:
    """Samples from `model`.

    Args: model: in any mode; its weights are read now, and again by `refresh`. size: tokens that can be drawn, the
        first ones of the vocabulary; all if left out.
    """

    def __init__(self, model: Transformer, size: int | None = None) -> None:
        self.model, self.size = model, model.config.vocab if size is None else size
        self.refresh()

    def refresh(self) -> None:
        """Take the model's weights and recipes as they are now."""
        self.frozen = Frozen(self.model)

    def sample(
        self,
        prompts: Sequence[list[int]],
        tokens: int,
        sampling: Sampling,
        end: int | None,
        *,
        numbers: Sequence[int] | None = None,
        chunk: int | None = None,
        routing: bool = False,
        on_token: Callable[[int, int], None] | None = None,
    ) -> list[Completion]:
        """A completion of each prompt.

        Args:
            prompts: token lists, each of 1 to `sequence` tokens; equal ones are read once. tokens: at most so many are
                added, fewer where `end` comes or the model's context ends. end: the token after which a text is over.
            numbers: which completions of the seed these are, see `sampling`; 0, 1, .. if left out. chunk: tokens of
                a prompt that are read at a time; all if left out. routing: whether to note experts.
            on_token: is told (which prompt, token) of each token as it comes.

        Raises:
            ValueError: names the prompt or argument that cannot be used.
        """
        self._require(prompts, tokens, numbers, chunk)
        if not prompts:
            return []
        sequence = self.model.config.sequence
        numbers = range(len(prompts)) if numbers is None else numbers
        growing = [
            # the last token is drawn and not read
            _Growing(number, i, min(tokens, sequence + 1 - len(prompts[i])))
            for i, number in enumerate(numbers)
        ]
        alive = [g for g in growing if g.most > 0]
        if alive:
            cache, logits_BV = self._read([prompts[g.prompt] for g in alive], tokens, chunk, alive if routing else None)
            self._grow(alive, cache, logits_BV, sampling, end, routing, on_token)
        return [g.done() for g in growing]

    def _grow(
        self,
        alive: list[_Growing],
        cache: Cache,
        logits_BV: Tensor,
        sampling: Sampling,
        end: int | None,
        routing: bool,
        on_token: Callable[[int, int], None] | None,
    ) -> None:
        """Draw token after token until every completion is over."""
        while True:
            places, numbers = [len(g.tokens) for g in alive], [g.number for g in alive]
            drawn = sampling.choose_each(logits_BV[:, : self.size], places, numbers)
            at = torch.tensor(drawn, device=logits_BV.device)[:, None]
            logs = log_probabilities(logits_BV, self.model.parity).gather(1, at)[:, 0].tolist()
            for g, token, log in zip(alive, drawn, logs, strict=True):
                g.tokens.append(token)
                g.logprobs.append(log)
                g.ended = token == end
                if on_token is not None:
                    on_token(g.prompt, token)
            going = [i for i, g in enumerate(alive) if not g.over]
            if not going:
                return
            if len(going) < len(alive):
                cache, alive = cache.rows(going), [alive[i] for i in going]
            logits_BV, experts = self.frozen.feed(cache, [[g.tokens[-1]] for g in alive])
            if routing:
                for i, g in enumerate(alive):
                    g.routing.append(experts[:, i : i + 1])

    def _read(
        self, prompts: list[list[int]], tokens: int, chunk: int | None, noted: list[_Growing] | None
    ) -> tuple[Cache, Tensor]:
        """The cache and the logits after each prompt. noted: completions to note experts in."""
        different = list(dict.fromkeys(map(tuple, prompts)))
        which = [different.index(tuple(prompt)) for prompt in prompts]
        longest = max(map(len, different))
        cache = self.frozen.cache(len(different), min(longest + tokens, self.model.config.sequence))
        size, found, experts = chunk or longest, None, [[] for _ in different]
        for start in range(0, longest, size):
            pieces = [list(prompt[start : start + size]) for prompt in different]
            logits_BV, chosen = self.frozen.feed(cache, pieces)
            fed = torch.tensor([bool(piece) for piece in pieces], device=logits_BV.device)[:, None]
            found = logits_BV if found is None else torch.where(fed, logits_BV, found)
            for own, part in zip(experts, chosen.split([len(piece) for piece in pieces], 1), strict=True):
                own.append(part)
        for g, i in zip(noted or (), which, strict=noted is not None):
            g.routing += experts[i]
        return (cache, found) if which == list(range(len(which))) else (cache.rows(which), found[which])

    def _require(
        self, prompts: Sequence[list[int]], tokens: int, numbers: Sequence[int] | None, chunk: int | None
    ) -> None:
        config = self.model.config
        for i, prompt in enumerate(prompts):
            if not prompt:
                raise ValueError(f"prompts[{i}] is empty, and a model continues what is there; give a token or more")
            if len(prompt) > config.sequence:
                raise ValueError(
                    f"prompts[{i}] has {len(prompt)} tokens, more than the model's context of {config.sequence}; "
                    "shorten it"
                )
            odd = [token for token in prompt if not 0 <= token < config.vocab]
            if odd:
                raise ValueError(f"prompts[{i}] has token {odd[0]}; use 0 to {config.vocab - 1}")
        if tokens < 0:
            raise ValueError(f"tokens {tokens} cannot be used; use 0 or more")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk {chunk} cannot be used; use 1 or more, or None for whole prompts")
        if numbers is not None and (len(numbers) != len(prompts) or not all(0 <= n < 2**32 for n in numbers)):
            raise ValueError(f"numbers {list(numbers)} cannot be used; give each prompt one of 0 to 2^32 - 1")


def log_probabilities(logits: Tensor, exactly: bool) -> Tensor:
    """log softmax over the last axis, FP32, with gradients; exactly: in the form of `parity`."""
    return log_softmax(logits) if exactly else logits.to(torch.float32).log_softmax(-1)
