"""The conformance pack, its reader, and a stranger's kernel judged by them.

Contract: the pack has the bytes that its version promises, on every machine; the reader needs numpy alone, passes a
kernel that keeps the contracts, names the cases that a broken one fails, and tells of a damaged pack in one sentence.

Oracle: `vectors_kernel`, written from the prose of the cases in numpy and ml_dtypes, must give every expected byte; the
safetensors library must read the same tensors from the files.
"""

import ast
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hw import vectors, vectors_case, vectors_reader

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
# the reader as a script, in an interpreter that cannot import what it must do without
ALONE = "import runpy, sys; sys.argv.pop(0); sys.modules.update(dict.fromkeys({absent}, None))\n"
ALONE += "runpy.run_path(sys.argv[0], run_name='__main__')"
ABSENT = ["torch", "numerics", "hw", "fourbit", "safetensors", "scipy"]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack as the command writes it."""
    out = tmp_path_factory.mktemp("vectors") / "pack"
    vectors.write(out)
    return out


@pytest.fixture(scope="module")
def loaded(pack: Path) -> tuple[list[dict], dict]:
    return vectors_reader.load(pack)


@pytest.fixture
def copied(pack: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    for path in pack.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def alone(pack: Path, *options: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The pack's own copy of the reader, in a process of its own without torch or anything of this project."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    code = ALONE.format(absent=ABSENT)
    command = [sys.executable, "-c", code, str(pack / "vectors_reader.py"), str(pack), *options]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def outputs(case: dict, files: dict) -> dict[str, np.ndarray]:
    return {key: files[entry["file"]][entry["tensor"]] for key, entry in case["outputs"].items()}


# ---- the pack --------------------------------------------------------------------------------------------------------


def test_the_hash_is_that_of_the_version(pack: Path) -> None:
    """Over the files as a shell's `cat index.json *.safetensors` reads them. A change is a new VERSION and HASH."""
    names = ["index.json", *sorted(path.name for path in pack.glob("*.safetensors"))]
    found = hashlib.sha256(b"".join((pack / name).read_bytes() for name in names)).hexdigest()
    index = json.loads((pack / "index.json").read_bytes())
    assert (index["version"], found) == (vectors.VERSION, vectors.HASH)
    assert index["rule"] == vectors.RULE
    assert list(index["files"]) == names[1:]


def test_the_command_prints_the_hash_in_another_process_under_other_settings(tmp_path: Path) -> None:
    """Other threads, another hash seed and time zone, torch without vector instructions."""
    other = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2", "TZ": "Asia/Tokyo", "ATEN_CPU_CAPABILITY": "default"}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **other}
    command = [sys.executable, "-m", "fourbit", "vectors", "--out", str(tmp_path / "new" / "pack")]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
    assert f"version {vectors.VERSION}, sha256 {vectors.HASH}" in run.stdout
    assert (tmp_path / "new/pack/vectors_reader.py").read_bytes() == (ROOT / "hw/vectors_reader.py").read_bytes()


def test_other_bytes_than_the_versions_end_the_command_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vectors, "HASH", "0" * 64)
    assert vectors.main(["--out", str(tmp_path / "pack")]) == 1
    assert "not the vectors of version 2" in capsys.readouterr().err


def test_a_pack_replaces_a_pack_and_nothing_else(pack: Path, tmp_path: Path) -> None:
    before = (pack / "index.json").read_bytes()
    vectors.write(pack)
    assert (pack / "index.json").read_bytes() == before
    (tmp_path / "thesis.tex").write_text("", "utf-8")
    with pytest.raises(ValueError, match=r"holds thesis\.tex, which belongs to no pack"):
        vectors.write(tmp_path)
    with pytest.raises(ValueError, match="is a file: name a folder"):
        vectors.write(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_safetensors_library_reads_the_tensors_that_the_index_describes(
    pack: Path, loaded: tuple[list[dict], dict]
) -> None:
    cases, files = loaded
    for name, tensors in files.items():
        library = load_file(pack / name)
        assert library.keys() == tensors.keys()
        assert all(library[key].tobytes() == x.tobytes() for key, x in tensors.items())
    for case in cases:
        for entry in [*case["inputs"].values(), *case["outputs"].values()]:
            x = files[entry["file"]][entry["tensor"]]
            digest = hashlib.sha256(x.tobytes()).hexdigest()
            assert (x.dtype.name, list(x.shape), digest) == (entry["dtype"], entry["shape"], entry["sha256"])


def test_the_pack_is_small_and_every_case_says_its_contract(pack: Path, loaded: tuple[list[dict], dict]) -> None:
    assert sum(path.stat().st_size for path in pack.iterdir()) < 5e6
    for case in loaded[0]:
        assert len(case["prose"]) > 60 and "  " not in case["prose"], case["name"]
        assert case["equality"] == vectors.EQUALITY and case["outputs"]


def test_the_pack_holds_what_it_should(loaded: tuple[list[dict], dict]) -> None:
    names = {case["name"] for case in loaded[0]}
    floats = ("E2M1", "E2M3", "E3M2", "E4M3", "E5M2")
    wanted = [f"cast/{fmt}/{mode}/{data}" for fmt in (*floats, "S2F6") for mode in ("nearest_even", "toward_zero")
              for data in ("breakpoints", "bfloat16")]  # fmt: skip
    wanted += [f"cast/E8M0/{mode}/{data}" for mode in ("toward_zero", "toward_positive") for data in ("breakpoints",)]
    wanted += [f"cast/{fmt}/stochastic" for fmt in floats]
    wanted += [f"instruction/cvt.rs.satfinite.{fmt.lower()}x4.f32" for fmt in floats]
    patterns = ("ties", "scale_breakpoints", "zero_blocks", "zero_tensor", "not_finite", "tiny", "subnormal", "huge")
    for fmt in ("NVFP4", "NVFP4_46", "MXFP8", "MXS2F6", "MXFP4"):
        wanted += [f"{op}/{fmt}/{p}" for op in ("quantize", "dequantize") for p in (*patterns, "ragged", "groups")]
    wanted += [f"quantize/{fmt}/{p}" for fmt in ("NVFP4", "NVFP4_46") for p in ("saturation", "subnormal_scales")]
    wanted += [f"requantize/{way}/{mode}" for way in ("tensor_outer_keep", "row_outer_multiply", "weight_keep")
               for mode in ("nearest_even", "stochastic")]  # fmt: skip
    wanted += ["combine/send", "combine/receive", "swizzle_scales/130x5", "pack_nibbles/matrix", "payload/NVFP4"]
    wanted += ["philox/words", "random_bits/split_4", "random_bits/split_8", "four_over_six_errors/close"]
    wanted += [f"matmul/NVFP4/rows/{kind}" for kind in ("any_order", "exact")]
    assert set(wanted) - names == set()


def test_four_over_six_choices_are_close_and_some_tie(loaded: tuple[list[dict], dict]) -> None:
    cases, files = loaded
    named = {case["name"]: outputs(case, files) for case in cases}
    errors = named["four_over_six_errors/close"]
    four, six = errors["error_4"], errors["error_6"]
    assert (four == six).sum() >= 10 and (four < six).sum() >= 100 and (four > six).sum() >= 100
    assert (np.abs(four - six) <= 0.005 * np.maximum(four, six)).all()


def test_products_in_any_order_are_exact_in_any_order(loaded: tuple[list[dict], dict]) -> None:
    """Terms are multiples of 2^-6 whose magnitudes add up to less than 2^18: every partial sum has 24 bits at most."""
    cases, files = loaded
    kernel = pytest.importorskip("hw.vectors_kernel", reason="not run: ml_dtypes is not installed")
    for case in cases:
        if case["operation"] == "matmul" and case["name"].endswith("any_order"):
            part, p = vectors_reader_inputs(case, files), case["parameters"]
            groups = p["groups"] if "contraction" in case["name"] else None
            a, b = (
                kernel.dequantize({**p, "axis": part[f"{s}_codes"].ndim - 1, "groups": groups},
                                  part[f"{s}_codes"], part[f"{s}_scales"]).astype(np.float64)
                for s in "ab"
            )  # fmt: skip
            assert (a * 8 == np.rint(a * 8)).all() and (b * 8 == np.rint(b * 8)).all()
            assert (np.abs(a).reshape(-1, a.shape[-1]) @ np.abs(b).reshape(-1, a.shape[-1]).T).max() < 2**18


def vectors_reader_inputs(case: dict, files: dict) -> dict[str, np.ndarray]:
    return {key: files[entry["file"]][entry["tensor"]] for key, entry in case["inputs"].items()}


def test_a_pack_refuses_two_cases_of_one_name_and_dtypes_that_the_reader_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = vectors_case.Case("a/b", "cast", "prose", {}, {}, {"y": np.zeros(3, np.uint8)})
    monkeypatch.setattr(vectors, "FAMILIES", {"x": lambda: [one], "y": lambda: [one]})
    with pytest.raises(ValueError, match=r"\['a/b'\] come twice"):
        vectors.build()
    with pytest.raises(ValueError, match="tensor z has dtype float64"):
        vectors.safetensors({"z": np.zeros(3)})


def test_a_nan_of_an_output_has_one_pattern_since_machines_make_different_ones() -> None:
    values = np.array([0xFFC00001, 0x7F800001, 0x3F800000, 0xFF800000], np.uint32).view(np.float32)
    made = vectors_case.case("a", "b", "c", {}, {"x": values}, {"y": values})
    assert made.outputs["y"].view(np.uint32).tolist() == [0x7FC00000, 0x7FC00000, 0x3F800000, 0xFF800000]
    assert made.inputs["x"].view(np.uint32).tolist() == values.view(np.uint32).tolist()


# ---- the reader and kernels ------------------------------------------------------------------------------------------


def test_the_reader_is_short_and_imports_numpy_alone() -> None:
    text = (ROOT / "hw" / "vectors_reader.py").read_text("utf-8")
    assert len(text.splitlines()) <= 110
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module).split(".")[0])
    assert found - set(sys.stdlib_module_names) == {"numpy"}


def test_the_reader_lists_the_cases(pack: Path, loaded: tuple[list[dict], dict], tmp_path: Path) -> None:
    run = alone(pack, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert [line.split(": ")[0] for line in run.stdout.splitlines()] == [case["name"] for case in loaded[0]]
    assert "cast/E2M1/stochastic: x, random_bits -> codes\n" in run.stdout


def test_a_kernel_written_from_the_prose_gives_every_byte(pack: Path, loaded: tuple[list[dict], dict]) -> None:
    """The prose is complete, and numpy's IEEE arithmetic agrees with the emulator bit for bit."""
    run = alone(pack, "--kernel", "vectors_kernel:kernel", cwd=ROOT / "hw")
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert run.stdout.splitlines()[-1] == f"{len(loaded[0])} passed, 0 FAILED, 0 not run"


THEIRS = """
import numpy as np
from vectors_kernel import cast, quantize

@np.errstate(all="ignore")
def kernel(case, inputs):
    p = case["parameters"]
    if case["operation"] == "cast" and p["format"] in ("E2M1", "E4M3") and p["rounding"] == "nearest_even":
        return {"codes": cast(inputs["x"], p["format"])}
    if case["operation"] == "quantize" and p["format"] == "NVFP4" and p["rounding"] == "nearest_even":
        return quantize(p, **inputs)
"""


def test_what_a_kernel_does_not_do_is_not_run_rather_than_passed(
    pack: Path, loaded: tuple[list[dict], dict], tmp_path: Path
) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS, "utf-8")
    run = alone(pack, "--kernel", "theirs:kernel", cwd=tmp_path, PYTHONPATH=str(ROOT / "hw"))
    assert (run.returncode, run.stderr) == (0, "")
    passed = [line.split()[1] for line in run.stdout.splitlines() if line.startswith("passed")]
    assert {name.split("/")[0] for name in passed} == {"cast", "quantize"}
    assert len([name for name in passed if name.startswith("cast")]) == 4
    nvfp4 = [c["name"] for c in loaded[0] if c["name"].startswith("quantize/NVFP4/") and "stoch" not in c["name"]]
    assert sorted(name for name in passed if name.startswith("quantize")) == nvfp4
    assert run.stdout.splitlines()[-1] == f"{len(passed)} passed, 0 FAILED, {len(loaded[0]) - len(passed)} not run"


def test_cases_that_are_not_run_are_listed_and_fail_on_request_alone(
    pack: Path, loaded: tuple[list[dict], dict], tmp_path: Path
) -> None:
    """By default the last line counts them; with --all each has a line, and the exit status is 1."""
    (tmp_path / "theirs.py").write_text(THEIRS, "utf-8")
    few, every = (
        alone(pack, "--kernel", "theirs:kernel", *more, cwd=tmp_path, PYTHONPATH=str(ROOT / "hw"))
        for more in ([], ["--all"])
    )
    assert (few.returncode, every.returncode) == (0, 1)
    short, long = few.stdout.splitlines(), every.stdout.splitlines()
    assert short == [line for line in long if not line.startswith("not run")]
    assert len(long) == len(loaded[0]) + 1 and short[-1].endswith(f", {len(long) - len(short)} not run")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_the_usage(option: str, pack: Path, tmp_path: Path) -> None:
    run = alone(pack, option, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "") and "--kernel mymodule:function" in run.stdout


@pytest.mark.parametrize(
    ("name", "shapes", "others"),
    [
        ("quantize/NVFP4/ties", [(1,), (), (1, 1, 1)], [(2,), (1, 2), (0,)]),
        ("quantize/NVFP4/outer_row", [(6,), (1, 6), (6, 1, 1)], [(3, 2), (1,), (7,)]),
        ("quantize/NVFP4_46/outer_leading", [(3,), (3, 1), (3, 1, 1, 1)], [(1, 1, 1), (6,)]),
    ],
)
def test_an_outer_scale_may_lack_axes_of_length_1(
    name: str, shapes: list, others: list, loaded: tuple[list[dict], dict]
) -> None:
    """And nothing else: other lengths fail, so do codes of another shape."""
    cases, files = loaded
    case = next(case for case in cases if case["name"] == name)
    true = outputs(case, files)

    def judged(**parts: Any) -> list[str]:
        found = vectors_reader.judge(lambda *_: true | parts, case, files)
        assert found is not None
        return found

    for shape in shapes:
        assert judged(outer=true["outer"].reshape(shape)) == []
    for shape in others:
        assert judged(outer=np.resize(true["outer"], shape))[0].startswith(f"outer: got float32 {list(shape)}, exp")
    wrong = np.nextafter(true["outer"], np.float32(9)).reshape(shapes[0])
    assert judged(outer=wrong)[0].startswith(f"outer: {wrong.size} of {wrong.size} differ")
    assert judged(codes=true["codes"][None])[0].startswith("codes: got uint8 [1, ")


SWIZZLED = ["128x4", "130x5", "256x8", "33x9", "3x40x6"]  # a single scale lies at byte 0 either way
FAULTS = {
    "swapped nibbles": ({"pack_nibbles/every_pair", "pack_nibbles/matrix", "payload/NVFP4"}, "exactly"),
    "unswizzled scales": ({*(f"swizzle_scales/{shape}" for shape in SWIZZLED), "payload/NVFP4"}, "exactly"),
    "tie": (
        {"cast/E2M1/nearest_even/breakpoints", "quantize/NVFP4/ties", "quantize/NVFP4_46/ties", "quantize/MXFP4/ties"},
        "E2M1 NVFP4 MXFP4 e2m1",
    ),
    "lost outer": ({"dequantize/NVFP4/outer_row", "dequantize/NVFP4/ragged"}, "dequantize/NVFP4 outer_multiply"),
    "double rounding": ({"cast/E4M3/nearest_even/breakpoints", "quantize/MXFP8/ties"}, "cast quantize cvt send payload"
                        " requantize"),
    "late groups": (
        {"quantize/NVFP4/groups", "requantize/tensor_outer_keep/nearest_even", "matmul/MXFP8/contraction/any_order"},
        "groups requantize contraction",
    ),
    "floor scale": ({"quantize/MXFP8/scale_breakpoints", "combine/send"}, "/MX requantize send"),
    "rotation": ({"hadamard/32", "combine/send", "combine/receive"}, "hadamard combine"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_kernel_fails_the_cases_of_its_fault_and_no_others(fault: str, pack: Path) -> None:
    """Each failing case is one where the fault can show: the wanted ones, or names with one of the given parts."""
    wanted, where = FAULTS[fault]
    run = alone(pack, "--kernel", "vectors_broken:broken", cwd=TESTS, PYTHONPATH=str(ROOT / "hw"), BROKEN=fault)
    failed = {line.split()[1] for line in run.stdout.splitlines() if line.startswith("FAILED")}
    assert (run.returncode, run.stderr) == (1, "")
    assert wanted <= failed
    assert all(name in wanted or any(part in name for part in where.split()) for name in failed)


def test_a_failure_tells_the_first_difference_and_the_contract(pack: Path) -> None:
    run = alone(pack, "--kernel", "vectors_broken:broken", cwd=TESTS, PYTHONPATH=str(ROOT / "hw"), BROKEN="tie")
    lines = run.stdout.splitlines()
    at = lines.index("FAILED  cast/E2M1/nearest_even/bfloat16")
    expected = "    codes: 8 of 65536 differ, first at [16000]: expected 0 (0x00), got 1 (0x01), x 0.25"
    assert lines[at + 1] == expected
    assert lines[at + 2].startswith(
        "    float32 to E2M1, one code per byte, rounded once to the nearest value, ties to the"
    )


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ("{}", "the kernel raised: KeyError('codes')"),
        ("{'codes': inputs['x']}", "codes: got float32 [120], expected uint8 [120]"),
        ("{'codes': inputs['x'][:3].astype('uint8')}", "codes: got uint8 [3], expected uint8 [120]"),
        ("1 / 0", "the kernel raised: ZeroDivisionError('division by zero')"),
    ],
)
def test_a_kernel_that_returns_nonsense_or_raises_fails(
    returned: str, complaint: str, pack: Path, tmp_path: Path
) -> None:
    text = (
        f"def kernel(case, inputs):\n    if case['name'] == 'cast/E2M1/nearest_even/breakpoints': return {returned}\n"
    )
    (tmp_path / "bad.py").write_text(text, "utf-8")
    run = alone(pack, "--kernel", "bad:kernel", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (1, "")
    assert f"FAILED  cast/E2M1/nearest_even/breakpoints\n    {complaint}\n" in run.stdout


def test_a_kernel_that_runs_nothing_has_passed_nothing(pack: Path, tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("def kernel(case, inputs): return None\n", "utf-8")
    run = alone(pack, "--kernel", "none:kernel", cwd=tmp_path)
    assert run.returncode == 1
    assert run.stdout.splitlines()[-1].startswith("0 passed, 0 FAILED, ")


def test_a_kernel_cannot_spoil_the_inputs_of_later_cases(pack: Path, loaded: tuple[list[dict], dict]) -> None:
    cases, files = loaded
    case = next(case for case in cases if case["name"] == "pack_nibbles/matrix")
    before = {key: x.copy() for key, x in vectors_reader_inputs(case, files).items()}
    found = vectors_reader.judge(lambda case, inputs: [x.fill(0) for x in inputs.values()] and None, case, files)
    assert found is None
    assert all(np.array_equal(x, before[key]) for key, x in vectors_reader_inputs(case, files).items())


def test_equality_is_bitwise_but_for_nan() -> None:
    def differ(got: list[int], expected: list[int]) -> str | None:
        pair = (np.array(bits, np.uint32).view(np.float32) for bits in (got, expected))
        return vectors_reader.difference(*pair, {})

    assert differ([0x7FC00000, 0x3F800000], [0xFFC00001, 0x3F800000]) is None
    assert differ([0x80000000], [0]) == "1 of 1 differ, first at [0]: expected 0.0 (0x00000000), got -0.0 (0x80000000)"
    assert "expected 1.0" in str(differ([0x7FC00000], [0x3F800000]))
    assert "expected nan" in str(differ([0x3F800000], [0x7FC00000]))


# ---- damaged packs ---------------------------------------------------------------------------------------------------


def change_index(path: Path, change: Any) -> None:
    index = json.loads((path / "index.json").read_bytes())
    change(index)
    (path / "index.json").write_text(json.dumps(index), "utf-8")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def no_header(pack: Path) -> None:
    """A file that is no safetensors file, under a right sha256."""
    (pack / "wire.safetensors").write_bytes(b"hello")
    entry = {"bytes": 5, "sha256": hashlib.sha256(b"hello").hexdigest()}
    change_index(pack, lambda index: index["files"].update({"wire.safetensors": entry}))


DAMAGES = {
    "a truncated tensor file": (lambda p: truncate(p / "casts.safetensors"), ["casts.safetensors has", "truncated"]),
    "a changed byte": (lambda p: flip(p / "blocks.safetensors"), ["blocks.safetensors has another sha256"]),
    "a missing tensor file": (
        lambda p: (p / "wire.safetensors").unlink(),
        ["wire.safetensors cannot be read: No such"],
    ),
    "a missing index": (lambda p: (p / "index.json").unlink(), ["index.json cannot be read: No such file"]),
    "a truncated index": (lambda p: truncate(p / "index.json"), ["index.json", "is not what a pack holds"]),
    "an index of another kind": (lambda p: (p / "index.json").write_text("[1]", "utf-8"), ["index.json", "not what a"]),
    "no list of cases": (lambda p: change_index(p, lambda i: i.pop("cases")), ["index.json lacks a key", "'cases'"]),
    "no list of files": (lambda p: change_index(p, lambda i: i.pop("files")), ["index.json lacks a key", "'files'"]),
    "no prose": (
        lambda p: change_index(p, lambda i: i["cases"][3].pop("prose")),
        ["index.json lacks a key", "'prose'"],
    ),
    "an unknown tensor": (
        lambda p: change_index(p, lambda i: i["cases"][0]["inputs"]["x"].update(tensor="lost")),
        ["index.json lacks a key", "'lost'"],
    ),
    "a file of another format": (no_header, ["not what a pack holds"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_pack_is_told_in_one_sentence(damage: str, copied: Path) -> None:
    spoil, parts = DAMAGES[damage]
    spoil(copied)
    run = alone(copied, cwd=copied)
    assert (run.returncode, run.stdout) == (1, "")
    assert len(run.stderr.splitlines()) == 1 and run.stderr.startswith("vectors_reader: ")
    assert all(part in run.stderr for part in parts), run.stderr


@pytest.mark.parametrize("name", ["nowhere:kernel", "os:kernel", "no module"])
def test_a_kernel_that_is_not_there_is_told_in_one_sentence(name: str, pack: Path, tmp_path: Path) -> None:
    run = alone(pack, "--kernel", name, cwd=tmp_path)
    assert run.returncode == 1 and len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith(f"vectors_reader: --kernel {name} cannot be imported: ")


@pytest.mark.parametrize("options", [["--kernel"], ["a:b"], ["--kernels", "a:b"]])
def test_wrong_usage_shows_the_usage(options: list[str], pack: Path, tmp_path: Path) -> None:
    run = alone(pack, *options, cwd=tmp_path)
    assert (run.returncode, run.stdout) == (1, "")
    assert "--kernel mymodule:function" in run.stderr
