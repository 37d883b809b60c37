"""Contract of reference.optimizer: AdamW as it is defined, what Muon moves, state that fits, and resumed runs.

Oracles: AdamW in fractions, its root to 40 digits; torch's AdamW, bit for bit, for the same rule with stored moments;
a step by hand from the decoded state; and an uninterrupted run. What Muon and moments do alone is in tests of theirs.
"""

import dataclasses
import json
import multiprocessing
import os
import random
import signal
import sys
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from numerics import ops
from reference import checkpoint
from reference.config import check
from reference.learning_rate import learning_rate
from reference.model import ModelConfig, Transformer
from reference.moments import MOMENTS, decode_moment
from reference.optimizer import MomentOptimizer, adamw, make_optimizer, moved_by_muon, restore_state
from reference.presets import preset
from reference.train import TrainConfig, train

CHOICES = list(product(("adamw", "muon"), MOMENTS))
SMALL = ModelConfig(dim=32, depth=6, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=16)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w13, self.gain = nn.Parameter(torch.empty(2, 8, 16)), nn.Parameter(torch.empty(16))


class Model(nn.Module):
    """One weight of every kind: embedding, experts, gain, and a head of odd length."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.embed, self.layers = nn.Parameter(torch.empty(6, 32)), nn.ModuleList([Layer()])
        self.head = nn.Parameter(torch.empty(3, 11))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))

    def push(self, seed: int) -> None:
        """Random gradients."""
        generator = torch.Generator().manual_seed(seed)
        for p in self.parameters():
            p.grad = torch.randn(p.shape, generator=generator)


def settings(optimizer: str = "adamw", moments: str = "fp32", **fields: Any) -> TrainConfig:
    return TrainConfig(Path("run"), optimizer=optimizer, moments=moments, seed=3, **fields)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# ------------------------------------------------------------------------------------------------ AdamW


def root(x: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = 40
        return Fraction((Decimal(x.numerator) / Decimal(x.denominator)).sqrt())


def adamw_in_fractions(w: float, gradients: list[float], lr: float, b1: float, b2: float, decay: float) -> Fraction:
    """One scalar weight after all steps."""
    x, m, v = Fraction(w), Fraction(0), Fraction(0)
    r, beta1, beta2, eps = Fraction(lr), Fraction(b1), Fraction(b2), Fraction(1e-8)
    for t, gradient in enumerate(map(Fraction, gradients), start=1):
        m = (beta1 * m + (1 - beta1) * gradient).limit_denominator(10**40)
        v = (beta2 * v + (1 - beta2) * gradient * gradient).limit_denominator(10**40)
        step = m / (1 - beta1**t) / (root(v / (1 - beta2**t)) + eps)
        x = (x * (1 - r * Fraction(decay)) - r * step).limit_denominator(10**40)
    return x


@pytest.mark.parametrize("make", [adamw, MomentOptimizer, make_optimizer], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("lr", "b1", "b2", "decay"), [(0.01, 0.9, 0.95, 0.1), (0.1, 0.0, 0.999, 0.0)])
def test_adamw_is_what_its_paper_defines(make: Any, lr: float, b1: float, b2: float, decay: float) -> None:
    """FP32 against fractions. A step rounds the weight three times, half a unit of |w| < 8 each, and its own length,
    at most lr / sqrt(1 - b2), in at most 16 operations, plus the inherited errors of m and v: 32 in all."""
    model, steps = Model(), 6
    before, history = weights(model), []
    optimizer = make(model, settings(lr=lr, beta1=b1, beta2=b2, weight_decay=decay))
    for step in range(steps):
        model.push(step)
        history.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
    unit = 2.0**-24
    tolerance = steps * (3 * 8 * unit + lr / (1 - b2) ** 0.5 * 32 * unit)
    for name, after in weights(model).items():
        used = decay if after.ndim >= 2 else 0.0
        for i in range(0, after.numel(), 7):
            gradients = [g[name].flatten()[i].item() for g in history]
            expected = adamw_in_fractions(before[name].flatten()[i].item(), gradients, lr, b1, b2, used)
            assert abs(Fraction(after.flatten()[i].item()) - expected) < tolerance, (name, i)


def test_the_default_is_torchs_adamw_and_the_rule_for_stored_moments_has_its_bits() -> None:
    one, two = Model(), Model()
    default, ours = make_optimizer(one, settings()), MomentOptimizer(two, settings())
    assert type(default) is torch.optim.AdamW
    for step in range(4):
        for model, optimizer in ((one, default), (two, ours)):
            model.push(step)
            optimizer.step()
    assert same(weights(one), weights(two))


@pytest.mark.parametrize("moments", ["bf16", "mxfp8", "nvfp4"])
def test_a_step_starts_from_the_stored_codes(moments: str) -> None:
    """By hand from the decoded moments in float64; then with one bit of a code flipped, one weight goes elsewhere."""
    config = settings(moments=moments)
    model, flipped = Model(), Model()
    optimizers = [make_optimizer(m, config) for m in (model, flipped)]
    for step, (m, optimizer) in product(range(3), zip((model, flipped), optimizers, strict=True)):
        m.push(step)
        optimizer.step()
    state, other = optimizers[0].state[model.embed], optimizers[1].state[flipped.embed]
    formats = MOMENTS[moments]
    first, second = (
        decode_moment({k.removeprefix(entry).strip("."): t for k, t in state.items() if k in keys(entry)}, fmt, (6, 32))
        for entry, fmt in (("exp_avg", formats.first), ("exp_avg_sq", formats.second))
    )
    stored = other["exp_avg"] if moments == "bf16" else other["exp_avg.codes"]
    stored.reshape(-1).view(torch.uint8)[0] ^= 1 if moments != "bf16" else 64
    before = model.embed.detach().double()
    for m, optimizer in zip((model, flipped), optimizers, strict=True):
        m.push(9)
        optimizer.step()
    g = model.embed.grad.double()
    m4, v4 = 0.9 * first.double() + 0.1 * g, 0.95 * second.double() + 0.05 * g * g
    moved = m4 / (1 - 0.9**4) / ((v4 / (1 - 0.95**4)).sqrt() + 1e-8)
    expected = before * (1 - config.lr * 0.1) - config.lr * moved
    # as above: |w| < 4, a step of a few lr
    assert (model.embed.detach().double() - expected).abs().max() < 3 * 4 * 2.0**-24 + config.lr * 200 * 2.0**-24
    assert (model.embed != flipped.embed).nonzero().tolist() == [[0, 0]]


def keys(entry: str) -> list[str]:
    return [entry, *(f"{entry}.{part}" for part in ("codes", "scales", "outer"))]


# ------------------------------------------------------------------------------------------------ what moves what


def test_muon_moves_the_matrices_inside_the_layers() -> None:
    model = Transformer(SMALL, preset("bf16"), ops, 0)
    moved = {name.split(".", 2)[2] for name, p in model.named_parameters() if moved_by_muon(name, p)}
    linear = {"attention.qkv.weight", "attention.out.weight", "moe.shared_in.weight", "moe.shared_out.weight"}
    assert moved == linear | {"moe.w13", "moe.w2"}
    optimizer = make_optimizer(model, settings("muon"))
    kinds = {name: g["kind"] for g in optimizer.param_groups for name in g["param_names"]}
    assert kinds.keys() == dict(model.named_parameters()).keys()
    assert kinds["embed"] == kinds["head.weight"] == kinds["layers.0.moe.router"] == kinds["norm.gain"] == "adamw"
    assert kinds["layers.5.moe.w2"] == "muon"


def test_under_muon_the_rest_has_the_bits_of_adamw() -> None:
    one, two = Model(), Model()
    for model, optimizer in ((one, make_optimizer(one, settings())), (two, make_optimizer(two, settings("muon")))):
        for step in range(3):
            model.push(step)
            optimizer.step()
    apart = {name for name, p in weights(one).items() if not torch.equal(p, weights(two)[name])}
    assert apart == {"layers.0.w13"}


def test_two_weights_two_steps_and_two_seeds_draw_different_words() -> None:
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(4, 64)) for name in "ab"})
    codes = []
    for seed in (3, 4):
        optimizer = make_optimizer(model, dataclasses.replace(settings(moments="mxfp8", beta1=0.0), seed=seed))
        for _ in range(2):
            for p in model.values():  # without memory the first moment is the gradient, in every step
                p.grad = torch.linspace(-1, 1, 256).view(4, 64)
            optimizer.step()
            codes += [optimizer.state[p]["exp_avg.codes"].clone() for p in model.values()]
    assert len(codes) == 8 and len({tuple(c.tolist()) for c in codes}) == 8


@pytest.mark.parametrize("moments", ["mxfp8", "nvfp4"])
def test_a_weight_beside_much_larger_gradients_takes_no_step_of_one_over_eps(moments: str) -> None:
    """Its second moment is 2^-40 of its block's largest, beneath every code; as zero it would make steps of 1 / eps,
    1e8, where the first moment is not zero too."""
    model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(8, 64))})
    optimizer = make_optimizer(model, settings(moments=moments, lr=1.0, weight_decay=0.0))
    gradient = torch.full((8, 64), 2.0**-20)
    gradient[:, ::16] = 1.0
    for _ in range(5):
        model["a"].grad = gradient.clone()
        optimizer.step()
        assert (optimizer.state[model["a"]]["exp_avg_sq.codes"] != 0).all()
        model["a"].grad = torch.zeros(8, 64)
        optimizer.step()
    assert model["a"].abs().max() < 20


def test_gains_keep_float32_moments() -> None:
    model = Model()
    optimizer = make_optimizer(model, settings("muon", "nvfp4"))
    model.push(0)
    optimizer.step()
    assert optimizer.state[model.layers[0].gain]["exp_avg"].dtype == torch.float32
    assert set(optimizer.state[model.layers[0].w13]) == {"step", "momentum.codes", "momentum.scales", "momentum.outer"}


@pytest.mark.every(4)
@pytest.mark.parametrize(("optimizer", "moments"), CHOICES)
def test_a_small_quadratic_is_solved(optimizer: str, moments: str) -> None:
    """c (w - target)^2 / 2 with curvatures c from 1/3 to 3 falls to 1e-3 of its start while the rate goes to zero."""
    model, target = Model(), weights(Model(seed=1))
    lr, steps = {"adamw": 0.05, "muon": 0.2}[optimizer], 180
    config = settings(optimizer, moments, lr=lr, weight_decay=0.0, warmup=0, steps=steps, schedule="wsd")
    config = dataclasses.replace(config, decay_share=0.6, min_lr_ratio=0.0)
    chosen = make_optimizer(model, config)
    generator = torch.Generator().manual_seed(5)
    curve = {name: 10 ** (torch.rand(t.shape, generator=generator) - 0.5) for name, t in target.items()}
    losses = []
    for step in range(1, steps + 1):
        for group in chosen.param_groups:
            group["lr"] = learning_rate(config, step)
        loss = sum((curve[n] * (p - target[n]) ** 2).sum() / 2 for n, p in model.named_parameters())
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        losses.append(loss.item())
    assert losses[-1] < 1e-3 * losses[0]


# ------------------------------------------------------------------------------------------------ state


def run_steps(model: Model, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        model.push(step)
        optimizer.step()


@pytest.mark.parametrize(("optimizer", "moments"), CHOICES)
def test_saved_and_restored_it_goes_on_with_the_same_bits(optimizer: str, moments: str, tmp_path: Path) -> None:
    config = settings(optimizer, moments)
    model, other = Model(), Model(seed=8)
    ours, theirs = make_optimizer(model, config), make_optimizer(other, config)
    run_steps(model, ours, 0, 3)
    checkpoint.save(tmp_path / "x.safetensors", checkpoint.training_state(model, ours), {})
    checkpoint.restore_training_state(checkpoint.load(tmp_path / "x.safetensors")[0], other, theirs)
    run_steps(model, ours, 3, 6)
    run_steps(other, theirs, 3, 6)
    assert same(checkpoint.training_state(model, ours), checkpoint.training_state(other, theirs))


def test_a_weight_without_gradient_has_no_state_and_that_is_restored_too() -> None:
    for choice in (("adamw", "fp32"), ("muon", "mxfp8")):
        model, other = Model(), Model()
        optimizer, second = make_optimizer(model, settings(*choice)), make_optimizer(other, settings(*choice))
        model.push(0)
        model.head.grad = None
        optimizer.step()
        state = checkpoint.training_state(model, optimizer)
        assert [key.split("/")[1] for key in state if key.endswith("/unused")] == ["head"]
        checkpoint.restore_training_state({key: t.clone() for key, t in state.items()}, other, second)
        run_steps(model, optimizer, 1, 3)
        run_steps(other, second, 1, 3)
        assert same(checkpoint.training_state(model, optimizer), checkpoint.training_state(other, second))


def test_state_that_does_not_fit_is_refused_in_a_sentence_and_nothing_changes() -> None:
    states = {}
    for choice in CHOICES:
        model = Model()
        run_steps(model, optimizer := make_optimizer(model, settings(*choice)), 0, 1)
        states[choice] = checkpoint.training_state(model, optimizer)
    message = (
        r"the state of the optimizer does not fit in .*: it is of another optimizer, of other moments or of another"
    )
    for mine, its in product(CHOICES, CHOICES):
        model = Model(seed=2)
        optimizer, before = make_optimizer(model, settings(*mine)), weights(model)
        if mine == its:
            checkpoint.restore_training_state(states[its], model, optimizer)
            continue
        with pytest.raises(ValueError, match=message) as caught:
            checkpoint.restore_training_state(states[its], model, optimizer)
        assert "\n" not in str(caught.value) and same(weights(model), before) and not optimizer.state


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda s: s["embed"].pop("exp_avg.scales"), "embed/exp_avg.scales"),
        (lambda s: s.pop("embed"), "embed"),
        (lambda s: s.update(tail={}), "tail"),
        (lambda s: s["head"].update(exp_avg=torch.zeros(3, 11)), "head/exp_avg"),
        (lambda s: s["head"].update({"exp_avg.codes": torch.zeros(33, dtype=torch.uint8)}), "head/exp_avg.codes"),
        (lambda s: s["head"].update({"exp_avg.codes": torch.zeros(17, dtype=torch.int8)}), "head/exp_avg.codes"),
        (lambda s: s["layers.0.w13"].update({"momentum.outer": torch.ones(1, 1)}), "layers.0.w13/momentum.outer"),
    ],
)
def test_missing_foreign_and_misshapen_entries_are_named(change: Any, names: str) -> None:
    model = Model()
    run_steps(model, optimizer := make_optimizer(model, settings("muon", "nvfp4")), 0, 1)
    fresh = make_optimizer(model, settings("muon", "nvfp4"))
    states = {n: dict(optimizer.state[p]) for n, p in model.named_parameters()}
    restore_state(fresh, states)
    change(states)
    with pytest.raises(ValueError, match=rf"does not fit in {names}: "):
        restore_state(fresh, states)


# ------------------------------------------------------------------------------------------------ runs


def run_config(folder: Path, *choice: str, **fields: Any) -> TrainConfig:
    return TrainConfig(
        **{"out": folder, "preset": "bf16", "data": random.__file__, "steps": 4, "batch": 2, "grain": 1, "warmup": 1},
        **{"eval_every": 4, "eval_sequences": 2, "checkpoint_every": 2, "seed": 3, "monitor_every": 0, "model": SMALL},
        **{"optimizer": choice[0], "moments": choice[1]},
        **fields,
    )


def assert_same_run(one: Path, two: Path) -> None:
    logs = [[json.loads(line) | {"seconds": 0} for line in (p / "log.jsonl").open()] for p in (one, two)]
    assert logs[0] == logs[1]
    last = checkpoint.latest(one)
    assert last is not None and last.read_bytes() == (two / last.name).read_bytes()


@pytest.mark.parametrize("choice", [("muon", "fp32"), ("adamw", "bf16"), ("adamw", "mxfp8")], ids="-".join)
def test_an_interrupted_run_continues_bit_for_bit(tmp_path: Path, choice: tuple[str, str]) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 3:
            raise KeyboardInterrupt

    config = run_config(tmp_path / "run", *choice)
    with pytest.raises(KeyboardInterrupt):
        train(config, ops, on_progress=interrupt)
    assert train(config, ops).resumed_from == 2
    train(dataclasses.replace(config, out=tmp_path / "whole"), ops)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: no CUDA device")
@pytest.mark.parametrize("choice", CHOICES, ids="-".join)
def test_on_a_gpu_too_a_resumed_run_has_the_same_bits(tmp_path: Path, choice: tuple[str, str]) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 3:
            raise KeyboardInterrupt

    config = run_config(tmp_path / "run", *choice, device="cuda")
    with pytest.raises(KeyboardInterrupt):
        train(config, ops, on_progress=interrupt)
    assert train(config, ops).resumed_from == 2
    train(dataclasses.replace(config, out=tmp_path / "whole"), ops)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def killed(config: TrainConfig) -> None:
    """Train in a process of its own, which dies after step 3, between two checkpoints."""

    def die(record: dict[str, Any]) -> None:
        if record["step"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    train(config, ops, on_progress=die)
    sys.exit(0)


def test_a_killed_run_of_muon_with_4_bit_moments_and_wsd_continues_bit_for_bit(tmp_path: Path) -> None:
    config = run_config(tmp_path / "run", "muon", "nvfp4", schedule="wsd", decay_share=0.5)
    process = multiprocessing.get_context("forkserver").Process(target=killed, args=(config,))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert train(config, ops).resumed_from == 2
    train(dataclasses.replace(config, out=tmp_path / "whole"), ops)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    with pytest.raises(ValueError, match=r"optimizer \(muon there, absent now\)"):
        train(dataclasses.replace(config, optimizer="adamw"), ops)


def test_a_default_run_says_nothing_of_what_came_later(tmp_path: Path) -> None:
    """So that a folder from before is resumed; another choice is part of what decides the bits."""
    later = {"optimizer", "moments", "muon_momentum", "schedule", "decay_share", "decay_shape"}
    config = dataclasses.replace(run_config(tmp_path / "run", "adamw", "fp32"), steps=1)
    train(config, ops)
    assert not later & json.loads((config.out / "config.json").read_text()).keys()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lr": -1e-3}, r"lr -0\.001 cannot be used; use a positive number"),
        ({"lr": 0.0}, r"lr 0\.0 cannot be used"),
        ({"lr": float("nan")}, "lr nan cannot be used"),
        ({"optimizer": "sgd"}, "optimizer 'sgd' cannot be used; use 'adamw' or 'muon'"),
        ({"moments": "fp4"}, "moments 'fp4' cannot be used; use one of fp32, bf16, mxfp8, nvfp4"),
        ({"optimizer": "muon", "muon_momentum": 1.0}, r"muon_momentum 1\.0 cannot be used; use 0 or more, below 1"),
        ({"muon_momentum": 0.9}, r"muon_momentum 0\.9 does nothing alone; give optimizer muon, or leave it out"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(TrainConfig(Path("run"), **fields))
