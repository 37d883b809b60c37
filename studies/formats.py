"""What do the formats hold? Grids, spacing, range and size, read off every code; and how precise a block's values are.

    grid              every value of the element format, by decoding every code
    spacing           (next value - value) / value
    range of a block  largest / smallest non-zero magnitude of an element
    range             smallest and largest of |code value * scale value * outer|, every code with every scale
    bits per value    element bits + scale bits / values that share the scale

A format with E4M3 scales is decoded through a `BlockTensor` that holds every code with every scale. E8M0 scales span
more than float32, in which tensors are decoded: those products are formed in float64, exactly.

"6.25 % of values at near 8-bit precision" (arXiv 2509.25149, section 2): the largest of 16 values is mapped to the
element format's own maximum, so its error is that of its scale. Standard normal values in blocks, a tensor a seed,
are quantized and their squared error taken by rank within the block, rank 1 the largest magnitude:

    QSNR of rank r = -10 log10( sum (x_q - x)^2 / sum x^2 ),  sums over the r-th largest value of every block

Seeds are independent tensors; intervals are Student's over seeds, 95 %.
"""

import math

import pandas as pd
import torch

import numerics as nm
from reference.progress import Progress

from . import cache, formats_draw, published
from .formats_draw import ELEMENTS
from .formats_grids import BLOCKS, OUTERS, grid, magnitudes, of_blocks, of_elements, reach
from .interval import Interval, interval, listed, stated
from .published import compared
from .result import Plate, Result, Study, Table, key_table

RANKED = ("NVFP4", "NVFP4_46", "MXFP8")
NEAR = 3.0  # dB: half a bit
CHUNK = 16  # values whose ranks are compared, those that share a scale of NVFP4


def ranks(seed: int, rows: int, columns: int) -> pd.DataFrame:
    """QSNR by rank within blocks of 16: columns format, seed, rank, values, energy,
    rel_mse, qsnr. Rank 0: all values."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    order = x.unflatten(1, (-1, CHUNK)).abs().argsort(dim=-1, descending=True, stable=True)
    found = []
    for name in RANKED:
        values = nm.quantize(x, nm.BLOCK_FORMATS[name]).dequantize()
        both = [t.unflatten(1, (-1, CHUNK)).gather(-1, order) for t in (x, values)]
        for rank in range(CHUNK + 1):
            of = (x, values) if rank == 0 else tuple(t[..., rank - 1] for t in both)
            error = nm.metrics.error(*of)
            energy = float(of[0].double().square().sum())
            found.append((name, seed, rank, error.n, energy, error.rel_mse, error.qsnr))
    return pd.DataFrame(found, columns=["format", "seed", "rank", "values", "energy", "rel_mse", "qsnr"])


def by_rank(rows: pd.DataFrame) -> dict[str, list[Interval]]:
    """For each format the QSNR of all values, then of ranks 1 to 16."""
    found = {}
    for name, part in rows.groupby("format", sort=False):
        curves = part.pivot(index="seed", columns="rank", values="qsnr")
        found[str(name)] = [interval(curves[rank].tolist()) for rank in curves.columns]
    return found


def share_of_first(rows: pd.DataFrame) -> float:
    """Share of values that are the largest of their block."""
    part = rows[rows.format == rows.format.iloc[0]]
    return float(part[part["rank"] == 1]["values"].sum() / part[part["rank"] == 0]["values"].sum())


def claims(rows: pd.DataFrame) -> Table:
    """Published numbers beside those read off the codes."""
    article, spec = (
        "Thinking Machines Lab, End-to-End 4-Bit Training (2026)",
        "OCP Microscaling Formats v1.0, section 5",
    )
    nvidia = "arXiv 2509.25149, section 2"
    found = []
    for outer, low, high in ((1.0, -10, 2688.0), (2.0, -9, 5376.0), (0.5, -11, 1344.0)):
        each = magnitudes(nm.NVFP4, outer)
        for what, at, value in (("smallest", 0, 2.0**low), ("largest", -1, high)):
            quantity = f"NVFP4, outer scale {outer:g}, {what} magnitude"
            found.append(compared(quantity, float(each[at]), value, article))
    fewer = nm.BF16.bits / nm.NVFP4.bits_per_value
    gaps = grid(nm.E2M1).value.to_numpy()
    second = float(100 * gaps[-2] / gaps[-1])
    e4m3 = grid(nm.E4M3)
    middle = 1 + e4m3[e4m3.normal].spacing.max() / 2  # the most that a normal scale is rounded down from
    worst, first = "E4M3, worst rounding down of a normal value", "share of values that are the largest of 16, %"
    found += [
        compared("NVFP4, bits per value", nm.NVFP4.bits_per_value, 4.5, nvidia),
        compared("S2F6 with one scale per 32, bits per value", nm.MXS2F6.bits_per_value, 8.25, article),
        compared("MXFP8, bits per value", nm.MXFP8.bits_per_value, 8.25, spec),
        compared("BF16 bits over NVFP4 bits", fewer, 3.6, article, absolute=0.05),
        compared("S2F6, least value", nm.S2F6.min, -2.0, article),
        compared("S2F6, largest value", nm.S2F6.max, 127 / 64, article),
        compared("E4M3, largest value", nm.E4M3.max, 448.0, spec),
        compared("E2M1, largest value", nm.E2M1.max, 6.0, spec),
        compared("E2M1, second largest over largest, %", second, 66.7, "arXiv 2512.02010, section 3", absolute=0.05),
        compared(worst, 1 / middle, 16 / 17, "arXiv 2601.22813, section 3"),
        compared(first, 100 * share_of_first(rows), 6.25, nvidia),
    ]
    return published.table(found, "What others say of the formats, beside what every code gives:")


def find(rows: pd.DataFrame, table: Table) -> tuple[str, ...]:
    """The finding and its details, in words, from the codes and the measurements."""
    low, high = magnitudes(nm.NVFP4)[[0, -1]].tolist()
    seeds, values = rows.seed.nunique(), int(rows[rows["rank"] == 0]["values"].iloc[0])
    return (
        f"NVFP4 holds magnitudes from 2^{math.log2(low):g} to {high:g}, {math.log2(high / low):.1f} binades, which its "
        f"outer scale moves, in {nm.NVFP4.bits_per_value:g} bits a value. " + _lead(rows),
        *(
            f"NVFP4 takes {nm.NVFP4.bits_per_value:g} bits a value, {nm.BF16.bits / nm.NVFP4.bits_per_value:.2f} times "
            f"fewer than BF16; MXFP8 takes {nm.MXFP8.bits_per_value:g}.",
            f"Inside one block the largest magnitude is at most {reach(nm.E2M1):g} times the smallest in NVFP4, "
            f"{reach(nm.S2F6):g} in S2F6 and {reach(nm.E4M3):,.0f} in MXFP8.",
            _about_first(rows),
            _about_choice(rows),
            f"Normal values, {seeds} seeds of {values:,}, 95 % intervals over seeds.",
            published.agreement(table.frame),
        ),
    )


def _lead(rows: pd.DataFrame) -> str:
    (_, first, *_), eight = by_rank(rows)["NVFP4"], by_rank(rows)["MXFP8"][1]
    return (
        f"The largest value of each block has {stated(first)} dB, in MXFP8 {stated(eight)}; all others have "
        f"{stated(_rest(rows, 'NVFP4'))} ({rows.seed.nunique()} seeds)."
    )


def _about_first(rows: pd.DataFrame) -> str:
    """Whether the largest value of each block, and no other, is as precise as MXFP8 makes it."""
    found = by_rank(rows)
    (_, first, *others), eight = found["NVFP4"], found["MXFP8"][1]
    gap = first.mean - eight.mean
    holds, best = gap >= -NEAR, max(other.mean for other in others)
    alone = best < eight.mean - NEAR
    verdict = "holds" if holds else "does not hold"
    if holds:
        verdict += f" for {'that value alone' if alone else 'others as well'}, the next best rank having {best:.1f} dB"
    return (
        f"The largest value of each block, {100 * share_of_first(rows):g} % of all, has {stated(first)} dB where MXFP8 "
        f"gives the same values {stated(eight)}, and all others together have {stated(_rest(rows, 'NVFP4'))}: that "
        f"this share is kept at near 8-bit precision, taken as at most {NEAR:g} dB below MXFP8, {verdict}."
    )


def gains(rows: pd.DataFrame) -> list[Interval]:
    """What four-over-six gains on NVFP4, dB, paired by seed: of all values, then of ranks 1 to 16."""
    curves = rows.pivot(index=["rank", "seed"], columns="format", values="qsnr")
    differences = curves["NVFP4_46"] - curves["NVFP4"]
    return [interval(part.tolist()) for _, part in differences.groupby(level="rank")]


def _about_choice(rows: pd.DataFrame) -> str:
    """Which ranks four-over-six raises and which it lowers, outside their intervals."""
    everything, *ranked = gains(rows)
    words = [f"Four-over-six changes the QSNR of all values by {stated(everything)} dB"]
    for word, sign, extreme in (("raises", 1, max), ("lowers", -1, min)):
        moved = {rank: gain for rank, gain in enumerate(ranked, 1) if sign * gain.mean > gain.half}
        if moved:
            most = extreme(moved, key=lambda rank: moved[rank].mean)
            by = Interval(sign * moved[most].mean, moved[most].half)
            words.append(
                f"{word} {'ranks' if len(moved) > 1 else 'rank'} {_runs(list(moved))} (rank {most} by {stated(by)} dB)"
            )
    return f"{listed(words)}."


def _runs(numbers: list[int]) -> str:
    """`1, 3 to 5` of ascending numbers."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True))


def _rest(rows: pd.DataFrame, name: str) -> Interval:
    """QSNR of everything but the largest value of each block: energies from n, and ratios, of all and of rank 1."""
    return interval([_without_first(part) for _, part in rows[rows.format == name].groupby("seed")])


def _without_first(part: pd.DataFrame) -> float:
    ratio = part.set_index("rank").rel_mse
    energy = part.set_index("rank").energy
    error = ratio * energy
    return -10 * math.log10((error[0] - error[1]) / (energy[0] - energy[1]))


def run(fast: bool) -> Result:
    """Read every code; measure 8 seeds of 1024 x 1024 values, or 5 of 256 x 512 when `fast`."""
    (lines, columns), seeds = ((256, 512), tuple(range(5))) if fast else ((1024, 1024), tuple(range(8)))
    parts = []
    with Progress(len(seeds), "formats") as progress:
        for seed in seeds:
            parts.append(cache.part(ranks, seed=seed, rows=lines, columns=columns))
            progress.advance(1, f"seed {seed}")
    rows = pd.concat(parts, ignore_index=True)
    grids = pd.concat([grid(fmt) for fmt in ELEMENTS], ignore_index=True)
    table = claims(rows)
    blocks = of_blocks()
    tables = (
        key_table(blocks.frame, blocks.caption),
        of_elements(),
        table,
        Table("grids", grids, "Every positive value of the element formats."),
    )
    ranges = {f"{name}": magnitudes(nm.BLOCK_FORMATS[name])[[0, -1]].tolist() for name in BLOCKS}
    found = by_rank(rows)
    plate = Plate("ranks", formats_draw.draw_ranks(found), _rank_caption(found, len(seeds)))
    caption = (
        "Left: every positive value of each element format over its largest one, on a scale of powers of two; right: "
        "the step from each value to the next over the value, saw-toothed in floating point, inversely proportional "
        f"in fixed point, where small values lose their precision instead. {_steps(grids)} E5M2 goes on to "
        f"2^-{math.log2(reach(nm.E5M2)):.1f}."
    )
    summary = {"ranges": ranges, "qsnr_by_rank": {name: [i.mean for i in each] for name, each in found.items()}}
    wide = Plate("ranges", formats_draw.draw_ranges(BLOCKS, OUTERS, magnitudes), _range_caption())
    finding, *told = find(rows, table)
    figure = formats_draw.draw_grids(grids)
    return Result(rows, figure, caption, finding, seeds, summary, "cpu", tables, (wide, plate), tuple(told))


def _steps(grids: pd.DataFrame) -> str:
    """What the figure's right side shows, in numbers: steps over values, of normal values where there are others."""
    shown = grids[grids.normal & grids.spacing.notna()].groupby("format").spacing.agg(["min", "max"])
    told = [
        f"{shown.loc[name, 'min']:.1%} to {shown.loc[name, 'max']:.1%} in {name}" for name in ("E2M1", "E4M3", "S2F6")
    ]
    return f"A step is {listed(told)} of a value that is not subnormal."


def _rank_caption(found: dict[str, list[Interval]], seeds: int) -> str:
    _, first, second, *_, last = found["NVFP4"]
    eight = [each.mean for each in found["MXFP8"][1:]]
    return (
        f"QSNR of the r-th largest of {CHUNK} values: NVFP4 has {first.mean:.1f} dB for the largest, {second.mean:.1f} "
        f"for the next and {last.mean:.1f} for the smallest, MXFP8 {min(eight):.1f} to {max(eight):.1f} for all; mean "
        f"over {seeds} seeds, 95 % intervals where they exceed the markers."
    )


def _range_caption() -> str:
    low, high = magnitudes(nm.NVFP4)[[0, -1]].tolist()
    return (
        "What each block format reaches with all its scales, and within one block (dark): NVFP4 "
        f"{math.log2(high / low):.1f} binades, of which a block spans {math.log2(reach(nm.E2M1)):.1f}; "
        "the outer scale moves them."
    )


STUDY = Study(
    name="formats",
    title="What the formats hold",
    question="Which values do the 4-, 6- and 8-bit formats hold, how far do they reach and what do they cost, and are "
    "6.25 % of NVFP4's values kept at near 8-bit precision?",
    run=run,
)
