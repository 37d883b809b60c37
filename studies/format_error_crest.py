"""QSNR against the crest factor of a block, measured.

Blocks of normal values, in every other one the first multiplied by 2^u, u uniform in [0, 7), and every block by 2^v, v
uniform in [0, 1): crests from the least that normal values have to the square root of the block, which is the largest
that a block of that size can have, and scales whose mantissas favour nothing. A block's error is its own relMSE; in a
bin of crests, QSNR is that of their mean.
"""

import math

import numpy as np
import pandas as pd
import torch

from .format_error_cases import VARIANTS
from .format_error_theory import PAIRS

WIDTH = 0.1  # of a bin
LEAST = 25  # blocks that a bin needs


def blocks(seed: int, count: int, size: int) -> torch.Tensor:
    """float32 (count, size)."""
    generator = np.random.default_rng((seed, size))
    x = generator.standard_normal((count, size))
    x[::2, 0] *= 2.0 ** generator.uniform(0, 7, len(x[::2]))
    return torch.from_numpy((x * 2.0 ** generator.random((count, 1))).astype(np.float32))


def measure(seed: int, count: int) -> pd.DataFrame:
    """One row per format of `PAIRS` and bin of crests: seed, format, crest (the bin's mean), blocks, qsnr."""
    rows = []
    for name in dict.fromkeys(name for pair in PAIRS for name in (pair.integer, pair.floating)):
        size = VARIANTS[name].fmt.block
        x = blocks(seed, count, size)
        values = VARIANTS[name].quantize(x.reshape(-1, 64 * size), seed).dequantize().reshape(count, size)
        energy = x.double().square().sum(1)
        crest = x.double().abs().amax(1) / (energy / size).sqrt()
        error = (values.double() - x.double()).square().sum(1) / energy
        frame = pd.DataFrame({"bin": (crest / WIDTH).floor().int().numpy(), "crest": crest, "error": error})
        for _, part in frame.groupby("bin"):
            if len(part) >= LEAST:
                qsnr = -10 * math.log10(part.error.mean())
                rows.append((seed, name, round(float(part.bin.iloc[0])), part.crest.mean(), len(part), qsnr))
    return pd.DataFrame(rows, columns=["seed", "format", "bin", "crest", "blocks", "qsnr"])


def crossing(rows: pd.DataFrame, integer: str, floating: str) -> float:
    """The crest where the measured difference, integer minus floating point, last falls through zero.

    Between bins by a straight line. Infinite where integers are better in the last bin all the same, minus infinite
    where floating point is better from the first.
    """
    curves = rows.pivot(index="bin", columns="format", values="qsnr")[[integer, floating]].dropna()
    difference = (curves[integer] - curves[floating]).to_numpy()
    crest = rows[rows.format == integer].set_index("bin").crest[curves.index].to_numpy()
    falls = [i for i in range(len(difference) - 1) if difference[i] > 0 >= difference[i + 1]]
    if not falls:
        return math.inf if difference[0] > 0 else -math.inf
    i = falls[-1]
    share = difference[i] / (difference[i] - difference[i + 1])
    return float(crest[i] + share * (crest[i + 1] - crest[i]))
