"""Which dialect made these bytes? `identify` runs every dialect on the tensor and compares codes and scales.

    print(nm.scales.identify(x, codes, scales))

A dialect reproduces the bytes if every code and every scale byte is its own, and, if an outer scale is passed, what it
stores too. Where the outer is another one (calibrated, say, or in another direction) the dialect is run from x alone
and with the outer that was passed, and the better of the two counts. For all others the result counts the bytes that
differ and derives the first difference.

Two bytes of NaN scales (0x7F and 0xFF of E4M3) count as equal, and a code is not judged where its element is NaN
before rounding and the quantizer has no rule for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .arguments import require_integers, require_same_device
from .codes import as_tensor, decode_tensor, require_float
from .dialects import DIALECTS
from .dialects_core import Blocks, Dialect, Outer, Steps, checked, folded_outer, given_outer
from .dialects_layout import LAYOUTS, Layout, scales_differ
from .formats import Format
from .identify_result import Difference, Identification, Verdict
from .near import did_you_mean
from .subnormals import kept

_FORMATS = ", ".join(LAYOUTS)


@kept
def identify(
    x: Any,
    codes: Any,
    scales: Any,
    outer: Any = None,
    fmt: Any = None,
    axis: int = -1,
    dialects: Any = None,
    real: Tensor | None = None,
    experts: tuple[int, ...] | None = None,
) -> Identification:
    """Which dialects make `codes` and `scales` of `x`.

    Args:
        x: what was quantized, in the dtype in which it was: floating point, torch or numpy, at least one axis.
        codes: element codes, integers, the shape of `x` (unpacked: `nm.layout.unpack_nibbles`).
        scales: scale codes as integers or float8 bytes, float32 numbers for FP8 blocks; the shape of `x` with the
            number of blocks along `axis` (and of tiles along its neighbour; not swizzled:
            `nm.layout.unswizzle_scales`).
        outer: the stored outer, float32, as amax, decode or encode factor: one value, or `x.ndim` axes with 1 along
            `axis` (or one per run of 128); None: not compared.
        fmt: the block format or its name; None: from the number of blocks and the largest code.
        axis: along which blocks run. dialects: names to try; None: all of the format.
        real: which values are compared, bool, broadcasts to `x`; None: all. Others count as padding.
        experts: offsets along the axis before the blocks' (of tiles, with tiles), each with an outer of its own; None:
            the outer's shape says what shares it.

    Raises:
        TypeError: `x` is not floating point, codes or scales are no integers, outer no float32.
        ValueError: shapes that do not belong together, codes out of range, an unknown format or dialect.
    """
    codes = _bytes(codes, "codes")
    x, axis, layout = checked(x, axis, _layout(x, codes, scales, axis) if fmt is None else fmt)
    scales = _bytes(scales, "scales") if layout.scale is not None else _numbers(scales, layout)
    _require_shapes(x, codes, scales, axis, layout)
    chosen = _chosen(dialects, layout)
    folding = layout.folding(x.shape, axis)
    places = torch.ones(1, dtype=torch.bool, device=x.device) if real is None else real
    folded = [folding.fold(t) for t in (x, codes, places.expand(x.shape))]
    given = None if outer is None else given_outer(outer, x, axis, layout, 128)
    dump = _Dump(folded[0], axis, layout, folded[1], scales.movedim(axis, -1).unsqueeze(-1), given, folded[2], experts)
    verdicts = sorted((_judge(d, dump) for d in chosen), key=lambda v: v.scales * layout.per_scale + v.codes)
    return Identification(layout, scales.numel(), codes.numel(), tuple(verdicts))


def _numbers(value: Any, layout: Layout) -> Tensor:
    """Scales of a format that has them in float32."""
    tensor, _ = as_tensor(value, "scales")
    require_float(tensor, "scales")
    if tensor.dtype != torch.float32:
        raise TypeError(f"scales have dtype {tensor.dtype}: {layout.name} has them in float32")
    return tensor


def _bytes(value: Any, name: str) -> Tensor:
    """Codes as uint8; float8 tensors are taken as their bytes."""
    if isinstance(value, Tensor) and value.dtype.itemsize == 1 and value.dtype.is_floating_point:
        value = value.view(torch.uint8)
    tensor, _ = as_tensor(value, name)
    require_integers(tensor, name, "pass code bytes, such as uint8; a float8 tensor is taken as its bytes")
    if tensor.dtype != torch.uint8:
        if tensor.numel() and (int(tensor.min()) < 0 or int(tensor.max()) > 255):
            raise ValueError(f"{name} reach from {int(tensor.min())} to {int(tensor.max())}: pass code bytes, 0 to 255")
        tensor = tensor.to(torch.uint8)
    return tensor


def _layout(x: Any, codes: Tensor, scales: Any, axis: int) -> str:
    """The format by the values per scale: 16 is NVFP4, 32 is MXFP4, or MXFP8 if codes go beyond 15."""
    x, scales = as_tensor(x, "x")[0], _bytes(scales, "scales")
    if x.ndim == 0 or scales.ndim != x.ndim or not -x.ndim <= axis < x.ndim:
        return "NVFP4"  # the checks of shapes say what is wrong
    length, blocks = x.shape[axis], scales.shape[axis]
    if blocks == -(-length // 16) and blocks != -(-length // 32):
        return "NVFP4"
    if blocks != -(-length // 32):
        raise ValueError(
            f"scales have {blocks} entries along axis {axis}, where x has {length} values: blocks of 16 make "
            f"{-(-length // 16)}, of 32 {-(-length // 32)}; unswizzle and unpad scales first, or pass fmt"
        )
    if blocks == -(-length // 16):
        raise ValueError(f"fmt=None: {length} values with {blocks} scales may be NVFP4 or MX; pass fmt")
    return "MXFP8" if codes.numel() and int(codes.max()) > 15 else "MXFP4"


def _require_shapes(x: Tensor, codes: Tensor, scales: Tensor, axis: int, layout: Layout) -> None:
    if codes.shape != x.shape:
        raise ValueError(f"codes have shape {tuple(codes.shape)}: x has {tuple(x.shape)}; unpack nibbles first")
    expected = layout.entries(x.shape, axis)
    if tuple(scales.shape) != expected:
        raise ValueError(
            f"scales have shape {tuple(scales.shape)}: {layout.name} of {tuple(x.shape)} with blocks along axis {axis} "
            f"has {expected}; unswizzle and unpad them first"
        )
    require_same_device(codes, "codes", x, "x")
    require_same_device(scales, "scales", x, "x")
    bits = layout.element.bits
    if codes.numel() and int(codes.max()) >= 1 << bits:
        raise ValueError(
            f"codes reach up to {int(codes.max())}: {layout.element.name} has codes 0 to {(1 << bits) - 1}"
        )


def _chosen(names: Iterable[str] | None, layout: Layout) -> list[Dialect]:
    known = {name: d for name, d in DIALECTS.items() if layout.name in d.formats}
    wanted = list(known) if names is None else [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"dialect {name!r} makes no {layout.name}: use some of {', '.join(known)}{did_you_mean(name, known)}"
            )
    return [known[name] for name in wanted]


@dataclass(frozen=True)
class _Dump:
    """What is to be identified: `x` and codes (..., n, B), scales (..., n, 1), the outer with the axes of the tensor,
    and which places hold values rather than padding, like `x`."""

    x: Tensor
    axis: int
    layout: Layout
    codes: Tensor
    scales: Tensor
    outer: Tensor | None
    real: Tensor
    experts: tuple[int, ...] | None


def _judge(dialect: Dialect, dump: _Dump) -> Verdict:
    blocks = dialect.blocks(dump.x.flatten(-2), dump.layout.per_scale, dump.layout.element)
    runs = dump.outer is not None and dump.outer.shape[dump.axis] != 1
    if dump.outer is None or dialect.outer_of is None or (runs and dialect.run is None):
        kind = "own" if dump.outer is None else "other"
        return _compare(dialect, dump, blocks, dialect.own_outer(blocks, None, dump.experts), kind)
    scope = tuple(dump.outer.movedim(dump.axis, -1).shape[:-1])
    own = dialect.own_outer(blocks, scope, dump.experts)
    passed = folded_outer(dump.outer, dump.axis, dump.layout.block, dialect.run, blocks.amax.shape[-2])
    if bool(torch.isclose(own.stored, passed, rtol=0, atol=0, equal_nan=True).all()):
        return _compare(dialect, dump, blocks, own, "own")
    alone = _compare(dialect, dump, blocks, own, "other")
    given = _compare(dialect, dump, blocks, Outer(passed, None), "given")
    return given if (given.scales, given.codes) <= (alone.scales, alone.codes) else alone


def _compare(dialect: Dialect, dump: _Dump, blocks: Blocks, outer: Outer, kind: str) -> Verdict:
    steps = dialect.steps(blocks, outer)
    wrong_scales = scales_differ(dump.scales, steps.scales, dialect.scale_format)
    unjudged = torch.zeros_like(dump.codes, dtype=torch.bool)
    if not dialect.defined_nan:
        unjudged = torch.isnan(steps.scaled) & dump.real
    wrong_codes = (dump.codes != steps.codes) & dump.real & ~unjudged
    first = _first(dialect, dump, blocks, outer, steps, wrong_scales, wrong_codes)
    return Verdict(dialect, kind, int(wrong_scales.sum()), int(wrong_codes.sum()), int(unjudged.sum()), first)


def _first(
    dialect: Dialect,
    dump: _Dump,
    blocks: Blocks,
    outer: Outer,
    steps: Steps,
    wrong_scales: Tensor,
    wrong_codes: Tensor,
) -> Difference | None:
    """The first wrong scale, or without one the first wrong code, in the order of memory with the axis last."""
    kind = "scale" if bool(wrong_scales.any()) else "code"
    found = (wrong_scales if kind == "scale" else wrong_codes).nonzero()
    if not len(found):
        return None
    at = tuple(found[0].tolist())
    block = at[:-1]
    position = int(blocks.x[block].abs().argmax()) if kind == "scale" else at[-1]
    index, (line, place) = list(block), divmod(position, dump.layout.block)
    if kind == "code":
        index[-1] = block[-1] * dump.layout.block + place
        if dump.layout.tile > 1:
            index[-2] = block[-2] * dump.layout.tile + line
    index.insert(dump.axis, index.pop())
    theirs, ours = (dump.scales, steps.scales) if kind == "scale" else (dump.codes, steps.codes)
    lines = _derivation(dialect, dump, blocks, outer, steps, (*block, position))
    return Difference(kind, tuple(index), theirs[at].item(), ours[at].item(), lines)


def _derivation(
    dialect: Dialect, dump: _Dump, blocks: Blocks, outer: Outer, steps: Steps, element: tuple[int, ...]
) -> tuple[str, ...]:
    """The way from the block's amax to one of its elements' codes, with the bytes that were passed beside it."""
    one, prose = (*element[:-1], 0), dialect.prose
    lines = [f"block amax b = {_number(blocks.amax[one])}"]
    if dialect.outer_of is not None:
        if outer.amax is not None:
            lines.append(f"outer amax A = {_number(_at(outer.amax, one))}")
        lines.append(f"stored outer = {_number(_at(outer.stored, one))}    {prose.outer}")
    lines += [
        f"scale before rounding = {_number(steps.ratio[one])}    {prose.scale}",
        f"scale {_bytes_of(steps.scales[one], dump.scales[one], dialect.scale_format)}",
        f"x = {_number(blocks.x[element])}, place {element[-1]} of the block",
        f"element before rounding = {_number(steps.scaled[element])}    {prose.elements}",
        f"code {_bytes_of(steps.codes[element], dump.codes[element], blocks.element)}",
    ]
    return tuple(lines)


def _at(t: Tensor, index: tuple[int, ...]) -> Tensor:
    """The entry of a tensor that broadcasts to the blocks."""
    return t[tuple(i if n != 1 else 0 for i, n in zip(index, t.shape, strict=True))]


def _number(value: Tensor) -> str:
    return f"{float(value):.9g} ({float(value).hex()})"


def _bytes_of(ours: Tensor, theirs: Tensor, fmt: Format | None) -> str:
    """Two codes and their values, or two numbers."""

    def shown(code: Tensor) -> str:
        if fmt is None:
            return _number(code)
        return f"{int(code):#04x} = {float(decode_tensor(code.reshape(1), fmt)):g}"

    return f"by the dialect {shown(ours)}, given {shown(theirs)}"
