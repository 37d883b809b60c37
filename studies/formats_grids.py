"""Grids, ranges and sizes of formats, read off every code: the exact part of the study `formats`."""

import math
from itertools import pairwise

import pandas as pd
import torch

import numerics as nm

from .formats_draw import ELEMENTS
from .result import Table

BLOCKS = ("NVFP4", "NVFP4_2D", "NVINT4", "MXFP4", "MXINT4", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP8", "MXFP8_E5M2", "MXS2F6")
OUTERS = (0.5, 1.0, 2.0)
_GRID = ("format", "value", "spacing", "normal")


def grid(fmt: nm.Format) -> pd.DataFrame:
    """The positive values of an element format with their spacing: columns format, value, spacing, normal."""
    values = [value for value in fmt.values().double().tolist() if value > 0]
    spacing = [(after - value) / value for value, after in pairwise(values)]
    rows = zip(values, [*spacing, math.nan], strict=True)
    return pd.DataFrame([(fmt.name, v, s, v >= fmt.min_normal) for v, s in rows], columns=list(_GRID))


def magnitudes(fmt: nm.BlockFormat, outer: float = 1.0) -> torch.Tensor:
    """Every magnitude that the format holds with this outer scale, ascending, float64, zero left out.

    Raises:
        ValueError: a format whose scales are float32, which are too many to list.
    """
    if fmt.scale is None:
        raise ValueError(f"{fmt.name} has float32 scales: too many to list; pass a format with coded scales")
    if fmt.scale is nm.E4M3:
        found = _decoded(fmt, outer)
    else:
        scale = fmt.scale.table().double()
        elements = fmt.element.table().double()  # infinity and NaN are codes of some
        found = elements[torch.isfinite(elements)].abs().unsqueeze(1) * scale[torch.isfinite(scale)] * outer
    return torch.unique(found[found > 0])


def _decoded(fmt: nm.BlockFormat, outer: float) -> torch.Tensor:
    """Every code of at most 4 bits with every scale of E4M3, decoded; a block holds each code once."""
    codes = torch.arange(fmt.block, dtype=torch.uint8) % (1 << fmt.element.bits)
    scales = torch.arange(nm.E4M3.max_code + 1, dtype=torch.uint8).unsqueeze(1).repeat_interleave(fmt.tile, 0)
    scales = scales[:: fmt.tile]
    rows = len(scales) * fmt.tile
    factor = torch.full((1, 1), outer)
    q = nm.BlockTensor(codes.expand(rows, fmt.block), scales, factor, fmt, fmt.rule.name, axis=1)
    return q.dequantize(torch.float64).abs()


def of_elements() -> Table:
    """One line per element format."""
    rows = []
    for fmt in ELEMENTS:
        table = grid(fmt)
        inside = table[table.normal & table.spacing.notna()].spacing
        rows.append(
            {
                "format": fmt.name,
                "bits": fmt.bits,
                "finite values": len(fmt.values()),
                "least": fmt.min,
                "largest": fmt.max,
                "smallest normal": fmt.min_normal,
                "smallest": float(table.value.min()),
                "range, binades": round(math.log2(fmt.max / float(table.value.min())), 2),
                "spacing, %": f"{100 * inside.min():.3g} to {100 * inside.max():.3g}",
            }
        )
    caption = "Element formats, read off every code; spacing: step to the next value over the value, where normal."
    return Table("elements", pd.DataFrame(rows), caption)


def of_blocks() -> Table:
    """One line per block format, three for NVFP4 by outer scale."""
    rows = []
    for name in BLOCKS:
        fmt = nm.BLOCK_FORMATS[name]
        assert fmt.scale is not None
        for outer in OUTERS if name == "NVFP4" else (1.0,):
            found = magnitudes(fmt, outer)
            low, high = float(found[0]), float(found[-1])
            rows.append(
                {
                    "format": name,
                    "outer": outer if fmt.outer is not None else None,
                    "bits per value": fmt.bits_per_value,
                    "times fewer than BF16": round(nm.BF16.bits / fmt.bits_per_value, 3),
                    "smallest": f"2^{math.log2(low):.4g}",
                    "largest": f"{high:.6g}",
                    "range, binades": round(math.log2(high / low), 2),
                    "range of a block": f"{reach(fmt.element):.6g}",
                    "magnitudes": len(found),
                    "significant bits": significant_bits(found),
                }
            )
    caption = (
        "Block formats, from every code with every scale; range of a block: its largest over its smallest non-zero "
        "magnitude; magnitudes: how many different ones there are; significant bits: that hold each of them exactly, "
        f"of which BF16 has {nm.BF16.mantissa_bits + 1}. E8M0 formats exceed float32 at both ends."
    )
    return Table("blocks", pd.DataFrame(rows), caption)


def significant_bits(values: torch.Tensor) -> int:
    """The fewest bits of a significand that hold each of the positive `values`, float64, exactly."""
    significand = (torch.frexp(values).mantissa * 2.0**53).to(torch.int64)  # exact: float64 has 53 bits
    return 54 - int((significand & -significand).min()).bit_length()


def reach(fmt: nm.Format) -> float:
    """Largest over smallest positive value of an element format: what one block spans."""
    return fmt.max / float(grid(fmt).value.min())
