"""What a block-scaled product of tcgen05 multiplies, read off a kernel's PTX: formats, scale type, M, N, K.

The instruction takes these from a 32-bit descriptor in a register (PTX ISA, "Instruction descriptor"):

    bits 7-9, 10-12   formats of A and B: in kind::mxf8f6f4 E4M3 0, E5M2 1, E2M3 3, E3M2 4, E2M1 5; in kind::mxf4 and
                      kind::mxf4nvf4 E2M1 1
    bits 13, 14       negate A, B                  bits 17-22        N / 8
    bit 23            scales: UE4M3 0, UE8M0 1     bits 27-28        M / 128
    bits 4-5, 29-30   which scales of a word       bit 31            K of the 4-bit kinds: 64, or 96

Registers are followed through moves, selections, and integer operations; a register of which that says nothing makes
the descriptor unknown, which is told, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

_MMA = re.compile(
    r"tcgen05\.mma\.cta_group::(\d)\.kind::(mxf4nvf4|mxf4|mxf8f6f4)(\S*)"
    r"\s*\[[^\]]*\],\s*(?:%rd\d+|\[[^\]]*\]),\s*%rd\d+,\s*(%r\d+|-?\d+|0x[0-9a-fA-F]+)"
)
_OTHER = re.compile(r"tcgen05\.mma\S*?\.kind::(\w+)")
_LINE = re.compile(r"^\s*(mov|selp|or|and|add|sub|shl|shr|xor|cvt)\.[\w.]+\s+(%r\d+),\s*([^;]+);", re.MULTILINE)
# whatever else writes a register, or does so under a predicate
_OTHERWISE = re.compile(
    r"^\s*(?:@!?%p\d+\s+\S+|(?!(?:mov|selp|or|and|add|sub|shl|shr|xor|cvt)\.)[a-z]\S*)\s+(\{[^}]*\}|%r\d+)",
    re.MULTILINE,
)
_EIGHT = {0: "E4M3", 1: "E5M2", 3: "E2M3", 4: "E3M2", 5: "E2M1"}
_MOST = 64  # values that a register may have

_FOLDED: dict[str, Callable[[int, int], int]] = {
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "xor": lambda a, b: a ^ b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "shl": lambda a, b: a << min(b, 32),
    "shr": lambda a, b: a >> min(b, 32),
}


def words(kind: str, value: int, block: int) -> str:
    """A descriptor in words: "mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 128 x 128 x 64". block: values that share a scale."""
    table = _EIGHT if kind == "mxf8f6f4" else {1: "E2M1"}
    a, b = (table.get(value >> place & 7, "?") for place in (7, 10))
    signs = "".join(f", minus {name}" for name, place in (("A", 13), ("B", 14)) if value >> place & 1)
    k = 32 if kind == "mxf8f6f4" else 96 if value >> 31 & 1 else 64
    m, n = 128 * (value >> 27 & 3), 8 * (value >> 17 & 63)
    return f"{kind} {a} x {b}, {'UE8M0' if value >> 23 & 1 else 'UE4M3'} by {block}, {m} x {n} x {k}{signs}"


def products(ptx: str) -> tuple[str, ...]:
    """The products of a kernel in words, each once, in order; those without block scales by kind alone."""
    known, found = _values(ptx), []
    for line in ptx.splitlines():
        if (scaled := _MMA.search(line)) is not None:
            values = _operand(scaled[4], known)
            block = 16 if re.search(r"block16|scale_vec::4X", scaled[3]) else 32
            found += [words(scaled[2], v, block) for v in sorted(values)] or [f"{scaled[2]} of unknown operands"]
        elif (other := _OTHER.search(line)) is not None:
            found.append(other[1])
    return tuple(dict.fromkeys(found))


def _values(ptx: str) -> dict[str, set[int]]:
    """What each 32-bit register may hold, of those that constants alone decide."""
    sources: dict[str, list[tuple[str, list[str]]]] = {}
    for operation, target, operands in _LINE.findall(ptx):
        sources.setdefault(target, []).append((operation, [part.strip() for part in operands.split(",")]))
    for target in _OTHERWISE.findall(ptx):
        for name in re.findall(r"%r\d+", target):
            sources.pop(name, None)
    known: dict[str, set[int]] = {}
    for _ in range(16):  # a chain's length; each turn may only add
        before = {name: set(values) for name, values in known.items()}
        for target, made in sources.items():
            found = [_result(operation, operands, known) for operation, operands in made]
            whole = set().union(*(f for f in found if f is not None))
            if all(f is not None for f in found) and len(whole) <= _MOST:
                known[target] = whole
        if known == before:
            break
    return known


def _result(operation: str, operands: list[str], known: dict[str, set[int]]) -> set[int] | None:
    values = [_operand(name, known) for name in operands[:2]]
    if operation in ("mov", "cvt"):
        return values[0] or None
    if len(values) < 2 or not values[0] or not values[1]:
        return None
    if operation == "selp":
        return values[0] | values[1]
    return {_FOLDED[operation](a, b) & 0xFFFFFFFF for a, b in product(*values)}


def _operand(name: str, known: dict[str, set[int]]) -> set[int]:
    if name.startswith("%"):
        return known.get(name, set())
    try:
        return {int(name, 0) & 0xFFFFFFFF}
    except ValueError:
        return set()
