"""Pictures of notebook 3: a block as a landscape of bars with logarithmic heights, before and after; its curves.

A bar's height is log2(|value| / FLOOR), at least a little where the value is not zero. What became zero lies flat, in
the warning colour. The bars are seen from above the corner of row 16 and column 16, in parallel projection:

    right = x cos a - y sin a          up = -(x sin a + y cos a) sin e + z cos e

x to the columns, y to the rows, z the height. Row by row, column by column, each bar is nearer than those before it, so
their faces are painted in this order and never in a wrong one; and a picture takes a tenth of what 3-D axes take.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from studies import plots

from .block import FLT_MAX
from .readout import paragraphs, table, told
from .tile import COLUMNS, ROWS, SIDE, View, against_size, differ

FLOOR = 2.0**-3  # magnitudes up to here have the least height
LEAST = 0.4
TALLEST, UNIT = 5.0, 0.45  # of the highest bar, and of a doubling at most, in cells
AZIMUTH, ELEVATION = np.radians(38.0), np.radians(48.0)
KEPT, LOST, OUTLIER, BROKEN = plots.SKY, plots.VERMILION, plots.BLACK, "#b9b9b9"
SHADES = (0.62, 0.80, 1.0)  # of the right side, the front and the top


def heights(values: np.ndarray) -> np.ndarray:
    """Of the bars, in doublings: log2(|value| / FLOOR) but at least LEAST; 0 for zero and NaN."""
    sizes = np.nan_to_num(np.abs(values.astype(np.float64)), nan=0.0, posinf=FLT_MAX)
    tall = np.log2(np.maximum(sizes, FLOOR)) - np.log2(FLOOR)
    return np.where(sizes == 0, 0.0, np.maximum(tall, LEAST))


def seen_at(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Places on the page, (..., 2), of points in space."""
    right = x * np.cos(AZIMUTH) - y * np.sin(AZIMUTH)
    near = x * np.sin(AZIMUTH) + y * np.cos(AZIMUTH)
    return np.stack([right, -near * np.sin(ELEVATION) + z * np.cos(ELEVATION)], axis=-1)


def faces(tall: np.ndarray) -> np.ndarray:
    """Right side, front and top of every bar on the page, from the farthest bar to the nearest: (3 x bars, 4, 2)."""
    y, x = (axis.ravel().astype(float) for axis in np.mgrid[:SIDE, :SIDE])
    z, ground = tall.ravel(), np.zeros(SIDE * SIDE)
    left, right, back, front = x + 0.1, x + 0.9, y + 0.1, y + 0.9
    side = [(right, front, ground), (right, back, ground), (right, back, z), (right, front, z)]
    face = [(left, front, ground), (right, front, ground), (right, front, z), (left, front, z)]
    top = [(left, front, z), (right, front, z), (right, back, z), (left, back, z)]
    corners = np.array([side, face, top]).transpose(3, 0, 1, 2)  # (bars, 3 faces, 4 corners, 3)
    return np.round(seen_at(*np.moveaxis(corners, -1, 0)).reshape(-1, 4, 2), 3)  # of a cell; less to store


def landscapes(x: Tensor, seen: dict[str, View], row: int, column: int) -> Figure:
    """The block before, and in each way of quantizing it."""
    before = x.double().numpy()
    top = max(float(heights(before).max()), *(float(heights(v.values.double().numpy()).max()) for v in seen.values()))
    unit = min(UNIT, TALLEST / top)
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 6.6))
        places = figure.subplots(2, 2).ravel()
        _bars(places[0], before, np.zeros((SIDE, SIDE), bool), (row, column), top, unit)
        places[0].set_title("before", loc="center")
        places[0].text(0.5, -0.02, "heights are logarithms of magnitudes", transform=places[0].transAxes, ha="center")
        for ax, (name, view) in zip(places[1:], seen.items(), strict=True):
            _bars(ax, view.values.double().numpy(), view.lost.numpy(), (row, column), top, unit)
            ax.set_title(name, loc="center")
            ax.text(0.5, -0.02, _under(view), transform=ax.transAxes, ha="center")
        names = {"value": KEPT, "outlier": OUTLIER, "lost: became zero": LOST}
        if not bool(x.isfinite().all()):
            names["NaN"] = BROKEN
        handles = [Patch(color=color, label=name) for name, color in names.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _under(view: View) -> str:
    errors = f"relMSE {told(view.rel_mse, 3)}, without the outlier {told(view.rel_mse_others, 3)}"
    return f"{int(view.lost.sum())} of {view.lost.numel()} lost; {errors}"


def _bars(ax: Axes, values: np.ndarray, lost: np.ndarray, at: tuple[int, int], top: float, unit: float) -> None:
    colors = np.full((SIDE, SIDE), KEPT, dtype=object)
    colors[at[0] - 1, at[1] - 1] = OUTLIER
    colors[~np.isfinite(values)] = BROKEN
    colors[lost] = LOST
    rgb = np.array([to_rgb(color) for color in colors.ravel()])
    shaded = rgb[:, None, :] * np.array(SHADES)[None, :, None]
    shaded[(rgb == 0).all(-1)] += np.array([0.0, 0.15, 0.3])[:, None]  # sides of a black bar are to be told apart
    ends = np.array([0.0, SIDE, SIDE, 0.0]), np.array([0.0, 0.0, SIDE, SIDE])
    ground = seen_at(*ends, np.zeros(4))
    ax.add_collection(PolyCollection([ground], facecolors="#f1f1f1", edgecolors="#9a9a9a", linewidths=0.5))
    tall = heights(values)
    there = np.stack([tall > 0, tall > 0, tall >= 0], axis=-1).ravel()  # what lies flat has a top alone
    shapes, fills = faces(unit * tall)[there], shaded.reshape(-1, 3)[there]
    ax.add_collection(PolyCollection(shapes, facecolors=fills, edgecolors="#ffffff", linewidths=0.2))
    _scales(ax, top, unit)
    (left, low), (right, high) = ground.min(0), ground.max(0)
    ax.set(xlim=(left - 2.2, right + 2.2), ylim=(low - 1.2, high + 3.5), aspect="equal")
    ax.set_axis_off()


def _scales(ax: Axes, top: float, unit: float) -> None:
    """Numbers of rows and columns along the near edges, and the heights at the left corner."""
    text = {"ha": "center", "va": "center", "fontsize": 7}
    for place in (1, 4, 8, 12, 16):
        ax.text(*seen_at(place - 0.5, SIDE + 0.8, 0.0), str(place), **text)
        ax.text(*seen_at(SIDE + 0.8, place - 0.5, 0.0), str(place), **text)
    turn = [float(np.degrees(np.arctan2(*(seen_at(*step, 0.0)[::-1])))) for step in ((1.0, 0.0), (0.0, -1.0))]
    ax.text(*seen_at(SIDE / 2, SIDE + 2.1, 0.0), "column", rotation=turn[0], **text)
    ax.text(*seen_at(SIDE + 2.1, SIDE / 2, 0.0), "row", rotation=turn[1], **text)
    every = 3 * max(1, round(top / 12))
    marks = [mark for mark in range(3, int(top) + 1, every)]  # 3 doublings above the floor: 1
    line = seen_at(np.full(2, -0.3), np.full(2, SIDE + 0.0), np.array([0.0, unit * top]))
    ax.plot(line[:, 0], line[:, 1], color="#444444", linewidth=0.6)
    for mark in marks:
        right, up = seen_at(-0.3, SIDE + 0.0, unit * mark)
        ax.plot([right - 0.3, right], [up, up], color="#444444", linewidth=0.6)
        ax.text(right - 0.5, up, _power(mark - 3), ha="right", va="center", fontsize=7)


def _power(exponent: int) -> str:
    """2^exponent, written out while that is short."""
    return str(2**exponent) if exponent <= 13 else f"2^{exponent}"


def readout(x: Tensor, seen: dict[str, View], said: list[str]) -> str:
    """The block in numbers: lost values, errors and scales of each way; how rows and columns differ; remarks."""
    rows = []
    for name, view in seen.items():
        low, high = min(view.scales), max(view.scales)
        scales = told(low, 4) if low == high else f"{told(low, 4)} to {told(high, 4)}"
        errors = [told(view.rel_mse, 4), told(view.rel_mse_others, 4)]
        rows.append([name, str(len(view.scales)), scales, f"{int(view.lost.sum())} of {x.numel()}", *errors])
    share = differ(seen[ROWS].values, seen[COLUMNS].values)
    text = (
        f"Rows against columns: {round(share * x.numel())} of {x.numel()} entries ({100 * share:.1f} %) are not the "
        "same number. The tile is the same tensor from both sides."
    )
    head = ("quantized", "scales", "their values", "lost to zero", "relMSE", "relMSE without the outlier")
    return table(head, rows) + paragraphs([text, *said])


# ---- figures without controls ----------------------------------------------------------------------------------------


def mismatch(seen: dict[str, View]) -> Figure:
    """Where rows and columns disagree in one block; and, of many blocks, what differs and what is lost."""
    rows, columns = seen[ROWS], seen[COLUMNS]
    kinds = np.full((SIDE, SIDE), 0.0)
    kinds[(rows.values != columns.values).numpy()] = 1.0
    kinds[(rows.lost ^ columns.lost).numpy()] = 2.0
    curves = against_size()
    with plots.style():
        figure, (left, middle, right) = plots.panels(3, height=3.0, ratios=(1.15, 1, 1))
        _squares(left, kinds)
        for way, part in curves.groupby("way", sort=False):
            color, marker = (plots.BLUE, "o") if way == "1x16" else (plots.PURPLE, "s")
            middle.plot(part["size"], 100 * part.differ, color=color, marker=marker, label=way)
            right.plot(part["size"], 100 * part.flush_rows, color=color, marker=marker, label=way)
        for ax, title, label in (
            (middle, "Rows against columns", "entries that differ, %"),
            (right, "Lost to zero", "ordinary entries, %"),
        ):
            ax.set_xscale("log", base=2)
            ax.set_xticks([1, 4, 16, 64, 256, 1024], ["none", "4", "16", "64", "256", "1024"])
            ax.set(title=title, xlabel="outliers, std. deviations", ylabel=label, ylim=(-3, 104))
            ax.legend(loc="center right" if ax is middle else "upper left")
    return figure


def _squares(ax: Axes, kinds: np.ndarray) -> None:
    """A map of the block: rows and columns say the same, another number, or one of them zero."""
    names = {"the same": "#e9e9e9", "another number": plots.SKY, "lost in one": plots.VERMILION}
    edge = SIDE + 0.5
    ax.imshow(kinds, cmap=ListedColormap(list(names.values())), vmin=0, vmax=2, extent=(0.5, edge, edge, 0.5))
    ax.grid(False)
    ax.set(title="One block, entry by entry", xlabel="column", ylabel="row")
    ax.set_xticks([1, 5, 9, 13, 16])
    ax.set_yticks([1, 5, 9, 13, 16])
    handles = [Patch(color=color, label=name) for name, color in names.items()]
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=3, columnspacing=0.7, handlelength=0.8
    )
