"""Instructions that a warp issues, counted in machine code: `hw.machine_code` and `hw.flow`.

Contract: straight code counts once, a loop's code as often as it turns; of the sides of a branch the shorter one, the
rest apart; padding and called functions do not count; what cannot be known is refused. Oracles: listings counted by
hand, and programs drawn at random that a small interpreter runs under every outcome of their branches.
"""

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hw import flow, machine_code
from hw.device import INTERPRET
from hw.machine_code import count

ROOT = Path(machine_code.__file__).resolve().parent.parent


def listing(body: str) -> str:
    """`body`, one instruction or label a line, as nvdisasm prints a kernel, with a called function and padding."""
    lines, address = ['\t.section\t.text.kernel,"ax",@progbits', "        .type           kernel,@function"], 0
    lines += ["kernel:", ".text.kernel:"]

    def put(text: str) -> None:
        nonlocal address
        for row in filter(None, map(str.strip, text.splitlines())):
            if row.endswith(":"):
                lines.append(row)
            else:
                lines.append(f"        /*{address:04x}*/                   {row} ;")
                address += 16

    put(body)
    lines += ["        .type           $slow,@function", "$slow:"]
    put("MOV R1, R2\nRET.REL.NODEC R28 `(kernel)\n.L_trap:\nBRA `(.L_trap)\nNOP\nNOP")
    return "\n".join(lines) + "\n//--------------------- SYMBOLS ---\n\t.type\t\t.nv.shared,@object\n"


BRANCH = """
    S2R R0, SR_TID.X
    @!P0 BRA `(.L_skip)
    FADD R1, R1, R2
    CALL.REL.NOINC `($slow)
    .L_skip:
    @P1 STG.E desc[UR4][R2.64], R1
    EXIT
    .L_pad:
    BRA `(.L_pad)
    NOP
"""

NESTED = """
    MOV R0, RZ
    @!P0 BRA `(.L_end)
    .L_outer:
    LDG.E R1, desc[UR4][R2.64]
    MOV R3, RZ
    .L_inner:
    FADD R1, R1, R1
    BSSY B0, `(.L_met)
    @P2 BRA `(.L_fast)
    CALL.REL.NOINC `($slow)
    MUFU.RCP R1, R1
    .L_fast:
    BSYNC B0
    .L_met:
    @P1 BRA `(.L_inner)
    IADD3 R2, R2, 0x4, RZ
    @P3 BRA `(.L_outer)
    .L_end:
    STG.E desc[UR4][R2.64], R1
    EXIT
"""


def test_what_a_branch_leaves_out_is_counted_apart() -> None:
    """By hand: S2R, BRA, STG (under a predicate: issued), EXIT on every way; FADD and CALL on one."""
    found = count(listing(BRANCH))
    assert (found.least, found.others, found.loops) == (4, 2, ())
    assert found.census == Counter({"S2R": 1, "BRA": 1, "STG.E": 1, "EXIT": 1})


def test_of_two_sides_the_shorter_one_is_the_least() -> None:
    """By hand: BRA, then FADD, MUFU, BRA or MOV, then EXIT."""
    text = "@P0 BRA `(.L_b)\nFADD R1, R1, R1\nMUFU.RCP R1, R1\nBRA `(.L_c)\n.L_b:\nMOV R0, R0\n.L_c:\nEXIT"
    found = count(listing(text))
    assert (found.least, found.others, found.census) == (3, 3, Counter({"BRA": 1, "MOV": 1, "EXIT": 1}))


def test_loops_turn_as_often_as_is_said() -> None:
    """By hand: outside MOV, BRA, STG, EXIT; in the outer loop LDG, MOV, IADD3, BRA; in the inner one FADD, BSSY, BRA,
    BSYNC, BRA, and two that its branch may leave out."""
    found = count(listing(NESTED), (3, 5))
    assert (found.least, found.others) == (4 + 3 * (4 + 5 * 5), 3 * 5 * 2)
    assert (found.census["FADD"], found.census["IADD3"], found.census["CALL.REL.NOINC"]) == (15, 3, 0)
    assert found.loops == ("0x0020 to 0x00c0, 11 instructions", "0x0040 to 0x00a0, 7 instructions")
    passed_over = count(listing(NESTED), (0, 5))
    assert (passed_over.least, passed_over.others) == (4, 0)


@pytest.mark.parametrize("trips", [(), (3,), (3, 5, 1)])
def test_another_number_of_loops_is_refused_with_what_there_is(trips: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"the code has 2 loops: 0x0020 to 0x00c0, 11 instructions; 0x0040"):
        count(listing(NESTED), trips)


def test_loops_that_cannot_turn_so_are_refused() -> None:
    always_entered = ".L_a:\nFADD R1, R1, R1\n@P0 BRA `(.L_a)\nEXIT"
    assert count(listing(always_entered), (7,)).least == 15
    with pytest.raises(ValueError, match="no way leads from block 0 to the end"):
        count(listing(always_entered), (0,))
    with pytest.raises(ValueError, match="a loop turns 0 times or more"):
        count(listing(always_entered), (-1,))
    sides = "@P0 BRA `(.L_b)\n.L_a:\nFADD R1, R1, R1\n@P1 BRA `(.L_a)\nEXIT\n.L_b:\nMOV R0, R0\n@P1 BRA `(.L_b)\nEXIT"
    assert count(listing(sides), (4, 0)).least == 1 + 2 * 4 + 1
    with pytest.raises(ValueError, match="on two sides of a branch"):
        count(listing(sides), (1, 1))


WAYS = [  # a branch around FADD: whether it may be taken, and whether what follows it may be reached otherwise
    ("BRA `(.L_x)", 2, 0),
    ("@PT BRA `(.L_x)", 2, 0),
    ("@P0 BRA `(.L_x)", 2, 1),
    ("@!UP0 BRA `(.L_x)", 2, 1),
    ("BRA.U UP0, `(.L_x)", 2, 1),
    ("BRA.DIV ~URZ, `(.L_x)", 2, 1),
    ("BRA.CONV ~URZ, `(.L_x)", 2, 1),
    ("@P1 BRA !P2, `(.L_x)", 2, 1),
    ("@P0 EXIT", 3, 0),  # lanes end, not the warp
    ("WARPSYNC.COLLECTIVE R4, `(.L_x)", 3, 0),
]


@pytest.mark.parametrize(("branch", "least", "others"), WAYS)
def test_which_branches_may_go_two_ways(branch: str, least: int, others: int) -> None:
    found = count(listing(f"{branch}\nFADD R1, R1, R1\n.L_x:\nEXIT"))
    assert (found.least, found.others) == (least, others)


def test_lanes_that_meet_go_on_where_the_barrier_says() -> None:
    """BSYNC goes to the label of its BSSY, not to the next line: the way by MOV is the short one, without FADD."""
    text = """
        BSSY B0, `(.L_met)
        @P0 BRA `(.L_else)
        MOV R0, R0
        BSYNC B0
        .L_else:
        FADD R1, R1, R1
        FADD R1, R1, R1
        BSYNC B0
        .L_met:
        EXIT
    """
    found = count(listing(text))
    assert (found.least, found.others) == (5, 3)


def test_a_loop_left_in_its_midst_may_miss_the_rest() -> None:
    text = ".L_a:\nMOV R0, R0\n@P0 BRA `(.L_out)\nFADD R1, R1, R1\n@P1 BRA `(.L_a)\n.L_out:\nEXIT"
    found = count(listing(text), (4,))
    assert (found.least, found.others) == (2 * 4 + 1, 2 * 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (listing("BRX R2 -0x10\nEXIT"), "BRX at 0x0000 goes where the code does not say"),
        (listing("BRA `(.L_nowhere)\nEXIT"), "names no label"),
        (listing("@P0 BRA `(.L_b)\n.L_a:\nMOV R0, R0\n.L_b:\n@P1 BRA `(.L_a)\nEXIT"), "a second way in"),
        (listing(".L_a:\nBRA `(.L_a)\nEXIT"), "no way leads from block 0 to the end"),
        ("", "the code of 0 kernels"),
        (listing("EXIT") + listing("EXIT"), "the code of 2 kernels"),
        ('\t.section\t.text.kernel,"ax",@progbits\nkernel:\n', "no instructions of kernel"),
    ],
)
def test_code_that_cannot_be_followed_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count(text, (1,) if "L_a" in text else ())


# Programs drawn at random. A branch with "P1" is an open question; one with "P7" belongs to a loop.


@dataclass
class Program:
    """Lines of code; turns of the loops by their label, in the code's order; the loops of the lines that are a guard or
    a latch; loops that turn; how many loops around the place of drawing do not."""

    lines: list[str] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    guards: dict[int, str] = field(default_factory=dict)
    latches: dict[int, str] = field(default_factory=dict)
    turning: list[str] = field(default_factory=list)
    resting: int = 0
    labels: int = 0

    def label(self) -> str:
        self.labels += 1
        return f".L_{self.labels}"

    def put(self, *lines: str) -> None:
        self.lines += lines


def draw(program: Program, dice: random.Random, depth: int) -> None:
    """Plain code, branches with one side or two, loops with a guard or without."""
    for _ in range(dice.randint(1, 3)):
        kind = dice.choice(("plain", "if", "else", "loop") if depth else ("plain",))
        program.put(*["FADD R1, R1, R1"] * dice.randint(0, 2))
        if kind in ("if", "else"):
            other, end = program.label(), program.label()
            program.put(f"@P1 BRA `({other})")
            draw(program, dice, depth - 1)
            program.put(*([f"BRA `({end})"] if kind == "else" else []), f"{other}:")
            if kind == "else":
                draw(program, dice, depth - 1)
            program.put(f"{end}:")
        elif kind == "loop":
            head, end = program.label(), program.label()
            guarded = dice.random() < 0.5
            program.turns[head] = dice.randint(0 if guarded else 1, 3)
            if guarded:
                program.guards[len(program.lines)] = head
                program.put(f"@P7 BRA `({end})")
            if program.turns[head] and not program.resting:
                program.turning.append(head)
            program.resting += not program.turns[head]
            program.put(f"{head}:", "MOV R0, R0")  # loops that begin together would be one
            draw(program, dice, depth - 1)
            program.resting -= not program.turns[head]
            program.latches[len(program.lines)] = head
            program.put(f"@P7 BRA `({head})", f"{end}:")


def run(program: Program, outcomes: dict[int, bool]) -> Counter[int]:
    """How often each line runs, branches with a question taken as `outcomes` says by their line."""
    places = {line[:-1]: i for i, line in enumerate(program.lines) if line.endswith(":")}
    counts: Counter[int] = Counter()
    left: dict[str, int] = {}
    at = 0
    while at < len(program.lines):
        line, here = program.lines[at], at
        at += 1
        if line.endswith(":"):
            continue
        counts[here] += 1
        if "BRA" not in line:
            continue
        if here in program.guards:
            taken = program.turns[program.guards[here]] == 0
        elif here in program.latches:
            head = program.latches[here]
            left[head] = left.get(head, program.turns[head]) - 1
            taken = left[head] > 0
            if not taken:
                del left[head]
        else:
            taken = outcomes.get(here, True)
        if taken:
            at = places[line[line.index("(") + 1 : -1]]
    return counts


def drawn(seed: int) -> tuple[Program, list[int]]:
    """A program, and the lines of its questions, of which there are at most 8."""
    dice = random.Random(seed)
    while True:
        program = Program()
        draw(program, dice, 3)
        program.put("EXIT")
        questions = [i for i, line in enumerate(program.lines) if line.startswith("@P1")]
        if len(questions) <= 8:
            return program, questions


@pytest.mark.parametrize("seed", range(80))
def test_counts_of_random_programs_are_those_of_every_run(seed: int) -> None:
    """Of the runs that enter all loops that turn: the least is that of the shortest; all lines at their most are least
    and others. If there is no such run, the turns are refused."""
    program, questions = drawn(seed)
    sides = itertools.product((True, False), repeat=len(questions))
    runs = [run(program, dict(zip(questions, outcome, strict=True))) for outcome in sides]
    latch = {head: i for i, head in program.latches.items()}
    runs = [counts for counts in runs if all(counts[latch[head]] for head in program.turning)]
    text, turns = listing("\n".join(program.lines)), tuple(program.turns.values())
    if not runs:
        with pytest.raises(ValueError, match="on two sides of a branch"):
            count(text, turns)
        return
    lines = [i for i, line in enumerate(program.lines) if not line.endswith(":")]
    found = count(text, turns)
    assert found.least == min(sum(counts.values()) for counts in runs)
    assert found.least + found.others == sum(max(counts[i] for counts in runs) for i in lines)


def test_a_loop_that_is_said_to_turn_is_entered() -> None:
    """One on one side of a branch: the branch is then answered."""
    text = "@P1 BRA `(.L_end)\nMOV R0, R0\n.L_a:\nFADD R1, R1, R1\n@P7 BRA `(.L_a)\n.L_end:\nEXIT"
    assert (count(listing(text), (5,)).least, count(listing(text), (5,)).others) == (1 + 1 + 2 * 5 + 1, 0)
    assert count(listing(text), (0,)).least == 2


def test_a_loop_may_be_left_by_an_exit_alone() -> None:
    """By hand: MOV and EXIT in each of 4 turns; the branch back is not on the last turn's way."""
    found = count(listing("FADD R1, R1, R1\n.L_a:\nMOV R0, R0\n@!P0 EXIT\nBRA `(.L_a)"), (4,))
    assert (found.least, found.others) == (1 + 2 * 4, 4)


def test_a_second_latch_is_the_same_loop() -> None:
    """`continue`: the code behind it is left out at times, the loop stays one."""
    text = ".L_a:\nMOV R0, R0\n@P1 BRA `(.L_a)\nFADD R1, R1, R1\n@P7 BRA `(.L_a)\nEXIT"
    found = count(listing(text), (4,))
    assert (found.least, found.others, len(found.loops)) == (2 * 4 + 1, 2 * 4, 1)


def test_latches_on_two_sides_are_one_loop_of_both() -> None:
    start = ".L_a:\nMOV R0, R0\n@P1 BRA `(.L_b)\nFADD R1, R1, R1\nBRA `(.L_a)\n"
    found = count(listing(start + ".L_b:\nMUFU.RCP R1, R1\n@P7 BRA `(.L_a)\nEXIT"), (4,))
    assert (found.least, found.others) == (4 * 4 + 1, 2 * 4)
    assert found.loops == ("0x0000 to 0x0050, 6 instructions",)


def test_a_called_function_may_stand_before_the_kernel() -> None:
    first, rest = listing(BRANCH).split("kernel:\n", 1)
    before = "        .type           $early,@function\n$early:\n        /*0000*/                   FADD R1, R1, R1 ;\n"
    assert count(first + before + "kernel:\n" + rest) == count(listing(BRANCH))


def test_blocks_of_a_graph() -> None:
    """flow alone: a diamond in a loop."""
    graph = [{1}, {2, 3}, {4}, {4}, {1, 5}, {flow.END}]
    assert flow.loops(graph) == [flow.Loop(1, frozenset({1, 2, 3, 4}))]
    assert flow.runs(graph, (6,), [1, 1, 5, 2, 1, 1]) == flow.Runs({0: 1, 1: 6, 3: 6, 4: 6, 5: 1}, {2: 6})
    # a loop of blocks 1 and 2 that may be left from 1, through a longer block that runs once
    left = [{1}, {2, 3}, {1, 4}, {4}, {flow.END}]
    assert flow.runs(left, (5,), [1, 1, 2, 3, 1]) == flow.Runs({0: 1, 1: 5, 3: 1, 4: 1}, {2: 5})
    assert flow.reachable([{1}, {flow.END}, {1}]) == {0, 1}


COMPILED = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hw import machine_code, philox

@triton.jit
def turning(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for s in range(0, n):
        total += tl.div_rn(tl.load(x + s * B + i), total + 3.0)
    tl.store(y + i, total)

def build(kernel, types, constants):
    aligned = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(types.values()) if t.startswith("*")}
    source = ASTSource(kernel, {**types, **dict.fromkeys(constants, "constexpr")}, constants, aligned)
    options = {"num_warps": 4, "enable_fp_fusion": False}
    return machine_code.sass(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options))

words = build(philox._words_kernel, {"key": "*i64", "counter": "*i64", "out": "*i64", "n": "i32"},
              {"ROUNDS": 10, "BLOCK": 256})
issued = machine_code.count(words)
wide = sum(n for opcode, n in issued.census.items() if opcode.startswith("IMAD.WIDE.U32") or "IMAD.HI" in opcode)
print(len(issued.loops), issued.others, wide >= 2 * 2 * 10, issued.census["EXIT"] >= 1)
turns = build(turning, {"x": "*fp32", "y": "*fp32", "n": "i32"}, {"B": 512})
try:
    machine_code.count(turns)
except ValueError as error:
    print("loops" in str(error))
    number = int(str(error).split("the code has ")[1].split()[0])
one, two, three = (machine_code.count(turns, (n,) * number) for n in (1, 2, 3))
print(number >= 1, three.least - two.least == two.least - one.least > 0, two.others == 2 * one.others > 0)
"""


@pytest.mark.exhaustive
def test_kernels_compiled_for_hopper_are_counted(tmp_path: Path) -> None:
    """Philox: straight code, at least a wide multiplication for each of 2 a round, 10 rounds, 2 counters a thread. A
    loop: linear in its turns, the division's slow path apart."""
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    try:
        machine_code.nvdisasm()
    except ValueError as error:
        pytest.skip(f"not run: {error}")
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    env = {name: value for name, value in os.environ.items() if name != INTERPRET} | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, str(script)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.splitlines() == ["0 0 True True", "True", "True True True"]


def test_an_absent_disassembler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    monkeypatch.setattr(triton, "__file__", str(tmp_path / "triton" / "__init__.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"nvdisasm is neither in triton .* nor on PATH.*: install"):
        machine_code.nvdisasm()


class Kernel:
    """What a launch returns, with a cubin or without."""

    def __init__(self, **asm: bytes) -> None:
        self.asm = asm


@pytest.mark.parametrize("make", [Kernel, lambda: None])
def test_no_cubin_is_told(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="compiled has no cubin"):
        machine_code.sass(make())


def test_a_broken_cubin_is_told() -> None:
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    try:
        machine_code.nvdisasm()
    except ValueError as error:
        pytest.skip(f"not run: {error}")
    with pytest.raises(ValueError, match="cannot read this cubin"):
        machine_code.sass(Kernel(cubin=b"nothing"))
