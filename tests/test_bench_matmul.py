"""`fourbit bench matmul`: that it runs, and that ratios and verdicts follow from the durations. Nothing is timed."""

import csv
from pathlib import Path

import numpy as np
import pytest

import numerics as nm
from hw import bench_matmul as bench


def test_ratios_and_verdicts_follow_from_durations() -> None:
    names = ["float64", "exact NVFP4", "hopper_fp8", "fp32 BF16"]
    seconds = np.array([[[1.0, 1.0], [1.0, 4.0], [1.0, 5.0], [1.0, 2.0]]]) * np.array([1, 3, 2])[:, None, None]
    rows = {row.name: row for row in bench.table(names, seconds, 1024, "cpu")}
    assert [row.ratio for row in rows.values()] == [1.0, 0.25, 0.2, 0.5] and rows["hopper_fp8"].seconds == 10
    assert [row.verdict for row in rows.values()] == ["", "met", "met", ""]
    slow = {row.name: row for row in bench.table(names, seconds * [1, 1.25], 1024, "cpu")}
    assert slow["exact NVFP4"].verdict == slow["hopper_fp8"].verdict == "missed"
    assert "takes 0.125 of it" in bench.table(names, seconds, 2048, "cpu")[2].target


def test_it_runs_and_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "matmul.csv"
    assert bench.main(["--size", "64", "--repeats", "1", "--threads", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["name"] for row in rows} >= {row.name for row in nm.ACCUMULATORS.values() if row.steps}
    assert all(row["name"] in printed and float(row["seconds"]) > 0 for row in rows)
    assert bench.main(["--size", "64", "--repeats", "1", "--only", "exact"]) == 0
    assert "hopper" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--size", "100"], "size=100: use a positive multiple of 64"),
        (["--threads", "0"], "threads=0: use 1 or more"),
        (["--size", "64", "--only", "nothing"], "only=.*: no product has such a name; there are float64, exact NVFP4"),
    ],
)
def test_a_mistake_is_told(argv: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench.main(argv)
