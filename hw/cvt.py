"""One `cvt` instruction of the GPU on whole tensors, issued through Triton's inline assembly.

    d = issue("cvt.rn.satfinite.e4m3x2.f32", [a, b])        a, b: the bits of float32 numbers, int32

Operands and results are 32-bit registers: float32 numbers by their bits, so that nothing but the instruction itself
sees a NaN or a subnormal number; narrower words in the low bits. Operands stand in the instruction's order, the scale
or the random bits last. `build` compiles ahead of time, for any chip, without a GPU.

This module needs Triton, compiled: its interpreter has no inline assembly.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contracts import (
    BLACKWELL,
    E2M1_TO_F16,
    S2F6_TO_BF16,
    TO_E2M1,
    TO_E2M1_DRAWN,
    TO_E4M3,
    TO_E4M3_DRAWN,
    TO_E8M0,
    TO_S2F6,
    Case,
    Contract,
    exactly,
    meta,
)
from .device import require_launch
from .launches import launch

BLOCK = 1024


@triton.jit
def _kernel(
    x0, x1, x2, x3, x4, out, n, COUNT: tl.constexpr, ASM: tl.constexpr, REGS: tl.constexpr, BLOCK: tl.constexpr
):
    """out[i] = ASM(x0[i], .., the first COUNT of them), all int32 (n,)."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    v0 = tl.load(x0 + i, mask=inside, other=0)
    if COUNT == 1:
        d = tl.inline_asm_elementwise(ASM, REGS, [v0], dtype=tl.int32, is_pure=True, pack=1)
    else:
        v1 = tl.load(x1 + i, mask=inside, other=0)
        if COUNT == 2:
            d = tl.inline_asm_elementwise(ASM, REGS, [v0, v1], dtype=tl.int32, is_pure=True, pack=1)
        else:
            v2 = tl.load(x2 + i, mask=inside, other=0)
            if COUNT == 3:
                d = tl.inline_asm_elementwise(ASM, REGS, [v0, v1, v2], dtype=tl.int32, is_pure=True, pack=1)
            else:
                v3 = tl.load(x3 + i, mask=inside, other=0)
                v4 = tl.load(x4 + i, mask=inside, other=0)
                d = tl.inline_asm_elementwise(ASM, REGS, [v0, v1, v2, v3, v4], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, d, mask=inside)


def width(kind: str) -> int:
    """Bits of the register that holds an operand of a type, "e2m1x2" or "f32"."""
    known = {"e2m1x2": 8, "e2m1x4": 16, "f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "tf32": 32, "f32": 32}
    return known.get(kind, 32 if kind.endswith("x4") else 16)


def assembly(text: str) -> tuple[str, int]:
    """Inline assembly of the instruction `text`, and how many 32-bit operands it takes."""
    parts = text.split(".")
    destination, source = parts[-2:]
    count = 1 if source != "f32" else int(destination[-1]) if destination[-2:] in ("x2", "x4") else 1
    lines, names = [], []
    for place in range(1, count + 1):
        names.append(_operand(source, place, lines))
    operands = f"{{{', '.join(names)}}}" if count == 4 else ", ".join(names)
    if any(part.startswith("scaled") for part in parts):
        count += 1
        operands += ", " + _operand("ue8m0x2", count, lines)
    if parts[1] == "rs":
        count += 1
        operands += f", ${count}"
    if width(destination) == 32:
        lines.append(f"{text} $0, {operands};")
    else:
        bits = width(destination)
        lines += [f".reg .b{bits} d;", f"{text} d, {operands};", f"cvt.u32.u{bits} $0, d;"]
    return "{ " + " ".join(lines) + " }", count


def _operand(kind: str, place: int, lines: list[str]) -> str:
    """The name of an operand of the type `kind`, made in `lines` from the 32-bit register $place."""
    bits, name = width(kind), f"x{place}"
    if kind == "f32":
        lines += [f".reg .f32 {name};", f"mov.b32 {name}, ${place};"]
    elif bits == 32:
        return f"${place}"
    else:
        lines += [f".reg .b{bits} {name};", f"cvt.u{bits}.u32 {name}, ${place};"]
    return name


def issue(text: str, operands: list[Tensor]) -> Tensor:
    """The instruction on every element.

    Args:
        text: as in PTX. operands: int32 tensors of one shape on a CUDA device; see the module docstring.

    Returns:
        The result's register, int32, the shape of the operands.

    Raises:
        ValueError: another number of operands; a CPU tensor. triton.runtime.errors.PTXASError: an instruction that
        the chip or the assembler does not know.
    """
    asm, count = assembly(text)
    if len(operands) != count:
        raise ValueError(f"operands={len(operands)} of them: {text} takes {count}")
    require_launch(_kernel, operands[0], "operands[0]")
    x = [operand.contiguous() for operand in operands]
    out = torch.empty_like(x[0])
    n = out.numel()
    if n:
        padded = x + [x[0]] * (5 - count)
        grid = (triton.cdiv(n, BLOCK),)
        launch(_kernel, grid, *padded, out, n, COUNT=count, ASM=asm, REGS=_registers(count), BLOCK=BLOCK)
    return out


def _registers(count: int) -> str:
    return "=r" + ",r" * count


def build(text: str, capability: tuple[int, int]) -> Any:
    """The compiled kernel around one instruction for a compute capability, (9, 0); its `asm` has "ptx" and "cubin"."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    asm, count = assembly(text)
    constants = {"COUNT": count, "ASM": asm, "REGS": _registers(count), "BLOCK": BLOCK}
    pointers = {name: "*i32" for name in ("x0", "x1", "x2", "x3", "x4", "out")}
    source = ASTSource(_kernel, {**pointers, "n": "i32", **dict.fromkeys(constants, "constexpr")}, constants)
    return triton.compile(source, target=GPUTarget("cuda", 10 * capability[0] + capability[1], 32))


def _case(text: str, opcode: str, count: int, first: str = "sm_10") -> Case:
    """One instruction of PTX on eight elements of a thread: `count` of machine code."""

    def call() -> Tensor:
        return issue(text, [meta(4096, dtype=torch.int32)] * assembly(text)[1])

    archs = tuple(arch for arch in ("sm_103a", "sm_100a", "sm_90a") if arch.startswith(first))
    return Case(text, call, portable=(exactly(opcode, count),), allowed=BLACKWELL, architectures=archs)


CONTRACT = Contract(
    (
        _case("cvt.rn.satfinite.e2m1x2.f32", TO_E2M1, 8),
        _case("cvt.rs.satfinite.e2m1x4.f32", TO_E2M1_DRAWN, 16),
        _case("cvt.rs.satfinite.e4m3x4.f32", TO_E4M3_DRAWN, 16),
        _case("cvt.rp.satfinite.ue8m0x2.f32", TO_E8M0, 8),
        _case("cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32", TO_S2F6, 8),
        _case("cvt.rn.scaled::n2::ue8m0.bf16x2.s2f6x2", S2F6_TO_BF16, 8),
        _case("cvt.rn.f16x2.e2m1x2", E2M1_TO_F16, 8),
        _case("cvt.rn.satfinite.e4m3x2.f32", TO_E4M3, 8, "sm_"),
    ),
    ran="h200_cvt.json",
)
