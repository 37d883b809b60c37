"""Contract of reference.lengthen: a run gets more steps where those that a checkpoint stands for are the longer run's,
and then has its bits; else the folder is left alone and the message names the way. A warm-up that is longer than the
run is shortened, and says so.

Oracles: a run of the final length from the start; learning rates by hand.
"""

import dataclasses
import shutil
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run of eight steps, of which the last four are the decay."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "text").write_bytes(b"3+4=7, 8-2=6; " * 400)
    run = {"steps": 8, "warmup": 2, "batch": 1, "grain": 1, "eval_sequences": 1, "eval_every": 5, "progress": "hide"}
    more = {"checkpoint_every": 1, "monitor_every": 0, "preset": "mxfp8", "model": SMALL}
    made = TrainConfig(folder / "run", data=str(folder / "text"), schedule="wsd", decay_share=0.5, **run, **more)
    train(made, ops)
    return made


@pytest.fixture
def config(finished: TrainConfig, tmp_path: Path) -> TrainConfig:
    """The same run, of which nothing is there yet."""
    return dataclasses.replace(finished, out=tmp_path / "run")


def finish(finished: TrainConfig, config: TrainConfig) -> None:
    """Train `config`, or copy it if it is the finished run."""
    if dataclasses.replace(config, out=finished.out) == finished:
        shutil.copytree(finished.out, config.out)
    else:
        train(config, ops)


def bits(folder: Path) -> tuple[object, ...]:
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in read_log(folder / "log.jsonl")]
    return records, checkpoint.digest_of(checkpoint.load(checkpoint.latest(folder))[0])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def longer(config: TrainConfig, **changes: Any) -> TrainConfig:
    return dataclasses.replace(config, **({"steps": 12} | changes))


COSINE = {"schedule": "cosine", "decay_share": TrainConfig.decay_share}


@pytest.mark.every(3)
@pytest.mark.parametrize("changes", [{}, {"switch_at": 0.8}, COSINE | {"min_lr_ratio": 1.0}])
def test_a_lengthened_run_has_the_bits_of_a_long_one(
    finished: TrainConfig, config: TrainConfig, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(config, **changes)
    finish(finished, config)
    last = 8 if config.min_lr_ratio == 1.0 else 4
    # the last two, and the last one before the decay
    assert checkpoint.steps(config.out) == sorted({last, 7, 8})
    train(longer(config, out=config.out.with_name("whole")), ops)
    capsys.readouterr()
    assert train(longer(config), ops).resumed_from == last
    told = capsys.readouterr().err
    assert f"{config.out} is lengthened from 8 steps to 12, from its checkpoint of step {last} on" in told
    assert ("the steps after it are taken anew, and checkpoint 8 is deleted" in told) == (last == 4)
    mine, whole = (bits(config.out.with_name(name)) for name in ("run", "whole"))
    if last == 8:  # the last step of the shorter run was evaluated
        assert all(mine[0][7].pop(name) for name in ("heldout_ce", "heldout_bits_per_byte"))
    assert mine == whole and train(longer(config), ops).resumed_from == 12


@pytest.mark.parametrize(("every", "share", "kept"), [(8, 0.5, [4, 8]), (100, 0.25, [6, 8]), (3, 0.1, [7, 8])])
def test_the_last_step_before_the_decay_has_a_checkpoint_whatever_is_asked_for(
    config: TrainConfig, every: int, share: float, kept: list[int]
) -> None:
    config = dataclasses.replace(config, checkpoint_every=every, decay_share=share)
    train(config, ops)
    assert checkpoint.steps(config.out) == kept
    assert train(longer(config, steps=9), ops).resumed_from == kept[-2]


def test_a_run_that_was_killed_while_it_was_lengthened_goes_on_either_way(
    finished: TrainConfig, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(finished, config)
    with monkeypatch.context() as patch:
        patch.setattr(log.checkpoint, "write_json", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            train(longer(config), ops)
    assert checkpoint.steps(config.out) == [4]
    assert train(config, ops).resumed_from == 4 and bits(config.out) == bits(finished.out)


def test_an_unfinished_run_is_lengthened_from_where_it_is(config: TrainConfig) -> None:
    def die(record: dict[str, Any]) -> None:
        if record["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, ops, die)
    assert train(longer(config, steps=9), ops).resumed_from == 3


@pytest.mark.parametrize("steps", [3, 9])
def test_a_run_without_a_checkpoint_takes_any_number_of_steps(config: TrainConfig, steps: int) -> None:
    def die(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    config = dataclasses.replace(config, checkpoint_every=5, **COSINE)
    with pytest.raises(KeyboardInterrupt):
        train(config, ops, die)
    again = train(longer(config, steps=steps), ops)
    assert (again.steps, again.resumed_from) == (steps, 0)


@pytest.mark.parametrize(
    ("changes", "more", "says"),
    [
        (
            COSINE,
            {},
            "to 12: it differs from one of 12 from step 3 on, and its checkpoint is of step 8; runs with sched",
        ),
        (COSINE, {}, "runs with schedule wsd can be lengthened; go on from the weights of this one by `fourbit export"),
        ({}, {"steps": 6}, "of 8 steps, which cannot become 6; use steps 8, or another out"),
        ({}, {"lr": 0.1}, "holds a run with another configuration: steps .8 there, 12 now., lr"),
        ({"switch_at": 0.3}, {}, "it differs from one of 12 from step 3 on, and its checkpoint is of step 4"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    finished: TrainConfig, config: TrainConfig, changes: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    config = dataclasses.replace(config, **changes)
    finish(finished, config)
    before = contents(config.out)
    with pytest.raises(ValueError, match=says):
        train(longer(config, **more), ops)
    assert contents(config.out) == before
    assert train(config, ops).resumed_from == 8


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
    plain = COSINE | {"steps": 4, "lr": 1.0, "preset": "bf16"}
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
