"""Whether a kernel's machine code is what its contract says: a row of the census.

Refused everywhere: contraction to FMAs, FP32 division that is not correctly rounded, registers spilled to local memory,
a trap in the place of a kernel that does not fit (Triton's compiler says nothing), tensor memory or shared memory
beyond the limit. On Blackwell: products of another kind than block-scaled ones, which Triton takes silently for tiles
that have none. In portable code: what only Blackwell has.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .contracts import BLACKWELL, MATRIX, SPILLS, Case

TMEM_COLUMNS = 512
SHARED_BYTES = 232448  # 227 KiB, of a block on sm_90 to sm_103


@dataclass(frozen=True)
class Row:
    """One kernel for one architecture. mode: "native", "portable", or "common": it has no native branch. mma, ccp, tma:
    instructions; converted: conversions by kind. faults: empty if the contract holds."""

    kernel: str
    case: str
    arch: str
    mode: str
    mma: str
    products: str
    ccp: int
    tma: int
    converted: str
    spills: int
    registers: int
    shared: int
    tmem: int
    faults: tuple[str, ...]


def matching(opcodes: Counter[str], patterns: Iterable[str]) -> Counter[str]:
    """The opcodes that match one of some shell patterns, case told apart."""
    patterns = tuple(patterns)
    return Counter({o: n for o, n in opcodes.items() if any(fnmatch.fnmatchcase(o, p) for p in patterns)})


def words(found: Counter[str]) -> str:
    return ", ".join(f"{opcode} {count}" for opcode, count in sorted(found.items()))


def row(kernel: str, case: Case, arch: str, mode: str, code: Any) -> Row:
    """The row of a kernel. code: as `aot.look` gives it."""
    opcodes = code.opcodes
    mma = matching(opcodes, MATRIX)
    converted = Counter({_short(o): n for o, n in matching(opcodes, ("F2FP.*",)).items()})
    return Row(
        kernel, case.name, arch, mode, words(mma), "; ".join(code.products),
        sum(matching(opcodes, ("UTCCP*",)).values()), sum(matching(opcodes, ("UTMALDG*", "UTMASTG*")).values()),
        words(converted), sum(matching(opcodes, SPILLS).values()), code.registers, code.shared, code.tmem,
        tuple(faults(case, arch, mode, code)),
    )  # fmt: skip


def _short(opcode: str) -> str:
    """F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C.RS as E2M1<F32.RS: to E2M1, from FP32, random."""
    parts = [p for p in opcode.split(".")[1:] if p not in ("SATFINITE", "PACK_AB_MERGE_C", "PACK_AB", "RELU")]
    parts = [p for p in parts if not p.startswith("UNPACK_B")]
    return f"{parts[0]}<{'.'.join(parts[1:])}"


def refused(kernel: str, case: Case, arch: str, mode: str, why: str) -> Row:
    """The row of a kernel that could not be compiled."""
    return Row(kernel, case.name, arch, mode, "", "", 0, 0, "", 0, 0, 0, 0, (why,))


def faults(case: Case, arch: str, mode: str, code: Any) -> list[str]:
    """What is not as the contract says, in words."""
    return [
        *_limits(code),
        *_numerics(code),
        *_forbidden(case, arch, mode, code),
        *_needed(case, arch, mode, code),
    ]


def _limits(code: Any) -> list[str]:
    found = []
    if code.tmem > TMEM_COLUMNS:
        found.append(f"takes {code.tmem} columns of tensor memory of {TMEM_COLUMNS}: use smaller tiles or fewer stages")
    if code.shared > SHARED_BYTES:
        found.append(f"takes {code.shared} bytes of shared memory of {SHARED_BYTES}: use smaller tiles or fewer stages")
    if code.traps:
        found.append(f"is a stub that traps ({code.traps} BPT.TRAP): it does not fit the chip, and no compiler said so")
    if spills := matching(code.opcodes, SPILLS):
        found.append(f"spills registers to local memory ({words(spills)}): use smaller tiles or more warps")
    return found


def _numerics(code: Any) -> list[str]:
    found = []
    if code.contracts:
        found.append("is compiled with FP contraction: launch it by `launches.launch`, or pass enable_fp_fusion=False")
    if code.divisions:
        found.append(f"has {code.divisions} FP32 divisions that are not correctly rounded: write tl.div_rn for /")
    return found


def _forbidden(case: Case, arch: str, mode: str, code: Any) -> list[str]:
    found = []
    only = matching(code.opcodes, BLACKWELL) - matching(code.opcodes, case.allowed)
    if only and mode != "native":
        found.append(f"has native instructions in portable code: {words(only)}")
    other = matching(code.opcodes, MATRIX) - matching(code.opcodes, ("UTCOMMA*", "UTCQMMA*", *case.allowed))
    if other and arch != "sm_90a":
        found.append(
            f"multiplies by {words(other)}, not by block-scaled products: Triton decodes to BF16 where a tile has none "
            "(128 or 256 rows have them)"
        )
    return found


def _needed(case: Case, arch: str, mode: str, code: Any) -> list[str]:
    found = []
    for need in case.native if mode == "native" else case.portable:
        count = sum(matching(code.opcodes, (need.opcode,)).values())
        if count < need.least or (need.most is not None and count > need.most):
            found.append(f"has {count} of {need.opcode}, and its contract says {need.bounds}")
    if mode == "common" and arch != "sm_90a" and case.native:
        found.append("has no parameter NATIVE, and its contract says what native code has")
    if mode == "native" and set(code.products) != set(case.mma):
        there, meant = ("; ".join(products) or "no products" for products in (code.products, case.mma))
        found.append(f"multiplies {there}, and its contract says {meant}")
    return found
