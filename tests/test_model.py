"""Contract: the model is causal bit for bit, starts equal under every recipe, and refuses sizes that do not fit.

Oracles: recomputation with a changed future; torch's own attention-free pieces in float64; a loss that falls.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import numerics as nm
import numerics.ops as ops
from numerics.swiglu import silu
from reference.attention import Attention, _angles, rotate
from reference.dense import Linear, RMSNorm, swiglu_mlp
from reference.expert import Draw, ExpertMLP, Setting
from reference.model import ModelConfig, Transformer
from reference.moe import MoE
from reference.presets import PRESETS, preset

SMALL = ModelConfig(vocab=64, dim=32, depth=6, heads=2, experts=4, top_k=2, expert_dim=32, shared_dim=32, sequence=24)
DRAW = Draw(0, 1, 0)
WIDE = replace(SMALL, dim=128, expert_dim=128)


def _model(name: str, config: ModelConfig = SMALL, accumulator: str = "library") -> Transformer:
    if config is SMALL and preset(name).experts.row_block > 32:
        config = WIDE
    return Transformer(config, preset(name), ops, seed=4, accumulator=accumulator)


def _tokens(batch: int = 3) -> torch.Tensor:
    return torch.randint(0, 64, (batch, 25), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", PRESETS)
def test_initial_weights_do_not_depend_on_the_recipe(name: str):
    other = _model(name)
    first, other = _model("bf16", other.config).state_dict(), other.state_dict()
    assert first.keys() == other.keys()
    assert all(torch.equal(first[key], other[key]) for key in first)


LEAKING = {
    "nvfp4_all",
    "nvfp4_nvidia",
    "nvfp4_46",
    "nvfp4_46_forward",
    "nvfp4_forward",
    "nvfp4_2d_forward",
    "quartet2",
    "fourbit_tensor_outer",
}  # one outer scale for all tokens


@pytest.mark.parametrize("name", PRESETS)
def test_a_later_token_changes_no_earlier_logit(name: str):
    """But under outer scales of all tokens. Exact expert products: FP32 sums may differ with the number of rows."""
    model, tokens = _model(name, accumulator="exact"), _tokens(1)[:, :24]
    changed = tokens.clone()
    changed[0, 20:] = (changed[0, 20:] + 7) % 64
    with torch.no_grad():
        before, after = (model.logits(t, DRAW)[0] for t in (tokens, changed))
    assert torch.equal(before[:, :20], after[:, :20]) == (name not in LEAKING)
    assert not torch.equal(before[:, 20:], after[:, 20:])


@pytest.mark.every(5)
@pytest.mark.parametrize("name", PRESETS)
def test_loss_falls_and_every_parameter_learns(name: str):
    model, tokens = _model(name), _tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(6):
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
    moe, setting = _moe(top_k=2), Setting(ops, preset("bf16").experts, {}, 0, DRAW)
    with torch.no_grad():
        moe.router.zero_()
        _, even = moe(torch.randn(1, 64, 32).bfloat16(), setting)
        moe.router[0] += 100.0
        _, uneven = moe(torch.rand(1, 64, 32).bfloat16(), setting)  # positive: expert 0 wins every time
    assert float(even) == pytest.approx(1.0) and float(uneven) == pytest.approx(
        2.5, rel=1e-3
    )  # E x half the rows x P = 1


def test_every_layer_gets_its_own_recipe_place_and_signs(monkeypatch: pytest.MonkeyPatch):
    seen = []
    real = ExpertMLP.apply

    def spy(*args):
        seen.append(args[-1])
        return real(*args)

    monkeypatch.setattr(ExpertMLP, "apply", spy)
    model, tokens, draw = _model("fourbit", accumulator="exact"), _tokens(1), Draw(7, 8, 9)
    with torch.no_grad():
        model(tokens[:, :-1], tokens[:, 1:], draw)
    recipe = preset("fourbit")
    assert [s.recipe for s in seen] == [recipe.experts] * 5 + [recipe.last]
    assert [s.layer for s in seen] == list(range(6)) and {s.draw for s in seen} == {draw}
    assert {s.accumulator for s in seen} == {"exact"} and {s.ops for s in seen} == {ops}
    assert all(torch.equal(s.signs[32], nm.hadamard_signs(32, (4, 0))) for s in seen)


def test_losses_add_up_and_balance_reaches_the_router():
    tokens, parts = _tokens(), []
    model = _model("bf16", replace(SMALL, balance=0.5))
    for layer in model.layers:
        layer.moe.register_forward_hook(lambda module, args, out: parts.append(out[1]))
    losses = model(tokens[:, :-1], tokens[:, 1:], DRAW)
    assert torch.equal(losses.total, losses.ce + losses.balance)
    assert float(losses.balance.detach()) == pytest.approx(0.5 * sum(float(p.detach()) for p in parts) / 6, rel=1e-6)
    router = model.layers[2].moe.router
    (grad,) = torch.autograd.grad(losses.balance, router)
    assert float(grad.norm()) > 0


def test_initial_spreads():
    """Normal with fan-in^-1/2, smaller by 12^-1/2 into the residual stream; 5 standard errors of a sample's spread."""
    for name, p in _model("bf16").named_parameters():
        if p.ndim == 1:
            assert bool((p == 1).all()), name
            continue
        into_residual = name.endswith(("attention.out.weight", "w2", "shared_out.weight"))
        wanted = 0.5 if name == "embed" else p.shape[-1] ** -0.5 * (12**-0.5 if into_residual else 1)
        assert float(p.detach().std()) == pytest.approx(wanted, rel=5 * (2 * p.numel()) ** -0.5), name


def test_the_residual_stream_is_float32_and_starts_from_bf16_embeddings():
    inputs, tokens, model = [], _tokens(), _model("fourbit")
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    with torch.no_grad():
        model(tokens[:, :-1], tokens[:, 1:], DRAW)
    assert torch.equal(inputs[0], model.embed.detach().bfloat16().float()[tokens[:, :-1]])
    assert {x.dtype for x in inputs} == {torch.float32} and not torch.equal(inputs[1], inputs[1].bfloat16().float())


def _moe(top_k: int = 3) -> MoE:
    generator = torch.Generator().manual_seed(2)
    moe = MoE(32, experts=5, top_k=top_k, expert_dim=32, shared_dim=32)
    for p in moe.parameters():
        torch.nn.init.normal_(p, std=0.3, generator=generator)
    return moe


def _walk(moe: MoE, x_TD: torch.Tensor) -> torch.Tensor:
    """The layer by hand, token by token and expert by expert, in the BF16 recipe."""

    def bf16(x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().float()

    def mlp(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        gate, up = bf16(x @ bf16(w13).T).chunk(2)
        return bf16(bf16(silu(gate.bfloat16()).float() * up) @ bf16(w2).T)

    rows = []
    for x in x_TD.float():
        p = (bf16(moe.router) @ x).softmax(-1)
        chosen = sorted(p.topk(moe.top_k).indices.tolist())
        weights = [p[e] / p[chosen].sum() for e in chosen]
        total = mlp(x, moe.w13[chosen[0]], moe.w2[chosen[0]]) * weights[0]
        for e, weight in zip(chosen[1:], weights[1:], strict=True):
            total = total + mlp(x, moe.w13[e], moe.w2[e]) * weight
        shared = mlp(x, moe.shared_in.weight, moe.shared_out.weight)
        rows.append(bf16(bf16(total) + shared))
    return torch.stack(rows)


def test_moe_is_the_weighted_sum_of_its_experts():
    moe, x = _moe(), torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(3)).bfloat16()
    with torch.no_grad():
        out, _ = moe(x, Setting(ops, preset("bf16").experts, {}, 0, DRAW))
        wanted = _walk(moe, x[0])
    # sums in another order may round a BF16 to its neighbour, one step of 2^-8, here and there; nothing else differs
    assert bool(((out[0].float() - wanted).abs() <= 2.0**-7 * wanted.abs() + 2.0**-9).all())
    assert float((out[0].float() == wanted).float().mean()) > 0.9


def test_a_shared_expert_can_follow_the_recipe():
    """Under the BF16 recipe both ways are the same sum; under NVFP4 the shared expert's words are its own."""
    moe, x = _moe(), torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(3)).bfloat16()
    plain = Setting(ops, preset("bf16").experts, {}, 1, DRAW)
    with torch.no_grad():
        a, b = (moe(x, replace(plain, shared=shared))[0].float() for shared in (False, True))
    assert nm.metrics.error(a, b).rel_mse < 2.0**-16
    recipe = replace(preset("fourbit"), shared=True)
    model, tokens = Transformer(SMALL, recipe, ops, seed=4), _tokens()
    model(tokens[:, :-1], tokens[:, 1:], DRAW).total.backward()
    assert bool(model.layers[0].moe.shared_in.weight.grad.any())
    with pytest.raises(ValueError, match=r"shared_dim=40: blocks of 32 .* use 32 or 64"):
        Transformer(replace(SMALL, shared_dim=40), recipe, ops, seed=4)


def test_linear_is_bf16_products_in_float32_bit_for_bit():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 7, 32, generator=generator).bfloat16().requires_grad_()
    layer = Linear(32, 48)
    torch.nn.init.normal_(layer.weight, generator=generator)
    y, g = layer(x), torch.randn(5, 7, 48, generator=generator).bfloat16()
    dx, dw = torch.autograd.grad(y, (x, layer.weight), g)
    w = layer.weight.detach().bfloat16().float()
    assert torch.equal(y, (x.detach().float() @ w.T).bfloat16()) and torch.equal(dx, (g.float() @ w).bfloat16())
    assert torch.equal(dw, g.float().flatten(0, 1).T @ x.detach().float().flatten(0, 1))


def test_norm_and_shared_mlp_against_float64():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(9, 32, generator=generator).bfloat16().requires_grad_()
    wanted = x.detach().double() / (x.detach().double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    got = RMSNorm(32)(x.detach()).double()
    assert bool(((got - wanted).abs() <= 2.0**-8 * wanted.abs()).all())  # FP32, then one rounding to BF16
    w_in, w_out = Linear(32, 64), Linear(32, 32)
    for w in (w_in, w_out):
        torch.nn.init.normal_(w.weight, std=0.3, generator=generator)
    g = torch.randn(9, 32, generator=generator).bfloat16()
    got = torch.autograd.grad(swiglu_mlp(x, w_in, w_out), (x, w_in.weight, w_out.weight), g)
    leaves = [t.detach().double().requires_grad_() for t in (x, w_in.weight, w_out.weight)]
    gate, up = (leaves[0] @ leaves[1].T).chunk(2, -1)
    wanted = torch.autograd.grad((F.silu(gate) * up) @ leaves[2].T, leaves, g.double())
    for a, b in zip(wanted, got, strict=True):
        assert nm.metrics.error(a, b).rel_mse < (8 * 2.0**-9) ** 2  # a chain of BF16 roundings, 2^-9 rms each


def test_attention_against_float64():
    """Softmax of scores and rotary positions as complex rotations, written anew."""
    generator = torch.Generator().manual_seed(5)
    layer = Attention(32, 2)
    for w in (layer.qkv, layer.out):
        torch.nn.init.normal_(w.weight, std=0.3, generator=generator)
    x = torch.randn(2, 11, 32, generator=generator).bfloat16()
    q, k, v = (x.double() @ layer.qkv.weight.detach().double().T).view(2, 11, 3, 2, 16).permute(2, 0, 3, 1, 4)
    angle = torch.arange(11)[:, None] * 10000.0 ** -(torch.arange(8) / 8)
    turn = torch.polar(torch.ones_like(angle, dtype=torch.float64), angle.double())

    def rotated(t: torch.Tensor) -> torch.Tensor:
        z = torch.complex(t[..., :8], t[..., 8:]) * turn
        return torch.cat((z.real, z.imag), -1)

    scores = rotated(q) @ rotated(k).mT / 4 + torch.full((11, 11), -torch.inf).triu(1)
    y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2) @ layer.out.weight.detach().double().T
    with torch.no_grad():
        assert nm.metrics.error(y, layer(x)).rel_mse < (8 * 2.0**-9) ** 2


def test_rotation_depends_on_distance_only():
    q, k = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(5)).expand(2, 1, 12, 1, 16)
    turned = [rotate(t, *_angles(12, 8, t.device))[0, :, 0] for t in (q, k)]
    scores = turned[0] @ turned[1].T
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
        ({"heads": 3}, r"dim=32: 3 heads need even parts of it; use 96"),
        ({"dim": 96, "heads": 5}, r"dim=96: 5 heads need even parts of it; use 160"),
        ({"dim": 100, "heads": 5}, r"dim=100: blocks of 32 .* use 160"),
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


@pytest.mark.parametrize("name", ["bf16", "fourbit"])
def test_inference_mode_has_the_bits_of_no_grad(name: str):
    """Its tensors have no version, to which row numbers that are vouched for are tied."""
    model, tokens = _model(name), _tokens()
    with torch.inference_mode():
        inside = model.logits(tokens[:, :24], DRAW)[0]
    with torch.no_grad():
        outside = model.logits(tokens[:, :24], DRAW)[0]
    assert torch.equal(inside, outside)
