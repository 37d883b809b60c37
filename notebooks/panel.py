"""A figure that follows its controls, and that stays readable where nothing runs.

    panel = Panel({"text": ipywidgets.Text("5.4")}, draw)       # draw(text="5.4") -> Picture

Each change of a control calls `draw` with the values of all of them. Its output is the widget (JupyterLab, VS Code,
Colab) and beside it the present picture as PNG, which a front end without a kernel shows instead; `notebooks.run` keeps
only the picture when it saves. A mistake of the user, a ValueError of `draw`, is told under the last good picture.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets
from IPython.display import display
from matplotlib.figure import Figure

from studies import plots

from .figure_data import figure_data

FIGURE, READOUT = "application/vnd.fourbit.figure+json", "application/vnd.fourbit.readout+json"
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Picture:
    """What a panel shows: a figure and, under it, `readout`, HTML that says the same in words and numbers."""

    figure: Figure
    readout: str = ""

    def bundle(self) -> dict[str, Any]:
        """MIME type -> content: the PNG, what it shows as data, the readout, and a plain text for all else."""
        shown = {"image/png": plots.render(self.figure, "png"), FIGURE: figure_data(self.figure)}
        shown["text/plain"] = f"figure: {titles(shown[FIGURE])}"
        return shown | ({READOUT: {"html": self.readout}} if self.readout else {})

    def metadata(self) -> dict[str, Any]:
        """MIME type -> metadata: the words that a page has in the place of the PNG, for who cannot see it."""
        return {"image/png": {"alt": f"Figure: {titles(figure_data(self.figure))}"}}

    def display(self) -> None:
        """Show it in the output of a cell, without controls."""
        display(self.bundle(), metadata=self.metadata(), raw=True)


def titles(data: Mapping[str, Any]) -> str:
    """What `figure_data` has as titles, in plain words: no formula in dollar signs, which only matplotlib sets."""
    found = [
        re.sub(r"\$([^$]*)\$", lambda formula: re.sub(r"[{}]", "", formula[1]), each["title"]) for each in data["axes"]
    ]
    return "; ".join(filter(None, found)) or "without a title"


def show(figure: Figure) -> None:
    """Display a figure that does not move."""
    Picture(figure).display()


class Panel(ipywidgets.VBox):
    """Controls, a picture and a line of words, one above the other.

    Args:
        controls: name of an argument of `draw` -> the control whose `value` it takes.
        draw: makes the picture of the controls' values; a ValueError that it raises is told to the user.
        rows: how the controls are arranged, names in rows; every control in a row of its own if left out.

    `say(text)` puts words under the picture until the next change; `refresh()` draws again.
    """

    def __init__(
        self,
        controls: Mapping[str, ipywidgets.ValueWidget],
        draw: Callable[..., Picture],
        rows: Sequence[Sequence[str]] | None = None,
    ) -> None:
        self.controls, self._draw = dict(controls), draw
        self._image, self._words = ipywidgets.Image(format="png"), ipywidgets.HTML()
        self._note = ipywidgets.HTML()
        self._note.add_class("fourbit-note")
        self._words.add_class("fourbit-readout")
        self._image.layout.max_width = "100%"
        self.picture = draw(**self.values())  # what the maker of a panel starts with must be drawable
        wrap = ipywidgets.Layout(flex_flow="row wrap")
        arranged = [[self.controls[name] for name in row] for row in (rows or [[name] for name in self.controls])]
        boxes = [ipywidgets.HBox(row, layout=wrap) for row in arranged]
        super().__init__([*boxes, self._image, self._words, self._note])
        self._show()
        for control in self.controls.values():
            control.observe(self._changed, "value")

    def values(self) -> dict[str, Any]:
        """Name -> present value of each control."""
        return {name: control.value for name, control in self.controls.items()}

    def refresh(self) -> None:
        """Draw the controls' values; a mistake among them is told, and the last good picture stays."""
        try:
            self.picture = self._draw(**self.values())
        except ValueError as error:
            self.say(f"{error}; the last picture stays")
            return
        self.say("")
        self._show()

    def say(self, text: str) -> None:
        """Plain words under the picture."""
        self._note.value = f"<b>{html.escape(text)}</b>" if text else ""

    def set(self, **values: Any) -> None:
        """Change several controls and draw once."""
        self.hold_drawing(values)
        self.refresh()

    def hold_drawing(self, values: Mapping[str, Any]) -> None:
        """Change controls without drawing: for a control that another one follows."""
        for name, value in values.items():
            self.controls[name].unobserve(self._changed, "value")
            self.controls[name].value = value
            self.controls[name].observe(self._changed, "value")

    def _changed(self, change: Any) -> None:
        self.refresh()

    def _show(self) -> None:
        self._image.value = plots.render(self.picture.figure, "png")
        self._words.value = self.picture.readout

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**data, **self.picture.bundle()}, {**metadata, **self.picture.metadata()}


def brief(text: str) -> str:
    """At most 40 letters of a text, for a message."""
    plain = text.strip()
    return plain if len(plain) <= 40 else plain[:37] + "..."


def number(text: str, name: str = "value") -> float:
    """The number that `text` says: decimal, hexadecimal (0x1.8p-3), nan or inf.

    Raises:
        ValueError: no number; says what to type.
    """
    plain = text.strip().replace("\u2212", "-")
    try:
        return float.fromhex(plain) if "0x" in plain.lower() else float(plain)
    except (ValueError, OverflowError):
        raise ValueError(f"{name}={brief(text)!r} is no number: type 5.4, -1e-3, 0x1.8p-3, nan or inf") from None
