"""Tokenized shards: a folder with memory maps of tokens, the tokenizer, and an index that is written last.

    shards.json        format and version, dtype, vocabulary, end token, tokenizer with its sha256, and of each part its
                       tokens, documents, bytes of text, and files with their tokens and digests
    tokenizer.json     a file of the library `tokenizers`
    train-00000.bin    tokens, uint16 or uint32, little-endian, nothing else; likewise heldout-00000.bin

A folder without its index is not finished, and is refused. Opening a folder compares the size of each file with the
index, and a digest of its size and of 64 pieces of 4 KiB, the first and the last one among them: what hashes gigabytes
is `verify`, for whoever asks. Tokens beyond the vocabulary are refused there, and again in what a batch reads.

Exact: tokens are integers; the maps are read only, and a batch copies its sequences alone.
"""

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import read_json
from .corpus import Corpus
from .token_maps import AGAIN, Tokens, require_tokens
from .tokenization import LARGEST, Tokenizer, parse_tokenizer

INDEX = "shards.json"
UNFINISHED = ".unfinished.json"
TOKENIZER = "tokenizer.json"
FORMAT = "fourbit shards"
VERSION = 1
PARTS = ("train", "heldout")
_DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_PIECE, _PIECES = 4096, 64
_BLOCK = 1 << 24  # bytes that `verify` reads at once


@dataclass(frozen=True)
class Shard:
    """One file of tokens, as the index tells of it.

    Attributes:
        file: its name in the folder.
        tokens, documents: how many.
        bytes: of the text that it stands for.
        sha256: of the file. sampled: of its size and some pieces, see `sampled_digest`. text: of the documents.
    """

    file: str
    tokens: int
    documents: int
    bytes: int
    sha256: str
    sampled: str
    text: str

    def __post_init__(self) -> None:
        """ValueError for what cannot be."""
        counts = (self.tokens, self.documents, self.bytes)
        words = (self.file, self.sha256, self.sampled, self.text)
        good = all(type(count) is int and count >= 1 for count in counts) and all(type(word) is str for word in words)
        if not good or Path(self.file).name != self.file or not self.file.endswith(".bin"):
            raise ValueError("an entry of a file is damaged")


@dataclass(frozen=True)
class Index:
    """What shards.json holds. `job`: what was asked for, JSON. `lossless`: tokens tell their bytes of text exactly."""

    source: str
    dtype: str
    vocab: int
    end: int
    tokenizer_sha256: str
    lossless: bool
    shards: dict[str, tuple[Shard, ...]]
    job: dict[str, Any]

    def total(self, part: str, what: str) -> int:
        """Sum of "tokens", "documents" or "bytes" over the files of a part."""
        return sum(getattr(shard, what) for shard in self.shards[part])

    @property
    def digest(self) -> str:
        """sha256, hex, of what a run on these tokens depends on."""
        files = {part: [shard.sha256 for shard in self.shards[part]] for part in PARTS}
        facts = [self.dtype, self.vocab, self.end, self.tokenizer_sha256, self.lossless, files]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The contents of shards.json."""
        parts = {
            part: {what: self.total(part, what) for what in ("tokens", "documents", "bytes")}
            | {"files": [asdict(shard) for shard in self.shards[part]]}
            for part in PARTS
        }
        return {
            **{"format": FORMAT, "version": VERSION, "source": self.source, "dtype": self.dtype, "vocab": self.vocab},
            **{"end": self.end, "tokenizer": {"file": TOKENIZER, "sha256": self.tokenizer_sha256}},
            **{"lossless": self.lossless, "parts": parts, "job": self.job},
        }


def read_shards(folder: Path) -> Corpus:
    """Open a folder of shards.

    Raises:
        ValueError: an index of another format or version, or damaged; a file that is missing, of another size, or not
            the one that was written; a tokenizer that is not the one; tokens beyond the vocabulary.
    """
    index = read_index(folder)
    tokenizer = _tokenizer(folder, index)
    for part in PARTS:
        for shard in index.shards[part]:
            require_file(folder / shard.file, shard, _DTYPES[index.dtype], index.vocab)
    paths = {part: [folder / shard.file for shard in index.shards[part]] for part in PARTS}
    parts = {part: Tokens(paths[part], _DTYPES[index.dtype], index.vocab) for part in PARTS}
    return Corpus(
        train=parts["train"],
        heldout=parts["heldout"],
        digest=index.digest,
        files_train=index.total("train", "documents"),
        files_heldout=index.total("heldout", "documents"),
        description=f"{folder} ({index.source})",
        vocab=index.vocab,
        bytes_train=index.total("train", "bytes"),
        bytes_heldout=index.total("heldout", "bytes"),
        token_bytes=tokenizer.token_bytes if index.lossless else None,
    )


def verify(folder: Path, advance: Callable[[int], Any] = lambda _: None) -> Index:
    """Open a folder of shards, then read every byte of it.

    Args:
        folder: with an index.
        advance: told how many bytes have been read since it was called last.

    Raises:
        ValueError: as `read_shards`, and for any difference to what was written.
    """
    read_shards(folder)
    index = read_index(folder)
    size = _DTYPES[index.dtype].itemsize
    for shard in itertools.chain(*index.shards.values()):
        digest, read, path = hashlib.sha256(), 0, folder / shard.file
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                require_tokens(path, np.frombuffer(block, _DTYPES[index.dtype]), read // size, index.vocab)
                read += len(block)
                advance(len(block))
        if digest.hexdigest() != shard.sha256:
            raise _changed(path)
    return index


def read_index(folder: Path) -> Index:
    """Read shards.json. ValueError for one of another format or version, or damaged."""
    path = folder / INDEX
    tree = read_json(path)
    named = (tree.get("format"), tree.get("version"))
    if named[0] != FORMAT:
        raise ValueError(f"data: index {str(path)!r} has format {named[0]!r}, not {FORMAT!r}; name a folder of shards")
    if named[1] != VERSION:
        raise ValueError(
            f"data: index {str(path)!r} has version {named[1]!r}, this fourbit reads {VERSION}; make the folder again "
            "with fourbit tokenize"
        )
    if tree.get("dtype") not in list(_DTYPES):  # a list, for what cannot be a key
        raise ValueError(
            f"data: index {str(path)!r} has dtype {tree.get('dtype')!r}, not {' or '.join(_DTYPES)}; {AGAIN}"
        )
    try:
        index = _parsed(tree)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"entry {error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"data: index {str(path)!r} is damaged ({told}); {AGAIN}") from None
    most = np.iinfo(_DTYPES[index.dtype]).max
    if not 0 <= index.end < index.vocab <= min(LARGEST, int(most) + 1):
        raise ValueError(
            f"data: index {str(path)!r} has vocab {index.vocab} and end {index.end}, which {index.dtype} cannot hold; "
            f"{AGAIN}"
        )
    return index


def shard_tokenizer(folder: Path) -> tuple[Tokenizer, Path, str | None]:
    """The tokenizer of a folder of shards, its file, and the name of its end that was given. ValueError as
    `read_shards`."""
    index = read_index(folder)
    return _tokenizer(folder, index), folder / TOKENIZER, index.job.get("end_token")


def _parsed(tree: dict[str, Any]) -> Index:
    shards = {part: tuple(Shard(**entry) for entry in tree["parts"][part]["files"]) for part in PARTS}
    numbers, words = (tree["vocab"], tree["end"]), (tree["source"], tree["tokenizer"]["sha256"])
    if not all(type(n) is int for n in numbers) or not all(type(w) is str for w in words):
        raise ValueError("vocab, end, source or tokenizer is of another kind")
    job = tree["job"]
    if (
        type(tree["lossless"]) is not bool
        or not isinstance(job.get("end_token"), str | None)
        or not all(shards.values())
    ):
        raise ValueError("lossless, job or files is of another kind")
    index = Index(words[0], tree["dtype"], *numbers, words[1], tree["lossless"], shards, job)
    if tree != index.as_json():
        raise ValueError("its entries contradict each other")
    return index


def _tokenizer(folder: Path, index: Index) -> Tokenizer:
    path = folder / TOKENIZER
    contents = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(contents).hexdigest() != index.tokenizer_sha256:
        raise ValueError(f"data: tokenizer {str(path)!r} is not the one of {INDEX}; {AGAIN}")
    tokenizer = parse_tokenizer(contents, str(path), index.job.get("end_token"))
    if (tokenizer.vocab, tokenizer.end) != (index.vocab, index.end):
        raise ValueError(
            f"data: index {str(folder / INDEX)!r} has vocab {index.vocab} and end {index.end}, its tokenizer "
            f"{tokenizer.vocab} and {tokenizer.end}; {AGAIN}"
        )
    return tokenizer


def require_file(path: Path, shard: Shard, dtype: np.dtype, vocab: int) -> None:
    """Raises ValueError unless the file has its size and its sampled digest, and sampled tokens of the vocabulary."""
    there, size = path.stat().st_size if path.is_file() else None, shard.tokens * dtype.itemsize
    if there is None:
        raise ValueError(f"data: file {str(path)!r} of {INDEX} is missing; {AGAIN}")
    if there != size:
        raise ValueError(
            f"data: file {str(path)!r} has {there} bytes, not the {size} of {shard.tokens} tokens in {dtype.name}: it "
            f"is {'truncated' if there < size else 'longer'} or of another dtype; {AGAIN}"
        )

    def check(at: int, piece: bytes) -> None:
        require_tokens(path, np.frombuffer(piece, dtype), at // dtype.itemsize, vocab)

    if sampled_digest(path, check) != shard.sampled:
        raise _changed(path)


def _changed(path: Path) -> ValueError:
    return ValueError(f"data: file {str(path)!r} has changed since it was written; {AGAIN}")


def sampled_places(size: int) -> list[int]:
    """Where pieces of a file of `size` bytes begin that stand for it, the first and the last included; all of it if it
    is small. Between tokens, if the file has whole ones."""
    if size <= _PIECE * _PIECES:
        return list(range(0, size, _PIECE))
    return [i * (size - _PIECE) // (_PIECES - 1) // 4 * 4 for i in range(_PIECES - 1)] + [size - _PIECE]


def sampled_digest(path: Path, check: Callable[[int, bytes], Any] = lambda *_: None) -> str:
    """sha256, hex, of a file's size and its pieces at `sampled_places`; `check` is shown these."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        for at in sampled_places(size):
            file.seek(at)
            piece = file.read(_PIECE)
            check(at, piece)
            digest.update(piece)
    return digest.hexdigest()
