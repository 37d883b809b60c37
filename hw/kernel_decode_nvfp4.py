"""Packed NVFP4 along features to BF16, without the outer scale: exact, at copy speed.

A thread reads eight codes in a word and writes eight values, 16 bytes. An E2M1 value times an E4M3 scale has at most
six significant bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contracts import E2M1_TO_F16, E4M3_TO_F16, Case, Contract, at_least, exactly, meta
from .device import require_launch
from .kernel_casts import bits_of, e2m1_decoded, e4m3_decoded
from .kernel_ptx import e2m1_values, e4m3_number
from .launches import launch


@triton.jit
def _decode_nvfp4(words, scales, out, count, N: tl.constexpr, NATIVE: tl.constexpr):
    """N words of eight codes."""
    word = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    inside = word < count
    codes = tl.load(words + word, mask=inside, other=0)
    byte = tl.load(scales + word // 2, mask=inside, other=0).to(tl.int32)
    scale = e4m3_number(byte) if NATIVE else e4m3_decoded(byte)
    if NATIVE:
        values = e2m1_values(codes, N)
    else:
        values = e2m1_decoded((codes[:, None] >> (tl.arange(0, 8) * 4)[None, :]) & 15)
    y = values * scale[:, None]
    at = word[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(out + at, (bits_of(y) >> 16).to(tl.int16), mask=inside[:, None])


def decode_nvfp4(packed: Tensor, scales: Tensor) -> Tensor:
    """bfloat16 (R, K) of packed codes, uint8 (R, K / 2), and E4M3 scales, uint8 (R, K / 16), both contiguous.

    Raises: ValueError where the kernel cannot run.
    """
    require_launch(_decode_nvfp4, packed, "packed")
    out = torch.empty(packed.shape[0], packed.shape[1] * 2, dtype=torch.bfloat16, device=packed.device)
    if out.numel():
        count, words = out.numel() // 8, min(512, triton.next_power_of_2(out.numel() // 8))
        launch(
            _decode_nvfp4, (triton.cdiv(count, words),), packed.view(torch.int32), scales, out.view(torch.int16), count,
            N=words,
        )  # fmt: skip
    return out


CONTRACT = Contract(  # a thread has 32 values
    (
        Case(
            "rows",
            lambda: decode_nvfp4(meta(256, 2048, dtype=torch.uint8), meta(256, 256, dtype=torch.uint8)),
            native=(exactly(E2M1_TO_F16, 16), at_least(E4M3_TO_F16, 1)),
        ),
    ),
    ran="h200_triton",
    interpreted="test_hw_decode.py",
    native="test_hw_native.py",
)
