"""Contract: the model is causal bit for bit, starts equal under every recipe, and refuses sizes that do not fit.

Oracles: recomputation with a changed future; torch's own attention-free pieces in float64; a loss that falls.
"""

from dataclasses import replace

import pytest
import torch

import numerics as nm
import numerics.ops as ops
from reference.dense import Linear, RMSNorm, rotate
from reference.expert import Draw
from reference.model import ModelConfig, Transformer
from reference.moe import MoE
from reference.recipe import PRESETS, preset

SMALL = ModelConfig(vocab=64, dim=32, depth=6, heads=2, experts=4, top_k=2, expert_dim=32, shared_dim=32, sequence=24)
DRAW = Draw(0, 1, 0)


def _model(name: str, config: ModelConfig = SMALL, accumulator: str = "fp32") -> Transformer:
    return Transformer(config, preset(name), ops, seed=4, accumulator=accumulator)


def _tokens(batch: int = 3) -> torch.Tensor:
    return torch.randint(0, 64, (batch, 25), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", PRESETS)
def test_initial_weights_do_not_depend_on_the_recipe(name: str):
    first, other = _model("bf16").state_dict(), _model(name).state_dict()
    assert first.keys() == other.keys()
    assert all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", PRESETS)
def test_a_later_token_changes_no_earlier_logit(name: str):
    """Exact expert products: FP32 sums may differ with the number of rows an expert gets."""
    model, tokens = _model(name, accumulator="exact"), _tokens(1)[:, :24]
    changed = tokens.clone()
    changed[0, 20:] = (changed[0, 20:] + 7) % 64
    with torch.no_grad():
        before, after = (model.logits(t, DRAW)[0] for t in (tokens, changed))
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.equal(before[:, 20:], after[:, 20:])


@pytest.mark.parametrize("name", PRESETS)
def test_loss_falls_and_every_parameter_learns(name: str):
    torch.manual_seed(0)
    model, tokens = _model(name), _tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(12):
        loss = model(tokens[:, :-1], tokens[:, 1:], replace(DRAW, step=step))
        optimizer.zero_grad()
        loss.total.backward()
        assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.ce.detach()))
    assert losses[-1] < losses[0] - 0.3


def test_stochastic_words_follow_the_draw():
    model, tokens = _model("fourbit"), _tokens()

    def gradient(draw: Draw) -> torch.Tensor:
        model.zero_grad()
        model(tokens[:, :-1], tokens[:, 1:], draw).total.backward()
        return model.layers[0].moe.w13.grad.clone()

    assert torch.equal(gradient(DRAW), gradient(DRAW))
    assert not torch.equal(gradient(DRAW), gradient(replace(DRAW, step=2)))


def test_balance_is_one_when_experts_share_evenly():
    moe = MoE(8, experts=4, top_k=2, expert_dim=8, shared_dim=8)
    for p in moe.parameters():
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(2))
    torch.nn.init.zeros_(moe.router)
    with torch.no_grad():
        from reference.expert import Setting

        _, even = moe(torch.randn(1, 64, 8).bfloat16(), Setting(ops, preset("bf16").experts, None, 0, DRAW))
        moe.router[0] += 100.0
        x = torch.rand(1, 64, 8).bfloat16()  # positive: expert 0 wins every time
        _, uneven = moe(x, Setting(ops, preset("bf16").experts, None, 0, DRAW))
    assert float(even) == pytest.approx(1.0) and float(uneven) == pytest.approx(2.0, rel=1e-3)  # half the rows, P = 1


def test_dense_parts_against_float64():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 7, 32, generator=generator).bfloat16().requires_grad_()
    layer = Linear(32, 48)
    torch.nn.init.normal_(layer.weight, generator=generator)
    y, g = layer(x), torch.randn(5, 7, 48, generator=generator).bfloat16()
    dx, dw = torch.autograd.grad(y, (x, layer.weight), g)
    x64, w64, g64 = x.detach().double(), layer.weight.detach().bfloat16().double(), g.double()
    for got, wanted in ((y, x64 @ w64.T), (dx, g64 @ w64), (dw, g64.flatten(0, 1).T @ x64.flatten(0, 1))):
        assert nm.metrics.error(wanted, got).rel_mse < 2.0**-17  # one BF16 rounding: at most 2^-18 on average
    norm = RMSNorm(32)
    wanted = x64 / (x64.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert nm.metrics.error(wanted, norm(x.detach())).rel_mse < 2.0**-17


def test_rotation_depends_on_distance_only():
    q, k = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(5)).expand(2, 1, 1, 12, 16)
    scores = rotate(q)[0, 0] @ rotate(k)[0, 0].T
    for distance in range(11):
        along = scores.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-4, atol=1e-4)  # FP32 angles up to 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 40, "heads": 2}, r"dim=40: blocks of 32 of recipe fourbit do not divide it; use 32 or 64"),
        ({"expert_dim": 48}, r"expert_dim=48: blocks of 32 .* use 32 or 64"),
        ({"expert_dim": 16}, r"expert_dim=16: blocks of 32 .* use 32$"),
        ({"depth": 4}, r"depth=4: .*use 6"),
        ({"heads": 3}, r"dim=32: 3 heads need even parts of it; use 30"),
        ({"top_k": 5}, r"top_k=5: there are 4 experts"),
        ({"experts": 0}, r"experts=0: use 1 or more"),
        ({"balance": -1.0}, r"balance=-1.0"),
    ],
)
def test_sizes_that_do_not_fit_are_named(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        _model("fourbit", replace(SMALL, **change))


def test_bf16_takes_any_width():
    _model("bf16", replace(SMALL, dim=40, expert_dim=10))
