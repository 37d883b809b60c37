"""Texts of different lengths in sequences of one length, side by side, none of which sees another.

A text of n tokens gives n - 1 inputs and targets. Texts go into a row one after the other, in their order, as long as
they fit; what is left of a row is filled with inputs 0 that form a segment of their own, number -1, which is not
learned and which no expert is given. Segments are numbered in a row from 0 (`segments` says what they do in the model).

Shapes: N rows, S tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .examples import Example

IGNORED = -100  # the target of a token that is not learned, as torch's cross entropy has it


@dataclass(frozen=True, eq=False)
class Rows:
    """int64 (N, S) each: tokens, their targets, IGNORED where nothing is learned, and segments. `places`: of each text
    its row and its first column."""

    tokens: Tensor
    targets: Tensor
    segments: Tensor
    places: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def real(self) -> int:
        """How many tokens are no filler."""
        return int((self.segments >= 0).sum())

    def take(self, rows: Tensor | slice) -> Rows:
        """Some rows, without places."""
        return Rows(self.tokens[rows], self.targets[rows], self.segments[rows], [])


def pack(texts: Sequence[Example], sequence: int) -> Rows:
    """Put texts, one or more, each of 2 to `sequence` + 1 tokens, into rows of `sequence` tokens."""
    places, row, column = [], 0, 0
    for text in texts:
        length = len(text.tokens) - 1
        assert 1 <= length <= sequence
        if column + length > sequence:
            row, column = row + 1, 0
        places.append((row, column))
        column += length
    shape = row + 1, sequence
    tokens, targets = torch.zeros(shape, dtype=torch.int64), torch.full(shape, IGNORED)
    segments = torch.full(shape, -1)
    number = 0
    for text, (row, column) in zip(texts, places, strict=True):
        number = number + 1 if column else 0
        inside = slice(column, column + len(text.tokens) - 1)
        tokens[row, inside] = torch.tensor(text.tokens[:-1])
        targets[row, inside] = torch.where(torch.tensor(text.learned[1:]), torch.tensor(text.tokens[1:]), IGNORED)
        segments[row, inside] = number
    return Rows(tokens, targets, segments, places)
