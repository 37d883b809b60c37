"""Contract of reference.evaluate and reference.tasks: items have one right answer that their prompt tells, scores are
those of the model's log-likelihoods, the held-out loss is the trainer's own, and everything repeats.

Oracles: the prompts read back with regular expressions; stand-in models that know, or avoid, the answer; softmax by
loops in float64; scipy's Wilson interval; the run's log.
"""

import io
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import binomtest

import fourbit
from numerics import ops
from reference import progress
from reference.evaluate import EvalConfig, _tasks, evaluate, score_item, score_task, table, wilson
from reference.expert import Draw
from reference.generate import Recomputing, Sampling, continuation
from reference.load import Loaded, load_run
from reference.log import read_log
from reference.model import ModelConfig
from reference.tasks import CHOICES, TASKS, Item, Task
from reference.train import TrainConfig, train

SMALL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=80, vocab=260)


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the run has."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "text").write_bytes(b"".join(b"copy %s: %s\n" % ((bytes([97 + i % 26]),) * 2) for i in range(900)))
    config = TrainConfig(
        **{"out": folder / "run", "data": str(folder / "text"), "steps": 2, "batch": 2, "grain": 2, "warmup": 1},
        **{"eval_every": 1, "eval_sequences": 4, "checkpoint_every": 1, "monitor_every": 0, "progress": "hide"},
        model=SMALL,
    )
    train(config, ops)
    return config


# ------------------------------------------------------------------------------------------------ items


def solve(task: str, prompt: str) -> str:
    """The answer, from the last line of the prompt alone but for the pattern."""
    last = prompt.splitlines()[-1]
    if task == "pattern":
        a, b = (int(number) for number in re.findall(r"= (\d+)\n", prompt)[-2:])
        return str(2 * b - a)
    (word,) = re.fullmatch(r"\w+ (\S+): ", last).groups()  # type: ignore[union-attr]
    closing = str.maketrans("([{<", ")]}>")
    return {"copy": word, "reverse": word[::-1], "count": str(len(word)), "brackets": word.translate(closing)[::-1]}[
        task
    ]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_an_item_has_one_right_answer_and_solved_examples(task: Task) -> None:
    places, answers = Counter(), Counter()
    for number in range(400):
        item = task.item(3, number)
        prompt, choices = item.prompt.decode("ascii"), [choice.decode("ascii") for choice in item.choices]
        assert choices[item.answer] == solve(task.name, prompt)
        assert len(set(choices)) == CHOICES and len({len(choice) for choice in choices}) == 1
        if task.line is not None:
            *solved, _ = prompt.splitlines()
            assert len(solved) == 3
            for line in solved:
                question, answer = line.split(": ")
                assert question.startswith(task.line + " ") and solve(task.name, question + ": ") == answer
        places[item.answer] += 1
        answers[choices[item.answer]] += 1
    # five standard deviations of 400 draws of one in four
    assert all(abs(places[place] - 100) < 5 * math.sqrt(400 * 0.25 * 0.75) for place in range(CHOICES))
    # no answer is more frequent than a guess that knows the form is said to be right, by more than chance
    assert max(answers.values()) / 400 < task.guess + 5 * math.sqrt(task.guess / 400) + 2 / 400


def test_items_depend_on_seed_and_number_alone() -> None:
    for task in TASKS:
        assert task.item(5, 7) == task.item(5, 7)
        assert len({task.item(seed, number).prompt for seed in (0, 1) for number in range(9)}) == 18
    assert len({task.item(0, 0).answer for task in TASKS}) > 1


# ------------------------------------------------------------------------------------------------ scores


class Knowing:
    """A model that finds the byte of `weights` most likely at each place: the answer's by +1, all others' by 0."""

    def __init__(self, item: Item, toward: float) -> None:
        self.row, self.toward = [*item.prompt, *item.choices[item.answer]], toward

    def logits(self, ids_BS: torch.Tensor, draw: Draw) -> tuple[torch.Tensor, None]:
        logits_BSV = torch.zeros(*ids_BS.shape, 260)
        logits_BSV[..., 256:] = 9.0  # tokens that mean nothing
        for place in range(ids_BS.shape[1]):
            logits_BSV[:, place, self.row[place + 1]] = self.toward
        return logits_BSV, None


def knowing(run: TrainConfig, item: Item, toward: float) -> Any:
    return SimpleNamespace(model=Knowing(item, toward), config=run, alphabet=load_run(run.out).alphabet)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_who_knows_is_right_and_who_avoids_is_wrong(task: Task, run: TrainConfig) -> None:
    for number in range(5):
        item = task.item(0, number)
        assert score_item(knowing(run, item, 1.0), item) == (True, True)
        assert score_item(knowing(run, item, -1.0), item) == (False, False)
        # of equals the first one, and the first byte of all
        assert score_item(knowing(run, item, 0.0), item) == (item.answer == 0, False)


def test_scores_are_sums_of_log_likelihoods(run: TrainConfig) -> None:
    loaded = load_run(run.out)
    for task in TASKS:
        item = task.item(1, 0)
        ids = torch.tensor([[*item.prompt, *choice] for choice in item.choices])
        with torch.no_grad():
            logits = loaded.model.logits(ids[:, :-1], Draw(0, -1, 0))[0][..., :256].double().tolist()
        sums, greedy = [], True
        for row, choice in enumerate(item.choices):
            total = 0.0
            for i, byte in enumerate(choice):
                at = logits[row][len(item.prompt) - 1 + i]
                top = max(at)
                total += at[byte] - top - math.log(math.fsum(math.exp(value - top) for value in at))
                if row == item.answer:
                    greedy = greedy and at.index(top) == byte
            sums.append(total)
        best = max(range(CHOICES), key=lambda row, sums=sums: sums[row])
        assert score_item(loaded, item) == (best == item.answer, greedy)


def test_choices_of_other_lengths_are_scored_too(run: TrainConfig) -> None:
    item = Item(b"ab", (b"c", b"de", b"fg", b"h"), 2)
    assert score_item(knowing(run, item, 20.0), item) == (True, True)
    assert score_item(knowing(run, item, -20.0), item) == (False, False)


def test_completion_is_what_greedy_decoding_writes(run: TrainConfig) -> None:
    loaded = load_run(run.out)
    prompt = b"copy b: b\ncopy c: "
    written = bytes(continuation(Recomputing(loaded), list(prompt), 3, Sampling(0)))
    other = bytes([written[0], written[1] ^ 1, written[2]])
    for answer, good in ((written, True), (other, False)):
        assert score_item(loaded, Item(prompt, (b"xyz", answer), 1))[1] == good


def test_a_task_that_is_too_long_is_not_run(run: TrainConfig) -> None:
    loaded = load_run(run.out)
    short = Loaded(replace(run, model=replace(SMALL, sequence=20)), loaded.model, 2, "", loaded.alphabet)
    assert score_task(short, TASKS[0], 2, 0) is None
    shorter, stream = replace(short, config=replace(run, model=replace(SMALL, sequence=2))), io.StringIO()
    assert all(
        "not_run" in t
        for t in _tasks(shorter, EvalConfig(run.out, items=2), progress.Progress(2 * len(TASKS), "eval", stream))
    )
    assert stream.getvalue().startswith(f"eval: 100 %, {TASKS[-1].name} not run, ")
    scores = score_task(loaded, TASKS[2], 6, 0)
    assert scores is not None and [(s.kind, s.items, s.chance) for s in scores] == [
        ("choice", 6, 0.25),
        ("completion", 6, 1 / 9),
    ]


@pytest.mark.parametrize(("right", "items"), [(0, 1), (1, 1), (0, 100), (25, 100), (99, 100), (7, 2000)])
def test_intervals_are_wilsons(right: int, items: int) -> None:
    wanted = binomtest(right, items).proportion_ci(method="wilson")
    assert wilson(right, items) == pytest.approx((wanted.low, wanted.high), rel=1e-9, abs=1e-12)


# ------------------------------------------------------------------------------------------------ the command


def test_held_out_loss_is_the_runs_own_and_all_repeats(
    run: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = read_log(run.out / "log.jsonl")
    for step in (1, 2):
        found = evaluate(EvalConfig(run.out, items=0, step=step), ops)
        assert found["heldout"]["ce"] == logged[step - 1]["heldout_ce"]
        assert found["heldout"]["bits_per_byte"] == logged[step - 1]["heldout_bits_per_byte"]
    words = ["eval", str(run.out), "--items=3", "--out"]
    texts = []
    for name in ("a.json", "b.json"):
        assert fourbit.main([*words, str(tmp_path / name)]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["step"], found["preset"], found["heldout"]["tokens"]) == (2, "fourbit", 320)
    assert [(e["task"], e["kind"], e["items"]) for e in found["tasks"]] == [
        (task.name, kind, 3) for task in TASKS for kind in ("choice", "completion")
    ]
    assert f"{logged[1]['heldout_ce']:.4f} nats a token" in texts[0] and texts[0].count("chance") >= 11
    assert texts[0] == table(found) + "\n"


def test_progress_is_shown(
    run: TrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    words = ["eval", str(run.out), "--sequences", str(run.grain), "--items=2"]
    assert fourbit.main(words) == 0
    told = [line.split(", ")[0] for line in capsys.readouterr().err.splitlines()]
    assert len(told) > 3 and told[-1] == "eval: 100 %" and told == sorted(told)
    assert fourbit.main([*words, "--progress=hide"]) == 0
    assert capsys.readouterr().err == ""


def test_other_text_and_fewer_sequences(run: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").write_bytes(bytes(range(1, 256)) * 30)
    assert fourbit.main(["eval", str(run.out), "--data", str(tmp_path / "other"), "--sequences=2", "--items=0"]) == 0
    out = capsys.readouterr().out
    assert "(160 tokens of" in out and "other" in out and "scored by" not in out
    assert fourbit.main(["eval", str(run.out), "--sequences=0", "--items=1"]) == 0
    assert "held-out" not in capsys.readouterr().out


REFUSED = {
    "--sequences=3": "sequences 3 cannot be used; use a multiple of the run's grain 2",
    "--sequences=-2": "--sequences -2 cannot be used",
    "--sequences=400": "--sequences 400 of 80 tokens do not fit",
    "--items=-1": "items -1 cannot be used",
    "--seed=-1": "seed -1 cannot be used",
    "--out=missing/x.json": "out 'missing/x.json' cannot be used; name a file in a folder that exists",
    "--step=9": "has no checkpoint of step 9; it has those of steps 1, 2",
    "--data=missing": "data 'missing' cannot be found",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_mistake_is_one_sentence(word: str, run: TrainConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(["eval", str(run.out), word]) == 2
    out, err = capsys.readouterr()
    assert out == "" and REFUSED[word] in err and err.count("\n") == 1


def test_a_corpus_that_has_changed_is_told(
    run: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(run.data or "")
    before = text.read_bytes()
    try:
        text.write_bytes(before + b"more")
        assert fourbit.main(["eval", str(run.out), "--items=0"]) == 2
        assert "is no longer what the run was trained on" in capsys.readouterr().err
        assert fourbit.main(["eval", str(run.out), "--items=0", "--data", str(text)]) == 0
    finally:
        text.write_bytes(before)
