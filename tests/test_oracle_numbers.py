"""Contract: the error of every format on random numbers is the published one; the table of oracle_numbers.py is kept.

Oracles. Gaussian column: the values of arXiv 2601.22813 (table 1), 2512.02010, 2510.25602 and of an independent
recomputation, at 1 %. 4 M numbers justify that: the standard error of each relMSE is derived from groups of rows, and
three of the difference between two such samples must stay below 1 %. Biases: three standard errors of the difference
and half of the last published digit. Uniform column: a second implementation below, float64 numpy with the casts of
ml_dtypes, from the formulas of the papers; same numbers, so nearest rounding agrees to 1e-4 (the order of operations
moves a few codes), and stochastic rounding, with other random bits, to four standard errors of the difference.
Heavy tails are printed and recorded only.

Two published cells mean something else than their labels say, see the rows' notes: "4/6 with SR", 17.49, is the variant
with 16/17 headroom and random bits for each candidate (14.78 without both); the Laplace column has variance 2.
"""

import json
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from oracle_numbers import INPUTS, RECORD, ROWS, Published, draw, measure, standard_error

PUBLISHED = [name for name, row in ROWS.items() if "gaussian" in row.published]
CLASS_A = 0.01


@pytest.fixture(scope="module")
def gaussian() -> torch.Tensor:
    return draw("gaussian")


@pytest.fixture(scope="module")
def record() -> dict:
    return json.loads(RECORD.read_text("utf-8"))


def assert_published(found: dict, published: Published) -> None:
    assert found["rel_mse"] == pytest.approx(published.rel_mse, rel=CLASS_A)
    if published.decibel is not None:
        assert found["decibel"] == pytest.approx(published.decibel, abs=0.05)
    if published.bias is not None:
        # `bias_interval` is 1.96 standard errors of ours; the published one comes from a sample of that size
        error = 3 * math.sqrt(2) * found["bias_interval"] / 1.96
        digit = 10.0 ** -len(str(published.bias).split(".")[1]) if published.bias else 0.0
        assert found["bias"] == pytest.approx(published.bias, abs=error + digit / 2)
    if published.fours is not None:
        # 2^18 blocks: three errors of the difference are .0042 at most; half of the last digit; and class A
        least, largest = published.fours
        assert least - 0.0005 - CLASS_A * least <= found["fours"] <= largest + 0.0005 + CLASS_A * largest


@pytest.mark.every(4)
@pytest.mark.parametrize("name", PUBLISHED)
def test_gaussian_column(name: str, gaussian: torch.Tensor, record: dict):
    assert gaussian.numel() >= 4_000_000
    found = measure(ROWS[name], gaussian)
    assert 3 * math.sqrt(2) * found["standard_error"] < CLASS_A
    assert_published(found, ROWS[name].published["gaussian"])
    # the record is of this code and this sample; a cast that another libm's normals tip over is 1e-7
    assert record["rows"][name]["inputs"]["gaussian"]["rel_mse"] == pytest.approx(found["rel_mse"], rel=1e-4)


def test_record_holds_every_cell_and_names_what_is_off(record: dict):
    assert list(record["rows"]) == list(ROWS) and record["samples"] >= 4_000_000
    for name, row in record["rows"].items():
        assert list(row["inputs"]) == list(INPUTS) and row["note"] == ROWS[name].note
        for kind, found in row["inputs"].items():
            published = ROWS[name].published.get(kind)
            assert (found["published"] is None) == (published is None)
            if published is not None and kind != "laplace, variance 2":
                assert_published(found, published)


# ---- a second implementation -----------------------------------------------------------------------------------------

Array = np.ndarray
CASTS = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
GRIDS = {"int4": np.arange(8.0), "s2f6": np.arange(128) / 64}
for key, dtype in CASTS.items():
    points = np.arange(1 << (ml_dtypes.finfo(dtype).bits - 1), dtype=np.uint8).view(dtype).astype(np.float64)
    GRIDS[key] = points[np.isfinite(points)]
Random = Array | None  # uniform numbers in [0, 1), shaped like the blocks; None: nearest even


def element(v: Array, name: str, u: Random) -> Array:
    """v rounded to the element format, saturating; symmetric."""
    grid = GRIDS[name]
    magnitude = np.minimum(np.abs(v), grid[-1])
    if u is not None:
        below = np.minimum(np.searchsorted(grid, magnitude, side="right") - 1, len(grid) - 2)
        low, high = grid[below], grid[below + 1]
        rounded = np.where(u < (magnitude - low) / (high - low), high, low)
    elif name in CASTS:
        rounded = magnitude.astype(np.float32).astype(CASTS[name]).astype(np.float64)
    else:
        rounded = np.rint(magnitude / grid[1]) * grid[1]
    return np.copysign(rounded, v)


def with_e4m3(b: Array, outer: Array, largest: float, name: str = "e2m1", u: Random = None) -> Array:
    """s = e4m3(bmax / (outer largest)); q s outer."""
    scale = np.minimum(np.abs(b).max(1, keepdims=True) / (outer * largest), 448.0)
    step = scale.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * outer
    assert (step > 0).all()
    return element(b / step, name, u) * step


def with_e8m0(b: Array, name: str, up: bool = True, u: Random = None) -> Array:
    """s = 2^ceil(log2(bmax / max)), or 2^(floor(log2 bmax) - floor(log2 max))."""
    amax, top = np.abs(b).max(1, keepdims=True), GRIDS[name][-1]
    fraction, exponent = np.frexp(amax / top)
    exponent = np.where(fraction == 0.5, exponent - 1, exponent) if up else np.frexp(amax)[1] - np.frexp(top)[1]
    scale = np.ldexp(1.0, exponent)
    return element(b / scale, name, u) * scale


def outer_of(b: Array, outer_max: float, power: bool = False) -> Array:
    """amax / outer_max of all of `b`."""
    outer = np.abs(b).max() / outer_max
    return np.float64(2.0 ** math.ceil(math.log2(outer))) if power else outer


def smaller_error(b: Array, first: Array, second: Array, measure: Callable[[Array], Array]) -> Array:
    """`second` where it errs strictly less."""
    return np.where((measure(second - b) < measure(first - b))[:, None], second, first)


def squares(d: Array) -> Array:
    return (d * d).sum(1)


def four_over_six(b: Array, outer: Array, measure: Callable[[Array], Array] = squares, h: float = 1.0, *u: Array):
    """u: nothing, or the random numbers of both candidates, mapped to 6 and to 4; h: headroom."""
    six, four = u if u else (None, None)
    return smaller_error(b, with_e4m3(b, outer, 6 * h, u=six), with_e4m3(b, outer, 4 * h, u=four), measure)


H = 16 / 17
TWINS: dict[str, Callable[[Array, Array, Array, Array], Array]] = {  # of blocks, their tokens' amax, random numbers
    "NVFP4": lambda b, t, u, v: with_e4m3(b, outer_of(b, 2688), 6),
    "NVFP4, outer per token": lambda b, t, u, v: with_e4m3(b, t / 2688, 6),
    "NVFP4, outer a power of two": lambda b, t, u, v: with_e4m3(b, outer_of(b, 2688, True), 6),
    "NVFP4, static 6": lambda b, t, u, v: with_e4m3(b, outer_of(b, 2688), 6),
    "NVFP4, static 4": lambda b, t, u, v: with_e4m3(b, outer_of(b, 2688), 4),
    "4/6, squares": lambda b, t, u, v: four_over_six(b, outer_of(b, 1536)),
    "4/6, outer per token": lambda b, t, u, v: four_over_six(b, t / 1536),
    "4/6, outer a power of two": lambda b, t, u, v: four_over_six(b, outer_of(b, 1536, True)),
    "4/6, scales up to 448": lambda b, t, u, v: four_over_six(b, outer_of(b, 2688)),
    "4/6, magnitudes": lambda b, t, u, v: four_over_six(b, outer_of(b, 1536), lambda d: np.abs(d).sum(1)),
    "4/6, largest error": lambda b, t, u, v: four_over_six(b, outer_of(b, 1536), lambda d: np.abs(d).max(1)),
    "16x16": lambda b, t, u, v: with_e4m3(b, outer_of(b, 2688), 6),
    "16x16, 4/6": lambda b, t, u, v: four_over_six(b, outer_of(b, 1536)),
    "NVFP4 SR, 16/17": lambda b, t, u, v: with_e4m3(b, outer_of(b, 2688 * H), 6 * H, u=u),
    "NVFP4 SR": lambda b, t, u, v: with_e4m3(b, outer_of(b, 2688), 6, u=u),
    "4/6 SR, 16/17, two draws": lambda b, t, u, v: four_over_six(b, outer_of(b, 1536 * H), squares, H, u, v),
    "4/6 SR": lambda b, t, u, v: four_over_six(b, outer_of(b, 1536), squares, 1.0, u, u),
    "IF4": lambda b, t, u, v: smaller_error(
        b, with_e4m3(b, outer_of(b, 2688), 6), with_e4m3(b, outer_of(b, 2688), 7, "int4"), squares
    ),
    "NVINT4": lambda b, t, u, v: with_e4m3(b, outer_of(b, 448 * 7), 7, "int4"),
    "MXFP4, up": lambda b, t, u, v: with_e8m0(b, "e2m1"),
    "MXFP4, down": lambda b, t, u, v: with_e8m0(b, "e2m1", up=False),
    "MXINT4": lambda b, t, u, v: with_e8m0(b, "int4"),
    "MXFP6 E2M3": lambda b, t, u, v: with_e8m0(b, "e2m3"),
    "MXFP6 E3M2": lambda b, t, u, v: with_e8m0(b, "e3m2"),
    "MXFP8, up": lambda b, t, u, v: with_e8m0(b, "e4m3"),
    "MXFP8, down": lambda b, t, u, v: with_e8m0(b, "e4m3", up=False),
    "MXFP8 SR, up": lambda b, t, u, v: with_e8m0(b, "e4m3", u=u),
    "MXFP8 SR, down": lambda b, t, u, v: with_e8m0(b, "e4m3", up=False, u=u),
    "MXFP8 E5M2, up": lambda b, t, u, v: with_e8m0(b, "e5m2"),
    "S2F6, up": lambda b, t, u, v: with_e8m0(b, "s2f6"),
    "S2F6, down": lambda b, t, u, v: with_e8m0(b, "s2f6", up=False),
    "S2F6 SR, up": lambda b, t, u, v: with_e8m0(b, "s2f6", u=u),
}


def twin(name: str, x: torch.Tensor) -> float:
    """relMSE x 1e-3 by the second implementation. Blocks keep no places: a relMSE needs none."""
    numbers = x.numpy().astype(np.float64)
    rows, columns = numbers.shape
    tile, size = (16, 16) if name.startswith("16x16") else (1, 32 if name.startswith(("MX", "S2")) else 16)
    b = numbers.reshape(rows // tile, tile, columns // size, size).swapaxes(1, 2).reshape(-1, tile * size)
    tokens = np.repeat(np.abs(numbers).max(1), columns // size)[:, None]
    generator = np.random.default_rng(7)
    u, v = (generator.random(b.shape) if "SR" in name else b for _ in range(2))
    d = TWINS[name](b, tokens, u, v) - b
    return 1e3 * float((d * d).sum() / (b * b).sum())


@pytest.fixture(scope="module")
def uniform() -> torch.Tensor:
    """1 M: both sides see the same numbers, so the sample's error does not count in the comparison."""
    return draw("uniform", (512, 2048))


@pytest.mark.parametrize("name", ROWS)
def test_uniform_column(name: str, uniform: torch.Tensor):
    values, _ = ROWS[name].decode(uniform)
    ours = 1e3 * float((values - uniform).double().square().sum() / uniform.double().square().sum())
    rel = 4 * math.sqrt(2) * standard_error(uniform, values) if "SR" in name else 1e-4
    assert rel < CLASS_A and ours == pytest.approx(twin(name, uniform), rel=rel)


def test_every_row_has_a_twin():
    assert list(TWINS) == list(ROWS)
