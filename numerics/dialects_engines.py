"""NVFP4 of libraries that run models: FlashInfer's four over six, vLLM, triton_kernels, MLX, GGML. Rules and entries.

Notation as in `dialects_nv`. One level of scales where no outer is named: what their formats lack, vLLM and FlashInfer
aside. The libraries round alike to nearest, but GGML and MLX on a CPU search for the first code with the least error,
which sends ties toward zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from . import dialects_nv as nv
from . import dialects_orders as orders
from .codes import decode_tensor
from .dialects_casts import const, e4m3, least_error, nearest
from .dialects_core import Blocks, Dialect, Prose, Steps
from .dialects_te import NVFP4, plain
from .formats import E4M3

_EVEN = "ties to even"
_UNDERFLOW = "0x00, also where the scale underflows"


def _sixth(blocks: Blocks) -> Tensor:
    return blocks.amax / const(blocks.amax, 6.0)


def _where_zero(s: Tensor, otherwise: Tensor) -> Tensor:
    """0 where s is 0."""
    return torch.where(s == 0, const(s, 0.0), otherwise)


# ---- vLLM, triton_kernels --------------------------------------------------------------------------------------------


def vllm(blocks: Blocks, encode: Tensor) -> Steps:
    """s = e4m3(encode * (b * fl(1/6))), q = e2m1(x * (1 / (s * (1 / encode)))), where 1 / 0 is 1e-8.

    Its cast multiplies a magnitude by sign(x): -0 becomes +0, what rounds to zero keeps its sign.
    """
    ratio = encode * (blocks.amax * (const(encode, 1.0) / const(encode, 6.0)))
    scales, s = e4m3(ratio)
    step = s * _reciprocal(encode)
    scaled = blocks.x * _reciprocal(step)
    return Steps(ratio, scales, scaled, torch.where(scaled == 0, 0, nearest(scaled)).to(torch.uint8))


def _reciprocal(x: Tensor) -> Tensor:
    return const(x, 1.0) / torch.where(x == 0, const(x, 1e8), x)


def triton_kernels(blocks: Blocks, outer: Tensor) -> Steps:
    """s = e4m3(b / 6), q = e2m1(x * (1 / s)), x * 0 where s is 0."""
    ratio = _sixth(blocks)
    scales, s = e4m3(ratio)
    scaled = blocks.x * _where_zero(s, const(s, 1.0) / s)
    return Steps(ratio, scales, scaled, nearest(scaled))


# ---- MLX -------------------------------------------------------------------------------------------------------------


def _saturated(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """As `e4m3`, but NaN becomes 448."""
    return e4m3(torch.where(torch.isnan(ratio), const(ratio, 448.0), ratio))


def mlx(blocks: Blocks, amax: Tensor, outer: bool) -> Steps:
    """Its Metal kernel: s = e4m3((b / 6) * S_enc), q = e2m1(x * (S_enc / s)), x * 0 where s is 0; S_enc is 2688 / A,
    or 1 without an outer scale."""
    s_enc = const(amax, 2688.0) / amax if outer else torch.ones_like(amax)
    ratio = _sixth(blocks) * s_enc
    scales, s = _saturated(ratio)
    scaled = blocks.x * _where_zero(s, s_enc / s)
    return Steps(ratio, scales, scaled, nearest(scaled))


def mlx_cpu(blocks: Blocks, outer: Tensor) -> Steps:
    """Its graph of operations elsewhere: r = b / 6 and x / s in x's dtype, s = e4m3(r), q the first code with the
    least error."""

    def rounded(t: Tensor) -> Tensor:
        return t.to(blocks.dtype).to(torch.float32)

    ratio = rounded(_sixth(blocks))
    scales, s = _saturated(ratio)
    scaled = rounded(blocks.x / s)
    return Steps(ratio, scales, scaled, least_error(scaled, torch.ones_like(s)))


# ---- GGML ------------------------------------------------------------------------------------------------------------


def ggml(blocks: Blocks, outer: Tensor) -> Steps:
    """s = ue4m3(b / 6), q the first code with the least |q s - x|."""
    ratio = _sixth(blocks)
    scales, s = ue4m3(ratio)
    return Steps(ratio, scales, _where_zero(s, blocks.x / s), least_error(blocks.x, s))


def ue4m3(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Scale codes of `ggml_fp32_to_ue4m3`, ties up, and their values: below 2^-6 at most 7 * 2^-9, from 248 on 448."""
    bits = ratio.clamp(max=448.0).view(torch.int32)
    normal = ((bits >> 20) + ((bits >> 19) & 1) - (120 << 3)).clamp(max=0x7E)
    normal = torch.where(normal >= 0x78, 0x7E, normal)
    small = (ratio * 512.0 + 0.5).clamp(max=7.0).to(torch.int32)
    codes = torch.where(ratio < 2.0**-6, small, normal).to(torch.uint8)
    return codes, decode_tensor(codes, E4M3)


# ---- entries ---------------------------------------------------------------------------------------------------------


def _flashinfer_46(name: str, flag: str, steps: Callable[..., Steps], scored: str) -> Dialect:
    return Dialect(
        name,
        "flashinfer-ai/flashinfer fb28d72, tests/test_helpers/utils_fp4.py, ref_fp4_quant_4over6_te; csrc/nv_internal/"
        f"tensorrt_llm/kernels/quantization_utils.cuh, cvt_warp_fp16_to_fp4 with FLASHINFER_NVFP4_4OVER6=1{flag} and "
        "FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH=1",
        NVFP4,
        Prose(
            "encode, S_enc = min(2688 / A, FLT_MAX), 1 where A is infinite",
            "e4m3(r) of r = (b / 6) * S_enc or r * 1.5, whichever has the smaller sum of errors, from the first value "
            f"to the last; the choice compares {scored}",
            "0x00 with codes of +0 for a zero block; 0x00 where the scale underflows: elements then saturate",
            f"x * min(1 / (s * (1 / S_enc)), FLT_MAX), hardware cast: {_EVEN}, -0 kept, NaN 7",
            "amax passes over NaN",
            "(q * s) * (1 / S_enc)",
            "the kernel was read, not run (its threads of 8 values add two partial sums); the reference makes +0 of -0",
        ),
        plain(partial(steps, measure=torch.abs)),
        orders.inner_over_encode,
        "encode",
        partial(orders.te_encode, outer_max=2688.0),
        nonfinite="skip",
    )


FLASHINFER_46 = (
    _flashinfer_46("flashinfer_46", "", nv.flashinfer_46, "(q * s) * (1 / S_enc) with x"),
    _flashinfer_46(
        "flashinfer_46_fast",
        ", FLASHINFER_NVFP4_4OVER6_ERR_USE_FAST_MATH=1",
        nv.flashinfer_46_fast,
        "q * s (FP16) with x * S_enc",
    ),
)
VLLM = Dialect(
    "vllm",
    "vllm-project/vllm 0.32.0, vllm/model_executor/layers/quantization/utils/nvfp4_emulation_utils.py, ref_nvfp4_quant",
    NVFP4,
    Prose(
        "encode, (1 / A) * 2688, as torch divides a number by a tensor; infinite for zeros, whose scales are then NaN",
        "e4m3(encode * (b * fl(1/6)))",
        "0x00, also where the scale underflows; its elements are multiplied by 1e-8",
        f"x * (1 / (s * (1 / encode))), {_EVEN}, -0 becomes +0",
        "a NaN makes every scale NaN",
        "q * (s / encode)",
        "the code of a NaN depends on its payload",
    ),
    plain(vllm),
    orders.over_encode,
    "encode",
    orders.encode_factor,
    defined_nan=False,
)
TRITON_NVFP4 = Dialect(
    "triton_nvfp4",
    "triton-lang/triton 018a674, python/triton_kernels/triton_kernels/numerics_details/mxfp.py, "
    "downcast_to_mxfp_torch with E4M3 scales, ROUND_NEAREST",
    NVFP4,
    Prose(
        "none",
        "e4m3(b / 6)",
        _UNDERFLOW + "; its elements are multiplied by 0",
        f"x * (1 / s), {_EVEN}, -0 kept",
        "a NaN makes its own block's scale NaN; an infinity has scale 448 and code 7",
        "q * s",
        "ROUND_UP, whose scales are cast without a limit: beyond 464 torch made NaN before 2.13; "
        "the code of a NaN depends on its payload",
    ),
    plain(triton_kernels),
    orders.one_level,
    defined_nan=False,
)
_METAL = "ml-explore/mlx 0.32.4, mlx/backend/metal/kernels/fp_quantized.h, fp_quantize with fp8.h and fp4.h"


def _mlx(name: str, source: str, outer: bool, prose: Prose) -> Dialect:
    return Dialect(
        name,
        source,
        NVFP4,
        prose,
        plain(partial(mlx, outer=outer)),
        partial(orders.decode_last, outer_max=2688.0) if outer else orders.one_level,
        "amax" if outer else None,
        orders.the_amax if outer else None,
        nonfinite="skip",
    )


_MLX_NAN = "a NaN is code 7; a scale that would be NaN is 448"
_MLX_READ = "the kernel was read, not run; whether Metal's maximum passes over NaN (here it does)"
MLX = (
    _mlx(
        "mlx_nvfp4",
        _METAL,
        False,
        Prose(
            "none",
            "e4m3(b / 6)",
            _UNDERFLOW + "; its elements are multiplied by 0",
            f"x * (1 / s), {_EVEN}, -0 kept",
            _MLX_NAN,
            "q * s",
            _MLX_READ,
        ),
    ),
    _mlx(
        "mlx_nvfp4_two_level",
        _METAL + ", with global_scale",
        True,
        Prose(
            "the tensor's amax A itself; S_enc = 2688 / A, infinite for zeros, whose scales are then 448",
            "e4m3((b / 6) * S_enc)",
            _UNDERFLOW + "; its elements are multiplied by 0",
            f"x * (S_enc / s), {_EVEN}, -0 kept",
            _MLX_NAN,
            "q * (s * (A / 2688))",
            _MLX_READ,
        ),
    ),
    Dialect(
        "mlx_nvfp4_cpu",
        "ml-explore/mlx 846d176 and 0.32.4, mlx/ops.cpp, fp_quantize: the graph that stands for the kernel on a CPU",
        NVFP4,
        Prose(
            "none",
            "e4m3(b / 6), b / 6 in x's dtype",
            _UNDERFLOW + ", with codes of +0",
            "x / s in x's dtype, the first code with the least |q - x / s|: ties toward zero, every zero is +0",
            "a NaN or an infinity makes its block's scale 448 and is code 0",
            "q * s",
        ),
        plain(mlx_cpu),
        orders.one_level,
        rounding="ties toward zero",
    ),
)
GGML = Dialect(
    "ggml_nvfp4",
    "ggml-org/llama.cpp 01243c5, ggml/src/ggml-quants.c, quantize_row_nvfp4_ref; ggml-impl.h, ggml_fp32_to_ue4m3",
    NVFP4,
    Prose(
        "none",
        "b / 6 to E4M3 with ties up, below 2^-6 at most 7 * 2^-9, from 248 on 448",
        _UNDERFLOW + ", with codes of +0",
        "the first code with the least |q s - x|: ties toward zero, every zero is +0; too small a code where x is 2^25 "
        "times s or more, 0 from 2^28 times on",
        "amax passes over NaN, whose code is 0; so is an infinity's, whose scale is 448",
        "q * s",
        "the order of nibbles in its file, and the scale of the tensor beside it",
    ),
    plain(ggml),
    orders.one_level,
    nonfinite="skip",
    rounding="ties toward zero",
)

ENGINES: tuple[Dialect, ...] = (*FLASHINFER_46, VLLM, TRITON_NVFP4, *MLX, GGML)
