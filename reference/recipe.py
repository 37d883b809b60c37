"""A recipe is data: which format, scale rule, outer scope and rounding every operand of an expert has.

For y = x w^T the three products take:

    fprop   x as `input` (what dispatch sent) or `hidden` (after SwiGLU)      w as `weight`
    dgrad   g as `grad`, along features                                       w recast by `saved_weight`
    wgrad   g as `grad`, along tokens                                         x recast by `saved_input`

A token's outer scale cannot stay outside wgrad, whose contraction runs over tokens: `saved_input` multiplies it into
the operand, as the article's "dequantize", or leaves it to the gradient's rows. Gradients travel as `grad` too, unless
`grad_wire` says otherwise; expert outputs travel as `combine_fmt` after a Hadamard of size `combine_hadamard`. Both
operands of dgrad, or of wgrad, pass a block Hadamard along their contraction where a recipe gives its size, with the
run's signs or, with `fresh_signs`, signs drawn for this product alone.
The backward operands are made from the saved codes, or, where a recipe says `originals`, from what was quantized for
the forward. Formats: None is BF16. The recipes are in `presets` and `ablations`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from fractions import Fraction

from numerics import BlockFormat, Rounding
from numerics.arguments import integer, require_kind
from numerics.markup import Html, joined, table
from numerics.ops import Cast, Recast

from .recipe_rules import require_cast, require_followed, require_hadamard, require_nearest, require_recast
from .recipe_words import Role, of_cast, of_hadamard, of_recast, of_wire


@dataclass(frozen=True)
class OsciReset:
    """When master weights that oscillate are reset, see `oscillation`: every `period` steps after `start_share` of a
    run, those whose quantized value moved `ratio` times as far as they did themselves in `detect_steps` steps."""

    period: int
    detect_steps: int
    ratio: float
    start_share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("period", "detect_steps"):
            integer(getattr(self, name), name, "use a number of steps")
        if self.detect_steps < 1:
            raise ValueError(f"detect_steps={self.detect_steps}: measure 1 step or more")
        if self.period < self.detect_steps + 2:
            raise ValueError(
                f"period={self.period}: a window takes a step to open, {self.detect_steps} and one to reset; use "
                f"{self.detect_steps + 2} or more"
            )
        if not 0 < self.ratio < math.inf:
            raise ValueError(f"ratio={self.ratio}: use a positive number")
        if not 0.0 <= self.start_share <= 1.0:
            raise ValueError(f"start_share={self.start_share}: use a share between 0 and 1")

    @property
    def words(self) -> str:
        """The rule in words."""
        start = f" after {Fraction(self.start_share).limit_denominator(100)} of the run" if self.start_share else ""
        return (
            f"every {self.period} steps{start} those whose quantized value moved {self.ratio:g} times as far as "
            f"they did in {self.detect_steps} steps are reset to it"
        )


@dataclass(frozen=True)
class ExpertRecipe:
    """Every operand of one layer's experts, see the module docstring, and what becomes of their master weights."""

    input: Cast
    hidden: Cast
    weight: Cast
    grad: Cast
    saved_weight: Recast
    saved_input: Recast
    combine_fmt: BlockFormat | None = None
    combine_hadamard: int | None = None
    originals: bool = False
    dgrad_hadamard: int | None = None
    wgrad_hadamard: int | None = None
    grad_wire: Cast | None = None
    fresh_signs: bool = False
    osci_reset: OsciReset | None = None

    def __post_init__(self) -> None:
        self._require_operands()
        if self.osci_reset is not None and self.weight.fmt is None:
            raise ValueError(f"osci_reset={self.osci_reset} with BF16 weights: give the weights a format")
        if self.grad.outer not in (None, "tensor") and not isinstance(self.grad.outer, int):
            raise ValueError(
                f"grad.outer={self.grad.outer!r}: a gradient is quantized along both axes; use None, 'tensor' or a run"
            )
        for name, size in (("dgrad", self.dgrad_hadamard), ("wgrad", self.wgrad_hadamard)):
            if size is not None and None in (self.grad.fmt, self.saved_weight.fmt, self.saved_input.fmt):
                raise ValueError(
                    f"{name}_hadamard={size} with a BF16 operand: rotate what is quantized, or leave it out"
                )
        if self.dgrad_hadamard is not None and self.grad_wire is None:
            raise ValueError(
                f"dgrad_hadamard={self.dgrad_hadamard}: gradients travel unrotated; say how by grad_wire=Cast(None)"
            )
        if self.saved_weight.outer == "gradient":
            raise ValueError("saved_weight.outer='gradient': only a token's scale can move to the gradient's rows")
        if not self.originals:
            require_followed("saved_weight", self.saved_weight, {"weight": self.weight}, self.dgrad_hadamard)
            inputs = {"input": self.input, "hidden": self.hidden}
            require_followed("saved_input", self.saved_input, inputs, self.wgrad_hadamard)

    def _require_operands(self) -> None:
        """Each field alone, see `recipe_rules`."""
        for role in ("input", "hidden", "weight"):
            require_cast(role, getattr(self, role), leading=role == "weight")
            require_nearest(role, getattr(self, role), "forward operands round to nearest")
        require_cast("grad", self.grad)
        if self.grad_wire is not None:
            require_cast("grad_wire", self.grad_wire)
            require_nearest("grad_wire", self.grad_wire, "random words serve one rounding of a tensor")
        require_recast("saved_weight", self.saved_weight, leading=True)
        require_recast("saved_input", self.saved_input)
        require_kind(self.combine_fmt, (BlockFormat, type(None)), "combine_fmt", "pass a block format or None")
        require_cast("combine", combine := Cast(self.combine_fmt))
        require_nearest("combine", combine, "the combine rounds to nearest")
        for name in ("combine_hadamard", "dgrad_hadamard", "wgrad_hadamard"):
            require_hadamard(name, getattr(self, name))
        for name in ("originals", "fresh_signs"):
            require_kind(getattr(self, name), bool, name, "use True or False")
        require_kind(self.osci_reset, (OsciReset, type(None)), "osci_reset", "pass an OsciReset or None")

    def __deepcopy__(self, _: object) -> ExpertRecipe:
        return self  # a value: a copy of a format's rule would no longer be equal to it

    def roles(self) -> dict[str, Role]:
        """Role -> what it is, in the order of a step."""
        source = "the originals" if self.originals else "saved codes"
        combine = of_hadamard(self.combine_hadamard)
        dgrad, wgrad = (of_hadamard(n, self.fresh_signs) for n in (self.dgrad_hadamard, self.wgrad_hadamard))
        masters = "FP32" if self.osci_reset is None else f"FP32; {self.osci_reset.words}"
        return {
            "fprop x, dispatch": of_cast(self.input, "features"),
            "fprop h": of_cast(self.hidden, "features"),
            "fprop w": of_cast(self.weight, "input features"),
            "combine": of_wire(self.combine_fmt, combine),
            "gradient wires": of_cast(self.grad_wire or self.grad, "features"),
            "dgrad g": of_cast(self.grad, "features", dgrad),
            "dgrad w": of_recast(self.saved_weight, "output features", source, self.weight, dgrad),
            "wgrad g": of_cast(self.grad, "tokens", wgrad),
            "wgrad x": of_recast(self.saved_input, "tokens", source, self.input, wgrad),
            "masters": Role(None, masters, plain="FP32"),
        }

    @property
    def row_block(self) -> int:
        """What model and expert width must be a multiple of: the longest block or Hadamard along either."""
        casts = (self.input, self.hidden, self.weight, self.grad, self.saved_weight, self.saved_input)
        blocks = [c.fmt.block for c in casts if c.fmt is not None]
        blocks += [self.combine_fmt.block] if self.combine_fmt is not None else []
        return math.lcm(1, self.combine_hadamard or 1, self.dgrad_hadamard or 1, *blocks)

    @property
    def hadamard_sizes(self) -> set[int]:
        """Sizes of every transform."""
        return {n for n in (self.combine_hadamard, self.dgrad_hadamard, self.wgrad_hadamard) if n is not None}


@dataclass(frozen=True)
class Recipe:
    """A recipe for the whole model.

    Args:
        name: what tables and run folders call it. experts: of most layers. last: of the last ceil(L * last_share)
            layers, and of the first ceil(L * first_share). last_share: 1/6 in the article, whose depths are multiples
            of 6.
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
    first_share: float = 0.0

    def __post_init__(self) -> None:
        for name, kind in (("name", str), ("experts", ExpertRecipe), ("last", ExpertRecipe)):
            require_kind(getattr(self, name), kind, name, f"pass one of kind {kind.__name__}")
        for field in ("last_share", "first_share"):
            if not 0.0 <= getattr(self, field) <= 1.0:
                raise ValueError(f"{field}={getattr(self, field)} of recipe {self.name}: use a share between 0 and 1")
        if self.claims_unbiased:
            _require_unbiased(self.name, "saved_weight", self.experts.saved_weight, self.experts.weight)
            for cast in (self.experts.input, self.experts.hidden):
                _require_unbiased(self.name, "saved_input", self.experts.saved_input, cast)

    def layer(self, index: int, depth: int) -> ExpertRecipe:
        """The recipe of layer `index` (from 0) of `depth`."""
        first, last = (math.ceil(depth * share) for share in (self.first_share, self.last_share))
        return self.last if index < first or index >= depth - last else self.experts

    def __deepcopy__(self, _: object) -> Recipe:
        return self  # a value: a copy of a format's rule would no longer be equal to it

    @property
    def other_layers(self) -> str:
        """Which layers follow `last`, in words; empty for none."""
        shares = (("first", self.first_share), ("last", self.last_share))
        told = [f"the {which} {Fraction(share).limit_denominator(100)}" for which, share in shares if share]
        return f"{' and '.join(told)} of the layers" if told else ""

    @property
    def remarks(self) -> dict[str, str]:
        """What holds for the whole model: name -> words."""
        unbiased = "claimed, for backward operands given the saved values" if self.claims_unbiased else "not claimed"
        return {"shared experts": "as the routed ones" if self.shared else "BF16", "unbiased": unbiased}

    def _repr_html_(self) -> str:
        """Role by role, formats coloured: what a notebook shows."""
        named, other = self.experts.roles(), self.last.roles() if self.other_layers else {}
        rows: list[list[str]] = []
        for name, role in named.items():
            last = other.get(name, role)
            rows.append([name, role.chip, role.words, *(["", "the same"] if last == role else [last.chip, last.words])])
        head = ["", "format", "most layers", "format", self.other_layers]
        if not other:
            head, rows = ["", "format", "all layers"], [row[:3] for row in rows]
        rows += [[name, "", words, *[""] * (len(head) - 3)] for name, words in self.remarks.items()]
        return table(rows, joined([Html("<b>Recipe</b> "), self.name]), head)


FORWARD = ("input", "hidden", "weight", "combine_fmt", "combine_hadamard", "osci_reset")
PASSES = ("forward", "backward", "both")


def switched(first: ExpertRecipe, second: ExpertRecipe, which: str) -> ExpertRecipe:
    """`first`, with the forward operands and wires, the backward operands, or both, of `second`.

    Raises: ValueError for another pass, or two halves that contradict each other.
    """
    if which not in PASSES:
        raise ValueError(f"switch_pass={which!r}: use one of {', '.join(PASSES)}")
    names = [f.name for f in fields(ExpertRecipe) if which == "both" or (f.name in FORWARD) == (which == "forward")]
    return replace(first, **{name: getattr(second, name) for name in names})


def _require_unbiased(name: str, role: str, recast: Recast, cast: Cast) -> None:
    if recast.fmt is None:
        if cast.fmt is not None:
            raise ValueError(
                f"recipe {name} claims_unbiased, but {role} rounds {cast.fmt.name} values to BF16, nearest"
            )
        return
    if recast.rounding is not Rounding.STOCHASTIC:
        raise ValueError(f"recipe {name} claims_unbiased, but {role} rounds {recast.rounding.value}: use STOCHASTIC")
    if recast.fmt.rule.name not in ("rceil", "three_quarters"):
        raise ValueError(
            f"recipe {name} claims_unbiased, but {role} uses rule {recast.fmt.rule.name}, under which elements can "
            "saturate, which no rounding undoes: use a format with rule rceil"
        )
