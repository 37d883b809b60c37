"""What a dialect needs of a block format: the element format, the values that share a scale, and how scales are stored.

    values per scale = block * tile        NVFP4: 16; NVFP4_2D: 16 x 16; MX: 32; FP8: 128, or 128 x 128

Scales are one-byte codes of E4M3 or E8M0, or, with `scale=None`, float32 numbers as they are; FP8 blocks whose scales
are powers of two keep them in float32 too, and E8M0 bytes are another way to write those.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .codes import decode_tensor
from .folding import Folding
from .formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, S2F6, Format


@dataclass(frozen=True)
class Layout:
    """A block format as dialects see it.

    Args:
        name: of the format. element: of the codes. block: values along the axis that share a scale. scale: format of
            the scales; None: float32. tile: lines of the neighbouring axis that share the scale too.
    """

    name: str
    element: Format
    block: int
    scale: Format | None
    tile: int = 1

    @property
    def per_scale(self) -> int:
        """Values that share a scale."""
        return self.block * self.tile

    def folding(self, shape: tuple[int, ...] | torch.Size, axis: int) -> Folding:
        """How a tensor of that shape folds into blocks along `axis`."""
        return Folding.of(shape, axis, self.block, self.tile)

    def entries(self, shape: tuple[int, ...] | torch.Size, axis: int) -> tuple[int, ...]:
        """The shape of the scales of a tensor."""
        folding = self.folding(shape, axis)
        counts = {axis: folding.blocks.blocks}
        if folding.lines is not None:
            counts[2 * len(shape) - 3 - axis] = folding.lines.blocks
        return tuple(counts.get(d, n) for d, n in enumerate(shape))


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("NVFP4", E2M1, 16, E4M3),
        Layout("NVFP4_2D", E2M1, 16, E4M3, 16),
        Layout("MXFP4", E2M1, 32, E8M0),
        Layout("MXFP6_E2M3", E2M3, 32, E8M0),
        Layout("MXFP6_E3M2", E3M2, 32, E8M0),
        Layout("MXFP8", E4M3, 32, E8M0),
        Layout("MXFP8_E5M2", E5M2, 32, E8M0),
        Layout("MXS2F6", S2F6, 32, E8M0),
        Layout("FP8_1X128", E4M3, 128, None),
        Layout("FP8_128X128", E4M3, 128, None, 128),
    )
}


def scale_values(scales: Tensor, fmt: Format | None) -> Tensor:
    """The numbers, float32, that stored scales stand for; `fmt`: of the bytes, None where they are float32 already."""
    return scales if fmt is None else decode_tensor(scales, fmt)


def scales_differ(a: Tensor, b: Tensor, fmt: Format | None) -> Tensor:
    """Where two tensors of stored scales differ; NaN equals NaN, whatever its sign."""
    if fmt is None:
        return (a != b) & ~(torch.isnan(a) & torch.isnan(b))
    return one_nan(a, fmt) != one_nan(b, fmt)


def one_nan(scales: Tensor, fmt: Format | None) -> Tensor:
    """0xFF of E4M3 is the negative NaN: as 0x7F."""
    return torch.where(scales == 0xFF, 0x7F, scales) if fmt == E4M3 else scales
