"""The figures of `accumulation`, each with its caption."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import accumulation_cases as cases
from . import plots

# colour by generation, dash by width: FP8 and narrower solid, 16 and 19 bits dashed, whole FP32 dotted
LOOKS = {
    "hopper_fp8": (plots.VERMILION, "-", "o"),
    "ada_fp8": (plots.ORANGE, "-", "v"),
    "volta_fp16": (plots.GREY, "--", "s"),
    "ampere_tf32": (plots.GREEN, "--", "^"),
    "ampere_bf16": (plots.GREEN, "--", "s"),
    "hopper_tf32": (plots.PURPLE, "--", "^"),
    "hopper_bf16": (plots.PURPLE, "--", "s"),
    "blackwell_mxfp8": (plots.BLUE, "-", "D"),
    "blackwell_fp8": (plots.BLUE, "-", "o"),
    "blackwell_mxfp4": (plots.SKY, "-", "D"),
    "blackwell_nvfp4": (plots.SKY, "-", "o"),
    "mma_sync_fp8_as_fp16": (plots.SKY, "--", "v"),
    "fp32": (plots.BLACK, ":", "None"),
    "library": (plots.BLACK, "-.", "None"),
}
FLOOR = 2.0**-34  # sums that are equal to the exact ones stand here


def growth(rows: pd.DataFrame) -> tuple[Figure, str]:
    """Error against K: a panel for each kind of data."""
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 6.4))
        axes = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
        for ax, data in zip(axes, cases.DATA, strict=True):
            _curves(ax, rows[rows.data == data])
            ax.set_title(data)
        for ax in axes[2:]:
            ax.set_xlabel("products, K")
        for ax in axes[::2]:
            ax.set_ylabel("rms error / rms product")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=7)
    last = rows[(rows.k == rows.k.max())].groupby(["data", "accumulator"]).rms.mean()
    worst = last.groupby("data").idxmax()
    told = "; ".join(f"{data}: {worst[data][1]}, {last[worst[data]]:.1e}" for data in cases.DATA)
    caption = (
        f"Error of sums of K products against the exact sum, mean over {rows.seed.nunique()} seeds. Points on the "
        f"lowest line are exact. The largest at K = {rows.k.max()}: {told}."
    )
    return figure, caption


def _curves(ax: Axes, rows: pd.DataFrame) -> None:
    for name, (color, dash, marker) in LOOKS.items():
        curve = rows[rows.accumulator == name].groupby("k").rms.mean().replace(0, FLOOR)
        ax.plot(curve.index, curve, dash, color=color, marker=marker, markersize=3.2, linewidth=1.1, label=name)
    ax.axhline(FLOOR, color=plots.GREY, linewidth=0.6)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    lengths = sorted(rows.k.unique())
    ax.set_xticks(lengths, [str(k) for k in lengths], fontsize=7)


def promotion(rows: pd.DataFrame) -> tuple[Figure, str]:
    """Error against the promotion interval, and the signed error of one sign."""
    k = int(rows.k.iloc[0])
    looks = zip(cases.DATA, (plots.BLUE, plots.VERMILION, plots.GREEN, plots.PURPLE), "osD^", strict=True)
    with plots.style():
        figure, (left,) = plots.panels(1, width=plots.COLUMN * 1.35, height=3.1)
        for data, color, marker in looks:
            curve = rows[rows.data == data].groupby("every").rms.mean()
            left.plot(curve.index, curve, "-", color=color, marker=marker, label=data)
        left.axvline(128, color=plots.GREY, linewidth=0.8, linestyle=":")
        left.set_xscale("log", base=2)
        left.set_yscale("log")
        ticks = sorted(rows.every.unique())
        left.set_xticks(ticks, [str(n) if n < k else f"{n}\nnever" for n in ticks])
        left.set_xlabel("promoted every N products")
        left.set_ylabel("rms error / rms product")
        left.set_title(f"Hopper FP8, K = {k}")
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2)
    mean = rows.groupby(["data", "every"]).rms.mean()
    told = "; ".join(f"{data} {mean[data, k] / mean[data, 128]:.1f} times" for data in cases.DATA)
    return (
        figure,
        f"Promotion to FP32 after every N products; the dotted line is DeepSeek-V3's 128. Less there: {told}.",
    )


def recipe(rows: pd.DataFrame) -> tuple[Figure, str]:
    """Quantization and accumulation error of each product, at the largest K."""
    k = int(rows.k.max())
    mean = rows[rows.k == k].groupby(["data", "product", "route"], sort=False)[["quantization", "accumulation"]].mean()
    with plots.style():
        figure, axes = plots.panels(2, height=3.2)
        for ax, (data, part) in zip(axes, mean.groupby(level="data", sort=False), strict=True):
            names = [f"{product}: {route}" for _, product, route in part.index]
            where = range(len(names))[::-1]
            ax.hlines(where, part.accumulation.clip(lower=1e-17), part.quantization, color="#bbbbbb", linewidth=1)
            ax.plot(part.quantization, where, "o", color=plots.BLUE, label="quantization")
            ax.plot(part.accumulation.clip(lower=1e-17), where, "s", color=plots.VERMILION, label="accumulation")
            ax.set_xscale("log")
            ax.set_xlim(3e-18, 1)
            ax.set_yticks(where, names if ax is axes[0] else [""] * len(names))
            ax.set_title(f"{data}, K = {k}")
            ax.set_xlabel("squared error / energy")
            ax.grid(axis="y", visible=False)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2)
    shares = rows[rows["product"] != "plain FP8"].share
    caption = (
        "Squared error of the recipe's products, split, mean over seeds; the least place stands for 1e-17 and less. "
        f"Accumulation has at most {shares.max():.1e} of the total in the recipe's own products; plain FP8 is a "
        "contrast."
    )
    return figure, caption


PLATES: dict[str, Callable[[pd.DataFrame], tuple[Figure, str]]] = {"promotion": promotion, "recipe": recipe}
