"""Text to a model's tokens and back."""

from __future__ import annotations

from typing import Protocol


class Alphabet(Protocol):
    """The tokens 0 to `size` - 1 that a model was trained on; it may have room for more, which mean nothing."""

    @property
    def size(self) -> int: ...

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; those of several, one after the other, are the text."""
        ...


class Bytes:
    """A token is a byte."""

    size = 256

    def encode(self, text: bytes) -> list[int]:
        return list(text)

    def piece(self, token: int) -> bytes:
        return bytes([token])
