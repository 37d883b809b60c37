"""Small and exact: one 16 x 16 block before and after, and where each format begins to lose values.

The block holds 0, 1, 4, 16 and a single 64, the values of the transpose figure of "End-to-End 4-Bit Training" (Thinking
Machines Lab, 2026), whose placing is ours. With outer 1, a block whose largest magnitude is 64 has the scale
e4m3(64 / 6) = 11: 64 -> 66, 16 -> 16.5, 4 -> 5.5, 1 -> 0.

Reach: the largest ratio of block maximum to a value that does not become zero, by bisection over the bits of the value,
for maxima of every mantissa in steps of 1/256. Closed forms, with s the scale and the tie at half the least element
going to zero: E2M1 amax / (s / 4), E4M3 amax / (s / 1024).
"""

from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from torch import Tensor

import numerics as nm
from numerics.scales import Rule, static

BEFORE = "before"
VALUES = (0.0, 1.0, 4.0, 16.0, 64.0)
PEAK = (2, 12)  # row and column of the 64


def block() -> Tensor:
    """The 16 x 16 block, float32: 1 nearly everywhere, some 4, few 16, one 64, some zeros."""
    shares = torch.tensor([0.06, 0.80, 0.12, 0.02])
    kinds = torch.multinomial(shares, 256, replacement=True, generator=torch.Generator().manual_seed(4)).view(16, 16)
    x = torch.tensor(VALUES[:4])[kinds]
    x[PEAK] = VALUES[4]
    return x


def views(x: Tensor) -> dict[str, Tensor]:
    """The block before, along rows, along columns, and as a tile of 16 x 16, without an outer scale."""
    return {
        BEFORE: x,
        "along rows, 1x16": nm.quantize(x, nm.NVFP4, axis=-1, outer=None).dequantize(),
        "along columns, 16x1": nm.quantize(x, nm.NVFP4, axis=-2, outer=None).dequantize(),
        "as one tile, 16x16": nm.quantize(x, nm.NVFP4_2D, axis=-1, outer=None).dequantize(),
    }


def becomes() -> pd.DataFrame:
    """What each value becomes in an NVFP4 block of each maximum: columns block maximum, scale, and one a value."""
    rows = []
    for most in VALUES[1:]:
        x = torch.zeros(1, 16)
        x[0, : len(VALUES)] = torch.tensor([v if v <= most else 0.0 for v in VALUES])
        q = nm.quantize(x, nm.NVFP4, outer=None)
        found = q.dequantize()[0].tolist()
        told = [f"{after:g}" if v <= most else "" for v, after in zip(VALUES, found, strict=False)]
        scale = float(nm.decode(q.scales, nm.E4M3)[0, 0])
        rows.append([most, scale, *told])
    return pd.DataFrame(rows, columns=["block maximum", "scale", *(f"{v:g} becomes" for v in VALUES)])


def least(survives: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The least positive float32 that survives, one a line: bisection over their bits.

    Args:
        survives: values -> bool, monotone. low, high: float32, lines where it is false and where it is true.
    """
    below, above = low.view(torch.int32), high.view(torch.int32)
    while bool((above - below > 1).any()):
        middle = below + (above - below) // 2  # a sum of two would leave int32
        alive = survives(middle.view(torch.float32))
        below, above = torch.where(alive, below, middle), torch.where(alive, middle, above)
    return above.view(torch.float32)


def reach(fmt: nm.BlockFormat) -> tuple[float, float]:
    """Least and largest, over block maxima in [1, 2), of the block maximum over the least value that is not lost."""
    most = 1 + torch.arange(256) / 256

    def survives(values: Tensor) -> Tensor:
        x = torch.zeros(256, fmt.block)
        x[:, 0], x[:, 1] = most, values
        return nm.quantize(x, fmt, outer=None).dequantize()[:, 1] != 0

    ratio = most / least(survives, torch.full((256,), 2.0**-40), most)
    return float(ratio.min()), float(ratio.max())


def scale_is_lost(rule: str | Rule) -> float:
    """The least ratio of tensor maximum to block maximum at which an NVFP4 block's scale is zero."""

    def lost(ratio: Tensor) -> Tensor:
        x = torch.zeros(1, 32)
        x[0, 0], x[0, 16] = ratio[0], 1.0
        return nm.quantize(x, nm.NVFP4, outer="tensor", rule=rule).scales[:, 1] == 0

    return float(least(lost, torch.tensor([1.0]), torch.tensor([2.0**24])))


def losses() -> dict[str, float]:
    """`scale_is_lost` of NVFP4, of four-over-six, and of its candidate 6 alone, whose largest scale is 256."""
    alone = Rule("six_of_256", partial(static, largest=6.0), 256.0, "arXiv 2512.02010, section 3")
    return {
        "plain": scale_is_lost("nvfp4"),
        "candidate 6": scale_is_lost(alone),
        "four-over-six": scale_is_lost("four_over_six"),
    }


def reaches() -> pd.DataFrame:
    """One row per block format: from which share of the block maximum down values become zero."""
    formats = {
        "NVFP4 1x16": nm.NVFP4,
        "MXFP4 1x32": nm.MXFP4,
        "MXFP8 1x32": nm.MXFP8,
        "FP8 1x128": nm.FP8_1X128,
    }
    rows = []
    for name, fmt in formats.items():
        low, high = reach(fmt)
        rows.append([name, fmt.block, low, high])
    return pd.DataFrame(rows, columns=["format", "values a scale", "least", "largest"])
