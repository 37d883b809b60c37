"""The outer scales that quantizers store, and the orders in which they multiply code, block scale and outer.

A is the largest magnitude of the outer's scope, q the value of a code, s that of a block scale. float32, each
operation rounded once, in the order of the parentheses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dialects_casts import cap, const
from .outer import outer_scale

# ---- stored outers: (A, dtype of the tensor) -> float32 --------------------------------------------------------------


def the_amax(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """A itself."""
    return amax


def decode_factor(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """A / 2688."""
    return amax / const(amax, 2688.0)


def encode_factor(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """(1 / A) * 2688: what torch makes of `2688 / amax` with a Python number."""
    return (const(amax, 1.0) / amax) * const(amax, 2688.0)


def te_encode(amax: Tensor, dtype: torch.dtype, outer_max: float) -> Tensor:
    """S_enc of `encode_scale`."""
    return encode_scale(amax, outer_max)


def inverse_of_encode(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / S_enc, S_enc as the kernels of Transformer Engine guard it."""
    return const(amax, 1.0) / guarded_encode(amax)


def two_divisions(amax: Tensor, dtype: torch.dtype, bound: float) -> Tensor:
    """(A / bound) / 6, and 1 where that is 0."""
    outer = (amax / const(amax, bound)) / const(amax, 6.0)
    return torch.where(outer == 0, const(amax, 1.0), outer)


def quartet_factor(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """A / fl(447.99 * 6), and 1 where that is 0."""
    outer = amax / const(amax, 447.99 * 6.0)
    return torch.where(outer == 0, const(amax, 1.0), outer)


def house_factor(amax: Tensor, dtype: torch.dtype, outer_max: float) -> Tensor:
    """A / outer_max, at least 2^-128, 1 where A is 0 (`numerics.outer`)."""
    return outer_scale(amax, outer_max)[0]


def compressed_tensors_factor(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """(1 / max(A, the least normal number)) * 2688, both rounded to x's dtype; 1 if that is NaN or infinite."""
    limited = torch.where(torch.isnan(amax), amax, amax.clamp(min=torch.finfo(dtype).tiny))
    inverse = (const(amax, 1.0) / limited).to(dtype).to(torch.float32)
    encode = (inverse * const(amax, 2688.0)).to(dtype).to(torch.float32)
    return torch.where(torch.isfinite(encode), encode, const(amax, 1.0))


def encode_scale(amax: Tensor, outer_max: float = 2688.0) -> Tensor:
    """min(outer_max / A, FLT_MAX), and 1 where A is infinite: S_enc of Transformer Engine's reference."""
    s_enc = cap(const(amax, outer_max) / amax)
    return torch.where(s_enc == 0, const(amax, 1.0), s_enc)


def guarded_encode(amax: Tensor) -> Tensor:
    """`encode_scale`, and 1 where A is 0: S_enc of its kernels."""
    return torch.where(amax == 0, const(amax, 1.0), encode_scale(amax))


# ---- decoding: (q, s, stored outer) -> float32 -----------------------------------------------------------------------


def te_order(q: Tensor, s: Tensor, amax: Tensor) -> Tensor:
    """q * ((s * A) * fl(1 / 2688))."""
    return q * ((s * amax) * (const(amax, 1.0) / const(amax, 2688.0)))


def te_order_256(q: Tensor, s: Tensor, amax: Tensor) -> Tensor:
    """q * ((s * A) * fl(1 / 1536))."""
    return q * ((s * amax) * (const(amax, 1.0) / const(amax, 1536.0)))


def amax_last(q: Tensor, s: Tensor, amax: Tensor, limit: float) -> Tensor:
    """((q * s) * A) / limit."""
    return ((q * s) * amax) / const(amax, limit)


def decode_last(q: Tensor, s: Tensor, amax: Tensor, outer_max: float) -> Tensor:
    """q * (s * (A / outer_max))."""
    return q * (s * (amax / const(amax, outer_max)))


def inner_first(q: Tensor, s: Tensor, outer: Tensor) -> Tensor:
    """(q * s) * outer."""
    return (q * s) * outer


def scales_first(q: Tensor, s: Tensor, outer: Tensor) -> Tensor:
    """q * (s * outer)."""
    return q * (s * outer)


def over_encode(q: Tensor, s: Tensor, encode: Tensor) -> Tensor:
    """q * (s / encode)."""
    return q * (s / encode)


def inner_over_encode(q: Tensor, s: Tensor, encode: Tensor) -> Tensor:
    """(q * s) * (1 / encode)."""
    return (q * s) * (const(encode, 1.0) / encode)


def one_level(q: Tensor, s: Tensor, outer: Tensor) -> Tensor:
    """q * s."""
    return q * s


def correctly_rounded(q: Tensor, s: Tensor, amax: Tensor) -> Tensor:
    """q s A / 2688, the real number rounded once to float32 (float64's 53 bits leave no double rounding but at ties
    of 29 bits, which a quotient by 21 is not)."""
    product = (q * s).to(torch.float64) * amax.to(torch.float64)
    return (product / const(product, 2688.0)).to(torch.float32)
