"""Contract: the expert's gradients come from stored codes, bit for bit, and from nothing else.

Oracle: `by_hand`, which walks expert by expert through plain numerics calls, never through the seam, in exact sums.
Flipping one bit of a saved code then has to change exactly what depends on it, to what `by_hand` computes from the
flipped code.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import numerics as nm
from numerics import ops
from numerics.swiglu import swiglu, swiglu_backward
from reference.expert import SHARED, Draw, ExpertMLP, Role, Routing, Setting, route
from reference.presets import preset
from reference.recipe import ExpertRecipe
from reference.saved import counting

T, K, E, D, F = 90, 3, 5, 64, 32
DRAW = Draw(seed=5, step=7, grain=1)
OPERANDS = ("x", "h", "w13", "w2", "payload")


@dataclass
class Case:
    x: Tensor
    weights: Tensor
    w13: Tensor
    w2: Tensor
    g: Tensor
    routing: Routing
    setting: Setting


def make_case(recipe: ExpertRecipe, accumulator: str = "exact") -> Case:
    generator = torch.Generator().manual_seed(3)
    chosen = torch.rand(T, E - 1, generator=generator).topk(K).indices.sort(-1).values  # the last expert gets no row
    signs = {size: nm.hadamard_signs(size, (1, 0)) for size in recipe.hadamard_sizes}
    return Case(
        x=torch.randn(T, D, generator=generator).bfloat16().requires_grad_(),
        weights=torch.rand(T, K, generator=generator).requires_grad_(),
        w13=(torch.randn(E, 2 * F, D, generator=generator) * D**-0.5).requires_grad_(),
        w2=(torch.randn(E, D, F, generator=generator) * F**-0.5).requires_grad_(),
        g=torch.randn(T, D, generator=generator).bfloat16(),
        routing=route(chosen, E),
        setting=Setting(ops, recipe, signs, layer=2, draw=DRAW, accumulator=accumulator),
    )


def run(case: Case) -> Tensor:
    return ExpertMLP.apply(case.x, case.weights, case.w13, case.w2, case.routing, case.setting)


def gradients(case: Case, out: Tensor) -> dict[str, Tensor]:
    inputs = (case.x, case.weights, case.w13, case.w2)
    grads = torch.autograd.grad(out, inputs, case.g, retain_graph=True)
    return dict(zip(("x", "weights", "w13", "w2"), grads, strict=True))


def quantized(case: Case) -> dict[str, nm.BlockTensor]:
    """Forward operands by plain calls, expert by expert."""
    recipe, routing = case.setting.recipe, case.routing
    x = nm.quantize(case.x.detach(), recipe.input.fmt, outer=recipe.input.outer).rows(routing.tokens)
    w13 = nm.quantize(case.w13.detach(), recipe.weight.fmt, outer=recipe.weight.outer)
    w2 = nm.quantize(case.w2.detach(), recipe.weight.fmt, outer=recipe.weight.outer)
    gate_up = torch.cat([_product(x, w13, e, rows) for e, rows in _groups(routing)]).bfloat16()
    h = nm.quantize(swiglu(*gate_up.chunk(2, -1)), recipe.hidden.fmt, outer=recipe.hidden.outer)
    y = torch.cat([_product(h, w2, e, rows) for e, rows in _groups(routing)])
    payload = nm.quantize(nm.hadamard(y, 32, case.setting.signs[32]), recipe.combine_fmt)
    return {"x": x, "h": h, "w13": w13, "w2": w2, "payload": payload, "gate_up": gate_up}


def _groups(routing: Routing) -> list[tuple[int, slice]]:
    return [(e, slice(i, j)) for e, (i, j) in enumerate(pairwise(routing.groups))]


def _product(a: nm.BlockTensor, w: nm.BlockTensor, e: int, rows: slice) -> Tensor:
    out = nm.matmul(a.values()[rows], w.values()[e])
    if a.outer is None:
        return out
    return out * (a.outer[rows] * w.outer[e])


def by_hand(case: Case, q: dict, g: Tensor) -> dict[str, Tensor]:
    """All gradients from the saved operands `q`, one expert at a time."""
    recipe, routing = case.setting.recipe, case.routing
    rows_of, weights = routing.slots, case.weights.detach()
    rotated = nm.hadamard(g.float(), 32, case.setting.signs[32])
    decoded = q["payload"].dequantize()
    d_weights = torch.stack([(rotated * decoded[rows_of[:, k]]).sum(-1) for k in range(K)], 1)
    weight_of_row, token_of_row = torch.zeros(T * K), torch.zeros(T * K, dtype=torch.int64)
    for t in range(T):
        for k in range(K):
            weight_of_row[rows_of[t, k]], token_of_row[rows_of[t, k]] = weights[t, k], t
    dx_rows, d_w13, d_w2 = torch.zeros(T * K, D), torch.zeros(E, 2 * F, D), torch.zeros(E, D, F)

    def words(role: Role, e: int) -> nm.Random:
        grain = 0 if role in (Role.W13, Role.W2) else DRAW.grain
        return nm.Random((DRAW.seed, DRAW.step), (2 * 64 + role, grain * E + e))

    def saved(name: str, role: Role, e: int, rows: slice | None) -> nm.BlockTensor:
        recast = recipe.saved_input if rows is not None else recipe.saved_weight
        operand = q[name].rows(torch.arange(T * K)[rows]) if rows is not None else _expert(q[name], e)
        outer = "drop" if recast.outer == "gradient" else recast.outer
        stochastic = recast.rounding is nm.Rounding.STOCHASTIC
        random = words(role, e) if stochastic else None
        return nm.requantize(operand, recast.fmt, -2, None, outer, recast.rounding, random)

    def grad(x: Tensor, role: Role, e: int, axis: int = -1) -> nm.BlockTensor:
        rounding = recipe.grad.rounding
        random = words(role, e) if rounding is nm.Rounding.STOCHASTIC else None
        return nm.quantize(x, nm.MXFP8, axis, rounding=rounding, random=random)

    def times_outer(x: Tensor, name: str, rows: slice) -> Tensor:
        return x * q[name].outer[rows] if recipe.saved_input.outer == "gradient" else x

    for e, rows in _groups(routing):
        dy = grad(g.float()[token_of_row[rows]] * weight_of_row[rows, None], Role.DY, e)
        dy_tokens = grad(times_outer(dy.dequantize(), "h", rows), Role.DY_TOKENS, e, 0)
        dh = nm.matmul(dy, saved("w2", Role.W2, e, None).mT)
        d_w2[e] = nm.matmul(dy_tokens.mT, saved("h", Role.H, e, rows).mT)
        dz = torch.cat(swiglu_backward(dh, *q["gate_up"][rows].chunk(2, -1)), -1).float()
        dx_rows[rows] = nm.matmul(grad(dz, Role.DZ, e), saved("w13", Role.W13, e, None).mT)
        dz_tokens = grad(times_outer(dz, "x", rows), Role.DZ_TOKENS, e, 0)
        d_w13[e] = nm.matmul(dz_tokens.mT, saved("x", Role.X, e, rows).mT)
        dx_rows[rows] = grad(dx_rows[rows], Role.DX, e).dequantize()
    dx = dx_rows[rows_of[:, 0]]
    for k in range(1, K):
        dx = dx + dx_rows[rows_of[:, k]]
    return {"x": dx.bfloat16(), "weights": d_weights, "w13": d_w13, "w2": d_w2}


def _expert(w: nm.BlockTensor, e: int) -> nm.BlockTensor:
    outer = None if w.outer is None else w.outer[e]
    return replace(w, codes=w.codes[e], scales=w.scales[e], outer=outer, axis=1)


LOW = preset("fourbit").experts
RECIPES = {
    "fourbit": LOW,
    "fourbit_rn": preset("fourbit_rn").experts,
    "last layers": preset("fourbit").last,
    "token outer left to the gradient": replace(LOW, saved_input=replace(LOW.saved_input, outer="gradient")),
    "stochastic gradients": replace(LOW, grad=replace(LOW.grad, rounding=nm.Rounding.STOCHASTIC)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_forward_and_backward_equal_the_walk_by_hand(name: str):
    case = make_case(RECIPES[name])
    out = run(case)
    q = quantized(case)
    decoded = q["payload"].dequantize()
    terms = [decoded[case.routing.slots[:, k]] * case.weights.detach()[:, k : k + 1] for k in range(K)]
    total = (terms[0] + terms[1]) + terms[2]  # in the order of experts
    expected = nm.hadamard_inverse(total, 32, case.setting.signs[32]).bfloat16()
    assert torch.equal(out, expected)
    wanted = by_hand(case, q, case.g)
    for key, grad in gradients(case, out).items():
        assert torch.equal(grad, wanted[key]), key
    assert not bool(wanted["w13"][E - 1].any())  # an expert without rows


def _saved(out: Tensor, part: int) -> dict[str, Tensor]:
    """The tensors that autograd keeps, by operand: part 0 the codes, 1 the scales, 2 the outer scales."""
    saved, counts = out.grad_fn.saved_tensors, [count for count, _ in out.grad_fn.operands]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return {n: saved[start + part] for n, start, count in zip(OPERANDS, starts, counts, strict=True) if part < count}


def _dependents(case: Case, operand: str, index: tuple[int, ...]) -> dict[str, Tensor]:
    """Which gradient entries may change when the code at `index` of `operand` does."""
    grads = {"x": (T, D), "weights": (T, K), "w13": (E, 2 * F, D), "w2": (E, D, F)}
    mask = {key: torch.zeros(shape, dtype=torch.bool) for key, shape in grads.items()}
    groups = case.routing.groups
    if operand in ("x", "h"):
        expert = next(e for e, (i, j) in enumerate(pairwise(groups)) if i <= index[0] < j)
        mask["w13" if operand == "x" else "w2"][expert, :, index[1]] = True  # wgrad: one column
        return mask
    if operand == "payload":
        mask["weights"] = case.routing.slots == index[0]
        return mask
    tokens = case.routing.tokens[groups[index[0]] : groups[index[0] + 1]]
    if operand == "w13":  # dgrad: one feature of the expert's rows, whose wire block then shares a scale
        start = index[2] // 32 * 32
        mask["x"][tokens, start : start + 32] = True
    else:  # w2: one dh column, hence d_gate, d_up of that column, and everything they reach
        mask["x"][tokens] = True
        mask["w13"][index[0], [index[2], F + index[2]]] = True
    return mask


@pytest.mark.parametrize("bit", [0, 1, 2])
@pytest.mark.parametrize("operand", OPERANDS)
def test_one_flipped_bit_changes_exactly_what_depends_on_it(operand: str, bit: int):
    case = make_case(LOW)
    out = run(case)
    q, before = quantized(case), gradients(case, out)
    kept = _saved(out, 0)[operand]
    assert torch.equal(kept, q[operand].packed())
    index = {"x": (9, 5), "h": (50, 30), "w13": (1, 40, 33), "w2": (2, 11, 3), "payload": (17, 20)}[operand]
    codes = q[operand].codes.clone()
    codes[index] ^= 1 << bit
    packed = q[operand].fmt.element.bits == 4  # two codes to a byte
    kept.data[(*index[:-1], index[-1] // (1 + packed))] ^= 1 << bit + 4 * (packed and index[-1] % 2)
    flipped = dict(q)
    flipped[operand] = replace(q[operand], codes=codes)
    after, wanted, mask = gradients(case, out), by_hand(case, flipped, case.g), _dependents(case, operand, index)
    changed = 0
    for key in after:
        assert torch.equal(after[key], wanted[key]), key
        differs = after[key] != before[key]
        assert not bool((differs & ~mask[key]).any()), key
        changed += int(differs.sum())
    assert changed > 0


@pytest.mark.parametrize("part", ["scales", "outer"])
@pytest.mark.parametrize("operand", ["x", "h", "w13", "w2"])
def test_scales_and_outers_are_read_from_what_was_saved(operand: str, part: str):
    case = make_case(LOW)
    out = run(case)
    q, before = quantized(case), gradients(case, out)
    kept = _saved(out, 1 if part == "scales" else 2)[operand]
    index = (3,) + (0,) * (kept.ndim - 1)
    kept.data[index] = kept.data[index] - 8 if part == "scales" else kept.data[index] / 2  # half of it
    flipped = dict(q)
    flipped[operand] = replace(q[operand], **{part: kept.clone()})
    after, wanted = gradients(case, out), by_hand(case, flipped, case.g)
    assert all(torch.equal(after[key], wanted[key]) for key in after)
    assert any(not torch.equal(after[key], before[key]) for key in after)


def test_gradient_follows_the_unquantized_function():
    """Straight-through: close to autograd through the same formula in float64; BF16's own rounding is the bound."""
    case = make_case(preset("bf16").experts, accumulator="library")
    got = gradients(case, run(case))
    x, weights, w13, w2 = (t.detach().double().requires_grad_() for t in (case.x, case.weights, case.w13, case.w2))
    total = torch.zeros(T, D, dtype=torch.float64)
    for e, rows in _groups(case.routing):
        tokens = case.routing.tokens[rows]
        gate, up = (x[tokens] @ w13[e].T).chunk(2, -1)
        y = (torch.nn.functional.silu(gate) * up) @ w2[e].T
        weight = weights.flatten()[torch.argsort(case.routing.slots.flatten())][rows]
        total = total.index_add(0, tokens, y * weight[:, None])
    wanted = torch.autograd.grad(total, (x, weights, w13, w2), case.g.double())
    for key, grad in zip(("x", "weights", "w13", "w2"), wanted, strict=True):
        # a handful of BF16 roundings (2^-9 rms each, relative) in a chain of four products
        assert nm.metrics.error(grad, got[key]).rel_mse < (8 * 2.0**-9) ** 2, key


@pytest.mark.parametrize(("name", "noise"), [("mxfp8", 0.0014), ("fourbit", 0.0166), ("fourbit_rn", 0.0166)])
def test_gradients_point_where_bf16_points(name: str, noise: float):
    """`noise` is a product's relMSE, that of its two operands together. The longest chain, to the router, has two
    such products and SwiGLU, which multiplies two noisy factors, between them: about 4 noises, so cos^2 = 1 / (1 + 4
    noise); half of that again is allowed for."""
    reference = gradients(c := make_case(preset("bf16").experts, "library"), run(c))
    got = gradients(c := make_case(preset(name).experts, "library"), run(c))
    for key in got:
        assert nm.metrics.cosine(got[key], reference[key]) > (1 + 6 * noise) ** -0.5, key


def test_wgrad_is_unbiased_for_one_fixed_gradient():
    """The product with the mean of n draws converges as 1/n: relMSE falls 64-fold from 1 to 64 draws."""
    x = torch.randn(128, 256, generator=torch.Generator().manual_seed(1))
    g = nm.quantize(torch.randn(128, 64, generator=torch.Generator().manual_seed(2)), nm.MXFP8, axis=0)
    q = nm.quantize(x, nm.NVFP4_46, outer="row")
    exact = g.dequantize().double().T @ q.dequantize().double()
    total, errors = torch.zeros_like(exact), []
    for draw in range(64):
        again = ops.requantize_transpose(q, LOW.saved_input, [0, 50, 128], nm.Random((9, draw)))
        total += nm.matmul(g.mT, again.mT, "library").double()
        errors.append(nm.metrics.error(exact, total / (draw + 1)).rel_mse)
    # each error is a mean over 256 independent columns of 64 correlated rows: it spreads by at most sqrt(2 / 256) = 9 %
    # and the ratio by 12 %; three times that is allowed
    assert errors[0] / errors[63] == pytest.approx(64, rel=0.36)


def test_draws_differ_between_steps_layers_roles_and_grains():
    groups = (0, 3, 3, 8, 9, 9)
    draws = [(draw, layer) for draw in (DRAW, replace(DRAW, step=8), replace(DRAW, seed=6)) for layer in (0, 1)]
    seen = [(d.random(64 * layer, role, groups), role) for d, layer in draws for role in Role]
    seen += [(replace(DRAW, grain=2).random(0, role, groups), role) for role in Role if role not in (Role.W13, Role.W2)]
    names = {(r.key, r.counter) for r, _ in seen}
    assert len(names) == len(seen) == 6 * len(Role) + len(Role) - 2
    assert all((r.rows == groups) == (role in (Role.DY, Role.DZ, Role.DX)) for r, role in seen)
    assert replace(DRAW, grain=2).random(64, Role.W2, groups) == DRAW.random(64, Role.W2, groups)  # once a step
    assert max(Role) < SHARED and SHARED + max(Role) < 64  # a layer's roles stay below the next layer's


def test_route_sorts_by_expert_then_token():
    chosen = torch.tensor([[0, 2], [1, 2], [0, 1]])
    routing = route(chosen, 4)
    assert routing.groups == (0, 2, 4, 6, 6)
    assert routing.tokens.tolist() == [0, 2, 1, 2, 0, 1]
    assert routing.slots.tolist() == [[0, 4], [2, 5], [1, 3]]


@pytest.mark.parametrize("name", ["bf16", "mxfp8", "fourbit", "fourbit_originals", "nvfp4_nvidia"])
def test_gate_and_up_computed_again_have_the_same_bits(name: str):
    case = make_case(preset(name).experts, "library")
    first = gradients(case, run(case))
    case.setting = replace(case.setting, recompute_glu=True)
    again = gradients(case, run(case))
    assert all(torch.equal(first[key], again[key]) for key in first)


def _kept(recipe: ExpertRecipe, width: int, **setting: bool) -> dict[str, int]:
    """Bytes kept of x and h (codes, scales, outers), and of everything, of R rows of a layer of that width."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, width, generator=generator).bfloat16().requires_grad_()
    w13, w2 = (torch.randn(2, n, width, generator=generator, requires_grad=True) for n in (2 * width, width))
    chosen = torch.stack([torch.zeros(64, dtype=torch.int64), torch.ones(64, dtype=torch.int64)], -1)
    signs = {size: nm.hadamard_signs(size, (1, 0)) for size in recipe.hadamard_sizes}
    place = Setting(ops, recipe, signs, 0, DRAW, **setting)
    out = ExpertMLP.apply(x, torch.ones(64, 2), w13, w2, route(chosen, 2), place)
    counts, saved = [count for count, _ in out.grad_fn.operands], out.grad_fn.saved_tensors
    return {"x and h": sum(t.nbytes for t in saved[: sum(counts[:2])]), "all": sum(t.nbytes for t in saved)}


@pytest.mark.parametrize("width", [256, 512])
def test_saved_operands_are_packed(width: int):
    """x and h under fourbit: 4.5 bits a value and 32 a row, at most 0.29 of the 16 of BF16."""
    plain, four = (_kept(preset(name).experts, width) for name in ("bf16", "fourbit"))
    rows = 128
    assert plain["x and h"] == 2 * rows * width * 2
    assert four["x and h"] == 2 * rows * (width * 9 // 16 + 4)
    assert four["x and h"] <= 0.29 * plain["x and h"]
    without = _kept(preset("fourbit").experts, width, recompute_glu=True)
    assert four["all"] - without["all"] == rows * 2 * width * 2  # gate and up in BF16


def test_counting_sees_what_autograd_keeps():
    model = torch.nn.Linear(8, 4, bias=False)
    x = torch.randn(16, 8)
    with counting(model) as sizes:
        y = model(x).square()  # keeps x, the product once, and the weight, which is a parameter
    assert y.shape == (16, 4) and sum(sizes) == x.nbytes + 16 * 4 * 4
