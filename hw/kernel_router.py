"""The gradient of the router's weights as one Triton kernel: each token's gradient, rotated, times its experts' rows.

    out[t, k] = <H S g[t] / sqrt(32), decoded[slots[t, k]]>

The transform has the bits of `numerics.hadamard` and is done once for a token; the sum over D is FP32, in an order of
its own, within the bounds of `hw.bounds`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contracts import Case, Contract, meta
from .device import require_launch
from .kernel_blocks32 import column_mask, hadamard32, sign_piece, tiling
from .kernel_casts import widen
from .launches import launch

SIZE = 32  # of the Hadamard transform


@triton.jit
def _piece(row, column, width, inside, P: tl.constexpr):
    """Piece P of blocks whose rows start at the pointers `row`, float32 (N, 8)."""
    at = row[:, None] + (column[:, None] + (P * 8 + tl.arange(0, 8))[None, :])
    return widen(tl.load(at, mask=column_mask(inside, column, width, P), other=0.0))


@triton.jit
def _router(
    g, decoded, slots, signs, out, tokens, width, blocks, parts,
    K: tl.constexpr, ROTATED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """ROWS tokens, WIDTH blocks of each: one of the `parts` of their sums, in out (tokens, K, parts)."""
    N: tl.constexpr = ROWS * WIDTH
    i = tl.arange(0, N)
    first = tl.program_id(0).to(tl.int64) * ROWS
    token = first + i // WIDTH
    block = tl.program_id(1) * WIDTH + i % WIDTH
    column = block * 32
    inside = (token < tokens) & (block < blocks)
    row = g + token * width
    a, b = _piece(row, column, width, inside, 0), _piece(row, column, width, inside, 1)
    c, d = _piece(row, column, width, inside, 2), _piece(row, column, width, inside, 3)
    if ROTATED:
        a, b = a * sign_piece(signs, 0), b * sign_piece(signs, 1)
        c, d = c * sign_piece(signs, 2), d * sign_piece(signs, 3)
        a, b, c, d = hadamard32(a, b, c, d, N)
    line = first + tl.arange(0, ROWS)
    for k in tl.static_range(K):
        row = decoded + tl.load(slots + token * K + k, mask=inside, other=0) * width
        total = a * _piece(row, column, width, inside, 0) + b * _piece(row, column, width, inside, 1)
        total += c * _piece(row, column, width, inside, 2) + d * _piece(row, column, width, inside, 3)
        total = tl.sum(tl.reshape(total, (ROWS, WIDTH * 8)), 1)
        tl.store(out + (line * K + k) * parts + tl.program_id(1), total, mask=line < tokens)


def router_gradient(g: Tensor, decoded: Tensor, slots: Tensor, signs: Tensor | None = None) -> Tensor:
    """The gradient of each weight of `numerics.ops.aggregate`, as `numerics.ops.router_gradient` up to its order.

    Args:
        g: (T, D) bfloat16 or float32. decoded: likewise (R, D), rows that are still rotated. slots: int64 (T, K).
        signs: (32,) of +-1, of the Hadamard transform that the rows went through, or None; D is then a multiple of 32.

    Returns: float32 (T, K). The order of a sum depends on D alone.
    Raises: NotImplementedError for a transform of another size. ValueError without a device that kernels can run on.
        All else is the caller's to check.
    """
    require_launch(_router, g, "g")
    if signs is not None and len(signs) != SIZE:
        raise NotImplementedError(f"signs has length {len(signs)}: this kernel knows Hadamard transforms of {SIZE}")
    tokens, top, width = *slots.shape, g.shape[1]
    blocks, rows, wide, parts = tiling(width)
    out = torch.zeros(tokens, top, parts, dtype=torch.float32, device=g.device)
    if tokens and width:
        g, slots = g.contiguous(), slots.contiguous()
        launch(
            _router, (triton.cdiv(tokens, rows), parts),
            g, decoded.contiguous(), slots,
            slots if signs is None else signs.to(g.device, torch.float32).contiguous(),  # not read without signs
            out, tokens, width, blocks, parts,
            K=top, ROTATED=signs is not None, ROWS=rows, WIDTH=wide,
        )  # fmt: skip
    return out.squeeze(-1) if parts == 1 else out.sum(-1)


def _tokens(signs: Tensor | None) -> Tensor:
    g, decoded = meta(256, 4096), meta(1024, 4096, dtype=torch.float32)
    return router_gradient(g, decoded, meta(256, 4, dtype=torch.int64), signs)


CONTRACT = Contract(
    (
        Case("rotated rows", lambda: _tokens(meta(32, dtype=torch.float32))),
        Case("rows", lambda: _tokens(None)),
    ),
    ran="h200_triton",
    interpreted="test_hw_router.py",
)
