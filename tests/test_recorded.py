"""Recorded activations in `fourbit validate --ops`: read, used, named.

Contract: any file of floating tensors is one more kind of data for every operation; without one that kind is said not
to have run; a file that cannot be used is one sentence. Oracle: a fault that recorded data alone shows.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from seam_copies import failed, returns, run, written
from seam_copies import two_threads as two_threads

from hw import recorded, seam

SEAM = tuple(seam.seam())


def test_recorded_activations_are_one_more_kind_of_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault that no drawn data shows, shown by what was recorded, whose tensor is named."""
    path = written(tmp_path, more=returns("glu_backward", "r + (args[0][:1, :1] == 0.7265625).any()"))
    file = tmp_path / "activations.safetensors"
    save_file({"layer 3": torch.full((2, 3, 5), 0.7265625), "ids": torch.arange(3)}, file)
    only = ("--only", "glu_backward, normal", "glu_backward, recorded")
    status, lines = run(capsys, path, *only)
    assert status == 0 and lines[-1].endswith("; recorded activations not run: none given")
    status, lines = run(capsys, path, *only, "--activations", str(file))
    (row,) = failed(lines)
    assert status == 1 and row.split()[1] == "recorded" and "ragged, seed 0, 'layer 3': d_gate_up[" in row
    assert "not run" not in lines[-1]


def test_recorded_activations_reach_every_operation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN, Inf and sums that overflow among them: bounds then say nothing, or the same."""
    x = torch.randn(50, 100, generator=torch.Generator().manual_seed(0))
    x[3, 5], x[7, 8], x[9] = torch.nan, torch.inf, 1e38
    save_file({"x": x.bfloat16()}, tmp_path / "x.safetensors")
    status, lines = run(capsys, "emulated", "--only", ", recorded", "--activations", str(tmp_path / "x.safetensors"))
    assert status == 0, failed(lines)
    assert {line.split()[0] for line in lines[1:-1]} == set(SEAM)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "holds nothing; pass bfloat16"),
        ({"ids": torch.arange(3)}, r"holds ids torch.int64 \(3,\); pass bfloat16, float16 or float32 tensors"),
        ({"x": torch.empty(0, 4)}, r"holds x torch.float32 \(0, 4\)"),
        (None, r"cannot be read as safetensors \(.*\); write it with save_file"),
    ],
)
def test_activations_that_cannot_be_used(tensors: dict | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"nothing") if tensors is None else save_file(tensors, path)
    with pytest.raises(ValueError, match=message):
        recorded.load(path)
