"""What quantizers along features read: eight neighbouring values of each of N rows, however they come about.

    plain       x[row]
    factor      x[row] * factor[row], one FP32 product: a gathered gradient with its weight, a sum with its outer scales
    GLU         bf16(silu(gate) * up), gate and up halves of a row, BF16 or rounded to it here (see `numerics.swiglu`)

A thread holds whole blocks in such pieces, so that maxima, sums of errors and butterflies need no other thread.
"""

import triton
import triton.language as tl

from .kernel_casts import bf16_bits, bits_of, float_of, near_bf16, widen
from .philox import group_fields, philox_words


@triton.jit
def eight(
    x, factor, table, kept, row, column, width, inside,
    FACTOR: tl.constexpr, GLU: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """float32 (N, 8): values `column` to `column` + 7 of rows `row`, int64 (N,); zeros where not `inside`.

    factor: float32 (N,). table: silu by BF16 pattern, int16. KEEP: gate and up go to `kept`, int16, as BF16.
    """
    m = inside[:, None]
    if GLU:
        at = (row * (2 * width) + column)[:, None] + tl.arange(0, 8)[None, :]
        gate = widen(tl.load(x + at, mask=m, other=0.0))
        up = widen(tl.load(x + at + width, mask=m, other=0.0))
        if FACTOR:
            gate, up = gate * factor[:, None], up * factor[:, None]
        pattern = bf16_bits(gate)
        up = near_bf16(up)
        if KEEP:
            tl.store(kept + at, pattern.to(tl.int16), mask=m)
            tl.store(kept + at + width, (bits_of(up) >> 16).to(tl.int16), mask=m)
        silu = float_of(tl.load(table + pattern).to(tl.int32) << 16)
        return near_bf16(silu * up)
    else:
        y = widen(tl.load(x + (row * width + column)[:, None] + tl.arange(0, 8)[None, :], mask=m, other=0.0))
        if FACTOR:
            y = y * factor[:, None]
        return y


@triton.jit
def halves(x, N: tl.constexpr):
    """(N, 16) as two (N, 8)."""
    return tl.split(tl.permute(tl.reshape(x, (N, 2, 8)), (0, 2, 1)))


@triton.jit
def drawn_words(key, expert, line, group):
    """Random words, four uint32 (N,), of groups of 16: each serves four elements.

    key: int64 (4,), k0, k1, c0, c1. expert, line, group: int32 (N,); see `numerics.partition.random_fields`.
    """
    zero = (line ^ line).to(tl.uint32)
    k0 = zero + tl.load(key).to(tl.uint32)
    k1 = zero + tl.load(key + 1).to(tl.uint32)
    c0 = zero + tl.load(key + 2).to(tl.uint32)
    c1 = zero + tl.load(key + 3).to(tl.uint32) + expert.to(tl.uint32)
    return philox_words(k0, k1, c0, c1, line.to(tl.uint32), zero + group.to(tl.uint32))


@triton.jit
def drawn_fields(key, expert, line, group, N: tl.constexpr, NARROW: tl.constexpr):
    """Random fields (N, 8), int32, of the first and the second eight elements of a group of 16; see `drawn_words`."""
    w0, w1, w2, w3 = drawn_words(key, expert, line, group)
    return halves(group_fields(w0, w1, w2, w3, NARROW).to(tl.int32), N)
