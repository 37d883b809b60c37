"""`fourbit probe`: parameters of sums, found by constructed inputs.

Contract: of a machine that adds in steps the length, the last bit that alignment keeps, both roundings, where c enters
and how blocks of a long contraction are added come out as they are, whatever the table says; a row of ACCUMULATORS is
named if all of it agrees, and only then. Oracles: `nm.matmul` under every row, and under rows with one parameter
changed; a second machine, written here, with parameters that no row has.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import numerics as nm
from hw import probe, probe_routes
from hw.probe_order import Dots, Machine, Numbers, find_order, sizes
from hw.probe_sums import MORE, NEAREST, TOWARD_ZERO, Found, find, result
from numerics.accumulators import ACCUMULATORS, E8M13, FP32, Accumulator

ROWS = {name: row for name, row in ACCUMULATORS.items() if name != "library"}


@pytest.fixture(autouse=True)
def _threads(one_thread: None) -> None:
    """Small operations."""


def simulated(row: Accumulator, promote: int | None = None, splits: int = 1) -> Dots:
    """Dot products by `nm.matmul` under a row that need not be in the table."""

    def dots(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        ACCUMULATORS["simulated"] = replace(row, name="simulated")
        try:
            c = None if c is None else c[:, None, None]
            x, y = (operand(t[:, None], row) for t in (a, b))
            return nm.matmul(x, y, accumulator="simulated", c=c, promote=promote, splits=splits)[:, 0, 0]
        finally:
            del ACCUMULATORS["simulated"]

    return dots


def operand(x: Tensor, row: Accumulator) -> Tensor | nm.BlockTensor:
    """Numbers as the row takes them: FP8 blocks under scales of 1; FP4 blocks that hold one number each, whose power of
    two is the scale as far as that reaches."""
    fmt = row.operands[0] if row.operands else nm.BF16
    if isinstance(fmt, nm.Format):
        return x
    blocks = x.unflatten(-1, (-1, fmt.block))
    fraction, exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True))
    least, most = (-9, 8) if fmt.scale is nm.E4M3 else (-127, 127)
    # an empty block has the least scale: its exponent takes part in the alignment of FP4, whatever the block holds
    exponent = torch.where(torch.isfinite(fraction) & (fraction != 0), exponent - 1, least).clamp(least, most)
    exponent = exponent * (fmt.element.bits == 4)
    scales = torch.ldexp(torch.ones_like(fraction), exponent)
    codes = nm.encode((blocks / scales).flatten(-2), fmt.element)
    return nm.BlockTensor(codes, nm.encode(scales[..., 0], fmt.scale), None, fmt, fmt.rule.name, x.ndim - 1)


def machine(row: Accumulator, takes_c: bool = True, **more: int) -> Machine:
    """A simulated device with the operands of a row."""
    fmt = row.operands[0] if row.operands else nm.BF16
    if isinstance(fmt, nm.Format):
        return Machine(fmt, Numbers.of(fmt), takes_c, simulated(row, **more))
    if fmt.element.bits == 8:
        numbers = Numbers.of(fmt.element)
    else:
        low, high = (-40, 40) if fmt.scale is nm.E8M0 else (-20, 16)
        numbers = Numbers(low, high, fmt.element.mantissa_bits, fmt.block)
    return Machine(fmt, numbers, takes_c, simulated(row, **more))


def length_of(row: Accumulator) -> int:
    return 256 if row.rule == "groups" else 128


# ---- rows of the table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_identified(name: str) -> None:
    """By itself, and by no row with other parameters."""
    row = ROWS[name]
    found = find(machine(row), length_of(row))
    facts = (row.rule, row.length, row.fraction_bits, row.output, row.zero_exponent)
    same = {n for n, r in ROWS.items() if (r.rule, r.length, r.fraction_bits, r.output, r.zero_exponent) == facts}
    assert name in found.rows and set(found.rows) <= same, found
    if row.steps:
        assert found.fraction_bits == row.fraction_bits
        if row.rule != "groups":  # few numbers are left to ask with
            assert (found.cut, found.normalized) == (TOWARD_ZERO, False)
        assert (found.output_bits, found.output) == (row.output.mantissa_bits, TOWARD_ZERO)
        assert found.order.length == (16 if row.rule == "halves" else row.length)
        assert found.nan == (None if row.rule == "groups" else 0x7FFFFFFF)  # FP4 has none
        assert found.c == ("with the first 32 products" if row.rule == "halves" else "first, aligned")
    if row.rule == "fused" and row.operands[0] in (nm.BF16, nm.TF32):
        assert found.e_zero == row.zero_exponent and found.overflow == float("inf")


CHANGES: dict[str, Callable[[Accumulator], Accumulator]] = {
    "half the length": lambda row: replace(row, length=(row.length or 2) // 2),
    "twice the length": lambda row: replace(row, length=2 * (row.length or 1)),
    "a bit less": lambda row: replace(row, fraction_bits=(row.fraction_bits or 0) - 1),
    "a bit more": lambda row: replace(row, fraction_bits=(row.fraction_bits or 0) + 1),
    "output": lambda row: replace(row, output=FP32 if row.output is E8M13 else E8M13),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "name", ["hopper_fp8", "hopper_bf16", "hopper_tf32", "ampere_fp16", "blackwell_fp8", "ada_fp8"]
)
def test_a_changed_row_shows_its_own_parameters(name: str, change: str) -> None:
    """And the name of another row only if all of that one's parameters are its own."""
    row = CHANGES[change](ROWS[name])
    found = find(machine(row))
    assert (found.order.length, found.fraction_bits) == (row.length, row.fraction_bits)
    if row.output is FP32 and row.fraction_bits < 23:  # a step never holds all bits of such a result
        assert found.output_bits > row.fraction_bits and found.output == MORE
    else:
        assert (found.output_bits, found.output) == (row.output.mantissa_bits, TOWARD_ZERO)
    assert name not in found.rows
    for other in found.rows:
        known = ROWS[other]
        assert (known.length, known.fraction_bits, known.output) == (row.length, row.fraction_bits, row.output)


def test_another_exponent_of_zeros_is_no_row() -> None:
    for name in ("hopper_bf16", "ampere_tf32"):
        found = find(machine(replace(ROWS[name], zero_exponent=-126)))
        assert found.e_zero == -126 and found.rows == ()


# ---- how blocks are added --------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("promote", [32, 64, 128])
def test_promotion_is_seen(promote: int) -> None:
    """Between blocks FP32 to nearest, though a block's own sum has 13 bits toward zero; c comes last."""
    promoted = machine(ROWS["hopper_fp8"], promote=promote)
    order = find_order(promoted, 512, range(0, 512, 32 if promote > 32 else 16))
    assert order.block == promote and order.between == "in order"
    assert order.cut == f"{512 // promote} blocks of {promote}, added in order"
    assert result(promoted, 512, (0, promote), None) == (23, NEAREST)
    found = find(promoted, 256)
    assert found.rows == ("hopper_fp8",) and found.order.block == promote and found.c == "last"


def test_splits_and_uneven_ones_are_seen() -> None:
    order = find_order(machine(ROWS["hopper_bf16"], splits=4), 1024, range(0, 1024, 32))
    assert (order.block, order.cut) == (256, "4 blocks of 256, added in order")
    order = find_order(machine(ROWS["hopper_bf16"], splits=3), 1024, range(0, 1024, 32))
    assert (order.block, order.cut) == (352, "3 blocks of 2 x 352 and 1 x 320, added in order")


# ---- machines that no row describes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """A machine in float64, exact for the few bits that probes use: steps of `length` terms cut to 2^(emax - bits) by
    `cut`, results of `output` bits by `rounding`; c one of the first step's terms or, `late`, added at last."""

    length: int = 8
    bits: int = 20
    output: int = 18
    cut: Callable[[Tensor], Tensor] = torch.trunc
    rounding: Callable[[Tensor], Tensor] = torch.trunc
    late: bool = False
    normalized: bool = False
    pairs: bool = False

    def dots(self, a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        a, b = a.double(), b.double()
        start = torch.zeros(len(a), dtype=torch.float64) if c is None or self.late else c.double()
        count = a.shape[1] // self.length
        steps = [slice(i * self.length, (i + 1) * self.length) for i in range(count)]
        if self.pairs:  # two halves, each a chain, added at last
            sums = [torch.zeros_like(start), start]
            for i, step in enumerate(steps):
                sums[2 * i >= count] = self.step(a[:, step], b[:, step], sums[2 * i >= count])
            start = self.rounded(sums[0] + sums[1])
        else:
            for step in steps:
                start = self.step(a[:, step], b[:, step], start)
        return (start if c is None or not self.late else self.rounded(start + c)).float()

    def step(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        terms = torch.cat([a * b, c[:, None]], 1)
        whole = torch.frexp(terms)[1]
        factors = torch.frexp(a)[1] + torch.frexp(b)[1] - 1
        exponent = whole if self.normalized else torch.cat([factors, whole[:, -1:]], 1)
        emax = torch.where(terms == 0, -999, exponent - 1).amax(1, keepdim=True).clamp(min=-200)
        unit = torch.ldexp(torch.ones_like(terms[:, :1]), emax - self.bits)
        return self.rounded((self.cut(terms / unit) * unit).sum(1))

    def rounded(self, x: Tensor) -> Tensor:
        unit = torch.ldexp(torch.ones_like(x), torch.frexp(x)[1] - 1 - self.output)
        return torch.where(x == 0, x, self.rounding(x / unit) * unit)

    def found(self, fmt: nm.Format = nm.BF16, takes_c: bool = True) -> Found:
        return find(Machine(fmt, Numbers.of(fmt), takes_c, self.dots))


@pytest.mark.parametrize("fmt", [nm.E4M3, nm.E5M2, nm.BF16, nm.FP16, nm.TF32], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize(
    ("length", "bits", "output"), [(2, 12, 9), (4, 9, 10), (8, 20, 18), (16, 24, 23), (64, 22, 23)]
)
def test_parameters_of_any_machine(fmt: nm.Format, length: int, bits: int, output: int) -> None:
    found = Steps(length, bits, output).found(fmt)
    assert (found.order.length, found.order.text) == (length, f"{length} at a time")
    normalized = None if length == 2 else False  # three products are needed
    assert (found.fraction_bits, found.cut, found.normalized) == (bits, TOWARD_ZERO, normalized)
    assert found.output_bits == output and found.c == "first, aligned" and found.rows == ()
    if length == 2:
        assert Steps(length, bits, output).found(fmt, takes_c=False).fraction_bits is None  # three terms are needed


@pytest.mark.parametrize(
    ("function", "name"),
    [(torch.trunc, TOWARD_ZERO), (torch.round, NEAREST), (torch.floor, "down"), (torch.ceil, "up")],
)
def test_roundings_of_any_machine(function: Callable[[Tensor], Tensor], name: str) -> None:
    """Terms that are cut upwards never vanish, so that nothing tells an order."""
    found = Steps(cut=function).found()
    if name == "up":
        assert found.order.text.startswith("unknown") and found.rows == ()
    else:
        assert (found.cut, found.fraction_bits) == (name, 20)
    found = Steps(rounding=function).found()
    assert (found.output, found.output_bits, found.cut) == (name, 18, TOWARD_ZERO)


def test_hopper_but_for_one_thing_is_no_row() -> None:
    hopper = Steps(32, 13, 13)
    assert hopper.found(nm.E4M3).rows == ("hopper_fp8",)
    assert replace(hopper, cut=torch.round).found(nm.E4M3).rows == ()
    assert replace(hopper, rounding=torch.round).found(nm.E4M3).rows == ()
    normalized = replace(hopper, normalized=True).found(nm.E4M3)
    assert normalized.normalized and normalized.rows == ()
    late = replace(hopper, late=True).found(nm.E4M3)
    assert late.c == "last" and late.rows == ("hopper_fp8",)  # a library's epilogue
    assert hopper.found(nm.E4M3, takes_c=False).c == "not taken"
    assert hopper.found(nm.BF16).rows == ()


def test_two_chains_are_two_blocks() -> None:
    found = Steps(pairs=True).found()
    assert found.order.cut == "2 blocks of 64, added in order" and found.order.block == 64 and found.c == "last"


def test_orders_without_a_name_are_unknown() -> None:
    """Lanes, whose sums are added in pairs; and results that no tree gives."""

    def lanes(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        sums = torch.zeros(len(a), 4)
        for k in range(a.shape[1]):
            sums[:, k % 4] += a[:, k] * b[:, k]
        return (sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3])

    order = find_order(Machine(nm.BF16, Numbers.of(nm.BF16), False, lanes), 32, range(32))
    assert (
        order.cut == "4 blocks of 8, added in pairs, the first k = 0, 4, 8, 12, 16, 20, 24, 28" and not order.contiguous
    )
    noise = Machine(nm.BF16, Numbers.of(nm.BF16), False, lambda a, b, c: torch.arange(len(a)) % 7 * 1.0)
    found = find(noise)
    assert found.order.text.startswith("unknown") and found.rows == () and found.fraction_bits is None


def test_units_one_at_a_time_and_together_tell_the_same() -> None:
    row = machine(ROWS["hopper_tf32"])
    places = range(0, 64, 4)
    assert torch.equal(sizes(row, 64, places, apart=16), sizes(row, 64, places, apart=0))


# ---- routes and the command ------------------------------------------------------------------------------------------


def test_a_cpu_tells_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "probe.json"
    assert probe.main(["--device", "cpu", "--lengths", "256", "--sizes", "64", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    absent = [line for line in lines if "not run: " in line]
    assert len(absent) == 11 and "tl.dot                 E4M3   not run: a CPU has no tensor cores" in absent[0]
    fp32 = next(line for line in lines if line.startswith("torch.matmul           FP32 "))
    assert " 23, nearest " in fp32 and lines[-1] == "2 of 13 routes probed; the others are not run"
    record = json.loads(out.read_text())
    assert record["status"] == "probed" and record["config"]["lengths"] == [256] and len(record["routes"]) == 13
    entry = next(e for e in record["routes"] if (e["route"], e["format"]) == ("torch.matmul", "FP32"))
    assert entry["found"]["output_bits"] == 23 and entry["found"]["order"]["text"] in fp32
    assert [e["k"] for e in record["long"]] == [256, 256]


def test_a_device_that_is_a_row_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The table of a device whose tl.dot computes by hopper_fp8, promoted or not, or by nothing known."""

    def route(row: Accumulator, **more: int) -> probe_routes.Route:
        def multiply(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
            dots = simulated(row, **more)
            return torch.diag(dots(a, b, None if c is None else c.diagonal()))

        return probe_routes.Route("tl.dot", nm.E4M3, torch.device("cpu"), multiply, True, "wgmma")

    hopper = ROWS["hopper_fp8"]
    rows = [route(hopper), route(hopper, promote=64), route(CHANGES["output"](hopper))]
    monkeypatch.setattr(probe, "routes", lambda device, names, formats: rows)
    assert probe.main(["--device", "cpu", "--lengths", "256"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == [
        *"tl.dot E4M3 32 at a time 13 toward zero 13, toward zero first, aligned - 7fffffff hopper_fp8 (wgmma)".split()
    ]
    assert "hopper_fp8, within blocks of 64 (wgmma)" in lines[3] and "32 at a time, 2 blocks of 64" in lines[3]
    assert " 13   toward zero  17 or more " in lines[4] and "no row (wgmma)" in lines[4]
    assert lines[7].endswith("none: one chain")
    assert lines[8].endswith("4 blocks of 64, added in order; their sums have 23 fraction bits, nearest")


def test_no_route_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--device", "cpu", "--routes", "tl.dot"]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "0 of 5 routes probed; the others are not run"


@pytest.mark.skipif(torch.cuda.is_available(), reason="not checked: there is a GPU")
def test_no_gpu_is_told_with_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "probe.json"
    assert probe.main(["--out", str(out)]) == 2
    assert capsys.readouterr().out.startswith("not run: device='cuda': torch ")
    assert json.loads(out.read_text())["status"] == "not run"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--routes", "cublas"], r"routes=\('cublas',\) cannot be used; name some of 'tl.dot', 'torch.matmul'"),
        (["--formats", "fp8"], r"formats=\('fp8',\) cannot be used; name some of 'E4M3', 'E5M2'"),
        (["--lengths", "100"], r"lengths=\(100,\) cannot be used; use multiples of 128 up to 32768"),
        (["--sizes", "0"], r"sizes=\(0,\) cannot be used; use multiples of 16 up to 8192"),
        (["--device", "gpu"], "device='gpu' is not a device; use 'cpu', 'cuda' or 'cuda:1'"),
    ],
)
def test_what_cannot_be_probed(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        probe.main(arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not probed: torch finds no CUDA device")
def test_a_gpus_tensor_cores_are_a_row() -> None:
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    device = torch.device("cuda", torch.cuda.current_device())
    ready = [r for r in probe_routes.routes(device, ("tl.dot",), ("E4M3", "BF16", "FP16", "TF32")) if not r.not_run]
    assert ready and all(find(route.machine(64)).rows for route in ready)
