"""`fourbit validate --conversions`: the comparison itself, the assembly, and the record of an H200.

Contract: an instruction passes if its registers are the emulator's on its whole domain; one difference is seen and
shown; what was not run does not pass. Oracles: torch's own conversions to float16 and bfloat16, spec values of tf32,
machines broken on purpose, and, ahead of time, the assembler: every instruction of sm_90 compiles for it. On a GPU the
instructions run; tests/records/h200_cvt.json keeps the run over all 2^32 inputs. Bitwise.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import numerics as nm
from hw import conversions, validate
from hw.conversions import Domain, Row, as_register, compare, instructions, lacks
from hw.device import INTERPRET

ROOT = Path(validate.__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "records" / "h200_cvt.json"
CPU = torch.device("cpu")
ALL = instructions()
HOPPER = [text for text in ALL if lacks(text, (9, 0)) is None]
MASK = 0xFFFFFFFF


def emulator(text: str, registers: list[Tensor]) -> Tensor:
    """A machine that never errs: registers in, register out, through the emulator."""
    words = [x.to(torch.int64) & MASK for x in registers]
    domain = Domain(text)
    numbers = domain.count if domain.source_bits == 32 else 0
    floats = [x.view(torch.float32) for x in registers[:numbers]]
    return as_register(ALL[text](*floats, *words[numbers:]).to(torch.int64))


def float32(*patterns: int) -> Tensor:
    return as_register(torch.tensor(patterns)).view(torch.float32)


# Beside ptx: what the emulator gives for the wide formats.


@pytest.mark.parametrize(("kind", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_nearest_is_torchs_conversion(kind: str, dtype: torch.dtype) -> None:
    """2^18 patterns, every exponent and sign among them; NaN is all ones without sign."""
    x = as_register(torch.arange(1 << 18) * 0x9E3779B1 & MASK).view(torch.float32)
    expected = x.to(dtype).view(torch.int16).to(torch.int64) & 0xFFFF
    expected = torch.where(torch.isnan(x), 0x7FFF, expected)
    assert torch.equal(ALL[f"cvt.rn.{kind}.f32"](x), expected)
    pair = ALL[f"cvt.rn.{kind}x2.f32"](x, x.flip(0))
    assert torch.equal(pair >> 16, expected) and torch.equal(pair & 0xFFFF, expected.flip(0))


EDGES = [  # instruction, input, result
    ("cvt.rn.f16.f32", 0x477FEFFF, 0x7BFF),  # below 65520 by one place
    ("cvt.rn.f16.f32", 0x477FF000, 0x7C00),  # 65520: the tie to infinity
    ("cvt.rz.f16.f32", 0x7F7FFFFF, 0x7BFF),
    ("cvt.rz.f16.f32", 0xFF800000, 0xFC00),
    ("cvt.rp.f16.f32", 0x477FE001, 0x7C00),
    ("cvt.rp.f16.f32", 0xFF7FFFFF, 0xFBFF),
    ("cvt.rp.f16.f32", 0xFF800000, 0xFC00),
    ("cvt.rp.f16.f32", 0x00000001, 0x0001),
    ("cvt.rm.f16.f32", 0xC77FE001, 0xFC00),
    ("cvt.rm.f16.f32", 0x7F7FFFFF, 0x7BFF),
    ("cvt.rm.f16.f32", 0x80000001, 0x8001),
    ("cvt.rn.satfinite.f16.f32", 0x7F800000, 0x7BFF),
    ("cvt.rz.satfinite.relu.f16.f32", 0xFF800000, 0x0000),
    ("cvt.rn.relu.f16.f32", 0xFFC00000, 0x7FFF),
    ("cvt.rn.bf16.f32", 0x7F7F7FFF, 0x7F7F),
    ("cvt.rn.bf16.f32", 0x7F7F8000, 0x7F80),
    ("cvt.rz.bf16.f32", 0x7F7FFFFF, 0x7F7F),
    ("cvt.rn.satfinite.bf16.f32", 0xFF800000, 0xFF7F),
    ("cvt.rn.bf16.f32", 0x00008001, 0x0001),
    ("cvt.rn.relu.bf16.f32", 0x80000000, 0x0000),
    ("cvt.rna.tf32.f32", 0x3F801000, 0x3F802000),  # ties: away
    ("cvt.rn.tf32.f32", 0x3F801000, 0x3F800000),  # and to even
    ("cvt.rz.tf32.f32", 0x3F803FFF, 0x3F802000),
    ("cvt.rna.tf32.f32", 0x7F7FF000, 0x7F800000),
    ("cvt.rna.satfinite.tf32.f32", 0x7F7FF000, 0x7F7FE000),
    ("cvt.rn.relu.tf32.f32", 0xBF800000, 0x00000000),
]


@pytest.mark.parametrize(("text", "pattern", "result"), EDGES)
def test_edges(text: str, pattern: int, result: int) -> None:
    assert ALL[text](float32(pattern)).tolist() == [result]


# Inputs.


def test_the_domain_of_every_instruction() -> None:
    """Every element of every source meets every pattern: each operand is a permutation, also of 65,536 in small."""
    unlike = {(*text.split(".")[-2:], text.split(".")[1], "scaled" in text): text for text in ALL}
    for text in unlike.values():
        domain = Domain(text)
        operands = domain.operands(torch.arange(1 << 16))
        scaled = int("scaled" in text)
        assert len(operands) == (domain.count if text.endswith(".f32") else 1) + scaled + (".rs." in text)
        assert domain.words == 1 << min(32, {"f32": 32, "e2m1x2": 8}.get(text.split(".")[-1], 16) + 16 * scaled)
        bits = {"f32": 16, "e2m1x2": 8}.get(text.split(".")[-1], 16)
        if "e2m3x2" not in text.split(".")[-1] and "e3m2x2" not in text.split(".")[-1]:
            for operand in operands[: domain.count if text.endswith(".f32") else 1]:
                assert len(torch.unique(operand & ((1 << bits) - 1))) == 1 << bits, text
                if text.endswith("16x2"):
                    assert len(torch.unique(operand >> 16)) == 1 << 16, text
    scale = Domain("cvt.rn.scaled::n2::ue8m0.bf16x2.e4m3x2").operands(torch.tensor([0x12345678]))
    assert [int(x) for x in scale] == [0x5678, 0x1234]
    assert torch.equal(
        as_register(torch.tensor([0, 1 << 31, MASK])), torch.tensor([0, -(1 << 31), -1], dtype=torch.int32)
    )


def test_what_a_chip_has() -> None:
    assert len(HOPPER) == 54 and len(ALL) == len(nm.ptx.instructions()) + 46
    new = {text: lacks(text, (9, 0)) for text in ALL if text not in HOPPER}
    assert new["cvt.rn.satfinite.e2m1x2.f32"] == new["cvt.rs.satfinite.e4m3x4.f32"] == "needs sm_100a"
    assert new["cvt.rn.satfinite.tf32.f32"] == "needs sm_100" and new["cvt.rz.satfinite.e4m3x2.f32"] == "needs sm_107a"
    assert new["cvt.rn.satfinite.e4m3x2.bf16x2"] == new["cvt.rn.bf16x2.ue8m0x2"] == "needs sm_100a"
    assert [lacks("cvt.rs.f16x2.f32", c) for c in ((8, 9), (10, 0), (12, 0))] == [
        "needs sm_100a",
        None,
        "needs sm_100a",
    ]
    assert sum(lacks(text, (10, 0)) is None for text in ALL) > 150


# Comparing.


@pytest.mark.parametrize("text", ALL)
def test_the_emulator_passes_against_itself(text: str) -> None:
    row = compare(text, ALL[text], emulator, CPU, 1024)
    assert not row.failed and row.words == min(1024, Domain(text).words)
    assert (row.elements == row.words * Domain(text).count and row.note is None) or "tf32" in text


def test_one_wrong_register_is_seen_and_shown() -> None:
    def wrong(text: str, registers: list[Tensor]) -> Tensor:
        found = emulator(text, registers)
        return torch.where(registers[0] == 77, found ^ 0x100, found)

    row = compare("cvt.rn.f16x2.e4m3x2", ALL["cvt.rn.f16x2.e4m3x2"], wrong, CPU, 1 << 32)
    assert (row.words, row.differing, row.failed) == (1 << 16, 1, True)
    assert row.first == "0x0000004d gives 0x4780, should be 0x4680"  # 6.5


def test_the_low_bits_of_tf32_are_noted_and_not_compared() -> None:
    def dirty(text: str, registers: list[Tensor]) -> Tensor:
        return emulator(text, registers) | 1

    row = compare("cvt.rna.tf32.f32", ALL["cvt.rna.tf32.f32"], dirty, CPU, 4096)
    assert not row.failed and row.note == "4096 words have some of their low 13 bits set"
    moved = compare("cvt.rna.tf32.f32", ALL["cvt.rz.tf32.f32"], emulator, CPU, 4096)
    assert moved.failed and 1000 < moved.differing < 3000


class Refused(Exception):
    """What an assembler raises."""


def test_a_run_tells_what_was_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(text: str, registers: list[Tensor]) -> Tensor:
        if text == "cvt.rn.satfinite.e4m3x2.f32":
            raise Refused("ptxas x, line 3; error   : Unknown modifier")
        if text == "cvt.rn.satfinite.e5m2x2.f32":
            raise RuntimeError("out of memory")
        return emulator(text, registers)

    monkeypatch.setattr(conversions, "lacks", lambda text, capability: lacks(text, (9, 0)))
    rows = {row.instruction: row for row in conversions.run(CPU, machine, 64, Refused)}
    assert list(rows) == list(ALL)
    assert rows["cvt.rn.satfinite.e4m3x2.f32"].not_run == "the assembler refuses it: Unknown modifier"
    assert rows["cvt.rn.satfinite.e5m2x2.f32"].first == "RuntimeError: out of memory"
    assert rows["cvt.rn.satfinite.e2m1x2.f32"].not_run == "needs sm_100a"
    assert [text for text, row in rows.items() if row.failed] == ["cvt.rn.satfinite.e5m2x2.f32"]
    about = {"device": "cuda:0", "name": "H200"}
    line, result = conversions.conclude(list(rows.values()), about)
    assert line.startswith("FAILED: ") and result["failed"] == 1 and result["not_run"] == len(ALL) - 53
    good = [row for row in rows.values() if not row.failed]
    line, result = conversions.conclude(good, about)
    assert line.startswith("passed: ") and f"52 instructions, {52 * 64} words compared" in line
    assert line.endswith(f"none differs; {len(ALL) - 53} instructions not run")
    assert Row("x").failed and conversions.conclude([], about)[0].startswith("FAILED")
    assert conversions.conclude([Row("x", not_run="needs sm_100a")], about)[0].startswith("FAILED")


def test_a_cpu_has_no_such_instructions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "record.json"
    assert validate.main(["--device", "cpu", "--conversions", "--out", str(out)]) == 2
    assert capsys.readouterr().out.startswith("not run: device='cpu': a CPU has no cvt instructions")
    assert json.loads(out.read_text())["status"] == "not run"
    for arguments in (["--rows", "20"], ["--seeds", "3"]):
        with pytest.raises(ValueError, match="rows and seeds draw inputs"):
            validate.main(["--device", "cpu", "--conversions", *arguments])


# The instructions themselves.

ASSEMBLY = [  # instruction, operands, the line that issues it, the line that returns its register
    ("cvt.rn.satfinite.e4m3x2.f32", 2, "e4m3x2.f32 d, x1, x2;", "cvt.u32.u16 $0, d;"),
    ("cvt.rn.satfinite.e2m1x2.f32", 2, "e2m1x2.f32 d, x1, x2;", "cvt.u32.u8 $0, d;"),
    ("cvt.rn.bf16.f32", 1, "bf16.f32 d, x1;", "cvt.u32.u16 $0, d;"),
    ("cvt.rn.bf16x2.f32", 2, "bf16x2.f32 $0, x1, x2;", None),
    ("cvt.rna.tf32.f32", 1, "tf32.f32 $0, x1;", None),
    ("cvt.rn.satfinite.e4m3x2.f16x2", 1, "e4m3x2.f16x2 d, $1;", "cvt.u32.u16 $0, d;"),
    ("cvt.rn.f16x2.e4m3x2", 1, "f16x2.e4m3x2 $0, x1;", None),
    ("cvt.rs.satfinite.e2m1x4.f32", 5, "e2m1x4.f32 d, {x1, x2, x3, x4}, $5;", "cvt.u32.u16 $0, d;"),
    ("cvt.rs.satfinite.e4m3x4.f32", 5, "e4m3x4.f32 $0, {x1, x2, x3, x4}, $5;", None),
    ("cvt.rn.scaled::n2::ue8m0.bf16x2.e2m1x2", 2, "bf16x2.e2m1x2 $0, x1, x2;", None),
]


@pytest.mark.parametrize(("text", "count", "issues", "returns"), ASSEMBLY)
def test_assembly(text: str, count: int, issues: str, returns: str | None) -> None:
    """Operands in order, each in a register of its type, the whole result returned."""
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    from hw.cvt import assembly

    asm, operands = assembly(text)
    assert operands == count and issues in asm and asm.count(text) == 1
    assert asm.endswith(f"{returns or issues} }}")
    for place in range(1, count + 1):
        assert asm.count(f"${place}") == 1, "every operand is read once"


COMPILE = """
import sys
from hw.cvt import build
for text in sys.argv[1:]:
    kernel = build(text, (9, 0))
    assert text + " " in kernel.asm["ptx"] and len(kernel.asm["cubin"]) > 1000
    print(text)
"""


@pytest.mark.exhaustive
def test_every_instruction_of_hopper_assembles(tmp_path: Path) -> None:
    """Ahead of time, for sm_90, in a process where triton compiles."""
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    env = {name: value for name, value in os.environ.items() if name != INTERPRET}
    env |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", COMPILE, *HOPPER], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split() == HOPPER


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not compared: torch finds no CUDA device")
def test_gpu_instructions_give_the_emulators_bits() -> None:
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    if os.environ.get(INTERPRET) == "1":
        pytest.skip(f"not run: {INTERPRET}=1, and the interpreter has no inline assembly")
    assert validate.main(["--device", "cuda", "--conversions", "--fast"]) == 0


@pytest.fixture
def record() -> dict:
    if not RECORD.exists():
        pytest.skip("not read: no run on an H200 is kept yet; fourbit validate --conversions --out makes it")
    return json.loads(RECORD.read_text("utf-8"))


def test_the_record_of_an_h200(record: dict) -> None:
    """Every instruction of sm_90 over its whole domain, none differs; the others are not run and say so."""
    assert record["status"] == "passed" and record["differing"] == record["failed"] == 0
    assert record["config"]["conversions"] and not record["config"]["fast"]
    assert "H200" in record["device"]["name"] and record["device"]["capability"] == "9.0"
    assert len(record["versions"]["sources of numerics, sha256"]) == 64 and record["versions"]["triton"]
    cases = {case["instruction"]: case for case in record["cases"]}
    assert list(cases) == list(ALL)
    for text, case in cases.items():
        assert (case["not_run"] is None) == (text in HOPPER), text
        assert case["words"] == (Domain(text).words if text in HOPPER else 0) and case["differing"] == 0, text
    assert record["words"] == sum(case["words"] for case in cases.values()) > 45 << 32


def test_rna_to_tf32_cuts_a_nan_as_an_h200_did() -> None:
    """Registers read from an H200: payloads are cut off, and .satfinite takes one place from the largest exponent."""
    measured = {  # input: without, with .satfinite
        0x7F800001: (0x7F800000, 0x7F7FE000),
        0x7F802000: (0x7F802000, 0x7F800000),
        0x7F803000: (0x7F802000, 0x7F800000),
        0xFFC00000: (0xFFC00000, 0xFFBFE000),
        0xFFFFFFFF: (0xFFFFE000, 0xFFFFC000),
        0x7F800000: (0x7F800000, 0x7F7FE000),
        0x7F7FFFFF: (0x7F800000, 0x7F7FE000),
        0x7F7FEFFF: (0x7F7FE000, 0x7F7FE000),
    }
    x = conversions.as_register(torch.tensor(list(measured))).view(torch.float32)
    emulators = conversions.instructions()
    for place, text in enumerate(("cvt.rna.tf32.f32", "cvt.rna.satfinite.tf32.f32")):
        assert emulators[text](x).tolist() == [pair[place] for pair in measured.values()]
