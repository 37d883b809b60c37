"""Writing one part of a folder of shards, file by file, so that an interrupted run goes on after its last whole file.

A file is closed after the document with which its text reaches `limit` bytes: which documents are in it depends on
their text alone. So a part that is written again passes over the text of the files that are there, comparing its
digest, and encodes only what follows. A file is written beside, flushed to the disk and renamed.

    text digest = sha256 over (number of bytes, NUL, bytes) of the documents
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .checkpoint import naming
from .shards import Shard, sampled_digest
from .text import Document
from .tokenization import BATCH, Encoder


class PartWriter:
    """Writes the documents of one part, in order; `close` after the last, `abandon` in any case."""

    def __init__(
        self,
        folder: Path,
        part: str,
        limit: int,
        encoder: Encoder,
        shards: list[Shard],
        finished: Callable[[], None],
    ) -> None:
        """Args:
        folder: there already.
        part: "train" or "heldout".
        limit: bytes of text after which a file is closed.
        encoder: of the documents.
        shards: of files that are there already; every new one is appended.
        finished: called after that.
        """
        self._folder, self._part, self._limit, self._encoder = folder, part, limit, encoder
        self.shards, self._finished, self._there = shards, finished, len(shards)
        self._number, self._file, self._temporary = 0, None, folder / f".{part}.bin.{os.getpid()}.tmp"
        self._file: BinaryIO | None
        self._fresh()

    def _fresh(self) -> None:
        self._text, self._digest = hashlib.sha256(), hashlib.sha256()
        self._tokens = self._documents = self._bytes = self._held = 0
        self._waiting: list[Document] = []

    @property
    def documents(self) -> int:
        """Of all files so far."""
        return sum(shard.documents for shard in self.shards)

    def add(self, name: str, text: bytes) -> None:
        """Write one document.

        Raises:
            ValueError: the text of a file that is there already has changed, or is not UTF-8.
            OSError: the disk refuses.
        """
        self._text.update(b"%d\0" % len(text))
        self._text.update(text)
        self._documents, self._bytes = self._documents + 1, self._bytes + len(text)
        if self._number >= self._there:
            self._waiting.append((name, text))
            self._held += len(text)
            if self._held >= BATCH:
                self._encode()
        if self._bytes >= self._limit:
            self._end()

    def close(self) -> None:
        """Write what is left. Errors as `add`."""
        if self._documents:
            self._end()
        if self._number < self._there:
            raise self._changed(self._number)

    def abandon(self) -> None:
        """Remove an unfinished file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk refuses once more what it has refused
                self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _encode(self) -> None:
        if self._file is None:
            self._file = open(self._temporary, "wb")
        for tokens in self._encoder.encode(self._waiting):
            contents = tokens.tobytes()
            with naming(self._temporary):
                self._file.write(contents)
            self._digest.update(contents)
            self._tokens += len(tokens)
        self._waiting, self._held = [], 0

    def _end(self) -> None:
        if self._number < self._there:
            if self._text.hexdigest() != self.shards[self._number].text:
                raise self._changed(self._number)
        else:
            self._encode()
            self._keep()
        self._number += 1
        self._fresh()

    def _keep(self) -> None:
        file = self._file
        assert file is not None
        with naming(self._temporary):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        self._file, path = None, self._folder / f"{self._part}-{self._number:05d}.bin"
        os.replace(self._temporary, path)
        self.shards.append(
            Shard(
                file=path.name,
                tokens=self._tokens,
                documents=self._documents,
                bytes=self._bytes,
                sha256=self._digest.hexdigest(),
                sampled=sampled_digest(path),
                text=self._text.hexdigest(),
            )
        )
        self._finished()

    def _changed(self, number: int) -> ValueError:
        return ValueError(
            f"data: the text of {str(self._folder / self.shards[number].file)!r} has changed since it was tokenized; "
            "restore the text, or name another --out"
        )
