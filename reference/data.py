"""What `--data` names, as a corpus: bytes or tokens of text files, of JSON Lines and parquet, or tokenized shards.

    a folder with shards.json          the shards of `fourbit tokenize`, as memory maps
    anything else, with a tokenizer    its documents, encoded now and kept as uint16 or uint32, each with an end token
    anything else                      its documents as bytes, so that a language model over 256 symbols reads any text

Bytes of text files follow each other without a mark, as they always did; where a file has many documents, byte 0, which
no text holds, ends each. `text` says which files and documents there are and which are held out, `corpus` how batches
are drawn.

The digest of bytes covers the names and the contents of all documents; of tokens, the tokens and the tokenizer.
"""

import hashlib
import os
from pathlib import Path

import numpy as np

from .corpus import Corpus, Split, batch, epoch_batch, heldout_batch, require_sequences, require_vocabulary
from .shards import INDEX, UNFINISHED, read_shards, shard_tokenizer
from .text import Document, Source, chooser, cut_of, find
from .tokenization import Encoder, Tokenizer, read_tokenizer

__all__ = [
    "Corpus",
    "Split",
    "batch",
    "epoch_batch",
    "heldout_batch",
    "is_tokenized",
    "load_corpus",
    "require_sequences",
    "require_vocabulary",
    "tokenizer_file",
]


def load_corpus(
    data: str | None = None, tokenizer: Path | None = None, text_field: str = "text", end_token: str | None = None
) -> Corpus:
    """Read the corpus that `data` names.

    Args:
        data: a text file, JSON Lines, parquet, a folder of them (read recursively, hidden entries skipped), a glob
            pattern ("**" descends), a folder of shards, or None for the running Python's standard library. Empty
            documents are skipped.
        tokenizer: a file of the library `tokenizers`; bytes if None. Shards have their own.
        text_field: field or column with the text, in files that have them.
        end_token: token at the end of a document; found by its usual names if None.

    Returns:
        The corpus; both parts hold at least one token.

    Raises:
        ValueError: nothing there, nothing in it, a file that is binary, unreadable or damaged, a single document too
            short to split, or an argument that means nothing for this data.
    """
    if end_token is not None and tokenizer is None:
        raise ValueError(f"end_token {end_token!r} does nothing without a tokenizer; leave it out")
    if (folder := _shard_folder(data)) is not None:
        for name, value, default in (("tokenizer", tokenizer, None), ("text_field", text_field, "text")):
            if value != default:
                raise ValueError(
                    f"{name} {str(value)!r} does nothing here: data {data!r} is tokenized already; leave it out"
                )
        return read_shards(folder)
    source = find(data, text_field)
    documents = list(source.documents())
    if not documents:
        raise ValueError(
            f"data {source.label!r} holds no text: every {_kind(source)} in it is empty; name files with text"
        )
    if tokenizer is None:
        return _bytes(source, documents)
    return _tokens(source, documents, tokenizer, end_token)


def tokenizer_file(
    data: str | None, tokenizer: Path | None = None, end_token: str | None = None
) -> tuple[Tokenizer, Path, str | None] | None:
    """What makes the tokens of a corpus, its file, and the name of its end that was given; None: tokens are bytes.

    Args, Raises: as `load_corpus`, of which the text itself need not be there.
    """
    if (folder := _shard_folder(data)) is not None:
        return shard_tokenizer(folder)
    return None if tokenizer is None else (read_tokenizer(tokenizer, end_token), tokenizer, end_token)


def is_tokenized(data: str | None) -> bool:
    """Whether `data` names shards. ValueError for unfinished ones."""
    return _shard_folder(data) is not None


def _shard_folder(data: str | None) -> Path | None:
    """The folder of shards that `data` names, if it does. ValueError for one that is not finished."""
    path = Path(data or "")
    folder = path.parent if path.name == INDEX else path
    if data and (folder / UNFINISHED).exists() and not (folder / INDEX).exists():
        raise ValueError(f"data {data!r} holds unfinished shards; give the same fourbit tokenize command again")
    return folder if data and (folder / INDEX).is_file() else None


def _kind(source: Source) -> str:
    return "document" if source.records else "file"


def _description(source: Source, documents: list[Document], note: str = "") -> str:
    return f"{source.label} ({len(documents)} {_kind(source)}{'s' if len(documents) > 1 else ''}{note})"


def _parts(documents: list[Document], characters: bool) -> tuple[list[Document], list[Document]]:
    """Train and held out."""
    if len(documents) == 1:
        name, text = documents[0]
        cut = cut_of(name, text, characters)
        return [(name, text[:cut])], [(name, text[cut:])]
    held_out = chooser(name for name, _ in documents)
    parts: tuple[list[Document], list[Document]] = ([], [])
    for document in documents:
        parts[held_out(document[0])].append(document)
    return parts


def _bytes(source: Source, documents: list[Document]) -> Corpus:
    digest = hashlib.sha256()
    for name, text in documents:
        # The length keeps (name, contents) pairs from running into each other.
        digest.update(os.fsencode(name) + b"\0" + str(len(text)).encode() + b"\0" + text)
    end = b""
    if source.records:
        end = b"\0"
        digest.update(b"\0ended by 0")
    parts = _parts(documents, characters=False)
    arrays = [np.frombuffer(b"".join(text + end for _, text in part), dtype=np.uint8) for part in parts]
    counts = len(parts[0]), len(parts[1])
    if not end:
        return Corpus(arrays[0], arrays[1], digest.hexdigest(), *counts, _description(source, documents))
    sizes = [sum(len(text) for _, text in part) for part in parts]
    table = (np.arange(256) > 0).astype(np.int64)
    return Corpus(
        arrays[0],
        arrays[1],
        digest.hexdigest(),
        *counts,
        _description(source, documents),
        256,
        sizes[0],
        sizes[1],
        table,
    )


def _tokens(source: Source, documents: list[Document], path: Path, end_token: str | None) -> Corpus:
    tokenizer = read_tokenizer(path, end_token)
    encoder = Encoder(tokenizer, str(path))
    parts = _parts(documents, characters=True)
    arrays = [np.concatenate(list(encoder.stream(part))) for part in parts]
    sizes = [sum(len(text) for _, text in part) for part in parts]
    digest = hashlib.sha256(f"{tokenizer.sha256} {tokenizer.end} {len(arrays[0])}".encode())
    for array in arrays:
        digest.update(array.tobytes())
    return Corpus(
        train=arrays[0],
        heldout=arrays[1],
        digest=digest.hexdigest(),
        files_train=len(parts[0]),
        files_heldout=len(parts[1]),
        description=_description(source, documents, f", tokenizer {path}"),
        vocab=tokenizer.vocab,
        bytes_train=sizes[0],
        bytes_heldout=sizes[1],
        token_bytes=tokenizer.token_bytes if encoder.lossless else None,
    )
