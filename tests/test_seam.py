"""`hw.seam`: what `fourbit validate --ops NAME` means, and what becomes of operations that are not there.

Contract: a name that cannot be used is one sentence that names it and the remedy; what an implementation lacks is "not
run", never passed, and exit status 2 if that is all. Oracle: small modules made for the purpose.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from seam_copies import CPU, run, written
from seam_copies import two_threads as two_threads

from hw import seam, validate
from numerics import ops

SEAM = tuple(seam.seam())


def test_what_a_module_lacks_is_not_run_and_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does what it only imports from numerics.ops."""
    (tmp_path / "part.py").write_text(
        "from numerics import ops\nfrom numerics.ops import row_scale\n"
        "def glu_backward(dh, gate_up):\n    return ops.glu_backward(dh, gate_up)\n"
    )
    page = tmp_path / "page.html"
    status, lines = run(capsys, tmp_path / "part.py", "--html", str(page))
    assert status == 0
    absent = [line for line in lines if "  not run: " in line]
    assert {line.split()[0] for line in absent} == set(SEAM) - {"glu_backward"}
    assert any(line.endswith("not run: its row_scale is the one of numerics.ops") for line in absent)
    ran = len([line for line in lines[:-1] if line.startswith("glu_backward")])
    assert lines[-1].startswith("passed: ") and f": {ran} cases, " in lines[-1] and "; 9 cases not run" in lines[-1]
    text = page.read_text("utf-8")
    assert text.count(f'<td class="absent" colspan="{ran}">not run</td>') == 9 and text.count('class="passed"') == ran
    status, lines = run(capsys, tmp_path / "part.py", "--only", "row_scale")
    assert status == 2 and lines[-1].startswith("not run: ") and "passed" not in "\n".join(lines)


@pytest.mark.parametrize("name", ["triton", "blackwell"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kernels_that_do_not_exist_are_not_run(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(seam.KERNELS, name, {})
    status = validate.main(["--ops", name, "--device", device, "--out", str(tmp_path / "r.json")])
    lines = capsys.readouterr().out.splitlines()
    kind = name.capitalize()
    assert status == 2 and "passed" not in "\n".join(lines) and lines[-1].startswith("not run: ")
    assert [line.split("  not run: ")[1] for line in lines[1:-1]] == [
        f"hw has no {kind} kernel of {f} yet" for f in SEAM
    ]
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["status"] == "not run" and record["not_run"] == len(SEAM) and record["elements"] == 0


def test_a_kernel_that_is_added_is_judged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = ModuleType("hw.a_kernel")
    module.launch = lambda dh, gate_up: -ops.glu_backward(dh, gate_up)
    monkeypatch.setitem(sys.modules, "hw.a_kernel", module)
    monkeypatch.setitem(seam.KERNELS, "triton", {"glu_backward": "a_kernel:launch"})
    monkeypatch.setitem(seam.KERNELS, "blackwell", {"glu_backward": "a_kernel:launch"})
    monkeypatch.setattr(seam, "triton_absent", lambda device: None)
    status, lines = run(capsys, "triton", "--only", "glu_backward, normal")
    assert status == 1 and "d_gate_up[0, 0] is " in lines[1]
    monkeypatch.setattr(seam, "triton_absent", lambda device: "triton is not installed")
    status, lines = run(capsys, "triton", "--only", "glu_backward, normal")
    assert status == 2 and lines[1].endswith("  not run: triton is not installed")
    status, lines = run(capsys, "blackwell", "--only", "glu_backward, normal")
    assert status == 2 and "need sm_100a or later, and cpu is no CUDA device" in lines[1]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert seam.lacks("blackwell", torch.device("cuda", 0)).endswith("and cuda:0 is sm_90")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 3))
    assert seam.lacks("blackwell", torch.device("cuda", 0)) is None


def test_an_absent_device_is_not_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The default device is never the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert validate.main(["--ops", "emulated"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert all("  not run: device='cuda': torch " in line for line in lines[1:-1]) and len(lines) == len(SEAM) + 2


def test_exact_products_may_be_refused_and_library_ones_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tensor cores have no exact accumulator. Another refusal is a failure."""
    check = '    require_experts(groups, h=h, w2=w2)\n    if accumulator == "exact":\n        raise {}\n'
    only = ("--only", "down_to_wire NVFP4, normal", "down_to_wire NVFP4 library, normal")
    old = "    require_experts(groups, h=h, w2=w2)\n"
    status, lines = run(
        capsys, written(tmp_path, old, check.format('NotImplementedError("no exact sums here")')), *only
    )
    assert status == 0 and "1 cases not run" in lines[-1]
    assert lines[1].endswith("  not run: it refuses accumulator='exact' (no exact sums here)")
    status, lines = run(capsys, written(tmp_path, old, check.format('NotImplementedError("later")')), *only)
    assert status == 1 and "NotImplementedError: later" in lines[1]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "emulate",
            None,
            "no module of this name is found from .*; use emulated, triton, blackwell, blackwell-library, an",
        ),
        ("a-b", None, "is no name of a module; use emulated"),
        ("nowhere.py", None, ": there is no such .py file; use emulated"),
        ("numerics.ops", None, "is the emulation, which others are judged by; use --ops emulated"),
        ("numerics.formats", None, "offers none of the seam's functions; define some of quantize_tokens, gate_up_glu"),
        ("mine.py", "x = (", r"cannot be imported \(SyntaxError: .*\); make it importable first"),
        ("mine.py", "raise SystemExit(3)", r"cannot be imported \(SystemExit: 3\)"),
        ("mine.py", "import cutlass_of_nobody", "imports cutlass_of_nobody, which is not found; install it"),
        (
            "mine.py",
            "def glu_backward(dh): pass",
            r"glu_backward\(dh\) has another signature than the seam's glu_backward\(dh, gate_up\)",
        ),
        ("mine.py", "def quantize_tokens(x, cast, random=None, groups=None, axis=1): pass", "has another signature"),
        ("mine.py", "glu_backward = 3", "offers none of the seam's functions"),
    ],
)
def test_an_implementation_that_cannot_be_used(
    name: str, text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    before = list(sys.path)
    with pytest.raises(ValueError, match=f"^ops={name!r}.*{message}"):
        validate.main(["--ops", name, *CPU])
    assert sys.path == before


def test_a_module_of_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "their_kernels").mkdir()
    (tmp_path / "their_kernels" / "seam_of_theirs.py").write_text(
        "from numerics import ops\ndef glu_backward(dh, gate_up):\n    return ops.glu_backward(dh, gate_up)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "their_kernels.seam_of_theirs", "--only", "glu_backward, normal")[0] == 0
