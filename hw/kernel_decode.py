"""Codes back to values, along either axis: (code value * block scale) * outer * factor of the row, FP32 or BF16.

Codes are one byte a value, E2M1, E4M3 or S2F6, under E4M3 or E8M0 scales. A table says which row of scales a row of
codes has, so that blocks may run along features, along tokens of ragged groups, or in tiles. The bits are those of
`BlockTensor.dequantize`, of `values` without outer scale.

BF16 holds every product of an E2M1 value and an E4M3 scale, and all but the ends of E4M3 and S2F6 under E8M0: a value
that BF16 does not hold sets a flag.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contracts import E2M1_TO_F16, E4M3_TO_F16, S2F6_TO_BF16, Case, Contract, at_least, meta
from .device import require_launch
from .kernel_casts import (
    E2M1,
    E4M3,
    S2F6,
    bf16_bits,
    bits_of,
    e2m1_decoded,
    e4m3_byte,
    e4m3_decoded,
    e8m0_value,
    finite,
    s2f6_decoded,
)
from .kernel_ptx import e2m1_pair, e4m3_number, s2f6_scaled
from .launches import launch

_ELEMENTS = {"E2M1": E2M1.value, "E4M3": E4M3.value, "S2F6": S2F6.value}
_TILE = 2048  # values of a program


@triton.jit
def _decode(
    codes, scales, table, outers, factors, flag, out, rows, width, columns,
    ELEMENT: tl.constexpr, POWERS: tl.constexpr, BLOCK: tl.constexpr, OUTER: tl.constexpr, FACTOR: tl.constexpr,
    NARROW: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """ROWS rows, WIDE columns; BLOCK columns share a scale, of which a row has `columns`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    inside = row < rows
    mask = inside[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    code = tl.load(codes + at, mask=mask, other=0)
    line = tl.load(table + row, mask=inside, other=0).to(tl.int64)
    block = tl.program_id(1) * (WIDE // BLOCK) + tl.arange(0, WIDE // BLOCK)
    there = inside[:, None] & (block < columns)[None, :]
    byte = tl.load(scales + (line * columns)[:, None] + block[None, :], mask=there, other=127).to(tl.int32)
    if POWERS:
        scale = byte if NATIVE and ELEMENT == S2F6 else e8m0_value(byte)
    else:
        scale = e4m3_number(byte) if NATIVE else e4m3_decoded(byte)
    if BLOCK > 1:
        scale = tl.reshape(tl.broadcast_to(scale[:, :, None], (ROWS, WIDE // BLOCK, BLOCK)), (ROWS, WIDE))
    if ELEMENT == E2M1:
        if NATIVE:
            value, _ = e2m1_pair(code.to(tl.int32))
        else:
            value = e2m1_decoded(code.to(tl.int32))
        y = value * scale
    elif ELEMENT == E4M3:
        y = e4m3_byte(code) * scale
    elif NATIVE and POWERS:
        y = s2f6_scaled(code.to(tl.int32), scale)
    else:
        y = s2f6_decoded(code.to(tl.int32)) * scale
    if POWERS:
        extreme = tl.max(tl.max(((byte < 3) | (byte > 246)).to(tl.int32), 1), 0) != 0
        if extreme:
            y = finite(y)
            if NARROW and tl.max(tl.max(tl.where(mask & (y == y), bits_of(y) & 0xFFFF, 0), 1), 0) != 0:
                tl.store(flag, 1)
    if OUTER:
        y = finite(y * tl.load(outers + row, mask=inside, other=1.0)[:, None])
    if FACTOR:
        y = y * tl.load(factors + row, mask=inside, other=1.0)[:, None]
    if NARROW:
        tl.store(out + at, bf16_bits(y).to(tl.int16), mask=mask)
    else:
        tl.store(out + at, y, mask=mask)


def decode(
    codes: Tensor,
    scales: Tensor,
    table: Tensor,
    element: str,
    block: int,
    outer: Tensor | None = None,
    factor: Tensor | None = None,
    *,
    powers: bool,
    narrow: bool = False,
) -> tuple[Tensor, Tensor]:
    """Values (R, K) of codes.

    Args:
        codes: uint8 (R, K), contiguous. scales: uint8 (lines, columns), E8M0 codes if `powers`, else E4M3. table: int32
            (R,), the line of scales of each row. element: "E2M1", "E4M3", "S2F6". block: columns that share a scale.
        outer, factor: float32 (R,), multiplied last, in this order. narrow: BF16, rounded once.

    Returns: float32 or bfloat16 (R, K), and an int32 (1,): 1 if narrow and BF16 does not hold a code's value under its
        E8M0 scale.
    Raises: ValueError where the kernel cannot run.
    """
    require_launch(_decode, codes, "codes")
    rows, width = codes.shape
    out = torch.empty(rows, width, dtype=torch.bfloat16 if narrow else torch.float32, device=codes.device)
    flag = torch.zeros(1, dtype=torch.int32, device=codes.device)
    if out.numel():
        wide = min(512, max(32, triton.next_power_of_2(width)))
        tall = _TILE // wide
        launch(
            _decode, (triton.cdiv(rows, tall), triton.cdiv(width, wide)), codes, scales, table,
            scales if outer is None else outer, scales if factor is None else factor, flag,
            out.view(torch.int16) if narrow else out, rows, width, scales.shape[1], ELEMENT=_ELEMENTS[element],
            POWERS=powers, BLOCK=block, OUTER=outer is not None, FACTOR=factor is not None, NARROW=narrow, ROWS=tall,
            WIDE=wide,
        )  # fmt: skip
    return out, flag


def _codes(element: str, block: int, narrow: bool) -> tuple[Tensor, Tensor]:
    scales, table = meta(256, 4096 // block, dtype=torch.uint8), meta(256, dtype=torch.int32)
    factor = None if narrow else meta(256, dtype=torch.float32)
    codes = meta(256, 4096, dtype=torch.uint8)
    return decode(codes, scales, table, element, block, factor, factor, powers=block == 32, narrow=narrow)


CONTRACT = Contract(  # a thread has 16 values
    (
        Case(
            "NVFP4 to FP32",
            lambda: _codes("E2M1", 16, False),
            native=(at_least(E2M1_TO_F16, 8), at_least(E4M3_TO_F16, 1)),
        ),
        Case(
            "MXFP8 to BF16", lambda: _codes("E4M3", 32, True), (at_least(E4M3_TO_F16, 8),), (at_least(E4M3_TO_F16, 8),)
        ),
        Case("MXS2F6 to FP32", lambda: _codes("S2F6", 32, False), native=(at_least(S2F6_TO_BF16, 8),)),
    ),
    ran="h200_triton",
    interpreted="test_hw_decode.py",
    native="test_hw_native.py",
)
