"""Which reading of a dump is right: formats, layouts, transforms and expert offsets, told apart by the values.

A reading that is wrong in any of these decodes to something that does not point along x, not even up to a factor for
each row, such as an outer scale: `check_likeness`. The error is about 0.01 for E2M1 and 0.001 for E4M3 where all is
read rightly. Of the readings whose error is least, or close to it, `check` takes the one that explains the most bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

import numerics as nm
from numerics.dialects_layout import LAYOUTS, Layout
from numerics.folding import Folding
from numerics.partition import Partition

from .check_dump import Dump
from .check_layouts import Reading, code_readings, stale_codes, stale_scales
from .check_likeness import Decoded
from .check_scale_layouts import scale_readings
from .check_scope import Cut, Scope, cuts, scopes

CLOSE = 1.1  # times the least error: readings that go on to the comparison of bytes
RIVAL = 2.0  # the same of readings that need no fault
USUAL = 0.01  # an error that rounding may make: a rival may always have it
EACH = 8  # readings of a format that go on
UNLIKE = 0.25  # an error from here on: the codes are not those of x
SIZES = (16, 32, 64, 128)
LIES = {
    "row-major": ("row-major", "padded"),
    "transposed": ("transposed",),
    "swizzled": ("128x4",),
    "128x4": ("128x4",),
    "8x4": ("8x4",),
}


@dataclass(frozen=True)
class Case:
    """One reading of a quantization.

    Args:
        x: what was quantized, blocks along its last axis, padded to whole blocks of every group and to whole tiles;
            codes: of its shape; scales: one per block, or per tile. real: which places along the last axis are values.
        rows: how many places along the last but one are values. scope: the stored outer, and what shares it. unread:
            entries of scales that are not zero and that this reading leaves out. by_tiles: whether the rows of tiles
            have one scale although their largest values differ, and tiles have several.
        words: how it was read. faults: what is wrong with lying or being cut so. error: see `check_likeness`.
        before: like x, before a Hadamard transform; None without one. dtypes: of the dump's floating-point tensors.
        turned: whether the dump's x was transposed, so that a row here is a column there.
    """

    layout: Layout
    x: Tensor
    codes: Tensor
    scales: Tensor
    real: Tensor
    rows: int
    scope: Scope
    words: tuple[str, ...]
    faults: tuple[str, ...]
    error: float
    unread: int
    by_tiles: bool
    before: Tensor | None = None
    dtypes: frozenset[torch.dtype] = frozenset()
    turned: bool = False

    @property
    def scale_format(self) -> nm.Format | None:
        """Of the scale bytes; None where they are float32."""
        return self.layout.scale

    @property
    def folding(self) -> Folding:
        """How x and codes fold into blocks."""
        return self.layout.folding(self.x.shape, self.x.ndim - 1)

    @property
    def experts(self) -> tuple[int, ...] | None:
        """Offsets along the rows, or the rows of tiles, of experts with an outer of their own."""
        experts, tile = self.scope.experts, self.layout.tile
        return None if experts is None else tuple(-(-offset // tile) for offset in experts)

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


def cases(dump: Dump, formats: tuple[str, ...] | None, axis: int, scale_layout: str | None = None) -> list[Case]:
    """Readings of a quantization, in some formats or any: those whose error is close to the least, and rivals without a
    fault; these first, then usual ones that are unlike x, whose scales may be at fault.

    Args:
        formats: names in `LAYOUTS`, or None for all. axis: of x, along which blocks run. scale_layout: how scales must
            lie, a key of `LIES`, or None.

    Raises: ValueError if no layout explains the shapes.
    """
    x = dump["x"] if dump["x"].ndim > 1 else dump["x"].unsqueeze(0)
    if axis not in (-1, -2, x.ndim - 1, x.ndim - 2):
        raise ValueError(f"axis={axis}: x has shape {tuple(x.shape)}; blocks run along one of its last two axes")
    turned = axis not in (-1, x.ndim - 1)
    x = x.mT if turned else x
    found, told = [], []
    for layout in _layouts(formats, x):
        try:
            found += _of_layout(dump, layout, x, turned, scale_layout)
        except ValueError as error:
            told.append(error)
    if not found:
        own = [error for error in told if str(error).startswith(("outer", "groups", "signs", "codes reach from"))]
        if own or formats is not None:
            raise told[0] if formats is not None else own[0]
        shapes = ", ".join(f"{name} {tuple(dump[name].shape)}" for name in ("x", "codes", "scales"))
        raise ValueError(
            f"no format and no layout explain the shapes: {shapes}; pass codes like x, or two per byte, and one scale "
            "per 16 (NVFP4) or 32 (MX) values along the last axis, or name --format and --axis"
        )
    least, sound = min(case.error for case in found), [case for case in found if not case.faults]
    unlike = _unlike(sound)
    if least > UNLIKE:
        return unlike or [min(found, key=lambda case: case.error)]
    found.sort(key=lambda case: case.error)  # equal ones stay in order, the usual first
    sound.sort(key=lambda case: case.error)
    partly = found[0].unread > 0  # then one that reads all bytes is a rival as long as it is like x
    bar = max(RIVAL * least, USUAL) if x.shape[-1] > 1 else UNLIKE  # a row of one value is like every other
    rivals = [case for case in sound if case.error <= (UNLIKE if partly and not case.unread else bar)]
    close = [case for case in found if case.error <= CLOSE * least + 1e-9 and case.faults]
    best = _some(sorted([*rivals, *close], key=lambda case: (len(case.faults), case.unread > 0, not case.by_tiles)))
    return [*best, *(case for case in unlike if case.error > UNLIKE)]


def _some(readings: list[Case]) -> list[Case]:
    """The first few of each format."""
    return [case for i, case in enumerate(readings) if sum(c.layout is case.layout for c in readings[:i]) < EACH]


def _unlike(sound: list[Case]) -> list[Case]:
    """Of each format the usual reading, others that are as much like x, and the two that are most; these first."""
    usual = {case.layout.name: case for case in reversed(sound)}
    alike = [case for case in sound if abs(case.error - usual[case.layout.name].error) < 1e-9]
    seen, better = Counter[str](), []
    for case in sorted(sound, key=lambda case: case.error):
        seen[case.layout.name] += 1
        if seen[case.layout.name] <= 2 and case.error < usual[case.layout.name].error - 1e-9:
            better.append(case)
    return sorted([*better, *_some(alike)], key=lambda case: case.error)


def _layouts(formats: tuple[str, ...] | None, x: Tensor) -> list[Layout]:
    """Formats to try; tiles only of several rows."""
    chosen = [LAYOUTS[name] for name in formats or LAYOUTS]
    return [layout for layout in chosen if layout.tile == 1 or x.shape[-2] > 1] or chosen


def with_tiles(fmt: str) -> tuple[str, ...]:
    """A format's name, and that of its tiles: what is called NVFP4 may share scales among 16 x 16 values."""
    plain = LAYOUTS[fmt]
    return fmt, *(t.name for t in LAYOUTS.values() if t is not plain and replace(t, name=fmt, tile=1) == plain)


def _of_layout(dump: Dump, layout: Layout, x: Tensor, turned: bool, asked: str | None) -> list[Case]:
    """Cases of one format. Raises ValueError if no layout explains the shapes."""
    told, found = None, []
    for cut in cuts(dump.groups, x):
        blocks = Partition.of(x.shape[-1], layout.block, cut.groups).blocks
        try:
            scopes_found = scopes(dump.get("outer"), x, layout, turned, cut)
            scales = scale_readings(dump["scales"], (*x.shape[:-1], blocks), layout, cut.experts)
            codes = code_readings(dump["codes"], tuple(x.shape), layout.element.bits, layout.block)
        except ValueError as error:
            told = told or error
            continue
        called, key = dump.keys.get("outer", ("", None))
        for scope in scopes_found:
            scope = replace(scope, called=called, direction=None if key is None else key.direction)
            found += _read(_Ways(dump, layout, x, cut, scope, asked, turned), codes, scales)
    if not found:
        raise told or ValueError("the dump has no groups")
    return found


@dataclass(frozen=True)
class _Ways:
    """What the cases of one format, cut and scope share. asked: how scales must lie, or None. turned: see `Case`."""

    dump: Dump
    layout: Layout
    x: Tensor
    cut: Cut
    scope: Scope
    asked: str | None
    turned: bool


def _read(w: _Ways, codes: list[Reading], scales: list[Reading]) -> Iterator[Case]:
    layout, partition = w.layout, Partition.of(w.x.shape[-1], w.layout.block, w.cut.groups)
    real = partition.split(torch.ones(w.x.shape[-1]), layout.block).flatten() > 0
    spread = [(c, _whole(c.tensor, partition, layout), stale_codes(c, layout.element)) for c in codes]
    padding = [stale_scales(s, layout.scale) for s in scales]
    decoded = Decoded.of([t for _, t, _ in spread], [s.tensor for s in scales], layout)
    for domain, bad_domain, rotated in _domains(w.x, w.dump.get("signs"), layout):
        target = _whole(rotated, partition, layout)
        before = None if rotated is w.x else _whole(w.x, partition, layout)
        uneven = layout.tile > 1 and _uneven(target, layout)
        pairs = product(spread, zip(scales, padding, strict=True))
        for ((c, t, beyond), (s, (told, stale))), error in zip(pairs, decoded.errors(target), strict=True):
            faults = (bad_domain, c.fault, w.cut.fault, beyond, stale, *_lies(w, s))
            tiles = f"one scale for each {layout.tile} x {layout.block} tile" if layout.tile > 1 else ""
            words = (layout.name, domain, c.words, tiles, f"scales {s.words}{told}", w.cut.words, w.scope.words)
            yield Case(
                layout,
                target,
                t,
                s.tensor,
                real,
                w.x.shape[-2],
                w.scope,
                tuple(w for w in words if w),
                tuple(f for f in faults if f),
                error,
                s.unread,
                uneven and bool((s.tensor != s.tensor.flatten()[:1]).any()),
                before,
                frozenset(t.dtype for t in w.dump.tensors.values() if t.is_floating_point()),
                w.turned,
            )


def _uneven(x: Tensor, layout: Layout) -> bool:
    """Whether rows of most tiles have different largest values."""
    largest = x.unflatten(-1, (-1, layout.block)).abs().amax(-1).unflatten(-2, (-1, layout.tile))
    return float((largest != largest.amax(-2, keepdim=True)).any(-2).float().mean()) > 0.5


def _lies(w: _Ways, s: Reading) -> Iterator[str]:
    """Faults of how scales lie, beside how they should."""
    called, key = w.dump.keys["scales"]
    if s.fault is not None and not (s.layout == "padded" and (key.layout == "padded" or w.asked == "row-major")):
        yield s.fault
    if w.asked is not None and s.layout not in LIES[w.asked]:
        yield f"the scales are not {w.asked}, as they should be"
    elif key.layout == "128x4" and s.layout != "128x4":
        yield f"the scales are not 128x4-swizzled, as their name {called!r} says"


def _whole(t: Tensor, partition: Partition, layout: Layout) -> Tensor:
    """Padded with zeros to whole blocks of every group, and to whole tiles."""
    return pad(partition.split(t, layout.block).flatten(-2), (0, 0, 0, -t.shape[-2] % layout.tile))


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
