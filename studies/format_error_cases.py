"""What the study `format_error` measures: format variants, kinds of data, and their errors.

Random data come from numpy's generator with the key (seed, kind), float32 (rows, columns), blocks along rows:

    gaussian    standard normal
    laplace     scale 1, variance 2: E8M0 scales see the variance, and published values are those of this one
    student t5  5 degrees of freedom, as drawn
    uniform     between -sqrt(3) and sqrt(3), variance 1
    outlier     standard normal, and the first of every 32 values of magnitude 200 * 2^u, u uniform in [-1/2, 1/2);
                the other 31 are measured apart as well. (Equal outliers would make every E4M3 scale exact.)

Real data are the matrices of `real_data`, one measurement each.

Stochastic rounding takes the key (seed, 0). "4/6, scales to 448" is four-over-six with the outer scale of plain NVFP4:
block scales mapped to 4 would exceed 448 and saturate there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import numerics as nm

from . import real_data

INT6 = nm.Format("INT6", "fixed", 6, 0, 0, bias=0)
MXINT6 = nm.BlockFormat("MXINT6", INT6, 32, nm.E8M0, nm.scales.RULES["rceil"])
OUTLIER, EVERY = 200.0, 32
ASKED = ("crest", "inflation", "normal", "subnormal")  # what the closed forms ask; empty where there are none
REST = "outlier, others"  # the data kind of what is not an outlier


@dataclass(frozen=True)
class Variant:
    """A way to quantize. fmt, and what `quantize` is told beside it; random: whether it needs random words."""

    fmt: nm.BlockFormat
    options: dict[str, Any]
    random: bool = False

    def quantize(self, x: Tensor, seed: int) -> nm.BlockTensor:
        """`x` by this variant."""
        options = dict(self.options)
        if options.get("outer") == "448":
            options["outer"] = (x.abs().amax() / torch.tensor(nm.E2M1.max * nm.E4M3.max)).view(1, 1)
        if self.random:
            options["random"] = nm.Random((seed, 0))
        return nm.quantize(x, self.fmt, **options)


def _stochastic(fmt: nm.BlockFormat, **options: Any) -> Variant:
    return Variant(fmt, {"rounding": nm.Rounding.STOCHASTIC, **options}, random=True)


VARIANTS: dict[str, Variant] = {
    "NVFP4": Variant(nm.NVFP4, {}),
    "NVFP4, outer per token": Variant(nm.NVFP4, {"outer": "row"}),
    "NVFP4, outer a power of two": Variant(nm.NVFP4, {"outer_rounding": "pow2"}),
    "NVFP4, mapped to 4": Variant(nm.NVFP4, {"rule": "static_4"}),
    "4/6": Variant(nm.NVFP4_46, {}),
    "4/6, outer per token": Variant(nm.NVFP4_46, {"outer": "row"}),
    "4/6, outer a power of two": Variant(nm.NVFP4_46, {"outer_rounding": "pow2"}),
    "4/6, scales to 448": Variant(nm.NVFP4_46, {"outer": "448"}),
    "4/6 by magnitudes": Variant(nm.NVFP4_46, {"rule": "four_over_six_mae"}),
    "4/6 by largest error": Variant(nm.NVFP4_46, {"rule": "four_over_six_absmax"}),
    "16x16": Variant(nm.NVFP4_2D, {}),
    "16x16, 4/6": Variant(nm.NVFP4_2D, {"rule": "four_over_six"}),
    "IF4": Variant(nm.IF4, {}),
    "NVINT4": Variant(nm.NVINT4, {}),
    "MXFP4": Variant(nm.MXFP4, {}),
    "MXFP4, floor": Variant(nm.MXFP4, {"rule": "floor"}),
    "MXINT4": Variant(nm.MXINT4, {}),
    "MXFP6 E2M3": Variant(nm.MXFP6_E2M3, {}),
    "MXFP6 E3M2": Variant(nm.MXFP6_E3M2, {}),
    "MXINT6": Variant(MXINT6, {}),
    "MXFP8": Variant(nm.MXFP8, {}),
    "MXFP8, floor": Variant(nm.MXFP8, {"rule": "floor"}),
    "MXFP8 E5M2": Variant(nm.MXFP8_E5M2, {}),
    "S2F6 (MXINT8)": Variant(nm.MXS2F6, {}),
    "S2F6, floor": Variant(nm.MXS2F6, {"rule": "floor"}),
    "FP8 1x128": Variant(nm.FP8_1X128, {}),
    "FP8 128x128": Variant(nm.FP8_128X128, {}),
    "NVFP4 SR": _stochastic(nm.NVFP4),
    "NVFP4 SR, 16/17": _stochastic(nm.NVFP4, rule="unbiased"),
    "4/6 SR": _stochastic(nm.NVFP4_46),
    "MXFP8 SR": _stochastic(nm.MXFP8),
    "MXFP8 SR, floor": _stochastic(nm.MXFP8, rule="floor"),
    "S2F6 SR": _stochastic(nm.MXS2F6),
}
NEAREST = [name for name in VARIANTS if " SR" not in name]

Generate = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
KINDS: dict[str, Generate] = {
    "gaussian": lambda g, shape: g.standard_normal(shape),
    "laplace": lambda g, shape: g.laplace(size=shape),
    "student t5": lambda g, shape: g.standard_t(5, shape),
    "uniform": lambda g, shape: g.uniform(-np.sqrt(3), np.sqrt(3), shape),
    "outlier": lambda g, shape: _with_outliers(g, shape),
}
REAL = {"weights": real_data.weights, "activations": real_data.activations}


def _with_outliers(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    x = generator.standard_normal(shape)
    x[:, ::EVERY] = np.copysign(OUTLIER * 2.0 ** generator.uniform(-0.5, 0.5, x[:, ::EVERY].shape), x[:, ::EVERY])
    return x


def draw(kind: str, seed: int, shape: tuple[int, int]) -> Tensor:
    """float32 numbers of `KINDS`; each kind and seed has its own stream."""
    generator = np.random.default_rng((seed, list(KINDS).index(kind)))
    return torch.from_numpy(KINDS[kind](generator, shape).astype(np.float32))


def scales(q: nm.BlockTensor) -> Tensor:
    """What each code value is multiplied by: the tensor with every code that of 1, decoded."""
    fmt = q.fmt.element
    one = int(nm.encode(torch.ones(1), fmt))
    return q.derived(codes=torch.full_like(q.codes, one)).dequantize()


def shares(x: Tensor, q: nm.BlockTensor) -> dict[str, float]:
    """What the closed forms ask of a tensor.

    Returns:
        crest: sqrt of mean square of block maxima over that of all values. inflation: largest code value times scale,
        over the block maximum, root mean square weighted by the maximum's square. normal: share of the energy in values
        that the element format holds as normal numbers. subnormal: share of the values below, counted.
    """
    fmt = q.fmt
    step, values = scales(q).double(), x.double()
    top = values.abs().unflatten(1, (-1, fmt.block)).amax(-1)
    if fmt.tile > 1:
        raise ValueError(f"{fmt.name} shares scales among {fmt.tile} lines: the closed forms have blocks of one")
    square = values.square()
    largest = (step * fmt.element.max).unflatten(1, (-1, fmt.block))[..., 0].square().sum()
    normal = values.abs() >= step * fmt.element.min_normal
    return {
        "crest": float((top.square().mean() / square.mean()).sqrt()),
        "inflation": float((largest / top.square().sum()).sqrt()),
        "normal": float(square[normal].sum() / square.sum()),
        "subnormal": float((~normal).double().mean()),
    }


def measure(kind: str, seed: int, rows: int, columns: int) -> pd.DataFrame:
    """Errors of every variant on random numbers; columns as `errors`, and what the closed forms need."""
    x = draw(kind, seed, (rows, columns))
    found = errors(x, kind, f"seed {seed}", seed, list(VARIANTS))
    return pd.DataFrame(found)


def measure_real(kind: str, identity: str) -> pd.DataFrame:
    """Errors of every variant that rounds to nearest, on each matrix of a kind of `REAL`.

    identity: which data these are; a different one is measured anew.
    """
    found = []
    for index, matrix in enumerate(REAL[kind]()):
        found += errors(matrix.values, kind, f"{matrix.layer} {matrix.role}", index, NEAREST)
    return pd.DataFrame(found)


def errors(x: Tensor, kind: str, name: str, seed: int, variants: list[str]) -> list[dict[str, Any]]:
    """One row per variant: its error on `x`, and on what is not an outlier where `kind` has outliers."""
    crests = {f"crest {block}": nm.metrics.crest_factor(x, block) for block in (16, 32)}
    rest = torch.ones_like(x, dtype=torch.bool)
    rest[:, ::EVERY] = False
    nothing = dict.fromkeys(ASKED)
    rows = []
    for variant in variants:
        q = VARIANTS[variant].quantize(x, seed)
        asked = shares(x, q) if variant in FORMS else nothing
        values = q.dequantize()
        for of in (kind, REST) if kind == "outlier" else (kind,):
            error = nm.metrics.error(x, values) if of == kind else nm.metrics.error(x[rest], values[rest])
            case = {"data": of, "tensor": name, "seed": seed, "format": variant, "values": error.n}
            numbers = {"rel_mse": error.rel_mse, "qsnr": error.qsnr, "bias": error.bias, "zeros": error.flush_to_zero}
            rows.append(case | numbers | crests | (asked if of == kind else nothing))
    return rows


# for which closed forms exist: the plain variants with blocks along one line and a scale of E4M3 or rounded up E8M0
FORMS = ("NVFP4", "NVINT4", "MXFP4", "MXINT4", "MXFP6 E2M3", "MXFP6 E3M2", "MXINT6", "MXFP8", "S2F6 (MXINT8)")
