"""Contract of reference.monitor: measures are what their formulas say, and looking on changes no bit of a run.

Oracles: values made by hand, whose errors, flushes and saturations are counted on paper; loops in float64 over decoded
scales; the calls of the operations, recorded, with every group of rows transformed by itself; a run without a monitor.
"""

import dataclasses
import itertools
import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import numerics as nm
from numerics import ops
from numerics.ops import Cast
from numerics.scales import RULES
from reference import checkpoint
from reference.expert import Draw, ExpertMLP, Role, Setting, route
from reference.model import ModelConfig
from reference.monitor import MEASURES, ROLES, WINDOW, Observer, due, measure, relative_mse
from reference.presets import preset
from reference.train import TrainConfig, train

SMALL = ModelConfig(dim=32, depth=6, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=16)
FLOOR = dataclasses.replace(nm.MXFP8, name="MXFP8_FLOOR", rule=RULES["floor"])


def config(folder: Path, **changes: Any) -> TrainConfig:
    """A run of the real model, on this Python's random.py."""
    base = TrainConfig(
        out=folder,
        data=random.__file__,
        steps=8,
        batch=2,
        grain=1,
        warmup=2,
        eval_every=4,
        eval_sequences=2,
        checkpoint_every=8,
        seed=3,
        model=SMALL,
        monitor_every=1,
    )
    return dataclasses.replace(base, **changes)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The log without times."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


# ------------------------------------------------------------------------------------------------ measures


def test_flushes_and_saturations_counted_by_hand() -> None:
    """Rounded down, the scale of a block with maximum 500 is 1: E4M3 holds 448 at most, and 2^-9 at least."""
    x = torch.zeros(1, 32)
    values = [500.0, 449.0, 448.0, -470.0, 2.0**-11, -(2.0**-10), 1.0]
    x[0, : len(values)] = torch.tensor(values)
    rel_mse, flush, saturation = measure(x, nm.quantize(x, FLOOR)).tolist()
    assert saturation == 3 / 7  # 500, 449 and -470; 448 is the largest value itself
    assert flush == 2 / 7  # 2^-10 lies between 0 and 2^-9 and goes to the even code, 0
    error = 52**2 + 1 + 22**2 + 2.0**-22 + 2.0**-20
    assert rel_mse == pytest.approx(error / sum(v * v for v in values), rel=1e-12)
    up = nm.quantize(x, nm.MXFP8)  # rounded up the scale is 2: no value is clipped, and 2^-9 would be flushed
    assert measure(x, up)[1:].tolist() == [2 / 7, 0.0]


def test_a_scale_that_underflows_flushes_and_does_not_clip() -> None:
    x = torch.full((1, 16), 1e-9)
    x[0, 0] = -0.0
    q = nm.quantize(torch.cat([x, torch.full((1, 16), 448.0 * 6)]), nm.NVFP4)
    both = torch.cat([x, torch.full((1, 16), 448.0 * 6)])
    assert measure(both, q)[1:].tolist() == [15 / 31, 0.0]
    zeros = torch.zeros(4, 32)
    assert measure(zeros, nm.quantize(zeros, nm.MXFP8)).tolist() == [0.0, 0.0, 0.0]


FORMATS = (nm.NVFP4, nm.NVFP4_46, nm.IF4, nm.NVINT4, nm.MXFP8, FLOOR, nm.MXFP4, nm.MXS2F6, nm.FP8_1X128)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_measures_agree_with_loops_over_blocks(fmt: nm.BlockFormat) -> None:
    """The limit of a block is decoded scale times largest element times outer scale, products as `BlockTensor` orders
    them; sums are of float64 against float64 of float32 differences: 2^-24 relative each."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 256, generator=generator) * torch.exp(3 * torch.randn(6, 1, generator=generator))
    x[0, 3], x[2] = 0.0, x[2] * 1e-3
    q = nm.quantize(x, fmt)
    x_q, values = q.dequantize().double().numpy(), x.double().numpy()
    scales = (q.scales if fmt.scale is None else nm.decode(q.scales, fmt.scale)).numpy().astype(np.float32)
    outer = np.float32(1) if q.outer is None else q.outer.numpy().astype(np.float32)
    flushed = clipped = nonzero = 0
    for row in range(6):
        for column in range(256):
            scale, largest = scales[row, column // fmt.block], np.float32(fmt.element.max)
            if fmt.alternative is not None and scale < 0:
                scale, largest = -scale, np.float32(fmt.alternative.max)
            limit = float(np.max((largest * scale) * outer))
            v = values[row, column]
            nonzero += v != 0
            flushed += v != 0 and x_q[row, column] == 0
            clipped += abs(v) > limit * (1 + 2.0**-20) and limit > 0  # FP32 scales round down by an ulp
    rel_mse = ((x_q - values) ** 2).sum() / (values**2).sum()
    seen = measure(x, q).tolist()
    assert seen[0] == pytest.approx(rel_mse, rel=1e-5)
    assert seen[1:] == [flushed / nonzero, clipped / nonzero]
    assert (clipped > 0) == (fmt.rule.name in ("nvfp4", "if4", "floor", "four_over_six"))


def test_relative_mse_of_zeros_and_of_extremes() -> None:
    assert relative_mse(torch.zeros(3), torch.zeros(3)).item() == 0.0
    for size in (1e-30, 1e30):  # their squares are beyond float32
        x = torch.full((8,), size)
        assert relative_mse(x, 1.5 * x).item() == pytest.approx(0.25, rel=1e-6)


# ------------------------------------------------------------------------------------------------ roles


class Spy:
    """`numerics.ops`, with the calls of the operations that quantize recorded."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(ops, name)
        if name not in ("quantize_tokens", "requantize_transpose", "grad_to_wire"):
            return real

        def call(*arguments: Any) -> Any:
            result = real(*arguments)
            self.calls.append((name, arguments, result))
            return result

        return call


def layer(recipe_name: str, observer: Observer | None, spy: Any = ops) -> tuple[torch.Tensor, Spy, list[Any]]:
    """One layer's forward and backward on random inputs: the output and the gradients."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(24, 64, generator=generator).to(torch.bfloat16).requires_grad_()
    w13 = (torch.randn(4, 128, 64, generator=generator) * 0.2).requires_grad_()
    w2 = (torch.randn(4, 64, 64, generator=generator) * 0.2).requires_grad_()
    chosen = torch.stack([torch.randperm(4, generator=generator)[:2].sort().values for _ in range(24)])
    weights = torch.rand(24, 2, generator=generator).requires_grad_()
    recipe = preset(recipe_name).experts
    signs = {size: nm.hadamard_signs(size, (0, 0)) for size in recipe.hadamard_sizes}
    setting = Setting(spy, recipe, signs, 0, Draw(0, 1, 0), observer=observer)
    out = ExpertMLP.apply(x, weights, w13, w2, route(chosen, 4), setting)
    g = torch.randn(24, 64, generator=generator).to(torch.bfloat16)
    gradients = torch.autograd.grad(out, [x, weights, w13, w2], g)
    return out, spy, [out, *gradients]


def transformed(x: torch.Tensor, axis: int, signs: Any, groups: Any) -> torch.Tensor:
    """Each group by itself, filled up with zeros to whole transforms."""
    if signs is None:
        return x
    if groups is None:
        return nm.hadamard(x, len(signs), signs, axis)
    parts = []
    for start, end in itertools.pairwise(groups):
        rows = torch.cat([x[start:end], x.new_zeros(-(end - start) % len(signs), x.shape[1])])
        parts.append(nm.hadamard(rows.T.contiguous(), len(signs), signs, -1).T if len(rows) else rows)
    return torch.cat(parts)


BACKWARD = (  # in the order of the operations' calls
    *("grad_output", "grad_output_tokens", "saved_weight2", "saved_hidden"),
    *("grad_gate_up", "grad_gate_up_tokens", "saved_weight13", "saved_input", "grad_input"),
)


@pytest.mark.parametrize(
    "name", ["fourbit", "mxfp8_floor", "nvfp4_all", "nvfp4_nvidia", "mxfp4", "fourbit_outer_in_gradient"]
)
def test_every_role_is_measured_from_what_the_operations_were_given(name: str) -> None:
    observer, spy = Observer(), Spy()
    observer.begin(True)
    layer(name, observer, spy)
    numbers = observer.numbers()
    recorded = []
    for what, given, q in spy.calls:
        if not isinstance(q, nm.BlockTensor) or what == "grad_to_wire":
            continue
        given = [*given, *[None] * (6 - len(given))]
        if what == "quantize_tokens":
            x, _, _, groups, _, signs = given
            x = transformed(x.detach().float(), -1, signs, groups)
        else:
            source, recast, groups, _, rows, signs = given
            dropped = isinstance(source, nm.BlockTensor) and recast.outer == "gradient"
            x = source.float() if isinstance(source, torch.Tensor) else source.values() if dropped else None
            x = source.dequantize() if x is None else x
            x = transformed(x if rows is None else x * rows, -2, signs, groups)
        recorded.append(nm.metrics.error(x, q.dequantize()))
    recipe = preset(name).experts
    forward = [role for role in ("weight13", "weight2", "input") if recipe.weight.fmt is not None]
    backward = [role for role in BACKWARD if recipe.grad_wire is None or role != "grad_input"]
    if recipe.grad_wire is None:
        backward.remove("grad_output")  # that is `grad_to_wire`'s
    assert len(recorded) == len(forward) + len(backward)
    # FP32 differences against float64 ones
    for role, error in zip([*forward, *backward], recorded, strict=True):
        if error.rel_mse > 1e-9:
            assert numbers[f"0.{role}.rel_mse"] == pytest.approx(error.rel_mse, rel=1e-5), role
        assert numbers[f"0.{role}.flush"] == error.flush_to_zero, role
    seen = {key.split(".")[1] for key in numbers}
    assert seen == {*forward, *backward, "output"} | ({"hidden"} if forward else set()) | (
        {"grad_output"} if recipe.grad_wire is None else set()
    )


def test_the_output_is_measured_against_the_same_experts_in_bf16() -> None:
    observer = Observer()
    for name in ("fourbit", "bf16"):
        observer.begin(True)
        out, _, _ = layer(name, observer)
        plain, _, _ = layer("bf16", None)
        expected = nm.metrics.error(plain.detach(), out.detach()).rel_mse
        assert observer.numbers()["0.output.rel_mse"] == pytest.approx(expected, rel=1e-5)
        assert (expected == 0) == (name == "bf16")


def test_weights_alone_are_followed_where_nothing_is_measured() -> None:
    observer = Observer()
    observer.begin(False)
    layer("fourbit", observer)
    assert observer.numbers() == {}


# ------------------------------------------------------------------------------------------------ oscillation


def setting_of(cast: Cast, slot: int = 0) -> Any:
    return SimpleNamespace(layer=4, slot=slot, recipe=SimpleNamespace(weight=cast))


def test_oscillation_is_the_ratio_of_movements_element_by_element() -> None:
    """Weights that wander, one that swings around a boundary between codes, one that rests."""
    generator, cast = torch.Generator().manual_seed(2), Cast(nm.MXFP4)
    walk = torch.randn(5, 2, 4, 32, generator=generator).cumsum(0) * 0.3
    walk[:, 0, 0, 0] = 6.0  # the block's maximum: its scale stays 1
    walk[:, 0, 0] = walk[:, 0, 0].clamp(-6, 6)
    walk[:, 0, 0, 1] = torch.tensor([0.25, 0.251, 0.25, 0.251, 0.25])  # codes 0, 0.5, 0 ..: 0.5 for every 0.001
    observer = Observer()
    for w in walk:
        observer.begin(False)
        observer.weight(setting_of(cast), Role.W13, w.clone(), nm.quantize(w, nm.MXFP4))
        observer.weight(setting_of(cast, slot=32), Role.W13, w * 5, nm.quantize(w, nm.MXFP4))  # shared: left alone
    operands = torch.stack([nm.quantize(w, nm.MXFP4).dequantize() for w in walk]).double().numpy()
    moved = np.abs(np.diff(walk.double().numpy(), axis=0)).sum(0)
    moved_q = np.abs(np.diff(operands, axis=0)).sum(0)
    numbers = observer.numbers()
    assert numbers["4.weights.oscillation"] == pytest.approx(moved_q.sum() / moved.sum(), rel=1e-5)
    ratio = moved_q[moved > 0] / moved[moved > 0]
    assert numbers["4.weights.oscillating"] == pytest.approx((ratio >= 16).mean(), rel=1e-12)
    assert (ratio >= 16).sum() >= 1 and moved_q[0, 0, 1] == 2.0
    assert numbers["4.weights.transitions"] == 4


def test_weights_that_rest_and_formats_that_change_count_nothing() -> None:
    observer, w = Observer(), torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(3))
    for fmt in (nm.MXFP4, nm.MXFP4, nm.MXFP8):
        observer.weight(setting_of(Cast(fmt)), Role.W2, w, nm.quantize(w, fmt))
        numbers = observer.numbers()
    assert numbers == {}  # a window of another format has begun
    observer.weight(setting_of(Cast(nm.MXFP8)), Role.W2, w, nm.quantize(w, nm.MXFP8))
    names = ("oscillation", "oscillating", "transitions")
    assert observer.numbers() == dict(zip((f"4.weights.{name}" for name in names), (0.0, 0.0, 1.0), strict=True))


def test_weights_that_a_switch_puts_in_bf16_have_no_window_left() -> None:
    """The window of the steps before would be told as that of a later step, in which no weight has a code."""
    observer, generator = Observer(), torch.Generator().manual_seed(3)
    for fmt in (nm.MXFP4, nm.MXFP4, None):
        w = torch.randn(2, 4, 32, generator=generator)
        observer.weight(setting_of(Cast(fmt)), Role.W2, w, ops.quantize_tokens(w, Cast(fmt)))
    assert observer.numbers() == {}


def test_which_steps_are_due() -> None:
    parts = {step: due(step, 50, 120) for step in range(1, 121)}
    assert [step for step, part in parts.items() if part == "measured"] == [1, 50, 100]
    assert [step for step, part in parts.items() if part == "followed"] == [*range(42, 50), *range(92, 100)]
    assert {due(step, 0, 9) for step in range(1, 10)} == {None}
    assert {due(step, 1, 9) for step in range(1, 10)} == {"measured"}
    assert [due(step, 5, 7) for step in range(1, 8)] == ["measured", *["followed"] * 3, "measured", None, None]


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("every", "saves", "transitions"),
    [
        (1, 20, {step: 1 for step in range(2, 21)}),
        (5, 20, {5: 4, 10: 5, 15: 5, 20: 5}),
        (10, 20, {10: WINDOW, 20: WINDOW}),
        (10, 7, {10: 2, 20: 5}),
    ],
)
def test_windows_end_at_measured_steps_and_span_no_checkpoint(
    tmp_path: Path, every: int, saves: int, transitions: dict[int, int]
) -> None:
    fields = {"monitor_every": every, "checkpoint_every": saves, "batch": 1, "eval_every": 20, "eval_sequences": 1}
    train(config(tmp_path / "run", steps=20, **fields), ops)
    found = {r["step"]: r["monitor"].get("0.weights.transitions") for r in lines(tmp_path / "run") if "monitor" in r}
    assert {step: n for step, n in found.items() if n is not None} == transitions


# ------------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize("name", ["fourbit", "nvfp4_nvidia", "nvfp4_all", "mxfp4", "bf16"])
def test_a_layer_that_is_observed_has_the_same_bits(name: str) -> None:
    observer = Observer()
    observer.begin(True)
    _, _, seen = layer(name, observer)
    _, _, plain = layer(name, None)
    assert all(torch.equal(one, two) for one, two in zip(seen, plain, strict=True))


@pytest.mark.every(2)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_run_that_is_observed_has_the_same_bits(tmp_path: Path, recompute: bool) -> None:
    """The file of the last checkpoint: weights, moments, and the identity of the run too."""
    results = [
        train(config(tmp_path / f"{every}", monitor_every=every, recompute_glu=recompute), ops) for every in (0, 1, 3)
    ]
    assert results[0].train_losses == results[1].train_losses == results[2].train_losses
    assert results[0].heldout_losses == results[1].heldout_losses
    assert results[0].saved_bytes == results[1].saved_bytes
    files = [checkpoint.latest(result.folder) for result in results]
    assert len({path.read_bytes() for path in files if path is not None}) == 1
    assert not any("monitor" in record or "loss_z" in record for record in lines(tmp_path / "0"))


def test_the_log_has_every_layer_and_role_of_the_observed_steps(tmp_path: Path) -> None:
    train(config(tmp_path / "run", monitor_every=4), ops)
    seen = {record["step"]: record["monitor"] for record in lines(tmp_path / "run") if "monitor" in record}
    assert list(seen) == [1, 4, 8]
    expected = {f"{i}.{role}.{name}" for i in range(6) for role in ROLES for name in MEASURES}
    expected |= {f"{i}.output.rel_mse" for i in range(6)}
    weights = {f"{i}.weights.{name}" for i in range(6) for name in ("oscillation", "oscillating", "transitions")}
    assert set(seen[1]) == expected and set(seen[4]) == set(seen[8]) == expected | weights
    assert all(math.isfinite(value) and value >= 0 for numbers in seen.values() for value in numbers.values())
    for numbers in seen.values():  # NVFP4 below, MXFP8 in the last layer
        assert 0.005 < numbers["0.weight13.rel_mse"] < 0.015 > numbers["4.input.rel_mse"] > 0.005
        assert numbers["5.weight13.rel_mse"] < 0.002 and numbers["5.weight13.saturation"] == 0


def test_a_shared_expert_under_the_recipe_has_roles_of_its_own() -> None:
    from reference.model import Transformer

    recipe = dataclasses.replace(preset("fourbit"), shared=True)
    model, observer = Transformer(SMALL, recipe, ops, 0), Observer()
    observer.begin(True)
    model.observer = observer
    tokens = torch.randint(256, (1, 16), generator=torch.Generator().manual_seed(0))
    model(tokens, tokens, Draw(0, 1, 0)).total.backward()
    roles = {key.split(".")[1] for key in observer.numbers()}
    assert roles == {*ROLES, "output", *(f"shared_{role}" for role in (*ROLES, "output"))}
