"""Rows in BF16 as they come about: gathered, multiplied by a factor, or SwiGLU of their halves, in one launch.

    bf16(x[index] * factor)        bf16(silu(gate) * up), gate and up rounded to BF16 first

What quantizers along features read (`kernel_pieces`), written down instead of quantized: for recipes that say BF16. The
bits are those of `sources.Source.tensor`, rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contracts import Case, Contract, meta
from .device import require_launch
from .kernel_casts import bf16_bits
from .kernel_pieces import eight
from .launches import launch
from .sources import Source

PIECES = 256  # of eight values, in a program


@triton.jit
def _rows(
    x, index, factors, table, kept, out, rows, width,
    GATHER: tl.constexpr, FACTOR: tl.constexpr, GLU: tl.constexpr, KEEP: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N pieces of eight values; width a multiple of 8."""
    piece = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    row, place = piece // (width // 8), piece % (width // 8)
    inside = row < rows
    source = tl.load(index + row, mask=inside, other=0) if GATHER else row
    factor = tl.load(factors + row, mask=inside, other=0.0) if FACTOR else tl.zeros((N,), tl.float32)
    y = eight(x, factor, table, kept, source, place * 8, width, inside, FACTOR, GLU, KEEP)
    to = out + (piece * 8)[:, None] + tl.arange(0, 8)[None, :]
    tl.store(to, bf16_bits(y).to(tl.int16), mask=inside[:, None])


def rows(source: Source) -> Tensor:
    """BF16 (R, K) of a source. Raises: ValueError where the kernel cannot run."""
    require_launch(_rows, source.x, "x")
    if source.width % 8:
        return source.tensor().to(torch.bfloat16)
    out = torch.empty(source.rows, source.width, dtype=torch.bfloat16, device=source.x.device)
    if out.numel():
        launch(
            _rows, (triton.cdiv(out.numel() // 8, PIECES),), *source.arguments, out.view(torch.int16), source.rows,
            source.width, **source.constants, N=PIECES,
        )  # fmt: skip
    return out


CONTRACT = Contract(
    (
        Case(
            "gathered and weighted",
            lambda: rows(Source(meta(256, 4096), meta(512, dtype=torch.int64), meta(512, dtype=torch.float32))),
        ),
        Case("SwiGLU", lambda: rows(Source(meta(256, 4096), glu=True))),
    ),
    ran="h200_tests.json",
    interpreted="test_hw_rows.py",
)
