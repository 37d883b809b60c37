"""How many instructions one warp of a compiled Triton kernel issues, counted in its machine code (SASS).

    text = sass(compiled)                    # what kernel[grid](...) returns, or triton.compile
    issued = count(text, trips=(16, 4))      # turns of each loop, in the code's order, an outer one first

A scheduler issues one instruction of one warp per clock, whichever lanes take part: an instruction under a false
predicate is issued like any other. So a warp's instructions over the issue rate are a time that no run can beat.

What is counted. `least`: the shortest way from the first instruction to EXIT. `others`: the code that only other ways
have, such as the call of a division's slow path, counted as if it ran in every turn of its loops. A warp issues at
least `least`, and at most `least + others` and what it calls.

What is not known. Turns of loops are not in the code: the caller gives them, and they are those of the machine's loops,
after the assembler has unrolled and split them; ptxas tests at a loop's end, so its whole body turns. A loop of which
turns are given is taken to be entered, so a branch around it is not taken. Loops that begin at one instruction are one;
one that waits for memory turns once at least. EXIT under a predicate is taken to end lanes, not the warp, unless
nothing else ends its loop: what follows it counts, too much for warps that end there. Functions that are called (slow
paths of FP32 division, for one) are not counted, their calls are. Some pipes take an instruction only every second
clock or less often; that bound is not this one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import flow

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[T\d]+)\s+)?([A-Z][A-Za-z0-9_.]*)\s*([^;]*);")
_LABEL = re.compile(r"^([^\s:]+):\s*$")
_FUNCTION = re.compile(r"^\s*\.type\s+(\S+),@function", re.MULTILINE)
_TARGET = re.compile(r"`\(([^)]+)\)")
_ENDS = ("EXIT", "RET", "KILL")
_UNKNOWN = ("BRX", "BRXU", "JMP", "JMX", "JMXU", "JMPX")


@dataclass(frozen=True)
class Instruction:
    """One line: address in bytes, predicate ("" for none), opcode with its modifiers, operands."""

    address: int
    predicate: str
    opcode: str
    operands: str

    @property
    def kind(self) -> str:
        return self.opcode.split(".")[0]


@dataclass(frozen=True)
class Issued:
    """What one warp issues. census: `least` by opcode. loops: what was found, in words."""

    least: int
    others: int
    census: Counter[str]
    loops: tuple[str, ...]


def nvdisasm() -> Path:
    """The disassembler: TRITON_NVDISASM_PATH, else that of pip's nvidia-cuda-nvdisasm, triton's own, the one on PATH.

    Raises: ValueError if there is none, or if the variable names no file.
    """
    import triton

    if (named := os.environ.get("TRITON_NVDISASM_PATH")) and not Path(named).is_file():
        raise ValueError(f"TRITON_NVDISASM_PATH={named!r} is no file; name nvdisasm, or unset it")
    own = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    on_path = shutil.which("nvdisasm")
    candidates = [*([Path(named)] if named else packaged("nvdisasm")), own, *([Path(on_path)] if on_path else [])]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise ValueError(
            f"nvdisasm is neither in triton {triton.__version__} nor on PATH, so machine code cannot be read: install "
            "triton's wheel, or pip install nvidia-cuda-nvdisasm"
        )
    return found


def packaged(name: str) -> list[Path]:
    """Programs of that name in pip's packages of NVIDIA's toolkit, the newest toolkit first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else spec.submodule_search_locations or []
    found = [path for root in roots for path in Path(root).glob(f"cu[0-9]*/bin/{name}") if path.is_file()]
    return sorted(found, key=lambda path: int(path.parent.parent.name[2:]), reverse=True)


def sass(compiled: Any) -> str:
    """The machine code of a compiled kernel, an object with `asm["cubin"]`, as nvdisasm prints it.

    Raises: ValueError without the disassembler, without a cubin, or if it cannot be read.
    """
    cubin = getattr(compiled, "asm", {}).get("cubin")
    if cubin is None:
        raise ValueError("compiled has no cubin: pass what a launch of a kernel compiled for an NVIDIA GPU returns")
    program = nvdisasm()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        run = subprocess.run([str(program), "-c", str(path)], capture_output=True, text=True, timeout=300)
    if run.returncode:
        raise ValueError(
            f"{program} cannot read this cubin ({run.stderr.strip()[:200]}); use one of its toolkit: pip install "
            "nvidia-cuda-nvdisasm"
        )
    return run.stdout


def census(text: str) -> Counter[str]:
    """Instructions by opcode in all of the code, called functions and padding included."""
    return Counter(found[3] for found in map(_LINE.match, text.splitlines()) if found)


def parse(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """The kernel itself, without the functions that it calls, and its labels as indices of the instruction they name.

    Raises: ValueError if the text holds no code, or that of several kernels.
    """
    sections = re.findall(r"^\s*\.section\s+\.text\.([^\s,]+)", text, re.MULTILINE)
    if len(sections) != 1:
        raise ValueError(f"text has the code of {len(sections)} kernels: pass the machine code of one")
    functions = {sections[0], *_FUNCTION.findall(text)}
    inside, instructions, labels = False, [], {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            if label[1] in functions:
                inside = label[1] == sections[0]
            elif inside:
                labels[label[1]] = len(instructions)
        elif inside and (found := _LINE.match(line)):
            instructions.append(Instruction(int(found[1], 16), found[2] or "", found[3], found[4].strip()))
    if not instructions:
        raise ValueError(f"text has no instructions of {sections[0]}: pass what nvdisasm -c prints")
    return instructions, labels


def count(text: str, trips: Sequence[int] = ()) -> Issued:
    """What a warp issues.

    Args:
        text: of `sass`. trips: the turns of each loop, see the module's docstring; 0 for one that is passed over.

    Raises:
        ValueError: another number of loops than trips, trips that no way through the code allows, code that `parse`
        refuses or whose branches cannot be followed.
    """
    instructions, labels = parse(text)
    starts = _starts(instructions, labels)
    spans = [range(a, b) for a, b in pairwise([*starts, len(instructions)])]
    graph = _graph(instructions, labels, spans)
    _open(graph, instructions, spans)
    found = flow.loops(graph)
    words = tuple(_described(instructions, spans, loop) for loop in found)
    if len(words) != len(trips):
        raise ValueError(
            f"trips={tuple(trips)}: the code has {len(words)} loops{': ' if words else ''}{'; '.join(words)}; give the "
            "turns of each, in this order"
        )
    runs = flow.runs(graph, trips, [len(span) for span in spans])
    census: Counter[str] = Counter()
    for block, times in runs.shortest.items():
        for i in spans[block]:
            census[instructions[i].opcode] += times
    others = sum(times * len(spans[block]) for block, times in runs.others.items())
    return Issued(sum(census.values()), others, Counter({o: n for o, n in census.items() if n}), words)


def _starts(instructions: list[Instruction], labels: dict[str, int]) -> list[int]:
    """Where blocks begin: at a label, and after what may not go on to the next instruction."""
    after = {i + 1 for i, x in enumerate(instructions) if x.kind in ("BRA", "BSYNC", *_ENDS, *_UNKNOWN)}
    return sorted(({0} | set(labels.values()) | after) - {len(instructions)})


def _graph(instructions: list[Instruction], labels: dict[str, int], spans: list[range]) -> list[set[int]]:
    """The blocks that may follow each block."""
    block_at = {span.start: block for block, span in enumerate(spans)}
    return [{flow.END if i is None else block_at[i] for i in _after(instructions, labels, span[-1])} for span in spans]


def _open(graph: list[set[int]], instructions: list[Instruction], spans: list[range]) -> None:
    """Let a loop that only EXIT under a predicate leaves end there."""
    for loop in flow.loops(graph):
        if not any(graph[block] - loop.blocks for block in loop.blocks):
            for block in loop.blocks:
                if instructions[spans[block][-1]].kind in _ENDS:
                    graph[block].add(flow.END)


def _after(instructions: list[Instruction], labels: dict[str, int], i: int) -> set[int | None]:
    """Indices of the instructions that may come after instruction i; None is the end."""
    x, following = instructions[i], i + 1 if i + 1 < len(instructions) else None
    if x.kind in _UNKNOWN:
        raise ValueError(f"{x.opcode} at {x.address:#06x} goes where the code does not say: it cannot be counted")
    if x.kind in _ENDS:
        return {following} if x.predicate not in ("", "PT") else {None}
    if x.kind == "BRA":
        target = _TARGET.search(x.operands)
        if target is None or target[1] not in labels:
            raise ValueError(f"{x.opcode} {x.operands} at {x.address:#06x} names no label: it cannot be counted")
        # what it asks stands in front or among the operands: a predicate, or the lanes of BRA.DIV and BRA.CONV
        asks = x.predicate not in ("", "PT") or x.operands[: target.start()].strip()
        return {labels[target[1]], following} if asks else {labels[target[1]]}
    if x.kind == "BSYNC":
        target_of = _meeting(instructions, labels, i)
        return {target_of, following} if x.predicate not in ("", "PT") else {target_of}
    return {following}


def _meeting(instructions: list[Instruction], labels: dict[str, int], i: int) -> int | None:
    """Where lanes go on that meet at BSYNC: what the nearest BSSY before it of the same barrier names."""
    for x in reversed(instructions[:i]):
        if x.kind == "BSSY" and x.operands.split(",")[0] == instructions[i].operands:
            return labels[_TARGET.search(x.operands)[1]]  # type: ignore[index]
    return i + 1


def _described(instructions: list[Instruction], spans: list[range], loop: flow.Loop) -> str:
    """A loop by its addresses."""
    places = [i for block in loop.blocks for i in spans[block]]
    first, last = instructions[spans[loop.header].start].address, max(instructions[i].address for i in places)
    return f"{first:#06x} to {last:#06x}, {len(places)} instructions"
