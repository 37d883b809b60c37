"""A block of 32 values held by one thread in four pieces of eight, as Triton device functions of tensors (N, 8).

    hadamard32      butterfly of strides 1, 2, 4 inside the pieces, 8 and 16 between them, times fl(32^-1/2)
    column_mask     where a piece lies inside of the rows

The bits are those of `numerics.hadamard`. A program holds ROWS rows of WIDTH
blocks, N = ROWS WIDTH: `tiling` says how many.
"""

import triton
import triton.language as tl

from .kernel_casts import three_stages

BLOCK = 32
BLOCKS = 128  # of a program: one for each thread of four warps


@triton.jit
def hadamard32(a, b, c, d, N: tl.constexpr):
    """H x / sqrt(32) of blocks in four pieces (N, 8), each sum the same tree of additions as in `numerics.hadamard`."""
    a, b, c, d = three_stages(a, N), three_stages(b, N), three_stages(c, N), three_stages(d, N)
    a, b, c, d = a + b, a - b, c + d, c - d
    a, b, c, d = a + c, b + d, a - c, b - d
    f: tl.constexpr = 0.1767766922712326  # fl(32^-1/2)
    return a * f, b * f, c * f, d * f


@triton.jit
def sign_piece(signs, P: tl.constexpr):
    """Signs (1, 8) of piece P of a block, from float32 (32,)."""
    return tl.load(signs + P * 8 + tl.arange(0, 8))[None, :]


@triton.jit
def column_mask(inside, column, width, P: tl.constexpr):
    """(N, 8): where piece P of the blocks that start at `column`, int32 (N,), lies inside of rows of `width` values."""
    return inside[:, None] & ((column[:, None] + (P * 8 + tl.arange(0, 8))[None, :]) < width)


def tiling(width: int, most: int = BLOCKS) -> tuple[int, int, int, int]:
    """Blocks of a row of `width` values, the ragged last one too; ROWS and WIDTH of a program; programs of a row.

    Args: most: the largest WIDTH, a power of two up to BLOCKS. A small one leaves few threads idle in a row's last
    program, the largest keeps most of a row in one program.
    """
    blocks = triton.cdiv(width, BLOCK)
    wide = min(triton.next_power_of_2(blocks), most)
    return blocks, BLOCKS // wide, wide, triton.cdiv(blocks, wide)
