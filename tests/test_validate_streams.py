"""`fourbit validate --ops` on a GPU: the stream that a kernel runs on, and the device that is current meanwhile.

Contract: a kernel that runs on another stream than the current one reads arguments before they are written, and fails;
the kernels of this folder pass. What a GPU is needed for is not run without one; the order of calls is shown on a CPU,
whose stand-ins of streams do nothing.
"""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from seam_copies import failed, run, written
from test_validate_ways import kernel

from hw import cases_ops, judge_calls, validate, ways
from hw.calls import Calls
from hw.compare import OpsRow, Sides
from hw.judge import Judge
from hw.seam import seam
from hw.validate_config import ValidateConfig
from numerics import ops

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: torch finds no CUDA device")
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (None, ""),
        (lambda dh, gate_up, true: true(dh * (dh[0, 0] != 0), gate_up), ""),
        (lambda dh, gate_up, true: true(-dh, gate_up), "arguments that come late"),
    ],
)
def test_the_order_of_calls(fault: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked at while streams run; both draws come late, then both run at once, eight times."""
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda s: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    functions, calls = seam(), []

    def glu_backward(dh: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        calls.append((dh.data_ptr(), theirs.looks))
        return ops.glu_backward(dh, gate_up) if fault is None else fault(dh, gate_up, ops.glu_backward)

    theirs = Calls(functions | {"glu_backward": glu_backward}, careful=True)
    config, ours = ValidateConfig(ops="x", device="cpu", fast=True), Calls(functions)
    judge = Judge(config, Sides.of(CPU, 1, lambda r: r), ours, theirs, {})
    (case,) = (c for c in cases_ops.seam_cases(ours, theirs) if c.name == "glu_backward")
    row = OpsRow(case.name, cases_ops.STREAMS, "")
    judge_calls.streams(judge, row, case)
    assert len(calls) == 2 + 2 * judge_calls.ROUNDS and not any(looks for _, looks in calls) and theirs.looks
    assert row.elements > 0 and row.failed is bool(said) and said in (row.first or "")


def test_on_a_cpu_streams_and_another_device_are_not_tried() -> None:
    tried, left = ways.tried((*cases_ops.WAYS,), CPU)
    assert left == ["another current device", "streams"] and "later calls" in tried and "strided" in tried


@on_a_gpu
@pytest.mark.parametrize(
    ("body", "before"),
    [
        ("with torch.cuda.stream(torch.cuda.default_stream()):\n    return f(*a)", ""),
        ("s = STREAM.setdefault(0, torch.cuda.Stream())\nwith torch.cuda.stream(s):\n    return f(*a)", "STREAM = {}"),
    ],
)
def test_a_kernel_on_another_stream_fails_on_a_gpu(
    body: str, before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = kernel(tmp_path, "glu_backward", body, before)
    status = validate.main(["--ops", str(path), "--device", "cuda", "--fast", "--only", "glu_backward, streams"])
    lines = capsys.readouterr().out.splitlines()
    assert status == 1 and "arguments that come late" in failed(lines)[0], lines


@on_a_gpu
def test_true_kernels_pass_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of this folder, and the emulation's copy; in every layout, setting and stream."""
    for name in ("triton", str(written(tmp_path))):
        only = ("glu_backward", "quantize_tokens NVFP4", "gate_up_glu NVFP4", "aggregate NVFP4")
        kinds = [f"{operation}, {kind}" for operation in only for kind in cases_ops.WAYS]
        status = validate.main(["--ops", name, "--device", "cuda", "--fast", "--only", *kinds])
        lines = capsys.readouterr().out.splitlines()
        assert status == 0, failed(lines)


def test_a_kernel_that_leaves_the_device_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A result on another device than the arguments, here the meta device."""
    path = kernel(tmp_path, "glu_backward", "return f(*a).to('meta')")
    status, lines = run(capsys, path, "--only", "glu_backward, normal")
    assert status == 1 and "glu_backward returned a tensor on meta: its arguments are on cpu" in lines[1]
