"""The figures of `accumulation`."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import plots
from .interval import interval

LOOKS = {
    "library": (plots.BLACK, ":", ""),
    "volta_fp16": (plots.SKY, "--", "v"),
    "ampere_bf16": (plots.BLUE, "--", "^"),
    "hopper_bf16": (plots.BLUE, "-", "o"),
    "ada_fp8": (plots.ORANGE, "--", "s"),
    "hopper_fp8": (plots.VERMILION, "-", "o"),
    "blackwell_fp8": (plots.PURPLE, "-", "D"),
    "mma_sync_fp8_as_fp16": (plots.GREY, "--", "x"),
    "blackwell_mxfp8": (plots.GREEN, "--", "P"),
    "blackwell_nvfp4": (plots.GREEN, "-", "*"),
}
FLOOR = 2e-9  # where exact sums are drawn


def draw(length: pd.DataFrame) -> Figure:
    """Error against K, a panel for each kind of data."""
    kinds = list(dict.fromkeys(length.data))
    with plots.style():
        figure, axes = plots.panels(len(kinds), height=3.6)
        for ax, kind in zip(axes, kinds, strict=True):
            _against_length(ax, length[length.data == kind], kind)
        axes[0].set_ylabel("root mean square error / sums")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _against_length(ax: Axes, part: pd.DataFrame, kind: str) -> None:
    for name, rows in part.groupby("accumulator", sort=False):
        curve = rows.groupby("k").error.mean()
        color, line, marker = LOOKS[name]
        ax.plot(curve.index, curve.clip(lower=FLOOR), line, marker=marker, color=color, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(FLOOR / 4, 0.5)
    ticks = sorted(part.k.unique())[:: 1 if part.k.nunique() <= 4 else 2]
    ax.set_xticks(ticks, [str(k) for k in ticks])
    ax.axhline(FLOOR, color=plots.GREY, linewidth=0.6)
    ax.annotate("exact", (1, FLOOR), (-2, -8), ("axes fraction", "data"), "offset points", fontsize=7, ha="right")
    ax.set_xlabel("products in a sum, K")
    ax.set_title(kind)


def draw_options(option: pd.DataFrame, share: pd.DataFrame) -> Figure:
    """Promotion beside the recipe's errors."""
    with plots.style():
        figure, (left, right) = plots.panels(2, height=3.0)
        promote = option[option.option == "promote"]
        looks = zip(dict.fromkeys(promote.data), (plots.BLUE, plots.VERMILION), ("o-", "s--"), strict=True)
        for kind, color, line in looks:
            part = promote[promote.data == kind]
            found = {n: interval(rows.error.tolist()) for n, rows in part.groupby("value")}
            means, halves = [f.mean for f in found.values()], [f.half for f in found.values()]
            left.errorbar(list(found), means, halves, fmt=line, color=color, label=kind, capsize=2)
        left.axvline(128, color=plots.GREY, linewidth=0.8)
        left.annotate("128: DeepSeek-V3", (128, 1), (4, -8), xycoords=("data", "axes fraction"),
                      textcoords="offset points", fontsize=7)  # fmt: skip
        left.set_xscale("log", base=2)
        left.set_yscale("log")
        left.set_xticks(sorted(promote.value.unique()), [str(n) for n in sorted(promote.value.unique())])
        left.set_xlabel("products between promotions, N")
        left.set_ylabel("root mean square error / sums")
        left.set_title("Hopper's FP8 promoted, K = 4096")
        left.legend(loc="lower right")
        _shares(right, share)
    return figure


def _shares(ax: Axes, share: pd.DataFrame) -> None:
    mean = share.groupby(["product", "accumulator"], sort=False)[["quantization", "accumulation"]].mean()
    places = range(len(mean))
    lowest = 1e-16
    ax.barh(places, mean.quantization, height=0.36, align="edge", color=plots.SKY, label="quantization", left=0)
    shown = mean.accumulation.clip(lower=lowest)
    ax.barh([y - 0.38 for y in places], shown, height=0.36, align="edge", color=plots.VERMILION, label="accumulation")
    for y, value in zip(places, mean.accumulation, strict=True):
        text = "none" if value == 0 else f"{value:.1e}"
        ax.annotate(text, (max(value, lowest), y - 0.2), (3, 0), textcoords="offset points", va="center", fontsize=7)
    ax.set_xscale("log")
    ax.set_xlim(lowest, 1)
    ax.set_yticks(places, [f"{what}\n{name}" for what, name in mean.index], fontsize=7)
    ax.invert_yaxis()
    ax.set_xlabel("squared error / energy")
    ax.set_title("Of the recipe's products")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.3, -0.2), ncols=2, fontsize=7)
