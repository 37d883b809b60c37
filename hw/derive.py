"""How the first differing element comes to be: from the operation's inputs, step by step, to the byte that it must be.

Lines of text, computed anew on the CPU with `numerics`. Of a quantized output: the block's largest magnitude, the outer
scale, the scale before rounding and its byte, the element before rounding and its code. Of a dense one: the sum of
products or the terms, and the rounding. "expected" is the emulation's, "found" the judged implementation's.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

import numerics as nm
from numerics import ops, swiglu

from .cases import Inputs, Outputs
from .cases_ops import FEATURES, SAVED, TILED, TOKENS, SeamCase, rotation
from .derive_blocks import At, Source, block_lines, number, value


def derivation(case: SeamCase, i: Inputs, name: str, at: At, expected: Outputs, found: Outputs) -> tuple[str, ...]:
    """Lines that lead to the element `at` of the output `name`; empty where there is nothing to tell."""
    operand, _, part = name.partition(".")
    source = source_of(case, i, operand)
    if case.bounded and operand == "h" and source is not None:
        hidden = swiglu.swiglu(*found["gate_up"].chunk(2, dim=-1))  # judged by what was found
        source = replace(source, values=hidden.to(torch.float32))
    lines = [] if source is None else _before(case, i, operand, at, part)
    if source is not None and part:
        return (*lines, *block_lines(source, operand, part, at, found))
    if source is not None:
        lines.append(f"before rounding to bfloat16: {number(source.values[at])}")
    else:
        lines += _dense(case, i, name, at)
    e, f = expected.get(name), found.get(name)
    if e is not None and f is not None and e.shape == f.shape:
        lines.append(f"expected {value(e[at])}, found {value(f[at])}")
    return tuple(lines)


Neighbours = tuple[Tensor, Tensor]


def neighbours(case: SeamCase, i: Inputs, outputs: Outputs) -> dict[str, Neighbours]:
    """Of each output operand that is rounded stochastically the codes below and above its elements, by magnitude."""
    found = {}
    for operand, source in drawn(case, i, outputs).items():
        lo, down, up = (source.codes(f"TOWARD_{way}") for way in ("ZERO", "NEGATIVE", "POSITIVE"))
        found[operand] = lo, torch.where(lo == down, up, down)
    return found


def drawn(case: SeamCase, i: Inputs, outputs: Outputs) -> dict[str, Source]:
    """What the operands among the outputs that are rounded stochastically were quantized from, by name."""
    sources = {o: source_of(case, i, o) for o in dict.fromkeys(n.partition(".")[0] for n in outputs if "." in n)}
    return {o: s for o, s in sources.items() if s is not None and s.cast.rounding is nm.Rounding.STOCHASTIC}


def beyond(drawn: Neighbours, codes: Tensor) -> Tensor:
    """Which codes are neither neighbour of their element."""
    return (codes != drawn[0]) & (codes != drawn[1])


def source_of(case: SeamCase, i: Inputs, operand: str) -> Source | None:
    """What an output was quantized, or rounded to BF16, from; None: it is no operand."""
    p = case.path
    if p is None:
        return None
    if "rotated" in case.words:
        return _rotated(case, i, operand)
    drawn = replace(p.grad, rounding=nm.Rounding.STOCHASTIC)
    if case.function == "quantize_tokens":
        x = i["x"].to(torch.float32)
        return {
            "payload": Source(x, p.activation),
            "along rows": Source(x, drawn, -2, i.get("groups"), i.get("random")),
            "weight": Source(x, p.weight),
            "pairs": Source(x[:4].unflatten(0, (-1, 2)) if x.ndim == 3 else x, p.activation),
            "grad": Source(x, drawn, random=i.get("random")),
            "nearest along rows": Source(x, p.grad, -2, i.get("groups")),
        }[operand]
    if case.function == "gate_up_glu":
        gate_up = nm.matmul(i["x"], i["w"], groups=i["groups"])
        if operand == "gate_up":
            return Source(gate_up, ops.Cast(None))
        return Source(swiglu.swiglu(*gate_up.to(torch.bfloat16).chunk(2, dim=-1)).to(torch.float32), p.activation)
    if case.function == "down_to_wire":
        y = nm.matmul(i["x"], i["w"], groups=i["groups"])
        signs = None if "sent" in case.words else p.wire.signs
        y = y if signs is None else nm.hadamard(y, len(signs), signs)
        return Source(y, ops.Cast(p.wire.fmt))
    if case.function == "grad_to_wire":
        sent = i["g"].to(torch.float32).index_select(0, i["tokens"]) * i["weights"]
        return Source(sent, drawn, random=i["random"]) if "drawn" in case.words else Source(sent, p.grad)
    if case.function == "requantize_transpose":
        if operand == "weight":
            return _recast(i["w"], p.saved_weight, None, i["random"])
        if operand == "input":
            return _recast(i["q"], p.saved_input, i["groups"], i["random"])
        if "plain" in case.words:
            return Source(i["q"].dequantize() * (i["rows"] if operand == "weighted" else 1.0), ops.Cast(None))
        if operand == "values":
            return Source(i["q"].dequantize(), ops.Cast(None))
        stochastic = nm.Rounding.STOCHASTIC
        if operand == "operand":
            return _recast(i["q"], ops.Recast(nm.MXFP8, "gradient", stochastic), i["groups"], i["random"])
        outer = i["q"].outer if isinstance(i["q"], nm.BlockTensor) else None
        moved = _recast(i["dy"], ops.Recast(nm.MXFP8, "keep", stochastic), i["groups"], i["random"])
        return moved if outer is None else replace(moved, values=i["dy"].dequantize() * outer)
    return None


def _rotated(case: SeamCase, i: Inputs, operand: str) -> Source | None:
    """The same for operands that a Hadamard transform rotates first, group by group."""
    if case.function == "grad_products":
        return None
    if operand == "features":
        return Source(nm.hadamard(i["x"], 16, rotation()), FEATURES)
    if operand == "weight":
        return Source(i["w"].dequantize(), ops.Cast(TILED.fmt, TILED.scope, TILED.rounding), -2)
    x = i["x"] if operand == "along rows" else i["q"].dequantize()
    cast = TOKENS if operand == "along rows" else ops.Cast(SAVED.fmt, SAVED.scope, SAVED.rounding)
    values, groups = nm.hadamard(x, 16, rotation(), -2, i["groups"])
    return Source(values, cast, -2, groups, i["random"])


def _recast(q: ops.Operand, recast: ops.Recast, groups: tuple[int, ...] | None, random: nm.Random) -> Source:
    if isinstance(q, Tensor):
        values = q.to(torch.float32)
    else:
        values = q.dequantize() if recast.fmt is None or recast.outer == "multiply" else q.values()
    words = random if recast.rounding is nm.Rounding.STOCHASTIC and recast.fmt is not None else None
    return Source(values, ops.Cast(recast.fmt, None, recast.rounding), -2, groups, words)


# Dense outputs.


def _before(case: SeamCase, i: Inputs, operand: str, at: At, part: str) -> list[str]:
    """What came before the values that were quantized."""
    if case.function in ("gate_up_glu", "down_to_wire") and part != "outer":
        e = _expert(i["groups"], at[0])
        return [f"row {at[0]} belongs to expert {e}"] + (_dot(i["x"], i["w"], e, at) if operand == "gate_up" else [])
    if case.function == "grad_to_wire" and part == "":
        return [f"row {at[0]}: token {int(i['tokens'][at[0]])}, weight {number(i['weights'][at[0], 0])}"]
    return []


def _expert(groups: tuple[int, ...], row: int) -> int:
    return next(e for e, (start, end) in enumerate(pairwise(groups)) if start <= row < end)


def _decoded(q: ops.Operand) -> tuple[Tensor, Tensor | None]:
    return (q.to(torch.float32), None) if isinstance(q, Tensor) else (q.values(), q.outer)


def _dot(x: ops.Operand, w: ops.Operand, e: int, at: At) -> list[str]:
    """The sum of products of a row and its expert's column, and the outer scales."""
    (a, outer_a), (b, outer_b) = _decoded(x), _decoded(w)
    total = nm.matmul(a[at[0] :][:1], b[e, at[1] :][:1])[0, 0]
    lines = [f"exact sum of {a.shape[1]} products, rounded to FP32 = {number(total)}"]
    if outer_a is not None and outer_b is not None:
        factor = outer_a[min(at[0], len(outer_a) - 1), 0] * outer_b[min(e, len(outer_b) - 1), 0, 0]
        lines.append(f"times fl(outer of the row * outer of the expert) = {number(factor)}")
    return lines


def _dense(case: SeamCase, i: Inputs, name: str, at: At) -> list[str]:
    if case.function == "grad_products":
        along = f"{i['g'].shape[1]} columns" if name == "dx" else f"the rows of expert {at[0]}"
        return [f"exact sum of products over {along}, rounded to FP32, then times outer scales"]
    if case.function == "aggregate" and name != "decoded":
        return _aggregate(case, i, name, at)
    if case.function == "aggregate":
        row = int(i["slots"].flatten()[at[0]])
        return [f"row {row} of the payload: (code value * block scale) * outer"]
    if case.function == "glu_backward":
        return _glu_backward(i, at)
    if case.function == "router_gradient":
        return [f"token {at[0]}, row {int(i['slots'][at])}: the sum over {i['g'].shape[1]} products, any order"]
    return []


def _aggregate(case: SeamCase, i: Inputs, name: str, at: At) -> list[str]:
    assert case.path is not None
    q, signs, (t, column) = i["payload"], case.path.wire.signs, at
    decoded = q.to(torch.float32) if isinstance(q, Tensor) else q.dequantize()
    signs = None if "returned" in case.words else signs
    weights = i.get("weights") if name == "out" else None
    lines, total = [], torch.zeros(())
    for k, row in enumerate(i["slots"][t].tolist()):
        weight = torch.ones(()) if weights is None else weights[t, k]
        term = decoded[row] * weight
        lines.append(f"expert {k}: row {row}, weight {number(weight)} * {number(decoded[row, column])}")
        total = term if k == 0 else total + term
    lines.append(f"their sum in this order = {number(total[column])}")
    if signs is not None:
        total = nm.hadamard_inverse(total, len(signs), signs)
    return [*lines, f"after the inverse Hadamard, before rounding to bfloat16: {number(total[column])}"]


def _glu_backward(i: Inputs, at: At) -> list[str]:
    width = i["dh"].shape[1]
    row, column = at[0], at[1] % width
    gate, up, dh = i["gate_up"][row, column], i["gate_up"][row, width + column], i["dh"][row, column]
    lines = [f"gate = {number(gate)}, up = {number(up)}, dh = {number(dh)}"]
    if at[1] < width:
        slope = swiglu.look_up(1, gate.reshape(1))[0]
        return [
            *lines,
            f"silu'(gate) = {number(slope)}",
            f"(dh * up) * silu'(gate) = {number(dh * up.float() * slope)}",
        ]
    silu = swiglu.silu(gate.reshape(1))[0]
    return [*lines, f"silu(gate) in BF16 = {number(silu)}", f"dh * silu(gate) = {number(dh * silu.float())}"]
