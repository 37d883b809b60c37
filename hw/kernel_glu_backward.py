"""The gradient of SwiGLU as one Triton kernel that reads silu and its derivative from tables.

    d_gate = bf16((dh * up) * silu'(gate))        d_up = bf16(dh * silu(gate))

FP32, each product rounded, then one rounding to BF16. The tables are those of `numerics.swiglu.silu_tables`, one entry
for each of the 65,536 BF16 patterns, 384 KiB together: they stay in a GPU's cache. The bits are those of
`numerics.ops.glu_backward`; any NaN stands for any other.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerics.swiglu import silu_tables

from .contracts import Case, Contract, meta
from .device import require_launch
from .kernel_casts import bf16_bits, float_of
from .launches import launch

TILE = 1024  # values of dh that a program has


@triton.jit
def _widened(bits):
    """float32 of BF16 patterns, int16."""
    return float_of(bits.to(tl.int32) << 16)


@triton.jit
def _glu_backward(dh, gate_up, silu, slope, out, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """A tile (ROWS, WIDTH) of dh (rows, width); gate_up and out (rows, 2 width) and silu are BF16 patterns, int16."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = (row < rows) & (column < width)
    at = row * width * 2 + column
    pattern = tl.load(gate_up + at, mask=inside, other=0).to(tl.int32) & 0xFFFF
    up = _widened(tl.load(gate_up + at + width, mask=inside, other=0))
    g = tl.load(dh + row * width + column, mask=inside, other=0.0)
    d_gate = (g * up) * tl.load(slope + pattern)
    d_up = g * _widened(tl.load(silu + pattern))
    tl.store(out + at, bf16_bits(d_gate).to(tl.int16), mask=inside)
    tl.store(out + at + width, bf16_bits(d_up).to(tl.int16), mask=inside)


def glu_backward(dh: Tensor, gate_up: Tensor) -> Tensor:
    """The gradient of gate and up, as `numerics.ops.glu_backward` gives it.

    Args: dh: float32 (R, F). gate_up: bfloat16 (R, 2F), gate before up.

    Returns: bfloat16 (R, 2F).
    Raises: ValueError without a device that kernels can run on. All else is the caller's to check.
    """
    require_launch(_glu_backward, dh, "dh")
    rows, width = dh.shape
    out = torch.empty(rows, 2 * width, dtype=torch.bfloat16, device=dh.device)
    if not out.numel():
        return out
    silu, slope = silu_tables(str(dh.device))
    wide = min(triton.next_power_of_2(width), TILE)
    launch(
        _glu_backward, (triton.cdiv(rows, TILE // wide), triton.cdiv(width, wide)),
        dh.contiguous(), gate_up.contiguous().view(torch.int16), silu.view(torch.int16), slope, out.view(torch.int16),
        rows, width, ROWS=TILE // wide, WIDTH=wide,
    )  # fmt: skip
    return out


CONTRACT = Contract(
    (Case("rows", lambda: glu_backward(meta(256, 2048, dtype=torch.float32), meta(256, 4096))),),
    ran="h200_triton",
    interpreted="test_hw_glu_backward.py",
)
