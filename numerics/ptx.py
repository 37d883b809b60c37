"""NVIDIA's `cvt` instructions between float32, float16, bfloat16 and the 4-, 6- and 8-bit types, bit for bit.

    d = nm.ptx.cvt_rn_satfinite_e2m1x2_f32(a, b)                    cvt.rn.satfinite.e2m1x2.f32 d, a, b;
    d = nm.ptx.cvt_rs_satfinite_e2m1x4_f32(a, b, e, f, rbits)       cvt.rs.satfinite.e2m1x4.f32 d, {a, b, e, f}, rbits;

One function per form, named after the instruction with underscores for its dots and colons; qualifiers stand in the
order satfinite, relu, scaled::n2::ue8m0. Operands are tensors: float32 numbers, or words that hold packed elements, in
the instruction's order, so the first one lies uppermost. The result is an unsigned integer of the register's width.
`help` of a function tells packing, random bits, special values, PTX ISA version and targets.

Neighbours in memory make a word by `halves.view(torch.int32)` (float16, bfloat16), the one with the even index in the
lower half; a result's bytes come back by `d.view(torch.uint8)`, the lowest first.

Sources: PTX ISA 9.4, "cvt" and 5.2.3, 5.2.4; published measurements on B200 and GB10 for the order of the random bits
and NaN; NVIDIA's headers cuda_fp4.hpp, cuda_fp6.hpp and cuda_fp8.hpp, whose host code the tests run. OPEN_QUESTIONS
lists what none of these settles, with the reading that is followed. Not here: what PTX ISA 9.4 adds for sm_107 alone
beside `.rz`, namely `.pzo`, `.scaled::n1::ue8m0` and ue5m3x2.
"""

from collections.abc import Callable

from torch import Tensor

from .ptx_functions import cvt as _cvt
from .ptx_questions import OPEN_QUESTIONS as OPEN_QUESTIONS
from .ptx_questions import Question as Question

# narrow <- f32, nearest even
cvt_rn_satfinite_e4m3x2_f32 = _cvt("rn.satfinite.e4m3x2.f32")
cvt_rn_satfinite_relu_e4m3x2_f32 = _cvt("rn.satfinite.relu.e4m3x2.f32")
cvt_rn_satfinite_e5m2x2_f32 = _cvt("rn.satfinite.e5m2x2.f32")
cvt_rn_satfinite_relu_e5m2x2_f32 = _cvt("rn.satfinite.relu.e5m2x2.f32")
cvt_rn_satfinite_e2m1x2_f32 = _cvt("rn.satfinite.e2m1x2.f32")
cvt_rn_satfinite_relu_e2m1x2_f32 = _cvt("rn.satfinite.relu.e2m1x2.f32")
cvt_rn_satfinite_e2m3x2_f32 = _cvt("rn.satfinite.e2m3x2.f32")
cvt_rn_satfinite_relu_e2m3x2_f32 = _cvt("rn.satfinite.relu.e2m3x2.f32")
cvt_rn_satfinite_e3m2x2_f32 = _cvt("rn.satfinite.e3m2x2.f32")
cvt_rn_satfinite_relu_e3m2x2_f32 = _cvt("rn.satfinite.relu.e3m2x2.f32")

# narrow <- f16x2, nearest even
cvt_rn_satfinite_e4m3x2_f16x2 = _cvt("rn.satfinite.e4m3x2.f16x2")
cvt_rn_satfinite_relu_e4m3x2_f16x2 = _cvt("rn.satfinite.relu.e4m3x2.f16x2")
cvt_rn_satfinite_e5m2x2_f16x2 = _cvt("rn.satfinite.e5m2x2.f16x2")
cvt_rn_satfinite_relu_e5m2x2_f16x2 = _cvt("rn.satfinite.relu.e5m2x2.f16x2")
cvt_rn_satfinite_e2m1x2_f16x2 = _cvt("rn.satfinite.e2m1x2.f16x2")
cvt_rn_satfinite_relu_e2m1x2_f16x2 = _cvt("rn.satfinite.relu.e2m1x2.f16x2")
cvt_rn_satfinite_e2m3x2_f16x2 = _cvt("rn.satfinite.e2m3x2.f16x2")
cvt_rn_satfinite_relu_e2m3x2_f16x2 = _cvt("rn.satfinite.relu.e2m3x2.f16x2")
cvt_rn_satfinite_e3m2x2_f16x2 = _cvt("rn.satfinite.e3m2x2.f16x2")
cvt_rn_satfinite_relu_e3m2x2_f16x2 = _cvt("rn.satfinite.relu.e3m2x2.f16x2")

# narrow <- bf16x2, nearest even
cvt_rn_satfinite_e4m3x2_bf16x2 = _cvt("rn.satfinite.e4m3x2.bf16x2")
cvt_rn_satfinite_relu_e4m3x2_bf16x2 = _cvt("rn.satfinite.relu.e4m3x2.bf16x2")
cvt_rn_satfinite_e5m2x2_bf16x2 = _cvt("rn.satfinite.e5m2x2.bf16x2")
cvt_rn_satfinite_relu_e5m2x2_bf16x2 = _cvt("rn.satfinite.relu.e5m2x2.bf16x2")
cvt_rn_satfinite_e2m1x2_bf16x2 = _cvt("rn.satfinite.e2m1x2.bf16x2")
cvt_rn_satfinite_relu_e2m1x2_bf16x2 = _cvt("rn.satfinite.relu.e2m1x2.bf16x2")
cvt_rn_satfinite_e2m3x2_bf16x2 = _cvt("rn.satfinite.e2m3x2.bf16x2")
cvt_rn_satfinite_relu_e2m3x2_bf16x2 = _cvt("rn.satfinite.relu.e2m3x2.bf16x2")
cvt_rn_satfinite_e3m2x2_bf16x2 = _cvt("rn.satfinite.e3m2x2.bf16x2")
cvt_rn_satfinite_relu_e3m2x2_bf16x2 = _cvt("rn.satfinite.relu.e3m2x2.bf16x2")

# f16x2 <- narrow
cvt_rn_f16x2_e4m3x2 = _cvt("rn.f16x2.e4m3x2")
cvt_rn_relu_f16x2_e4m3x2 = _cvt("rn.relu.f16x2.e4m3x2")
cvt_rn_f16x2_e5m2x2 = _cvt("rn.f16x2.e5m2x2")
cvt_rn_relu_f16x2_e5m2x2 = _cvt("rn.relu.f16x2.e5m2x2")
cvt_rn_f16x2_e2m1x2 = _cvt("rn.f16x2.e2m1x2")
cvt_rn_relu_f16x2_e2m1x2 = _cvt("rn.relu.f16x2.e2m1x2")
cvt_rn_f16x2_e2m3x2 = _cvt("rn.f16x2.e2m3x2")
cvt_rn_relu_f16x2_e2m3x2 = _cvt("rn.relu.f16x2.e2m3x2")
cvt_rn_f16x2_e3m2x2 = _cvt("rn.f16x2.e3m2x2")
cvt_rn_relu_f16x2_e3m2x2 = _cvt("rn.relu.f16x2.e3m2x2")

# bf16x2 <- narrow, times a scale
cvt_rn_bf16x2_e4m3x2 = _cvt("rn.bf16x2.e4m3x2")
cvt_rn_scaled_n2_ue8m0_bf16x2_e4m3x2 = _cvt("rn.scaled::n2::ue8m0.bf16x2.e4m3x2")
cvt_rn_relu_bf16x2_e4m3x2 = _cvt("rn.relu.bf16x2.e4m3x2")
cvt_rn_relu_scaled_n2_ue8m0_bf16x2_e4m3x2 = _cvt("rn.relu.scaled::n2::ue8m0.bf16x2.e4m3x2")
cvt_rn_satfinite_bf16x2_e4m3x2 = _cvt("rn.satfinite.bf16x2.e4m3x2")
cvt_rn_satfinite_scaled_n2_ue8m0_bf16x2_e4m3x2 = _cvt("rn.satfinite.scaled::n2::ue8m0.bf16x2.e4m3x2")
cvt_rn_satfinite_relu_bf16x2_e4m3x2 = _cvt("rn.satfinite.relu.bf16x2.e4m3x2")
cvt_rn_satfinite_relu_scaled_n2_ue8m0_bf16x2_e4m3x2 = _cvt("rn.satfinite.relu.scaled::n2::ue8m0.bf16x2.e4m3x2")
cvt_rn_bf16x2_e5m2x2 = _cvt("rn.bf16x2.e5m2x2")
cvt_rn_scaled_n2_ue8m0_bf16x2_e5m2x2 = _cvt("rn.scaled::n2::ue8m0.bf16x2.e5m2x2")
cvt_rn_relu_bf16x2_e5m2x2 = _cvt("rn.relu.bf16x2.e5m2x2")
cvt_rn_relu_scaled_n2_ue8m0_bf16x2_e5m2x2 = _cvt("rn.relu.scaled::n2::ue8m0.bf16x2.e5m2x2")
cvt_rn_satfinite_bf16x2_e5m2x2 = _cvt("rn.satfinite.bf16x2.e5m2x2")
cvt_rn_satfinite_scaled_n2_ue8m0_bf16x2_e5m2x2 = _cvt("rn.satfinite.scaled::n2::ue8m0.bf16x2.e5m2x2")
cvt_rn_satfinite_relu_bf16x2_e5m2x2 = _cvt("rn.satfinite.relu.bf16x2.e5m2x2")
cvt_rn_satfinite_relu_scaled_n2_ue8m0_bf16x2_e5m2x2 = _cvt("rn.satfinite.relu.scaled::n2::ue8m0.bf16x2.e5m2x2")
cvt_rn_bf16x2_e2m1x2 = _cvt("rn.bf16x2.e2m1x2")
cvt_rn_scaled_n2_ue8m0_bf16x2_e2m1x2 = _cvt("rn.scaled::n2::ue8m0.bf16x2.e2m1x2")
cvt_rn_relu_bf16x2_e2m1x2 = _cvt("rn.relu.bf16x2.e2m1x2")
cvt_rn_relu_scaled_n2_ue8m0_bf16x2_e2m1x2 = _cvt("rn.relu.scaled::n2::ue8m0.bf16x2.e2m1x2")
cvt_rn_satfinite_bf16x2_e2m1x2 = _cvt("rn.satfinite.bf16x2.e2m1x2")
cvt_rn_satfinite_scaled_n2_ue8m0_bf16x2_e2m1x2 = _cvt("rn.satfinite.scaled::n2::ue8m0.bf16x2.e2m1x2")
cvt_rn_satfinite_relu_bf16x2_e2m1x2 = _cvt("rn.satfinite.relu.bf16x2.e2m1x2")
cvt_rn_satfinite_relu_scaled_n2_ue8m0_bf16x2_e2m1x2 = _cvt("rn.satfinite.relu.scaled::n2::ue8m0.bf16x2.e2m1x2")
cvt_rn_bf16x2_e2m3x2 = _cvt("rn.bf16x2.e2m3x2")
cvt_rn_scaled_n2_ue8m0_bf16x2_e2m3x2 = _cvt("rn.scaled::n2::ue8m0.bf16x2.e2m3x2")
cvt_rn_relu_bf16x2_e2m3x2 = _cvt("rn.relu.bf16x2.e2m3x2")
cvt_rn_relu_scaled_n2_ue8m0_bf16x2_e2m3x2 = _cvt("rn.relu.scaled::n2::ue8m0.bf16x2.e2m3x2")
cvt_rn_satfinite_bf16x2_e2m3x2 = _cvt("rn.satfinite.bf16x2.e2m3x2")
cvt_rn_satfinite_scaled_n2_ue8m0_bf16x2_e2m3x2 = _cvt("rn.satfinite.scaled::n2::ue8m0.bf16x2.e2m3x2")
cvt_rn_satfinite_relu_bf16x2_e2m3x2 = _cvt("rn.satfinite.relu.bf16x2.e2m3x2")
cvt_rn_satfinite_relu_scaled_n2_ue8m0_bf16x2_e2m3x2 = _cvt("rn.satfinite.relu.scaled::n2::ue8m0.bf16x2.e2m3x2")
cvt_rn_bf16x2_e3m2x2 = _cvt("rn.bf16x2.e3m2x2")
cvt_rn_scaled_n2_ue8m0_bf16x2_e3m2x2 = _cvt("rn.scaled::n2::ue8m0.bf16x2.e3m2x2")
cvt_rn_relu_bf16x2_e3m2x2 = _cvt("rn.relu.bf16x2.e3m2x2")
cvt_rn_relu_scaled_n2_ue8m0_bf16x2_e3m2x2 = _cvt("rn.relu.scaled::n2::ue8m0.bf16x2.e3m2x2")
cvt_rn_satfinite_bf16x2_e3m2x2 = _cvt("rn.satfinite.bf16x2.e3m2x2")
cvt_rn_satfinite_scaled_n2_ue8m0_bf16x2_e3m2x2 = _cvt("rn.satfinite.scaled::n2::ue8m0.bf16x2.e3m2x2")
cvt_rn_satfinite_relu_bf16x2_e3m2x2 = _cvt("rn.satfinite.relu.bf16x2.e3m2x2")
cvt_rn_satfinite_relu_scaled_n2_ue8m0_bf16x2_e3m2x2 = _cvt("rn.satfinite.relu.scaled::n2::ue8m0.bf16x2.e3m2x2")

# four narrow <- f32, stochastic
cvt_rs_satfinite_e4m3x4_f32 = _cvt("rs.satfinite.e4m3x4.f32")
cvt_rs_satfinite_relu_e4m3x4_f32 = _cvt("rs.satfinite.relu.e4m3x4.f32")
cvt_rs_satfinite_e5m2x4_f32 = _cvt("rs.satfinite.e5m2x4.f32")
cvt_rs_satfinite_relu_e5m2x4_f32 = _cvt("rs.satfinite.relu.e5m2x4.f32")
cvt_rs_satfinite_e2m1x4_f32 = _cvt("rs.satfinite.e2m1x4.f32")
cvt_rs_satfinite_relu_e2m1x4_f32 = _cvt("rs.satfinite.relu.e2m1x4.f32")
cvt_rs_satfinite_e2m3x4_f32 = _cvt("rs.satfinite.e2m3x4.f32")
cvt_rs_satfinite_relu_e2m3x4_f32 = _cvt("rs.satfinite.relu.e2m3x4.f32")
cvt_rs_satfinite_e3m2x4_f32 = _cvt("rs.satfinite.e3m2x4.f32")
cvt_rs_satfinite_relu_e3m2x4_f32 = _cvt("rs.satfinite.relu.e3m2x4.f32")

# f16x2, bf16x2 <- f32, stochastic
cvt_rs_f16x2_f32 = _cvt("rs.f16x2.f32")
cvt_rs_relu_f16x2_f32 = _cvt("rs.relu.f16x2.f32")
cvt_rs_satfinite_f16x2_f32 = _cvt("rs.satfinite.f16x2.f32")
cvt_rs_satfinite_relu_f16x2_f32 = _cvt("rs.satfinite.relu.f16x2.f32")
cvt_rs_bf16x2_f32 = _cvt("rs.bf16x2.f32")
cvt_rs_relu_bf16x2_f32 = _cvt("rs.relu.bf16x2.f32")
cvt_rs_satfinite_bf16x2_f32 = _cvt("rs.satfinite.bf16x2.f32")
cvt_rs_satfinite_relu_bf16x2_f32 = _cvt("rs.satfinite.relu.bf16x2.f32")

# s2f6x2 <- f32, bf16x2, divided by a scale
cvt_rn_satfinite_s2f6x2_f32 = _cvt("rn.satfinite.s2f6x2.f32")
cvt_rn_satfinite_scaled_n2_ue8m0_s2f6x2_f32 = _cvt("rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32")
cvt_rn_satfinite_relu_s2f6x2_f32 = _cvt("rn.satfinite.relu.s2f6x2.f32")
cvt_rn_satfinite_relu_scaled_n2_ue8m0_s2f6x2_f32 = _cvt("rn.satfinite.relu.scaled::n2::ue8m0.s2f6x2.f32")
cvt_rn_satfinite_s2f6x2_bf16x2 = _cvt("rn.satfinite.s2f6x2.bf16x2")
cvt_rn_satfinite_scaled_n2_ue8m0_s2f6x2_bf16x2 = _cvt("rn.satfinite.scaled::n2::ue8m0.s2f6x2.bf16x2")
cvt_rn_satfinite_relu_s2f6x2_bf16x2 = _cvt("rn.satfinite.relu.s2f6x2.bf16x2")
cvt_rn_satfinite_relu_scaled_n2_ue8m0_s2f6x2_bf16x2 = _cvt("rn.satfinite.relu.scaled::n2::ue8m0.s2f6x2.bf16x2")

# bf16x2 <- s2f6x2, times a scale
cvt_rn_bf16x2_s2f6x2 = _cvt("rn.bf16x2.s2f6x2")
cvt_rn_scaled_n2_ue8m0_bf16x2_s2f6x2 = _cvt("rn.scaled::n2::ue8m0.bf16x2.s2f6x2")
cvt_rn_relu_bf16x2_s2f6x2 = _cvt("rn.relu.bf16x2.s2f6x2")
cvt_rn_relu_scaled_n2_ue8m0_bf16x2_s2f6x2 = _cvt("rn.relu.scaled::n2::ue8m0.bf16x2.s2f6x2")
cvt_rn_satfinite_bf16x2_s2f6x2 = _cvt("rn.satfinite.bf16x2.s2f6x2")
cvt_rn_satfinite_scaled_n2_ue8m0_bf16x2_s2f6x2 = _cvt("rn.satfinite.scaled::n2::ue8m0.bf16x2.s2f6x2")
cvt_rn_satfinite_relu_bf16x2_s2f6x2 = _cvt("rn.satfinite.relu.bf16x2.s2f6x2")
cvt_rn_satfinite_relu_scaled_n2_ue8m0_bf16x2_s2f6x2 = _cvt("rn.satfinite.relu.scaled::n2::ue8m0.bf16x2.s2f6x2")

# ue8m0x2 <- f32, bf16x2, and back
cvt_rz_ue8m0x2_f32 = _cvt("rz.ue8m0x2.f32")
cvt_rz_satfinite_ue8m0x2_f32 = _cvt("rz.satfinite.ue8m0x2.f32")
cvt_rp_ue8m0x2_f32 = _cvt("rp.ue8m0x2.f32")
cvt_rp_satfinite_ue8m0x2_f32 = _cvt("rp.satfinite.ue8m0x2.f32")
cvt_rz_ue8m0x2_bf16x2 = _cvt("rz.ue8m0x2.bf16x2")
cvt_rz_satfinite_ue8m0x2_bf16x2 = _cvt("rz.satfinite.ue8m0x2.bf16x2")
cvt_rp_ue8m0x2_bf16x2 = _cvt("rp.ue8m0x2.bf16x2")
cvt_rp_satfinite_ue8m0x2_bf16x2 = _cvt("rp.satfinite.ue8m0x2.bf16x2")
cvt_rn_bf16x2_ue8m0x2 = _cvt("rn.bf16x2.ue8m0x2")

# toward zero: PTX ISA 9.4, sm_107
cvt_rz_satfinite_e4m3x2_f32 = _cvt("rz.satfinite.e4m3x2.f32")
cvt_rz_satfinite_relu_e4m3x2_f32 = _cvt("rz.satfinite.relu.e4m3x2.f32")
cvt_rz_satfinite_e5m2x2_f32 = _cvt("rz.satfinite.e5m2x2.f32")
cvt_rz_satfinite_relu_e5m2x2_f32 = _cvt("rz.satfinite.relu.e5m2x2.f32")
cvt_rz_satfinite_e2m1x2_f32 = _cvt("rz.satfinite.e2m1x2.f32")
cvt_rz_satfinite_relu_e2m1x2_f32 = _cvt("rz.satfinite.relu.e2m1x2.f32")
cvt_rz_satfinite_e2m3x2_f32 = _cvt("rz.satfinite.e2m3x2.f32")
cvt_rz_satfinite_relu_e2m3x2_f32 = _cvt("rz.satfinite.relu.e2m3x2.f32")
cvt_rz_satfinite_e3m2x2_f32 = _cvt("rz.satfinite.e3m2x2.f32")
cvt_rz_satfinite_relu_e3m2x2_f32 = _cvt("rz.satfinite.relu.e3m2x2.f32")
cvt_rz_satfinite_e4m3x2_f16x2 = _cvt("rz.satfinite.e4m3x2.f16x2")
cvt_rz_satfinite_relu_e4m3x2_f16x2 = _cvt("rz.satfinite.relu.e4m3x2.f16x2")
cvt_rz_satfinite_e5m2x2_f16x2 = _cvt("rz.satfinite.e5m2x2.f16x2")
cvt_rz_satfinite_relu_e5m2x2_f16x2 = _cvt("rz.satfinite.relu.e5m2x2.f16x2")
cvt_rz_satfinite_e2m1x2_f16x2 = _cvt("rz.satfinite.e2m1x2.f16x2")
cvt_rz_satfinite_relu_e2m1x2_f16x2 = _cvt("rz.satfinite.relu.e2m1x2.f16x2")
cvt_rz_satfinite_e2m3x2_f16x2 = _cvt("rz.satfinite.e2m3x2.f16x2")
cvt_rz_satfinite_relu_e2m3x2_f16x2 = _cvt("rz.satfinite.relu.e2m3x2.f16x2")
cvt_rz_satfinite_e3m2x2_f16x2 = _cvt("rz.satfinite.e3m2x2.f16x2")
cvt_rz_satfinite_relu_e3m2x2_f16x2 = _cvt("rz.satfinite.relu.e3m2x2.f16x2")
cvt_rz_satfinite_e4m3x2_bf16x2 = _cvt("rz.satfinite.e4m3x2.bf16x2")
cvt_rz_satfinite_relu_e4m3x2_bf16x2 = _cvt("rz.satfinite.relu.e4m3x2.bf16x2")
cvt_rz_satfinite_e5m2x2_bf16x2 = _cvt("rz.satfinite.e5m2x2.bf16x2")
cvt_rz_satfinite_relu_e5m2x2_bf16x2 = _cvt("rz.satfinite.relu.e5m2x2.bf16x2")
cvt_rz_satfinite_e2m1x2_bf16x2 = _cvt("rz.satfinite.e2m1x2.bf16x2")
cvt_rz_satfinite_relu_e2m1x2_bf16x2 = _cvt("rz.satfinite.relu.e2m1x2.bf16x2")
cvt_rz_satfinite_e2m3x2_bf16x2 = _cvt("rz.satfinite.e2m3x2.bf16x2")
cvt_rz_satfinite_relu_e2m3x2_bf16x2 = _cvt("rz.satfinite.relu.e2m3x2.bf16x2")
cvt_rz_satfinite_e3m2x2_bf16x2 = _cvt("rz.satfinite.e3m2x2.bf16x2")
cvt_rz_satfinite_relu_e3m2x2_bf16x2 = _cvt("rz.satfinite.relu.e3m2x2.bf16x2")
cvt_rz_satfinite_s2f6x2_f32 = _cvt("rz.satfinite.s2f6x2.f32")
cvt_rz_satfinite_scaled_n2_ue8m0_s2f6x2_f32 = _cvt("rz.satfinite.scaled::n2::ue8m0.s2f6x2.f32")
cvt_rz_satfinite_relu_s2f6x2_f32 = _cvt("rz.satfinite.relu.s2f6x2.f32")
cvt_rz_satfinite_relu_scaled_n2_ue8m0_s2f6x2_f32 = _cvt("rz.satfinite.relu.scaled::n2::ue8m0.s2f6x2.f32")
cvt_rz_satfinite_s2f6x2_bf16x2 = _cvt("rz.satfinite.s2f6x2.bf16x2")
cvt_rz_satfinite_scaled_n2_ue8m0_s2f6x2_bf16x2 = _cvt("rz.satfinite.scaled::n2::ue8m0.s2f6x2.bf16x2")
cvt_rz_satfinite_relu_s2f6x2_bf16x2 = _cvt("rz.satfinite.relu.s2f6x2.bf16x2")
cvt_rz_satfinite_relu_scaled_n2_ue8m0_s2f6x2_bf16x2 = _cvt("rz.satfinite.relu.scaled::n2::ue8m0.s2f6x2.bf16x2")


def instructions() -> dict[str, Callable[..., Tensor]]:
    """Every function of this module by its instruction, "cvt.rn.satfinite.e2m1x2.f32"."""
    named = {name.replace("_", "."): value for name, value in globals().items() if name.startswith("cvt_")}
    return {text.replace("scaled.n2.ue8m0", "scaled::n2::ue8m0"): value for text, value in named.items()}
