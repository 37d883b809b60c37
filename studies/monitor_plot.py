"""`fourbit monitor RUN`: what the monitor of a run has seen, as a table, a figure and for TensorBoard.

The table has one row per layer, from the last observed step: the output's relative error against BF16 experts, and of
the operands the worst one of each measure. The figure has every observed step. See `reference.monitor` for what the
measures are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from reference.board import Board
from reference.log import read_log
from reference.monitor import MEASURES, ROLES

from . import plots

_TENSORS = {
    "input": plots.BLUE,
    "hidden": plots.ORANGE,
    "weight13": plots.GREEN,
    "weight2": plots.PURPLE,
    "grad_output": plots.VERMILION,
    "grad_gate_up": plots.SKY,
    "grad_input": plots.BLACK,
}
_TITLES = {
    "rel_mse": "Operands: rel_mse, worst layer",
    "flush": "Operands: share flushed, worst layer",
    "saturation": "Operands: share saturated, worst layer",
}
_ROUNDED = 1e-12  # an error below is FP32's own: the format held every value


@dataclass(frozen=True)
class MonitorConfig:
    """Show what the monitor of a run has seen: a table, and a figure or TensorBoard's files if they are asked for.

    Usual for operands in NVFP4: rel_mse 0.006 to 0.01, flushed 0.07 (0.3 of SwiGLU's outputs), saturated 0.02 to 0.04;
    in MXFP8: rel_mse 0.0007, flushed below 0.001, saturated 0.
    """

    run: tyro.conf.Positional[Path]
    """Run folder."""
    out: Path | None = None
    """Figure, .svg or .png; none if left out."""
    tensorboard: Path | None = None
    """Folder for TensorBoard's files, which need the extra `tensorboard`; none if left out."""


def main(argv: list[str]) -> int:
    """Run `fourbit monitor` with `argv`; return the exit code 0, or raise ValueError for a run without a monitor, a
    figure of another kind, or a missing package."""
    config = tyro.cli(MonitorConfig, args=argv, prog="fourbit monitor")
    if config.out is not None and config.out.suffix not in (".svg", ".png"):
        raise ValueError(f"out {str(config.out)!r}: use a file that ends in .svg or .png")
    records = read_log(config.run / "log.jsonl", "loss", "grad_norm")
    print(text_table(records, config.run))
    if config.out is not None:
        plots.save(figure(records, config.run), config.out)
        print(f"figure: {config.out}")
    if config.tensorboard is not None:
        with Board(config.tensorboard) as board:
            for record in records:
                board.add(record)
        print(f"tensorboard --logdir {config.tensorboard}")
    return 0


def observed(records: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The records with measures. Raises ValueError if there are none."""
    found = [record for record in records if "monitor" in record]
    if not found:
        raise ValueError(f"run {str(folder)!r} was not observed; train it with monitor_every 1 or more")
    for record in found:
        seen = record["monitor"]
        odd = (
            seen if not isinstance(seen, dict) else [key for key, value in seen.items() if not _is_measure(key, value)]
        )
        if odd or not seen:
            raise ValueError(f"run {str(folder)!r}: what step {record['step']} observed is damaged: {odd or 'nothing'}")
    return found


def _is_measure(key: str, value: Any) -> bool:
    """`layer.role.measure`, and a number."""
    return re.fullmatch(r"\d+\.\w+\.\w+", key) is not None and type(value) in (int, float)


def raised(records: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """(step, entry) of every layer that was raised."""
    return [(record["step"], entry) for record in records for entry in record.get("raised", ())]


def text_table(records: Sequence[dict[str, Any]], folder: Path) -> str:
    """The table of the last observed step, and a line for each layer that was raised. ValueError as `observed`."""
    last = observed(records, folder)[-1]
    rows = [("layer", "output rel_mse", *(f"worst {name}" for name in MEASURES), "oscillation", "oscillating")]
    for layer in _layers([last]):
        values = _of_layer(last, layer)
        worst = []
        for name in MEASURES:
            pairs = [(values[role, name], role) for role in ROLES if (role, name) in values]
            worst.append(f"{max(pairs)[0]:.2g} {max(pairs)[1]}" if pairs else "-")
        numbers = [("output", "rel_mse"), ("weights", "oscillation"), ("weights", "oscillating")]
        output, oscillation, oscillating = (f"{values[key]:.2g}" if key in values else "-" for key in numbers)
        rows.append((str(layer), output, *worst, oscillation, oscillating))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    deviation = [f"{name} {last[name]:.3g}" for name in ("loss_deviation", "loss_z") if name in last]
    head = ", ".join(
        [f"step {last['step']}", f"loss {last['loss']:.4f}", *deviation, f"grad_norm {last['grad_norm']:.3g}"]
    )
    told = [f"step {step}: layer {e['layer']} raised to {e['to']}: {e['because']}" for step, e in raised(records)]
    return "\n".join([head, *lines, *told])


def figure(records: Sequence[dict[str, Any]], folder: Path) -> Figure:
    """Losses, gradient norm, and the measures of every observed step. ValueError as `observed`."""
    seen = observed(records, folder)
    with plots.style():
        chart = Figure(figsize=(plots.PAGE, 8.6))
        axes = chart.subplots(4, 2)
        _curve(axes[0, 0], records, "loss", "Training loss, nats per token")
        deviation = "loss_deviation" if any("loss_deviation" in record for record in records) else "loss_z"
        title = {
            "loss_deviation": "Loss against the reference, relative",
            "loss_z": "Loss against the last 50, robust z",
        }
        _curve(axes[0, 1], records, deviation, title[deviation])
        _curve(axes[1, 0], records, "grad_norm", "Gradient norm", log=True)
        _by_layer(axes[1, 1], seen, "output.rel_mse", "Layers: rel_mse of the output", log=True)
        for axis, name in zip((axes[2, 0], axes[2, 1], axes[3, 0]), MEASURES, strict=True):
            _by_role(axis, seen, name)
        _by_layer(axes[3, 1], seen, "weights.oscillation", "Layers: oscillation of the weights")
        if len(_layers(seen)) <= 8:
            labelled = axes[3, 1] if axes[3, 1].lines else axes[1, 1]
            labelled.legend(title="layer", title_fontsize=7, ncols=4, fontsize=6.5, loc="lower right")
        for axis in axes.flat:
            if not axis.lines:
                axis.text(0.5, 0.5, "nothing to measure", transform=axis.transAxes, ha="center", color=plots.GREY)
            axis.set_xlabel("step")
            axis.set_xlim(0, records[-1]["step"])
            for step in {step for step, _ in raised(records)}:
                axis.axvline(step, color=plots.GREY, linewidth=0.8, dashes=(2, 2))
        _legend(chart, seen, bool(raised(records)))
    return chart


def _layers(seen: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({int(key.split(".")[0]) for record in seen for key in record["monitor"]})


def _of_layer(record: dict[str, Any], layer: int) -> dict[tuple[str, str], float]:
    """(role, measure) -> number, the shared expert's roles left out."""
    found = {}
    for key, value in record["monitor"].items():
        at, role, name = key.split(".")
        if int(at) == layer:
            found[role, name] = value
    return found


def _curve(axis: Axes, records: Sequence[dict[str, Any]], name: str, title: str, log: bool = False) -> None:
    points = [(record["step"], record[name]) for record in records if name in record]
    axis.plot([step for step, _ in points], [value for _, value in points], color=plots.BLUE, linewidth=0.9)
    _finish(axis, title, log and any(value > 0 for _, value in points))


def _by_layer(axis: Axes, seen: Sequence[dict[str, Any]], key: str, title: str, log: bool = False) -> None:
    """One line per layer, dark to light from the first to the last."""
    layers = _layers(seen)
    positive = False
    for place, layer in enumerate(layers):
        points = [(r["step"], r["monitor"][f"{layer}.{key}"]) for r in seen if f"{layer}.{key}" in r["monitor"]]
        color = colormaps["cividis"](0.9 * place / max(1, len(layers) - 1))
        marker = "os^Dv<>P"[place % 8]
        axis.plot(
            *zip(*points, strict=True), color=color, marker=marker, markersize=3, label=f"{layer}"
        ) if points else None
        positive |= any(value > 0 for _, value in points)
    _finish(axis, title, log and positive)


def _by_role(axis: Axes, seen: Sequence[dict[str, Any]], name: str) -> None:
    """One line per role: the worst layer's."""
    layers, above = _layers(seen), list[float]()
    for role in ROLES:
        keys = [f"{layer}.{role}.{name}" for layer in layers]
        points = [(r["step"], max(r["monitor"].get(key, -math.inf) for key in keys)) for r in seen]
        points = [(step, value) for step, value in points if value >= 0]
        if points:
            color, dash = _look(role)
            axis.plot(*zip(*points, strict=True), color=color, linestyle=dash, marker=".", markersize=3)
            above += [value for _, value in points if value > _ROUNDED]
    _finish(axis, _TITLES[name], log=name == "rel_mse" and bool(above))
    if name == "rel_mse" and above:
        axis.set_ylim(min(above) / 2, 2 * max(above))


def _look(role: str) -> tuple[str, Any]:
    """A colour per tensor; solid for casts, dashed along tokens, dotted for what was saved."""
    plain = role.removeprefix("saved_").removesuffix("_tokens")
    dash = "-" if plain == role else (0, (1, 1)) if role.startswith("saved_") else (0, (4, 1.5))
    return _TENSORS[plain], dash


def _legend(chart: Figure, seen: Sequence[dict[str, Any]], marked: bool) -> None:
    there = {key.split(".")[1] for record in seen for key in record["monitor"]}
    handles = [
        Line2D([], [], color=_look(role)[0], linestyle=_look(role)[1], label=role.replace("_", " "))
        for role in ROLES
        if role in there
    ]
    if marked:
        handles.append(Line2D([], [], color=plots.GREY, linewidth=0.8, dashes=(2, 2), label="a layer was raised"))
    if handles:
        chart.legend(handles=handles, loc="outside lower center", ncols=5)


def _finish(axis: Axes, title: str, log: bool) -> None:
    axis.set_title(title)
    if log:
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        few = high < 100 * low  # then powers of ten alone would leave the axis bare
        axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.yaxis.set_minor_formatter(FormatStrFormatter("%g") if few else NullFormatter())
        axis.tick_params(axis="y", which="minor", labelsize=6.5)
    elif not title.startswith("Loss"):
        axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
