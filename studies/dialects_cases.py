"""What the dialects study measures: data, bytes and errors of every dialect, and each case's numbers.

    rows    one per format, kind of data, dtype, seed and ordered pair (dialect, other):
        differing    of `blocks`, those in which the scale byte or any code of one is not that of the other
        sqnr         of `dialect`: -10 log10 of the mean over tokens of sum (x_q - x)^2 / sum x^2, dB, in float64
        gain         sqnr of `dialect` minus that of `other`, on the same tensor, dB
    case    one format, kind and dtype over all seeds

    normal    standard normal values: no block scale is small
    tokens    Student's t with 5 degrees of freedom, token i of T (a row) times exp(2 z), z the standard normal quantile
              of (i + 1/2) / T: a few percent of NVFP4 block scales are subnormal, some zero

Each token counts the same, as it does to layers behind a norm: a sum over a tensor whose tokens differ in scale would
see the largest few. Neither kind has zeros, NaN or Inf; what dialects do with those, they say themselves (`print`).
Counts are exact. Intervals are Student's over seeds, 95 %, each on its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, product

import pandas as pd
import torch

import numerics as nm
from reference.progress import Progress

from .interval import Interval, interval

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
# what each format's dialects are compared with: the published quotients, rounded once, and the specification's rule
REFERENCES = {"NVFP4": "exact", "MXFP4": "ocp_floor", "MXFP8": "ocp_floor"}
BLOCKS = {"NVFP4": 16, "MXFP4": 32, "MXFP8": 32}


def normal(seed: int, tokens: int, width: int) -> torch.Tensor:
    """Standard normal values, float32 (tokens, width)."""
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


def heavy_tokens(seed: int, tokens: int, width: int) -> torch.Tensor:
    """Student's t with 5 degrees of freedom times a log-normal scale per token, float32 (tokens, width)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, width, generator=generator)
    chi_square = torch.randn(5, tokens, width, generator=generator).square().sum(0)
    quantiles = torch.special.ndtri((torch.arange(tokens, dtype=torch.float64) + 0.5) / tokens)
    return x / (chi_square / 5).sqrt() * torch.exp(2 * quantiles).to(torch.float32)[:, None]


KINDS: dict[str, Callable[[int, int, int], torch.Tensor]] = {"normal": normal, "tokens": heavy_tokens}


def names(fmt: str) -> list[str]:
    """The dialects that make a format."""
    return [name for name, dialect in nm.scales.DIALECTS.items() if fmt in dialect.formats]


def words(codes: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    """What a dialect made of each block, as integers to compare.

    Args:
        codes: uint8, one per value, blocks along the last axis. scales: uint8, one per block. block: values in one.

    Returns:
        int64 (blocks, block / 8 + 1): the codes, eight in a word, and the scale.
    """
    eights = codes.reshape(-1, block).contiguous().view(torch.int64)
    return torch.cat([eights, scales.reshape(-1, 1).to(torch.int64)], -1)


def differing(made: torch.Tensor) -> torch.Tensor:
    """For each pair of dialects, the blocks that differ: (dialects, blocks, words) -> int64 (dialects, dialects)."""
    return torch.stack([(made != one).any(-1).sum(-1) for one in made])


def sqnr(x: torch.Tensor, x_q: torch.Tensor) -> float:
    """Of two tensors (tokens, width), in dB; see above. Infinite for an error of zero."""
    reference, values = x.to(torch.float64), x_q.to(torch.float64)
    error = float(((values - reference).square().sum(-1) / reference.square().sum(-1)).mean())
    return -10 * math.log10(error) if error else math.inf


def compare(x: torch.Tensor, fmt: str, done: Callable[[str], None]) -> pd.DataFrame:
    """Quantize `x`, of any floating dtype (tokens, width), in every dialect of `fmt`; one row per ordered pair.

    Args:
        done: called with the name of each dialect that has quantized.

    Returns:
        Columns dialect, other, blocks, differing, sqnr, gain.
    """
    made, quality = [], {}
    for name in names(fmt):
        dialect = nm.scales.DIALECTS[name]
        q = dialect.quantize(x, fmt)
        made.append(words(q.codes, q.scales, BLOCKS[fmt]))
        quality[name] = sqnr(x, dialect.dequantize(q))
        done(name)
    counts = differing(torch.stack(made)).flatten().tolist()
    pairs = [(name, other) for name in quality for other in quality]
    rows = [
        (name, other, len(made[0]), count, quality[name], quality[name] - quality[other])
        for (name, other), count in zip(pairs, counts, strict=True)
    ]
    return pd.DataFrame(rows, columns=["dialect", "other", "blocks", "differing", "sqnr", "gain"])


def measure(tokens: int, width: int, seeds: tuple[int, ...]) -> pd.DataFrame:
    """All rows: tensors (tokens, width) of every kind, dtype and seed, in every format."""
    tables = []
    total = len(KINDS) * len(seeds) * len(DTYPES) * sum(len(names(fmt)) for fmt in REFERENCES)
    with Progress(total, "dialects") as progress:
        for kind, seed in product(KINDS, seeds):
            x = KINDS[kind](seed, tokens, width)
            for dtype, fmt in product(DTYPES, REFERENCES):
                note = f"{fmt} of {kind}, {dtype}, seed {seed}"
                table = compare(
                    x.to(DTYPES[dtype]), fmt, lambda name, note=note: progress.advance(1, f"{note}: {name}")
                )
                case = {"format": fmt, "kind": kind, "dtype": dtype, "seed": seed}
                tables.append(table.assign(**case)[[*case, *table.columns]])
    return pd.concat(tables, ignore_index=True)


@dataclass(frozen=True)
class Disagreement:
    """The share of blocks in which two dialects differ, and how many pairs have the same mean share."""

    dialect: str
    other: str
    share: Interval
    pairs: int


@dataclass(frozen=True, eq=False)
class Case:
    """What one format, kind of data and dtype gave.

    Attributes:
        shares: of blocks that differ, mean over seeds, with a row and a column for each dialect.
        classes: dialects that are alike: not one block differs. In the order of `DIALECTS`.
        sqnr, gain: of each dialect; the gain is to the format's reference.
        least, most: the smallest disagreement of two that are not alike, and the largest; None if all are alike.
        best, worst, apart: by mean sqnr, and the gain of the one to the other.
    """

    shares: pd.DataFrame
    classes: tuple[tuple[str, ...], ...]
    sqnr: dict[str, Interval]
    gain: dict[str, Interval]
    least: Disagreement | None
    most: Disagreement | None
    best: str
    worst: str
    apart: Interval


def case_of(rows: pd.DataFrame, reference: str) -> Case:
    """The case of the rows of one format, kind and dtype."""
    dialects = list(dict.fromkeys(rows.dialect))
    rows = rows.assign(share=rows.differing / rows.blocks)
    pairs = {pair: part for pair, part in rows.groupby(["dialect", "other"], sort=False)}
    shares = rows.pivot_table(index="dialect", columns="other", values="share").loc[dialects, dialects]
    sqnr = {name: interval(pairs[name, name].sqnr.tolist()) for name in dialects}
    gain = {name: interval(pairs[name, reference].gain.tolist()) for name in dialects}
    best, worst = (pick(dialects, key=lambda name: sqnr[name].mean) for pick in (max, min))
    unlike = {pair: share for pair in combinations(dialects, 2) if (share := float(shares.loc[pair])) > 0}
    ends: list[Disagreement | None] = [None, None]
    for i, pick in enumerate((min, max) if unlike else ()):
        at = [pair for pair, share in unlike.items() if share == pick(unlike.values())]
        ends[i] = Disagreement(*at[0], interval(pairs[at[0]].share.tolist()), len(at))
    apart = interval(pairs[best, worst].gain.tolist())
    return Case(shares, classes(shares), sqnr, gain, *ends, best, worst, apart)


def classes(shares: pd.DataFrame) -> tuple[tuple[str, ...], ...]:
    """Dialects that are alike, from the shares of blocks that differ."""
    found: dict[str, list[str]] = {}
    for name in shares.index:
        first = next((other for other in found if shares.loc[other, name] == 0), name)
        found.setdefault(first, []).append(name)
    return tuple(tuple(members) for members in found.values())


Cases = dict[tuple[str, str, str], Case]


def summarize(rows: pd.DataFrame) -> Cases:
    """The case of each (format, kind, dtype)."""
    groups = rows.groupby(["format", "kind", "dtype"], sort=False)
    return {key: case_of(part, REFERENCES[key[0]]) for key, part in groups}


def order(cases: Cases, fmt: str, kind: str) -> list[str]:
    """All dialects of a format, the best first, such that those alike on float32, and in them on bfloat16, are
    neighbours."""
    ranks: dict[str, list[tuple[float, int]]] = {}
    for dtype in reversed(DTYPES):
        case = cases[fmt, kind, dtype]
        for i, members in enumerate(case.classes):
            mean = sum(case.sqnr[name].mean for name in members) / len(members)
            for name in members:
                ranks.setdefault(name, []).append((-mean, i))
    return sorted(ranks, key=lambda name: ranks[name])
