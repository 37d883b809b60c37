"""Registers of `ptx_run`: what a string of PTX has declared and written, by name, and the rules of reading and writing.

A register has a type (PTX ISA 5.2): untyped ones go with any type of their width, integers with integers, floats with
floats; "packed", several narrow numbers, with untyped ones alone. All functions raise ValueError in words that name the
register.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import torch
from torch import Tensor

_TYPE = re.compile(r"([busf])(8|16|32)")
_IMMEDIATE = re.compile(r"0[fF][0-9a-fA-F]{8}|-?0[xX][0-9a-fA-F]+|-?\d+")
THREADS = 1024  # of a block at most: %tid.x is below


@dataclass
class Register:
    """kind: b, u, s or f. bits: int64, None until it is written. role: "own", "in" or "out", "early" for "=&"."""

    kind: str
    width: int
    role: str = "own"
    bits: Tensor | None = None


@dataclass
class Program:
    """What has been executed: registers by name in the scopes that are open, and the outputs written so far."""

    shape: torch.Size
    scopes: list[dict[str, Register]]
    written: list[str] = field(default_factory=list)


def typed(name: str) -> tuple[str, int]:
    """Kind and width of a type such as "b32"."""
    match = _TYPE.fullmatch(name)
    if match is None:
        raise ValueError(f".{name} is a type that this interpreter does not know")
    return match[1], int(match[2])


def _found(program: Program, name: str, kind: str, width: int) -> Register:
    register = next((scope[name] for scope in reversed(program.scopes) if name in scope), None)
    if register is None:
        raise ValueError(f"{name} is not declared")
    kinds = {register.kind, "b" if kind == "packed" else kind}
    unlike = register.kind != "b" if kind == "packed" else len(kinds) > 1 and "b" not in kinds and "f" in kinds
    if register.width != width or unlike:
        asked = f"{'b' if kind == 'packed' else kind}{width}"
        raise ValueError(f"{name} is .{register.kind}{register.width} where .{asked} is asked for")
    return register


def read(program: Program, name: str, kind: str, width: int) -> Tensor:
    """Bits, int64: of a register, an immediate or %tid.x."""
    if name == "%tid.x" and width == 32:
        return (torch.arange(program.shape.numel()) % THREADS).view(program.shape)
    if _IMMEDIATE.fullmatch(name):
        if kind == "f" and name[:2].lower() != "0f":
            raise ValueError(f"{name} is an integer where a float is asked for: write 0f and its bits")
        return torch.full(program.shape, _number(name, width))
    register = _found(program, name, kind, width)
    if register.bits is None:
        raise ValueError(f"{name} is read before it is written")
    if register.role == "in" and program.written:
        raise ValueError(
            f"{name} is read after {program.written[0]} is written, which may be the same register: write outputs last"
        )
    return register.bits


def _number(text: str, width: int) -> int:
    value = int(text[2:], 16) if text[:2].lower() == "0f" else int(text, 0)
    if not -(1 << (width - 1)) <= value <= mask(width):
        raise ValueError(f"{text} has more than {width} bits")
    return value & mask(width)


def write(program: Program, name: str, kind: str, width: int, bits: Tensor) -> None:
    """Bits, int64, of which the low `width` count, to a register that is not an input."""
    register = _found(program, name, kind, width)
    if register.role == "in":
        raise ValueError(f"{name} is an input: it cannot be written")
    if register.role == "out":
        program.written.append(name)
    register.bits = bits.to(torch.int64) & mask(width)


def mask(width: int) -> int:
    """`width` ones."""
    return (1 << width) - 1
