"""How figures look: one style, for print and for a page.

Widths are those of a two-column paper, so text is not scaled in print: `COLUMN` and `PAGE` inches, 8 point text. The
colours are those of Okabe and Ito (2008), told apart with any colour vision; lines also differ in dash or marker, so
a grey print works. No pyplot and no window: figures are objects, and the style holds inside `style()` only.

    with plots.style():
        figure, (left, right) = plots.panels(2)
        ...
    plots.save(figure, path)            # .svg or .png

Equal figures give equal SVG bytes (no date, fixed identifiers).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0  # inches

BLACK, ORANGE, SKY, GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILION, PURPLE, GREY = "#0072b2", "#d55e00", "#cc79a7", "#6e6e6e"

_STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "fourbit",
}


@contextmanager
def style() -> Iterator[None]:
    """The style, for drawing; matplotlib's own settings come back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not what a user's matplotlibrc says
        matplotlib.rcParams.update(_STYLE)
        yield


def panels(
    count: int, width: float = PAGE, height: float = 2.9, ratios: tuple[float, ...] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels side by side, `width` by `height` inches, with relative widths `ratios`."""
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(1, count, squeeze=False, gridspec_kw={"width_ratios": ratios})
    return figure, list(axes[0])


def smooth(values: np.ndarray) -> np.ndarray:
    """Running mean over a fifteenth of the values (n,), centred; shorter at the ends."""
    window = max(1, len(values) // 15)
    return pd.Series(values).rolling(window, min_periods=1, center=True).mean().to_numpy()


def render(figure: Figure, kind: str) -> bytes:
    """The figure as a file's contents; `kind` is "svg" or "png".

    Raises:
        ValueError: another kind.
    """
    if kind not in ("svg", "png"):
        raise ValueError(f"kind={kind!r}: use 'svg' or 'png'")
    buffer = BytesIO()
    with style():
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write the figure to `path`, whose suffix names the kind: .svg or .png."""
    path.write_bytes(render(figure, path.suffix.removeprefix(".")))
