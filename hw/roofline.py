"""How near a kernel comes to what its chip allows, and the picture of it.

    t_bytes   necessary bytes (inputs read once, outputs written once) over the bandwidth of a copy in the same run
    t_issue   instructions of a warp x warps launched, over SMs x 4 schedulers x clock
    ratio     time over the larger of the two, whose name is the limiting resource: 1 is the best there can be

Instructions are those of the shortest way through the code, the clock is the highest that the chip has: through them
t_issue is never too long, nor the ratio too small. Necessary bytes may still come from a cache, and a copy is not the
fastest that memory can do, so a ratio somewhat below 1 is possible.
"""

from __future__ import annotations

import io
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import machine_code
from .launches import Launch

SCHEDULERS = 4  # of an SM, each one instruction of one warp per clock, since Volta
MOST = 1.4  # ratio that is asked for
SUFFIXES = (".png", ".svg", ".pdf")
SHOWN = 6  # opcodes in a profile


@dataclass(frozen=True)
class Chip:
    """What issues instructions. clock: the highest of the SMs, in Hz."""

    sms: int
    clock: float

    @property
    def issue_rate(self) -> float:
        """Instructions of a warp per second."""
        return self.sms * SCHEDULERS * self.clock


@dataclass(frozen=True)
class Counted:
    """Instructions of all launches of one call. opcodes: the most frequent ones and their shares, in words. missing:
    why there is no number, else ""."""

    least: int | None
    others: int | None
    opcodes: str
    missing: str


@dataclass(frozen=True)
class Row:
    """One kernel.

    kernel: name. seconds: median. copy: bytes per second of copies right before and after. bytes: necessary.
    instructions: issued by all warps at least; others: what may come on top. t_bytes, t_issue, ratio: as above.
    limit: "bytes" or "issue". share: of the copy's speed; floor: the least asked for. peak: most device memory over
    inputs and outputs. verdict: met, missed or not judged. note: why something is absent.
    """

    kernel: str
    seconds: float
    copy: float
    bytes: int
    instructions: int | None
    others: int | None
    t_bytes: float
    t_issue: float | None
    ratio: float
    limit: str
    share: float
    floor: float | None
    peak: float | None
    verdict: str
    opcodes: str
    note: str


def chip(device: torch.device) -> Chip:
    """The chip of a CUDA device.

    Raises: ValueError if neither torch nor nvidia-smi tells its clock.
    """
    properties: Any = torch.cuda.get_device_properties(device)
    kilohertz = getattr(properties, "clock_rate", 0)
    clock = kilohertz * 1e3 if kilohertz else _asked(f"GPU-{properties.uuid}")
    return Chip(properties.multi_processor_count, clock)


def _asked(uuid: str) -> float:
    command = ["nvidia-smi", "-i", uuid, "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        return float(text.strip()) * 1e6
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(
            "the highest clock of the SMs is unknown: this torch does not tell it, and nvidia-smi does not either; put "
            "nvidia-smi on PATH, or use torch 2.11 or later"
        ) from error


def counted(launches: Sequence[Launch], trips: Mapping[str, tuple[int, ...]]) -> Counted:
    """Instructions of what one call launched.

    Args: trips: turns of the loops of a kernel's machine code by the kernel's name; none for one without loops.
    """
    if not launches:
        return Counted(None, None, "", "nothing was launched through hw.launches")
    least = others = 0
    census: Counter[str] = Counter()
    for one in launches:
        try:
            issued = machine_code.count(machine_code.sass(one.compiled), trips.get(one.name, ()))
        except ValueError as error:
            return Counted(None, None, "", f"{one.name}: {error}")
        least += issued.least * one.warps
        others += issued.others * one.warps
        for opcode, number in issued.census.items():
            census[opcode] += number * one.warps
    words = ", ".join(f"{opcode} {100 * number / least:.0f} %" for opcode, number in census.most_common(SHOWN))
    return Counted(least, others, words, "")


def placed(
    kernel: str,
    seconds: float,
    copy: float,
    necessary: int,
    found: Counted,
    rate: float,
    floor: float | None,
    peak: float | None,
) -> Row:
    """The row of a kernel that took `seconds`, beside a copy of `copy` bytes per second. rate: of `Chip`."""
    t_bytes = necessary / copy
    t_issue = None if found.least is None else found.least / rate
    bound, limit = max((t_bytes, "bytes"), (t_issue or 0.0, "issue"))
    ratio, share = seconds / bound, t_bytes / seconds
    if floor is not None and share < floor:
        verdict = "missed"
    elif ratio <= MOST:
        verdict = "met"  # over bytes alone too: the larger of both bounds can only make it smaller
    else:
        verdict = "missed" if t_issue is not None else "not judged"
    return Row(
        *(kernel, seconds, copy, necessary, found.least, found.others, t_bytes, t_issue, ratio, limit, share),
        *(floor, peak, verdict, found.opcodes, found.missing),
    )


def require_figure(path: Path | None) -> None:
    """Raises ValueError unless the figure's kind is known by its suffix."""
    if path is not None and path.suffix not in SUFFIXES:
        raise ValueError(f"figure={str(path)!r}: name a file that ends in one of {', '.join(SUFFIXES)}")


def points(rows: Sequence[Row]) -> list[tuple[float, float, str]]:
    """Instructions of a warp per necessary byte, necessary bytes per second, name: of each row that has both."""
    return [(r.instructions / r.bytes, r.bytes / r.seconds, r.kernel) for r in rows if r.instructions is not None]


def draw(rows: Sequence[Row], rate: float, title: str, kind: str) -> bytes:
    """The roofline as a file's contents: bytes per second over instructions per byte, both logarithmic.

    Args: rate: instructions of a warp per second. title: chip and conditions. kind: "png", "svg" or "pdf".

    Raises: ValueError if no row has instructions.
    """
    import matplotlib
    import numpy as np
    from matplotlib.figure import Figure

    marks = points(rows)
    if not marks:
        raise ValueError("rows have no counted instructions, so no roofline can be drawn; see their notes")
    copy = float(np.median([row.copy for row in rows]))
    style = {"font.size": 8, "axes.linewidth": 0.6, "svg.hashsalt": "fourbit", "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.0, 3.2), layout="constrained")
        axes, ridge = figure.subplots(), rate / copy
        xs = [x for x, _, _ in marks] + [ridge]
        x = np.geomspace(min(xs) / 3, max(xs) * 3, 200)
        roof = np.minimum(copy, rate / x)
        axes.plot(x, roof / 1e9, color="#000000", linewidth=1.2, label="the lower roof: 1")
        axes.plot(x, roof / 1e9 / MOST, color="#6e6e6e", linewidth=0.8, linestyle="--", label=f"asked for: {MOST}")
        axes.annotate(f"copy, {copy / 1e9:,.0f} GB/s", (x[0], copy / 1e9), (2, 3), textcoords="offset points")
        axes.axvline(ridge, color="#d0d0d0", linewidth=0.6, zorder=0)
        ratios = {row.kernel: row.ratio for row in rows}
        for number, (across, up, name) in enumerate(marks, 1):
            colour = "#0072b2" if across < ridge else "#d55e00"
            label = f"{number}  {name}: {ratios[name]:.2f}"
            axes.plot(across, up / 1e9, "o", color=colour, markersize=9, markeredgecolor="white", label=label)
            middle = {"ha": "center", "va": "center_baseline", "color": "white", "fontsize": 6}
            axes.text(across, up / 1e9, str(number), **middle)
        axes.set(xscale="log", yscale="log", xlabel="instructions of a warp per necessary byte")
        axes.set(ylabel="necessary bytes, GB/s", title=title)
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axes.tick_params(axis="y", which="minor", labelsize=6)
        axes.title.set_fontsize(8)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False, fontsize=7, title="time over the lower roof's")
        file = io.BytesIO()
        stamp = {"Software": None} if kind == "png" else {"Date": None} if kind == "svg" else {"CreationDate": None}
        figure.savefig(file, format=kind, dpi=200, metadata=stamp)
    return file.getvalue()
