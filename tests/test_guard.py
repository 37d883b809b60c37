"""Contract of reference.guard and reference.schedule: what raises a layer, which recipe it follows then, and that a run
which is killed, resumed, or watched otherwise has the same bits.

Oracles: recipes made bad on purpose in one layer, medians of numpy, logs written here, and an uninterrupted run.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_monitor import SMALL, config, lines

import fourbit
from numerics import ops
from reference import checkpoint
from reference import train as trainer
from reference.guard import Guard, reference_losses
from reference.model import ModelConfig, Transformer
from reference.presets import preset
from reference.recipe import switched
from reference.schedule import schedule
from reference.train import TrainConfig, train

DEPTH = SMALL.depth


def raised(folder: Path) -> dict[int, list[dict[str, Any]]]:
    return {record["step"]: record["raised"] for record in lines(folder) if "raised" in record}


# ------------------------------------------------------------------------------------------------ thresholds

BAD_LAYER = {
    "saturation": (
        {2: "mxfp8_floor"},
        {"raise_saturation": 1e-6},
        r"saturation 0\.\d+ of \w+ is above raise_saturation",
    ),
    "error": ({3: "nvfp4_all"}, {"raise_error": 0.005}, r"rel_mse 0\.0\d+ of \w+ is above raise_error 0\.005"),
    "flush": ({4: "nvfp4_all"}, {"raise_flush": 0.05}, r"flush 0\.\d+ of \w+ is above raise_flush 0\.05"),
    "output": ({0: "nvfp4_all"}, {"raise_output": 0.02}, r"rel_mse 0\.\d+ of output is above raise_output 0\.02"),
}


@pytest.mark.parametrize("what", BAD_LAYER)
def test_a_threshold_raises_exactly_the_bad_layer_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    layer_presets, thresholds, because = BAD_LAYER[what]
    (layer,) = layer_presets
    run = config(tmp_path / "run", preset="mxfp8", layer_presets=layer_presets, steps=3, progress="hide", **thresholds)
    train(run, ops)
    ((step, (entry,)),) = raised(run.out).items()
    assert (step, entry["layer"], entry["to"]) == (1, layer, "mxfp8")
    assert re.fullmatch(because + ".*", entry["because"])
    err = capsys.readouterr().err
    assert err == f"step 1: layer {layer} raised to mxfp8: {entry['because']}\n"
    # from the next step on it is as good as the others
    measure = {"error": "weight13.rel_mse", "output": "output.rel_mse"}.get(what, f"weight13.{what}")
    values = [[record["monitor"][f"{i}.{measure}"] for i in range(DEPTH)] for record in lines(run.out)]
    assert values[0][layer] > 2 * max(values[0][i] for i in range(DEPTH) if i != layer)
    assert values[1][layer] < values[0][layer] / 2


def test_a_raised_layer_computes_under_its_recipe_from_the_next_step(tmp_path: Path, monkeypatch: Any) -> None:
    """The recipes that the model follows, step by step; evaluation after a step still has those of that step."""
    seen: list[tuple[int, bool]] = []
    forward = Transformer.forward

    def spy(self: Transformer, tokens: Any, targets: Any, draw: Any, grains: int) -> Any:
        seen.append((draw.step, self.recipes[2] == preset("bf16").experts))
        return forward(self, tokens, targets, draw, grains)

    monkeypatch.setattr(Transformer, "forward", spy)
    layer_presets = {2: "mxfp8_floor"}
    run = config(tmp_path / "run", preset="mxfp8", layer_presets=layer_presets, raise_saturation=1e-6, steps=4)
    train(dataclasses.replace(run, raise_to="bf16", monitor_every=2, eval_every=1), ops)
    order = list(dict.fromkeys(seen))
    assert order == [(1, False), (-1, False), (2, True), (-1, True), (3, True), (4, True)]


def test_layers_that_follow_the_recipe_already_are_left_alone(tmp_path: Path) -> None:
    train(config(tmp_path / "run", preset="mxfp8", steps=3, raise_error=1e-5), ops)
    assert raised(tmp_path / "run") == {}


def write_log(folder: Path, losses: dict[int, float]) -> Path:
    folder.mkdir()
    text = "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses.items())
    (folder / "log.jsonl").write_text(text)
    return folder


def test_a_loss_above_the_reference_raises_every_layer(tmp_path: Path) -> None:
    plain = train(config(tmp_path / "plain", steps=5), ops).train_losses
    losses = {step: loss for step, loss in enumerate(plain, start=1)} | {3: plain[2] / 1.5}
    reference = write_log(tmp_path / "reference", {step: losses[step] for step in range(1, 5)})
    run = config(tmp_path / "run", steps=5, monitor_reference=reference, raise_loss=0.4, monitor_every=50)
    result = train(run, ops)
    assert [r.get("loss_deviation") for r in lines(run.out)][:3] == [0.0, 0.0, pytest.approx(0.5, rel=1e-12)]
    assert "loss_deviation" not in lines(run.out)[4]  # the reference has no fifth step
    assert list(raised(run.out)) == [3]
    assert [entry["layer"] for entry in raised(run.out)[3]] == list(range(DEPTH))
    assert result.train_losses[:3] == plain[:3] and result.train_losses[3:] != plain[3:]
    # to watch without a threshold changes nothing, and the reference's place is no matter
    watch = dataclasses.replace(run, out=tmp_path / "watch", raise_loss=None)
    assert train(watch, ops).train_losses == plain
    moved = reference.rename(tmp_path / "moved")
    assert train(dataclasses.replace(run, monitor_reference=moved), ops).resumed_from == 5
    (moved / "log.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    with pytest.raises(ValueError, match=r"monitor_reference \(\w+ there, \w+ now\)"):
        train(dataclasses.replace(run, monitor_reference=moved), ops)


def test_layers_without_experts_are_not_raised(tmp_path: Path) -> None:
    model = dataclasses.replace(SMALL, dense_layers=2)
    reference = write_log(tmp_path / "reference", {1: 1.0, 2: 1.0})
    run = config(tmp_path / "run", steps=2, model=model, monitor_reference=reference, raise_loss=0.1)
    train(run, ops)
    assert [entry["layer"] for entry in raised(run.out)[1]] == list(range(2, DEPTH))


def test_without_a_reference_a_loss_is_judged_by_its_own_last_ones(tmp_path: Path) -> None:
    run = config(tmp_path / "run", raise_loss=6.0)
    guard, losses = Guard(run, schedule(run)), list(3 + np.random.default_rng(0).normal(0, 0.1, 70))
    losses[60] = 5.0
    for step, loss in enumerate(losses, start=1):
        found = guard.deviation(step, loss)
        before = np.array(losses[max(0, step - 51) : step - 1])
        if len(before) < 10:
            assert found == {}
            continue
        spread = 1.4826 * np.median(np.abs(before - np.median(before)))
        assert found["loss_z"] == pytest.approx((loss - np.median(before)) / spread, rel=1e-12)
        entries = guard.judge(step, found, {})
        assert [entry["layer"] for entry in entries] == (list(range(DEPTH)) if step == 61 else [])
    resumed = Guard(run, schedule(run))
    entry = {"layer": 4, "to": "mxfp8", "because": ""}
    resumed.resume([{"loss": loss} for loss in losses[:-1]] + [{"loss": losses[-1], "raised": [entry]}])
    assert resumed.deviation(71, 3.0) == guard.deviation(71, 3.0) and resumed.raised == {4}
    flat = Guard(run, schedule(run))
    flat.resume([{"loss": 2.0}] * 20)
    assert flat.deviation(21, 2.5) == {}  # no spread, no measure


# ------------------------------------------------------------------------------------------------ resume


@pytest.fixture(scope="module")
def raised_run(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run of seven steps, never interrupted, in which the loss raises layers in step 3 and nothing else changes."""
    folder = tmp_path_factory.mktemp("raised")
    run = config(folder / "whole", steps=7, monitor_every=3, checkpoint_every=2, raise_loss=0.2)
    run = dataclasses.replace(run, preset="mxfp8", layer_presets={1: "nvfp4_all"}, raise_to="bf16")
    plain = train(dataclasses.replace(run, out=folder / "plain", raise_loss=None, raise_to="mxfp8"), ops).train_losses
    reference = write_log(folder / "reference", {1: plain[0], 2: plain[1], 3: plain[2] / 2, 4: 100.0})
    run = dataclasses.replace(run, monitor_reference=reference)
    ends = train(run, ops).train_losses
    assert list(raised(run.out)) == [3]
    assert ends[:3] == plain[:3] and ends[3:] != plain[3:]
    return run


@pytest.mark.every(4)
@pytest.mark.parametrize("last", [2, 3, 4, 5])
def test_a_raised_run_that_is_interrupted_ends_bit_for_bit_like_an_uninterrupted_one(
    tmp_path: Path, raised_run: TrainConfig, last: int
) -> None:
    """Raised in step 3; checkpoints are those of steps 2, 4 and 6: what was raised is lost, or read from the log."""
    run = raised_run

    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == last:
            raise KeyboardInterrupt

    parts = dataclasses.replace(run, out=tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        train(parts, ops, interrupt)
    assert train(parts, ops).resumed_from == last // 2 * 2
    assert lines(parts.out) == lines(run.out)
    ends = [checkpoint.latest(folder) for folder in (run.out, parts.out)]
    assert ends[0] is not None and ends[1] is not None and ends[0].read_bytes() == ends[1].read_bytes()


def test_a_run_without_thresholds_may_be_resumed_with_another_monitor_or_none(tmp_path: Path) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 5:
            raise KeyboardInterrupt

    whole = train(config(tmp_path / "whole", checkpoint_every=2), ops)
    reference = write_log(tmp_path / "reference", {1: 2.0})
    run = config(tmp_path / "run", checkpoint_every=2, monitor_every=0)
    with pytest.raises(KeyboardInterrupt):
        train(run, ops, interrupt)
    again = dataclasses.replace(run, monitor_every=3, monitor_reference=reference)
    result = train(again, ops)
    assert result.resumed_from == 4 and result.train_losses == whole.train_losses
    assert [record["step"] for record in lines(run.out) if "monitor" in record] == [6]
    stored = json.loads((run.out / "config.json").read_text())
    assert not [
        name for name in stored if "raise" in name or "monitor" in name or name in ("tensorboard", "layer_presets")
    ]


def test_with_thresholds_what_raises_is_part_of_the_run(tmp_path: Path) -> None:
    run = config(tmp_path / "run", steps=2, raise_error=0.5)
    train(run, ops)
    for changes, words in (
        ({"raise_error": 0.4}, r"raise_error \(0\.5 there, 0\.4 now\)"),
        ({"raise_error": None}, r"raise_error \(0\.5 there, absent now\)"),
        ({"raise_to": "bf16"}, r"raise_to \(mxfp8 there, bf16 now\)"),
        ({"monitor_every": 2}, r"monitor_every \(1 there, 2 now\)"),
        ({"layer_presets": {1: "bf16"}}, r"layer_presets\.1 \(absent there, bf16 now\)"),
    ):
        with pytest.raises(ValueError, match=words):
            train(dataclasses.replace(run, **changes), ops)
    assert train(run, ops).resumed_from == 2


# ------------------------------------------------------------------------------------------------ layers


def test_the_schedule_of_layers() -> None:
    run = config(Path("run"), layer_presets={0: "bf16", 4: "mxfp8"}, steps=10)
    plan = schedule(run)
    fourbit_, bf16, mxfp8 = preset("fourbit"), preset("bf16"), preset("mxfp8")
    own = [fourbit_.layer(i, DEPTH) for i in range(DEPTH)]
    expected = (bf16.experts, *own[1:4], mxfp8.experts, own[5])
    assert plan.start == expected and plan.at(10, ()) is plan.start and plan.at(10, {1}) is plan.start
    late = dataclasses.replace(run, switch_at=0.5, switch_to="bf16", switch_pass="forward", raise_error=1.0)
    plan = schedule(late)
    assert plan.at(5, ()) == expected
    assert plan.at(6, ()) == tuple(switched(recipe, bf16.experts, "forward") for recipe in expected)
    assert plan.at(6, {3, 5})[3] == plan.at(6, {3, 5})[5] == plan.at(2, {3})[3] == mxfp8.experts
    assert plan.at(2, {3})[2] == own[2] and plan.at(6, {3})[2] == plan.at(6, ())[2]


def test_layers_with_recipes_of_their_own_resume_and_decide_bits(tmp_path: Path) -> None:
    run = config(tmp_path / "run", layer_presets={4: "mxfp8", 0: "bf16"}, steps=4, checkpoint_every=2)

    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 3:
            raise KeyboardInterrupt

    whole = train(dataclasses.replace(run, out=tmp_path / "whole"), ops)
    with pytest.raises(KeyboardInterrupt):
        train(run, ops, interrupt)
    result = train(run, ops)
    assert result.resumed_from == 2 and result.train_losses == whole.train_losses
    assert lines(run.out) == lines(tmp_path / "whole")
    every = dict.fromkeys(range(DEPTH), "bf16")
    same = train(dataclasses.replace(run, out=tmp_path / "all", layer_presets=every), ops)
    bf16 = train(dataclasses.replace(run, out=tmp_path / "bf16", preset="bf16", layer_presets={}), ops)
    assert same.train_losses == bf16.train_losses != whole.train_losses


def test_the_command_line_takes_layers_and_their_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def stop(config: Any, ops: Any, **_: Any) -> None:
        seen.append(config.layer_presets)
        raise ValueError("enough")

    monkeypatch.setattr(trainer, "train", stop)
    assert fourbit.main(["train", "--out", str(tmp_path / "x"), "--layer-presets", "4", "mxfp8", "5", "bf16"]) == 2
    assert seen == [{4: "mxfp8", 5: "bf16"}]


# ------------------------------------------------------------------------------------------------ clear ends

REFUSED = [
    ({"layer_presets": {6: "bf16"}}, "layer_presets names layer 6: model.depth is 6; use layers 0 to 5"),
    ({"layer_presets": {-1: "bf16"}}, "layer_presets names layer -1: model.depth is 6; use layers 0 to 5"),
    ({"layer_presets": {1: "fp3"}}, "layer_presets: preset='fp3' is unknown: use one of bf16, "),
    ({"layer_presets": {1: "fp8_deepseek"}}, "dim=32: blocks of 128 of recipe fp8_deepseek do not divide it; use 128"),
    (
        {"model": dataclasses.replace(SMALL, dense_layers=2), "layer_presets": {1: "bf16"}},
        f"layer_presets names layer 1, which has no experts: model.dense_layers is 2; use layers 2 to {DEPTH - 1}",
    ),
    ({"raise_error": 0.1, "raise_to": "fp3"}, "raise_to: preset='fp3' is unknown: use one of bf16, "),
    ({"raise_error": 0.1, "raise_to": "fp8_deepseek"}, "blocks of 128 of recipe fp8_deepseek do not divide it"),
    ({"raise_error": 0.1, "monitor_every": 0}, "raise_error 0.1 needs the monitor, which monitor_every 0 switches off"),
    ({"raise_loss": 9.0, "monitor_every": 0}, "raise_loss 9.0 needs the monitor, which monitor_every 0 switches off"),
    (
        {"monitor_reference": Path("r"), "monitor_every": 0},
        "monitor_reference 'r' needs the monitor, which monitor_every 0",
    ),
    ({"monitor_every": -1}, "monitor_every -1 cannot be used; use 1 or more, or 0 for no monitor"),
    ({"raise_error": 0.0}, "raise_error 0.0 cannot be used; use a positive number"),
    ({"raise_flush": float("nan")}, "raise_flush nan cannot be used; use a positive number"),
    ({"raise_saturation": float("inf")}, "raise_saturation inf cannot be used; use a positive number"),
    ({"monitor_reference": Path("no")}, "does not exist; name the folder of a run"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=[words[:50] for _, words in REFUSED])
def test_what_cannot_be_is_refused_before_anything_is_written(changes: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        train(config(tmp_path / "run", **changes), ops)
    assert not (tmp_path / "run").exists()


def test_a_reference_without_losses_is_refused(tmp_path: Path) -> None:
    for text in ("", '{"step": 1}\n', '{"step": 1, "loss": "x"}\n'):
        (tmp_path / "log.jsonl").write_text(text)
        with pytest.raises(ValueError, match="has a log without losses; name the folder of a run"):
            reference_losses(tmp_path, tmp_path / "run")


# ------------------------------------------------------------------------------------------------ what nobody can mean


def test_a_threshold_never_lowers_a_layer(tmp_path: Path) -> None:
    """BF16 layers, from the start or by the late switch, stay in BF16 when the loss raises all the others."""
    losses = write_log(tmp_path / "reference", dict.fromkeys(range(1, 5), 0.1))
    watched = {"monitor_reference": losses, "raise_loss": 0.1, "steps": 4}
    train(config(tmp_path / "run", preset="nvfp4_all", layer_presets={1: "bf16", 2: "mxfp8_floor"}, **watched), ops)
    (entries,) = raised(tmp_path / "run").values()
    assert [entry["layer"] for entry in entries] == [layer for layer in range(DEPTH) if layer != 1]
    late = write_log(tmp_path / "late", {1: 99.0, 2: 99.0, 3: 0.1, 4: 0.1})  # above it after the switch alone
    watched |= {"monitor_reference": late, "switch_at": 0.5}
    train(config(tmp_path / "switched", preset="nvfp4_all", **watched), ops)
    assert raised(tmp_path / "switched") == {}


@pytest.mark.parametrize(("share", "steps", "last"), [(0.29, 100, 29), (0.57, 100, 57), (0.82, 50, 41), (0.5, 5, 2)])
def test_the_late_switch_follows_the_share_that_was_written(
    tmp_path: Path, share: float, steps: int, last: int
) -> None:
    """0.29 * 100 is below 29 in floating point."""
    plan = schedule(config(tmp_path, steps=steps, switch_at=share, switch_to="bf16"))
    assert plan.at(last, ()) is plan.start and plan.at(last + 1, ()) is plan.later
    for other in range(1, 400):
        plan = schedule(config(tmp_path, steps=400, switch_at=other / 400, switch_to="bf16"))
        assert plan.switch_step == other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"switch_to": "mxfp8"}, "switch_to 'mxfp8' does nothing alone; give switch_at"),
        ({"switch_pass": "forward"}, "switch_pass 'forward' does nothing alone; give switch_at"),
        ({"model": ModelConfig(full_every=3)}, "model.full_every 3 does nothing alone; give model.window"),
        ({"model": ModelConfig(dense_dim=64)}, "model.dense_dim 64 does nothing alone; give model.dense_layers"),
        (
            {"model": ModelConfig(router="sigmoid", balance=0.1)},
            r"model.balance 0\.1 does nothing alone; give model.rou",
        ),
        ({"model": ModelConfig(bias_speed=0.01)}, r"model.bias_speed 0\.01 does nothing alone; give model.router sig"),
        ({"model": ModelConfig(depth=6 * 10**30)}, "model.depth 60+ cannot be used; use at most 10000"),
        ({"model": ModelConfig(vocab=10**30)}, "model.vocab 10+ cannot be used; use at most 2147483647"),
        ({"raise_to": "bf16"}, "raise_to 'bf16' does nothing alone; give a threshold"),
        ({"switch_at": 0.5, "switch_to": "fp4"}, "switch_to: preset='fp4' is unknown"),
        (
            {"switch_at": 0.5, "preset": "tetrajet2", "switch_to": "fourbit", "switch_pass": "backward"},
            "'keep', weight",
        ),
        ({"monitor_reference": Path("nowhere")}, "monitor_reference 'nowhere': log .* does not exist"),
    ],
)
def test_a_run_that_cannot_be_meant_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(config(tmp_path / "run", **changes), ops)
    assert not (tmp_path / "run").exists()


def test_a_run_is_no_reference_of_itself(tmp_path: Path) -> None:
    run = config(tmp_path / "run", steps=1, warmup=1)
    train(run, ops)
    with pytest.raises(ValueError, match=r"monitor_reference .* is this run's own folder"):
        train(dataclasses.replace(run, monitor_reference=tmp_path / "x" / ".." / "run"), ops)


@pytest.mark.parametrize("loss", ["NaN", '"2"', "true", "null"])
def test_a_damaged_log_is_refused_by_name(tmp_path: Path, loss: str) -> None:
    run = config(tmp_path / "run", steps=2, checkpoint_every=1)
    train(run, ops)
    log = run.out / "log.jsonl"
    log.write_text(re.sub(r'"loss": [\d.]+', f'"loss": {loss}', log.read_text(), count=1))
    with pytest.raises(ValueError, match=r"log .* is damaged at line 1: loss is .*, no number"):
        train(run, ops)


def test_a_layer_preset_gives_a_layer_what_that_recipe_gives_it(tmp_path: Path) -> None:
    """Also where it depends on the place: the last sixth of `fourbit` is its `last`."""
    plan = schedule(config(tmp_path, preset="bf16", layer_presets={0: "fourbit", DEPTH - 1: "fourbit"}))
    fourbit_ = preset("fourbit")
    assert (plan.start[0], plan.start[-1]) == (fourbit_.experts, fourbit_.last)
    assert set(plan.start[1:-1]) == {preset("bf16").experts}
