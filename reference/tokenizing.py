"""`fourbit tokenize`: text to tokenized shards, for `fourbit train --data FOLDER`.

The text is read once to check and count it, once to train a tokenizer unless one is given, and once to encode it. The
index is written last, so half a folder is never taken for a whole one; the same command goes on after an interruption.
Which documents are held out, and in which order they lie, is as `text` says; each ends with the end token.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from tqdm import tqdm

from .checkpoint import is_leftover, make_folder, write_atomic, write_json
from .flags import named_flags
from .shard_writer import PartWriter
from .shards import INDEX, PARTS, TOKENIZER, UNFINISHED, Index, read_index, verify
from .text import Advance, Document, Source, chooser, cut_of, find
from .token_job import Job, other_job, resumed
from .tokenization import LARGEST, SMALLEST, Encoder, Tokenizer, parse_tokenizer, read_tokenizer, train_bpe

SidedDocument = tuple[bool, str, bytes]  # held out or not, name, text


@dataclass(frozen=True)
class TokenizeConfig:
    """Train a tokenizer, or take one, and write tokenized shards; the same command in the same folder goes on."""

    out: Path
    """Folder for the shards; made if missing."""
    data: str | None = None
    """Text file, JSON Lines, parquet, folder or glob; Python's own standard library if left out."""
    vocab: int = 4096
    """Tokens of the byte-level BPE that is trained, the end of a document and all 256 bytes included."""
    tokenizer: Path | None = None
    """Tokenizer file of the library `tokenizers` to use instead."""
    end_token: str | None = None
    """Token of that file to end documents with; found by its usual names if left out."""
    text_field: str = "text"
    """Field of JSON Lines, or column of parquet, with the text."""
    shard_bytes: int = 500_000_000
    """Bytes of text after which a file of tokens is closed; an interrupted run loses less than one."""
    train_bytes: int = 1_000_000_000
    """Bytes of text, about, to train the tokenizer on: a sample of the training documents, or all of them."""
    verify: bool = False
    """Read every byte of the finished shards in `out` and compare; write nothing."""
    progress: Literal["auto", "show", "hide"] = "auto"
    """Progress bar; auto shows it on a terminal."""


@dataclass(frozen=True)
class _Plan:
    """What a first reading of the text found: how many documents, and which are held out; None: the one is split."""

    source: Source
    documents: int
    held_out: Callable[[str], bool] | None

    def sided(self, advance: Advance) -> Iterator[SidedDocument]:
        """The documents with their sides."""
        for name, text in self.source.documents(advance):
            if self.held_out is None:
                cut = cut_of(name, text, characters=True)
                yield from ((False, name, text[:cut]), (True, name, text[cut:]))
            else:
                yield self.held_out(name), name, text


def tokenize(config: TokenizeConfig) -> Index:
    """Write the shards that `config` describes, or finish them; finished ones are left as they are.

    Returns:
        Their index.

    Raises:
        ValueError: a bad argument, text, tokenizer or folder. OSError: the disk refuses; the same call goes on later.
    """
    given, job = _check(config)
    source = _without(find(config.data, config.text_field), config.out)
    make_folder(config.out)
    with _locked(config.out):
        if (config.out / INDEX).exists():
            return _finished(config.out, job)
        state = resumed(config.out, job)
        with _bar(config, source, "reading") as advance:
            plan = _planned(source, advance)
        if given is None:
            with _bar(config, source, "training") as advance:
                given = _trained(config, plan, advance)
        state.require(given)
        state.tokenizer = given.sha256
        write_atomic(config.out / TOKENIZER, given.contents)
        encoder = Encoder(given, str(config.out / TOKENIZER))
        with _bar(config, source, "tokenizing") as advance:
            _write(config, state, plan, encoder, advance)
        count = f"{plan.documents} document{'s' * (plan.documents > 1)}"
        index = Index(
            source=f"{source.label}, {count}",
            dtype=given.dtype.name,
            vocab=given.vocab,
            end=given.end,
            tokenizer_sha256=given.sha256,
            lossless=encoder.lossless,
            shards={part: tuple(state.shards[part]) for part in PARTS},
            job=job,
        )
        write_json(config.out / INDEX, index.as_json())
        _tidy(config.out)
    return index


def _check(config: TokenizeConfig) -> tuple[Tokenizer | None, dict[str, Any]]:
    """The given tokenizer, and the job: what decides the shards, as JSON. Raises ValueError for a bad argument."""
    default = {f.name: f.default for f in dataclasses.fields(TokenizeConfig)}
    rules = [
        ("vocab", SMALLEST <= config.vocab <= LARGEST, f"use {SMALLEST} (256 bytes and an end) to {LARGEST}"),
        ("shard_bytes", config.shard_bytes >= 1, "use 1 or more, such as 500000000"),
        ("train_bytes", config.train_bytes >= 1, "use 1 or more, such as 1000000000"),
        ("progress", config.progress in ("auto", "show", "hide"), "use 'auto', 'show' or 'hide'"),
    ]
    for name, good, remedy in rules:
        if not good:
            raise ValueError(f"{name} {getattr(config, name)!r} cannot be used; {remedy}")
    idle = ("vocab", "train_bytes") if config.tokenizer is not None else ("end_token",)
    for name in idle:
        if getattr(config, name) != default[name]:
            told = "with" if config.tokenizer is not None else "without"
            raise ValueError(f"{name} {getattr(config, name)!r} does nothing {told} a tokenizer; leave one of them out")
    given = None if config.tokenizer is None else read_tokenizer(config.tokenizer, config.end_token)
    names = ("data", "end_token", "text_field", "shard_bytes", *(() if given else ("vocab", "train_bytes")))
    return given, {name: getattr(config, name) for name in names} | ({"tokenizer": given.sha256} if given else {})


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing the folder; the system lifts the lock when this process dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"out {str(folder)!r} is being written by another process; wait for it to end, or name another folder"
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _bar(config: TokenizeConfig, source: Source, label: str) -> Iterator[Advance]:
    hidden = {"auto": None, "show": False, "hide": True}[config.progress]
    with tqdm(total=source.size, desc=label, unit="B", unit_scale=True, disable=hidden) as bar:
        yield bar.update


def _finished(folder: Path, job: dict[str, Any]) -> Index:
    index = read_index(folder)
    if index.job != job:
        raise other_job(folder, index.job, job)
    _tidy(folder)
    return index


def _without(source: Source, out: Path) -> Source:
    """The source without what lies in `out`, which may be below the text. ValueError if nothing is left."""
    inside = out.resolve()
    files = tuple((name, path) for name, path in source.files if inside not in path.resolve().parents)
    if not files:
        raise ValueError(f"data {source.label!r} lies in out {str(out)!r} altogether; name another --out")
    return dataclasses.replace(source, files=files)


def _tidy(folder: Path) -> None:
    for path in [folder / UNFINISHED, *filter(is_leftover, folder.iterdir())]:
        path.unlink(missing_ok=True)


def _planned(source: Source, advance: Advance) -> _Plan:
    """Read and check every document. ValueError if there is none."""
    count = 0
    last: Document | None = None

    def names() -> Iterator[str]:
        nonlocal count, last
        for last in source.documents(advance):
            count += 1
            yield last[0]

    held_out = chooser(names())
    if last is None:
        raise ValueError(f"data {source.label!r} holds no text: every document in it is empty; name files with text")
    if count == 1:
        cut_of(*last, characters=True)
    return _Plan(source, count, held_out if count > 1 else None)


def _trained(config: TokenizeConfig, plan: _Plan, advance: Advance) -> Tokenizer:
    """The tokenizer of an interrupted run, or one trained on the training documents, or on some of them.

    A document is among them if a hash of its name, below 1, is below train_bytes / bytes of the files.
    """
    path = config.out / TOKENIZER
    if path.exists():
        return read_tokenizer(path)
    share = config.train_bytes / max(1, plan.source.size)

    def taken(name: str) -> bool:
        return (
            share >= 1 or int.from_bytes(hashlib.sha256(b"bpe" + os.fsencode(name)).digest()[:8], "big") < share * 2**64
        )

    documents = ((name, text) for held, name, text in plan.sided(advance) if not held and taken(name))
    return parse_tokenizer(train_bpe(documents, config.vocab), str(path))


def _write(config: TokenizeConfig, state: Job, plan: _Plan, encoder: Encoder, advance: Advance) -> None:
    """Encode the documents into the files of both parts."""
    encoder.lossless = encoder.lossless and state.lossless

    def finished() -> None:
        state.lossless = encoder.lossless
        state.save()

    writers = [
        PartWriter(config.out, part, config.shard_bytes, encoder, state.shards[part], finished) for part in PARTS
    ]
    try:
        for held, name, text in plan.sided(advance):
            writers[held].add(name, text)
        for writer in writers:
            writer.close()
    finally:
        for writer in writers:
            writer.abandon()


@named_flags(TokenizeConfig)
def main(argv: list[str]) -> int:
    """Run `fourbit tokenize` with `argv`; return the exit code 0, or raise as `tokenize` and `verify` do."""
    config = tyro.cli(TokenizeConfig, args=argv, prog="fourbit tokenize", config=(tyro.conf.FlagCreatePairsOff,))
    if config.verify:
        size = sum(path.stat().st_size for path in config.out.glob("*.bin"))
        hidden = {"auto": None, "show": False, "hide": True}[config.progress]
        with tqdm(total=size, desc="verifying", unit="B", unit_scale=True, disable=hidden) as bar:
            index = verify(config.out, bar.update)
        done = "as written"
    else:
        index, done = tokenize(config), "finished"
    parts = "; ".join(
        f"{part} {index.total(part, 'tokens')} tokens of {index.total(part, 'documents')} documents, "
        f"{index.total(part, 'bytes') / index.total(part, 'tokens'):.3f} bytes a token"
        for part in PARTS
    )
    print(f"{config.out} {done}: vocabulary {index.vocab}, {index.dtype}; {parts}")
    print(f"train on it with --data {config.out}")
    return 0
