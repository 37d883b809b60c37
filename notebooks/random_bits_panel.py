"""The panel of `random_bits`: 32 bits to toggle or a word to type, four numbers, and the sums that decide.

The word and its 32 buttons follow each other.
"""

from __future__ import annotations

import math
from typing import Any

import ipywidgets
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import numerics as nm
from studies import plots

from .panel import Panel, Picture, brief, number
from .random_bits import FIELDS, INSTRUCTIONS, OPERANDS, Converted, Instruction, convert, lost
from .readout import table

WORD = 32
UPPER, LOWER = plots.BLUE, plots.VERMILION  # the pairs (a, b) and (e, f)
BITS_DRAWN = {4: plots.ORANGE, 8: plots.BLUE, 16: plots.BLACK}


# ---- what a user types ----------------------------------------------------------------------------------------------


def word_of(text: str) -> int:
    """The 32-bit word that `text` says in hexadecimal.

    Raises:
        ValueError: no such word; says what to type.
    """
    plain = text.strip().lower().removeprefix("0x").replace("_", "").replace(" ", "")
    if not plain or any(digit not in "0123456789abcdef" for digit in plain):
        raise ValueError(f"word={brief(text)!r} is no hexadecimal word: type up to eight digits, such as 0xC0FFEE42")
    if int(plain, 16) >> WORD:
        raise ValueError(f"word={brief(text)!r} has more than 32 bits: type up to eight hexadecimal digits")
    return int(plain, 16)


def values_of(text: str) -> list[float]:
    """Four numbers, or one for all four.

    Raises:
        ValueError: another count, or no numbers.
    """
    values = [number(part, "values") for part in text.replace(",", " ").replace(";", " ").split()]
    if len(values) not in (1, len(OPERANDS)):
        raise ValueError(
            f"values={brief(text)!r} holds {len(values)} numbers: type one for all, or four for a, b, e and f"
        )
    return values * (len(OPERANDS) // len(values))


# ---- the picture ----------------------------------------------------------------------------------------------------


def draw(found: list[Converted], word: int, instruction: Instruction) -> Figure:
    """The word above, the four sums below."""
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 3.5))
        grid = figure.add_gridspec(3, 2, height_ratios=(1, 1.3, 1.3))
        _word(figure.add_subplot(grid[0, :]), word, instruction)
        for place, each in enumerate(found):
            pair = instruction.upper if place < 2 else instruction.lower
            ax = figure.add_subplot(grid[1 + place // 2, place % 2])
            _sum(ax, each, pair, UPPER if place < 2 else LOWER, instruction.fmt)
    return figure


def _blank(ax: Axes, width: float, height: float) -> None:
    ax.set_xlim(0, width)
    ax.set_ylim(0, height)
    ax.axis("off")


def _word(ax: Axes, word: int, instruction: Instruction) -> None:
    _blank(ax, WORD, 3)
    for bit in range(WORD):
        x = WORD - 1 - bit
        colour = UPPER if bit // 8 in instruction.upper else LOWER
        ax.add_patch(Rectangle((x + 0.06, 1), 0.88, 1.1, facecolor=colour, alpha=0.75 if word >> bit & 1 else 0.18))
        ax.text(x + 0.5, 1.52, str(word >> bit & 1), ha="center", va="center", family="monospace")
        if bit % 8 in (0, 7):
            ax.text(x + 0.5, 2.2, str(bit), ha="center", va="bottom", fontsize=6.5, color=plots.GREY)
    for byte in range(4):
        served = "a and b" if byte in instruction.upper else "e and f"
        colour = UPPER if byte in instruction.upper else LOWER
        ax.text(WORD - 8 * byte - 4, 0.75, f"byte {byte}: {served}", ha="center", va="top", color=colour)
    ax.set_title(f"rbits = 0x{word:08X}")


def _spaced(value: int, leading: str = " ") -> str:
    """Sixteen bits in groups of four, after a place for the carry."""
    bits = f"{value & 0xFFFF:016b}"
    return leading + " " + " ".join(bits[i : i + 4] for i in range(0, 16, 4))


def _sum(ax: Axes, found: Converted, pair: tuple[int, int], colour: str, fmt: nm.Format) -> None:
    _blank(ax, 10, 5)
    ax.set_title(_title(found, fmt), fontsize=8)
    order = "as they stand" if found.operand in ("b", "f") else "read backwards"
    ax.text(
        2.2, 0.6, f"random: bytes {pair[0]} and {pair[1]}, {order}", ha="left", va="center", fontsize=7, color=colour
    )
    if math.isnan(found.value) or abs(found.value) > fmt.max:
        ax.text(2.2, 3.5, f"always {found.result:g}, whatever the random bits", ha="left", va="center", weight="bold")
        return
    lines = [
        ("cut off", _spaced(found.cut), plots.BLACK),
        ("random", _spaced(found.field, "+"), colour),
        ("sum", _spaced(found.total, str(found.carry)), plots.BLACK),
    ]
    for place, (name, bits, ink) in enumerate(lines):
        y = 4.4 - place * 1.2
        ax.text(1.9, y, name, ha="right", va="center")
        ax.text(2.2, y, bits, ha="left", va="center", family="monospace", color=ink)
    ax.plot([2.2, 6.2], [2.62, 2.62], color="#444444", linewidth=0.6)
    ax.text(6.6, 2.0, f"carry {found.carry}: {found.result:g}", ha="left", va="center", weight="bold")


def _title(found: Converted, fmt: nm.Format) -> str:
    name = f"{found.operand} = {found.value:.7g}"
    if math.isnan(found.value):
        return f"{name}: no number"
    if found.inner != found.outer:
        return f"{name}, between {found.inner:g} and {found.outer:g}"
    if found.inner == found.value:
        return f"{name}, a number of {fmt.name}"
    return f"{name}, " + (
        f"beyond {fmt.max:g}" if abs(found.value) > fmt.max else "only bits beyond the 16th are cut off"
    )


def readout(found: list[Converted], word: int, instruction: Instruction) -> str:
    """The four results, and the packed word of the result."""
    rows = []
    for each in found:
        chance = f"{each.cut:,} of {FIELDS:,} ({each.cut / FIELDS:.2%})"
        cells = [f"0x{each.field:04X}", f"0x{each.cut:04X}", f"0x{each.total:05X}", str(each.carry)]
        rows.append([f"{each.operand} = {each.value:.7g}", *cells, chance, f"{each.result:g}"])
    packed = instruction.packed.join([torch.tensor(each.code, dtype=torch.int32) for each in found])
    head = ["operand", "random bits", "cut off", "sum", "carry", "fields that carry", "result"]
    note = "".join(sorted({f" {_special(each)}" for each in found if not math.isfinite(each.value)}))
    digits = instruction.packed.width // 4
    return table(head, rows) + f"<p>Result, a uppermost: <code>0x{int(packed):0{digits}X}</code>.{note}</p>"


def _special(found: Converted) -> str:
    if math.isnan(found.value):
        return "NaN stays NaN." if math.isnan(found.result) else f"There is no NaN: it becomes {found.result:g}."
    return f"{'-' * (found.value < 0)}Inf, also of a number beyond float32, becomes {found.result:g}."


# ---- the panel ------------------------------------------------------------------------------------------------------


class WordPanel(Panel):
    """A panel whose 32 buttons and word follow each other."""

    def _changed(self, change: Any) -> None:
        if change.owner is self.controls["word"]:
            self._press(change.new)
        elif isinstance(change.owner, ipywidgets.ToggleButton):
            pressed = [bit for bit in range(WORD) if self.controls[f"bit{bit}"].value]
            self.hold_drawing({"word": f"0x{sum(1 << bit for bit in pressed):08X}"})
            self._press(self.controls["word"].value)
        super()._changed(change)

    def _press(self, text: str) -> None:
        try:
            word = word_of(text)
        except ValueError:
            return  # told by the picture
        self.hold_drawing({f"bit{bit}": bool(word >> bit & 1) for bit in range(WORD)})
        for bit in range(WORD):
            self.controls[f"bit{bit}"].description = str(word >> bit & 1)


def picture(word: str, values: str, instruction: str, **bits: bool) -> Picture:
    """The controls' values to a picture; the buttons say what the word says."""
    chosen, rbits = INSTRUCTIONS[instruction], word_of(word)
    found = convert(values_of(values), rbits, chosen)
    return Picture(draw(found, rbits, chosen), readout(found, rbits, chosen))


def panel(word: str = "0xC0FFEE42", values: str = "2.25") -> Panel:
    """One word of random bits and the four numbers that it rounds."""
    rbits = word_of(word)
    small = {"layout": ipywidgets.Layout(width="26px", padding="0px")}
    bits = {
        f"bit{bit}": ipywidgets.ToggleButton(bool(rbits >> bit & 1), description=str(rbits >> bit & 1), **small)
        for bit in reversed(range(WORD))
    }
    for name, button in bits.items():
        button.tooltip = name
    controls = {
        "instruction": ipywidgets.Dropdown(options=list(INSTRUCTIONS), description="instruction"),
        "values": ipywidgets.Text(values, description="a, b, e, f", continuous_update=False),
        "word": ipywidgets.Text(word, description="rbits", continuous_update=False),
    }
    return WordPanel(controls | bits, picture, rows=[["instruction", "values", "word"], list(bits)])


def draw_lost() -> Figure:
    """What too few random bits lose: the exact mean of values from 2 to 3 in E2M1."""
    with plots.style():
        figure, (ax,) = plots.panels(1, height=2.3)
        for bits, colour in BITS_DRAWN.items():
            x, error = lost(bits, 401)
            ax.plot(x, error, color=colour, label=f"{bits} bits", linewidth=1)
        ax.set_xlabel("value between the neighbours 2 and 3 of E2M1")
        ax.set_ylabel("mean less value")
        ax.set_ylim(-0.075, 0.012)
        ax.legend(loc="lower center", ncols=3)
        ax.set_title("The mean of stochastic rounding, by the number of random bits")
    return figure
