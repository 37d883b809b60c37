"""The explorer's picture: the bits of a code, the number line around it, and the whole format."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import numerics as nm
from numerics import anatomy
from numerics.exact_text import exact
from studies import plots

from . import bits_data
from .bits_data import State

FIELD = {
    "sign": plots.VERMILION,
    "exponent": plots.BLUE,
    "integer": plots.BLUE,
    "mantissa": plots.GREEN,
    "fraction": plots.GREEN,
}
NUMBER, VALUE, NEAR = plots.PURPLE, plots.ORANGE, plots.SKY
_BOXES = 20  # bits that fill the width of a page
_LETTER = 0.065  # inches


def figure_of(state: State) -> Figure:
    """Bits, neighbours and error, and where in the format all this is."""
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 3.6))
        bits, line, whole = figure.subplots(3, 1, gridspec_kw={"height_ratios": (0.8, 1.6, 0.9)})
        draw_bits(bits, state.fmt, state.code)
        bits.set_title(typeset(title(state)))
        if math.isfinite(state.result):
            draw_line(line, state)
        else:
            line.axis("off")
            line.text(
                0, 0.5, f"{exact(state.result)} has no place on a number line, and so no neighbours.", va="center"
            )
            line.set(xlim=(0, 1), ylim=(0, 1))
        draw_whole(whole, state)
    return figure


def title(state: State) -> str:
    """What became of what."""
    fmt, result = state.fmt, f"{state.fmt.hex(state.code)} = {exact(state.result)}"
    if not state.chances:
        return f"{fmt.name} {result}"
    may = "may become" if len(state.chances) > 1 else "becomes"
    return f"{short(state.value)} in {fmt.name} {may} {result}"


def short(value: float) -> str:
    """A number in at most nine letters or so."""
    return exact(value) if len(exact(value)) <= 9 else f"{value:.5g}"


def typeset(text: str) -> str:
    """Text with powers, products and minus signs as matplotlib sets them."""
    plain = text.replace("$", r"\$").replace(" x ", " \N{MULTIPLICATION SIGN} ")
    raised = re.sub(r"2\^(-?\d+)", r"$2^{\1}$", plain)
    return re.sub(r"(?<![\w{])-(?=[\d$]|inf)", "\N{MINUS SIGN}", raised)


def names_of(values: Sequence[float]) -> list[str]:
    """The values without rounding if all are short, else rounded to as few digits, five or more, as tell them apart."""
    named = [exact(value) for value in values]
    for digits in range(5, 18):
        if max(map(len, named)) <= 9 and len(set(named)) == len(named):
            break
        named = [f"{value:.{digits}g}" for value in values]
        if len(set(named)) == len(named):
            break
    return named


def draw_bits(ax: Axes, fmt: nm.Format, code: int) -> None:
    """The bits as boxes, coloured by field."""
    place = 0
    for (name, width), field in zip(fmt.fields, anatomy.bit_fields(fmt, code), strict=True):
        for i, bit in enumerate(field):
            ax.add_patch(
                Rectangle((place + i + 0.05, 0), 0.9, 1, facecolor=FIELD[name], alpha=0.9 if bit == "1" else 0.25)
            )
            ax.text(
                place + i + 0.5, 0.5, bit, ha="center", va="center", color="white" if bit == "1" else "black", size=9
            )
        middle = place + width / 2
        ax.text(
            middle,
            -0.15,
            name if width > 1 or place > 0 else name[:4],
            ha="center",
            va="top",
            color=FIELD[name],
            size=7.5,
        )
        place += width + 0.25
    ax.set(xlim=(0, max(_BOXES, place)), ylim=(-0.6, 1.05))
    ax.axis("off")


def draw_line(ax: Axes, state: State) -> None:
    """Linear: the values around, the numbers that become this one, the number itself and its error."""
    fmt, codes = state.fmt, bits_data.window(state.fmt, state.code)
    values = [fmt.value(c) for c in codes]
    low, high = limits(values)
    ax.set(xlim=(low, high), ylim=(0, 1.25))
    near = anatomy.interval(fmt, state.code, state.rounding)
    ax.axvspan(max(near.low, low), min(near.high, high), ymax=0.36, color=NEAR, alpha=0.35, lw=0)
    for value in values:
        chosen = value == state.result
        ax.plot([value, value], [0, 0.45], color=VALUE if chosen else plots.BLUE, lw=4 if chosen else 1.6)
    _label(ax, values, [f"{name}\n{fmt.hex(c)}" for name, c in zip(names_of(values), codes, strict=True)])
    if math.isfinite(state.value):
        _draw_number(ax, state)
    _bare(ax)
    may = "may become" if state.rounding is nm.Rounding.STOCHASTIC else "become"
    ax.set_xlabel(typeset(f"shaded: the numbers that {may} {short(state.result)} ({state.rounding.value})"))


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the line: half a step beyond the values shown."""
    below, above = (values[1] - values[0]) / 2, (values[-1] - values[-2]) / 2
    return values[0] - below, values[-1] + above


def _draw_number(ax: Axes, state: State) -> None:
    """The number above the line, at the edge if it is far away, and an arrow to each value that it may become."""
    low, high = ax.get_xlim()
    at = min(max(state.value, low), high)
    far = "" if at == state.value else "\N{BLACK LEFT-POINTING TRIANGLE} " if at == low else ""
    beyond = " \N{BLACK RIGHT-POINTING TRIANGLE}" if at != state.value and at == high else ""
    side = "left" if at < low + 0.2 * (high - low) else "right" if at > high - 0.2 * (high - low) else "center"
    ax.plot([at], [0.8], "v", color=NUMBER, ms=7, clip_on=False)
    words = f"{far}{short(state.value)}{_errors(state)}{beyond}"
    ax.text(at, 0.95, typeset(words), color=NUMBER, ha=side, va="bottom", weight="bold")
    for code, _ in state.chances:
        value = state.fmt.value(code)
        if math.isfinite(value) and value != state.value:
            ax.annotate("", (value, 0.48), (at, 0.72), arrowprops={"arrowstyle": "->", "color": NUMBER, "lw": 1.2})


def _errors(state: State) -> str:
    """The error in words, or both with their probabilities."""
    errors = [(state.fmt.value(code) - state.value, chance) for code, chance in state.chances]
    if len(errors) == 1:
        error = errors[0][0]
        return f": error {error:+.4g}" if error and math.isfinite(error) else ""
    return ": " + " or ".join(f"{error:+.4g} ({chance:.1%})" for error, chance in errors) if errors else ""


def _label(ax: Axes, values: list[float], labels: list[str]) -> None:
    """Labels under the values, every other one lower where they would touch."""
    low, high = ax.get_xlim()
    inches = (plots.PAGE - 0.5) * np.diff(values) / (high - low)
    wide = max(len(part) for label in labels for part in label.split("\n")) * _LETTER
    if len(values) > 1 and inches.min() < wide + 0.1:
        labels = ["\n\n" * (i % 2) + label for i, label in enumerate(labels)]
    ax.set_xticks(values, list(map(typeset, labels)))


def _bare(ax: Axes) -> None:
    """A number line: no height, no grid."""
    ax.grid(False)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)


def draw_whole(ax: Axes, state: State) -> None:
    """The whole format, logarithmic unless its values are evenly spaced, with the code's value and the number."""
    fmt = state.fmt
    values, what = bits_data.landmarks(fmt)
    ax.plot(values, [0.4] * len(values), "|", color=plots.BLUE, ms=9, mew=0.7)
    if fmt.kind == "fixed":
        pad = (fmt.max - fmt.min) / 40
        ax.set_xlim(fmt.min - pad, fmt.max + pad)
    elif fmt.min > 0:
        ax.set_xscale("log", base=2)
        ax.set_xlim(fmt.min / 2, fmt.max * 2)
        ax.set_xticks(*_powers(fmt, 9))
    else:
        ax.set_xscale("symlog", base=2, linthresh=fmt.min_subnormal, linscale=1)
        ax.set_xlim(fmt.min * 2, fmt.max * 2) if fmt.min < 0 else ax.set_xlim(-fmt.min_subnormal / 2, fmt.max * 2)
        positive, names = _powers(fmt, 8 if fmt.min == 0 else 4)
        places, labels = [0.0, *positive], ["0", *names]
        if fmt.min < 0:
            places = [*(-p for p in reversed(positive)), *places]
            labels = [*(f"\N{MINUS SIGN}{name}" for name in reversed(names)), *labels]
        ax.set_xticks(places, labels)
    ax.set_ylim(0, 1)
    if math.isfinite(state.result):
        ax.plot([state.result], [0.4], "|", color=VALUE, ms=15, mew=3)
    if math.isfinite(state.value):
        low, high = ax.get_xlim()
        ax.plot([min(max(state.value, low), high)], [0.85], "v", color=NUMBER, ms=6, clip_on=False)
    _bare(ax)
    ax.minorticks_off()
    scale = "evenly spaced" if fmt.kind == "fixed" else "logarithmic"
    ax.set_xlabel(typeset(f"{fmt.name}, {what}, {scale}"))


def _powers(fmt: nm.Format, most: int) -> tuple[list[float], list[str]]:
    """At most `most` powers of two from the smallest positive value to the largest, and their names."""
    low, high = math.frexp(fmt.min_subnormal)[1] - 1, math.frexp(fmt.max)[1] - 1
    step = max(1, -(-(high - low) // (most - 1)))
    exponents = range(high, low - 1 + step // 2, -step)[::-1]  # none beside zero
    return [2.0**e for e in exponents], [f"$2^{{{e}}}$" for e in exponents]
