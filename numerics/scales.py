"""Scale rules and outer scopes: how scale bytes, element codes and outer scales follow from values.

Notation: x the block (..., B), amax its largest magnitude, outer the FP32 factor outside, s the stored block scale,
q element codes. All operations are FP32, in the order written, each rounded once; divisions are tensor by tensor.

    nvfp4           s = e4m3(amax * (s_enc * (1/6)))             q = e2m1(x * min(1 / (s * (1 / s_enc)), FLT_MAX))
    four_over_six   s_M = e4m3(amax / (outer * M)), M in {6, 4}  q_M = e2m1(x / (s_M * outer))
                    the M with the smaller sum of ((q_M * s_M) * outer - x)^2; 4 only if strictly smaller
    rceil           s = the smallest power of two with s * fmt.max >= amax        q = fmt(x / s)

with s_enc = outer_max / amax(scope) and outer = amax(scope) / outer_max (`outer_scale`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .codes import decode_tensor, encode_tensor, with_sign
from .formats import E4M3, Format
from .rounding import Rounding, round_magnitude

FLT_MAX = torch.finfo(torch.float32).max
LEAST_OUTER = 2.0**-128  # 1 / FLT_MAX in float32: below it the encode scale is capped


@dataclass(frozen=True)
class Block:
    """What a rule sees: float32 blocks and the scales around them.

    Args:
        x: blocks, float32 (..., n, B). amax: largest magnitude of each block, finite, float32 (..., n, 1).
        outer, s_enc: outer scale and its reciprocal direction, float32, broadcast to (..., n, 1); None without one.
        element: the element format. rounding, random_bits: how elements are rounded; bits shaped like `x`.
    """

    x: Tensor
    amax: Tensor
    outer: Tensor | None
    s_enc: Tensor | None
    element: Format
    rounding: Rounding
    random_bits: Tensor | None

    def encode(self, scaled: Tensor) -> Tensor:
        """Element codes of `scaled`, uint8 like x, signs of x, saturating; the caller replaces those of NaN."""
        # as integers NaN exceeds infinity, and infinity every number: one clamp saturates all three
        largest = float32_bits(self.element.max)
        magnitude = (scaled.view(torch.int32) & 0x7FFFFFFF).clamp_(max=largest).view(torch.float32)
        code = round_magnitude(magnitude, self.element, self.rounding, self.x, self.random_bits)
        return with_sign(code, self.x.view(torch.int32) >> 31, self.element).to(torch.uint8)


def float32_bits(value: float) -> int:
    """The float32 pattern of `value` as an integer."""
    (bits,) = struct.unpack("<i", struct.pack("<f", value))
    return int(bits)


@dataclass(frozen=True)
class Rule:
    """A named scale rule.

    Args:
        name: the key in `RULES`. apply: Block -> (scale codes uint8 (..., n, 1), element codes uint8 (..., n, B)).
        outer_max: amax / outer, the largest product of element and block scale; None: the rule takes no outer scale
            of its own. source: paper and section.
    """

    name: str
    apply: Callable[[Block], tuple[Tensor, Tensor]]
    outer_max: float | None
    source: str


def outer_scale(amax: Tensor, outer_max: float) -> tuple[Tensor, Tensor]:
    """The outer scale of a scope and the encode scale that Transformer Engine derives from the same amax.

    outer = amax / outer_max, one division; s_enc = min(outer_max / amax, FLT_MAX). An all-zero scope has both 1.
    Where s_enc is capped (amax below 7.9e-36) outer is 1 / FLT_MAX, so that codes and outer still decode to x.

    Args: amax: float32, finite, any shape. Returns: (outer, s_enc), float32 like `amax`.
    """
    limit, one = amax.new_tensor(outer_max), torch.ones_like(amax)
    s_enc = (limit / amax).clamp(max=FLT_MAX)
    outer = (amax / limit).clamp(min=LEAST_OUTER)
    zero = amax == 0
    return torch.where(zero, one, outer), torch.where(zero | (s_enc == 0), one, s_enc)


def outer_of_scope(
    x: Tensor, amax: Tensor, axis: int, outer: str | Tensor | None, rule: Rule
) -> tuple[Tensor | None, Tensor | None]:
    """Outer and encode scale of each block, broadcasting to `amax` (..., blocks, 1), which has `axis` moved last."""
    if outer is None:
        return None, None
    if isinstance(outer, Tensor):
        try:
            torch.broadcast_shapes(outer.shape, x.shape)
            fits = outer.ndim == x.ndim and outer.shape[axis] == 1 and outer.dtype == torch.float32
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"outer of shape {tuple(outer.shape)}, {outer.dtype}: pass float32 with the {x.ndim} axes of x "
                f"{tuple(x.shape)}, each 1 or the same, and 1 along axis {axis}"
            )
        if outer.numel() and not bool((outer >= LEAST_OUTER).all() & torch.isfinite(outer).all()):
            raise ValueError(f"outer reaches down to {float(outer.min())}: use finite scales of at least 2^-128")
        moved = outer.movedim(axis, -1).unsqueeze(-1)
        return moved, _reciprocal(moved)
    if outer not in ("tensor", "row", "leading"):
        raise ValueError(f"outer={outer!r}: use None, 'tensor', 'row', 'leading' or a tensor")
    if rule.outer_max is None:
        raise ValueError(f"outer={outer!r}: rule {rule.name} sets no outer scale of its own; use None or a tensor")
    if outer == "leading" and axis == 0:
        raise ValueError("outer='leading' with axis=0: blocks along axis 0 would mix its scales; use another axis")
    dims = {"tensor": range(amax.ndim), "row": (amax.ndim - 2,), "leading": range(1, amax.ndim)}[outer]
    scope = amax.new_zeros([1 if d in dims else n for d, n in enumerate(amax.shape)])
    if amax.numel():
        scope = amax.amax(tuple(dims), keepdim=True)
    return outer_scale(scope, rule.outer_max)


def round_outer(outer: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """Outer scale rounded up to a power of two (`how` = "pow2"), and its reciprocal, both exact."""
    if how != "pow2":
        raise ValueError(f"outer_rounding={how!r}: use None or 'pow2'")
    fraction, exponent = torch.frexp(outer)
    outer = torch.ldexp(torch.ones_like(outer), exponent - (fraction == 0.5).to(exponent.dtype))
    return outer, _reciprocal(outer)


def _reciprocal(outer: Tensor) -> Tensor:
    return (torch.ones_like(outer) / outer).clamp(max=FLT_MAX)  # 1 / 2^-128 is beyond float32


def nvfp4(block: Block) -> tuple[Tensor, Tensor]:
    """Transformer Engine's NVFP4 since 2.15 (`compute_decoding_scaling_factor`); arXiv 2509.25149, appendix B.

    1/6 is rounded to FP32 before it multiplies. A block whose scale underflows keeps scale 0; its elements, times
    FLT_MAX, saturate and decode to signed zeros. Element scaling multiplies by the rounded reciprocal.
    """
    one = torch.ones_like(block.amax)
    s_enc = one if block.s_enc is None else block.s_enc
    sixth = one / one.new_tensor(block.element.max)
    scale = encode_tensor(block.amax * (s_enc * sixth), E4M3, Rounding.NEAREST_EVEN)
    multiplier = (one / (decode_tensor(scale, E4M3) * (one / s_enc))).clamp(max=FLT_MAX)
    return scale, block.encode(block.x * multiplier)


def four_over_six(block: Block) -> tuple[Tensor, Tensor]:
    """Four over Six by mean squared error (arXiv 2512.02010, section 3): block maximum mapped to 6 or to 4.

    A scale that underflows gives codes of signed zero. Errors are summed as a binary tree over adjacent pairs.
    """
    one = torch.ones_like(block.amax)
    outer = one if block.outer is None else block.outer
    candidates = []
    for largest in (6.0, 4.0):
        scale = encode_tensor(block.amax / (outer * largest), E4M3, Rounding.NEAREST_EVEN)
        value = decode_tensor(scale, E4M3)
        step = value * outer
        codes = block.encode(block.x / torch.where(step == 0, float("inf"), step))
        error = (decode_tensor(codes, block.element) * value) * outer - block.x
        candidates.append((scale, codes, tree_sum(error * error)))
    (scale6, codes6, error6), (scale4, codes4, error4) = candidates
    use_4 = error4 < error6
    return torch.where(use_4, scale4, scale6), torch.where(use_4, codes4, codes6)


def tree_sum(x: Tensor) -> Tensor:
    """Sum over the last axis (a power of two long) as a binary tree over adjacent pairs; keeps the axis."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x


def rceil(block: Block) -> tuple[Tensor, Tensor]:
    """Round-up E8M0 scale of arXiv 2506.08027 and PTX `cvt.rp.ue8m0x2`: no element saturates.

    Mantissas are compared, nothing is divided. The scale is clamped to E8M0, whose code 0 is 2^-127.
    Scaling by 2^-k is exact except where it underflows float32, far below any element's least value.
    """
    x, amax = block.x, block.amax
    if block.outer is not None:
        x, amax = x / block.outer, amax / block.outer
    limit = float32_bits(block.element.max)
    bits, mantissa = amax.view(torch.int32), limit & 0x7FFFFF
    # a float32 subnormal is compared with max * 2^-127, whose leading bit is explicit
    above = (bits & 0x7FFFFF) > torch.where(bits < 0x800000, (mantissa | 0x800000) >> 1, mantissa)
    scale = ((bits >> 23) - (limit >> 23) + 127 + above.to(torch.int32)).clamp_(0, 254)
    return scale.to(torch.uint8), block.encode(x * exponent_reciprocal(scale))


def exponent_reciprocal(code: Tensor) -> Tensor:
    """1 / 2^(code - 127) for int32 E8M0 codes 0 to 254, float32, exact (code 254 gives the subnormal 2^-127)."""
    return torch.where(code == 254, 0x00400000, (254 - code) << 23).view(torch.float32)


NVFP4_RULE = Rule("nvfp4", nvfp4, 6.0 * 448.0, "Transformer Engine 2.15; arXiv 2509.25149, appendix B")
FOUR_OVER_SIX_RULE = Rule("four_over_six", four_over_six, 6.0 * 256.0, "arXiv 2512.02010, section 3; MSE, 256")
RCEIL_RULE = Rule("rceil", rceil, None, "arXiv 2506.08027; PTX ISA cvt.rp.satfinite.ue8m0x2")

RULES: dict[str, Rule] = {r.name: r for r in (NVFP4_RULE, FOUR_OVER_SIX_RULE, RCEIL_RULE)}
