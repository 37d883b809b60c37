"""Bit-exact emulation of 4-bit and 8-bit training arithmetic: formats, block quantizers, rounding, products.

    import numerics as nm
    q = nm.quantize(x, nm.NVFP4)           # codes, block scales, outer scale
    x_q = q.dequantize()
    g = nm.requantize(q, nm.MXFP8, axis=-2, random=nm.Random((seed, step)))

Data flows one way: tensor -> Format -> scale rule -> BlockTensor -> operation. Each module's docstring gives its
formulas and sources; codes, scales, outer scales and "exact" products are equal on every device.
"""

from . import layout, metrics, ptx, scales, torch_views
from .accumulators import ACCUMULATORS, Accumulator
from .block_formats import (
    BLOCK_FORMATS,
    FP8_1X128,
    FP8_128X128,
    IF4,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8,
    MXFP8_E5M2,
    MXINT4,
    MXINT8,
    MXS2F6,
    NVFP4,
    NVFP4_2D,
    NVFP4_46,
    NVINT4,
    BlockFormat,
)
from .blocks import BlockTensor
from .codes import decode, encode, round_to
from .formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    INT4,
    INT8,
    S2F6,
    TF32,
    UE4M3,
    Format,
    format_named,
)
from .hadamard import hadamard, hadamard_inverse, hadamard_signs
from .matmul import matmul
from .matmul_bound import matmul_bound
from .philox import Random, philox
from .quantizer import dequantize, quantize, requantize
from .rounding import Rounding

__all__ = [
    "ACCUMULATORS",
    "BF16",
    "BLOCK_FORMATS",
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E5M2",
    "E8M0",
    "FORMATS",
    "FP8_1X128",
    "FP8_128X128",
    "FP16",
    "IF4",
    "INT4",
    "INT8",
    "MXFP4",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8",
    "MXFP8_E5M2",
    "MXINT4",
    "MXINT8",
    "MXS2F6",
    "NVFP4",
    "NVFP4_2D",
    "NVFP4_46",
    "NVINT4",
    "S2F6",
    "TF32",
    "UE4M3",
    "Accumulator",
    "BlockFormat",
    "BlockTensor",
    "Format",
    "Random",
    "Rounding",
    "decode",
    "dequantize",
    "encode",
    "format_named",
    "hadamard",
    "hadamard_inverse",
    "hadamard_signs",
    "layout",
    "matmul",
    "matmul_bound",
    "metrics",
    "philox",
    "ptx",
    "quantize",
    "requantize",
    "round_to",
    "scales",
    "torch_views",
]
