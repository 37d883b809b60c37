"""Published recipes, one function each, with its source and what it does not reproduce here.

Here a recipe covers the routed experts alone; whatever else a source quantizes (dense layers, attention's linear
layers) stays in BF16. Stochastic rounding is the rule of PTX `cvt.rs` with 16 bits. `ablations` has `fourbit` with one
thing changed at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from numerics import FP8_1X128, FP8_128X128, MXFP4, MXFP8, NVFP4, NVFP4_2D, NVFP4_46, BlockFormat, Rounding
from numerics.ops import Cast, Recast
from numerics.scales import RULES

from . import ablations
from .ablations import BF16, PLAIN, fourbit
from .recipe import ExpertRecipe, OsciReset, Recipe


def bf16() -> Recipe:
    """The baseline: every operand and both wires in BF16."""
    return Recipe("bf16", PLAIN, PLAIN)


def fp8_deepseek() -> Recipe:
    """DeepSeek-V3 (arXiv 2412.19437, section 3.3): E4M3 with FP32 scales, 1x128 activations and gradients, 128x128
    weights; FP8 dispatch, BF16 combine.

    Backward activations are quantized again from the received values, along tokens, as DeepSeek's are. Not reproduced:
    the power-of-two scales of the inputs of some products, E5M6 where attention's output is saved, promotion of
    partial sums every 128 values. Widths must be multiples of 128.
    """
    cast, again = Cast(FP8_1X128), Recast(FP8_1X128)
    experts = ExpertRecipe(cast, cast, Cast(FP8_128X128), cast, Recast(FP8_128X128), again)
    return Recipe("fp8_deepseek", experts, experts)


def mxfp8() -> Recipe:
    """All expert products in MXFP8 (E4M3, round-up E8M0, nearest; arXiv 2506.08027), MXFP8 dispatch, BF16 combine.

    As in `fourbit`'s last layers the backward requantizes the received values, where the paper quantizes the
    originals twice: one saved tensor instead of two.
    """
    return Recipe("mxfp8", ablations.MXFP8_EXPERTS, ablations.MXFP8_EXPERTS)


def mxfp8_floor() -> Recipe:
    """`mxfp8` with the scales of OCP Microscaling Formats v1.0, section 6.3, rounded down: the largest elements of a
    block may saturate, which arXiv 2506.08027 saw diverge."""
    fmt = replace(MXFP8, name="MXFP8_FLOOR", rule=RULES["floor"])
    cast, again = Cast(fmt), Recast(fmt)
    experts = ExpertRecipe(cast, cast, cast, cast, again, again)
    return Recipe("mxfp8_floor", experts, experts)


def mxfp4() -> Recipe:
    """MXFP4 backward (Tseng and others, arXiv 2502.20586): 3/4 of each operand rounded stochastically, which no scale
    saturates, after a random Hadamard of 64 along the contraction; forward, gradient wires and combine in BF16.

    The product's 16/9 are the 4/3 of either operand. Not reproduced: one transform drawn anew for each product.
    """
    fmt = replace(MXFP4, name="MXFP4_3_4", rule=RULES["three_quarters"])
    again = Recast(fmt, "multiply", Rounding.STOCHASTIC)
    grad = Cast(fmt, None, Rounding.STOCHASTIC)
    experts = ExpertRecipe(
        *(BF16, BF16, BF16, grad, again, again), dgrad_hadamard=64, wgrad_hadamard=64, grad_wire=BF16
    )
    return Recipe("mxfp4", experts, experts, claims_unbiased=True)


def nvfp4_all() -> Recipe:
    """NVFP4 to nearest everywhere, without any of the remedies: the formats of arXiv 2509.25149, appendix B, 1x16, one
    outer scale per tensor (weights: per expert), the originals quantized once along each axis.

    Not from a source as a recipe: what the others' remedies are measured against. BF16 combine.
    """
    experts = _nvfp4(Cast(NVFP4, "tensor"), Cast(NVFP4, "leading"))
    return Recipe("nvfp4_all", experts, experts)


def nvfp4_nvidia() -> Recipe:
    """NVIDIA's NVFP4 pretraining recipe (arXiv 2509.25149, section 4): 16x16 weights, RHT-16 on both operands of wgrad,
    stochastic rounding of gradients, one outer scale per tensor, about 15 % of the layers in BF16, near the end.

    BF16 wires. Not reproduced: the first two of 62 blocks in BF16, the rounding of transformed values to BF16 before
    they are quantized, the switch to a BF16 forward at the end of training.
    """
    activation, tiles = Cast(NVFP4, "tensor"), Cast(NVFP4_2D, "leading")
    experts = ExpertRecipe(
        input=activation,
        hidden=activation,
        weight=tiles,
        grad=Cast(NVFP4, "tensor", Rounding.STOCHASTIC),
        saved_weight=Recast(NVFP4_2D, "multiply", scope="leading"),
        saved_input=Recast(NVFP4, "multiply", scope="tensor"),
        originals=True,
        wgrad_hadamard=16,
        grad_wire=BF16,
    )
    return Recipe("nvfp4_nvidia", experts, PLAIN, last_share=0.15)


def nvfp4_46() -> Recipe:
    """Four over Six everywhere (arXiv 2512.02010): `nvfp4_all` with the block maximum mapped to 6 or 4.

    Not reproduced: the paper trains with stochastic rounding of gradients and a Hadamard transform for wgrad, as
    NVIDIA's recipe does; here all is to nearest.
    """
    experts = _nvfp4(Cast(NVFP4_46, "tensor"), Cast(NVFP4_46, "leading"))
    return Recipe("nvfp4_46", experts, experts)


def nvfp4_46_forward() -> Recipe:
    """The forward of `nvfp4_46` alone; backward in BF16 at the values that the forward multiplied, BF16 combine: the
    forward-only runs of Quartet II (arXiv 2601.22813), which quantize all linear layers."""
    return _forward("nvfp4_46_forward", NVFP4_46, NVFP4_46)


def nvfp4_forward() -> Recipe:
    """The forward of `nvfp4_all` alone, otherwise as `nvfp4_46_forward`."""
    return _forward("nvfp4_forward", NVFP4, NVFP4)


def nvfp4_2d_forward() -> Recipe:
    """`nvfp4_forward` with weights in 16x16 tiles."""
    return _forward("nvfp4_2d_forward", NVFP4, NVFP4_2D)


def _forward(name: str, activation: BlockFormat, weight: BlockFormat) -> Recipe:
    cast = Cast(activation, "tensor")
    experts = ExpertRecipe(cast, cast, Cast(weight, "leading"), BF16, Recast(None), Recast(None))
    return Recipe(name, experts, experts)


def _nvfp4(activation: Cast, weight: Cast) -> ExpertRecipe:
    grad = Cast(activation.fmt, "tensor")
    saved_weight = Recast(weight.fmt, "multiply", scope="leading")
    saved_input = Recast(activation.fmt, "multiply", scope="tensor")
    return ExpertRecipe(activation, activation, weight, grad, saved_weight, saved_input, originals=True)


def quartet2() -> Recipe:
    """Quartet II (arXiv 2601.22813): four-over-six forward; both backward products in NVFP4 by MS-EDEN, from the saved
    codes, after a Hadamard of 128 whose signs are drawn anew for each product.

    Unbiased over rotations and random scales, value by value only as far as a rotated block looks normal, hence no
    claim. BF16 wires. Not reproduced: whatever lies outside the experts. Widths must be multiples of 128.
    """
    fmt = replace(NVFP4, name="NVFP4_EDEN", rule=RULES["eden"])
    experts = ExpertRecipe(
        input=Cast(NVFP4_46, "tensor"),
        hidden=Cast(NVFP4_46, "tensor"),
        weight=Cast(NVFP4_46, "leading"),
        grad=Cast(fmt, "tensor"),
        saved_weight=Recast(fmt, "multiply", scope="leading"),
        saved_input=Recast(fmt, "multiply", scope="tensor"),
        dgrad_hadamard=128,
        wgrad_hadamard=128,
        grad_wire=BF16,
        fresh_signs=True,
    )
    return Recipe("quartet2", experts, experts)


def tetrajet2() -> Recipe:
    """TetraJet-v2 (arXiv 2510.27527): NVFP4 with an FP32 scale per 128 values around those per 16; both backward
    products in NVFP4 after a Hadamard of 16 with signs drawn for each, gradients and saved operands rounded
    stochastically, the latter from forward codes; OsciReset (`oscillation`).

    As in the authors' kernels a gradient is quantized twice from the same values: their backward_double_quant is of
    saved operands alone. OsciReset as in their configurations, whose runs of 12,505 to 50,500 steps begin it after 59
    to 69 % of them, every 200 steps (their largest model: 400), with ratio 8 (their code's default: 16): a run of a
    few hundred steps has one window or none. BF16 wires. Rounding has the headroom 16/17, without which, as in their
    kernels, the largest values saturate. Not reproduced: OutControl, which keeps a tenth of each matrix's input
    features (those whose norms were largest in 50 early steps) in MXFP8 in fprop and wgrad. An operand would be two
    tensors of two formats, split by a choice that the run makes, in every operation, in what is saved and in
    checkpoints.
    """
    fmt = replace(NVFP4, name="NVFP4_UNBIASED", rule=RULES["unbiased"])
    cast, again = Cast(NVFP4, 128), Recast(fmt, "multiply", Rounding.STOCHASTIC, 128)
    experts = ExpertRecipe(
        *(cast, cast, cast, Cast(fmt, 128, Rounding.STOCHASTIC), again, again),
        dgrad_hadamard=16,
        wgrad_hadamard=16,
        grad_wire=BF16,
        fresh_signs=True,
        osci_reset=OsciReset(period=200, detect_steps=50, ratio=8.0, start_share=0.6),
    )
    return Recipe("tetrajet2", experts, experts)


def composer2() -> Recipe:
    """Composer 2 (arXiv 2603.24477), as far as others describe it: NVFP4 forward, one outer scale per token and one per
    expert, so that no token sees another; BF16 backward from the values that the forward multiplied.

    The report leaves the backward, rounding and the wires open: BF16 is that of the reproductions (LMSYS, Miles).
    Not reproduced: routing replay, shared experts of their own precision.
    """
    activation = Cast(NVFP4, "row")
    experts = ExpertRecipe(activation, activation, Cast(NVFP4, "leading"), BF16, Recast(None), Recast(None))
    return Recipe("composer2", experts, PLAIN, last_share=0.15)


PUBLISHED: dict[str, Callable[[], Recipe]] = {
    f.__name__: f
    for f in (
        bf16,
        fp8_deepseek,
        mxfp8,
        mxfp8_floor,
        mxfp4,
        nvfp4_all,
        nvfp4_nvidia,
        nvfp4_46,
        nvfp4_46_forward,
        nvfp4_forward,
        nvfp4_2d_forward,
        quartet2,
        tetrajet2,
        composer2,
        fourbit,
    )
}
PRESETS: dict[str, Callable[[], Recipe]] = {**PUBLISHED, **ablations.ABLATIONS}


def preset(name: str) -> Recipe:
    """The recipe called `name`. Raises ValueError that lists the known ones."""
    if name not in PRESETS:
        raise ValueError(f"preset={name!r} is unknown: use one of {', '.join(PRESETS)}")
    return PRESETS[name]()
