"""Contract of reference.alphabet, and of evaluation and generation of runs on tokens: the text of tokens is what the
library's decoder makes of them, all at once or one by one; the held-out loss is the run's own, and a tokenizer that is
gone or another one is told.

Oracles: the library `tokenizers`; GPT-2's alphabet written out in `token_folders`; the runs' logs.
"""

import dataclasses
import random
import shutil
from pathlib import Path

import pytest
import torch

import fourbit
from numerics import ops
from reference.alphabet import Bytes, Tokens, streamed
from reference.config import TrainConfig
from reference.evaluate import EvalConfig, evaluate, score_item
from reference.generate import Caching
from reference.load import load_run
from reference.log import read_log
from reference.model import ModelConfig
from reference.tasks import TASKS
from reference.tokenization import parse_tokenizer
from reference.train import train

tokenizers = pytest.importorskip("tokenizers", reason="not run: the extra `data` is not installed")

from token_folders import documents, json_lines, token_texts  # noqa: E402
from tokenizer_kinds import byte_level, llama, unigram, word_pieces  # noqa: E402

SMALL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=64, vocab=512)


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, its shards, and two runs of two steps: on the shards, and on the text through the shards' tokenizer."""
    place = tmp_path_factory.mktemp("alphabet")
    json_lines(place / "docs.jsonl", documents(600))
    words = ["tokenize", "--data", str(place / "docs.jsonl"), "--vocab", "400", "--out", str(place / "shards")]
    assert fourbit.main(words) == 0
    config = TrainConfig(
        **{"out": place / "on_shards", "data": str(place / "shards"), "steps": 2, "batch": 1, "grain": 1, "warmup": 1},
        **{"eval_every": 2, "eval_sequences": 2, "checkpoint_every": 2, "monitor_every": 0, "progress": "hide"},
        model=SMALL,
    )
    train(config, ops)
    other = {"data": str(place / "docs.jsonl"), "tokenizer": place / "shards" / "tokenizer.json"}
    train(dataclasses.replace(config, out=place / "on_text", **other), ops)
    return place


RUNS = ("on_shards", "on_text")
TOKENIZERS = {"byte level": byte_level, "llama": llama, "unigram": unigram, "word pieces": word_pieces} | {
    "no decoder": lambda: byte_level(decoder=False)
}


def test_tokens_of_bytes_are_a_text(place: Path) -> None:
    path = place / "shards" / "tokenizer.json"
    alphabet = Tokens(parse_tokenizer(path.read_bytes(), "t"), path, None)
    assert (alphabet.size, alphabet.decode([alphabet.end, 10**6])) == (400, "")
    assert all(alphabet.decode([token]) == text.decode("utf-8", "replace") for token, text in token_texts(path).items())
    for text in [*documents(20, 3), "<|endoftext|>", "\x00 \x7f\u0085 \u00ad"]:
        tokens = alphabet.encode(text.encode())
        assert alphabet.decode(tokens) == text and alphabet.end not in tokens
    with pytest.raises(ValueError, match="is not UTF-8"):
        alphabet.encode(b"\xff")


def test_a_byte_is_its_own_token() -> None:
    every = bytes(range(256))
    assert Bytes().encode(every) == list(every) and Bytes().end is None
    assert Bytes().decode(every) == every.decode("utf-8", "replace") and Bytes(3).decode(b"a\x03b") == "ab"
    rng = random.Random(0)
    for _ in range(50):
        raw = bytes(rng.choices(range(256), k=64))
        assert "".join(streamed(Bytes(), raw)) == raw.decode("utf-8", "replace")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_is_what_the_librarys_decoder_makes_of_tokens(name: str) -> None:
    """At once and one by one; byte-level BPE, SentencePiece and byte fallback give back what was encoded."""
    own = TOKENIZERS[name]()
    alphabet = Tokens(parse_tokenizer(own.to_str().encode(), "t"), Path("t"), None)
    rng = random.Random(1)
    for text in [
        "5",
        "2+3=5",
        "a\nb",
        " a  b ",
        "東京é",
        *("".join(rng.choices(" ab15=\né東😀", k=20)) for _ in range(60)),
    ]:
        tokens = alphabet.encode(text.encode())
        found = alphabet.decode(tokens)
        if name in ("byte level", "no decoder", "llama"):
            assert found == text
        if name != "no decoder":  # to the library a file without one has spaces between all tokens
            assert found == own.decode(tokens, skip_special_tokens=False)
        assert "".join(streamed(alphabet, tokens)) == found
        assert alphabet.decode([*tokens, alphabet.end, 10**6]) == found


def test_text_comes_as_soon_as_it_is_whole() -> None:
    own = llama()
    alphabet = Tokens(parse_tokenizer(own.to_str().encode(), "t"), Path("t"), None)
    assert alphabet.encode("é5 5".encode()) == [259, 0xC3 + 3, 0xA9 + 3, 265, 293]
    assert list(streamed(alphabet, [259, 0xC3 + 3, 0xA9 + 3, 265, 293])) == ["", "", "é", "5", " 5", ""]
    assert list(streamed(alphabet, [265, 0xC3 + 3])) == ["5", "", "�"]


@pytest.mark.parametrize("name", RUNS)
def test_the_held_out_loss_is_the_runs_own(name: str, place: Path) -> None:
    last = read_log(place / name / "log.jsonl")[-1]
    found = evaluate(EvalConfig(place / name, items=1), ops)
    assert found["heldout"]["ce"] == last["heldout_ce"]
    assert found["heldout"]["bits_per_byte"] == last["heldout_bits_per_byte"] != last["heldout_ce"]
    assert {entry["task"] for entry in found["tasks"]} == {task.name for task in TASKS}
    loaded = load_run(place / name)
    assert isinstance(loaded.alphabet, Tokens) and Caching(loaded).feed([1]).shape == (400,)
    assert score_item(loaded, TASKS[0].item(0, 0))[0] in (True, False)


@pytest.mark.parametrize("name", RUNS)
def test_other_text_is_read_in_the_runs_tokens(name: str, place: Path, tmp_path: Path) -> None:
    json_lines(tmp_path / "other.jsonl", documents(400, 5))
    words = ["tokenize", "--data", str(tmp_path / "other.jsonl"), "--out", str(tmp_path / "shards")]
    assert fourbit.main([*words, "--tokenizer", str(place / "shards" / "tokenizer.json")]) == 0
    one, two = (
        evaluate(EvalConfig(place / name, data=str(tmp_path / data), items=0), ops)["heldout"]
        for data in ("other.jsonl", "shards")
    )
    assert one["ce"] == two["ce"] and one["bits_per_byte"] == two["bits_per_byte"]


@pytest.mark.parametrize("name", RUNS)
def test_text_goes_on_and_ends(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", str(place / name), "--prompt", "the né cat 猫", "--tokens", "5"]
    assert fourbit.main(words) == 0
    assert capsys.readouterr().out.startswith("the né cat 猫")


def test_a_text_is_over_at_its_end(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    end = load_run(place / "on_shards").alphabet.end
    fed: list[int] = []

    def feed(_: Caching, tokens: list[int]) -> torch.Tensor:
        fed.append(len(tokens))
        return torch.eye(400)[end if len(fed) == 3 else 1]

    monkeypatch.setattr(Caching, "feed", feed)
    assert fourbit.main(["generate", str(place / "on_shards"), "--prompt=a", "--temperature=0", "--tokens=50"]) == 0
    assert len(fed) == 3


def test_tokens_that_are_gone_or_others_are_told(place: Path, tmp_path: Path) -> None:
    json_lines(tmp_path / "text.jsonl", documents(300, 9))
    words = ["tokenize", "--data", str(tmp_path / "text.jsonl"), "--vocab", "300", "--out", str(tmp_path / "shards")]
    assert fourbit.main(words) == 0
    with pytest.raises(ValueError, match=r"has other tokens than the run reads; name its text instead"):
        evaluate(EvalConfig(place / "on_text", data=str(tmp_path / "shards"), items=0), ops)
    moved = shutil.move(place / "shards", place / "elsewhere")
    try:
        with pytest.raises(ValueError, match=r"was trained on 400 tokens of '.*shards', which has 256 now: it is miss"):
            load_run(place / "on_shards")
        with pytest.raises(ValueError, match=r"tokenizer '.*' cannot be read"):
            load_run(place / "on_text")
        shutil.copytree(tmp_path / "shards", place / "shards")
        with pytest.raises(ValueError, match="which has 300 now"):
            load_run(place / "on_shards")
    finally:
        shutil.rmtree(place / "shards", ignore_errors=True)
        shutil.move(moved, place / "shards")
