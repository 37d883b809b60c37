"""The combine as one Triton kernel: decode the experts' rows of each token, weight and add them, invert the Hadamard.

    out[t] = bf16(S H sum_k weights[t, k] * decoded[slots[t, k]] / sqrt(32))        decoded = code value * block scale

FP32: decoded values saturate at FLT_MAX, the product is rounded, terms are added in the order of k, then comes the
butterfly with its factor, then the signs, then one rounding to BF16. Payloads are S2F6 or E4M3 codes in blocks of 32
under E8M0 scales, or plain BF16 or FP32 rows. The bits are those of `numerics.ops.aggregate`; any NaN stands for any
other.

One thread holds a block of 32 in four pieces of eight, so that sums and butterfly need no other thread; the decoded
rows never reach memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

import numerics as nm

from .contracts import S2F6_TO_BF16, Case, Contract, at_least, meta
from .device import require_launch
from .kernel_blocks32 import column_mask, hadamard32, sign_piece, tiling
from .kernel_casts import E4M3, FLT_MAX, S2F6, bf16_bits, e4m3_byte, e8m0_value, float_of, widen
from .kernel_ptx import s2f6_scaled
from .launches import launch

SIZE = 32  # of the Hadamard transform
PLAIN = tl.constexpr(3)  # beside S2F6 and E4M3: no codes
_ELEMENTS = {nm.S2F6: S2F6.value, nm.E4M3: E4M3.value}


@triton.jit
def _s2f6_units(code):
    """float32 of S2F6 codes, uint8, in 64ths: the low bits of a number 2^23 + 128 + code, without a conversion."""
    return float_of((code.to(tl.int32) ^ 0x80) | 0x4B000000) - 8388736.0


@triton.jit
def _decoded(row, column, width, inside, step, ELEMENT: tl.constexpr, P: tl.constexpr, NATIVE: tl.constexpr):
    """Piece P of blocks whose rows start at the pointers `row`, float32 (N, 8). step: their scales; of S2F6 / 64, or
    natively the scales' codes."""
    at = row[:, None] + (column[:, None] + (P * 8 + tl.arange(0, 8))[None, :])
    mask = column_mask(inside, column, width, P)
    if ELEMENT == PLAIN:
        return widen(tl.load(at, mask=mask, other=0.0))
    elif ELEMENT == S2F6:  # reaches FLT_MAX on the negative side alone, as -2 * 2^127
        code = tl.load(at, mask=mask, other=0)
        if NATIVE:
            x = s2f6_scaled(code.to(tl.int32), step[:, None])
        else:
            x = _s2f6_units(code) * step[:, None]
        return tl.maximum(x, -FLT_MAX, propagate_nan=tl.PropagateNan.ALL)
    else:
        x = e4m3_byte(tl.load(at, mask=mask, other=0)) * step[:, None]
        x = tl.minimum(x, FLT_MAX, propagate_nan=tl.PropagateNan.ALL)
        return tl.maximum(x, -FLT_MAX, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _store(out, x, column, width, inside, P: tl.constexpr):
    """Piece P as BF16 patterns, at the pointers `out` of the rows."""
    at = out[:, None] + (column[:, None] + (P * 8 + tl.arange(0, 8))[None, :])
    tl.store(at, bf16_bits(x).to(tl.int16), mask=column_mask(inside, column, width, P))


@triton.jit
def _aggregate(
    payload, scales, slots, weights, signs, out, tokens, width, blocks,
    K: tl.constexpr, ELEMENT: tl.constexpr, WEIGHTED: tl.constexpr, ROTATED: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """ROWS tokens, WIDTH blocks of each. payload (R, width), scales (R, blocks), slots and weights (tokens, K)."""
    N: tl.constexpr = ROWS * WIDTH
    i = tl.arange(0, N)
    token = tl.program_id(0).to(tl.int64) * ROWS + i // WIDTH
    block = tl.program_id(1) * WIDTH + i % WIDTH
    column = block * 32
    inside = (token < tokens) & (block < blocks)
    for k in tl.static_range(K):
        slot = tl.load(slots + token * K + k, mask=inside, other=0)
        step = tl.full((N,), 1.0, tl.float32)
        if ELEMENT != PLAIN:
            step = tl.load(scales + slot * blocks + block, mask=inside, other=0).to(tl.int32)
            if ELEMENT == E4M3 or not NATIVE:
                step = e8m0_value(step)
                if ELEMENT == S2F6:
                    step *= 0.015625  # exact: codes count 64ths
        row = payload + slot * width
        ta = _decoded(row, column, width, inside, step, ELEMENT, 0, NATIVE)
        tb = _decoded(row, column, width, inside, step, ELEMENT, 1, NATIVE)
        tc = _decoded(row, column, width, inside, step, ELEMENT, 2, NATIVE)
        td = _decoded(row, column, width, inside, step, ELEMENT, 3, NATIVE)
        if WEIGHTED:
            w = tl.load(weights + token * K + k, mask=inside, other=0.0)[:, None]
            ta, tb, tc, td = ta * w, tb * w, tc * w, td * w
        if k == 0:  # not added to zero, which would lose the sign of -0
            a, b, c, d = ta, tb, tc, td
        else:
            a, b, c, d = a + ta, b + tb, c + tc, d + td
    if ROTATED:
        a, b, c, d = hadamard32(a, b, c, d, N)
        a, b = a * sign_piece(signs, 0), b * sign_piece(signs, 1)
        c, d = c * sign_piece(signs, 2), d * sign_piece(signs, 3)
    to = out + token * width
    _store(to, a, column, width, inside, 0)
    _store(to, b, column, width, inside, 1)
    _store(to, c, column, width, inside, 2)
    _store(to, d, column, width, inside, 3)


def aggregate(
    payload: Tensor,
    slots: Tensor,
    weights: Tensor | None = None,
    signs: Tensor | None = None,
    scales: Tensor | None = None,
    element: nm.Format | None = None,
) -> Tensor:
    """The weighted sum of each token's expert rows, as `numerics.ops.aggregate` gives it first.

    Args:
        payload: (R, D); uint8 codes of `element`, or bfloat16 or float32 rows. slots: int64 (T, K), rows of it.
        weights: float32 (T, K), or None: rows are added as they are.
        signs: (32,) of +-1, of the Hadamard transform to invert, or None; D is then a multiple of 32.
        scales: uint8 (R, ceil(D / 32)) E8M0 codes. element: nm.S2F6 or nm.E4M3. Both None for plain rows.

    Returns: bfloat16 (T, D).
    Raises: NotImplementedError for a transform of another size, codes of another element. ValueError without a device
        that kernels can run on. All else is the caller's to check.
    """
    require_launch(_aggregate, payload, "payload")
    if signs is not None and len(signs) != SIZE:
        raise NotImplementedError(f"signs has length {len(signs)}: this kernel inverts Hadamard transforms of {SIZE}")
    if element is not None and element not in _ELEMENTS:
        raise NotImplementedError(f"element={element.name}: this kernel decodes S2F6 and E4M3, and takes plain rows")
    tokens, top, width = *slots.shape, payload.shape[1]
    out = torch.empty(tokens, width, dtype=torch.bfloat16, device=payload.device)
    if not out.numel():
        return out
    blocks, rows, wide, parts = tiling(width, 32)
    payload, slots = payload.contiguous(), slots.contiguous()
    # a part that is absent is never read: any pointer stands for it
    launch(
        _aggregate, (triton.cdiv(tokens, rows), parts),
        payload,
        payload if scales is None else scales.contiguous(),
        slots,
        slots if weights is None else weights.contiguous(),
        slots if signs is None else signs.to(payload.device, torch.float32).contiguous(),
        out.view(torch.int16), tokens, width, blocks,
        K=top, ELEMENT=PLAIN.value if element is None else _ELEMENTS[element],
        WEIGHTED=weights is not None, ROTATED=signs is not None, ROWS=rows, WIDTH=wide,
    )  # fmt: skip
    return out


def _rows(payload: Tensor, scales: Tensor | None, element: nm.Format | None) -> Tensor:
    slots, weights = meta(256, 4, dtype=torch.int64), meta(256, 4, dtype=torch.float32)
    return aggregate(payload, slots, weights, meta(32, dtype=torch.float32), scales, element)


def _wire(element: nm.Format) -> Tensor:
    return _rows(meta(1024, 4096, dtype=torch.uint8), meta(1024, 128, dtype=torch.uint8), element)


CONTRACT = Contract(  # a thread has a block of 32 of each of 4 experts
    (
        Case("S2F6 rows, Hadamard-32", lambda: _wire(nm.S2F6), native=(at_least(S2F6_TO_BF16, 64),)),
        Case("E4M3 rows, Hadamard-32", lambda: _wire(nm.E4M3)),
        Case("plain rows, Hadamard-32", lambda: _rows(meta(1024, 4096), None, None)),
    ),
    ran="h200_triton",
    interpreted="test_hw_aggregate.py",
    native="test_hw_native.py",
)
