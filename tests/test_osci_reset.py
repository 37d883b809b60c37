"""Contract of reference.oscillation: which master weights are reset, when, to what, and that a resumed run repeats it.

Oracle: weights that follow paths made by hand, measured by a scalar loop over Fractions and quantized by the plain
formula of `quantized`; for whole runs, the run that was never interrupted. Every comparison is of bits.
"""

import dataclasses
import json
import random
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import numerics as nm
from numerics import ops
from reference import checkpoint, recipe_table
from reference.model import ModelConfig
from reference.oscillation import Oscillation
from reference.presets import PRESETS, preset, tetrajet2
from reference.recipe import ExpertRecipe, OsciReset, Recipe, switched
from reference.train import TrainConfig, train

RULE = OsciReset(period=10, detect_steps=4, ratio=8.0)
LEVELS = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]  # magnitudes of E2M1


class Model(nn.Module):
    """One layer of one expert: w13 (1, 2, 16) and w2 (1, 1, 16), a block a row."""

    def __init__(self, recipe: ExpertRecipe, w13: Tensor, w2: Tensor) -> None:
        super().__init__()
        moe = nn.Module()
        moe.w13, moe.w2 = nn.Parameter(w13), nn.Parameter(w2)
        layer = nn.Module()
        layer.moe = moe
        self.layers, self.recipes, self.ops = nn.ModuleList([layer]), (recipe,), ops


def recipe_of(rule: OsciReset | None) -> ExpertRecipe:
    """Weights in NVFP4 whose blocks have no outer scale: block scale 1 where the largest magnitude is 6."""
    return dataclasses.replace(tetrajet2().experts, weight=ops.Cast(nm.NVFP4, None), osci_reset=rule)


def quantized(row: list[Fraction]) -> list[Fraction]:
    """Nearest level of each value of a block whose largest magnitude is 6 (scale 1): ties to the even code."""
    assert max(map(abs, row)) == 6
    found = []
    for x in row:
        distances = [(abs(abs(x) - level), n % 2) for n, level in enumerate(LEVELS)]
        level = LEVELS[distances.index(min(distances))]
        found.append(level if x >= 0 else -level)
    return found


BOUNDARY = Fraction(5, 4)  # between 1 and 1.5
TINY = Fraction(1, 64)

# by name: the value after step t of a window (t = 0 opens it), for t = 0 .. 5
PATHS = {
    "still": [Fraction(3)] * 6,
    "swings": [BOUNDARY + (-1) ** t * TINY for t in range(6)],  # 0.5 a step for 1/32: ratio 16
    "swings, negative": [-BOUNDARY - (-1) ** t * TINY for t in range(6)],
    "swings at the ratio": [BOUNDARY + (-1) ** t * TINY * 2 for t in range(6)],  # 0.5 for 1/16: ratio 8, just reset
    "swings just wider": [BOUNDARY + (-1) ** t * (TINY * 2 + Fraction(1, 4096)) for t in range(6)],
    "drifts": [Fraction(1) + Fraction(t, 5) for t in range(6)],  # through two boundaries, and not back
    "crosses once": [BOUNDARY - TINY, BOUNDARY - TINY, *[BOUNDARY + TINY] * 4],  # ratio 16 in one jump: as the source
    "moves inside its bin": [Fraction(1) + (-1) ** t * TINY for t in range(6)],
    "swings too late": [*[BOUNDARY - TINY] * 5, BOUNDARY + TINY],  # its only jump is after the last measured step
    "swings wide": [BOUNDARY + (-1) ** t * Fraction(1, 8) for t in range(6)],
}
RESET = {"swings", "swings, negative", "swings at the ratio", "crosses once"}


def rows_at(t: int) -> list[Fraction]:
    """A block of 16: every path's value after step t, the block's maximum 6, and zeros."""
    values = [path[t] for path in PATHS.values()]
    return [*values, Fraction(6), *[Fraction(0)] * (15 - len(values))]


def tensors_at(t: int) -> tuple[Tensor, Tensor]:
    row = torch.tensor([float(x) for x in rows_at(t)])
    return torch.stack([row, row.flip(0)])[None], -row[None, None]


def expected_row() -> list[Fraction]:
    """What the row is after the window: the scalar oracle."""
    ends = rows_at(5)
    for j in range(16):
        walked = sum(abs(rows_at(t)[j] - rows_at(t - 1)[j]) for t in range(1, 5))
        jumped = sum(abs(quantized(rows_at(t))[j] - quantized(rows_at(t - 1))[j]) for t in range(1, 5))
        if walked > 0 and jumped >= 8 * walked:
            ends[j] = quantized(rows_at(5))[j]
    return ends


def walk(watch: Oscillation, model: Any, first: int, ts: range) -> list[float | None]:
    """Take steps first, first + 1, .. to the values at each t."""

    def to(t: int) -> None:
        for weight, values in zip((model.layers[0].moe.w13, model.layers[0].moe.w2), tensors_at(t), strict=True):
            weight.copy_(values)

    return [watch.around(first + n, lambda t=t: to(t)) for n, t in enumerate(ts)]


def test_the_oracle_resets_what_the_paths_were_made_for():
    ends, row = rows_at(5), expected_row()
    assert {name for j, name in enumerate(PATHS) if row[j] != ends[j]} == RESET
    assert all(abs(row[j]) in (1, Fraction(3, 2)) for j, name in enumerate(PATHS) if name in RESET)


def test_an_oscillating_weight_is_reset_and_a_drifting_one_is_not():
    """Steps 11 to 16: t = 10 opens the window, 11 to 14 are measured, 15 resets."""
    model: Any = Model(recipe_of(RULE), *tensors_at(0))
    watch = Oscillation(model, 100)
    found = walk(watch, model, 11, range(6))
    assert found[:5] == [None] * 5 and found[5] == len(RESET) / 16
    row = torch.tensor([float(x) for x in expected_row()])
    assert torch.equal(model.layers[0].moe.w13, torch.stack([row, row.flip(0)])[None])
    assert torch.equal(model.layers[0].moe.w2, -row[None, None])
    assert watch.state() == {}


def test_both_paths_are_sums_over_the_measured_steps_alone():
    model: Any = Model(recipe_of(RULE), *tensors_at(0))
    watch = Oscillation(model, 100)
    walk(watch, model, 11, range(5))
    state = watch.state()
    names = [f"oscillation/layers.0.moe.{w}/{entry}" for w in ("w13", "w2") for entry in ("walked", "jumped")]
    assert list(state) == names
    for key, of in (("walked", lambda row: row), ("jumped", quantized)):
        moved = [sum(abs(of(rows_at(t))[j] - of(rows_at(t - 1))[j]) for t in range(1, 5)) for j in range(16)]
        # multiples of 2^-12 below 8, but for drifts' fifths, whose FP32 sum is within four roundings of 2^-24
        found = state[f"oscillation/layers.0.moe.w2/{key}"][0, 0]
        expected = torch.tensor([float(x) for x in moved])
        drift = list(PATHS).index("drifts")
        assert torch.equal(found[torch.arange(16) != drift], expected[torch.arange(16) != drift])
        assert float(found[drift]) == pytest.approx(float(expected[drift]), abs=2**-20)


@pytest.mark.parametrize(
    ("rule", "steps", "opened"),
    [
        (RULE, 100, [0, 10, 20, 30]),
        (dataclasses.replace(RULE, start_share=0.2), 100, [20, 30]),
        (dataclasses.replace(RULE, start_share=0.201), 100, [30]),  # step 20 of the source's count is before its start
        (dataclasses.replace(RULE, period=6), 36, [0, 6, 12, 18, 24, 30]),
        (None, 100, []),
    ],
)
def test_the_calendar(rule: OsciReset | None, steps: int, opened: list[int]):
    """Steps count from 1 here and from 0 in the source, whose multiples of the period open a window."""
    model: Any = Model(recipe_of(rule), *tensors_at(0))
    watch = Oscillation(model, steps)
    held, closed = [], []
    for step in range(1, 37):
        found = watch.around(step, lambda: None)
        held.append(bool(watch.state()))
        closed += [] if found is None else [step]
    begun = [step - 1 for step in range(1, 37) if held[step - 1] and (step == 1 or not held[step - 2])]
    length = 6 if rule is None else rule.detect_steps + 2
    assert begun == opened
    assert closed == [t + length for t in opened if t + length <= 36]
    assert sum(held) == sum(min(length - 1, 36 - t) for t in opened)


def test_a_weight_that_does_not_move_is_not_reset_though_its_scale_does():
    """A neighbour, the block's maximum, jumps between 6 and 12: all codes change, and no weight but that one moves."""
    model: Any = Model(recipe_of(RULE), *tensors_at(0))
    w2, watch = model.layers[0].moe.w2, Oscillation(model, 100)
    still = torch.full((1, 1, 16), 1.3)  # 1.5 at scale 1, 1 at scale 2

    def to(t: int) -> None:
        w2.copy_(still)
        w2[..., 15] = 6.0 if t % 2 else 12.0

    for t in range(6):
        watch.around(t + 1, lambda t=t: to(t))
        if t == 4:
            jumped = watch.state()["oscillation/layers.0.moe.w2/jumped"]
            assert bool((jumped[..., :15] > 0).all())
    assert torch.equal(w2[..., :15], still[..., :15])


def test_a_model_without_experts_is_left_alone():
    called = []
    assert Oscillation(nn.Linear(2, 2), 10).around(1, lambda: called.append(1)) is None and called == [1]


def test_a_rule_that_ends_inside_a_window_drops_it_and_one_that_begins_waits():
    model: Any = Model(recipe_of(RULE), *tensors_at(0))
    watch = Oscillation(model, 100)
    walk(watch, model, 11, range(3))
    model.recipes = (recipe_of(None),)
    assert walk(watch, model, 14, range(3, 4)) == [None] and watch.state() == {}
    model.recipes = (recipe_of(RULE),)
    assert walk(watch, model, 15, range(4, 6)) == [None, None] and watch.state() == {}
    assert torch.equal(model.layers[0].moe.w2, tensors_at(5)[1])


def test_a_switch_of_the_forward_takes_the_rule_along():
    first, second = preset("quartet2").experts, preset("tetrajet2").experts
    assert switched(first, second, "forward").osci_reset == second.osci_reset
    assert switched(first, second, "backward").osci_reset is None
    assert switched(second, first, "backward").osci_reset == second.osci_reset


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"detect_steps": 0}, "detect_steps=0: measure 1 step or more"),
        ({"period": 5}, "period=5: a window takes a step to open, 4 and one to reset; use 6 or more"),
        ({"ratio": 0.0}, "ratio=0.0: use a positive number"),
        ({"ratio": float("nan")}, "ratio=nan"),
        ({"start_share": 1.5}, "start_share=1.5: use a share between 0 and 1"),
    ],
)
def test_rules_that_cannot_be_are_refused(changes: dict, words: str):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(RULE, **changes)
    with pytest.raises(ValueError, match=r"osci_reset=.* with BF16 weights: give the weights a format"):
        dataclasses.replace(preset("bf16").experts, osci_reset=RULE)


# ------------------------------------------------------------------------------------------------ runs


def in_folder(folder: Path) -> TrainConfig:
    """A run of `short`, that is `tetrajet2` with windows that a short run meets: t = 5, 10 and 15 open one."""
    text = folder / "text.txt"
    text.write_bytes(bytes(random.Random(0).choices(range(1, 256), k=4000)))
    return TrainConfig(
        out=folder / "run",
        preset="short",
        data=str(text),
        steps=17,
        batch=2,
        grain=2,
        warmup=2,
        eval_every=20,
        eval_sequences=2,
        checkpoint_every=1,
        seed=3,
        model=ModelConfig(dim=32, depth=6, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=16),
    )


def short(rule: OsciReset | None) -> Recipe:
    base = tetrajet2()
    return dataclasses.replace(base, name="short", experts=dataclasses.replace(base.experts, osci_reset=rule))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    monkeypatch.setitem(PRESETS, "short", lambda: short(OsciReset(5, 2, 1.5, 0.25)))
    return in_folder(tmp_path)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in r.items() if name != "seconds"} for r in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The run that was never interrupted, and the checkpoint of each of its steps."""
    config = in_folder(tmp_path_factory.mktemp("whole"))
    states: dict[int, dict[str, Tensor]] = {}

    def keep(record: dict[str, Any]) -> None:
        states[record["step"]] = checkpoint.load(checkpoint.checkpoint_path(config.out, record["step"]))[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "short", lambda: short(OsciReset(5, 2, 1.5, 0.25)))
        train(config, ops, keep)
    return SimpleNamespace(log=records(config.out), states=states, out=config.out)


def test_a_run_resets_weights_at_its_steps_and_checkpoints_open_windows(whole: SimpleNamespace):
    resets = {r["step"]: r["weights_reset"] for r in whole.log if "weights_reset" in r}
    assert list(resets) == [9, 14] and all(0 < share < 1 for share in resets.values())
    for step, tensors in whole.states.items():
        held = [name for name in tensors if name.startswith("oscillation/")]
        assert len(held) == (6 * 2 * 2 if step in (6, 7, 8, 11, 12, 13, 16, 17) else 0)


def test_what_a_run_reset_are_values_of_the_forward(
    whole: SimpleNamespace, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
):
    """Against the same run without the rule: equal up to the first reset, after which the share of the expert weights
    that the log tells are what the forward multiplied, and all others and all moments are as they were. The forward of
    the next step still sees the same values; a later one does not."""
    monkeypatch.setitem(PRESETS, "short", lambda: short(None))
    out = config.out.with_name("plain")
    kept: dict[str, Tensor] = {}

    def keep(record: dict[str, Any]) -> None:
        if record["step"] == 9:
            kept.update(checkpoint.load(checkpoint.checkpoint_path(out, 9))[0])

    train(dataclasses.replace(config, out=out), ops, keep)
    log = records(out)
    assert [r["loss"] for r in log[:10]] == [r["loss"] for r in whole.log[:10]]
    assert log[-1]["loss"] != whole.log[-1]["loss"]
    count = size = 0
    for name, before in kept.items():
        after = whole.states[9][name]
        if name.endswith((".w13", ".w2")) and name.startswith("model/"):
            quantized = nm.quantize(before, nm.NVFP4, -1, 128).dequantize()
            moved = after != before
            assert torch.equal(after, torch.where(moved, quantized, before))
            count, size = count + int(moved.sum()), size + moved.numel()
        else:
            assert torch.equal(after, before)
    # a weight that was at the middle already counts as reset and does not move
    told = next(r["weights_reset"] for r in whole.log if "weights_reset" in r)
    assert count <= told * size and count > 0.9 * told * size


def test_an_interrupted_run_continues_bit_for_bit(config: TrainConfig, whole: SimpleNamespace):
    """One run, interrupted before a window, at its opening, inside, before and after its reset, inside a later one.
    The state of every step between is that of the uninterrupted run."""
    stops, seen = [5, 6, 7, 8, 9, 12], []

    def compare(record: dict[str, Any]) -> None:
        step = record["step"]
        seen.append(step)
        tensors, _ = checkpoint.load(checkpoint.checkpoint_path(config.out, step))
        assert list(tensors) == list(whole.states[step]), step
        wrong = [name for name, tensor in tensors.items() if not torch.equal(tensor, whole.states[step][name])]
        assert not wrong, step
        if step in stops:
            raise KeyboardInterrupt

    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            train(config, ops, compare)
        assert seen == [*range(1, stop + 1)]  # went on behind the stop before
    assert train(config, ops, compare).resumed_from == stops[-1]
    assert seen == [*range(1, 18)] and records(config.out) == whole.log


def test_recipes_without_the_rule_have_no_state_of_it(config: TrainConfig):
    train(dataclasses.replace(config, preset="fourbit", steps=3), ops)
    tensors, _ = checkpoint.load(checkpoint.checkpoint_path(config.out, 3))
    assert {name.split("/")[0] for name in tensors} == {"model", "adam"}
    assert not any("weights_reset" in r for r in records(config.out))


def test_the_rule_in_words():
    told = recipe_table.roles(preset("tetrajet2"))["masters"]
    assert told == (
        "FP32; every 200 steps after 3/5 of the run those whose quantized value moved 8 times as far as they did in "
        "50 steps are reset to it"
    )
    with_rule = [name for name in PRESETS if recipe_table.roles(preset(name))["masters"] != "FP32"]
    assert with_rule == ["tetrajet2"]
