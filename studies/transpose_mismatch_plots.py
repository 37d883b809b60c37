"""Figures of the transpose study: curves against outlier size, outlier channels, and the block as a landscape."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from mpl_toolkits.mplot3d.art3d import Poly3DCollection
from torch import Tensor

from . import plots
from .transpose_mismatch_block import BEFORE, VALUES
from .transpose_mismatch_data import CHANNELS, SCATTERED

LOOKS = {
    "NVFP4 1x16": (plots.BLUE, "o", "-"),
    "NVFP4 16x16": (plots.VERMILION, "s", "-"),
    "MXFP4 1x32": (plots.ORANGE, "^", "--"),
    "MXFP8 1x32": (plots.GREEN, "D", "-."),
    "FP8 1x128": (plots.PURPLE, "v", ":"),
    "NVFP4 saved, MXFP8": (plots.BLACK, "x", "--"),
}
SHOWN_UP_TO = 65536.0


def curves(rows: pd.DataFrame) -> Figure:
    """Scattered outliers: share that differs, error and losses of ordinary entries against outlier size."""
    part = rows[(rows.kind == SCATTERED) & (rows["size"] <= SHOWN_UP_TO)]
    means = part.groupby(["case", "size"]).mean(numeric_only=True).reset_index()
    with plots.style():
        figure, axes = plots.panels(3, height=3.3)
        panels = (
            ("differ", "entries that differ", "Rows against columns"),
            ("error_of_ordinary_rows", "squared error / energy", "Error of ordinary entries"),
            ("flush_rows", "ordinary entries lost to zero", "Flushed to zero"),
        )
        for place, (column, label, title) in zip(axes, panels, strict=True):
            for case, look in LOOKS.items():
                if column != "differ" and case == "NVFP4 saved, MXFP8":
                    continue  # its rows are those of NVFP4
                _line(place, means[means.case == case], column, look, case)
            place.set_xscale("log", base=4)
            place.set_xticks([1, 16, 256, 4096, 65536], ["none", "16", "256", "4096", "65536"])
            place.set_xlabel("outliers, in standard deviations")
            place.set_ylabel(label)
            place.set_title(title)
        axes[0].set_ylim(-0.03, 1.05)
        axes[1].set_yscale("log")
        axes[2].set_ylim(-0.02, 0.8)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=6, columnspacing=1.2, handlelength=2.0)
    return figure


def _line(axes: Axes, part: pd.DataFrame, column: str, look: tuple[str, str, str], label: str) -> None:
    color, marker, line = look
    axes.plot(part["size"], part[column], line, color=color, marker=marker, label=label, markersize=3.5)


def channels(rows: pd.DataFrame) -> Figure:
    """Outlier channels: what ordinary entries suffer along rows, which mix channels, and along columns."""
    part = rows[(rows.kind == CHANNELS) & (rows["size"] <= SHOWN_UP_TO)]
    means = part.groupby(["case", "size"]).mean(numeric_only=True).reset_index()
    with plots.style():
        figure, axes = plots.panels(2, height=2.7)
        for place, what, label in zip(
            axes, ("error_of_ordinary", "flush"), ("squared error / energy", "lost to zero"), strict=True
        ):
            for case in ("NVFP4 1x16", "NVFP4 16x16", "MXFP4 1x32", "MXFP8 1x32"):
                color, marker, _ = LOOKS[case]
                for side, line in (("rows", "-"), ("columns", ":")):
                    if case == "NVFP4 16x16" and side == "columns":
                        continue
                    name = case if case == "NVFP4 16x16" else f"{case}, along {side}"
                    look = (color, marker, line)
                    _line(place, means[means.case == case], f"{what}_{side}", look, name)
            place.set_xscale("log", base=4)
            place.set_xticks([1, 16, 256, 4096, 65536], ["none", "16", "256", "4096", "65536"])
            place.set_xlabel("channel's standard deviation")
            place.set_ylabel(label)
        axes[0].set_yscale("log")
        axes[0].set_title("Ordinary entries: error")
        axes[1].set_title("Ordinary entries: flushed to zero")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")
    return figure


def height(values: Tensor) -> np.ndarray:
    """Of a bar: 1 + log4 of the magnitude, 0 for zero and what is below 1/4."""
    sizes = values.abs().double().clamp(min=0.25)
    return (1 + sizes.log2() / 2).numpy()


def landscape(views: dict[str, Tensor]) -> Figure:
    """The block before and after, as bars whose heights are logarithms."""
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 6.4))
        places = figure.subplots(2, 2, subplot_kw={"projection": "3d"}).ravel()
        for axes, (name, values) in zip(places, views.items(), strict=True):
            _bars(axes, values, views[BEFORE])
            lost = int(((values == 0) & (views[BEFORE] != 0)).sum())
            axes.set_title(name if name == BEFORE else f"{name}: {lost} lost", loc="center", pad=6)
        names = {"kept": plots.SKY, "off by more than a fifth": plots.ORANGE, "lost to zero": plots.VERMILION}
        handles = [Patch(color=color, label=name) for name, color in (names | {"zero": "#d9d9d9"}).items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _bars(axes: Axes, values: Tensor, before: Tensor) -> None:
    tall, lines = height(values), values.shape[0]
    y, x = np.mgrid[:lines, : values.shape[1]]
    off = ((values - before).abs() > before.abs() / 5).numpy()
    colors = np.where(off, plots.ORANGE, plots.SKY)
    zero = (values == 0).numpy()
    colors[zero] = "#d9d9d9"
    colors[zero & (before != 0).numpy()] = plots.VERMILION
    faces, shades = [], []
    for row, column, top in zip(y.ravel(), x.ravel(), np.where(zero, 0.02, tall).ravel(), strict=True):
        sides, color = _faces(column + 0.1, row + 0.1, column + 0.9, row + 0.9, top), to_rgb(colors[row, column])
        faces += sides
        shades += [tuple(shade * part for part in color) for shade in (1.0, 0.82, 0.62)]
    axes.add_collection3d(
        Poly3DCollection(faces, facecolors=shades, edgecolors="#ffffff", linewidths=0.15, clip_on=False)
    )
    axes.set_xlim(0, x.shape[1])
    axes.set_ylim(0, lines)
    axes.set_zlim(0, 4.2)
    axes.set_zticks([1, 2, 3, 4], [f"{v:g}" for v in VALUES[1:]])
    axes.set_xticks([0.5, 15.5], ["1", "16"])
    axes.set_yticks([0.5, 15.5], ["1", "16"])
    axes.set_xlabel("column", labelpad=-9)
    axes.set_ylabel("row", labelpad=-9)
    axes.tick_params(pad=-3)
    axes.set_box_aspect((1, 1, 0.62), zoom=1.15)
    axes.view_init(elev=46, azim=-60)


def _faces(x: float, y: float, right: float, back: float, top: float) -> list[np.ndarray]:
    """The three faces of a bar that are seen from the front right: top, front, right side."""
    ground = [(x, y, 0.0), (right, y, 0.0), (right, back, 0.0), (x, back, 0.0)]
    a, b, c, d = ground
    over_a, over_b, over_c, over_d = ((px, py, top) for px, py, _ in (a, b, c, d))
    return [
        np.array(face) for face in ([over_a, over_b, over_c, over_d], [a, b, over_b, over_a], [b, c, over_c, over_b])
    ]
