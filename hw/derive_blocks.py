"""How one byte of a quantized output comes to be, from the block's largest magnitude on, in lines of text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import numerics as nm
from numerics import ops
from numerics.folding import partner
from numerics.partition import Partition
from numerics.rule import Block

from .cases import Outputs
from .derive_laws import Law, number

At = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """What was quantized, float32 values, and how."""

    values: Tensor
    cast: ops.Cast
    axis: int = -1
    groups: tuple[int, ...] | None = None
    random: nm.Random | None = None

    def quantized(self) -> ops.Operand:
        """The operand that the emulation makes of it."""
        return ops.quantize_tokens(self.values, self.cast, self.random, self.groups, self.axis)

    def codes(self, rounding: str) -> Tensor:
        """The codes with another rounding of the elements, by name."""
        q = replace(self, cast=replace(self.cast, rounding=nm.Rounding[rounding]), random=None).quantized()
        assert isinstance(q, nm.BlockTensor)
        return q.codes

    def law(self, q: nm.BlockTensor, scale_at: At) -> Law:
        """The rule of `q`, which was made of it, and the block of one scale as the rule sees it."""
        seen: list[Block] = []

        def apply(block: Block) -> tuple[Tensor, Tensor]:
            seen.append(block.rows())
            return q.fmt.rule.apply(block)

        cast, rule = self.cast, replace(q.fmt.rule, apply=apply)
        options: dict[str, Any] = {"rule": rule, "rounding": cast.rounding, "random": self.random}
        nm.quantize(self.values, q.fmt, self.axis, cast.outer, cast.outer_rounding, self.groups, **options)
        at = [n for d, n in enumerate(scale_at) if d != q.axis] + [scale_at[q.axis]]
        row = int(np.ravel_multi_index(at, q.scales.movedim(q.axis, -1).shape))
        for block in seen:  # of one tensor, in pieces
            if row < len(block.amax):
                return Law(q.rule, block[row : row + 1], q.fmt)
            row -= len(block.amax)
        raise AssertionError(f"the rule saw no block at {scale_at}")


def block_lines(source: Source, operand: str, part: str, at: At, found: Outputs) -> list[str]:
    """From the block's largest magnitude to the byte of `part` at `at`."""
    q = source.quantized()
    assert isinstance(q, nm.BlockTensor) and q.fmt.scale is not None
    if part == "outer":
        return _outer(q, source, at, found.get(f"{operand}.outer"))
    scale_at, starts, x = _region(q, source.values, part, at)
    element = at if part == "codes" else _largest(x, starts)
    block, place = scale_at[q.axis], element[q.axis] - starts[q.axis]
    amax, length = x.abs().max(), x.shape[q.axis]
    short = f", {length} of {q.fmt.block}: a short block, padded with zeros" if length < q.fmt.block else ""
    last = starts[q.axis] + length - 1
    law, codes = source.law(q, scale_at), found.get(f"{operand}.codes")
    lines = [f"block {block} along axis {q.axis}: elements {starts[q.axis]} to {last}{short}"]
    lines.append(f"block amax b = {number(amax)}")
    lines += [f"outer = {number(law.outer)}"] * (q.outer is not None) + law.scale_lines()
    lines.append(f"scale {_bytes(q.scales[scale_at], found.get(f'{operand}.scales'), scale_at, q.fmt.scale)}")
    lines.append(f"x = {number(source.values[element])}, place {place} of the block")
    scale = nm.decode(q.scales[scale_at].reshape(1), q.fmt.scale)[0]
    if q.fmt.tile > 1:  # the rule sees the lines of a tile beside each other
        other = partner(q.axis, x.ndim)
        place += (element[other] - starts[other]) * q.fmt.block
    field = None if law.block.random_bits is None else int(law.block.random_bits[0, place])
    wrong = None if codes is None or codes.shape != q.codes.shape else int(codes[element])
    lines += law.element_lines(source.values[element], scale, field, int(q.codes[element]), wrong)
    if field is not None:
        lines.append(f"random field = {field} ({field:#06x}): up if it and the 16 leading discarded bits carry")
    lines.append(f"code {_bytes(q.codes[element], codes, element, q.fmt.element)}")
    return lines


def _region(q: nm.BlockTensor, values: Tensor, part: str, at: At) -> tuple[At, At, Tensor]:
    """The scale's index, and the block, or tile, that it serves: index of its first value, and its values."""
    block_of = Partition.of(values.shape[q.axis], q.fmt.block, q.groups).block_of
    block = at[q.axis] if part == "scales" else int(block_of[at[q.axis]])
    inside = (block_of == block).nonzero().flatten()
    scale_at, spans = list(at), [(n, 1) for n in at]
    scale_at[q.axis], spans[q.axis] = block, (int(inside[0]), len(inside))
    if q.fmt.tile > 1:
        other, tile = partner(q.axis, values.ndim), q.fmt.tile
        scale_at[other] = at[other] if part == "scales" else at[other] // tile
        first = scale_at[other] * tile
        spans[other] = first, min(tile, values.shape[other] - first)
    x = values
    for d, (start, length) in enumerate(spans):
        x = x.narrow(d, start, length)
    return tuple(scale_at), tuple(start for start, _ in spans), x


def _largest(x: Tensor, starts: At) -> At:
    """Where the largest magnitude, or the first NaN, of a block is in the tensor."""
    flat = x.abs().nan_to_num(torch.inf).argmax()
    return tuple(int(n) + start for n, start in zip(torch.unravel_index(flat, x.shape), starts, strict=True))


def _outer(q: nm.BlockTensor, source: Source, at: At, found: Tensor | None) -> list[str]:
    """The outer scale of one scope."""
    assert q.outer is not None
    scope = source.values[
        tuple(slice(n, n + 1) if m > 1 else slice(None) for n, m in zip(at, q.outer.shape, strict=True))
    ]
    finite = scope[torch.isfinite(scope)].abs()
    amax = finite.max() if finite.numel() else torch.zeros(())
    limit = q.fmt.rule.outer_max(q.fmt.element)
    lines = [f"amax of the scope, blocks with NaN or Inf left out = {number(amax)} or less"]
    lines.append(f"outer = amax / {limit:g}, one FP32 division; 1 for zeros, at least 2^-128")
    lines += ["then up to a power of two"] * (source.cast.outer_rounding is not None)
    wrong = "missing" if found is None or found.shape != q.outer.shape else number(found[at])
    return [*lines, f"outer expected {number(q.outer[at])}, found {wrong}"]


def value(x: Tensor) -> str:
    """An element as it is told: a number exactly, a byte in hexadecimal."""
    return number(x) if x.is_floating_point() else f"{int(x):#04x}"


def _bytes(expected: Tensor, found: Tensor | None, at: At, fmt: nm.Format | None) -> str:
    """Two codes and their values."""

    def shown(code: Tensor) -> str:
        if fmt is None:
            return number(code)
        return f"{int(code):#04x} = {float(nm.decode(code.reshape(1), fmt)):g}"

    fits = found is not None and all(n < m for n, m in zip(at, found.shape, strict=False))
    return f"expected {shown(expected)}, found {shown(found[at]) if fits and found is not None else 'nothing'}"
