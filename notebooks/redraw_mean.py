"""The mean of many requantizations of a whole tensor, and what saturation does to it.

    e(n) = sum (mean(T_1 .. T_n) - T)^2 / sum T^2

falls as 1 / n where stochastic rounding keeps every value on average. It stops falling where a scale lets the largest
value of a block saturate: MX scales rounded down ("floor"), NVFP4 scales without headroom for their own rounding.
T is a saved tensor of activations, standard normal: NVFP4 with four-over-six, an outer scale for each token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import numerics as nm
from studies import plots
from studies.hadamard_data import normal
from studies.requantization import slope

DRAWS = (1, 2, 4, 8, 16, 32, 64, 128)
SIZE = 256
STOCHASTIC, NEAREST = nm.Rounding.STOCHASTIC, nm.Rounding.NEAREST_EVEN


def by_rule(fmt: nm.BlockFormat, rule: str) -> nm.BlockFormat:
    """`fmt` with another rule for its scales."""
    return replace(fmt, rule=nm.scales.RULES[rule])


@dataclass(frozen=True)
class Way:
    """A way to requantize."""

    name: str
    fmt: nm.BlockFormat
    rounding: nm.Rounding
    colour: str
    look: str


WAYS = (
    Way("MXFP8, nearest", nm.MXFP8, NEAREST, plots.VERMILION, "s-."),
    Way("MXFP8, stochastic, scale rounded down", by_rule(nm.MXFP8, "floor"), STOCHASTIC, plots.ORANGE, "^--"),
    Way("MXFP8, stochastic, scale rounded up", nm.MXFP8, STOCHASTIC, plots.BLUE, "o-"),
    Way("NVFP4, nearest", nm.NVFP4, NEAREST, plots.VERMILION, "s-."),
    Way("NVFP4, stochastic, no headroom", by_rule(nm.NVFP4, "static_6"), STOCHASTIC, plots.ORANGE, "^--"),
    Way("NVFP4, stochastic, headroom 16/17", by_rule(nm.NVFP4, "unbiased"), STOCHASTIC, plots.BLUE, "o-"),
)


@dataclass(frozen=True)
class Curve:
    """Of one way: e(n) for each n of DRAWS; of the mean of most draws the bias along the tensor, 95 % half-width."""

    way: Way
    errors: tuple[float, ...]
    bias: float
    half: float

    @property
    def slope(self) -> float:
        """Of log2 e against log2 n."""
        return round(slope(DRAWS, self.errors), 4) + 0.0  # never "-0"


def saved(seed: int = 0, size: int = SIZE) -> nm.BlockTensor:
    """Activations (size, size) as the forward saves them."""
    return nm.quantize(normal(seed, size, size), nm.NVFP4_46, outer="row")


def curve(q: nm.BlockTensor, way: Way, seed: int = 0) -> Curve:
    """The mean of requantizations of `q` along its other axis; draw i takes the random words of the key (seed, i)."""
    exact = q.dequantize()
    total, errors = torch.zeros_like(exact, dtype=torch.float64), []
    for i in range(max(DRAWS)):
        random = nm.Random((seed, i)) if way.rounding is STOCHASTIC else None
        new = nm.requantize(q, way.fmt, axis=-2, outer="multiply", rounding=way.rounding, random=random)
        total += new.dequantize()
        if i + 1 in DRAWS:
            errors.append(nm.metrics.error(exact, total / torch.full_like(total, i + 1)))
    return Curve(way, tuple(each.rel_mse for each in errors), errors[-1].bias, errors[-1].bias_interval)


def draw(curves: list[Curve]) -> Figure:
    """Errors of the mean against the number of draws: MXFP8 left, NVFP4 right."""
    with plots.style():
        figure, axes = plots.panels(2, height=3.2)
        for ax, name in zip(axes, ("MXFP8", "NVFP4"), strict=True):
            _curves(ax, [each for each in curves if each.way.name.startswith(name)], name)
        axes[0].set_ylabel("squared error of the mean / energy")
    return figure


def _curves(ax: Axes, curves: list[Curve], name: str) -> None:
    for each in curves:
        label = f"{each.way.name.removeprefix(name + ', ')}: slope {each.slope:.2f}"
        ax.plot(DRAWS, each.errors, each.way.look, color=each.way.colour, label=label)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(DRAWS, [str(n) for n in DRAWS])
    ax.set_xlabel("draws averaged, n")
    low, high = ax.get_ylim()
    ax.set_ylim(low / 8, high * 1.2)  # room for the legend
    ax.legend(loc="lower left", fontsize=7)
    ax.set_title(f"Requantized to {name}")


def largest(amax: float, rule: str, draws: int = 4096) -> dict[str, float]:
    """What `draws` stochastic roundings to MXFP8 make of a block's largest value: scale, mean, least, most."""
    x = torch.zeros(draws, 32)
    x[:, 0] = amax
    q = nm.quantize(x, nm.MXFP8, rule=rule, rounding=STOCHASTIC, random=nm.Random((0, 0)))
    values = q.dequantize()[:, 0].to(torch.float64)
    scale = float(nm.decode(q.scales[:1, 0], nm.E8M0))
    return {"scale": scale, "mean": float(values.mean()), "least": float(values.min()), "most": float(values.max())}


def rows(curves: list[Curve]) -> list[list[str]]:
    """One line for each way: error of one draw and of the mean of most, slope, bias."""
    found = []
    for c in curves:
        first, last = (f"{c.errors[place] * 1e3:.4f}" for place in (0, -1))
        found.append([c.way.name, first, last, f"{c.slope:.2f}", f"{c.bias * 1e3:+.2f} ± {c.half * 1e3:.2f}"])
    return found
