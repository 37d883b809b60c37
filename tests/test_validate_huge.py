"""`fourbit validate --ops --huge`: offsets of 32 bits, shown on a CPU with a limit that is smaller.

Contract: a function whose offsets wrap at the limit fails, in every operation that has huge inputs; a true copy passes;
without a GPU of enough memory such a line is not run. Oracle: copies of the seam whose arguments are read with offsets
modulo the limit. On a GPU with 100 GiB the last test runs the kernels of this folder at 2^31 themselves.
"""

from pathlib import Path

import pytest
import torch
from seam_copies import failed, run, written
from seam_copies import two_threads as two_threads
from test_validate_ways import kernel

from hw import cases_ops, judge_huge, validate
from numerics import ops

LIMIT = 1 << 15
WRAPPED = f"""
def wrapped(x):
    flat = x.flatten()
    return flat[torch.arange(x.numel(), device=x.device) % {LIMIT}].view(x.shape)
"""


@pytest.fixture
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(judge_huge.LIMITS, cases_ops.HUGE, (LIMIT, 96))
    for name, value in (("NARROW", 32), ("MEMORY", 0)):
        monkeypatch.setattr(judge_huge, name, value)


FAULTS = {
    "quantize_tokens NVFP4": "return f(wrapped(a[0]), *a[1:], **k)",
    "quantize_tokens MXFP8 rows": "return f(wrapped(a[0]), *a[1:], **k)",
    "gate_up_glu NVFP4 library": "h, y = f(*a)\nreturn h, wrapped(y)",
    "down_to_wire BF16 library": "return f(wrapped(a[0]), *a[1:])",
    "aggregate NVFP4": "q = a[0]\nreturn f(q.derived(codes=wrapped(q.codes)), *a[1:])",
    "router_gradient MXFP8": "return f(a[0], wrapped(a[1]), *a[2:])",
    "grad_to_wire NVFP4 bfloat16": "r = f(*a)\nreturn r.derived(codes=wrapped(r.codes))",
    "requantize_transpose NVFP4": "q = a[0]\nreturn f(q.derived(codes=wrapped(q.codes)), *a[1:], **k)",
    "grad_products MXFP8 library": "dx, dw = f(*a)\nreturn wrapped(dx), dw",
    "grad_products NVFP4 library": "q = a[3]\nreturn f(*a[:3], q.derived(codes=wrapped(q.codes)), *a[4:])",
    "glu_backward": "return f(a[0], wrapped(a[1]))",
}


@pytest.mark.usefixtures("smaller")
@pytest.mark.parametrize("case", FAULTS)
def test_offsets_that_wrap_fail(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kernel(tmp_path, case.split()[0], FAULTS[case], WRAPPED)
    status, lines = run(capsys, path, "--huge", "--only", f"{case}, 2^31")
    assert status == 1 and "2^31 elements, " in failed(lines)[0], lines


@pytest.mark.usefixtures("smaller")
def test_a_true_copy_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = run(capsys, written(tmp_path), "--huge", "--only", ", 2^31")
    assert status == 0, failed(lines)
    judged = {line.split()[0] for line in lines[1:-1]}
    assert judged == {name.split()[0] for name in judge_huge.MADE} and "not run" not in "\n".join(lines[:-1])


def test_every_entry_makes_a_case() -> None:
    found = {judge_huge.made(case) for case in cases_ops.seam_cases(ops, ops)}
    assert found - {None} == set(judge_huge.MADE.values())
    assert all(limit % wide and wide % 32 == 0 for limit, wide in judge_huge.LIMITS.values())


def test_without_such_a_gpu_it_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = run(capsys, written(tmp_path), "--huge", "--only", "glu_backward, 2^31")
    assert status == 2 and lines[1].endswith("  not run: 2^31 elements need a GPU with 100 GiB")


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < judge_huge.MEMORY,
    reason="not run: there is no GPU with 100 GiB",
)
@pytest.mark.exhaustive
def test_the_kernels_of_this_folder_at_two_to_the_31(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main(["--ops", "triton", "--device", "cuda", "--fast", "--huge", "--only", ", 2^31"]) == 0
    assert "not run" not in capsys.readouterr().out.partition("recorded")[0]
