"""Recipes as data: which format, scale rule, outer scope and rounding every operand of an expert has.

For y = x w^T the three products take:

    fprop   x as `input` (what dispatch sent) or `hidden` (after SwiGLU)      w as `weight`
    dgrad   g as `grad`, along features                                       w recast by `saved_weight`
    wgrad   g as `grad`, along tokens                                         x recast by `saved_input`

A token's outer scale cannot stay outside wgrad, whose contraction runs over tokens: `saved_input` multiplies it into
the operand, as the article's "dequantize", or leaves it to the gradient's rows. Gradients travel as `grad` too; expert
outputs travel as `combine_fmt` after a Hadamard of size `combine_hadamard`.
The backward operands are made from the saved codes, never from the originals. Formats: None is BF16.

Sources: Thinking Machines Lab, "End-to-End 4-Bit Training" (2026) for `fourbit`; arXiv 2506.08027 for `mxfp8`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from numerics import MXFP8, MXS2F6, NVFP4, NVFP4_46, BlockFormat, Rounding
from numerics.ops import Cast, Recast


@dataclass(frozen=True)
class ExpertRecipe:
    """Every operand of one layer's experts; see the module docstring."""

    input: Cast
    hidden: Cast
    weight: Cast
    grad: Cast
    saved_weight: Recast
    saved_input: Recast
    combine_fmt: BlockFormat | None = None
    combine_hadamard: int | None = None

    def __post_init__(self) -> None:
        for role in ("input", "hidden", "weight"):
            if getattr(self, role).rounding is not Rounding.NEAREST_EVEN:
                raise ValueError(f"{role}.rounding={getattr(self, role).rounding}: forward operands round to nearest")
        if self.grad.outer is not None:
            raise ValueError(f"grad.outer={self.grad.outer!r}: a gradient is quantized along both axes; use None")
        if self.saved_weight.outer == "gradient":
            raise ValueError("saved_weight.outer='gradient': only a token's scale can move to the gradient's rows")
        if self.saved_input.outer == "keep" and self.input.outer == "row" and self.saved_input.fmt is not None:
            raise ValueError(
                "saved_input.outer='keep': an outer scale per token varies along wgrad's contraction; use 'multiply' "
                "or 'gradient'"
            )

    @property
    def row_block(self) -> int:
        """What model and expert width must be a multiple of: the longest block or Hadamard along either."""
        casts = (self.input, self.hidden, self.weight, self.grad, self.saved_weight, self.saved_input)
        blocks = [c.fmt.block for c in casts if c.fmt is not None]
        blocks += [self.combine_fmt.block] if self.combine_fmt is not None else []
        return math.lcm(1, self.combine_hadamard or 1, *blocks)


@dataclass(frozen=True)
class Recipe:
    """A recipe for the whole model.

    Args:
        name: what tables and run folders call it. experts: of most layers. last: of the last ceil(L * last_share)
            layers. last_share: 1/6 in the article, whose depths are multiples of 6.
        shared: whether shared experts follow the recipe too, instead of BF16.
        claims_unbiased: in the layers under `experts`, the backward operands' expectation over random words equals
            the saved values. Refused for a recast that cannot keep it.
    """

    name: str
    experts: ExpertRecipe
    last: ExpertRecipe
    last_share: float = 0.0
    shared: bool = False
    claims_unbiased: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.last_share <= 1.0:
            raise ValueError(f"last_share={self.last_share} of recipe {self.name}: use a share between 0 and 1")
        if self.claims_unbiased:
            _require_unbiased(self.name, "saved_weight", self.experts.saved_weight, self.experts.weight)
            _require_unbiased(self.name, "saved_input", self.experts.saved_input, self.experts.input)

    def layer(self, index: int, depth: int) -> ExpertRecipe:
        """The recipe of layer `index` (from 0) of `depth`."""
        last = math.ceil(depth * self.last_share)
        return self.last if index >= depth - last else self.experts


def _require_unbiased(name: str, role: str, recast: Recast, cast: Cast) -> None:
    if recast.fmt is None:
        if cast.fmt is not None:
            raise ValueError(
                f"recipe {name} claims_unbiased, but {role} rounds {cast.fmt.name} values to BF16, nearest"
            )
        return
    if recast.rounding is not Rounding.STOCHASTIC:
        raise ValueError(f"recipe {name} claims_unbiased, but {role} rounds {recast.rounding.value}: use STOCHASTIC")
    if recast.fmt.rule.name != "rceil":
        raise ValueError(
            f"recipe {name} claims_unbiased, but {role} uses rule {recast.fmt.rule.name}, under which elements can "
            "saturate, which no rounding undoes: use a format with rule rceil"
        )


_BF16 = Cast(None)
_PLAIN = ExpertRecipe(_BF16, _BF16, _BF16, _BF16, Recast(None), Recast(None))
_MXFP8_CAST = Cast(MXFP8)
_MXFP8_EXPERTS = ExpertRecipe(
    _MXFP8_CAST, _MXFP8_CAST, _MXFP8_CAST, _MXFP8_CAST, saved_weight=Recast(MXFP8), saved_input=Recast(MXFP8)
)


def bf16() -> Recipe:
    """The baseline: every operand and both wires in BF16."""
    return Recipe("bf16", _PLAIN, _PLAIN)


def mxfp8() -> Recipe:
    """All expert products in MXFP8 (E4M3, round-up E8M0, nearest; arXiv 2506.08027), MXFP8 dispatch, BF16 combine.

    As in `fourbit`'s last layers the backward requantizes the received values, where the paper quantizes the
    originals twice: one saved tensor instead of two.
    """
    return Recipe("mxfp8", _MXFP8_EXPERTS, _MXFP8_EXPERTS)


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
        grad=_MXFP8_CAST,
        saved_weight=Recast(MXFP8, "keep", Rounding.STOCHASTIC),
        saved_input=Recast(MXFP8, "multiply", Rounding.STOCHASTIC),
        combine_fmt=MXS2F6,
        combine_hadamard=32,
    )
    last = replace(_MXFP8_EXPERTS, combine_fmt=MXS2F6, combine_hadamard=32)
    return Recipe("fourbit", experts, last, last_share=1 / 6, claims_unbiased=True)


def fourbit_rn() -> Recipe:
    """`fourbit` with nearest instead of stochastic requantization of the saved operands."""
    base = fourbit()
    experts = replace(base.experts, saved_weight=Recast(MXFP8, "keep"), saved_input=Recast(MXFP8, "multiply"))
    return replace(base, name="fourbit_rn", experts=experts, claims_unbiased=False)


PRESETS: dict[str, Callable[[], Recipe]] = {f.__name__: f for f in (bf16, mxfp8, fourbit, fourbit_rn)}


def preset(name: str) -> Recipe:
    """The recipe called `name`. Raises ValueError that lists the known ones."""
    if name not in PRESETS:
        raise ValueError(f"preset={name!r} is unknown: use one of {', '.join(PRESETS)}")
    return PRESETS[name]()
