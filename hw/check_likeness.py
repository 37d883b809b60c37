"""How far decoded values are from pointing along x, for every pair of readings of codes and of scales.

    error = mean over rows but zeros of 1 - <x_r, v_r>^2 / (|x_r|^2 |v_r|^2)        v: code value times block scale

in float64, over some of the rows. With tiles a row is a row of the matrix or a row of tiles, whichever is more alike:
small rows vanish beside large ones that share their scale. What is not finite in x is left out, in v it counts as 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_layout import Layout, scale_values

SAMPLE = 256  # rows that are compared


@dataclass(frozen=True)
class Decoded:
    """Values of readings in some of the rows: code values and scales, one for each value, float64 (rows, length)."""

    rows: Tensor
    elements: tuple[Tensor, ...]
    scales: tuple[Tensor, ...]
    tile: int

    @staticmethod
    def of(codes: list[Tensor], scales: list[Tensor], layout: Layout) -> Decoded:
        """codes (..., rows, length), whole tiles and blocks; scales (..., tiles, blocks)."""
        lines, tile = codes[0].shape[:-1].numel(), layout.tile
        bands = torch.arange(0, lines // tile, max(1, lines // max(SAMPLE, tile)))
        rows = (bands.unsqueeze(-1) * tile + torch.arange(tile)).flatten()
        elements = tuple(_finite(nm.decode(c.flatten(0, -2)[rows], layout.element)) for c in codes)
        values = (scale_values(s.flatten(0, -2)[rows // tile], layout.scale) for s in scales)
        return Decoded(rows, elements, tuple(_finite(s).repeat_interleave(layout.block, -1) for s in values), tile)

    def errors(self, x: Tensor) -> Iterator[float]:
        """Of each pair, codes first; x: as it was quantized, (..., rows, length)."""
        x = x.flatten(0, -2)[self.rows].to(torch.float64)
        finite = torch.isfinite(x)
        whole = bool(finite.all())
        x = x if whole else torch.where(finite, x, 0.0)
        x = x / x.abs().amax().clamp(min=torch.finfo(torch.float64).tiny) if x.numel() else x
        own = x.square().sum(-1)
        for element in self.elements:
            for scale in self.scales:
                v = element * scale if whole else torch.where(finite, element * scale, 0.0)
                sums = own, (x * v).sum(-1), v.square().sum(-1)
                error = _error(*sums)
                if self.tile > 1:
                    error = min(error, _error(*(t.view(-1, self.tile).sum(-1) for t in sums)))
                yield error


def _finite(t: Tensor) -> Tensor:
    return t.to(torch.float64).nan_to_num(0.0, 0.0, 0.0)


def _error(xx: Tensor, xv: Tensor, vv: Tensor) -> float:
    """From the products of each row; rows of zeros, padding among them, say nothing: an outer may be 0."""
    norms = xx * vv
    cosine = torch.where(norms > 0, xv.abs() * xv / torch.where(norms > 0, norms, 1.0), 0.0)
    held = (1 - cosine)[xx > 0]
    return float(held.mean()) if held.numel() else 0.0
