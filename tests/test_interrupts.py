"""Contract of reference.interrupts: Ctrl-C and SIGTERM end a run after the step under way, with a checkpoint from which
it goes on bit for bit; before the first step and at a second signal at once, and the last line says what is saved.

Oracle: an uninterrupted run. Signals are real ones, sent to this process from inside a step.
"""

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fourbit
from numerics import ops
from reference import checkpoint
from reference import train as trainer
from reference.interrupts import Interrupted
from reference.log import read_log
from reference.model import ModelConfig
from reference.rl import Rl, RlConfig, rl
from reference.run import Run
from reference.sft import Sft, SftConfig, sft
from reference.train import TrainConfig, train

SMALL = ModelConfig(dim=32, heads=2, dense_layers=5, experts=4, expert_dim=32, shared_dim=32, sequence=32)


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    (tmp_path / "text").write_bytes(b"3+4=7, 8-2=6; " * 400)
    run = {"steps": 5, "warmup": 1, "batch": 2, "grain": 2, "eval_sequences": 2, "eval_every": 2, "progress": "hide"}
    more = {"checkpoint_every": 4, "monitor_every": 0, "preset": "bf16", "model": SMALL}
    return TrainConfig(tmp_path / "run", data=str(tmp_path / "text"), **run, **more)


def bits(folder: Path) -> tuple[object, ...]:
    """Of a finished run: its log without seconds, and its last checkpoint."""
    log = [{k: v for k, v in record.items() if k != "seconds"} for record in read_log(folder / "log.jsonl")]
    return log, checkpoint.digest_of(checkpoint.load(checkpoint.latest(folder))[0])


def signalled(patch: pytest.MonkeyPatch, kind: type, step: int, number: int, times: int = 1) -> None:
    """Step `step` gets a signal before it does anything."""
    advance: Callable[[Any, int], Any] = kind.advance

    def interrupted(self: Any, at: int) -> Any:
        for _ in range(times if at == step else 0):
            signal.raise_signal(number)
        return advance(self, at)

    patch.setattr(kind, "advance", interrupted)


@pytest.mark.parametrize(
    ("number", "step", "code"), [(signal.SIGINT, 2, 130), (signal.SIGTERM, 2, 143), (signal.SIGINT, 4, 130)]
)
def test_the_step_is_finished_and_saved(
    config: TrainConfig, number: int, step: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first regular checkpoint, which is that of step 4, and in its own step."""
    train(dataclasses.replace(config, out=config.out.with_name("whole")), ops)
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        signalled(patch, Run, step, number)
        with pytest.raises(Interrupted, match=rf"^interrupted after step {step} of 5, whose checkpoint is saved;") as e:
            train(config, ops)
    assert e.value.code == code and checkpoint.steps(config.out) == [step]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert train(config, ops).resumed_from == step
    assert bits(config.out) == bits(config.out.with_name("whole"))


def test_stages_after_pretraining_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"steps": 4, "warmup": 1, "checkpoint_every": 3, "eval_every": 4, "progress": "hide"}
    first = SftConfig(tmp_path / "sft", preset="bf16", examples=40, model=SMALL, **run)
    sft(dataclasses.replace(first, out=tmp_path / "sft whole"), ops)
    second = {"environment": "arithmetic", "prompts": 2, "group": 2, "tokens": 2, "eval_problems": 2} | run
    again = RlConfig(tmp_path / "rl", tmp_path / "sft whole", **second)
    rl(dataclasses.replace(again, out=tmp_path / "rl whole"), ops)
    for kind, start, c in ((Sft, sft, first), (Rl, rl, again)):
        with monkeypatch.context() as patch:
            signalled(patch, kind, 2, signal.SIGTERM)
            with pytest.raises(Interrupted, match="after step 2 of 4, whose checkpoint is saved"):
                start(c, ops)
        assert start(c, ops).resumed_from == 2
        assert bits(c.out) == bits(c.out.with_name(f"{c.out.name} whole"))


def words(config: TrainConfig) -> list[str]:
    sizes = dataclasses.asdict(config.model)
    named = {f"model.{k}": v for k, v in sizes.items() if v != getattr(ModelConfig, k)}
    fields = ("out", "data", "steps", "warmup", "batch", "grain", "eval_sequences", "checkpoint_every", "preset")
    named |= {k: getattr(config, k) for k in (*fields, "monitor_every", "progress")}
    return ["train", *(f"--{k.replace('_', '-')}={v}" for k, v in named.items())]


def test_the_command_says_what_is_saved(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "corpus_of", lambda _: signal.raise_signal(signal.SIGTERM))
        assert fourbit.main(words(config)) == 143
    told = "fourbit: interrupted; nothing is saved, since no checkpoint had been written\n"
    assert capfd.readouterr().err == told and not config.out.exists()
    with monkeypatch.context() as patch:
        signalled(patch, Run, 3, signal.SIGINT, times=2)
        assert fourbit.main(words(config)) == 130
    notes = capfd.readouterr().err.splitlines()
    assert notes[-1] == told.strip() and "a checkpoint is saved after this step, once more ends the run" in notes[-2]
    with monkeypatch.context() as patch:
        signalled(patch, Run, 3, signal.SIGINT)
        assert fourbit.main(words(config)) == 130
    assert capfd.readouterr().err.splitlines()[-1] == (
        "fourbit: interrupted after step 3 of 5, whose checkpoint is saved; the same command goes on from it"
    )
    with monkeypatch.context() as patch:
        signalled(patch, Run, 5, signal.SIGINT, times=2)
        assert fourbit.main(words(config)) == 130
    first, *_, last = capfd.readouterr().err.splitlines()
    assert first == f"fourbit: {config.out} goes on after step 3 of 5"
    assert last == "fourbit: interrupted; the last checkpoint is that of step 4; the same command goes on from it"
    assert fourbit.main(words(config)) == 0
    assert capfd.readouterr().err == f"fourbit: {config.out} goes on after step 4 of 5\n"


def test_a_signal_in_the_last_step_does_not_matter(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    signalled(monkeypatch, Run, 5, signal.SIGINT)
    assert train(config, ops).steps == 5


def test_a_programs_own_handlers_stay(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        signalled(monkeypatch, Run, 2, signal.SIGTERM)
        assert train(config, ops).steps == 5 and got == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_interrupt_from_a_callback_says_what_is_saved(config: TrainConfig) -> None:
    def die(record: dict[str, Any]) -> None:
        if record["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="nothing is saved, since no checkpoint had been written"):
        train(config, ops, die)
    assert [json.loads(line)["step"] for line in (config.out / "log.jsonl").read_text().splitlines()] == [1, 2]
