"""Do public quantizers of one format make the same bytes, and what do their differences cost?

Every dialect of `numerics.scales.DIALECTS` quantizes the same tensors with an outer scale of its own, and decodes them
in its own order of products. `dialects_cases` says on which data, and how bytes and errors are compared.

A seed gives one float32 tensor of each kind, which is also rounded to bfloat16. Rounded values often lie on a tie of
the element format or of the scale, where the last bit of a quotient decides; float32 values seldom do. Gains, which are
differences of SQNR on the same tensor, are to `exact` in NVFP4 and to `ocp_floor` in MX; one between dialects that make
the same bytes is due to the order of products. Dialects with one level of scales depend on the tensor's unit, here 1.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from . import plots
from .dialects_cases import BLOCKS, DTYPES, REFERENCES, Case, Cases, Disagreement, classes, measure, order, summarize
from .interval import Interval, listed
from .result import Result, Study, Table, key_table

TINY = 0.001  # dB
COLORS = "viridis_r"
LINE = 0.095  # inches that a dialect takes in the figure


@dataclass(frozen=True)
class Look:
    """How a dtype is drawn: marker, colour, and its place in a line of height 1."""

    marker: str
    color: str
    place: float


LOOKS = {"bfloat16": Look("o", plots.BLUE, 0.68), "float32": Look("s", plots.VERMILION, 0.32)}


def find(rows: pd.DataFrame) -> tuple[str, ...]:
    """The finding and its details, in words: how many patterns, how far apart, at what cost."""
    cases, dtypes = summarize(rows), list(dict.fromkeys(rows.dtype))
    told = []
    for fmt, part in rows.groupby("format", sort=False):
        count, kinds, reference = part.dialect.nunique(), list(dict.fromkeys(part.kind)), REFERENCES[fmt]
        costs, patterns = [], []
        for kind in kinds:
            of = [cases[fmt, kind, dtype] for dtype in dtypes]
            patterns.append(f"{_either(str(len(case.classes)) for case in of)} on {kind} data")
            apart = _either(_two_digits(case.apart) for case in of)
            costs.append(f"{apart} dB on {kind} ({_either(f'{case.best} to {case.worst}' for case in of)})")
        same = [_insignificant(cases[fmt, kind, dtype].gain, reference) for kind in kinds for dtype in dtypes]
        always = sum(all(name in names for names in same) for name in dict.fromkeys(part.dialect))
        told.append(
            f"{count} dialects of {fmt} make {listed(patterns)} different byte patterns ({' / '.join(dtypes)}); "
            f"best to worst cost {listed(costs)}; {always} of the other {count - 1} "
            f"{'has' if always == 1 else 'have'} no significant difference to {reference} on any of this data."
        )
    values = int(rows.blocks.iloc[0]) * BLOCKS[rows.format.iloc[0]]
    n = f"{rows.seed.nunique()} seeds of {values:,} values, 95 % intervals over seeds."
    counts = rows.groupby("format", sort=False).dialect.nunique()
    most = {fmt: max(len(case.classes) for key, case in cases.items() if key[0] == fmt) for fmt in counts.index}
    cost = {fmt: max(case.apart.mean for key, case in cases.items() if key[0] == fmt) for fmt in counts.index}
    alike = [
        f"{counts[fmt]} dialects of {fmt} make {most[fmt]}, up to {cost[fmt]:.2f} dB apart" for fmt in counts.index
    ]
    return (
        f"Public quantizers of one format make different bytes of one tensor: {listed(alike)} ({n.removesuffix('.')}).",
        *told,
        "More data can only add patterns.",
        n,
    )


def costs(rows: pd.DataFrame) -> Table:
    """The key table: patterns and costs by format, data and dtype."""
    lines = [
        {
            "format": fmt,
            "data": kind,
            "dtype": dtype,
            "dialects": len(case.shares),
            "byte patterns": len(case.classes),
            "best": case.best,
            "worst": case.worst,
            "apart, dB": case.apart.text(3),
        }
        for (fmt, kind, dtype), case in summarize(rows).items()
    ]
    return key_table(pd.DataFrame(lines), "Byte patterns that dialects make of one tensor; best and worst by SQNR.")


def details(rows: pd.DataFrame) -> str:
    """The same at length: who is alike, who is not, and which differences are not significant."""
    told = [
        f"{rows.seed.nunique()} seeds, 95 % intervals over seeds; a / b: on {' / '.join(rows.dtype.unique())} data.",
        "Normal: standard normal values; tokens: heavy tails, each token with a scale of its own.",
        "Dialects are alike if no byte differs, so more data can only add patterns.",
    ]
    for fmt, part in rows.groupby("format", sort=False):
        told.append(f"{fmt}, {part.dialect.nunique()} dialects, {part.blocks.iloc[0]:,} blocks a seed. {_alike(part)}.")
        cases = summarize(part)
        for kind in dict.fromkeys(part.kind):
            both = {dtype: cases[fmt, kind, dtype] for dtype in dict.fromkeys(part.dtype)}
            told.append(f"{kind.capitalize()}: {_about(both, REFERENCES[fmt])}.")
    return " ".join(told)


def _alike(rows: pd.DataFrame) -> str:
    """Which dialects are alike on all data of a dtype."""
    told = []
    for _, part in rows.groupby("dtype", sort=False):
        counts = part.pivot_table(index="dialect", columns="other", values="differing", aggfunc="sum", sort=False)
        told.append(", ".join(f"({listed(members)})" for members in classes(counts) if len(members) > 1) or "none")
    return f"Alike on all data: {_either(told)}"


def _either(texts: Iterable[str]) -> str:
    """What the dtypes gave: said once if it is the same."""
    found = list(texts)
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def _about(cases: dict[str, Case], reference: str) -> str:
    """What a format made of one kind of data."""
    found = cases.values()
    told = [f"byte patterns: {_either(str(len(case.classes)) for case in found)}"]
    if all(case.least and case.most for case in found):
        least, most = (_either(_share(getattr(case, end)) for case in found) for end in ("least", "most"))
        told.append(f"those that are not alike differ in {least} to {most} of blocks")
    for what in ("best", "worst"):
        names = _either(getattr(case, what) for case in found)
        told.append(f"{what} SQNR {_either(case.sqnr[getattr(case, what)].text(3) for case in found)} dB ({names})")
    told.append(f"{_either(case.apart.text(3) for case in found)} dB apart")
    same = {dtype: _insignificant(case.gain, reference) for dtype, case in cases.items()}
    told.append(f"no significant difference to {reference}: {_shared_names(same)}")
    tiny = {dtype: _tiny(case.gain, reference) for dtype, case in cases.items()}
    told += [f"a significant one, but below {TINY} dB: {_shared_names(tiny)}"] if any(tiny.values()) else []
    return "; ".join(told)


def _share(found: Disagreement) -> str:
    pairs = f"{found.pairs} pairs" if found.pairs > 1 else f"{found.dialect} and {found.other}"
    return f"{_two_digits(found.share, 100)} % ({pairs})"


def _two_digits(value: Interval, factor: float = 1.0) -> str:
    """Mean and half-width, such that the half-width has two digits."""
    mean, half = value.mean * factor, value.half * factor
    if half == 0:
        return f"{mean:.3g}"
    digits = max(0, 1 - math.floor(math.log10(half)))
    return value.text(digits, factor) if digits < 6 else f"{mean:.1e} ± {half:.1e}"


def _insignificant(gains: dict[str, Interval], reference: str) -> list[str]:
    return [name for name, gain in gains.items() if name != reference and gain.holds(0)]


def _tiny(gains: dict[str, Interval], reference: str) -> list[str]:
    """Differences that are significant, but too small to matter."""
    others = {name: gain for name, gain in gains.items() if name != reference and not gain.holds(0)}
    return [name for name, gain in others.items() if abs(gain.mean) + gain.half < TINY]


def _shared_names(names: dict[str, list[str]]) -> str:
    """Names that all dtypes have, then those that each has alone."""
    everything = dict.fromkeys(name for each in names.values() for name in each)
    shared = [name for name in everything if all(name in each for each in names.values())]
    told = [listed(shared)] if shared else []
    for dtype, each in names.items():
        alone = [name for name in each if name not in shared]
        told += [f"on {dtype} alone {listed(alone)}"] if alone else []
    return ", ".join(told) or "none"


def draw(rows: pd.DataFrame) -> Figure:
    """The figure: for each format and kind of data the matrix of disagreement, SQNR and gain, dialects in one order."""
    cases = summarize(rows)
    shares = [share for case in cases.values() for share in case.shares.to_numpy().flat if share > 0]
    norm = LogNorm(10.0 ** math.floor(math.log10(min(shares, default=0.1))), 1)
    kinds = list(dict.fromkeys(rows.kind))
    lines = rows.groupby("format").dialect.nunique()
    heights = [0.6 + LINE * count for count in (lines["NVFP4"], max(lines["MXFP4"], lines["MXFP8"]))]
    heights = [0.35, *[heights[0]] * len(kinds), heights[1] * len(kinds)]
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, sum(heights)))
        top, *large, small = figure.subfigures(2 + len(kinds), 1, height_ratios=heights)
        _draw_legends(top, norm)
        for part, kind in zip(large, kinds, strict=True):
            _draw_case(part, cases, "NVFP4", kind, norm)
        for line, kind in zip(small.subfigures(len(kinds), 2), kinds, strict=True):
            for part, fmt in zip(line, ("MXFP4", "MXFP8"), strict=True):
                _draw_case(part, cases, fmt, kind, norm)
    return figure


def _draw_legends(part: SubFigure, norm: LogNorm) -> None:
    axes = part.add_axes((0.2, 0.45, 0.36, 0.25))
    colors = ScalarMappable(norm, COLORS)
    part.colorbar(colors, axes, orientation="horizontal", format=lambda share, _: f"{100 * share:g} %")
    axes.tick_params(labelsize=6.5, pad=1.5)
    axes.minorticks_off()
    axes.set_ylabel("blocks that differ\n(white: none)", rotation=0, ha="right", va="center", fontsize=7)
    sides = ("below the diagonal", "above it")
    handles = [
        Line2D([], [], ls="", marker=look.marker, color=look.color, ms=3.5, label=f"{dtype}, {side}")
        for (dtype, look), side in zip(LOOKS.items(), sides, strict=True)
    ]
    part.legend(handles=handles, loc="center right", ncols=2, handletextpad=0.2, columnspacing=1, fontsize=7)


def _draw_case(part: SubFigure, cases: Cases, fmt: str, kind: str, norm: LogNorm) -> None:
    """One format and kind of data: a matrix and two panels of points, a line for each dialect in all three."""
    dialects = order(cases, fmt, kind)
    wide = fmt == "NVFP4"  # the others stand side by side
    ratios = (2.4, 1, 1.3) if wide else (1.8, 1, 1)
    matrix, *panels = part.subplots(1, 3, sharey=True, gridspec_kw={"width_ratios": ratios})
    _draw_matrix(
        matrix, [cases[fmt, kind, dtype].shares.loc[dialects, dialects] for dtype in DTYPES], norm, 2 if wide else 4
    )
    matrix.set_title(f"{fmt}, {kind}")
    for dtype, look in LOOKS.items():
        case = cases[fmt, kind, dtype]
        for axes, found in zip(panels, (case.sqnr, case.gain), strict=True):
            means, halves = zip(*((found[name].mean, found[name].half) for name in dialects), strict=True)
            y = np.arange(len(dialects)) + look.place
            axes.errorbar(means, y, xerr=halves, fmt=look.marker, color=look.color, ms=2.2, lw=0.8)
            axes.tick_params(axis="y", length=0)
            axes.tick_params(axis="x", labelsize=6.5, length=2, pad=2)
    panels[0].set_xlabel("SQNR, dB", fontsize=7)
    panels[1].set_xlabel(f"gain on {REFERENCES[fmt]}, dB" if wide else "gain, dB", fontsize=7)
    panels[1].axvline(0, color=plots.BLACK, lw=0.6)
    if wide:
        _spread_around_zero(panels[1])
    else:
        for axes in panels:
            axes.xaxis.set_major_locator(MaxNLocator(2))
            axes.margins(x=0.12)


def _draw_matrix(axes: Axes, shares: list[pd.DataFrame], norm: LogNorm, step: int) -> None:
    """Shares of the first dtype below the diagonal and of the second above, no colour where they are zero. `step`: of
    the numbers below it, as two digits need the place of several columns."""
    below, above = (each.to_numpy() for each in shares)
    names, count = shares[0].index, len(below)
    both = np.ma.masked_equal(np.tril(below) + np.triu(above), 0)
    # an image, because between cells drawn one by one a screen shows seams
    axes.imshow(both, norm=norm, cmap=COLORS, extent=(0, count, count, 0), aspect="auto", interpolation="nearest")
    axes.plot([0, count], [0, count], color=plots.GREY, lw=0.5)
    axes.grid(False)
    axes.spines[:].set_visible(True)
    axes.set_xticks(np.arange(0, count, step) + 0.5, [str(i + 1) for i in range(0, count, step)], fontsize=5.5)
    axes.set_yticks(np.arange(count) + 0.5, [f"{name}  {i + 1}" for i, name in enumerate(names)], fontsize=6)
    axes.tick_params(length=0, pad=1.5)
    axes.set_xlim(0, count)
    axes.set_ylim(count, 0)


def _spread_around_zero(axes: Axes) -> None:
    """Decades on both sides of zero, linear within `TINY`."""
    axes.set_xscale("symlog", linthresh=TINY, linscale=0.5)
    named = {-1: "−1", -0.1: "", -0.01: "−.01", 0: "0", 0.01: ".01", 0.1: "", 1: "1"}
    axes.set_xticks(list(named), list(named.values()))
    axes.minorticks_off()


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 16 seeds of 512 tokens of 1024 values, or 5 of 128 of 512 when `fast`."""
    (tokens, width), seeds = ((128, 512), tuple(range(5))) if fast else ((512, 1024), tuple(range(16)))
    rows = measure(tokens, width, seeds)
    caption = (
        "Left: share of blocks in which two dialects make different bytes, on bfloat16 data below the diagonal and on "
        f"float32 data above it; white where none of {len(seeds)} seeds has one. A white square is a class of dialects "
        "that are alike. Beside it, in the same order: SQNR, and gain, the paired difference to exact (NVFP4, in "
        f"decades outside ± {TINY} dB) or to ocp_floor (MX), with 95 % intervals over seeds. {_squares(rows)}"
    )
    summary = {"details": details(rows)} | _summary(summarize(rows))
    finding, *told = find(rows)
    return Result(rows, draw(rows), caption, finding, seeds, summary, tables=(costs(rows),), details=tuple(told))


def _squares(rows: pd.DataFrame) -> str:
    """How many classes each matrix shows, of how many dialects."""
    told = [
        f"{fmt}, {kind}, {dtype}: {len(case.classes)} of {len(case.shares)}"
        for (fmt, kind, dtype), case in summarize(rows).items()
    ]
    return f"Classes, of dialects: {'; '.join(told)}."


def _summary(cases: Cases) -> dict[str, Any]:
    """Numbers of all cases but the matrices, which `rows` has."""
    kept = [field.name for field in fields(Case) if field.name != "shares"]
    return {", ".join(key): {name: _plain(getattr(case, name)) for name in kept} for key, case in cases.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: asdict(each) for name, each in value.items()}
    return asdict(value) if isinstance(value, Interval | Disagreement) else value


STUDY = Study(
    name="dialects",
    title="Dialects of NVFP4 and MX",
    question="Do public quantizers of one format make the same bytes of the same tensor, and where they do not, what "
    "does the choice cost in error?",
    run=run,
)
