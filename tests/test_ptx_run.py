"""The interpreter of inline PTX, and every string of PTX that kernels use.

Contract: `hw.ptx_run.run` does what PTX ISA says of the forms it knows and refuses everything else; each string of
`hw.kernel_ptx` has the elements of `numerics.ptx` at the places that its comment names, and a string with two operands
swapped or another shift has not. Oracle: `numerics.ptx` called element by element, packed here; ptxas for the syntax.
"""

import os
import re
import subprocess
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hw.device import INTERPRET
from hw.ptx_run import interpreted, run
from numerics import ptx

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

import triton

from hw import kernel_ptx

TEXTS = {name: value.value for name, value in vars(kernel_ptx).items() if "$0" in str(getattr(value, "value", ""))}
COUNT = 4096  # executions: more than the threads of a block


def numbers(seed: int) -> Tensor:
    """float32 (COUNT,): specials, ties, both signs, 24 binades around 1 and every exponent."""
    rng = np.random.default_rng(seed)
    special = torch.tensor([0.0, torch.inf, torch.nan, 1e-45, 3.4e38, 2.0**-126, 448.0, 464.0, 480.0, 6.0, 5.0, 0.25])
    grid = torch.from_numpy(rng.integers(0, 512, 500).astype(np.float32)) / 64
    near = torch.from_numpy(np.exp2(rng.uniform(-12, 12, 2000)).astype(np.float32))
    bits = torch.from_numpy(rng.integers(0, 0x7F800000, COUNT - 2512).astype(np.int32)).view(torch.float32)
    x = torch.cat([special, grid, near, bits])
    x = x * torch.from_numpy(rng.choice([-1.0, 1.0], COUNT).astype(np.float32))
    return x[torch.from_numpy(rng.permutation(COUNT))]


def words(seed: int, top: int = 1 << 32) -> Tensor:
    """int32 (COUNT,) bits below `top`."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, top, COUNT).astype(np.uint32).view(np.int32))


def packed(width: int, *codes: Tensor) -> Tensor:
    """Codes of `width` bits in an int32, the first lowest."""
    word = sum((code.to(torch.int64) & ((1 << width) - 1)) << (width * i) for i, code in enumerate(codes))
    assert isinstance(word, Tensor)
    return word.to(torch.int32)


def halves(word: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """float32 of the lower and the upper half of uint32 words."""
    bits = word.to(torch.int64)
    low, high = ((bits >> shift) & 0xFFFF for shift in (0, 16))
    return low.to(torch.uint16).view(dtype).to(torch.float32), high.to(torch.uint16).view(dtype).to(torch.float32)


def code(function: Callable[..., Tensor], x: Tensor, *more: Tensor) -> Tensor:
    """The code of x as the lower of two elements."""
    return function(torch.zeros_like(x), x, *more)


def e2m1(x: Tensor) -> Tensor:
    return code(ptx.cvt_rn_satfinite_e2m1x2_f32, x)


def e4m3(x: Tensor) -> Tensor:
    return code(ptx.cvt_rn_satfinite_e4m3x2_f32, x)


def e2m1_drawn(x: tuple[Tensor, ...], word: Tensor) -> list[Tensor]:
    """Codes of four neighbours: f, e, b, a."""
    four = ptx.cvt_rs_satfinite_e2m1x4_f32(x[3], x[2], x[1], x[0], word).to(torch.int64)
    return [(four >> (4 * i)) & 15 for i in range(4)]


def e2m1_back(nibble: Tensor) -> Tensor:
    return halves(ptx.cvt_rn_f16x2_e2m1x2((nibble & 15).to(torch.uint8)), torch.float16)[0]


def s2f6(x: Tensor, word: Tensor) -> Tensor:
    """By the lower scale; both are equal in kernels, here not: elements 1 and 3 have the upper one."""
    return code(ptx.cvt_rn_satfinite_scaled_n2_ue8m0_s2f6x2_f32, x, word.to(torch.int16))


def s2f6_upper(x: Tensor, word: Tensor) -> Tensor:
    function = ptx.cvt_rn_satfinite_scaled_n2_ue8m0_s2f6x2_f32
    return function(x, torch.zeros_like(x), word.to(torch.int16)).to(torch.int64) >> 8


def s2f6_back(byte: Tensor, scale: Tensor) -> Tensor:
    pair = ptx.cvt_rn_scaled_n2_ue8m0_bf16x2_s2f6x2(byte.to(torch.uint16), scale.to(torch.uint16)).to(torch.int64)
    return (pair << 16).to(torch.int32)


def e4m3_back(byte: Tensor) -> Tensor:
    return halves(ptx.cvt_rn_f16x2_e4m3x2(byte.to(torch.int64).to(torch.uint16)), torch.float16)[0]


X = tuple(numbers(i) for i in range(8))
U, V, BYTE, SCALE = words(8), words(9), words(10, 256), words(11, 0x10000)
# constraints, operands, and what the outputs are
EXPECTED: dict[str, tuple[str, tuple[Tensor, ...], Callable[[], list[Tensor]]]] = {
    "E2M1_EIGHT": ("=r" + ",f" * 8, X, lambda: [packed(4, *map(e2m1, X))]),
    "E2M1_EIGHT_DRAWN": (
        "=r" + ",f" * 8 + ",r,r",
        (*X, U, V),
        lambda: [packed(4, *e2m1_drawn(X[:4], U), *e2m1_drawn(X[4:], V))],
    ),
    "E2M1_ONE": ("=r,f", X[:1], lambda: [packed(4, e2m1(X[0]))]),
    "E4M3_FOUR": ("=r,f,f,f,f", X[:4], lambda: [packed(8, *map(e4m3, X[:4]))]),
    "E4M3_FOUR_DRAWN": (
        "=r,f,f,f,f,r",
        (*X[:4], U),
        lambda: [ptx.cvt_rs_satfinite_e4m3x4_f32(X[3], X[2], X[1], X[0], U).to(torch.int64).to(torch.int32)],
    ),
    "E4M3_THERE_AND_BACK": ("=r,=f,f", X[:1], lambda: [packed(8, e4m3(X[0])), e4m3_back(e4m3(X[0]))]),
    "S2F6_FOUR": (
        "=r,f,f,f,f,r",
        (*X[:4], SCALE),
        lambda: [packed(8, s2f6(X[0], SCALE), s2f6_upper(X[1], SCALE), s2f6(X[2], SCALE), s2f6_upper(X[3], SCALE))],
    ),
    "E8M0_UP": ("=r,f", X[:1], lambda: [packed(8, code(ptx.cvt_rp_satfinite_ue8m0x2_f32, X[0]))]),
    "E2M1_EIGHT_BACK": ("=f," * 8 + "r", (U,), lambda: [e2m1_back(U >> (4 * i)) for i in range(8)]),
    "E2M1_TWO_BACK": ("=f,=f,r", (BYTE,), lambda: [e2m1_back(BYTE), e2m1_back(BYTE >> 4)]),
    "E4M3_BACK": ("=f,r", (BYTE,), lambda: [e4m3_back(BYTE)]),
    "S2F6_BACK": ("=r,r,r", (BYTE, SCALE & 0xFF), lambda: [s2f6_back(BYTE, SCALE & 0xFF)]),
}


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Every bit; all operands' NaN patterns too."""
    return all(torch.equal(f.view(torch.int32), e.view(torch.int32)) for f, e in zip(found, expected, strict=True))


def test_every_string_is_here() -> None:
    assert set(EXPECTED) == set(TEXTS)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_string_of_the_kernels(name: str) -> None:
    constraints, operands, expected = EXPECTED[name]
    assert equal(run(TEXTS[name], constraints, operands), expected())


def swapped(text: str) -> list[str]:
    """The text with two operands of an instruction exchanged, in every way that could mean something else."""
    found = []
    for line in text.split(";"):
        if line.strip() and not re.search(r"\.reg|\bor\.", line):
            _, _, rest = line.strip("{} \n").partition(" ")
            tokens = re.findall(r"[^\s,{}]+", rest)
            for a, b in combinations(dict.fromkeys(tokens), 2):
                either = re.compile(rf"(?<![\w$%]){re.escape(a)}(?!\w)|(?<![\w$%]){re.escape(b)}(?!\w)")
                found.append(text.replace(line, either.sub(lambda m, a=a, b=b: b if m[0] == a else a, line)))  # type: ignore[misc]
    return [fault for fault in (*found, text.replace(", 16;", ", 8;")) if fault != text]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_in_a_string_is_caught(name: str) -> None:
    """By other bits or by a refusal."""
    constraints, operands, expected = EXPECTED[name]
    faults, right = swapped(TEXTS[name]), expected()
    assert len(faults) >= 2
    for fault in faults:
        try:
            assert not equal(run(fault, constraints, operands), right), fault
        except ValueError:
            pass


PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
LETTERS = {"r": ".b32", "f": ".f32"}


def kernel(text: str, constraints: str, arch: str, last: str) -> str:
    """PTX of a kernel around a string: floats come from memory, words are parameters, the same for all threads."""
    kinds = constraints.split(",")
    outputs = sum(kind.startswith("=") for kind in kinds)
    body = "".join(f"    .reg {LETTERS[kind[-1]]} x{i};\n" for i, kind in enumerate(kinds))
    for i in range(outputs, len(kinds)):
        loaded = f"    ld.global.f32 x{i}, [at+{512 * i}];\n"
        body += loaded if kinds[i] == "f" else f"    ld.param.b32 x{i}, [word];\n"
    body += re.sub(r"\$(\d+)", r"x\1", text) + "\n"
    for i in range(outputs):
        body += f"    st.global.{LETTERS[kinds[i][-1]][1:]} [at+{512 * i}], x{i};\n" if last == "all" else last
    # as Triton says the size of a block, from which ptxas knows what %tid.x may be
    head = f".version 9.1\n.target {arch}\n.address_size 64\n.visible .entry k(.param .u64 to, .param .b32 word)\n"
    head += ".reqntid 128\n{\n"
    start = (
        "    .reg .b64 at, by;\n    .reg .b32 thread;\n    .reg .b16 half;\n    ld.param.u64 at, [to];\n"
        "    cvta.to.global.u64 at, at;\n    mov.u32 thread, %tid.x;\n    mul.wide.u32 by, thread, 4;\n"
        "    add.u64 at, at, by;\n"
    )
    return head + start + body + "    ret;\n}\n"


def assembled(source: str, folder: Path) -> str:
    """What ptxas says to it: nothing if all is well."""
    path, arch = folder / "k.ptx", re.search(r"\.target (\w+)", source)
    assert arch is not None
    path.write_text(source)
    command = [str(PTXAS), f"-arch={arch[1]}", str(path), "-o", str(folder / "k.cubin")]
    return subprocess.run(command, capture_output=True, text=True, timeout=100).stderr


needs_ptxas = pytest.mark.skipif(not PTXAS.is_file(), reason="not run: triton's wheel has no ptxas-blackwell")


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("name", EXPECTED)
def test_ptxas_takes_a_string(name: str, arch: str, tmp_path: Path) -> None:
    assert assembled(kernel(TEXTS[name], EXPECTED[name][0], arch, "all"), tmp_path) == ""


HALF = "    cvt.u16.u32 half, x0;\n    st.global.b16 [at], half;\n"


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_a_scale_of_all_threads(arch: str, tmp_path: Path) -> None:
    """ptxas dies of a scale that is surely uniform where one conversion of the string is left; not of ours."""
    text, constraints = TEXTS["S2F6_FOUR"], EXPECTED["S2F6_FOUR"][0]
    assert assembled(kernel(text, constraints, arch, HALF), tmp_path) == ""
    plain = text.replace("or.b32 own, own, $5", "mov.b32 own, $5")
    error = assembled(kernel(plain, constraints, arch, HALF), tmp_path)
    if error == "":
        pytest.skip("not shown: this ptxas takes a uniform scale without the detour")
    assert "C7907" in error


A, B = torch.tensor([1, -2, 0x12345678, 0x7FFFFFFF]), torch.tensor([0, 31, 32, 3])
A, B = A.to(torch.int32), B.to(torch.int32)
Y = torch.tensor([1.5, -0.0, torch.inf, 1e-45])


@pytest.mark.parametrize(
    ("text", "constraints", "operands", "expected"),
    [
        ("and.b32 $0, $1, $2;", "=r,r,r", (A, B), A & B),
        ("or.b32 $0, $1, 0x80000000;", "=r,r", (A,), A | torch.tensor(-(2**31), dtype=torch.int32)),
        ("xor.b32 $0, $1, -1;", "=r,r", (A,), ~A),
        ("shl.b32 $0, $1, $2;", "=r,r,r", (A, B), torch.tensor([1, 0, 0, -8], dtype=torch.int32)),
        ("mul.hi.u32 $0, $1, $2;", "=r,r,r", (A, ~B), torch.tensor([0, -34, 0x12345675, 0x7FFFFFFD]).to(torch.int32)),
        ("shr.u32 $0, $1, $2;", "=r,r,r", (A, B), torch.tensor([1, 1, 0, 0x0FFFFFFF], dtype=torch.int32)),
        ("{ .reg .s8 c; cvt.s8.s32 c, $1; cvt.s32.s8 $0, c; }", "=r,r", (A,), (A << 24) >> 24),
        ("{ .reg .u8 c; cvt.u8.u32 c, $1; cvt.u32.u8 $0, c; }", "=r,r", (A,), A & 0xFF),
        ("mov.b32 $0, $1; // bits", "=r,f", (Y,), Y.view(torch.int32)),
        ("mov.f32 $0, 0f3FC00000;", "=f,f", (Y,), torch.full((4,), 1.5)),
        ("{ .reg .b16 h<2>; mov.b32 {h0, h1}, $1; mov.b32 $0, {h1, h0}; }", "=r,r", (A,), A << 16 | A >> 16 & 0xFFFF),
        ("{ .reg .b32 t; { .reg .b16 t; cvt.u16.u32 t, $1; } mov.b32 t, $1; mov.b32 $0, t; }", "=r,r", (A,), A),
        ("mov.b16 $0, $1;", "=h,h", (A.to(torch.int16),), A.to(torch.int16)),
        ("mov.b32 $0, 1; or.b32 $0, $0, $1;", "=&r,r", (A,), A | 1),
    ],
)  # fmt: skip
def test_an_instruction(text: str, constraints: str, operands: tuple[Tensor, ...], expected: Tensor) -> None:
    (found,) = run(text, constraints, operands)
    assert found.dtype == expected.dtype
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))


def test_float16_is_widened() -> None:
    x = torch.tensor([1.0, -0.0, 6e-8, 65504.0, torch.inf], dtype=torch.float16)
    (found,) = run("cvt.f32.f16 $0, $1;", "=f,h", (x.view(torch.int16),))
    assert torch.equal(found.view(torch.int32), x.to(torch.float32).view(torch.int32))


@pytest.mark.parametrize(
    ("text", "constraints", "operands", "message"),
    [
        ("add.s32 $0, $1, $2;", "=r,r,r", (A, B), "does not know the instruction"),
        ("cvt.rn.f16x2.f32 $0, $1, $1;", "=r,f", (Y,), "does not know the instruction"),
        ("cvt.rn.satfinite.e2m1x2.f32 $0, $1, $1;", "=r,f", (Y,), r"\$0 is .b32 where .b8 is asked for"),
        ("cvt.rs.satfinite.e4m3x4.f32 $0, {$1, $1, $1, $1};", "=r,f", (Y,), "4 operands instead of 5"),
        (
            "cvt.rs.satfinite.e4m3x4.f32 $0, $1, $1, $1, $1, 0;",
            "=r,f",
            (Y,),
            "only they, take their operands in braces",
        ),
        ("cvt.rs.satfinite.e4m3x4.f32 $0, {$1, $1, $1, $1}, $1;", "=r,f", (Y,), r"\$1 is .f32 where .b32 is asked"),
        ("cvt.rn.f16x2.e4m3x2 $0, $1;", "=f,h", (A.to(torch.int16),), r"\$0 is .f32 where .b32 is asked for"),
        (
            "{ .reg .u16 t; cvt.rn.satfinite.e4m3x2.f32 t, $1, $1; mov.b16 $0, t; }",
            "=h,f",
            (Y,),
            "t is .u16 where .b16",
        ),
        ("cvt.rz.satfinite.e4m3x2.f32 $0, $1, $1;", "=h,f", (Y,), "only ue8m0 is rounded toward zero"),
        ("cvt.rn.e4m3x2.f32 $0, $1, $1;", "=h,f", (Y,), "does not know the instruction"),
        ("cvt.rn.satfinite.e4m3x2.f32 $0, 1, $1;", "=h,f", (Y,), "1 is an integer where a float is asked for"),
        ("cvt.rn.satfinite.e4m3x2.f32 $0 $1, $1;", "=h,f", (Y,), "with a comma between each two"),
        ("mov.b32 $0,, $1;", "=r,r", (A,), "with a comma between each two"),
        ("shl.u32 $0, $1, 1;", "=r,r", (A,), "does not know the instruction"),
        ("{ .reg .b8 c, d; cvt.u8.u32 c, $1; mov.b8 d, c; }", "=r,r", (A,), "mov has no such type"),
        ("{ .reg .b16 a, b; mov.u32 {a, b}, $1; }", "=r,r", (A,), "mov has no such type"),
        ("{ .reg .b16 a, b; mov.b32 {a, b}, $1; mov.b32 {b, a}, {a, b}; }", "=r,r", (A,), "mov has no such type"),
        ("mov.b32 $0, {$1};", "=r,r", (A,), "a register is packed from two or four"),
        ("{ .reg .u32 t; mov.u32 t, $1; cvt.rp.ue8m0x2.f32 $0, t, t; }", "=h,r", (A,), "t is .u32 where .f32 is asked"),
        ("cvt.rn.satfinite.e4m3x2.f32 $0, {$1, $1};", "=h,f", (Y,), "and only they, take their operands in"),
        ("@p mov.b32 $0, $1;", "=r,r", (A,), "does not know the instruction"),
        ("mov.b32 $0, t;", "=r,r", (A,), "t is not declared"),
        ("{ .reg .b32 t; mov.b32 $0, t; }", "=r,r", (A,), "t is read before it is written"),
        ("{ .reg .b32 t; mov.b32 t, $1; } mov.b32 $0, t;", "=r,r", (A,), "t is not declared"),
        ("{ .reg .b16 t; mov.b32 t, $1; mov.b32 $0, t; }", "=r,r", (A,), "t is .b16 where .b32 is asked for"),
        ("{ .reg .u32 t; mov.f32 t, $1; mov.b32 $0, t; }", "=r,f", (Y,), "t is .u32 where .f32 is asked for"),
        ("{ .reg .f32 t; .reg .f32 t; mov.b32 $0, $1; }", "=r,r", (A,), "t is no name of a new register"),
        ("{ .reg .b64 t; mov.b32 $0, $1; }", "=r,r", (A,), ".b64 is a type that this interpreter does not know"),
        ("mov.b32 $1, $1; mov.b32 $0, $1;", "=r,r", (A,), r"\$1 is an input: it cannot be written"),
        ("mov.b32 $0, 1; or.b32 $0, $0, $1;", "=r,r", (A,), r"\$1 is read after \$0 is written"),
        ("mov.b32 $0, $1;", "=r,=r,r", (A,), r"\$1 is read before it is written"),
        ("mov.b32 $0, $2;", "=r,=r,r", (A,), r"\$1 is never written: it is an output"),
        ("mov.b32 $0, $2;", "=r,r", (A,), r"\$2 is not declared"),
        ("mov.b32 $0;", "=r,r", (A,), "1 operands instead of 2"),
        ("mov.b32 $0, 0x1FFFFFFFF;", "=r,r", (A,), "0x1FFFFFFFF has more than 32 bits"),
        ("mov.b32 $0, $1", "=r,r", (A,), "a semicolon is missing"),
        ("{ mov.b32 $0, $1;", "=r,r", (A,), "does not close its last brace"),
        ("mov.b32 $0, $1; }", "=r,r", (A,), "closes a brace that it does not open"),
        ("mov.b32 $0, $1;", "=q,r", (A,), "'=q' is none of r, h, f"),
        ("mov.b32 $1, $0;", "r,=r", (A,), "outputs come first"),
        ("mov.b32 $0, $1;", "=r,f", (A,), r"\$1 is torch.int32 \(4,\)"),
        ("mov.b32 $0, $1;", "=r,r,r", (A,), r"\$2 is absent"),
        ("mov.b32 $0, $1;", "=r,r", (A, B), "take fewer than 2 operands"),
        ("mov.b32 $0, $1;", "=r,r,r", (A, B[:2]), r"\$2 is torch.int32 \(2,\)"),
    ],
)
def test_what_is_wrong_is_refused(text: str, constraints: str, operands: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(text, constraints, operands)


@pytest.mark.skipif(os.environ.get(INTERPRET) != "1", reason="not run: kernels are compiled here")
def test_tritons_interpreter_executes_it_only_inside() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    before = InterpreterBuilder.__dict__.get("create_inline_asm")
    with pytest.raises(KeyError), interpreted():
        builder = InterpreterBuilder()
        assert InterpreterBuilder.__dict__["create_inline_asm"] is not before
        with pytest.raises(ValueError, match="pack=4"):
            builder.create_inline_asm("", "=r,r", [], [], True, 4)
        raise KeyError
    assert InterpreterBuilder.__dict__.get("create_inline_asm") is before
