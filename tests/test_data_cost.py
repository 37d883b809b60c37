"""Contract of `fourbit bench data`: medians of interleaved batches and steps, shares of them, and nothing measured for
arguments that cannot work.

Oracles: durations made up here, with medians and shares by hand, and numpy on the map.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fourbit
from numerics import ops
from reference import data_cost
from reference.data_cost import DataCost, DataCostConfig, cost
from reference.model import ModelConfig

TINY = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=32, depth=6)


def test_medians_and_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds after one that warms up."""
    steps = iter([100.0, 3.0, 9.0, 6.0])
    batches = iter([100.0, 100.0, 1.0, 5.0, 2.0, 4.0, 9.0, 6.0])
    monkeypatch.setattr(data_cost.Steps, "seconds", lambda self, kind: next(steps))
    monkeypatch.setattr(data_cost, "_seconds", lambda *_: next(batches))
    found = cost(DataCostConfig(rounds=3, tokens=1000, model=TINY), ops)
    assert found == DataCost(6.0, {"random": 2.0, "epoch": 5.0})
    assert found.share("random") == 0.25 and found.share("epoch") == 5 / 11
    assert next(steps, None) is None and next(batches, None) is None


def test_the_map_holds_as_many_tokens_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_cost, "_PART", 64)
    tokens = data_cost._random_map(tmp_path / "a.bin", 1000)
    assert tokens.dtype == np.uint16 and tokens[:].tolist() == np.fromfile(tmp_path / "a.bin", "<u2").tolist()
    assert len(tokens) == 1000 and len(np.unique(tokens[:])) > 800


def test_the_command_times_both_orders_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ["--rounds", "1", "--tokens", "5000", "--model.sequence", "32", "--model.dim", "32", "--model.heads", "2"]
    assert fourbit.main(["bench", "data", *words]) == 0
    out = capsys.readouterr().out
    assert "bf16: a step on 128 tokens takes" in out and "random order: a batch takes" in out and "epoch order" in out
    assert list(tmp_path.iterdir()) == []
    text = tmp_path / "text.txt"
    text.write_text("some words " * 200)
    assert fourbit.main(["bench", "data", "--data", str(text), "--rounds", "1", *words[4:]]) == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rounds": 0}, "rounds=0: use 1 or more"),
        ({"tokens": 0}, "tokens=0: use 1 or more"),
        ({"tokens": 9, "data": "x"}, "tokens=9: does nothing with data"),
        ({"tokens": 32}, r"sequence 32 is longer than the training part \(32 tokens\) of the random map"),
        ({"batch": 0}, "grain 0 cannot be used|batch 0 cannot be used"),
        ({"data": "no/such"}, "data 'no/such' cannot be found"),
    ],
)
def test_bad_arguments_are_refused(changes: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_cost.Steps, "seconds", lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match=says):
        cost(DataCostConfig(model=TINY, **changes), ops)
