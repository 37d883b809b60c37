"""Numbers that depend on a row alone: exact dot products, and exp and log of elementwise IEEE operations.

A library's sum has an order that depends on shapes, threads and device, and its exp another form in the tail of a
vector. Here a sum is the exact one, rounded once to FP32, whatever is summed beside it; zeros added to it change
nothing. Its bits are those of `numerics.matmul` under "exact", found mostly with one float64 product:

    s = fl64(a b^T), any order        |s - exact| <= e = (K + 4) 2^-52 |a|_2 |b|_2
    fl(s - e) = fl(s + e)             then both are the exact sum, rounded: rounding is monotone
    else                              the exact sum of `numerics.exact_sum`, for that element alone

fl rounds to FP32, and for a BF16 result then to BF16. (FP32 sums of BF16 operands, which often are ties, are taken from
there altogether: their values are narrow, and that is the faster way.)

A product of two FP32 numbers is a float64 number, so only additions err: in any order by at most (K - 1) 2^-53 / (1 -
(K - 1) 2^-53) times sum |a_k b_k| (Higham, Accuracy and Stability of Numerical Algorithms, 2002, 4.2), which is at most
|a|_2 |b|_2. Twice that, and five more, pay for what rounds the norms, e, and s -+ e.

exp and log are polynomials in float64, an operation at a time, so that no compiler or vector unit chooses; within 2^-50
of the truth, rounded once to FP32. Everything runs eagerly: a compiler would fuse products and sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from numerics.exact_sum import exact_product
from numerics.floats import power_of_two
from numerics.uncompiled import uncompiled

_FIXED = 1 << 22  # products of elements that are summed exactly at a time
_PIECE = 1 << 16  # elements that stay in a CPU's cache


def _norms(a: Tensor) -> Tensor:
    """|a|_2 of the rows of float64 (..., M, K): (..., M, 1), within a few 2^-53 of themselves times K."""
    return a.square().sum(-1, keepdim=True).sqrt()


@uncompiled
def dot(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Exact a @ b.T, each element rounded once to FP32; a sum of zeros is +0.

    Args: a (..., M, K), b (..., N, K): float32 or bfloat16, leading axes broadcast. dtype: float32, or bfloat16, to
    which the FP32 numbers are rounded then.

    Returns: (..., M, N). Rows with NaN or infinity give what IEEE arithmetic gives in any order.
    """
    if dtype == torch.float32 and a.dtype == b.dtype == torch.bfloat16:
        return exact_product(a.to(torch.float32), b.to(torch.float32))
    wide_a, wide_b = a.to(torch.float64), b.to(torch.float64)
    sums = wide_a @ wide_b.mT  # [.., M, K] @ [.., K, N] -> [.., M, N]
    bound = (_norms(wide_a) * ((a.shape[-1] + 4) * 2.0**-52)) * _norms(wide_b).mT
    low, high = ((sums + e).to(torch.float32).to(dtype) for e in (-bound, bound))
    unsure = low != high  # NaN too
    return _settled(high, unsure, a, b) if bool(unsure.any()) else high


def _norms(a: Tensor) -> Tensor:
    """|a|_2 of the rows of float64 (..., M, K): (..., M, 1), within a few 2^-53 of themselves times K."""
    return a.square().sum(-1, keepdim=True).sqrt()


def _settled(out: Tensor, unsure: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`out` with its elements `unsure` replaced by exact sums of their own."""
    *lead, m, n = unsure.nonzero().unbind(-1)
    a, b = (x.expand(*out.shape[:-2], *x.shape[-2:]) for x in (a, b))
    step = max(_FIXED // max(a.shape[-1], 1), 1)
    parts = []
    for i in range(0, len(m), step):
        some = slice(i, i + step)
        at = tuple(axis[some] for axis in lead)
        rows, columns = (x.to(torch.float32)[:, None] for x in (a[(*at, m[some])], b[(*at, n[some])]))
        parts.append(exact_product(rows, columns)[:, 0, 0])
    out[unsure] = torch.cat(parts).to(out.dtype)
    return out


def total(x: Tensor) -> Tensor:
    """The exact sum over the last axis, kept, rounded once to FP32. x: float32 (..., K)."""
    return dot(x, torch.ones(1, x.shape[-1], device=x.device))


_LOG2E = 1 / math.log(2)
_LN2_HIGH = float.fromhex("0x1.62e42fefp-1")  # 33 bits: its product with an exponent is exact
_LN2_LOW = float.fromhex("0x1.473de6af278edp-34")  # ln 2 minus that
_EXP = [1 / math.factorial(k) for k in range(13, -1, -1)]
_ATANH = [2 / (2 * k + 1) for k in range(11, -1, -1)]


@uncompiled
def exp(x: Tensor) -> Tensor:
    """e^x, float32; x: float32, at most 88. r = x - n ln 2, |r| <= ln(2) / 2; e^x = 2^n sum_k r^k / k!."""
    if x.is_cuda or x.numel() <= _PIECE:
        return _exp(x)
    return torch.cat([_exp(part) for part in x.flatten().split(_PIECE)]).view(x.shape)


def _exp(x: Tensor) -> Tensor:
    # what is below -110 is 0 in FP32
    x = x.to(torch.float64).clamp(min=-110.0)
    n = torch.round(x * _LOG2E)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    return (_polynomial(_EXP, r) * power_of_two(n.nan_to_num(0.0), torch.float64)).to(torch.float32)


@uncompiled
def log(x: Tensor) -> Tensor:
    """ln x, float64; x: float32 or float64, positive and normal. x = 2^n m, m within 2^(+-1/2); ln m = 2 atanh s."""
    m, n = torch.frexp(x.to(torch.float64))
    low = m < math.sqrt(0.5)
    m, n = torch.where(low, m * 2, m), (n - low.to(n.dtype)).to(torch.float64)
    s = (m - 1) / (m + 1)
    tail = s * _polynomial(_ATANH, s * s)
    return n * _LN2_HIGH + (n * _LN2_LOW + tail)


def _polynomial(coefficients: list[float], x: Tensor) -> Tensor:
    """Highest first, by Horner: every product and sum a rounding of its own."""
    y = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = y * x + c
    return y
