"""Notebook 4: a value that was saved in 4 bits is quantized again; nearest against stochastic rounding.

The panel of `redraw_data` (the numbers) and `redraw_draw` (the picture), and its readout.
"""

from __future__ import annotations

import math

import ipywidgets
import torch

import numerics as nm

from .panel import Panel, Picture, brief, number
from .random_bits import FIELDS
from .readout import table, told
from .redraw_data import ROUNDINGS, TARGETS, Redraw, redraw
from .redraw_draw import draw

LARGEST = nm.E2M1.max * nm.E4M3.max
DRAWS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


def readout(found: Redraw, target: str) -> str:
    """What the picture shows, in words and numbers."""
    scaled = f" / {found.step:g} = {found.saved / found.step:g}" if found.step not in (0, 1) else ""
    where = f"{found.saved:g}{scaled}"
    if found.saturates:
        place = f"{where} is beyond {found.element.name}'s largest number, {found.element.max:g}: it saturates"
    elif found.below == found.above:
        place = f"{where} is a number of {found.element.name}: no rounding moves it"
    else:
        low, high = (f"{edge / found.step:g}" for edge in (found.below, found.above))
        place = f"{where} lies between {low} and {high} of {found.element.name}"
    words = f"<p>{_saving(found)} Again, in {target}: {place}.</p>"
    if abs(found.value) > LARGEST:
        words += f"<p>{found.value:g} is beyond {LARGEST:,g}, NVFP4's largest number without an outer scale.</p>"
    n, mean = len(found.draws), float(found.draws.mean())
    rows = [_row(found, edge) for edge in sorted({found.below, found.above})]
    error = found.nearest - found.saved
    rounded = "exact" if error == 0 else f"off by {error:+g} every time"
    return (
        words
        + table(["becomes", "chance", f"times, of {n:,}"], rows)
        + f"<p>Mean of the draws: {mean:.5g}, off by {mean - found.saved:+.3g}. Nearest: always {found.nearest:g}, "
        f"{rounded}.</p>"
    )


def _saving(found: Redraw) -> str:
    if found.saved_scale == 0:
        return f"Saved in NVFP4: the scale of the row's block is 0, so {found.value:g} is saved as <b>0</b>."
    return (
        f"Saved in NVFP4: {found.value:g} / {found.saved_scale:g} becomes {found.saved_code:g}, and "
        f"{found.saved_code:g} &times; {found.saved_scale:g} = <b>{found.saved:g}</b>."
    )


def _row(found: Redraw, edge: float) -> list[str]:
    chance = found.chance if edge == found.above else 1 - found.chance
    count = int((found.draws == edge).sum())
    share = f"{chance:.2%}"
    if found.rounding is nm.Rounding.STOCHASTIC and found.below != found.above:
        share += f", {round(chance * FIELDS):,} of {FIELDS:,} random fields"
    return [f"{edge:g}", share, f"{count:,} ({count / len(found.draws):.2%})"]


def finite(name: str, text: str) -> float:
    """The float32 number that `text` says.

    Raises:
        ValueError: no number; or one that is not finite, with what it would do.
    """
    value = torch.tensor(number(text, name), dtype=torch.float32).item()
    if math.isfinite(value):
        return value
    q = nm.quantize(torch.tensor([value] + 15 * [1.0]), nm.NVFP4, outer=None)
    left = int(torch.isfinite(q.dequantize()).sum())
    raise ValueError(
        f"{name}={brief(text)} is {told(value)} in float32: the scale of its block becomes NaN (code "
        f"0x{int(q.scales):02X}), and {left} of the block's 16 values stay finite. There is nothing to round"
    )


def picture(value: str, row: str, column: str, target: str, rounding: str, draws: int, seed: int) -> Picture:
    """The controls' values to a picture. Raises ValueError as `finite`."""
    numbers = [finite(name, text) for name, text in (("value", value), ("row", row), ("column", column))]
    found = redraw(*numbers, TARGETS[target], ROUNDINGS[rounding], draws, seed)
    return Picture(draw(found, target), readout(found, target))


def panel(
    value: str = "5.4", row: str = "54", column: str = "12", target: str = "NVFP4", rounding: str = "stochastic"
) -> Panel:
    """One value on its way through two quantizations."""
    wide = {"style": {"description_width": "initial"}, "continuous_update": False}
    controls = {
        "value": ipywidgets.Text(value, description="value", continuous_update=False),
        "row": ipywidgets.Text(row, description="largest of its row", **wide),
        "column": ipywidgets.Text(column, description="largest of its column", **wide),
        "target": ipywidgets.Dropdown(options=list(TARGETS), value=target, description="target"),
        "rounding": ipywidgets.Dropdown(options=list(ROUNDINGS), value=rounding, description="rounding"),
        "draws": ipywidgets.SelectionSlider(options=DRAWS, value=1024, description="draws"),
        "seed": ipywidgets.IntSlider(0, 0, 99, description="seed"),
    }
    return Panel(controls, picture, rows=[["value", "row", "column"], ["target", "rounding"], ["draws", "seed"]])
