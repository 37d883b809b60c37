"""Is a tensor quantized along its rows the same tensor as along its columns?

The forward product contracts features, the weight's gradient contracts tokens, and a block format wants its blocks
along the contraction. Whoever quantizes the original twice multiplies with two different tensors,

    differ    = share of entries with q_rows != q_columns
    mismatch  = sum (q_rows - q_columns)^2 / sum x^2

and roundings independent of each other would give mismatch = error_rows + error_columns. Tiles of 16 x 16 are the same
from both sides; what they and outliers cost shows in the ordinary entries, whose error and whose share lost to zero
are measured apart. What is measured, and on which data, is in `transpose_mismatch_data`; the block of the figure, and
the ratios at which values and scales are lost, in `transpose_mismatch_block`.

Intervals are Student's over seeds, 95 %; a seed gives the data and the random words.
"""

from typing import Any

import pandas as pd

from reference.progress import Progress

from . import cache
from . import transpose_mismatch_block as small
from . import transpose_mismatch_plots as drawn
from .interval import Interval, interval, listed
from .published import RECOMPUTED, compared, table
from .result import Plate, Result, Study, Table, key_table
from .transpose_mismatch_data import CASES, CHANNELS, SCATTERED, SIZES, measure_seed

MEASURES = (
    *("differ", "mismatch", "error_rows", "error_columns", "error_of_ordinary_rows", "error_of_ordinary_columns"),
    *("flush_rows", "flush_columns"),
)
PLAIN, TILE, SAVED = "NVFP4 1x16", "NVFP4 16x16", "NVFP4 saved, MXFP8"
ONE_D = (PLAIN, "MXFP4 1x32", "MXFP8 1x32", "FP8 1x128")
BESIDE = 64.0  # the outlier size of the finding
TML = "values of the transpose figure of Thinking Machines Lab, End-to-End 4-Bit Training (2026), by hand"
Found = dict[tuple[str, float, str], dict[str, Interval]]


def measure(n: int, seeds: tuple[int, ...]) -> pd.DataFrame:
    """Rows of `measure_seed` for both kinds of outliers and all seeds of n x n entries."""
    parts = []
    with Progress(2 * len(seeds), "transpose_mismatch") as progress:
        for kind in (SCATTERED, CHANNELS):
            for seed in seeds:
                parts.append(cache.part(measure_seed, kind=kind, seed=seed, n=n, sizes=list(SIZES)))
                progress.advance(1, f"{kind}, seed {seed}")
    return pd.concat(parts, ignore_index=True)


def summarize(rows: pd.DataFrame) -> Found:
    """The intervals of every measure by (kind, size, case); and of `ratio`, mismatch over the sum of both errors."""
    found: Found = {}
    for key, part in rows.groupby(["kind", "size", "case"], sort=False):
        ratio = part.mismatch / (part.error_rows + part.error_columns)
        found[key] = {name: interval(part[name].tolist()) for name in MEASURES} | {"ratio": interval(ratio.tolist())}
    return found


def find(rows: pd.DataFrame, reaches: pd.DataFrame, losses: dict[str, float]) -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements."""
    found = summarize(rows)
    return (
        _lead(found, rows.seed.nunique()),
        *(
            _on_normal(found, int(rows.n.iloc[0]), rows.seed.nunique()),
            _on_tiles(found),
            _on_outliers(found),
            _on_saved(found),
            _on_reach(reaches, losses),
        ),
    )


def _lead(found: Found, seeds: int) -> str:
    nv, tile = found[SCATTERED, 1.0, PLAIN], found[SCATTERED, 1.0, TILE]
    dearer = tile["error_of_ordinary_rows"].mean / nv["error_of_ordinary_rows"].mean
    return (
        f"NVFP4 along rows and along columns differ in {nv['differ'].text(1, 100)} % of normal values, by "
        f"{nv['ratio'].text(3)} times the sum of the two errors ({seeds} seeds). A tile of 16x16 differs in "
        f"{tile['differ'].text(1, 100)} % and errs {dearer:.2f} times as much."
    )


def _on_normal(found: Found, n: int, seeds: int) -> str:
    plain = {name: found[SCATTERED, 1.0, name] for name in ONE_D}
    nv, ratio = plain[PLAIN], plain[PLAIN]["ratio"]
    independent = "nearly as two independent roundings would, which no source we know states"
    like = independent if abs(ratio.mean - 1) <= 0.1 else "not as independent ones"
    shares = [f"{name} differs in {plain[name]['differ'].text(3, 100)} %" for name in ONE_D[1:]]
    powers, others = ("MXFP4 1x32", "MXFP8 1x32"), (PLAIN, "FP8 1x128")
    rarer = max(plain[name]["differ"].mean for name in powers) < min(plain[name]["differ"].mean for name in others)
    why = (
        " A power-of-two scale moves the grid onto itself, so that only the ends of its range differ." if rarer else ""
    )
    return (
        f"Of normal values ({n:,} a seed, {seeds} seeds, 95 % intervals over seeds), NVFP4 along rows and along "
        f"columns differ in {nv['differ'].text(1, 100)} % of entries, by {nv['mismatch'].text(2, 1e3)} thousandths of "
        f"the energy: {ratio.text(3)} times the sum of the two errors, {like}. {listed(shares)}.{why}"
    )


def _on_tiles(found: Found) -> str:
    tile, plain = (
        {size: found[SCATTERED, size, name]["error_of_ordinary_rows"].mean for size in (1.0, 16.0, BESIDE)}
        for name in (TILE, PLAIN)
    )
    worst = max(found[key]["differ"].mean for key in found if key[2] == TILE)
    same = "A tile of 16x16 never differs" if worst == 0 else f"A tile of 16x16 differs in up to {worst:.1%} of entries"
    dearer = [f"{tile[size] / plain[size]:.2f} times" for size in tile]
    return (
        f"{same}; its error is {dearer[0]} that of 1x16 without outliers, and on ordinary entries {dearer[1]} and "
        f"{dearer[2]} with outliers of 16 and {BESIDE:g} standard deviations in one of 256 entries."
    )


def _on_outliers(found: Found) -> str:
    flushed = [f"{found[SCATTERED, BESIDE, name]['flush_rows'].text(2, 100)} % in {name}" for name in (*ONE_D, TILE)]
    rows, columns = (found[CHANNELS, BESIDE, PLAIN][f"flush_{side}"] for side in ("rows", "columns"))
    return (
        f"Of the ordinary entries beside outliers of {BESIDE:g}, {listed(flushed)} are lost to zero. Where one channel "
        f"of 64 is {BESIDE:g} times as large, NVFP4 loses {rows.text(1, 100)} % along rows, which mix channels, and "
        f"{columns.text(1, 100)} % along columns."
    )


def _on_saved(found: Found) -> str:
    saved, plain = (found[SCATTERED, 1.0, name]["mismatch"] for name in (SAVED, PLAIN))
    return (
        f"Requantizing the saved rows to MXFP8 along columns, stochastically, leaves {saved.text(2, 1e3)} thousandths "
        f"between the two, {plain.mean / saved.mean:.1f} times less than quantizing the original twice."
    )


def _on_reach(reaches: pd.DataFrame, losses: dict[str, float]) -> str:
    told = [
        f"{row.least:,.1f} to {row.largest:,.1f} in {row.format}" for row in reaches.itertuples() if row.least < 1000
    ]
    gain = losses["four-over-six"] / losses["candidate 6"]
    lives = (
        f" Four-over-six keeps a block alive to {gain:g} times the ratio at which its candidate 6 loses the scale, "
        f"{losses['four-over-six']:,.0f} against {losses['candidate 6']:,.0f}."
    )
    return (
        f"A value is lost below one part in {listed(told)} of its block's maximum, and a block below one part in "
        f"{losses['plain']:,.0f} of its tensor's.{lives if gain > 1 else ''}"
    )


def published(rows: pd.DataFrame, becomes: pd.DataFrame, losses: dict[str, float]) -> Table:
    """Published numbers beside ours."""
    found = summarize(rows)
    normal = {name: found[SCATTERED, 1.0, name] for name in CASES}
    thousand = {name: {key: v.times(1e3) for key, v in each.items()} for name, each in normal.items()}
    share = {name: each["differ"].times(100) for name, each in normal.items()}
    mixed, token, both = "4/6 per token, plain columns", "NVFP4 1x16, outer per token", "NVFP4 1x16, 4/6"
    also = (
        f"with one outer scale per token on both sides it is {thousand[token]['mismatch'].text(2)} in "
        f"{share[token].text(1)} %, with 4/6 on both {thousand[both]['mismatch'].text(2)}"
    )
    most = becomes.set_index("block maximum").loc[64.0]
    kinds = ((PLAIN, 9.050, "; arXiv 2601.22813, table 1: 9.0"), (TILE, 12.389, "; arXiv 2601.22813, table 1: 12.4"))
    kinds += (("MXFP4 1x32", 13.32, ""), ("MXFP8 1x32", 0.7036, ""))
    candidate = "a block whose candidate 6 has scale 0 still has candidate 4, with a scale 1.5 times as large"
    free = "values below the normal range of the coarser of the two scales differ"
    abstract, same = "arXiv 2511.02302, abstract", "the same, 4/6 per token along rows, plain along columns"
    name = "relMSE between rows and columns x 1e3, NVFP4"

    def near(quantity: str, ours: Interval, value: float | tuple[float, float], why: str = "") -> dict[str, str]:
        return compared(quantity, ours, value, RECOMPUTED, relative=0.03, explanation=why)

    return table(
        [
            near(name, thousand[PLAIN]["mismatch"], 17.0),
            near(same, thousand[mixed]["mismatch"], (16.0, 17.0), also),
            near("entries that differ in %, NVFP4", share[PLAIN], 76.0),
            near(same, share[mixed], 94.0),
            compared("entries that differ in %, MXFP8", share["MXFP8 1x32"], 0.0, abstract, explanation=free),
            *(
                compared(f"relMSE x 1e3, {k}", thousand[k]["error_rows"], v, RECOMPUTED + s, relative=0.01)
                for k, v, s in kinds
            ),
            compared("scale of a block of 64", float(most["scale"]), 11.0, TML),
            *(
                compared(f"transpose figure: what {v} becomes beside 64", float(most[f"{v} becomes"]), to, TML)
                for v, to in ((1, 0.0), (4, 5.5), (16, 16.5))
            ),
            compared("scale lost at tensor / block maximum, NVFP4", losses["plain"], 458752, RECOMPUTED),
            compared("the same, 4/6's candidate 6", losses["candidate 6"], 262144, RECOMPUTED),
            compared("the same, 4/6", losses["four-over-six"], 262144, RECOMPUTED, explanation=candidate),
        ]
    )


def by_size(rows: pd.DataFrame) -> Table:
    """Means at some outlier sizes, for readers."""
    found, lines = summarize(rows), []
    for kind in (SCATTERED, CHANNELS):
        for size in (1.0, 16.0, 64.0, 4096.0):
            for case in CASES:
                each = found[kind, size, case]
                shares = [f"{100 * each[name].mean:.2f}" for name in ("differ", "flush_rows", "flush_columns")]
                errors = [f"{1e3 * each[f'error_of_ordinary_{side}'].mean:.3g}" for side in ("rows", "columns")]
                lines.append([kind, f"{size:g}", case, shares[0], f"{each['ratio'].mean:.3f}", *errors, *shares[1:]])
    names = ["outliers", "size", "format", "differ, %", "mismatch / sum of errors", "error of ordinary x 1e3, rows"]
    names += ["columns", "lost to zero, %, rows", "columns "]
    caption = "Rows against columns; errors and losses are those of ordinary entries, outliers left out. Size 1: none."
    return Table("by_size", pd.DataFrame(lines, columns=names), caption)


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 10 seeds of 512 x 512 entries, or 5 of 256 x 256 when `fast`."""
    n, seeds = (256, tuple(range(5))) if fast else (512, tuple(range(10)))
    rows = measure(n, seeds)
    block, becomes, reaches, losses = small.block(), small.becomes(), small.reaches(), small.losses()
    found, views = summarize(rows), small.views(block)
    lost = {name: int(((v == 0) & (block != 0)).sum()) for name, v in views.items() if name != small.BEFORE}
    normal = {name: found[SCATTERED, 1.0, name]["differ"].text(1, 100) for name in (PLAIN, "MXFP8 1x32", TILE)}
    wide = found[CHANNELS, BESIDE, PLAIN]
    summary: dict[str, Any] = {
        "normal": {k: {m: [v.mean, v.half] for m, v in found[SCATTERED, 1.0, k].items()} for k in CASES},
        "losses": losses,
        "lost_of_the_block": lost,
    }
    plates = (
        Plate(
            "block",
            drawn.landscape(views),
            f"A 16 x 16 block of 0, 1, 4, 16 and one 64, before and after NVFP4, heights logarithmic. Lost to zero: "
            f"{listed(f'{count} {name}' for name, count in lost.items())}; which ones depends on the direction.",
        ),
        Plate(
            "channels",
            drawn.channels(rows),
            f"One channel of 64 is larger. Along rows it shares blocks with ordinary ones: at {BESIDE:g} times, NVFP4 "
            f"loses {wide['flush_rows'].text(1, 100)} % of the ordinary entries, along columns "
            f"{wide['flush_columns'].text(1, 100)} %.",
        ),
    )
    lines = reaches.assign(least=reaches.least.map("{:,.1f}".format), largest=reaches.largest.map("{:,.1f}".format))
    sizes = by_size(rows)
    few = sizes.frame[(sizes.frame.outliers == SCATTERED) & sizes.frame["size"].isin(["1", f"{BESIDE:g}"])]
    tables = (
        key_table(few[few.format.isin([*ONE_D, TILE])].drop(columns="outliers"), sizes.caption),
        sizes,
        published(rows, becomes, losses),
        Table(
            "becomes", becomes, "What a value becomes in an NVFP4 block, by the block's maximum, without outer scale."
        ),
        Table("reach", lines, "Block maximum over the least value that is not lost, over block maxima in [1, 2)."),
    )
    caption = (
        "Scattered outliers in one of 256 entries, means over seeds. Left: entries that differ between rows and "
        f"columns (without outliers {normal[PLAIN]} % in NVFP4 1x16, {normal['MXFP8 1x32']} % in MXFP8, {normal[TILE]} "
        "% in tiles). Middle and right: what the other entries suffer, along rows."
    )
    text, *told = find(rows, reaches, losses)
    return Result(rows, drawn.curves(rows), caption, text, seeds, summary, "cpu", tables, plates, tuple(told))


STUDY = Study(
    name="transpose_mismatch",
    title="Rows against columns",
    question="Is a tensor that is quantized along its rows for the forward product the same tensor as along its "
    "columns for the backward one, and what do outliers and square tiles cost?",
    run=run,
)
