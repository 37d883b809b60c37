"""The combine study's figures, each with its caption."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import combine_data as data
from . import plots
from .combine_norms import crossing, curves, small
from .combine_table import PLAIN, ROTATED, SHARES, from_text, share_text
from .interval import listed

_LOOKS = {
    "BF16": (plots.GREY, "x:"),
    "MXFP8": (plots.VERMILION, "o-"),
    "RHT + MXFP8": (plots.ORANGE, "s--"),
    "S2F6": (plots.SKY, "^-."),
    "RHT + S2F6": (plots.BLUE, "D-"),
}
_CURVES = ((plots.BLUE, "o-"), (plots.GREEN, "s--"), (plots.ORANGE, "^-."), (plots.PURPLE, "D:"))


def errors(trade: pd.DataFrame) -> tuple[Figure, str]:
    """Errors of the outlier and of the others of its block against its size, for the five wires."""
    one = trade[trade["count"] == 1]
    rms = np.sqrt(one.groupby(["part", "wire", "size"]).square.mean())
    with plots.style():
        figure, axes = plots.panels(2, height=3.3)
        titles = {"outliers": "The outlier", "others": "The others of its block"}
        for place, (part, title) in zip(axes, titles.items(), strict=True):
            for name, (color, look) in _LOOKS.items():
                curve = rms[part][name]
                label = name if part == "outliers" else None
                place.plot(curve.index, curve, look, color=color, label=label)
            _size_axis(place)
            place.set_title(title)
        axes[1].axhline(1, color=plots.BLACK, linewidth=0.8, linestyle=(0, (1, 2)))
        axes[1].annotate("their standard deviation", (data.SIZES[0], 1), (0, 3), textcoords="offset points")
        axes[0].set_ylabel("root mean square error")
        figure.legend(loc="outside lower center", ncols=5)
    least = {part: rms[part].drop("BF16", level="wire").unstack()[data.SIZES[-1]].idxmin() for part in titles}
    at = crossing(curves(trade, 1, 1.0, small), ROTATED, PLAIN)
    caption = (
        "One outlier in each block of 32 normal numbers: errors of the outlier (left) and of its 31 neighbours (right) "
        f"on five wires, mean squares over {trade.seed.nunique()} seeds. At the largest size the 8-bit wire with the "
        f"least error is {least['outliers']} for the outlier and {least['others']} for its neighbours; RHT + S2F6 has "
        f"more of it than MXFP8 for the neighbours {from_text(at)}."
    )
    return figure, caption


def trade(rows: pd.DataFrame) -> tuple[Figure, str]:
    """Error of small values, RHT + S2F6 over MXFP8: by the share of blocks with an outlier, and by outliers a block."""
    with plots.style():
        figure, (left, right) = plots.panels(2, height=3.0)
        for share, look in zip(SHARES, _CURVES, strict=True):
            _ratio(left, curves(rows, 1, share, small), look, share_text(share))
        for count, look in zip(data.COUNTS, _CURVES, strict=True):
            _ratio(right, curves(rows, count, 1.0, small), look, f"{count} in every block")
        left.set_title("One outlier in some of the blocks")
        right.set_title("More outliers in every block")
        left.set_ylabel("error of the other values,\nRHT + S2F6 / MXFP8")
        for place in (left, right):
            _size_axis(place)
            place.axhline(1, color=plots.BLACK, linewidth=0.8)
            place.legend(loc="upper left")
    sizes = [
        f"{from_text(crossing(curves(rows, 1, share, small), ROTATED, PLAIN))} ({share_text(share)})"
        for share in SHARES
    ]
    caption = (
        "Root mean square error of all values that are no outliers, behind RHT + S2F6 relative to MXFP8; above 1 MXFP8 "
        f"keeps them better. Left, one outlier a block: this holds {listed(sizes)}. Mean over "
        f"{rows.seed.nunique()} seeds."
    )
    return figure, caption


def _ratio(axes: Axes, found: pd.DataFrame, look: tuple[str, str], label: str) -> None:
    mean = found.groupby(["wire", "size"]).value.mean()
    ratio = mean[ROTATED] / mean[PLAIN]
    axes.plot(ratio.index, ratio, look[1], color=look[0], label=label)


def _size_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(data.SIZES[::2], list(map(str, data.SIZES[::2])))
    axes.set_xlabel("outlier size a, standard deviations of the others")
