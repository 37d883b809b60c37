"""The picture of `redraw`: a number line, the draws counted, and their running mean."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import numerics as nm
from studies import plots

from .redraw_data import Redraw

NORMAL = 1.96  # half-width of a 95 % interval in standard deviations
POINTS = 100  # of the running mean


def draw(found: Redraw, target: str) -> Figure:
    """The three pictures of one `Redraw`."""
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 3.9))
        grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.45), width_ratios=(1, 1.7))
        _line(figure.add_subplot(grid[0, :]), found, target)
        _counts(figure.add_subplot(grid[1, 0]), found)
        _mean(figure.add_subplot(grid[1, 1]), found)
    return figure


def _gap(found: Redraw) -> float:
    """What a picture takes for one step: the neighbours' distance, or the smallest step where there is only one."""
    return (
        (found.above - found.below) or abs(found.saved - found.above) or found.step * found.element.min_subnormal or 1
    )


def _line(ax: Axes, found: Redraw, target: str) -> None:
    """The target's numbers around the saved value, with the chances of its neighbours."""
    gap = _gap(found)
    left, right = min(found.below, found.saved) - 1.3 * gap, max(found.above, found.saved) + 1.3 * gap
    if abs(found.value - found.saved) < 3 * gap:
        left, right = min(left, found.value - 0.3 * gap), max(right, found.value + 0.3 * gap)
        ax.plot(found.value, 0, "o", color=plots.GREY, fillstyle="none", markersize=7, zorder=4)
        if found.value != found.saved:
            _name(ax, f"was {found.value:g}", found.value, right=found.value > found.saved)
    values = found.element.values().numpy().astype(float) * found.step
    inside = np.unique(values[(values >= left) & (values <= right)])
    ax.vlines(inside, -0.16, 0.0, color=plots.BLUE, linewidth=1)
    chances = {found.below: 1 - found.chance, found.above: found.chance}
    for edge, chance in chances.items():
        ax.vlines(edge, 0, chance, color=_colour(found), linewidth=7)
        ax.annotate(f"{chance:.2%}", (edge, chance), (0, 3), textcoords="offset points", ha="center", va="bottom")
    ax.plot(found.saved, 0, "D", color=plots.BLACK, markersize=5, zorder=5)
    _name(ax, f"saved {found.saved:g}", found.saved, right=found.value <= found.saved)
    ax.axhline(0, color="#444444", linewidth=0.6)
    ax.set_xlim(left, right)
    ax.set_ylim(-0.5, 1.4)
    ax.set_xticks(inside, [f"{value:g}" for value in inside])
    ax.set_yticks([])
    ax.grid(visible=False)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(axis="x", length=0)
    ax.set_title(_title(found, target))


def _name(ax: Axes, text: str, x: float, right: bool) -> None:
    """A name under the number line, that reaches to the right or to the left of its place."""
    offset, side = ((-4, -8), "left") if right else ((4, -8), "right")
    ax.annotate(text, (x, 0), offset, textcoords="offset points", ha=side, va="top")


def _title(found: Redraw, target: str) -> str:
    scale = f", scale {found.step:g}" if found.step != 1 else ""
    if found.saturates:
        fate = f"saturates at {found.above:g}"
    elif found.below == found.above:
        fate = f"stays {found.above:g}"
    else:
        fate = f"becomes {found.below:g} or {found.above:g}"
    return f"{found.value:g} was saved as {found.saved:g} and {fate} in {target}{scale}"


def _colour(found: Redraw) -> str:
    return plots.BLUE if found.rounding is nm.Rounding.STOCHASTIC else plots.VERMILION


def _counts(ax: Axes, found: Redraw) -> None:
    """How often each neighbour was drawn, with the counts that 95 of 100 such series lie within."""
    n = len(found.draws)
    chances = {found.below: 1 - found.chance, found.above: found.chance}
    for place, (edge, chance) in enumerate(chances.items()):
        count = int((found.draws == edge).sum())
        ax.bar(place, count, 0.55, color=_colour(found), alpha=0.55)
        half = NORMAL * (n * chance * (1 - chance)) ** 0.5
        low, high = min(half, n * chance), min(half, n - n * chance)
        ax.errorbar(place, n * chance, [[low], [high]], fmt="_", color=plots.BLACK, capsize=4, markersize=14)
        top = max(count, n * chance + high)
        ax.annotate(f"{count:,}", (place, top), (0, 4), textcoords="offset points", ha="center")
    ax.set_xticks(range(len(chances)), [f"{edge:g}" for edge in chances])
    ax.set_xlim(-0.6, len(chances) - 0.4)
    ax.set_ylim(0, n * 1.22)
    ax.grid(axis="x", visible=False)
    ax.set_title("Times drawn (black: expected)")


def _mean(ax: Axes, found: Redraw) -> None:
    """The mean of the first n draws, its 95 % band around the saved value, and nearest."""
    total = len(found.draws)
    n = np.unique(np.geomspace(1, total, POINTS).round().astype(int))
    means = np.cumsum(found.draws.numpy())[n - 1] / n
    gap = _gap(found)
    chance = found.chance
    expected = found.below + chance * (found.above - found.below)
    if found.rounding is nm.Rounding.STOCHASTIC:
        half = NORMAL * (found.above - found.below) * (chance * (1 - chance) / n) ** 0.5
        low, high = np.maximum(expected - half, found.below), np.minimum(expected + half, found.above)
        ax.fill_between(n, low, high, color=plots.SKY, alpha=0.3, linewidth=0, label="95 % of all series")
        ax.plot(n, means, "o-" if total < 5 else "-", color=plots.BLUE, label="mean of n draws")
    ax.axhline(found.nearest, color=plots.VERMILION, linestyle="-.", label="nearest")
    ax.axhline(found.saved, color=plots.BLACK, linestyle=":", label="saved value")
    ax.set_xscale("log")
    ax.set_xlim(0.9, max(total, 2) * 1.1)
    ticks = [4**power for power in range(8) if 4**power <= total]
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set_ylim(min(found.below, found.saved) - 0.12 * gap, max(found.above, found.saved) + 0.12 * gap)
    upper = found.saved < (found.below + found.above) / 2 or found.nearest == found.below
    ax.legend(loc="upper right" if upper else "lower right", fontsize=7)
    ax.set_xlabel("draws averaged, n")
    ax.set_title("The mean of the draws")
