"""What the study of the combine measures: the wires, blocks with outliers, and one part a seed.

A wire is what an expert's output becomes on its way back: BF16, or blocks of 32 in MXFP8 or S2F6 (MXINT8), each with or
without a random Hadamard transform of 32 before it and its inverse after. Everything is decoded from codes.

Blocks are 32 standard normal numbers, `count` of which, at random places and of random signs, are outliers: of size
a 2^u, u uniform in [-1/2, 1/2), because powers of two as scales make one size stand for nothing but itself; or of
exactly the size a, for published numbers. Blocks of these formats do not see each other, so a tensor in which a share f
of the blocks holds outliers has the sums of squares f * (with) + (1 - f) * (without).
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import numerics as nm

BLOCK = 32
COUNTS = (1, 2, 4, 8)  # outliers in a block that holds some
SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
EXACT = 200  # the published outlier
EXPERTS = (2, 6, 8)
E4M3_BOUND = 2.0**-4  # MXFP8's largest relative error, above its subnormals


@dataclass(frozen=True)
class Wire:
    """A wire: its name, block format (None: BF16), and whether a transform goes before it."""

    name: str
    fmt: nm.BlockFormat | None
    rotated: bool


WIRES = (
    Wire("BF16", None, False),
    Wire("MXFP8", nm.MXFP8, False),
    Wire("RHT + MXFP8", nm.MXFP8, True),
    Wire("S2F6", nm.MXS2F6, False),
    Wire("RHT + S2F6", nm.MXS2F6, True),
)


def travel(x: Tensor, wire: Wire, signs: Tensor) -> Tensor:
    """`x` (..., 32 n) as the receiver has it, float32."""
    y = nm.hadamard(x, BLOCK, signs) if wire.rotated else x
    decoded = y.to(torch.bfloat16).float() if wire.fmt is None else nm.quantize(y, wire.fmt).dequantize()
    return nm.hadamard_inverse(decoded, BLOCK, signs) if wire.rotated else decoded


def sent_bits(wire: Wire, width: int = 2048) -> float:
    """Bits a value in what is sent, counted in bytes."""
    x = torch.ones(3, width)
    if wire.fmt is None:
        return x.to(torch.bfloat16).nbytes * 8 / x.numel()
    q = nm.quantize(x, wire.fmt)
    return (q.packed().nbytes + q.scales.nbytes) * 8 / x.numel()


def blocks_with_outliers(seed: int, blocks: int, count: int, size: float, exact: bool = False) -> tuple[Tensor, Tensor]:
    """Blocks (blocks, 32), and which of their values are outliers."""
    random = np.random.default_rng((seed, count))
    x = torch.from_numpy(random.standard_normal((blocks, BLOCK), dtype=np.float32))
    place = torch.from_numpy(random.random((blocks, BLOCK)).argsort(1)[:, :count].copy())
    value = size * random.choice([-1.0, 1.0], (blocks, count)) * 2.0 ** random.uniform(-0.5, 0.5, (blocks, count))
    value = size * np.sign(value) if exact else value
    loud = torch.zeros(x.shape, dtype=torch.bool).scatter(1, place, True)
    return x.scatter(1, place, torch.from_numpy(value).float()), loud


def moments(x: Tensor, decoded: Tensor, of: Tensor) -> dict[str, float]:
    """Of the values `of`: mean squares of error and value, mean and largest |error|, the share with a relative error
    beyond E4M3's; n values."""
    value, error = x[of].to(torch.float64), (decoded - x)[of].to(torch.float64).abs()
    return {
        "square": float(error.square().mean()),
        "energy": float(value.square().mean()),
        "mean": float(error.mean()),
        "largest": float(error.max()),
        "beyond": float((error > E4M3_BOUND * value.abs()).to(torch.float64).mean()),
        "n": int(of.sum()),
    }


def trade_part(seed: int, blocks: int) -> pd.DataFrame:
    """Every number of outliers, size and wire: moments of outliers and of the others of their blocks; and of blocks
    without outliers (count 0)."""
    signs, rows = nm.hadamard_signs(BLOCK, (seed, 0)), []
    for count, size in [(0, 0), *((count, size) for count in COUNTS for size in SIZES)]:
        x, loud = blocks_with_outliers(seed, blocks, count, size)
        for wire in WIRES:
            decoded = travel(x, wire, signs)
            case = {"seed": seed, "count": count, "size": size, "wire": wire.name}
            if count:
                rows.append(case | {"part": "outliers"} | moments(x, decoded, loud))
            rows.append(case | {"part": "others"} | moments(x, decoded, ~loud))
    return pd.DataFrame(rows)


def published_part(seed: int, blocks: int) -> pd.DataFrame:
    """One |200| a block: root mean square errors by wire; and dB of normal and Laplace (scale 1) numbers."""
    signs, rows = nm.hadamard_signs(BLOCK, (seed, 0)), []
    x, loud = blocks_with_outliers(seed, blocks, 1, EXACT, exact=True)
    random = np.random.default_rng((seed, 99))
    laplace = torch.from_numpy(random.laplace(size=(blocks, BLOCK))).float()
    normal = torch.from_numpy(random.standard_normal((blocks, BLOCK))).float()
    for wire in WIRES:
        square = (travel(x, wire, signs) - x).to(torch.float64).square()
        row = {"seed": seed, "wire": wire.name, "n": x.numel()}
        row |= {"outlier": math.sqrt(square[loud].mean()), "others": math.sqrt(square[~loud].mean())}
        row |= {"total": math.sqrt(square.mean())}
        row |= {
            name: nm.metrics.error(data, travel(data, wire, signs)).qsnr
            for name, data in (("normal", normal), ("Laplace", laplace))
        }
        rows.append(row)
    return pd.DataFrame(rows)


def order_part(seed: int, tokens: int, experts: int) -> pd.DataFrame:
    """The weighted sum of experts' rows inverted once, against each row inverted first: by the butterfly and by a
    matrix product. And the energy of a transformed tensor over that of the tensor, less 1."""
    signs = nm.hadamard_signs(BLOCK, (seed, 0))
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(experts, tokens, 1024, generator=random)
    weights = torch.randn(experts, tokens, 1, generator=random).softmax(0)
    y = nm.hadamard(x, BLOCK, signs)
    decoded = nm.quantize(y, nm.MXS2F6).dequantize()
    energy = float(y.to(torch.float64).square().sum() / x.to(torch.float64).square().sum()) - 1
    # rows of the inverse applied to unit vectors; in float64 its entries are +-1/sqrt(32) to float32's precision
    matrix = nm.hadamard_inverse(torch.eye(BLOCK), BLOCK, signs)
    total = sum_in_order(decoded, weights)
    exact = (decoded.to(torch.float64) * weights).sum(0).unflatten(-1, (-1, BLOCK)) @ matrix.sign().to(torch.float64)
    exact = exact.flatten(-2) * BLOCK**-0.5
    rows = []
    for how in ("butterfly", "matrix product"):
        once, each = (_inverse(t, signs, matrix, how) for t in (total, decoded))
        apart = sum_in_order(each, weights)
        row = {"seed": seed, "experts": experts, "how": how, "n": once.numel(), "energy": energy}
        row |= {"relative": _relative(once, apart), "equal": float((once == apart).to(torch.float64).mean())}
        row["equal_bf16"] = float((once.to(torch.bfloat16) == apart.to(torch.bfloat16)).to(torch.float64).mean())
        rows.append(row | {"once_off": _relative(once, exact), "apart_off": _relative(apart, exact)})
    return pd.DataFrame(rows)


def sum_in_order(rows: Tensor, weights: Tensor) -> Tensor:
    """sum_e weights[e] * rows[e], products rounded, added in the order of the experts; float32."""
    total = rows[0] * weights[0]
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        total = total + row * weight
    return total


def _inverse(y: Tensor, signs: Tensor, matrix: Tensor, how: str) -> Tensor:
    if how == "butterfly":
        return nm.hadamard_inverse(y, BLOCK, signs)
    return (y.unflatten(-1, (-1, BLOCK)) @ matrix).flatten(-2)


def _relative(a: Tensor, b: Tensor) -> float:
    a, b = a.to(torch.float64), b.to(torch.float64)
    return float((a - b).norm() / b.norm())


# the block's largest magnitude; the published exponent of its scale, rounded up; rounded down, None: not stated
EXPONENTS = (
    ("S2F6", 1.984, None, -1),
    ("S2F6", 1.984375, 0, None),
    ("S2F6", 1.985, 1, None),
    ("S2F6", 3.97, 2, 1),
    ("S2F6", 200.0, 7, None),
    ("MXFP8", 448.0, 0, None),
    ("MXFP8", 449.0, 1, 0),
    ("MXFP8", 2.0, -7, None),
)


def exponent(wire: str, amax: float, rule: str) -> int:
    """The scale's exponent of a block whose largest magnitude is `amax`."""
    x = torch.zeros(1, BLOCK)
    x[0, 7] = -amax
    [fmt] = {each.fmt for each in WIRES if each.name == wire}
    assert fmt is not None
    return int(nm.quantize(x, fmt, rule=rule).scales) - 127
