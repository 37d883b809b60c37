"""Error measures between a tensor and its quantized version.

    relMSE = sum (x_q - x)^2 / sum x^2          QSNR = -10 log10 relMSE  (dB)
    bias   = sum (x_q - x) x / sum x^2          0 for an unbiased quantizer; -0.01: x_q is 1 % too short along x
    crest  = max |x| / rms(x) per block         (arXiv 2510.25602)

Sums run in float64. The interval of the bias treats elements as independent draws: +-1.96 standard errors of the
ratio, by the delta method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .arguments import integer, require_same_shape, require_tensor
from .codes import as_tensor, require_float


@dataclass(frozen=True)
class Error:
    """rel_mse and bias are ratios, qsnr in dB, bias_interval the half-width at 95 %, flush_to_zero the share of
    non-zero values that became zero, max_error absolute, n the number of values."""

    rel_mse: float
    qsnr: float
    bias: float
    bias_interval: float
    flush_to_zero: float
    max_error: float
    n: int


def error(x: Any, x_q: Any) -> Error:
    """Compare `x_q` with the reference `x`: same shape, any floating dtype, torch or numpy.

    A NaN or Inf on either side, or a reference of zeros only, makes the ratios and the QSNR NaN.

    Raises: TypeError for other kinds and dtypes. ValueError if shapes differ or nothing is there to compare.
    """
    x, x_q = as_tensor(x, "x")[0], as_tensor(x_q, "x_q")[0]
    require_float(x, "x")
    require_float(x_q, "x_q")
    if x.shape != x_q.shape or x.numel() == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}, x_q {tuple(x_q.shape)}: they must agree and hold a value")
    reference, value = (t.detach().to(torch.float64).flatten() for t in (x, x_q))
    difference = value - reference
    energy = float(reference.square().sum())
    rel_mse = float(difference.square().sum()) / energy if energy else math.nan
    product = difference * reference
    bias = float(product.sum()) / energy if energy else math.nan
    residual = product - bias * reference.square()
    interval = 1.96 * math.sqrt(float(residual.square().sum())) / energy if energy else math.nan
    nonzero = reference != 0
    flushed = float((nonzero & (value == 0)).sum()) / max(int(nonzero.sum()), 1)
    qsnr = math.inf if rel_mse == 0 else -10 * math.log10(rel_mse) if rel_mse > 0 else math.nan
    return Error(rel_mse, qsnr, bias, interval, flushed, float(difference.abs().max()), x.numel())


def crest_factor(x: Tensor, block: int) -> float:
    """Mean over blocks of `block` along the last axis of max |x| / rms(x); all-zero blocks are left out."""
    require_tensor(x, "x")
    require_float(x, "x")
    if x.ndim == 0:
        raise ValueError("x has no axis: pass a tensor of one axis or more")
    if integer(block, "block", "pass a number of values") < 1 or x.shape[-1] % block:
        raise ValueError(f"block={block} does not divide the last axis of x, {x.shape[-1]}")
    blocks = x.to(torch.float64).reshape(-1, block)
    rms = blocks.square().mean(-1).sqrt()
    keep = rms > 0
    return float((blocks.abs().amax(-1)[keep] / rms[keep]).mean())


def cosine(x: Tensor, y: Tensor) -> float:
    """Cosine of the angle between two tensors of one shape, in float64. TypeError, ValueError: anything else."""
    for name, t in (("x", x), ("y", y)):
        require_tensor(t, name)
        require_float(t, name)
    require_same_shape({"x": x, "y": y})
    a, b = (t.detach().to(torch.float64).flatten() for t in (x, y))
    return float(a @ b / (a.norm() * b.norm()))
