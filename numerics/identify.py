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
from .codes import as_tensor, decode_tensor
from .dialects import DIALECTS
from .dialects_core import (
    LAYOUTS,
    Blocks,
    Dialect,
    Layout,
    Outer,
    Steps,
    checked,
    folded_outer,
)
from .formats import E4M3, Format
from .identify_result import Difference, Identification, Verdict
from .partition import Partition
from .subnormals import kept

_FORMATS = ", ".join(LAYOUTS)


@kept
def identify(
    x: Any, codes: Any, scales: Any, outer: Any = None, fmt: Any = None, axis: int = -1, dialects: Any = None
) -> Identification:
    """Which dialects make `codes` and `scales` of `x`.

    Args:
        x: what was quantized, in the dtype in which it was: floating point, torch or numpy, at least one axis.
        codes: element codes, integers, the shape of `x` (unpacked: `nm.layout.unpack_nibbles`).
        scales: scale codes as integers or float8 bytes, the shape of `x` with the number of blocks along `axis`
            (not swizzled: `nm.layout.unswizzle_scales`).
        outer: the stored outer, float32, as amax, decode or encode factor: one value, or `x.ndim` axes with 1 along
            `axis` (or one per run of 128); None: not compared.
        fmt: the block format or its name; None: from the number of blocks and the largest code.
        axis: along which blocks run. dialects: names to try; None: all of the format.

    Raises:
        TypeError: `x` is not floating point, codes or scales are no integers, outer no float32.
        ValueError: shapes that do not belong together, codes out of range, an unknown format or dialect.
    """
    codes, scales = _bytes(codes, "codes"), _bytes(scales, "scales")
    x, axis, layout = checked(x, axis, _layout(x, codes, scales, axis) if fmt is None else fmt)
    _require_shapes(x, codes, scales, axis, layout)
    chosen = _chosen(dialects, layout)
    split = Partition.of(x.shape[axis], layout.block, None).split
    real = split(torch.ones(x.shape[axis], dtype=torch.uint8, device=x.device), layout.block) > 0
    folded = split(codes.movedim(axis, -1), layout.block), scales.movedim(axis, -1).unsqueeze(-1)
    dump = _Dump(x, axis, layout, *folded, None if outer is None else _given(outer, x, axis), real)
    verdicts = sorted((_judge(dialect, dump) for dialect in chosen), key=lambda v: v.scales * layout.block + v.codes)
    return Identification(layout, scales.numel(), codes.numel(), tuple(verdicts))


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


def _layout(x: Any, codes: Tensor, scales: Tensor, axis: int) -> str:
    """The format by the values per scale: 16 is NVFP4, 32 is MXFP4, or MXFP8 if codes go beyond 15."""
    x, _ = as_tensor(x, "x")
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
    blocks = Partition.of(x.shape[axis], layout.block, None).blocks
    expected = tuple(blocks if d == axis else n for d, n in enumerate(x.shape))
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
            raise ValueError(f"dialect {name!r} makes no {layout.name}: use some of {', '.join(known)}")
    return [known[name] for name in wanted]


def _given(outer: Any, x: Tensor, axis: int) -> Tensor:
    """The outer that was passed, float32, with as many axes as `x`."""
    tensor = torch.tensor(outer, dtype=torch.float32) if isinstance(outer, float) else as_tensor(outer, "outer")[0]
    if tensor.dtype != torch.float32:
        raise TypeError(f"outer has dtype {tensor.dtype}: pass float32")
    require_same_device(tensor, "outer", x, "x")
    if tensor.numel() == 1:
        return tensor.reshape([1] * x.ndim)
    runs = Partition.of(x.shape[axis], 128, None).blocks
    fits = tensor.ndim == x.ndim and tensor.shape[axis] in (1, runs)
    if not fits or any(
        n not in (1, m) for d, (n, m) in enumerate(zip(tensor.shape, x.shape, strict=True)) if d != axis
    ):
        raise ValueError(
            f"outer has shape {tuple(tensor.shape)}: pass one value, or the {x.ndim} axes of x {tuple(x.shape)}, 1 for "
            f"any of them, and along axis {axis} 1 or {runs} runs of 128"
        )
    return tensor


@dataclass(frozen=True)
class _Dump:
    """What is to be identified: codes (..., n, B) and scales (..., n, 1) of `x`, the outer with its axes, and which
    places of the last axes hold values rather than padding, (n, B)."""

    x: Tensor
    axis: int
    layout: Layout
    codes: Tensor
    scales: Tensor
    outer: Tensor | None
    real: Tensor


def _judge(dialect: Dialect, dump: _Dump) -> Verdict:
    blocks = dialect.blocks(dump.x.movedim(dump.axis, -1), dump.layout.block, dump.layout.element)
    runs = dump.outer is not None and dump.outer.shape[dump.axis] != 1
    if dump.outer is None or dialect.outer_of is None or (runs and dialect.run is None):
        kind = "own" if dump.outer is None else "other"
        return _compare(dialect, dump, blocks, dialect.own_outer(blocks), kind)
    scope = tuple(dump.outer.movedim(dump.axis, -1).shape[:-1])
    own = dialect.own_outer(blocks, scope)
    passed = folded_outer(dump.outer, dump.axis, dump.layout.block, dialect.run, blocks.amax.shape[-2])
    if bool(torch.isclose(own.stored, passed, rtol=0, atol=0, equal_nan=True).all()):
        return _compare(dialect, dump, blocks, own, "own")
    alone = _compare(dialect, dump, blocks, own, "other")
    given = _compare(dialect, dump, blocks, Outer(passed, None), "given")
    return given if (given.scales, given.codes) <= (alone.scales, alone.codes) else alone


def _compare(dialect: Dialect, dump: _Dump, blocks: Blocks, outer: Outer, kind: str) -> Verdict:
    steps = dialect.steps(blocks, outer)
    wrong_scales = one_nan(dump.scales, dialect.scale_format) != one_nan(steps.scales, dialect.scale_format)
    unjudged = torch.zeros_like(dump.codes, dtype=torch.bool)
    if not dialect.defined_nan:
        unjudged = torch.isnan(steps.scaled) & dump.real
    wrong_codes = (dump.codes != steps.codes) & dump.real & ~unjudged
    first = _first(dialect, dump, blocks, outer, steps, wrong_scales, wrong_codes)
    return Verdict(dialect, kind, int(wrong_scales.sum()), int(wrong_codes.sum()), int(unjudged.sum()), first)


def one_nan(scales: Tensor, fmt: Format) -> Tensor:
    """0xFF of E4M3 is the negative NaN: as 0x7F."""
    return torch.where(scales == 0xFF, 0x7F, scales) if fmt == E4M3 else scales


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
    index = list(block[:-1])
    index.insert(dump.axis, block[-1] if kind == "scale" else block[-1] * dump.layout.block + position)
    theirs, ours = (dump.scales, steps.scales) if kind == "scale" else (dump.codes, steps.codes)
    lines = _derivation(dialect, dump, blocks, outer, steps, (*block, position))
    return Difference(kind, tuple(index), int(theirs[at]), int(ours[at]), lines)


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


def _bytes_of(ours: Tensor, theirs: Tensor, fmt: Format) -> str:
    """Two codes and their values."""

    def shown(code: Tensor) -> str:
        return f"{int(code):#04x} = {float(decode_tensor(code.reshape(1), fmt)):g}"

    return f"by the dialect {shown(ours)}, given {shown(theirs)}"
