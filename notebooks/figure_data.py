"""The numbers that a matplotlib figure shows, as plain data: what a test compares instead of pixels.

Taken from the drawn artists themselves, so nothing can be drawn and not recorded: lines, bars and other patches,
images, scattered points, surfaces, and every text. Places and sizes are in data coordinates, to six significant digits;
what depends on fonts or on the layout of a page is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

DIGITS = 6


def figure_data(figure: Figure) -> dict[str, Any]:
    """JSON-ready data of a figure: {"axes": [...], "texts": [...]}."""
    figure.canvas.draw()  # some artists, 3-D ones above all, have no vertices before
    return {"axes": [_axes(ax) for ax in figure.axes], "texts": [text.get_text() for text in figure.texts]}


def numbers(values: Any) -> Any:
    """Numbers to six significant digits, nested as they were; NaN and infinities as words, which JSON lacks."""
    if isinstance(values, str | bool | int) or values is None:
        return values
    if isinstance(values, float | np.floating):
        return float(f"{float(values):.{DIGITS}g}") + 0.0 if np.isfinite(values) else str(float(values))
    if isinstance(values, np.integer):
        return int(values)
    if np.ma.isMaskedArray(values):
        values = np.ma.filled(values.astype(float), np.nan)
    return [numbers(value) for value in values]


def _axes(ax: Axes) -> dict[str, Any]:
    legend = ax.get_legend()
    return {
        "title": ax.get_title() or ax.get_title(loc="left"),
        "labels": [ax.get_xlabel(), ax.get_ylabel()],
        "scales": [ax.get_xscale(), ax.get_yscale()],
        "lines": [numbers(np.asarray(line.get_xydata(), dtype=float)) for line in ax.lines],
        "patches": [_patch(patch) for patch in ax.patches],
        "collections": [_collection(c) for c in ax.collections],
        "images": [numbers(np.asarray(image.get_array(), dtype=float)) for image in ax.images],
        "texts": [text.get_text() for text in ax.texts],
        "legend": [] if legend is None else [text.get_text() for text in legend.get_texts()],
    }


def _patch(patch: Patch) -> dict[str, Any]:
    if isinstance(patch, Rectangle):
        place = [patch.get_x(), patch.get_y(), patch.get_width(), patch.get_height()]
    elif isinstance(patch, FancyArrowPatch):  # its path depends on the size of the page
        place = list(getattr(patch, "_posA_posB", None) or [])
    else:
        place = patch.get_path().vertices.tolist()
    return {"place": numbers(place), "colour": to_hex(patch.get_facecolor(), keep_alpha=True)}


def _collection(collection: Collection) -> dict[str, Any]:
    paths = [path.vertices.tolist() for path in collection.get_paths()]
    offsets = np.ma.filled(np.ma.asarray(collection.get_offsets()).astype(float), np.nan)
    colours = [to_hex(colour, keep_alpha=True) for colour in collection.get_facecolor()]
    return {"paths": numbers(paths), "offsets": numbers(offsets), "colours": colours}
