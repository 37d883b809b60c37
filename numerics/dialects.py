"""Dialects: one named rule per public quantizer, with what it does where the formats leave a choice.

    d = nm.scales.DIALECTS["torchao"]
    q = d.quantize(x)                       codes, scales, stored outer: the bytes that torchao makes of x
    x_q = d.dequantize(q)                   in torchao's order of products
    print(d)                                its decisions in words

The formulas are in `dialects_nv` and `dialects_mx`, what is stored and how it is decoded in `dialects_orders`; entries
in `dialects_te`, `dialects_peers`, `dialects_house` and here; both in `dialects_engines`, `dialects_emulators` and
`dialects_fp8`. The version or commit that was read stands in each entry's source. A kernel that divides approximately
(CUDA's fast math, Triton's `/`) is described with correct divisions, and its entry says so under "not claimed".
Elements are rounded to nearest, ties as `Dialect.rounding` says, but `microxcaling_floor` truncates. `fourbit dialects`
prints all of them as a table.
"""

from __future__ import annotations

from collections.abc import Callable

from . import dialects_mx as mx
from .dialects_core import Blocks, Dialect, Outer, Prose, Steps
from .dialects_emulators import EMULATORS
from .dialects_engines import ENGINES
from .dialects_fp8 import FP8
from .dialects_house import EXACT, HOUSE
from .dialects_orders import one_level
from .dialects_peers import PEERS
from .dialects_te import FAMILY
from .formats import E8M0

_ALL_MX = ("MXFP4", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP8", "MXFP8_E5M2")
_HOUSE_MX = (*_ALL_MX, "MXS2F6")
_LEAST = "0x00 (2^-127)"
_BLOCK = "a block that holds one gets scale 0xFF and codes of +max"


def _mx(
    name: str,
    source: str,
    steps: Callable[[Blocks, Outer], Steps],
    scale: str,
    zero: str,
    elements: str,
    nonfinite: str,
    limits: str = "",
    formats: tuple[str, ...] = _ALL_MX,
    amax: str = "propagate",
    defined_nan: bool | None = None,
    rounding: str = "ties to even",
) -> Dialect:
    prose = Prose("none", scale, zero, elements, nonfinite, "q * 2^k", limits)
    return Dialect(
        name,
        source,
        formats,
        prose,
        steps,
        one_level,
        nonfinite=amax,
        defined_nan=amax != "propagate" if defined_nan is None else defined_nan,
        scale_format=E8M0,
        rounding=rounding,
    )


_TORCHAO = "pytorch/ao 0.18.0, torchao/prototype/mx_formats/mx_tensor.py, to_mx, "
_TRITON = "triton-lang/triton 018a674, python/triton_kernels/triton_kernels/numerics_details/mxfp.py"
_VLLM = "vllm-project/vllm {}, vllm/model_executor/layers/quantization/utils/{}_utils.py, "
_MLX_FORMATS = ("MXFP4", "MXFP8")
_METAL = "ml-explore/mlx {}, mlx/backend/metal/kernels/fp_quantized.h, fp_quantize with fp8.h and fp4.h"
_MLX_CPU = (
    "ml-explore/mlx 0.32.0 (before #4353), mlx/ops.cpp, fp_quantize: the graph that stands for the kernel on a CPU"
)
_MLX_SCALE = "2^k, k = fl(log2(b / max)) to the nearest integer, halves to even, in x's dtype"
_MLX_NAN = "an infinity makes its block's scale 0xFF; a NaN has the largest code of its sign"
_NAN = "a NaN makes its block's scale 0xFF"
_NAN_CODE = "the code of a NaN depends on its payload"
_SHIFTED = "x * 2^-k, ties to even, saturating, -0 kept"
MX: tuple[Dialect, ...] = (
    _mx(
        "ocp_floor",
        "OCP Microscaling Formats v1.0, section 6.3; fourbit's rule floor",
        mx.ocp_floor,
        "2^(e(b) - emax)",
        _LEAST,
        "x / 2^k, ties to even, saturating, -0 kept",
        _BLOCK + " (the specification leaves it open)",
        formats=_HOUSE_MX,
        amax="block",
    ),
    _mx(
        "rceil",
        "arXiv 2506.08027; PTX cvt.rp.satfinite.ue8m0x2; fourbit's rule rceil",
        mx.rceil,
        "the least 2^k with 2^k max >= b",
        _LEAST,
        "x / 2^k, ties to even, saturating, -0 kept",
        _BLOCK,
        formats=_HOUSE_MX,
        amax="block",
    ),
    _mx(
        "torchao_floor",
        _TORCHAO + "FLOOR",
        mx.torchao_floor,
        "2^(e(b) - emax)",
        _LEAST + ", whose elements are divided by 2^-126 all the same",
        "x / max(2^k, 2^-126), ties to even, saturating, -0 kept",
        _NAN + "; an infinity has exponent 128",
        _NAN_CODE,
    ),
    _mx(
        "even",
        _TORCHAO + "EVEN",
        mx.even,
        "2^(e(b rounded half up to the element's significand) - emax)",
        _LEAST + ", whose elements are divided by 2^-126 all the same",
        "x / max(2^k, 2^-126), ties to even, saturating, -0 kept",
        _NAN + "; an infinity has exponent 128",
        _NAN_CODE,
    ),
    _mx(
        "torchao_rceil",
        _TORCHAO + "RCEIL, eagerly on a CPU",
        mx.torchao_rceil,
        "2^ceil(fl(log2(b / max)))",
        _LEAST + ", whose elements are not scaled",
        "x * 2^-k, ties to even, saturating, -0 kept",
        _NAN + "; an infinity has 0xFE",
        "log2 on a GPU; the compiled instruction on Blackwell, which is rceil; " + _NAN_CODE,
    ),
    _mx(
        "te_mxfp8",
        "NVIDIA/TransformerEngine d0067d0, transformer_engine/common/cast/mxfp8/quantize_mxfp8.cuh, "
        "util/ptx.cuh float_to_e8m0",
        mx.te_mxfp8,
        "fl(b * fl(1/max)) rounded up to a power of two",
        _LEAST,
        "x * 2^-k, ties to even, saturating, -0 kept",
        "amax passes over NaN; an infinity has 0xFE",
        "the kernel was read, not run",
        formats=("MXFP8", "MXFP8_E5M2"),
        amax="skip",
    ),
    _mx(
        "compressed_tensors_mx",
        "vllm-project/compressed-tensors 0.20.1, quantization/utils/mxfp_utils.py, generate_mx_scales",
        mx.compressed_tensors_mx,
        "2^(e(b rounded half up to one mantissa bit) - emax)",
        _LEAST,
        "x / 2^k in x's dtype, ties to even, saturating",
        "not claimed",
        "NaN, infinities and blocks below 2^-118; " + _NAN_CODE,
        formats=("MXFP4", "MXFP8"),
    ),
    _mx(
        "fouroversix_mx",
        "mit-han-lab/fouroversix 1.0.5 and dadfad6, src/fouroversix/quantize/pytorch/reference.py, "
        "quantize_to_mxfp4, static_6",
        mx.fouroversix_mx,
        "fl(b / 6) rounded up to a power of two",
        "0x00, with elements of +0",
        "x / 2^k, ties to even, -0 becomes +0",
        "not claimed",
        "NaN and infinities; " + _NAN_CODE,
        formats=("MXFP4",),
    ),
    _mx(
        "triton_up",
        _TRITON + ", downcast_to_mxfp_torch, ROUND_UP",
        mx.triton_up,
        "fl(b / max) rounded up to a power of two",
        "0x00, whose elements are multiplied by 0",
        _SHIFTED,
        "a NaN makes its block's scale 0x00; an infinity has 0xFF",
        "its Triton kernel, whose maximum passes over NaN; its decoding, which limits values to FLT_MAX; " + _NAN_CODE,
        formats=("MXFP4", "MXFP8", "MXFP8_E5M2"),
    ),
    _mx(
        "triton_down",
        _TRITON + ", downcast_to_mxfp_torch, ROUND_DOWN",
        mx.triton_down,
        "2^(e(b) - emax)",
        "0x00, also below 2^-126: its elements are multiplied by 0",
        _SHIFTED,
        "a NaN or an infinity makes its block's scale 0xFF",
        "as triton_up",
        formats=("MXFP4", "MXFP8", "MXFP8_E5M2"),
    ),
    _mx(
        "ggml_mxfp4",
        "ggml-org/llama.cpp 01243c5, ggml/src/ggml-quants.c, quantize_row_mxfp4_ref",
        mx.ggml,
        "2^(floor(fl(log2 b)) - 2)",
        "0x00 (2^-127)",
        "the first code with the least |q 2^k - x|: ties toward zero, every zero is +0",
        "amax passes over NaN, whose code is 0",
        "infinities and blocks below 2^-125; the order of nibbles in its file",
        formats=("MXFP4",),
        amax="skip",
        rounding="ties toward zero",
    ),
    _mx(
        "mlx_mx",
        _METAL.format("0.32.4 (since #4353)"),
        mx.mlx,
        "fl(b / max) rounded up to a power of two",
        _LEAST,
        _SHIFTED,
        _MLX_NAN,
        "the kernel was read, not run: whether Metal's maximum passes over NaN (here it does)",
        formats=_MLX_FORMATS,
        amax="skip",
        defined_nan=False,
    ),
    _mx(
        "mlx_mx_before",
        _METAL.format("846d176 (before #4353)"),
        mx.mlx_before,
        "2^k, k = fl(log2(b / max)) to the nearest integer, halves away from 0: a block maximum may saturate",
        _LEAST,
        _SHIFTED,
        _MLX_NAN,
        "as mlx_mx; Metal's log2",
        formats=_MLX_FORMATS,
        amax="skip",
        defined_nan=False,
    ),
    _mx(
        "mlx_mxfp4_cpu_before",
        _MLX_CPU,
        mx.mlx_cpu_before,
        _MLX_SCALE,
        "0x7F (1.0)",
        "x / 2^k in x's dtype, the first code with the least error: ties toward zero, every zero is +0",
        "not claimed",
        "NaN, infinities and scales below 2^-126",
        formats=("MXFP4",),
        rounding="ties toward zero",
    ),
    _mx(
        "mlx_mxfp8_cpu_before",
        _MLX_CPU,
        mx.mlx_cpu_before,
        _MLX_SCALE,
        "0x7F (1.0)",
        "x / 2^k in x's dtype, ties to even, saturating, -0 kept",
        "not claimed",
        "NaN, infinities and scales below 2^-126",
        formats=("MXFP8",),
    ),
    _mx(
        "deepgemm_mxfp4",
        "deepseek-ai/DeepGEMM 54e2261, deep_gemm/utils/math.py, per_token_cast_to_fp4, gran_k=32, use_ue8m0",
        mx.deepgemm,
        "fl(max(b, 1e-4) / 6) rounded up to a power of two, 2^-126 to 2^127",
        "0x70 (2^-15), the least",
        "x * 2^-k, ties toward zero, saturating, every zero is +0",
        "a NaN or an infinity makes its block's scale 0xFE; the code of a NaN is 0",
        formats=("MXFP4",),
        defined_nan=True,
        rounding="ties toward zero",
    ),
    _mx(
        "vllm_mxfp4",
        _VLLM.format("0.32.0", "mxfp4") + "downcast_to_mxfp",
        mx.vllm_mxfp4,
        "2^(e(b rounded half up to one mantissa bit) - 2)",
        _LEAST,
        _SHIFTED,
        "not claimed",
        "Triton's `/`, and what its maximum and log2 do on a GPU; NaN and infinities; " + _NAN_CODE,
        formats=("MXFP4",),
    ),
    _mx(
        "vllm_mxfp8",
        _VLLM.format("0.32.0", "mxfp8") + "_mxfp8_e4m3_quantize_torch",
        mx.vllm_mxfp8,
        "2^ceil(fl(log2(b / max))), b at least 2^-126",
        _LEAST,
        "x / 2^k, ties to even, -0 kept",
        "not claimed",
        "NaN and infinities; " + _NAN_CODE,
        formats=("MXFP8",),
    ),
    _mx(
        "vllm_mxfp8_floor",
        _VLLM.format("before 0.32.0 (0013442)", "mxfp8") + "_mxfp8_e4m3_quantize_torch",
        mx.vllm_mxfp8_floor,
        "2^floor(fl(log2 b)): the block maximum becomes 1 to 2",
        "0x01 (2^-126), the least",
        "x / 2^k, ties to even, -0 kept",
        "not claimed",
        "NaN and infinities; " + _NAN_CODE,
        formats=("MXFP8",),
    ),
)

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (*FAMILY, *PEERS, *ENGINES, EXACT, *HOUSE, *MX, *EMULATORS, *FP8)
}
