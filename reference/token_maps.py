"""Files of tokens, read in place as if they were one array.

The files are mapped read only: the system reads the pages of a sequence when it is asked for, and forgets them when it
needs room, so a corpus may be larger than memory. `will_need` lets a disk read many sequences at once, and ahead.

Exact: tokens are integers. One beyond the vocabulary is refused where it is read, which opening a file cannot see.
"""

import bisect
import itertools
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

AGAIN = "restore it, or make the folder again with fourbit tokenize"


class Tokens:
    """Memory maps one after the other, read like one array (tokens,)."""

    def __init__(self, paths: list[Path], dtype: np.dtype, vocab: int) -> None:
        """Map files of one or more whole tokens, each below `vocab`."""
        self.dtype, self._vocab, self._paths = dtype, vocab, paths
        self._files = [_mapped(path) for path in self._paths]
        self._maps = [np.frombuffer(file, dtype) for file in self._files]
        self._ends = list(itertools.accumulate(map(len, self._maps)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, part: slice) -> np.ndarray:
        """A copy of consecutive tokens. ValueError for a step, or a token beyond the vocabulary."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"step {step} cannot be used; take tokens one after the other")
        found = [np.empty(0, dtype=self.dtype)]
        for number, first, last in self._pieces(start, stop):
            tokens = self._maps[number][first:last]
            require_tokens(self._paths[number], tokens, first, self._vocab)
            found.append(tokens)
        return np.concatenate(found)

    def will_need(self, starts: np.ndarray, count: int) -> None:
        """Have the system read `count` tokens at each of `starts` soon, all at once and without waiting for them."""
        for start in starts.tolist():
            for number, first, last in self._pieces(start, min(start + count, len(self))):
                begin = first * self.dtype.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
                self._files[number].madvise(mmap.MADV_WILLNEED, begin, last * self.dtype.itemsize - begin)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Where tokens `start` to `stop` lie: number of a file, first and last in it."""
        while start < stop:
            number = bisect.bisect_right(self._ends, start)
            begin = self._ends[number] - len(self._maps[number])
            last = min(stop - begin, len(self._maps[number]))
            yield number, start - begin, last
            start = begin + last


def _mapped(path: Path) -> mmap.mmap:
    """A file as a read-only map, of which the system reads only what is asked for."""
    with open(path, "rb") as file:
        found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found.madvise(mmap.MADV_RANDOM)
    return found


def require_tokens(path: Path, tokens: np.ndarray, first: int, vocab: int) -> None:
    """Raises ValueError if one of `tokens`, at `first` and on in the file, is not below `vocab`."""
    if len(tokens) and int(tokens.max()) >= vocab:
        at = int(np.argmax(tokens >= vocab))
        raise ValueError(
            f"data: file {str(path)!r} has token {int(tokens[at])} at {first + at}, beyond its vocabulary of {vocab}; "
            f"{AGAIN}"
        )
