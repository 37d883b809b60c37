"""Figures of the study `formats`: grids with their spacing, ranges, and precision by rank."""

import math
from collections.abc import Callable, Iterable, Sequence

import pandas as pd
import torch
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

import numerics as nm

from . import plots
from .interval import Interval

ELEMENTS = (nm.E2M1, nm.INT4, nm.E2M3, nm.E3M2, nm.E4M3, nm.E5M2, nm.S2F6)
COLORS = dict(
    zip(
        (fmt.name for fmt in ELEMENTS),
        (plots.BLUE, plots.ORANGE, plots.SKY, plots.GREEN, plots.VERMILION, plots.PURPLE, plots.BLACK),
        strict=True,
    )
)
SPACED = ("E2M1", "INT4", "E4M3", "S2F6")  # whose spacing is drawn: the others' lines would lie between
LOWEST = -18  # binades below the largest value that the grids show


def draw_grids(grids: pd.DataFrame) -> Figure:
    """Grids as ticks, and spacing against the value, both over the format's largest value."""
    with plots.style():
        figure, (left, right) = plots.panels(2, height=3.0, ratios=(1.25, 1))
        names = [fmt.name for fmt in ELEMENTS]
        for y, name in enumerate(reversed(names)):
            part = grids[grids.format == name]
            over = part.value / part.value.max()
            left.vlines(over, y - 0.32, y + 0.32, color=COLORS[name], lw=0.7)
        left.set_yticks(range(len(names)), list(reversed(names)))
        left.set_xlim(2.0**LOWEST, 1.15)
        left.set_title("Values over the largest")
        left.grid(axis="y", visible=False)
        for name in SPACED:
            part = grids[(grids.format == name) & grids.spacing.notna()]
            right.plot(
                part.value / grids[grids.format == name].value.max(), part.spacing,
                color=COLORS[name], marker="o", ms=2.2 if len(part) < 10 else 1.2, lw=0.9, label=name,
            )  # fmt: skip
        right.set_yscale("log", base=2)
        _powers(right.yaxis, range(-8, 2, 2))
        right.set_xlim(2.0**LOWEST, 1.3)
        right.set_ylim(2.0**-8, 2.9)
        right.set_title("Step to the next value over the value")
        right.legend(loc="lower left", ncols=1)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            _powers(axes.xaxis, range(-16, 1, 4))
            axes.set_xlabel("value / largest value")
    return figure


def _powers(axis: Axis, powers: Iterable[int]) -> None:
    """Ticks at powers of two."""
    axis.set_ticks([2.0**power for power in powers], [f"$2^{{{power}}}$" for power in powers])
    axis.set_tick_params(which="minor", length=0)


def draw_ranges(
    names: Sequence[str], outers: Sequence[float], magnitudes: Callable[[nm.BlockFormat, float], torch.Tensor]
) -> Figure:
    """What formats reach, as bars over powers of two; the darker end is one block's, at the largest scale."""
    bars: list[tuple[str, float, float, float]] = []
    for name in names:
        fmt = nm.BLOCK_FORMATS[name]
        if fmt.tile > 1:
            continue  # holds what its untiled twin holds
        block = float(fmt.element.max) / fmt.element.min_subnormal
        for outer in outers if name == "NVFP4" else (1.0,):
            found = magnitudes(fmt, outer)
            label = f"{name}, outer {outer:g}" if name == "NVFP4" else name
            bars.append((label, float(found[0]), float(found[-1]), block))
    for fmt in (nm.BF16, nm.FP16):
        bars.append((fmt.name, fmt.min_subnormal, fmt.max, 1.0))
    with plots.style():
        figure, (axes,) = plots.panels(1, plots.PAGE, 3.4)
        for y, (_, low, high, block) in enumerate(reversed(bars)):
            start, end = math.log2(low), math.log2(high)
            axes.barh(y, end - start, left=start, height=0.62, color=plots.SKY)
            axes.barh(y, math.log2(block), left=end - math.log2(block), height=0.62, color=plots.BLUE)
            text = f"{end - start:.1f} binades" + (f", {math.log2(block):.1f} in a block" if block > 1 else "")
            axes.annotate(
                text, (end, y), (4, 0),
                textcoords="offset points", va="center", fontsize=6.5,
            )  # fmt: skip
        axes.set_yticks(range(len(bars)), [bar[0] for bar in reversed(bars)])
        axes.set_xlim(-150, 238)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(MultipleLocator(32))
        axes.set_xlabel("power of two")
        axes.set_title("Magnitudes that a format reaches; darker: within one block at its largest scale")
        axes.grid(axis="y", visible=False)
    return figure


def draw_ranks(found: dict[str, list[Interval]]) -> Figure:
    """QSNR against the rank within 16 values."""
    looks = {
        "NVFP4": ("o", "-", plots.BLUE),
        "NVFP4_46": ("s", "--", plots.GREEN),
        "MXFP8": ("^", ":", plots.VERMILION),
    }
    with plots.style():
        figure, (axes,) = plots.panels(1, plots.COLUMN + 1.2, 2.8)
        for name, each in found.items():
            marker, line, color = looks[name]
            ranks = range(1, len(each))
            means, halves = [i.mean for i in each[1:]], [i.half for i in each[1:]]
            axes.errorbar(ranks, means, yerr=halves, fmt=line, marker=marker, color=color, lw=1, ms=3.5, label=name)
        axes.set_xticks([1, 4, 8, 12, 16])
        axes.set_xlabel("rank of the magnitude in its block of 16")
        axes.set_ylabel("QSNR, dB")
        axes.set_title("Precision by rank")
        axes.legend(loc="lower left")
    return figure
