"""How sums of products are formed: one row for every accumulator that `matmul` knows.

The tensor cores of NVIDIA's GPUs do not round after every addition. One step of an instruction takes L products and the
value c of its accumulator register, and

    1. forms the products exactly, not normalized: exponent e = e_a + e_b, significand in [0, 4)
    2. finds emax, the largest exponent among the products and c
    3. cuts every term toward zero to a multiple of 2^(emax - F)
    4. adds these integers exactly
    5. rounds the sum toward zero to the output's significand; that is the register's next value

so that inside one step no order exists, and a longer contraction is a chain of steps in its own order. A subnormal
operand has its format's least exponent; a term that is exactly zero has exponent e_zero, which is therefore the least
that emax can be. Step 5 reaches subnormal results (multiples of 2^(-126 - fraction bits)) and infinity.

Rules: "fused" is the above. "groups" (NVFP4, MXFP4) first sums G products exactly, multiplies by both scales'
significands and aligns by the sum of the scales' exponents alone, whatever the products are; a zero scale makes a zero
term. "halves" is what mma.sync of FP8 becomes where no such unit exists: of each 32 products those with k % 4 in
{0, 1}, then those with k % 4 in {2, 3}, in two chained FP16 steps that start from zero, and their result is added to c
in FP32. A power-of-two block scale (MX) joins its products' exponents.

NaN among the terms, infinities of both signs and zero times infinity give NaN, 0x7FFFFFFF; one infinity gives it. A NaN
scale is a NaN term. NVFP4's scales have no sign here: models of tensor cores ignore that bit of the byte, "exact",
"fp32" and "library" decode it.

What is known, and how: rows marked "vectors" agree with results of the hardware itself, bit for bit; rows marked
"model" rest on MMA-Sim's published tests alone. Assumed, on no evidence of ours: overflow gives infinity, though the
rounding is toward zero (published for NVFP4 only); with E8M13 it cannot occur but from an infinite c, as FP8 terms
vanish beside a c of 2^45 or more. A result of zero is +0, whatever was cut to give it. e_zero shows only
where results are below 2^-120. The vectors of mma.sync agree with any two halves of the 32 products; that the halves
are those of k % 4 is read off the machine code alone.

Sources: [X] Li et al., "Bit-accurate modeling of GPU matrix multiply-accumulate", arXiv 2511.10909v2, Tables 3 to 5 and
8, and MMA-Sim; [K] Khattak and Mikaitis, arXiv 2512.07004, whose vectors of H100, H200, B200, A100 and L40S the
tests use; [D] DeepSeek-V3, arXiv 2412.19437, section 3.3.2; [F] Fasi et al., PeerJ CS 7:e330 (2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from .block_formats import MXFP4, MXFP6_E2M3, MXFP6_E3M2, MXFP8, MXFP8_E5M2, NVFP4, BlockFormat
from .formats import BF16, E4M3, E5M2, FP16, TF32, Format

FP32 = Format("FP32", "float", 32, 8, 23, bias=127, specials="ieee")
E8M13 = Format("E8M13", "float", 22, 8, 13, bias=127, specials="ieee")  # FP32 without its ten low bits


@dataclass(frozen=True)
class Accumulator:
    """One way to sum products; see the module docstring.

    Args:
        name: as `matmul` takes it. hardware: what computes so. rule: "exact", "sequential", "library", "fused",
            "groups" or "halves".
        operands: element formats whose values plain tensors may hold, or block formats; none: whatever `matmul` takes.
        length: products per step, L. fraction_bits: F. output: format of the register. zero_exponent: e_zero. None
            where there are no steps.
        group: products summed exactly before alignment, G.
        source: citation, and what vouches for the row.
    """

    name: str
    hardware: str
    rule: str
    operands: tuple[Format, ...] | tuple[BlockFormat, ...]
    length: int | None
    fraction_bits: int | None
    output: Format
    zero_exponent: int | None
    source: str
    group: int = 1

    def takes(self, fmt: Format | BlockFormat) -> bool:
        """Whether operands of a format fit: element formats by name, block formats by element, block and scale."""
        if isinstance(fmt, Format):
            return not self.operands or fmt in self.operands
        return not self.operands or any(
            isinstance(o, BlockFormat)
            and (o.element, o.block, o.scale, o.alternative) == (fmt.element, fmt.block, fmt.scale, fmt.alternative)
            for o in self.operands
        )

    @property
    def takes_plain(self) -> bool:
        """Whether plain tensors fit."""
        return not self.operands or isinstance(self.operands[0], Format)

    @property
    def steps(self) -> bool:
        """Whether this is a model of a tensor core."""
        return self.rule in ("fused", "groups", "halves")


def _whole(name: str, rule: str, hardware: str, source: str) -> Accumulator:
    return Accumulator(name, hardware, rule, (), None, None, FP32, None, source)


def _fused(
    name: str, hardware: str, operands: tuple[Format, ...] | tuple[BlockFormat, ...], length: int, fraction_bits: int,
    zero_exponent: int, source: str, output: Format = FP32,
) -> Accumulator:  # fmt: skip
    return Accumulator(name, hardware, "fused", operands, length, fraction_bits, output, zero_exponent, source)


_FP8 = (E4M3, E5M2)
_MX = (MXFP8, MXFP8_E5M2, MXFP6_E2M3, MXFP6_E3M2, MXFP4)
_TABLE = (
    _whole("exact", "exact", "none", "the exact sum rounded once to FP32, nearest even: Kulisch's accumulator"),
    _whole("fp32", "sequential", "any", "IEEE 754: every product rounded to FP32, then added in order of k"),
    _whole("library", "library", "any", "torch.matmul in FP32: an order of its own, which differs between devices"),
    _fused("volta_fp16", "V100 HMMA", (FP16,), 4, 23, -131, "model: [X], [F]"),
    _fused("ampere_fp16", "Turing, A100, Ada HMMA", (FP16,), 8, 24, -132, "model: [X], [F]"),
    _fused("ampere_bf16", "A100, Ada HMMA", (BF16,), 8, 24, -132, "vectors: A100 [K]; [X]"),
    _fused("ampere_tf32", "A100, Ada HMMA", (TF32,), 4, 24, -132, "model: [X], [F]"),
    _fused("ada_fp8", "L40S QMMA", _FP8, 16, 13, -132, "vectors: L40S [K]; [X]", E8M13),
    _fused("hopper_fp16", "H100, H200 wgmma", (FP16,), 16, 25, -133, "vectors: H200, chained, c [K]; [X]"),
    _fused("hopper_bf16", "H100, H200 wgmma", (BF16,), 16, 25, -133, "vectors: H100, H200, chained, c [K]; [X]"),
    _fused("hopper_tf32", "H100, H200 wgmma", (TF32,), 8, 25, -133, "vectors: H200, 4 products [K]; [X]"),
    _fused("hopper_fp8", "H100, H200 wgmma", _FP8, 32, 13, -133, "vectors: H100, H200, chained [K]; [D], [X]", E8M13),
    _fused("blackwell_fp16", "B200 tcgen05, RTX Blackwell", (FP16,), 16, 25, -133, "vectors: B200 [K]; [X]"),
    _fused("blackwell_bf16", "B200 tcgen05, RTX Blackwell", (BF16,), 16, 25, -133, "vectors: B200 [K]; [X]"),
    _fused("blackwell_tf32", "B200 tcgen05, RTX Blackwell", (TF32,), 8, 25, -133, "vectors: B200, 4 products [K]; [X]"),
    _fused("blackwell_fp8", "B200 tcgen05, RTX Blackwell f8f6f4", _FP8, 32, 25, -133, "model: [X]"),
    _fused("blackwell_mxfp8", "B200 tcgen05, RTX Blackwell mxf8f6f4", _MX, 32, 25, -133, "model: [X]"),
    *(
        Accumulator(
            name, f"B200 tcgen05, RTX Blackwell {kind}, K = 64", "groups", (fmt,), 64, 35, FP32, -139, "model: [X]", 16
        )
        for name, kind, fmt in (("blackwell_mxfp4", "mxf4", MXFP4), ("blackwell_nvfp4", "mxf4nvf4", NVFP4))
    ),
    Accumulator(
        "mma_sync_fp8_as_fp16", "mma.sync of FP8 on sm_90, sm_100 and sm_103: two HMMA and an FADD", "halves", _FP8,
        32, 25, FP32, -133, "vectors: B200, for two halves [K]; which halves: the code ptxas 13.5 makes",
    ),
)  # fmt: skip

ACCUMULATORS: dict[str, Accumulator] = {row.name: row for row in _TABLE}
