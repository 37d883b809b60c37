"""FP8 blocks of public quantizers, E4M3 with a float32 scale per 1 x 128 or 128 x 128 values: rules and entries.

Notation: b the block's amax, s its scale. UE8M0 scales are powers of two, kept in float32 here; their exponents are
also packed, four in an int32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .dialects_casts import const, nearest, rounded_logarithm
from .dialects_core import Blocks, Dialect, Outer, Prose, Steps
from .dialects_orders import one_level

_LINES, _BOTH = ("FP8_1X128",), ("FP8_1X128", "FP8_128X128")
LARGEST = 448.0


def deepgemm(blocks: Blocks, outer: Outer, power: bool) -> Steps:
    """r = max(b, 1e-4) / 448, s = r, or `power`: r rounded up to a power of two, 2^-126 to 2^127.

    q rounds x * (1 / s).
    """
    ratio = blocks.amax.clamp(min=1e-4) / const(blocks.amax, LARGEST)
    bits = ratio.view(torch.int32)
    up = ((bits >> 23) + ((bits & 0x7FFFFF) != 0)).clamp(1, 254) << 23
    s = up.view(torch.float32) if power else ratio
    scaled = blocks.x * (const(s, 1.0) / s)
    return Steps(ratio, s, scaled, nearest(scaled, blocks.element))


def vllm(blocks: Blocks, outer: Outer, power: bool) -> Steps:
    """Its kernel: r = max(b, 1e-10) * fl(1/448), s = r, or `power`: 2^ceil(fl(log2 r)); q rounds x / s."""
    ratio = blocks.amax.clamp(min=1e-10) * (const(blocks.amax, 1.0) / const(blocks.amax, LARGEST))
    return _divided(blocks, ratio, torch.exp2(torch.ceil(rounded_logarithm(ratio))) if power else ratio)


def vllm_native(blocks: Blocks, outer: Outer) -> Steps:
    """Its torch operations: r = b / 448, s = max(r, fl(1 / 229376)); q rounds x / s."""
    ratio = blocks.amax / const(blocks.amax, LARGEST)
    return _divided(blocks, ratio, ratio.clamp(min=1.0 / (LARGEST * 512.0)))


def _divided(blocks: Blocks, ratio: Tensor, s: Tensor) -> Steps:
    scaled = blocks.x / s
    return Steps(ratio, s, scaled, nearest(scaled, blocks.element))


def _fp8(
    name: str,
    source: str,
    formats: tuple[str, ...],
    steps: Callable[[Blocks, Outer], Steps],
    words: tuple[str, str, str, str],
    limits: str = "the code of a NaN depends on its payload",
) -> Dialect:
    scale, zero, elements, nonfinite = words
    prose = Prose("none", scale, zero, elements + ", ties to even, saturating, -0 kept", nonfinite, "q * s", limits)
    return Dialect(name, source, formats, prose, steps, one_level, defined_nan=False, scale_format=None)


_DEEPGEMM = "deepseek-ai/DeepGEMM 54e2261, deep_gemm/utils/math.py, per_token_cast_to_fp8 and per_block_cast_to_fp8"
_VLLM = "vllm-project/vllm 0.32.0, vllm/model_executor/layers/quantization/"
_KERNEL = _VLLM + "utils/fp8_utils.py, _per_token_group_quant_fp8"
_GPU = "Triton's `/`, maximum and log2 on a GPU; NaN and infinities; the code of a NaN"
FP8: tuple[Dialect, ...] = (
    _fp8(
        "deepgemm_fp8",
        _DEEPGEMM,
        _BOTH,
        partial(deepgemm, power=False),
        (
            "max(b, 1e-4) / 448",
            "fl(1e-4 / 448), the least",
            "x * (1 / s)",
            "a NaN makes its block's scale NaN, an infinity infinite: its block is then zeros and a NaN",
        ),
    ),
    _fp8(
        "deepgemm_fp8_ue8m0",
        _DEEPGEMM + ", use_ue8m0",
        _BOTH,
        partial(deepgemm, power=True),
        (
            "max(b, 1e-4) / 448 rounded up to a power of two",
            "2^-22, the least",
            "x * (1 / s)",
            "a NaN or an infinity makes its block's scale 2^127",
        ),
    ),
    _fp8(
        "vllm_fp8",
        _KERNEL,
        _LINES,
        partial(vllm, power=False),
        ("max(b, 1e-10) * fl(1/448)", "fl(1e-10 * fl(1/448)), the least", "x / s", "not claimed"),
        _GPU,
    ),
    _fp8(
        "vllm_fp8_ue8m0",
        _KERNEL + ", use_ue8m0",
        _LINES,
        partial(vllm, power=True),
        ("2^ceil(fl(log2(max(b, 1e-10) * fl(1/448))))", "2^-42, the least", "x / s", "not claimed"),
        _GPU,
    ),
    _fp8(
        "vllm_fp8_native",
        _VLLM + "input_quant_fp8.py, _quantize_group_native",
        _LINES,
        vllm_native,
        (
            "max(b / 448, fl(1 / 229376))",
            "fl(1 / 229376), the least",
            "x / s",
            "a NaN makes its block's scale NaN, an infinity infinite: its block is then zeros and a NaN",
        ),
    ),
)
