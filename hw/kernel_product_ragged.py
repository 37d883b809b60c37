"""Products along the rows of ragged experts, from MXFP8 codes: wgrad of an expert layer, FP32 sums.

    out[e, n, k] = sum_s (a[s, n] sa[block of s, n]) (b[s, k] sb[block of s, k])      s a row of expert e

a (S, N), b (S, K), rows sorted by expert, E4M3 under E8M0 scales of 32 rows, blocks starting anew at each expert; out
(E, N, K), zeros for an expert without rows. Without outer scales.

A program takes every `programs`-th tile of 128 x 128 results. What lies beyond an expert's rows must not take part:
there is no E8M0 scale of 0, and a code may be NaN. So each tile makes tensor descriptors that begin at its expert's
first row and end with its last one, and the boxes (TMA) have zeros beyond. Both operands are read as they lie, 128 rows
by 128 lines of results, which tensor cores take so for 8-bit codes alone. Scales come as 128x4 atoms, see
`kernel_product`, also for what NATIVE means; the loop that is warp-specialized is the one along the contraction, since
its length varies.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerics.cache import cached

from .device import require_launch
from .kernel_product import CODES8, TILE, boxes, decoded_mxfp8, from_atoms, programs_on
from .kernel_swizzle import swizzle_columns
from .launches import launch, native
from .sources import block_offsets, sent

BLOCK, STEP = 32, 128  # rows of a block, and of a step: an atom of scales


@triton.jit(do_not_specialize=["experts", "programs"])
def _columns_by_columns(
    table, a, b, a_atoms, b_atoms, out, experts, columns, width, programs, NATIVE: tl.constexpr,
):  # fmt: skip
    """table: int32 (experts with rows, 4): first row, number of rows, expert, steps before. columns: N. width: K.

    a, b: E4M3 codes. Atoms: boxes (1, 2, 256).
    """
    tall, wide = tl.cdiv(columns, 128), tl.cdiv(width, 128)
    for t in tl.range(tl.program_id(0), experts * tall * wide, programs):
        entry, n, m = t // (tall * wide), t // wide % tall, t % wide
        first, count = tl.load(table + 4 * entry).to(tl.int64), tl.load(table + 4 * entry + 1)
        expert, before = tl.load(table + 4 * entry + 2), tl.load(table + 4 * entry + 3)
        steps = tl.cdiv(count, 128)
        x_boxes = tl.make_tensor_descriptor(a + first * columns, [count, columns], [columns, 1], [128, 128])
        y_boxes = tl.make_tensor_descriptor(b + first * width, [count, width], [width, 1], [128, 128])
        x_atom, y_atom = before * tall + n * steps, before * wide + m * steps
        acc = tl.zeros((128, 128), dtype=tl.float32)
        for s in tl.range(0, steps, warp_specialize=NATIVE):
            x, y = x_boxes.load([s * 128, n * 128]), y_boxes.load([s * 128, m * 128])
            sx = from_atoms(a_atoms.load([x_atom + s, 0, 0]), 128, 4)
            sy = from_atoms(b_atoms.load([y_atom + s, 0, 0]), 128, 4)
            if NATIVE:
                acc = tl.dot_scaled(x.T, sx, CODES8, y, sy, CODES8, acc)
            else:
                second = decoded_mxfp8(y.T, sy, 128, 128).T
                acc = tl.dot(decoded_mxfp8(x.T, sx, 128, 128), second, acc, input_precision="ieee")
        row, column = n * 128 + tl.arange(0, 128), m * 128 + tl.arange(0, 128)
        at = (expert.to(tl.int64) * columns + row)[:, None] * width + column[None, :]
        tl.store(out + at, acc, mask=(row < columns)[:, None] & (column < width)[None, :])


@cached(maxsize=64)
def _expert_table(groups: tuple[int, ...], device: str) -> Tensor:
    """int32 (experts with rows, 4): first row, number of rows, expert, and the steps of the experts before."""
    before = accumulate((-(-(j - i) // STEP) for i, j in pairwise(groups)), initial=0)
    lines = [(i, j - i, e, n) for e, ((i, j), n) in enumerate(zip(pairwise(groups), before, strict=False)) if j > i]
    return sent(torch.tensor(lines, dtype=torch.int32).view(-1, 4), device)


def columns_by_columns(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor, groups: tuple[int, ...]) -> Tensor:
    """float32 (E, N, K): see the module's docstring.

    Args: all of them uint8, contiguous, codes at addresses that 16 divides, N and K multiples of 16.
        a: codes (S, N). a_scales: (blocks, N), as `numerics.quantize` cuts blocks by groups. b: (S, K). b_scales:
        (blocks, K). groups: E + 1 offsets of rows.

    Raises: ValueError where the kernel cannot run.
    """
    require_launch(_columns_by_columns, a, "a")
    columns, width = a.shape[1], b.shape[1]
    table = _expert_table(groups, str(a.device))
    shape = (len(groups) - 1, columns, width)
    whole = len(table) == shape[0]  # else experts without rows have zeros
    out = (torch.empty if whole else torch.zeros)(shape, dtype=torch.float32, device=a.device)
    tiles = len(table) * triton.cdiv(columns, TILE) * triton.cdiv(width, TILE)
    if not tiles:
        return out
    if a.is_cuda:  # where a launch keeps the descriptors that it makes
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=a.device))
    offsets = block_offsets(BLOCK, groups)
    atoms = [boxes(swizzle_columns(s, offsets).view(-1, 2, 256), 1, 2, 256) for s in (a_scales, b_scales)]
    programs = programs_on(a, tiles)
    kind = torch.float8_e4m3fn
    launch(
        _columns_by_columns, (programs,), table, a.view(kind), b.view(kind), *atoms, out, len(table), columns, width,
        programs, num_warps=8, num_stages=6 if native(a) else 4,
    )  # fmt: skip
    return out


def samples() -> dict[str, Callable[[], Tensor]]:
    """Each variant by name, for `launches.catching`, of tensors without storage; its last launch is the product."""
    groups, n, k = (0, 100, 100, 700, 1000), 512, 2048
    rows, blocks = groups[-1], block_offsets(BLOCK, groups)[-1]
    shapes = ((rows, n), (blocks, n), (rows, k), (blocks, k))
    parts = [torch.empty(shape, dtype=torch.uint8, device="meta") for shape in shapes]
    return {"MXFP8 along rows": lambda: columns_by_columns(*parts, groups)}
