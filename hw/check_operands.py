"""The operands of a product in a dump: every way to read their codes and scales.

Both operands are of one family: one element format, values per block and kind of scale, with or without tiles, as
activations of FP8 1 x 128 and weights of 128 x 128 are. Blocks run along K, which both have in common; where their
codes are of different widths, the wider ones are padded. Padding columns of real rows are read by products (see
`check_layouts`): codes there that are no zeros, and NaN scales, are faults, and NaN scales make the output NaN in a
kernel that reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_layout import LAYOUTS, Layout, scale_values

from .check_case import with_tiles
from .check_dump import Dump
from .check_layouts import Reading, code_readings, one_each, stale_codes, stale_scales
from .check_scale_layouts import scale_readings

TILE = 128  # values of K in a kernel's tile


@dataclass(frozen=True)
class Operand:
    """One way to read an operand.

    Args:
        words: how. fault: of reading so, or None. codes: (..., rows, K). scales: (..., rows, n), or (..., tiles, n).
        lost: rows that are NaN because of their padding, bool (..., rows), or None.
    """

    words: str
    fault: str | None
    layout: Layout
    codes: Tensor
    scales: Tensor
    lost: Tensor | None = None

    def values(self, rows: Tensor) -> Tensor:
        """Of some rows, without the outer scale, float64 (..., len(rows), K)."""
        codes, scales = self.codes.index_select(-2, rows), self.scales.index_select(-2, rows // self.layout.tile)
        scale = scale_values(scales, self.layout.scale).to(torch.float64)
        scale = scale.repeat_interleave(self.layout.block, -1)[..., : codes.shape[-1]]
        values = nm.decode(codes, self.layout.element).to(torch.float64) * scale
        if self.lost is None:
            return values
        return torch.where(self.lost.index_select(-1, rows).unsqueeze(-1), math.nan, values)


def families(fmt: str | None) -> list[list[Layout]]:
    """Formats that one product may mix: of a name, or all."""
    if fmt is not None:
        return [[LAYOUTS[name] for name in with_tiles(fmt)]]
    return [[LAYOUTS[name] for name in with_tiles(layout.name)] for layout in LAYOUTS.values() if layout.tile == 1]


def operands(dump: Dump, family: list[Layout]) -> tuple[list[Operand], list[Operand]]:
    """Readings of a (M, K) and of b (N, K) or (E, N, K) that have one K.

    Raises: ValueError if shapes do not belong together.
    """
    rows, columns = dump["output"].shape
    experts = dump.groups if dump["b_codes"].ndim >= 3 else None
    lead = () if experts is None else (len(experts) - 1,)
    shapes = {"a": (rows,), "b": (*lead, columns)}
    widths = {name: _widths(dump, name, shape, family[0]) for name, shape in shapes.items()}
    told: list[ValueError] = []
    read = {name: _readings(dump, name, shape, widths[name], family, False, told) for name, shape in shapes.items()}
    shared = _lengths(read["a"]) & _lengths(read["b"])
    if not shared:  # the wider ones may be padded to more than a row has
        for name, other in (("a", "b"), ("b", "a")):
            read[name] += _readings(dump, name, shapes[name], sorted(_lengths(read[other])), family, True, [])
        shared = _lengths(read["a"]) & _lengths(read["b"])
    if not shared and not all(read.values()):
        raise told[0]
    if not shared:
        text = " and ".join(f"{name} {tuple(dump[name].shape)}" for name in ("a_codes", "b_codes"))
        raise ValueError(f"the operands' lengths along K differ: {text}; pass a (M, K) and b (N, K) or (E, N, K)")
    a, b = ([o for o in read[name] if o.codes.shape[-1] in shared] for name in ("a", "b"))
    return a, b


def _lengths(found: list[Operand]) -> set[int]:
    """Along K."""
    return {o.codes.shape[-1] for o in found}


def _widths(dump: Dump, name: str, lead: tuple[int, ...], layout: Layout) -> list[int]:
    """Lengths along K that the codes may have."""
    codes, count = dump[f"{name}_codes"], math.prod(lead)
    if not count or codes.numel() % count:
        raise ValueError(f"{name}_codes have shape {tuple(codes.shape)}: pass {(*lead, 'K')}, as the output has it")
    size = codes.numel() // count
    sizes = [size] if one_each(codes) else []
    sizes += [4 * size] if codes.dtype == torch.int32 else []
    return [times * size for size in sizes for times in ((1, 2) if layout.element.bits <= 4 else (1,))]


def _readings(
    dump: Dump,
    name: str,
    lead: tuple[int, ...],
    widths: list[int],
    family: list[Layout],
    pad: bool,
    told: list[ValueError],
) -> list[Operand]:
    """Readings of one operand with some length along K; `pad`: whether codes may be padded; told: what others lack."""
    codes, scales, found = dump[f"{name}_codes"], dump[f"{name}_scales"], []
    experts = dump.groups if name == "a" and dump["b_codes"].ndim >= 3 else None
    for k, layout in product(widths, family):
        if layout.tile > 1 and lead[-1] == 1:
            continue
        try:
            ways = code_readings(codes, (*lead, k), layout.element.bits, layout.block)
            wide = TILE if pad else 1  # what codes may be padded by
            ways = [c for c in ways if c.columns is None or c.columns.shape[-1] < wide]
            places = scale_readings(scales, (*lead, -(-k // layout.block)), layout, experts)
        except ValueError as error:
            told.append(ValueError(f"{name}: {error}"))
            continue
        for c, s in product(ways, places):
            if not s.words.endswith("each row of a tile"):  # read without tiles, they are the same
                found += _operand(name, c, s, layout)
    return found


def _operand(name: str, c: Reading, s: Reading, layout: Layout) -> Iterator[Operand]:
    told, stale = stale_scales(s, layout.scale)
    beyond = stale_codes(c, layout.element)
    faults = [f"of a or of b {c.fault}"] if c.fault else []  # which of the two, the product cannot tell
    faults += [f"{name} is read wrongly: {s.fault}"] if s.fault else []
    faults += [f"{name}: {fault}" for fault in (beyond, stale) if fault]
    tiles = f"one scale for each {layout.tile} x {layout.block} tile; " if layout.tile > 1 else ""
    words = f"{name}: {c.words}; {tiles}scales {s.words}{told}"
    one = Operand(words, "; ".join(faults) or None, layout, c.tensor, s.tensor)
    yield one
    if stale is not None and s.columns is not None and layout.tile == 1:
        lost = ~torch.isfinite(scale_values(s.columns, layout.scale)).all(-1)
        yield replace(one, fault=f"{one.fault}, and the output is NaN there", lost=lost)
