"""A launch that was not run, compiled ahead of time for an architecture that need not be here; and what came of it.

`compiled` gives Triton's compiler the types, alignments and constants that the launch itself would have had; `look`
reads the result: instructions by opcode, registers, memory, products. What ptxas refuses is told in the project's
words (`Refused`). Needs TRITON_INTERPRET unset when triton is imported.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import descriptor, machine_code, toolchain
from .launches import Call

_TYPES = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
}
_REGISTERS = b"\x04\x2f\x08\x00"  # of .nv.info: EIATTR_REGCOUNT, 8 bytes: a symbol, the number


class Refused(ValueError):
    """Code that was not made, and why."""


@dataclass(frozen=True)
class Code:
    """What a compiler made.

    Args: opcodes: of all of the code, called functions included. traps: in the kernel itself (functions that guard
        tensor memory trap too, and are no fault). shared: bytes. tmem: columns. contracts: whether products and
        additions may become FMAs. divisions: FP32 divisions in PTX that are not correctly rounded.
    """

    opcodes: Counter[str]
    traps: int
    products: tuple[str, ...]
    registers: int
    shared: int
    tmem: int
    contracts: bool
    divisions: int


def bound(call: Call) -> dict[str, Any]:
    """The kernel's parameters by name and what the launch gives them, constexpr objects unwrapped."""
    given = dict(zip(call.kernel.arg_names, call.args, strict=False)) | call.constants
    defaults = {p.name: p.default for p in call.kernel.params if p.has_default}
    values = defaults | given
    missing = [name for name in call.kernel.arg_names if name not in values]
    if missing:
        raise Refused(f"the launch gives no {', '.join(missing)}")
    return {name: getattr(v, "value", v) if "constexpr" in type(v).__name__ else v for name, v in values.items()}


def source(call: Call) -> ASTSource:
    """As `kernel[grid](...)` specializes it: pointers and integers that are multiples of 16, integers that are 1."""
    values, signature, constants, attributes = bound(call), {}, {}, {}
    for place, parameter in enumerate(call.kernel.params):
        value = values[parameter.name]
        one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or one:
            signature[parameter.name], constants[(place,)] = "constexpr", value
            continue
        signature[parameter.name] = _type(value)
        # a descriptor's own parts are not told apart here
        aligned = isinstance(value, Tensor) or (type(value) is int and value % 16 == 0)
        if aligned and not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment):
            attributes[(place,)] = [["tt.divisibility", 16]]
    return ASTSource(call.kernel, signature, constants, attributes)


def _type(value: Any) -> str:
    """Triton's name of an argument's type."""
    if isinstance(value, Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    if isinstance(value, float):
        return "fp32"
    if hasattr(value, "block_shape"):  # a tensor descriptor made on the host
        return f"tensordesc<{_TYPES[value.base.dtype]}{list(value.block_shape)}>"
    raise Refused(f"an argument of {type(value).__name__} has no type of Triton's that is known here")


def compiled(call: Call, arch: int) -> Any:
    """What `triton.compile` makes for sm_90a (90), sm_100a or sm_103a; its `asm` has "ptx" and "cubin".

    Raises: Refused in words, for all that a compiler refuses.
    """
    from triton.runtime.errors import PTXASError

    ptxas = toolchain.used(arch)
    try:
        return triton.compile(source(call), target=GPUTarget("cuda", arch, 32), options=call.options)
    except PTXASError as error:
        raise Refused(_of_ptxas(str(error), ptxas, arch)) from None
    except Exception as error:  # a pass of the compiler that failed raises whatever it likes
        if isinstance(error, Refused):
            raise
        told = [line.strip() for line in f"{error.__cause__ or ''}\n{error}".splitlines() if line.strip(" ^")]
        last = told[-1] if told else "no reason given"
        raise Refused(f"triton {triton.__version__} cannot compile it: {type(error).__name__}: {last[:200]}") from None


def _of_ptxas(told: str, ptxas: toolchain.Assembler, arch: int) -> str:
    """What ptxas said, in words."""
    text = ""
    if (left := re.search(r"(\S+\.ptx)", told)) is not None and Path(left[1]).is_file():
        text = Path(left[1]).read_text()
        Path(left[1]).unlink()  # triton leaves it behind
    if "C7907" in told and "s2f6" in text:
        return (
            f"ptxas {ptxas.version} fails (C7907): an S2F6 conversion whose scale is the same in the whole warp; give "
            "each thread a scale of its own, or OR into it a zero that ptxas does not see: mul.hi of %tid.x by itself"
        )
    if (old := toolchain.too_old(text, ptxas, arch)) is not None:
        return old
    lacks = re.search(r"Feature '([^']+)' not supported on \.target '(\w+)'", told)
    if lacks is not None:
        return f"{lacks[2]} has no {lacks[1]}: compile for {' or '.join(toolchain.ARCHITECTURES[:2])}"
    lines = [line for line in told.splitlines() if re.search(r"error|fatal", line, re.IGNORECASE)]
    said = " ".join((lines or ["nothing"])[min(1, len(lines) - 1) if len(lines) > 1 else 0].split())
    return f"ptxas {ptxas.version} refuses it for sm_{arch}a: {said[:200]}"


def look(made: Any) -> Code:
    """Raises: ValueError without a disassembler, or for code that it cannot read."""
    ptx, text = made.asm["ptx"], machine_code.sass(made)
    return Code(
        machine_code.census(text),
        sum(x.opcode == "BPT.TRAP" for x in machine_code.parse(text)[0]),
        descriptor.products(ptx),
        registers(made.asm["cubin"]),
        int(made.metadata.shared),
        int(getattr(made.metadata, "tmem_size", 0) or 0),
        bool(made.metadata.enable_fp_fusion),
        len(re.findall(r"\bdiv\.(?:full|approx)\S*\.f32", ptx)),
    )


def registers(cubin: bytes) -> int:
    """Of a thread: the most of the functions in a cubin, as its section .nv.info says; 0 if it does not."""
    start, size, count, names = (*struct.unpack_from("<Q", cubin, 0x28), *struct.unpack_from("<HHH", cubin, 0x3A))
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    table = headers[names][4]
    most = 0
    for name, _, _, _, offset, length in headers:
        if cubin[table + name : cubin.index(b"\0", table + name)] == b".nv.info":
            section = cubin[offset : offset + length]
            places = range(0, length - 11, 4)
            most = max(
                [
                    most,
                    *(struct.unpack_from("<I", section, i + 8)[0] for i in places if section[i : i + 4] == _REGISTERS),
                ]
            )
    return most
