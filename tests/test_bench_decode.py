"""Contract of `fourbit bench decode`: rates of interleaved calls, ratios of the same rounds, memory of packed experts,
targets told beside them, and nothing measured for arguments that cannot work.

Oracles: rates made up here with ratios by hand, bits of weights counted, and a tiny model's calls.
"""

from pathlib import Path

import pandas as pd
import pytest

from reference.model import ModelConfig
from studies import bench_decode as bench

TINY = ModelConfig(dim=32, heads=2, experts=4, top_k=2, expert_dim=64, shared_dim=32, sequence=32, depth=6)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ModelConfig", lambda: TINY)


def test_ratios_and_verdicts() -> None:
    """Rounds of 1/2, 1 and 2 times bf16: median 1, though the medians of the rates, 20 and 10, would say 2."""
    rates = {("bf16", 1): [10.0, 40.0, 10.0], ("fourbit", 1): [5.0, 40.0, 20.0], ("mxfp8", 1): [1.0, 4.0, 1.0]}
    sizes = {"bf16": 100, "fourbit": 33, "mxfp8": 50}
    table = bench.tabulate(rates, sizes, "cuda").set_index("preset")
    assert table.rate.to_dict() == {"bf16": 10.0, "fourbit": 20.0, "mxfp8": 1.0}
    assert table.ratio.to_dict() == {"bf16": 1.0, "fourbit": 1.0, "mxfp8": 0.1}
    assert table.verdict.to_dict() == {"bf16": "", "fourbit": "speed met (0.9), memory met (0.33)", "mxfp8": ""}
    slow = {("bf16", 1): [10.0], ("fourbit", 1): [8.9]}
    assert (
        bench.tabulate(slow, sizes | {"fourbit": 34}, "cuda").verdict[1] == "speed missed (0.9), memory missed (0.33)"
    )
    assert bench.tabulate(slow, sizes, "cpu").verdict[1] == "memory met (0.33)"  # speed is asked of a GPU


@pytest.mark.parametrize("parity", [False, True])
def test_a_tiny_model_is_measured(parity: bool, tmp_path: Path) -> None:
    config = bench.BenchConfig(
        presets=("fourbit",), batches=(1, 3), tokens=3, prompt=2, rounds=2, parity=parity, out=tmp_path / "t.csv"
    )
    table = bench.measure(config)
    assert table[["preset", "batch"]].to_numpy().tolist() == [["bf16", 1], ["fourbit", 1], ["bf16", 3], ["fourbit", 3]]
    assert (table.rate > 0).all() and (table.ratio[table.preset == "bf16"] == 1).all()
    # 4.5 bits in five sixths of the layers, and 32 for each expert's matrix; 8.25 in the last
    bits = (5 * (4.5 + 32 * 2 / (3 * 64 * 32)) + 8.25) / 6
    assert table.memory[1] == pytest.approx(bits / 16, rel=1e-12)


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--presets", "--batches", "2", "--tokens", "2", "--prompt", "2", "--rounds", "1"]
    assert bench.main([*words, "--out", str(tmp_path / "table.csv")]) == 0
    assert "tokens a second, prompts read too, cpu, ops emulated" in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "table.csv").preset.tolist() == ["bf16"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"rounds": 0}, "rounds=0: use 1 or more"),
        ({"tokens": 0}, "tokens=0: use 1 or more"),
        ({"batches": ()}, r"batches=\(\): use one or more"),
        ({"batches": (1, 0)}, r"batches=\(1, 0\): use one or more numbers of 1"),
        ({"prompt": 30, "tokens": 4}, "prompt=30 and tokens=4: use 33 or fewer together"),
        ({"out": Path("/nowhere/x.csv")}, "out '/nowhere/x.csv' cannot be written"),
        ({"presets": ("nothing",)}, "nothing"),
        ({"presets": ("nvfp4_all",), "parity": True}, "layer 0 cannot have parity"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        bench.measure(bench.BenchConfig(**({"presets": (), "prompt": 4, "tokens": 4} | fields)))
