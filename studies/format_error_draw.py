"""Figures of the study `format_error`: QSNR by format and data, and against the crest factor."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import plots
from .format_error_cases import VARIANTS
from .format_error_theory import PAIRS, Pair, of_normal
from .interval import Interval

LOOKS = {
    "gaussian": ("o", plots.BLACK),
    "laplace": ("s", plots.BLUE),
    "student t5": ("^", plots.SKY),
    "uniform": ("D", plots.GREEN),
    "outlier": ("X", plots.VERMILION),
    "weights": ("P", plots.ORANGE),
    "activations": ("*", plots.PURPLE),
}


def draw_errors(levels: dict[str, dict[str, Interval]]) -> Figure:
    """A line per format, a marker per kind of data, kinds slightly apart."""
    names = list(next(iter(levels.values())))
    with plots.style():
        figure, (axes,) = plots.panels(1, plots.PAGE, 6.2)
        for place, (kind, found) in enumerate(levels.items()):
            marker, color = LOOKS[kind]
            y = np.arange(len(names))[::-1] + 0.3 - 0.6 * place / max(1, len(levels) - 1)
            means, halves = zip(*((found[name].mean, found[name].half) for name in names), strict=True)
            size = 5.5 if marker == "*" else 3.6
            axes.errorbar(means, y, xerr=halves, fmt=marker, color=color, ms=size, lw=0.8, label=kind)
        axes.set_yticks(range(len(names)), [f"{n}  {VARIANTS[n].fmt.bits_per_value:.4g}" for n in reversed(names)])
        axes.set_ylim(-0.7, len(names) - 0.3)
        axes.set_xlabel("QSNR, dB")
        axes.set_ylabel("format and bits per value")
        axes.set_title("Error by format and data")
        axes.grid(axis="y", visible=False)
        for line in np.arange(len(names) - 1) + 0.5:
            axes.axhline(line, color="#eeeeee", lw=0.5, zorder=0)
        axes.set_axisbelow(True)
        figure.legend(loc="outside lower center", ncols=len(levels), columnspacing=1.2, handletextpad=0.2)
    return figure


def draw_crest(crest: pd.DataFrame, crossed: pd.DataFrame) -> Figure:
    """A panel per pair: points measured, lines by the closed forms."""
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 5.0))
        axes = figure.subplots(2, 2)
        for place, pair in zip(axes.flat, PAIRS, strict=True):
            _draw_pair(place, pair, crest)
        for place in axes[1]:
            place.set_xlabel("crest factor of the block")
        for place in axes[:, 0]:
            place.set_ylabel("QSNR, dB")
    return figure


def _draw_pair(axes: Axes, pair: Pair, crest: pd.DataFrame) -> None:
    highest = 0.0
    for name, color, marker in ((pair.integer, plots.ORANGE, "s"), (pair.floating, plots.BLUE, "o")):
        found = crest[crest.format == name].groupby("bin")[["crest", "qsnr"]].mean()
        highest = max(highest, float(found.crest.max()))
        axes.plot(found.crest, found.qsnr, ls="", marker=marker, ms=2.8, color=color, label=name)
        kappa = np.linspace(float(found.crest.min()), float(found.crest.max()), 200)
        axes.plot(kappa, [of_normal(VARIANTS[name].fmt, k) for k in kappa], color=color, lw=1)
    if pair.published < highest:
        axes.axvline(pair.published, color=plots.GREY, ls=":", lw=1, label=f"published crossover {pair.published:g}")
    axes.set_title(pair.name)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
    axes.legend(loc="best", fontsize=7)
