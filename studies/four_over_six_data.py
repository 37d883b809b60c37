"""What the four-over-six study measures, on data by source.

    rule       each selection rule: relMSE, relative absolute error, largest error of a block over the block's maximum
               (mean), share of blocks whose maximum is mapped to 4
    position   where in a block the squared error arises: by |x| over the block's maximum, in 24 bins, of the whole
               tensor's energy; a bin's values quantized and all others kept exact would have just this error
    precision  scales exact (FP32) with E2M1 values, and E4M3 scales with exact values that only saturate at 6
    crest      error and share of 4 by the block's crest factor, max / rms

A source makes a matrix from a seed and its side; outer scales are one a tensor. `channels` multiplies one of 64 columns
by 16, as outliers of activations do; Laplace numbers are what trained weights are like (arXiv 2509.23202). Trained
tensors are those of `real_data`, one measurement a matrix.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

import numerics as nm

from . import real_data

BLOCK, BINS = 16, 24
CREST_EDGES = (1.0, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.25, 3.5, 4.0)

Generate = Callable[[torch.Generator, int], Tensor]


def _gaussian(g: torch.Generator, n: int) -> Tensor:
    return torch.randn(n, n, generator=g)


def _laplace(g: torch.Generator, n: int) -> Tensor:
    """The difference of two exponential numbers."""
    first, second = (torch.empty(n, n).exponential_(generator=g) for _ in range(2))
    return first - second


def _student(g: torch.Generator, n: int) -> Tensor:
    """Five degrees of freedom."""
    return torch.randn(n, n, generator=g) / torch.randn(5, n, n, generator=g).square().mean(0).sqrt()


def _uniform(g: torch.Generator, n: int) -> Tensor:
    return 2 * torch.rand(n, n, generator=g) - 1


def _channels(g: torch.Generator, n: int) -> Tensor:
    return torch.randn(n, n, generator=g) * torch.where(torch.arange(n) % 64 == 32, 16.0, 1.0)


SOURCES: dict[str, Generate] = {
    "gaussian": _gaussian,
    "laplace": _laplace,
    "student t5": _student,
    "uniform": _uniform,
    "channels": _channels,
}

# name: block format, rule, largest block scale that the outer scale aims at
RULES: dict[str, tuple[nm.BlockFormat, str, float]] = {
    "6": (nm.NVFP4, "static_6", 448.0),
    "4": (nm.NVFP4, "static_4", 448.0),
    "4/6, squares": (nm.NVFP4, "four_over_six", 256.0),
    "4/6, magnitudes": (nm.NVFP4, "four_over_six_mae", 256.0),
    "4/6, largest error": (nm.NVFP4, "four_over_six_absmax", 256.0),
    "4/6, scales up to 448": (nm.NVFP4, "four_over_six", 448.0),
    "6, 16x16": (nm.NVFP4_2D, "static_6", 448.0),
    "4/6, 16x16": (nm.NVFP4_2D, "four_over_six", 256.0),
}
SIX, SQUARES = "6", "4/6, squares"


def quantized(x: Tensor, rule: str) -> nm.BlockTensor:
    """`x` (rows, columns) by one of `RULES`."""
    fmt, name, scale_max = RULES[rule]
    outer = (x.abs().max() / torch.tensor(6 * scale_max)).view(1, 1)
    return nm.quantize(x, fmt, rule=name, outer=outer)


def fours(x: Tensor, q: nm.BlockTensor) -> Tensor:
    """Which scales are those of candidate 4 and not of candidate 6, shaped like `q.scales`."""
    amax = _blocks(x).abs().amax(-1)
    if (tile := q.fmt.tile) > 1:
        amax = functional.pad(amax, (0, 0, 0, -len(amax) % tile)).unflatten(0, (-1, tile)).amax(1)
    four, six = (nm.encode(amax / (q.outer * largest), nm.E4M3) for largest in (4.0, 6.0))
    return (q.scales == four) & (four != six)


def _blocks(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, BLOCK))


def _rules(x: Tensor) -> Iterator[dict[str, Any]]:
    size, most = x.double().abs(), _blocks(x).abs().amax(-1).double()
    for rule in RULES:
        q = quantized(x, rule)
        off = (q.dequantize().double() - x.double()).abs()
        found = {
            "rel_mse": float(off.square().sum() / size.square().sum()),
            "rel_mae": float(off.sum() / size.sum()),
            "largest": float((_blocks(off).amax(-1) / most).mean()),
        }
        if rule.startswith("4/6"):
            found["fours"] = float(fours(x, q).double().mean())
        yield from ({"case": rule, "at": 0.0, "measure": key, "value": value} for key, value in found.items())


def positions(x: Tensor) -> Tensor:
    """The bin of each entry by its share of the block's maximum, int64 like x: bin i holds [i/24, (i+1)/24) of it."""
    blocks = _blocks(x).double().abs()
    share = blocks / blocks.amax(-1, keepdim=True)
    return (share * BINS).long().clamp(max=BINS - 1).flatten(-2)


def _positions(x: Tensor) -> Iterator[dict[str, Any]]:
    where, energy = positions(x).flatten(), float(x.double().square().sum())
    counts = torch.bincount(where, minlength=BINS).double() / where.numel()
    parts = [("values", "share", counts)]
    for rule in (SIX, SQUARES):
        off = (quantized(x, rule).dequantize().double() - x.double()).square().flatten()
        parts.append((rule, "error", torch.bincount(where, off, BINS) / energy))
    for case, measure, values in parts:
        for i, value in enumerate(values.tolist()):
            yield {"case": case, "at": i / BINS, "measure": measure, "value": value}


def exact_scales(x: Tensor, largest: float) -> Tensor:
    """x with its block maxima mapped to `largest` by exact scales, E2M1 values; float64."""
    blocks = _blocks(x).double()
    step = blocks.abs().amax(-1, keepdim=True) / largest
    return (nm.round_to(blocks / step, nm.E2M1) * step).flatten(-2)


def exact_values(x: Tensor, rule: str) -> Tensor:
    """x with the scales of `rule` and values that only saturate, at 6 scales; float64."""
    q = quantized(x, rule)
    step = (nm.decode(q.scales, nm.E4M3).double() * q.outer.double()).repeat_interleave(BLOCK, -1)
    return x.double().clamp(-6 * step, 6 * step)


def _better(x: Tensor, six: Tensor, four: Tensor) -> Tensor:
    """Per block the candidate with the smaller squared error, 6 if equal."""
    six, four, blocks = _blocks(six), _blocks(four), _blocks(x.double())
    worse = (four - blocks).square().sum(-1, keepdim=True) >= (six - blocks).square().sum(-1, keepdim=True)
    return torch.where(worse, six, four).flatten(-2)


def _precisions(x: Tensor) -> Iterator[dict[str, Any]]:
    six, four = exact_scales(x, 6.0), exact_scales(x, 4.0)
    found = {
        "6, scales exact": six,
        "4/6, scales exact": _better(x, six, four),
        "6, values exact": exact_values(x, SIX),
        "4/6, values exact": exact_values(x, SQUARES),
    }
    for case, values in found.items():
        yield {"case": case, "at": 0.0, "measure": "rel_mse", "value": nm.metrics.error(x, values).rel_mse}


def _crests(x: Tensor) -> Iterator[dict[str, Any]]:
    blocks = _blocks(x).double()
    crest = blocks.abs().amax(-1) / blocks.square().mean(-1).sqrt()
    edges = torch.tensor(CREST_EDGES, dtype=torch.float64)
    where = (torch.bucketize(crest, edges, right=True) - 1).clamp(max=len(CREST_EDGES) - 1).flatten()
    six, q = quantized(x, SIX), quantized(x, SQUARES)
    sums = {
        "blocks": torch.ones_like(crest),
        "energy": blocks.square().sum(-1),
        "fours": fours(x, q).double(),
        SIX: (_blocks(six.dequantize()) - blocks).square().sum(-1),
        SQUARES: (_blocks(q.dequantize()) - blocks).square().sum(-1),
    }
    for case, values in sums.items():
        for edge, value in zip(CREST_EDGES, torch.bincount(where, values.flatten(), len(CREST_EDGES)), strict=True):
            yield {"case": case, "at": edge, "measure": "sum", "value": float(value)}


def measure_tensor(x: Tensor) -> pd.DataFrame:
    """Everything about one matrix of a multiple of 16 columns without a block of zeros only.

    Returns:
        Columns part, case, at, measure, value; see the module.
    """
    parts = {"rule": _rules, "position": _positions, "precision": _precisions, "crest": _crests}
    found = [{"part": name} | row for name, measure in parts.items() for row in measure(x)]
    return pd.DataFrame(found)


def measure_seed(source: str, seed: int, n: int) -> pd.DataFrame:
    """`measure_tensor` of n x n numbers from a source, with columns source, seed and n, the count of numbers."""
    x = SOURCES[source](torch.Generator().manual_seed(seed), n)
    return measure_tensor(x).assign(source=source, seed=seed, n=n * n)


REAL = {"trained weights": real_data.weights, "trained activations": real_data.activations}


def measure_real(kind: str, identity: str) -> pd.DataFrame:
    """`measure_tensor` of every matrix of a kind in `REAL`; column seed counts them.

    Args:
        identity: which data these are, so that others are measured anew.
    """
    found = [
        measure_tensor(matrix.values).assign(seed=i, n=matrix.values.numel()) for i, matrix in enumerate(REAL[kind]())
    ]
    return pd.concat(found, ignore_index=True).assign(source=kind)


PRODUCTS = {
    "neither": (SIX, SIX),
    "activations": (SQUARES, SIX),
    "weights": (SIX, SQUARES),
    "both": (SQUARES, SQUARES),
    "activations, weights 16x16": (SQUARES, "6, 16x16"),
}


def measure_product(activations: str, weights: str, seed: int, n: int) -> pd.DataFrame:
    """relMSE of x w^T, summed in float64, for each choice of who is quantized by four-over-six.

    Args:
        activations, weights: sources, drawn with different seeds. n: side of both; sums run over n products.
    """
    x = SOURCES[activations](torch.Generator().manual_seed(2 * seed), n)
    w = SOURCES[weights](torch.Generator().manual_seed(2 * seed + 1), n)
    exact = x.double() @ w.double().T
    found = []
    for case, (left, right) in PRODUCTS.items():
        product = quantized(x, left).dequantize().double() @ quantized(w, right).dequantize().double().T
        error = nm.metrics.error(exact, product).rel_mse
        found.append({"part": "product", "case": case, "at": 0.0, "measure": "rel_mse", "value": error})
    return pd.DataFrame(found).assign(source=f"{activations} x {weights}", seed=seed, n=n * n)
