"""Dialects: one named rule per public quantizer, with what it does where the formats leave a choice.

    d = nm.scales.DIALECTS["torchao"]
    q = d.quantize(x)                       codes, scales, stored outer: the bytes that torchao makes of x
    x_q = d.dequantize(q)                   in torchao's order of products
    print(d)                                its decisions in words

The formulas are in `dialects_nv` and `dialects_mx`, what is stored and how it is decoded in `dialects_orders`, the
entries in `dialects_te`, `dialects_peers`, `dialects_house` and here. Versions read: Transformer Engine d0067d0,
torchao 0.18.0, ModelOpt 0.47.0, compressed-tensors 0.20.1, FlashInfer fb28d72, fouroversix 1.0.5 and dadfad6,
Quartet II 8776a90, TetraJet-v2 bc8ad3a, ThunderKittens 0b55588, qwix 0.1.8. A kernel that divides approximately
(CUDA's fast math, Triton's `/`) is described with correct divisions, and its entry says so under "not claimed".
Rounding is to nearest throughout.
"""

from __future__ import annotations

from collections.abc import Callable

from . import dialects_mx as mx
from .dialects_core import Blocks, Dialect, Outer, Prose, Steps
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
        defined_nan=amax != "propagate",
        scale_format=E8M0,
    )


_TORCHAO = "pytorch/ao, torchao/prototype/mx_formats/mx_tensor.py, to_mx, "
_NAN = "a NaN makes its block's scale 0xFF"
_NAN_CODE = "the code of a NaN depends on its payload"
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
        "NVIDIA/TransformerEngine, transformer_engine/common/cast/mxfp8/quantize_mxfp8.cuh, util/ptx.cuh float_to_e8m0",
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
        "vllm-project/compressed-tensors, quantization/utils/mxfp_utils.py, generate_mx_scales",
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
        "mit-han-lab/fouroversix, src/fouroversix/quantize/pytorch/reference.py, quantize_to_mxfp4, static_6",
        mx.fouroversix_mx,
        "fl(b / 6) rounded up to a power of two",
        "0x00, with elements of +0",
        "x / 2^k, ties to even, -0 becomes +0",
        "not claimed",
        "NaN and infinities; " + _NAN_CODE,
        formats=("MXFP4",),
    ),
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (*FAMILY, *PEERS, EXACT, *HOUSE, *MX)}
