"""Contract of reference.shards and of training on tokens: maps read like one array, a folder that is not what was
written is refused in one sentence, batches are those of the same tokens in memory, and bits per byte count the bytes
of the tokens that were predicted.

Oracles: numpy on the files, the reader of `token_folders`, and a model whose loss is known. Everything is exact but one
sum of floats, whose tolerance is derived there.
"""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folders import arrays, documents, json_lines, token_texts
from torch import nn

import fourbit
from numerics import ops
from reference import checkpoint
from reference import train as trainer
from reference.config import TrainConfig
from reference.corpus import batch, epoch_batch, heldout_batch
from reference.data import load_corpus
from reference.log import read_log
from reference.model import ModelConfig
from reference.shards import read_shards, sampled_digest, sampled_places, verify
from reference.token_maps import Tokens
from reference.tokenizing import TokenizeConfig, tokenize
from reference.train import train

Change = Callable[[Path], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of several files, never changed."""
    folder = tmp_path_factory.mktemp("made")
    path = json_lines(folder / "text.jsonl", documents(300, words=120))
    tokenize(TokenizeConfig(folder / "shards", str(path), vocab=300, shard_bytes=20_000, progress="hide"))
    return folder / "shards"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(made, tmp_path / "shards"))


# ------------------------------------------------------------------------------------------------ reading


def shards_of(folder: Path, sizes: list[int], dtype: str) -> tuple[Tokens, np.ndarray]:
    """Files of these many tokens, and all tokens together."""
    whole = np.random.default_rng(sum(sizes)).integers(0, 50_000, sum(sizes)).astype(dtype)
    paths = [folder / f"train-{number:05d}.bin" for number in range(len(sizes))]
    for path, tokens in zip(paths, np.split(whole, np.cumsum(sizes)[:-1]), strict=True):
        tokens.tofile(path)
    return Tokens(paths, np.dtype(dtype), 50_000), whole


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.sampled_from(["<u2", "<u4"]), st.data())
def test_files_read_like_one_array(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], dtype: str, data: st.DataObject
) -> None:
    tokens, whole = shards_of(tmp_path_factory.mktemp("maps"), sizes, dtype)
    assert len(tokens) == len(whole) and tokens.dtype == np.dtype(dtype)
    bound = st.none() | st.integers(-len(whole) - 2, len(whole) + 2)
    for _ in range(5):
        part = slice(data.draw(bound), data.draw(bound))
        assert tokens[part].dtype == np.dtype(dtype) and tokens[part].tolist() == whole[part].tolist()
    with pytest.raises(ValueError, match="step 2 cannot be used; take tokens one after the other"):
        tokens[::2]


@pytest.mark.parametrize("draw", [batch, epoch_batch])
def test_batches_are_those_of_the_same_tokens_in_memory(made: Path, draw: type[batch]) -> None:
    corpus = read_shards(made)
    for part, split in (("train", corpus.train), ("heldout", corpus.heldout)):
        memory = arrays(made, part)
        for seed, step in ((0, 1), (3, 2), (3, 10_000)):
            for one, two in zip(draw(split, seed, step, 9, 33), draw(memory, seed, step, 9, 33), strict=True):
                assert one.dtype == torch.int64 and torch.equal(one, two)
    for one, two in zip(
        heldout_batch(corpus.heldout, 8, 33), heldout_batch(arrays(made, "heldout"), 8, 33), strict=True
    ):
        assert torch.equal(one, two)


@pytest.mark.parametrize("draw", [batch, epoch_batch])
def test_a_disk_is_told_of_this_step_before_it_is_read_and_then_of_the_next(
    draw: type[batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, whole = shards_of(tmp_path, [700, 1, 4000], "<u2")
    told: list[Any] = []
    hint, read = Tokens.will_need, Tokens.__getitem__
    monkeypatch.setattr(Tokens, "will_need", lambda self, *a: (told.append((a[0].tolist(), a[1])), hint(self, *a)))
    monkeypatch.setattr(Tokens, "__getitem__", lambda self, part: (told.append(part), read(self, part))[1])
    rows = slice(2, 5)
    assert torch.equal(draw(tokens, 3, 7, 6, 400, rows)[0], draw(whole, 3, 7, 6, 400, rows)[0])
    assert [type(one) for one in told] == [tuple, slice, slice, slice, tuple]
    for step, (starts, count) in ((7, told[0]), (8, told[-1])):
        assert count == 401
        own = torch.stack([torch.from_numpy(whole[i : i + 400].astype(np.int64)) for i in starts])
        assert torch.equal(own, draw(whole, 3, step, 6, 400, rows)[0])


def test_bytes_keep_their_batches() -> None:
    """What fancy indexing of the whole split gives, as batches were drawn before there were tokens."""
    split = np.random.default_rng(2).integers(0, 256, 10_007).astype(np.uint8)
    for seed, step, sequences, length in ((0, 1, 4, 128), (7, 300, 16, 1), (2**32 - 1, 9, 3, 10_006)):
        words = np.random.Philox(key=np.array([seed, step], dtype=np.uint64)).random_raw(sequences)
        index = (words % np.uint64(len(split) - length)).astype(np.int64)[:, None] + np.arange(length + 1)
        tokens, targets = batch(split, seed, step, sequences, length)
        window = torch.from_numpy(split[index].astype(np.int64))
        assert torch.equal(tokens, window[:, :-1]) and torch.equal(targets, window[:, 1:])
        assert tokens.is_contiguous() and targets.is_contiguous()


def test_a_corpus_tells_what_the_index_does(made: Path) -> None:
    corpus, index = read_shards(made), json.loads((made / "shards.json").read_text())
    for part, files, size in (
        ("train", corpus.files_train, corpus.bytes_train),
        ("heldout", corpus.files_heldout, corpus.bytes_heldout),
    ):
        assert (files, size) == (index["parts"][part]["documents"], index["parts"][part]["bytes"])
    assert corpus.vocab == 300 and len(index["parts"]["train"]["files"]) > 2
    texts = token_texts(made / "tokenizer.json")
    assert corpus.token_bytes.tolist() == [len(texts[i]) for i in range(300)]
    assert load_corpus(str(made)).digest == load_corpus(str(made / "shards.json")).digest == corpus.digest
    assert corpus.about()["tokens_train"] == len(arrays(made, "train"))


def test_the_digest_is_of_the_tokens_and_not_of_the_place(folder: Path, made: Path) -> None:
    assert read_shards(folder).digest == read_shards(made).digest
    edit(folder, lambda tree: tree.update(lossless=False))
    assert read_shards(folder).digest != read_shards(made).digest


def test_samples_lie_in_the_file_and_reach_both_ends(tmp_path: Path) -> None:
    for size in (1, 4096, 64 * 4096, 64 * 4096 + 2, 10**6 + 2, 10**9):
        places = sampled_places(size)
        assert places[0] == 0 and places == sorted(set(places)) and places[-1] + 4096 >= size > places[-1]
        assert all(place % 4 == 0 for place in places[:-1]) and places[-1] % 2 == size % 2 * (size > 4096)
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(10**6))
    clean = sampled_digest(path)
    for at in (0, 4095, 10**6 - 1):
        changed = bytearray(10**6)
        changed[at] = 1
        path.write_bytes(changed)
        assert sampled_digest(path) != clean
    path.write_bytes(bytes(10**6 + 1))
    assert sampled_digest(path) != clean


# ------------------------------------------------------------------------------------------------ damage


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    tree = json.loads((folder / "shards.json").read_text())
    change(tree)
    (folder / "shards.json").write_text(json.dumps(tree))


def first(folder: Path) -> Path:
    return folder / "train-00000.bin"


def resized(by: int) -> Change:
    def change(folder: Path) -> None:
        contents = first(folder).read_bytes()
        first(folder).write_bytes(contents[:by] if by < 0 else contents + bytes(by))

    return change


def indexed(**entries: Any) -> Change:
    return lambda folder: edit(folder, lambda tree: tree.update(entries))


def entry(**entries: Any) -> Change:
    return lambda folder: edit(folder, lambda tree: tree["parts"]["train"]["files"][0].update(entries))


def with_token(value: int, at: int) -> Change:
    """One token of a file changed, and the digests with it: a file that was written so."""

    def change(folder: Path) -> None:
        tokens = np.fromfile(first(folder), "<u2")
        tokens[at] = value
        tokens.tofile(first(folder))
        entry(sampled=sampled_digest(first(folder)))(folder)

    return change


def dropped(folder: Path) -> None:
    edit(folder, lambda tree: tree["parts"]["train"].pop("files"))


DAMAGE: list[tuple[str, Change, str]] = [
    (
        "truncated",
        resized(-2),
        r"train-00000\.bin' has \d+ bytes, not the \d+ of \d+ tokens in uint16: it is truncated",
    ),
    (
        "odd",
        resized(-1),
        r"train-00000\.bin' has \d+ bytes, not the \d+ .*: it is truncated or of another dtype; restore",
    ),
    (
        "longer",
        resized(4),
        r"train-00000\.bin' has \d+ bytes, not the \d+ .*: it is longer or of another dtype; restore",
    ),
    ("empty", lambda f: first(f).write_bytes(b""), r"train-00000\.bin' has 0 bytes, not the"),
    ("missing", lambda f: first(f).unlink(), r"train-00000\.bin' of shards\.json is missing; restore it, or make"),
    ("a folder", lambda f: (first(f).unlink(), first(f).mkdir()), r"train-00000\.bin' of shards\.json is missing"),
    (
        "other width",
        indexed(dtype="uint32"),
        r"train-00000\.bin' has \d+ bytes, not the \d+ of \d+ tokens in uint32: it",
    ),
    ("other dtype", indexed(dtype="int16"), r"shards\.json' has dtype 'int16', not uint16 or uint32; restore it, or"),
    ("no dtype", indexed(dtype=None), r"shards\.json' has dtype None, not uint16 or uint32"),
    (
        "changed",
        lambda f: first(f).write_bytes(bytes(first(f).stat().st_size)),
        r"bin' has changed since it was written",
    ),
    ("beyond", with_token(300, 7), r"train-00000\.bin' has token 300 at 7, beyond its vocabulary of 300; restore it"),
    ("version", indexed(version=2), r"shards\.json' has version 2, this fourbit reads 1; make the folder again with"),
    (
        "format",
        indexed(format="other"),
        r"shards\.json' has format 'other', not 'fourbit shards'; name a folder of shard",
    ),
    ("vocab", indexed(vocab=299), r"index '.*' has vocab 299 and end 0, its tokenizer 300 and 0; restore"),
    ("end", indexed(end=5), r"index '.*' has vocab 300 and end 5, its tokenizer 300 and 0; restore"),
    ("large", indexed(vocab=70_000), r"shards\.json' has vocab 70000 and end 0, which uint16 cannot hold; restore"),
    ("no end", indexed(end=300), r"shards\.json' has vocab 300 and end 300, which uint16 cannot hold"),
    (
        "words",
        indexed(vocab="300"),
        r"shards\.json' is damaged \(vocab, end, source or tokenizer is of another kind\); rest",
    ),
    ("maybe", indexed(lossless=1), r"shards\.json' is damaged \(lossless, job or files is of another kind\)"),
    ("job", indexed(job={"end_token": []}), r"shards\.json' is damaged \(lossless, job or files is of another kind\)"),
    ("no job", indexed(job=None), r"shards\.json' is damaged"),
    ("parts", indexed(parts={"train": {"files": []}}), r"shards\.json' is damaged \(entry 'heldout' is missing\)"),
    (
        "dropped",
        dropped,
        r"shards\.json' is damaged \(entry 'files' is missing\); restore it, or make the folder again",
    ),
    ("totals", entry(bytes=7), r"shards\.json' is damaged \(its entries contradict each other\)"),
    ("more", entry(more=7), r"shards\.json' is damaged \(.*unexpected keyword argument 'more'\)"),
    ("none", entry(tokens=0), r"shards\.json' is damaged \(an entry of a file is damaged\)"),
    ("float", entry(tokens=7.0), r"shards\.json' is damaged \(an entry of a file is damaged\)"),
    ("outside", entry(file="../train-00000.bin"), r"shards\.json' is damaged \(an entry of a file is damaged\)"),
    ("not JSON", lambda f: (f / "shards.json").write_bytes(b'{"format"'), r"shards\.json' is damaged, or of something"),
    ("a list", lambda f: (f / "shards.json").write_bytes(b"[]"), r"shards\.json' is damaged, or of something else"),
    (
        "tokenizer",
        lambda f: (f / "tokenizer.json").write_bytes(b"{}"),
        r"tokenizer '.*tokenizer\.json' is not the one of",
    ),
    (
        "no tokenizer",
        lambda f: (f / "tokenizer.json").unlink(),
        r"tokenizer '.*tokenizer\.json' is not the one of shards",
    ),
]


@pytest.mark.parametrize(("change", "says"), [case[1:] for case in DAMAGE], ids=[case[0] for case in DAMAGE])
def test_damaged_shards_are_refused_in_one_sentence(folder: Path, change: Change, says: str) -> None:
    change(folder)
    with pytest.raises(ValueError, match=says) as caught:
        load_corpus(str(folder))
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70_000) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@settings(deadline=None, max_examples=150)
@given(value=JSON, data=st.data())
def test_any_entry_may_be_anything(made: Path, tmp_path_factory: pytest.TempPathFactory, value: Any, data: Any) -> None:
    """An index with one entry replaced is refused, or gives the same tokens (a source may have any name)."""
    tree = json.loads((made / "shards.json").read_text())
    spot, name = None, data.draw(st.sampled_from(sorted(tree)))
    here = tree
    while spot is None or (isinstance(here[name], (dict, list)) and here[name] and data.draw(st.booleans())):
        here = here if spot is None else here[name]
        name = spot = data.draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
    here[name] = value
    folder = tmp_path_factory.mktemp("any") / "shards"
    folder.mkdir()
    for path in made.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "shards.json").unlink()
    (folder / "shards.json").write_text(json.dumps(tree))
    try:
        corpus = read_shards(folder)
    except ValueError as error:
        assert str(folder) in str(error) and "\n" not in str(error)
    else:
        assert corpus.train[:].tolist() == arrays(made, "train").tolist()


def test_a_token_that_no_sample_shows_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    tokens, whole = shards_of(tmp_path, [400_000, 10], "<u2")
    hidden = next(i for i in range(400_000) if not any(at <= 2 * i < at + 4096 for at in sampled_places(800_000)))
    whole[hidden] = 50_000
    whole[:400_000].tofile(tmp_path / "train-00000.bin")
    assert len(tokens[:hidden]) == hidden
    with pytest.raises(
        ValueError, match=rf"train-00000\.bin' has token 50000 at {hidden}, beyond its vocabulary of 50"
    ):
        tokens[hidden - 5 : hidden + 5]


def test_verify_finds_what_samples_miss(folder: Path, made: Path) -> None:
    read: list[int] = []
    verify(made, read.append)
    assert sum(read) == sum(path.stat().st_size for path in made.glob("*.bin"))
    tokens = np.fromfile(first(folder), "<u2")
    tokens[7] ^= 1
    tokens.tofile(first(folder))
    entry(sampled=sampled_digest(first(folder)))(folder)
    read_shards(folder)  # the sampled digest was forged
    with pytest.raises(ValueError, match=r"train-00000\.bin' has changed since it was written; restore it, or make"):
        verify(folder)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"tokenizer": Path("t.json")},
            r"tokenizer 't\.json' does nothing here: data '.*' is tokenized already; leave",
        ),
        ({"text_field": "body"}, r"text_field 'body' does nothing here: data '.*' is tokenized already; leave it out"),
    ],
)
def test_arguments_of_text_do_nothing_for_shards(made: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load_corpus(str(made), **arguments)


# ------------------------------------------------------------------------------------------------ training


class Uniform(nn.Module):
    """A model that knows nothing: every token of 300 has the same logit, so a loss is ln 300."""

    batches: list[torch.Tensor]

    def __init__(self, config: ModelConfig, *_: Any) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, draw: Any, grains: int = 1) -> SimpleNamespace:
        if draw.step >= 0:
            self.batches.append(tokens)
        ce = nn.functional.cross_entropy(self.gain.expand(targets.numel(), 300) * 1.0, targets.flatten())
        return SimpleNamespace(ce=ce, balance=self.gain.sum() * 0, total=ce)


@pytest.fixture
def uniform(monkeypatch: pytest.MonkeyPatch) -> type[Uniform]:
    class Fresh(Uniform):
        pass

    Fresh.batches = []
    monkeypatch.setattr(trainer, "Transformer", Fresh)
    return Fresh


@pytest.fixture
def config(tmp_path: Path, made: Path) -> TrainConfig:
    model = ModelConfig(vocab=300, dim=32, depth=6, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=16)
    return TrainConfig(
        out=tmp_path / "run",
        data=str(made),
        steps=6,
        warmup=0,
        eval_every=3,
        eval_sequences=8,
        checkpoint_every=3,
        monitor_every=0,
        model=model,
        progress="hide",
    )


def test_bits_per_byte_are_of_the_bytes_that_were_predicted(
    config: TrainConfig, uniform: type[Uniform], made: Path, tmp_path: Path
) -> None:
    train(config, ops)
    _, targets = heldout_batch(arrays(made, "heldout"), 8, 16)
    texts = token_texts(made / "tokenizer.json")
    size = sum(len(texts[i]) for i in targets.flatten().tolist())
    assert size != targets.numel() and 0 in targets  # tokens are not bytes, and there is an end among them
    for record in read_log(config.out / "log.jsonl"):
        if "heldout_ce" in record:
            assert record["heldout_bits_per_byte"] == record["heldout_ce"] / math.log(2) / (size / targets.numel())
            # all tokens are equally likely, so this is known; FP32 gives ln 300 to half an ulp, 2^-22 of 5.7
            assert record["heldout_bits_per_byte"] == pytest.approx(8 * 16 * math.log2(300) / size, rel=2**-22)
    meta = json.loads((config.out / "meta.json").read_text())["corpus"]
    assert meta["tokens_heldout"] == len(arrays(made, "heldout")) and meta["vocab"] == 300
    stored = json.loads((config.out / "config.json").read_text())
    assert not {"order", "tokenizer", "end_token", "text_field"} & set(stored)


def test_without_the_bytes_of_tokens_the_part_tells_their_mean(
    config: TrainConfig, uniform: type[Uniform], folder: Path
) -> None:
    edit(folder, lambda tree: tree.update(lossless=False))
    train(dataclasses.replace(config, data=str(folder)), ops)
    part = json.loads((folder / "shards.json").read_text())["parts"]["heldout"]
    record = read_log(config.out / "log.jsonl")[-1]
    expected = record["heldout_ce"] / math.log(2) / (part["bytes"] / part["tokens"])
    assert record["heldout_bits_per_byte"] == expected


def test_ends_of_documents_alone_are_refused(made: Path) -> None:
    corpus = read_shards(made)
    with pytest.raises(ValueError, match="stand for no text, only for ends of documents; use more text"):
        corpus.bytes_per_token(torch.zeros(2, 3, dtype=torch.int64))
    assert corpus.bytes_per_token(torch.tensor([[0, 1]])) == 0.5


@pytest.mark.parametrize("order", ["random", "epoch"])
def test_a_run_reads_its_order_and_resumes_in_it(
    config: TrainConfig, uniform: type[Uniform], made: Path, tmp_path: Path, order: Any
) -> None:
    config = dataclasses.replace(config, order=order)
    draw = {"random": batch, "epoch": epoch_batch}[order]
    train(config, ops)
    expected = [draw(arrays(made, "train"), 0, step, 4, 16)[0] for step in range(1, 7)]
    assert all(map(torch.equal, uniform.batches, expected)) and len(uniform.batches) == 6
    # as if it had been killed in step 5
    last = checkpoint.checkpoint_path(config.out, 6)
    whole = last.read_bytes()
    last.unlink()
    uniform.batches.clear()
    assert train(config, ops).resumed_from == 3
    assert all(map(torch.equal, uniform.batches, expected[3:])) and last.read_bytes() == whole
    other: Any = {"random": "epoch", "epoch": "random"}[order]
    with pytest.raises(ValueError, match=r"another configuration: order \("):
        train(dataclasses.replace(config, order=other), ops)


def test_other_tokens_do_not_continue_a_run(config: TrainConfig, uniform: type[Uniform], folder: Path) -> None:
    config = dataclasses.replace(config, data=str(folder))
    train(config, ops)
    checkpoint.checkpoint_path(config.out, 6).unlink()
    edit(folder, lambda tree: tree["parts"]["train"]["files"][0].update(sha256="0" * 64))
    with pytest.raises(ValueError, match=r"data '.*' has changed since .*checkpoint-00000003.* was written"):
        train(config, ops)


def test_text_with_a_tokenizer_trains_like_its_shards(
    config: TrainConfig, uniform: type[Uniform], made: Path, tmp_path: Path
) -> None:
    text = str(made.parent / "text.jsonl")
    corpus = load_corpus(text, made / "tokenizer.json")
    assert corpus.train.dtype == np.uint16
    for part, split in (("train", corpus.train), ("heldout", corpus.heldout)):
        assert split.tolist() == arrays(made, part).tolist()
    shards = read_shards(made)
    assert (corpus.bytes_train, corpus.bytes_heldout) == (shards.bytes_train, shards.bytes_heldout)
    assert np.array_equal(corpus.token_bytes, shards.token_bytes)
    words = ["train", "--out", str(tmp_path / "two"), "--data", text, "--tokenizer", str(made / "tokenizer.json")]
    words += ["--model.vocab", "300", "--steps", "2", "--warmup", "0", "--model.sequence", "16", "--progress", "hide"]
    assert fourbit.main(words) == 0
    stored = json.loads((tmp_path / "two" / "config.json").read_text())
    assert stored["tokenizer"] == str(made / "tokenizer.json") and "end_token" not in stored
    assert fourbit.main([*words, "--end-token", "nope"]) == 2


def test_tokens_of_other_text_have_another_digest(made: Path, tmp_path: Path) -> None:
    """Of as many tokens, too."""
    path = tmp_path / "a.txt"
    found = set()
    for text in ("the cat " * 20, "cat the " * 20, "the cat " * 20):
        path.write_text(text)
        found.add(load_corpus(str(path), made / "tokenizer.json").digest)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"model": ModelConfig(sequence=16)},
            r"model\.vocab 256 is smaller than the 300 tokens of .*shards \(.*; use --model.vocab 300",
        ),
        ({"order": "sorted"}, r"order 'sorted' cannot be used; use 'random' or 'epoch'"),
        (
            {"eval_sequences": 10_000},
            r"eval_sequences 10000 of 16 tokens do not fit into the held-out part \(\d+ tokens\)",
        ),
        ({"end_token": "x"}, r"end_token 'x' does nothing without a tokenizer"),
    ],
)
def test_what_does_not_fit_a_run_is_refused(config: TrainConfig, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        train(dataclasses.replace(config, **changes), ops)
    assert not config.out.exists()
