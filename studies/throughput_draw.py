"""Figures of the throughput study: operations under the roofs of memory, and their share of a copy's bandwidth."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from . import plots

MODES = {"eager": (plots.BLUE, "o"), "compiled": (plots.VERMILION, "s")}
OTHER = (plots.GREY, "^")  # other packages
CLOSE = 1.35  # speeds that are nearer than this share a number
SHARES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def figure(rows: pd.DataFrame, roofs: dict[str, float], title: str) -> Figure:
    """Left: speed against elements per byte, under the roofs; right: share of the copy's bandwidth.

    Args:
        rows: columns operation, mode, bytes, elements_per_second, share, and for intervals low and high, for a cache
        cached. roofs: name -> B/s. title: of the machine.
    """
    with plots.style():
        made = Figure(figsize=(plots.PAGE, 1.3 + 0.2 * max(9, len(rows))))
        left, right = made.subplots(1, 2, gridspec_kw={"width_ratios": (1, 1.15)})
        _draw_roofs(left, rows, roofs)
        _draw_shares(right, rows)
        left.set_title(title)
        right.set_title("Share of the copy's bandwidth")
    return made


def _look(mode: str) -> tuple[str, str]:
    return MODES.get(mode, OTHER)


def _draw_roofs(axes: Axes, rows: pd.DataFrame, roofs: dict[str, float]) -> None:
    intensity = np.array([0.9 / rows.bytes.max(), 1.1 / rows.bytes.min()])
    for (name, bandwidth), dash in zip(roofs.items(), ("-", "--"), strict=False):
        label = f"copy {name}: {bandwidth / 1e9:,.0f} GB/s"
        axes.plot(intensity, bandwidth * intensity, dash, color=plots.BLACK, lw=0.9, label=label)
    names = {}
    for row in rows.itertuples():
        color, marker = _look(row.mode)
        names[row.mode if row.mode in MODES else "other packages"] = (color, marker)
        axes.plot(1 / row.bytes, row.elements_per_second, marker, color=color, ms=3.5)
    for x, y, text in _numbers(rows):
        side = -1 if x == 1 / rows.bytes.max() else 1
        align = "left" if side > 0 else "right"
        axes.annotate(text, (x, y), (4 * side, 0), textcoords="offset points", ha=align, va="center", fontsize=5.5)
    for label, (color, marker) in names.items():
        axes.plot([], [], marker, color=color, label=label)
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    axes.set_xticks([1 / 13, 1 / 8, 1 / 5, 1 / 2], ["1/13", "1/8", "1/5", "1/2"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    low, high = axes.get_ylim()
    axes.set_ylim(low / 12, high)  # room for the legend
    axes.set_xlim(0.7 / rows.bytes.max(), 1.4 / rows.bytes.min())  # room for numbers
    axes.set_xlabel("elements per byte moved")
    axes.set_ylabel("elements per second")
    axes.legend(loc="lower right", fontsize=6.5)


def _numbers(rows: pd.DataFrame) -> list[tuple[float, float, str]]:
    """Where to write the lines' numbers: (x, y, text), one for points that would hide each other's."""
    found = []
    for _, part in rows.assign(place=range(1, len(rows) + 1)).sort_values("elements_per_second").groupby("bytes"):
        group: list[int] = []
        for row in part.itertuples():
            if group and row.elements_per_second > CLOSE * found[-1][1]:
                group = []
            found = found[: len(found) - bool(group)]
            group.append(row.place)
            found.append((1 / row.bytes, row.elements_per_second, ", ".join(map(str, sorted(group)))))
    return found


def _draw_shares(axes: Axes, rows: pd.DataFrame) -> None:
    names = []
    for place, row in enumerate(rows.itertuples(), 1):
        color, marker = _look(row.mode)
        if "low" in rows:
            axes.plot([row.low, row.high], [place, place], "-", color=color, lw=1)
        axes.plot(row.share, place, marker, color=color, ms=4, zorder=3)
        if "cached" in rows and row.cached == row.cached:
            axes.plot(row.cached, place, marker, color=color, mfc="white", ms=4, zorder=2.1)
        if "peak" in rows and row.peak == row.peak:
            axes.text(1.02, place, f"{row.peak:.2f}", transform=axes.get_yaxis_transform(), va="center", fontsize=6)
        mode = "" if row.mode in ("torch", "ml_dtypes") else f" ({row.mode})"
        names.append(f"{row.operation}{mode}  {place}")
    if "peak" in rows and rows.peak.notna().any():
        axes.text(1.02, 0, "peak\nmemory", transform=axes.get_yaxis_transform(), va="bottom", fontsize=6)
    axes.axvline(1, color=plots.BLACK, lw=0.9)
    axes.set_axisbelow(True)
    axes.set_xscale("log", base=10)
    shares = rows[[name for name in ("share", "low", "high", "cached") if name in rows]].to_numpy()
    low, high = float(np.nanmin(shares)), float(np.nanmax(shares))
    ticks = [share for share in SHARES if share >= low / 2]
    axes.set_xticks(ticks, [f"{100 * share:g} %" for share in ticks])
    axes.minorticks_off()
    axes.set_xlim(low / 1.6, 1.6 * high)
    axes.set_yticks(range(1, len(rows) + 1), names, fontsize=6)
    axes.set_ylim(len(rows) + 0.6, 0.4)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("stated bytes a second / the copy's")
