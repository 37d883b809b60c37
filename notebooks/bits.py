"""Notebook 1: one code of an element format, its bits to toggle, its neighbours and the error on a number line."""

from __future__ import annotations

import ipywidgets
import torch

import numerics as nm
from numerics.formats import FORMATS
from studies import plots

from .panel import Panel, Picture, number


def picture(fmt: nm.Format, value: float) -> Picture:
    """The values of `fmt` around `value`, and the one that it becomes."""
    code = int(nm.encode(torch.tensor(value, dtype=torch.float64), fmt))
    with plots.style():
        figure, (ax,) = plots.panels(1, height=1.2)
        ax.plot(fmt.values().numpy(), [0] * len(fmt.values()), "|", color=plots.BLUE)
        ax.set(title=f"{fmt.name}: {value:g} becomes {fmt.value(code):g}")
    return Picture(figure, f"<code>{code:0{fmt.bits}b}</code>")


def explorer(name: str = "E2M1", text: str = "5.4") -> Panel:
    """A format, and a number to type."""
    controls = {
        "name": ipywidgets.Dropdown(options=list(FORMATS), value=name, description="format"),
        "text": ipywidgets.Text(text, description="number"),
    }
    return Panel(controls, lambda name, text: picture(FORMATS[name], number(text)), rows=[["name", "text"]])
