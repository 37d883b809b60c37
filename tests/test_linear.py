"""Contract: the three products of one linear layer under a recipe come from stored codes, bit for bit.

Oracle: `by_hand`, plain numerics calls on two-axis tensors, never through the seam, in exact sums. Flipping one bit of
a saved code has to change exactly what depends on it, to what `by_hand` computes from the flipped code; and, without
any format, the gradients are those of the formula in float64.
"""

import os
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import numerics as nm
from numerics import ops
from reference.expert import Draw, Role, Setting
from reference.linear import LinearUnder, blocks
from reference.presets import PRESETS, preset
from reference.recipe import ExpertRecipe

T, K, N = 75, 96, 64
DRAW = Draw(seed=5, step=7, grain=2)
NUMBER = 3
LOW = preset("fourbit").experts
RECIPES = {
    "fourbit": LOW,
    "fourbit_rn": preset("fourbit_rn").experts,
    "last layers": preset("fourbit").last,
    "token outer left to the gradient": replace(LOW, saved_input=replace(LOW.saved_input, outer="gradient")),
    "stochastic gradients": preset("fourbit_sr_gradients").experts,
    "originals": preset("fourbit_originals").experts,
}


@dataclass
class Case:
    x: Tensor
    w: Tensor
    bias: Tensor
    g: Tensor
    setting: Setting


def make(recipe: ExpertRecipe, accumulator: str = "exact", dtype: torch.dtype = torch.float32) -> Case:
    generator = torch.Generator().manual_seed(3)
    x, w, bias, g = (torch.randn(*shape, generator=generator) for shape in ((T, K), (N, K), (N,), (T, N)))
    signs = {size: nm.hadamard_signs(size, (1, 0)) for size in recipe.hadamard_sizes}
    setting = Setting(ops, recipe, signs, NUMBER, DRAW, accumulator)
    leaves = (t.to(dtype).requires_grad_() for t in (x, w * K**-0.5, bias))
    return Case(*leaves, g.to(dtype), setting)


def run(case: Case) -> tuple[Tensor, dict[str, Tensor]]:
    out = LinearUnder.apply(case.x, case.w, case.bias, case.setting)
    return out, gradients(case, out)


def gradients(case: Case, out: Tensor) -> dict[str, Tensor]:
    grads = torch.autograd.grad(out, (case.x, case.w, case.bias), case.g, retain_graph=True)
    return dict(zip(("x", "w", "bias"), grads, strict=True))


def quantized(case: Case) -> dict[str, nm.BlockTensor]:
    recipe = case.setting.recipe
    outer = "tensor" if recipe.weight.outer == "leading" else recipe.weight.outer
    return {
        "x": nm.quantize(case.x.detach(), recipe.input.fmt, outer=recipe.input.outer),
        "w": nm.quantize(case.w.detach(), recipe.weight.fmt, outer=outer),
    }


def by_hand(case: Case, q: dict[str, nm.BlockTensor]) -> dict[str, Tensor]:
    recipe, g = case.setting.recipe, case.g

    def words(role: Role, stochastic: bool) -> nm.Random | None:
        grain = 0 if role is Role.W13 else DRAW.grain
        return nm.Random((DRAW.seed, DRAW.step), (NUMBER * 64 + role, grain)) if stochastic else None

    def saved(name: str, role: Role, recast: ops.Recast) -> nm.BlockTensor:
        random = words(role, recast.rounding is nm.Rounding.STOCHASTIC)
        if recipe.originals:
            source = {"x": case.x, "w": case.w}[name].detach()
            return nm.quantize(source, recast.fmt, -2, rounding=recast.rounding, random=random)
        outer = "drop" if recast.outer == "gradient" else recast.outer
        return nm.requantize(q[name], recast.fmt, -2, None, outer, recast.rounding, random)

    def grad(values: Tensor, role: Role, axis: int) -> nm.BlockTensor:
        rounding = recipe.grad.rounding
        random = words(role, rounding is nm.Rounding.STOCHASTIC)
        return nm.quantize(values, nm.MXFP8, axis, rounding=rounding, random=random)

    rows = g * q["x"].outer if recipe.saved_input.outer == "gradient" else g
    w, x = saved("w", Role.W13, recipe.saved_weight), saved("x", Role.X, recipe.saved_input)
    return {
        "x": nm.matmul(grad(g, Role.DZ, -1), w.mT),
        "w": nm.matmul(grad(rows, Role.DZ_TOKENS, 0).mT, x.mT),
        "bias": g.sum(0),
    }


@pytest.mark.parametrize("name", RECIPES)
def test_all_three_products_equal_plain_calls(name: str) -> None:
    case = make(RECIPES[name])
    out, grads = run(case)
    q = quantized(case)
    product = nm.matmul(q["x"].values(), q["w"].values())
    if q["x"].outer is not None:
        product = product * (q["x"].outer * q["w"].outer)
    assert torch.equal(out, product.bfloat16().float() + case.bias)
    wanted = by_hand(case, q)
    for key, grad in grads.items():
        assert torch.equal(grad, wanted[key]), key


@pytest.mark.parametrize("bit", [0, 1, 2])
@pytest.mark.parametrize("operand", ["x", "w"])
def test_one_flipped_bit_of_a_saved_code_changes_exactly_what_depends_on_it(operand: str, bit: int) -> None:
    case = make(LOW)
    out, before = run(case)
    q = quantized(case)
    kept = out.grad_fn.saved_tensors[0 if operand == "x" else out.grad_fn.operands[0][0]]
    assert torch.equal(kept.view(-1), q[operand].packed().view(-1))  # two codes to a byte
    row, column = index = {"x": (9, 5), "w": (40, 33)}[operand]
    codes = q[operand].codes.clone()
    codes[index] ^= 1 << bit
    kept.data.view(-1)[(row * K + column) // 2] ^= 1 << bit + 4 * (column % 2)
    after = gradients(case, out)
    wanted = by_hand(case, {**q, operand: replace(q[operand], codes=codes)})
    mask = {key: torch.zeros_like(grad, dtype=torch.bool) for key, grad in before.items()}
    # a code of x is in one column of wgrad, a code of w in one column of dgrad
    mask["w" if operand == "x" else "x"][:, column] = True
    assert any(not torch.equal(after[key], before[key]) for key in after)
    for key in after:
        assert torch.equal(after[key], wanted[key]), key
        assert not bool(((after[key] != before[key]) & ~mask[key]).any()), key


def test_gradients_without_formats_are_those_of_the_formula() -> None:
    case = make(preset("bf16").experts, "library")
    out, grads = run(case)
    x, w, bias = (t.detach().double().requires_grad_() for t in (case.x, case.w, case.bias))
    y = x @ w.T + bias
    wanted = torch.autograd.grad(y, (x, w, bias), case.g.double())
    for got, exact in zip((out, *grads.values()), (y, *wanted), strict=True):
        # three roundings to BF16, 2^-9 rms each and relative, of two operands and a result
        assert nm.metrics.error(exact.detach(), got.detach()).rel_mse < 3 * 2.0**-18


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_takes_widths_that_its_blocks_divide_and_any_number_of_rows(name: str) -> None:
    recipe = preset(name).experts
    outputs, inputs = (-(-48 // multiple) * multiple for multiple in reversed(blocks(recipe)))
    signs = {size: nm.hadamard_signs(size, (1, 0)) for size in recipe.hadamard_sizes}
    setting = Setting(ops, recipe, signs, 0, DRAW)
    for rows in (0, 1, 33):
        x, w = torch.randn(rows, inputs, requires_grad=True), torch.randn(outputs, inputs, requires_grad=True)
        y = LinearUnder.apply(x, w, None, setting)
        y.backward(torch.randn(rows, outputs))
        assert y.shape == (rows, outputs) and bool(y.isfinite().all())
        assert bool(x.grad.isfinite().all()) and bool(w.grad.isfinite().all())
        assert rows or not bool(w.grad.any())


def test_bfloat16_masters_get_bfloat16_gradients_of_the_same_products() -> None:
    case = make(LOW, dtype=torch.bfloat16)
    out, grads = run(case)
    assert out.dtype == torch.bfloat16 and {g.dtype for g in grads.values()} == {torch.bfloat16}
    wide = Case(
        *(t.detach().float().requires_grad_() for t in (case.x, case.w, case.bias)), case.g.float(), case.setting
    )
    wide_out, wide_grads = run(wide)
    assert torch.equal(out, wide_out.bfloat16())
    for key, grad in grads.items():
        assert torch.equal(grad, wide_grads[key].bfloat16()), key


def test_what_needs_no_gradient_gets_none_and_a_second_derivative_is_refused() -> None:
    case = make(LOW)
    frozen = case.w.detach()
    out = LinearUnder.apply(case.x, frozen, None, case.setting)
    (dx,) = torch.autograd.grad(out, case.x, case.g)
    assert torch.equal(dx, run(case)[1]["x"])
    out = LinearUnder.apply(case.x, case.w, None, case.setting)
    (dx,) = torch.autograd.grad(out, case.x, case.g.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_saved_for_the_backward_are_codes_alone() -> None:
    """fourbit keeps 4.5 bits of a value of x and w, and 32 of a row of x and of w as a whole; a BF16 layer 16."""
    case = make(LOW)
    saved = LinearUnder.apply(case.x, case.w, None, case.setting).grad_fn.saved_tensors
    values = T * K + N * K
    assert sum(t.nbytes for t in saved) * 8 == 4.5 * values + 32 * (T + 1)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="not run: TRITON_INTERPRET=1 interprets kernels")
def test_kernels_in_the_interpreter_have_the_same_bits() -> None:
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    from hw import ops as kernels

    case = make(LOW)
    out, grads = run(case)
    case.setting = replace(case.setting, ops=kernels)
    again, same = run(case)
    assert torch.equal(out, again) and all(torch.equal(grads[key], same[key]) for key in grads)
