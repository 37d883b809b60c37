"""Contract: every option of the model does what its source says, stays causal, and is refused where it cannot be.

Oracles: attention by explicit loops in float64, the convolution by numpy, the biases' rule by hand; a loss that falls.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import numerics as nm
import numerics.ops as ops
from reference.attention import Attention, _angles, rotate
from reference.dense import ShortConvolution
from reference.expert import Draw
from reference.model import Transformer
from reference.presets import preset
from reference.router import Bias, choose, rebalance, uncounted
from reference.sizes import LARGEST_DIAL, ModelConfig, stated

SMALL = ModelConfig(vocab=64, dim=64, depth=6, heads=4, experts=4, top_k=2, expert_dim=32, shared_dim=32, sequence=24)
OPTIONS = {
    "grouped queries": {"kv_heads": 2},
    "one key head": {"kv_heads": 1},
    "window": {"window": 5, "full_every": 3},
    "no positions": {"positions": "none"},
    "sigmoid": {"router": "sigmoid", "bias_speed": 0.01},
    "convolution": {"convolution": 4},
    "first layers dense": {"dense_layers": 2, "dense_dim": 96},
    "no shared expert": {"shared_dim": 0},
    "all of it": {
        "kv_heads": 2, "window": 7, "positions": "none", "router": "sigmoid", "convolution": 4, "dense_layers": 1
    },
}  # fmt: skip


def _model(**changes: object) -> Transformer:
    return Transformer(replace(SMALL, **changes), preset("fourbit"), ops, seed=4, accumulator="exact")


def _tokens(batch: int = 3) -> torch.Tensor:
    return torch.randint(0, 64, (batch, 25), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_later_token_changes_no_earlier_logit(name: str) -> None:
    model, tokens = _model(**OPTIONS[name]), _tokens(1)[:, :24]
    for layer in model.layers:
        if getattr(layer.moe, "convolution", None) is not None:
            torch.nn.init.normal_(layer.moe.convolution.taps, generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[0, 20:] = (changed[0, 20:] + 7) % 64
    with torch.no_grad():
        before, after = (model.logits(t, Draw(0, 1, 0))[0] for t in (tokens, changed))
    assert torch.equal(before[:, :20], after[:, :20]) and not torch.equal(before[:, 20:], after[:, 20:])


@pytest.mark.every(3)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_parameter_learns(name: str) -> None:
    model, tokens = _model(**OPTIONS[name]), _tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(6):
        loss = model(tokens[:, :-1], tokens[:, 1:], Draw(0, step, 0))
        optimizer.zero_grad()
        loss.total.backward()
        assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
        optimizer.step()
        rebalance(model)
        losses.append(float(loss.ce.detach()))
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_changes_the_model(name: str) -> None:
    tokens = _tokens()
    with torch.no_grad():
        plain, other = (m(tokens[:, :-1], tokens[:, 1:], Draw(0, 1, 0)).ce for m in (_model(), _model(**OPTIONS[name])))
    assert torch.equal(plain, other) == (name == "convolution")  # whose taps are zeros at first


@pytest.mark.parametrize(
    ("kv_heads", "window", "rotary"), [(2, None, True), (1, 4, True), (4, 1, False), (4, 99, False)]
)
def test_attention_against_loops(kv_heads: int, window: int | None, rotary: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    layer = Attention(32, 4, kv_heads, window, rotary)
    for w in (layer.qkv, layer.out):
        torch.nn.init.normal_(w.weight, std=0.3, generator=generator)
    x = torch.randn(2, 11, 32, generator=generator).bfloat16()
    heads = (x.double() @ layer.qkv.weight.detach().bfloat16().double().T).view(2, 11, 4 + 2 * kv_heads, 8)
    y = torch.zeros(2, 11, 4, 8, dtype=torch.float64)
    for b in range(2):
        for h in range(4):
            group = h // (4 // kv_heads)
            q, k = heads[b, :, h], heads[b, :, 4 + group]
            if rotary:
                q, k = (rotate(t[None, :, None].float(), *_angles(11, 4, t.device))[0, :, 0].double() for t in (q, k))
            for t in range(11):
                seen = range(max(0, t + 1 - (window or 11)), t + 1)
                scores = torch.stack([q[t] @ k[s] for s in seen]) / 8**0.5
                for weight, s in zip(scores.softmax(0), seen, strict=True):
                    y[b, t, h] += weight * heads[b, s, 4 + kv_heads + group]
    wanted = y.flatten(-2) @ layer.out.weight.detach().bfloat16().double().T
    with torch.no_grad():
        assert nm.metrics.error(wanted, layer(x)).rel_mse < (8 * 2.0**-9) ** 2  # a chain of BF16 roundings


def test_only_some_layers_have_a_window() -> None:
    windows = [layer.attention.window for layer in _model(window=5, full_every=3).layers]
    assert windows == [5, 5, None, 5, 5, None]
    assert [layer.attention.window for layer in _model(window=5, full_every=1).layers] == [None] * 6


def test_convolution_against_numpy() -> None:
    generator = torch.Generator().manual_seed(6)
    layer, x = ShortConvolution(8, 4), torch.randn(2, 9, 8, generator=generator).bfloat16()
    with torch.no_grad():
        assert torch.equal(layer(x), x)
        torch.nn.init.normal_(layer.taps, generator=generator)
        got = layer(x)
    wanted, values, taps = np.zeros((2, 9, 8)), x.double().numpy(), layer.taps.detach().double().numpy()
    for b in range(2):
        for d in range(8):
            wanted[b, :, d] = values[b, :, d] + np.convolve(values[b, :, d], taps[d])[:9]
    # four FP32 sums, then BF16: half a unit of 2^-8 of the result, and 2^-22 of the terms
    error, terms = np.abs(got.double().numpy() - wanted), np.abs(wanted) + 8 * np.abs(taps).max() * np.abs(values).max()
    assert (error <= 2.0**-8 * np.abs(wanted) + 2.0**-20 * terms).all()


def test_sigmoid_chooses_by_biased_scores_and_weighs_by_plain_ones() -> None:
    generator = torch.Generator().manual_seed(7)
    x, router, bias = torch.randn(50, 16, generator=generator).bfloat16(), torch.randn(6, 16), Bias(6, 1.0)
    bias.bias.copy_(torch.tensor([0.0, 5.0, 0.0, -5.0, 0.1, 0.0]))
    choice = choose(x, router, 3, bias)
    scores = (x.double() @ router.bfloat16().double().T).sigmoid()
    assert bool((choice.experts == 1).any(1).all()) and not bool((choice.experts == 3).any())
    for t in range(50):
        ranked = sorted(range(6), key=lambda e, t=t: -float(scores[t, e] + bias.bias[e]))[:3]
        assert choice.experts[t].tolist() == sorted(ranked)
        wanted = scores[t, sorted(ranked)] / scores[t, ranked].sum()
        torch.testing.assert_close(choice.weights[t].double(), wanted, rtol=1e-5, atol=1e-6)  # FP32 sums of 16


def test_biases_move_against_the_load() -> None:
    bias = Bias(4, 0.5)
    bias.count(torch.tensor([3, 3, 2, 0]))  # mean 2
    with uncounted():
        bias.count(torch.tensor([0, 0, 0, 2]))
    with torch.no_grad():
        bias.count(torch.tensor([0, 0, 0, 2]))
    bias.eval()
    bias.count(torch.tensor([0, 0, 0, 2]))
    assert bias.load.tolist() == [3, 3, 2, 0]
    bias.move()
    assert bias.bias.tolist() == [-0.5, -0.5, 0.0, 0.5] and bias.load.tolist() == [0] * 4


def test_loads_even_out() -> None:
    """A router that sends every token to two experts at first; after 200 moves none gets less than half its share."""
    generator = torch.Generator().manual_seed(8)
    bias, router = Bias(8, 0.01), torch.randn(8, 16, generator=generator) * 0.3
    router[:2] += 0.5
    for step in range(201):
        x = (torch.randn(256, 16, generator=generator) + 0.5).bfloat16()
        bias.load.zero_()
        bias.count(choose(x, router, 2, bias).experts.flatten().bincount(minlength=8))
        least = int(bias.load.min())
        if step == 0:
            assert least < 16
        bias.move()
    assert least >= 32  # of 512 / 8 = 64


def test_balancing_does_not_depend_on_how_a_step_is_cut() -> None:
    tokens, biases = _tokens(4), []
    for size in (1, 2, 4):
        model = _model(router="sigmoid")
        for part in tokens.split(size):
            model(part[:, :-1], part[:, 1:], Draw(0, 1, 0))
        rebalance(model)
        biases.append(torch.stack([layer.moe.balancer.bias for layer in model.layers]))
        assert bool(biases[-1].any())
    assert torch.equal(biases[0], biases[1]) and torch.equal(biases[0], biases[2])


def test_first_layers_have_no_experts() -> None:
    model = _model(dense_layers=2)
    assert [hasattr(layer.moe, "w13") for layer in model.layers] == [False] * 2 + [True] * 4
    assert model.layers[0].moe.w_in.weight.shape == (2 * (2 * 32 + 32), 64)


@pytest.mark.parametrize("depth", range(6, LARGEST_DIAL + 1, 6))
def test_the_dial_spans_a_million_to_a_billion(depth: int) -> None:
    config = ModelConfig.dial(depth)
    config.check(preset("fourbit"))
    in_layer = 4 * config.dim**2 + config.dim * (8 + 3 * 8 * config.expert_dim + 3 * config.shared_dim)
    weights = config.depth * in_layer
    assert weights == pytest.approx(5632 * depth**3, rel=0.02)
    assert (1.2e6 <= weights < 1.3e6) if depth == 6 else weights > 9e6
    assert weights < 1e9


def test_the_dial_starts_at_the_default() -> None:
    assert ModelConfig.dial(6) == ModelConfig() and ModelConfig.dial(12, vocab=1000).vocab == 1000
    with pytest.raises(ValueError, match="dial=8: use a multiple of 6 from 6 to 54"):
        ModelConfig.dial(8)


def test_a_run_is_named_by_the_options_that_are_set() -> None:
    assert list(stated(ModelConfig())) == [
        *("vocab", "dim", "depth", "heads", "experts", "top_k", "expert_dim", "shared_dim", "sequence", "balance")
    ]
    assert stated(ModelConfig(window=8))["window"] == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "kv_heads=3: it must divide heads=4"),
        ({"kv_heads": 0}, "kv_heads=0: use 1 or more, or leave it out"),
        ({"window": 0}, "window=0: use 1 or more"),
        ({"full_every": 0}, "full_every=0: use 1 or more"),
        ({"router": "top"}, "router='top': use softmax or sigmoid"),
        ({"positions": "alibi"}, "positions='alibi': use rotary or none"),
        ({"bias_speed": float("nan")}, "bias_speed=nan: use 0 or more"),
        ({"convolution": -1}, "convolution=-1: use 0 or more"),
        ({"dense_layers": 6}, "dense_layers=6: of 6 layers one at least has experts"),
        ({"dense_dim": 0}, "dense_dim=0: use 1 or more"),
        ({"shared_dim": -32}, "shared_dim=-32: use 0 or more"),
    ],
)
def test_options_that_cannot_be_are_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _model(**change)
