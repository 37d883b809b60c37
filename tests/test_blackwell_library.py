"""`--ops blackwell-library`: the seam with torch's block-scaled products, which no machine here can run.

Contract: the seam's names and signatures; everything but products is `hw.ops`'s; products are made of torch's
arguments, outer scales follow; it is handed out on Blackwell alone, and what it cannot take is refused in words.
Oracle: the emulator, with a scaled_mm that reads its arguments and sums exactly (`library_model`) in torch's place.
"""

import os
from typing import Any

import library_model
import pytest
import torch
from kernel_cases import assert_bits, data
from torch import Tensor
from torch.nn import functional

import fourbit
import numerics as nm
from hw import choose, seam, validate
from hw.device import INTERPRET, library_absent
from numerics import ops as emulated
from numerics.hadamard import SIZES
from numerics.ops import Cast, Wire
from reference.expert import Draw, Setting
from reference.moe import MoE
from reference.presets import preset

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw import blackwell_library as library
from hw import ops

interpreted = pytest.mark.skipif(os.environ.get(INTERPRET) != "1", reason=f"not run: {INTERPRET}=1 interprets kernels")
GPU = torch.device("cuda", 0)
GROUPS = (0, 3, 3, 9)


@pytest.fixture
def modelled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """scaled_mm by its model, as if it could run here; the shapes of its results."""
    shapes: list[tuple[int, ...]] = []

    def watched(**arguments: Any) -> Tensor:
        out = library_model.scaled_mm(**arguments)
        shapes.append(tuple(out.shape))
        return out

    monkeypatch.setattr(functional, "scaled_mm", watched)
    monkeypatch.setattr(library, "library_absent", lambda device: None)
    return shapes


@pytest.fixture
def blackwell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says that it has a B300."""
    monkeypatch.setattr(choose, "resolve", lambda name: GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 3))


# The seam.


def test_signatures_are_the_seams() -> None:
    """`seam` compares names, kinds and defaults; all but the products are hw.ops's own functions."""
    assert list(seam.KERNELS["blackwell-library"]) == list(seam.seam())
    for name in seam.seam():
        function = getattr(library, name)
        seam._require_signature("blackwell-library", name, function)
        assert (function is getattr(ops, name)) == (name not in ("gate_up_glu", "down_to_wire", "grad_products"))
    assert (library.Cast, library.Recast, library.Wire) == (ops.Cast, ops.Recast, ops.Wire)


def layer(operations: Any, name: str, accumulator: str) -> list[Tensor]:
    """Output and all gradients of a small layer of experts under a preset; experts get different numbers of rows."""
    torch.manual_seed(3)
    moe = MoE(32, 3, 2, 32, 32)
    for p in moe.parameters():
        torch.nn.init.normal_(p, std=32**-0.5)
    x = torch.randn(1, 6, 32).to(torch.bfloat16).requires_grad_()
    signs = {size: nm.hadamard_signs(size, (1, 0)) for size in SIZES}
    out, balance = moe(x, Setting(operations, preset(name).experts, signs, 2, Draw(5, 6, 0), accumulator))
    (out.float().square().sum() + balance).backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(p.grad for p in moe.parameters() if p.grad is not None)]


class Mixed:
    """The library's operations, but the router's gradient, whose sum has an order of its own: the emulator's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(emulated if name == "router_gradient" else library, name)


@pytest.mark.every(2)
@interpreted
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("name", ["fourbit", "nvfp4_nvidia"])
def test_a_layer_has_the_emulators_bits(name: str, modelled: list[tuple[int, ...]]) -> None:
    """Forward and backward of NVFP4 and MXFP8 operands, in tiles and rotated too, through torch's arguments."""
    expected, found = layer(emulated, name, "exact"), layer(Mixed(), name, "library")
    assert len(modelled) == 3 * 6  # experts, each of them with rows: two products forward, four backward
    assert len(expected) > 4
    for f, e in zip(found, expected, strict=True):
        assert_bits(f, e)


@interpreted
def test_outer_scales_multiply_the_sums(modelled: list[tuple[int, ...]]) -> None:
    """fl(row's * expert's), after the sum, once."""
    x = nm.quantize(data("row scales", 9, 96), nm.NVFP4, outer="row")
    w = nm.quantize(data("row scales", 3, 32, 96, seed=1), nm.NVFP4, outer="leading")
    sums = nm.matmul(x.derived(outer=None), w.derived(outer=None), "exact", groups=GROUPS)
    experts = torch.tensor([0] * 3 + [2] * 6)
    assert x.outer is not None and w.outer is not None
    expected = sums * (x.outer * w.outer.flatten()[experts][:, None])
    assert_bits(library.down_to_wire(x, w, GROUPS, Wire(None)), expected.to(torch.bfloat16))
    both = library.gate_up_glu(x, w, GROUPS, Cast(None)), emulated.gate_up_glu(x, w, GROUPS, Cast(None), "exact")
    for found, e in zip(*both, strict=True):
        assert_bits(found, e)
    assert modelled == [(3, 32), (6, 32)] * 2


def test_bf16_products_are_the_librarys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block scales, no scaled_mm: as in hw.ops, and on any device."""
    g, x = data("normal", 9, 16).bfloat16(), data("normal", 9, 24, seed=1).bfloat16()
    w = data("normal", 3, 16, 24, seed=2).bfloat16()
    monkeypatch.setattr(functional, "scaled_mm", None)
    for found, e in zip(library.grad_products(g, g, w, x, GROUPS), ops.grad_products(g, g, w, x, GROUPS), strict=True):
        assert_bits(found, e)


@interpreted
def test_other_accumulators_are_models_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "scaled_mm", None)
    q = nm.quantize(data("normal", 9, 32), nm.MXFP8), nm.quantize(data("normal", 3, 32, 32), nm.MXFP8)
    t = nm.quantize(data("normal", 9, 32), nm.MXFP8, -2, groups=GROUPS)
    assert_bits(
        library.down_to_wire(*q, GROUPS, Wire(None), "exact"), emulated.down_to_wire(*q, GROUPS, Wire(None), "exact")
    )
    assert_bits(
        library.gate_up_glu(*q, GROUPS, Cast(None), "exact")[1],
        emulated.gate_up_glu(*q, GROUPS, Cast(None), "exact")[1],
    )
    given = q[0], t, q[1].mT, t, GROUPS, "exact"
    for found, e in zip(library.grad_products(*given), emulated.grad_products(*given), strict=True):
        assert_bits(found, e)


# Refusals.


def test_operands_that_it_cannot_take(modelled: list[tuple[int, ...]]) -> None:
    x, w = nm.quantize(data("normal", 9, 32), nm.NVFP4), nm.quantize(data("normal", 3, 32, 32), nm.NVFP4)
    wrong: list[tuple[Any, Any, str]] = [
        (x, w.dequantize(torch.bfloat16), "not NVFP4 by bfloat16; use --ops triton or emulated, or a recipe without"),
        (x.dequantize(torch.bfloat16), w, "not bfloat16 by NVFP4"),
        (x, nm.quantize(data("normal", 3, 32, 32), nm.MXFP8), "not NVFP4 by MXFP8"),
        (x, nm.quantize(data("normal", 3, 32, 32), nm.NVFP4, outer="row"), "of a weight that vary within an expert"),
        (nm.quantize(data("normal", 9, 16), nm.NVFP4), w, "rows have shape .* pass .R, K., .E, N, K. and E . 1"),
    ]
    for rows, matrices, message in wrong:
        with pytest.raises(ValueError, match=message):
            library.gate_up_glu(rows, matrices, GROUPS, Cast(None))
        with pytest.raises(ValueError, match=message):
            library.down_to_wire(rows, matrices, GROUPS, Wire(None))
    with pytest.raises(ValueError, match="axis 1 stacks gate above up and must be even"):
        library.gate_up_glu(x, nm.quantize(data("normal", 3, 33, 32), nm.NVFP4), GROUPS, Cast(None))
    by_rows = nm.quantize(data("normal", 9, 32), nm.NVFP4, -2, outer="tensor", groups=GROUPS)
    assert by_rows.outer is not None
    features = by_rows.derived(outer=by_rows.outer.expand(1, 32))
    with pytest.raises(ValueError, match="outer scales that vary over a weight gradient"):
        library.grad_products(x, by_rows, w.mT, features, GROUPS)
    with pytest.raises(ValueError, match=r"g_tokens has shape \(9, 32\), x \(8, 32\)"):
        library.grad_products(x, by_rows, w.mT, nm.quantize(data("normal", 8, 32), nm.NVFP4, -2), GROUPS)


def test_it_never_computes_otherwise() -> None:
    """Called on another device it says so; nothing is decoded and multiplied in its place."""
    x, w = nm.quantize(data("normal", 9, 32), nm.NVFP4), nm.quantize(data("normal", 3, 32, 32), nm.NVFP4)
    needed = r"need a GPU of compute capability 10.0 or 10.3 \(sm_100, sm_103\), and cpu is no CUDA device"
    with pytest.raises(ValueError, match=f"{needed}; use such a GPU; or use --ops triton or emulated"):
        library.down_to_wire(x, w, GROUPS, Wire(None))


# Choosing.


def test_it_is_handed_out_on_blackwell(blackwell: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose.operations("blackwell-library", "cuda") is library
    monkeypatch.delattr(functional, "scaled_mm")
    message = f"torch {torch.__version__} has no torch.nn.functional.scaled_mm; install torch 2.10 or later; or use"
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        choose.operations("blackwell-library", "cuda")


@pytest.mark.parametrize("capability", [(9, 0), (11, 0), (12, 0)])
def test_no_other_gpu_will_do(
    capability: tuple[int, int], blackwell: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    has = f"cuda:0 has {capability[0]}.{capability[1]}; use such a GPU; or use --ops emulated"
    with pytest.raises(ValueError, match=f"10.0 or 10.3 .*, and {has}"):
        choose.operations("blackwell-library", "cuda")
    assert library_absent(GPU) is not None


def test_the_command_line_refuses_it_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(["train", "--ops", "blackwell-library", "--steps", "1", "--out", "/nonexistent/x"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "fourbit: error: --ops='blackwell-library' on --device='cpu': torch's block-scaled products need"
    )
    assert said.endswith("and cpu is no CUDA device; use such a GPU; or use --ops emulated\n")
    assert validate.main(["--ops", "blackwell-library", "--device", "cpu"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(seam.seam()) + 2 and lines[-1].startswith("not run: ")
    assert all("  not run: torch's block-scaled products need a GPU" in line for line in lines[1:-1])


@pytest.mark.parametrize("command", [["train"], ["demo"], ["order"], ["bench", "training"]], ids=" ".join)
def test_help_names_it(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        fourbit.main([*command, "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert stopped.value.code == 0 and "{emulated,triton,blackwell-library}" in said and "never run" in said
