"""`fourbit bench hw` and `bench experts` as far as a CPU goes: arithmetic, tables, figures, refusals. Nothing is timed.

Oracles: rows worked out by hand; launches in Triton's interpreter; for the expert MLP, torch's autograd in float64 and
its two sides against each other.
"""

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import numerics as nm
from hw import bench_experts, bench_hw, expert_passes, machine_code, roofline
from hw.bench_kernels import KERNELS, Timed, Work, tensors
from hw.device import INTERPRET, DeviceAbsent
from hw.launches import Launch, launch, recording
from hw.record import write_csv
from hw.roofline import Chip, Counted, Row, counted, placed

CPU = torch.device("cpu")
BY_NAME = {timed.name: timed for timed in KERNELS}
PHILOX = ("Philox words", "Philox fields, 4 bits", "Philox fields, 8 bits")
RATE = 1e12  # instructions of a warp per second
COPY = 4e12  # bytes per second
FEW, MANY = Counted(10**9, 5, "FADD 50 %", ""), Counted(8 * 10**9, 0, "FADD 50 %", "")


def row(seconds: float = 2e-3, found: Counted = FEW, floor: float | None = None, name: str = "one") -> Row:
    """A kernel of 4 GB: 1 ms at the copy's speed; FEW are 1 ms of instructions, MANY 8 ms."""
    return placed(name, seconds, COPY, 4 * 10**9, found, RATE, floor, None)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Triton, where its kernels run on a CPU."""
    triton = pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    if not triton.knobs.runtime.interpret:
        pytest.skip("not run: triton compiles here")
    return triton


# Roofline.


def test_a_kernel_is_placed_below_the_lower_roof() -> None:
    at = row(12e-3, MANY)
    assert (at.t_bytes, at.t_issue, at.limit, at.ratio) == (1e-3, 8e-3, "issue", 1.5)
    assert at.share == 1e-3 / 12e-3 and (at.instructions, at.bytes) == (8 * 10**9, 4 * 10**9)
    less = row(2e-3, replace(FEW, least=10**8))
    assert (less.t_issue, less.limit, less.ratio, less.share) == (1e-4, "bytes", 2.0, 0.5)
    assert Chip(132, 1.98e9).issue_rate == 132 * 4 * 1.98e9


UNKNOWN = Counted(None, None, "", "loops")


@pytest.mark.parametrize(
    ("seconds", "found", "floor", "verdict"),
    [
        (1.4e-3, FEW, None, "met"),
        (1.5e-3, FEW, None, "missed"),
        (1.25e-3, FEW, 0.8, "met"),
        (1.25e-3, FEW, 0.85, "missed"),
        (10e-3, MANY, 0.1, "met"),
        (10e-3, MANY, 0.11, "missed"),
        (1.4e-3, UNKNOWN, None, "met"),  # the missing bound could only lower the ratio
        (1.5e-3, UNKNOWN, None, "not judged"),
        (1.5e-3, UNKNOWN, 0.9, "missed"),
    ],
)
def test_verdicts(seconds: float, found: Counted, floor: float | None, verdict: str) -> None:
    at = row(seconds, found, floor)
    assert at.verdict == verdict
    assert verdict in bench_hw.line(at)
    if found is UNKNOWN:
        assert (at.t_issue, at.limit, at.note) == (None, "bytes", "loops")
        assert "instructions are not counted: loops" in bench_hw.line(at)


def test_a_missed_figure_is_told_with_its_limit_and_its_instructions() -> None:
    assert "limited by issue; 2.000 instructions of a warp per byte: FADD 50 %" in bench_hw.line(row(20e-3, MANY))
    assert "limited" not in bench_hw.line(row(10e-3, MANY))


def test_rows_become_csv(tmp_path: Path) -> None:
    write_csv([row(), row(found=UNKNOWN)], tmp_path / "hw.csv")
    with (tmp_path / "hw.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    names = "kernel seconds copy bytes instructions others t_bytes t_issue ratio limit share floor peak verdict"
    assert list(first) == [*names.split(), "opcodes", "note"] == [part.name for part in fields(Row)]
    assert (first["ratio"], first["instructions"], second["t_issue"], second["note"]) == (
        "2.0",
        str(10**9),
        "",
        "loops",
    )


def test_the_figure_shows_each_kernel_that_was_counted() -> None:
    rows = [row(name="near"), row(12e-3, MANY, name="far"), row(found=UNKNOWN, name="unknown")]
    assert roofline.points(rows) == [(0.25, 2e12, "near"), (2.0, 4e9 / 12e-3, "far")]
    image = roofline.draw(rows, RATE, "a chip", "png")
    assert image.startswith(b"\x89PNG") and image == roofline.draw(rows, RATE, "a chip", "png")
    assert roofline.draw(rows, RATE, "a chip", "png") != roofline.draw(rows[1:], RATE, "a chip", "png")
    assert roofline.draw(rows, RATE, "a chip", "svg").startswith(b"<?xml")
    assert roofline.draw(rows, RATE, "a chip", "pdf").startswith(b"%PDF")
    with pytest.raises(ValueError, match="rows have no counted instructions"):
        roofline.draw(rows[2:], RATE, "a chip", "png")


# Instructions of launches.


class Compiled:
    """A compiled kernel whose machine code is `text`."""

    def __init__(self, text: str) -> None:
        self.text = text


CODE = {
    "straight": "\t.section\t.text.k,\nk:\n        /*0000*/    FADD R1, R1, R1 ;\n        /*0010*/    EXIT ;\n",
    "loop": "\t.section\t.text.k,\nk:\n.L:\n    /*0000*/  FADD R1, R1, R1 ;\n    /*0010*/  @P0 BRA `(.L) ;\n"
    "    /*0020*/  @P0 BRA `(.E) ;\n    /*0030*/  MOV R0, R0 ;\n.E:\n    /*0040*/  EXIT ;\n",
}


def test_instructions_are_those_of_all_warps_of_all_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "sass", lambda compiled: compiled.text)
    launches = [
        Launch("straight", Compiled(CODE["straight"]), (3, 2), 4),
        Launch("loop", Compiled(CODE["loop"]), (5,), 8),
    ]
    found = counted(launches, {"loop": (10,)})
    assert (found.least, found.others) == (24 * 2 + 40 * 22, 40)
    assert found.opcodes == f"BRA {100 * 440 / 928:.0f} %, FADD {100 * 424 / 928:.0f} %, EXIT 7 %"
    assert found.missing == ""
    refused = counted(launches, {})
    assert refused.least is None and refused.missing.startswith(
        "loop: trips=(): the code has 1 loops: 0x0000 to 0x0010"
    )
    assert counted([], {}).missing == "nothing was launched through hw.launches"


def test_launches_are_written_down_while_it_is_asked(interpreted: ModuleType) -> None:
    timed = BY_NAME[PHILOX[0]].make(CPU, 128, 128)
    with recording() as outer:
        timed.run()
        with recording() as inner:
            timed.run()
    timed.run()
    assert (len(outer), len(inner)) == (2, 1)
    assert inner[0] == Launch("_words_kernel", None, (4,), 4) and inner[0].warps == 16


class Kernel:
    """A compiled kernel's stand-in: it notes how it is launched."""

    def __init__(self) -> None:
        self.called: list[object] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable:
        return lambda *args, **kwargs: self.called.append((grid, args, kwargs)) or self

    def fn(self) -> None: ...


def test_a_launch_forbids_contraction_and_tells_its_warps() -> None:
    kernel = Kernel()
    with recording() as found:
        launch(kernel, (2, 3), 1, num_warps=8, BLOCK=4)
    assert kernel.called == [((2, 3), (1,), {"enable_fp_fusion": False, "num_warps": 8, "BLOCK": 4})]
    assert found == [Launch("fn", kernel, (2, 3), 8)] and found[0].warps == 48


def test_a_recording_ends_with_an_error() -> None:
    with pytest.raises(KeyError), recording() as found:
        raise KeyError
    with recording() as outer:
        with recording():
            pass
        launch(Kernel(), (1,))
    assert found == [] and len(outer) == 1


# Kernels and their timing.


def test_kernels_have_names_of_their_own() -> None:
    assert max(Counter(timed.name for timed in KERNELS).values()) == 1


def test_the_philox_kernels_are_the_real_ones(interpreted: ModuleType) -> None:
    words, narrow, wide = (BY_NAME[name].make(CPU, 128, 128) for name in PHILOX)
    assert torch.equal(words.run(), nm.philox(*words.inputs))
    n = 128 * 128 // 16
    for work in (narrow, wide):
        assert work.run().shape == (n, 16)
    assert not torch.equal(narrow.run(), wide.run())


SCALES = 128 * 128 / 32  # of blocks of 32
OUTPUTS = {  # bytes of results for 128 x 128 values
    "NVFP4": 128 * 128 / 2 + 2 * SCALES + 128 * 4,
    "NVFP4, four-over-six": 128 * 128 / 2 + 2 * SCALES + 128 * 4,
    "SwiGLU, NVFP4, four-over-six": 128 * 128 / 2 + 2 * SCALES + 128 * 4,
    "MXFP8 along features": 128 * 128 + SCALES,
    "NVFP4 to MXFP8 tokens, stochastic": 128 * 128 + 2 * SCALES,  # experts of 16 rows: half blocks
    "MXFP8 along tokens": 128 * 128 + 2 * SCALES,
    "MXFP8 along both axes": 2 * 128 * 128 + 3 * SCALES,
    "NVFP4 to BF16": 2 * 128 * 128,
    "MXFP8 to BF16": 2 * 128 * 128 + 4,  # and a flag
    "RHT-32 and S2F6": 128 * 128 + SCALES,
    "aggregate": 2 * 128 * 128,
    "router's gradient": 128 * 4,
    "SwiGLU backward": 4 * 128 * 128,
    "rows permuted": 128 * 128 / 2 + 2 * SCALES + 128 * 4,
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [timed.name for timed in KERNELS if timed.name not in PHILOX])
def test_a_kernel_runs_and_gives_what_it_is_counted_for(name: str, interpreted: ModuleType) -> None:
    work = BY_NAME[name].make(CPU, 128, 128)
    with recording() as launches:
        found = tensors(work.run())
    assert launches and sum(t.nbytes for t in found) == OUTPUTS[name]
    assert set(work.trips) <= {one.name for one in launches}


def test_tensors_of_a_result_count_once() -> None:
    q = nm.quantize(torch.randn(32, 64), nm.NVFP4)
    assert sum(t.nbytes for t in tensors(q)) == q.codes.nbytes + q.scales.nbytes + q.outer.nbytes
    x, y = torch.zeros(3), torch.zeros(4)
    assert [len(t) for t in tensors([x, (x, {"y": y}, None, "text")])] == [3, 4]


@dataclass
class Ticks:
    """A clock that runs nothing twice and says how often it was asked for each function."""

    seconds: Sequence[float]
    asked: list[Callable]

    def __call__(self, run: Callable) -> float:
        self.asked.append(run)
        return self.seconds[(len(self.asked) - 1) % len(self.seconds)]


def test_a_sample_stands_between_two_copies() -> None:
    copy, own = (lambda: None), (lambda: None)
    clock = Ticks([1.0, 7.0, 2.0], [])
    found = bench_hw.samples(Work(own, ()), copy, clock, 2, warm_up=1)
    assert np.array_equal(found, [[1.5, 7.0]] * 2) and clock.asked == [copy, own, copy] * 2


@pytest.mark.parametrize("necessary", [None, 999])
def test_necessary_bytes_are_inputs_and_outputs_once(necessary: int | None) -> None:
    x = torch.zeros(100, dtype=torch.float32)
    work = Work(lambda: (x[:50].clone(), x), (x,), necessary=necessary)
    clock = Ticks([1e-3, 2e-3, 1e-3], [])
    at = bench_hw.measured(Timed("x", lambda *_: work, 0.25), work, ((lambda: None), 800), clock, 3, Chip(1, 1e9))
    assert at.bytes == (necessary or 400 + 200 + 400)
    assert (at.kernel, at.copy, at.seconds, at.floor) == ("x", 8e5, 2e-3, 0.25)
    assert at.share == pytest.approx(at.bytes / 800 / 2) and at.note.startswith("nothing was launched")


def test_a_kernel_of_the_interpreter_has_no_instructions(interpreted: ModuleType) -> None:
    work = BY_NAME[PHILOX[1]].make(CPU, 128, 128)
    at = bench_hw.measured(BY_NAME[PHILOX[1]], work, ((lambda: None), 8), Ticks([1.0], []), 1, Chip(1, 1e9))
    assert at.bytes == 16 + 1024 * (4 * 8 + 16 * 4)
    assert at.instructions is None and at.note.startswith("_fields_kernel: compiled has no cubin")


def test_it_runs_and_writes_what_it_prints(
    interpreted: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but CUDA itself: a CPU stands in for the device, Hopper's numbers for its chip, FEW for the machine code."""
    for name, stand_in in {
        "require": lambda _: CPU,
        "resolve": lambda _: CPU,
        "chip": lambda _: Chip(132, 1.98e9),
        "device_clock": lambda *_: Ticks([1e-3, 2e-3, 1e-3], []),
        "peak_of": lambda *_: 1.25,
        "counted": lambda *_: FEW,
    }.items():
        monkeypatch.setattr(bench_hw, name, stand_in)
    out, figure = tmp_path / "hw.csv", tmp_path / "hw.png"
    argv = ["--rows", "128", "--width", "128", "--repeats", "2", "--only", "fields"]
    assert bench_hw.main([*argv, "--out", str(out), "--figure", str(figure)]) == 0
    printed = capsys.readouterr()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["kernel"] for r in rows] == list(PHILOX[1:])
    assert all(r["kernel"] in printed.out and r["peak"] == "1.25" and r["seconds"] == "0.002" for r in rows)
    assert "132 SMs at 1980 MHz issue 1045 instructions" in printed.out and figure.read_bytes().startswith(b"\x89PNG")
    assert "fourbit: 2 of 2, Philox fields, 8 bits" in printed.err


@pytest.mark.parametrize(("made_anew", "expected"), [(True, 1 + 50 / 600), (False, 1 + 250 / 600)])
def test_peak_memory_is_over_inputs_and_outputs(
    made_anew: bool, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of 400 bytes, outputs of 200, at most 250 bytes more than before, new outputs among them."""
    before = [1000, 1200 if made_anew else 1000]
    for name, stand_in in {
        "synchronize": lambda _: None,
        "reset_peak_memory_stats": lambda _: None,
        "memory_allocated": lambda _: before.pop(0),
        "max_memory_allocated": lambda _: 1250,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    x, y = torch.zeros(100), torch.zeros(50)
    assert bench_hw.peak_of(Work(lambda: y, (x,)), CPU) == pytest.approx(expected)


# Refusals.


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--device", "tpu"], "device='tpu' is not a device"),
        (["--device", "cpu"], "device='cpu': compiled kernels are timed, and those run on a GPU"),
        (["--device", "cpu", "--rows", "100"], "rows=100: use a positive multiple of 128"),
        (["--device", "cpu", "--width", "0"], "width=0: use a positive multiple of 128"),
        (["--device", "cpu", "--repeats", "0"], "repeats=0: use 1 or more"),
        (["--device", "cpu", "--calls", "-1"], "calls=-1: use 1 or more"),
        (
            ["--device", "cpu", "--only", "nothing"],
            "only=.*nothing.*: no kernel has such a name; there are NVFP4",
        ),
        (["--device", "cpu", "--figure", "a.gif"], "figure='a.gif': name a file that ends in one of .png, .svg, .pdf"),
    ],
)
def test_a_mistake_is_told(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=message):
        bench_hw.main(argv)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("option", ["out", "figure"])
def test_a_file_that_cannot_be_written_is_told_first(option: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=rf"^{option}='.*' cannot be written"):
        bench_hw.main(["--device", "cpu", f"--{option}", str(tmp_path / "file" / "new.png")])


@pytest.mark.parametrize("main", [bench_hw.main, bench_experts.main])
def test_an_absent_device_is_told(main: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert main([]) == 2
    assert "device='cuda'" in capsys.readouterr().err


def test_the_interpreter_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_hw, "resolve", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(bench_hw, "triton_absent", lambda _: None)
    monkeypatch.setenv(INTERPRET, "1")
    with pytest.raises(ValueError, match=f"{INTERPRET}=1 runs kernels in an interpreter"):
        bench_hw.require(bench_hw.HwConfig())
    monkeypatch.setattr(bench_hw, "triton_absent", lambda _: "triton is not installed; pip install it")
    with pytest.raises(DeviceAbsent, match="not installed"):
        bench_hw.require(bench_hw.HwConfig())


def test_a_chip_tells_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        clock_rate, multi_processor_count, uuid = 1_980_000, 132, "x"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    assert roofline.chip(torch.device("cuda", 0)) == Chip(132, 1.98e9)
    monkeypatch.delattr(Properties, "clock_rate")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="the highest clock of the SMs is unknown"):
        roofline.chip(torch.device("cuda", 0))


# The expert MLP.

SMALL = ("--device", "cpu", "--ops", "emulated", "--rows", "64", "--experts", "2", "--width", "64", "--hidden", "32")


def test_the_expert_mlp_runs_and_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "experts.csv"
    assert bench_experts.main([*SMALL, "--repeats", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["name"] for r in rows] == [bench_experts.FORWARD, bench_experts.BOTH, bench_experts.BOTH_ONCE]
    assert all(r["name"] in printed and float(r["seconds"]) > 0 and float(r["bf16_seconds"]) > 0 for r in rows)


def test_both_sides_compute_the_same_mlp() -> None:
    """Within the noise of four bits: NVFP4 operands have about 1 % relMSE each, so 10 % is far above what a right pass
    shows and far below a wrong one, whose relMSE is about 1 or more."""
    given = expert_passes.data(256, 2, 128, 64, CPU)
    given = replace(given, weights=torch.ones_like(given.weights))
    ours = expert_passes.Ours(bench_experts.functions("emulated", CPU), given, "library")
    plain = expert_passes.Plain(given)
    pairs = [(ours.forward()[0], plain.forward()[0]), *zip(ours.both(), plain.both(), strict=True)]
    for own, other in pairs:
        assert own.shape == other.shape
        assert nm.metrics.error(other.float(), own.float()).rel_mse < 0.1


def test_the_bf16_side_is_what_autograd_gives() -> None:
    """Gradients of each expert's own products in float64. BF16 rounds thrice on the way, by at most 2^-9 each: relMSE
    below 1e-4."""
    given = expert_passes.data(64, 2, 64, 32, CPU)
    x, w13, w2 = (t.double().requires_grad_() for t in (given.x, given.w13, given.w2))
    parts = []
    for e, (a, b) in enumerate(zip(given.groups, given.groups[1:], strict=False)):
        gate, up = (x[a:b] @ w13[e].mT).chunk(2, dim=-1)
        parts.append((torch.nn.functional.silu(gate) * up) @ w2[e].mT)
    y = torch.cat(parts)
    expected = (y, *torch.autograd.grad(y, (x, w13, w2), given.g.double()))
    plain = expert_passes.Plain(given)
    for own, right in zip((plain.forward()[0], *plain.both()), expected, strict=True):
        assert ((own.double() - right) ** 2).sum().item() < 1e-4 * (right**2).sum().item()


def test_ratios_of_passes_are_bf16s_time_over_ours() -> None:
    names = [bench_experts.FORWARD, bench_experts.BOTH, bench_experts.BOTH_ONCE]
    seconds = np.array([[[1.0, 0.8], [1.4, 1.0], [2.0, 1.0]]]) * np.array([1, 9, 2])[:, None, None]
    rows = bench_experts.table(names, seconds, [(8, 4), (None, None), (None, None)])
    assert [r.ratio for r in rows] == pytest.approx([0.8, 1 / 1.4, 0.5])
    assert [r.verdict for r in rows] == ["met", "met", ""] and (rows[0].seconds, rows[0].bf16_seconds) == (2.0, 1.6)
    slow = bench_experts.table(names, seconds * [1.01, 1], [(None, None)] * 3)
    assert [r.verdict for r in slow] == ["missed", "missed", ""]
    text = bench_experts.report(rows, 1.6e12)
    assert "missed" not in text and float(text.splitlines()[1].split()[3]) == pytest.approx(1.0)  # TFLOP/s of BF16


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--device", "cpu", "--ops", "numerics"], "ops='numerics' offers none of the seam's functions"),
        ([*SMALL, "--experts", "0"], "experts=0: use 1 or more"),
        ([*SMALL, "--rows", "96"], "rows=96: use a positive multiple of 64"),
        ([*SMALL, "--width", "40"], "width=40: use a positive multiple of 32"),
        ([*SMALL, "--hidden", "0"], "hidden=0: use a positive multiple of 32"),
        ([*SMALL, "--repeats", "0"], "repeats=0: use 1 or more"),
    ],
)
def test_a_mistake_with_experts_is_told(argv: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench_experts.main(argv)


def test_ops_that_lack_a_part_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("def glu_backward(dh, gate_up):\n    return gate_up\n")
    with pytest.raises(ValueError, match=r"lacks quantize_tokens \(.*has no quantize_tokens\).*the MLP needs all of"):
        bench_experts.functions(str(path), CPU)
