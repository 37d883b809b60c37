"""Contract: how grains are put together into passes changes no bit of what the experts compute, for any recipe.

Inside the claim: every code, scale and outer scale that an expert layer makes, forward and backward, its output and the
gradient of its input, for equal inputs, on one device and one number of threads; and whole runs under `deterministic`.
Outside it: weight gradients of a pass of several grains (their sums have another order), and runs without that flag.
Oracle: each grain alone, and the recipe's own layer called by hand.
"""

import hashlib
import json
from collections import Counter
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics import BlockTensor, hadamard_signs, ops
from numerics.hadamard import SIZES
from reference.expert import Draw, Setting
from reference.moe import MoE
from reference.presets import PRESETS, preset
from reference.train import TrainConfig, train
from tests.test_train import SMALL

GRAINS, B, S, D = 4, 4, 40, 128


def digest(t: Tensor) -> str:
    return hashlib.sha256(t.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def recorder(seen: Counter[tuple[str, ...]]) -> Any:
    """`numerics.ops`, noting the bits of every tensor that its operations return; weights' are not noted again."""

    def noting(name: str, function: FunctionType) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            out = function(*args, **kwargs)
            for part in out if isinstance(out, tuple) else (out,):
                if isinstance(part, BlockTensor):
                    parts = (part.codes, part.scales, *(() if part.outer is None else (part.outer,)))
                    seen[(name, *map(digest, parts))] += 1
                elif part is not None:
                    seen[(name, digest(part))] += 1
            return out

        return run

    functions = {
        n: noting(n, f) for n, f in vars(ops).items() if isinstance(f, FunctionType) and f.__module__ == ops.__name__
    }
    return SimpleNamespace(**{**vars(ops), **functions})


def layer(name: str, together: int) -> tuple[Counter[tuple[str, ...]], Tensor, Tensor]:
    """What `MoE` under a preset makes of four grains in passes of `together`: bits of operands, output, d_input."""
    torch.manual_seed(3)
    moe = MoE(D, 4, 2, D, D)
    for p in moe.parameters():
        torch.nn.init.normal_(p, std=D**-0.5)
    x = torch.randn(B, S, D).mul(torch.logspace(-2, 2, B)[:, None, None]).to(torch.bfloat16)
    g = torch.randn(B, S, D).to(torch.bfloat16)
    recipe, seen = preset(name), Counter()
    signs = {size: hadamard_signs(size, (1, 0)) for size in SIZES}
    outs, grads = [], []
    for first in range(0, GRAINS, together):
        part = x[first : first + together].clone().requires_grad_()
        setting = Setting(
            recorder(seen), recipe.experts, signs, 2, Draw(5, 6, first), shared=recipe.shared, grains=together
        )
        out, _ = moe(part, setting)
        out.backward(g[first : first + together])
        outs.append(out.detach())
        grads.append(part.grad)
    return seen, torch.cat(outs), torch.cat(grads)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_any_placement_of_grains_gives_the_same_expert_bits(name):
    alone = layer(name, 1)
    assert sum(alone[0].values()) > 40
    for together in (2, 4):
        seen, out, grad = layer(name, together)
        assert seen == alone[0]
        assert torch.equal(out, alone[1])
        assert torch.equal(grad, alone[2])


def test_a_larger_grain_gives_other_bits():
    """The test above can fail: the grain itself, unlike its placement, decides blocks and random words."""
    torch.manual_seed(0)
    moe, x = MoE(D, 4, 2, D, D), torch.randn(B, S, D).to(torch.bfloat16)
    for p in moe.parameters():
        torch.nn.init.normal_(p, std=D**-0.5)
    signs = {size: hadamard_signs(size, (1, 0)) for size in SIZES}
    grads = []
    for grains in (1, 4):
        part = x.clone().requires_grad_()
        moe(part, Setting(ops, preset("fourbit").experts, signs, 0, Draw(0, 1, 0), grains=grains))[0].sum().backward()
        grads.append(moe.w13.grad.clone())
        moe.zero_grad()
    assert not torch.equal(*grads)


def losses(folder: Path) -> list[tuple[float, ...]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(line["loss"], line["balance"], line["grad_norm"], line.get("heldout_ce")) for line in lines]


def run(folder: Path, **fields: Any) -> list[tuple[float, ...]]:
    common = {"preset": "fourbit", "steps": 3, "warmup": 1, "batch": 4, "grain": 1, "eval_sequences": 4}
    config = TrainConfig(folder, **{**common, "eval_every": 3, "progress": "hide", "model": SMALL, **fields})
    train(config, ops)
    return losses(folder)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["fourbit", "bf16", "nvfp4_nvidia"])
def test_deterministic_runs_do_not_depend_on_the_micro_batch(tmp_path, name):
    found = [run(tmp_path / str(m), preset=name, deterministic=True, micro_batch=m) for m in (1, 2, 4)]
    assert found[0] == found[1] == found[2]


def test_without_the_flag_a_micro_batch_changes_rounding_alone(tmp_path):
    one, four = (run(tmp_path / str(m), micro_batch=m) for m in (1, 4))
    assert [loss for loss, *_ in four] == pytest.approx(
        [loss for loss, *_ in one], rel=2e-3
    )  # BF16 has 2^-9 a rounding
    assert run(tmp_path / "default") == one  # a grain is what is left out


@pytest.mark.parametrize("value", [0, 3, 8, -2])
def test_a_micro_batch_that_does_not_fit_is_refused(tmp_path, value):
    with pytest.raises(ValueError, match=f"micro_batch {value} cannot be used; use a multiple of grain 2 that divides"):
        run(tmp_path / "x", grain=2, batch=4, micro_batch=value)
    assert not (tmp_path / "x").exists()
