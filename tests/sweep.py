"""All 2^32 float32 inputs through two implementations: chunks, threads, a progress bar, a record.

A comparison looks at one chunk and returns counts: "differing", and how many of these each named policy explains. What
no policy explains is counted as "unexplained" and makes the sweep's test fail. Rows of a record carry the date, the
time taken and the versions they were made with; running one comparison again replaces its row.
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import numerics as nm

RECORDS = Path(__file__).resolve().parent / "records"
CHUNK = 1 << 18
Policies = Mapping[str, Callable[[Tensor], Tensor]]  # name -> which inputs it concerns


def patterns(start: int, count: int) -> Tensor:
    """float32 numbers with the bit patterns start, start + 1, ..."""
    signed = start - (1 << 32) if start >= 1 << 31 else start
    return (torch.arange(count, dtype=torch.int32) + signed).view(torch.float32)


def differences(x: Tensor, ours: Tensor, theirs: Tensor, policies: Policies) -> Counter[str]:
    """Counts of one chunk; each differing element goes to the first policy that concerns its input."""
    if torch.equal(ours, theirs):
        return Counter()
    different = torch.nonzero(ours.to(torch.int32) != theirs.to(torch.int32)).flatten()
    left = x[different]
    counts = Counter({"differing": len(left)})
    for name, concerns in policies.items():
        mask = concerns(left)
        counts[name] += int(mask.sum())
        left = left[~mask]
    counts["unexplained"] += len(left)
    for value in left[:3].tolist():
        counts[f"unexplained at {value.hex()}"] += 1
    return counts


def sweep(compare: Callable[[Tensor], Counter[str]], label: str, total: int = 1 << 32) -> tuple[Counter[str], float]:
    """Counts over the first `total` bit patterns, and seconds. A thread a CPU: torch, numpy and C release the GIL."""
    began = time.monotonic()
    counts: Counter[str] = Counter()
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool, tqdm(total=total, desc=label, unit="x", unit_scale=True) as bar:
        for part in windows(total, 64 * workers):
            for found in pool.map(lambda start: compare(patterns(start, CHUNK)), part):
                counts += found
            counts["compared"] += len(part) * CHUNK
            bar.update(len(part) * CHUNK)
    return counts, time.monotonic() - began


def windows(total: int, length: int) -> Iterator[range]:
    """Starts of chunks, `length` chunks at a time, so that few results wait."""
    for start in range(0, total, length * CHUNK):
        yield range(start, min(start + length * CHUNK, total), CHUNK)


def load(file: str) -> dict:
    """tests/records/<file>, or an empty record."""
    path = RECORDS / file
    return json.loads(path.read_text("utf-8")) if path.exists() else {"rows": []}


def record(
    file: str,
    about: str,
    wanted: list[tuple[str, str]],
    row: dict[str, str],
    found: tuple[Counter[str], float],
    **versions,
) -> None:
    """Put one row into tests/records/<file>: format and mode, counts, seconds, date, versions; and say what is missing.

    wanted: format and mode of every row that the record should have; `found` is what `sweep` returned.
    """
    counts, seconds = found
    named = {name: n for name, n in sorted(counts.items()) if n and not name.startswith(("compared", "differ", "unex"))}
    new = {
        **row,
        "compared": counts["compared"],
        "differing": counts["differing"],
        "explained": named,
        "unexplained": counts["unexplained"],
        "seconds": round(seconds),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"torch": torch.__version__, "numpy": np.__version__, **versions},
    }
    rows = [r for r in load(file)["rows"] if (r["format"], r["mode"]) != (row["format"], row["mode"])] + [new]
    rows.sort(key=lambda r: (r["format"], r["mode"]))
    there = {(r["format"], r["mode"]) for r in rows}
    missing = [" ".join(case) for case in wanted if case not in there]
    text = json.dumps({"about": about, "not run": missing, "rows": rows}, indent=1)
    (RECORDS / file).write_text(text + "\n", "utf-8")


def assert_clean(file: str, wanted: list[tuple[str, str]]) -> None:
    """The kept record holds or names every wanted row; its rows are whole sweeps without unexplained differences."""
    kept = load(file)
    names = [f"{r['format']} {r['mode']}" for r in kept["rows"]]
    assert sorted([*names, *kept["not run"]]) == sorted(" ".join(case) for case in wanted)
    for row in kept["rows"]:
        assert row["compared"] == 1 << 32 and row["unexplained"] == 0, row
        assert sum(row["explained"].values()) == row["differing"], row


def breakpoints(fmt: nm.Format, dtype: type) -> np.ndarray:
    """Every value and midpoint of `fmt`, some beyond its ends, with their neighbours in `dtype` and all negatives."""
    values = fmt.values().numpy().astype(np.float64)
    step = values[-1] - values[-2] if fmt.kind != "exponent" else values[-1]
    values = np.concatenate((values, values[-1] + step * np.arange(1, 4)))
    points = np.concatenate((values, (values[1:] + values[:-1]) / 2))
    with np.errstate(over="ignore"):
        points = points.astype(dtype)
        around = np.concatenate((points, np.nextafter(points, dtype(np.inf)), np.nextafter(points, dtype(-np.inf))))
    return np.concatenate((around, -around))
