"""Contract: each operation of the seam does what its docstring says, in the order it says.

Oracle: the formula in plain torch, element order written out. The whole path is checked in test_expert.py.
"""

import inspect

import pytest
import torch

import numerics as nm
from numerics import ops

GROUPS = (0, 3, 3, 8)


def _data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_public_operations_are_documented_and_typed():
    functions = {n: f for n, f in vars(ops).items() if inspect.isfunction(f) and f.__module__ == ops.__name__}
    assert set(functions) == {
        "aggregate",
        "down_to_wire",
        "gate_up_glu",
        "glu_backward",
        "grad_products",
        "grad_to_wire",
        "quantize_tokens",
        "requantize_transpose",
        "router_gradient",
        "row_scale",
    }
    for name, function in functions.items():
        assert function.__doc__, name
        parameters = inspect.signature(function).parameters.values()
        assert all(p.annotation is not p.empty for p in parameters), name


def test_gate_up_rounds_once_after_the_outer_scales():
    x = nm.quantize(_data(8, 64), nm.NVFP4_46, outer="row")
    w = nm.quantize(_data(3, 2 * 32, 64, seed=1), nm.NVFP4, outer="leading")
    h, gate_up = ops.gate_up_glu(x, w, GROUPS, ops.Cast(nm.NVFP4_46, "row"), "exact")
    sums = nm.matmul(x.values()[3:], w.values()[2])
    assert torch.equal(gate_up[3:], (sums * (x.outer[3:] * w.outer[2])).bfloat16())
    gate, up = gate_up.chunk(2, dim=-1)
    silu = torch.nn.functional.silu(gate.double()).bfloat16()  # no value here sits near a tie
    wanted = nm.quantize((silu.float() * up.float()).bfloat16(), nm.NVFP4_46, outer="row")
    assert torch.equal(h.codes, wanted.codes) and torch.equal(h.outer, wanted.outer)


@pytest.mark.parametrize("weighted", [True, False])
def test_aggregate_adds_in_expert_order_and_inverts_once(weighted: bool):
    """Three experts per token: two would commute."""
    signs = nm.hadamard_signs(32, (1, 1))
    payload = nm.quantize(nm.hadamard(_data(12, 64) * 20, 32, signs), nm.MXS2F6)
    slots = torch.tensor([[0, 4, 8], [1, 7, 9], [2, 3, 11], [5, 6, 10]])
    weights = _data(4, 3, seed=2).abs() if weighted else None
    out, decoded = ops.aggregate(payload, slots, weights, ops.Wire(nm.MXS2F6, signs))
    assert torch.equal(decoded, payload.dequantize())
    order_matters = False
    for t in range(4):
        a, b, c = (decoded[slots[t, k]] * (weights[t, k] if weighted else 1.0) for k in range(3))
        assert torch.equal(out[t], nm.hadamard_inverse((a + b) + c, 32, signs).bfloat16())
        order_matters |= not torch.equal((a + b) + c, (c + b) + a)
    assert order_matters == weighted  # unweighted values of these blocks have few bits: their sums are exact


def test_a_plain_operand_is_cut_into_groups_too():
    x = _data(8, 32).bfloat16()
    got = ops.requantize_transpose(x, ops.Recast(nm.MXFP8), GROUPS)
    for i, j in ((0, 3), (3, 8)):
        assert torch.equal(got.codes[i:j], nm.quantize(x[i:j], nm.MXFP8, axis=0).codes)


def test_a_token_scale_can_move_to_the_gradient():
    """x * outer and g, or x and g * outer: the same sum where the powers of two absorb the outer scale exactly."""
    x = nm.quantize(_data(8, 64), nm.NVFP4_46, outer="row", outer_rounding="pow2")
    recast = ops.Recast(nm.MXFP8, "gradient")
    scale = ops.row_scale(x, recast)
    assert scale is x.outer and ops.row_scale(x, ops.Recast(nm.MXFP8, "multiply")) is None
    g = nm.quantize(_data(8, 32, seed=1), nm.MXFP8)
    moved = ops.requantize_transpose(g, ops.Recast(nm.MXFP8), GROUPS, None, scale)
    assert torch.equal(moved.codes, nm.quantize(g.dequantize() * x.outer, nm.MXFP8, axis=0, groups=GROUPS).codes)
    bare = ops.requantize_transpose(x, recast, GROUPS)
    assert torch.equal(bare.codes, nm.quantize(x.values(), nm.MXFP8, axis=0, groups=GROUPS).codes)
    with pytest.raises(ValueError, match="outer='drop' of a recast: use 'keep', 'multiply' or 'gradient'"):
        ops.Recast(nm.MXFP8, "drop")


def test_bf16_wire_and_operands_are_plain_roundings():
    x, plain = _data(8, 64), ops.Cast(None)
    assert torch.equal(ops.quantize_tokens(x, plain), x.bfloat16())
    assert torch.equal(ops.requantize_transpose(x.bfloat16(), ops.Recast(None)), x.bfloat16())
    w = _data(3, 32, 64, seed=1).bfloat16()
    y = ops.down_to_wire(x.bfloat16(), w, GROUPS, ops.Wire(None), "exact")
    assert torch.equal(y[:3], nm.matmul(x.bfloat16()[:3], w[0]).bfloat16())


def test_router_gradient_is_that_of_aggregate():
    """In float64: d<g, out> / d weight, through an orthogonal transform, is <H g, decoded>."""
    signs = nm.hadamard_signs(32, (2, 2))
    decoded, g = _data(6, 32), _data(3, 32, seed=3).bfloat16()
    slots = torch.tensor([[0, 3], [1, 4], [2, 5]])
    got = ops.router_gradient(g, decoded, slots, ops.Wire(nm.MXS2F6, signs))
    back = nm.hadamard_inverse(decoded, 32, signs).double()
    wanted = (g.double()[:, None] * back[slots]).sum(-1)
    # 5 butterfly stages, the factor, 32 products summed: each of 40 roundings moves the sum by 2^-24 of |g| |decoded|
    bound = 40 * 2.0**-24 * g.double().norm(dim=-1, keepdim=True) * decoded.norm(dim=-1).max()
    assert bool(((got - wanted).abs() <= bound).all())


def test_grad_to_wire_weighs_before_it_rounds():
    g, tokens, weights = _data(4, 64).bfloat16(), torch.tensor([0, 2, 2, 3, 1]), _data(5, 1, seed=4).abs()
    got = ops.grad_to_wire(g, tokens, weights, ops.Cast(nm.MXFP8))
    assert torch.equal(got.codes, nm.quantize(g.float()[tokens] * weights, nm.MXFP8).codes)


def test_requantize_transpose_keeps_groups_apart_and_weights_outer_outside():
    q = nm.quantize(_data(8, 32), nm.NVFP4_46, outer="row")
    recast = ops.Recast(nm.MXFP8, "multiply")
    got = ops.requantize_transpose(q, recast, GROUPS)
    assert got.axis == 0 and got.scales.shape == (2, 32) and got.outer is None
    assert torch.equal(got.codes[3:], nm.quantize(q.dequantize()[3:], nm.MXFP8, axis=0).codes)
    w = nm.quantize(_data(3, 64, 32, seed=1), nm.NVFP4, outer="leading")
    again = ops.requantize_transpose(w, ops.Recast(nm.MXFP8, "keep", nm.Rounding.STOCHASTIC), None, nm.Random((1, 1)))
    assert again.axis == 1 and again.outer is w.outer
    # E4M3 holds the six significand bits of code x scale to four: a step of at most 2^-3 of the value, or of the
    # block's subnormal quantum
    step = torch.maximum(
        w.values().abs() * 2.0**-3, again.scales.repeat_interleave(32, 1).int().sub(127).float().exp2() * 2.0**-9
    )
    assert bool(((again.values() - w.values()).abs() <= step).all())


def test_grad_products_transpose_nothing_twice():
    g, w, x = _data(8, 32), _data(3, 32, 64, seed=1), _data(8, 64, seed=2)
    dx, dw = ops.grad_products(g, g, w, x, GROUPS, "exact")
    for e, (i, j) in enumerate(((0, 3), (3, 3), (3, 8))):
        assert torch.equal(dx[i:j], nm.matmul(g[i:j], w[e].T.contiguous()))
        assert torch.equal(dw[e], nm.matmul(g[i:j].T.contiguous(), x[i:j].T.contiguous()))
