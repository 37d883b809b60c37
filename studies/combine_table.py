"""The combine study's tables for readers, and the published numbers that stand in them."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from . import combine_data as data
from .combine_norms import NORMS, crossing, curves, everything, small
from .interval import interval
from .published import compared, table
from .result import Table

SOURCE = "independent recomputation of the article's combine"
ARTICLE = "Thinking Machines Lab, End-to-End 4-Bit Training, 2026"
# root mean square errors of the outlier, of the others, of all: one |200| in each block of 32 normal numbers
ERRORS = {
    "MXFP8": (8.0, 0.0265, 1.414),
    "S2F6": (0.0, 0.575, 0.566),
    "RHT + MXFP8": (2.05, 0.985, 1.035),
    "RHT + S2F6": (0.143, 0.144, 0.144),
}
DECIBEL = {("RHT + S2F6", "normal"): 41.61, ("RHT + S2F6", "Laplace"): 42.35, ("RHT + MXFP8", "normal"): 31.5}
BITS = {"BF16": 16.0, "MXFP8": 8.25, "RHT + S2F6": 8.25}
RELATIVE, EQUAL, ENERGY = 1.6e-7, 0.17, 1e-6
PLAIN, ROTATED = "MXFP8", "RHT + S2F6"
SHARES = (1.0, 1 / 4, 1 / 16, 1 / 64)
SHOWN = 256  # outlier size of the table of norms

Row = dict[str, str]


def published_table(errors: pd.DataFrame, order: pd.DataFrame) -> Table:
    """Published numbers beside this study's."""
    return table([*_error_rows(errors), *_bit_rows(), *_order_rows(order), *_exponent_rows()])


def _error_rows(errors: pd.DataFrame) -> Iterable[Row]:
    for wire, values in ERRORS.items():
        mine = errors[errors.wire == wire]
        for what, value in zip(("outlier", "others", "total"), values, strict=True):
            yield compared(f"{wire}, error of {what}", interval(mine[what].tolist()), value, SOURCE, relative=0.03)
    for (wire, kind), value in DECIBEL.items():
        found = interval(errors[errors.wire == wire][kind].tolist())
        yield compared(f"{wire}, QSNR of {kind} numbers, dB", found, value, SOURCE, absolute=0.05)


def _bit_rows() -> Iterable[Row]:
    for wire in data.WIRES:
        if wire.name in BITS:
            yield compared(f"{wire.name}, bits a value", data.sent_bits(wire), BITS[wire.name], ARTICLE)


def _order_rows(order: pd.DataFrame) -> Iterable[Row]:
    for how, part in order.groupby("how", sort=False):
        relative, equal = float(part.relative.mean()), float(part.equal.mean())
        why = "its additions form a tree of five, a matrix product's a chain of 32: less is rounded"
        why = why if how == "butterfly" else ""
        what = f"inverse once against each, {how}"
        yield compared(f"{what}, relative", relative, RELATIVE, SOURCE, relative=0.1, explanation=why)
        yield compared(f"{what}, equal bits", equal, EQUAL, SOURCE, absolute=0.02, explanation=why)
    energy = float(order.energy.abs().max())
    yield compared("energy of the transform less 1", energy, (0.0, ENERGY), SOURCE)


def _exponent_rows() -> Iterable[Row]:
    why = "the exponent of 1.984 is 0, as that of its scale rounded up: one less only from 1.985 on"
    for wire, amax, up, down in data.EXPONENTS:
        for rule, how, value in (("rceil", "up", up), ("floor", "down", down)):
            if value is not None:
                found = data.exponent(wire, amax, rule)
                what = f"{wire}, exponent of a block of {amax:g}, rounded {how}"
                yield compared(what, found, value, SOURCE, explanation="" if found == value else why)


def size_text(values: Sequence[float]) -> str:
    """Sizes above which something holds, one a seed, in words: "30.5 ± 0.4", "never", "always"."""
    if all(math.isinf(value) for value in values):
        return "never"
    if not all(map(math.isfinite, values)):
        return "in some seeds"
    return "always" if max(values) == 0 else interval(values).text(1)


def from_text(values: Sequence[float]) -> str:
    """`size_text` as a part of a sentence."""
    text = size_text(values)
    return {"never": "at no size", "always": "at every size", "in some seeds": "in some seeds"}.get(
        text, f"from {text} on"
    )


def share_text(share: float) -> str:
    """A share of the blocks, in words."""
    return "every block" if share == 1 else f"1 block in {round(1 / share)}"


def errors_table(errors: pd.DataFrame) -> pd.DataFrame:
    """One row a wire: bits, errors of outlier, others and all."""
    rows = []
    for wire in data.WIRES:
        mine = errors[errors.wire == wire.name]
        cells = [interval(mine[what].tolist()).text(4) for what in ("outlier", "others", "total")]
        rows.append((wire.name, data.sent_bits(wire), *cells))
    return pd.DataFrame(rows, columns=["wire", "bits a value", "outlier", "others", "all"])


def sizes_table(trade: pd.DataFrame) -> pd.DataFrame:
    """One row a number of outliers in a block: the size from which MXFP8 keeps the other values better, by the share of
    blocks that hold outliers; that size as the root mean square of such a block; and the size from which the others'
    error behind RHT + S2F6 exceeds their own standard deviation."""
    rows = []
    for count in data.COUNTS:
        found = {share: curves(trade, count, share, small) for share in SHARES}
        sizes = [size_text(crossing(each, ROTATED, PLAIN)) for each in found.values()]
        first = crossing(found[1.0], ROTATED, PLAIN)
        lost = size_text(crossing(found[1.0], ROTATED, 1.0))
        rows.append((count, *sizes, size_text(block_rms(count, first)), lost))
    shares = [share_text(share) for share in SHARES]
    names = ["outliers in a block", *shares, "root mean square of the block there", "others lost from"]
    return pd.DataFrame(rows, columns=names)


def least_table(trade: pd.DataFrame) -> pd.DataFrame:
    """One row a number of outliers in every block, one column a size: the 8-bit wire with the least error of all."""
    names, rows = [wire.name for wire in data.WIRES if wire.fmt is not None], []
    for count in data.COUNTS:
        mean = curves(trade, count, 1.0, everything).groupby(["size", "wire"]).value.mean().unstack()[names]
        rows.append(
            {"outliers in a block": count} | {f"a = {size}": name for size, name in mean.idxmin(axis=1).items()}
        )
    return pd.DataFrame(rows)


def block_rms(count: int, sizes: Sequence[float]) -> list[float]:
    """Root mean square of a block with `count` outliers of each size, others having 1. E[4^u] = 3 / (4 ln 2) for u
    uniform in [-1/2, 1/2)."""
    square = 0.75 / math.log(2)
    return [math.sqrt((count * square * size**2 + data.BLOCK - count) / data.BLOCK) for size in sizes]


def norms_table(trade: pd.DataFrame) -> pd.DataFrame:
    """One row a norm: both wires at SHOWN with one outlier in every block, and the size from which MXFP8 is ahead."""
    rows = []
    for name, norm in NORMS.items():
        found = {share: curves(trade, 1, share, norm) for share in (1.0, 1 / 16)}
        at = found[1.0][found[1.0]["size"] == SHOWN].groupby("wire").value.mean()
        sizes = [size_text(crossing(each, ROTATED, PLAIN)) for each in found.values()]
        rows.append((name, f"{at[PLAIN]:.3g}", f"{at[ROTATED]:.3g}", *sizes))
    names = [f"{wire}, outlier of {SHOWN}" for wire in (PLAIN, ROTATED)]
    return pd.DataFrame(
        rows, columns=["norm", *names, "MXFP8 ahead from, an outlier a block", "MXFP8 ahead from, one in 16 blocks"]
    )
