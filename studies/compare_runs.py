"""`fourbit compare RUN RUN ...`: held-out curves of several runs, their gaps to the first one, and a table.

Runs of one stage, `train`, `sft` or `rl`, are set side by side at equal steps by that stage's numbers
(`compare_stages`), so they must have been evaluated at the same ones on the same corpus, examples or environment; what
else they differ in is printed. One run a recipe with one seed says how a recipe does here, not which one is better: for
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
from reference.log import read_log

from . import plots
from .compare_stages import Stage, differing, learned_from, stage_of

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
    """One run. points: a row per evaluation: step, the stage's axis, its columns' numbers, and of rl the reward."""

    name: str
    stage: Stage
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
    log = folder / "log.jsonl"
    stage = stage_of(folder, config, read_log(log))
    records = read_log(log, *stage.numbers, evaluation=tuple(stage.columns))
    seconds = statistics.median(record["seconds"] for record in records)
    rows = []
    for record in records:
        if stage.main in record:
            few = max(1, record["step"] // 20)
            last = [found["reward"] for found in records[record["step"] - few : record["step"]] if stage.name == "rl"]
            rows.append(record | ({"reward": statistics.fmean(last)} if last else {}))
    names = dict.fromkeys(("step", stage.axis, *stage.columns, *(["reward"] if stage.name == "rl" else [])))
    points = pd.DataFrame(rows)[list(names)]
    return Curve(config["preset"], stage, differing(config), learned_from(stage, config, corpus), points, seconds)


def read_json_of(path: Path, *entries: str) -> dict[str, Any]:
    """Raises ValueError, naming the folder, if there is no such file."""
    if not path.is_file():
        raise ValueError(
            f"run {str(path.parent)!r} is no run folder: it has no {path.name}; name one of `fourbit train`, sft or rl"
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
    if len(stages := dict.fromkeys(f"{curve.stage.name} ({curve.stage.title})" for curve in curves)) > 1:
        raise ValueError(f"runs are not of one kind: {', '.join(stages)}; compare those of one")
    if len({curve.corpus for curve in curves}) > 1:
        what = {"train": "corpora", "sft": "examples", "rl": "environments"}[curves[0].stage.name]
        raise ValueError(f"runs were trained on different {what}; their numbers cannot be compared")
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
    """One row per run, at the last step that all have evaluated. gap: what the first of its columns is above the first
    run's."""
    last = max(set.intersection(*(set(curve.points.step) for curve in curves)))
    rows: list[dict[str, Any]] = []
    for curve in curves:
        point, stage = curve.points.set_index("step").loc[last], curve.stage
        numbers = {column: point[name] for name, column in stage.columns.items()}
        if "reward" in curve.points:
            numbers["reward"] = point.reward
        axis = {} if stage.axis == "step" else {stage.axis: int(point[stage.axis])}
        main = stage.columns[stage.main]
        gap = numbers[main] - (rows[0][main] if rows else numbers[main])
        rows.append(
            {"run": curve.name, "step": last} | axis | numbers | {stage.gap: gap, "step_seconds": curve.seconds}
        )
    return pd.DataFrame(rows)


def draw(curves: list[Curve]) -> Figure:
    """The first of the stage's columns along its axis, and the gap to the first run's at the same step."""
    stage = curves[0].stage
    base = curves[0].points.set_index("step")[stage.main]
    with plots.style():
        figure, (left, right) = plots.panels(2)
        lines, names = [], [curve.name.replace("$", r"\$") for curve in curves]  # a dollar would begin a formula
        for i, curve in enumerate(curves):
            color, dash, marker = _COLORS[i % len(_COLORS)], _DASHES[i % len(_DASHES)], _MARKERS[i % len(_MARKERS)]
            look = {"color": color, "ls": dash, "marker": marker, "mfc": "white", "ms": 3}
            points = curve.points[curve.points.step.isin(base.index)]
            lines += left.plot(curve.points[stage.axis] / stage.scale, curve.points[stage.main], **look)
            gap = points[stage.main].to_numpy() - base[points.step].to_numpy()
            right.plot(points[stage.axis] / stage.scale, gap, **look)
        for axes, title in ((left, stage.title), (right, f"Gap to {names[0]}")):
            axes.set_title(title)
            axes.set_xlabel(stage.axis_label)
            axes.set_ylabel(stage.unit)
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
