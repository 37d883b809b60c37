"""Cases of `validate`: the operations of the expert path, the seam, in NVFP4, MXFP8 and BF16.

Inputs are always made by `numerics.ops`; what runs are the functions of the argument `o`, that module's or another's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

import numerics as nm
from numerics import ops

from .cases import DATA, SOME, Cut, Draw, Inputs, Operation, Outputs, parts

# D = 128 model width, F = 64 expert width and two experts for each token, unless a shape has others.


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

    def wire_width(self, d: Draw) -> int:
        """The model width of a case, up to what the wire's Hadamard blocks divide."""
        size = 1 if self.wire.signs is None else len(self.wire.signs)
        return -(-d.shape.model // size) * size


def expert_paths() -> list[ExpertPath]:
    stochastic, signs = nm.Rounding.STOCHASTIC, nm.hadamard_signs(32, (0, 0))
    weight, saved = ops.Recast(nm.MXFP8, "keep", stochastic), ops.Recast(nm.MXFP8, "multiply", stochastic)
    mx, near, coded = ops.Cast(nm.MXFP8), ops.Recast(nm.MXFP8), ops.Wire(nm.MXS2F6, signs)
    activation, plain = ops.Cast(nm.NVFP4_46, "row"), ops.Cast(None)
    return [
        ExpertPath("NVFP4", activation, ops.Cast(nm.NVFP4, "leading"), weight, saved, coded, tuple(DATA)),
        ExpertPath("MXFP8", mx, mx, near, near, coded, SOME),
        ExpertPath("BF16", plain, plain, ops.Recast(None), ops.Recast(None), ops.Wire(None), SOME, plain),
    ]


def stored(d: Draw, q: ops.Operand) -> ops.Operand:
    """An operand as anybody may have stored it: with the data "NaN, Inf" some elements are NaN by their codes alone."""
    if d.data != "NaN, Inf" or isinstance(q, torch.Tensor) or q.fmt.element.nan_code is None:
        return q
    nan = torch.from_numpy(d.rng.random(q.codes.shape) < 0.001)
    return q.derived(codes=torch.where(nan, q.codes | q.fmt.element.nan_code, q.codes))


def _forward_operations(p: ExpertPath, o: Any, accumulator: str) -> list[Operation]:
    def tokens(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, d.shape.model), "groups": d.groups, "random": nm.Random((3, 8), (66, 30))}

    def quantize_tokens(i: Inputs) -> Outputs:
        payload = o.quantize_tokens(i["x"], p.activation)
        cast = replace(p.grad, rounding=nm.Rounding.STOCHASTIC)
        grad = o.quantize_tokens(i["x"], cast, i["random"], i["groups"], -2)
        return parts("payload", payload) | parts("along rows", grad)

    def operands(n: int, k: int, d: Draw) -> Inputs:
        w = stored(d, ops.quantize_tokens(d.beside(d.experts, n, k), p.weight))
        return {"x": stored(d, ops.quantize_tokens(d.tested(d.rows, k), p.activation)), "w": w, "groups": d.groups}

    def gate_up(d: Draw) -> Inputs:
        return operands(2 * d.shape.hidden, d.shape.model, d)

    def down(d: Draw) -> Inputs:
        return operands(p.wire_width(d), d.shape.hidden, d)

    def gate_up_glu(i: Inputs) -> Outputs:
        h, products = o.gate_up_glu(i["x"], i["w"], i["groups"], p.activation, accumulator)
        return {"gate_up": products} | parts("h", h)

    def down_to_wire(i: Inputs) -> Outputs:
        return parts("payload", o.down_to_wire(i["x"], i["w"], i["groups"], p.wire, accumulator))

    def payload(d: Draw) -> Inputs:
        n, top = d.shape.top * d.tokens, d.shape.top
        fmt, x, slots = p.wire.fmt, d.tested(n, p.wire_width(d)), torch.from_numpy(d.rng.permutation(n)).view(-1, top)
        q = x.to(torch.bfloat16) if fmt is None else nm.quantize(x, fmt)
        return {"payload": q, "slots": slots, "weights": d.beside(d.tokens, top)}

    def aggregate(i: Inputs) -> Outputs:
        out, decoded = o.aggregate(i["payload"], i["slots"], i["weights"], p.wire)
        unweighted, _ = o.aggregate(i["payload"], i["slots"], None, p.wire)
        return {"out": out, "unweighted": unweighted, "decoded": decoded.index_select(0, i["slots"].flatten())}

    by_expert, tokens_cut = Cut(0, ("x",), ("w",)), Cut(0, ("slots", "weights"))
    bf16, both = (torch.bfloat16,), (torch.bfloat16, torch.float32)
    return [
        Operation(f"quantize_tokens {p.name}", tokens, quantize_tokens, Cut(0, ("x",), ()), p.data, both),
        Operation(f"gate_up_glu {p.name}", gate_up, gate_up_glu, by_expert, p.data, bf16),
        Operation(f"down_to_wire {p.name}", down, down_to_wire, by_expert, p.data, bf16),
        Operation(f"aggregate {p.name}", payload, aggregate, tokens_cut, p.data, (torch.float32,)),
    ]


def _backward_operations(p: ExpertPath, o: Any, accumulator: str) -> list[Operation]:
    rounds = {"random": nm.Random((2, 6), (131, 50))}

    def gradient(d: Draw) -> Inputs:
        tokens = torch.from_numpy(d.rng.integers(0, max(d.tokens, 1), d.rows))
        return {"g": d.tested(d.tokens, d.shape.model), "tokens": tokens, "weights": d.beside(d.rows, 1)}

    def grad_to_wire(i: Inputs) -> Outputs:
        return parts("payload", o.grad_to_wire(i["g"], i["tokens"], i["weights"], p.grad))

    def saved(d: Draw) -> Inputs:
        w = ops.quantize_tokens(d.tested(d.experts, d.shape.hidden, d.shape.model), p.weight)
        return {
            "q": stored(d, ops.quantize_tokens(d.tested(d.rows, d.shape.model), p.activation)),
            "w": stored(d, w),
            "groups": d.groups,
        } | rounds

    def requantize_transpose(i: Inputs) -> Outputs:
        x = o.requantize_transpose(i["q"], p.saved_input, i["groups"], i["random"])
        return parts("input", x) | parts("weight", o.requantize_transpose(i["w"], p.saved_weight, None, i["random"]))

    def operands(d: Draw) -> Inputs:
        g, q = d.tested(d.rows, d.shape.hidden), ops.quantize_tokens(d.beside(d.rows, d.shape.model), p.activation)
        w = ops.quantize_tokens(d.beside(d.experts, d.shape.hidden, d.shape.model), p.weight)
        return {
            "g": ops.quantize_tokens(g, p.grad),
            "g_tokens": ops.quantize_tokens(g, p.grad, groups=d.groups, axis=-2),
            "w": ops.requantize_transpose(w, p.saved_weight, None, **rounds),
            "x": ops.requantize_transpose(q, p.saved_input, d.groups, **rounds),
            "groups": d.groups,
        }

    def grad_products(i: Inputs) -> Outputs:
        dx, dw = o.grad_products(i["g"], i["g_tokens"], i["w"], i["x"], i["groups"], accumulator)
        return {"dx": dx, "dw": dw}

    fp32, both = (torch.float32,), (torch.float32, torch.bfloat16)
    rows, by_expert, by_column = Cut(0, ("tokens", "weights")), Cut(0, ("q",), ("w",)), Cut(-1, ("w", "x"))
    return [
        Operation(f"grad_to_wire {p.name}", gradient, grad_to_wire, rows, p.data, both),
        Operation(f"requantize_transpose {p.name}", saved, requantize_transpose, by_expert, p.data, (torch.bfloat16,)),
        Operation(f"grad_products {p.name}", operands, grad_products, by_column, p.data, fp32),
    ]


def path_operations(p: ExpertPath, o: Any = ops, accumulator: str = "exact") -> list[Operation]:
    """The operations in the formats of one path, run by the functions of `o` under an accumulator."""
    return [*_forward_operations(p, o, accumulator), *_backward_operations(p, o, accumulator)]


def glu_backward_operation(o: Any = ops) -> Operation:
    """The one operation that has no formats."""

    def hidden(d: Draw) -> Inputs:
        return {
            "dh": d.tested(d.rows, d.shape.hidden, dtype=torch.float32),
            "gate_up": d.tested(d.rows, 2 * d.shape.hidden),
        }

    def glu_backward(i: Inputs) -> Outputs:
        return {"d_gate_up": o.glu_backward(i["dh"], i["gate_up"])}

    return Operation("glu_backward", hidden, glu_backward, Cut(0, ("dh", "gate_up")), dtypes=(torch.bfloat16,))


def seam_operations() -> list[Operation]:
    """Every operation whose bits are defined, in each of the number formats."""
    return [*(operation for path in expert_paths() for operation in path_operations(path)), glu_backward_operation()]
