"""Pictures of notebook 2: a block before and after in three formats, and the curves of its other sections.

The vertical axis is a signed square root: the levels of E2M1 are then nearly even, and the dead zone, a twelfth of the
largest level, has a height that can be seen.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from studies import four_over_six_exact as exact
from studies import plots

from .block import MX, NV, SIX, View, beside, shares
from .readout import paragraphs, table, told

LOOKS = {NV: (plots.BLUE, "-"), SIX: (plots.GREEN, "--"), MX: (plots.PURPLE, "-.")}
BEFORE, DEAD = "#c4c4c4", "#fbe3d1"
LEAST_SIDE = 0.06  # of the other side: room for the dead zone where all values have one sign


def signed_root(x: np.ndarray) -> np.ndarray:
    """sign(x) sqrt |x|."""
    return np.sign(x) * np.sqrt(np.abs(x))


def signed_square(x: np.ndarray) -> np.ndarray:
    """Inverse of `signed_root`."""
    return np.sign(x) * np.square(x)


def comparison(x: Tensor, seen: dict[str, View]) -> Figure:
    """The block in each format, one above the other: values before and after, levels, dead zone, codes."""
    before = x.double().numpy()
    everything = np.concatenate([before, *(view.values.double().numpy() for view in seen.values())])
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 5.9))
        rows = figure.subplots(len(seen), 1, sharex=True)
        for ax, (name, view) in zip(rows, seen.items(), strict=True):
            ax.set_yscale("function", functions=(signed_root, signed_square))
            ax.set_ylim(*_limits(everything[np.isfinite(everything)]))
            _panel(ax, before, view, LOOKS[name][0])
            ax.set_title(_title(name, view))
        rows[-1].set_xticks(range(len(before)), [str(place + 1) for place in range(len(before))])
        rows[-1].tick_params(axis="x", pad=14)  # below the codes
        rows[-1].set_xlim(-1.1, max(len(before), 8) - 0.4)  # bars of a short block would be walls
        rows[-1].set_xlabel("value", labelpad=1)
        handles = [
            Patch(color=BEFORE),
            tuple(Patch(color=LOOKS[name][0]) for name in seen),
            Line2D([], [], color=plots.VERMILION, marker="x", linestyle="none"),
            Line2D([], [], color="#9a9a9a", linewidth=0.6),
            Patch(color=DEAD),
        ]
        names = ["before", "after", "lost: became zero", "levels of this scale", "dead zone"]
        each = {tuple: HandlerTuple(ndivide=None, pad=0)}
        figure.legend(handles, names, handler_map=each, loc="outside lower center", ncols=5)
    return figure


def _limits(values: np.ndarray) -> tuple[float, float]:
    low, high = (min(values.min(), 0.0), max(values.max(), 0.0)) if len(values) else (0.0, 0.0)
    if low == high:
        return -1.0, 1.0
    return 1.1 * min(low, -LEAST_SIDE * high), 1.1 * max(high, -LEAST_SIDE * low)


def _title(name: str, view: View) -> str:
    if math.isnan(view.scale):
        return f"{name}: the scale is NaN, and so is every value"
    outer = "" if view.outer is None else f" x outer {told(view.outer, 4)}"
    error = "" if math.isnan(view.rel_mse) else f", relMSE {told(view.rel_mse, 3)}"
    won = f", maximum to {view.winner}" if view.candidates and view.scale else ""
    return f"{name}: scale {told(view.scale, 4)}{outer}{won}{error}"


def _panel(ax: Axes, before: np.ndarray, view: View, color: str) -> None:
    low, high = ax.get_ylim()
    places, lost = np.arange(len(before)), view.lost.numpy()
    ax.grid(False)
    steps = [level for level in sorted(set(view.levels)) if low <= level <= high]  # none of a NaN scale
    ax.hlines(steps, -0.6, len(before) - 0.4, color="#9a9a9a", linewidth=0.4, zorder=1)
    if math.isfinite(view.scale):
        ax.axhspan(max(-view.dead, low), min(view.dead, high), color=DEAD, zorder=0, linewidth=0)
    ax.bar(places, np.where(np.isfinite(before), before, 0.0), 0.8, color=BEFORE, zorder=2)
    after = view.values.double().numpy()
    ax.bar(places, np.where(np.isfinite(after), after, 0.0), 0.42, color=color, zorder=3)
    ax.plot(places[lost], np.zeros(lost.sum()), "x", color=plots.VERMILION, markersize=5, markeredgewidth=1.4, zorder=4)
    shown = _ticks(view.levels, low, high)
    ax.set_yticks(shown, [told(level, 3) for level in shown])
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(axis="x", length=0)
    text = {"ha": "center", "va": "center", "transform": ax.get_xaxis_transform(), "family": "DejaVu Sans Mono"}
    ax.text(-0.95, -0.08, "code", **text)
    for place, code in enumerate(view.codes):
        ax.text(place, -0.08, f"{code:X}", color=plots.VERMILION if lost[place] else plots.BLACK, **text)
    for place in np.flatnonzero(~np.isfinite(before)):
        ax.text(place, 0.6, told(before[place]), **text)


def _ticks(levels: tuple[float, ...], low: float, high: float) -> list[float]:
    """The levels of 0, +-6, +-3 and +-1 that lie within the limits and far enough from each other for their labels."""
    bottom, top = signed_root(np.array([low, high]))
    shown: list[float] = []
    for level in (levels[code] + 0.0 for code in (0, 7, 15, 5, 13, 2, 10)):
        apart = all(abs(signed_root(level) - signed_root(other)) > 0.07 * (top - bottom) for other in shown)
        if low <= level <= high and apart:
            shown.append(level)
    return sorted(shown)


def readout(x: Tensor, seen: dict[str, View], said: list[str]) -> str:
    """The block in numbers: scales, codes, values and errors of each format, four over six's choice, remarks."""
    scales = [
        (
            name,
            f"0x{view.scale_code:02X}",
            told(view.scale, 6),
            "none" if view.outer is None else told(view.outer, 7),
            "all" if math.isinf(view.dead) else "none" if math.isnan(view.dead) else f"±{told(view.dead, 4)}",
            str(int(view.lost.sum())),
            told(view.rel_mse, 4),
        )
        for name, view in seen.items()
    ]
    heads = ("format", "scale code", "scale", "outer", "dead zone", "lost", "relMSE")
    four = seen[SIX]
    errors = " and ".join(f"{told(four.candidates[most], 6)} with {most}" for most in (6, 4))
    equal = " (4 wins only if smaller)" if four.candidates[4] == four.candidates[6] else ""
    choice = f"Four over six: the sum of squared errors is {errors}: the maximum is mapped to {four.winner}{equal}."
    rows = []
    for place, value in enumerate(x.tolist()):
        row = [str(place + 1), told(value, 6)]
        for view in seen.values():
            after = float(view.values[place])
            row += [f"{view.codes[place]:X}", told(after, 5), told(after - value, 3)]
        rows.append(row)
    names = [part for name in ("NVFP4", "4/6", "MXFP4") for part in (f"{name}: code", "decoded", "error")]
    return table(heads, scales) + paragraphs([choice]) + table(("", "value", *names), rows) + paragraphs(said)


# ---- figures without controls ----------------------------------------------------------------------------------------

WATCHED = (0.5, 1.0, 2.0, 3.0)


def largest_decides() -> Figure:
    """Left: what four ordinary values become beside a growing maximum. Right: share of values lost."""
    most = np.geomspace(4, 128, 321)
    sizes = np.geomspace(1, 256, 97)
    with plots.style():
        figure, (left, right) = plots.panels(2, height=3.1)
        after = np.array(beside(list(WATCHED), most.tolist())[NV])
        for place, value in enumerate(WATCHED):
            color = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE)[place]
            left.plot(most, after[:, place], color=color, label=f"{value:g}", linewidth=1.1)
            left.axhline(value, color=color, linewidth=0.5, linestyle=":")
        left.set(xlabel="largest value of the block", ylabel="decoded", title="NVFP4: four values beside a larger one")
        left.set_xscale("log", base=2)
        left.set_xticks([4, 8, 16, 32, 64, 128], ["4", "8", "16", "32", "64", "128"])
        left.set_ylim(-0.15, 6.3)
        left.legend(title="value", loc="upper left", ncols=4, columnspacing=1.0, handlelength=1.4)
        for name, lost in shares(sizes.tolist()).items():
            color, line = LOOKS[name]
            right.plot(sizes, 100 * np.array(lost), line, color=color, label=name)
        right.set(xlabel="outlier, in standard deviations", ylabel="% of the other fifteen", title="Lost to zero")
        right.set_xscale("log", base=2)
        right.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
        right.set_ylim(0, 105)
        right.legend(loc="upper left")
    return figure


def why_four() -> Figure:
    """Error of a value by its place below the block maximum, with the maximum mapped to 6 and to 4."""
    with plots.style():
        figure, (ax,) = plots.panels(1, height=2.5)
        for most, color, line in ((6, plots.BLUE, "-"), (4, plots.GREEN, "--")):
            at, off = exact.curve(float(most))
            ax.plot(100 * at, 100 * off, line, color=color, label=f"maximum mapped to {most}")
            levels = 100 * np.array(exact.levels(float(most))) / exact.TOP
            ax.plot(levels, np.full(len(levels), -1.2 if most == 6 else -2.8), "|", color=color, markersize=6)
        ax.axvspan(200 / 3, 100, color="#eeeeee", zorder=0, linewidth=0)
        ax.text(83.3, 19.3, "no level of 6 in here", ha="center", va="center")
        ax.set(xlabel="value, % of the block maximum", ylabel="error, % of the block maximum")
        ax.set(title="Where each candidate errs (ticks: its levels)", ylim=(-4, 21), xlim=(0, 101))
        ax.legend(loc="upper left")
    return figure
