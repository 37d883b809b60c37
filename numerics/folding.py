"""How a tensor folds into the blocks that share a scale, and back.

    (..., length)           ->  (..., blocks, B)                     B values along the axis
    (..., lines, length)    ->  (..., tiles, blocks, T * B)          T lines of the neighbouring axis as well

The axis becomes the last one; a tile's values are those of its first line, then those of the second, and so on. What is
missing to whole blocks and tiles is zero, and is cut off on the way back. Exact: nothing is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .codes import step_by_step
from .partition import Partition


@dataclass(frozen=True)
class Folding:
    """A tensor's blocks.

    Args:
        axis: along which blocks run, counted from the front. lines: how the neighbouring axis splits into tiles; None
            without tiles. blocks: how the axis splits into blocks. block, tile: values and lines of each.
    """

    axis: int
    lines: Partition | None
    blocks: Partition
    block: int
    tile: int

    @staticmethod
    def of(
        shape: Sequence[int], axis: int, block: int, tile: int = 1, groups: tuple[int, ...] | None = None
    ) -> Folding:
        """Blocks of `block` values along `axis`, by the offsets of groups if there are any; tiles of `tile` lines.

        Raises: ValueError if there are tiles and `axis` is not one of the last two.
        """
        blocks = Partition.of(shape[axis], block, groups)
        lines = None if tile == 1 else Partition.of(shape[partner(axis, len(shape))], tile, None)
        return Folding(axis, lines, blocks, block, tile)

    def fold(self, x: Tensor) -> Tensor:
        """The blocks of a tensor, see the module."""
        x = x.movedim(self.axis, -1)
        # many steps follow: a CPU reads a transposed tensor slowly each time
        return self.gather(self.blocks.split(x.contiguous() if step_by_step(x.device) else x, self.block))

    def gather(self, x: Tensor) -> Tensor:
        """(..., lines, blocks, B) -> (..., tiles, blocks, T * B)."""
        if self.lines is None:
            return x
        x = self.lines.split(x.movedim(-3, -1), self.tile)  # (..., blocks, B, tiles, T)
        return x.movedim(-2, -4).movedim(-1, -2).flatten(-2)  # (..., tiles, blocks, B, T) -> T before B

    def unfold(self, x: Tensor) -> Tensor:
        """Inverse of `fold`."""
        if self.lines is not None:
            x = x.unflatten(-1, (self.tile, self.block)).movedim(-2, -1).movedim(-4, -2)
            x = self.lines.join(x).movedim(-1, -3)
        return self.blocks.join(x).movedim(-1, self.axis)

    def scales(self, x: Tensor) -> Tensor:
        """One entry of each block, (..., tiles, blocks, 1) -> the axes of the tensor."""
        return x.squeeze(-1).movedim(-1, self.axis)


def partner(axis: int, ndim: int) -> int:
    """The other of the last two axes, which tiles reach into. Raises ValueError if `axis` is not one of them."""
    if ndim < 2 or axis < ndim - 2:
        raise ValueError(f"axis={axis} of {ndim}: tiles need `axis` to be one of the last two axes")
    return 2 * ndim - 3 - axis
