"""Contract of reference.heldout and asking: what is called held out is nowhere in what is learned from. The content of
what is asked decides, not the place: not in a user's file with repetitions, not among generated exercises, not in
reinforcement learning; where nothing can be held out, nothing is called so.

Oracles: sha256 by hashlib; the sets of what is learned and what is held out; files written another way.
"""

import hashlib
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import fourbit
from numerics import ops
from reference.alphabet import END_BYTE, Bytes
from reference.asking import Asking, asking
from reference.environments import ENVIRONMENTS, EXERCISES, Environment, Problem, exactly, problem
from reference.examples import Codec, Example, Examples, load_examples
from reference.heldout import content, held_out_keys, is_held_out
from reference.model import ModelConfig
from reference.rl import RlConfig, rl
from reference.sft import SftConfig, sft
from reference.tasks import Draws

CODEC = Codec(Bytes(END_BYTE))
HELD = 2**31  # number of the first held-out problem
SMALL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=48)


def loaded(path: Path, lines: list[dict]) -> Examples:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load_examples(str(path), CODEC, 256, 0, 0)


def pair(prompt: str, completion: str = "x") -> dict:
    return {"prompt": prompt, "completion": completion}


def chat(*contents: str, role: str = "user") -> dict:
    roles = [role, "assistant"] * len(contents)
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


def prompts(examples: list[Example]) -> set[str]:
    return {bytes(e.tokens[: e.learned.index(True)]).decode() for e in examples}


def by_hash(text: str) -> bool:
    key = "".join(unicodedata.normalize("NFC", text).split())
    return int(hashlib.sha256(key.encode()).hexdigest()[:16], 16) % 10 == 0


# ------------------------------------------------------------------------------------------------ files


def test_repetitions_are_on_one_side_however_lines_are_ordered_and_added(tmp_path: Path) -> None:
    lines = [pair(f"question {i % 60}", f"answer {i % 7}") for i in range(300)]
    found = loaded(tmp_path / "a.jsonl", lines)
    held = prompts(found.heldout)
    assert held == {f"question {i}" for i in range(60) if by_hash(f"question {i}")} and 3 <= len(held) <= 12
    assert not held & prompts(found.train) and len(set(found.heldout)) == len(found.heldout)
    random.Random(0).shuffle(lines)
    more = [*lines[:150], *(pair(f"another {i}") for i in range(40)), *lines[150:]]
    assert {p for p in prompts(loaded(tmp_path / "b.jsonl", more).heldout) if p.startswith("question")} == held


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("7 + 8 =", "7+8="),
        ("what is\tthis?\n", "what is this?"),
        ("caf\u00e9", "cafe\u0301"),
        ("a\u00a0b", "a b"),
    ],
)
def test_what_differs_in_white_space_or_normal_form_asks_the_same(one: str, other: str) -> None:
    assert content(one) == content(other) != content(other + "!")
    assert is_held_out(content(one)) == by_hash(other)


def test_a_chat_is_where_its_beginning_is(tmp_path: Path) -> None:
    """Whatever follows, in how many turns, and as a prompt with a completion too; whatever the system says,
    and what was answered without being learned."""
    lines = []
    for i in range(80):
        lines += [pair(f"q{i}"), chat(f"q{i}", "one"), chat(f"q{i}", "two", "and?", "three")]
        lines += [{"messages": [*chat(f"q{i}", "bad")["messages"], *chat("", "good")["messages"]]}]
        lines[-1]["messages"][1]["weight"] = 0
        lines += [{"messages": [{"role": "system", "content": "s"}, *chat(f"q{i}", "one")["messages"]]}]
    found = loaded(tmp_path / "x.jsonl", lines)
    texts = [[bytes(e.tokens).decode() for e in part] for part in (found.heldout, found.train)]
    wanted = {i for i in range(80) if by_hash(f"q{i}")}
    for form in ("q{}x", "user: q{}\x03\nassistant: one\x03", "user: q{}\x03\nassistant: two\x03\nuser: and?"):
        sides = [{i for i in range(80) if any(t.startswith(form.format(i)) for t in part)} for part in texts]
        assert sides == [wanted, set(range(80)) - wanted]
    systems = [{i for i in range(80) if any(t.startswith(f"system: s\x03\nuser: q{i}\x03") for t in p)} for p in texts]
    assert systems[0] == {i for i in range(80) if by_hash(f"q{i}")} and not systems[0] & systems[1]
    unlearned = [{i for i in range(80) if any(f"q{i}\x03\nassistant: bad" in t for t in part)} for part in texts]
    assert unlearned[0] == {i for i in range(80) if by_hash(f"q{i}")} and not unlearned[0] & unlearned[1]


A_HELLO, U_HI = {"role": "assistant", "content": "hello"}, {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "before",
    [
        lambda i: [A_HELLO],
        lambda i: [A_HELLO | {"weight": 0}],
        lambda i: [{"role": "system", "content": f"It is day {i}."}],
        lambda i: [{"role": "system", "content": f"It is day {i}."}, A_HELLO],
        lambda i: [U_HI, A_HELLO],
    ],
)
def test_a_question_is_on_one_side_whatever_is_said_before_it(before: Any, tmp_path: Path) -> None:
    lines = [{"messages": [*before(i), *chat(f"question {i % 40}.", f"answer {i}")["messages"]]} for i in range(120)]
    found = loaded(tmp_path / "x.jsonl", lines)
    held, learned = (
        {n for n in range(40) if any(f"question {n}." in bytes(e.tokens).decode() for e in part)}
        for part in (found.heldout, found.train)
    )
    assert held and not held & learned and held | learned == set(range(40))


def test_few_examples_still_have_two_sides() -> None:
    for keys in (["a", "b"], list("abc"), list("abcd"), list("abcdefgh"), ["a"] * 3 + ["b"] * 2):
        for trial in range(40):
            own = [f"{key}{trial}" for key in keys]
            held = held_out_keys(own)
            count = sum(key in held for key in own)
            assert 1 <= count <= max(len(own) // 2, 1) and (len(held) == 1 or 4 * count <= len(own))
    # what most examples ask is learned
    for trial in range(40):
        assert held_out_keys([f"a{trial}"] * 90 + ["b", "c"] * 5) <= {"b", "c"}


def test_one_prompt_is_split_by_what_follows_and_equal_examples_not_at_all(tmp_path: Path) -> None:
    found = loaded(tmp_path / "x.jsonl", [pair("tell:", f"story {i % 50}") for i in range(100)])
    assert 1 <= len(found.heldout) <= 12 and not set(found.heldout) & set(found.train)
    assert found.description.endswith("held out by their whole text, since all ask the same)")
    found = loaded(tmp_path / "x.jsonl", [pair("tell:")] * 5)
    assert len(found.train) == 5 and found.heldout == []
    assert found.description.endswith("(5 examples, nothing held out, since all are equal)")


def test_where_nothing_is_held_out_no_summary_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.jsonl").write_text((json.dumps(pair("tell:")) + "\n") * 3)
    words = ["sft", "--out", str(tmp_path / "run"), "--data", str(tmp_path / "x.jsonl"), "--steps=1", "--warmup=0"]
    words += ["--model.dim=32", "--model.experts=4", "--model.expert-dim=32", "--model.sequence=32", "--progress=hide"]
    assert fourbit.main(words) == 0
    out, err = capsys.readouterr()
    assert "done: 1 steps" in out and out.endswith("nothing is held out\n") and "held-out" not in out
    assert "nothing held out, since all are equal" in err
    assert not any("heldout" in name for name in json.loads((tmp_path / "run" / "log.jsonl").read_text()))


# ------------------------------------------------------------------------------------------------ generated


@pytest.mark.parametrize("seed", [0, 5])
def test_generated_exercises_are_learned_or_held_out(seed: int) -> None:
    found = load_examples(None, CODEC, 256, 4096, seed)
    assert not prompts(found.train) & prompts(found.heldout)
    assert all(by_hash(p) for p in prompts(found.heldout)) and not any(by_hash(p) for p in prompts(found.train))
    # of every kind enough on both sides; there are 200 sums
    for name, least in (("make", 40), ("reverse", 40), ("copy", 40), ("sort", 40), ("", 10)):
        parts = prompts(found.heldout), prompts(found.train)
        sides = [{p for p in part if (p.startswith(name) if name else p[0].isdigit())} for part in parts]
        assert len(sides[0]) >= least and len(sides[1]) >= 5 * least
    # and what is held out here is not asked by reinforcement learning either
    asked = {problem(e, seed, i).prompt for e in EXERCISES for i in range(200)}
    assert not asked & prompts(found.heldout)


def words(draws: Draws) -> Problem:
    word = draws.some("abcdefghij", 4)
    return Problem(f"say  {word}", exactly(word))


def spaced(draws: Draws) -> Problem:
    """Forty questions, each in several spellings."""
    number, gap = draws.below(40), " " * draws.below(4)
    return Problem(f"{number}{gap}?", exactly(str(number)))


def tilted(draws: Draws) -> Problem:
    """Nine of ten draws are one question, which the rule would hold out."""
    common, number = draws.below(10) > 0, draws.below(100)
    return Problem("q9" if common else f"n{number}", exactly("x"))


def few(draws: Draws) -> Problem:
    return Problem(f"one of nine: {draws.below(9)}", exactly("x"))


def one(draws: Draws) -> Problem:
    return Problem("q9", exactly("x"))


@pytest.mark.parametrize("environment", [*EXERCISES, words, spaced], ids=lambda e: e.__name__)
def test_no_held_out_problem_is_asked_in_training(environment: Environment) -> None:
    found = asking(environment, 3, 60)
    held = {content(p.prompt) for p in found.judged}
    asked = {content(found.problem(number).prompt) for number in range(3000)}
    assert found.held_out and not held & asked and all(map(by_hash, held))
    assert len(held) == len(found.judged) >= 3 and len(asked) > 5 * len(held) // 2
    assert (
        found.problem(17).prompt == problem(environment, 3, 17).prompt == asking(environment, 3, 1).problem(17).prompt
    )


def test_arithmetic_keeps_enough_on_both_sides() -> None:
    found = asking(ENVIRONMENTS["arithmetic"], 0, 100)
    asked = {found.problem(number).prompt for number in range(6000)}
    assert len(found.judged) == 18 and len(asked) == 182
    assert found.said == "18 different problems are held out"


@pytest.mark.parametrize(("environment", "different"), [(few, 9), (one, 1), (tilted, None)])
def test_an_environment_whose_problems_collide_says_so(environment: Environment, different: int | None) -> None:
    assert by_hash("q9")
    found: Asking = asking(environment, 0, 20)
    assert not found.held_out and found.said.startswith("nothing is held out: 512 draws ask ")
    assert different in (None, found.different) and len(found.judged) == 20
    assert (found.share > 0.8) == (environment is not few)
    assert found.problem(5).prompt  # all are learned from
    if environment is one:
        with pytest.raises(ValueError, match="drawn 512 times, is always one that is held out; ask more different"):
            problem(environment, 0, 3)


# ------------------------------------------------------------------------------------------------ runs


def test_the_log_names_what_was_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = {"steps": 1, "warmup": 0, "progress": "hide"}
    init = sft(SftConfig(tmp_path / "init", examples=40, model=SMALL, **run), ops).folder
    run |= {"prompts": 2, "group": 2, "tokens": 2, "eval_problems": 4, "init": init}
    last = rl(RlConfig(tmp_path / "a", environment="arithmetic", **run), ops).records[-1]
    assert last["heldout_problems"] in (3, 4) and "heldout_reward" in last and "greedy_reward" not in last
    assert capsys.readouterr().err == ""
    last = rl(RlConfig(tmp_path / "b", environment=f"{__name__}:one", **run), ops).records[-1]
    assert last["greedy_problems"] == 4 and not any(name.startswith("heldout") for name in last)
    assert f"environment '{__name__}:one': nothing is held out: 512 draws ask 1 different" in capsys.readouterr().err


def test_a_run_of_the_old_rules_is_not_taken_up(tmp_path: Path) -> None:
    config = SftConfig(tmp_path / "run", steps=1, warmup=0, examples=40, model=SMALL, progress="hide")
    sft(config, ops)
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    del stored["tuned"]["rules"]
    path.write_text(json.dumps(stored))
    with pytest.raises(
        ValueError, match="holds a run of an earlier version of fourbit, which gave filler to the exper"
    ):
        sft(config, ops)
