"""`fourbit validate`: that it passes where bits are equal, and that it sees where they are not.

Contract: exit status 0 only if something was compared and nothing differs; 1 with the first differing element named;
2, and "not run", without the device. Oracle: operations broken on purpose on one of the two sides. On a CPU the
second side is the one with two threads, so a broken stand-in acts up when torch has two.
"""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import numerics as nm
from hw import record, validate
from hw.validate import Cut, Draw, Operation, Row, compare
from numerics import blocks, hadamard, matmul, ops, rounding, scales  # noqa: F401  (loaded, found by name below)

ROOT = Path(validate.__file__).resolve().parent.parent
FAST = ["--device", "cpu", "--fast"]


@pytest.fixture(autouse=True)
def two_threads() -> Any:
    """The second side has two threads, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2, "validate must give the number of threads back"
    torch.set_num_threads(before)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Reduce the table to one operation and one kind of data."""

    def reduce(name: str, data: str) -> None:
        (operation,) = (o for o in validate.operations() if o.name == name and data in o.data)
        monkeypatch.setattr(validate, "operations", lambda: [replace(operation, data=(data,))])

    return reduce


@pytest.fixture
def on_second_side(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Callable], None]:
    """Put `broken(true function, *arguments)` in the place of a function of numerics, on the second side."""

    def put(module: str, name: str, broken: Callable) -> None:
        owner = sys.modules[f"numerics.{module}"]  # `numerics.matmul` and others are functions by attribute
        true = getattr(owner, name)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return broken(true, *args, **kwargs) if torch.get_num_threads() == 2 else true(*args, **kwargs)

        monkeypatch.setattr(owner, name, stand_in)

    return put


def away(true: Callable, v: Tensor, width: int, mode: nm.Rounding, *rest: Any) -> Tensor:
    """Ties away from zero instead of to even."""
    return true(v, width, nm.Rounding.NEAREST_AWAY if mode is nm.Rounding.NEAREST_EVEN else mode, *rest)


def lost_outer(true: Callable, sums: Tensor, a: Tensor | None, b: Tensor | None) -> Tensor:
    return true(sums, None, b)


def by_scalar(true: Callable, amax: Tensor, outer_max: float) -> tuple[Tensor, Tensor]:
    """What a compiler makes of a division by a constant: a product with its reciprocal."""
    outer, s_enc = true(amax, outer_max)
    return torch.where(amax == 0, outer, amax * (1 / outer_max)), s_enc


def plain_float64(true: Callable, a: Tensor, b: Tensor, width: int | None) -> Tensor:
    return (a.to(torch.float64) @ b.to(torch.float64).mT).to(torch.float32)


def reversed_pairs(true: Callable, x: Tensor) -> Tensor:
    return true(x.flip(-1)).flip(-1)


def no_expert(true: Callable, self: nm.Random, expert: Any, line: Tensor, group: Tensor, bits: int) -> Tensor:
    return true(self, expert * 0, line, group, bits)


def lost_sign(true: Callable, total: Tensor, *rest: Any) -> Tensor:
    return true(total, *rest) + 0.0


# where, what, how, the case that must see it, the output it must name
BROKEN = [
    ("rounding", "_round_scaled", away, "encode E2M1", "ties", "NEAREST_EVEN["),
    ("rounding", "_round_scaled", away, "quantize NVFP4", "ties", "none.codes["),
    ("rounding", "_round_scaled", away, "quantize MXS2F6", "ties", "none.codes["),
    ("matmul", "_scaled", lost_outer, "exact product of blocks", "normal", "product["),
    ("matmul", "_scaled", lost_outer, "gate_up_glu NVFP4", "normal", "gate_up["),
    ("outer", "outer_scale", by_scalar, "quantize NVFP4", "tails", "row.outer["),
    ("matmul", "exact_product", plain_float64, "exact product", "cancelling", "product["),
    ("hadamard", "_butterfly", reversed_pairs, "hadamard", "normal", "16["),
    ("ops", "hadamard_inverse", lost_sign, "aggregate NVFP4", "zeros", "out["),
]


@pytest.mark.parametrize(("module", "name", "broken", "operation", "data", "output"), BROKEN)
def test_a_broken_operation_is_caught(
    module: str,
    name: str,
    broken: Callable,
    operation: str,
    data: str,
    output: str,
    only: Callable,
    on_second_side: Callable,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    only(operation, data)
    on_second_side(module, name, broken)
    assert validate.main([*FAST, "--out", str(tmp_path / "record.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"seed 0: {output}" in lines[1] and ", should be " in lines[1]
    assert lines[-1].startswith("FAILED: 1 thread of the CPU against 2 (")
    record = json.loads((tmp_path / "record.json").read_text())
    (case,) = record["cases"]
    assert record["status"] == "failed" and record["failed"] == 1
    assert 0 < case["differing"] == record["differing"] < case["elements"] == record["elements"]
    assert case["first"] in lines[1]


def test_the_first_difference_shows_index_both_values_and_input(
    only: Callable, on_second_side: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(true: Callable, x: Tensor, *rest: Any) -> Tensor:
        codes = true(x, *rest)
        codes[3, 17] = 9
        return codes

    only("encode E2M1", "zeros")
    on_second_side("codes", "encode_tensor", wrong)
    assert validate.main(FAST) == 1
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split("seed 0: ")[1] in [
        f"NEAREST_EVEN[3, 17] is 0x09, should be 0x0{code}, input {zero}" for code, zero in ((0, "0.0"), (8, "-0.0"))
    ]


def test_an_operation_that_looks_at_other_rows_is_caught(
    only: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal on both sides, but not in pieces: one outer scale for all tokens where each should have its own."""
    true = nm.quantize

    def shared(x: Tensor, fmt: nm.BlockFormat, axis: int = -1, outer: Any = None, **rest: Any) -> nm.BlockTensor:
        q = true(x, fmt, axis, "tensor" if isinstance(outer, str) and outer == "row" else outer, **rest)
        return replace(q, outer=q.outer.expand(len(x), 1)) if isinstance(outer, str) and outer == "row" else q

    only("quantize NVFP4", "normal")
    monkeypatch.setattr(nm, "quantize", shared)
    assert validate.main(FAST) == 1
    assert "seed 0, in pieces: row.codes[" in capsys.readouterr().out


def test_random_words_that_lose_the_expert_are_caught(
    only: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true = nm.Random.fields
    monkeypatch.setattr(nm.Random, "fields", lambda self, *rest: no_expert(true, self, *rest))
    only("requantize_transpose NVFP4", "normal")
    assert validate.main(FAST) == 1
    assert "seed 0, in pieces: input.codes[" in capsys.readouterr().out


def test_an_operation_that_the_device_lacks_fails_alone(
    only: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(i: dict[str, Any]) -> dict[str, Tensor]:
        raise NotImplementedError("no kernel\nfor this type")

    only("encode E2M1", "normal")
    (good,) = validate.operations()
    bad = replace(good, name="bad", run=lacking)
    monkeypatch.setattr(validate, "operations", lambda: [bad, good])
    assert validate.main(FAST) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("seed 0: NotImplementedError: no kernel for this type")
    assert lines[2].split()[:2] == ["encode", "E2M1"] and "seed" not in lines[2]
    assert lines[3].endswith("0 differ, 1 cases failed")


def test_a_kernel_takes_the_place_of_the_emulation_on_the_second_side(
    only: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only("philox", "integers")
    (operation,) = validate.operations()
    wrong = replace(operation, kernel=lambda i: operation.run(i) | {"words": i["counter"]})
    monkeypatch.setattr(validate, "operations", lambda: [wrong])
    monkeypatch.setattr(validate, "triton_absent", lambda device: None)
    assert validate.main(FAST) == 1
    assert "seed 0: words[0, 0] is 0x" in capsys.readouterr().out


def test_without_triton_its_kernels_are_not_run_and_do_not_pass(
    only: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Alone, nothing was compared: no pass. Beside another case, that one passes and this one is counted as not run."""
    (other,) = (o for o in validate.operations() if o.name == "philox")
    only("philox in Triton", "integers")
    kernels = validate.operations()
    monkeypatch.setattr(validate, "triton_absent", lambda device: "triton is not installed")
    assert validate.main(FAST) == 1
    assert "passed" not in capsys.readouterr().out
    monkeypatch.setattr(validate, "operations", lambda: [*kernels, other])
    assert validate.main([*FAST, "--out", str(tmp_path / "record.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("  not run: triton is not installed")
    assert lines[-1].startswith("passed: ") and ": 1 cases, " in lines[-1]
    assert lines[-1].endswith("none differs; 1 cases not run")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["not_run"] == 1 and record["cases"][0]["not_run"] and record["cases"][0]["elements"] == 0


@pytest.mark.parametrize("names", [[], ["empty"], ["empty", "full"]])
def test_comparing_nothing_is_not_passing(
    names: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"empty": lambda i: {"x": torch.empty(0)}, "full": lambda i: {"x": torch.ones(1)}}
    cases = [Operation(name, lambda d: {}, run[name], data=("normal",)) for name in names]
    monkeypatch.setattr(validate, "operations", lambda: cases)
    assert validate.main(FAST) == 1
    assert "passed" not in capsys.readouterr().out


def test_an_absent_device_is_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert validate.main(["--device", "cuda:1", "--out", str(tmp_path / "new" / "record.json")]) == 2
    text = capsys.readouterr().out
    assert text.startswith("not run: device='cuda:1': torch ") and "passed" not in text
    record = json.loads((tmp_path / "new" / "record.json").read_text())
    assert record["status"] == "not run" and record["reason"] in text and "cases" not in record
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["record.json"]


def test_the_default_device_is_never_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert validate.main([]) == 2
    assert capsys.readouterr().out.startswith("not run: device='cuda'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "15"], "rows=15 cannot be used; use 16 to 8192"),
        (["--rows", "8193"], "rows=8193 cannot be used"),
        (["--seeds"], r"seeds=\(\) cannot be used; name one or more integers from 0"),
        (["--seeds", "1", "-1"], r"seeds=\(1, -1\) cannot be used"),
        (["--device", "gpu"], "device='gpu' is not a device"),
        (["--out", "."], "out='.' is a folder; name a file"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate.main(["--device", "cpu", *arguments])


def test_a_record_that_cannot_be_written_is_told_first(
    only: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "record.json", tmp_path / ("x" * 255), "/proc/x", "/proc/new/x"):
        with pytest.raises(ValueError, match=rf"^out='{out}' cannot be written \(.+\); name a file in a folder that"):
            validate.main([*FAST, "--out", str(out)])
    with pytest.raises(ValueError, match=r"^out='/dev/null' is no file; name a file"):
        validate.main([*FAST, "--out", "/dev/null"])
    assert capsys.readouterr().out == "" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_looking_whether_a_record_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "record.json"
    record.require_writable(out)
    assert list(out.parent.iterdir()) == []
    out.write_text("old")
    record.require_writable(out)
    assert [(path.name, path.read_text()) for path in out.parent.iterdir()] == [("record.json", "old")]


NAN = float("nan")
PATTERNS = torch.tensor([0x7FC00000, -0x00400000, 0x7F800001], dtype=torch.int32).view(torch.float32)  # three NaNs


@pytest.mark.parametrize(
    ("expected", "found", "differing"),
    [
        (PATTERNS, PATTERNS.flip(0), 0),
        (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]), 1),
        (torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN]), 2),
        (torch.tensor([1e-45]), torch.tensor([0.0]), 1),
        (torch.tensor([0.0], dtype=torch.bfloat16), torch.tensor([-0.0], dtype=torch.bfloat16), 1),
        (torch.tensor([3, 4], dtype=torch.uint16), torch.tensor([3, 40000], dtype=torch.uint16), 1),
        (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32), 2),
        (torch.ones(2, 3), torch.ones(3, 2), 6),
    ],
)
def test_comparison_is_bitwise(expected: Tensor, found: Tensor, differing: int) -> None:
    row = Row("", "", "")
    compare(row, "here", {"x": expected}, {"x": found}, None)
    assert (row.elements, row.differing, row.failed) == (expected.numel(), differing, differing > 0)


def test_missing_and_additional_outputs_differ() -> None:
    for expected, found in (({"x": torch.ones(3)}, {}), ({}, {"x": torch.ones(3)})):
        row = Row("", "", "", elements=1)
        compare(row, "here", expected, found, None)
        assert row.differing == 3 and "x" in row.first


def test_every_operation_of_the_seam_is_validated() -> None:
    """But for the router's gradient, whose sum has the library's order, and what computes nothing."""
    seam = {name for name, f in inspect.getmembers(ops, inspect.isfunction) if f.__module__ == "numerics.ops"}
    assert seam - {operation.name.split()[0] for operation in validate.operations()} == {"router_gradient", "row_scale"}


def test_cases_have_names_of_their_own() -> None:
    names = [(o.name, data, dtype) for o in validate.operations() for data in o.data for dtype in o.dtypes]
    assert len(set(names)) == len(names)


def test_pieces_cover_everything_once() -> None:
    """Also an expert without rows; a piece holds one expert, and its random counter names it."""
    groups = Draw(np.random.default_rng(0), "normal", torch.float32, 40).groups
    assert 0 in np.diff(groups) and 1 in np.diff(groups)
    x, w = torch.arange(40.0)[:, None], torch.arange(5.0)
    inputs = {"x": x, "w": w, "groups": groups, "random": nm.Random((0, 0), (7, 100))}
    pieces = list(Cut(0, ("x",), ("w",)).pieces(inputs))
    assert torch.equal(torch.cat([p["x"] for p in pieces]), x)
    assert [p["w"].tolist() for p in pieces] == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert [p["groups"] for p in pieces] == [(0, n) for n in np.diff(groups).tolist()]
    assert [p["random"].counter for p in pieces] == [(7, 100 + e) for e in range(5)]
    assert torch.equal(torch.cat([p["x"] for p in Cut(0, ("x",)).pieces(inputs)]), x)


def test_inputs_depend_on_the_seed_alone() -> None:
    (operation,) = (o for o in validate.operations() if o.name == "exact product" and "normal" in o.data)
    first, again, other = (
        operation.make(Draw(np.random.default_rng(seed), "normal", torch.float32, 16))["a"] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_the_fast_run_passes_on_this_machine(tmp_path: Path) -> None:
    """The command itself."""
    out = str(tmp_path / "record.json")
    command = [sys.executable, "fourbit.py", "validate", *FAST, "--out", out]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    failures = [line for line in run.stdout.splitlines() if "seed" in line or "Error" in line]
    assert run.returncode == 0, "\n".join([*failures, run.stderr])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "passed" and record["differing"] == record["failed"] == 0
    assert len(record["cases"]) > 300 and all(
        (case["elements"] > 0) != bool(case["not_run"]) for case in record["cases"]
    )
    assert record["device"]["device"] == "cpu" and record["versions"]["torch"] == torch.__version__
