"""Bytes to train on: a corpus from files, split into train and held-out, and batches as pure functions.

A token is one byte, so a language model over 256 symbols reads any text and a loss in nats converts to bits per byte
by 1 / ln 2. Without a path the corpus is the source of the running Python's standard library: about 12 MB of text
that every machine has.

Split: by file, so that no file is on both sides. A file is held out when the first 8 bytes of the sha256 of its
relative name are a multiple of 13 (one file in 13, about 7 % of the bytes). The name decides, not the position in the
list: adding a file moves no other. A single file is split by position and its last thirteenth is held out.

Batches: `batch` draws start offsets from numpy's Philox, a counter-based generator keyed by (seed, step). Any batch
can be computed at any time, alone, so a resumed run needs no data state and cutting a batch into parts changes nothing.
Only raw words are used, which numpy keeps stable across versions. `heldout_batch` is fixed.

Shapes: B sequences, S tokens per sequence. Exact: everything here is integer arithmetic.
"""

import glob
import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

HELD_OUT_ONE_IN = 13
_GLOB = frozenset("*?[")
# Below the standard library but not its source; the prefixes are written when a Python is installed, so they differ
# between equal versions.
_NOT_SOURCE = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test")
_MACHINE_MADE = ("_sysconfigdata", "sitecustomize", "usercustomize", "config-")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as bytes, split into train and held-out.

    Attributes:
        train: uint8 array (bytes,), the training files one after the other.
        heldout: uint8 array (bytes,), the held-out files likewise.
        digest: sha256, hex, over the relative names and the contents of all files.
        files_train: number of files in `train`.
        files_heldout: number of files in `heldout`; a single file that is split counts in both.
        description: one phrase that names the source.
    """

    train: np.ndarray
    heldout: np.ndarray
    digest: str
    files_train: int
    files_heldout: int
    description: str


def load_corpus(data: str | None = None) -> Corpus:
    """Read the corpus that `data` names.

    Args:
        data: a text file, a folder (read recursively, hidden entries skipped), a glob pattern ("**" descends), or None
            for the running Python's standard library. Empty files are skipped.

    Returns:
        The corpus; both parts hold at least one byte.

    Raises:
        ValueError: nothing there, nothing in it, a binary file (one with NUL bytes), an unreadable file, or a single
            file too short to split.
    """
    root, paths = _standard_library() if data is None else _find(data)
    named = {path.relative_to(root).as_posix(): path for path in paths}
    files = [(name, text) for name, path in sorted(named.items()) if (text := _read(path))]
    if not files:
        raise ValueError(f"data {data!r} holds no text: every file in it is empty; name files with text")
    source = f"standard library of Python {sysconfig.get_python_version()}" if data is None else data
    return _split(files, f"{source} ({len(files)} file{'s' if len(files) > 1 else ''})")


def batch(split: np.ndarray, seed: int, step: int, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Draw random sequences: a pure function of its arguments.

    Sequence b starts at word b of Philox(key = (seed, step)), modulo the number of possible starts; the modulo's bias
    is below bytes / 2^64. Asking for fewer sequences gives the first ones.

    Args:
        split: uint8 array (bytes,).
        seed: of the run, 0 <= seed < 2^64.
        step: of the run, 0 <= step < 2^64.
        sequences: B.
        length: S.

    Returns:
        tokens and targets, int64 (B, S); targets are the tokens one byte further.

    Raises:
        ValueError: the split is shorter than one sequence and its last target.
    """
    require_sequences(split, "corpus", 1, length)
    key = np.array([seed, step], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(sequences)
    return _gather(split, words % np.uint64(len(split) - length), length)


def heldout_batch(split: np.ndarray, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Cut the fixed evaluation sequences: evenly spread, no token predicted twice.

    Args:
        split: uint8 array (bytes,).
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


def require_sequences(split: np.ndarray, part: str, sequences: int, length: int, source: str = "") -> None:
    """Check that `sequences` sequences of `length` tokens and their last targets fit side by side in `split`.

    Args:
        split: uint8 array (bytes,).
        part: what the split is, for the message, for example "held-out part".
        sequences: how many must fit.
        length: tokens per sequence.
        source: the corpus that the split belongs to, for the message.

    Raises:
        ValueError: they do not fit; the message says what would.
    """
    of = f"{part} ({len(split)} bytes)" + (f" of {source}" if source else "")
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


def _gather(split: np.ndarray, starts: np.ndarray, length: int) -> tuple[Tensor, Tensor]:
    index = starts.astype(np.int64)[:, None] + np.arange(length + 1)
    window = torch.from_numpy(split[index].astype(np.int64))
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def _standard_library() -> tuple[Path, list[Path]]:
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in _walk(root, _NOT_SOURCE, (".", *_MACHINE_MADE)) if path.suffix == ".py"]
    if not paths:
        raise ValueError(
            f"data: this Python keeps no standard-library source in {str(root)!r}; give --data a text "
            "file, folder or glob"
        )
    return root, paths


def _walk(root: Path, skip: tuple[str, ...] = (), skip_prefixes: tuple[str, ...] = (".",)) -> list[Path]:
    """List the files below `root`, without folders named in `skip` and entries that begin with a skipped prefix."""

    def blocked(error: OSError) -> None:
        raise ValueError(
            f"data: folder {error.filename!r} cannot be read ({error.strerror}); change its permissions or leave it out"
        )

    found = []
    for folder, folders, files in os.walk(root, onerror=blocked):
        folders[:] = [name for name in folders if name not in skip and not name.startswith(skip_prefixes)]
        found += [Path(folder, name) for name in files if not name.startswith(skip_prefixes)]
    return found


def _find(data: str) -> tuple[Path, list[Path]]:
    """Resolve a path or glob to (folder that names are relative to, files)."""
    path = Path(data)
    if data and os.path.isdir(path):
        root, found, what = path, _walk(path), "folder"
    elif data and os.path.exists(path):
        root, found, what = path.parent, [path], "file"
    elif set(data) & _GLOB:
        first = next(i for i, part in enumerate(path.parts) if set(part) & _GLOB)
        hits = [Path(hit) for hit in glob.glob(data, recursive=True)]
        root, found, what = Path(*path.parts[:first]), [hit for hit in hits if hit.is_file()], "glob"
    else:
        raise ValueError(
            f"data {data!r} cannot be found; name a text file, a folder or a glob, or leave it out to use "
            "Python's standard library"
        )
    if not found:
        raise ValueError(
            f"data {data!r} is a {what} with no file in it; name a text file, a folder or a glob that matches files"
        )
    return root, found


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise ValueError(f"data: {str(path)!r} is neither a file nor a folder; name text files")
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"data: file {str(path)!r} cannot be read ({error.strerror}); change its permissions or leave it out"
        ) from None
    if b"\0" in text:
        raise ValueError(
            f"data: file {str(path)!r} is binary (it has NUL bytes); name text files only, for example with a glob"
        )
    return text


def _split(files: list[tuple[str, bytes]], description: str) -> Corpus:
    digest = hashlib.sha256()
    for name, text in files:
        # The length keeps (name, contents) pairs from running into each other.
        digest.update(os.fsencode(name) + b"\0" + str(len(text)).encode() + b"\0" + text)
    if len(files) == 1:
        name, text = files[0]
        cut = len(text) - max(1, len(text) // HELD_OUT_ONE_IN)
        if cut == 0:
            raise ValueError(f"data: file {name!r} has 1 byte, too few to hold a part out; use more text")
        train, heldout = [text[:cut]], [text[cut:]]
    else:
        chosen = _held_out([name for name, _ in files])
        train = [text for name, text in files if name not in chosen]
        heldout = [text for name, text in files if name in chosen]
    parts = [np.frombuffer(b"".join(part), dtype=np.uint8) for part in (train, heldout)]
    return Corpus(parts[0], parts[1], digest.hexdigest(), len(train), len(heldout), description)


def _held_out(names: list[str]) -> set[str]:
    """Choose the held-out files; with few files, at least one and never all."""
    ranks = {name: int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") for name in names}
    chosen = {name for name in names if ranks[name] % HELD_OUT_ONE_IN == 0}
    if not chosen:
        return {min(names, key=lambda name: ranks[name])}
    return chosen if len(chosen) < len(names) else chosen - {max(names, key=lambda name: ranks[name])}
