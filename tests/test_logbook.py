"""Contract of reference.logbook: Weights & Biases gets the numbers of the log under TensorBoard's names, a resumed run
goes on in the same run there, and nothing but a missing package stops a run.

Oracle: the log; a stand-in for the library that keeps what it is told; the library itself without a network, where
it is installed.
"""

import json
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fourbit
from numerics import ops
from reference.config import TrainConfig
from reference.log import read_log
from reference.model import ModelConfig
from reference.train import train

SMALL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=16)


def config(folder: Path, **changes: Any) -> TrainConfig:
    text = folder.parent / "text"
    text.write_bytes(bytes(random.Random(0).choices(range(1, 256), k=4000)))
    options = {"steps": 5, "batch": 1, "grain": 1, "warmup": 1, "eval_every": 2, "eval_sequences": 1}
    options |= {"checkpoint_every": 2, "monitor_every": 2, "progress": "hide", "wandb": "project"}
    return TrainConfig(out=folder, data=str(text), model=SMALL, **(options | changes))


class Service:
    """What the library was told: `begun` runs, `logged` (step, numbers), how runs `ended`."""

    def __init__(self, reachable: bool) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.ended: list[int] = []
        self.reachable, self.held = reachable, False

    def module(self) -> ModuleType:
        found = ModuleType("wandb")
        error = type("Error", (Exception,), {})
        found.errors = SimpleNamespace(Error=error)
        found.Settings = lambda **options: options

        def init(**options: Any) -> Any:
            assert not self.held  # as the library refuses, though not by its own error
            if not self.reachable and options.get("mode") != "offline":
                self.held = True
                raise error("no\nconnection.")
            self.begun.append(options)
            return SimpleNamespace(
                log=lambda numbers, step: self.logged.append((step, numbers)),
                finish=lambda exit_code: self.ended.append(exit_code),
            )

        found.init, found.teardown = init, lambda: setattr(self, "held", False)
        return found


@pytest.fixture(params=[True, False], ids=["online", "offline"])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Service:
    found = Service(request.param)
    monkeypatch.setitem(sys.modules, "wandb", found.module())
    return found


def test_it_gets_what_the_log_says_also_of_a_resumed_run(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 3:
            raise KeyboardInterrupt

    run = config(tmp_path / "run", raise_error=0.005)
    with pytest.raises(KeyboardInterrupt):
        train(run, ops, interrupt)
    train(run, ops)
    train(run, ops)  # was finished: nothing to tell
    assert service.ended == [1, 0] and [step for step, _ in service.logged] == [1, 2, 3, 3, 4, 5]
    one, two = service.begun
    assert (one["project"], one["name"], one["resume"], one["dir"]) == ("project", "run", "allow", str(run.out))
    assert one["id"] == two["id"] == json.loads((run.out / "wandb.json").read_text())["id"]
    assert one["config"] == json.loads((run.out / "config.json").read_text()) and "wandb" not in one["config"]
    told = dict(service.logged)
    for record in read_log(run.out / "log.jsonl"):
        numbers = told[record["step"]]
        names = [name for name in ("loss", "heldout_ce", "grad_norm", "lr", "balance") if name in record]
        assert {name: numbers[name] for name in names} == {name: record[name] for name in names}
        for key, value in record.get("monitor", {}).items():
            where, measure = key.rsplit(".", 1)
            assert numbers[f"{measure}/{where}"] == value
        assert ("raised" in numbers) == ("raised" in record)
    assert any("raised" in numbers for numbers in told.values())
    err = capsys.readouterr().err
    line = "wandb 'project' cannot be reached (no connection); its records are kept on the disk, and `wandb sync"
    assert err.count(line) == (0 if service.reachable else 2)
    assert [options.get("mode") for options in service.begun] == [None if service.reachable else "offline"] * 2


@pytest.mark.every(2)
def test_two_runs_are_two_there_and_bits_are_the_same(tmp_path: Path, service: Service) -> None:
    runs = [train(config(tmp_path / name, monitor_every=0), ops) for name in "ab"]
    plain = train(config(tmp_path / "c", monitor_every=0, wandb=None), ops)
    assert len({options["id"] for options in service.begun}) == 2
    assert runs[0].train_losses == runs[1].train_losses == plain.train_losses
    assert not (tmp_path / "c" / "wandb.json").exists()


def test_a_run_may_take_it_up_later(tmp_path: Path, service: Service) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path / "run", wandb=None), ops, _interrupt_at_2)
    train(config(tmp_path / "run"), ops)
    assert [step for step, _ in service.logged] == [3, 4, 5]


def _interrupt_at_2(record: dict[str, Any]) -> None:
    if record["step"] == 2:
        raise KeyboardInterrupt


def test_without_the_package_the_extra_is_named_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it fails
    assert fourbit.main(["train", "--out", str(tmp_path / "run"), "--wandb", "project"]) == 2
    err = capsys.readouterr().err
    assert "install the extra `wandb`: pip install 'fourbit[wandb]'" in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("project", ["", "a/b", "50%"])
def test_a_name_that_the_service_refuses_is_refused(project: str, tmp_path: Path, service: Service) -> None:
    with pytest.raises(ValueError, match="cannot be a project's name"):
        train(config(tmp_path / "run", wandb=project), ops)
    assert not (tmp_path / "run").exists()


def test_a_damaged_identity_is_one_sentence(tmp_path: Path, service: Service) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path / "run"), ops, _interrupt_at_2)
    (tmp_path / "run" / "wandb.json").write_text("{}")
    with pytest.raises(ValueError, match=r"wandb.json' is damaged, or of something else: it lacks id"):
        train(config(tmp_path / "run"), ops)


def test_the_library_writes_on_the_disk_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="not run: the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train(config(tmp_path / "run", monitor_every=0), ops)
    (records,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert records.stat().st_size > 100
