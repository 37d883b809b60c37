"""The widget of notebook 3: where the outlier stands, how large it is, and which normal values surround it.

The typed size is what counts; the slider writes into it, and follows it within its reach.
"""

from __future__ import annotations

import math
from typing import Any

import ipywidgets

from . import tile, tile_draw
from .panel import Panel, Picture, number

LEAST, MOST = -2, 20  # the slider's reach, powers of two


def picture(row: int, column: int, size: str, seed: int) -> Picture:
    """The block with the outlier of size `size`, before and after.

    Raises:
        ValueError: a size that is no number; a place outside the block.
    """
    typed = number(size, "size")
    x = tile.block(row, column, typed, seed)
    seen = tile.views(x, row, column)
    said = tile.remarks(typed, x, seen)
    return Picture(tile_draw.landscapes(x, seen, row, column), tile_draw.readout(x, seen, said))


class TilePanel(Panel):
    """Controls: `row`, `column`, `size` (typed), `slide` (the same on a logarithmic slider) and `seed`."""

    def __init__(self, row: int = 5, column: int = 11, size: str = "32", seed: int = 0) -> None:
        late = {"continuous_update": False}  # a picture per pixel would lag behind
        places = {"min": 1, "max": tile.SIDE, **late}
        controls: dict[str, Any] = {
            "row": ipywidgets.IntSlider(row, description="row", **places),
            "column": ipywidgets.IntSlider(column, description="column", **places),
            "slide": ipywidgets.FloatLogSlider(
                32.0, base=2, min=LEAST, max=MOST, step=0.25, description="outlier", readout=False, **late
            ),
            "size": ipywidgets.Text(size, description="its value", **late),
            "seed": ipywidgets.IntSlider(seed, min=0, max=9, description="seed", **late),
        }
        rows = [["row", "column"], ["slide", "size"], ["seed"]]
        super().__init__(controls, lambda slide, **others: picture(**others), rows)
        self._follow()

    def _changed(self, change: Any) -> None:
        if change["owner"] is self.controls["slide"]:
            self.hold_drawing({"size": f"{change['new']:.4g}"})
        self.refresh()
        if change["owner"] is self.controls["size"]:
            self._follow()

    def _follow(self) -> None:
        """Move the slider to the typed size, where it reaches that."""
        try:
            size = number(self.controls["size"].value)
        except ValueError:
            return  # told already
        if math.isfinite(size) and size > 0:
            self.hold_drawing({"slide": min(max(size, 2.0**LEAST), 2.0**MOST)})


def panel(row: int = 5, column: int = 11, size: str = "32", seed: int = 0) -> TilePanel:
    """The widget, starting from an outlier of 32 at row 5, column 11."""
    return TilePanel(row, column, size, seed)
