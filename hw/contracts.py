"""What the machine code of a kernel must have: declared beside the kernel, judged by `census`.

    CONTRACT = Contract(
        (
            Case("nearest", lambda: nvfp4(Source(meta(256, 4096))), native=(exactly(TO_E2M1, 16),)),
            Case("largest first", lambda: tokens(meta(64, 256)), launch=0),
        ),
        ran="h200_triton", interpreted="test_hw_nvfp4.py",
    )

A case calls the host function with tensors on "meta"; of the launches that it would make one is compiled, by default
the last. `native` counts instructions where the kernel is compiled with NATIVE, `portable` where it is not. Counts are
those of the code, not of a run: instructions for one thread's values where code is straight. What no code may have, and
what portable code may not, is in this file too; `census_judge` applies it.

Opcodes are those that nvdisasm prints, as shell patterns: "UTCOMMA.*" is UTCOMMA.4X on sm_100a and UTCOMMA.BLOCK16 on
sm_103a.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# conversions, one instruction each; two values an instruction
TO_E2M1 = "F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C"
TO_E2M1_DRAWN = "F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C.RS"
TO_E4M3 = "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C"
TO_E4M3_DRAWN = "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C.RS"
TO_E8M0 = "F2FP.SATFINITE.E8.F32.PACK_AB_MERGE_C.RP"
TO_S2F6 = "F2FP.SATFINITE.S2_6.F32.PACK_AB_MERGE_C"
E2M1_TO_F16 = "F2FP.F16.E2M1.UNPACK_B"
E4M3_TO_F16 = "F2FP.F16.E4M3.UNPACK_B"
S2F6_TO_BF16 = "F2FP.BF16.S2_6.UNPACK_B"

# block-scaled products, and what feeds them
MMA_NVFP4, MMA_MXFP8, SCALES_COPIED = "UTCOMMA.*", "UTCQMMA*", "UTCCP.*"
WARPS_APART = "USETMAXREG.*"  # warps of a specialized pipeline take registers from each other
TILES_IN, TILES_OUT = "UTMALDG.*", "UTMASTG.*"

# what only sm_100a and sm_103a have, which portable code is free of
BLACKWELL = ("F2FP*.E2M1.*", "F2FP*.S2_6.*", "F2FP*.E8.*", "F2FP*.RS", "UTC*", "LDTM*", "STTM*")
# registers spilled to local memory; products of matrices
SPILLS = ("LDL*", "STL*")
MATRIX = ("UTC*MMA*", "HGMMA*", "QGMMA*", "IGMMA*", "HMMA*", "QMMA*", "OMMA*", "IMMA*", "DMMA*")


@dataclass(frozen=True)
class Needs:
    """At least `least` instructions, and at most `most`, None: however many, whose opcode matches a pattern."""

    opcode: str
    least: int
    most: int | None = None

    @property
    def bounds(self) -> str:
        return f"{self.least} or more" if self.most is None else str(self.least)


def exactly(opcode: str, count: int) -> Needs:
    return Needs(opcode, count, count)


def at_least(opcode: str, count: int) -> Needs:
    return Needs(opcode, count)


@dataclass(frozen=True, eq=False)
class Case:
    """A variant of a kernel.

    Args:
        call: makes it, on "meta". native, portable: instructions that it must have. mma: the block-scaled products of
            native code, as `descriptor` words them. launch: which of the launches is meant. allowed: patterns of
            products and of BLACKWELL that do not count, such as BF16 products where a kernel is for them.
            architectures: which the kernel is for.
    """

    name: str
    call: Callable[[], Any]
    native: tuple[Needs, ...] = ()
    portable: tuple[Needs, ...] = ()
    mma: tuple[str, ...] = ()
    launch: int = -1
    allowed: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ("sm_103a", "sm_100a", "sm_90a")


@dataclass(frozen=True, eq=False)
class Contract:
    """A module's cases, and what was done beside compiling them; None: it was not.

    Args: ran: the record, of tests/records, of the portable code's run on a Hopper. interpreted: the test file in which
        Triton's interpreter runs it. native: the test file in which the interpreter runs the native branch, with the
        instructions of `numerics.ptx` or `interpret_products`. Native code's run is not here: there was none.
    """

    cases: tuple[Case, ...]
    ran: str | None = None
    interpreted: str | None = None
    native: str | None = None


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor without values."""
    return torch.empty(*shape, dtype=dtype, device="meta")
