"""How an optimizer keeps its moments between two steps: in FP32, BF16 or block formats.

    name     first moment, momentum          second moment        bytes of an AdamW weight's state
    fp32     float32                         float32              8
    bf16     BF16                            BF16                 4
    mxfp8    E4M3 x 32, E8M0 scales          the same             2.06
    nvfp4    E2M1 x 16, E4M3 scales, outer   E4M3 x 32, E8M0      1.59

A step decodes what is stored to FP32, updates it, moves the weight by the updated FP32 values, and stores the result:

    m = beta1 decode(M) + (1 - beta1) g,  v = beta2 decode(V) + (1 - beta2) g^2,  M = encode(m),  V = encode(v)

Rounding is stochastic. A step changes v by (1 - beta2)(g^2 - v): under beta2 = 0.999 a thousandth of v where g = 0,
less than half a unit of BF16 (2^-9) and far less than one of E4M3 (2^-4). Rounded to nearest it would never move, and
neither would m near the end of a decay; rounded stochastically it moves as often as it should, and the expectation of
decode(encode(x)) is x: to 2^-16 of a unit in blocks, exactly in BF16, whose 16 discarded bits are all compared.
That takes scales under which nothing saturates: `rceil`, and for NVFP4 the rule `unbiased` with its headroom 16/17.

The second moment stands under a root in a denominator, where a zero turns m / (sqrt(v) + eps) into a step of 1 / eps.
So a second moment that is not zero is never stored as zero but at least as the smallest code, 2^-17.8 of its block's
largest value: there it is biased upwards, towards smaller steps (Li et al., arXiv 2309.01507, section 3.2, find
the zero to be what breaks 4-bit second moments). E2M1, whose smallest code is 1/12 of the largest, is no format for it.

The error of a value is relative to its block's largest. Under `nvfp4` a weight whose gradients are some ten times
smaller than its block's largest takes steps of either sign at random; they average out while the learning rate falls.
Muon brings small singular values of the momentum to full length, and with them the noise of a 4-bit one.

Blocks run along the flattened tensor, short at its end; rows of a multiple of 32 never share one. Random words are
Philox's: key (seed, step), counter (2^31 + 2 * parameter + moment, 0, 0, group of 16), apart from the experts'
counters, which are below 2^31. Codes, scales and decoded values are equal on every device from equal FP32 moments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from numerics import BF16, MXFP8, NVFP4, BlockFormat, BlockTensor, Format, Random, Rounding, layout, quantize, scales

GROUP = 16  # elements that one Philox counter serves
_COUNTERS = 1 << 31  # the first one of moments
_LARGEST_BF16 = 0x7F7F0000

NVFP4_MOMENT = replace(NVFP4, name="NVFP4_UNBIASED", rule=scales.RULES["unbiased"])


@dataclass(frozen=True)
class Moments:
    """Formats of the first moment (Muon's momentum too) and of the second; None: float32."""

    first: BlockFormat | Format | None = None
    second: BlockFormat | Format | None = None


MOMENTS: dict[str, Moments] = {
    "fp32": Moments(),
    "bf16": Moments(BF16, BF16),
    "mxfp8": Moments(MXFP8, MXFP8),
    "nvfp4": Moments(NVFP4_MOMENT, MXFP8),
}


def words(seed: int, step: int, parameter: int, moment: int) -> Random:
    """The random words of moment 0 or 1 of a parameter, which has a number, at a step."""
    return Random((seed, step), (_COUNTERS + 2 * parameter + moment, 0))


def encode_moment(
    x: Tensor, fmt: BlockFormat | Format | None, random: Random, positive: bool = False
) -> dict[str, Tensor]:
    """What is stored of a moment.

    Args:
        x: float32, finite, any shape. random: see `words`. positive: x >= 0, and no positive value becomes zero.

    Returns:
        {"": x itself} under None; {"": bfloat16 like x}; or "codes", uint8 (n,), packed two in a byte if they have 4
        bits, "scales", uint8 (blocks,), and "outer", float32 (1,), if the format has one.
    """
    if fmt is None:
        return {"": x}
    if isinstance(fmt, Format):
        return {"": _stochastic_bf16(x, random)}
    flat = x.reshape(-1)
    if fmt.element.bits == 4 and len(flat) % 2:
        flat = torch.cat((flat, flat.new_zeros(1)))  # its code is the other half of the last byte
    q = quantize(flat, fmt, rounding=Rounding.STOCHASTIC, random=random)
    if positive:
        q = q.derived(codes=torch.where((flat > 0) & (q.codes == 0), 1, q.codes))
    return {"codes": q.packed(), "scales": q.scales} | ({} if q.outer is None else {"outer": q.outer})


def decode_moment(stored: dict[str, Tensor], fmt: BlockFormat | Format | None, shape: torch.Size) -> Tensor:
    """The float32 values of what `encode_moment` made of a tensor of this shape; itself, not a copy, under None."""
    if not isinstance(fmt, BlockFormat):
        return stored[""].to(torch.float32)
    codes = layout.unpack_nibbles(stored["codes"]) if fmt.element.bits == 4 else stored["codes"]
    q = BlockTensor(codes, stored["scales"], stored.get("outer"), fmt, fmt.rule.name, axis=0)
    return q.dequantize()[: math.prod(shape)].view(shape)


def stored_shapes(shape: torch.Size, fmt: BlockFormat | Format | None) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of the parts that `encode_moment` makes of a float32 tensor of this shape."""
    if not isinstance(fmt, BlockFormat):
        return {"": (shape, torch.float32 if fmt is None else torch.bfloat16)}
    n = math.prod(shape)
    parts = {"codes": -(-n // 2) if fmt.element.bits == 4 else n, "scales": -(-n // fmt.block)}
    found = {name: (torch.Size([size]), torch.uint8) for name, size in parts.items()}
    return found | ({} if fmt.outer is None else {"outer": (torch.Size([1]), torch.float32)})


def _stochastic_bf16(x: Tensor, random: Random) -> Tensor:
    """`round_to(x, BF16, STOCHASTIC)`, bfloat16: BF16 has float32's exponents, so all 16 discarded bits meet 16 random
    ones in one addition, and a carry is the next number. The largest finite one is not left."""
    group = torch.arange(-(-x.numel() // GROUP), device=x.device)
    fields = random.fields(0, torch.zeros_like(group), group, 16).reshape(-1)[: x.numel()].view(x.shape)
    bits = x.view(torch.int32)
    magnitude = (bits & 0x7FFFFFFF) + fields & -0x10000
    return ((bits & -0x80000000) | magnitude.clamp_(max=_LARGEST_BF16)).view(torch.float32).to(torch.bfloat16)
