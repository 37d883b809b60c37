"""How much of memory's bandwidth do the emulation's operations use, and what limits them?

This machine's processor is measured, on one thread: every operation of `fourbit bench numerics` in rounds, its
reference right before it, on a matrix larger than the caches and on one that fits into them. An operation that uses
little of the copy's bandwidth and is hardly faster inside the caches is limited by its arithmetic (and calls); one that
is, by memory beyond inputs and results: temporaries, and pages that are new to the process.

Tables that `fourbit bench numerics --out results/bench/NAME.csv` wrote, on this machine or another, are read and
counted beside it; the study runs without any. They hold medians without intervals, and peak memory on a GPU alone.
What traffic means, and what it leaves out, is in `throughput_traffic`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from hw import bench_numerics as bench
from hw.device import describe
from reference.progress import Progress

from . import cache
from . import throughput_draw as figures
from . import throughput_traffic as traffic
from .interval import LEVEL, listed
from .result import KEY_ROWS, Plate, Result, Study, Table, key_table
from .throughput_traffic import COPY, HALF, NEAR, TRAFFIC

BENCHES = Path("results/bench")  # tables of further machines, if any
COLUMNS = 4096
CACHED = 1 << 18  # elements: 1 MiB of float32, with results at most 4.3 MiB
FASTER = 1.5  # in the caches: what such an operation gains tells of memory


def measure(size: int, calls: int, rounds: int, modes: list[str], machine: str, source: str) -> pd.DataFrame:
    """Seconds of each operation and of its reference right before it.

    Args: size: elements, a multiple of 131072. calls: of an operation that are timed together, so that another
    program's share of the processor lengthens a small matrix's times as it does a large one's. modes: "eager",
    "compiled". machine, source: name what was measured.

    Returns:
        Columns size, calls, operation, mode, reference, round, reference_seconds, seconds.
    """
    x = torch.randn(size // COLUMNS, COLUMNS, generator=torch.Generator().manual_seed(0))
    known = [op for op in bench.operations(x, tuple(modes)) if traffic.known(op.name, op.mode)]
    repeated = [replace(op, run=_repeat(op.run, calls)) for op in known]
    seconds = bench.durations(repeated, rounds, x.device, warm_up=1)
    found = [
        (size, calls, op.name, op.mode, op.reference, number, *map(float, seconds[number, place]))
        for place, op in enumerate(known)
        for number in range(rounds)
    ]
    names = ["size", "calls", "operation", "mode", "reference", "round", "reference_seconds", "seconds"]
    return pd.DataFrame(found, columns=names)


def _repeat(run: Callable[[], Any], calls: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(calls):
            run()

    return repeated


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Median, and the narrowest symmetric interval of order statistics that holds the true one with 95 % or more,
    whatever the distribution; all values where even they do not (fewer than six)."""
    ordered, count = np.sort(values), len(values)
    inner = [k for k in range(count // 2) if 1 - 2 * stats.binom.cdf(k, count, 0.5) >= LEVEL]
    skip = max(inner, default=0)
    return float(np.median(ordered)), float(ordered[skip]), float(ordered[count - 1 - skip])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per operation and mode on the large matrix, with its share in the caches.

    Returns:
        Columns operation, mode, bytes, why, elements_per_second, gb_per_second, share with low and high, best,
        cached (share of the copy's bandwidth in memory), faster (speed in the caches over that in memory), limit.
    """
    large, small = rows["size"].max(), rows["size"].min()
    byte_of = {name: each.total for name, each in TRAFFIC.items()}
    rates = (
        rows.assign(rate=rows["size"] * rows.calls / rows.seconds)
        .groupby(["size", "operation", "mode"], sort=False)
        .rate
    )
    speeds, fastest = rates.median(), rates.max()
    to_copy = _ratios(rows[rows["size"] == large])
    found = []
    for (operation, mode), ratios in to_copy.items():
        total, speed = byte_of[operation], float(speeds[large, operation, mode])
        share, low, high = (1.0,) * 3 if operation == COPY else median_interval(ratios * total / byte_of[COPY])
        # of the fastest rounds: what else the machine does only slows down
        faster = float(fastest[small, operation, mode] / fastest[large, operation, mode])
        found.append(
            {
                "operation": operation,
                "mode": mode,
                "bytes": total,
                "why": TRAFFIC[operation].why,
                "elements_per_second": speed,
                "gb_per_second": total * speed / 1e9,
                "share": share,
                "low": low,
                "high": high,
                "best": byte_of[COPY] / total,
                "cached": share * faster,
                "faster": faster,
                "limit": limit(share, faster),
            }
        )
    return pd.DataFrame(found)


def limit(share: float, faster: float) -> str:
    """What limits an operation: "memory" at `NEAR` of the copy's bandwidth or more and "memory in part" at `HALF`; with
    less, "temporaries" if it is `FASTER` in the caches, else "arithmetic", which includes calls."""
    if share >= HALF:
        return "memory" if share >= NEAR else "memory in part"
    return "temporaries" if faster >= FASTER else "arithmetic"


def _ratios(rows: pd.DataFrame) -> dict[tuple[str, str], np.ndarray]:
    """Seconds of a copy over those of each operation, round by round, by way of its reference."""
    own = {
        key: (part.reference.iloc[0], (part.reference_seconds / part.seconds).to_numpy())
        for key, part in rows.sort_values("round").groupby(["operation", "mode"], sort=False)
    }
    order = list(dict.fromkeys(zip(rows.operation, rows["mode"], strict=True)))
    first = {operation: ratios for (operation, _), (_, ratios) in reversed(own.items())}
    return {key: own[key][1] * (1.0 if own[key][0] == COPY else first[own[key][0]]) for key in order}


def find(lines: pd.DataFrame, rows: pd.DataFrame, machine: str, tables: dict[str, pd.DataFrame]) -> tuple[str, ...]:
    """The finding and its details, in words."""
    rounds, size = rows["round"].nunique(), int(rows["size"].max())
    copy = lines[lines.operation == COPY].iloc[0]
    ours = lines[lines["mode"].isin(["eager", "compiled"])]
    order = sorted(ours.itertuples(), key=lambda row: row.share)
    told = [
        f"{machine}, one thread, {size:,} float32 elements, n = {rounds} rounds: a copy moves {copy.gb_per_second:.1f} "
        f"GB/s, {copy.faster:.1f} times as much where data fit the caches. Of its bandwidth ours use "
        f"{_share(order[0])} to {_share(order[-1])}, stated bytes counted, medians with 95 % intervals.",
    ]
    for (what, mode), part in ours.groupby(["limit", "mode"], sort=False):
        told.append(f"Limited by {what}, {mode}: {'; '.join(part.operation)}.")
    told += [_about(name, frame) for name, frame in tables.items()]
    return tuple(told if tables else [*told, f"No tables of other machines in {BENCHES}."])


def _share(row: Any) -> str:
    share, low, high = (f"{100 * x:.0f}" if x >= 0.1 else f"{100 * x:.2g}" for x in (row.share, row.low, row.high))
    return f"{share} % ({low} to {high}; {row.mode}: {row.operation})"


def _about(name: str, frame: pd.DataFrame) -> str:
    """What a benchmark's table says."""
    copy = frame[frame.operation == COPY].iloc[0]
    ours = frame[frame["mode"].isin(["eager", "compiled"])]
    told = []
    for what, part in ours.groupby("limit", sort=False):
        names = [f"{row.operation} {100 * row.share:.3g} %" for row in part.itertuples()]
        told.append(f"{what} ({'; '.join(names)})")
    peaks = ours.peak.dropna()
    most = f"; peak memory up to {peaks.max():.2f} times inputs and results" if len(peaks) else ""
    shares = f"shares of it by what limits: {listed(told)}" if told else "it has none of our operations"
    return (
        f"Table {name} (medians of one run, read, not measured here): a copy moves {copy.gb_per_second:,.0f} GB/s; "
        f"{shares}{most}."
    )


def shown(lines: pd.DataFrame) -> pd.DataFrame:
    """Lines for readers, of this machine or of a table."""
    cells = {
        "operation": lines.operation,
        "mode": lines["mode"],
        "bytes per element": lines.bytes.map("{:g}".format),
        "read; written": lines.why,
        "M elements/s": (lines.elements_per_second / 1e6).map("{:,.0f}".format),
        "GB/s": lines.gb_per_second.map("{:,.1f}".format),
        "share of copy, %": lines.share.map(lambda x: f"{100 * x:.3g}"),
        "ratio to copy": (lines.share * lines.best).map("{:.3g}".format),
        "best ratio to copy": lines.best.map("{:.2f}".format),
    }
    if "low" in lines:
        spans = zip(lines.low, lines.high, strict=True)
        cells["95 %"] = [f"{100 * low:.3g} to {100 * high:.3g}" for low, high in spans]
        cells["faster in caches"] = lines.faster.map("{:.2f}".format)
    if "peak" in lines:
        cells["peak memory"] = lines.peak.map(lambda x: f"{x:.2f}" if x == x else "not measured")
    return pd.DataFrame(cells | {"limit": lines.limit})


def tables_in(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables in a folder, counted, by file name; none without the folder. Raises ValueError as `traffic.read`."""
    return {path.stem: traffic.rooflines(traffic.read(path)) for path in sorted(folder.glob("*.csv"))}


def run(fast: bool) -> Result:
    """Measure this processor, eager when `fast`, else compiled as well; read the tables of `BENCHES`."""
    size, rounds, modes = (1 << 23, 6, ["eager"]) if fast else (1 << 24, 9, ["eager", "compiled"])
    tables = tables_in(BENCHES)
    about = describe(torch.device("cpu"))
    source = hashlib.sha256(Path(bench.__file__).read_bytes()).hexdigest()[:16]
    asked = {"rounds": rounds, "modes": modes, "machine": f"{about['name']}, torch {about['torch']}", "source": source}
    parts = []
    with Progress(2, "throughput") as progress:
        for elements in (CACHED, size):
            parts.append(cache.part(measure, size=elements, calls=size // elements, **asked))
            progress.advance(1, f"{elements:,} elements")
    rows = pd.concat(parts, ignore_index=True)
    lines, name = summarize(rows), str(about["name"])
    copy = lines[lines.operation == COPY].iloc[0]
    roofs = {"in memory": 1e9 * copy.gb_per_second, "in the caches": 1e9 * copy.gb_per_second * copy.faster}
    ours = lines[lines["mode"].isin(modes)]
    bound = f"{int((ours.limit == 'arithmetic').sum())} of {len(ours)}"
    caption = (
        f"{name}, one thread, {size:,} elements. Left: speed against elements per stated byte, under the copy's "
        f"bandwidth. Right: share of it, bars 95 % intervals over {rounds} rounds; open marks: {CACHED:,} elements, in "
        f"the caches, against the same copy. {bound} of our operations are limited by "
        "arithmetic."
    )
    summary = {"this machine": lines.to_dict("records")} | {
        key: each.to_dict("records") for key, each in tables.items()
    }
    finding, *told = find(lines, rows, name, tables)
    return Result(
        rows, figures.figure(lines, roofs, name), caption, finding, (0,), _plain(summary),
        tables=_tables(lines, name, tables), plates=_plates(tables), details=tuple(told),
    )  # fmt: skip


def _tables(lines: pd.DataFrame, name: str, tables: dict[str, pd.DataFrame]) -> tuple[Table, ...]:
    told = "bytes are inputs and results once; the best ratio is that at the copy's bandwidth"
    here = Table("machine", shown(lines), f"Measured here, {name}, one thread; {told}.")
    brief = here.frame[["operation", "mode", "M elements/s", "share of copy, %", "limit"]]
    last = brief[brief["mode"] == lines["mode"].iloc[-1]].tail(KEY_ROWS)
    key = key_table(last, f"{name}, one thread: share of the bandwidth of a copy, and what limits each operation.")
    return (
        key,
        here,
        *(Table(f"bench_{key}", shown(each), f"Table {key}, read; {told}.") for key, each in tables.items()),
    )


def _plates(tables: dict[str, pd.DataFrame]) -> tuple[Plate, ...]:
    made = []
    for name, each in tables.items():
        copy = each[each.operation == COPY].iloc[0]
        drawn = figures.figure(each, {"in memory": 1e9 * copy.gb_per_second}, f"Table {name}")
        made.append(Plate(f"bench_{name}", drawn, _about(name, each)))
    return tuple(made)


def _plain(value: Any) -> Any:
    """For JSON: what is no number becomes null."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and value != value else value


STUDY = Study(
    name="throughput",
    title="Throughput against memory's roof",
    question="What share of a copy's memory bandwidth do the emulation's operations use, and does memory or arithmetic "
    "limit them?",
    run=run,
    alone=True,
)
