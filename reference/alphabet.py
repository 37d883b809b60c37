"""Text to a model's tokens and back: bytes, or the tokens of a tokenizer's file, which the library itself decodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from .config import TrainConfig
from .data import tokenizer_file
from .tokenization import Encoder, Tokenizer


class Alphabet(Protocol):
    """The tokens 0 to `size` - 1 that a model was trained on; it may have room for more, which mean nothing. `end`: the
    one after which a text is over, if there is one."""

    @property
    def size(self) -> int: ...

    @property
    def end(self) -> int | None: ...

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text. ValueError for one that has none."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens. The end and tokens that mean nothing have none; what is no UTF-8 becomes U+FFFD."""
        ...


class Bytes:
    """A token is a byte. `end`: the one that ends texts, of a model that was tuned."""

    size = 256

    def __init__(self, end: int | None = None) -> None:
        self.end = end

    def encode(self, text: bytes) -> list[int]:
        return list(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < self.size and token != self.end).decode("utf-8", "replace")


class Tokens:
    """The tokens of a tokenizer. `path`, `end_token`: the file, and the name of the end if it was given."""

    def __init__(self, tokenizer: Tokenizer, path: Path, end_token: str | None) -> None:
        self.tokenizer, self.path, self.end_token = tokenizer, path, end_token
        self.size, self.end = tokenizer.vocab, tokenizer.end
        self._encoder: Encoder | None = None

    def encode(self, text: bytes) -> list[int]:
        found: list[int] = self._loaded().encode([("prompt", text)])[0][:-1].tolist()
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        return self._loaded().decode([token for token in tokens if token < self.size and token != self.end])

    def _loaded(self) -> Encoder:
        if self._encoder is None:
            self._encoder = Encoder(self.tokenizer, str(self.path))
        return self._encoder


END_BYTE = 3  # ASCII's ETX


def alphabet_of(config: TrainConfig, tuned: bool = False) -> Alphabet:
    """What a run's tokens are; a tuned run's have an end. ValueError for a tokenizer that is missing or damaged."""
    found = tokenizer_file(config.data, config.tokenizer, config.end_token)
    return Bytes(END_BYTE if tuned else None) if found is None else Tokens(*found)


def streamed(alphabet: Alphabet, tokens: Iterable[int]) -> Iterator[str]:
    """The text of tokens that come one by one: for each what it adds, as soon as its characters are whole, and at the
    end the rest.

    Only the tokens since the last but one addition are decoded again: a decoder may treat the first token of a text in
    another way than later ones, so that the last addition's are needed before the new ones. A token that adds nothing
    moves nothing.
    """
    seen: list[int] = []
    start = read = 0  # tokens since `start` are decoded; the text of those before `read` was given out
    for token in tokens:
        seen.append(token)
        added = _added(alphabet, seen[start:read], seen[start:])
        if added.endswith("\ufffd"):  # perhaps the first bytes of a character
            added = ""
        yield added
        if added:
            start, read = read, len(seen)
    yield _added(alphabet, seen[start:read], seen[start:])


def _added(alphabet: Alphabet, before: Sequence[int], after: Sequence[int]) -> str:
    return alphabet.decode(after)[len(alphabet.decode(before)) :]
