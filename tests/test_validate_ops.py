"""`fourbit validate --ops`: that it passes a true copy of the seam, and catches a broken copy of each operation.

Contract: exit status 0 only if something was compared and nothing differs, 1 if something differs; the line that fails
names the operation and the output, and the derivation of the first wrong element follows. Oracle: copies of
`numerics/ops.py` as text, true ones and ones with a single fault each (`seam_copies`).
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from seam_copies import CPU, FAULTS, ROOT, Fault, failed, returns, run, written
from seam_copies import two_threads as two_threads

import numerics as nm
from hw import bounds, cases_ops, seam, slow, slow_blocks, validate
from numerics import ops, rounding

SEAM = tuple(seam.seam())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.name} in {fault.operation}")
def test_a_broken_copy_of_an_operation_is_caught(
    fault: Fault, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And told rightly; the other operations of the copy pass."""
    others = [f"{name} NVFP4, normal" for name in SEAM if name != fault.operation]
    status, lines = run(capsys, fault.write(tmp_path), "--only", fault.case, *others)
    assert status == 1 and lines[-1].startswith("FAILED: ")
    shown = failed(lines)
    own = [row for row in shown if row.startswith(fault.case.split(",")[0])]
    assert own and fault.output in own[0]
    behind = lines[lines.index(own[0]) + 1 :]
    end = next(i for i, line in enumerate(behind) if not line.startswith("    "))
    derivation = behind[:end]
    assert fault.line in "\n".join(derivation)
    if fault.line:
        assert "expected" in derivation[-1] and "found" in derivation[-1]
    if fault.operation != "quantize_tokens":  # which others call
        assert shown == own


def test_every_operation_has_a_broken_copy_and_every_fault_is_made() -> None:
    assert {fault.operation for fault in FAULTS} == set(SEAM)
    assert {fault.name for fault in FAULTS} >= {
        "wrong tie",
        "swapped nibbles",
        "unswizzled scale",
        "stale padding",
        "reversed Hadamard sign",
        "off-by-one group",
        "E8M0 scale rounded but payload not",
        "lost outer scale",
        "double rounding through bf16",
    }


def test_a_true_copy_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the cases that catch the broken ones, products of the library among them."""
    only = [*sorted({fault.case for fault in FAULTS}), "library, normal", "weight, normal", "moved, normal"]
    status, lines = run(capsys, written(tmp_path), "--only", *only)
    assert (status, failed(lines)) == (0, [])
    assert lines[-1].startswith("passed: ") and "cases not run" not in lines[-1]
    assert {line.split()[0] for line in lines[1:-1]} == set(SEAM)
    assert not any("oracle" in line for line in lines)


def test_every_operation_has_cases_in_every_format() -> None:
    names = {case.name for case in cases_ops.seam_cases(ops, ops)}
    assert {name.split()[0] for name in names} == set(SEAM)
    for operation in set(SEAM) - {"glu_backward"}:
        assert {f"{operation} {path}" for path in ("NVFP4", "MXFP8", "BF16")} <= names
    assert len(names) == len(cases_ops.seam_cases(ops, ops))


def test_shapes_are_ragged_and_empty_and_single() -> None:
    sizes = {s.name: torch.tensor(s.groups(96 if s.rows is None else s.rows)).diff().tolist() for s in cases_ops.SHAPES}
    assert all(
        sum(counts) == (96, 1, 0)[("one" in n and "token" in n) + 2 * (n == "no token")] for n, counts in sizes.items()
    )
    assert sizes["one token"] == [0, 0, 1, 0, 0] and sizes["one expert"] == [0, 96, 0, 0, 0]
    assert any(n % 16 for n in sizes["ragged"]) and 0 not in sizes["ragged"] and sizes["empty experts"][0] == 0
    assert any(s.model % 16 and s.hidden % 16 for s in cases_ops.SHAPES)


def test_outliers_and_ties_are_what_they_say() -> None:
    x = torch.from_numpy(cases_ops.KINDS["outliers"](np.random.default_rng(0), (64, 128)))
    assert 30 < float(x.abs().max() / x.abs().median()) and float(x.abs().amax(0).median()) < 5
    ties = torch.from_numpy(cases_ops.KINDS["ties"](np.random.default_rng(0), (64, 128)).astype(np.float32))
    q = nm.quantize(ties, nm.NVFP4_46, outer="row")
    scaled = (ties / q.dequantize().where(q.codes % 8 != 0, 1)).where(q.codes % 8 != 0, 0)
    assert bool((q.outer == 1).any()) and bool((scaled == 1.25).any())  # 2.5 rounded to 2


@pytest.mark.parametrize(
    "only",
    [
        ["NVFP4, normal", "NVFP4 library, normal", "glu_backward, normal", "NVFP4, sizes"],
        pytest.param([], marks=pytest.mark.exhaustive),
    ],
    ids=["some", "all"],
)
def test_the_emulation_passes_on_this_machine(only: list[str], tmp_path: Path) -> None:
    """The command itself, against itself on other threads and in pieces, and against the scalar oracle."""
    out, page = tmp_path / "record.json", tmp_path / "page.html"
    command = [
        sys.executable,
        "fourbit.py",
        "validate",
        "--ops",
        "emulated",
        *CPU,
        "--rows",
        "24",
        "--out",
        str(out),
        "--html",
        str(page),
        *(["--only", *only] if only else []),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    record = json.loads(out.read_text())
    assert (record["status"], record["differing"], record["failed"], record["not_run"]) == ("passed", 0, 0, 0)
    assert record["config"]["ops"] == "emulated" and record["device"]["device"] == "cpu"
    against = {case["against"] for case in record["cases"]}
    assert against == {"numerics.ops", "n u bound", "scalar oracle"}
    twins = {case["function"] for case in record["cases"] if case["against"] == "scalar oracle"}
    assert twins == set(slow.TWINS) == set(SEAM) - {"router_gradient", "row_scale"}
    assert all(case["elements"] > 0 and case["repeat"] is None for case in record["cases"])
    assert len(record["cases"]) > (20 if only else 400)
    assert "FAILED" not in page.read_text("utf-8") and sorted(p.name for p in tmp_path.iterdir()) == [
        "page.html",
        "record.json",
    ]


def test_the_oracle_sees_what_both_sides_have_in_common(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong tie in the emulation itself: both sides agree, and only the second opinion differs."""
    true = rounding._round_scaled

    def away(v: torch.Tensor, width: int, mode: nm.Rounding, *rest: object) -> torch.Tensor:
        return true(v, width, nm.Rounding.NEAREST_AWAY if mode is nm.Rounding.NEAREST_EVEN else mode, *rest)

    monkeypatch.setattr(rounding, "_round_scaled", away)
    status, lines = run(capsys, "emulated", "--only", "quantize_tokens NVFP4, ties")
    assert status == 1 and len(failed(lines)) == 1 and " scalar oracle " in failed(lines)[0]


def test_silu_of_the_oracle_is_correctly_rounded() -> None:
    x = torch.cat([torch.randn(200), torch.tensor([0.0, -0.0, -1e-20, 88.0, -88.5, 300.0, -300.0])]).bfloat16()
    wide = x.double()
    found = torch.tensor([slow_blocks.silu(v) for v in wide.tolist()], dtype=torch.float64)
    assert torch.equal(found, (wide * torch.sigmoid(wide)).bfloat16().double())  # none of these lies at a tie
    assert slow_blocks.silu(2.0**-133) == 2.0**-133 and slow_blocks.silu(-(2.0**-133)) == 0  # beside a tie
    step = 1e-6
    slope = (wide[:200] * torch.sigmoid(wide[:200]) for wide in (wide + step, wide - step))
    high, low = slope
    found = torch.tensor([slow_blocks.silu_slope(v) for v in wide[:200].tolist()], dtype=torch.float64)
    # rounded to FP32, below 2: 2^-24; the central difference errs by step^2 and by cancellation, 1e-16 / step
    torch.testing.assert_close(found, (high - low) / (2 * step), rtol=0, atol=2.0**-24 + 1e-9)


# Sums without a defined order.


def test_another_order_of_a_sum_passes_and_a_wrong_sum_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reverse = "(g * decoded.index_select(0, rows)).flip(-1).cumsum(-1)[:, -1]"
    wrong = "(g * decoded.index_select(0, rows))[:, 1:].sum(-1)"
    for new, expected in ((reverse, 0), (wrong, 1)):
        path = written(tmp_path, "(g * decoded.index_select(0, rows)).sum(-1)", new)
        status, lines = run(capsys, path, "--only", "router_gradient NVFP4")
        assert status == expected, lines
        assert all(" n u bound " in line for line in lines[1:-1] if not line.startswith("    "))


@pytest.mark.parametrize(
    ("operation", "old", "new"),
    [
        ("gate_up_glu", "gate_up = matmul(x, w13, accumulator, groups=groups)", ".mul(1 + 2.0**-12)"),
        ("down_to_wire", "y = matmul(h, w2, accumulator, groups=groups)", ".mul(1 + 2.0**-8)"),
        ("grad_products", "dx = matmul(g, w.mT, accumulator, groups=groups)", ".mul(1 + 2.0**-12)"),
    ],
)
def test_a_library_product_outside_of_its_bound_is_caught(
    operation: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its exact product alone is not: the fault is under accumulator="library" only."""
    path = written(tmp_path, old, old + new.replace(".mul(", '.mul(1 if accumulator == "exact" else '))
    status, lines = run(capsys, path, "--only", f"{operation} NVFP4, normal", f"{operation} NVFP4 library, normal")
    assert status == 1
    (row,) = failed(lines)
    assert row.startswith(f"{operation} NVFP4 library ") and "outside of [" in row


def test_the_bound_of_a_sum_holds_the_exact_sum_and_no_more_than_n_roundings() -> None:
    a, b = torch.tensor([[1.0, 2.0**-24, 2.0**-24]]), torch.ones(1, 3)
    interval = bounds.sums(a, b)
    exact, width = 1 + 2.0**-23, 3 * 2.0**-23 / (1 - 3 * 2.0**-23) * (1 + 2.0**-23)
    assert float(interval.low) <= exact - width and exact + width <= float(interval.high)
    assert float(interval.high - interval.low) < 2 * width * (1 + 2.0**-20)
    huge = bounds.sums(torch.full((1, 4), 1e38), torch.tensor([[2.0, -2.0, 1.0, 1.0]]))
    assert not bool(huge.judged)  # one order overflows, another does not
    for value in (torch.nan, torch.inf, -torch.inf):
        found = bounds.sums(torch.tensor([[value, 1.0]]), torch.ones(1, 2))
        assert bool(found.holds(torch.tensor([[value]]))) and not bool(found.holds(torch.tensor([[1.0]])))


# Strange implementations.


def test_an_operation_that_raises_fails_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, more="\ndef glu_backward(dh, gate_up):\n    raise RuntimeError('no kernel\\nfor this')\n")
    status, lines = run(capsys, path, "--only", "glu_backward, normal", "row_scale NVFP4, normal")
    assert status == 1
    assert lines[1].startswith("row_scale ") and lines[1] not in failed(lines)
    assert lines[2].endswith("  ragged, seed 0: RuntimeError: no kernel for this") and failed(lines) == [lines[2]]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("return dh", "d_gate_up has torch.float32"),
        ("return [dh]", "glu_backward returned an object of type list instead of a tensor"),
        ("return None", "glu_backward returned None instead of a tensor"),
        ("return true(dh, gate_up) * 0", "; all 5120 of d_gate_up are zero"),
        ("return true(dh, gate_up)[:, 1:]", "d_gate_up has torch.bfloat16 (40, 127) instead of"),
        ("out = true(dh, gate_up); dh.zero_(); return out", "glu_backward changes its argument dh"),
        ("return true(dh, gate_up).float().mul(1.01).bfloat16()", "should be"),
        ("return true(dh, gate_up) * (2 if len(dh) in (13, 23) else 1)", "ragged, seed 0, in pieces: d_gate_up["),
    ],
)
def test_strange_results_fail(code: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(
        tmp_path, more=f"\nfrom numerics.ops import glu_backward as true\ndef glu_backward(dh, gate_up):\n    {code}\n"
    )
    status, lines = run(capsys, path, "--only", "glu_backward, normal")
    assert status == 1 and said in failed(lines)[0]


def test_a_block_tensor_of_another_kind_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the right bytes, but blocks in other groups: it would decode otherwise."""
    path = written(
        tmp_path, more=returns("requantize_transpose", "r.derived(groups=None) if isinstance(r, BlockTensor) else r")
    )
    status, lines = run(capsys, path, "--only", "requantize_transpose NVFP4, normal")
    assert (
        status == 1
        and "requantize_transpose returned MXFP8 with blocks along axis 0 in groups (0, 40) instead of" in lines[1]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ops", "emulated", "--compiled"], "ops='emulated' with --compiled: they are different comparisons"),
        (["--ops", "emulated", "--conversions"], "ops='emulated' with --conversions"),
        (["--only", "x"], "only, activations and html belong to --ops"),
        (["--html", "x.html"], "only, activations and html belong to --ops"),
        (["--ops", "emulated", "--html", "."], "html='.' is a folder; name a file"),
        (["--ops", "emulated", "--only", "nothing"], r"only=\('nothing',\): no case has such a name; the first one is"),
        (["--ops", "emulated", "--rows", "3"], "rows=3 cannot be used"),
        (
            ["--ops", "emulated", "--activations", "no.safetensors"],
            "no.safetensors': there is no such file; name a saf",
        ),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate.main(["--device", "cpu", *arguments])
