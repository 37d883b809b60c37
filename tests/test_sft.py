"""Contract of reference.sft, examples and tune: completions alone are learned, every one the same however it is packed;
malformed lines are told by their number; a killed and resumed run has the bits of an uninterrupted one.

Oracles: losses of every example alone; an uninterrupted run; explicit tokens.
"""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fourbit
from numerics import ops
from reference import checkpoint
from reference.alphabet import END_BYTE, Bytes
from reference.environments import EXERCISES, problem
from reference.examples import Codec, load_examples
from reference.expert import Draw
from reference.load import load_run
from reference.log import read_log
from reference.model import ModelConfig, Transformer
from reference.packing import pack
from reference.presets import preset
from reference.sft import Sft, SftConfig, sft
from reference.train import TrainConfig, train
from reference.tune import begin

SMALL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=48)
CODEC = Codec(Bytes(END_BYTE))


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


def config(out: Path, **changes: object) -> SftConfig:
    fields = {"steps": 6, "examples": 60, "eval_every": 3, "checkpoint_every": 2, "progress": "hide", "model": SMALL}
    return SftConfig(out, **(fields | {"batch": 4, "grain": 2, "warmup": 2} | changes))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained run."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "text").write_bytes(b"3+4=7, 8-2=6; " * 200)
    run = TrainConfig(
        **{"out": folder / "run", "data": str(folder / "text"), "steps": 2, "warmup": 1, "eval_sequences": 4},
        **{"monitor_every": 0, "progress": "hide", "preset": "mxfp8", "seed": 3, "model": SMALL},
    )
    train(run, ops)
    return run.out


# ------------------------------------------------------------------------------------------------ examples


def test_a_completion_and_its_end_are_learned() -> None:
    found = CODEC.pair("7*8=", "56")
    assert bytes(found.tokens) == b"7*8=56\x03"
    assert found.learned == (False,) * 4 + (True,) * 3
    assert CODEC.decode([*b"56", END_BYTE, 256, 700]) == "56"


def test_a_chat_learns_what_the_assistant_says() -> None:
    said = [("system", "add"), ("user", "1+1"), ("assistant", "2"), ("user", "more"), ("assistant", "3")]
    found = CODEC.chat([{"role": role, "content": content} for role, content in said])
    assert bytes(found.tokens) == (
        b"system: add\x03\nuser: 1+1\x03\nassistant: 2\x03\nuser: more\x03\nassistant: 3\x03"
    )
    learned = bytes(token for token, yes in zip(found.tokens, found.learned, strict=True) if yes)
    assert learned == b"2\x033\x03"


def test_lines_of_a_file(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    lines = [json.dumps({"prompt": f"{i}:", "completion": "é", "extra": 1}) for i in range(45)]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join([*lines[:3], "", json.dumps(chat), *lines[3:]]), encoding="utf-8")
    found = load_examples(str(path), CODEC, 48, 0, 0)
    held_out = [i for i in range(45) if int(hashlib.sha256(f"{i}:".encode()).hexdigest()[:16], 16) % 10 == 0]
    pairs = [CODEC.pair(f"{i}:", "é") for i in range(45)]
    every = [*pairs[:3], CODEC.chat(chat["messages"]), *pairs[3:]]
    chosen = [pairs[i] for i in held_out]
    assert int(hashlib.sha256(b"a").hexdigest()[:16], 16) % 10 == 0  # what the chat asks
    chosen.insert(sum(i < 3 for i in held_out), every[3])
    assert len(chosen) == 9 and found.heldout == chosen and found.train == [e for e in every if e not in chosen]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: Expecting property name enclosed in double quotes at column 2; correct the line"),
        ('{"prompt": 3', "line 2: Expecting ',' delimiter at column 13; correct the line"),
        ("[1]", "line 2: it holds a list, no object"),
        ('{"prompt": "a"}', 'line 2: it needs "messages", or "prompt" and "completion" that are texts'),
        ('{"prompt": "a", "completion": 3}', "line 2: it needs"),
        ('{"prompt": "", "completion": "3"}', "line 2: prompt is empty"),
        ('{"messages": []}', "line 2: messages is no list of messages"),
        ('{"messages": [{"role": "robot", "content": ""}]}', "line 2: message 1 lacks a role"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "line 2: messages has none of the assistant"),
        ('{"prompt": "a", "completion": "\\u0003"}', "line 2: text '\\x03' holds the token 3"),
        ('{"prompt": "\\ud800", "completion": "a"}', "line 2: 'utf-8' codec can't encode"),
        ("[" * 100_000, "line 2, is nested too deep"),
        (json.dumps({"prompt": "a" * 49, "completion": ""}), "line 2: its prompt alone has 49 tokens, and the model"),
        (json.dumps({"prompt": "a" * 47, "completion": "bb"}), "line 2: it has 50 tokens, and the model sees 48"),
    ],
)
def test_a_malformed_line_is_told_by_its_number(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n' + line + "\n")
    with pytest.raises(ValueError) as error:
        load_examples(str(path), CODEC, 48, 0, 0)
    assert message in str(error.value)


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xff\xff\n")
    with pytest.raises(ValueError, match="line 1: 'utf"):
        load_examples(str(path), CODEC, 48, 0, 0)
    with pytest.raises(ValueError, match=r"cannot be read \(No such file"):
        load_examples(str(tmp_path / "y"), CODEC, 48, 0, 0)
    path.write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(ValueError, match="has 1 examples; two or more"):
        load_examples(str(path), CODEC, 48, 0, 0)


def test_exercises_are_solved_and_follow_their_seed() -> None:
    for environment in EXERCISES:
        for number in range(200):
            asked = problem(environment, 7, number)
            assert asked.score(asked.solution) == 1.0 and asked.score(asked.solution + " ") == 0.0
    few, many, other = (load_examples(None, CODEC, 48, n, seed) for n, seed in ((40, 0), (80, 0), (40, 1)))
    assert few.train + few.heldout != other.train + other.heldout
    assert few.train == many.train[: len(few.train)] and few.digest != many.digest
    kinds = {bytes(example.tokens).split()[0][:4] for example in load_examples(None, CODEC, 48, 500, 0).heldout}
    assert {b"make", b"reve", b"copy", b"sort"} < kinds  # and sums


# ------------------------------------------------------------------------------------------------ the loss


def test_the_loss_is_the_mean_over_completion_tokens_however_they_are_packed(tmp_path: Path) -> None:
    """Against every example alone. Products are BF16 with sums in FP32 of another order: roundings that fall the other
    way move single logits by 2^-8 of about 3 and the mean over 200 tokens by far less than 2^-7."""
    start = begin(config(tmp_path / "run", preset="bf16"), ops, 4)
    found = load_examples(None, CODEC, 48, 60, 0)
    rows = pack(found.heldout + found.train, 48)
    texts = found.heldout + found.train
    tuning = type("Tuning", (), {"start": start})()
    said = Sft(tuning, rows, rows, texts).evaluate(0)
    total, count, exact = 0.0, 0, 0
    with torch.no_grad():
        for text in texts:
            logits = start.model.logits(torch.tensor([text.tokens[:-1]]), Draw(0, -1, 0))[0][0].float()
            first = text.learned.index(True)
            wanted = torch.tensor(text.tokens[first:])
            total += F.cross_entropy(logits[first - 1 :], wanted, reduction="sum").item()
            count += len(wanted)
            exact += torch.equal(logits[first - 1 :].argmax(-1), wanted)
    assert abs(said["heldout_ce"] - total / count) < 2**-7
    assert abs(said["heldout_exact"] - exact / len(texts)) <= 1 / len(texts)


def test_a_model_learns_its_examples(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{c} ", "completion": c * 2}) + "\n" for c in "abcd") * 10)
    c = config(tmp_path / "run", data=str(path), steps=60, lr=0.01, grain=4, eval_every=60, checkpoint_every=60)
    done = sft(c, ops)
    assert done.records[-1]["loss"] < 0.5 < 3 < done.records[0]["loss"]
    start, found = (
        begin(dataclasses.replace(c, init=c.out, model=ModelConfig()), ops, 4),
        load_examples(str(path), CODEC, 48, 0, 0),
    )
    rows = pack(found.train, 48)
    learned = Sft(type("Tuning", (), {"start": start})(), rows, rows, found.train).evaluate(0)
    # one of the four is held out, and what follows it is not known from the others
    assert len(found.train) == 30 and learned["heldout_exact"] == 1.0 > done.records[-1]["heldout_exact"]


# ------------------------------------------------------------------------------------------------ runs


def bits(folder: Path) -> tuple[object, ...]:
    """Of a finished run: its log without seconds, and its last checkpoint."""
    log = [{k: v for k, v in record.items() if k != "seconds"} for record in read_log(folder / "log.jsonl")]
    return log, checkpoint.digest_of(checkpoint.load(checkpoint.latest(folder))[0])


@pytest.mark.exhaustive
def test_killed_and_resumed_it_has_the_same_bits(base: Path, tmp_path: Path) -> None:
    def die(record: dict) -> None:
        if record["step"] == 5:
            raise KeyboardInterrupt

    for kind in ({}, {"init": base, "model": ModelConfig(), "preset": "fourbit"}):
        whole, cut = (config(tmp_path / f"{name}{len(kind)}", **kind) for name in ("whole", "cut"))
        assert sft(whole, ops).resumed_from == 0
        with pytest.raises(KeyboardInterrupt):
            sft(cut, ops, on_progress=die)
        assert sft(cut, ops).resumed_from == 4
        assert bits(whole.out) == bits(cut.out)
        assert sft(cut, ops).resumed_from == 6


def test_it_goes_on_from_a_run_with_its_weights_and_recipe(base: Path, tmp_path: Path) -> None:
    start = begin(config(tmp_path / "run", init=base, model=ModelConfig()), ops, 4)
    loaded = load_run(base)
    assert start.config.preset == "mxfp8" and start.config.model == SMALL and start.config.seed == 0
    weights = start.model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in loaded.model.state_dict().items())
    assert start.corpus == loaded.corpus and all(p.requires_grad for p in start.model.parameters())
    assert start.model.recipes == Transformer(SMALL, preset("mxfp8"), ops, 0).recipes


def test_a_tuned_run_is_a_run(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sft", "--out", str(tmp_path / "run"), "--init", str(base), "--steps=3", "--warmup=1", "--examples=40"]
    assert fourbit.main([*words, "--progress=hide"]) == 0
    assert "done: 3 steps, held-out" in capsys.readouterr().out
    loaded = load_run(tmp_path / "run")
    assert loaded.alphabet.end == END_BYTE and loaded.step == 3 and loaded.config.preset == "mxfp8"
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert meta["command"].startswith("fourbit sft --out") and "40 generated exercises" in meta["corpus"]["description"]
    assert fourbit.main(["generate", str(tmp_path / "run"), "--prompt=3+4=", "--tokens=5"]) == 0
    assert capsys.readouterr().out.startswith("3+4=")
    # held-out loss on what it was pretrained on
    assert fourbit.main(["eval", str(tmp_path / "run"), "--items=0", "--sequences=4"]) == 0
    # and a stage may follow it
    assert (
        begin(config(tmp_path / "next", init=tmp_path / "run", model=ModelConfig()), ops, 4).about["init"]["step"] == 3
    )


def test_what_another_run_is_in_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave one of the two out"):
        begin(config(tmp_path / "run", init=base), ops, 4)
    with pytest.raises(ValueError, match="does not exist; name the --out"):
        begin(config(tmp_path / "run", init=tmp_path / "none", model=ModelConfig()), ops, 4)
    with pytest.raises(ValueError, match="batch 3 cannot be used; use a multiple of grain 2"):
        sft(config(tmp_path / "run", batch=3), ops)
    first = config(tmp_path / "run", steps=1, warmup=1)
    sft(first, ops)
    with pytest.raises(ValueError, match=r"tuned\.data \("):
        sft(dataclasses.replace(first, examples=61), ops)
    with pytest.raises(ValueError, match=r"tuned\.init"):
        sft(dataclasses.replace(first, init=base, model=ModelConfig()), ops)
