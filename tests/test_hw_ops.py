"""The seam as Triton kernels, in the interpreter: `hw.ops` in the place of `numerics.ops`.

Contract: the seam's names and signatures; its bits, in every case that has a kernel; a block tensor that kernels made
is one in every respect. Oracle: the emulator.
"""

import copy
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_cases import RANDOM, assert_bits, data
from seam_calls import same, tensors
from torch import Tensor

import numerics as nm
from hw import seam, validate
from hw.device import INTERPRET
from numerics import ops as emulated
from numerics.hadamard import SIZES
from numerics.ops import Cast, Recast, Wire
from reference.expert import Draw, Setting
from reference.moe import MoE
from reference.presets import preset

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw import ops
from hw.grouped import decoded
from hw.packed import PackedTensor

pytestmark = [
    # numpy, which interprets kernels, tells of infinities and NaN
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
    pytest.mark.skipif(os.environ.get(INTERPRET) != "1", reason=f"not run: {INTERPRET}=1 interprets kernels on a CPU"),
]

ROOT = Path(__file__).resolve().parent.parent
HW = Path(ops.__file__).resolve().parent.parent  # the copy of hw that is tested, which may be another's
NEAREST, SR = nm.Rounding.NEAREST_EVEN, nm.Rounding.STOCHASTIC
X = data("tails", 9, 96)
GROUPS = (0, 4, 4, 9)


# The seam.


def test_signatures_are_the_seams() -> None:
    judged = seam.implementation("triton", torch.device("cpu"))
    assert list(judged.functions) == list(seam.seam()) and not judged.absent
    assert all(function is getattr(ops, name) for name, function in judged.functions.items())
    assert (ops.Cast, ops.Recast, ops.Wire, ops.Operand) == (Cast, Recast, Wire, emulated.Operand)


ONLY = (
    "quantize_tokens NVFP4, NaN",
    "gate_up_glu NVFP4, normal",
    "gate_up_glu NVFP4 library, normal",
    "down_to_wire NVFP4, normal",
    "aggregate NVFP4, huge",
    "router_gradient NVFP4, normal",
    "grad_to_wire NVFP4, denormals",
    "row_scale NVFP4, normal",
    "grad_products BF16 library, normal",
    "glu_backward, NaN",
)


@pytest.mark.exhaustive
def test_validate_judges_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A case of each function that is fast in the interpreter, all shapes; and it is not vacuous."""
    before = torch.get_num_threads()
    status = validate.main(["--ops", "triton", "--device", "cpu", "--fast", "--rows", "16", "--only", *ONLY])
    lines = capsys.readouterr().out.splitlines()
    assert torch.get_num_threads() == before
    assert status == 0 and lines[-1].startswith("passed: "), lines
    assert "none differs" in lines[-1] and "not run" not in lines[-1].partition("recorded")[0]
    assert {line.split()[0] for line in lines[1:-1]} == {name.split()[0].rstrip(",") for name in ONLY}


# Widths, operands, scopes.


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46, nm.MXFP8, nm.MXFP4, nm.MXS2F6], ids=lambda fmt: fmt.name)
def test_widths_with_a_short_last_block(fmt: nm.BlockFormat) -> None:
    """Along features; the codes of what fills the block up are cut off."""
    scope = "row" if fmt.name.startswith("NV") else None
    for width in (1, 15, 40, 72):
        x = data("normal", 5, width)
        same("quantize_tokens", x, Cast(fmt, scope))
        if fmt in (nm.NVFP4, nm.MXFP8, nm.MXFP4):
            same("quantize_tokens", x, Cast(fmt, scope, SR), RANDOM)
    index, weights = torch.tensor([3, 0, 0, 4]), torch.tensor([[0.5], [-2.0], [0.0], [3e38]])
    same("grad_to_wire", x, index, weights, Cast(fmt, scope))


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46], ids=lambda fmt: fmt.name)
def test_outer_scopes(fmt: nm.BlockFormat) -> None:
    stack = data("row scales", 3, 5, 64)
    for scope in ("row", "tensor", "leading", None):
        same("quantize_tokens", stack, Cast(fmt, scope))
    for scope in ("row", "tensor", None):
        same("quantize_tokens", X, Cast(fmt, scope))
    same("quantize_tokens", stack, Cast(fmt, "row", NEAREST, "pow2"))
    if fmt is nm.NVFP4:
        same("quantize_tokens", stack, Cast(fmt, "leading", SR), RANDOM)


@pytest.mark.every(3)
@pytest.mark.parametrize("scope", ["tensor", "leading", None])
def test_tiles(scope: str | None) -> None:
    stack = data("NaN, Inf", 3, 20, 40)
    for axis in (-1, -2):
        same("quantize_tokens", stack, Cast(nm.NVFP4_2D, scope), axis=axis)
        if scope != "leading":
            same("quantize_tokens", X, Cast(nm.NVFP4_2D, scope), axis=axis)


def test_dtypes_and_strides() -> None:
    """Not contiguous, not aligned, float16, float64, a leaf that wants a gradient."""
    cast = Cast(nm.NVFP4_46, "row")
    misaligned = torch.cat([torch.zeros(1), X.flatten()])
    for x in (X.T.contiguous().T, X.half(), X.double() * 1.1, X.clone().requires_grad_(), misaligned[1:].view(9, 96)):
        same("quantize_tokens", x, cast)
    half = misaligned.bfloat16()[1:].view(9, 96)
    for axis in (-1, -2):
        same("quantize_tokens", half, Cast(nm.MXFP8), axis=axis)
    same("quantize_tokens", X, Cast(None))
    same("aggregate", X.double(), torch.tensor([[0, 3]]), torch.ones(1, 2).double(), Wire(None))
    q = nm.quantize(data("normal", 64, 9).T, nm.NVFP4, outer="row")
    turned = q.derived(codes=q.codes.T.contiguous().T, scales=q.scales.T.contiguous().T)
    same("requantize_transpose", turned, Recast(nm.MXFP8, "multiply"), GROUPS)
    same("requantize_transpose", turned, Recast(None), GROUPS)


def test_nothing() -> None:
    for shape in ((0, 64), (3, 0, 64), (0, 5, 64)):
        same("quantize_tokens", torch.zeros(shape), Cast(nm.NVFP4, "tensor"))
        same("quantize_tokens", torch.zeros(shape), Cast(nm.MXFP8))
        same("quantize_tokens", torch.zeros(shape), Cast(nm.NVFP4, "row", SR), RANDOM)
    same("quantize_tokens", torch.zeros(0, 64), Cast(nm.MXFP8), axis=-2, groups=(0, 0, 0))


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "fmt", [nm.NVFP4, nm.NVFP4_46, nm.NVFP4_2D, nm.MXFP8, nm.MXFP4, nm.MXS2F6], ids=lambda fmt: fmt.name
)
def test_recasts(fmt: nm.BlockFormat) -> None:
    """Codes to codes, of whole widths and of others; to BF16; with the other operand's outer scales."""
    rows = torch.linspace(-2, 2, 9)[:, None]
    scope = None if fmt.name.startswith("MX") else "tensor"
    for width in (64, 40):
        q = nm.quantize(data("tails", 9, width), fmt, outer=scope)
        same("requantize_transpose", q, Recast(nm.MXFP8, "multiply", SR), (0, 9), RANDOM)
        same("requantize_transpose", q, Recast(nm.MXFP8, "keep"), (0, 9))
        same("requantize_transpose", q, Recast(None), GROUPS, rows=rows)
    same("requantize_transpose", q, Recast(nm.NVFP4, "multiply", SR, "tensor"), GROUPS, RANDOM, rows)
    if fmt.name.startswith("NV") and fmt.tile == 1:
        q = nm.quantize(data("tails", 9, 64), fmt, outer="row")
        same("requantize_transpose", q, Recast(nm.MXFP8, "gradient"), (0, 9))
    same("row_scale", q, Recast(nm.MXFP8, "gradient"))


# Block tensors that kernels made.


@pytest.fixture(params=[nm.NVFP4_46, nm.MXFP8], ids=lambda fmt: fmt.name)
def pair(request: pytest.FixtureRequest) -> tuple[PackedTensor, nm.BlockTensor]:
    cast = Cast(request.param, "row" if request.param is nm.NVFP4_46 else None)
    found, expected = ops.quantize_tokens(X, cast), emulated.quantize_tokens(X, cast)
    assert isinstance(found, PackedTensor) and isinstance(expected, nm.BlockTensor)
    return found, expected


def alike(found: nm.BlockTensor, expected: nm.BlockTensor) -> None:
    for name in ("fmt", "rule", "axis", "groups", "outer_block", "shape"):
        assert getattr(found, name) == getattr(expected, name), name
    assert_bits(found.dequantize(), expected.dequantize())
    for f, e in zip(tensors(found), tensors(expected), strict=True):
        assert_bits(f.contiguous(), e.contiguous())


def test_a_packed_tensor_is_the_block_tensor(pair: tuple[PackedTensor, nm.BlockTensor]) -> None:
    found, expected = pair
    assert "_codes" not in vars(found) and found.shape == expected.shape
    assert_bits(found.packed(), expected.packed())
    alike(found, expected)
    alike(found.mT, expected.mT)
    alike(found.corner(2), expected.corner(2))
    alike(found.derived(outer=None), expected.derived(outer=None))
    alike(copy.copy(found), expected)
    assert repr(found) == repr(expected) and found._repr_html_() == expected._repr_html_()
    assert_bits(found.values(), expected.values())
    assert_bits(found.dequantize(torch.bfloat16), expected.dequantize(torch.bfloat16))
    assert_bits(found.scales_per_value(), expected.scales_per_value())


def test_rows_and_what_is_stored(pair: tuple[PackedTensor, nm.BlockTensor]) -> None:
    """In one launch; what comes back is a packed tensor again."""
    found, expected = pair
    index = torch.tensor([8, 0, 8, 3])
    for number in (index, index.int(), index[:0]):
        assert isinstance(found.rows(number), PackedTensor)
        alike(found.rows(number), expected.rows(number))
    for wrong in (index[None], index + 1, index - 9):
        with pytest.raises(ValueError, match="index"):
            found.rows(wrong)
    kept, make = found.stored()
    again = make([t.clone() for t in kept])
    assert isinstance(again, PackedTensor)
    alike(again, expected)
    other, _ = expected.stored()
    for f, e in zip(kept, other, strict=True):
        assert_bits(f, e)


@pytest.mark.parametrize("fmt", [nm.NVFP4_46, nm.MXFP8], ids=lambda fmt: fmt.name)
def test_codes_at_any_address(fmt: nm.BlockFormat) -> None:
    """Codes that start between words, as a slice of a file's bytes may."""
    q = nm.quantize(data("normal", 9, 64), fmt, outer="row" if fmt is nm.NVFP4_46 else None)
    store = torch.zeros(q.packed().numel() + 1, dtype=torch.uint8)
    store[1:] = q.packed().flatten()
    moved = PackedTensor.of(fmt, store[1:].view(q.packed().shape), q.scales, q.outer)
    for narrow in (False, True):
        assert_bits(decoded(moved, narrow)[0], decoded(q, narrow)[0])
    recast = Recast(nm.MXFP8, "multiply")
    assert_bits(tensors(ops.requantize_transpose(moved, recast))[0], tensors(ops.requantize_transpose(q, recast))[0])


def test_rows_under_the_outer_scale_of_the_tensor() -> None:
    cast, index = Cast(nm.NVFP4, "tensor"), torch.tensor([1, 1, 0])
    found, expected = ops.quantize_tokens(X, cast), emulated.quantize_tokens(X, cast)
    assert isinstance(found, nm.BlockTensor) and isinstance(expected, nm.BlockTensor)
    alike(found.rows(index), expected.rows(index))
    stack = ops.quantize_tokens(data("normal", 3, 2, 64), Cast(nm.NVFP4, "leading"))
    whole = emulated.quantize_tokens(data("normal", 3, 2, 64), Cast(nm.NVFP4, "leading"))
    assert isinstance(stack, nm.BlockTensor) and isinstance(whole, nm.BlockTensor)
    alike(stack.rows(index), whole.rows(index))


def test_a_packed_tensor_with_other_fields(pair: tuple[PackedTensor, nm.BlockTensor]) -> None:
    alike(replace(pair[0], outer=None), replace(pair[1], outer=None))


# Layers.


def layer(name: str, seam_functions: Any, last: bool, shared: bool) -> list[Tensor]:
    """Output and all gradients of a small layer of experts under a preset, one of which gets few tokens."""
    torch.manual_seed(3)
    moe = MoE(32, 3, 2, 32, 32)
    for p in moe.parameters():
        torch.nn.init.normal_(p, std=32**-0.5)
    x = torch.randn(1, 6, 32).to(torch.bfloat16).requires_grad_()
    recipe = preset(name)
    signs = {size: nm.hadamard_signs(size, (1, 0)) for size in SIZES}
    experts = recipe.last if last else recipe.experts
    out, balance = moe(x, Setting(seam_functions, experts, signs, 2, Draw(5, 6, 0), "exact", shared))
    (out.sum() + balance).backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(p.grad for p in moe.parameters() if p.grad is not None)]


@pytest.mark.every(9)
@pytest.mark.parametrize(
    ("name", "last"),
    [
        pytest.param("fourbit", False, id="fourbit-most layers"),
        pytest.param("bf16", False, id="bf16-most layers"),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in (("fourbit", True), ("mxfp8", False))),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in (("mxfp8", True), ("bf16", True))),
    ],
)
def test_a_layer_of_experts_has_the_emulators_bits(name: str, last: bool) -> None:
    """Forward and backward, products in exact sums. The router's gradient, whose sum has an order of its own, is the
    emulator's on both sides: it is fed by the kernels."""
    if last and preset(name).last == preset(name).experts:
        pytest.skip("all layers are the same")
    mixed = SimpleNamespace(**{**vars(ops), "router_gradient": emulated.router_gradient})
    expected, found = layer(name, emulated, last, False), layer(name, mixed, last, False)
    assert len(expected) > 4
    for f, e in zip(found, expected, strict=True):
        assert_bits(f, e)


def test_decoded_operands_are_exact() -> None:
    """What products multiply, in every layout: along features, along tokens in groups, in tiles."""
    stack = data("tails", 3, 20, 48)
    for fmt in (nm.NVFP4, nm.MXFP8, nm.MXS2F6, nm.NVFP4_2D):
        for q in (
            nm.quantize(stack, fmt),
            nm.quantize(stack, fmt, -2),
            nm.quantize(X, fmt),
            nm.quantize(X[:, :40], fmt),
        ):
            assert_bits(decoded(q)[0], q.values())
            assert_bits(decoded(q, narrow=True)[0], q.values().to(torch.bfloat16))
    q = nm.quantize(X, nm.MXFP8, -2, groups=GROUPS)
    assert_bits(decoded(q)[0], q.values())
