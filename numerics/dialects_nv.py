"""NVFP4 rules of public quantizers, two levels of scale: one function each, operations in the order written.

Notation: b the block's amax, A the tensor's (or token's, or run's), s the value of the E4M3 scale, q a code's value;
e4m3() and e2m1() round to nearest even and saturate. Every formula stands in its function's docstring with its source;
what the stored outer is and how values are decoded stands in `dialects_orders`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from .codes import decode_tensor, encode_tensor
from .dialects_casts import cap, choose, const, e4m3, halves, nearest, nearest_plus_zero, one_by_one, square, tree
from .dialects_core import Blocks, Steps
from .dialects_orders import encode_scale, guarded_encode
from .formats import E2M1, E4M3
from .rounding import Rounding

Measure = Callable[[Tensor], Tensor]


# ---- Transformer Engine, NVIDIA's paper ------------------------------------------------------------------------------


def _te_elements(blocks: Blocks, ratio: Tensor, s_enc: Tensor, cast: Callable[[Tensor], Tensor]) -> Steps:
    """s = e4m3(ratio), q = e2m1(x * min(1 / (s * (1 / S_enc)), FLT_MAX))."""
    one = const(ratio, 1.0)
    scales, s = e4m3(ratio)
    scaled = blocks.x * cap(one / (s * (one / s_enc)))
    return Steps(ratio, scales, scaled, cast(scaled))


def te_of_encode(blocks: Blocks, s_enc: Tensor, cast: Callable[[Tensor], Tensor]) -> Steps:
    """s = e4m3(b * (S_enc * fl(1/6))): Transformer Engine since 2.15."""
    sixth = const(blocks.amax, 1.0) / const(blocks.amax, 6.0)
    return _te_elements(blocks, blocks.amax * (s_enc * sixth), s_enc, cast)


def te(blocks: Blocks, amax: Tensor) -> Steps:
    """`NVFP4QuantizerRef`: casts by comparisons, -0 and NaN become 0."""
    return te_of_encode(blocks, encode_scale(amax), nearest_plus_zero)


def te_kernel(blocks: Blocks, amax: Tensor) -> Steps:
    """`core_nvfp4.cuh` with the hardware's casts: -0 is kept, NaN becomes +6."""
    return te_of_encode(blocks, guarded_encode(amax), nearest)


def te_old(blocks: Blocks, amax: Tensor) -> Steps:
    """Before 2.15, the kernel that does not transpose: s = e4m3((b * fl(1/6)) * S_enc), q = e2m1(x * (S_enc / s))."""
    s_enc = guarded_encode(amax)
    ratio = (blocks.amax * (const(amax, 1.0) / const(amax, 6.0))) * s_enc
    scales, s = e4m3(ratio)
    scaled = blocks.x * (s_enc / s)
    return Steps(ratio, scales, scaled, nearest(scaled))


def divide_first(blocks: Blocks, s_enc: Tensor) -> Steps:
    """s = e4m3((b / 6) * S_enc), elements as Transformer Engine's: App. B, and before 2.15 the transposing kernel."""
    return _te_elements(blocks, (blocks.amax / const(s_enc, 6.0)) * s_enc, s_enc, nearest)


def te_46(blocks: Blocks, amax: Tensor, bound: float, measure: Measure) -> Steps:
    """Four over six of `NVFP4QuantizerRef`, scored by ((q * s) * A) / (6 * bound) - x."""
    limit = const(amax, 6 * bound)
    return six_or_four(
        blocks, encode_scale(amax, 6 * bound), measure, nearest_plus_zero, lambda qs: (qs * amax) / limit - blocks.x
    )


def te_46_fast(blocks: Blocks, amax: Tensor, bound: float, measure: Measure) -> Steps:
    """As `te_46`, scored in FP16: q * s, exact there, minus x * S_enc."""
    s_enc = encode_scale(amax, 6 * bound)
    return six_or_four(blocks, s_enc, measure, nearest_plus_zero, lambda qs: qs - blocks.x * s_enc)


def flashinfer_46(blocks: Blocks, s_enc: Tensor, measure: Measure) -> Steps:
    """FlashInfer's four over six with exact math, scored by (q * s) * (1 / S_enc) - x. A zero block is all zeros."""
    decode = const(s_enc, 1.0) / s_enc
    steps = six_or_four(blocks, s_enc, measure, nearest, lambda qs: qs * decode - blocks.x)
    return replace(steps, codes=torch.where(blocks.amax == 0, 0, steps.codes).to(torch.uint8))


def flashinfer_46_fast(blocks: Blocks, s_enc: Tensor, measure: Measure) -> Steps:
    """As `flashinfer_46`, scored in FP16 by q * s - x * S_enc."""
    steps = six_or_four(blocks, s_enc, measure, nearest, lambda qs: qs - blocks.x * s_enc)
    return replace(steps, codes=torch.where(blocks.amax == 0, 0, steps.codes).to(torch.uint8))


def six_or_four(
    blocks: Blocks, s_enc: Tensor, measure: Measure, cast: Callable[[Tensor], Tensor], gap: Callable[[Tensor], Tensor]
) -> Steps:
    """Four over six: base = (b / 6) * S_enc, s = e4m3(min(base or base * 1.5, 448)), elements as `te`.

    The error of gap(q * s) is summed from the first value to the last; 4 only if smaller. The sums of a tile's lines
    are added in halves: the first eight to the last eight, and so on.
    """
    base = (blocks.amax / const(s_enc, 6.0)) * s_enc
    six, four = (_te_elements(blocks, r, s_enc, cast) for r in (base, base * 1.5))

    def error(steps: Steps) -> Tensor:
        lines = measure(gap(decode_tensor(steps.codes, E2M1) * decode_tensor(steps.scales, E4M3))).unflatten(
            -1, (-1, 16)
        )
        return halves(one_by_one(lines).squeeze(-1), torch.add)

    return choose(error(four) < error(six), four, six)


# ---- torchao, ModelOpt, compressed-tensors, FlashInfer ---------------------------------------------------------------


def torchao(blocks: Blocks, outer: Tensor) -> Steps:
    """s = e4m3(clamp((b / 6) / outer, 2^-6, 448)), q = e2m1(x * ((1 / outer) / s))."""
    ratio = (blocks.amax / const(outer, 6.0)) / outer
    scales, s = e4m3(ratio.clamp(2.0**-6, 448.0))
    scaled = blocks.x * ((const(outer, 1.0) / outer) / s)
    return Steps(ratio, scales, scaled, nearest(scaled))


def torchao_one_level(blocks: Blocks, outer: Tensor) -> Steps:
    """s = e4m3(clamp(b / 6, 2^-6, 448)), q = e2m1(x * (1 / s))."""
    ratio = blocks.amax / const(blocks.amax, 6.0)
    scales, s = e4m3(ratio.clamp(2.0**-6, 448.0))
    scaled = blocks.x * (const(s, 1.0) / s)
    return Steps(ratio, scales, scaled, nearest(scaled))


def modelopt(blocks: Blocks, outer: Tensor) -> Steps:
    """s = e4m3(clamp(r, 2^-9, 448)) of r = b / (6 * outer), 1 if r is 0; q = e2m1(x / (s * outer)), NaN 7."""
    ratio = blocks.amax / (const(outer, 6.0) * outer)
    scales, s = e4m3(torch.where(ratio == 0, const(ratio, 1.0), ratio).clamp(2.0**-9, 448.0))
    scaled = blocks.x / (s * outer)
    return Steps(ratio, scales, scaled, nearest_plus_zero(scaled, nan=7))


def compressed_tensors(blocks: Blocks, encode: Tensor) -> Steps:
    """s = e4m3(encode * (b / 6)), 0.125 if that is 0; q = e2m1(x / (s / encode)). b / 6 is rounded to x's dtype."""
    sixth = (blocks.amax / const(encode, 6.0)).to(blocks.dtype).to(torch.float32)
    ratio = encode * sixth
    scales, s = e4m3(ratio)
    scales, s = torch.where(s == 0, 0x20, scales).to(torch.uint8), torch.where(s == 0, const(s, 0.125), s)
    scaled = blocks.x / (s / encode)
    return Steps(ratio, scales, scaled, nearest_plus_zero(scaled))


def flashinfer(blocks: Blocks, encode: Tensor) -> Steps:
    """s = e4m3(encode * (b * fl(1/6))), q = e2m1(x * (1 / (s * (1 / encode)))), where 1 / 0 is 0."""
    ratio = encode * (blocks.amax * (const(encode, 1.0) / const(encode, 6.0)))
    scales, s = e4m3(ratio)
    scaled = blocks.x * _or_zero(s * _or_zero(encode))
    return Steps(ratio, scales, scaled, nearest_plus_zero(scaled))


def _or_zero(x: Tensor) -> Tensor:
    """1 / x, or 0 for 0."""
    return torch.where(x == 0, const(x, 0.0), const(x, 1.0) / x)


def flashinfer_exact(blocks: Blocks, encode: Tensor) -> Steps:
    """The kernel without fast math: Transformer Engine's formulas from the stored encode scale, 0 for a zero block."""
    sixth = const(encode, 1.0) / const(encode, 6.0)
    ratio = torch.where(blocks.amax == 0, const(encode, 0.0), blocks.amax * (encode * sixth))
    scales, s = e4m3(ratio)
    multiplier = cap(const(encode, 1.0) / (s * (const(encode, 1.0) / encode)))
    scaled = blocks.x * torch.where(blocks.amax == 0, const(encode, 0.0), multiplier)
    return Steps(ratio, scales, scaled, nearest(scaled))


# ---- fouroversix, Quartet II, TetraJet-v2, ThunderKittens, qwix ------------------------------------------------------


def fouroversix_candidate(blocks: Blocks, amax: Tensor, largest: float, bound: float, expand: float) -> Steps:
    """s = e4m3(((b / largest) * (largest bound / A)) * expand); q rounds x * (1 / (decode * s)), 0 where s is 0."""
    encode = const(amax, largest * bound) / amax
    ratio = ((blocks.amax / const(amax, largest)) * encode) * expand
    ratio = torch.where(amax == 0, const(amax, 0.0), ratio)
    scales, s = e4m3(ratio)
    decode = const(amax, 1.0) / encode
    scaled = blocks.x * (const(amax, 1.0) / (decode * s))
    scaled = torch.where(s == 0, const(s, 0.0), scaled)
    scaled = torch.where(torch.isinf(scaled), const(s, float("nan")), scaled)  # its cast multiplies infinity by 0
    return Steps(ratio, scales, scaled, _without_saturation(scaled))


def _without_saturation(scaled: Tensor) -> Tensor:
    """E2M1 codes where 7 to 9 round to 8, whose code is 8, -0, or 9 with the sign."""
    codes = nearest_plus_zero(scaled, nan=0)
    return torch.where(scaled.abs() >= 7, 8, codes).to(torch.uint8)


def fouroversix_static(blocks: Blocks, amax: Tensor, largest: float) -> Steps:
    """The block maximum mapped to 6 or to 4, E4M3 up to 448."""
    return fouroversix_candidate(blocks, amax, largest, 448.0, 1.0)


def fouroversix(blocks: Blocks, amax: Tensor, measure: Measure) -> Steps:
    """6 or 4, whichever errs less on ((q * s) * A) / 1536 - x; E4M3 up to 256; 4 only if strictly smaller."""
    six, four = (fouroversix_candidate(blocks, amax, 6.0, 256.0, e) for e in (1.0, 1.5))

    gap_six, gap_four = (measure(fouroversix_gaps(blocks, steps, amax)) for steps in (six, four))
    return choose(gap_four < gap_six, four, six)


def fouroversix_gaps(blocks: Blocks, steps: Steps, amax: Tensor) -> Tensor:
    """((q * s) * A) / 1536 - x, with q of 8 where the code is that of 8."""
    size = steps.scaled.abs()
    q = torch.where(size >= 7, torch.copysign(const(size, 8.0), steps.scaled), decode_tensor(steps.codes, E2M1))
    return ((q * decode_tensor(steps.scales, E4M3)) * amax) / const(amax, 1536.0) - blocks.x


def quartet(blocks: Blocks, outer: Tensor, ratio: Tensor, cast: Callable[[Tensor], Tensor]) -> Steps:
    """s = e4m3(ratio), 1 if that is 0; q rounds x / (s * outer)."""
    scales, s = e4m3(ratio)
    scales, s = torch.where(s == 0, 0x38, scales).to(torch.uint8), torch.where(s == 0, const(s, 1.0), s)
    scaled = blocks.x / (s * outer)
    return Steps(ratio, scales, scaled, cast(scaled))


def quartet_ii(blocks: Blocks, outer: Tensor) -> Steps:
    """Its Triton kernel: ratio (b / 6) / outer, ties away from zero, the sign of all that is not positive set."""
    return quartet(blocks, outer, (blocks.amax / const(outer, 6.0)) / outer, _away)


def quartet_ii_46(blocks: Blocks, outer: Tensor) -> Steps:
    """As `quartet_ii` with 256 for 448; the alternative's ratio is ((b / 6) * 1.5) / outer; 4 if strictly better."""
    base = blocks.amax / const(outer, 6.0)
    six, four = (quartet(blocks, outer, r / outer, _away) for r in (base, base * 1.5))

    def error(steps: Steps) -> Tensor:
        s = decode_tensor(steps.scales, E4M3)
        return tree(square(blocks.x - decode_tensor(steps.codes, E2M1) * (s * outer)), torch.add)

    return choose(error(four) < error(six), four, six)


def _away(scaled: Tensor) -> Tensor:
    codes = encode_tensor(scaled, E2M1, Rounding.NEAREST_AWAY) & 7
    codes = torch.where(torch.isnan(scaled), 0, codes)  # no comparison with NaN holds
    return torch.where(scaled > 0, codes, codes | 8).to(torch.uint8)


def quartet_ii_torch(blocks: Blocks, outer: Tensor) -> Steps:
    """Its torch class: the same scale, ties toward +infinity, +0 for every zero."""
    return quartet(blocks, outer, (blocks.amax / const(outer, 6.0)) / outer, _up)


def _up(scaled: Tensor) -> Tensor:
    codes = encode_tensor(scaled, E2M1, Rounding.NEAREST_AWAY)
    size = decode_tensor(codes & 7, E2M1)
    below = decode_tensor(((codes & 7).to(torch.int16) - 1).clamp(min=0).to(torch.uint8), E2M1)
    tie = (scaled < 0) & ((size + below) * 0.5 == scaled.abs()) & (size > below)
    codes = torch.where(tie, codes - 1, codes)
    return torch.where((codes == 8), 0, codes).to(torch.uint8)


def tetrajet_v2(blocks: Blocks, outer: Tensor) -> Steps:
    """s = e4m3(r) of r = (b / outer) / 6, 2^-9 if r is 0; q = e2m1(x * (1 / (outer * s))), where 1 / 0 is 0."""
    ratio = (blocks.amax / outer) / const(outer, 6.0)
    ratio = torch.where(ratio == 0, const(ratio, 2.0**-9), ratio)
    scales, s = e4m3(ratio)
    scaled = blocks.x * _or_zero(outer * s)
    return Steps(ratio, scales, scaled, nearest(scaled))


def thunderkittens(blocks: Blocks, decode: Tensor) -> Steps:
    """s = e4m3((b / 6) * (1 / max(decode, 1e-12))), q = e2m1(x * (1 / max(s * decode, 1e-12)))."""
    ratio = (blocks.amax / const(decode, 6.0)) * (const(decode, 1.0) / decode.clamp(min=1e-12))
    scales, s = e4m3(ratio)
    scaled = blocks.x * (const(decode, 1.0) / (s * decode).clamp(min=1e-12))
    return Steps(ratio, scales, scaled, nearest(scaled))


def qwix(blocks: Blocks, outer: Tensor) -> Steps:
    """One level, in x's dtype: r = b / 6, 1 if r < sqrt(2^-126); s = e4m3(r); q = e2m1(x / s)."""

    def rounded(t: Tensor) -> Tensor:
        return t.to(blocks.dtype).to(torch.float32)

    ratio = rounded(blocks.amax / const(blocks.amax, 6.0))
    scales, s = e4m3(torch.where(ratio < 2.0**-63, const(ratio, 1.0), ratio))
    scaled = rounded(blocks.x / s)
    return Steps(ratio, scales, scaled, nearest(scaled))
