"""Machine code made without a GPU, judged by contracts: `hw.census` and what it is made of.

Contract: every kernel of hw/ has a case, and each case's code for sm_103a, sm_100a and sm_90a is what its contract
says; what a compiler does silently, or in riddles, is refused in words. Oracles: kernels made to be refused, each
beside one that is not (census_traps.py); descriptors decoded by hand; the record that the command wrote.
"""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import gpu_record
import pytest

import fourbit
from hw import census, census_judge, census_run, descriptor, machine_code, toolchain
from hw.aot import Code
from hw.contracts import TO_E2M1, Case, at_least, exactly

ROOT = Path(fourbit.__file__).resolve().parent
RECORD = ROOT / "tests/records/census.json"
ARCHS = ("sm_103a", "sm_100a", "sm_90a")


@pytest.fixture(scope="module")
def tools() -> None:
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    try:
        worker = census_run.Worker()
        told = worker.ask({"tools": "sm_103a"})
        worker.close()
    except ValueError as error:
        pytest.skip(f"not run: {error}")
    if int(told["version"].split(".")[0]) * 100 + int(told["version"].split(".")[1]) < 1301:
        pytest.skip(f"not run: ptxas {told['version']} is older than 13.1, which S2F6 needs; {toolchain.REMEDY}")


@pytest.fixture(scope="module")
def found(tools: None) -> census.Census:
    """The census of this checkout. One for all tests: it is most of their time."""
    return census.measure(census_run.contracted(), ARCHS)


def test_some_kernels_keep_their_contract(tools: None) -> None:
    """A quantizer, and a copy of bytes; the exhaustive run compiles them all."""
    few = census.measure(["kernel_swizzle", "kernel_nvfp4"], ("sm_103a",))
    assert [(row.kernel, row.case, row.faults) for row in few.rows if row.faults] == [] and few.passed
    assert {row.mode for row in few.rows} == {"native", "common"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ARCHS)
def test_every_kernel_keeps_its_contract(found: census.Census, arch: str) -> None:
    rows = [row for row in found.rows if row.arch == arch]
    assert [(row.kernel, row.case, row.faults) for row in rows if row.faults] == []
    assert {row.kernel for row in rows} >= census_run.launched()
    assert found.uncovered == () and found.passed


@pytest.mark.exhaustive
def test_native_code_is_on_blackwell_alone(found: census.Census) -> None:
    """And every kernel that has it there has portable code for Hopper."""
    native = {row.kernel for row in found.rows if row.mode == "native"}
    assert {row.arch for row in found.rows if row.mode == "native"} <= {"sm_103a", "sm_100a"}
    assert native <= {row.kernel for row in found.rows if row.mode == "portable" and row.arch == "sm_90a"}
    assert not [row for row in found.rows if row.mode == "portable" and row.arch != "sm_90a"]


@pytest.mark.exhaustive
def test_the_record_is_of_the_present_kernels(found: census.Census) -> None:
    """`fourbit census --out tests/records/census.json` writes it."""
    record = json.loads(RECORD.read_text("utf-8"))
    assert record["status"] == "passed" and record["uncovered"] == []
    there = [(row["kernel"], row["case"], row["arch"], row["mode"]) for row in record["rows"]]
    assert there == [(row.kernel, row.case, row.arch, row.mode) for row in found.rows]
    assert not [row for row in record["rows"] if row["faults"]]
    assert set(record["tools"]) == set(ARCHS) and "triton" in record["versions"]


@pytest.mark.exhaustive
def test_states_name_what_there_is(found: census.Census) -> None:
    """Records and tests that a kernel's state cites exist, and a native branch is never said to have run."""
    for kernel in found.kernels:
        assert kernel.ran is None or (ROOT / "tests/records" / kernel.ran).exists(), kernel
        if kernel.ran == gpu_record.RECORD.name:
            assert gpu_record.ran(str(kernel.interpreted).removesuffix(".py")), kernel
        assert all((ROOT / "tests" / name).exists() for name in (kernel.interpreted, kernel.native) if name), kernel
    lines = census.states(found)
    assert len(lines) == len(found.kernels)
    assert all(line.endswith("never run") for line in lines if "native" in line)


def test_the_record_of_a_gpu_is_what_pytest_reported(tmp_path: Path) -> None:
    """Counts by hand: a pass, a failure, an error and a skip of one module; a module that did nothing is left out."""
    report = tmp_path / "report.xml"
    case = '<testcase classname="tests.test_a" name="x">{}</testcase>'
    cases = "".join(case.format(child) for child in ("", "<failure/>", "<error/>", "<skipped/>"))
    idle = '<testcase classname="tests.test_b" name="y"><skipped/></testcase>'
    report.write_text(f"<testsuites><testsuite>{cases}{idle}</testsuite></testsuites>")
    assert gpu_record.counted([report]) == {"test_a": {"passed": 1, "failed": 2, "not run": 1}}
    told = json.loads(gpu_record.RECORD.read_text("utf-8"))
    assert told["failed"] == 0 == sum(row["failed"] for row in told["modules"].values())
    assert told["passed"] == sum(row["passed"] for row in told["modules"].values()) > 0
    assert "H200" in told["device"]["name"] and not gpu_record.ran("test_b")


@pytest.mark.exhaustive
def test_the_readme_tells_the_states(found: census.Census) -> None:
    """A line of the table in hw/README.md for each kernel's module: what has run, and what of native code there is."""
    table = [line for line in (ROOT / "hw/README.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    for kernel in found.kernels:
        (line,) = [line for line in table if f"`{kernel.module}`" in line.split("|")[1]]
        ran, native = line.split("|")[-3:-1]
        assert ran.strip() == ("yes" if kernel.ran else "**never**"), kernel.module
        modes = {row.mode for row in found.rows if row.kernel.split(".")[0] == kernel.module}
        told = "compiled, interpreted, **never run**" if "native" in modes else "has none"
        assert native.strip() == told, kernel.module
        assert (kernel.native is not None) == ("native" in modes), kernel.module
        assert (kernel.interpreted is None) == (kernel.module == "cvt")


@pytest.fixture(scope="module")
def traps(tools: None) -> census.Census:
    return census.measure(["census_traps"], ("sm_103a", "sm_90a"), folder=ROOT / "tests")


REFUSED = {
    "uniform scale": ["ptxas .* fails (C7907): an S2F6 conversion whose scale is the same in the whole warp"],
    "own scale": [],
    "drawn": ["sm_90a has no cvt.rs.satfinite.e2m1x4.f32: only a branch of NATIVE may have it"],
    "not portable": ["has native instructions in portable code: F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C 1"],
    "too few": ["has 1 of F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C, and its contract says 2"],
    "no branch": ["has no parameter NATIVE, and its contract says what native code has"],
    "rounded": [],
    "not rounded": ["has 1 FP32 divisions that are not correctly rounded: write tl.div_rn for /"],
    "fused": ["is compiled with FP contraction: launch it by `launches.launch`"],
    "spills": ["spills registers to local memory (LDL"],
    "128 rows": [],
    "64 rows": ["has native instructions in portable code: UTCHMMA", "multiplies by UTCHMMA 8, not by block-scaled"],
    "no such product": ["triton .* cannot compile it: "],
    "tensor memory": ["takes 536 columns of tensor memory of 512: use smaller", "is a stub that traps (1 BPT.TRAP)"],
    "shared memory": ["takes .* bytes of shared memory of 232448: use smaller tiles or fewer stages"],
    "dies": ["the compiler died: signal 6"],
    "types": ["an argument of str has no type of Triton's that is known here"],
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_trap_is_told(traps: census.Census, case: str) -> None:
    (row,) = [row for row in traps.rows if row.case == case]
    assert len(row.faults) == len(REFUSED[case]), row.faults
    for fault, start in zip(row.faults, REFUSED[case], strict=True):
        parts = start.split(".*")
        assert fault.startswith(parts[0]) and all(part in fault for part in parts), fault


def test_every_trap_is_expected_and_fails_the_census(traps: census.Census) -> None:
    assert [row.case for row in traps.rows] == [case for case in REFUSED if case != "drawn"] + ["drawn"]
    assert not traps.passed
    (product,) = [row for row in traps.rows if row.case == "128 rows"]
    assert product.products == "mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 128 x 128 x 64"
    assert product.mma.startswith("UTCOMMA.BLOCK16") and product.tmem == 256 and product.registers > 32


def test_a_kernel_without_a_contract_fails_the_census(traps: census.Census) -> None:
    assert traps.uncovered == ("census_traps._uncovered",)
    assert "census_traps._uncovered is launched, and no contract has a case that makes it" in census.table(traps)
    kept = tuple(row for row in traps.rows if not row.faults)
    assert not replace(traps, rows=kept).passed and replace(traps, rows=kept, uncovered=()).passed


def test_kernels_are_found_by_source_text(tmp_path: Path) -> None:
    """Launched by the function or by brackets; in any module; device functions, and kernels of no module, are not."""
    (tmp_path / "a.py").write_text(
        "@triton.jit\ndef _one(x): _two(x)\n@triton.jit\ndef _two(x): pass\n@triton.jit(do_not_specialize=['x'])\n"
        "def _three(x): pass\ndef go(x):\n    launch(_one, (1,), x)\n    _three[(1,)](x)\n    launch(b._four, x)\n"
    )
    (tmp_path / "b.py").write_text("import a\nCONTRACT: Contract = 1\nCONTRACT = Contract(())\n")
    assert census_run.launched(tmp_path) == {"a._one", "a._three"}
    assert census_run.contracted(tmp_path) == ["b"]
    for text in ("from .a import _two as f\nlaunch(f, (1,))\n", "from . import a as m\nlaunch(m._two, (1,))\n"):
        (tmp_path / "c.py").write_text(text)
        assert census_run.launched(tmp_path) == {"a._one", "a._two", "a._three"}
    assert {"kernel_nvfp4._nvfp4", "philox._words_kernel", "cvt._kernel"} <= census_run.launched()


def test_a_case_that_launches_nothing_is_told(tools: None, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text(
        "from hw.contracts import Case, Contract\nCONTRACT = Contract((Case('none', lambda: 1),))\n"
    )
    with pytest.raises(ValueError, match=r"idle, case 'none' launches nothing: give it a call that does"):
        census.measure(["idle"], ("sm_90a",), 1, tmp_path)


OLD = """#!/bin/sh
if [ "$1" = --version ]; then echo 'Cuda compilation tools, release 12.9, V12.9.86'; exit 0; fi
echo "ptxas fatal   : Unknown modifier '.something'" >&2
exit 255
"""


@pytest.mark.exhaustive
def test_a_ptxas_that_is_too_old_is_told(tools: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in that says it is of CUDA 12.9 and refuses everything: S2F6 is new to it, E2M1 is not."""
    program = tmp_path / "ptxas"
    program.write_text(OLD)
    program.chmod(0o755)
    monkeypatch.setenv(toolchain.BLACKWELL_PATH, str(program))
    told = census.measure(["cvt"], ("sm_103a",))
    by_case = {row.case: row.faults[0] for row in told.rows}
    new = by_case["cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32"]
    assert new.startswith("cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32 needs ptxas 13.1 or newer, and ")
    assert f"{program} is 12.9.86: install a newer triton (3.7 has ptxas 13.1), or pip install" in new
    known = by_case["cvt.rn.satfinite.e2m1x2.f32"]
    assert known == "ptxas 12.9.86 refuses it for sm_103a: ptxas fatal : Unknown modifier '.something'"
    assert told.tools["sm_103a"]["version"] == "12.9.86" and "ptxas 12.9.86" in census.table(told)


def test_the_ptxas_that_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment's, else the newest of pip's toolkits, else triton's own, for which nothing is named."""
    monkeypatch.delenv(toolchain.BLACKWELL_PATH, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    places = [tmp_path / f"nvidia/cu{number}/bin/ptxas" for number in (9, 14)]
    assert toolchain.chosen()[1] in ("triton", "pip's nvidia-cuda-nvcc")
    for place in places:
        place.parent.mkdir(parents=True)
        place.write_text("")
    assert toolchain.chosen() == (places[1], "pip's nvidia-cuda-nvcc")
    assert census_run.environment()[toolchain.BLACKWELL_PATH] == str(places[1])
    monkeypatch.setenv(toolchain.BLACKWELL_PATH, str(places[0]))
    assert toolchain.chosen() == (places[0], toolchain.BLACKWELL_PATH)


def test_a_ptxas_that_is_absent_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(toolchain.BLACKWELL_PATH, str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"TRITON_PTXAS_BLACKWELL_PATH='.*none' is no file; name a ptxas of CUDA 13.1"):
        census.measure(["cvt"], ("sm_103a",), 1)
    with pytest.raises(ValueError, match=r"none .*none cannot be run \(No such file.*\); install a newer triton"):
        toolchain.assembler(tmp_path / "none")
    (tmp_path / "ptxas").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "ptxas").chmod(0o755)
    with pytest.raises(ValueError, match=r"ptxas tells no version of CUDA: 'hello'; install a newer triton"):
        toolchain.assembler(tmp_path / "ptxas")
    (tmp_path / "ptxas").write_bytes(b"#!/bin/sh\nprintf '\\377\\376'\n")
    with pytest.raises(ValueError, match="tells no version of CUDA"):
        toolchain.assembler.__wrapped__(tmp_path / "ptxas")


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("variable", "arch"), [("TRITON_PTXAS_BLACKWELL_PATH", "sm_103a"), ("TRITON_PTXAS_PATH", "sm_90a")]
)
@pytest.mark.parametrize(("mode", "why"), [(0o644, "cannot be run"), (0o755, "tells no version of CUDA: 'hello'")])
def test_a_ptxas_that_triton_would_pass_over_is_refused(
    tools: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, arch: str, mode: int, why: str
) -> None:
    """A file that is no ptxas, and one that is no program, for both of triton's variables."""
    (tmp_path / "ptxas").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "ptxas").chmod(mode)
    monkeypatch.setenv(variable, str(tmp_path / "ptxas"))
    with pytest.raises(ValueError, match=f"{why}.*install a newer triton"):
        census.measure(["kernel_amax"], (arch,), 1)


def test_a_triton_without_ptxas_is_told(tools: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.backends.nvidia import compiler

    def absent(arch: int) -> None:
        raise RuntimeError("Cannot find ptxas-blackwell")

    monkeypatch.setattr(compiler, "get_ptxas", absent)
    with pytest.raises(ValueError, match=r"triton \S+ finds no ptxas for sm_103a \(Cannot find.*\); install a newer"):
        toolchain.used(103)


def test_a_disassembler_that_is_too_old_is_told(tmp_path: Path) -> None:
    (tmp_path / "nvdisasm").write_text(OLD.replace("12.9", "12.8"))
    (tmp_path / "nvdisasm").chmod(0o755)
    with pytest.raises(
        ValueError, match=r"nvdisasm is 12.8.86 and does not know sm_103a, which 12.9 does: pip install"
    ):
        toolchain.reader(tmp_path / "nvdisasm", 103)
    assert toolchain.reader(tmp_path / "nvdisasm", 100).release == (12, 8)


def test_a_disassembler_of_pips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    monkeypatch.setattr(triton, "__file__", str(tmp_path / "triton" / "__init__.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    own = tmp_path / "nvidia/cu99/bin/nvdisasm"
    own.parent.mkdir(parents=True)
    own.write_text("")
    monkeypatch.delenv("TRITON_NVDISASM_PATH", raising=False)
    assert machine_code.nvdisasm() == own
    monkeypatch.setenv("TRITON_NVDISASM_PATH", str(tmp_path / "nvidia/cu99/bin/other"))
    with pytest.raises(ValueError, match=r"TRITON_NVDISASM_PATH='.*other' is no file; name nvdisasm, or unset it"):
        machine_code.nvdisasm()
    (own.parent / "other").write_text("")
    assert machine_code.nvdisasm() == own.parent / "other"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("sm_120a", ", and it has no cvt.rs"),
        ("sm_110a", ", and it has no cvt.rs"),
        ("sm_103", "; only targets that end in a have cvt.rs and tcgen05"),
        ("sm_100f", "; only targets that end in a have cvt.rs and tcgen05"),
        ("sm_90", "; only sm_90a has wgmma"),
        ("b200", ""),
        ("", ""),
    ],
)
def test_an_architecture_that_kernels_are_not_for_is_told(
    name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fourbit.main(["census", "--arch", name]) == 2
    told = f"arch={name!r}: kernels are compiled for sm_103a, sm_100a, sm_90a{why}; use one of these"
    assert capsys.readouterr() == ("", f"fourbit: error: {told}\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arch": ()}, r"arch=\(\): name one of sm_103a"),
        ({"only": ("nothing",)}, r"only=\('nothing',\): no kernel's module has such a name; there are cvt, .*philox"),
        ({"jobs": -1}, "jobs=-1: use 1 or more, or 0"),
        ({"out": Path("census.txt")}, "out='census.txt': name a .json or .csv file"),
        ({"out": Path("absent/\0/x.json")}, "null"),
    ],
)
def test_a_config_that_cannot_be_is_told(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        census.taken(census.CensusConfig(**given))


def test_the_command_writes_what_it_shows(tools: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["census", "--arch", "sm_90a", "--only", "amax", "--jobs", "1", "--out"]
    assert fourbit.main([*asked, str(tmp_path / "a.json")]) == 0
    out, err = capsys.readouterr()
    assert "kernel_amax._amax: of matrices sm_90a  common" in out and "1 compiled, 0 failed, 0 kernels" in out
    assert "Not proven without the hardware" in out and err == "fourbit: 1 of 1 compiled\n"
    record = json.loads((tmp_path / "a.json").read_text())
    assert (record["command"], record["status"], len(record["rows"])) == ("census", "passed", 1)
    assert fourbit.main([*asked, str(tmp_path / "a.csv")]) == 0
    head, line = (tmp_path / "a.csv").read_text().splitlines()
    assert head.startswith("kernel,case,arch,mode,") and line.startswith("kernel_amax._amax,of matrices,sm_90a,common,")


def test_an_old_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "driver", lambda: (12, 8))
    told = toolchain.driver_note("13.1.80")
    assert told is not None and told.startswith(
        "this machine's driver knows CUDA 12.8, and code of ptxas 13.1.80 needs"
    )
    assert toolchain.driver_note("12.8.93") is None
    monkeypatch.setattr(toolchain, "driver", lambda: None)
    assert toolchain.driver_note("13.1.80") is None


@pytest.mark.parametrize(
    ("kind", "value", "block", "meant"),
    [
        ("mxf4nvf4", 0x8200480, 16, "mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 128 x 128 x 64"),
        ("mxf4nvf4", 0x88200480, 16, "mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 128 x 128 x 96"),
        ("mxf8f6f4", 0x8A00000, 32, "mxf8f6f4 E4M3 x E4M3, UE8M0 by 32, 128 x 128 x 32"),
        ("mxf8f6f4", 0x8A00080, 32, "mxf8f6f4 E5M2 x E4M3, UE8M0 by 32, 128 x 128 x 32"),
        ("mxf4nvf4", 0x10400480, 16, "mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 256 x 256 x 64"),
        ("mxf4", 0x10A02480, 32, "mxf4 E2M1 x E2M1, UE8M0 by 32, 256 x 128 x 64, minus A"),
    ],
)
def test_a_descriptor_in_words(kind: str, value: int, block: int, meant: str) -> None:
    """Values put together by hand from the PTX ISA's table."""
    assert descriptor.words(kind, value, block) == meant


MMA = "\t@%p1 tcgen05.mma.cta_group::1.kind::{} [ %r9 + 0 ], %rd1, %rd2, %r3, [ %r4 + 0 ], [ %r5 + 0 ], %p2;"


@pytest.mark.parametrize(
    ("lines", "meant"),
    [
        ("mov.b32 %r3, 136316032;", ("mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 128 x 128 x 64",)),
        ("mov.b32 %r1, 136316032;\n\tor.b32 %r3, %r1, 16;", ("mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 128 x 128 x 64",)),
        (
            "selp.b32 %r3, 136316032, -2011167616, %p3;",
            (
                "mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 128 x 128 x 64",
                "mxf4nvf4 E2M1 x E2M1, UE4M3 by 16, 128 x 128 x 96",
            ),
        ),
        ("ld.global.b32 %r3, [%rd7];", ("mxf4nvf4 of unknown operands",)),
        ("mov.b32 %r3, %r7;", ("mxf4nvf4 of unknown operands",)),
        ("mov.b32 %r3, 136316032;\n\t@%p2 mov.b32 %r3, 136316032;", ("mxf4nvf4 of unknown operands",)),
        ("mov.b32 %r3, 0;\n\t@%p2 ld.global.b32 { %r3 }, [ %rd7 + 0 ];", ("mxf4nvf4 of unknown operands",)),
        ("mov.b32 %r3, 136316032;\n\tmad.lo.s32 %r3, %r3, %r8, %r9;", ("mxf4nvf4 of unknown operands",)),
        ("mov.b32 %r3, 136316032;\n\tadd.s32 %r3, %r3, %r8;", ("mxf4nvf4 of unknown operands",)),
    ],
)
@pytest.mark.parametrize("kind", ["mxf4nvf4.block_scale.block16", "mxf4nvf4.block_scale.scale_vec::4X"])
def test_descriptors_are_followed_through_registers(lines: str, meant: tuple[str, ...], kind: str) -> None:
    assert descriptor.products(f"\t{lines}\n{MMA.format(kind)}\n") == meant


def test_products_without_block_scales_are_named_by_kind() -> None:
    assert descriptor.products(MMA.format("f16") + "\n" + MMA.format("f16")) == ("f16",)
    assert descriptor.products("add.s32 %r1, %r2, %r3;") == ()


def _code(**changes: object) -> Code:
    return replace(Code(Counter({TO_E2M1: 2, "FADD": 9}), 0, (), 32, 0, 0, False, 0), **changes)


def test_needs_and_products_are_those_of_the_mode() -> None:
    """Native needs are asked of native code, portable ones of all other; counts may be bounded on both sides."""
    case = Case("x", lambda: None, (exactly(TO_E2M1, 2),), (at_least("FADD", 10),), mma=("a",), allowed=("F2FP*",))

    def faults(mode: str, **changes: object) -> list[str]:
        return census_judge.faults(case, "sm_103a", mode, _code(**changes))

    assert faults("native", products=("a",)) == []
    assert faults("native") == ["multiplies no products, and its contract says a"]
    assert faults("portable") == ["has 9 of FADD, and its contract says 10 or more"]
    assert faults("portable", opcodes=Counter({"FADD": 12})) == []
    three = Counter({TO_E2M1: 3, f"{TO_E2M1}.RS": 1})
    assert faults("native", products=("a",), opcodes=three) == [f"has 3 of {TO_E2M1}, and its contract says 2"]


def test_hoppers_products_are_no_fault_on_a_hopper() -> None:
    code, case = _code(opcodes=Counter({"HGMMA.64x128x16.F32.BF16": 4})), Case("x", lambda: None)
    assert census_judge.faults(case, "sm_90a", "portable", code) == []
    assert census_judge.faults(case, "sm_100a", "common", code)[0].startswith("multiplies by HGMMA.64x128x16.F32")
