"""Notebook 1: one code of an element format, its bits to toggle or its number to type.

    bits.explorer()                     # E2M1, 5.4
    bits.explorer(nm.Format("E3M1", "float", 5, 3, 1, bias=3), "0.3")

`bits_data` finds the numbers, `bits_draw` and `bits_figures` draw them, `bits_words` tells them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ipywidgets
import traitlets

import numerics as nm
from numerics import anatomy
from numerics.exact_text import exact
from numerics.formats import FORMATS

from . import bits_data
from .bits_data import State
from .bits_draw import figure_of
from .bits_words import readout
from .panel import Panel, Picture, brief

_STYLES = {"sign": "danger", "exponent": "primary", "integer": "primary", "mantissa": "success", "fraction": "success"}


def picture(state: State) -> Picture:
    """A code and the number that became it, drawn and told."""
    return Picture(figure_of(state), readout(state))


class BitRow(ipywidgets.HBox, ipywidgets.ValueWidget):
    """A button for each bit, field by field; `value` is the code, and follows the buttons as they follow it."""

    value = traitlets.Int(0)

    def __init__(self, fmt: nm.Format, code: int) -> None:
        self.buttons: list[ipywidgets.ToggleButton] = []
        self._following = False
        super().__init__(value=code, layout=ipywidgets.Layout(flex_flow="row wrap"))
        self.make(fmt)

    def make(self, fmt: nm.Format) -> None:
        """Buttons for the bits of a format, in place of those before."""
        self.buttons, fields, apart = [], [], ipywidgets.Layout(margin="0 12px 0 0")
        for name, width in fmt.fields:
            buttons = [self._button(fmt, name) for _ in range(width)]
            fields.append(ipywidgets.VBox([ipywidgets.HTML(name), ipywidgets.HBox(buttons)], layout=apart))
        self._follow()
        self.children = fields

    def _button(self, fmt: nm.Format, name: str) -> ipywidgets.ToggleButton:
        bit = fmt.bits - 1 - len(self.buttons)
        button = ipywidgets.ToggleButton(
            button_style=_STYLES[name],
            tooltip=f"bit {bit}, {name}",
            layout=ipywidgets.Layout(width="32px", padding="0", margin="1px"),
        )
        button.observe(self._toggled, "value")
        self.buttons.append(button)
        return button

    def _toggled(self, change: Any) -> None:
        if not self._following:
            self.value = int("".join(str(int(button.value)) for button in self.buttons), 2)

    @traitlets.observe("value")
    def _follow(self, change: Any = None) -> None:
        self._following = True
        for bit, button in enumerate(reversed(self.buttons)):
            button.value = bool(self.value >> bit & 1)
            button.description = str(int(button.value))
        self._following = False


class Explorer(Panel):
    """A format, a number and the bits of its code, each of which follows the others; see `explorer`."""

    def __init__(self, fmt: nm.Format, text: str, rounding: nm.Rounding) -> None:
        self.state = bits_data.from_text(fmt, text, rounding)
        named = {f.name: f for f in FORMATS.values()}
        if fmt not in named.values():
            named = {f"{fmt.name} (yours)": fmt} | named
        rules = [(rule.value, rule) for rule in nm.Rounding]
        controls = {
            "fmt": ipywidgets.Dropdown(options=list(named.items()), value=fmt, description="format"),
            "rounding": ipywidgets.Dropdown(options=rules, value=rounding, description="rounding"),
            "text": ipywidgets.Text(text, description="number", placeholder="5.4, then Enter", continuous_update=False),
            "bits": BitRow(fmt, self.state.code),
        }
        self._text = text  # the last that was a number
        super().__init__(controls, self._draw_state, [["fmt", "rounding"], ["text"], ["bits"]])
        self._steps = [ipywidgets.Button(description=words) for words in ("next below", "next above")]
        for side, button in enumerate(self._steps):
            button.on_click(lambda _, side=side: self.step(side))
        self.children[1].children += tuple(self._steps)

    def step(self, side: int) -> None:
        """Go to the next value below (0) or above (1)."""
        fmt, code, result = self.state.fmt, self.state.code, exact(self.state.result)
        if not math.isfinite(self.state.result):
            self.say(f"{result} has no neighbours: toggle a bit or type a number")
            return
        near = anatomy.neighbours(fmt, code)[side]
        if near is None:
            self.say(f"{fmt.name} has nothing {('below', 'above')[side]} {result}")
        else:
            self.set(bits=near)

    def _draw_state(self, fmt: nm.Format, rounding: nm.Rounding, text: str, bits: int) -> Picture:
        """The picture of what was changed last; the other controls follow."""
        before = self.state
        from_bits = bits != before.code or not (before.chances or fmt != before.fmt or text != self._text)
        self.state = bits_data.from_code(fmt, bits, rounding) if from_bits else self._read(fmt, rounding, text)
        self._text = bits_data.as_text(self.state.value) if from_bits else self._text
        if fmt != before.fmt:
            self.controls["bits"].make(fmt)
        follow = {"text": self._text, "bits": self.state.code}
        self.hold_drawing({name: value for name, value in follow.items() if self.controls[name].value != value})
        return picture(self.state)

    def _read(self, fmt: nm.Format, rounding: nm.Rounding, text: str) -> State:
        """The state of a text; of the last good one where that is no number and it was not what changed."""
        before = self.state
        try:
            state = bits_data.from_text(fmt, text, rounding)
        except ValueError as error:
            if (fmt, rounding) == (before.fmt, before.rounding):
                raise ValueError(f"{error}; the picture stays at {self._text}") from None
            remark = f"{brief(text)!r} is no number: back to {self._text}"
            return replace(bits_data.from_text(fmt, self._text, rounding), remark=remark)
        self._text = text
        return state


def explorer(fmt: nm.Format = nm.E2M1, text: str = "5.4", rounding: nm.Rounding = nm.Rounding.NEAREST_EVEN) -> Explorer:
    """Toggle bits or type a number, in any format, one of your own too.

    Raises: ValueError if `text` is no number.
    """
    return Explorer(fmt, text, rounding)
