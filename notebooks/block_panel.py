"""The widget of notebook 2: sixteen sliders, a text of all values, an outer scale, and blocks to start from.

The text is what counts. A slider writes its value into it; a new text moves the sliders, whose reach follows the
largest value. Sliders beyond the values of a short block, and those of NaN and infinities, do not move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ipywidgets
import torch

from . import block, block_draw
from .panel import Panel, Picture

OWN = "your own"


@dataclass(frozen=True)
class Start:
    """A block to start from: its values and the outer scale, as typed."""

    text: str
    outer: str


def _typed(values: torch.Tensor) -> str:
    return " ".join(f"{value:.3g}" for value in values.tolist())


def _normal(outlier: float | None = None) -> str:
    x = torch.randn(block.LONGEST, generator=torch.Generator().manual_seed(3))
    if outlier is not None:
        x[5] = outlier
    return _typed(x)


def starts() -> dict[str, Start]:
    """Name -> block. The first has a largest value of -54: its scale is 9, and 5.4 becomes 4.5."""
    tiny = _typed(1e-4 * torch.randn(block.LONGEST, generator=torch.Generator().manual_seed(3)))
    return {
        "largest is -54": Start("-54 5.4 30 12 -8 2 41 -1.5 20 -36 -24 6.5 0.7 -17 3 46", "1"),
        "gaussian": Start(_normal(), "auto"),
        "one outlier": Start(_normal(40.0), "auto"),
        "10 20 30 40": Start("10 20 30 40", "1"),
        "all zero": Start(" ".join(["0"] * block.LONGEST), "auto"),
        "tiny values": Start(tiny, "1"),
    }


def reach(values: list[float]) -> float:
    """Of the sliders: 1, 2 or 5 times a power of ten, at least twice the largest finite magnitude; 1 for zeros."""
    most = 2 * max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if not 0 < most < 1e300:
        return 1.0 if most == 0 else 1e300
    power = math.floor(math.log10(most))
    return next((float(f"{k}e{power}") for k in (1, 2, 5) if float(f"{k}e{power}") >= most), float(f"1e{power + 1}"))


def picture(text: str, outer: str) -> Picture:
    """The block that `text` says, in each format.

    Raises:
        ValueError: a text or an outer scale that says no block.
    """
    typed = block.parse(text)
    x = block.block(typed)
    seen = block.views(x, block.parse_outer(outer))
    return Picture(block_draw.comparison(x, seen), block_draw.readout(x, seen, block.remarks(typed, x, seen)))


class BlockPanel(Panel):
    """Controls: `start`, `outer`, `text`, and `value1` to `value16`."""

    def __init__(self, start: str = "largest is -54") -> None:
        self._starts = starts()
        first = self._starts[start]
        late = {"continuous_update": False}  # a picture per key or pixel would lag behind
        controls: dict[str, Any] = {
            "start": ipywidgets.Dropdown(options=[*self._starts, OWN], value=start, description="block"),
            "outer": ipywidgets.Text(first.outer, description="outer scale", placeholder="auto, or a number", **late),
            "text": ipywidgets.Text(first.text, description="values", layout={"width": "95%"}, **late),
        }
        tall = {"width": "40px", "height": "160px"}
        self._sliders = [f"value{place}" for place in range(1, block.LONGEST + 1)]
        for place, name in enumerate(self._sliders, 1):
            controls[name] = ipywidgets.FloatSlider(
                description=str(place), orientation="vertical", readout_format=".3g", layout=tall, **late
            )
        self._good = first.text  # the last text that says a block: sliders go on from there
        rows = [["start", "outer"], ["text"], self._sliders]
        super().__init__(controls, lambda text, outer, **others: picture(text, outer), rows)
        self._place_sliders()

    def _changed(self, change: Any) -> None:
        name = next(name for name, control in self.controls.items() if control is change["owner"])
        if name == "start" and change["new"] in self._starts:
            chosen = self._starts[change["new"]]
            self.hold_drawing({"text": chosen.text, "outer": chosen.outer})
        elif name in self._sliders:
            words = block.words(self._good)
            words[self._sliders.index(name)] = f"{change['new']:.6g}"
            self.hold_drawing({"text": " ".join(words)})
        self.refresh()
        self._place_sliders()

    def refresh(self) -> None:
        """Draw the present text, which a start's name no longer describes once it differs."""
        chosen = self._starts.get(self.controls["start"].value)
        if chosen is not None and chosen.text != self.controls["text"].value:
            self.hold_drawing({"start": OWN})
        super().refresh()
        try:
            block.parse(self.controls["text"].value)
        except ValueError:
            return  # told already
        self._good = self.controls["text"].value

    def _place_sliders(self) -> None:
        values = block.parse(self._good)
        most = reach(values)
        for place, name in enumerate(self._sliders):
            slider = self.controls[name]
            value = values[place] if place < len(values) else math.nan
            slider.unobserve(self._changed, "value")
            # in one message: limits that arrive before the value would clamp the old one, as if a user had
            with slider.hold_sync(), slider.hold_trait_notifications():
                slider.min, slider.max, slider.step = -most, most, most / 100
                slider.value = value if math.isfinite(value) else 0.0
            slider.disabled = not math.isfinite(value)
            slider.observe(self._changed, "value")


def panel(start: str = "largest is -54") -> BlockPanel:
    """The widget, starting from the block of that name."""
    return BlockPanel(start)
