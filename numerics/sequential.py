"""FP32 sums in one order, that of k: every product rounded, then added, each an operation of its own.

fl(... fl(fl(p_0 + p_1) + p_2) ... + p_(K-1)), p_k = fl(a_k b_k), nearest even. Two kernels, so that nothing becomes a
fused multiply-add: the same bits on every device, for any rows and batch. A sum of zeros is +0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .tensor_core import k_first, tiles
from .uncompiled import uncompiled


@uncompiled  # a compiler would fuse product and sum
def sequential_product(a: Tensor, b: Tensor, promote: int | None = None, splits: int = 1) -> Tensor:
    """a (..., M, K) @ b (..., N, K).T, float32, leading axes broadcast; `promote` and `splits` as in `matmul`."""
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    first, second = (k_first(x if x.shape[:-2].numel() == 1 else x.expand(*lead, *x.shape[-2:])) for x in (a, b))
    out = torch.empty(lead.numel(), a.shape[-2], b.shape[-2], dtype=torch.float32, device=a.device)
    length = len(first)
    size = -(-length // splits) or 1
    every = size if promote is None else promote
    for tile in tiles(out):
        at_a, at_b = (tile[0] if x.shape[1] > 1 else slice(None) for x in (first, second))  # one batch serves all
        x, y = first[:, at_a, tile[1], None], second[:, at_b, None, tile[2]]
        total: Tensor | None = None
        for start in range(0, max(length, 1), size):
            stop, register = min(start + size, length), None
            for begin in range(start, max(stop, start + 1), every):
                part = _run(x, y, range(begin, min(begin + every, stop)))
                register = part if register is None else register.add_(part)
            assert register is not None
            total = register if total is None else total.add_(register)
        assert total is not None
        out[tile] = total
    return out.view(*lead, *out.shape[-2:])


def _run(x: Tensor, y: Tensor, places: range) -> Tensor:
    """Sum of products of one tile, from zero."""
    total = torch.zeros(torch.broadcast_shapes(x.shape[1:], y.shape[1:]), dtype=torch.float32, device=x.device)
    term = torch.empty_like(total)
    for k in places:
        total += torch.mul(x[k], y[k], out=term)
    return total
