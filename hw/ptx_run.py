"""Inline PTX, executed on a CPU: a small interpreter of the forms that kernels use, and Triton's interpreter with it.

    results = run(text, "=r,f,f", [a, b])               a string, its constraints in LLVM's form, tensors of one shape
    with interpreted() as texts: ...                    kernels in Triton's interpreter take `inline_asm_elementwise`

Instructions: .reg, mov with and without braces, cvt between integers and from float16, and every narrow cvt through
`numerics.ptx`; and, or, xor, shl, shr. Registers hold bits and have a type (PTX ISA 5.2): untyped ones go with any type
of their width, integers with integers, floats with floats. $n is an operand, outputs first: r has 32 bits, h 16, f is a
float32. Everything is computed on tensors, an element for each execution.

ValueError, with the instruction in words: one that is not known, a register that is not declared or read before it is
written, another width or type, an input that is written, an output that is not; and an output without "&" that is
written before the last input is read, to which the compiler may give that input's register.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from numerics import ptx

from .ptx_registers import Program, Register, mask, read, typed, write

_LETTERS = {"r": ("b", 32), "h": ("b", 16), "f": ("f", 32)}
_DTYPES = {("b", 32): torch.int32, ("b", 16): torch.int16, ("f", 32): torch.float32}
_OPERAND = r"(?:\{\s*[^,{}\s]+(?:\s*,\s*[^,{}\s]+)*\s*\}|[^,{}\s]+)"
_TAKEN = {("b", 32): (torch.int32, torch.uint32), ("b", 16): (torch.int16, torch.uint16), ("f", 32): (torch.float32,)}


def run(text: str, constraints: str, operands: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of inline PTX.

    Args:
        text: instructions as `inline_asm_elementwise` takes them. constraints: "=r,=f,r,f": outputs before inputs.
        operands: int32 or uint32 (r), int16 or uint16 (h), float32 (f), of one shape.

    Returns: int32, int16 or float32 tensors of that shape.
    Raises: ValueError: see the module's docstring; operands that do not go with the constraints.
    """
    program = Program(operands[0].shape, [_placeholders(constraints, operands)])
    for statement in _statements(text):
        if statement == "{":
            program.scopes.append({})
        elif statement == "}":
            if len(program.scopes) == 1:
                raise ValueError(f"text closes a brace that it does not open: {text!r}")
            program.scopes.pop()
        else:
            try:
                _execute(program, statement)
            except ValueError as error:
                raise ValueError(f"{statement}: {error}") from error
    if len(program.scopes) > 1:
        raise ValueError(f"text does not close its last brace: {text!r}")
    return [_result(name, r) for name, r in program.scopes[0].items() if r.role in ("out", "early")]


def _placeholders(constraints: str, operands: Sequence[Tensor]) -> dict[str, Register]:
    found: dict[str, Register] = {}
    inputs = iter(operands)
    for i, part in enumerate(constraints.split(",")):
        match = re.fullmatch(r"(=&?)?([rhf])", part.strip())
        if match is None:
            raise ValueError(f"constraints={constraints!r}: {part!r} is none of r, h, f, with = or =& for an output")
        register = Register(*_LETTERS[match[2]], {None: "in", "=": "out", "=&": "early"}[match[1]])
        if register.role == "in":
            x = next(inputs, None)
            if x is None or x.dtype not in _TAKEN[register.kind, register.width] or x.shape != operands[0].shape:
                given = "absent" if x is None else f"{x.dtype} {tuple(x.shape)}"
                raise ValueError(f"${i} is {given}: constraint {match[2]!r} and the first operand ask for another")
            bits = x.contiguous().view(torch.int32 if register.width == 32 else torch.int16)
            register.bits = bits.to(torch.int64) & mask(register.width)
        elif any(r.role == "in" for r in found.values()):
            raise ValueError(f"constraints={constraints!r}: outputs come first")
        found[f"${i}"] = register
    if next(inputs, None) is not None:
        raise ValueError(f"constraints={constraints!r} take fewer than {len(operands)} operands")
    return found


def _statements(text: str) -> Iterator[str]:
    """Instructions without their semicolons, and the braces around scopes."""
    text = re.sub(r"//[^\n]*", "", text)
    while text := text.strip():
        if text[0] in "{}":
            yield text[0]
            text = text[1:]
        else:
            end = text.find(";")
            if end < 0:
                raise ValueError(f"text ends in {text!r}: a semicolon is missing")
            yield " ".join(text[:end].split())
            text = text[end + 1 :]


def _execute(program: Program, statement: str) -> None:
    operation, _, rest = statement.partition(" ")
    if operation == ".reg":
        # ".reg .b32 a, b<4>": the type is the first word behind .reg
        kind, _, names = rest.partition(" ")
        _declare(program, kind, _separated(names))
        return
    if not re.match(r"(mov|cvt|and|or|xor|shl|shr|mul)\.", operation):
        raise ValueError("this interpreter does not know the instruction")
    operands = _separated(rest)
    if operation.startswith("mov."):
        _move(program, operation, operands)
    elif operation.startswith("cvt."):
        (_narrow if operation in ptx.instructions() else _plain)(program, operation, operands)
    elif re.fullmatch(r"(and|or|xor|shl)\.b(16|32)|shr\.[bu](16|32)", operation):
        _logic(program, operation, operands)
    elif operation == "mul.hi.u32":
        target, first, second = _counted(operands, 3)
        a, b = (read(program, name, "u", 32) for name in (first, second))
        write(program, target, "u", 32, _upper_half(a, b))
    else:
        raise ValueError("this interpreter does not know the instruction")


def _separated(text: str) -> list[str]:
    """Operands: words, or words in braces, with a comma between each two."""
    if not re.fullmatch(rf"{_OPERAND}(\s*,\s*{_OPERAND})*", text):
        raise ValueError(f"{text!r} is no list of operands with a comma between each two")
    return re.findall(_OPERAND, text)


def _declare(program: Program, type_name: str, names: list[str]) -> None:
    kind, width = typed(type_name.lstrip("."))
    for name in names:
        many = re.fullmatch(r"([A-Za-z_%]\w*)<(\d+)>", name)
        for one in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
            if not re.fullmatch(r"[A-Za-z_%]\w*", one) or one in program.scopes[-1]:
                raise ValueError(f"{one} is no name of a new register")
            program.scopes[-1][one] = Register(kind, width)


def _move(program: Program, operation: str, operands: list[str]) -> None:
    kind, width = typed(operation[4:])
    target, source = _counted(operands, 2)
    packed = [x for x in (target, source) if x.startswith("{")]
    if width == 8 or (kind, width) == ("f", 16) or (packed and (kind != "b" or len(packed) > 1)):
        raise ValueError("mov has no such type, or not with braces: those are of b16 and b32 and on one side")
    if packed and len(_listed(packed[0])) not in (2, 4):
        raise ValueError("a register is packed from two or four")
    if source.startswith("{"):
        names = _listed(source)
        each = width // len(names)
        parts = [read(program, name, "b", each) << (each * i) for i, name in enumerate(names)]
        bits = torch.stack(parts).sum(0)
    else:
        bits = read(program, source, kind, width)
    if target.startswith("{"):
        names = _listed(target)
        each = width // len(names)
        for i, name in enumerate(names):
            write(program, name, "b", each, bits >> (each * i))
    else:
        write(program, target, kind, width, bits)


def _listed(braces: str) -> list[str]:
    return [name.strip() for name in braces[1:-1].split(",")]


def _counted(operands: list[str], count: int) -> list[str]:
    if len(operands) != count:
        raise ValueError(f"{len(operands)} operands instead of {count}")
    return operands


def _plain(program: Program, operation: str, operands: list[str]) -> None:
    """cvt between integers, and from float16 to float32."""
    match = re.fullmatch(r"cvt\.(\w+)\.(\w+)", operation)
    if match is None:
        raise ValueError("this interpreter does not know the instruction")
    (kind, width), (kind_of, width_of) = typed(match[1]), typed(match[2])
    target, source = _counted(operands, 2)
    bits = read(program, source, kind_of, width_of)
    if (kind, width, kind_of, width_of) == ("f", 32, "f", 16):
        bits = bits.to(torch.int16).view(torch.float16).to(torch.float32).view(torch.int32)
    elif "f" in (kind, kind_of) or "b" in (kind, kind_of):
        raise ValueError("this interpreter does not know the instruction")
    elif kind_of == "s":
        bits = bits - ((bits >> (width_of - 1)) << width_of)
    write(program, target, kind, width, bits)


def _narrow(program: Program, operation: str, operands: list[str]) -> None:
    """An instruction of `numerics.ptx`: its operands are in the order of the text."""
    parts = operation.split(".")
    target, *sources = operands
    if parts[1] == "rz" and "ue8m0" not in operation:
        raise ValueError("of the narrow formats only ue8m0 is rounded toward zero before sm_107")
    braces = bool(sources) and sources[0].startswith("{")
    if braces != ("x4." in operation):
        raise ValueError("the x4 instructions, and only they, take their operands in braces")
    if braces:
        sources = [*_counted(_listed(sources[0]), 4), *sources[1:]]
    packed = 1 if parts[-1] != "f32" else 4 if "x4." in operation else 2
    scaled, drawn = "scaled::n2::ue8m0" in operation, parts[1] == "rs"
    _counted(sources, packed + scaled + drawn)
    values: list[Tensor] = []
    for i, name in enumerate(sources):
        if i >= packed:
            values.append(read(program, name, "packed", 16 if scaled else 32))
        elif parts[-1] == "f32":
            values.append(read(program, name, "f", 32).to(torch.int32).view(torch.float32))
        else:
            values.append(read(program, name, "packed", _width(parts[-1])))
    write(program, target, "packed", _width(parts[-2]), ptx.instructions()[operation](*values).to(torch.int64))


def _width(packed: str) -> int:
    """Bits of an operand such as e2m1x4."""
    element, _, count = packed.rpartition("x")
    each = {"e2m1": 4, "f16": 16, "bf16": 16}.get(element, 8)
    return each * int(count)


def _logic(program: Program, operation: str, operands: list[str]) -> None:
    name, kind_width = operation.split(".")
    kind, width = typed(kind_width)
    target, first, second = _counted(operands, 3)
    a = read(program, first, kind, width)
    if name in ("shl", "shr"):
        by = read(program, second, "u", 32)
        bits = torch.where(by < width, a << by.clamp(max=31) if name == "shl" else a >> by.clamp(max=31), 0)
    else:
        b = read(program, second, kind, width)
        bits = {"and": a & b, "or": a | b, "xor": a ^ b}[name]
    write(program, target, kind, width, bits)


def _upper_half(a: Tensor, b: Tensor) -> Tensor:
    """Bits 32 to 63 of the product of two numbers below 2^32, which int64 does not hold."""
    low, high = a & 0xFFFF, a >> 16
    return (high * b + (low * b >> 16)) >> 16


def _result(name: str, register: Register) -> Tensor:
    if register.bits is None:
        raise ValueError(f"{name} is never written: it is an output")
    whole = register.bits.to(torch.int32) if register.width == 32 else register.bits.to(torch.int16)
    return whole.view(_DTYPES[register.kind, register.width])


@contextmanager
def interpreted() -> Iterator[set[str]]:
    """Triton's interpreter executes inline PTX inside, which it refuses by itself; yields the texts it has executed."""
    from triton.runtime import interpreter

    texts: set[str] = set()

    def create_inline_asm(
        self: Any, asm: str, constraints: str, values: Sequence[Any], types: Sequence[Any], is_pure: bool, pack: int
    ) -> Any:
        if pack != 1:
            raise ValueError(f"pack={pack}: this interpreter executes one element at a time; use pack=1")
        tensors = [torch.from_numpy(np.ascontiguousarray(value.data)) for value in values]
        texts.add(asm)
        outputs = [
            interpreter.TensorHandle(out.numpy(), kind.scalar)
            for out, kind in zip(run(asm, constraints, tensors), types, strict=True)
        ]
        return SimpleNamespace(get_result=outputs.__getitem__)

    builder = interpreter.InterpreterBuilder
    before = builder.__dict__.get("create_inline_asm")
    builder.create_inline_asm = create_inline_asm  # type: ignore[method-assign]
    try:
        yield texts
    finally:
        if before is None:
            del builder.create_inline_asm
        else:
            builder.create_inline_asm = before  # type: ignore[method-assign]
