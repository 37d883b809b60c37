"""Notebook 3: one block of 16 x 16 values with an outlier, quantized along rows, along columns and as a tile.

    rows      1x16: one scale for the sixteen values of a row, as a product that sums along rows wants it
    columns   16x1: one scale for the sixteen values of a column, as the same tensor's transpose wants it
    tile      16x16: one scale for all 256, the same from both sides

All three are NVFP4 with the outer scale of the whole block, amax / 2688. Values are standard normal; the outlier is the
reader's. Numbers only, all decoded from codes; `tile_draw` draws them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

import numerics as nm
from studies import transpose_mismatch_data as study

from .block import FLT_MAX

SIDE = 16
ROWS, COLUMNS, TILE = "along rows, 1x16", "along columns, 16x1", "as one tile, 16x16"
WAYS = {ROWS: (nm.NVFP4, -1), COLUMNS: (nm.NVFP4, -2), TILE: (nm.NVFP4_2D, -1)}


@dataclass(frozen=True)
class View:
    """A block quantized in one way.

    values: decoded, float32 (16, 16). lost: bool, which became zero. scales: values of its scales, 16 or 1.
    rel_mse: of all 256. rel_mse_others: of the 255 beside the outlier, relative to their energy.
    """

    values: Tensor
    lost: Tensor
    scales: tuple[float, ...]
    rel_mse: float
    rel_mse_others: float


def block(row: int, column: int, size: float, seed: int = 0) -> Tensor:
    """float32 (16, 16), standard normal with `size` at (row, column), counted from 1; the rest depends on seed alone.

    Raises:
        ValueError: a place outside the block.
    """
    for name, place in (("row", row), ("column", column)):
        if not 1 <= place <= SIDE:
            raise ValueError(f"{name}={place}: the block has {SIDE}, counted from 1")
    x = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    x[row - 1, column - 1] = max(-FLT_MAX, min(FLT_MAX, size)) if math.isfinite(size) else size
    return x


def views(x: Tensor, row: int, column: int) -> dict[str, View]:
    """The block in each of `WAYS`; the outlier is at (row, column), counted from 1."""
    others = torch.ones(SIDE, SIDE, dtype=torch.bool)
    others[row - 1, column - 1] = False
    found = {}
    for name, (fmt, axis) in WAYS.items():
        q = nm.quantize(x, fmt, axis=axis)
        values = q.dequantize()
        found[name] = View(
            values=values,
            lost=(values == 0) & (x != 0),
            scales=tuple(nm.decode(q.scales, nm.E4M3).flatten().tolist()),
            rel_mse=nm.metrics.error(x, values).rel_mse,
            rel_mse_others=nm.metrics.error(x[others], values[others]).rel_mse,
        )
    return found


def differ(one: Tensor, other: Tensor) -> float:
    """Share of entries that are not the same number; two NaN count as the same."""
    return float(((one != other) & ~(one.isnan() & other.isnan())).double().mean())


def remarks(typed: float, x: Tensor, seen: dict[str, View]) -> list[str]:
    """What is out of the ordinary about an outlier, in plain sentences."""
    if not math.isfinite(typed):
        kind = "NaN" if math.isnan(typed) else "infinite"
        return [
            f"The outlier is {kind}: the scale of its block is NaN, and so is every value that shares it, "
            + ", ".join(f"{int(view.values.isnan().sum())} {_short(name)}" for name, view in seen.items())
            + ". The outer scale follows the other blocks, and is 1 where there is none."
        ]
    said = []
    if abs(typed) > FLT_MAX:
        said.append(f"The outlier {typed:.6g} is beyond float32: {math.copysign(FLT_MAX, typed):.6g} was taken.")
    elif typed and not float(torch.tensor(typed, dtype=torch.float32)):
        said.append("The outlier is below float32's least number: 0 was taken.")
    zero = {name: sum(scale == 0 for scale in view.scales) for name, view in seen.items()}
    if any(zero.values()):
        told = ", ".join(f"{count} {_short(name)}" for name, count in zero.items())
        said.append(f"The outlier sets the outer scale so high that other scales are rounded to 0: {told}.")
    if abs(typed) < float(x.abs().amax()):
        said.append("The outlier is not the largest value here: it hides among the others.")
    return said


def _short(name: str) -> str:
    return name.split(",")[0]


# ---- what the notebook shows without a widget ------------------------------------------------------------------------

SIZES = tuple(2.0**k for k in range(0, 11))
CURVES = {"1x16": "NVFP4 1x16", "16x16": "NVFP4 16x16"}  # names of the study's cases


def against_size(n: int = 256, seed: int = 0) -> pd.DataFrame:
    """Normal values with one outlier in 256, by its size: the study's measures of 1x16 and of tiles.

    Returns:
        Columns size, way, differ (share of entries that differ between rows and columns), flush_rows (share of ordinary
        entries lost along rows), and more of `studies.transpose_mismatch_data.compare`.
    """
    rows = []
    for size in SIZES:
        x, ordinary = study.data(study.SCATTERED, size, seed, n)
        for way, name in CURVES.items():
            rows.append({"size": size, "way": way} | study.compare(x, ordinary, *study.CASES[name].decode(x, seed)))
    return pd.DataFrame(rows)


PRICES = {
    "NVFP4 1x16": "NVFP4, 1x16, twice",
    "NVFP4 16x16": "NVFP4, 16x16, once",
    "NVFP4 saved, MXFP8": "NVFP4 1x16, then MXFP8 from its codes",
}


def prices(n: int = 512, seed: int = 0) -> pd.DataFrame:
    """What each way out costs on normal values without outliers: one row each."""
    x, ordinary = study.data(study.SCATTERED, 1.0, seed, n)
    rows = []
    for name, told in PRICES.items():
        found = study.compare(x, ordinary, *study.CASES[name].decode(x, seed))
        numbers = [1e3 * found[key] for key in ("error_rows", "error_columns", "mismatch")]
        rows.append([told, *(f"{number:.2f}" for number in numbers), f"{100 * found['differ']:.1f}"])
    names = ["way", "relMSE along rows x 1e3", "along columns", "between the two", "entries that differ, %"]
    return pd.DataFrame(rows, columns=names)
