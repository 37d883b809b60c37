"""What do experts' outputs lose on their way back, by wire; and what does the transform cost the small values?

BF16, MXFP8 and S2F6 (MXINT8), the last two with and without a random Hadamard transform of 32 ("RHT"), as in
"End-to-End 4-Bit Training" (Thinking Machines Lab, 2026), which sends RHT + S2F6. Errors of outliers and of the other
values stand apart. MXFP8's error is relative: a large one for an outlier, none for its neighbours. The transform shares
the outlier's size out among 32 coefficients, whose common step in S2F6 then decides the error of every value.

Then bits on the wire, the order of the inverse transform and the aggregation, the transform's energy, and exponents.
Data and wires: `combine_data`; norms: `combine_norms`. Seeds give data and signs, so they are independent; intervals
are Student's over seeds, 95 %. Wires of one seed see the same data: sizes at which they are equal are found seed by
seed.
"""

import math
from dataclasses import asdict
from typing import Any

import pandas as pd

from reference.progress import Progress

from . import combine_data as data
from . import combine_draw
from .cache import part
from .combine_norms import NORMS, Parts, crossing, curves, small
from .combine_table import (
    PLAIN,
    ROTATED,
    SHARES,
    SHOWN,
    block_rms,
    errors_table,
    from_text,
    least_table,
    norms_table,
    published_table,
    share_text,
    sizes_table,
)
from .interval import interval, listed
from .result import Plate, Result, Study, Table, key_table


def summarize(trade: pd.DataFrame, errors: pd.DataFrame, order: pd.DataFrame) -> dict[str, Any]:
    """The finding's numbers, as JSON: intervals over seeds, sizes seed by seed (None: at no size)."""
    parts = ("outlier", "others", "total")
    sizes = {
        f"{count} in a share of {share:g} of the blocks": _finite(crossing(curves(trade, count, share, small), *_PAIR))
        for count in data.COUNTS
        for share in SHARES
    }
    norms = {name: _finite(crossing(curves(trade, 1, 1.0, norm), *_PAIR)) for name, norm in NORMS.items()}
    return {
        "errors": {
            wire: {what: asdict(interval(each[what].tolist())) for what in parts}
            for wire, each in errors.groupby("wire", sort=False)
        },
        "sizes_from_which_mxfp8_keeps_others_better": sizes,
        "sizes_from_which_mxfp8_is_ahead_by_norm": norms,
        "inverse_once_against_each": order.groupby(["how", "experts"])[["relative", "equal", "equal_bf16"]]
        .mean()
        .reset_index()
        .to_dict("records"),
    }


_PAIR = (ROTATED, PLAIN)


def _finite(sizes: list[float]) -> list[float | None]:
    return [size if math.isfinite(size) else None for size in sizes]


def find(trade: pd.DataFrame, errors: pd.DataFrame, order: pd.DataFrame) -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements."""
    return (
        _lead(trade, errors),
        _about_errors(errors),
        _about_totals(trade),
        _about_others(trade),
        _about_norms(trade),
        _about_outliers(trade),
        _about_order(order),
    )


def _lead(trade: pd.DataFrame, errors: pd.DataFrame) -> str:
    mean = errors.groupby("wire")[["outlier", "others"]].mean()
    told = [f"{mean.outlier[wire]:.3g} and {mean.others[wire]:.3g} in {wire}" for wire in ("MXFP8", ROTATED)]
    crossed = from_text(crossing(curves(trade, 1, 1.0, small), *_PAIR))
    return (
        f"One |{data.EXACT}| in each 32 normal numbers and its neighbours have root mean square errors of "
        f"{listed(told)} ({errors.seed.nunique()} seeds). By the size of the outlier MXFP8 keeps the neighbours better "
        f"{crossed}; the norm decides which wire wins."
    )


def _about_errors(errors: pd.DataFrame) -> str:
    told = []
    for wire, each in errors.groupby("wire", sort=False):
        outlier, others = (interval(each[what].tolist()) for what in ("outlier", "others"))
        told.append(f"{wire} {outlier.text(3)} and {others.text(4)}")
    bits = sorted({data.sent_bits(wire) for wire in data.WIRES if wire.fmt is not None})
    return (
        f"One |{data.EXACT}| in each block of 32 normal numbers ({errors.seed.nunique()} seeds of n = "
        f"{int(errors.n.iloc[0]):,} values; 95 % intervals) has, with the others of its block, root mean square errors "
        f"of {listed(told)}; BF16 takes {data.sent_bits(data.WIRES[0]):g} bits a value and the others "
        f"{listed(f'{each:g}' for each in bits)}."
    )


def _about_totals(trade: pd.DataFrame) -> str:
    table = least_table(trade).set_index("outliers in a block")
    cases = table.stack()
    told = [f"{wire} in {times} ({_by_count(table, wire)})" for wire, times in cases.value_counts().items()]
    return (
        f"In the root mean square over all values the least of the 8-bit wires is, of {len(cases)} cases of "
        f"{data.COUNTS[0]} to {data.COUNTS[-1]} outliers a block, {data.SIZES[0]} to {data.SIZES[-1]} standard "
        f"deviations large, {listed(told)}."
    )


def _by_count(table: pd.DataFrame, wire: str) -> str:
    times = (table == wire).sum(axis=1)
    return ", ".join(f"{times[count]} of {table.shape[1]} with {count}" for count in table.index)


def _about_others(trade: pd.DataFrame) -> str:
    by_count, squares, finite = [], [], False
    for count in data.COUNTS:
        found = crossing(curves(trade, count, 1.0, small), *_PAIR)
        by_count.append(f"{from_text(found)} for {count}")
        finite |= any(map(math.isfinite, found))
        squares += block_rms(count, [size for size in found if math.isfinite(size)])
    lost = from_text(crossing(curves(trade, 1, 1.0, small), ROTATED, 1.0))
    rare = [
        f"{from_text(crossing(curves(trade, 1, share, small), *_PAIR))} ({share_text(share)})" for share in SHARES[1:]
    ]
    where = f" (a root mean square of the block of {min(squares):.1f} to {max(squares):.1f})" if squares else ""
    return (
        f"{'The trade that no source states' if finite else 'There is no trade'}: the values beside outliers have a "
        f"larger error behind RHT + S2F6 than in plain MXFP8, by outlier size, {listed(by_count)} outliers a block"
        f"{where}, and an error above their own size {lost} for one; of all values that are no outliers this holds, "
        f"when fewer blocks hold one, {listed(rare)}."
    )


def _about_norms(trade: pd.DataFrame) -> str:
    sides: dict[str, list[str]] = {}
    for name, norm in NORMS.items():
        text = from_text(crossing(curves(trade, 1, 1.0, norm), *_PAIR))
        sides.setdefault(text, []).append(f'"{name}"')
    told = "; ".join(f"{side} in {listed(names)}" for side, names in sides.items())
    return f"The norm decides: with one outlier a block, up to {data.SIZES[-1]}, MXFP8 is ahead of RHT + S2F6 {told}."


def _loud(parts: Parts) -> float:
    return math.sqrt(parts.outliers["square"])


def _about_outliers(trade: pd.DataFrame) -> str:
    mean = curves(trade, 1, 1.0, _loud).groupby(["size", "wire"]).value.mean().unstack()
    finer = [size for size in mean.index if mean[ROTATED][size] < mean["BF16"][size]]
    at = mean.loc[SHOWN]
    return (
        f"The outlier's own error is {at[ROTATED]:.3f} behind RHT + S2F6 at a size of {SHOWN}, and {at['BF16']:.3f} in "
        f"BF16, in which the sum of experts is kept; it is below BF16's at {len(finer)} of {len(mean)} sizes"
        + (f" ({min(finer)} to {max(finer)})." if finer else ".")
    )


def _about_order(order: pd.DataFrame) -> str:
    told = []
    for how, each in order.groupby("how", sort=False):
        by_seed = each.groupby("seed")[["relative", "equal"]].mean()
        relative, equal = (interval(by_seed[name].tolist()) for name in ("relative", "equal"))
        told.append(f"{relative.text(2, 1e7)} and {equal.text(1, 100)} % as a {how}")
    same = order[order.how == "butterfly"].equal_bf16
    return (
        f"Inverting the weighted sum of {listed(map(str, sorted(order.experts.unique())))} experts once differs from "
        f"inverting each by a relative norm, in 1e-7, and leaves a share of equal FP32 values of {listed(told)}; in "
        f"BF16 {100 * same.mean():.2f} % are equal. The transform changes the energy by "
        f"{order.energy.abs().max():.0e} at most."
    )


def measure(blocks: int, tokens: int, seeds: tuple[int, ...]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The trade, the published case (16 times as many blocks) and the order: one part a seed, and experts."""
    trade, errors, order = [], [], []
    with Progress(len(seeds) * (2 + len(data.EXPERTS)), "combine") as progress:
        for seed in seeds:
            trade.append(part(data.trade_part, seed=seed, blocks=blocks))
            progress.advance(1, f"outliers, seed {seed}")
            errors.append(part(data.published_part, seed=seed, blocks=16 * blocks))
            progress.advance(1, f"published case, seed {seed}")
            for experts in data.EXPERTS:
                order.append(part(data.order_part, seed=seed, tokens=tokens, experts=experts))
                progress.advance(1, f"order, seed {seed}")
    frames = [pd.concat(each, ignore_index=True) for each in (trade, errors, order)]
    return frames[0], frames[1], frames[2]


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 8 seeds of 2^13 blocks a case, or 5 of 2^10 when `fast`."""
    blocks, tokens, seeds = (1 << 10, 64, tuple(range(5))) if fast else (1 << 13, 512, tuple(range(8)))
    trade, errors, order = measure(blocks, tokens, seeds)
    tables = (
        key_table(errors_table(errors), f"Root mean square errors with one |{data.EXACT}| in each block of 32."),
        Table("sizes", sizes_table(trade), "Outlier size from which MXFP8 keeps the other values better."),
        Table("least", least_table(trade), "The 8-bit wire with the least error of all values, by outlier size."),
        Table("norms", norms_table(trade), "Which wire is ahead depends on the norm: one outlier a block."),
        published_table(errors, order),
    )
    figure, caption = combine_draw.errors(trade)
    plates = (Plate("trade", *combine_draw.trade(trade)),)
    rows = pd.concat(
        [trade.assign(what="trade"), errors.assign(what="published"), order.assign(what="order")], ignore_index=True
    )
    summary = summarize(trade, errors, order)
    finding, *details = find(trade, errors, order)
    return Result(rows, figure, caption, finding, seeds, summary, "cpu", tables, plates, tuple(details))


STUDY = Study(
    name="combine",
    title="The wire of the combine",
    question="When experts' outputs travel back in BF16, MXFP8 or S2F6, with or without a random Hadamard transform, "
    "what becomes of outliers and of the other values, and in which norm does which wire win?",
    run=run,
)
