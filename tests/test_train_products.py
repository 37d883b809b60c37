"""Contract: a run sums its experts' products as `products` says, or refuses in a sentence.

Oracle: losses of short runs: the default is the library, every accumulator trains nearly the same, and operands that an
accumulator does not take are named.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from numerics import ops
from reference.config import TrainConfig
from reference.train import train
from tests.test_train import SMALL


def run(folder: Path, **fields: Any) -> list[float]:
    common = {"steps": 2, "warmup": 1, "batch": 2, "grain": 2, "eval_every": 2, "eval_sequences": 2, "monitor_every": 0}
    train(TrainConfig(folder, **{**common, "progress": "hide", "model": SMALL, **fields}), ops)
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("preset", "products"), [("bf16", "fp32"), ("bf16", "hopper_bf16"), ("mxfp8", "blackwell_mxfp8")]
)
def test_accumulators_train_alike(tmp_path: Path, preset: str, products: str):
    plain = run(tmp_path / "plain", preset=preset)
    assert run(tmp_path / "library", preset=preset, products="library") == plain
    summed = run(tmp_path / "summed", preset=preset, products=products)
    assert summed == pytest.approx(plain, rel=2e-3)  # BF16 has 2^-9 a rounding
    assert json.loads((tmp_path / "summed" / "config.json").read_text())["products"] == products
    assert "products" not in json.loads((tmp_path / "plain" / "config.json").read_text())


def test_deterministic_takes_any_sum_with_an_order(tmp_path: Path):
    """The micro batch does not matter."""
    one, two = (
        run(tmp_path / str(m), preset="bf16", deterministic=True, products="fp32", grain=1, micro_batch=m)
        for m in (1, 2)
    )
    assert one == two


def test_a_trial_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the sigmoid router's loads either; without a trial the losses are the same."""
    model = dataclasses.replace(SMALL, router="sigmoid")
    never = {"raise_loss": 9.0, "raise_to": "mxfp8", "monitor_every": 1}  # BF16 layers are not raised to that
    fields = {"preset": "bf16", "products": "hopper_bf16", "model": model, **never}
    tried = run(tmp_path / "tried", **fields)
    monkeypatch.setattr("reference.train.require_products", lambda *_: None)
    assert run(tmp_path / "untried", **fields) == tried
    name = "checkpoint-00000002.safetensors"
    assert (tmp_path / "tried" / name).read_bytes() == (tmp_path / "untried" / name).read_bytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"products": "tf32"}, "products 'tf32' cannot be used; use one of exact, fp32, library"),
        (
            {"products": "library", "deterministic": True},
            "products 'library' cannot be used; .* exact, fp32, volta",
        ),
        (
            {"products": "hopper_fp8", "preset": "mxfp8"},
            "products 'hopper_fp8' does not fit the recipes of the run: .*BlockTensor of MXFP8: hopper_fp8 takes E4M3",
        ),
        # of steps that come later, and of backwards alone
        (
            {"products": "hopper_bf16", "preset": "bf16", "switch_at": 0.5, "switch_to": "mxfp8"},
            "products 'hopper_bf16' does not fit .* MXFP8: hopper_bf16 takes BF16",
        ),
        (
            {
                "products": "blackwell_mxfp8",
                "preset": "mxfp8",
                "raise_loss": 9.0,
                "raise_to": "bf16",
                "monitor_every": 1,
            },
            "products 'blackwell_mxfp8' does not fit .* takes blocks of MXFP8",
        ),
        (
            {"products": "hopper_bf16", "preset": "bf16", "layer_presets": {3: "mxfp8"}},
            "products 'hopper_bf16' does not fit .* MXFP8: hopper_bf16 takes BF16",
        ),
        (
            {"products": "blackwell_nvfp4", "preset": "nvfp4_46_forward"},
            "products 'blackwell_nvfp4' does not fit the recipes of the run",
        ),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "x", **fields)
    assert not (tmp_path / "x").exists()
