"""Contract of reference.lengthen: a run gets more steps where those that a checkpoint stands for are the longer run's,
and then has its bits; else the folder is left alone and the message names the way. A warm-up that is longer than the
run is shortened, and says so.

Oracles: a run of the final length from the start; learning rates by hand.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import fourbit
from numerics import ops
from reference import checkpoint, lengthen, log
from reference.log import read_log
from reference.model import ModelConfig
from reference.sft import SftConfig, sft
from reference.train import TrainConfig, train

SMALL = ModelConfig(dim=32, heads=2, dense_layers=5, experts=4, expert_dim=32, shared_dim=32, sequence=32)


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """Of ten steps, of which the last four are the decay."""
    (tmp_path / "text").write_bytes(b"3+4=7, 8-2=6; " * 400)
    run = {"steps": 10, "warmup": 2, "batch": 2, "grain": 2, "eval_sequences": 2, "eval_every": 5, "progress": "hide"}
    more = {"checkpoint_every": 1, "monitor_every": 0, "preset": "mxfp8", "model": SMALL}
    wsd = {"schedule": "wsd", "decay_share": 0.4}
    return TrainConfig(tmp_path / "run", data=str(tmp_path / "text"), **run, **more, **wsd)


def bits(folder: Path) -> tuple[object, ...]:
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in read_log(folder / "log.jsonl")]
    return records, checkpoint.digest_of(checkpoint.load(checkpoint.latest(folder))[0])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def longer(config: TrainConfig, **changes: Any) -> TrainConfig:
    return dataclasses.replace(config, **({"steps": 15} | changes))


@pytest.mark.parametrize(
    "changes", [{}, {"switch_at": 0.9, "switch_to": "bf16"}, {"schedule": "cosine", "min_lr_ratio": 1.0}]
)
def test_a_lengthened_run_has_the_bits_of_a_long_one(
    config: TrainConfig, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    if changes.get("schedule"):
        changes = changes | {"decay_share": TrainConfig.decay_share}
    config = dataclasses.replace(config, **changes)
    train(config, ops)
    constant = config.min_lr_ratio == 1.0
    # the last two, and the last one before the decay
    assert checkpoint.steps(config.out) == ([9, 10] if constant else [6, 9, 10])
    train(longer(config, out=config.out.with_name("whole")), ops)
    capsys.readouterr()
    assert train(longer(config), ops).resumed_from == (10 if constant else 6)
    told = capsys.readouterr().err
    assert (
        f"{config.out} is lengthened from 10 steps to 15, from its checkpoint of step {10 if constant else 6}" in told
    )
    assert ("the steps after it are taken anew" in told) != constant
    mine, whole = (bits(config.out.with_name(name)) for name in ("run", "whole"))
    if constant:  # the last step of the shorter run was evaluated
        mine[0][9].update({k: v for k, v in whole[0][9].items() if k.startswith("heldout")})
    assert mine == whole and train(longer(config), ops).resumed_from == 15


def test_a_run_that_was_killed_while_it_was_lengthened_goes_on_either_way(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config, ops)
    finished = bits(config.out)
    with monkeypatch.context() as patch:
        patch.setattr(log.checkpoint, "write_json", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            train(longer(config), ops)
    assert checkpoint.steps(config.out) == [6]
    assert train(config, ops).resumed_from == 6 and bits(config.out) == finished


def test_an_unfinished_run_is_lengthened_from_where_it_is(config: TrainConfig) -> None:
    def die(record: dict[str, Any]) -> None:
        if record["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, ops, die)
    assert train(longer(config), ops).resumed_from == 5


@pytest.mark.parametrize("steps", [3, 15])
def test_a_run_without_a_checkpoint_takes_any_number_of_steps(config: TrainConfig, steps: int) -> None:
    def die(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    config = dataclasses.replace(config, schedule="cosine", decay_share=0.2, checkpoint_every=5)
    with pytest.raises(KeyboardInterrupt):
        train(config, ops, die)
    again = train(longer(config, steps=steps), ops)
    assert (again.steps, again.resumed_from) == (steps, 0)


@pytest.mark.parametrize(
    ("changes", "more", "says"),
    [
        (
            {"schedule": "cosine", "decay_share": 0.2},
            {},
            "to 15: it differs from one of 15 from step 3 on, and its checkpoint is of step 10",
        ),
        (
            {"schedule": "cosine", "decay_share": 0.2},
            {},
            "runs with schedule wsd can be lengthened; go on from the weig",
        ),
        ({}, {"steps": 8}, "of 10 steps, which cannot become 8; use steps 10, or another out"),
        ({}, {"lr": 0.1}, "holds a run with another configuration: steps .10 there, 15 now., lr"),
        ({"checkpoint_every": 10}, {}, "from step 7 on, and it has no checkpoint up to step 6; runs with schedule wsd"),
        ({"switch_at": 0.2}, {}, "it differs from one of 15 from step 3 on, and its checkpoint is of step 6"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    config: TrainConfig, changes: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    config = dataclasses.replace(config, **changes)
    train(config, ops)
    before = contents(config.out)
    with pytest.raises(ValueError, match=says):
        train(longer(config, **more), ops)
    assert contents(config.out) == before
    assert train(config, ops).resumed_from == 10


def test_a_tuned_run_names_the_next_stage(tmp_path: Path) -> None:
    run = {"warmup": 1, "checkpoint_every": 1, "progress": "hide"}
    c = SftConfig(tmp_path / "run", preset="bf16", examples=40, model=SMALL, steps=2, **run)
    sft(c, ops)
    with pytest.raises(ValueError, match=r"go on from it in another folder: fourbit sft --init .*run --out ANOTHER$"):
        sft(dataclasses.replace(c, steps=3), ops)
    constant = dataclasses.replace(c, out=tmp_path / "constant", min_lr_ratio=1.0)
    sft(constant, ops)
    assert sft(dataclasses.replace(constant, steps=3), ops).resumed_from == 2


def test_the_calendar_of_weights_that_are_reset_counts(config: TrainConfig) -> None:
    """Its windows open after a share of the steps."""
    one = dataclasses.replace(config, preset="tetrajet2", steps=1000)
    assert lengthen._same(one, dataclasses.replace(one, steps=500)) <= 300


# ------------------------------------------------------------------------------------------------ warm-up


@pytest.mark.parametrize(
    ("changes", "rates", "told"),
    [
        ({"warmup": 9}, [1 / 4, 2 / 4, 3 / 4, 1.0], "shortened to 4, since there are 4 steps"),
        ({"warmup": 9, "schedule": "wsd", "decay_share": 0.5, "decay_shape": "linear", "min_lr_ratio": 0.0},
         [1 / 2, 1.0, 1 / 2, 0.0], "shortened to 2, since there are 4 steps, 2 of them the decay"),
        ({"warmup": 4}, [1 / 4, 2 / 4, 3 / 4, 1.0], None),
    ],
)  # fmt: skip
def test_a_warm_up_that_is_too_long_is_shortened(
    config: TrainConfig,
    changes: dict[str, Any],
    rates: list[float],
    told: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = {"schedule": "cosine", "decay_share": 0.2, "steps": 4, "lr": 1.0, "preset": "bf16"}
    train(dataclasses.replace(config, **(plain | changes)), ops)
    assert [record["lr"] for record in read_log(config.out / "log.jsonl")] == pytest.approx(rates)
    err = capsys.readouterr().err
    assert err == ("" if told is None else f"fourbit: warmup 9 is {told}\n")


def test_the_defaults_of_every_stage_suit_a_few_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--model.dim=32", "--model.experts=4", "--model.expert-dim=32", "--model.dense-layers=5", "--preset=bf16"]
    words = ["sft", "--steps=2", "--examples=20", "--progress=hide", *sizes]
    assert fourbit.main([*words, "--out", str(tmp_path / "sft")]) == 0
    assert "fourbit: warmup 10 is shortened to 2, since there are 2 steps\n" in capsys.readouterr().err
    words = ["rl", "--steps=1", "--prompts=2", "--group=2", "--tokens=2", "--eval-problems=2", "--progress=hide"]
    assert fourbit.main([*words, "--init", str(tmp_path / "sft"), "--out", str(tmp_path / "rl")]) == 0
    assert "fourbit: warmup 10 is shortened to 1, since there are 1 steps\n" in capsys.readouterr().err
