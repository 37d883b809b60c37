"""Which reading of a dump is right: formats, layouts, transforms and expert offsets, told apart by the values.

A reading that is wrong in any of these decodes to something that does not point along x. For every row r, up to a
factor (an outer scale, perhaps one per row),

    error = mean over rows of 1 - <x_r, v_r>^2 / (|x_r|^2 |v_r|^2)        v: code value times block scale

is about 0.01 for E2M1 and 0.001 for E4M3 where everything is read rightly. Of the readings whose error is least, or
close to it, `check` takes the one that leaves the fewest bytes unexplained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import LAYOUTS, Layout
from numerics.partition import Partition, check_groups

from .check_dump import Dump
from .check_layouts import code_readings, scale_readings

SAMPLE = 256  # rows that are compared
CLOSE = 1.1  # times the least error: readings that go on to the comparison of bytes
RIVAL = 2.0  # the same of readings that need no fault
UNLIKE = 0.25  # an error from here on: the codes are not those of x
SIZES = (16, 32, 64, 128)


@dataclass(frozen=True)
class Case:
    """One reading of a quantization.

    Args:
        x: what was quantized, blocks along its last axis, padded to whole blocks of every group; codes: of its shape;
            scales: one per block. real: which places along the last axis are values.
        words: how it was read. faults: what is wrong with lying or being cut so. error: see above.
        before: like x, before a Hadamard transform; None without one. dtypes: of all floating-point tensors of the dump.
    """

    layout: Layout
    x: Tensor
    codes: Tensor
    scales: Tensor
    real: Tensor
    words: tuple[str, ...]
    faults: tuple[str, ...]
    error: float
    before: Tensor | None = None
    dtypes: frozenset[torch.dtype] = frozenset()

    @property
    def scale_format(self) -> nm.Format:
        """E4M3 for NVFP4, else E8M0."""
        return nm.E4M3 if self.layout.name == "NVFP4" else nm.E8M0

    @property
    def ragged(self) -> Tensor:
        """Which blocks are short, bool (n,)."""
        return ~self.real.view(-1, self.layout.block).all(-1)


def cases(dump: Dump, fmt: str | None, axis: int) -> list[Case]:
    """Readings of a quantization: those whose error is close to the least, and rivals without a fault; these first.
    Where all are unlike x, the likeliest without a fault.

    Raises: ValueError if no layout explains the shapes.
    """
    x = dump["x"] if dump["x"].ndim > 1 else dump["x"].unsqueeze(0)
    if axis not in (-1, -2, x.ndim - 1, x.ndim - 2):
        raise ValueError(f"axis={axis}: x has shape {tuple(x.shape)}; blocks run along one of its last two axes")
    x = x if axis in (-1, x.ndim - 1) else x.mT
    found = [case for layout in _layouts(fmt) for case in _of_layout(dump, layout, x, fmt is not None)]
    if not found:
        shapes = ", ".join(f"{name} {tuple(dump[name].shape)}" for name in ("x", "codes", "scales"))
        raise ValueError(
            f"no format and no layout explain the shapes: {shapes}; pass codes like x, or two per byte, and one scale "
            "per 16 (NVFP4) or 32 (MX) values along the last axis, or name --format and --axis"
        )
    found.sort(key=lambda case: case.error)  # equal ones stay in order, the usual first
    least, sound = found[0].error, [case for case in found if not case.faults]
    if least > UNLIKE:
        first = {case.layout.name: case for case in reversed(sound)}  # of each format
        return sorted(first.values(), key=lambda case: case.error) or found[:1]
    rivals = [case for case in sound if case.error <= RIVAL * least + 1e-9]
    close = [case for case in found if case.error <= CLOSE * least + 1e-9 and case.faults]
    return sorted([*rivals, *close], key=lambda case: len(case.faults))[:8]


def _layouts(fmt: str | None) -> list[Layout]:
    return list(LAYOUTS.values()) if fmt is None else [LAYOUTS[fmt]]


def _of_layout(dump: Dump, layout: Layout, x: Tensor, named: bool) -> Iterator[Case]:
    for (domain, bad_domain, rotated), (cut, bad_cut, groups) in product(
        _domains(x, dump.get("signs"), layout), _cuts(dump.groups, x.shape[-1])
    ):
        partition = Partition.of(x.shape[-1], layout.block, groups)
        try:
            codes = code_readings(dump["codes"], tuple(x.shape), layout.element.bits)
            scales = scale_readings(dump["scales"], (*x.shape[:-1], partition.blocks))
        except ValueError:
            if named and bad_domain is None and bad_cut is None:
                raise
            continue
        real = partition.split(torch.ones(x.shape[-1]), layout.block).flatten() > 0
        whole = partition.split(rotated, layout.block).flatten(-2)
        before = None if rotated is x else partition.split(x, layout.block).flatten(-2)
        for c, s in product(codes, scales):
            spread = partition.split(c.tensor, layout.block).flatten(-2)
            stale = f"stale padding: {c.stale:,} bytes around the codes are not zero" if c.stale else None
            left = f", {s.stale:,} bytes of their padding not zero (no product reads them)" if s.stale else ""
            faults = (bad_domain, c.fault, s.fault, bad_cut, stale)
            words = (layout.name, domain, c.words, f"scales {s.words}{left}", cut)
            error = _error(whole, spread, s.tensor, layout)
            yield Case(
                layout,
                whole,
                spread,
                s.tensor,
                real,
                tuple(w for w in words if w),
                tuple(f for f in faults if f),
                error,
                before,
                frozenset(t.dtype for t in dump.tensors.values() if t.is_floating_point()),
            )


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
            for n in SIZES:
                if x.shape[-1] % n == 0:
                    yield f"x through a Hadamard of {n} without signs", None, nm.hadamard(x.float(), n)
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
    k = x.shape[-1]
    x, codes, scales = (t.flatten(0, -2) for t in (x, codes, scales))
    step = max(1, len(x) // SAMPLE)
    x, codes, scales = x[::step], codes[::step], scales[::step]
    fmt = nm.E4M3 if layout.name == "NVFP4" else nm.E8M0
    value = nm.decode(codes, layout.element).to(torch.float64)
    value = value * nm.decode(scales, fmt).to(torch.float64).repeat_interleave(layout.block, -1)[:, :k]
    usable = torch.isfinite(x) & torch.isfinite(value)
    x, value = (torch.where(usable, t.to(torch.float64), 0.0) for t in (x, value))
    largest = x.abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1.0)
    dot, norms = (x * value).sum(-1), x.square().sum(-1) * value.square().sum(-1)
    both_zero = (x == 0).all(-1) & (value == 0).all(-1)
    cosine = torch.where(norms > 0, dot.abs() * dot / torch.where(norms > 0, norms, 1.0), both_zero.to(dot.dtype))
    return float((1 - cosine).mean())
