"""Text to a model's tokens and back: bytes, or the tokens of a tokenizer's file."""

from __future__ import annotations

import json
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

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; those of several, one after the other, are the text."""
        ...


class Bytes:
    """A token is a byte. `end`: the one that ends texts, of a model that was tuned."""

    size = 256

    def __init__(self, end: int | None = None) -> None:
        self.end = end

    def encode(self, text: bytes) -> list[int]:
        return list(text)

    def piece(self, token: int) -> bytes:
        return bytes([token])


class Tokens:
    """The tokens of a tokenizer. Of one whose characters are not bytes a piece is what the vocabulary has, with a space
    for U+2581. `path`, `end_token`: the file, and the name of the token at the end if it was given."""

    def __init__(self, tokenizer: Tokenizer, path: Path, end_token: str | None) -> None:
        self.tokenizer, self.path, self.end_token = tokenizer, path, end_token
        self.size, self.end = tokenizer.vocab, tokenizer.end
        tree = json.loads(tokenizer.contents)
        vocab = tree["model"]["vocab"]
        own = vocab.items() if isinstance(vocab, dict) else ((token, i) for i, (token, _) in enumerate(vocab))
        table = _bytes_of_characters()
        spell = _spelled if tokenizer.token_bytes is None else lambda token: _decoded(token, table)
        self._pieces = {i: spell(token) for token, i in own}
        self._pieces |= {entry["id"]: entry["content"].encode() for entry in tree.get("added_tokens") or ()}
        self._pieces[self.end] = b""
        self._encoder: Encoder | None = None

    def encode(self, text: bytes) -> list[int]:
        if self._encoder is None:
            self._encoder = Encoder(self.tokenizer, str(self.path))
        found: list[int] = self._encoder.encode([("prompt", text)])[0][:-1].tolist()
        return found

    def piece(self, token: int) -> bytes:
        return self._pieces.get(token, b"")


END_BYTE = 3  # ASCII's ETX


def alphabet_of(config: TrainConfig, tuned: bool = False) -> Alphabet:
    """What a run's tokens are; a tuned run's have an end. ValueError for a tokenizer that is missing or damaged."""
    found = tokenizer_file(config.data, config.tokenizer, config.end_token)
    return Bytes(END_BYTE if tuned else None) if found is None else Tokens(*found)


def _bytes_of_characters() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable Latin-1 characters are themselves, the others follow from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def _decoded(token: str, table: dict[str, int]) -> bytes:
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode(errors="replace")


def _spelled(token: str) -> bytes:
    return token.replace("\u2581", " ").encode(errors="replace")
