"""Scale rules: how a block's scale and its element codes follow from its values. Each rule is a named function.

Notation: x the block (..., B), amax its largest magnitude, outer the FP32 factor outside, s the stored block scale,
q element codes, max the element format's largest value. All operations are FP32, in the order written, each rounded
once; divisions are tensor by tensor. E4M3 scales:

    nvfp4           s = e4m3(amax * (s_enc * (1/max)))           q = fmt(x * min(1 / (s * (1 / s_enc)), FLT_MAX))
    static_M        s = e4m3(amax / (outer * M)), M = 6 or 4     q = e2m1(x / (s * outer))
    four_over_six   both static_M, whichever has the smaller error of (q * s) * outer - x; 4 only if strictly smaller
    app_b           s = e4m3((amax / max) * s_enc)               q as nvfp4
    torchao         s = e4m3((amax / max) / outer), >= 2^-6      q = fmt(x * ((1 / outer) / s))
    exact           s = e4m3(amax / (outer * max)), q = fmt(x / (s * outer)), the real quotients
    unbiased        s = e4m3(amax / (outer * (max * 16/17))), rounded up where subnormal: no element saturates
    eden            s = e4m3(amax / (outer * 6.07)), q likewise, then s times <x, x> / <x, x_q>, rounded stochastically
    if4             static_6 in FP4, or s = e4m3(amax / (outer * 7)) in INT4, the smaller squared error, ties FP4

E8M0 and FP32 scales:

    rceil           s = the smallest power of two with s * max >= amax              q = fmt(x / s)
    floor           s = 2^(exponent(amax) - exponent(max)): the largest may saturate
    three_quarters  s of floor, q = fmt(0.75 x / s), values (q * s) * 4/3: none saturates in E2M1
    amax            s = amax / max, FP32                                            q = fmt(x / s)

`outer` and s_enc are those of `numerics.outer`. Other people's quantizers, whose zeros, NaN and order of decoding
differ as well, are `DIALECTS` (`numerics.dialects`); `identify` tells which of them made given bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .codes import encode_tensor
from .dialects import DIALECTS as DIALECTS
from .dialects_casts import tree as tree
from .dialects_core import Dialect as Dialect
from .formats import E4M3, E8M0, INT4
from .identify import identify as identify
from .identify_result import Identification as Identification
from .outer import FLT_MAX, constant
from .rounding import Rounding, pattern, reciprocal, round_magnitude
from .rule import Block as Block
from .rule import Rule as Rule
from .scales_power import amax, power_of_two, three_quarters


def e4m3_scale(value: Tensor, rounding: Rounding = Rounding.NEAREST_EVEN) -> tuple[Tensor, Tensor]:
    """Scale codes, saturating at 448, and their values. value: float32 or float64, 0 or more."""
    integer = torch.int32 if value.dtype == torch.float32 else torch.int64
    magnitude = value.view(integer).clamp(max=pattern(E4M3.max, value.dtype)).view(value.dtype)
    codes = round_magnitude(magnitude, E4M3, rounding, value).to(torch.uint8)
    return codes, e4m3_value(codes)


def e4m3_value(codes: Tensor) -> Tensor:
    """Values of E4M3 codes 0 to 126: read as a float32, subnormals too, and scaled by the difference of biases."""
    return (codes.to(torch.int32) << 20).view(torch.float32) * 2.0**120


def nvfp4(block: Block) -> tuple[Tensor, Tensor]:
    """Transformer Engine's NVFP4 since 2.15 (`compute_decoding_scaling_factor`); arXiv 2509.25149, appendix B.

    1/6 is rounded to FP32 before it multiplies. A block whose scale underflows keeps scale 0; its elements, times
    FLT_MAX, saturate and decode to signed zeros. Element scaling multiplies by the rounded reciprocal.
    """
    sixth = reciprocal(block.element.max)
    return _by_encode(block, block.amax * (sixth if block.s_enc is None else block.s_enc * sixth))


def _by_encode(block: Block, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """The scale from its value before rounding, elements times min(1 / (s * (1 / s_enc)), FLT_MAX)."""
    codes, scale = e4m3_scale(ratio)
    inverse = None if block.s_enc is None else torch.ones_like(block.s_enc) / block.s_enc
    step = scale if inverse is None else scale * inverse
    multiplier = (torch.ones_like(step) / step).clamp(max=FLT_MAX)
    return codes, block.encode(block.x * multiplier)


def app_b(block: Block) -> tuple[Tensor, Tensor]:
    """arXiv 2509.25149, appendix B, to the letter; Transformer Engine's transposing kernel before 2.15."""
    ratio = block.amax / constant(block.element.max, block.amax)
    return _by_encode(block, ratio if block.s_enc is None else ratio * block.s_enc)


def torchao(block: Block) -> tuple[Tensor, Tensor]:
    """torchao's `nvfp4_quantize`, two levels, with fourbit's NaN and zero tensors: no scale is below 2^-6."""
    one, outer = torch.ones_like(block.amax), block.times_outer(1.0)
    ratio = (block.amax / constant(block.element.max, block.amax)) / outer
    codes, scale = e4m3_scale(ratio.clamp(2.0**-6, E4M3.max))
    return codes, block.encode(block.x * ((one / outer) / scale))


def exact(block: Block) -> tuple[Tensor, Tensor]:
    """Real quotients of what is stored, each rounded once. (The dialect of this name divides by the tensor's amax.)

    float64 holds products of float32 and small codes, and no quotient comes within 2^-32 of a tie without being one.
    """
    outer = block.times_outer(1.0).to(torch.float64)
    codes, scale = e4m3_scale(block.amax.to(torch.float64) / (outer * block.element.max))
    step = scale.to(torch.float64) * outer
    scaled = block.x.to(torch.float64) / torch.where(step == 0, float("inf"), step)
    scaled = scaled.clamp(-block.element.max, block.element.max)  # as `Block.encode`: no -8 in INT4
    return codes, encode_tensor(scaled, block.element, block.rounding, block.random_bits).to(torch.uint8)


def _divided(block: Block, scale: Tensor) -> Tensor:
    """Codes of x / (scale * outer), signed zeros where that product is zero."""
    step = block.times_outer(scale)
    return block.encode(block.x / torch.where(step == 0, float("inf"), step))


def static(block: Block, largest: float) -> tuple[Tensor, Tensor]:
    """The block maximum mapped to `largest`, by division (arXiv 2512.02010, section 3)."""
    codes, scale = e4m3_scale(block.amax / block.times_outer(largest))
    return codes, _divided(block, scale)


def unbiased(block: Block) -> tuple[Tensor, Tensor]:
    """Headroom 16/17, E4M3's worst rounding down of a normal scale (arXiv 2601.22813): what stochastic rounding needs.

    A subnormal scale rounds down by more, so it is rounded up. The largest scaled element is then 6 (1 + 2^-21).
    """
    exact = block.amax / block.times_outer(block.element.max * 16 / 17)
    near, up = e4m3_scale(exact), e4m3_scale(exact, Rounding.TOWARD_POSITIVE)
    subnormal = exact < E4M3.min_normal
    codes, scale = (torch.where(subnormal, high, low) for low, high in zip(near, up, strict=True))
    return codes, _divided(block, scale)


def _square(d: Tensor) -> Tensor:
    return tree(d * d, torch.add)


def _absolute(d: Tensor) -> Tensor:
    return tree(d.abs(), torch.add)


def _largest(d: Tensor) -> Tensor:
    return tree(d.abs(), torch.maximum)


def four_over_six(block: Block, measure: Callable[[Tensor], Tensor] = _square) -> tuple[Tensor, Tensor]:
    """Four over Six (arXiv 2512.02010, section 3): block maximum mapped to 6 or to 4, whichever errs less.

    `measure` of the errors: sum of squares (the default), of magnitudes, or the largest magnitude. A scale that
    underflows gives codes of signed zero. Sums are binary trees over adjacent pairs.
    """
    (scale6, codes6, error6), (scale4, codes4, error4) = (
        (scale, codes, measure(block.decode(codes, e4m3_value(scale)) - block.x))
        for scale, codes in (static(block, 6.0), static(block, 4.0))
    )
    use_4 = error4 < error6
    return torch.where(use_4, scale4, scale6), torch.where(use_4, codes4, codes6)


def if4(block: Block) -> tuple[Tensor, Tensor]:
    """FP4 or INT4 per block, the choice in the scale's otherwise unused sign bit (set: INT4, values -7 to 7)."""
    integer = replace(block, element=INT4)
    scale_f, codes_f = static(block, 6.0)
    scale_i, codes_i = static(integer, INT4.max)
    error_f = _square(block.decode(codes_f, e4m3_value(scale_f)) - block.x)
    error_i = _square(integer.decode(codes_i, e4m3_value(scale_i)) - block.x)
    use_integer = error_i < error_f
    return torch.where(use_integer, scale_i | 0x80, scale_f), torch.where(use_integer, codes_i, codes_f)


EDEN_TOP = 6 * 16 / 17 / 0.93  # what the block maximum is mapped to; elements beyond 6 saturate


def eden(block: Block) -> tuple[Tensor, Tensor]:
    """MS-EDEN (arXiv 2601.22813, section 4): elements to nearest, and a scale that makes up for what they lost.

    s = e4m3(amax / (outer * EDEN_TOP)), q = e2m1(x / (s * outer)), then c = <x, x> / <x, (q * s) * outer>, and the
    stored scale is c * s, rounded stochastically. Of a block that was rotated at random, values are right on average.
    A block whose products vanish keeps its scale. Sums are binary trees over adjacent pairs; the scale takes the random
    field of the block's first element.
    """
    codes, scale = e4m3_scale(block.amax / block.times_outer(EDEN_TOP))
    elements = _divided(block, scale)
    energy, product = _square(block.x), tree(block.x * block.decode(elements, scale), torch.add)
    corrected = scale * torch.where(product > 0, energy / torch.where(product > 0, product, 1.0), 1.0)
    assert block.random_bits is not None  # a rule that draws is given some
    field = block.random_bits[..., :1]
    drawn = encode_tensor(corrected, E4M3, Rounding.STOCHASTIC, field)
    return torch.where(scale == 0, codes, drawn).to(torch.uint8), elements


_FOUR_OVER_SIX = "arXiv 2512.02010, section 3"
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("nvfp4", nvfp4, 448.0, "Transformer Engine 2.15; arXiv 2509.25149, appendix B"),
        Rule("static_6", partial(static, largest=6.0), 448.0, _FOUR_OVER_SIX),
        Rule("static_4", partial(static, largest=4.0), 448.0, _FOUR_OVER_SIX),
        Rule("four_over_six", four_over_six, 256.0, _FOUR_OVER_SIX),
        Rule("four_over_six_mae", partial(four_over_six, measure=_absolute), 256.0, _FOUR_OVER_SIX),
        Rule("four_over_six_absmax", partial(four_over_six, measure=_largest), 256.0, _FOUR_OVER_SIX),
        Rule("unbiased", unbiased, 448.0 * 16 / 17, "arXiv 2601.22813, section 3"),
        Rule("if4", if4, 448.0, "Four over Six's repository, IF4", alternative=INT4),
        Rule("eden", eden, 256.0 * EDEN_TOP / 6, "arXiv 2601.22813, section 4, MS-EDEN", draws=True),
        Rule("app_b", app_b, 448.0, "arXiv 2509.25149, appendix B"),
        Rule("torchao", torchao, 448.0, "pytorch/ao 0.18, torchao/prototype/mx_formats/nvfp4_tensor.py"),
        Rule("exact", exact, 448.0, "the quotients of arXiv 2509.25149, appendix B, correctly rounded"),
        Rule("rceil", partial(power_of_two, up=True), None, "arXiv 2506.08027; PTX cvt.rp.satfinite.ue8m0x2", E8M0),
        Rule("floor", partial(power_of_two, up=False), None, "OCP Microscaling Formats v1.0, section 6.3", E8M0),
        Rule("three_quarters", three_quarters, None, "arXiv 2502.20586, section 3", E8M0, gain=reciprocal(0.75)),
        Rule("amax", amax, None, "arXiv 2412.19437, section 3.3", None),
    )
}
