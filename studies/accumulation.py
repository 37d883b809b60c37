"""How far off are the sums inside tensor cores, and does it matter beside what quantization costs?

    growth      error against K for every accumulator that differs in arithmetic, on four kinds of data
    promotion   Hopper's FP8 register added to an FP32 one after every N products, or K cut into parts
    largest     the largest error at K = 4096 by several definitions, for what DeepSeek-V3 reports
    recipe      forward, dgrad and wgrad of the recipe: the share of the squared error that accumulation has

A tensor core cuts toward zero, so sums shrink. Where all products have one sign and are fine compared with the cut, a
register c = k m after k products of mean m loses half a unit 2^(e - F) of each next one, e its exponent; 2^e averages
c / (2 ln 2) over a binade, so that K products lose K 2^-(F+1) / (4 ln 2) of the sum: `expected_loss`. Products on a
coarse grid (FP8, FP4) lose less until the unit has outgrown that grid.

The reference is the exact sum rounded once to FP32, on the same quantized operands; for `recipe` the float64 product of
the unquantized BF16 ones. Intervals are Student's over seeds, 95 %. `accumulation_cases` measures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

import numerics as nm
from reference.progress import Progress

from . import accumulation_cases as cases
from . import accumulation_draw, cache
from .accumulation_published import about, published
from .interval import Interval, interval, listed, over_seeds
from .result import Plate, Result, Study, Table, key_table

Frames = dict[str, pd.DataFrame]
LARGEST_K = 4096  # that of the published observation
RECIPE_DATA = ("random", "one sign")


@dataclass(frozen=True)
class Size:
    """Contraction lengths, results a side, the same of the largest errors, contraction lengths of the recipe, seeds."""

    lengths: tuple[int, ...]
    side: int
    wide: int
    recipe: tuple[int, ...]
    seeds: tuple[int, ...]


FAST = Size((64, 256, 1024, 4096), 16, 64, (512, 4096), tuple(range(4)))
FULL = Size((64, 128, 256, 512, 1024, 2048, 4096, 8192), 32, 256, (512, 2048, 8192), tuple(range(8)))


def measure(at: Size) -> Frames:
    """A frame of each part, all seeds together."""
    plan: list[tuple[Any, dict[str, Any]]] = [
        *((cases.growth, {"size": at.side, "lengths": [k]}) for k in at.lengths),
        (cases.promotion, {"size": at.side, "k": LARGEST_K}),
        (cases.largest, {"size": at.wide, "k": LARGEST_K}),
        *((cases.recipe, {"size": 64, "k": k, "data": data}) for k in at.recipe for data in RECIPE_DATA),
    ]
    found: dict[str, list[pd.DataFrame]] = {}
    with Progress(len(plan) * len(at.seeds), "accumulation") as progress:
        for seed in at.seeds:
            for function, inputs in plan:
                found.setdefault(function.__name__, []).append(cache.part(function, seed=seed, **inputs))
                progress.advance(1, f"{function.__name__}, seed {seed}")
    return {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}


def expected_loss(k: int, fraction_bits: int) -> float:
    """Share of a sum of K fine products of one sign that cutting to F bits loses; see the module docstring."""
    return k * 2.0 ** -(fraction_bits + 1) / (4 * math.log(2))


def growth_exponent(rows: pd.DataFrame) -> Interval | None:
    """x of rms ~ K^x over the upper half of the lengths, for one accumulator and one kind of data; None: some are 0."""
    curves = rows.pivot(index="seed", columns="k", values="rms")
    lengths = len(curves.columns)
    curves = curves[curves.columns[min(lengths // 2, lengths - 2) :]]
    if (curves == 0).any(axis=None):
        return None
    return interval([float(np.polyfit(np.log2(curves.columns), np.log2(c), 1)[0]) for c in curves.to_numpy()])


def scientific(value: Interval) -> str:
    """`1.23e-4 ± 0.05e-4`, or 0."""
    if value.mean == 0 == value.half:
        return "0"
    power = math.floor(math.log10(abs(value.mean) or value.half))
    mean, half = (each / 10.0**power for each in (value.mean, value.half))
    return f"{mean:.2f}e{power} ± {half:.2f}e{power}"


def negated(value: Interval) -> Interval:
    """Of the negative quantity."""
    return Interval(-value.mean, value.half)


def find(frames: Frames) -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements."""
    rows = frames["growth"]
    n = f"95 % intervals over {rows.seed.nunique()} seeds of {int(rows.n.iloc[0]):,} results each"
    told = [
        _about_growth(rows),
        _about_loss(rows),
        _about_promotion(frames["promotion"]),
        _about_recipe(frames["recipe"]),
    ]
    return (_lead(frames), *told, about(frames), f"{n}; the recipe's products have 64 x 64.")


def _lead(frames: Frames) -> str:
    rows, promotion, recipe = frames["growth"], frames["promotion"], frames["recipe"]
    k = int(rows.k.max())
    rms = over_seeds(rows[rows.data == "random"], ["accumulator", "k"], "rms")["hopper_fp8", k]
    bias = over_seeds(rows[rows.data == "one sign"], ["accumulator", "k"], "bias")["hopper_fp8", k]
    kept = over_seeds(promotion[promotion.data == "one sign"], ["every"], "bias")[128,]
    own = recipe[recipe["product"] != "plain FP8"].groupby(["product", "route", "data", "k"]).share.mean()
    return (
        f"At K = {k} Hopper's FP8 accumulator errs by {scientific(rms)} of the product on random data and loses "
        f"{negated(bias).text(2, 100)} % of a sum of one sign, {negated(kept).text(3, 100)} % when promoted every 128 "
        f"at K = {LARGEST_K}. Of the recipe's squared error accumulation has at most {own.max():.1e}."
    )


def _about_growth(rows: pd.DataFrame) -> str:
    top = int(rows.k.max())
    last = rows[rows.k == top]
    rms = over_seeds(last, ["accumulator", "data"], "rms")
    told = []
    for name in ("hopper_fp8", "hopper_bf16", "blackwell_mxfp8", "blackwell_nvfp4"):
        told.append(f"{name} {' / '.join(scientific(rms[name, data]) for data in cases.DATA)}")
    best = [
        name
        for name in cases.CASES
        if name not in ("fp32", "library") and all(rms[name, d].mean <= rms["fp32", d].mean for d in cases.DATA)
    ]
    exact = [name for name in cases.CASES if (rows[rows.accumulator == name].rms == 0).all()]
    words = (
        f"Root mean square error over product at K = {top}, for {' / '.join(cases.DATA)} data: {'; '.join(told)}. "
        f"{listed(best) if best else 'No tensor core'} {'errs' if len(best) < 2 else 'err'} no more than FP32 sums in "
        "order of k on any of them"
    )
    return words + (f"; {listed(exact)} {'is' if len(exact) == 1 else 'are'} exact at every K." if exact else ".")


def _about_loss(rows: pd.DataFrame) -> str:
    top = int(rows.k.max())
    one = rows[(rows.data == "one sign")]
    bias = over_seeds(one[one.k == top], ["accumulator"], "bias")
    cut = [name for name in cases.CASES if nm.ACCUMULATORS[name].rule == "fused"]
    short = [name for name in cut if bias[name,].mean + bias[name,].half < 0]
    told = (
        f"Sums of one sign come out {'short' if len(short) == len(cut) else 'not always short'}, significantly so "
        f"under {len(short)} of {len(cut)} fused accumulators"
    )
    fp8, bf16 = bias["hopper_fp8",], negated(bias["hopper_bf16",])
    row = nm.ACCUMULATORS["hopper_fp8"]
    assert row.fraction_bits is not None
    exponents = [growth_exponent(rows[(rows.accumulator == "hopper_fp8") & (rows.data == d)]) for d in cases.DATA[:2]]
    shown = listed(f"{'0' if x is None else x.text(2)} on {d}" for x, d in zip(exponents, cases.DATA, strict=False))
    return (
        f"{told}: hopper_fp8 by {negated(fp8).text(2, 100)} % (half a unit lost of each product would be "
        f"{100 * expected_loss(top, row.fraction_bits):.1f} %), "
        f"hopper_bf16 by {scientific(bf16)}. "
        f"The error of hopper_fp8 grows as K to the power {shown} data."
    )


def _about_promotion(rows: pd.DataFrame) -> str:
    k = int(rows.k.iloc[0])
    rms = over_seeds(rows, ["every", "data"], "rms")
    told = [
        f"{data} {100 * rms[k, data].mean:.3g} % never, {100 * rms[128, data].mean:.3g} % every 128, "
        f"{100 * rms[32, data].mean:.3g} % every 32 ({rms[k, data].mean / rms[128, data].mean:.0f} and "
        f"{rms[k, data].mean / rms[32, data].mean:.0f} times less)"
        for data in cases.DATA
    ]
    bias = over_seeds(rows[rows.data == "one sign"], ["every"], "bias")
    same = "the same bits as" if rows.split_equals.all() else "other bits than"
    return (
        f"Promotion of hopper_fp8 at K = {k}: {'; '.join(told)}. With one sign {negated(bias[128,]).text(3, 100)} % of "
        f"the sum stay lost at 128. K cut into K / N parts gives {same} promotion every N."
    )


def _about_recipe(rows: pd.DataFrame) -> str:
    own = rows[rows["product"] != "plain FP8"]
    keys = ["product", "route", "data", "k"]
    means = own.groupby(keys, sort=False)[["share", "increase"]].mean()
    told = []
    for data, part in means.groupby(level="data", sort=False):
        worst = part.share.groupby(level="route", sort=False).max()
        shown = [f"{share:.1e} ({route})" if share else f"none ({route})" for route, share in worst.items()]
        told.append(f"{listed(shown)} on {data} data")
    at = own.set_index(keys).loc[means.increase.abs().idxmax()]
    product, route, data, k = at.index[0]
    small = means.share.max() < 1e-3 and means.increase.abs().max() < 0.02
    plain = rows[(rows["product"] == "plain FP8") & (rows.k == rows.k.max())]
    share = over_seeds(plain, ["route", "data"], "share")
    contrast = [f"{share[key].text(3, 100)} % ({', '.join(key)})" for key in share]
    return (
        f"Share of the recipe's squared error that accumulation has, at most over products and K: {'; '.join(told)}. "
        f"What it changes most is the total of {product} on {data} data with {route}, K = {k}: by "
        f"{interval(at.increase.tolist()).text(3, 100)} %; beside quantization the accumulator "
        f"{'hardly matters' if small else 'matters'} there. The contrast is FP8 without block scales, whose register "
        f"may run on: {listed(contrast)} at K = {int(rows.k.max())}."
    )


def tables(frames: Frames) -> tuple[Table, ...]:
    """For readers."""
    each = _accumulators(frames["growth"])
    return (
        key_table(each[each.accumulator.isin(_KEY)].drop(columns=["also", "L", "F"]), _ACCUMULATORS),
        Table("accumulators", each, _ACCUMULATORS),
        Table("promotion", _shown(frames["promotion"], ["data", "every"], ("rms", "bias")), _PROMOTION),
        Table("recipe", _shown(frames["recipe"], ["product", "route", "data", "k"], _PARTS), _RECIPE),
        published(frames),
    )


_KEY = ("fp32", "hopper_bf16", "hopper_fp8", "blackwell_mxfp8", "blackwell_nvfp4")
_PARTS = ("total", "quantization", "accumulation", "cross", "share", "increase")
_ACCUMULATORS = (
    "Root mean square error over product at the largest K, signed error on one sign, and the power of K that errors on "
    "random data grow with; each line stands for all accumulators that share its arithmetic."
)
_PROMOTION = f"hopper_fp8 at K = {LARGEST_K}, promoted every so many products: error and signed error over the product."
_RECIPE = (
    "Squared error over the energy of the unquantized product: total = quantization + accumulation + cross; increase "
    "is total / quantization - 1."
)


def _accumulators(rows: pd.DataFrame) -> pd.DataFrame:
    top = int(rows.k.max())
    last = rows[rows.k == top]
    rms, bias = (over_seeds(last, ["accumulator", "data"], column) for column in ("rms", "bias"))
    lines = []
    for name in cases.CASES:
        row = nm.ACCUMULATORS[name]
        exponent = growth_exponent(rows[(rows.accumulator == name) & (rows.data == "random")])
        others = [o for o in nm.ACCUMULATORS if o != name and cases.arithmetic(o) == cases.arithmetic(name)]
        line = {"accumulator": name, "also": ", ".join(others), "L": row.length, "F": row.fraction_bits}
        line |= {f"{data}, K = {top}": scientific(rms[name, data]) for data in cases.DATA}
        line |= {"one sign, signed": scientific(bias[name, "one sign"])}
        line |= {"power of K": "" if exponent is None else exponent.text(2)}
        lines.append({key: "" if value is None else str(value) for key, value in line.items()})
    return pd.DataFrame(lines)


def _shown(rows: pd.DataFrame, keys: list[str], columns: tuple[str, ...]) -> pd.DataFrame:
    found = {column: over_seeds(rows, keys, column) for column in columns}
    return pd.DataFrame(
        dict(zip(keys, key, strict=True)) | {column: scientific(found[column][key]) for column in columns}
        for key in found[columns[0]]
    )


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 8 seeds and K to 8192, or 4 and K to 4096 when `fast`."""
    at = FAST if fast else FULL
    frames = measure(at)
    rows = pd.concat([frame.assign(part=name) for name, frame in frames.items()], ignore_index=True)
    figure, caption = accumulation_draw.growth(frames["growth"])
    plates = [Plate(name, *draw(frames[name])) for name, draw in accumulation_draw.PLATES.items()]
    shown = tables(frames)
    summary = {table.name: table.frame.to_dict("records") for table in shown}
    found, *details = find(frames)
    return Result(
        rows, figure, caption, found, at.seeds, summary, tables=shown, plates=tuple(plates), details=tuple(details)
    )


STUDY = Study(
    name="accumulation",
    title="Sums inside tensor cores",
    question="How far are the sums of each tensor core from exact ones as K grows, what does promotion repair, and "
    "what share of the recipe's error is accumulation?",
    run=run,
)
