"""Bit-exact emulation of 4-bit and 8-bit training arithmetic: formats, block quantizers, rounding, products.

    import numerics as nm
    q = nm.quantize(x, nm.NVFP4)           # codes, block scales, outer scale
    x_q = q.dequantize()
    g = nm.requantize(q, nm.MXFP8, axis=-2, random=nm.Random((seed, step)))

Data flows one way: tensor -> Format -> scale rule -> BlockTensor -> operation. Each module's docstring gives its
formulas and sources; codes, scales, outer scales and "exact" products are equal on every device.
"""

from . import layout, metrics, ptx, scales
from .blocks import (
    BLOCK_FORMATS,
    MXFP8,
    MXS2F6,
    NVFP4,
    NVFP4_46,
    BlockFormat,
    BlockTensor,
    dequantize,
    quantize,
    requantize,
)
from .codes import decode, encode, round_to
from .formats import BF16, E2M1, E4M3, E8M0, FORMATS, S2F6, Format
from .hadamard import hadamard, hadamard_inverse, hadamard_signs
from .matmul import ACCUMULATORS, matmul
from .philox import Random, philox
from .rounding import Rounding

__all__ = [
    "ACCUMULATORS",
    "BF16",
    "BLOCK_FORMATS",
    "E2M1",
    "E4M3",
    "E8M0",
    "FORMATS",
    "MXFP8",
    "MXS2F6",
    "NVFP4",
    "NVFP4_46",
    "S2F6",
    "BlockFormat",
    "BlockTensor",
    "Format",
    "Random",
    "Rounding",
    "decode",
    "dequantize",
    "encode",
    "hadamard",
    "hadamard_inverse",
    "hadamard_signs",
    "layout",
    "matmul",
    "metrics",
    "philox",
    "ptx",
    "quantize",
    "requantize",
    "round_to",
    "scales",
]
