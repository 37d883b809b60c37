"""`fourbit bench numerics`: that it runs, and that ratios and verdicts follow from the durations. Nothing is timed."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hw import bench_numerics as bench

PEER = bench.E2M1_PEER


def rows_of(ratio: float, kind: str = "cpu", name: str = bench.QUANTIZE, mode: str = "eager") -> list[bench.Row]:
    """A copy and one operation that needs 1 / ratio of its time in every round, but for noise that both share."""
    listed = [bench.Operation(bench.COPY, "torch", lambda: None), bench.Operation(name, mode, lambda: None)]
    noise = np.array([1.0, 4.0, 2.0])[:, None, None]
    return bench.table(listed, noise * [[1.0, 1.0], [1.0, 1.0 / ratio]], [None, 1.5], 2_000_000, kind)


def test_a_ratio_is_the_references_time_over_the_operations_own() -> None:
    copy, row = rows_of(0.25)
    assert (copy.ratio, copy.seconds, copy.target, copy.verdict) == (1.0, 2.0, None, "")
    assert (row.ratio, row.seconds, row.mega_elements_per_second, row.peak) == (0.25, 8.0, 0.25, 1.5)


def test_a_ratio_is_of_one_round() -> None:
    """The median of ratios, not the ratio of medians: a slow moment of the machine that hits both leaves it alone."""
    listed = [bench.Operation("x", "eager", lambda: None)]
    (row,) = bench.table(listed, np.array([[[1.0, 2.0]], [[8.0, 16.0]], [[1.0, 4.0]]]), [None], 1, "cpu")
    assert (row.ratio, row.seconds) == (0.5, 4.0)


def test_a_reference_may_be_a_peer() -> None:
    runs = {"copy": 0, PEER: 0, "E2M1 encode": 0}

    def count(name: str) -> Callable[[], None]:
        def run() -> None:
            runs[name] += 1

        return run

    listed = [bench.Operation("copy", "torch", count("copy")), bench.Operation(PEER, "ml_dtypes", count(PEER))]
    listed.append(bench.Operation("E2M1 encode", "eager", count("E2M1 encode"), PEER))
    assert bench.durations(listed, 3, torch.device("cpu"), warm_up=0).shape == (3, 3, 2)
    assert runs == {"copy": 3 + 3 + 3, PEER: 3 + 3, "E2M1 encode": 3}  # its reference before each, whatever its name
    row = bench.table(listed, np.array([[[1.0, 1.0], [1.0, 6.0], [6.0, 2.0]]]), [None] * 3, 1, "cpu")[2]
    assert (row.reference, row.ratio, row.target, row.verdict) == (PEER, 3.0, 2.0, "met")


@pytest.mark.parametrize(
    ("ratio", "kind", "mode", "target", "verdict"),
    [
        (0.15625, "cpu", "compiled", 0.15, "met"),
        (0.125, "cpu", "compiled", 0.15, "missed"),
        (0.5, "cuda", "compiled", None, ""),
        (0.5, "cuda", "eager", None, ""),
        (0.5, "cpu", "eager", None, ""),
    ],
)
def test_targets_are_met_or_missed(ratio: float, kind: str, mode: str, target: float | None, verdict: str) -> None:
    row = rows_of(ratio, kind, mode=mode)[1]
    assert (row.target, row.verdict) == (target, verdict)
    assert verdict in bench.report([row])


def test_every_target_is_of_an_operation_that_is_timed() -> None:
    """On a CPU all of them; a GPU's operations have the same names."""
    listed = {(op.name, op.mode) for op in bench.operations(torch.randn(32, 64))}
    assert {(name, mode) for _, name, mode in bench.TARGETS} <= listed


def test_it_runs_and_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    out = tmp_path / "new" / "bench.csv"
    assert bench.main(["numerics", "--size", "131072", "--fast", "--repeats", "1", "--out", str(out)]) == 0
    assert torch.get_num_threads() == threads
    printed = capsys.readouterr().out
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["operation"] for row in rows} >= {"copy", "E2M1 encode", "E4M3 encode", "NVFP4", "four-over-six"}
    assert all(row["operation"] in printed and float(row["seconds"]) > 0 for row in rows)
    assert {row["verdict"] for row in rows if row["target"]} <= {"met", "missed"}
    assert "131072 float32 elements" in printed
    assert [path.name for path in out.parent.iterdir()] == ["bench.csv"]


@pytest.mark.parametrize(
    ("argv", "modes"),
    [
        ([], ("eager", "compiled")),
        (["--fast"], ("eager",)),
        (["--modes", "compiled"], ("compiled",)),
        (["--fast", "--modes", "compiled"], ("compiled",)),
        (["--fast", "--modes", "compiled", "eager"], ("compiled", "eager")),
        (["--modes", "eager"], ("eager",)),
    ],
)
def test_the_modes_that_are_named_are_the_ones_that_run(
    argv: list[str], modes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def operations(x: torch.Tensor, modes: tuple[str, ...]) -> list[bench.Operation]:
        asked.append(modes)
        return [bench.Operation(bench.COPY, "torch", lambda: None)]

    monkeypatch.setattr(bench, "operations", operations)
    assert bench.main(["numerics", "--size", "131072", "--repeats", "1", *argv]) == 0
    assert asked == [modes]


@pytest.mark.parametrize("out", ["file/bench.csv", "folder", "/proc/bench.csv", "/proc/new/bench.csv", "/dev/null"])
def test_a_table_that_cannot_be_written_is_told_first(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(bench, "operations", lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match=r"^out='.*' (cannot be written \(.+\)|is a folder|is no file).*; name a file"):
        bench.main(["numerics", "--fast", "--size", "131072", "--out", str(tmp_path / out)])
    assert capsys.readouterr().out == "" and sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["numerics", "--modes"], r"modes=\(\): name eager, compiled or both"),
        (["numerics", "--size", "1000"], "size=1000: use a positive multiple of 131072"),
        (["numerics", "--size", "0"], "size=0"),
        (["numerics", "--threads", "0"], "threads=0: use 1 or more"),
        (["numerics", "--repeats", "-1"], "repeats=-1: use 1 or more"),
        (["numerics", "--device", "tpu"], "device='tpu' is not a device"),
        (["kernels"], "bench kernels: use `fourbit bench numerics`"),
        ([], "bench of nothing"),
    ],
)
def test_a_mistake_is_told(argv: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench.main(argv)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_an_absent_device_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["numerics", "--device", "cuda"]) == 2
    assert "device='cuda'" in capsys.readouterr().err
