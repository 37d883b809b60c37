"""Contract of reference.generate: the likeliest token at temperature 0, else draws from the nucleus by seed and place;
text comes whole in characters and cannot steer a terminal.

Oracles: explicit loops over a real model's logits; frequencies of many draws, within five standard deviations.
"""

import math
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

import fourbit
from numerics import ops
from reference.alphabet import Bytes
from reference.expert import Draw
from reference.generate import Recomputing, Sampling, continuation, readable
from reference.load import Loaded, load_run
from reference.model import ModelConfig
from reference.train import TrainConfig, train

SMALL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=12, vocab=300)


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the run has."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("generate")
    (folder / "text").write_bytes(b"the cat sat on the mat; " * 200)
    config = TrainConfig(
        **{"out": folder / "run", "data": str(folder / "text"), "steps": 30, "batch": 4, "lr": 0.01, "warmup": 3},
        **{"eval_every": 30, "eval_sequences": 4, "monitor_every": 0, "progress": "hide"},
        model=SMALL,
    )
    train(config, ops)
    return load_run(config.out)


def words(run: Loaded, *more: str) -> list[str]:
    return ["generate", str(run.config.out), *more]


# ------------------------------------------------------------------------------------------------ choosing


def test_greedy_text_is_that_of_a_loop(run: Loaded, capsys: pytest.CaptureFixture[str]) -> None:
    seen = list(b"the cat")
    for _ in range(20):
        with torch.no_grad():
            ids = torch.tensor([seen[-SMALL.sequence :]])
            logits = run.model.logits(ids, Draw(0, -1, 0))[0][0, -1].tolist()
        seen.append(max(range(256), key=lambda token, logits=logits: logits[token]))
    assert fourbit.main(words(run, "--prompt=the cat", "--temperature=0", "--tokens=20")) == 0
    assert capsys.readouterr().out == bytes(seen).decode() + "\n"
    assert list(islice(continuation(Recomputing(run), seen[:7], 5, Sampling(0)), 5)) == seen[7:12]


def test_a_text_is_a_function_of_its_seed(run: Loaded, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in (1, 1, 2):
        assert (
            fourbit.main(words(run, "--prompt=the", f"--seed={seed}", "--temperature=2", "--top-p=1", "--tokens=25"))
            == 0
        )
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2] and all(text.startswith("the") for text in texts)
    # fewer tokens are the first ones
    assert fourbit.main(words(run, "--prompt=the", "--seed=1", "--temperature=2", "--top-p=1", "--tokens=9")) == 0
    first = capsys.readouterr().out
    assert texts[0].startswith(first.rstrip("\n").rstrip("�"))


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    logits = torch.tensor([0.0, 2.0, -1.0, 1.0, -math.inf])
    wanted = torch.softmax(logits.double() * 2, 0)  # temperature 0.5
    count = 4000
    drawn = torch.tensor([Sampling(0.5, 1.0, 7).choose(logits, place) for place in range(count)])
    for token in range(5):
        share = (drawn == token).double().mean()
        # five standard deviations of a share of independent draws, and one draw
        assert abs(share - wanted[token]) <= 5 * (wanted[token] * (1 - wanted[token]) / count).sqrt() + 1 / count


def test_the_nucleus_is_the_fewest_likeliest_tokens() -> None:
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    for top_p, kept in ((0.4, {1}), (0.5 - 1e-6, {1}), (0.51, {1, 3}), (0.76, {1, 2, 3}), (1.0, {0, 1, 2, 3})):
        assert {Sampling(1.0, top_p, 3).choose(logits, place) for place in range(300)} == kept
    assert {Sampling(1e-300, 1.0).choose(logits, place) for place in range(50)} == {1}
    assert {Sampling(0.0).choose(torch.zeros(4), place) for place in range(9)} == {0}  # the first of equals


def test_tokens_that_mean_nothing_are_never_drawn(run: Loaded) -> None:
    assert Recomputing(run).feed([65]).shape == (256,)


def test_a_decoder_is_fed_each_token_once() -> None:
    class Counting:
        fed: list[list[int]] = []  # noqa: RUF012

        def feed(self, tokens: list[int]) -> torch.Tensor:
            self.fed.append(tokens)
            return torch.eye(256)[len(self.fed)]

    decoder = Counting()
    assert list(continuation(decoder, [7, 8], 3, Sampling(0))) == [1, 2, 3]
    assert decoder.fed == [[7, 8], [1], [2]]


# ------------------------------------------------------------------------------------------------ text


def test_text_comes_as_soon_as_a_character_is_whole() -> None:
    shown = list(readable(Bytes(), "ä€😀x".encode()))
    assert shown == ["", "ä", "", "", "€", "", "", "", "😀", "x", ""]
    assert "".join(readable(Bytes(), b"\xffa" + "€".encode()[:2])) == "�a�"


def test_nothing_steers_the_terminal() -> None:
    every = bytes(range(256)) + "\x9b31m\u202e\u2066".encode()
    shown = "".join(readable(Bytes(), every))
    assert "\n" in shown and "\t" in shown and "␛" in shown and "␡" in shown
    assert all(c.isprintable() or c in "\n\t" for c in shown)


def test_a_prompt_of_any_bytes_and_a_terminal_without_its_characters(run: Loaded) -> None:
    command = [sys.executable, "-m", "fourbit", *words(run, "--tokens=2", "--temperature=0"), "--prompt"]
    root = Path(fourbit.__file__).parent
    done = subprocess.run(
        [*command, b"\xffcat \xc3\xa4"], capture_output=True, cwd=root, timeout=120, env={"PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stdout[:6]) == (0, b"?cat ?"), done.stderr


# ------------------------------------------------------------------------------------------------ clear ends

REFUSED = {
    "--temperature=-1": "temperature -1.0 cannot be used; use 0",
    "--temperature=nan": "temperature nan cannot be used",
    "--top-p=0": "--top-p 0.0 cannot be used; use a share above 0",
    "--top-p=1.5": "--top-p 1.5 cannot be used",
    "--seed=-1": "seed -1 cannot be used; use 0 to 2^64 - 1",
    "--tokens=-1": "tokens -1 cannot be used; use 0 or more",
    "--prompt=": "prompt is empty, and a model continues what is there",
    "--step=7": "has no checkpoint of step 7; it has those of steps 30",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_mistake_is_one_sentence(word: str, run: Loaded, capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(words(run, "--prompt=a", word)) == 2
    out, err = capsys.readouterr()
    assert out == "" and REFUSED[word] in err and err.count("\n") == 1


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(["generate", str(tmp_path), "--prompt=a"]) == 2
    assert "is no run folder: it has no config.json" in capsys.readouterr().err


def test_a_closed_generator_stops(run: Loaded) -> None:
    text: Iterator[int] = continuation(Recomputing(run), [1], 10**9, Sampling())
    assert len(list(islice(text, 3))) == 3
