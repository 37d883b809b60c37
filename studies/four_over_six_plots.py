"""Figures of the four-over-six study: where the error is, and how the choice depends on the block."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import four_over_six_exact as exact
from . import plots
from .four_over_six_data import BINS, RULES, SIX, SQUARES

LOOKS = {
    "gaussian": (plots.BLUE, "o", "-"),
    "laplace": (plots.ORANGE, "s", "--"),
    "student t5": (plots.GREEN, "^", "-."),
    "uniform": (plots.VERMILION, "D", ":"),
    "channels": (plots.PURPLE, "v", "-"),
}
MORE = ((plots.SKY, "P", "-"), (plots.BLACK, "X", "--"))  # sources beside those


def where(positions: pd.DataFrame) -> Figure:
    """The dead zone, where in a block the error arises, and what quantizing only some values costs.

    Args:
        positions: columns at, share, and the error by rule, in thousandths, of one source.
    """
    with plots.style():
        figure, (left, middle, right) = plots.panels(3, height=2.9)
        _dead_zone(left)
        edges = np.arange(BINS + 1) / BINS * 100
        for rule, color, line in ((SIX, plots.VERMILION, "-"), (SQUARES, plots.BLUE, "--")):
            name = "mapped to 6" if rule == SIX else "four over six"
            middle.stairs(positions[rule], edges, color=color, linestyle=line, label=name, linewidth=1.3)
            total = float(positions[rule].sum())
            above = total - np.concatenate([[0.0], positions[rule].cumsum()])
            right.plot(edges, above, line, color=color, label=f"{name}: above")
            right.plot(edges, total - above, line, color=color, linewidth=0.7, label=f"{name}: below")
        for axes in (middle, right):
            axes.axvspan(200 / 3, 100, color="#eeeeee", zorder=0, linewidth=0)
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper left", fontsize=6.8)
        middle.set_ylim(top=1.25 * float(positions[[SIX, SQUARES]].to_numpy().max()))
        right.set_ylim(top=1.55 * float(positions[SIX].sum()))
        middle.set_xlabel("value, % of block maximum")
        middle.set_ylabel("squared error / energy, 1e-3")
        middle.set_title("Where the error arises")
        right.set_xlabel("threshold, % of block maximum")
        right.set_ylabel("squared error / energy, 1e-3")
        right.set_title("Quantized on one side only")
    return figure


def _dead_zone(axes: Axes) -> None:
    for largest, color, line in ((6.0, plots.VERMILION, "-"), (4.0, plots.BLUE, "--")):
        x, off = exact.curve(largest)
        axes.plot(100 * x, 100 * off, line, color=color, label=f"mapped to {largest:g}", linewidth=1.1)
    axes.axvspan(200 / 3, 100, color="#eeeeee", zorder=0, linewidth=0)
    axes.set_xlabel("value, % of block maximum")
    axes.set_ylabel("error, % of block maximum")
    axes.set_title("The gap below the maximum")
    axes.set_ylim(0, 22)
    axes.legend(loc="upper left", fontsize=6.8)


def looks(sources: list[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and line of each source."""
    spare = iter(MORE)
    return {source: LOOKS[source] if source in LOOKS else next(spare) for source in sources}


def choice(errors: pd.DataFrame, crests: pd.DataFrame) -> Figure:
    """Errors of the rules beside that of 6; share of blocks mapped to 4, and gain, by crest factor.

    Args:
        errors: index rule, a column a source, relMSE over that of 6. crests: columns source, at, fours, gain.
    """
    style = looks(list(errors.columns))
    with plots.style():
        figure, (left, middle, right) = plots.panels(3, height=3.3, ratios=(1.25, 1, 1))
        rules = [rule for rule in RULES if rule != SIX and "16x16" not in rule]
        for source, (color, marker, _) in style.items():
            places = np.arange(len(rules))[::-1]
            left.plot(errors.loc[rules, source], places, marker, color=color, markersize=4.5, alpha=0.9)
        left.set_yticks(range(len(rules)), rules[::-1])
        left.axvline(1, color=plots.BLACK, linewidth=0.8)
        left.set_xlabel("squared error / that of 6")
        left.set_title("Rules, against 6")
        for axes, column, title in ((middle, "fours", "Blocks mapped to 4"), (right, "gain", "Error saved")):
            for source, part in crests.groupby("source", sort=False):
                color, marker, line = style[source]
                axes.plot(part.middle, 100 * part[column], line, marker=marker, color=color, label=source)
            axes.set_xlabel("block's maximum / rms")
            axes.set_ylabel("%")
            axes.set_title(title)
        right.axhline(0, color=plots.BLACK, linewidth=0.8)
        handles, labels = middle.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
    return figure
