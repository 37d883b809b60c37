"""The article's recipe, and the same with one thing changed at a time.

Source of `fourbit`: Thinking Machines Lab, "End-to-End 4-Bit Training" (2026).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from numerics import MXFP8, MXS2F6, NVFP4, NVFP4_2D, NVFP4_46, Rounding
from numerics.ops import Cast, Recast
from numerics.scales import RULES

from .recipe import ExpertRecipe, Recipe

BF16 = Cast(None)
PLAIN = ExpertRecipe(BF16, BF16, BF16, BF16, Recast(None), Recast(None))
MXFP8_CAST = Cast(MXFP8)
MXFP8_EXPERTS = ExpertRecipe(
    MXFP8_CAST, MXFP8_CAST, MXFP8_CAST, MXFP8_CAST, saved_weight=Recast(MXFP8), saved_input=Recast(MXFP8)
)
_STOCHASTIC = Rounding.STOCHASTIC


def fourbit() -> Recipe:
    """The article's recipe: NVFP4 forward, MXFP8 backward from stochastically requantized saved codes.

    Activations four-over-six with one outer scale per token; weights plain NVFP4 with one per expert and matrix
    (gate and up share one), which stays outside the backward products; gradients MXFP8, nearest. NVFP4 dispatch,
    RHT-32 and S2F6 combine; the last sixth of the layers in MXFP8 with the same combine.
    """
    activation = Cast(NVFP4_46, "row")
    experts = ExpertRecipe(
        input=activation,
        hidden=activation,
        weight=Cast(NVFP4, "leading"),
        grad=MXFP8_CAST,
        saved_weight=Recast(MXFP8, "keep", _STOCHASTIC),
        saved_input=Recast(MXFP8, "multiply", _STOCHASTIC),
        combine_fmt=MXS2F6,
        combine_hadamard=32,
    )
    last = replace(MXFP8_EXPERTS, combine_fmt=MXS2F6, combine_hadamard=32)
    return Recipe("fourbit", experts, last, last_share=1 / 6, claims_unbiased=True)


def _changed(name: str, unbiased: bool = True, **fields: object) -> Recipe:
    """`fourbit` with other fields of its 4-bit layers."""
    base = fourbit()
    return replace(base, name=name, experts=replace(base.experts, **fields), claims_unbiased=unbiased)


def fourbit_rn() -> Recipe:
    """Nearest instead of stochastic requantization of the saved operands."""
    return _changed("fourbit_rn", False, saved_weight=Recast(MXFP8, "keep"), saved_input=Recast(MXFP8, "multiply"))


def fourbit_2d_weights() -> Recipe:
    """Weights in 16x16 tiles, whose transposed blocks have the same scales; the article rejects them."""
    return _changed("fourbit_2d_weights", weight=Cast(NVFP4_2D, "leading"))


def fourbit_nvfp4_backward() -> Recipe:
    """Backward operands requantized to NVFP4 instead of MXFP8, stochastically with the headroom 16/17 that it needs.
    Gradients likewise, because a product has one format."""
    fmt = replace(NVFP4, name="NVFP4_UNBIASED", rule=RULES["unbiased"])
    return _changed(
        "fourbit_nvfp4_backward",
        False,
        grad=Cast(fmt, "tensor", _STOCHASTIC),
        saved_weight=Recast(fmt, "multiply", _STOCHASTIC, "leading"),
        saved_input=Recast(fmt, "multiply", _STOCHASTIC, "tensor"),
    )


def fourbit_originals() -> Recipe:
    """Backward operands quantized from the originals instead of the saved codes: two saved tensors, and a backward
    that differentiates at other values than the forward multiplied."""
    return _changed("fourbit_originals", False, originals=True)


def fourbit_no_46() -> Recipe:
    """Activations in plain NVFP4 instead of four-over-six."""
    plain = Cast(NVFP4, "row")
    return _changed("fourbit_no_46", input=plain, hidden=plain)


def fourbit_46_weights() -> Recipe:
    """Four-over-six for weights too."""
    return _changed("fourbit_46_weights", weight=Cast(NVFP4_46, "leading"))


def fourbit_tensor_outer() -> Recipe:
    """Activations with one outer scale per tensor: a token's codes depend on the tokens beside it."""
    cast = Cast(NVFP4_46, "tensor")
    return _changed("fourbit_tensor_outer", input=cast, hidden=cast)


def fourbit_pow2_outer() -> Recipe:
    """Outer scales rounded up to powers of two, which most requantized values then survive exactly."""
    cast = Cast(NVFP4_46, "row", outer_rounding="pow2")
    weight = Cast(NVFP4, "leading", outer_rounding="pow2")
    return _changed("fourbit_pow2_outer", input=cast, hidden=cast, weight=weight)


def fourbit_outer_in_gradient() -> Recipe:
    """A token's outer scale multiplies the gradient's row in wgrad, instead of the saved activation."""
    return _changed("fourbit_outer_in_gradient", saved_input=Recast(MXFP8, "gradient", _STOCHASTIC))


def fourbit_sr_gradients() -> Recipe:
    """Gradients rounded stochastically too: unbiased from end to end."""
    return _changed("fourbit_sr_gradients", grad=Cast(MXFP8, None, _STOCHASTIC))


def fourbit_floor() -> Recipe:
    """E8M0 scales rounded down: the largest elements may saturate, which no rounding undoes."""
    fmt = replace(MXFP8, name="MXFP8_FLOOR", rule=RULES["floor"])
    return _changed(
        "fourbit_floor",
        False,
        grad=Cast(fmt),
        saved_weight=Recast(fmt, "keep", _STOCHASTIC),
        saved_input=Recast(fmt, "multiply", _STOCHASTIC),
    )


def _combined(name: str, fmt: object, hadamard: int | None) -> Recipe:
    """`fourbit` with another combine, in every layer."""
    base = _changed(name, combine_fmt=fmt, combine_hadamard=hadamard)
    return replace(base, last=replace(base.last, combine_fmt=fmt, combine_hadamard=hadamard))


def fourbit_bf16_combine() -> Recipe:
    """Expert outputs travel in BF16."""
    return _combined("fourbit_bf16_combine", None, None)


def fourbit_mxfp8_combine() -> Recipe:
    """Expert outputs travel in MXFP8, which the article found to lose accuracy."""
    return _combined("fourbit_mxfp8_combine", MXFP8, None)


def fourbit_rht_mxfp8_combine() -> Recipe:
    """Expert outputs travel in MXFP8 after the Hadamard transform."""
    return _combined("fourbit_rht_mxfp8_combine", MXFP8, 32)


def fourbit_plain_s2f6_combine() -> Recipe:
    """Expert outputs travel in S2F6 without the Hadamard transform."""
    return _combined("fourbit_plain_s2f6_combine", MXS2F6, None)


def fourbit_all_layers() -> Recipe:
    """No layer of higher precision."""
    return replace(fourbit(), name="fourbit_all_layers", last_share=0.0)


def fourbit_first_sixth() -> Recipe:
    """The first sixth of the layers in MXFP8 instead of the last."""
    return replace(fourbit(), name="fourbit_first_sixth", last_share=0.0, first_share=1 / 6)


def fourbit_forward_only() -> Recipe:
    """The forward alone: the backward in BF16, at the values that the forward multiplied."""
    return _changed(
        "fourbit_forward_only", False, grad=BF16, saved_weight=Recast(None), saved_input=Recast(None, "multiply")
    )


def fourbit_backward_only() -> Recipe:
    """The backward alone: forward operands and both wires of the forward in BF16."""
    return _changed(
        "fourbit_backward_only", input=BF16, hidden=BF16, weight=BF16, combine_fmt=None, combine_hadamard=None
    )


ABLATIONS: dict[str, Callable[[], Recipe]] = {
    f.__name__: f
    for f in (
        *(fourbit_rn, fourbit_2d_weights, fourbit_nvfp4_backward, fourbit_originals, fourbit_no_46),
        *(fourbit_46_weights, fourbit_tensor_outer, fourbit_pow2_outer, fourbit_outer_in_gradient),
        *(fourbit_sr_gradients, fourbit_floor, fourbit_bf16_combine, fourbit_mxfp8_combine),
        *(fourbit_rht_mxfp8_combine, fourbit_plain_s2f6_combine, fourbit_all_layers, fourbit_first_sixth),
        *(fourbit_forward_only, fourbit_backward_only),
    )
}
