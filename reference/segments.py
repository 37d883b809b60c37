"""Several texts in one sequence that see nothing of each other.

Positions with equal numbers, side by side, are one segment. Attention stays inside a segment, its positions count from
0 at its start, and a short convolution does not reach before it; the rest of the model computes token by token. A
number that comes again further on names another segment. A negative number names filler: what a sequence is filled up
with. Experts are not given filler, so it takes part in no router, load, balancing loss, outer scale or measure; their
output for it is zero.

Exact: what a segment's tokens compute does not depend on a bit of the others' tokens, at equal shapes and under recipes
whose outer scales are per token (`fourbit`, `mxfp8`, `bf16`); a scale of a whole tensor is shared by all in it.

Shapes: B sequences, S positions.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Segments:
    """Args: ids_BS: int64 (B, S).

    Attributes: positions_BS: int64 (B, S), how far each position is from the start of its segment.
    """

    def __init__(self, ids_BS: Tensor) -> None:
        index = torch.arange(ids_BS.shape[1], device=ids_BS.device).expand(ids_BS.shape)
        first = torch.ones_like(ids_BS, dtype=torch.bool)
        first[:, 1:] = ids_BS[:, 1:] != ids_BS[:, :-1]
        self._start_BS = torch.where(first, index, torch.zeros_like(index)).cummax(dim=1).values
        self.positions_BS = index - self._start_BS
        self._filler_BS = ids_BS < 0
        self._visible: dict[int | None, Tensor] = {}
        self._real: dict[int, list[Tensor | None]] = {}

    def visible(self, window: int | None) -> Tensor:
        """bool (B, S, S): whether position t (rows) attends to s. Made once for all layers of a window."""
        if window not in self._visible:
            t = torch.arange(self._start_BS.shape[1], device=self._start_BS.device)
            distance = t[:, None] - t[None, :]
            near = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
            self._visible[window] = near & (self._start_BS[:, :, None] <= t)
        return self._visible[window]

    def real(self, grains: int) -> list[Tensor | None]:
        """Of each of `grains` equal parts of the B S tokens, in order: int64, the places of those that are no filler;
        None where all are. Made once for all layers."""
        if grains not in self._real:
            parts = self._filler_BS.flatten().chunk(grains)
            self._real[grains] = [(~part).nonzero()[:, 0] if bool(part.any()) else None for part in parts]
        return self._real[grains]
