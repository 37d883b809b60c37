"""`fourbit validate --products`: the cases, the comparison, and what an H200 said.

Contract: a machine that computes as its row passes; one that differs in a parameter is found by many kinds of data, one
wrong bit is shown with its operands; what was not run does not pass. tests/records/h200_products.json keeps the run on
an H200, h200_products.npz a few thousand of its dot products, which the emulator reproduces here. Oracles: machines
with another row, or broken on purpose; the hardware's results. Bitwise.
"""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import numerics as nm
from hw import product_cases, products, validate
from hw.product_cases import STARTS, Case, cases, exponents, kinds, lengths
from hw.products import Comparison, Row, conclude, is_kept, model_of
from numerics.accumulators import ACCUMULATORS, E8M13, FP32, Accumulator

RECORDS = Path(validate.__file__).resolve().parent.parent / "tests" / "records"
CPU = torch.device("cpu")
HOPPER = {nm.E4M3: "hopper_fp8", nm.E5M2: "hopper_fp8", nm.BF16: "hopper_bf16", nm.FP16: "hopper_fp16"} | {
    nm.TF32: "hopper_tf32"
}
PTX = {nm.E4M3: "e4m3", nm.E5M2: "e5m2", nm.BF16: "bf16", nm.FP16: "f16", nm.TF32: "tf32"}


@pytest.fixture(autouse=True)
def _threads(one_thread: None) -> None:
    """Small operations."""


def machine_of(change: Callable[[Accumulator], Accumulator] = lambda row: row) -> products.Machine:
    """A device whose wgmma computes by Hopper's rows, changed."""

    def machine(a: Tensor, b: Tensor, c: Tensor | None, fmt: nm.Format) -> tuple[Tensor, str]:
        ACCUMULATORS["changed"] = replace(change(ACCUMULATORS[HOPPER[fmt]]), name="changed")
        try:
            d = nm.matmul(nm.decode(a, fmt), nm.decode(b, fmt), accumulator="changed", c=c)
        finally:
            del ACCUMULATORS["changed"]
        return d, f"wgmma m64n64k32 f32.{PTX[fmt]}.{PTX[fmt]}"

    return machine


# ---- cases -----------------------------------------------------------------------------------------------------------


def test_a_million_dot_products_of_each_format() -> None:
    """With the command's defaults, and every K with every kind of data and of c."""
    for fmt in products.FORMATS:
        dots = sum(len(STARTS) * case.rows**2 for data in kinds(fmt) for case in cases(fmt, data, products.ROWS, (0,)))
        assert dots > 20_000_000 and len(STARTS) == 6 and len(kinds(fmt)) == 10 + 2 * (fmt.exponent_bits == 8)
        assert max(lengths(fmt)) == 4096 and 96 in lengths(fmt) and lengths(fmt)[0] == (32 if fmt.bits == 8 else 16)


@pytest.mark.parametrize("fmt", products.FORMATS, ids=lambda fmt: fmt.name)
def test_kinds_of_data_hold_what_they_are_named_after(fmt: nm.Format) -> None:
    drawn = {data: Case(fmt, data, 128, 24, 0).operands(CPU) for data in kinds(fmt)}
    value = {data: tuple(nm.decode(t, fmt).double() for t in pair) for data, pair in drawn.items()}
    terms = {data: a[:, None] * b for data, (a, b) in value.items()}
    finite = {data: bool(torch.isfinite(t).all()) for data, t in terms.items()}
    assert finite == {data: data != "specials" for data in drawn}
    for data in ("within", "across"):  # what is left is a small part of what was added
        assert (terms[data].sum(-1).abs() < 0.1 * terms[data].abs().sum(-1)).all()
    pairs = terms["within"].unflatten(-1, (64, 2))
    assert (pairs.sum(-1).abs() <= 0.6 * pairs.abs().amax(-1)).all() and (pairs.sum(-1) == 0).float().mean() > 0.8
    assert (value["subnormal"][0].abs() < 4 * fmt.min_normal).all()
    assert (value["subnormal"][0].abs() < fmt.min_normal).float().mean() > 0.2
    for data in ("truncation", "ties"):
        kept = 13 if fmt.bits == 8 else 25
        e = terms[data].abs().amax(-1, keepdim=True).log2() - terms[data].abs().clamp(min=2.0**-140).log2()
        assert (((e > kept - 4) & (e < kept + 5)).float().mean() > 0.5).all(), "most lie at the last bit that is kept"
    zero = value["zeros"][0]
    assert (zero == 0).float().mean() > 0.8 and (zero[::8] == 0).all()
    assert torch.signbit(zero[zero == 0]).float().mean().item() == pytest.approx(0.5, abs=0.05)
    special = value["specials"]
    assert all(torch.isnan(t).any() and (~torch.isfinite(t)).sum(1).max() == 1 for t in special)
    assert any(torch.isinf(t).any() for t in special) == (fmt is not nm.E4M3)
    if fmt.exponent_bits == 8:
        assert (terms["overflow"].abs().amax(-1) > 2.0**127).float().mean() > 0.2
        assert (terms["tiny"].abs().amax((-1, -2)) < 2.0**-126).all()


def test_kinds_of_c() -> None:
    case = Case(nm.E4M3, "ordinary", 64, 32, 0)
    a, b = case.operands(CPU)
    alone = nm.matmul(nm.decode(a, nm.E4M3), nm.decode(b, nm.E4M3), accumulator="hopper_fp8")
    c = case.starts(a, b, alone)
    assert list(c) == list(STARTS[1:]) and all(t.shape == (32, 32) and t.dtype == torch.float32 for t in c.values())
    assert (c["zero"] == 0).all() and 0.3 < torch.signbit(c["zero"]).float().mean() < 0.7
    largest = exponents(a, nm.E4M3).amax(1)[:, None] + exponents(b, nm.E4M3).amax(1)
    for kind, low, high in (("near", -6, 4), ("far", -35, 35)):
        offset = torch.frexp(c[kind])[1] - 1 - largest
        assert (int(offset.min()), int(offset.max())) == (low, high)
    assert (c["opposed"] == -alone).float().mean() > 0.2 and ((c["opposed"] + alone).abs() <= alone.abs() / 64).all()
    bits = c["wild"].view(torch.int32)
    assert torch.isinf(c["wild"]).any() and (bits & 0x7FFFFFFF == 0x7F7FFFFF).any()
    assert torch.isnan(c["wild"]).sum() > 8 and ((bits & 0x7F800000) == 0).any()


def test_a_seed_means_the_same_operands_everywhere() -> None:
    """Sums of the codes pin the generator: kept results belong to these operands."""
    found = []
    for fmt in products.FORMATS:
        for data in kinds(fmt):
            a, b = Case(fmt, data, 96, 8, 1).operands(CPU)
            found.append(int(a.long().sum()) * 31 + int(b.long().sum()))
    assert sum(value * (index + 1) for index, value in enumerate(found)) == PINNED
    a, b = Case(nm.BF16, "wide", 32, 64, 0).operands(CPU)
    small, _ = Case(nm.BF16, "wide", 32, 16, 0).operands(CPU)
    other, _ = Case(nm.BF16, "wide", 32, 64, 1).operands(CPU)
    assert torch.equal(a[:16], small) and not torch.equal(a, other) and not torch.equal(a, b)


PINNED = 3900864488983


# ---- comparing -------------------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("fmt", products.FORMATS, ids=lambda fmt: fmt.name)
def test_the_model_passes_against_itself(fmt: nm.Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_cases, "lengths", lambda fmt: (32, 96))
    rows = list(Comparison(CPU, machine_of(), (9, 0)).run(fmt, 8, (0, 1)))
    assert [(row.data, row.c) for row in rows] == [(data, start) for data in kinds(fmt) for start in STARTS]
    assert not any(row.failed for row in rows) and {row.dots for row in rows} == {2 * 2 * 64}
    assert {row.model for row in rows} == {HOPPER[fmt]} and all(row.nans > 0 for row in rows if row.c == "wild")
    line, result = conclude(rows, {"device": "cuda:0", "name": "H200"})
    assert line.startswith("passed: ") and result["by_format"] == {fmt.name: len(rows) * 256}


CHANGES = {  # a machine with another parameter, and the least share of the lines that must tell
    "length": (lambda row: replace(row, length=row.length // 2), 0.5),
    "fraction bits - 1": (lambda row: replace(row, fraction_bits=row.fraction_bits - 1), 0.5),
    "fraction bits + 1": (lambda row: replace(row, fraction_bits=row.fraction_bits + 1), 0.5),
    "output": (lambda row: replace(row, output=FP32 if row.output is E8M13 else E8M13), 0.5),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("fmt", products.FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("change", CHANGES)
def test_another_parameter_is_found(fmt: nm.Format, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_cases, "lengths", lambda fmt: (96,))
    function, share = CHANGES[change]
    rows = list(Comparison(CPU, machine_of(function), (9, 0)).run(fmt, 12, (0,)))
    assert sum(row.differing > 0 for row in rows) >= share * len(rows)
    assert all(row.failed == (row.differing > 0) for row in rows)


def test_the_exponent_of_zeros_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In BF16 and TF32, by products that are tiny; FP8 and FP16 cannot reach it."""
    monkeypatch.setattr(product_cases, "lengths", lambda fmt: (96,))
    for fmt in (nm.BF16, nm.TF32):
        changed = machine_of(lambda row: replace(row, zero_exponent=-126))
        rows = list(Comparison(CPU, changed, (9, 0)).run(fmt, 24, (0,)))
        assert {row.data for row in rows if row.differing} >= {"tiny"}


def test_one_wrong_bit_is_shown_with_its_operands() -> None:
    good = machine_of()

    def wrong(a: Tensor, b: Tensor, c: Tensor | None, fmt: nm.Format) -> tuple[Tensor, str]:
        d, words = good(a, b, c, fmt)
        if c is not None and a.shape[1] == 64:
            d[3, 5] = (d[3, 5].view(torch.int32) ^ 1024).view(torch.float32)
        return d, words

    case, rows = Case(nm.E4M3, "ordinary", 64, 8, 0), {start: Row("E4M3", "ordinary", start) for start in STARTS}
    comparison = Comparison(CPU, wrong, (9, 0))
    comparison.compare(rows, case)
    assert {start: row.differing for start, row in rows.items()} == {start: int(start != "none") for start in STARTS}
    row = rows["near"]
    a, b = case.operands(CPU)
    assert row.failed and row.by_k == {64: 1} and row.first is not None and row.operands is not None
    assert (
        row.first.startswith("K=64, seed 0, [3, 5]: c 0x") and "gives 0x" in row.first and "should be 0x" in row.first
    )
    assert row.operands["a"].split()[0] == f"{int(a[3, 0]):02x}" and len(row.operands["b"].split()) == 64
    assert int(row.operands["b"].split()[63], 16) == int(b[5, 63]) and "0x" in row.operands["c"]
    assert row.first in str(row) and conclude([row], {"device": "x", "name": "y"})[0].startswith("FAILED")


def test_nans_with_other_bits_are_counted_and_equal() -> None:
    good = machine_of()

    def other(a: Tensor, b: Tensor, c: Tensor | None, fmt: nm.Format) -> tuple[Tensor, str]:
        d, words = good(a, b, c, fmt)
        return torch.where(torch.isnan(d), torch.nan, d), words

    rows = {start: Row("BF16", "specials", start) for start in STARTS}
    Comparison(CPU, other, (9, 0)).compare(rows, Case(nm.BF16, "specials", 32, 16, 0))
    assert all(row.nans == row.other_nans > 0 and not row.failed for row in rows.values())


def test_a_device_that_refuses_or_errs_does_not_pass() -> None:
    class Refused(Exception):
        pass

    def refuses(a: Tensor, b: Tensor, c: Tensor | None, fmt: nm.Format) -> tuple[Tensor, str]:
        raise Refused("type fp8e4nv not supported")

    rows = list(Comparison(CPU, refuses, (9, 0), (Refused,)).run(nm.E4M3, 8, (0,)))
    assert all(row.failed and row.first == "Refused: type fp8e4nv not supported" for row in rows)
    no_matrix = machine_of()
    comparison = Comparison(CPU, lambda *x: (no_matrix(*x)[0], "none"), (9, 0))
    rows = list(comparison.run(nm.E4M3, 8, (0,)))
    assert all(row.not_run == "none on compute capability (9, 0): no row of ACCUMULATORS" for row in rows)
    assert conclude(rows, {"device": "x", "name": "y"})[0].startswith("FAILED") and Row("E4M3", "zeros", "none").failed


@pytest.mark.parametrize(
    ("capability", "instruction", "fmt", "model"),
    [
        ((9, 0), "wgmma m64n64k32 f32.e4m3.e4m3", nm.E4M3, "hopper_fp8"),
        ((9, 0), "wgmma m64n64k32 f32.e5m2.e5m2", nm.E5M2, "hopper_fp8"),
        ((9, 0), "wgmma m64n64k16 f32.bf16.bf16", nm.BF16, "hopper_bf16"),
        ((9, 0), "wgmma m64n64k8 f32.tf32.tf32", nm.TF32, "hopper_tf32"),
        ((9, 0), "mma.sync m16n8k32 f32.e4m3.e4m3.f32", nm.E4M3, "mma_sync_fp8_as_fp16"),
        ((8, 0), "mma.sync m16n8k16 f32.f16.f16.f32", nm.FP16, "ampere_fp16"),
        ((8, 9), "mma.sync m16n8k32 f32.e4m3.e4m3.f32", nm.E4M3, "ada_fp8"),
        ((8, 9), "mma.sync m16n8k16 f32.bf16.bf16.f32", nm.BF16, "ampere_bf16"),
        ((7, 5), "mma.sync m16n8k8 f32.f16.f16.f32", nm.FP16, "ampere_fp16"),
        ((7, 0), "mma.sync m8n8k4 f32.f16.f16.f32", nm.FP16, "volta_fp16"),
        ((10, 0), "tcgen05.mma cta_group::1 kind::f8f6f4", nm.E4M3, "blackwell_fp8"),
        ((10, 0), "tcgen05.mma cta_group::1 kind::tf32", nm.TF32, "blackwell_tf32"),
        ((10, 0), "tcgen05.mma cta_group::1 kind::f16", nm.BF16, "blackwell_bf16"),
        ((12, 0), "mma.sync m16n8k32 f32.e4m3.e4m3.f32", nm.E4M3, "blackwell_fp8"),
        ((9, 0), "wgmma m64n64k32 f32.e4m3.e4m3, add.f32", nm.E4M3, None),
        ((9, 0), "none", nm.E4M3, None),
        ((13, 0), "wgmma m64n64k16 f32.bf16.bf16", nm.BF16, None),
    ],
)
def test_the_row_of_an_instruction(
    capability: tuple[int, int], instruction: str, fmt: nm.Format, model: str | None
) -> None:
    assert model_of(capability, instruction, fmt) == model


# ---- the command -----------------------------------------------------------------------------------------------------


def test_a_cpu_has_no_tensor_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "record.json"
    assert validate.main(["--device", "cpu", "--products", "--out", str(out)]) == 2
    assert capsys.readouterr().out.startswith("not run: device='cpu': a CPU has no tensor cores; name a CUDA device")
    assert json.loads(out.read_text())["status"] == "not run"


def test_the_command_writes_what_the_tests_below_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "FORMATS", (nm.E4M3, nm.BF16))
    monkeypatch.setattr(products, "kinds", lambda fmt: ["wide", "specials"])
    monkeypatch.setattr(product_cases, "lengths", lambda fmt: (32, 96, 512))
    out, npz = tmp_path / "a" / "record.json", tmp_path / "b.npz"
    config = validate.ValidateConfig("cpu", 16, (0,), fast=True, products=True, out=out, vectors=npz)
    config.check()
    assert validate.judge_products(config, Comparison(CPU, machine_of(), (9, 0))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == products.HEAD and len(lines) == 2 + 6 * 2 * 2 and lines[-1].startswith("passed: ")
    record = json.loads(out.read_text())
    assert record["config"]["products"] and "vectors" not in record["config"] and record["config"]["fast"]
    assert (record["status"], record["differing"], record["failed"], record["not_run"]) == ("passed", 0, 0, 0)
    assert record["by_format"] == {"E4M3": 2 * 2 * 6 * 256, "BF16": 2 * 2 * 6 * 256}
    with np.load(npz) as archive:
        assert json.loads(str(archive["about"]))["device"]["device"] == "cpu" and judged(archive)[1] == []
    worse = machine_of(lambda row: replace(row, fraction_bits=row.fraction_bits - 1))
    assert validate.judge_products(replace(config, vectors=None), Comparison(CPU, worse, (9, 0))) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--products", "--conversions"], "--conversions with --products: they are different comparisons"),
        (["--products", "--ops", "emulated"], "ops='emulated' with --products"),
        (["--vectors", "x.npz"], "vectors belong to --products"),
        (["--products", "--vectors", "x.npz", "--seeds", "3"], "vectors belong to --products and come from seed 0"),
    ],
)
def test_what_does_not_go_together(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate.main(["--device", "cpu", *arguments])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not compared: torch finds no CUDA device")
def test_gpu_products_have_the_models_bits() -> None:
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    assert validate.main(["--device", "cuda", "--products", "--fast"]) == 0


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_vectors_hold_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written, read and computed again, under a machine that is the model; a few thousand dot products in all."""
    everything = [
        (fmt, data, case, start)
        for fmt in products.FORMATS
        for data in kinds(fmt)
        for case in cases(fmt, data, 256, (0, 1))
        for start in STARTS
    ]
    kept = [entry for entry in everything if is_kept(entry[2], entry[3])]
    assert {(fmt, data, start) for fmt, data, _, start in kept} == {
        (fmt, data, start) for fmt, data, _, start in everything
    }
    assert {case.k for _, _, case, _ in kept} >= {512, 4096} and {case.seed for _, _, case, _ in kept} == {0}
    assert 5_000 < sum(32 if case.k < 512 else 4 for _, _, case, _ in kept) < 15_000
    some = {case for _, _, case, _ in kept}
    monkeypatch.setattr(products, "cases", lambda *given: [c for c in cases(*given) if replace(c, rows=256) in some])
    comparison = Comparison(CPU, machine_of(), (9, 0))
    assert not any(row.failed for row in comparison.run(nm.E5M2, 8, (0,)))
    text = products.vectors(comparison.kept, {"device": "x"})
    dots = sum(32 if case.k < 512 else 4 for fmt, _, case, _ in kept if fmt is nm.E5M2)
    assert len(text) < 250_000 and judged(np.load(io.BytesIO(text))) == (dots, [])
    name = next(name for name in comparison.kept if name.endswith("/near/d"))
    comparison.kept[name] = comparison.kept[name] ^ 1
    assert judged(np.load(io.BytesIO(products.vectors(comparison.kept, {}))))[1] == [name.removesuffix("/d")]


def judged(archive: np.lib.npyio.NpzFile) -> tuple[int, list[str]]:
    """How many dot products a file of vectors holds, and which products the emulator computes otherwise."""
    names = sorted(name.rsplit("/", 1)[0] for name in archive.files if name.endswith("/d"))
    count, wrong = 0, []
    for name in names:
        fmt = getattr(nm, name.split("/")[0])
        a, b = (
            nm.decode(torch.from_numpy(archive[f"{name}/{x}"].astype(np.int32)).to(fmt.code_dtype), fmt) for x in "ab"
        )
        d = torch.from_numpy(archive[f"{name}/d"].view(np.int32))
        c = (
            torch.from_numpy(archive[f"{name}/c"].view(np.int32)).view(torch.float32)
            if f"{name}/c" in archive
            else None
        )
        found = nm.matmul(a, b, accumulator=HOPPER[fmt], c=c).view(torch.int32)
        count += d.numel()
        wrong += [name] * (not torch.equal(found, d))
    return count, wrong


@pytest.fixture
def record() -> dict:
    path = RECORDS / "h200_products.json"
    if not path.exists():
        pytest.skip("not read: no run on an H200 is kept yet; fourbit validate --products --out --vectors makes it")
    return json.loads(path.read_text("utf-8"))


def test_the_record_of_an_h200(record: dict) -> None:
    """More than 10^6 dot products of each format by wgmma, every kind of data and c, none differs."""
    assert record["status"] == "passed" and record["differing"] == record["failed"] == record["not_run"] == 0
    assert record["config"]["products"] and not record["config"]["fast"]
    assert "H200" in record["device"]["name"] and record["device"]["capability"] == "9.0"
    assert len(record["versions"]["sources of numerics, sha256"]) == 64 and record["versions"]["triton"]
    assert set(record["by_format"]) == {fmt.name for fmt in products.FORMATS}
    assert min(record["by_format"].values()) > 10**6 and record["dots"] == sum(record["by_format"].values())
    assert [(case["format"], case["data"], case["c"]) for case in record["cases"]] == [
        (fmt.name, data, start) for fmt in products.FORMATS for data in kinds(fmt) for start in STARTS
    ]
    for case in record["cases"]:
        assert case["instruction"].startswith("wgmma ") and case["model"] == HOPPER[getattr(nm, case["format"])]
        assert case["differing"] == case["on_cpu"] == 0 and case["first"] is None


def test_the_emulator_reproduces_an_h200s_products() -> None:
    """NaNs by their bits, too."""
    path = RECORDS / "h200_products.npz"
    if not path.exists():
        pytest.skip("not read: no products of an H200 are kept yet; fourbit validate --products --vectors makes them")
    assert path.stat().st_size < 1_500_000
    with np.load(path) as archive:
        count, wrong = judged(archive)
        assert "H200" in json.loads(str(archive["about"]))["device"]["name"]
    assert count > 5_000 and wrong == []
