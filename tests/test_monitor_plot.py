"""Contract of studies.monitor_plot, reference.board and reference.monitor_cost: what was logged is what is shown.

Oracles: a log written here; TensorBoard's own reader, where it is installed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_monitor import SMALL, config

import fourbit
from numerics import ops
from reference.log import read_log
from reference.monitor_cost import CostConfig, cost
from reference.train import train
from studies import monitor_plot


def record(step: int, error: float, **more: Any) -> dict[str, Any]:
    numbers = {}
    for layer in (0, 1):
        for role in ("input", "hidden", "saved_input"):
            numbers |= {f"{layer}.{role}.rel_mse": error * (1 + layer), f"{layer}.{role}.flush": 0.0}
            numbers[f"{layer}.{role}.saturation"] = 0.0
        numbers[f"{layer}.output.rel_mse"] = 4 * error
    numbers |= {"1.hidden.flush": 0.25, "0.weights.oscillation": 1.5, "0.weights.oscillating": 0.125}
    return {"step": step, "loss": 3.0 / step, "grad_norm": 1.0, "monitor": numbers, **more}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    entry = {"layer": 1, "to": "mxfp8", "because": "flush 0.25 of hidden is above raise_flush 0.2"}
    plain = {"step": 2, "loss": 1.5, "grad_norm": 0.9, "loss_z": 0.5}
    records = [record(1, 0.01), plain, record(3, 0.02, loss_z=1.25, raised=[entry])]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return tmp_path


def test_the_table_tells_the_last_observed_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(["monitor", str(run)]) == 0
    head, _, *rows, told = capsys.readouterr().out.splitlines()
    assert head == "step 3, loss 1.0000, loss_z 1.25, grad_norm 1"
    assert rows[0].split() == [
        "0",
        "0.08",
        "0.02",
        "saved_input",
        "0",
        "saved_input",
        "0",
        "saved_input",
        "1.5",
        "0.12",
    ]
    assert rows[1].split() == ["1", "0.08", "0.04", "saved_input", "0.25", "hidden", "0", "saved_input", "-", "-"]
    assert told == "step 3: layer 1 raised to mxfp8: flush 0.25 of hidden is above raise_flush 0.2"


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_figure_has_every_measure(run: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = run / f"monitor.{kind}"
    assert fourbit.main(["monitor", str(run), "--out", str(out)]) == 0
    assert out.stat().st_size > 10_000
    chart = monitor_plot.figure(read_log(run / "log.jsonl"), run)
    axes = chart.axes
    assert len(axes) == 8 and all(axis.get_title(loc="left") and axis.lines for axis in axes)
    points = {tuple(line.get_ydata()) for line in axes[3].lines}
    assert (0.04, 0.08) in points  # the outputs' errors of both observed steps
    assert (0.02, 0.04) in {tuple(line.get_ydata()) for line in axes[4].lines}  # the worst layer's
    assert any(list(line.get_xdata()) == [3, 3] for line in axes[0].lines)  # where a layer was raised
    text = {entry.get_text() for entry in chart.legends[0].get_texts()}
    assert text == {"input", "hidden", "saved input", "a layer was raised"}


@pytest.mark.exhaustive
def test_a_figure_of_a_real_run_and_of_bf16_alone(tmp_path: Path) -> None:
    for name in ("fourbit", "bf16"):
        train(config(tmp_path / name, preset=name, steps=4, monitor_every=2), ops)
        records = read_log(tmp_path / name / "log.jsonl")
        monitor_plot.plots.save(monitor_plot.figure(records, tmp_path), tmp_path / f"{name}.svg")
        assert monitor_plot.text_table(records, tmp_path).count("\n") == 7


def test_what_cannot_be_shown_is_one_sentence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(["monitor", str(run), "--out", "x.pdf"]) == 2
    assert "use a file that ends in .svg or .png" in capsys.readouterr().err
    assert fourbit.main(["monitor", str(run / "none")]) == 2
    assert "does not exist; name the folder of a run" in capsys.readouterr().err
    (run / "log.jsonl").write_text('{"step": 1, "loss": 2.0, "grad_norm": 1.0}\n')
    assert fourbit.main(["monitor", str(run)]) == 2
    assert "was not observed; train it with monitor_every 1 or more" in capsys.readouterr().err


def test_without_tensorboard_the_extra_is_named_and_nothing_written(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # importing it fails
    board = tmp_path / "board"
    with pytest.raises(ValueError, match=r"install the extra `tensorboard`: pip install 'fourbit\[tensorboard\]'"):
        train(config(tmp_path / "new", tensorboard=board), ops)
    assert not board.exists() and not (tmp_path / "new").exists()
    assert fourbit.main(["monitor", str(run), "--tensorboard", str(board)]) == 2
    assert "install the extra `tensorboard`" in capsys.readouterr().err


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "board").touch()
    with pytest.raises(ValueError, match="is a file; name a folder"):
        train(config(tmp_path / "new", tensorboard=tmp_path / "board"), ops)


def test_tensorboard_reads_what_the_log_says_also_of_a_resumed_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="not run: the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 5:
            raise KeyboardInterrupt

    run = config(
        tmp_path / "run", checkpoint_every=2, monitor_every=3, raise_error=0.005, tensorboard=tmp_path / "live"
    )
    with pytest.raises(KeyboardInterrupt):
        train(run, ops, interrupt)
    train(run, ops)
    assert fourbit.main(["monitor", str(run.out), "--tensorboard", str(tmp_path / "after")]) == 0
    records = read_log(run.out / "log.jsonl")
    for folder in (tmp_path / "live", tmp_path / "after"):
        events = EventAccumulator(str(folder)).Reload()
        # float32 in the files
        seen = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events.Scalars("loss")]
        assert seen == [(r["step"], r["loss"]) for r in records]
        seen = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events.Scalars("rel_mse/4.hidden")]
        assert seen == [(r["step"], r["monitor"]["4.hidden.rel_mse"]) for r in records if "monitor" in r]
        assert "raised/text_summary" in events.Tags()["tensors"]


def test_the_cost_is_the_share_of_an_interval(capsys: pytest.CaptureFixture[str]) -> None:
    found = cost(CostConfig(rounds=2, model=SMALL), ops)
    extra = 8 * (found.followed - found.plain) + found.measured - found.plain
    assert found.plain > 0 and found.share == pytest.approx(extra / (50 * found.plain), rel=1e-9)
    words = ["bench", "monitor", "--rounds=1", "--model.dim=32", "--model.expert-dim=32", "--model.sequence=16"]
    assert fourbit.main(words) == 0
    assert "of the time at an interval of 50 steps (at most 3 %: " in capsys.readouterr().out
    for changes in ({"rounds": 0}, {"monitor_every": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(changes))}=0: use 1 or more"):
            cost(CostConfig(**changes), ops)


@pytest.mark.parametrize("seen", ["{}", "[1]", '{"zzz": 1}', '{"0.input.flush": "a"}', '{"0.input.flush": null}', "7"])
def test_a_damaged_observation_is_refused_by_its_step(tmp_path: Path, seen: str) -> None:
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1, "loss": 2.0, "grad_norm": 1.0, "monitor": {seen}}}\n')
    with pytest.raises(ValueError, match="what step 1 observed is damaged"):
        monitor_plot.main([str(tmp_path)])
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1, "loss": 2.0, "monitor": {seen}}}\n')
    with pytest.raises(ValueError, match="is damaged at line 1: grad_norm is None, no number"):
        monitor_plot.main([str(tmp_path)])
