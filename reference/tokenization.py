"""Tokens from text: a byte-level BPE trained here, or any file of the Hugging Face library `tokenizers`.

A tokenizer is its file, a JSON: which tokens there are, which one ends a document, and how many bytes of text each
stands for can be read off it without the library, so training on shards needs none. The library, in the extra `data`,
encodes and trains; it is imported where it is used.

Byte-level BPE (Sennrich, Haddow and Birch, arXiv 1508.07909; Radford et al., "Language Models are Unsupervised
Multitask Learners", 2019) writes each byte as one character of an alphabet of 256, so a token has as many bytes as
characters. The end of a document is a token of its own and stands for none. Text that spells such a token's name is
encoded as the characters that it is.

Exact: the same file and text give the same tokens; a document of more than PIECE characters is encoded in pieces, cut
before white space.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .text import Document

T = TypeVar("T")
END = "<|endoftext|>"
# in this order, the names that a token at the end of a document goes by
ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
PIECE = 1 << 20  # characters: the library keeps more than 100 bytes a token while it encodes
SMALLEST = 257  # tokens: every byte, and the end
LARGEST = 1 << 24
BATCH = 4 << 20  # bytes or characters that are encoded together, on all cores
_PRINTABLE = frozenset([*range(33, 127), *range(161, 173), *range(174, 256)])
_HIDDEN = sorted(set(range(256)) - _PRINTABLE)
# by byte, its character in byte-level BPE: printable Latin-1 is itself, the others follow from 256 on
BYTE_CHARACTERS = tuple(chr(byte if byte in _PRINTABLE else 256 + _HIDDEN.index(byte)) for byte in range(256))
_BYTES = frozenset(BYTE_CHARACTERS)
_CUT = re.compile(r"(?<=\S)\s")


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer's file, and what is read off it.

    Attributes:
        contents: the JSON.
        sha256: of it, hex.
        vocab: tokens are below this.
        end: the token at the end of a document.
        token_bytes: int64 array (vocab,), bytes of text that each token stands for; None where the model's characters
            are not bytes.
    """

    contents: bytes
    sha256: str
    vocab: int
    end: int
    token_bytes: np.ndarray | None

    @property
    def dtype(self) -> np.dtype:
        """Of arrays of tokens: the smaller one of uint16 and uint32 that holds every token, little-endian."""
        return np.dtype("<u2" if self.vocab <= 1 << 16 else "<u4")


def read_tokenizer(path: Path, end_token: str | None = None) -> Tokenizer:
    """Read a tokenizer's file. Errors as `parse_tokenizer`, and ValueError if it cannot be read."""
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"tokenizer {str(path)!r} cannot be read ({error.strerror}); name a tokenizer.json of the library "
            "`tokenizers`"
        ) from None
    return parse_tokenizer(contents, str(path), end_token)


def parse_tokenizer(contents: bytes, name: str, end_token: str | None = None) -> Tokenizer:
    """Read a tokenizer off its JSON.

    Args:
        contents: the file.
        name: of the file, for messages.
        end_token: content of the token at the end of a document; the first of ENDS that was added to the vocabulary if
            left out.

    Raises:
        ValueError: it is none, draws tokens at random, or has no token to end a document with.
    """
    tree, own, added = _read(contents, name)
    ids, dropout = {**own, **added}, tree["model"].get("dropout")
    highest = max(ids.values())
    if dropout:
        raise ValueError(f"tokenizer {name!r} has dropout {dropout}, which draws tokens at random; set it to null")
    end = end_token if end_token is not None else next((word for word in ENDS if word in added), None)
    if end is None or end not in ids:
        told = "no token of a known name to end documents with" if end is None else f"no token {end!r}"
        raise ValueError(f"tokenizer {name!r} has {told}; name one of its tokens with --end-token")
    table = _token_bytes(own, added, highest + 1, ids[end]) if _byte_level(tree) else None
    return Tokenizer(contents, hashlib.sha256(contents).hexdigest(), highest + 1, ids[end], table)


def named(contents: bytes, name: str) -> dict[str, int]:
    """Every token of a tokenizer's file by its name. ValueError if the file is none."""
    _, own, added = _read(contents, name)
    return {**own, **added}


def _read(contents: bytes, name: str) -> tuple[dict[str, Any], dict[str, int], dict[str, int]]:
    """The JSON of a tokenizer's file, the tokens of its model, and those added to them."""
    try:
        tree = json.loads(contents)
        model, added = tree["model"], {entry["content"]: entry["id"] for entry in tree.get("added_tokens") or ()}
        vocab = model["vocab"]
        own = dict(vocab) if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}
        ids = {**own, **added}
        if not ids or not all(type(token) is str and type(i) is int and 0 <= i < LARGEST for token, i in ids.items()):
            raise ValueError
        _byte_level(tree)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise ValueError(
            f"tokenizer {name!r} is no tokenizer; name a tokenizer.json of the library `tokenizers`"
        ) from None
    return tree, own, added


def _byte_level(tree: dict[str, Any]) -> bool:
    """Whether the text goes into the model as bytes, each as a character."""
    step = tree.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    return tree.get("normalizer") is None and any(part.get("type") == "ByteLevel" for part in steps)


def _token_bytes(own: dict[str, int], added: dict[str, int], vocab: int, end: int) -> np.ndarray:
    table = np.zeros(vocab, dtype=np.int64)
    for token, i in own.items():
        table[i] = len(token) if _BYTES.issuperset(token) else len(token.encode(errors="replace"))
    for token, i in added.items():  # written as they are
        table[i] = len(token.encode(errors="replace"))
    table[end] = 0
    return table


class Encoder:
    """Encodes documents with the library. `lossless`: whether the tokens so far stood for exactly their bytes."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        """Load a tokenizer; `name` is its file, for messages. ValueError without the library, or if that refuses it."""
        library = require_library()
        try:
            self._own = library.Tokenizer.from_buffer(tokenizer.contents)
        except Exception as error:  # the library raises nothing more special
            raise ValueError(
                f"tokenizer {name!r} is refused by the library `tokenizers` ({error}); name a file that its version "
                f"{library.__version__} reads"
            ) from None
        self._own.no_truncation()
        self._own.no_padding()
        self._own.encode_special_tokens = True
        if self._own.decoder is None and tokenizer.token_bytes is not None:
            self._own.decoder = library.decoders.ByteLevel()
        self.tokenizer, self.lossless = tokenizer, tokenizer.token_bytes is not None

    def encode(self, documents: list[Document]) -> list[np.ndarray]:
        """The tokens of each document, with one more at its end.

        Args:
            documents: of a few megabytes together, so that all cores encode them.

        Returns:
            Arrays (tokens,) of the tokenizer's dtype.

        Raises:
            ValueError: one that is not UTF-8.
        """
        cut = [list(pieces(_decoded(name, text))) for name, text in documents]
        encoded = self._encoded(piece for own in cut for piece in own)
        end = np.array([self.tokenizer.end], dtype=self.tokenizer.dtype)
        found, table = [], self.tokenizer.token_bytes
        for own, (_, text) in zip(cut, documents, strict=True):
            tokens = np.concatenate([*itertools.islice(encoded, len(own)), end])
            found.append(tokens)
            self.lossless = self.lossless and table is not None and int(table[tokens].sum()) == len(text)
        return found

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens, by the tokenizer's decoder; a file of byte-level BPE without one gets that of bytes."""
        found: str = self._own.decode(tokens, skip_special_tokens=False)
        return found

    def stream(self, documents: Iterable[Document]) -> Iterator[np.ndarray]:
        """The tokens of each document, as `encode`, a few megabytes of them at a time."""
        for group in _batched(documents, lambda document: len(document[1])):
            yield from self.encode(group)

    def _encoded(self, flat: Iterable[str]) -> Iterator[np.ndarray]:
        """The tokens of each piece; of a long document, not of all pieces at a time."""
        for group in _batched(flat, len):
            for encoding in self._own.encode_batch_fast(group, add_special_tokens=False):
                yield np.array(encoding.ids, dtype=self.tokenizer.dtype)


def _batched(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Lists of items of about BATCH together."""
    group: list[T] = []
    held = 0
    for item in items:
        group.append(item)
        held += size_of(item)
        if held >= BATCH:
            yield group
            group, held = [], 0
    if group:
        yield group


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Cut a text into pieces of `size` characters or somewhat more, before white space if there is any in reach."""
    start = 0
    while len(text) - start > size:
        found = _CUT.search(text, start + size, min(len(text), start + 2 * size))
        stop = found.start() if found else min(len(text), start + 2 * size)
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]


def train_bpe(documents: Iterable[Document], vocab: int) -> bytes:
    """Train a byte-level BPE.

    Args:
        documents: UTF-8; read once.
        vocab: number of tokens, the end of a document and 256 bytes included; less text may give fewer.

    Returns:
        The tokenizer's file, a JSON.

    Raises:
        ValueError: no library, a document that is not UTF-8, or `vocab` out of range.
    """
    if not SMALLEST <= vocab <= LARGEST:
        raise ValueError(f"vocab {vocab} cannot be used; use {SMALLEST} (256 bytes and an end) to {LARGEST}")
    library = require_library()
    own = library.Tokenizer(library.models.BPE())
    own.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    own.train_from_iterator((piece for name, text in documents for piece in pieces(_decoded(name, text))), trainer)
    return (own.to_str(pretty=True) + "\n").encode()


def require_library() -> Any:
    """The library `tokenizers`. ValueError without it."""
    try:
        import tokenizers
    except ImportError:
        raise ValueError("a tokenizer needs the library `tokenizers`; pip install 'fourbit[data]'") from None
    return tokenizers


def _decoded(name: str, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"data: document {name!r} is not UTF-8 ({error.reason}, byte {error.start}); convert it (line {line}), or "
            "train on bytes without a tokenizer"
        ) from None
