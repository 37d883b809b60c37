"""The pictures of notebook 5: one block on two wires, crest factors, the trade between wires, the sum of experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from studies import plots
from studies.combine_data import BLOCK, SIZES
from studies.hadamard_data import OFFSETS

from .rotation_data import PARTS, TRADED, WEIGHTS, Trip, crest_of, rotated

LOOKS = {
    "BF16": (plots.GREY, "x:"),
    "MXFP8": (plots.VERMILION, "o-"),
    "S2F6": (plots.SKY, "^-."),
    "RHT + S2F6": (plots.BLUE, "D-"),
}
PLUS, MINUS = plots.BLUE, plots.ORANGE
CELLS = BLOCK + 1
CODE: dict[str, Any] = {"fontsize": 5.5, "family": "monospace"}


def draw(x: Tensor, signs: Tensor, trips: list[Trip]) -> Figure:
    """The block and its rotation; the bytes of two wires; the errors behind them."""
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 5.4))
        grid = figure.add_gridspec(3, 2, height_ratios=(1.35, 0.85, 1.5))
        _bars(figure.add_subplot(grid[0, 0]), x, signs, f"The block: {_crest(x)}")
        y = rotated(x, signs)
        _bars(figure.add_subplot(grid[0, 1]), y, None, f"Rotated: {_crest(y)}")
        _bytes(figure.add_subplot(grid[1, :]), trips)
        _errors(figure.add_subplot(grid[2, :]), x, trips)
    return figure


def _crest(x: Tensor) -> str:
    lost = [place for place, good in enumerate(torch.isfinite(x).tolist()) if not good]
    if lost:
        return "all are NaN or Inf" if len(lost) == BLOCK else f"value {lost[0]} is not finite"
    top, crest = float(x.abs().max()), crest_of(x)
    return f"largest {top:.4g}" + (f", crest {crest:.2f}" if crest == crest else "")


def _reach(values: np.ndarray) -> float:
    """The largest finite magnitude, 1 where there is none."""
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max(initial=0.0)) or 1.0


def _bars(ax: Axes, x: Tensor, signs: Tensor | None, title: str) -> None:
    values = x.to(torch.float64).numpy()
    plain = np.where(np.isfinite(values), values, 0.0)
    colours = [PLUS] * BLOCK if signs is None else [PLUS if sign > 0 else MINUS for sign in signs.tolist()]
    ax.bar(range(BLOCK), plain, 0.8, color=colours)
    reach = _reach(values)
    bottom = float(plain.min(initial=0.0)) - 0.12 * reach
    ax.set_ylim(bottom if signs is None else bottom - 0.2 * reach, 1.15 * reach)
    if signs is not None:
        ax.set_xlabel("place (above: its sign in the rotation)")
        for sign, marker, colour in ((1.0, "+", PLUS), (-1.0, "_", MINUS)):
            places = np.flatnonzero(signs.numpy() == sign)
            ax.plot(places, [bottom - 0.08 * reach] * len(places), marker, color=colour, markersize=4.5)
    ax.set_xlim(-0.8, BLOCK - 0.2)
    ax.set_xticks(range(0, BLOCK, 8))
    ax.grid(axis="x", visible=False)
    ax.set_title(title)


def _bytes(ax: Axes, trips: list[Trip]) -> None:
    """One line of bytes for each wire: the scale, then 32 codes, darker for larger values."""
    ax.set_xlim(-6.2, CELLS + 0.6)
    ax.set_ylim(len(trips), -0.6)
    ax.axis("off")
    for line, each in enumerate(trips):
        assert each.sent is not None
        size = each.sent.dequantize().abs().to(torch.float64).numpy()
        shade = np.append(0.0, np.where(np.isfinite(size), size, 0.0) / _reach(size))
        for place, byte in enumerate(each.wire_bytes()):
            x = place + (0.6 if place else 0.0)
            colour = plots.GREY if place == 0 else LOOKS[each.wire.name][0]
            alpha = 0.3 if place == 0 else 0.08 + 0.6 * float(shade[place])
            ax.add_patch(Rectangle((x, line + 0.08), 0.94, 0.8, facecolor=colour, alpha=alpha))
            text = ax.text(x + 0.47, line + 0.5, f"{byte:02X}", ha="center", va="center", **CODE)
            text.set_in_layout(False)  # lies inside: layout takes half the time of a picture
        ax.text(-0.3, line + 0.5, each.wire.name, ha="right", va="center")
    ax.text(0.47, -0.05, "scale", ha="center", va="bottom", fontsize=7)
    ax.text(1.6, -0.05, "32 codes", ha="left", va="bottom", fontsize=7)
    ax.set_title("On the wire: bytes, hexadecimal")


def _errors(ax: Axes, x: Tensor, trips: list[Trip]) -> None:
    """|error| of each value behind each wire, and |value|."""
    size = x.to(torch.float64).abs().numpy()
    series = [each.errors.numpy() for each in trips]
    drawn = np.concatenate([size, *series])
    positive = drawn[np.isfinite(drawn) & (drawn > 0)]
    floor, top = float(positive.min(initial=1.0)) / 3, float(positive.max(initial=1.0))
    ax.set_yscale("log")
    places = np.flatnonzero(np.isfinite(size) & (size > 0))
    ax.hlines(size[places], places - 0.32, places + 0.32, color=plots.GREY, linewidth=1.6, label="size of the value")
    for each, errors, marker, aside in zip(trips, series, ("o", "D"), (-0.14, 0.14), strict=True):
        colour = LOOKS[each.wire.name][0]
        inexact = np.isfinite(errors) & (errors > 0)
        places = np.arange(BLOCK) + aside
        ax.plot(
            places[inexact], errors[inexact], marker, color=colour, markersize=3.6, label=f"error, {each.wire.name}"
        )
        ax.plot(places[errors == 0], [floor] * int((errors == 0).sum()), marker, color=colour, fillstyle="none")
    ax.set_ylim(floor / 2, top * (top / floor) ** 0.3)  # room for the legend
    if not all(np.isfinite(errors).all() for errors in series):
        ax.text(0.5, 0.4, "NaN or Inf where nothing is drawn", transform=ax.transAxes, ha="center", weight="bold")
    ax.set_xlim(-0.8, BLOCK - 0.2)
    ax.set_xticks(range(0, BLOCK, 4))
    ax.legend(loc="upper center", ncols=3)
    exact = any(bool((errors == 0).any()) for errors in series)
    ax.set_title("Rotated back: errors" + (" (hollow: exact)" if exact else ""))


# ---- figures that do not move ---------------------------------------------------------------------------------------


def _size_axis(ax: Axes) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(SIZES[::2], [str(size) for size in SIZES[::2]])
    ax.set_xlabel("outlier, standard deviations of the others")


def draw_crests(by_size: dict[str, list[float]], by_offset: dict[str, list[float]]) -> Figure:
    """Crest factors against the size of an outlier, and against a common offset."""
    with plots.style():
        figure, (left, right) = plots.panels(2, height=2.8)
        left.plot(SIZES, by_size["before"], "o-", color=plots.VERMILION, label="before")
        left.plot(SIZES, by_size["after"], "D-", color=plots.BLUE, label="after, random signs")
        _size_axis(left)
        left.set_title("One outlier in each block")
        left.set_ylabel("crest factor: largest / rms")
        looks = {"no rotation": "o-", "signs all +1": "s--", "random signs": "D-"}
        colours = dict(zip(looks, (plots.VERMILION, plots.ORANGE, plots.BLUE), strict=True))
        for name, values in by_offset.items():
            right.plot(OFFSETS, values, looks[name], color=colours[name], label=name)
        right.set_xlabel("added to every value")
        right.set_title("A common offset")
        for ax in (left, right):
            ax.axhline(BLOCK**0.5, color=plots.BLACK, linewidth=0.8, linestyle=":")
            ax.set_ylim(0, 7.2)
        left.annotate("√32, the most that 32 values can have", (2, BLOCK**0.5), (0, 3), textcoords="offset points")
        left.legend(loc="center right")
        right.legend(loc="center right")
    return figure


def draw_trade(found: dict[str, dict[str, list[float]]]) -> Figure:
    """Errors against the size of the outlier: its own, the others', all values'."""
    titles = dict(zip(PARTS, ("The outlier", "The 31 others", "All 32"), strict=True))
    with plots.style():
        figure, axes = plots.panels(3, height=3.1)
        for ax, (part, title) in zip(axes, titles.items(), strict=True):
            for name in TRADED:
                colour, look = LOOKS[name]
                label = name if part == PARTS[0] else None
                ax.plot(SIZES, found[part][name], look, color=colour, label=label)
            ax.set_yscale("log")
            ax.set_xscale("log", base=2)
            ax.set_xticks(SIZES[1::3], [str(size) for size in SIZES[1::3]])
            ax.set_title(title)
        axes[1].set_xlabel("outlier, standard deviations of the others")
        axes[0].set_ylabel("root mean square error")
        axes[1].axhline(1, color=plots.BLACK, linewidth=0.8, linestyle=":")
        axes[1].annotate("their own size", (SIZES[0], 1), (0, 3), textcoords="offset points")
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def draw_sums(rows: Tensor, exact: Tensor, once: Tensor, each: Tensor) -> Figure:
    """Three experts' rows, and their weighted sum by both orders."""
    with plots.style():
        figure, (left, right) = plots.panels(2, height=2.6)
        colours = (plots.ORANGE, plots.GREEN, plots.PURPLE)
        for row, colour, weight in zip(rows, colours, WEIGHTS, strict=True):
            left.plot(range(BLOCK), row.numpy(), color=colour, label=f"weight {weight:g}")
        left.set_ylim(-60, 78)
        left.legend(loc="upper right")
        left.set_title("Three experts' rows for one token")
        right.plot(range(BLOCK), exact.numpy(), color=plots.GREY, linewidth=3, alpha=0.5, label="exact sum")
        right.plot(range(BLOCK), each.numpy(), "o", color=plots.VERMILION, fillstyle="none", label="three inverses")
        right.plot(range(BLOCK), once.numpy(), ".", color=plots.BLUE, markersize=3, label="sum, one inverse")
        right.legend(loc="upper right")
        right.set_title("Their weighted sum")
        for ax in (left, right):
            ax.set_xticks(range(0, BLOCK, 8))
            ax.set_xlabel("feature")
    return figure
