"""Contract: what fills up a row of packed texts is given to no expert. It moves no router's loads and biases, no
balancing loss, no outer scale of a tensor, no measure of the monitor, and no bit of what texts compute or learn.

Oracles: the same rows with other tokens as filler, bit for bit; loads and balancing loss of the texts' tokens alone,
counted from what the router chose.
"""

from pathlib import Path

import pytest
import torch

from numerics import ops
from reference import moe
from reference.examples import Example
from reference.expert import Draw
from reference.model import ModelConfig, Transformer
from reference.monitor import Observer, observing
from reference.order import epoch_windows
from reference.packing import pack
from reference.presets import preset
from reference.router import Bias, Choice, choose
from reference.segments import Segments
from reference.sft import Sft, SftConfig
from reference.tune import begin

SIZES = {"dim": 32, "heads": 2, "dense_layers": 4, "experts": 4, "expert_dim": 32, "shared_dim": 32, "sequence": 32}
MODELS = {
    "softmax": ModelConfig(**SIZES),
    "sigmoid": ModelConfig(**SIZES, router="sigmoid", convolution=3),
}
TEXTS = [Example(tuple(range(60 + n, 60 + 2 * n)), (True,) * n) for n in (14, 9, 20, 31, 4)]
ROWS = pack(TEXTS, 32)  # 4 rows, the last one with 3 tokens
REAL = 13 + 8 + 19 + 30 + 3


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """Sums depend on them."""


def passed(model: Transformer, filler: int, grains: int = 2) -> dict[str, torch.Tensor]:
    """All that a pass of training leaves, with `filler` as the token of filler."""
    tokens = torch.where(ROWS.segments < 0, filler, ROWS.tokens)
    logits, balance = model.logits(tokens, Draw(0, 1, 0), grains, ROWS.segments)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ROWS.targets.flatten())
    (loss + balance).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    found |= {name: m.load.clone() for name, m in model.named_modules() if isinstance(m, Bias)}
    return found | {"logits": logits.detach()[ROWS.segments >= 0], "balance": balance.detach()}


def build(kind: str, recipe: str) -> Transformer:
    return Transformer(MODELS[kind], preset(recipe), ops, 0)


@pytest.mark.parametrize(
    ("kind", "recipe"),
    [("softmax", "fourbit"), ("softmax", "nvfp4_nvidia"), ("sigmoid", "bf16"), ("sigmoid", "nvfp4_all")],
)
@pytest.mark.parametrize("recompute", [False, True])
def test_what_filler_is_made_of_moves_no_bit(kind: str, recipe: str, recompute: bool) -> None:
    """Two of the recipes have outer scales of whole tensors, which would see it."""
    found = []
    for filler in (0, 251):
        model = build(kind, recipe)
        model.recompute_layers = recompute
        found.append(passed(model, filler))
    assert found[0].keys() == found[1].keys()
    # an embedding that filler reads takes no part either
    assert all(torch.equal(a, found[1][name]) for name, a in found[0].items())
    assert not found[0]["embed"][251].any()


@pytest.mark.parametrize("kind", MODELS)
def test_loads_and_balance_are_those_of_the_texts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The balance is that of Switch Transformers."""
    choices: list[Choice] = []
    monkeypatch.setattr(moe, "choose", lambda *a: (choices.append(choose(*a)), choices[-1])[1])
    model = build(kind, "bf16")
    found = passed(model, 0)
    real = [(part >= 0).flatten() for part in ROWS.segments.split(2)] * 2  # two layers of two grains each
    choices = [Choice(*(t[r] for t in (c.experts, c.weights, c.scores))) for c, r in zip(choices, real, strict=True)]
    if kind == "sigmoid":
        loads = [m.load for m in model.modules() if isinstance(m, Bias)]
        for layer, load in enumerate(loads):
            own = torch.cat([c.experts.flatten() for c in choices[2 * layer : 2 * layer + 2]])
            assert load.tolist() == torch.bincount(own, minlength=4).tolist() and load.sum() == 2 * REAL
        assert found["balance"] == 0
        return
    terms = []
    for c in choices:
        shares = [(c.experts == e).sum().item() / c.experts.numel() for e in range(4)]
        terms.append(4 * sum(s * p for s, p in zip(shares, c.scores.double().mean(0).tolist(), strict=True)))
    # a mean over two grains, and over six layers of which four have no experts
    wanted = sum(terms) / 2 / 6 * model.config.balance
    assert found["balance"].item() == pytest.approx(wanted, rel=1e-6)


def test_the_monitor_measures_the_texts_alone() -> None:
    """Numbers of a layer do not depend on what filler is made of, whose values would enter every mean."""
    found = []
    for filler in (0, 251):
        model, observer = build("softmax", "fourbit"), Observer()
        observer.begin(True)
        with observing(model, observer):
            passed(model, filler, grains=1)
        found.append(observer.numbers())
    assert found[0] == found[1] and "5.input.rel_mse" in found[0]


def test_a_part_of_nothing_but_filler_computes_nothing() -> None:
    model = build("softmax", "fourbit")
    segments = torch.stack([torch.full((32,), -1), torch.zeros(32, dtype=torch.int64)])
    tokens = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))
    logits, balance = model.logits(tokens, Draw(0, 1, 0), 2, segments)
    (logits[1].float().sum() + balance).backward()
    assert balance.isfinite() and all(p.grad.isfinite().all() for p in model.parameters())
    assert Segments(segments).real(2)[1] is None and Segments(segments).real(2)[0].tolist() == []


def test_a_step_of_fine_tuning_weighs_grains_by_their_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken grain by grain; the balance of each counts as its tokens do, not as its rows."""
    config = SftConfig(tmp_path / "run", steps=1, batch=4, grain=1, warmup=0, preset="bf16", model=MODELS["softmax"])
    start = begin(config, ops, 4)
    kept: list[float] = []
    logits = start.model.logits
    monkeypatch.setattr(start.model, "logits", lambda *a: (lambda r: (kept.append(r[1].item()), r)[1])(logits(*a)))
    tuning = type("Tuning", (), {"start": start, "update": lambda *_: {}})()
    said = Sft(tuning, ROWS, ROWS, TEXTS).advance(1)
    counts = (ROWS.segments >= 0).sum(1).tolist()
    assert sorted(counts) == [3, 19, 21, 30] and said["learned"] == REAL
    order = epoch_windows(0, 4, len(ROWS), start.config.seed).astype("int64").tolist()
    wanted = sum(b * counts[row] / REAL for b, row in zip(kept, order, strict=True))
    assert said["balance"] == pytest.approx(wanted, rel=1e-9)
