"""The figures of `outer_scale`, each with its caption."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import outer_scale_cases as cases
from . import plots
from .interval import listed
from .result import Plate

COLORS = {"tensor": plots.VERMILION, "expert": plots.ORANGE, "token": plots.BLUE}
MARKERS = {"tensor": "o", "expert": "s", "token": "^"}


def main(frames: Mapping[str, pd.DataFrame]) -> tuple[Figure, str]:
    """Leak against the factor; zero blocks and error against the spread of the tokens' scales. NVFP4."""
    leaks, spreads = (frames[name][frames[name].format == "NVFP4"] for name in ("leaks", "spreads"))
    spreads = spreads[spreads.of == "tokens"]
    with plots.style():
        figure, (left, middle, right) = plots.panels(3, height=3.2)
        _draw(left, leaks, "factor", "changed", 100)
        left.set_xscale("log")
        left.set_xlabel("factor of the last token")
        left.set_ylabel("% of other tokens' values")
        left.set_title("Changed by one token")
        _draw(middle, spreads, "decades", "zero_blocks", 100)
        middle.set_ylabel("% of blocks")
        middle.set_title("Blocks that become zero")
        _draw(right, spreads, "decades", "error", 1)
        right.set_yscale("log")
        right.set_ylabel("relMSE, mean over tokens")
        right.set_title("Error")
        for axes in (middle, right):
            axes.set_xlabel("decades of token scales")
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
    tenfold = leaks[leaks.factor == leaks.factor.min()].groupby("scope").changed.mean()
    lost = spreads[spreads.decades == spreads.decades.max()].groupby("scope").zero_blocks.mean()
    most = spreads.decades.max()
    caption = (
        "What an outer scale shared by a tensor, an expert or a token does, NVFP4, normal data, mean over "
        f"{leaks.seed.nunique()} seeds. Left: other tokens' values that change when the last token is multiplied by a "
        f"factor; by 10 {tenfold['tensor']:.0%} with one scale for the tensor, "
        f"{tenfold['tensor, power of two']:.0%} if it is a power of two, {tenfold['token']:.0%} with one per token. "
        "Middle and right: token scales 10^-u, u uniform over so many decades; "
        f"at {most:g} {lost['tensor']:.0%} of blocks become zero with one scale for the tensor and {lost['token']:.0%} "
        "with one per token."
    )
    return figure, caption


def _draw(axes: Axes, rows: pd.DataFrame, x: str, y: str, factor: float) -> None:
    for scope in cases.SCOPES:
        name = scope.name.split(",")[0]
        curve = factor * rows[rows.scope == scope.name].groupby(x)[y].mean()
        power = scope.rounding is not None
        axes.plot(
            curve.index,
            curve,
            "--" if power else "-",
            color=COLORS[name],
            marker=MARKERS[name],
            markerfacecolor="white" if power else COLORS[name],
            label=scope.name,
        )


def company(rows: pd.DataFrame) -> Plate:
    """Tokens that keep their decoded values, by scope and change."""
    rows = rows[rows.format == "NVFP4"]
    shares = rows.groupby(["scope", "change"])[["values", "codes"]].mean()
    with plots.style():
        figure, (axes,) = plots.panels(1, height=2.6)
        grid = [[shares.loc[(scope.name, change), "values"] for change in cases.CHANGES] for scope in cases.SCOPES]
        axes.imshow(grid, cmap="Blues", vmin=0, vmax=1.6, aspect="auto")
        for y, scope in enumerate(cases.SCOPES):
            for x, change in enumerate(cases.CHANGES):
                values, codes = shares.loc[(scope.name, change)]
                axes.text(x, y, f"{values:.0%} ({codes:.0%})", ha="center", va="center")
        axes.set_xticks(range(len(cases.CHANGES)), cases.CHANGES)
        axes.set_yticks(range(len(cases.SCOPES)), [scope.name for scope in cases.SCOPES])
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.set_title("Tokens with bit-equal values (bytes)")
    safe = [scope.name for scope in cases.SCOPES if rows[rows.scope == scope.name].codes.min() == 1]
    caption = (
        "Tokens whose decoded values, and in brackets whose codes and block scales, are bit-equal before and after a "
        f"change of the other tokens, NVFP4, mean over seeds. Both are 100 % throughout for "
        f"{listed(safe) or 'no scope'}."
    )
    return Plate("company", figure, caption)
