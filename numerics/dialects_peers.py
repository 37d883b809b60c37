"""Entries of the NVFP4 quantizers that are not Transformer Engine's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from . import dialects_nv as nv
from . import dialects_orders as orders
from .dialects_casts import square, tree
from .dialects_core import Dialect, Prose, Steps
from .dialects_te import NVFP4, plain

_EVEN = "ties to even"
_NAN_CODE = "the code of a NaN depends on its payload"
_DECODE = "decode, A / 2688"

TORCHAO = Dialect(
    "torchao",
    "pytorch/ao 0.18.0, torchao/prototype/mx_formats/nvfp4_tensor.py, nvfp4_quantize with per_tensor_amax_to_scale",
    NVFP4,
    Prose(
        _DECODE + "; 0 for an all-zero tensor, whose scales are NaN",
        "e4m3(clamp((b / 6) / outer, 2^-6, 448))",
        "0x08 (2^-6), also for every scale below it",
        f"x * ((1 / outer) / s), {_EVEN}, -0 kept",
        "a NaN makes every scale NaN; an infinity its own block's, the others are 0x08 with codes of zero",
        "q * (outer * s)",
        _NAN_CODE,
    ),
    plain(nv.torchao),
    orders.scales_first,
    "decode",
    orders.decode_factor,
    defined_nan=False,
)
TORCHAO_ONE_LEVEL = Dialect(
    "torchao_one_level",
    "pytorch/ao 0.18.0, torchao/prototype/mx_formats/nvfp4_tensor.py, nvfp4_quantize without per_tensor_scale",
    NVFP4,
    Prose(
        "none",
        "e4m3(clamp(b / 6, 2^-6, 448))",
        "0x08 (2^-6), also for every scale below it",
        f"x * (1 / s), {_EVEN}, -0 kept",
        "a NaN makes its own block's scale NaN; an infinity has scale 448 and code 7",
        "q * s",
        _NAN_CODE,
    ),
    plain(nv.torchao_one_level),
    orders.one_level,
    defined_nan=False,
)
MODELOPT = Dialect(
    "modelopt",
    "NVIDIA/Model-Optimizer 0.47.0, modelopt/torch/quantization/qtensor/nvfp4_tensor.py, NVFP4QTensor.quantize",
    NVFP4,
    Prose(
        _DECODE + "; 0 for an all-zero tensor, whose scales are NaN",
        "e4m3(clamp(b / (6 * outer), 2^-9, 448))",
        "0x38 (1.0) for a zero block; 0x01 (2^-9) where the scale underflows",
        f"x / (s * outer), {_EVEN}, -0 becomes +0",
        "a NaN makes every scale NaN, every code 7; an infinity its own block's, the others are 0x38 with zeros",
        "q * (s * outer); code 8 decodes to +0",
    ),
    plain(nv.modelopt),
    orders.scales_first,
    "decode",
    orders.decode_factor,
    defined_nan=False,
)
COMPRESSED_TENSORS = Dialect(
    "compressed_tensors",
    "vllm-project/compressed-tensors 0.20.1, quantization/utils/helpers.py, generate_gparam and calculate_qparams",
    NVFP4,
    Prose(
        "encode, (1 / A) * 2688, both rounded to x's dtype; 1 where that is NaN or infinite",
        "e4m3(encode * (b / 6)), b / 6 rounded to x's dtype",
        "0x20 (0.125), also where the scale underflows",
        f"x / (s / encode), {_EVEN}, -0 becomes +0",
        "a NaN makes its own block's scale NaN and encode 1; an infinity makes encode 0",
        "q * (s / encode)",
        _NAN_CODE,
    ),
    plain(nv.compressed_tensors),
    orders.over_encode,
    "encode",
    orders.compressed_tensors_factor,
    defined_nan=False,
)
FLASHINFER = Dialect(
    "flashinfer",
    "flashinfer-ai/flashinfer fb28d72, tests/test_helpers/utils_fp4.py, ref_fp4_quant: the default kernel's formulas",
    NVFP4,
    Prose(
        "encode, (1 / A) * 2688, as torch divides a number by a tensor; infinite for zeros, whose scales are then NaN",
        "e4m3(encode * (b * fl(1/6)))",
        "0x00; its elements are multiplied by 0",
        f"x * (1 / (s * (1 / encode))), 1 / 0 being 0; {_EVEN}, -0 becomes +0",
        "a NaN makes every scale NaN",
        "(q * s) * (1 / encode)",
        "the default kernel's rcp.approx.ftz; the order of decoding in its GEMM; " + _NAN_CODE,
    ),
    plain(nv.flashinfer),
    orders.inner_over_encode,
    "encode",
    orders.encode_factor,
    defined_nan=False,
)
FLASHINFER_EXACT = Dialect(
    "flashinfer_exact",
    "flashinfer-ai/flashinfer fb28d72, csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh, "
    "cvt_warp_fp16_to_fp4 with FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH=1",
    NVFP4,
    Prose(
        "encode, (1 / A) * 2688, as torch divides a number by a tensor",
        "e4m3(b * (encode * fl(1/6))), 0 for a zero block",
        "0x00, also where the scale underflows: elements then saturate",
        f"x * min(1 / (s * (1 / encode)), FLT_MAX), hardware cast: {_EVEN}, -0 kept, NaN 7",
        "amax passes over NaN",
        "(q * s) * (1 / encode)",
        "the kernel was read, not run; encode comes from its caller, which must not pass an infinity",
    ),
    plain(nv.flashinfer_exact),
    orders.inner_over_encode,
    "encode",
    orders.encode_factor,
    nonfinite="skip",
)


def _fouroversix(name: str, rule: str, limit: float, steps: Callable[..., Steps], limits: str) -> Dialect:
    return Dialect(
        name,
        "mit-han-lab/fouroversix 1.0.5 and dadfad6, src/fouroversix/quantize/pytorch/reference.py, " + rule,
        NVFP4,
        Prose(
            "the tensor's amax A itself",
            f"e4m3((b / max) * ({limit:g} / A)), times 1.5 first for the alternative of an adaptive rule",
            "0x00, also where the scale underflows; the elements are then +0",
            f"x * (1 / ((1 / ({limit:g} / A)) * s)), {_EVEN}, -0 becomes +0, no saturation: 7 to 9 become code 8 (-0)",
            "a NaN makes every scale NaN; an infinity its own block's, the others are 0x00",
            f"((q * s) * A) / {limit:g}",
            limits + _NAN_CODE,
        ),
        plain(steps),
        partial(orders.amax_last, limit=limit),
        "amax",
        orders.the_amax,
        defined_nan=False,
    )


def _sum(measure: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda d: tree(measure(d), torch.add)


def _max(d: Tensor) -> Tensor:
    return d.abs().amax(-1, keepdim=True)


_ORDER = "the order in which torch.sum adds 16 errors (a tree over adjacent pairs here); "
FOUROVERSIX = (
    _fouroversix("fouroversix", "mse", 1536.0, partial(nv.fouroversix, measure=_sum(square)), _ORDER),
    _fouroversix("fouroversix_mae", "mae", 1536.0, partial(nv.fouroversix, measure=_sum(torch.abs)), _ORDER),
    _fouroversix("fouroversix_abs_max", "abs_max", 1536.0, partial(nv.fouroversix, measure=_max), ""),
    _fouroversix("fouroversix_static_6", "static_6", 2688.0, partial(nv.fouroversix_static, largest=6.0), ""),
    _fouroversix("fouroversix_static_4", "static_4", 1792.0, partial(nv.fouroversix_static, largest=4.0), ""),
)

_QUARTET = "IST-DASLab/Quartet-II 8776a90, src/models/quantization/quantizers/"
_ONE = "0x38 (1.0), also where the scale underflows"
_TRITON = "Triton's `/` divides approximately on a GPU; the bytes are fourbit's, it keeps values only"


def _quartet_triton(name: str, bound: float, steps: Callable[..., Steps], choice: str, limits: str) -> Dialect:
    return Dialect(
        name,
        _QUARTET + "nvfp4_triton.py, rtn_1x16s_fp4_kernel",
        NVFP4,
        Prose(
            f"decode, (A / {bound:g}) / 6, 1 for an all-zero tensor",
            "e4m3((b / 6) / outer)" + choice,
            _ONE,
            "x / (s * outer), ties away from zero, whatever is not positive gets a sign: +0 becomes -0",
            "a NaN makes every scale NaN",
            "q * (s * outer)",
            limits + _TRITON,
        ),
        plain(steps),
        orders.scales_first,
        "decode",
        partial(orders.two_divisions, bound=bound),
        defined_nan=False,
        rounding="ties away from zero",
    )


_CHOICE = ", or e4m3(((b / 6) * 1.5) / outer) where the sum of squared errors is smaller"
QUARTET = (
    _quartet_triton("quartet_ii", 448.0, nv.quartet_ii, "", ""),
    _quartet_triton("quartet_ii_46", 256.0, nv.quartet_ii_46, _CHOICE, "the order in which tl.sum adds; "),
    Dialect(
        "quartet_ii_torch",
        _QUARTET + "nvfp4.py, Nvfp4Quantizer.round_scales and rtn_fp4",
        NVFP4,
        Prose(
            "decode, A / fl(447.99 * 6), 1 for an all-zero tensor",
            "e4m3((b / 6) / outer)",
            _ONE,
            "x / (s * outer), ties toward +infinity, every zero is +0",
            "a NaN makes every scale NaN",
            "q * (s * outer)",
            "inputs narrower than float32; CUDA divides by a constant as a product with its reciprocal; the bytes are "
            "fourbit's, it keeps values only",
        ),
        plain(nv.quartet_ii_torch),
        orders.scales_first,
        "decode",
        orders.quartet_factor,
        defined_nan=False,
        rounding="ties toward +infinity",
    ),
)
TETRAJET_V2 = Dialect(
    "tetrajet_v2",
    "thu-ml/TetraJet-v2-NVFP4Training bc8ad3a, kernels/csrc/quant_fp4.cu, nvfp4_double_quant",
    NVFP4,
    Prose(
        "decode, (A / 448) / 6 of each run of 128 values, 1 for zeros",
        "e4m3((b / outer) / 6)",
        "0x01 (2^-9) for a zero block; 0x00 where the scale underflows, with elements of signed zero",
        f"x * (1 / (outer * s)), 1 / 0 being 0; hardware cast: {_EVEN}, -0 kept, NaN 7",
        "amax passes over NaN",
        "q * (outer * s)",
        "the kernel is built with --use_fast_math, which divides approximately and flushes subnormals",
    ),
    plain(nv.tetrajet_v2),
    orders.scales_first,
    "decode",
    partial(orders.two_divisions, bound=448.0),
    nonfinite="skip",
    run=128,
)
THUNDERKITTENS = Dialect(
    "thunderkittens",
    "HazyResearch/ThunderKittens 0b55588, kernels/gemm/nvfp4_b200/nvfp4_b200_gemm.cu, nvfp4_quantize::quantize_kernel",
    NVFP4,
    Prose(
        _DECODE,
        "e4m3((b / 6) * (1 / max(outer, 1e-12)))",
        "0x00, also where the scale underflows",
        f"x * (1 / max(s * outer, 1e-12)), hardware cast: {_EVEN}, -0 kept, NaN 7",
        "amax passes over NaN",
        "(q * s) * outer",
        "the kernel is built with --use_fast_math, which divides approximately and flushes subnormals",
    ),
    plain(nv.thunderkittens),
    orders.inner_first,
    "decode",
    orders.decode_factor,
    nonfinite="skip",
)
QWIX = Dialect(
    "qwix",
    "google/qwix 0.1.8, qwix/_src/core/qarray.py, compute_scale_zero_point and "
    "quantize_with_scale_zero_point, qtype nvfp4",
    NVFP4,
    Prose(
        "none",
        "e4m3(b / 6), in x's dtype",
        "0x38 (1.0) where b / 6 < 2^-63; else 0x00 on underflow, where elements saturate and decode to 0",
        f"x / s in x's dtype, {_EVEN}, -0 kept",
        "a NaN makes its own block's scale NaN; an infinity has scale 448 and code 7",
        "q * s, in x's dtype",
        _NAN_CODE,
    ),
    plain(nv.qwix),
    orders.one_level,
    defined_nan=False,
)

PEERS: tuple[Dialect, ...] = (
    *(TORCHAO, TORCHAO_ONE_LEVEL, MODELOPT, COMPRESSED_TENSORS, FLASHINFER, FLASHINFER_EXACT, *FOUROVERSIX, *QUARTET),
    *(TETRAJET_V2, THUNDERKITTENS, QWIX),
)
