"""Published values that `requantization_kinds` measures as well, and how far ours are away.

Ours agrees if its distance to the published value, or to the nearer end of a published range, is within 3 % of it plus
the half-width of our 95 % interval. Values without a paper are those of an independent recomputation in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .interval import interval

TOLERANCE = 0.03
QUARTET = "arXiv 2601.22813, table 1"
NUMPY = "independent recomputation in numpy"
EXPECTATION = "independent computation of exact expectations"


@dataclass(frozen=True)
class Published:
    """A value or range (low, high) of `column` in the rows of `part` that `where` picks, times `factor`."""

    quantity: str
    part: str
    where: Mapping[str, Any]
    column: str
    low: float
    high: float
    source: str
    factor: float = 1e3
    note: str = ""


def _kind(name: str, operand: str, low: float, source: str, high: float | None = None, note: str = "") -> Published:
    where = {"kind": name, "operand": operand}
    return Published(f"{name}, {operand}: error x 1e-3", "kinds", where, "error", low, high or low, source, note=note)


def _length(headroom: str, bits: int, column: str, value: float, note: str = "") -> Published:
    where = {"headroom": headroom, "bits": bits}
    quantity = f"stochastic NVFP4 to {headroom}, {bits} bits: {column}, %"
    return Published(quantity, "lengths", where, column, value, value, EXPECTATION, 100, note)


def _outer(operand: str, outer: str, column: str, value: float, note: str = "", factor: float = 1e3) -> Published:
    where = {"operand": operand, "outer": outer}
    unit = "%" if factor == 100 else "x 1e-3"
    return Published(
        f"{operand}, outer {outer}: {column}, {unit}", "outers", where, column, value, value, NUMPY, factor, note
    )


def _product(name: str, outer: str, spread: float, low: float, high: float | None = None) -> Published:
    where = {"product": name, "outer": outer, "spread": spread}
    tokens = "lognormal token scales" if spread else "equal tokens"
    quantity = f"{name}, outer {outer}, {tokens}: error x 1e-3"
    return Published(quantity, "products", where, "error", low, high or low, NUMPY)


def _source(
    operand: str, route: str, column: str, low: float, high: float | None = None, factor: float = 1e3, note: str = ""
) -> Published:
    unit = "%" if factor == 100 else "x 1e-3"
    where = {"operand": operand, "route": route}
    return Published(
        f"{operand} {route}: {column}, {unit}", "sources", where, column, low, high or low, NUMPY, factor, note
    )


_POWER, _INSIDE, _OUTSIDE = "power of two, multiplied in", "FP32, multiplied in", "FP32, outside"
_AGAIN = "originals again, the forward's NVFP4, nearest"
_SHARED = "published: headroom 16/17 and random bits of each candidate's own; ours: neither"
_MANTISSA = "depends on the mantissa of the tensor's largest magnitude, which a seed decides"
VALUES = (
    _kind("NVFP4, nearest", "originals", 9.0, QUARTET),
    _kind("NVFP4, four-over-six", "originals", 7.6, QUARTET),
    _kind("NVFP4, stochastic to 6 x 16/17", "originals", 23.5, QUARTET),
    _kind("NVFP4, four-over-six, stochastic", "originals", 17.5, QUARTET, note=_SHARED),
    _kind("NVFP4, MS-EDEN", "originals", 9.4, QUARTET),
    _kind("NVFP4, stochastic to 6", "originals", 18.85, NUMPY),
    _kind("MXFP8, nearest", "originals", 0.7036, NUMPY),
    _kind("MXFP8, stochastic", "originals", 1.411, NUMPY),
    _kind("MXFP8, nearest", "activations", 0.709, NUMPY),
    _kind("MXFP8, stochastic", "activations", 1.415, NUMPY),
    _kind("MXFP8, nearest", "weights", 0.437, NUMPY, 0.466, _MANTISSA),
    _kind("MXFP8, stochastic", "weights", 0.770, NUMPY, 0.816, _MANTISSA),
    _kind("NVFP4, nearest", "activations", 8.61, NUMPY, 8.75),
    _kind("NVFP4, stochastic to 6 x 16/17", "activations", 23.0, NUMPY, 23.4),
    _length("6", 16, "bias", -0.34),
    _length("6", 16, "shrinkage", -0.195),
    _length("6", 16, "top", -1.14),
    _length("6", 16, "clipped", 51),
    _length("6", 8, "shrinkage", -0.267),
    _length("6", 8, "top", -1.17),
    _length("6 x 16/17", 8, "shrinkage", -0.080),
    _length("6 x 16/17", 8, "top", -0.07),
    Published(
        "stochastic NVFP4 to 6 x 16/17, every block's largest 1e-5 of the tensor's: shrinkage, %",
        "small_scales",
        {"headroom": "6 x 16/17", "block": "every", "ratio": 1e-5},
        "shrinkage",
        -1.3,
        -1.3,
        NUMPY,
        100,
    ),
    _outer("weights", _POWER, "exact", 76, factor=100),
    _outer("activations", _POWER, "exact", 78, factor=100),
    _outer("weights", _POWER, "nearest", 0.447, _MANTISSA),
    _outer("weights", _POWER, "stochastic", 0.799, _MANTISSA),
    _outer("activations", _POWER, "nearest", 0.373),
    _outer("activations", _POWER, "stochastic", 0.639),
    _outer("weights", _POWER, "forward", 9.037),
    _outer("activations", _POWER, "forward", 7.553, "published: one outer scale for the tensor; ours: one per token"),
    Published(
        "weights, outer FP32, multiplied in: nearest, x 1e-3",
        "outers",
        {"operand": "weights", "outer": _INSIDE},
        "nearest",
        0.43,
        1.13,
        NUMPY,
        note=_MANTISSA,
    ),
    _product("dgrad", _INSIDE, 0.0, 2.09, 2.22),
    _product("dgrad", _OUTSIDE, 0.0, 1.50),
    _product("wgrad", _INSIDE, 0.0, 2.11),
    _product("wgrad", _OUTSIDE, 0.0, 1.33),
    _product("wgrad", _INSIDE, 1.0, 2.08),
    _product("wgrad", _OUTSIDE, 1.0, 1.33),
    _source("activations", "requantized, MXFP8, nearest", "to_originals", 8.26),
    _source("activations", "requantized, MXFP8, stochastic", "to_originals", 8.98),
    _source("weights", _AGAIN, "to_forward", 16, 17),
    _source("weights", _AGAIN, "differ", 76, 94, 100),
    _source("activations", _AGAIN, "to_forward", 16, 17, note="published: without four-over-six, as the weights' row"),
    _source("activations", _AGAIN, "differ", 76, 94, 100),
)


def compare(frames: Mapping[str, pd.DataFrame], values: Sequence[Published] = VALUES) -> pd.DataFrame:
    """Quantity, ours with its interval, published, difference in percent, verdict, source and explanation."""
    rows = []
    for each in values:
        part = frames[each.part]
        for name, value in each.where.items():
            part = part[part[name] == value]
        ours = interval((part[each.column] * each.factor).tolist())
        nearest = min(max(ours.mean, each.low), each.high)
        away = abs(ours.mean - nearest)
        rows.append(
            {
                "quantity": each.quantity,
                "ours": ours.text(4 if abs(ours.mean) < 1 else 3),
                "published": f"{each.low:g}" if each.low == each.high else f"{each.low:g} to {each.high:g}",
                "difference, %": round(100 * (ours.mean - nearest) / (abs(nearest) or 1), 1),
                "verdict": "agrees" if away <= TOLERANCE * abs(nearest) + ours.half else "differs",
                "source": each.source,
                "explanation": each.note,
            }
        )
    return pd.DataFrame(rows)
