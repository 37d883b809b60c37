"""What contradicts itself in an expert's recipe, and is refused when the recipe is made, not when a run reaches it.

Rows of activations and gradients are tokens of several experts, so tiles, whose lines share a scale, are for weights
and recasts; their outer scale is per tensor, per token ("row") or per run of values along features, a weight's may be
per expert ("leading") instead. An operand that is cast without random words can have no rule that draws. A recast has
to know what to do with the outer scale that the forward left it: outside the product it can stay only where it does
not vary along the new contraction, and, as on a gradient's row, only where no Hadamard transform mixes rows.
Every check raises ValueError, TypeError for another kind, with the role, its value and the remedy.
"""

from __future__ import annotations

from typing import Any

from numerics import BlockFormat, Rounding
from numerics.arguments import require_kind
from numerics.hadamard import SIZES
from numerics.ops import Cast, Recast

_SCOPES = ("tensor", "row", "leading")


def require_cast(role: str, cast: Any, leading: bool = False) -> None:
    """A cast that its role can have. `leading`: of a weight, which may have tiles, and a scale per expert."""
    require_kind(cast, Cast, role, "pass a Cast")
    if cast.fmt is None:
        if cast.outer is not None or cast.rounding is not Rounding.NEAREST_EVEN:
            raise ValueError(f"{role}={cast}: BF16 has no outer scale and rounds to nearest; use Cast(None)")
        return
    if cast.fmt.tile > 1 and not leading:
        raise ValueError(
            f"{role}.fmt={cast.fmt.name}: its tiles reach across tokens of several experts; use 1xN blocks"
        )
    _require_scope(f"{role}.outer", cast.outer, cast.fmt, leading)


def require_recast(role: str, recast: Any, leading: bool = False) -> None:
    """A recast that its role can have. `leading`: as above."""
    require_kind(recast, Recast, role, "pass a Recast")
    if recast.fmt is None:
        if recast.scope is not None or recast.rounding is not Rounding.NEAREST_EVEN:
            raise ValueError(f"{role}={recast}: BF16 has no outer scale and rounds to nearest; use Recast(None)")
        return
    _require_scope(f"{role}.scope", recast.scope, recast.fmt, leading)


def require_nearest(role: str, cast: Cast, why: str) -> None:
    """A cast that takes no random words, neither for its elements nor for its scales."""
    if cast.rounding is not Rounding.NEAREST_EVEN:
        raise ValueError(f"{role}.rounding={cast.rounding}: {why}")
    if cast.fmt is not None and cast.fmt.rule.draws:
        raise ValueError(f"{role}.fmt={cast.fmt.name}: rule {cast.fmt.rule.name} draws its scales; {why}")


def require_hadamard(name: str, size: Any) -> None:
    """The size of a transform, or None."""
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size not in SIZES):
        raise ValueError(f"{name}={size!r}: there are transforms of {', '.join(map(str, SIZES))}; use one, or None")


def require_followed(role: str, recast: Recast, saved: dict[str, Cast], hadamard: int | None) -> None:
    """That a recast can do what it says with the outer scales of the casts that were saved, by role, on its way through
    a transform of size `hadamard`. None of them does where the backward starts from the originals."""
    for name, cast in saved.items():
        if recast.fmt is None or cast.fmt is None or cast.outer is None or recast.outer == "multiply":
            continue
        what = f"{role}.outer={recast.outer!r}, {name}.outer={cast.outer!r}"
        if hadamard is not None:
            raise ValueError(f"{what}: a transform of {hadamard} mixes values with different scales; use 'multiply'")
        if recast.outer == "gradient" and cast.outer != "row":
            raise ValueError(f"{what}: only a token's scale can move to the gradient's rows; use 'multiply'")
        if recast.outer == "keep" and cast.outer not in ("tensor", "leading"):
            product, remedy = ("dgrad", "'multiply'") if name == "weight" else ("wgrad", "'multiply' or 'gradient'")
            raise ValueError(f"{what}: this scale varies along {product}'s contraction; use {remedy}")


def _require_scope(name: str, scope: str | int | None, fmt: BlockFormat, leading: bool) -> None:
    if scope is None:
        return
    if fmt.rule.scale_max is None:
        raise ValueError(f"{name}={scope!r}: rule {fmt.rule.name} of {fmt.name} sets no outer scale; use None")
    if isinstance(scope, int):
        if scope < fmt.block or scope % fmt.block or fmt.tile > 1:
            remedy = "use 'tensor'" if fmt.tile > 1 else f"use a multiple of the block {fmt.block}"
            raise ValueError(f"{name}={scope}: {fmt.name} has no such runs; {remedy}")
        return
    if scope not in _SCOPES:
        raise ValueError(f"{name}={scope!r}: use None, {', '.join(map(repr, _SCOPES))} or a run of values")
    if scope == "leading" and not leading:
        raise ValueError(f"{name}='leading': only weights have an axis of experts; use 'tensor' or 'row'")
    if scope == "row" and fmt.tile > 1:
        raise ValueError(f"{name}='row': a tile of {fmt.name} has one scale for several rows; use 'tensor'")
