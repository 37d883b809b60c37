"""How one byte of a quantized output comes to be, from the block's largest magnitude on, in lines of text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm
from numerics import ops
from numerics.folding import partner
from numerics.partition import Partition, random_fields

from .cases import Outputs

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


def block_lines(source: Source, operand: str, part: str, at: At, found: Outputs) -> list[str]:
    """From the block's largest magnitude to the byte of `part` at `at`."""
    q = source.quantized()
    assert isinstance(q, nm.BlockTensor) and q.fmt.scale is not None
    if part == "outer":
        return _outer(q, source, at, found.get(f"{operand}.outer"))
    scale_at, starts, x = _region(q, source.values, part, at)
    element = at if part == "codes" else _largest(x, starts)
    block, place = scale_at[q.axis], element[q.axis] - starts[q.axis]
    outer = None
    if q.outer is not None:
        outer = q.outer[tuple(min(n, m - 1) for n, m in zip(element, q.outer.shape, strict=True))]
    amax, length = x.abs().max(), x.shape[q.axis]
    short = f", {length} of {q.fmt.block}: a short block, padded with zeros" if length < q.fmt.block else ""
    last = starts[q.axis] + length - 1
    lines = [f"block {block} along axis {q.axis}: elements {starts[q.axis]} to {last}{short}"]
    lines.append(f"block amax b = {number(amax)}")
    if outer is not None:
        lines.append(f"outer = {number(outer)}")
    lines += _scale_before(q, amax, outer, x.flatten())
    lines.append(f"scale {_bytes(q.scales[scale_at], found.get(f'{operand}.scales'), scale_at, q.fmt.scale)}")
    lines.append(f"x = {number(source.values[element])}, place {place} of the block")
    scale = nm.decode(q.scales[scale_at].reshape(1), q.fmt.scale)[0]
    step, words = (scale, "scale") if outer is None else (scale * outer, "(scale * outer)")
    lines.append(f"element before rounding = x / {words} = {number(source.values[element] / step)}")
    if source.random is not None:
        field = _field(source, q, element, block, place)
        lines.append(f"random field = {field} ({field:#06x}): up if it and the 16 leading discarded bits carry")
    lines.append(f"code {_bytes(q.codes[element], found.get(f'{operand}.codes'), element, q.fmt.element)}")
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
    limit = {"four_over_six": 1536}.get(q.rule, 2688)
    lines = [f"amax of the scope, blocks with NaN or Inf left out = {number(amax)} or less"]
    lines.append(f"outer = amax / {limit}, one FP32 division; 1 for zeros, at least 2^-128")
    lines += ["then up to a power of two"] * (source.cast.outer_rounding is not None)
    wrong = "missing" if found is None or found.shape != q.outer.shape else number(found[at])
    return [*lines, f"outer expected {number(q.outer[at])}, found {wrong}"]


def _scale_before(q: nm.BlockTensor, amax: Tensor, outer: Tensor | None, x: Tensor) -> list[str]:
    """The scale before it is rounded, by the rule of the block's format."""
    if not torch.isfinite(amax):
        return ["the block holds NaN or Inf: a NaN scale, codes of the largest value"]
    largest, factor = q.fmt.element.max, torch.ones(()) if outer is None else outer
    if q.rule == "rceil":
        return [f"scale before rounding up to a power of two = b / {largest:g} = {number(amax.double() / largest)}"]
    if q.rule != "four_over_six":
        name = f"b / (outer * {largest:g})"
        return [
            f"scale before rounding = {name} = {number(amax / (factor * largest))}; nvfp4 rounds b * (s_enc * fl(1/6))"
        ]
    lines, padded = [], torch.nn.functional.pad(x, (0, q.fmt.block - len(x)))
    for rule in ("static_6", "static_4"):
        tried = nm.quantize(padded, q.fmt, outer=factor.reshape(1), rule=rule)
        error = nm.scales.tree((tried.dequantize() - padded).square()[None], torch.add)
        m = int(rule[-1])
        before, byte = number(amax / (factor * m)), int(tried.scales[0])
        lines.append(
            f"mapped to {m}: scale before rounding = b / (outer * {m}) = {before}, byte {byte:#04x}, "
            f"error {float(error):.9g}"
        )
    return [*lines, "4 is chosen only if its error is smaller"]


def _field(source: Source, q: nm.BlockTensor, at: At, block: int, place: int) -> int:
    """The random field of one element."""
    assert source.random is not None
    partition = Partition.of(q.shape[q.axis], q.fmt.block, q.groups)
    grouped = source.groups is not None
    bits = (q.fmt.block, q.fmt.element.bits, torch.device("cpu"))
    fields = random_fields(source.random, q.shape, q.axis, grouped, partition, *bits)
    return int(fields[(*(n for d, n in enumerate(at) if d != q.axis), block, place)])


def number(value: Tensor) -> str:
    """A value in decimal and exactly."""
    return f"{float(value):.9g} ({float(value).hex()})"


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
