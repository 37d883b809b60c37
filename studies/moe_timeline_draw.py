"""Figures of the modelled layer: its timeline, the balance of products and traffic, a rollout's floors, and what the
gains depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from . import moe_gain, plots
from . import moe_model as model
from . import moe_timeline_cases as cases
from .moe_model import BASELINE, FULL, SIXTEEN, Recipe, Setup

SHOWN = (BASELINE, SIXTEEN, FULL)
TITLES = {
    BASELINE: "MXFP8 products, 8.25 bits out, 16 bits back",
    SIXTEEN: "NVFP4 products, 4.5 bits out, 16 bits back",
    FULL: "NVFP4 products, 4.5 bits out, 8.25 bits back",
}
COLORS = {
    "dispatch": plots.SKY,
    "w1 and w3": plots.VERMILION,
    "w2": plots.ORANGE,
    "weight gradients": plots.PURPLE,
    "combine": plots.BLUE,
}
LEAST = 0.15  # points of gain; smaller effects are left out
FLOORS = (
    ("latency", "two latencies", plots.GREY, ":"),
    ("link", "traffic on the link", plots.BLUE, "--"),
    ("memory", "weights from memory", plots.GREEN, "-."),
    ("products", "products", plots.VERMILION, (0, (1, 1))),
    ("total", "layer", plots.BLACK, "-"),
)
WIRES = (("BF16 + BF16", plots.GREY, ":"), ("NVFP4 + BF16", plots.VERMILION, "--"), ("NVFP4 + S2F6", plots.BLUE, "-"))


def gantt(setup: Setup) -> Figure:
    """One layer's forward pass under the baseline, and with 4-bit products and either combine."""
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 3.7))
        panels = figure.subplots(len(SHOWN), 1, sharex=True)
        for axes, recipe in zip(panels, SHOWN, strict=True):
            _bars(axes, setup, recipe)
        panels[-1].set_xlabel("modelled time of one layer's forward pass, ms")
        names = [name for name in COLORS if name != "weight gradients"]
        patches = [Patch(color=COLORS[name], label=name) for name in names]
        figure.legend(handles=patches, loc="outside upper right", ncols=4, handlelength=1.2)
    return figure


def _bars(axes: Axes, setup: Setup, recipe: Recipe) -> None:
    tasks = model.timeline(model.forward(setup, recipe), setup.waves, setup.latency, setup.own_gpus)
    end = max(task.end for task in tasks) + setup.latency
    lines = {"dispatch": 1, "w1 and w3": 0, "w2": 0, "combine": 1}
    for task in tasks:
        left, length = task.start * 1e3, (task.end - task.start) * 1e3
        axes.barh(lines[task.what], length, 0.78, left, color=COLORS[task.what], edgecolor="white", linewidth=0.4)
    axes.axvline(end * 1e3, color=plots.BLACK, lw=0.8)
    axes.annotate(f"{end * 1e3:.2f} ms", (end * 1e3, 0), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks([0, 1], ["tensor cores", "link"])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.55, 1.55)
    axes.set_title("Modelled: " + TITLES[recipe])
    axes.set_axisbelow(True)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.1)
    axes.set_xlim(left=0)


def balance(setup: Setup) -> Figure:
    """Which widths hide the traffic: the largest hidden C / B, and the share of a forward pass beyond its products."""
    with plots.style():
        figure, (left, right) = plots.panels(2)
        _draw_balance(left, setup)
        _draw_exposed(right, setup)
    return figure


def _draw_balance(axes: Axes, setup: Setup) -> None:
    wires = cases.widths(setup).set_index("wire")
    peak, widths = model.balance(setup.machine), np.array([512.0, 12288.0])
    for name, color, dash in WIRES:
        wire = wires.loc[name]
        lines = [model.hidden_balance(width, wire["dispatch"], wire["combine"]) for width in widths]
        axes.plot(widths, lines, ls=dash, color=color, label=f"{name}: d = {wire.peak:,.0f}")
        axes.plot(wire.peak, peak, "o", color=color)
    axes.axhline(peak, color=plots.BLACK, lw=0.8)
    axes.annotate(f"GB300, NVFP4: {peak:,.0f}", (560, peak), (0, 3), textcoords="offset points", fontsize=7)
    v4 = model.hidden_balance(3072, cases.V4.dispatch, cases.V4.combine)
    axes.plot(3072, v4, "D", color=plots.GREEN, ls="", label=f"DeepSeek-V4, d = 3,072: {v4:,.0f}", zorder=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = [512, 1024, 2048, 4096, 8192]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ticks = [1000, 2000, 4000, 8000, 16000, 32000]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(300, 50000)
    axes.set_xlabel("expert width d")
    axes.set_ylabel("FLOP per byte that products hide")
    axes.set_title("Modelled: balance, shared direction")
    axes.legend(loc="lower right", fontsize=6.5)


def _draw_exposed(axes: Axes, setup: Setup) -> None:
    widths = [512 * 2 ** (step / 4) for step in range(19)]
    for recipe, color, dash in ((BASELINE, plots.GREY, ":"), (SIXTEEN, plots.VERMILION, "--"), (FULL, plots.BLUE, "-")):
        shares = []
        for width in widths:
            changed = replace(setup, width=width)
            phases = model.forward(changed, recipe)
            whole = model.makespan(phases, changed.waves, changed.latency, changed.own_gpus)
            shares.append(100 * (1 - phases.products / whole))
        axes.plot(widths, shares, ls=dash, color=color, label=TITLES[recipe].replace(" products", ""))
    axes.axvline(setup.width, ymax=100 / 135, color=plots.BLACK, lw=0.6)  # below the legend
    axes.set_xscale("log", base=2)
    ticks = [512, 1024, 2048, 4096, 8192]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 135)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlabel("expert width d")
    axes.set_ylabel("% of the forward pass beyond products")
    axes.set_title("Modelled: exposed traffic")
    axes.legend(loc="upper right", fontsize=6.5)


def floors(setup: Setup) -> Figure:
    """What bounds one layer of a rollout's step, against the tokens of a GPU."""
    tokens = [2**step for step in range(12)]
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 3.1))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, recipe in zip(panels, (BASELINE, FULL), strict=True):
            steps = [moe_gain.decode(replace(setup, decode_tokens=count), recipe) for count in tokens]
            for name, label, color, dash in FLOORS:
                axes.plot(tokens, [getattr(step, name) * 1e6 for step in steps], ls=dash, color=color, label=label)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(tokens[::2], [f"{count:,}" for count in tokens[::2]])
            axes.set_xlabel("tokens of a GPU in one step")
            axes.set_title("Modelled: " + ("MXFP8, BF16 combine" if recipe is BASELINE else "NVFP4, S2F6 combine"))
        panels[0].set_ylabel("one layer of a rollout, µs")
        panels[0].legend(loc="upper left", fontsize=7)
    return figure


def tornado(setup: Setup, swings: pd.DataFrame) -> Figure:
    """What the gains depend on: one parameter at a time over its range, largest effect on top."""
    published = {"training": cases.PRETRAIN, "reinforcement learning": cases.LEARNING}
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 6.4))
        for axes, (name, gain) in zip(figure.subplots(2, 1), cases.GAINS.items(), strict=True):
            _draw_swings(axes, swings[swings.gain == name], 100 * gain(setup), 100 * published[name])
            axes.set_title(f"Modelled: gain in {name}")
        axes.set_xlabel("more work in the same time, %")
    return figure


def _draw_swings(axes: Axes, swings: pd.DataFrame, base: float, published: float) -> None:
    ends = swings.pivot(index="parameter", columns="end", values="result") * 100
    reach = (ends - base).abs().max(axis=1).where(lambda x: x > LEAST).dropna().sort_values()
    known = {parameter.field: parameter for parameter in cases.PARAMETERS}
    names = []
    for y, field in enumerate(reach.index):
        sides = [("low", plots.SKY), ("high", plots.VERMILION)]
        # where both ends lie on one side, the shorter bar is drawn over the longer
        for end, color in sorted(sides, key=lambda side: -abs(ends.loc[field, side[0]] - base)):
            axes.barh(y, ends.loc[field, end] - base, 0.7, base, color=color)
        parameter = known[field]
        low, high = (cases.written(parameter, value) for value in (parameter.low, parameter.high))
        names.append(f"{parameter.label}: {low} to {high}")
    axes.axvline(base, color=plots.BLACK, lw=0.8, label=f"all as assumed: {base:.1f} %")
    axes.axvline(published, color=plots.GREEN, lw=1, ls="--", label=f"article: {published:.0f} %")
    for color, end in ((plots.SKY, "low"), (plots.VERMILION, "high")):
        axes.barh(0, 0, color=color, label=f"{end} end of the range")
    axes.set_yticks(range(len(reach)), names, fontsize=6.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)
    axes.legend(loc="lower left", fontsize=7)
