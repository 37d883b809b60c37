"""The largest finite block maximum of each matrix of a batch, along features: what an outer scale is made from.

Blocks of 16 that hold NaN or Inf do not count, as in `numerics.quantize`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contracts import Case, Contract, meta
from .device import require_launch
from .kernel_casts import INFINITY_BITS, bits_of, widen
from .launches import launch


@triton.jit
def _amax(x, largest, blocks, N: tl.constexpr):
    """N blocks of 16 of matrix program_id(1), which has `blocks`."""
    block = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    at = (tl.program_id(1).to(tl.int64) * blocks + block)[:, None] * 16 + tl.arange(0, 16)[None, :]
    bits = bits_of(widen(tl.load(x + at, mask=(block < blocks)[:, None], other=0.0))) & 0x7FFFFFFF
    most = tl.max(bits, 1)
    tl.atomic_max(largest + tl.program_id(1), tl.max(tl.where(most < INFINITY_BITS, most, 0), 0))


def block_amax(x: Tensor, matrices: int) -> Tensor:
    """float32 (matrices,) of FP32 or BF16 rows (R, K), contiguous, R a multiple of `matrices`, K of 16.

    Raises: ValueError where the kernel cannot run.
    """
    require_launch(_amax, x, "x")
    largest = torch.zeros(matrices, dtype=torch.int32, device=x.device)
    if x.numel():
        blocks = x.numel() // matrices // 16
        many = min(512, triton.next_power_of_2(blocks))
        launch(_amax, (triton.cdiv(blocks, many), matrices), x, largest, blocks, N=many)
    return largest.view(torch.float32)


CONTRACT = Contract(
    (Case("of matrices", lambda: block_amax(meta(8 * 512, 512), 8)),), ran="h200_triton", interpreted="test_hw_ops.py"
)
