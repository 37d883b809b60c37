"""Does the backward operand keep the saved tensor's value, and at what price? Nearest against stochastic rounding.

A saved NVFP4 tensor becomes a backward operand by requantization to MXFP8 with blocks along its other axis. With T the
saved tensor's dequantized values and T_1, T_2, ... requantizations with independent random words,

    e(n) = sum (mean(T_1 .. T_n) - T)^2 / sum T^2

falls as e(1) / n exactly when rounding is unbiased value by value: slope -1 of log2 e against log2 n. Nearest rounding
has no random words, so every draw is the same tensor: slope 0, at its floor.

    activations   NVFP4, four-over-six, one outer scale per token, which varies along the new blocks: multiplied in
    weights       NVFP4, one outer scale per expert, which stays outside, exact

Data are standard normal. A seed gives the data and the random words, so seeds are independent, and intervals are
Student's over seeds, 95 %. Points of one seed share draws: n = 64 contains n = 32.

The worked example is the one in Thinking Machines Lab, "End-to-End 4-Bit Training" (2026): 5.4 in a block whose largest
magnitude is 54 is saved as 4.5; what it becomes in NVFP4 blocks of scale 2, and in MXFP8.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import numerics as nm
from reference.progress import Progress

from . import plots
from .interval import Interval, interval, listed, share_interval
from .result import Result, Study, Table, key_table

DRAWS = (1, 2, 4, 8, 16, 32, 64)
ROUNDINGS = {"stochastic": nm.Rounding.STOCHASTIC, "nearest": nm.Rounding.NEAREST_EVEN}
EXAMPLE_COPIES = 4096


@dataclass(frozen=True)
class Operand:
    """A kind of saved tensor: how one of `size` squared values is made, and what its outer scale does."""

    name: str
    make: Callable[[int, int], nm.BlockTensor]
    outer: str


def activations(seed: int, size: int) -> nm.BlockTensor:
    """Tokens (size, size), as the forward saves them."""
    return nm.quantize(_normal(seed, size, size), nm.NVFP4_46, outer="row")


def weights(seed: int, size: int) -> nm.BlockTensor:
    """Four experts (4, size / 2, size / 2), as the forward saves them."""
    return nm.quantize(_normal(seed, 4, size // 2, size // 2), nm.NVFP4, outer="leading")


OPERANDS = (Operand("activations", activations, "multiply"), Operand("weights", weights, "keep"))


def errors_of_mean(
    q: nm.BlockTensor, outer: str, rounding: nm.Rounding, seed: int, draws: tuple[int, ...] = DRAWS
) -> Iterator[tuple[int, nm.metrics.Error]]:
    """Error of the mean of the first n requantizations to MXFP8 along axis -2, against the values of `q`.

    Args:
        q: the saved tensor. outer: as in `nm.requantize`. rounding: NEAREST_EVEN or STOCHASTIC.
        seed: of the random words; draw i takes the key (seed, i). draws: ascending values of n.

    Yields:
        (n, error), as soon as it is known.
    """
    exact = q.dequantize()
    total = torch.zeros_like(exact, dtype=torch.float64)
    stochastic = rounding is nm.Rounding.STOCHASTIC
    drawn: torch.Tensor | None = None
    for draw in range(max(draws)):
        if drawn is None or stochastic:  # nearest takes no random words: the first draw is all draws
            random = nm.Random((seed, draw)) if stochastic else None
            drawn = nm.requantize(q, nm.MXFP8, axis=-2, outer=outer, rounding=rounding, random=random).dequantize()
        total += drawn
        if draw + 1 in draws:
            yield draw + 1, nm.metrics.error(exact, total / torch.full_like(total, draw + 1))


def slope(draws: tuple[int, ...], rel_mse: tuple[float, ...]) -> float:
    """Least-squares slope of log2 rel_mse against log2 draws."""
    return float(np.polyfit(np.log2(draws), np.log2(rel_mse), 1)[0])


def worked_example(copies: int, seed: int = 0) -> pd.DataFrame:
    """The article's example, on a real 32 x 16 tensor.

    Row 0 is a block of -54 and fifteen times 5.4; the other rows are 12, so that the new NVFP4 block of each of those
    fifteen columns has scale 12 / 6 = 2.

    Args:
        copies: how often the saved tensor is requantized, each time with other random words: 15 draws a copy.

    Returns:
        Columns stage, value, count, share, low, high (exact 95 % interval of the share), in the order of the stages.
    """
    x = torch.full((copies, 32, 16), 12.0)
    x[:, 0], x[:, 0, 0] = 5.4, -54.0
    saved = nm.quantize(x, nm.NVFP4, outer=None)
    stages = [("original", x), ("saved, NVFP4", saved.dequantize())]
    for fmt in (nm.NVFP4, nm.MXFP8):
        for name, rounding in ROUNDINGS.items():
            random = nm.Random((seed, 0)) if rounding is nm.Rounding.STOCHASTIC else None
            new = nm.requantize(saved, fmt, axis=-2, rounding=rounding, random=random)
            stages.append((f"{fmt.name}, {name}", new.dequantize()))
    rows = []
    for stage, values in stages:
        found, counts = values[:, 0, 1:].unique(return_counts=True)
        draws = int(counts.sum())
        for value, count in zip(found.tolist(), counts.tolist(), strict=True):
            # rounded, because float32's 5.4 is 5.400000095
            rows.append((stage, round(value, 6), count, count / draws, *share_interval(count, draws)))
    return pd.DataFrame(rows, columns=["stage", "value", "count", "share", "low", "high"])


def measure(size: int, seeds: tuple[int, ...]) -> pd.DataFrame:
    """One row per operand, rounding, seed and number of draws: the error of the mean."""
    rows = []
    with Progress(len(OPERANDS) * len(seeds) * len(ROUNDINGS) * max(DRAWS), "requantization") as progress:
        for operand in OPERANDS:
            for seed in seeds:
                q = operand.make(seed, size)
                for name, rounding in ROUNDINGS.items():
                    before = 0
                    for n, error in errors_of_mean(q, operand.outer, rounding, seed):
                        case = {"operand": operand.name, "rounding": name, "seed": seed, "draws": n}
                        rows.append(case | asdict(error))
                        progress.advance(n - before, f"{name} on {operand.name}, seed {seed}")
                        before = n
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> dict[str, dict[str, Interval]]:
    """For each "rounding on operand", intervals over seeds: slope, e(1), and e and bias of the mean of most draws."""
    found = {}
    for (operand, rounding), part in rows.groupby(["operand", "rounding"], sort=False):
        curves = part.pivot(index="seed", columns="draws", values="rel_mse")
        draws = tuple(int(n) for n in curves.columns)
        found[f"{rounding} on {operand}"] = {
            "slope": interval([slope(draws, tuple(curve)) for curve in curves.to_numpy()]),
            "error_of_one": interval(curves[draws[0]].tolist()),
            "error_of_most": interval(curves[draws[-1]].tolist()),
            "bias": interval(part[part.draws == draws[-1]].bias.tolist()),
        }
    return found


def find(rows: pd.DataFrame, example: pd.DataFrame) -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements."""
    found = summarize(rows)
    values, most = int(rows.n.iloc[0]), int(rows.draws.max())
    inside = {key: each["slope"].holds(-1) for key, each in found.items()}
    costs = []
    for operand in rows.operand.unique():
        one, floor = (found[f"{name} on {operand}"]["error_of_one"] for name in ("stochastic", "nearest"))
        last = found[f"stochastic on {operand}"]["error_of_most"]
        costs.append(
            f"{one.mean / floor.mean:.2f} times nearest's error on {operand} ({one.text(3, 1e3)} against "
            f"{floor.text(3, 1e3)} thousandths of the energy; the mean of {most}: {last.mean / floor.mean:.3f} times)"
        )
    return (
        _lead(found, most, rows.seed.nunique(), values),
        *(
            f"Log-log slope of the squared error of the mean of n = 1 to {most} draws: {_each(found, 'slope', 4)} "
            f"(95 % intervals over {rows.seed.nunique()} seeds of {values:,} normal values each).",
            _sides("The -1 of an unbiased quantizer", inside),
            f"One stochastic draw has {listed(costs)}.",
            f"Bias, the error of the mean of {most} draws projected on the tensor, in thousandths: "
            f"{_each(found, 'bias', 2, 1e3)}.",
            _sides("Zero bias", {key: each["bias"].holds(0) for key, each in found.items()}),
            _about_example(example),
        ),
    )


def _lead(found: dict[str, dict[str, Interval]], most: int, seeds: int, values: int) -> str:
    stochastic, nearest = (found[f"{name} on activations"] for name in ("stochastic", "nearest"))
    price = stochastic["error_of_one"].mean / nearest["error_of_one"].mean
    return (
        f"The squared error of the mean of n = 1 to {most} draws falls as n^{stochastic['slope'].mean:.2f} when "
        f"rounding is stochastic and as n^{round(nearest['slope'].mean, 2) + 0.0:g} when it is nearest ({seeds} seeds "
        f"of {values:,} values). "
        f"One stochastic draw has {price:.2f} times nearest's error."
    )


def rates(rows: pd.DataFrame) -> Table:
    """The key table: slope, error of one draw and of the mean of most, bias."""
    lines = [
        {
            "rounding": key.split(" on ")[0],
            "operand": key.split(" on ")[1],
            "slope": each["slope"].text(3),
            "error of one draw x 1e3": each["error_of_one"].text(3, 1e3),
            "of the mean of all x 1e3": each["error_of_most"].text(3, 1e3),
            "bias x 1e3": each["bias"].text(3, 1e3),
        }
        for key, each in summarize(rows).items()
    ]
    return key_table(
        pd.DataFrame(lines), "Squared error over the saved tensor's energy, slope against draws, and bias."
    )


def _each(found: dict[str, dict[str, Interval]], what: str, digits: int, factor: float = 1.0) -> str:
    told = {}
    for key, each in found.items():
        rounding, operand = key.split(" on ")
        told.setdefault(rounding, []).append(f"{each[what].text(digits, factor)} on {operand}")
    return "; ".join(f"{rounding} {listed(texts)}" for rounding, texts in told.items())


def _sides(what: str, inside: dict[str, bool]) -> str:
    """On which side of each interval `what` lies."""
    sides = {"inside": [key for key in inside if inside[key]], "outside": [key for key in inside if not inside[key]]}
    told = [f"{side} the interval of {listed(keys)}" for side, keys in sides.items() if keys]
    return f"{what} is {' and '.join(told)}."


def _about_example(example: pd.DataFrame) -> str:
    told = []
    for stage, part in example.groupby("stage", sort=False):
        shares = [
            f"{row.value:g}" + ("" if row.share == 1 else f" in {row.share:.1%} ({row.low:.1%} to {row.high:.1%})")
            for row in part.itertuples()
        ]
        mean = f", on average {(part.value * part.share).sum():.3f}" if len(part) > 1 else ""
        told.append(f"{stage} {listed(shares)}{mean}")
    return f"Worked example, {int(example['count'].iloc[0]):,} draws: {'; '.join(told)}."


def draw(rows: pd.DataFrame, example: pd.DataFrame) -> Figure:
    """The figure: error curves with their slopes, and the worked example on a number line."""
    with plots.style():
        figure, (left, right) = plots.panels(2, ratios=(1.15, 1))
        _draw_curves(left, rows)
        _draw_example(right, example)
    return figure


def _draw_curves(axes: Axes, rows: pd.DataFrame) -> None:
    found = summarize(rows)
    looks = {"activations": ("o", "-"), "weights": ("s", "--")}
    for (operand, rounding), part in rows.groupby(["operand", "rounding"], sort=False):
        curve = part.groupby("draws").rel_mse.mean()
        color = plots.BLUE if rounding == "stochastic" else plots.VERMILION
        marker, line = looks[operand]
        name = f"{rounding} on {operand}"
        label = f"{name}: slope {found[name]['slope'].text(3)}"
        axes.plot(curve.index, curve, line, marker=marker, color=color, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xticks(DRAWS, [str(n) for n in DRAWS])
    axes.set_xlabel("draws averaged, n")
    axes.set_ylabel("squared error of the mean / energy")
    axes.set_title("Requantized to MXFP8 along the other axis")
    axes.set_ylim(bottom=axes.get_ylim()[0] / 12)  # room for the legend
    axes.legend(loc="lower left", fontsize=7)


def _draw_example(axes: Axes, example: pd.DataFrame) -> None:
    stages = list(dict.fromkeys(example.stage))
    for y, stage in enumerate(reversed(stages)):
        part = example[example.stage == stage]
        color = plots.BLUE if "stochastic" in stage else plots.VERMILION if "nearest" in stage else plots.BLACK
        axes.scatter(part.value, [y] * len(part), s=130 * part.share, color=color, zorder=3)
        for value, share in zip(part.value, part.share, strict=True):
            text = f"{value:g}" if share == 1 else f"{value:g} ({share:.1%})"
            axes.annotate(text, (value, y), (0, 7), textcoords="offset points", ha="center", va="bottom")
        if len(part) > 1:
            mean = float((part.value * part.share).sum())
            axes.plot(mean, y, "|", color=color, markersize=12, markeredgewidth=1.5, zorder=4)
            axes.annotate(f"mean {mean:.2f}", (mean, y), (5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(stages)), list(reversed(stages)))
    axes.set_ylim(-0.7, len(stages) - 0.3)
    axes.set_xlim(3.5, 6.5)
    axes.set_xlabel("value")
    axes.set_title("What becomes of one value")
    axes.grid(axis="y", visible=False)


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 8 seeds of 512 x 512 values, or 5 of 256 x 256 when `fast`."""
    size, seeds = (256, tuple(range(5))) if fast else (512, tuple(range(8)))
    rows, example = measure(size, seeds), worked_example(EXAMPLE_COPIES)
    summary = {key: {name: asdict(value) for name, value in each.items()} for key, each in summarize(rows).items()}
    summary["worked_example"] = example.to_dict("records")
    caption = (
        "Left: squared error of the mean of n requantizations, relative to the saved tensor's energy, mean over "
        f"{len(seeds)} seeds; slopes with 95 % intervals over seeds. Right: the worked example, shares over "
        f"{int(example['count'].iloc[0]):,} draws; areas show shares, the bar their mean."
    )
    finding, *told = find(rows, example)
    tables = (rates(rows),)
    return Result(rows, draw(rows, example), caption, finding, seeds, summary, tables=tables, details=tuple(told))


STUDY = Study(
    name="requantization",
    title="Nearest against stochastic requantization",
    question="When a saved NVFP4 tensor is requantized to MXFP8 along its other axis for the backward products, does "
    "stochastic rounding keep its value on average where nearest rounding does not, and what does one draw cost?",
    run=run,
)


def _normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
