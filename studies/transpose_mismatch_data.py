"""What the transpose study measures: one tensor in blocks along its rows and along its columns.

    rows      q of x (tokens, features) in blocks along features, as the forward product wants it
    columns   q of the same x in blocks along tokens, as the product for the weight's gradient wants it

A tile of 16 x 16 or 128 x 128 is the same from both sides. `saved` keeps the row's values: NVFP4 along rows, its values
requantized to MXFP8 along columns with stochastic rounding, as "End-to-End 4-Bit Training" (Thinking Machines Lab,
2026) does.

Data are standard normal with outliers: `scattered`, one of 256 entries at random positions is +-size; `channels`, one
of 64 columns is multiplied by size. Size 1 leaves the normal values as they are. The other entries are "ordinary".
"""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

import numerics as nm

SCATTERED, CHANNELS = "scattered", "channels"
SIZES = tuple(4.0**k for k in range(11))
SHARE, EVERY = 1 / 256, 64

Pair = tuple[Tensor, Tensor]  # values along rows, values along columns


@dataclass(frozen=True)
class Case:
    """A way to quantize along both axes. name: as figures call it. decode: (x, seed) -> `Pair`."""

    name: str
    decode: Callable[[Tensor, int], Pair]


def _both(fmt: nm.BlockFormat, **options: str) -> Callable[[Tensor, int], Pair]:
    def decode(x: Tensor, seed: int) -> Pair:
        return tuple(nm.quantize(x, fmt, axis=axis, **options).dequantize() for axis in (-1, -2))

    return decode


def _saved(x: Tensor, seed: int) -> Pair:
    q = nm.quantize(x, nm.NVFP4, outer="tensor")
    return q.dequantize(), nm.requantize(q, nm.MXFP8, axis=-2, random=nm.Random((seed, 0))).dequantize()


def _mixed(x: Tensor, seed: int) -> Pair:
    rows, columns = nm.quantize(x, nm.NVFP4_46, outer="row"), nm.quantize(x, nm.NVFP4, axis=-2)
    return rows.dequantize(), columns.dequantize()


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("NVFP4 1x16", _both(nm.NVFP4)),
        Case("NVFP4 1x16, outer per token", _both(nm.NVFP4, outer="row")),
        Case("NVFP4 1x16, 4/6", _both(nm.NVFP4_46)),
        Case("4/6 per token, plain columns", _mixed),
        Case("NVFP4 16x16", _both(nm.NVFP4_2D)),
        Case("MXFP4 1x32", _both(nm.MXFP4)),
        Case("MXFP8 1x32", _both(nm.MXFP8)),
        Case("FP8 1x128", _both(nm.FP8_1X128)),
        Case("FP8 128x128", _both(nm.FP8_128X128)),
        Case("NVFP4 saved, MXFP8", _saved),
    )
}


def data(kind: str, size: float, seed: int, n: int) -> tuple[Tensor, Tensor]:
    """x float32 (n, n), and which entries are ordinary, bool (n, n). The normal values depend on the seed alone.

    Raises:
        ValueError: an unknown kind.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, n, generator=generator)
    if kind == SCATTERED:
        outlier = torch.rand(n, n, generator=generator) < SHARE
        return (torch.where(outlier, size * x.sign(), x) if size > 1 else x), ~outlier
    if kind != CHANNELS:
        raise ValueError(f"kind={kind!r}: use {SCATTERED!r} or {CHANNELS!r}")
    outlier = (torch.arange(n) % EVERY == EVERY // 2).expand(n, n)
    return torch.where(outlier, size * x, x), ~outlier


def compare(x: Tensor, ordinary: Tensor, rows: Tensor, columns: Tensor) -> dict[str, float]:
    """What one case did to `x`.

    Returns:
        differ: share of entries whose two values differ. mismatch: squared difference of the two over the energy of x.
        error_*: relMSE to x; error_of_*: of the ordinary entries, to their energy; flush_*: share of ordinary, non-zero
        entries that became zero. * is rows, columns.
    """
    found = {
        "differ": float((rows != columns).to(torch.float64).mean()),
        "mismatch": nm.metrics.error(x, x + (rows.double() - columns.double())).rel_mse,
    }
    for name, values in (("rows", rows), ("columns", columns)):
        part = nm.metrics.error(x[ordinary], values[ordinary])
        found[f"error_{name}"] = nm.metrics.error(x, values).rel_mse
        found[f"error_of_ordinary_{name}"] = part.rel_mse
        found[f"flush_{name}"] = part.flush_to_zero
    return found


def measure_seed(kind: str, seed: int, n: int, sizes: list[float]) -> pd.DataFrame:
    """Every case at every outlier size, one row each."""
    found = []
    for size in sizes:
        x, ordinary = data(kind, size, seed, n)
        for case in CASES.values():
            key = {"kind": kind, "size": size, "case": case.name, "seed": seed, "n": n * n}
            found.append(key | compare(x, ordinary, *case.decode(x, seed)))
    return pd.DataFrame(found)
