"""Which reading of a dump is right: formats, layouts, transforms and expert offsets, told apart by the values.

A reading that is wrong in any of these decodes to something that does not point along x. For every row r, up to a
factor (an outer scale, perhaps one per row),

    error = mean over rows but zeros of 1 - <x_r, v_r>^2 / (|x_r|^2 |v_r|^2)        v: code value times block scale

is about 0.01 for E2M1 and 0.001 for E4M3 where everything is read rightly. Of the readings whose error is least, or
close to it, `check` takes the one that leaves the fewest bytes unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

import numerics as nm
from numerics.dialects_layout import LAYOUTS, Layout, scale_values
from numerics.folding import Folding
from numerics.partition import Partition, check_groups

from .check_dump import Dump
from .check_layouts import code_readings, scale_readings

SAMPLE = 256  # rows that are compared
CLOSE = 1.1  # times the least error: readings that go on to the comparison of bytes
RIVAL = 2.0  # the same of readings that need no fault
EACH = 8  # readings of a format that go on
UNLIKE = 0.25  # an error from here on: the codes are not those of x
SIZES = (16, 32, 64, 128)


@dataclass(frozen=True)
class Case:
    """One reading of a quantization.

    Args:
        x: what was quantized, blocks along its last axis, padded to whole blocks of every group and to whole tiles;
            codes: of its shape; scales: one per block, or per tile. real: which places along the last axis are values.
            outer: the stored one with the axes of x, blocks last, or None. unread: scale bytes that are not zero and
            that this reading leaves out.
        rows: how many places along the last but one are values.
        words: how it was read. faults: what is wrong with lying or being cut so. error: see above.
    """

    layout: Layout
    x: Tensor
    codes: Tensor
    scales: Tensor
    real: Tensor
    rows: int
    outer: Tensor | None
    words: tuple[str, ...]
    faults: tuple[str, ...]
    error: float
    unread: int

    @property
    def scale_format(self) -> nm.Format | None:
        """Of the scale bytes; None where they are float32."""
        return self.layout.scale

    @property
    def folding(self) -> Folding:
        """How x and codes fold into blocks."""
        return self.layout.folding(self.x.shape, self.x.ndim - 1)

    @property
    def mask(self) -> Tensor:
        """Which places of x are values, bool (rows, length)."""
        return (torch.arange(self.x.shape[-2]) < self.rows).unsqueeze(-1) & self.real

    @property
    def values(self) -> int:
        """How many values x holds."""
        return int(self.mask.sum()) * self.x[..., 0, 0].numel()

    def cut(self, x: Tensor) -> Tensor:
        """What a tensor of x's shape holds at the places of values, in the shape that x had."""
        return x[..., : self.rows, :][..., self.real]


def cases(dump: Dump, formats: tuple[str, ...] | None, axis: int) -> list[Case]:
    """Readings of a quantization, in some formats or any: those whose error is close to the least, and rivals without a
    fault; these first. Where all are unlike x, the likeliest without a fault.

    Raises: ValueError if no layout explains the shapes.
    """
    x = dump["x"] if dump["x"].ndim > 1 else dump["x"].unsqueeze(0)
    if axis not in (-1, -2, x.ndim - 1, x.ndim - 2):
        raise ValueError(f"axis={axis}: x has shape {tuple(x.shape)}; blocks run along one of its last two axes")
    layouts = _layouts(formats)
    turned = axis not in (-1, x.ndim - 1)
    x = x.mT if turned else x
    found = [case for layout in layouts for case in _of_layout(dump, layout, x, turned, len(layouts) == 1)]
    if not found:
        outer_of(dump, x, layouts[0], turned)  # its own error, if it is that
        shapes = ", ".join(f"{name} {tuple(dump[name].shape)}" for name in ("x", "codes", "scales"))
        raise ValueError(
            f"no format and no layout explain the shapes: {shapes}; pass codes like x, or two per byte, and one scale "
            "per 16 (NVFP4) or 32 (MX) values along the last axis, or name --format and --axis"
        )
    found.sort(key=lambda case: case.error)  # equal ones stay in order, the usual first
    least, sound = found[0].error, [case for case in found if not case.faults]
    if least > UNLIKE:
        first: dict[str, Case] = {}
        for case in sound:  # the first of each format
            first.setdefault(case.layout.name, case)
        return list(first.values()) or found[:1]
    partly = found[0].unread > 0  # then one that reads all bytes is a rival as long as it is like x
    bar = RIVAL * least + 1e-9
    rivals = [case for case in sound if case.error <= (UNLIKE if partly and not case.unread else bar)]
    close = [case for case in found if case.error <= CLOSE * least + 1e-9 and case.faults]
    best = sorted([*rivals, *close], key=lambda case: (len(case.faults), case.unread > 0))
    return [case for i, case in enumerate(best) if sum(c.layout is case.layout for c in best[:i]) < EACH]


def _layouts(formats: tuple[str, ...] | None) -> list[Layout]:
    names = formats or [name for name, layout in LAYOUTS.items() if layout.scale is not None]
    return [LAYOUTS[name] for name in names]


def _of_layout(dump: Dump, layout: Layout, x: Tensor, turned: bool, named: bool) -> Iterator[Case]:
    for (domain, bad_domain, rotated), (cut, bad_cut, groups) in product(
        _domains(x, dump.get("signs"), layout), _cuts(dump.groups, x.shape[-1])
    ):
        partition, rows = Partition.of(x.shape[-1], layout.block, groups), x.shape[-2]
        lines = -(-rows // layout.tile)
        try:
            outer = outer_of(dump, x, layout, turned)
            codes = code_readings(dump["codes"], tuple(x.shape), layout.element.bits)
            scales = scale_readings(dump["scales"], (*x.shape[:-2], lines, partition.blocks))
        except ValueError:
            if named and bad_domain is None and bad_cut is None:
                raise
            continue
        real = partition.split(torch.ones(x.shape[-1]), layout.block).flatten() > 0
        target = _whole(rotated, partition, layout)
        for c, s in product(codes, scales):
            spread = _whole(c.tensor, partition, layout)
            stale = f"stale padding: {c.stale:,} bytes around the codes are not zero" if c.stale else None
            left = f", {s.stale:,} bytes of their padding not zero (no product reads them)" if s.stale else ""
            faults = (bad_domain, c.fault, s.fault, bad_cut, stale)
            words = (layout.name, domain, c.words, f"scales {s.words}{left}", cut)
            error = _error(target, spread, s.tensor, layout)
            yield Case(
                layout,
                target,
                spread,
                s.tensor,
                real,
                rows,
                outer,
                tuple(w for w in words if w),
                tuple(f for f in faults if f),
                error,
                s.stale,
            )


def _whole(t: Tensor, partition: Partition, layout: Layout) -> Tensor:
    """Padded with zeros to whole blocks of every group, and to whole tiles."""
    return pad(partition.split(t, layout.block).flatten(-2), (0, 0, 0, -t.shape[-2] % layout.tile))


def outer_of(dump: Dump, x: Tensor, layout: Layout, turned: bool) -> Tensor | None:
    """The stored outer with the axes of x, blocks last: one value, or one per row, matrix or run of 128. `turned`:
    whether x was transposed for that.

    Raises: ValueError for a shape that does not belong to x, or of which the lines of a tile would have several.
    """
    outer, shape = dump.get("outer"), x.shape
    if outer is None or outer.numel() == 1:
        return None if outer is None else outer.reshape([1] * x.ndim)
    found = None
    if outer.numel() == math.prod(shape[:-1]) and outer.ndim <= x.ndim:
        found = outer.reshape(*shape[:-1], 1)
    elif outer.numel() == shape[0] and x.ndim > 2:
        found = outer.reshape(-1, *[1] * (x.ndim - 1))
    elif outer.ndim == x.ndim:
        outer = outer.mT if turned else outer
        runs = -(-shape[-1] // 128)
        if all(n in (1, m) for n, m in zip(outer.shape[:-1], shape, strict=False)) and outer.shape[-1] in (1, runs):
            found = outer
    if found is None or (layout.tile > 1 and found.shape[-2:] != (1, 1)):
        raise ValueError(
            f"outer has shape {tuple(outer.shape)}: pass one value, one per row of x {tuple(dump['x'].shape)}, or one "
            "per 128 values of a row; tiles take one per matrix"
        )
    return found


def _domains(x: Tensor, signs: Tensor | None, layout: Layout) -> Iterator[tuple[str, str | None, Tensor]]:
    """(words, fault, x as it was quantized): as it is, or through a block Hadamard transform H with signs S, in FP32 or
    rounded to the dtype of x, as Transformer Engine's is."""
    if signs is None:
        yield "", None, x
    for words, fault, rotated in _rotations(x, signs, layout):
        yield words, fault, rotated
        if x.dtype in (torch.bfloat16, torch.float16) and rotated is not x:
            kind = str(x.dtype).removeprefix("torch.")
            yield f"{words}, rounded to {kind}, the dtype of x" * bool(words), fault, rotated.to(x.dtype)


def _rotations(x: Tensor, signs: Tensor | None, layout: Layout) -> Iterator[tuple[str, str | None, Tensor]]:
    """(words, fault, x through a transform in FP32); an `x` that was not transformed is the same object."""
    if signs is None:
        if layout.name == "MXS2F6":
            for n in (n for n in SIZES if x.shape[-1] % n == 0):
                rotated = nm.hadamard(x.float(), n)
                if bool(torch.isfinite(rotated).all()) or not bool(torch.isfinite(x).all()):  # not one that overflows
                    yield f"x through a Hadamard of {n} without signs", None, rotated
        return
    n = signs.numel()
    if n not in SIZES or x.shape[-1] % n:
        raise ValueError(
            f"signs has shape {tuple(signs.shape)}: pass one sign for each of {', '.join(map(str, SIZES))} values, a "
            f"divisor of x's last axis, {x.shape[-1]}"
        )
    signs = signs.flatten().to(torch.float32)
    right = nm.hadamard(x.float(), n, signs)
    tiled = signs.repeat(x.shape[-1] // n)
    yield f"x through the Hadamard of {n} with the signs", None, right
    wrong = {
        "every sign of the Hadamard transform is reversed: H S of -signs": -right,
        "the signs of the Hadamard transform are applied in reversed order": nm.hadamard(x.float(), n, signs.flip(0)),
        "the Hadamard transform is applied without its signs": nm.hadamard(x.float(), n),
        "the signs are applied after the Hadamard transform instead of before": nm.hadamard(x.float(), n) * tiled,
        "there are signs in the dump, but x was not transformed": x,
    }
    for fault, rotated in wrong.items():
        yield "", fault, rotated


def _cuts(groups: tuple[int, ...] | None, length: int) -> Iterator[tuple[str, str | None, tuple[int, ...] | None]]:
    """(words, fault, offsets) of the experts along the blocks' axis."""
    if groups is None:
        yield "", None, None
        return
    check_groups(groups, length)
    yield f"blocks start anew at each of {len(groups) - 1} experts", None, groups
    for step in (1, -1):
        moved = tuple(g if g in (0, length) else min(max(g + step, 0), length) for g in groups)
        yield "", f"experts' offsets are off by one: blocks start {step:+d} from where the groups say", moved
    yield "", "blocks do not start anew at the experts' offsets", None


def _error(x: Tensor, codes: Tensor, scales: Tensor, layout: Layout) -> float:
    """How far the decoded values are from pointing along x, see the module."""
    if not codes.numel():
        return 0.0
    x, codes, scales = (t.flatten(0, -2) for t in (x, codes, scales))
    step = max(1, len(x) // SAMPLE)
    rows = torch.arange(0, len(x), step)
    x, codes, scales = x[rows], codes[rows], scales[rows // layout.tile]
    value = nm.decode(codes, layout.element).to(torch.float64)
    value = value * scale_values(scales, layout.scale).to(torch.float64).repeat_interleave(layout.block, -1)
    usable = torch.isfinite(x) & torch.isfinite(value)
    x, value = (torch.where(usable, t.to(torch.float64), 0.0) for t in (x, value))
    largest = x.abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1.0)
    dot, norms = (x * value).sum(-1), x.square().sum(-1) * value.square().sum(-1)
    both_zero = (x == 0).all(-1) & (value == 0).all(-1)
    cosine = torch.where(norms > 0, dot.abs() * dot / torch.where(norms > 0, norms, 1.0), 0.0)
    held = (1 - cosine)[~both_zero]  # rows of zeros, padding among them, say nothing
    return float(held.mean()) if held.numel() else 0.0
