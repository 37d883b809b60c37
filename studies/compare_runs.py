"""`fourbit compare RUN RUN ...`: held-out curves of several runs, their gaps to the first one, and a table.

Runs are set side by side at equal steps, so they must have been evaluated at the same ones on the same corpus; what
else they differ in is told. One run a recipe with one seed says how a recipe does here, not which one is better: for
that, `fourbit order` pairs seeds and gives intervals.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import tyro
from matplotlib.figure import Figure

from reference.checkpoint import read_json, write_atomic
from reference.config import can_be_file
from reference.log import EVALUATION, read_log

from . import plots

_COLORS = (plots.BLACK, plots.ORANGE, plots.BLUE, plots.VERMILION, plots.GREEN, plots.PURPLE, plots.SKY, plots.GREY)
_DASHES, _MARKERS = ("-", ":", "-", "--"), "oDs^vP*X"
_ALONE = ("preset", "out", "seed")  # what runs may differ in without a word


@dataclass(frozen=True)
class CompareConfig:
    """Set the held-out curves of runs side by side: a table, and a figure if it is asked for."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders; gaps are to the first one."""
    out: Path | None = None
    """Figure, .svg or .png; none if left out."""
    table: Path | None = None
    """CSV file for every evaluation of every run; none if left out."""


@dataclass(frozen=True)
class Curve:
    """One run. points: a row per evaluation: step, tokens, heldout_ce in nats per token, heldout_bits_per_byte."""

    name: str
    config: dict[str, Any]
    corpus: str
    points: pd.DataFrame
    seconds: float


def read_run(folder: Path) -> Curve:
    """Raises ValueError for a folder that holds no run, a damaged one, or one that has not been evaluated."""
    config = read_json_of(folder / "config.json", "preset", "steps")
    corpus = read_json_of(folder / "meta.json", "corpus")["corpus"]
    for name, kind, value in (("config", str, config["preset"]), ("meta", dict, corpus)):
        if not isinstance(value, kind):
            raise ValueError(f"run {str(folder)!r} has a damaged {name}.json: it holds {value!r}; restore it")
    records = read_log(folder / "log.jsonl", "loss", "seconds", "tokens", evaluation=EVALUATION)
    rows = [record for record in records if "heldout_ce" in record]
    if not rows:
        raise ValueError(f"run {str(folder)!r} has no held-out loss yet; let it train to its first evaluation")
    points = pd.DataFrame(rows)[["step", "tokens", "heldout_ce", "heldout_bits_per_byte"]]
    seconds = statistics.median(record["seconds"] for record in records)
    return Curve(config["preset"], config, str(corpus.get("digest")), points, seconds)


def read_json_of(path: Path, *entries: str) -> dict[str, Any]:
    """Raises ValueError, naming the folder, if there is no such file."""
    if not path.is_file():
        raise ValueError(
            f"run {str(path.parent)!r} is no run folder: it has no {path.name}; name one of `fourbit train`"
        )
    return read_json(path, *entries)


def gather(folders: tuple[Path, ...]) -> list[Curve]:
    """The runs, named apart. Raises ValueError as `read_run`, and for runs of other corpora or evaluated at no step
    that all have."""
    if not folders:
        raise ValueError("runs is empty; name one run folder or more")
    places = [folder.resolve() for folder in folders]
    if twice := [folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]:
        raise ValueError(f"runs names {str(twice[-1])!r} more than once; name every run once")
    curves = [read_run(folder) for folder in folders]
    if len({curve.corpus for curve in curves}) > 1:
        raise ValueError("runs were trained on different corpora; their losses cannot be compared")
    # by recipe, else by the folder's name, else by its path
    for names in ([place.name for place in places], list(map(str, folders))):
        if len({curve.name for curve in curves}) < len(curves):
            curves = [replace(curve, name=name) for curve, name in zip(curves, names, strict=True)]
    if not set.intersection(*(set(curve.points.step) for curve in curves)):
        raise ValueError("runs have no evaluated step in common; train them with the same eval_every")
    return curves


def differences(curves: list[Curve]) -> list[str]:
    """Fields of the configurations that differ, the recipe and the seed left out."""
    names = sorted({name for curve in curves for name in curve.config} - set(_ALONE))
    return [name for name in names if len({str(curve.config.get(name)) for curve in curves}) > 1]


def tabulate(curves: list[Curve]) -> pd.DataFrame:
    """One row per run, at the last step that all have evaluated. gap: held-out nats more than the first run's."""
    last = max(set.intersection(*(set(curve.points.step) for curve in curves)))
    rows = []
    for curve in curves:
        point = curve.points.set_index("step").loc[last]
        rows.append(
            {
                "run": curve.name,
                "step": last,
                "tokens": int(point.tokens),
                "heldout_nats": point.heldout_ce,
                "heldout_bits_per_byte": point.heldout_bits_per_byte,
                "gap_nats": point.heldout_ce - (rows[0]["heldout_nats"] if rows else point.heldout_ce),
                "step_seconds": curve.seconds,
            }
        )
    return pd.DataFrame(rows)


def draw(curves: list[Curve]) -> Figure:
    """Held-out loss against tokens, and the gap to the first run's at the same step."""
    base = curves[0].points.set_index("step").heldout_ce
    with plots.style():
        figure, (left, right) = plots.panels(2)
        lines, names = [], [curve.name.replace("$", r"\$") for curve in curves]  # a dollar would begin a formula
        for i, curve in enumerate(curves):
            color, dash, marker = _COLORS[i % len(_COLORS)], _DASHES[i % len(_DASHES)], _MARKERS[i % len(_MARKERS)]
            look = {"color": color, "ls": dash, "marker": marker, "mfc": "white", "ms": 3}
            points = curve.points[curve.points.step.isin(base.index)]
            lines += left.plot(curve.points.tokens / 1e6, curve.points.heldout_ce, **look)
            right.plot(points.tokens / 1e6, points.heldout_ce.to_numpy() - base[points.step].to_numpy(), **look)
        for axes, title in ((left, "Held-out loss"), (right, f"Gap to {names[0]}")):
            axes.set_title(title)
            axes.set_xlabel("million tokens")
            axes.set_ylabel("nats per token")
            axes.set_xlim(left=0)
        figure.legend(lines, names, loc="outside lower center", ncols=4)
    return figure


def main(argv: list[str]) -> int:
    """Run `fourbit compare` with `argv`; return the exit code 0, or raise ValueError as `gather` does."""
    config = tyro.cli(CompareConfig, args=argv, prog="fourbit compare")
    if config.out is not None and config.out.suffix not in (".svg", ".png"):
        raise ValueError(f"out {str(config.out)!r}: use a file that ends in .svg or .png")
    for name, path in (("out", config.out), ("table", config.table)):
        if path is not None and not can_be_file(path):
            raise ValueError(f"{name} {str(path)!r} cannot be written; name a file in a folder that exists")
    curves = gather(config.runs)
    print(tabulate(curves).round(4).to_string(index=False))
    if odd := differences(curves):
        print(f"the runs also differ in {', '.join(odd)}")
    if config.table is not None:
        table = pd.concat([curve.points.assign(run=curve.name) for curve in curves])
        write_atomic(config.table, table[["run", *curves[0].points.columns]].to_csv(index=False).encode())
    if config.out is not None:
        plots.save(draw(curves), config.out)
        print(f"figure: {config.out}")
    return 0
