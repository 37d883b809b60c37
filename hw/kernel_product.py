"""Rows of ragged experts times their expert's matrix, from codes: fprop and dgrad of an expert layer, FP32 sums.

    out[r, n] = sum_k (a[r, k] sa[r, block of k]) (b[e, n, k] sb[e, n, block of k])      r a row of expert e

a (R, K), rows sorted by expert; b (E, N, K), or (E, K, N) with blocks along axis 1, as dgrad has the matrices of fprop;
out (R, N). NVFP4, E2M1 under E4M3 scales of 16, packed; or MXFP8, E4M3 under E8M0 scales of 32. Without outer scales.

A program takes every `programs`-th tile of 128 x 128 results. Codes come as boxes of tensor descriptors (TMA), which
fill with zeros what lies beyond K; scales as 128x4 atoms (`kernel_swizzle`), which the source puts back into rows and
columns by reshape and transposition alone, so that Triton copies them to tensor memory as they are (tcgen05.cp). A tile
may read rows of the next expert, each of which is a row of its result, and stores its own alone.

NATIVE: block-scaled tensor-core products (tcgen05.mma kind::mxf4nvf4 block16, kind::mxf8f6f4), as a warp-specialized
pipeline over all tiles of a program. Products are exact; how sums are cut is `blackwell_nvfp4` and `blackwell_mxfp8` of
`numerics.matmul`. Else values are decoded in the loop and multiplied in BF16, which holds all of them but of MXFP8
those with scale bytes below 3 or above 246, and in FP32 by Triton's interpreter: a second route through the same boxes,
atoms and masks, which runs without a Blackwell, and not a fast one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .contracts import MMA_MXFP8, MMA_NVFP4, SCALES_COPIED, TILES_IN, WARPS_APART, Case, Contract, at_least, exactly
from .device import require_launch
from .kernel_casts import INTERPRETED, e2m1_decoded, e4m3_byte, e4m3_decoded, e8m0_value, finite
from .kernel_swizzle import swizzle_columns, swizzle_rows
from .launches import launch, native
from .sources import block_table

TILE = 128  # rows and columns of a tile; with 64 rows Triton would decode to BF16 without a word
BLOCK = {"E2M1": 16, "E4M3": 32}
CODES4, CODES8 = tl.constexpr("e2m1"), tl.constexpr("e4m3")  # as tl.dot_scaled names them
_SUPER = 8  # tiles of rows that share the columns of a matrix before the next ones are read


@triton.jit
def from_atoms(atoms, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Scales (ROWS, COLUMNS) of atoms (ROWS / 128, COLUMNS / 4, 2, 256)."""
    parts = tl.reshape(atoms, (ROWS // 128, COLUMNS // 4, 32, 4, 4))
    return tl.reshape(tl.trans(parts, (0, 3, 2, 1, 4)), (ROWS, COLUMNS))


@triton.jit
def operand(y):
    """What the portable product multiplies: BF16; FP32 in the interpreter, which multiplies the bits of BF16."""
    return y if INTERPRETED else y.to(tl.bfloat16)


@triton.jit
def decoded_nvfp4(codes, scales, ROWS: tl.constexpr, K: tl.constexpr):
    """(ROWS, K) of packed codes uint8 (ROWS, K / 2) and E4M3 scales (ROWS, K / 16)."""
    byte = codes.to(tl.int32)
    value = tl.reshape(e2m1_decoded(tl.join(byte & 15, byte >> 4)), (ROWS, K // 16, 16))
    scale = e4m3_decoded(scales.to(tl.uint8, bitcast=True).to(tl.int32))
    return operand(tl.reshape(value * scale[:, :, None], (ROWS, K)))


@triton.jit
def decoded_mxfp8(codes, scales, ROWS: tl.constexpr, K: tl.constexpr):
    """(ROWS, K) of E4M3 codes (ROWS, K) and E8M0 scales uint8 (ROWS, K / 32)."""
    value = tl.reshape(e4m3_byte(codes.to(tl.uint8, bitcast=True)), (ROWS, K // 32, 32))
    return operand(tl.reshape(finite(value * e8m0_value(scales.to(tl.int32))[:, :, None]), (ROWS, K)))


@triton.jit
def _multiplied(a, sa, b, sb, acc, NVFP4: tl.constexpr, ACROSS: tl.constexpr, BK: tl.constexpr, NATIVE: tl.constexpr):
    """acc + a @ b.T under their scales; ACROSS: b (BK, 128), and acc + a @ b."""
    if NATIVE:
        if NVFP4:
            return tl.dot_scaled(a, sa, CODES4, b.T, sb, CODES4, acc)
        else:
            return tl.dot_scaled(a, sa, CODES8, b if ACROSS else b.T, sb, CODES8, acc)
    elif NVFP4:
        return tl.dot(decoded_nvfp4(a, sa, 128, BK), decoded_nvfp4(b, sb, 128, BK).T, acc, input_precision="ieee")
    else:
        second = decoded_mxfp8(b.T if ACROSS else b, sb, 128, BK).T
        return tl.dot(decoded_mxfp8(a, sa, 128, BK), second, acc, input_precision="ieee")


@triton.jit(do_not_specialize=["tiles", "programs"])
def _rows_by_matrices(
    table, a, a_atoms, b, b_atoms, out, tiles, columns, width, programs,
    NVFP4: tl.constexpr, ACROSS: tl.constexpr, SUPER: tl.constexpr, BK: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """table: int32 (tiles, 4): first row, number of rows, expert. columns: N or more, a multiple of 16. width: K.

    a: boxes of codes (128, bytes); b: (1, 128, bytes) or, ACROSS, (1, BK, 128); atoms: (1, atoms of BK, 2, 256).
    """
    BYTES: tl.constexpr = BK // 2 if NVFP4 else BK
    SCALES: tl.constexpr = BK // (16 if NVFP4 else 32)
    wide = tl.cdiv(columns, 128)
    for t in tl.range(tl.program_id(0), tiles * wide, programs, flatten=NATIVE, warp_specialize=NATIVE):
        above = t // (SUPER * wide) * SUPER
        tall = tl.minimum(SUPER, tiles - above)
        inside = t - above * wide
        tile, n = above + inside % tall, inside // tall
        first, count = tl.load(table + 4 * tile), tl.load(table + 4 * tile + 1)
        expert = tl.load(table + 4 * tile + 2)
        acc = tl.zeros((128, 128), dtype=tl.float32)
        for k in tl.range(0, tl.cdiv(width, BK)):
            x = a.load([first, k * BYTES])
            if ACROSS:
                y = tl.reshape(b.load([expert, k * BK, n * 128]), (BK, 128))
            else:
                y = tl.reshape(b.load([expert, n * 128, k * BYTES]), (128, BYTES))
            sx = from_atoms(a_atoms.load([tile, k * (SCALES // 4), 0, 0]), 128, SCALES)
            sy = from_atoms(b_atoms.load([expert * wide + n, k * (SCALES // 4), 0, 0]), 128, SCALES)
            acc = _multiplied(x, sx, y, sy, acc, NVFP4, ACROSS, BK, NATIVE)
        row, column = tl.arange(0, 128), n * 128 + tl.arange(0, 128)
        at = first.to(tl.int64) * columns + row.to(tl.int64)[:, None] * columns + column[None, :]
        tl.store(out + at, acc, mask=(row < count)[:, None] & (column < columns)[None, :])


def programs_on(x: Tensor, tiles: int) -> int:
    """How many programs share `tiles`: one for each multiprocessor; few where there are none, so that each has some."""
    most = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 3
    return min(most, tiles)


def boxes(x: Tensor, *shape: int) -> TensorDescriptor:
    """A tensor as kernels read it in boxes of this shape, with zeros beyond its ends."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), list(shape))


def rows_by_matrices(
    a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor, groups: tuple[int, ...], element: str, axis: int = 2
) -> Tensor:
    """float32 (R, N): see the module's docstring.

    Args: all of them uint8, contiguous, codes at addresses that 16 divides.
        a: codes (R, K), E2M1 packed (R, K / 2). a_scales: (R, blocks). b: (E, N, K) or (E, N, K / 2), with `axis` 1
        (E, K, N), of E4M3 alone. b_scales: (E, N, blocks) or (E, blocks, N). groups: E + 1 offsets of rows. element:
        "E2M1" or "E4M3". Rows of codes have a multiple of 16 bytes.

    Raises: ValueError where the kernel cannot run.
    """
    require_launch(_rows_by_matrices, a, "a")
    nvfp4, across = element == "E2M1", axis == 1
    width, columns = (b.shape[1], b.shape[2]) if across else (b.shape[2] * (2 if nvfp4 else 1), b.shape[1])
    padded = triton.cdiv(columns, 16) * 16  # stores of 16 bytes; what is beyond N nobody sees
    if not a.numel() or not b.numel():
        return torch.zeros(len(a), columns, dtype=torch.float32, device=a.device)
    # 128 bytes of a row in a step; without the instruction 256 decoded values do not fit into registers
    bk = 256 if nvfp4 and native(a) else 128
    experts, wide = len(b), triton.cdiv(columns, TILE)
    blocks = b_scales.shape[axis]
    flat = b_scales.view(-1, b_scales.shape[2])
    atoms = bk // BLOCK[element] // 4
    if across:
        b_atoms = swizzle_columns(flat, tuple(range(0, len(flat) + 1, blocks)))
    else:
        b_atoms = swizzle_rows(flat, tuple(range(0, len(flat) + 1, columns)))
    kind = torch.float8_e4m3fn
    scale_kind = kind if nvfp4 else torch.uint8
    a_atoms, deep = swizzle_rows(a_scales, groups), triton.cdiv(blocks, 4)
    table = block_table(len(a), TILE, groups, str(a.device))
    if not nvfp4:
        a, b = a.view(kind), b.view(kind)
    out = torch.empty(len(a), padded, dtype=torch.float32, device=a.device)
    step = bk // (2 if nvfp4 else 1)
    launch(
        _rows_by_matrices, (programs_on(a, len(table) * wide),), table, boxes(a, TILE, step),
        boxes(a_atoms.view(scale_kind).view(-1, deep, 2, 256), 1, atoms, 2, 256),
        boxes(b, *((1, bk, TILE) if across else (1, TILE, step))),
        boxes(b_atoms.view(scale_kind).view(experts * wide, deep, 2, 256), 1, atoms, 2, 256), out, len(table), padded,
        width, programs_on(a, len(table) * wide), NVFP4=nvfp4, ACROSS=across, SUPER=_SUPER, BK=bk,
        num_warps=8, num_stages=5 if native(a) else 4,
    )  # fmt: skip
    return out[:, :columns].contiguous()


def samples() -> dict[str, Callable[[], Tensor]]:
    """Each variant by name, for `launches.catching`, of tensors without storage; its last launch is the product."""
    r, e, n, k, groups = 1000, 4, 512, 2048, (0, 100, 100, 700, 1000)

    def nothing(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.uint8, device="meta")

    a, b = (nothing(r, k), nothing(r, k // 32)), (nothing(e, n, k), nothing(e, n, k // 32))
    packed = (nothing(r, k // 2), nothing(r, k // 16), nothing(e, n, k // 2), nothing(e, n, k // 16))
    across = (nothing(e, k, n), nothing(e, k // 32, n))
    return {
        "NVFP4": lambda: rows_by_matrices(*packed, groups, "E2M1"),
        "MXFP8": lambda: rows_by_matrices(*a, *b, groups, "E4M3"),
        "MXFP8 along axis 1": lambda: rows_by_matrices(*a, *across, groups, "E4M3", 1),
    }


_FED = (at_least(TILES_IN, 4), at_least(WARPS_APART, 2))
_NVFP4 = (exactly(MMA_NVFP4, 4), exactly(SCALES_COPIED, 8), *_FED)  # 256 deep, 64 an instruction
_MXFP8 = (exactly(MMA_MXFP8, 4), exactly(SCALES_COPIED, 2), *_FED)  # 128 deep, 32 an instruction
_HOPPER = (at_least("HGMMA.64x128x16.F32.BF16", 8),)
_IN_NVFP4 = ("mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 128 x 128 x 64",)
_IN_MXFP8 = ("mxf8f6f4 E4M3 x E4M3, UE8M0 by 32, 128 x 128 x 32",)

CONTRACT = Contract(
    (
        Case("NVFP4", lambda: samples()["NVFP4"](), _NVFP4, _HOPPER, _IN_NVFP4),
        Case("MXFP8", lambda: samples()["MXFP8"](), _MXFP8, _HOPPER, _IN_MXFP8),
        Case("MXFP8 along axis 1", lambda: samples()["MXFP8 along axis 1"](), _MXFP8, _HOPPER, _IN_MXFP8),
    ),
    ran="h200_tests.json",
    interpreted="test_hw_product.py",
    native="test_hw_product.py",
)
