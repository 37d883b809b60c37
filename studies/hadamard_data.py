"""What the study of the Hadamard transform measures: data, transforms, formats, and one part a seed.

    outliers    standard normal, and one value in SPACING, at a random place and of random sign, is of size a 2^u, u
                uniform in [-1/2, 1/2): scales are powers of two, and one size alone would show its place between two
    tails       normal, Laplace and Student-t rows, each times 2^u, u uniform in [0, 1), for the same reason
    offset      standard normal plus a constant m: what blocks along tokens see of a channel that is large everywhere

A transform takes whole blocks of n values of the last axis; 0 stands for none. Errors are those of the decoded values
before the inverse transform, which is orthogonal: it changes no sum of squares but for FP32 rounding.

TAIL, the Student-t distribution's degrees of freedom, makes the median over blocks of 32 of max / rms 2.48, the
published median of real tensors (arXiv 2510.25602).
"""

import math

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import numerics as nm

SIZES = (0, 16, 32, 64, 128)
SPACING = 128  # values to an outlier: every transform meets blocks that hold one
OUTLIERS = (0, 4, 8, 16, 32, 64, 128, 256)  # 0: none
OFFSETS = (0, 1, 2, 4, 8, 16, 32)
KEYS = 4  # random sign vectors a seed
TAIL = 11
WIDTH = 4096

S2F4 = nm.Format("S2F4", "fixed", 6, 0, 4, bias=0)
MXINT6 = nm.BlockFormat("MXINT6", S2F4, 32, nm.E8M0, nm.scales.RULES["rceil"])
FORMATS = {
    "MXFP8": nm.MXFP8,
    "MXINT8": nm.MXINT8,
    "MXFP6": nm.MXFP6_E2M3,
    "MXINT6": MXINT6,
    "MXFP4": nm.MXFP4,
    "MXINT4": nm.MXINT4,
    "NVFP4": nm.NVFP4,
    "NVINT4": nm.NVINT4,
    "IF4": nm.IF4,
}


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng((seed, 1)).standard_normal(shape, dtype=np.float32))


def with_outliers(seed: int, rows: int, size: float) -> Tensor:
    """Normal numbers (rows, WIDTH), one in SPACING replaced by an outlier of about `size`; size 0: none."""
    x = normal(seed, rows, WIDTH)
    if size == 0:
        return x
    random = np.random.default_rng((seed, 2))
    count = (rows, WIDTH // SPACING, 1)
    place = torch.from_numpy(random.integers(SPACING, size=count))
    value = size * random.choice([-1.0, 1.0], count) * 2.0 ** random.uniform(-0.5, 0.5, count)
    return x.unflatten(1, (-1, SPACING)).scatter(2, place, torch.from_numpy(value).float()).flatten(1)


def tails(seed: int, rows: int, name: str) -> Tensor:
    """Rows (rows, WIDTH) of a distribution, "normal", "Laplace" or "Student-t", of scales spread over an octave."""
    random = np.random.default_rng((seed, 3))
    draws = {
        "normal": lambda shape: random.standard_normal(shape),
        "Laplace": lambda shape: random.laplace(size=shape),
        "Student-t": lambda shape: random.standard_t(TAIL, shape),
    }
    x = draws[name]((rows, WIDTH)) * 2.0 ** random.uniform(0, 1, (rows, 1))
    return torch.from_numpy(x).float()


def transformed(x: Tensor, size: int, signs: Tensor | None) -> Tensor:
    """`x`, or its transform in blocks of `size`; signs None: all +1."""
    return nm.hadamard(x, size, signs) if size else x


def crest(x: Tensor, block: int) -> tuple[float, float]:
    """Mean and median over blocks of max |x| / rms(x)."""
    blocks = x.to(torch.float64).reshape(-1, block)
    factors = blocks.abs().amax(-1) / blocks.square().mean(-1).sqrt()
    return float(factors.mean()), float(factors.median())


def measure(y: Tensor) -> list[dict[str, object]]:
    """One row a format: its error on `y` as it is, and the crest factor of its blocks."""
    crests = {block: crest(y, block) for block in (16, 32)}
    rows = []
    for name, fmt in FORMATS.items():
        error = nm.metrics.error(y, nm.quantize(y, fmt).dequantize())
        mean, median = crests[fmt.block]
        row = {"format": name, "rel_mse": error.rel_mse, "qsnr": error.qsnr, "n": error.n}
        rows.append(row | {"rms_error": rms_error(y, error), "crest_mean": mean, "crest_median": median})
    return rows


def rms_error(y: Tensor, error: nm.metrics.Error) -> float:
    """Absolute root mean square of the error."""
    return math.sqrt(error.rel_mse * float(y.to(torch.float64).square().mean()))


def outlier_part(seed: int, rows: int) -> pd.DataFrame:
    """Every outlier size and transform, random signs."""
    found = []
    for outlier in OUTLIERS:
        x = with_outliers(seed, rows, outlier)
        for size in SIZES:
            y = transformed(x, size, nm.hadamard_signs(size, (seed, 0)) if size else None)
            case = {"data": "outliers", "seed": seed, "outlier": outlier, "size": size}
            found += [case | row for row in measure(y)]
    return pd.DataFrame(found)


def tail_part(seed: int, rows: int) -> pd.DataFrame:
    """Three distributions, without a transform and with one of 32."""
    found = []
    for name in ("normal", "Student-t", "Laplace"):
        x = tails(seed, rows, name)
        for size in (0, 32):
            y = transformed(x, size, nm.hadamard_signs(size, (seed, 0)) if size else None)
            found += [{"data": name, "seed": seed, "size": size} | row for row in measure(y)]
    return pd.DataFrame(found)


def sign_part(seed: int, rows: int) -> pd.DataFrame:
    """Normal numbers with an offset: no transform, one of 32 with signs +1, and KEYS with random signs."""
    z = normal(seed, rows, WIDTH)
    random = [nm.hadamard_signs(32, (seed, key)) for key in range(KEYS)]
    cases = [("none", 0, None), ("deterministic", 32, None), *(("random", 32, signs) for signs in random)]
    found = []
    for offset in OFFSETS:
        for draw, (kind, size, signs) in enumerate(cases):
            y = transformed(z + offset, size, signs)
            case = {"data": "offset", "seed": seed, "offset": offset, "signs": kind, "draw": draw, "size": size}
            found += [case | row for row in measure(y)]
    return pd.DataFrame(found)


# Transformer Engine's constant, for a transform of 16
TRANSFORMER_ENGINE = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


def largest_of_constant(signs: Tensor) -> float:
    """The largest magnitude among the coefficients of a block of ones: sqrt(n) when signs are +1, at least 1."""
    return float(nm.hadamard(torch.ones(1, len(signs)), len(signs), signs).abs().max())


def constant_part(keys: int) -> pd.DataFrame:
    """Largest coefficient of a block of ones, by size and signs; for random ones the middle and the extremes."""
    found = []
    for size in SIZES[1:]:
        drawn = sorted(largest_of_constant(nm.hadamard_signs(size, (key, 0))) for key in range(keys))
        row = {"size": size, "deterministic": largest_of_constant(torch.ones(size)), "random": float(np.median(drawn))}
        found.append(row | {"least": drawn[0], "most": drawn[-1], "keys": keys})
    return pd.DataFrame(found)
