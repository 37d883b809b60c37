"""Contract of reference.recompute: losses, gradients, loads and what a monitor sees are those without, bit for bit;
kept is one input a layer.

Oracle: the same model without it; the sizes of the layers' inputs.
"""

import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from numerics import ops
from reference import checkpoint
from reference.expert import Draw
from reference.model import ModelConfig, Transformer
from reference.monitor import Observer, observing
from reference.presets import preset
from reference.router import Bias
from reference.saved import counting
from reference.train import TrainConfig, train

PLAIN = ModelConfig(vocab=64, dim=64, heads=4, experts=4, expert_dim=32, shared_dim=32, sequence=24)
OPTIONS = dataclasses.replace(
    PLAIN, kv_heads=2, window=7, positions="none", router="sigmoid", convolution=4, dense_layers=1
)


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """Shapes and threads are equal in what is compared."""


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(0, 64, (4, 25), generator=torch.Generator().manual_seed(1))


def model(config: ModelConfig, again: bool, name: str = "fourbit", **options: Any) -> Transformer:
    made = Transformer(config, preset(name), ops, 4, **options)
    made.recompute_layers = again
    return made


def both(config: ModelConfig, **options: Any) -> Iterator[Transformer]:
    return (model(config, again, **options) for again in (False, True))


def gradients(model: Transformer, tokens: torch.Tensor, grains: int = 2) -> dict[str, torch.Tensor]:
    """The loss and all gradients."""
    losses = model(tokens[:, :-1], tokens[:, 1:], Draw(0, 1, 0), grains)
    losses.total.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {"ce": losses.ce.detach(), "balance": losses.balance.detach()}


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (PLAIN, {}),
        (PLAIN, {"name": "bf16", "accumulator": "exact"}),
        (PLAIN, {"recompute_glu": True}),
        (PLAIN, {"name": "nvfp4_nvidia"}),
        (OPTIONS, {}),
    ],
    ids=["fourbit", "bf16", "glu too", "nvfp4_nvidia", "options"],
)
def test_gradients_and_loads_are_the_same_bits(config: ModelConfig, options: dict, tokens: torch.Tensor) -> None:
    plain, again = both(config, **options)
    one, two = gradients(plain, tokens), gradients(again, tokens)
    assert one.keys() == two.keys() and len(one) > 40
    assert all(torch.equal(one[name], two[name]) for name in one)
    loads = [[m.load for m in each.modules() if isinstance(m, Bias)] for each in (plain, again)]
    assert len(loads[0]) == (5 if config is OPTIONS else 0)
    assert all(torch.equal(a, b) and a.sum() == 4 * 24 * 2 for a, b in zip(*loads, strict=True))


def test_it_does_compute_again(tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    quantize = ops.quantize_tokens
    monkeypatch.setattr(ops, "quantize_tokens", lambda *args, **words: calls.append(1) or quantize(*args, **words))
    counts = []
    for each in both(PLAIN):
        calls.clear()
        losses = each(tokens[:, :-1], tokens[:, 1:], Draw(0, 1, 0))
        counts.append(len(calls))
        losses.total.backward()
        counts.append(len(calls))
    forward, all_plain, forward_again, all_again = counts
    assert forward == forward_again == 6 * 4 and all_again == all_plain + forward


def test_a_second_backward_of_one_graph_has_the_same_bits(tokens: torch.Tensor) -> None:
    each = model(OPTIONS, True)
    losses = each(tokens[:, :-1], tokens[:, 1:], Draw(0, 1, 0))
    losses.total.backward(retain_graph=True)
    first = {name: p.grad.clone() for name, p in each.named_parameters() if p.grad is not None}
    each.zero_grad()
    losses.total.backward()
    assert all(torch.equal(first[name], p.grad) for name, p in each.named_parameters() if name in first)
    assert all(m.load.sum() == 4 * 24 * 2 for m in each.modules() if isinstance(m, Bias))


def test_kept_are_the_layers_inputs(tokens: torch.Tensor) -> None:
    kept = []
    for each in both(PLAIN):
        with counting(each) as sizes:
            losses = each(tokens[:, :-1], tokens[:, 1:], Draw(0, 1, 0))
        kept.append(sum(sizes))
        del losses
    stream = 4 * 24 * 64 * 4  # FP32 (B, S, D)
    # beside the inputs: embedding, last norm, head and loss, of which D and V are the same here
    assert 6 * stream <= kept[1] <= 6 * stream + 6 * stream < kept[0] / 4


def test_the_monitor_sees_the_same(tokens: torch.Tensor) -> None:
    seen = []
    for each in both(PLAIN):
        observer = Observer()
        for step in range(3):
            observer.begin(step == 2)
            with observing(each, observer):
                losses = each(tokens[:, :-1], tokens[:, 1:], Draw(0, step, 0), 2)
            losses.total.backward()
            with torch.no_grad():
                for p in each.parameters():
                    p.sub_(p.grad, alpha=0.01)
                    p.grad = None
        seen.append(observer.numbers())
    assert seen[0] == seen[1] and len(seen[0]) > 200
    assert seen[0]["1.weights.transitions"] == 2


def test_no_gradient_no_second_forward(tokens: torch.Tensor) -> None:
    plain, again = both(OPTIONS)
    with torch.no_grad():
        one, two = (each(tokens[:, :-1], tokens[:, 1:], Draw(0, 1, 0)).ce for each in (plain, again))
    assert torch.equal(one, two)


def test_a_run_has_the_same_bits_and_may_take_it_up_or_drop_it(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(random.Random(0).choices(range(1, 256), k=4000)))
    config = TrainConfig(
        **{"out": tmp_path / "plain", "data": str(text), "steps": 4, "batch": 4, "grain": 2, "warmup": 1},
        **{"eval_every": 4, "eval_sequences": 2, "checkpoint_every": 2, "monitor_every": 2, "progress": "hide"},
        model=dataclasses.replace(OPTIONS, vocab=256),
    )

    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 2:
            raise KeyboardInterrupt

    plain = train(config, ops)
    half = dataclasses.replace(config, out=tmp_path / "half", recompute="layers")
    with pytest.raises(KeyboardInterrupt):
        train(half, ops, interrupt)
    assert train(dataclasses.replace(half, recompute="none"), ops).train_losses == plain.train_losses
    whole = train(dataclasses.replace(half, out=tmp_path / "whole"), ops)
    assert whole.saved_bytes is not None and plain.saved_bytes is not None
    assert whole.saved_bytes < plain.saved_bytes / 4
    files = [checkpoint.latest(tmp_path / name) for name in ("plain", "half", "whole")]
    assert len({file.read_bytes() for file in files if file is not None}) == 1
    logs = [[json.loads(line) for line in (tmp_path / n / "log.jsonl").open()] for n in ("plain", "half", "whole")]
    bare = [[{k: v for k, v in record.items() if k != "seconds"} for record in log] for log in logs]
    assert bare[0] == bare[2] and bare[0][:2] == bare[1][:2]


def test_another_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="recompute 'all' cannot be used; use 'none' or 'layers'"):
        train(TrainConfig(out=tmp_path / "run", recompute="all"), ops)  # type: ignore[arg-type]
