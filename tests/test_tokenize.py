"""Contract of reference.tokenization and of `fourbit tokenize`: tokens stand for exactly their bytes, shards hold every
document once and in order, whatever interrupts the writing, and bad input ends in one sentence.

Oracles: the reader of `token_folders`, which turns tokens back into bytes with json and numpy alone; an uninterrupted
run. Everything is exact.
"""

import dataclasses
import itertools
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folders import arrays, decoded, documents, held_out, json_lines, sides, token_texts

import fourbit
from reference import shard_writer, tokenization
from reference.data import load_corpus
from reference.shards import verify
from reference.tokenization import Encoder, parse_tokenizer, pieces, read_tokenizer, train_bpe
from reference.tokenizing import TokenizeConfig, tokenize

TEXTS = documents(200)


@pytest.fixture(scope="module")
def bpe() -> bytes:
    return train_bpe([(str(i), text.encode()) for i, text in enumerate(TEXTS)], 400)


@pytest.fixture
def config(tmp_path: Path) -> TokenizeConfig:
    path = json_lines(tmp_path / "text.jsonl", TEXTS)
    return TokenizeConfig(tmp_path / "shards", str(path), vocab=400, shard_bytes=3000, progress="hide")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ------------------------------------------------------------------------------------------------ a tokenizer


def test_a_trained_tokenizer_has_every_byte_and_an_end(bpe: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(bpe)
    found, texts = read_tokenizer(path), token_texts(path)
    assert (found.vocab, found.end, found.dtype) == (400, 0, np.dtype("<u2"))
    assert {text for text in texts.values() if len(text) == 1} == {bytes([b]) for b in range(256)}
    assert found.token_bytes.tolist() == [len(texts[i]) for i in range(400)]
    assert train_bpe([(str(i), text.encode()) for i, text in enumerate(TEXTS)], 400) == bpe


@settings(deadline=None, max_examples=150)
@given(st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=4))
def test_tokens_are_the_bytes_of_any_text(
    bpe: bytes, tmp_path_factory: pytest.TempPathFactory, given_: list[str]
) -> None:
    texts = [text.encode(errors="ignore") + b" <|endoftext|>" for text in given_]
    tokenizer = parse_tokenizer(bpe, "bpe")
    path = tmp_path_factory.mktemp("any") / "tokenizer.json"
    path.write_bytes(bpe)
    table, encoder = token_texts(path), Encoder(tokenizer, "bpe")
    found = encoder.encode([(str(i), text) for i, text in enumerate(texts)])
    assert [b"".join(table[i] for i in tokens.tolist()) for tokens in found] == texts
    # a text that spells the end is not one
    assert all(tokens[-1] == 0 and 0 not in tokens[:-1] and tokens.dtype == np.uint16 for tokens in found)
    assert encoder.lossless


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="ab \n\té", max_size=80), st.integers(1, 12))
def test_pieces_are_the_text_cut_before_white_space(text: str, size: int) -> None:
    parts = list(pieces(text, size))
    assert "".join(parts) == text and all(parts)
    for before, after in itertools.pairwise(parts):
        spaces = [i for i in range(size, min(2 * size, len(before + after))) if (before + after)[i].isspace()]
        assert (after[0].isspace() and not before[-1].isspace()) or len(before) == 2 * size or not spaces
        assert size <= len(before) <= 2 * size


def test_a_long_document_has_the_tokens_of_a_short_one(bpe: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2's pattern never crosses from a word to white space, so pieces change no token."""
    text = " ".join(TEXTS).encode()
    encoder = Encoder(parse_tokenizer(bpe, "bpe"), "bpe")
    whole = encoder.encode([("a", text)])[0]
    monkeypatch.setattr(tokenization.pieces, "__defaults__", (100,))
    assert np.array_equal(encoder.encode([("a", text)])[0], whole)


def foreign(kind: str) -> tokenizers.Tokenizer:
    if kind == "words":
        own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
        own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    else:
        own = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0)], unk_id=0))
        own.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    own.add_special_tokens(["<pad>", "</s>"])
    own.enable_truncation(2)
    own.enable_padding(pad_id=2, pad_token="<pad>", length=9)
    own.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s> </s>", special_tokens=[("</s>", own.token_to_id("</s>"))]
    )
    return own


def test_other_tokenizers_tell_no_bytes_and_are_neither_cut_nor_padded() -> None:
    words = parse_tokenizer(foreign("words").to_str().encode(), "words")
    assert (words.vocab, words.end, words.token_bytes) == (4, 3, None)
    encoder = Encoder(words, "words")
    assert encoder.encode([("a", b"the the cat the"), ("b", b"the")])[0].tolist() == [1, 1, 0, 1, 3]
    assert not encoder.lossless
    unigram = parse_tokenizer(foreign("unigram").to_str().encode(), "unigram")
    assert (unigram.vocab, unigram.end) == (5, 4)
    assert parse_tokenizer(foreign("words").to_str().encode(), "words", end_token="the").end == 1


def test_a_byte_level_tokenizer_that_loses_bytes_is_noticed(bpe: bytes) -> None:
    """One that adds a space before the text stands for a byte more."""
    tree = json.loads(bpe)
    tree["pre_tokenizer"]["add_prefix_space"] = True
    encoder = Encoder(parse_tokenizer(json.dumps(tree).encode(), "spaced"), "spaced")
    encoder.encode([("a", b" cat")])
    assert encoder.lossless
    encoder.encode([("a", b"cat"), ("b", b" cat")])
    assert not encoder.lossless
    encoder.encode([("a", b" cat")])
    assert not encoder.lossless


HOSTILE = [
    *(b"", b"{", b"[]", b"{}", b"null", b'{"model": {"vocab": {}}}', b"[" * 100_000, b"\xff\xfe", b'{"model": []}'),
    *(
        b'{"model": {"vocab": {"a": %s}}}' % i
        for i in (b'"x"', b"-1", b"1e400", b"NaN", b"true", b"99999999999", b"1.0")
    ),
    *(b'{"model": {"vocab": %s}}' % v for v in (b"[1, 2]", b"[[]]", b"5", b'"ab"', b"null", b"[[[], 1]]")),
    *(b'{"model": {"vocab": {"a": 0}}, "added_tokens": %s}' % a for a in (b"[{}]", b"5", b'"x"', b'[{"content": []}]')),
    *(b'{"model": {"vocab": {"a": 0}}, "pre_tokenizer": %s}' % p for p in (b"[1]", b"7", b'{"pretokenizers": [1]}')),
]


@pytest.mark.parametrize("contents", HOSTILE, ids=[str(c[:60]) for c in HOSTILE])
def test_what_is_no_tokenizer_is_refused(contents: bytes) -> None:
    with pytest.raises(
        ValueError, match=r"^tokenizer 'x\.json' is no tokenizer; name a tokenizer\.json of the library"
    ):
        parse_tokenizer(contents, "x.json")


def test_tokenizers_that_cannot_be_used_say_why(bpe: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = json.loads(bpe)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (
            tree | {"model": tree["model"] | {"dropout": 0.1}},
            {},
            r"has dropout 0\.1, which draws tokens at random; set",
        ),
        (
            tree | {"added_tokens": []},
            {},
            r"has no token of a known name to end documents with; name one .* --end-token",
        ),
        (tree, {"end_token": "<stop>"}, r"has no token '<stop>'; name one of its tokens with --end-token"),
    ]
    for value, arguments, says in cases:
        with pytest.raises(ValueError, match=says):
            parse_tokenizer(json.dumps(value).encode(), "x.json", **arguments)
    refused = parse_tokenizer(json.dumps(tree | {"model": tree["model"] | {"type": "None"}}).encode(), "x.json")
    with pytest.raises(ValueError, match=r"tokenizer 'x\.json' is refused by the library `tokenizers` \("):
        Encoder(refused, "x.json")
    with pytest.raises(ValueError, match=r"tokenizer '.*' cannot be read \(Is a directory\); name a tokenizer\.json"):
        read_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"needs the library `tokenizers`; pip install 'fourbit\[data\]'"):
        Encoder(refused, "x.json")


# ------------------------------------------------------------------------------------------------ the command


def test_shards_hold_every_document_once_and_in_order(config: TokenizeConfig, tmp_path: Path) -> None:
    index = tokenize(config)
    expected = sides(tmp_path / "text.jsonl", TEXTS)
    stored = json.loads((config.out / "shards.json").read_text())
    for part, texts in expected.items():
        assert decoded(config.out, part) == texts
        assert stored["parts"][part]["bytes"] == sum(map(len, texts)) and stored["parts"][part]["documents"] == len(
            texts
        )
        assert stored["parts"][part]["tokens"] == len(arrays(config.out, part))
        # a file ends with the document that brings its text to the limit
        sizes = [entry["bytes"] for entry in stored["parts"][part]["files"]]
        assert all(size >= 3000 for size in sizes[:-1]) and max(sizes) < 3000 + max(map(len, texts))
    assert len(stored["parts"]["train"]["files"]) > 2
    assert stored["lossless"] is True and (stored["dtype"], stored["vocab"], stored["end"]) == ("uint16", 400, 0)
    assert not (config.out / ".unfinished.json").exists()
    # the bytes that the tokenizer was trained on are the training documents' alone
    alone = train_bpe([("", text) for text in expected["train"]], 400)
    assert (config.out / "tokenizer.json").read_bytes() == alone
    before = contents(config.out)
    assert tokenize(config) == index and contents(config.out) == before  # finished ones stay


def test_files_of_text_and_a_single_one(tmp_path: Path) -> None:
    """As for bytes: by name, and a single file by position, here between characters."""
    (tmp_path / "one.txt").write_text("é" * 40)
    tokenize(TokenizeConfig(tmp_path / "s", str(tmp_path / "one.txt"), vocab=257, progress="hide"))
    assert decoded(tmp_path / "s", "train") == ["é".encode() * 37]
    assert decoded(tmp_path / "s", "heldout") == ["é".encode() * 3]
    (tmp_path / "two.txt").write_text("猫" * 31)  # a thirteenth of 93 bytes begins inside a character
    tokenize(TokenizeConfig(tmp_path / "t", str(tmp_path / "two.txt"), vocab=257, progress="hide"))
    assert decoded(tmp_path / "t", "train") == ["猫".encode() * 28]
    assert decoded(tmp_path / "t", "heldout") == ["猫".encode() * 3]
    for i in range(60):
        (tmp_path / f"many{i}.txt").write_text(f"<{i}>")
    tokenize(TokenizeConfig(tmp_path / "m", str(tmp_path / "many*.txt"), vocab=300, progress="hide"))
    corpus = load_corpus(str(tmp_path / "many*.txt"))
    assert b"".join(decoded(tmp_path / "m", "train")) == corpus.train.tobytes()
    assert b"".join(decoded(tmp_path / "m", "heldout")) == corpus.heldout.tobytes()


def test_a_given_tokenizer_is_kept(config: TokenizeConfig, bpe: bytes, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_bytes(bpe)
    index = tokenize(dataclasses.replace(config, vocab=4096, tokenizer=tmp_path / "own.json"))
    assert (config.out / "tokenizer.json").read_bytes() == bpe and index.vocab == 400
    assert decoded(config.out, "train") == sides(tmp_path / "text.jsonl", TEXTS)["train"]
    (tmp_path / "words.json").write_text(foreign("words").to_str())
    other = dataclasses.replace(config, out=tmp_path / "w", vocab=4096, tokenizer=tmp_path / "words.json")
    index = tokenize(other)
    assert not index.lossless and (index.vocab, index.end) == (4, 3)
    assert load_corpus(str(other.out)).token_bytes is None


def test_a_large_vocabulary_takes_32_bits(config: TokenizeConfig, bpe: bytes, tmp_path: Path) -> None:
    tree = json.loads(bpe)
    tree["added_tokens"].append(tree["added_tokens"][0] | {"id": 70000, "content": "<far>", "special": True})
    (tmp_path / "far.json").write_text(json.dumps(tree))
    index = tokenize(dataclasses.replace(config, vocab=4096, tokenizer=tmp_path / "far.json", end_token="<far>"))
    assert (index.dtype, index.vocab, index.end) == ("uint32", 70001, 70000)
    assert decoded(config.out, "heldout") == sides(tmp_path / "text.jsonl", TEXTS)["heldout"]
    assert load_corpus(str(config.out)).vocab == 70001


class Stop(Exception):
    """An interruption."""


def stopped_after(config: TokenizeConfig, files: int) -> None:
    """Tokenize until that many files are finished."""
    kept = shard_writer.PartWriter._keep

    def keep(part: shard_writer.PartWriter) -> None:
        kept(part)
        if len(list(config.out.glob("*.bin"))) == files:
            raise Stop

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        patch.setattr(shard_writer.PartWriter, "_keep", keep)
        tokenize(config)


def test_a_file_ends_where_the_text_reaches_the_limit(config: TokenizeConfig, tmp_path: Path) -> None:
    """Documents of 100 bytes, three a file; and text that ends after two of three finished files is missed."""
    texts = [f"{i:03d}" + " word" * 19 + "\n?" for i in range(60)]
    assert {len(text.encode()) for text in texts} == {100}
    path = json_lines(tmp_path / "even.jsonl", texts)
    config = dataclasses.replace(config, data=str(path), shard_bytes=300)
    train = len(sides(path, texts)["train"])
    stopped_after(config, 3)
    six = next(n for n in range(60) if sum(not held_out(f"even.jsonl:{i}") for i in range(1, n + 1)) == 6)
    json_lines(path, texts[:six])
    with pytest.raises(ValueError, match=r"the text of '.*train-00002\.bin' has changed since it was tokenized"):
        tokenize(config)
    json_lines(path, texts)
    counts = [shard.documents for shard in tokenize(config).shards["train"]]
    assert counts[:-1] == [3] * ((train - 1) // 3) and sum(counts) == train


def test_a_loss_before_an_interruption_is_not_forgotten(config: TokenizeConfig, bpe: bytes, tmp_path: Path) -> None:
    """Only the first document stands for a byte more than it has."""
    tree = json.loads(bpe)
    tree["pre_tokenizer"]["add_prefix_space"] = True
    (tmp_path / "spaced.json").write_text(json.dumps(tree))
    path = json_lines(tmp_path / "text.jsonl", [TEXTS[0], *(f" {text}" for text in TEXTS[1:])])
    config = dataclasses.replace(config, data=str(path), vocab=4096, tokenizer=tmp_path / "spaced.json")
    stopped_after(config, 2)
    assert not tokenize(config).lossless
    path = json_lines(tmp_path / "text.jsonl", [f" {text}" for text in TEXTS])
    config = dataclasses.replace(config, out=tmp_path / "other")
    stopped_after(config, 2)
    assert tokenize(config).lossless


def killed_after(config: TokenizeConfig, files: int) -> None:
    """Another process tokenizes and kills itself when it has finished this many files."""
    kept = shard_writer.PartWriter._keep

    def keep(self: shard_writer.PartWriter) -> None:
        kept(self)
        if len(list(config.out.glob("*.bin"))) == files:
            (config.out / f".train.bin.{os.getpid()}.tmp").write_bytes(b"half a file")
            os.kill(os.getpid(), signal.SIGKILL)

    shard_writer.PartWriter._keep = keep
    tokenize(config)


@pytest.mark.parametrize("files", [1, 3])
def test_a_killed_run_goes_on_to_the_same_files(config: TokenizeConfig, tmp_path: Path, files: int) -> None:
    process = multiprocessing.get_context("spawn").Process(target=killed_after, args=(config, files))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    there = {path.name: path.stat().st_mtime_ns for path in config.out.glob("*.bin")}
    assert len(there) == files and list(config.out.glob(".*.tmp"))
    assert not (config.out / "shards.json").exists()
    with pytest.raises(ValueError, match=r"holds unfinished shards; give the same fourbit tokenize command again"):
        load_corpus(str(config.out))
    tokenize(config)
    whole = dataclasses.replace(config, out=tmp_path / "whole")
    tokenize(whole)
    assert contents(config.out) == contents(whole.out)
    assert all((config.out / name).stat().st_mtime_ns == when for name, when in there.items())


def test_a_text_that_changed_in_between_is_noticed(config: TokenizeConfig, tmp_path: Path) -> None:
    stopped_after(config, 2)
    assert len(list(config.out.glob("*.bin"))) >= 2 and not list(config.out.glob(".*.tmp"))
    json_lines(tmp_path / "text.jsonl", [*TEXTS[:20], "new", *TEXTS[20:]])
    with pytest.raises(ValueError, match=r"the text of '.*-0000[01]\.bin' has changed since it was tokenized; restore"):
        tokenize(config)
    json_lines(tmp_path / "text.jsonl", TEXTS[:3])
    with pytest.raises(ValueError, match=r"the text of '.*\.bin' has changed since it was tokenized; restore"):
        tokenize(config)
    with pytest.raises(ValueError, match=r"holds other shards: shard_bytes \(3000 there, 99 now\); use their values"):
        tokenize(dataclasses.replace(config, shard_bytes=99))
    json_lines(tmp_path / "text.jsonl", TEXTS)
    tokenize(config)
    assert decoded(config.out, "train") == sides(tmp_path / "text.jsonl", TEXTS)["train"]


def test_a_full_disk_is_told_with_the_file(config: TokenizeConfig) -> None:
    """The system's error names none."""
    config.out.mkdir()
    unfinished = config.out / f".train.bin.{os.getpid()}.tmp"
    unfinished.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as told:
        tokenize(config)
    assert told.value.filename == str(unfinished) and not unfinished.is_symlink()


def test_what_was_finished_is_compared_before_a_run_goes_on(config: TokenizeConfig, bpe: bytes, tmp_path: Path) -> None:
    """A lost file, another tokenizer and a damaged note are noticed; put back, the run goes on to the same files."""
    whole = dataclasses.replace(config, out=tmp_path / "whole")
    tokenize(whole)
    stopped_after(config, 2)
    file, own, note = (config.out / name for name in ("train-00000.bin", "tokenizer.json", ".unfinished.json"))
    kept = file.read_bytes(), own.read_bytes(), note.read_bytes()
    file.unlink()
    with pytest.raises(ValueError, match=r"train-00000\.bin' of shards\.json is missing"):
        tokenize(config)
    file.write_bytes(bytes([kept[0][0] ^ 1]) + kept[0][1:])
    with pytest.raises(ValueError, match=r"train-00000\.bin' has changed since it was written"):
        tokenize(config)
    file.write_bytes(kept[0])
    own.write_bytes(bpe)
    with pytest.raises(ValueError, match=r"tokenizer\.json' is not the one that made the shards beside it"):
        tokenize(config)
    own.write_bytes(kept[1])
    told = json.loads(kept[2])
    for damage in (
        {"shards": {}},
        {"shards": []},
        {"shards": {"train": [5], "heldout": []}},
        {"shards": {"train": [{"x": 1}], "heldout": []}},
        {"shards": {"train": [told["shards"]["train"][0] | {"tokens": 0}], "heldout": []}},
        {"job": 5},
        {"lossless": "no"},
    ):
        note.write_text(json.dumps(told | damage))
        with pytest.raises(ValueError, match=r"unfinished\.json' is damaged; restore it, or name another --out"):
            tokenize(config)
    note.write_bytes(kept[2])
    tokenize(config)
    assert contents(config.out) == contents(whole.out)


def test_shards_below_their_text_are_no_part_of_it(config: TokenizeConfig, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "text.jsonl").write_bytes((tmp_path / "text.jsonl").read_bytes())
    apart = dataclasses.replace(config, data=str(folder))
    below = dataclasses.replace(apart, out=folder / "shards")
    tokenize(apart)
    stopped_after(below, 2)
    tokenize(below)
    assert contents(below.out) == contents(apart.out)
    with pytest.raises(ValueError, match=r"lies in out .* altogether; name another --out"):
        tokenize(dataclasses.replace(apart, out=folder))


def test_a_full_disk_leaves_what_was_finished(config: TokenizeConfig, tmp_path: Path, monkeypatch: Any) -> None:
    def full(part: shard_writer.PartWriter) -> None:
        if part.shards:
            raise OSError(28, "No space left on device", str(config.out))
        kept(part)

    kept = shard_writer.PartWriter._keep
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(shard_writer.PartWriter, "_keep", full)
        tokenize(config)
    assert not list(config.out.glob(".*.tmp")) and not (config.out / "shards.json").exists()
    tokenize(config)
    assert decoded(config.out, "train") == sides(tmp_path / "text.jsonl", TEXTS)["train"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab": 256}, r"vocab 256 cannot be used; use 257 \(256 bytes and an end\) to 16777216"),
        ({"shard_bytes": 0}, r"shard_bytes 0 cannot be used; use 1 or more"),
        ({"train_bytes": -1}, r"train_bytes -1 cannot be used; use 1 or more"),
        ({"end_token": "x"}, r"end_token 'x' does nothing without a tokenizer; leave one of them out"),
        ({"tokenizer": Path("t.json")}, r"vocab 400 does nothing with a tokenizer; leave one of them out"),
        ({"vocab": 4096, "tokenizer": Path("no/t.json")}, r"tokenizer 'no/t\.json' cannot be read \(No such file"),
        ({"data": "no/text"}, r"data 'no/text' cannot be found"),
        ({"text_field": "body"}, r"line 1, has no field 'body', only 'n', 'text'; name the one with the text"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_tokenized(
    config: TokenizeConfig, changes: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "encode", lambda *_: pytest.fail("tokenized"))
    with pytest.raises(ValueError, match=says):
        tokenize(dataclasses.replace(config, **changes))


def test_bad_text_and_folders_are_refused(config: TokenizeConfig, tmp_path: Path) -> None:
    text = tmp_path / "latin"
    text.mkdir()
    for i in range(3):
        (text / f"{i}.txt").write_bytes(b"caf\xe9 au lait " * 3)
    with pytest.raises(
        ValueError, match=r"document '\d\.txt' is not UTF-8 \(invalid continuation byte, byte 3\); conv"
    ):
        tokenize(dataclasses.replace(config, data=str(text)))
    (text / "0.txt").write_bytes("fine\nthé\n".encode() + b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"document '0\.txt' is not UTF-8 \(.*, byte 13\); convert it \(line 3\), or"):
        tokenize(dataclasses.replace(config, data=str(text / "0.txt")))
    (tmp_path / "lines.jsonl").write_text('{"text": "fine"}\nnot\n')
    with pytest.raises(ValueError, match=r"lines\.jsonl', line 2, is not JSON"):
        tokenize(dataclasses.replace(config, out=tmp_path / "o", data=str(tmp_path / "lines.jsonl")))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match=r"empty\.txt' holds no text: every document in it is empty"):
        tokenize(dataclasses.replace(config, out=tmp_path / "p", data=str(tmp_path / "empty.txt")))
    with pytest.raises(ValueError, match=r"out '.*latin' holds files but no shards; name an empty or a new folder"):
        tokenize(dataclasses.replace(config, out=text))


def test_a_mistake_in_the_text_leaves_the_folder_to_another_job(config: TokenizeConfig, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\nnot\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl', line 2, is not JSON"):
        tokenize(dataclasses.replace(config, data=str(bad)))
    tokenize(config)
    whole = dataclasses.replace(config, out=tmp_path / "whole")
    tokenize(whole)
    assert contents(config.out) == contents(whole.out)


def test_two_processes_do_not_write_one_folder(config: TokenizeConfig) -> None:
    import fcntl

    config.out.mkdir()
    descriptor = os.open(config.out, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(ValueError, match=r"is being written by another process; wait for it to end"):
            tokenize(config)
    finally:
        os.close(descriptor)
    tokenize(config)


def test_the_tokenizer_is_trained_on_a_sample_of_large_text(config: TokenizeConfig, tmp_path: Path) -> None:
    seen: list[bytes] = []
    trained = tokenization.train_bpe

    def train(documents: Any, vocab: int) -> bytes:
        kept = list(documents)
        seen.extend(text for _, text in kept)
        return trained(kept, vocab)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reference.tokenizing.train_bpe", train)
        size = (tmp_path / "text.jsonl").stat().st_size
        tokenize(dataclasses.replace(config, train_bytes=size // 4))
    texts = sides(tmp_path / "text.jsonl", TEXTS)["train"]
    assert 0.15 < len(seen) / len(texts) < 0.35 and [text for text in texts if text in seen] == seen


def test_the_command_writes_verifies_and_says_what(config: TokenizeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tokenize", "--out", str(config.out), "--data", str(config.data), "--vocab", "400", "--progress", "show"]
    assert fourbit.main(words) == 0
    out, err = capsys.readouterr()
    tokens, bytes_ = len(arrays(config.out, "train")), sum(map(len, decoded(config.out, "train")))
    assert f"train {tokens} tokens of {len(decoded(config.out, 'train'))} documents, {bytes_ / tokens:.3f} bytes" in out
    assert f"train on it with --data {config.out}\n" in out
    assert "reading: 100%" in err and "training: 100%" in err and "tokenizing: 100%" in err
    assert fourbit.main(["tokenize", "--out", str(config.out), "--verify"]) == 0
    assert "as written" in capsys.readouterr().out
    assert fourbit.main(["tokenize", "--out", str(config.out), "--data", str(config.data)]) == 2
    assert "holds other shards: --vocab (400 there, 4096 now)" in capsys.readouterr().err
    path = next(config.out.glob("train-*.bin"))
    path.write_bytes(path.read_bytes()[:-2] + b"\x01\x00")
    with pytest.raises(ValueError, match=r"\.bin' has changed since it was written"):
        verify(config.out)
