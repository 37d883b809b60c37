"""What a scale rule is, and what it sees of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .codes import decode_tensor, with_sign
from .formats import E4M3, Format
from .outer import FLT_MAX, constant
from .rounding import Rounding, pattern, round_magnitude


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

    def rows(self) -> Block:
        """The same blocks, one after another: x (N, B), the scales around them (N, 1)."""

        def flat(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.expand(*self.amax.shape[:-1], t.shape[-1]).reshape(-1, t.shape[-1])

        x, amax = self.x.reshape(-1, self.x.shape[-1]), self.amax.reshape(-1, 1)
        return replace(
            self, x=x, amax=amax, outer=flat(self.outer), s_enc=flat(self.s_enc), random_bits=flat(self.random_bits)
        )

    def __getitem__(self, part: slice) -> Block:
        """Some of its rows; it must be as `rows` makes it."""
        outer, s_enc, bits = (None if t is None else t[part] for t in (self.outer, self.s_enc, self.random_bits))
        return replace(self, x=self.x[part], amax=self.amax[part], outer=outer, s_enc=s_enc, random_bits=bits)

    def encode(self, scaled: Tensor) -> Tensor:
        """Element codes of `scaled`, uint8 like x, signs of x, saturating; the caller replaces those of NaN."""
        # as integers NaN exceeds infinity, and infinity every number: one clamp saturates all three
        largest = pattern(self.element.max, torch.float32)
        magnitude = (scaled.view(torch.int32) & 0x7FFFFFFF).clamp_(max=largest).view(torch.float32)
        code = round_magnitude(magnitude, self.element, self.rounding, self.x, self.random_bits)
        return with_sign(code, self.x.view(torch.int32) >> 31, self.element).to(torch.uint8)

    def decode(self, codes: Tensor, scale: Tensor) -> Tensor:
        """(code value * block scale) * outer."""
        inner = decode_tensor(codes, self.element) * scale
        return inner if self.outer is None else inner * self.outer

    def times_outer(self, scale: Tensor | float) -> Tensor:
        """`scale` * outer, shaped like `amax` at least."""
        outer = constant(1.0, self.amax) if self.outer is None else self.outer
        return (outer * scale).expand(self.amax.shape)

    def inside(self) -> tuple[Tensor, Tensor]:
        """x and amax without the outer scale, by division, at most float32's largest number."""
        if self.outer is None:
            return self.x, self.amax
        return (self.x / self.outer).clamp(-FLT_MAX, FLT_MAX), (self.amax / self.outer).clamp(max=FLT_MAX)


@dataclass(frozen=True)
class Rule:
    """A named scale rule.

    Args:
        name: the key in `RULES`. source: paper and section.
        apply: Block -> (scales (..., n, 1), element codes uint8 (..., n, B)); scales are codes, uint8, or float32.
        scale_max: the largest block scale it aims at, so that outer_max = scale_max * element.max; None: the rule
            takes no outer scale of its own.
        scale: format of the scales; None: float32. alternative: of elements, where the scale's sign bit is set.
        gain: what decoded values are multiplied by, kept as the outer scale of every tensor; None: nothing.
        draws: whether scales are rounded stochastically: random words are needed then, whatever the elements do.
    """

    name: str
    apply: Callable[[Block], tuple[Tensor, Tensor]]
    scale_max: float | None
    source: str
    scale: Format | None = E4M3
    alternative: Format | None = None
    gain: float | None = None
    draws: bool = False

    def outer_max(self, element: Format) -> float | None:
        """What an outer scale divides its scope's amax by."""
        return None if self.scale_max is None else self.scale_max * element.max
