"""The figures of `requantization_kinds`, each with its caption."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from . import plots
from . import requantization_cases as cases
from .result import Plate

MARKERS = {"activations": "o", "weights": "s"}
DRAWS = 2.0 ** np.arange(0, 11)
# colour, dash: of the kinds that have a curve
CURVES = {
    "MXFP8, nearest": (plots.GREY, "--"),
    "MXFP8, stochastic": (plots.GREY, "-"),
    "NVFP4, nearest": (plots.BLACK, "--"),
    "NVFP4, stochastic to 6": (plots.ORANGE, "-."),
    "NVFP4, stochastic to 6 x 16/17": (plots.BLUE, "-"),
    "NVFP4, four-over-six, stochastic": (plots.PURPLE, "-."),
    "NVFP4, MS-EDEN": (plots.GREEN, "-"),
    "NVFP4, MS-EDEN, not rotated": (plots.VERMILION, ":"),
}
HEADROOM_LOOKS = {
    "6": (plots.VERMILION, "o", "-"),
    "6 x 16/17": (plots.ORANGE, "s", "--"),
    "6 x 16/17, subnormal scales up": (plots.BLUE, "^", "-."),
}


def kinds(rows: pd.DataFrame) -> tuple[Figure, str]:
    """Squared bias and variance of every kind, and the error of the mean of n draws that follows for activations."""
    with plots.style():
        figure, (left, right) = plots.panels(2, height=3.5, ratios=(1.15, 1))
        _draw_kinds(left, rows)
        _draw_means(right, rows)
    mean = rows[rows.operand == "activations"].groupby("kind").mean(numeric_only=True)
    sr, eden = mean.loc["NVFP4, stochastic to 6 x 16/17"], mean.loc["NVFP4, MS-EDEN"]
    caption = (
        "Left: squared bias and variance of one requantization, over the energy, mean of "
        f"{rows.seed.nunique()} seeds; a squared bias within two standard deviations of 0 is "
        "not drawn. Right: error of the mean of n independent requantizations of "
        "activations, squared bias + variance / n. MS-EDEN has "
        f"{eden.variance / sr.variance:.2f} of the variance of stochastic rounding to 6 x 16/17."
    )
    return figure, caption


def _draw_kinds(axes: Axes, rows: pd.DataFrame) -> None:
    names = [kind.name for kind in cases.KINDS]
    for operand, marker in MARKERS.items():
        part = rows[rows.operand == operand]
        mean = part.groupby("kind")[["variance", "squared_bias"]].mean()
        spread = part.groupby("kind").squared_bias.std()
        shift = 0.15 if operand == "activations" else -0.15
        for column, color in (("variance", plots.BLUE), ("squared_bias", plots.VERMILION)):
            seen = [name for name in names if mean[column][name] > (0 if column == "variance" else 2 * spread[name])]
            places = [len(names) - 1 - names.index(name) + shift for name in seen]
            axes.plot(mean[column][seen], places, marker, color=color, linestyle="", markersize=4.5)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_ylim(-1.9, len(names) - 0.4)
    axes.set_xlabel("share of the energy")
    axes.set_title("One requantization")
    looks = [
        *(Line2D([], [], marker="o", linestyle="", color=color) for color in (plots.BLUE, plots.VERMILION)),
        *(Line2D([], [], marker=marker, linestyle="", color=plots.BLACK) for marker in MARKERS.values()),
    ]
    axes.legend(looks, ["variance", "squared bias", *MARKERS], loc="lower left", ncols=2, columnspacing=1)


def _draw_means(axes: Axes, rows: pd.DataFrame) -> None:
    mean = rows[rows.operand == "activations"].groupby("kind").mean(numeric_only=True)
    for name, (color, dash) in CURVES.items():
        bias, variance = max(0.0, mean.squared_bias[name]), mean.variance[name]
        seen = rows[(rows.operand == "activations") & (rows.kind == name)].squared_bias
        floor = bias if bias > 2 * seen.std() else 0.0
        axes.plot(DRAWS, floor + variance / DRAWS, dash, color=color, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("draws averaged, n")
    axes.set_ylabel("squared error of the mean / energy")
    axes.set_title("What averaging leaves")
    axes.set_ylim(bottom=axes.get_ylim()[0] / 2000)
    axes.legend(loc="lower left", fontsize=6.5)


def headroom(frames: Mapping[str, pd.DataFrame]) -> Plate:
    """Bias against the size of block scales, and against the number of random bits."""
    small = frames["small_scales"][frames["small_scales"].block == "median"]
    with plots.style():
        figure, (left, right) = plots.panels(2, height=2.9)
        _draw_small(left, small)
        _draw_bits(right, frames)
    _, published, ours = cases.HEADROOMS
    worst = small.groupby("headroom").bias.apply(lambda each: each.abs().max())
    caption = (
        "Bias of stochastic NVFP4 along the values, exact means, normal data, mean over seeds. Left: against the "
        "median block's largest magnitude over the tensor's; left of the dotted line that block's scale is subnormal. "
        f"The largest bias is {worst[published]:.1g} with headroom {published}, and {worst[ours]:.1g} if subnormal "
        "scales are rounded up as well. Right: shrinkage of the mean magnitude against random bits for each value; "
        "what shrinks by less than 1e-10 is listed instead."
    )
    return Plate("headroom", figure, caption)


def _draw_small(axes: Axes, rows: pd.DataFrame) -> None:
    for name, part in rows.groupby("headroom", sort=False):
        color, marker, dash = HEADROOM_LOOKS[str(name)]
        curve = part.groupby("ratio").bias.mean().abs()
        axes.plot(curve.index, curve, dash, marker=marker, color=color, label=str(name))
    axes.axvline(2**-6 / 448, color=plots.GREY, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("largest magnitude of the median block / the tensor's")
    axes.set_ylabel("|bias|, share of the length")
    axes.set_title("Small block scales, 16 random bits")
    axes.set_ylim(1e-6, 10)
    axes.legend(loc="upper right", title="block maximum mapped to", title_fontsize=7.5)


def _draw_bits(axes: Axes, frames: Mapping[str, pd.DataFrame]) -> None:
    curves = {
        "NVFP4 to 6": (frames["lengths"], ("headroom", "6"), *HEADROOM_LOOKS["6"]),
        "NVFP4 to 6 x 16/17": (frames["lengths"], ("headroom", "6 x 16/17"), *HEADROOM_LOOKS["6 x 16/17"]),
    }
    looks = ((plots.BLACK, "D", "-"), (plots.SKY, "v", "--"), (plots.GREEN, "P", "-."))
    for outer, look in zip(cases.OUTERS, looks, strict=True):
        curves[f"MXFP8, outer {outer}"] = (frames["mxfp8_bits"], ("outer", outer), *look)
    none = []
    for name, (rows, (column, value), color, marker, dash) in curves.items():
        curve = rows[rows[column] == value].groupby("bits").shrinkage.mean().abs()
        seen = curve[curve > 1e-10]
        none += [f"{name}: {listed} bits" for listed in [", ".join(map(str, curve[curve <= 1e-10].index))] if listed]
        if len(seen):
            axes.plot([cases.WIDTHS.index(b) for b in seen.index], seen, dash, marker=marker, color=color, label=name)
    axes.set_yscale("log")
    axes.set_ylim(1e-9, 30)
    axes.set_xticks(range(len(cases.WIDTHS)), [str(bits) for bits in cases.WIDTHS])
    axes.set_xlim(-0.3, len(cases.WIDTHS) - 0.7)
    axes.set_xlabel("random bits for each value")
    axes.set_ylabel("shrinkage of the mean magnitude")
    axes.set_title("Random bits")
    axes.legend(loc="upper right", fontsize=7)
    if none:
        axes.text(0.02, 0.02, "no shrinkage:\n" + "\n".join(none), transform=axes.transAxes, fontsize=6.5, va="bottom")


def outer(frames: Mapping[str, pd.DataFrame]) -> Plate:
    """Error of the operands and of the backward products against the place of the outer scale."""
    rows, products = frames["outers"], frames["products"]
    with plots.style():
        figure, (left, right) = plots.panels(2, height=2.8)
        labels = [name.replace(", ", ",\n") for name in cases.OUTERS]
        for operand, marker in MARKERS.items():
            mean = rows[rows.operand == operand].groupby("outer").mean(numeric_only=True).loc[list(cases.OUTERS)]
            for column, color in (("stochastic", plots.BLUE), ("nearest", plots.VERMILION)):
                dash = "-" if operand == "activations" else "--"
                label = f"{column}, {operand}"
                left.plot(range(3), 1e3 * mean[column], dash, marker=marker, color=color, label=label)
            for place, share in enumerate(mean.exact):
                height = 0.13 if operand == "activations" else 0.03
                text = f"{operand} {share:.0%}"
                left.annotate(text, (place, height), xycoords=("data", "axes fraction"), ha="center", fontsize=7)
        left.set_ylim(-0.45, 2.2)
        left.set_title("Requantized to MXFP8 (text: kept exactly)")
        left.legend(loc="upper right", ncols=2, fontsize=7, columnspacing=1)
        for (product, spread), part in products.groupby(["product", "spread"], sort=False):
            if product == "dgrad" and spread:
                continue  # tokens' scales are not in it
            mean = part.groupby("outer").error.mean().loc[list(cases.OUTERS)]
            name = product if product == "dgrad" else f"{product}, {'lognormal' if spread else 'equal'} tokens"
            color = plots.GREEN if product == "dgrad" else plots.ORANGE if spread else plots.BLACK
            marker = "D" if product == "dgrad" else "v" if spread else "^"
            right.plot(range(3), 1e3 * mean, ":" if spread else "-", marker=marker, color=color, label=name)
        right.set_ylim(0, 2.8)
        right.set_title("Backward products")
        right.legend(loc="upper right")
        for axes in (left, right):
            axes.set_xticks(range(3), labels)
            axes.set_xlim(-0.4, 2.4)
            axes.set_ylabel("squared error / energy x 1e3")
    inside, outside, power = (products[products.outer == name].error.mean() for name in cases.OUTERS)
    caption = (
        "Place of the saved tensor's outer scale, mean over seeds; outside means folded into the gradient for wgrad. "
        f"Against FP32 multiplied in, the products' error is {outside / inside:.2f} times with FP32 outside and "
        f"{power / inside:.2f} times with a power of two multiplied in."
    )
    return Plate("outer", figure, caption)
