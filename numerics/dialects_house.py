"""The dialect `exact`, and fourbit's own rules as dialects: steps and entries.

Notation as in `dialects_nv`. A block that holds NaN or Inf gets a NaN scale, and the outer follows the other blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from . import dialects_orders as orders
from .codes import decode_tensor
from .dialects_casts import cap, choose, const, e4m3, nearest, poisoned, square, tree
from .dialects_core import Blocks, Dialect, Outer, Prose, Steps
from .dialects_nv import te_of_encode
from .dialects_te import TILED, plain
from .formats import E2M1, E4M3
from .outer import outer_scale

_EVEN = "ties to even"
_BLOCK = "a block that holds one gets a NaN scale and codes of 7; the outer follows the others"


# ---- exact -----------------------------------------------------------------------------------------------------------


def exact(blocks: Blocks, amax: Tensor) -> Steps:
    """Real quotients correctly rounded: s = e4m3(448 b / A), q = e2m1(2688 x / (s A)).

    float64 holds numerator and denominator exactly (31 bits at most), and no quotient of such numbers lies within
    2^-32 of a tie without being one, so its own rounding decides nothing. A zero block has scale 0; its elements, and
    those of a block whose scale underflows, are signed zeros.
    """
    x, b, a = (t.to(torch.float64) for t in (blocks.x, blocks.amax, amax))
    one = torch.ones_like(a)
    ratio = torch.where(a == 0, b, (b * 448.0) / torch.where(a == 0, one, a))
    scales, s = e4m3(ratio)
    step = s.to(torch.float64) * a
    scaled = torch.where(step == 0, torch.copysign(torch.zeros_like(x), x), (x * 2688.0) / step)
    return poisoned(blocks, Steps(ratio, scales, scaled, nearest(scaled)), E4M3)


# ---- fourbit ---------------------------------------------------------------------------------------------------------


def fourbit(blocks: Blocks, outer: Outer) -> Steps:
    """fourbit's rule "nvfp4": Transformer Engine's numbers since 2.15, the stored outer A / 2688, NaN by block."""
    s_enc = cap(const(outer.stored, 1.0) / outer.stored)
    if outer.amax is not None:
        s_enc = outer_scale(outer.amax, 2688.0)[1]
    return poisoned(blocks, te_of_encode(blocks, s_enc, nearest), E4M3)


def _static(blocks: Blocks, outer: Tensor, largest: float) -> Steps:
    """s = e4m3(b / (outer * largest)), q = e2m1(x / (s * outer)), signed zeros where that product is 0."""
    ratio = blocks.amax / (outer * largest)
    scales, s = e4m3(ratio)
    step = s * outer
    scaled = blocks.x / torch.where(step == 0, float("inf"), step)
    return Steps(ratio, scales, scaled, nearest(scaled))


def fourbit_static(blocks: Blocks, outer: Outer) -> Steps:
    """fourbit's rule "static_6": divisions only."""
    return poisoned(blocks, _static(blocks, outer.stored, 6.0), E4M3)


def fourbit_46(blocks: Blocks, outer: Outer) -> Steps:
    """fourbit's rule "four_over_six": the smaller sum of ((q * s) * outer - x)^2, a tree over adjacent pairs."""
    six, four = (_static(blocks, outer.stored, m) for m in (6.0, 4.0))

    def error(steps: Steps) -> Tensor:
        value = (decode_tensor(steps.codes, E2M1) * decode_tensor(steps.scales, E4M3)) * outer.stored
        return tree(square(value - blocks.x), torch.add)

    return poisoned(blocks, choose(error(four) < error(six), four, six), E4M3)


def fourbit_fp8(blocks: Blocks, outer: Outer) -> Steps:
    """fourbit's rule "amax" (DeepSeek-V3, arXiv 2412.19437, section 3.3): s = b / max in float32, 1 of a zero block."""
    ratio = blocks.amax / const(blocks.amax, blocks.element.max)
    scale = torch.where(blocks.amax == 0, const(ratio, 1.0), ratio)
    scaled = blocks.x / torch.where(scale == 0, float("inf"), scale)
    return poisoned(blocks, Steps(ratio, scale, scaled, nearest(scaled, blocks.element)), None)


# ---- entries ---------------------------------------------------------------------------------------------------------

EXACT = Dialect(
    "exact",
    "arXiv 2509.25149, appendix B: the real quotients, each rounded once",
    TILED,
    Prose(
        "the tensor's amax A itself",
        "e4m3(448 b / A)",
        "0x00, also where the scale underflows, with elements of signed zero",
        f"2688 x / (s A), {_EVEN}, -0 kept",
        _BLOCK,
        "q s A / 2688, rounded once",
    ),
    plain(exact),
    orders.correctly_rounded,
    "amax",
    orders.the_amax,
    nonfinite="block",
)


def _house(name: str, rule: str, limit: float, steps: Callable[..., Steps], prose: tuple[str, str, str]) -> Dialect:
    return Dialect(
        name,
        f'fourbit, numerics.scales, rule "{rule}"',
        TILED,
        Prose(f"decode, A / {limit:g}, at least 2^-128, 1 for zeros", *prose, _BLOCK, "(q * s) * outer"),
        steps,
        orders.inner_first,
        "decode",
        partial(orders.house_factor, outer_max=limit),
        nonfinite="block",
    )


_ZERO = "0x00, also where the scale underflows"
_DIVIDED = f"x / (s * outer), {_EVEN}, -0 kept"
HOUSE = (
    _house(
        "fourbit",
        "nvfp4",
        2688.0,
        fourbit,
        ("e4m3(b * (S_enc * fl(1/6)))", _ZERO, f"x * min(1 / (s * (1 / S_enc)), FLT_MAX), {_EVEN}, -0 kept"),
    ),
    _house("fourbit_static_6", "static_6", 2688.0, fourbit_static, ("e4m3(b / (outer * 6))", _ZERO, _DIVIDED)),
    _house(
        "fourbit_46",
        "four_over_six",
        1536.0,
        fourbit_46,
        ("e4m3(b / (outer * 6)) or e4m3(b / (outer * 4)), the smaller sum of squared errors", _ZERO, _DIVIDED),
    ),
    Dialect(
        "fourbit_fp8",
        'fourbit, numerics.scales, rule "amax"; arXiv 2412.19437, section 3.3',
        ("FP8_1X128", "FP8_128X128"),
        Prose(
            "none",
            "b / 448, float32",
            "1; an amax below 448 * 2^-149 gives scale 0 and elements of signed zero",
            f"x / s, {_EVEN}, saturating, -0 kept",
            "a block that holds one gets a NaN scale and codes of +max",
            "q * s",
        ),
        fourbit_fp8,
        orders.one_level,
        nonfinite="block",
        scale_format=None,
    ),
)
