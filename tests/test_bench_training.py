"""Contract of `fourbit bench training`: medians of interleaved steps, ratios of the same rounds, targets told beside
them, and nothing measured for arguments that cannot work.

Oracles: durations made up here with ratios by hand, parameters counted from the sizes, and a tiny model's steps.
"""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from numerics import ops
from reference.expert import Draw
from reference.model import ModelConfig, Transformer
from reference.optimizer import adamw
from reference.presets import preset
from reference.train import TrainConfig
from studies import bench_training as bench

TINY = ModelConfig(dim=32, heads=2, experts=4, top_k=2, expert_dim=64, shared_dim=32, sequence=32, depth=6)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ModelConfig", lambda: TINY)


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    """Rounds of 2x, 3x and 5x: median 3, though the medians of the durations, 10 and 20, would say 2."""
    seconds = {"bf16": [10.0, 1.0, 12.0], "fourbit": [20.0, 3.0, 60.0], "mxfp8": [10.0, 2.0, 6.0]}
    table = bench.tabulate(seconds, "cpu").set_index("preset")
    assert table.seconds.to_dict() == {"bf16": 10.0, "fourbit": 20.0, "mxfp8": 6.0}
    assert table.ratio.to_dict() == {"bf16": 1.0, "fourbit": 3.0, "mxfp8": 1.0}
    assert table.verdict.to_dict() == {"bf16": "", "fourbit": "met", "mxfp8": ""}  # 3 is at most 3
    assert table.target["fourbit"] == 3 and math.isnan(table.target["mxfp8"])


@pytest.mark.parametrize(
    ("device", "name", "ratio", "verdict"),
    [
        ("cpu", "fourbit", 3.01, "missed"),
        ("cuda", "fourbit", 1.6, "met"),
        ("cuda", "fourbit", 1.61, "missed"),
        ("cuda", "nvfp4_nvidia", 1.8, "met"),
        ("cuda", "nvfp4_nvidia", 1.81, "missed"),
        ("cpu", "nvfp4_nvidia", 9.0, ""),
    ],
)
def test_verdicts_are_those_of_the_device(device: str, name: str, ratio: float, verdict: str) -> None:
    table = bench.tabulate({"bf16": [1.0], name: [ratio]}, device)
    assert table.verdict.tolist() == ["", verdict]


def counted(c: ModelConfig) -> int:
    """Parameters that a token meets, by the sizes: embedding and head, and in each layer attention, two norms, the
    router, three matrices of each of its experts and three of the shared one; the last norm."""
    layer = 4 * c.dim**2 + 2 * c.dim + c.experts * c.dim + 3 * c.dim * (c.top_k * c.expert_dim + c.shared_dim)
    return c.depth * layer + 2 * c.vocab * c.dim + c.dim


def test_active_parameters_are_those_that_a_token_meets() -> None:
    model = Transformer(TINY, preset("bf16"), ops, 0)
    assert bench.active_parameters(model, TINY) == counted(TINY)
    idle = TINY.depth * (TINY.experts - TINY.top_k) * 3 * TINY.dim * TINY.expert_dim
    assert sum(p.numel() for p in model.parameters()) == counted(TINY) + idle
    assert 90e6 < counted(bench.LARGE) < 120e6


def test_a_step_is_one_of_training() -> None:
    """Forward, backward, clipping and AdamW: the weights after two are those of the calls written out."""
    config = TrainConfig(Path(), batch=2, grain=2, model=TINY)
    stepper = bench._Stepper("fourbit", config)
    model = Transformer(TINY, preset("fourbit"), ops, config.seed)
    optimizer = adamw(model, config)
    tokens = torch.randint(256, (2, 33), generator=torch.Generator().manual_seed(3))
    for step in (1, 2):
        assert stepper.step(tokens[:, :-1], tokens[:, 1:]) > 0
        optimizer.zero_grad()
        model(tokens[:, :-1], tokens[:, 1:], Draw(config.seed, step, 0)).total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
    for name, p in stepper.model.named_parameters():
        assert torch.equal(p, model.get_parameter(name)), name


def test_every_recipe_takes_a_step_in_each_round_and_the_first_two_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[str] = []

    def step(self: Any, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        assert tokens.shape == targets.shape == (3, 32) and torch.equal(tokens[:, 1:], targets[:, :-1])
        taken.append(self.model.recipe.name)
        return 1000.0 if len(taken) <= 4 else {"bf16": 2.0, "mxfp8": 5.0}[taken[-1]]

    monkeypatch.setattr(bench._Stepper, "step", step)
    threads = torch.get_num_threads()
    table, active = bench.measure(bench.BenchConfig(presets=("mxfp8", "bf16"), rounds=1, batch=3, threads=1))
    assert taken == ["bf16", "mxfp8"] * 3
    assert table.seconds.tolist() == [2.0, 5.0] and table.ratio.tolist() == [1.0, 2.5]
    assert active == bench.active_parameters(Transformer(TINY, preset("bf16"), ops, 0), TINY)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"presets": ("fp4",)}, "preset='fp4' is unknown"),
        ({"presets": ("fp8_deepseek",)}, "dim=32: blocks of 128"),
        ({"rounds": 0}, "rounds=0: use 1 or more"),
        ({"batch": 0}, "batch=0: use 1 or more"),
        ({"batch": -1}, "batch=-1: use 1 or more"),
        ({"threads": 0}, "threads 0 cannot be used"),
        ({"out": Path("no/such/folder.csv")}, "out 'no/such/folder.csv' cannot be written"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(bench._Stepper, "step", lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match=message):
        bench.measure(bench.BenchConfig(**changes))


def test_the_command_prints_the_table_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "steps.csv"
    words = ["--presets", "fourbit", "--rounds", "1", "--batch", "1", "--threads", "1", "--out", str(out)]
    assert bench.main(words) == 0
    table = pd.read_csv(out)
    assert table.preset.tolist() == ["bf16", "fourbit"] and (table.seconds > 0).all()
    printed = capsys.readouterr().out
    assert f"{counted(TINY) / 1e6:.1f} M active parameters, cpu" in printed and table.verdict[1] in ("met", "missed")
    assert table.verdict[1] in printed


def test_operations_of_a_step_by_hand() -> None:
    """6 a weight and token; causal attention: 2 products forward, 4 backward, of half of 32 x 32 scores a head."""
    scores = TINY.depth * 2 * TINY.sequence**2 / 2 * (2 + 4) * TINY.dim
    assert bench.operations_of_a_step(TINY, 1000, 3) == 3 * (32 * 6 * 1000 + scores)


@pytest.mark.parametrize(("seconds", "verdict"), [(1.0, "met"), (1.01, "missed")])
def test_the_baseline_is_held_against_the_peak(seconds: float, verdict: str) -> None:
    config = bench.BenchConfig(large=True, batch=1)
    most = bench.operations_of_a_step(bench.LARGE, 10**8, 1) / 0.3501
    text = bench.utilization(config, seconds, 10**8, most)
    assert verdict in text and f"{0.3501 / seconds:.3f} of the measured peak" in text
