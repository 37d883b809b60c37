"""A corpus of bytes or tokens in two parts, and batches from it as pure functions.

Documents lie one after the other, so a sequence may span several. `batch` draws start offsets from numpy's Philox, a
counter-based generator keyed by (seed, step). Any batch can be computed at any time, alone, by any process: a resumed
run needs no data state, and a rank that computes some rows of a batch gets the rows that another would. Only raw words
are used, which numpy keeps stable across versions. `epoch_batch` takes each window of S tokens once an epoch, in the
order that `order` computes. `heldout_batch` is fixed.

A token stands for some bytes of text, so a loss of ce nats a token is ce / ln 2 / (bytes a token) bits per byte, with
the bytes of exactly the tokens that were predicted.

Shapes: B sequences, S tokens per sequence. Exact: everything here is integer arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .order import epoch_windows


class Split(Protocol):
    """One part of a corpus: a numpy array of unsigned integers (tokens,), or what reads like one."""

    @property
    def dtype(self) -> np.dtype: ...

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as bytes or tokens, split into train and held-out.

    Attributes:
        train: the training documents one after the other; bytes are uint8, tokens uint16 or uint32.
        heldout: the held-out documents likewise.
        digest: sha256, hex, over the contents of both parts and, of tokens, over what made them.
        files_train: number of files, or documents in files of many, in `train`.
        files_heldout: number of them in `heldout`; a single one that is split counts in both.
        description: one phrase that names the source.
        vocab: tokens are below this.
        bytes_train: bytes of text that `train` stands for; None: one for each token.
        bytes_heldout: bytes of text that `heldout` stands for; None: one for each token.
        token_bytes: int64 array (vocab,), the bytes of text that each token stands for, where that is exact; None:
            one for each token, or unknown if `bytes_heldout` says otherwise.
    """

    train: Split
    heldout: Split
    digest: str
    files_train: int
    files_heldout: int
    description: str
    vocab: int = 256
    bytes_train: int | None = None
    bytes_heldout: int | None = None
    token_bytes: np.ndarray | None = None

    def bytes_per_token(self, targets: Tensor) -> float:
        """Mean bytes of text of some held-out tokens; of the whole held-out part where tokens alone do not tell.

        Args:
            targets: int64, any shape, of the held-out part.

        Raises:
            ValueError: they stand for no text at all.
        """
        if self.token_bytes is not None:
            mean = int(self.token_bytes[targets.numpy()].sum()) / targets.numel()
        elif self.bytes_heldout is not None:
            mean = self.bytes_heldout / len(self.heldout)
        else:
            return 1.0
        if mean == 0:
            raise ValueError(
                f"data: the held-out tokens of {self.description} stand for no text, only for ends of documents; use "
                "more text"
            )
        return mean

    def about(self) -> dict[str, str | int]:
        """What a run's meta.json tells of it, as JSON."""
        found: dict[str, str | int] = {
            "digest": self.digest,
            "description": self.description,
            "bytes_train": len(self.train) if self.bytes_train is None else self.bytes_train,
            "bytes_heldout": len(self.heldout) if self.bytes_heldout is None else self.bytes_heldout,
            "files_train": self.files_train,
            "files_heldout": self.files_heldout,
        }
        if self.bytes_train is not None:
            found |= {"tokens_train": len(self.train), "tokens_heldout": len(self.heldout), "vocab": self.vocab}
        return found


def batch(
    split: Split, seed: int, step: int, sequences: int, length: int, rows: slice = slice(None)
) -> tuple[Tensor, Tensor]:
    """Draw random sequences: a pure function of its arguments.

    Sequence b starts at word b of Philox(key = (seed, step)), modulo the number of possible starts; the modulo's bias
    is below tokens / 2^64. Asking for fewer sequences gives the first ones.

    Args:
        split: (tokens,).
        seed: of the run, 0 <= seed < 2^64.
        step: of the run, 0 <= step < 2^64.
        sequences: B.
        length: S.
        rows: those of the B sequences that are wanted, for example a rank's; only these are read.

    Returns:
        tokens and targets, int64 (B, S); targets are the tokens one further.

    Raises:
        ValueError: the split is shorter than one sequence and its last target.
    """
    require_sequences(split, "corpus", 1, length)

    def starts(step: int) -> np.ndarray:
        words = np.random.Philox(key=np.array([seed, step], dtype=np.uint64)).random_raw(sequences)
        return words[rows] % np.uint64(len(split) - length)

    return _gather_ahead(split, starts, step, length)


def epoch_batch(
    split: Split, seed: int, step: int, sequences: int, length: int, rows: slice = slice(None)
) -> tuple[Tensor, Tensor]:
    """Take the next windows of an order in which each comes once an epoch: a pure function of its arguments.

    The split is cut into n = (tokens - 1) // S windows; what is left at its end, less than a window and the last
    target, is never seen. Sequence b of step s, counted from 1, is number (s - 1) B + b of the windows in the order of
    epoch 0, then 1, and so on; another B gives the same windows in the same order.

    Args, Returns, Raises: as `batch`; step >= 1, of steps that all had this B.
    """
    require_sequences(split, "corpus", 1, length)
    first, stop, stride = rows.indices(sequences)
    if stride != 1:
        raise ValueError(f"rows {rows} cannot be used; use rows one after the other")
    count, windows = max(0, stop - first), (len(split) - 1) // length

    def starts(step: int) -> np.ndarray:
        return epoch_windows((step - 1) * sequences + first, count, windows, seed) * np.uint64(length)

    return _gather_ahead(split, starts, step, length)


def heldout_batch(split: Split, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Cut the fixed evaluation sequences: evenly spread, no token predicted twice.

    Args:
        split: (tokens,).
        sequences: B.
        length: S.

    Returns:
        tokens and targets, int64 (B, S).

    Raises:
        ValueError: B sequences do not fit side by side.
    """
    require_sequences(split, "held-out part", sequences, length)
    stride = (len(split) - 1) // sequences
    return _gather(split, np.arange(sequences, dtype=np.uint64) * np.uint64(stride), length)


def require_sequences(split: Split, part: str, sequences: int, length: int, source: str = "") -> None:
    """Check that `sequences` sequences of `length` tokens and their last targets fit side by side in `split`.

    Args:
        split: (tokens,).
        part: what the split is, for the message, for example "held-out part".
        sequences: how many must fit.
        length: tokens per sequence.
        source: the corpus that the split belongs to, for the message.

    Raises:
        ValueError: they do not fit; the message says what would.
    """
    unit = "bytes" if split.dtype == np.uint8 else "tokens"
    of = f"{part} ({len(split)} {unit})" + (f" of {source}" if source else "")
    fit = (len(split) - 1) // length
    if fit < 1:
        raise ValueError(
            f"sequence {length} is longer than the {of}; use --model.sequence {max(1, len(split) - 1)} or "
            "less, or more text"
        )
    if fit < sequences:
        raise ValueError(
            f"eval_sequences {sequences} of {length} tokens do not fit into the {of}; use at most {fit}, or more text"
        )


def require_vocabulary(corpus: Corpus, vocab: int) -> None:
    """Raises ValueError unless a model of `vocab` tokens has one for each of the corpus."""
    if corpus.vocab > vocab:
        raise ValueError(
            f"model.vocab {vocab} is smaller than the {corpus.vocab} tokens of {corpus.description}; use --model.vocab "
            f"{corpus.vocab} or more"
        )


def _gather_ahead(split: Split, starts: Callable[[int], np.ndarray], step: int, length: int) -> tuple[Tensor, Tensor]:
    """The sequences of a step. A split on a disk is told of all of them before the first is read, and then of the next
    step's, which it reads while this one is computed; it changes no token."""
    now, hint = starts(step), getattr(split, "will_need", None)
    if hint is not None:
        hint(now, length + 1)
    found = _gather(split, now, length)
    if hint is not None:
        hint(starts(step + 1), length + 1)
    return found


def _gather(split: Split, starts: np.ndarray, length: int) -> tuple[Tensor, Tensor]:
    # a slice each: a memory map is read where the sequence lies, and no index of B x S integers is made
    window = np.empty((len(starts), length + 1), dtype=np.int64)
    for row, start in zip(window, starts.tolist(), strict=True):
        row[:] = split[start : start + length + 1]
    found = torch.from_numpy(window)
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()
