"""The figures of notebook 1 that do not move: small formats side by side, and where S2F6 and E4M3 put their codes."""

from __future__ import annotations

from matplotlib.figure import Figure

import numerics as nm
from studies import plots

from . import bits_data


def side_by_side() -> Figure:
    """Every value of the small formats as a share of the largest: linear, and the positive ones on powers of two."""
    with plots.style():
        figure, (linear, log) = plots.panels(2, height=2.9)
        rows = list(reversed(bits_data.SMALL))
        for row, fmt in enumerate(rows):
            shares = fmt.values().double().numpy() / fmt.max
            colour, width = plots.GREEN if fmt.kind == "fixed" else plots.BLUE, 0.35 if len(shares) > 128 else 0.7
            linear.plot(shares, [row] * len(shares), "|", color=colour, ms=11, mew=width)
            positive = shares[shares > 0]
            log.plot(positive, [row] * len(positive), "|", color=colour, ms=11, mew=width)
        for ax in (linear, log):
            ax.set_yticks(range(len(rows)), [fmt.name for fmt in rows])
            ax.set(ylim=(-0.6, len(rows) - 0.4))
            ax.grid(axis="y", visible=False)
        linear.set(title="On an even scale", xlabel="value / largest value")
        log.set_xscale("log", base=2)
        log.set(title="On a scale of powers of two", xlabel="value / largest value, positive values")
        log.minorticks_off()
    return figure


def steps() -> Figure:
    """The largest rounding error against the size of a value, both over the block's largest value."""
    with plots.style():
        figure, (ax,) = plots.panels(1, width=5.0, height=2.6)
        for fmt, colour, dash in ((nm.E4M3, plots.BLUE, "-"), (nm.S2F6, plots.GREEN, "--")):
            places, gaps = bits_data.half_steps(fmt)
            ax.stairs(gaps, places, baseline=None, color=colour, ls=dash, label=fmt.name)
        ax.set_yscale("log", base=2)
        ax.set(
            title="S2F6 errs alike everywhere, E4M3 in proportion",
            xlabel="value / largest value of the block",
            ylabel="largest error / largest value",
            xlim=(0, 1),
            ylim=(2.0**-13, 2.0**-4),
        )
        ax.legend(loc="lower right")
    return figure
