"""Where does a block Hadamard transform before quantization help, and where does it hurt?

    gain = QSNR(quantize(H S x)) - QSNR(quantize(x)), dB

for every block format, by the size of outliers, by the length of the transform, and by its signs S: random, as in
"End-to-End 4-Bit Training" (Thinking Machines Lab, 2026) and most recipes, or all +1 ("deterministic", as in arXiv
2605.09825). INT and FP elements of equal width are compared before and after, beside the crest factors at which arXiv
2510.25602 finds them equal. Data and transforms: `hadamard_data`.

A seed gives data and signs, so seeds are independent; intervals are Student's over seeds, 95 %. Comparisons of one seed
share its data: their differences are taken seed by seed.
"""

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from reference.progress import Progress

from . import hadamard_data as data
from . import hadamard_draw
from .cache import part
from .hadamard_table import (
    NEAR,
    PAIRS,
    QSNR,
    claims_table,
    constants_table,
    gains_table,
    published_table,
    signs_table,
    winners_table,
)
from .interval import Interval, interval, listed
from .result import Plate, Result, Study, Table, key_table

MEASURED = 32  # the transform of the combine, whose gains the finding states


def gain(rows: pd.DataFrame, size: int) -> Interval:
    """Interval over seeds of QSNR with the transform of `size` less QSNR without. rows: of one format and data."""
    qsnr = rows.pivot(index="seed", columns="size", values="qsnr")
    return interval((qsnr[size] - qsnr[0]).tolist())


def gains(rows: pd.DataFrame, size: int = MEASURED) -> dict[str, dict[int, Interval]]:
    """{format: {outlier size: gain}} of `data.outlier_part`'s rows."""
    found: dict[str, dict[int, Interval]] = {}
    for (name, outlier), each in rows.groupby(["format", "outlier"], sort=False):
        found.setdefault(name, {})[outlier] = gain(each, size)
    return found


def sign_ratio(rows: pd.DataFrame) -> Interval:
    """Error with random over error with deterministic signs, log2 of mean squares, over seeds. rows: of one format and
    offset."""
    square = rows.assign(square=rows.rms_error**2).groupby(["seed", "signs"]).square.mean().unstack()
    return interval(np.log2(square["random"] / square["deterministic"]).tolist())


def verdict(found: Interval) -> int:
    """1 or -1 where the whole interval lies above or below zero, else 0."""
    return 0 if found.holds(0) else 1 if found.mean > 0 else -1


def summarize(outliers: pd.DataFrame, tails: pd.DataFrame, signs: pd.DataFrame) -> dict[str, Any]:
    """The finding's numbers, as JSON."""
    at = {name: {str(k): asdict(v) for k, v in each.items()} for name, each in gains(outliers).items()}
    shape = {
        f"{name} on {kind}": asdict(gain(each, MEASURED))
        for (kind, name), each in tails.groupby(["data", "format"], sort=False)
    }
    ratio = {
        f"{name} at offset {offset}": asdict(sign_ratio(each))
        for (name, offset), each in signs.groupby(["format", "offset"], sort=False)
    }
    return {"gain_by_outlier": at, "gain_by_tail": shape, "log2_random_over_deterministic": ratio}


def find(
    outliers: pd.DataFrame,
    tails: pd.DataFrame,
    signs: pd.DataFrame,
    constants: pd.DataFrame,
) -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements."""
    return (
        f"{_about_normal(outliers)} {_about_largest(outliers)}",
        _about_tails(tails),
        _about_outliers(outliers),
        _about_winners(outliers),
        _about_signs(signs, constants),
    )


def _about_largest(outliers: pd.DataFrame) -> str:
    size = max(outliers.outlier)
    at = {name: each[size] for name, each in gains(outliers).items()}
    told = [f"{name} {at[name].text(1)}" for name in ("MXINT8", "MXFP8", "NVFP4")]
    return f"With one outlier of {size} standard deviations a block, one of {MEASURED} gains {listed(told)} dB."


def _about_normal(outliers: pd.DataFrame) -> str:
    plain = outliers[outliers.outlier == 0]
    found = {(name, size): gain(each, size) for name, each in plain.groupby("format") for size in data.SIZES[1:]}
    worst = max(found.values(), key=lambda each: abs(each.mean))
    n, seeds = int(plain.n.iloc[0]), plain.seed.nunique()
    return (
        f"On normal numbers no transform of {data.SIZES[1]} to {data.SIZES[-1]} moves the QSNR of any format by more "
        f"than {abs(worst.mean):.2f} dB ({worst.text(2)}; {seeds} seeds of n = {n:,} values)."
    )


def _about_tails(tails: pd.DataFrame) -> str:
    part_ = tails[tails.data == "Student-t"]
    told = [f"{name} {gain(each, MEASURED).text(2)}" for name, each in part_.groupby("format", sort=False)]
    crests = part_[part_.format == "MXFP8"].groupby("size").crest_median.mean()
    return (
        f"On Student-t numbers whose blocks of 32 have the published median crest factor (here {crests[0]:.2f}, and "
        f"{crests[MEASURED]:.2f} behind the transform) a random transform of {MEASURED} gains, in dB, {listed(told)}; "
        f"{_about_published(part_)}."
    )


def _about_published(student: pd.DataFrame) -> str:
    mean = student.groupby(["format", "size"]).qsnr.mean()
    off = {
        (name, size): float(mean[name, size]) - value
        for name, values in QSNR.items()
        for size, value in zip((0, MEASURED), values, strict=True)
    }
    near = sum(abs(each) <= NEAR for each in off.values())
    (name, size), most = max(off.items(), key=lambda item: abs(item[1]))
    return (
        f"of the {len(off)} published QSNR of real tensors, {near} lie within {NEAR} dB of these data's, and the "
        f"farthest is that of {name} {'behind' if size else 'without'} the transform, {-most:+.2f} dB from here"
    )


def _about_outliers(outliers: pd.DataFrame) -> str:
    kinds: dict[str, list[str]] = {"gain": [], "lose": [], "do either": []}
    for name, each in gains(outliers).items():
        large = {size: found for size, found in each.items() if size > 0}
        ranks = {verdict(found) for found in large.values()}
        low, high = (pick(large.items(), key=lambda item: item[1].mean) for pick in (min, max))
        text = f"{name} ({low[1].mean:+.1f} dB at {low[0]} to {high[1].mean:+.1f} at {high[0]})"
        kinds["gain" if ranks <= {0, 1} else "lose" if ranks <= {0, -1} else "do either"].append(
            text.replace("-0.0", "0.0")
        )
    one = {"gain": "gains", "lose": "loses", "do either": "does either"}
    told = [f"{listed(names)} {kind if len(names) > 1 else one[kind]}" for kind, names in kinds.items() if names]
    return (
        f"With one outlier in {data.SPACING} values, {min(data.OUTLIERS[1:])} to {max(data.OUTLIERS)} standard "
        f"deviations large: {'; '.join(told)}."
    )


def _about_winners(outliers: pd.DataFrame) -> str:
    table = winners_table(outliers)
    told = []
    for pair in PAIRS:
        counts = table[table["pair"] == pair.name].set_index("transform")["INT ahead at"]
        told.append(f"{pair.name} {counts['none']} before and {counts[str(MEASURED)]} after")
    return f"The integer of a pair has the higher QSNR, of {len(data.OUTLIERS)} outlier sizes, in: {listed(told)}."


def _signs_apart(signs: pd.DataFrame) -> str:
    """At which offsets deterministic signs have less or more error than random ones, outside the interval."""
    told = []
    for name in hadamard_draw.SIGN_FORMATS:
        each = signs[signs.format == name]
        ranks = {offset: verdict(sign_ratio(rows)) for offset, rows in each.groupby("offset") if offset > 0}
        sides = [(word, [str(m) for m in ranks if ranks[m] == side]) for word, side in (("less", 1), ("more", -1))]
        text = " and ".join(f"{word} at m = {', '.join(at)}" for word, at in sides if at)
        told.append(f"{name} {text or 'no other at any m'}")
    return "; ".join(told)


def _about_signs(signs: pd.DataFrame, constants: pd.DataFrame) -> str:
    square = signs[signs.offset > 0].assign(square=signs.rms_error**2)
    mean = square.groupby(["format", "offset", "signs"]).square.mean().unstack()
    idle = int((mean["none"] < mean[["deterministic", "random"]].min(axis=1)).sum())
    row = constants[constants["size"] == MEASURED].iloc[0]
    return (
        "Signs matter to structure: of a constant m in all values, signs of +1 make one coefficient of "
        f"{row.deterministic:.2f} m, random ones many of up to {row.random:.2f} m (median of {int(row['keys'])} "
        f"draws). On normal numbers plus m, deterministic signs have, against random ones: {_signs_apart(signs)} "
        "(error; no source states this condition); and no transform at all has the least error of the three in "
        f"{idle} of {len(mean)} pairs of format and m."
    )


def measure(rows: int, seeds: tuple[int, ...], keys: int) -> tuple[pd.DataFrame, ...]:
    """Outliers, tails, signs (one part a seed each, `rows` rows; tails have four times as many), and constants."""
    found: dict[str, list[pd.DataFrame]] = {"outliers": [], "tails": [], "signs": []}
    with Progress(3 * len(seeds), "hadamard") as progress:
        for seed in seeds:
            for name, function, size in (
                ("outliers", data.outlier_part, rows),
                ("tails", data.tail_part, 4 * rows),
                ("signs", data.sign_part, rows),
            ):
                found[name].append(part(function, seed=seed, rows=size))
                progress.advance(1, f"{name}, seed {seed}")
    frames = [pd.concat(frames, ignore_index=True) for frames in found.values()]
    return (*frames, part(data.constant_part, keys=keys))


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 8 seeds of 64 rows of 4096 values, or 5 of 16 when `fast`."""
    rows, seeds, keys = (16, tuple(range(5)), 200) if fast else (64, tuple(range(8)), 2000)
    outliers, tails, signs, constants = measure(rows, seeds, keys)
    everything = pd.concat([outliers, tails, signs], ignore_index=True)
    tables = (
        key_table(gains_table(outliers), f"QSNR in dB without and with a random transform of {MEASURED}."),
        published_table(tails, outliers),
        Table("claims", claims_table(outliers, tails, signs), "Where sources say that a transform helps."),
        Table("integer_or_float", winners_table(outliers), "Which of two formats of one width has the higher QSNR."),
        Table("signs", signs_table(signs), "Root mean square error on normal numbers plus a constant m."),
        Table("constants", constants_table(constants), "The largest coefficient of a block of ones, by signs."),
    )
    figure, caption = hadamard_draw.gains(outliers)
    plates = (
        Plate("block", *hadamard_draw.block(seed=1)),
        Plate("signs", *hadamard_draw.signs(signs, _signs_apart(signs))),
    )
    finding, *told = find(outliers, tails, signs, constants)
    summary = summarize(outliers, tails, signs)
    return Result(everything, figure, caption, finding, seeds, summary, "cpu", tables, plates, tuple(told))


STUDY = Study(
    name="hadamard",
    title="A Hadamard transform before quantization",
    question="By how much does a block Hadamard transform of 16 to 128 change the error of each block format, with "
    "which outliers and which signs, and does INT or FP win behind it?",
    run=run,
)
