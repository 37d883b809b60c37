"""The throughput study: that bytes are counted right, and that shares, limits and words follow from seconds.

Oracle: the sizes of the tensors that the operations really take and return, hand calculation on small tables, and
binomial probabilities. Nothing is judged by how fast this machine is.
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from hw import bench_numerics as bench
from studies import throughput as study
from studies import throughput_traffic as traffic

SIZE = 131072
COPY, PEER = bench.COPY, bench.E4M3_PEER


@pytest.fixture(scope="module")
def operations() -> list[bench.Operation]:
    return bench.operations(torch.randn(32, 4096, generator=torch.Generator().manual_seed(0)), ("eager",))


def test_every_operation_of_the_benchmark_is_counted(operations: list[bench.Operation]) -> None:
    unknown = {(op.name, op.mode) for op in operations if not traffic.known(op.name, op.mode)}
    assert unknown <= {("E2M1 encode", "gfloat")}
    assert {key[1] for key in bench.TARGETS} <= set(traffic.TRAFFIC)


def test_bytes_written_are_those_of_the_results(operations: list[bench.Operation]) -> None:
    """Block scales of a block of 16 are 1 / 16 byte an element; the outer scale is one number, less than 1e-4."""
    for op in operations:
        if not traffic.known(op.name, op.mode):
            continue
        result = op.run()
        results = result if isinstance(result, tuple) else (result,)
        written = sum(t.nbytes for t in results if isinstance(t, Tensor | np.ndarray)) / SIZE
        assert written == pytest.approx(traffic.TRAFFIC[op.name].written, abs=1e-4), op.name


def test_bytes_read_are_the_matrix_or_its_codes() -> None:
    """4 bytes a value, once or, where the outer scale is found, twice; a code and a sixteenth of a scale."""
    read = {name: each.read for name, each in traffic.TRAFFIC.items()}
    for name in (bench.QUANTIZE, bench.FOUR_OVER_SIX):
        assert (read[name], read[name + bench.FOUND], read[name + bench.GIVEN]) == (8, 8, 4)
    assert read[bench.REQUANTIZE] == 1 + 1 / 16 and read[COPY] == read[PEER] == read["E2M1 encode"] == 4


def table(*lines: tuple[str, str, float, str, float, float]) -> pd.DataFrame:
    names = ["operation", "mode", "mega_elements_per_second", "reference", "ratio", "peak"]
    return pd.DataFrame(lines, columns=names).assign(seconds=1.0)


def test_shares_by_hand() -> None:
    """A copy moves 8 bytes an element, an encode 5. At .8 of the speed of torch's, which has half the copy's: .25."""
    found = traffic.rooflines(
        table(
            (COPY, "torch", 1000, COPY, 0.9, 1.0),
            (PEER, "torch", 500, COPY, 0.5, np.nan),
            ("E4M3 encode", "eager", 400, PEER, 0.8, np.nan),
            (bench.QUANTIZE + bench.FOUND, "compiled", 600, COPY, 0.6, np.nan),
            ("E2M1 encode", "gfloat", 1, COPY, 0.001, np.nan),
            ("of the future", "eager", 1, COPY, 0.001, np.nan),
        )
    )
    assert found.operation.tolist() == [COPY, PEER, "E4M3 encode", bench.QUANTIZE + bench.FOUND]
    assert found.share.tolist() == pytest.approx([1.0, 0.5 * 5 / 8, 0.4 * 5 / 8, 0.6 * 12 / 8])
    assert found.gb_per_second.tolist() == pytest.approx([8.0, 2.5, 2.0, 7.2])
    assert found.best.tolist() == pytest.approx([1.0, 1.6, 1.6, 2 / 3])
    assert found.limit.tolist() == ["memory", "arithmetic", "arithmetic", "memory"]


def test_limits() -> None:
    """Of temporaries: .2 of the bandwidth at twice the least memory is .2 x (1 + 2) = .6 with a write and a read."""
    known = [(0.8, 1, "memory"), (0.7, 1, "memory in part"), (0.2, 2, "temporaries"), (0.1, 2, "arithmetic")]
    assert [traffic.limit(share, peak) for share, peak, _ in known] == [word for *_, word in known]
    assert traffic.limit(0.2, float("nan")) == "arithmetic"
    known = [(0.8, 9, "memory"), (0.5, 1, "memory in part"), (0.1, 1.5, "temporaries"), (0.1, 1.4, "arithmetic")]
    assert [study.limit(share, faster) for share, faster, _ in known] == [word for *_, word in known]


def test_a_median_interval_holds_the_median_often_enough() -> None:
    """Six values: 1 - 2 / 64 = 96.9 %; nine, without one at either end: 1 - 2 x 10 / 512 = 96.1 %; five: all."""
    for count, skip in ((3, 0), (5, 0), (6, 0), (8, 0), (9, 1)):
        values = np.random.default_rng(0).permutation(np.arange(count))
        assert study.median_interval(values) == ((count - 1) / 2, skip, count - 1 - skip)


def rows_of(encode: float, cached: float, rounds: int = 6) -> pd.DataFrame:
    """A copy of 1 s, torch's encode of 2 and ours of `encode`, measured against torch's; `cached`: faster in caches."""
    found = []
    for size, calls, speed in ((SIZE, 16, cached), (16 * SIZE, 1, 1.0)):
        for number in range(rounds):
            noise = 1 + 0.25 * (number % 2)  # hits both of a pair
            for name, mode, reference, before, own in (
                (COPY, "torch", COPY, 1.0, 1.0),
                (PEER, "torch", COPY, 1.0, 2.0),
                ("E4M3 encode", "eager", PEER, 2.0, encode),
            ):
                found.append((size, calls, name, mode, reference, number, before * noise / speed, own * noise / speed))
    names = ["size", "calls", "operation", "mode", "reference", "round", "reference_seconds", "seconds"]
    return pd.DataFrame(found, columns=names)


def test_calls_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    monkeypatch.setattr(bench, "operations", lambda x, modes: [bench.Operation(COPY, "torch", lambda: runs.append(1))])
    rows = study.measure(SIZE, 3, 2, ["eager"], "here", "now")
    assert len(runs) == 3 * (1 + 2 + 2) and rows.calls.tolist() == [3, 3]  # warm-up, and two rounds with references


def test_measured_rounds_by_hand() -> None:
    lines = study.summarize(rows_of(encode=4.0, cached=2.0)).set_index("operation")
    encode = lines.loc["E4M3 encode"]
    assert (encode.share, encode.low, encode.high) == pytest.approx((5 / 32,) * 3)  # noise of a pair cancels
    assert encode.faster == pytest.approx(2) and encode.cached == pytest.approx(2 * encode.share)
    assert encode.limit == "temporaries" and lines.loc[COPY].limit == "memory" and lines.loc[COPY].share == 1
    # speeds are medians over rounds of 1 and 1.25 times the seconds
    assert lines.loc[COPY].gb_per_second == pytest.approx(8 * 16 * SIZE * (1 + 1 / 1.25) / 2 / 1e9)


def test_the_finding_follows_the_seconds() -> None:
    rows = rows_of(encode=4.0, cached=1.0)
    told = " ".join(study.find(study.summarize(rows), rows, "A machine", {}))
    assert told.startswith(f"A machine, one thread, {16 * SIZE:,} float32 elements, n = 6 rounds: a copy moves ")
    assert "16 % (16 to 16; eager: E4M3 encode)" in told and "Limited by arithmetic, eager: E4M3 encode." in told
    assert told.endswith("No tables of other machines in results/bench.")
    rows = rows_of(encode=0.625, cached=1.0)
    other = traffic.rooflines(table((COPY, "torch", 1e6, COPY, 1, 1), ("E2M1 encode", "eager", 1e6, COPY, 1, 3)))
    told = " ".join(study.find(study.summarize(rows), rows, "A machine", {"gpu": other}))
    assert "Limited by memory, eager: E4M3 encode." in told
    assert "Table gpu (medians of one run, read, not measured here): a copy moves 8,000 GB/s" in told
    assert "memory in part (E2M1 encode 62.5 %); peak memory up to 3.00 times inputs and results." in told


def test_tables_of_other_machines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert study.tables_in(tmp_path / "absent") == {}
    ratio, target = 0.5, None
    rows = [
        bench.Row(COPY, "torch", 1e-3, 100.0, COPY, 1.0, None, "", 1.0),
        bench.Row(bench.QUANTIZE, "compiled", 2e-3, 50.0, COPY, ratio, target, "", 2.0),
    ]
    bench.write_csv(rows, tmp_path / "gpu.csv")
    found = study.tables_in(tmp_path)["gpu"]
    assert found.share.tolist() == pytest.approx([1, ratio * 13.0625 / 8]) and found.peak.tolist() == [1, 2]
    assert study.shown(found)["peak memory"].tolist() == ["1.00", "2.00"]
    for text, words in (("a,b\n1,2\n", "lacks operation, mode"), ("", "is no table of")):
        (tmp_path / "gpu.csv").write_text(text)
        with pytest.raises(ValueError, match=words):
            study.tables_in(tmp_path)
    pd.DataFrame([asdict(rows[1])]).to_csv(tmp_path / "gpu.csv")
    with pytest.raises(ValueError, match="has no line 'copy'"):
        study.tables_in(tmp_path)


def test_a_small_run_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study's path from measuring to figures, on a small matrix; the benchmark's own table is read back."""
    measured = study.measure(SIZE, 1, 2, ["eager"], "here", "now")
    monkeypatch.setattr(study, "measure", lambda size, **_: measured.assign(size=size))
    bench.write_csv([bench.Row(COPY, "torch", 1e-3, 100.0, COPY, 1.0, None, "", None)], tmp_path / "cpu.csv")
    monkeypatch.setattr(study, "BENCHES", tmp_path)
    result = study.run(fast=True)
    ours = {op for op in traffic.TRAFFIC if "encode" in op or op.startswith((bench.QUANTIZE, bench.FOUR_OVER_SIX))}
    assert set(result.rows.operation) >= ours - {bench.QUANTIZE + ", codes alone"}
    assert [each.name for each in result.tables] == ["key", "machine", "bench_cpu"] and len(result.plates) == 1
    assert len(result.figure.axes) == 2 and "Table cpu" in " ".join((result.finding, *result.details))
    assert result.tables[2].frame["peak memory"].tolist() == ["not measured"]
