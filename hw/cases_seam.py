"""Cases of `validate`: the operations of the expert path, `numerics.ops`, in NVFP4, MXFP8 and BF16."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import torch

import numerics as nm
from numerics import ops

from .cases import DATA, EXPERTS, SOME, Cut, Draw, Inputs, Operation, Outputs, parts

# The seam: operations of the expert path. D = 128 model width, F = 64 expert width, two experts for each token.


@dataclass(frozen=True)
class ExpertPath:
    """Formats of one expert path, and the data that it meets here."""

    name: str
    activation: ops.Cast
    weight: ops.Cast
    saved_weight: ops.Recast
    saved_input: ops.Recast
    wire: ops.Wire
    data: tuple[str, ...]
    grad: ops.Cast = field(default_factory=lambda: ops.Cast(nm.MXFP8))


def _paths() -> list[ExpertPath]:
    stochastic, signs = nm.Rounding.STOCHASTIC, nm.hadamard_signs(32, (0, 0))
    weight, saved = ops.Recast(nm.MXFP8, "keep", stochastic), ops.Recast(nm.MXFP8, "multiply", stochastic)
    mx, near, coded = ops.Cast(nm.MXFP8), ops.Recast(nm.MXFP8), ops.Wire(nm.MXS2F6, signs)
    activation, plain = ops.Cast(nm.NVFP4_46, "row"), ops.Cast(None)
    return [
        ExpertPath("NVFP4", activation, ops.Cast(nm.NVFP4, "leading"), weight, saved, coded, tuple(DATA)),
        ExpertPath("MXFP8", mx, mx, near, near, coded, SOME),
        ExpertPath("BF16", plain, plain, ops.Recast(None), ops.Recast(None), ops.Wire(None), SOME, plain),
    ]


def _forward_operations(p: ExpertPath) -> list[Operation]:
    def tokens(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 128), "groups": d.groups, "random": nm.Random((3, 8), (66, 30))}

    def quantize_tokens(i: Inputs) -> Outputs:
        payload = ops.quantize_tokens(i["x"], p.activation)
        cast = replace(p.grad, rounding=nm.Rounding.STOCHASTIC)
        grad = ops.quantize_tokens(i["x"], cast, i["random"], i["groups"], -2)
        return parts("payload", payload) | parts("along rows", grad)

    def operands(n: int, k: int, d: Draw) -> Inputs:
        w = ops.quantize_tokens(d.normal(EXPERTS, n, k), p.weight)
        return {"x": ops.quantize_tokens(d.tested(d.rows, k), p.activation), "w": w, "groups": d.groups}

    def gate_up_glu(i: Inputs) -> Outputs:
        h, gate_up = ops.gate_up_glu(i["x"], i["w"], i["groups"], p.activation, "exact")
        return {"gate_up": gate_up} | parts("h", h)

    def down_to_wire(i: Inputs) -> Outputs:
        return parts("payload", ops.down_to_wire(i["x"], i["w"], i["groups"], p.wire, "exact"))

    def payload(d: Draw) -> Inputs:
        n = d.rows // 2 * 2
        fmt, x, slots = p.wire.fmt, d.tested(n, 128), torch.from_numpy(d.rng.permutation(n)).view(-1, 2)
        q = x.to(torch.bfloat16) if fmt is None else nm.quantize(x, fmt)
        return {"payload": q, "slots": slots, "weights": d.normal(n // 2, 2)}

    def aggregate(i: Inputs) -> Outputs:
        out, decoded = ops.aggregate(i["payload"], i["slots"], i["weights"], p.wire)
        unweighted, _ = ops.aggregate(i["payload"], i["slots"], None, p.wire)
        return {"out": out, "unweighted": unweighted, "decoded": decoded.index_select(0, i["slots"].flatten())}

    by_expert, tokens_cut = Cut(0, ("x",), ("w",)), Cut(0, ("slots", "weights"))
    bf16 = (torch.bfloat16,)
    return [
        Operation(f"quantize_tokens {p.name}", tokens, quantize_tokens, Cut(0, ("x",), ()), p.data, bf16),
        Operation(f"gate_up_glu {p.name}", partial(operands, 128, 128), gate_up_glu, by_expert, p.data, bf16),
        Operation(f"down_to_wire {p.name}", partial(operands, 128, 64), down_to_wire, by_expert, p.data, bf16),
        Operation(f"aggregate {p.name}", payload, aggregate, tokens_cut, p.data, (torch.float32,)),
    ]


def _backward_operations(p: ExpertPath) -> list[Operation]:
    rounds = {"random": nm.Random((2, 6), (131, 50))}

    def gradient(d: Draw) -> Inputs:
        tokens = torch.from_numpy(d.rng.integers(0, d.rows // 2, d.rows))
        return {"g": d.tested(d.rows // 2, 128), "tokens": tokens, "weights": d.normal(d.rows, 1)}

    def grad_to_wire(i: Inputs) -> Outputs:
        return parts("payload", ops.grad_to_wire(i["g"], i["tokens"], i["weights"], p.grad))

    def saved(d: Draw) -> Inputs:
        w = ops.quantize_tokens(d.tested(EXPERTS, 64, 128), p.weight)
        return {"q": ops.quantize_tokens(d.tested(d.rows, 128), p.activation), "w": w, "groups": d.groups} | rounds

    def requantize_transpose(i: Inputs) -> Outputs:
        x = ops.requantize_transpose(i["q"], p.saved_input, i["groups"], i["random"])
        return parts("input", x) | parts("weight", ops.requantize_transpose(i["w"], p.saved_weight, None, i["random"]))

    def operands(d: Draw) -> Inputs:
        g, q = d.tested(d.rows, 64), ops.quantize_tokens(d.normal(d.rows, 128), p.activation)
        w = ops.quantize_tokens(d.normal(EXPERTS, 64, 128), p.weight)
        return {
            "g": ops.quantize_tokens(g, p.grad),
            "g_tokens": ops.quantize_tokens(g, p.grad, groups=d.groups, axis=-2),
            "w": ops.requantize_transpose(w, p.saved_weight, None, **rounds),
            "x": ops.requantize_transpose(q, p.saved_input, d.groups, **rounds),
            "groups": d.groups,
        }

    def grad_products(i: Inputs) -> Outputs:
        dx, dw = ops.grad_products(i["g"], i["g_tokens"], i["w"], i["x"], i["groups"], "exact")
        return {"dx": dx, "dw": dw}

    fp32 = (torch.float32,)
    rows, by_expert, by_column = Cut(0, ("tokens", "weights")), Cut(0, ("q",), ("w",)), Cut(-1, ("w", "x"))
    return [
        Operation(f"grad_to_wire {p.name}", gradient, grad_to_wire, rows, p.data, fp32),
        Operation(f"requantize_transpose {p.name}", saved, requantize_transpose, by_expert, p.data, (torch.bfloat16,)),
        Operation(f"grad_products {p.name}", operands, grad_products, by_column, p.data, fp32),
    ]


def seam_operations() -> list[Operation]:
    """Every operation, in each of the number formats."""

    def hidden(d: Draw) -> Inputs:
        return {"dh": d.tested(d.rows, 64, dtype=torch.float32), "gate_up": d.tested(d.rows, 128)}

    def glu_backward(i: Inputs) -> Outputs:
        return {"d_gate_up": ops.glu_backward(i["dh"], i["gate_up"])}

    last = Operation("glu_backward", hidden, glu_backward, Cut(0, ("dh", "gate_up")), dtypes=(torch.bfloat16,))
    return [
        *(operation for path in _paths() for operation in (*_forward_operations(path), *_backward_operations(path))),
        last,
    ]
