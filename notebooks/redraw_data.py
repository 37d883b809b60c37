"""What becomes of one value that was saved in 4 bits and is quantized again, as numbers.

    value --NVFP4, blocks along rows--> saved --a target, blocks along columns--> one of two neighbours

The value stands in columns 1 to 15 of row 0 of a tensor (copies, 32, 16), beside the largest of its row in column 0 and
above 31 copies of the largest of its column. So each copy holds fifteen draws, every one with random bits of its own,
and draw i is the same whatever the number of draws. No outer scale. All numbers are decoded from codes; the chance of
a neighbour is counted over the 65,536 random fields, for the saved value over the new block's scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm

from .random_bits import FIELDS, away

COLUMNS = 15  # draws of one copy
TARGETS: dict[str, nm.BlockFormat | nm.Format] = {
    "NVFP4": nm.NVFP4,
    "MXFP4": nm.MXFP4,
    "MXFP8": nm.MXFP8,
    "E2M1 without a scale": nm.E2M1,
    "E4M3 without a scale": nm.E4M3,
}
ROUNDINGS = {"stochastic": nm.Rounding.STOCHASTIC, "nearest": nm.Rounding.NEAREST_EVEN}


@dataclass(frozen=True)
class Redraw:
    """What became of one value.

    value: as typed, float32; saved_code x saved_scale = saved. step: the new block's scale, 1 without one; element: the
    format of its codes. below, above: the neighbours of `saved`; nearest: the one that rounding to nearest takes.
    fields: of 65,536 random fields, those that take it away from zero. draws: float64 (n,), under `rounding`.
    """

    value: float
    saved_code: float
    saved_scale: float
    saved: float
    step: float
    element: nm.Format
    below: float
    above: float
    nearest: float
    fields: int
    rounding: nm.Rounding
    draws: Tensor

    @property
    def chance(self) -> float:
        """Of the neighbour above, under `rounding`."""
        if self.below == self.above:
            return 1.0
        if self.rounding is nm.Rounding.NEAREST_EVEN:
            return float(self.nearest == self.above)
        outward = self.fields / FIELDS
        return outward if self.saved > 0 else 1 - outward

    @property
    def saturates(self) -> bool:
        return abs(self.saved) > self.step * self.element.max


def saved_tensor(value: float, row: float, column: float, copies: int) -> nm.BlockTensor:
    """The tensor (copies, 32, 16) of the module docstring as the forward saves it, NVFP4 along rows."""
    x = torch.full((copies, 32, 16), column)
    x[:, 0], x[:, 0, 0] = value, row
    return nm.quantize(x, nm.NVFP4, outer=None)


def again(
    saved: nm.BlockTensor, target: nm.BlockFormat | nm.Format, rounding: nm.Rounding, seed: int
) -> tuple[Tensor, float]:
    """The draws of a `saved_tensor`, float32 (15 copies,), and the scale of their new blocks (1 without one)."""
    random = nm.Random((seed, 0)) if rounding is nm.Rounding.STOCHASTIC else None
    if isinstance(target, nm.BlockFormat):
        new = nm.requantize(saved, target, axis=-2, rounding=rounding, random=random)
        assert target.scale is not None
        return new.dequantize()[:, 0, 1:].flatten(), float(nm.decode(new.scales[0, 0, 1:2], target.scale))
    values, fields = saved.dequantize()[:, 0, 1:], None
    if random is not None:
        line = torch.arange(len(values))
        fields = random.fields(0, line, torch.zeros_like(line), target.bits)[:, 1:]
    return nm.round_to(values, target, rounding, fields).flatten(), 1.0


def redraw(
    value: float,
    row: float,
    column: float,
    target: nm.BlockFormat | nm.Format,
    rounding: nm.Rounding,
    n: int,
    seed: int,
) -> Redraw:
    """Save `value` beside `row` and draw it again `n` times, in blocks whose other values are `column`; all finite."""
    saved, one = saved_tensor(value, row, column, -(-n // COLUMNS)), saved_tensor(value, row, column, 1)
    element = target.element if isinstance(target, nm.BlockFormat) else target

    def single(mode: nm.Rounding) -> float:
        return float(again(one, target, mode, 0)[0][0])

    draws, step = again(saved, target, rounding, seed)
    kept = float(one.dequantize()[0, 0, 1])
    return Redraw(
        value=value,
        saved_code=float(nm.decode(one.codes[0, 0, 1:2], nm.E2M1)),
        saved_scale=float(nm.decode(one.scales[0, 0], nm.E4M3)),
        saved=kept,
        step=step,
        element=element,
        below=single(nm.Rounding.TOWARD_NEGATIVE),
        above=single(nm.Rounding.TOWARD_POSITIVE),
        nearest=single(nm.Rounding.NEAREST_EVEN),
        fields=away(kept / step, element) if step else 0,
        rounding=rounding,
        draws=draws[:n].to(torch.float64),
    )
