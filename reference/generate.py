"""`fourbit generate RUN`: text from a trained model, greedy or sampled, as it comes.

The next token is chosen as `sampling` says, so a text is a function of the run, its device and the arguments. A model
sees the last `sequence` tokens, as many as in training. `Decoder` is what text is drawn from: `Recomputing` computes
every token's logits from all that it sees, without a cache.

Shapes: V vocabulary.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from types import ModuleType
from typing import Literal, Protocol

import torch
import tyro
from torch import Tensor

from .alphabet import Alphabet, streamed
from .decode import Frozen, release_experts
from .expert import Draw
from .flags import named_flags
from .load import Loaded, load_run
from .parity import mixing
from .pinned import pinned
from .sampling import Sampling as Sampling

PROGRAM = "fourbit generate"


@dataclass(frozen=True)
class GenerateConfig:
    """Continue a text by a trained model."""

    run: tyro.conf.Positional[Path]
    """Run folder, as `fourbit train` left it."""
    prompt: str
    """What the text begins with."""
    tokens: int = 200
    """Tokens to add; fewer if the text ends before."""
    temperature: float = 0.8
    """Below 1 the likely tokens become likelier; 0 takes the likeliest each time."""
    top_p: float = 0.95
    """Share of the probability that is drawn from, the likeliest tokens first; 1 for all."""
    seed: int = 0
    """Decides what is drawn."""
    parity: bool = False
    """Compute in the forms of `fourbit train --parity`, also a run that was trained without."""
    step: int | None = None
    """Checkpoint to use; the newest if left out."""
    ops: Literal["emulated", "triton"] = "emulated"
    """What computes the experts: the emulation, or Triton kernels, on a GPU."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to compute."""


class Decoder(Protocol):
    """A text that grows, and the model's logits after it."""

    def feed(self, tokens: list[int]) -> Tensor:
        """Add tokens, at least one; the logits (V,) of the next one."""
        ...


class Recomputing:
    """A decoder without a cache: every call computes all that the model sees."""

    def __init__(self, run: Loaded) -> None:
        self._run = run
        self._seen: list[int] = []

    @torch.no_grad()
    def feed(self, tokens: list[int]) -> Tensor:
        config = self._run.config
        self._seen = (self._seen + tokens)[-config.model.sequence :]
        ids_BS = torch.tensor([self._seen], device=config.device)
        # step -1: of no step of training, as in evaluations
        return self._run.model.logits(ids_BS, Draw(config.seed, -1, 0))[0][0, -1, : self._run.alphabet.size]


class Caching:
    """A decoder that computes a token once, from weights quantized once. When a text outgrows what the model sees, all
    positions move, and each token is computed anew from then on."""

    def __init__(self, run: Loaded) -> None:
        self._frozen, self._size = Frozen(run.model), run.alphabet.size
        self._sequence = run.config.model.sequence
        self._seen: list[int] = []
        self._cache = self._frozen.cache(1, self._sequence)

    def feed(self, tokens: list[int]) -> Tensor:
        self._seen = self._seen + tokens
        if len(self._seen) > self._sequence:
            self._seen = tokens = self._seen[-self._sequence :]
            self._cache = self._frozen.cache(1, self._sequence)
        return self._frozen.feed(self._cache, [tokens])[0][0, : self._size]


def decoder_of(run: Loaded) -> Decoder:
    """A cache where it can be: a recipe with scales of all tokens together needs them all."""
    return Recomputing(run) if any(map(mixing, run.model.recipes)) else Caching(run)


def continuation(decoder: Decoder, prompt: list[int], count: int, sampling: Sampling) -> Iterator[int]:
    """`count` tokens after `prompt`, one by one. ValueError for an empty prompt or a negative count, at once."""
    if not prompt:
        raise ValueError("prompt is empty, and a model continues what is there; give one character or more")
    if count < 0:
        raise ValueError(f"tokens {count} cannot be used; use 0 or more")

    def draw() -> Iterator[int]:
        fed = prompt
        for place in range(count):
            token = sampling.choose(decoder.feed(fed), place)
            yield token
            fed = [token]

    return draw()


def readable(alphabet: Alphabet, tokens: Iterable[int]) -> Iterator[str]:
    """Text of tokens as they come, see `streamed`. What would steer a terminal becomes a picture of itself (U+2400 ..),
    line feeds and tabs left out."""
    return map(_tame, streamed(alphabet, tokens))


_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
# bidirectional overrides could reorder what else is on the line
_UNSEEN = dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
_TAMED = _PICTURES | _UNSEEN | {0x7F: 0x2421}


def _tame(text: str) -> str:
    return text.translate(_TAMED)


@named_flags(GenerateConfig)
def main(argv: list[str], operations: Callable[[str, str], ModuleType]) -> int:
    """Run `fourbit generate` with `argv`; return the exit code, or raise ValueError in one sentence.

    Args: operations: gives the module that `ops` and `device` of the command line name, or raises ValueError.
    """
    config = tyro.cli(GenerateConfig, args=argv, prog=PROGRAM)
    sampling = Sampling(config.temperature, config.top_p, config.seed)
    run = load_run(config.run, operations(config.ops, config.device), config.device, config.step)
    if config.parity:
        run.model.keep_parity()
    prompt = run.alphabet.encode(os.fsencode(config.prompt))
    with pinned(run.config.threads):
        decoder = decoder_of(run)
        if isinstance(decoder, Caching):
            release_experts(run.model)
        added = continuation(decoder, prompt, config.tokens, sampling)
        until = takewhile(lambda token: token != run.alphabet.end, added)
        for text in readable(run.alphabet, chain(prompt, until)):
            _write(text)
    _write("\n")
    return 0


def _write(text: str) -> None:
    """Show it now, also where the terminal lacks some of its characters."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
