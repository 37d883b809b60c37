"""Contract of reference.rl and reference.environments: advantages within a group, a clipped ratio, a pull to the start;
environments that fail score zero; a killed and resumed run has the bits of an uninterrupted one.

Oracles: formulas in plain Python; autograd of the formula on logits of each completion alone; a run without a kill.
"""

import csv
import dataclasses
import itertools
import json
import math
import statistics
import sys
from pathlib import Path

import pytest
import torch

import fourbit
from numerics import ops
from reference import checkpoint
from reference.asking import asking
from reference.environments import ENVIRONMENTS, Problem, Scorer, environment_of, exactly, problem
from reference.expert import Draw
from reference.load import load_run
from reference.log import read_log
from reference.model import ModelConfig
from reference.rl import Rl, RlConfig, rl
from reference.rollouts import clipped_surrogate, deviation, group_advantages, rollouts_of
from reference.sample import Completion, Sampler
from reference.sft import SftConfig, sft
from reference.tasks import Draws
from reference.tune import begin

SMALL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=32)


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: no CUDA device")),
]


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


@pytest.fixture(scope="module")
def init(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has seen a few digits."""
    folder = tmp_path_factory.mktemp("init")
    lines = [{"prompt": "which?", "completion": d} for d in "01234567" * 4] + [{"prompt": "what?", "completion": "8"}]
    (folder / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))  # the last one is held out
    run = {"steps": 30, "lr": 0.01, "warmup": 2, "eval_every": 30, "checkpoint_every": 30, "progress": "hide"}
    return sft(SftConfig(folder / "run", data=str(folder / "x.jsonl"), model=SMALL, **run), ops).folder


def config(out: Path, init: Path, **changes: object) -> RlConfig:
    fields = {"steps": 4, "warmup": 1, "prompts": 3, "group": 4, "tokens": 3, "eval_every": 2, "checkpoint_every": 2}
    own = {"environment": f"{__name__}:prefers_small", "progress": "hide", "eval_problems": 3, "grain": 2}
    return RlConfig(out, init, **(fields | own | changes))


def prefers_small(draws: Draws) -> Problem:
    """Any digit, the smaller the better."""
    draws.below(2)
    return Problem("which?", lambda text: 1 - int(text) / 8 if text in "01234567" and text else 0.0)


def raises(draws: Draws) -> Problem:
    return Problem("which?", lambda text: 1 / 0)


def is_nan(draws: Draws) -> Problem:
    return Problem("which?", lambda text: math.nan if text[:1] < "4" else 1.0)


def long(draws: Draws) -> Problem:
    return Problem("x" * 33, exactly("y"))


def interrupts(text: str) -> float:
    raise KeyboardInterrupt


def a_number(draws: Draws) -> Problem:
    return Problem(5, exactly("y"))


def no_score(draws: Draws) -> Problem:
    return Problem("which?", 1.0)


def nothing(draws: Draws) -> Problem:
    return Problem("", exactly("y"))


def an_end(draws: Draws) -> Problem:
    return Problem("a\x03", exactly("y"))


def no_text(draws: Draws) -> Problem:
    return Problem("a\ud800", exactly("y"))


def no_problem(draws: Draws) -> str:
    return "which?"


# ------------------------------------------------------------------------------------------------ environments


def test_environments_score_their_solutions_alone() -> None:
    for environment in ENVIRONMENTS.values():
        for number in range(300):
            asked = problem(environment, 1, number)
            assert asked.score(asked.solution) == 1 and asked.score(asked.solution + "0") == asked.score("") == 0
            assert problem(environment, 1, number).prompt == asked.prompt
    learned, held_out = (
        {problem(ENVIRONMENTS["arithmetic"], 0, i + n).prompt for i in range(4000)} for n in (0, 2**31)
    )
    every = {f"{a}{sign}{b}=" for a, b in itertools.product(range(10), repeat=2) for sign in "+-"}
    assert learned | held_out == every and not learned & held_out


def test_arithmetic_is_right() -> None:
    for number in range(300):
        asked = problem(ENVIRONMENTS["arithmetic"], 2, number)
        assert asked.solution == str(eval(asked.prompt[:-1]))


@pytest.mark.parametrize(
    ("text", "score"),
    [
        *[
            ("8*3-5", 1),
            ("3*8-5", 1),
            ("(8*3)-5", 1),
            ("8*3", 0),
            ("3+5+3+8", 0),
            ("3*8-5+0", 0),
            ("8*3-5=19", 0),
            ("19", 0),
        ],
        *[
            ("8*3-5.0", 0),
            ("", 0),
            ("8**3", 0),
            ("__import__('os')", 0),
            ("(" * 60, 0),
            ("8" * 9000, 0),
            ("8\n*3-5", 0),
        ],
    ],
)
def test_countdown_takes_any_expression_of_the_digits(text: str, score: int) -> None:
    def fixed(words: object) -> Problem:
        return ENVIRONMENTS["countdown"](words)

    class Words:
        """8 * 3 - 5, shown as it is."""

        drawn = iter([7, 2, 4, 2, 1, 0, 0, 0])

        def below(self, bound: int) -> int:
            return next(self.drawn)

    asked = fixed(Words())
    assert asked.prompt == "make 19 of 8 3 5=" and asked.score(text) == score


def test_a_path_names_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_test.py").write_text(
        "from reference.environments import Problem\ndef f(draws):\n    return Problem(str(draws.below(9)), len)\n"
    )
    (tmp_path / "broken_of_test.py").write_text("1 / 0\n")
    (tmp_path / "exits_of_test.py").write_text("raise SystemExit(2)\n")
    monkeypatch.chdir(tmp_path)
    assert problem(environment_of("mine_of_test:f"), 0, 3).score("abc") == 3
    for name, message in (
        ("sums", "is unknown: use one of arithmetic, countdown, reversal, or module:function"),
        ("mine_of_test:g", "has no function g"),
        ("nowhere_of_test:f", "ModuleNotFoundError"),
        ("broken_of_test:f", "ZeroDivisionError"),
        ("exits_of_test:f", "SystemExit"),
    ):
        with pytest.raises(ValueError, match=message):
            environment_of(name)
    with pytest.raises(ValueError, match="problem 0 is a str; return a Problem"):
        problem(no_problem, 0, 0)
    with pytest.raises(ValueError, match="problem 2 of seed 1 cannot be made"):
        problem(lambda draws: [][0], 1, 2)
    with pytest.raises(ValueError, match=r"cannot be made \(SystemExit: 3\)"):
        problem(lambda draws: sys.exit(3), 0, 0)


def test_a_score_that_fails_is_zero_counted_and_told_once() -> None:
    told: list[str] = []
    scorer = Scorer(told.append)
    asked = Problem("p", lambda text: {"a": 1.0, "b": math.nan, "c": -math.inf, "d": "x", "e": None}[text])
    assert [scorer(asked, text) for text in "abcdef"] == [1, 0, 0, 0, 0, 0]
    assert scorer.failures == 5 and len(told) == 1
    # as large as FP32's mean or deviation cannot hold, and what would end the program
    for score in (1e308, -1e30, 10**400, 2**40 + 1):
        assert scorer(Problem("p", lambda text, score=score: score), "") == 0.0
    assert scorer(Problem("p", lambda text: sys.exit(3)), "") == 0.0 and scorer.failures == 10
    assert scorer(Problem("p", lambda text: -(2**40)), "") == -(2**40)
    with pytest.raises(KeyboardInterrupt):
        scorer(Problem("p", interrupts), "")
    assert bool(group_advantages(torch.tensor([[-(2.0**40), 2.0**40] * 512])).isfinite().all())
    assert told[0].startswith("environment: the score of 'b' after 'p' gave nan; it counts as 0")


# ------------------------------------------------------------------------------------------------ the loss


def test_advantages_are_relative_to_the_group() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.1, 0.1, 0.1, 0.1], [3.0, 1.0, 2.0, 2.0]])
    found = group_advantages(rewards).tolist()
    for row, own in zip(rewards.tolist(), found, strict=True):
        mean, spread = statistics.mean(row), statistics.stdev(row)
        assert own == pytest.approx([(value - mean) / (spread + 1e-6) for value in row], abs=1e-6)
    assert found[1] == [0.0] * 4


def test_the_ratio_is_clipped_where_it_would_gain() -> None:
    new, old = torch.tensor([0.5, 0.5, -0.5, -0.5, 0.1]), torch.zeros(5)
    gain, clipped = clipped_surrogate(new, old, torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0]), 0.2)
    wanted = [2 * 1.2, -2 * math.exp(0.5), 2 * math.exp(-0.5), -2 * 0.8, 2 * math.exp(0.1)]
    assert gain.tolist() == pytest.approx(wanted, rel=1e-6)
    assert clipped.tolist() == [True, False, False, True, False]


def test_the_deviation_estimates_kl() -> None:
    """Exactly, over all tokens: sum q (exp(d) - 1 - d) = sum q log(q / p)."""
    p, q = (torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(s)).softmax(0) for s in (1, 2))
    d = p.log() - q.log()
    assert torch.allclose((q * deviation(d)).sum(), (q * (q.log() - p.log())).sum())


def test_equal_completions_of_a_problem_lie_in_rows_once() -> None:
    """With how often they were drawn; not those of another problem, and those that teach first."""
    done = [Completion(tokens, [-float(t) for t in tokens]) for tokens in ([5, 3], [6, 3], [5, 3], [5, 3], [7], [5, 3])]
    found = rollouts_of([(1, 2)] * 3 + [(1,)] * 3, done, [0.0, 0.0, 0.0, 0.5, -1.0, 0.5], 3, 5)
    assert found.rows.tokens.tolist() == [[1, 5, 1, 0, 0], [1, 2, 5, 0, 0], [1, 2, 6, 0, 0]]
    assert found.rows.targets[0].tolist() == [5, 3, 7, -100, -100]
    assert found.old[0].tolist() == [-5, -3, -7, 0, 0] and found.advantages[0].tolist() == [0.5, 0.5, -1, 0, 0]
    assert found.times.tolist() == [[2, 2, 1, 0, 0], [0, 2, 2, 0, 0], [0, 1, 1, 0, 0]] and found.taught == 1


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_gradients_are_those_of_the_formula(weight: float, init: Path, tmp_path: Path) -> None:
    """Completions alone, one after the other, in BF16 under autograd. Packed ones sum in another order, and gradients
    are rounded to BF16 on the way, 2^-8 of a term: after two dozen roundings in the longest path that is 2^-8 sqrt(24),
    2 % of the gradient, and 1 - cosine the half of its square. A clip or a sign that is wrong turns it by far more."""
    c = config(tmp_path / "run", init, preset="bf16", kl_weight=weight, clip_ratio=0.01, prompts=2, group=6)
    start = begin(c, ops, 2)
    with torch.no_grad():
        for weights in start.model.parameters():
            weights += 0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(weights.numel()))
    kept: dict[str, torch.Tensor] = {}

    class Tuning:
        """Keeps the gradient."""

        def update(self, step: int, number: int) -> dict:
            kept.update({name: p.grad.clone() for name, p in start.model.named_parameters()})
            start.model.zero_grad()
            return {}

    Tuning.start = start
    reference = begin(c, ops, 2).model.requires_grad_(False)
    scorer = Scorer(print)
    stage = Rl(Tuning(), c, asking(prefers_small, 0, 3), Sampler(start.model), reference, scorer)
    drawn: list = []
    packed = stage._packed
    object.__setattr__(stage, "_packed", lambda *found: drawn.append(found) or packed(*found))
    said = stage.advance(1)
    asked, done, advantages = drawn[0]
    assert said["reward"] == pytest.approx(
        sum(each.score(start.codec.decode(f.tokens)) for each, f in zip(asked, done, strict=True)) / 12
    )
    count, (loss, pull, other) = sum(len(f.tokens) for f in done), torch.zeros(3)
    for each, f, advantage in zip(asked, done, advantages, strict=True):
        before = start.codec.encode(each.prompt)
        ids, at = torch.tensor([[*before, *f.tokens[:-1]]]), torch.tensor(f.tokens)[:, None]

        def logs(model: torch.nn.Module, ids: torch.Tensor = ids, n: int = len(at)) -> torch.Tensor:
            return model.logits(ids, Draw(0, 1, 0))[0][0, -n:].float().log_softmax(-1)

        new = logs(start.model).gather(1, at)[:, 0]
        ratio = (new - torch.tensor(f.logprobs)).exp()
        loss = loss - torch.minimum(ratio * advantage, ratio.clamp(0.99, 1.01) * advantage).sum()
        d = logs(reference).gather(1, at)[:, 0] - new
        pull, other = pull + (d.exp() - 1 - d).sum(), other + ((-d).exp() - 1 + d).sum()
    ((loss + weight * pull) / count).backward()
    assert said["length"] == count / 12
    # a quarter and more from what it would be the other way round
    assert said["kl"] == pytest.approx(pull.item() / count, rel=0.05) and not 0.8 < (pull / other).item() < 1.25
    for name in ("head.weight", "layers.5.moe.w2", "layers.0.attention.qkv.weight", "embed"):
        ours, theirs = kept[name].flatten(), start.model.get_parameter(name).grad.flatten()
        assert torch.nn.functional.cosine_similarity(ours, theirs, dim=0) > 0.99, name


# ------------------------------------------------------------------------------------------------ runs


def bits(folder: Path) -> tuple[object, ...]:
    """Of a finished run: its log without seconds, and its last checkpoint."""
    log = [{k: v for k, v in record.items() if k != "seconds"} for record in read_log(folder / "log.jsonl")]
    return log, checkpoint.digest_of(checkpoint.load(checkpoint.latest(folder))[0])


def test_a_model_learns_what_is_rewarded(init: Path, tmp_path: Path) -> None:
    done = rl(config(tmp_path / "run", init, steps=25, lr=0.003, prompts=4, group=8, eval_every=25), ops)
    rewards = [record["reward"] for record in done.records]
    assert sum(rewards[-3:]) / 3 > 0.9 > 0.7 > sum(rewards[:3]) / 3
    last = done.records[-1]
    assert last["greedy_reward"] > 0.9 and last["kl"] > 0.1 and last["entropy"] < done.records[0]["entropy"]
    # the sampler's weights are the trainer's, at every step
    assert all(record["difference"] < 0.02 and record["failures"] == 0 for record in done.records)


@pytest.mark.every(3)
@pytest.mark.parametrize("preset", ["fourbit", "mxfp8", "bf16"])
@pytest.mark.parametrize("device", DEVICES)
def test_under_parity_sampler_and_trainer_differ_in_nothing(preset: str, device: str, tmp_path: Path) -> None:
    """Not one bit, however completions are packed, and with a window, fewer heads and a convolution; without it some
    do."""
    sizes = {"dim": 96, "heads": 4, "kv_heads": 2, "window": 6, "full_every": 2, "convolution": 3, "sequence": 64}
    first = SftConfig(tmp_path / "init", preset=preset, model=ModelConfig(**sizes), steps=3, warmup=1, examples=40)
    init = sft(dataclasses.replace(first, lr=0.01, progress="hide"), ops).folder
    changes = {
        "environment": "countdown",
        "tokens": 12,
        "steps": 1,
        "eval_problems": 1,
        "prompts": 16,
        "group": 4,
        "device": device,
    }
    found = [rl(config(tmp_path / f"{on}", init, parity=on, **changes), ops).records[0] for on in (True, False)]
    assert found[0]["difference_max"] == 0.0 == found[0]["kl_sampler"]
    assert 0.0 < found[1]["difference_max"] < 0.2


@pytest.mark.every(2)
@pytest.mark.parametrize("changes", [{}, {"updates": 2, "kl_weight": 0.1}])
def test_killed_and_resumed_it_has_the_same_bits(changes: dict, init: Path, tmp_path: Path) -> None:
    def die(record: dict) -> None:
        if record["step"] == 3:
            raise KeyboardInterrupt

    whole, cut = (config(tmp_path / name, init, **changes) for name in ("whole", "cut"))
    rl(whole, ops)
    with pytest.raises(KeyboardInterrupt):
        rl(cut, ops, on_progress=die)
    assert rl(cut, ops).resumed_from == 2
    assert bits(whole.out) == bits(cut.out)


@pytest.mark.parametrize(("name", "failures"), [("raises", 12), ("is_nan", None)])
def test_an_environment_that_fails_ends_nothing(
    name: str, failures: int | None, init: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = rl(config(tmp_path / "run", init, environment=f"{__name__}:{name}", steps=2, eval_every=1), ops)
    assert all(record["failures"] in ([failures] if failures else range(1, 13)) for record in done.records)
    assert all(math.isfinite(record["reward"]) for record in done.records)
    assert capsys.readouterr().err.count("it counts as 0") == 1
    if name == "raises":
        # nothing teaches, so nothing moves
        before, after = (load_run(folder).model.state_dict() for folder in (init, tmp_path / "run"))
        assert all(torch.equal(before[key], after[key]) for key in before)


def test_bad_arguments_are_told(init: Path, tmp_path: Path) -> None:
    good = config(tmp_path / "run", init)
    for changes, message in (
        ({"init": None}, "init None cannot be used; name the run folder"),
        ({"group": 1}, "group 1 cannot be used; use 2 or more"),
        ({"clip_ratio": math.nan}, "clip_ratio nan cannot be used"),
        ({"environment": "sums"}, "environment 'sums' is unknown"),
        ({"environment": f"{__name__}:a_number"}, "problem 0 needs a prompt that is text and a score"),
        ({"environment": f"{__name__}:no_score"}, "problem 0 needs a prompt that is text and a score"),
        ({"environment": f"{__name__}:nothing"}, "asks '' with 0 tokens, and the model sees 32"),
        ({"environment": f"{__name__}:an_end"}, "nd' asks 'a.x03': text .* holds the token 3"),
        ({"environment": f"{__name__}:no_text"}, "no_text' asks 'a.ud800': 'utf-8' codec can't encode"),
        ({"environment": f"{__name__}:long"}, "asks 'x+' with 33 tokens, and the model sees 32; ask in 1 to 32"),
    ):
        with pytest.raises(ValueError, match=message):
            rl(dataclasses.replace(good, **changes), ops)
        assert not (tmp_path / "run").exists()


def test_the_command_says_what_came_out(init: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rl", "--out", str(tmp_path / "run"), "--init", str(init), "--steps=2", "--warmup=1", "--prompts=2"]
    words += ["--group=2", "--tokens=2", "--eval-problems=2", "--environment=reversal", "--progress=hide"]
    for said in ("done", "was finished already"):
        assert fourbit.main(words) == 0
        assert f"rl in {tmp_path / 'run'} {said}: 2 steps, reward 0.000 in the first 1" in capsys.readouterr().out


def test_what_the_readme_says_of_the_default_run_is_what_its_record_holds() -> None:
    root = Path(fourbit.__file__).parent
    readme = " ".join((root / "README.md").read_text().split())
    with open(root / "tests" / "records" / "rl_arithmetic.csv") as file:
        rows = list(csv.DictReader(file))
    rewards = [float(row["reward"]) for row in rows]
    means = [sum(rewards[i - 20 : i]) / 20 for i in range(20, 601)]
    above = max(step for step, mean in enumerate(means, 20) if mean <= 0.8) + 1
    assert len(rewards) == 600 and f"from {means[0]:.2f} in the first 20 steps to {means[-1]:.2f} in the last" in readme
    assert f"stays above 0.8 from step {above} on" in readme
    held_out = round(18 * float(rows[-1]["heldout_reward"]))
    assert held_out == 1 and "while of 18 held-out sums one is right" in readme
