"""`fourbit bench wires`: how long rows travel between processes of this machine, over gloo, by wire.

Every process sends the rows of its tokens to those of the others that hold the experts (dispatch), and gets as many
outputs back (combine). Rounds interleave the pairs of wires; a part takes as long as the slowest process; medians of
the rounds count, and a ratio is the median of the rounds' own.

    ratio     wire seconds of BF16 both ways / those of the pair           bytes: the same of what was counted
    saved     wire seconds of BF16 both ways - those of the pair
    packing   pack and unpack seconds of the pair - those of BF16, which gathers rows too

Casts are the recipe's arithmetic, done once and emulated here; they are told and are no part of packing.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import tyro

from .wire_cost_rank import DIRECTIONS, PARTS, Job, run
from .wires import WIRES, bits_per_value

TARGET = 2.0
PAIRS = (("bf16", "bf16"), ("mxfp8", "mxfp8"), ("nvfp4", "bf16"), ("nvfp4", "s2f6_rht"))
JUDGED = ("nvfp4", "s2f6_rht")
BUSY = 0.8  # share of the cores' time from which on they are what limits a wire


@dataclass(frozen=True)
class WireCostConfig:
    """Time dispatch and combine between processes of this machine."""

    ranks: int = 4
    """Processes, one thread each."""
    tokens: int = 512
    """Tokens of each."""
    top_k: int = 4
    """Rows of each token."""
    width: int = 4096
    """Values of a row."""
    rounds: int = 9
    """Measured exchanges of each kind."""
    patience: float = 600.0
    """Seconds after which processes that have not ended are stopped."""


def cost(config: WireCostConfig) -> list[dict[str, Any]]:
    """Measure; what each process reports. Raises: ValueError for a number below 1 or a width of broken blocks."""
    for name in ("ranks", "tokens", "top_k", "width", "rounds", "patience"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: use 1 or more")
    if config.width % 32:
        raise ValueError(f"width={config.width}: use a multiple of 32, the longest block")
    job = Job(config.ranks, config.tokens, config.top_k, config.width, config.rounds, PAIRS)
    with tempfile.TemporaryDirectory() as folder:
        return run(job, Path(folder), config.patience)


def slowest(reports: list[dict[str, Any]]) -> dict[tuple[int, str, str], list[float]]:
    """(pair, direction, part) -> seconds of each round, of the process that took longest."""
    own = [{tuple(key): seconds for *key, seconds in report["seconds"]} for report in reports]
    return {key: [max(each) for each in zip(*(found[key] for found in own), strict=True)] for key in own[0]}


def tabulate(reports: list[dict[str, Any]], width: int) -> pd.DataFrame:
    """One row per pair of wires.

    Columns: dispatch, combine: wires; bits, of a value there and back, counted; formula, the same by the format;
    cast, pack, wire, unpack: milliseconds; bytes and ratio, both of BF16's to the pair's; saved, packing: milliseconds.
    """
    seconds, rows = slowest(reports), []
    sums = [
        {part: [sum(each) for each in zip(*(seconds[i, d, part] for d in DIRECTIONS), strict=True)] for part in PARTS}
        for i in range(len(PAIRS))
    ]
    packing = [[a + b for a, b in zip(each["pack"], each["unpack"], strict=True)] for each in sums]
    sent = [_counted(reports, i, "bytes") for i in range(len(PAIRS))]
    for i, pair in enumerate(PAIRS):
        bits = sum(8 * b / v for b, v in zip(sent[i], _counted(reports, i, "values"), strict=True))
        formula = sum(bits_per_value(WIRES[name][0], width) for name in pair)
        wires = list(zip(sums[0]["wire"], sums[i]["wire"], strict=True))
        medians = [1e3 * statistics.median(sums[i][part]) for part in PARTS]
        found = [sum(sent[0]) / sum(sent[i]), statistics.median(a / b for a, b in wires)]
        found += [1e3 * statistics.median(a - b for a, b in wires)]
        found += [1e3 * statistics.median(b - a for a, b in zip(packing[0], packing[i], strict=True))]
        rows.append((*pair, bits, float(formula), *medians, *found))
    names = ["dispatch", "combine", "bits", "formula", *PARTS, "bytes", "ratio", "saved", "packing"]
    return pd.DataFrame(rows, columns=names)


def _counted(reports: list[dict[str, Any]], pair: int, name: str) -> list[int]:
    """What all processes counted, by direction."""
    return [sum(report["counts"][f"{pair} {d}"][name] for report in reports) for d in DIRECTIONS]


def verdict(table: pd.DataFrame) -> str:
    """Whether the judged pair does what is asked of it, in words."""
    row = table[(table["dispatch"] == JUDGED[0]) & (table["combine"] == JUDGED[1])].iloc[0]
    met = "met" if row.ratio >= TARGET else "missed"
    pays = "less than" if row.packing < row.saved else "not less than"
    return (
        f"{' + '.join(JUDGED)}: {row.ratio:.2f} times faster on the wire than bf16, {met}: {TARGET:g} asked; "
        f"{row.bytes:.3f} times fewer bytes. Packing takes {row.packing:.1f} ms more than bf16's, {pays} the "
        f"{row.saved:.1f} ms that the wire saves."
    )


def limit(reports: list[dict[str, Any]], cores: int) -> str:
    """What the bytes wait for, in words: the processors' use while they travel, and how fast they do."""
    lines = []
    for i, pair in enumerate(PAIRS):
        seconds, user, system = (sum(report["used"][i][k] for report in reports) for k in range(3))
        busy, ticks = (sum(report["used"][i][k] for report in reports) for k in (3, 4))
        wall = seconds / len(reports)
        own = (user + system) / (wall * cores)
        everyone = busy / ticks if ticks else own
        moved = sum(_counted(reports, i, "bytes")) - sum(_counted(reports, i, "bytes_kept"))
        bound = "the processors" if max(own, everyone) >= BUSY else "waiting, not the processors"
        lines.append(
            f"{' + '.join(pair)}: {moved / wall / 1e9:.2f} GB/s between processes; limit: {bound}: {own:.0%} of "
            f"{cores} cores by these processes, {system / max(user + system, 1e-9):.0%} of that in the system, which "
            f"copies to and from sockets; {everyone:.0%} by all processes"
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """`fourbit bench wires ...`: print the table and what it says; 0 if it ran, whatever it shows."""
    config = tyro.cli(WireCostConfig, args=argv, prog="fourbit bench wires", config=(tyro.conf.FlagCreatePairsOff,))
    reports = cost(config)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    table = tabulate(reports, config.width)
    rows = config.tokens * config.top_k
    print(f"{config.ranks} processes on {cores} cores, gloo, {rows} rows of {config.width} values each, milliseconds")
    print(table.to_string(index=False, float_format=lambda v: f"{v:.4g}"))
    print(verdict(table))
    print(limit(reports, cores))
    return 0
