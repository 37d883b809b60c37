"""The seam once more, one number at a time, by the scalar oracle: a second opinion on the emulation, for small shapes.

Everything here is `numerics.oracle` (rational arithmetic, tables of a format's values) and Python; of `numerics` it
takes the formats, which are data. It follows the docstrings of `numerics.ops` and shares no code with them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

import numerics as nm
from numerics import ops, oracle
from numerics.oracle import add32, mul32

from .cases import EXPERTS, Inputs, Outputs, Shape
from .cases_ops import SeamCase
from .cases_seam import ExpertPath
from .slow_blocks import (
    Field,
    Matrix,
    Row,
    along_features,
    along_rows,
    amax_of,
    as_bytes,
    bf16,
    bfloat16,
    decoded,
    dot,
    outer_of,
    quantized,
    scaled,
    silu,
    silu_slope,
    turned,
)

SHAPE = Shape("few rows", lambda n: (0, 1, 1, 4, 4, n), rows=5, model=24, hidden=20, top=3)


def _product(x: ops.Operand, w: ops.Operand, groups: tuple[int, ...]) -> Matrix:
    """Rows times their experts' matrices, with outer scales, FP32."""
    rows = decoded(x, outer=False)
    out = []
    for e, (i, j) in enumerate(pairwise(groups)):
        matrix = decoded(w, e, outer=False) if j > i else []
        out += [[scaled(dot(rows[r], line), outer_of(x, r), outer_of(w, e)) for line in matrix] for r in range(i, j)]
    return out


def _quantize_tokens(case: SeamCase, i: Inputs) -> Outputs:
    p = case.path
    assert p is not None
    drawn = ops.Cast(p.grad.fmt, None, nm.Rounding.STOCHASTIC)
    x = i["x"].to(torch.float64).tolist()
    if "weight" in case.words:
        pairs = along_features("pairs", [row for matrix in x[:4] for row in matrix], p.activation)
        return _weight(p, x) | {name: t.unflatten(0, (2, 2, -1)) for name, t in pairs.items()}
    if "rows" in case.words:
        nearest = along_rows("nearest along rows", x, p.grad, i["groups"], None)
        return along_features("grad", x, drawn, _row_fields(i["groups"], i["random"])) | nearest
    return along_features("payload", x, p.activation) | along_rows("along rows", x, drawn, i["groups"], i["random"])


def _row_fields(groups: tuple[int, ...], random: nm.Random) -> list[Field]:
    """The words of rows that count within their experts."""
    bits, experts = nm.MXFP8.element.bits, enumerate(pairwise(groups))
    return [_row_field(random, e, r - start, bits) for e, (start, end) in experts for r in range(start, end)]


def _row_field(random: nm.Random, expert: int, line: int, bits: int) -> Field:
    low, high = random.counter
    return lambda _, place: oracle.random_field(random.key, (low, high + expert), line, place, bits)


def _weight(p: ExpertPath, x: list[Matrix]) -> Outputs:
    """One outer scale for each expert."""
    if p.weight.fmt is None:
        return {"weight": torch.stack([bf16(matrix) for matrix in x])}
    codes, scales, outers = [], [], []
    for matrix in x:
        amaxes = [amax_of(matrix, p.weight.fmt)] * len(matrix)
        c, s, o = quantized(matrix, p.weight, amaxes, None, [None] * len(matrix))
        codes, scales, outers = [*codes, as_bytes(c)], [*scales, as_bytes(s)], [*outers, o[0]]
    found = {"weight.codes": torch.stack(codes), "weight.scales": torch.stack(scales)}
    return found | ({"weight.outer": torch.tensor(outers)[:, None, None]} if p.weight.outer else {})


def _gate_up_glu(case: SeamCase, i: Inputs) -> Outputs:
    assert case.path is not None
    y = [[bfloat16(v) for v in row] for row in _product(i["x"], i["w"], i["groups"])]
    h = []
    for row in y:
        gate, up = row[: len(row) // 2], row[len(row) // 2 :]
        h.append([bfloat16(mul32(silu(a), b)) for a, b in zip(gate, up, strict=True)])
    return {"gate_up": bf16(y)} | along_features("h", h, case.path.activation)


def _rotated(row: Row, signs: Tensor | None, inverse: bool = False) -> Row:
    """The block Hadamard transform of a row, or its inverse: butterfly first, then signs."""
    if signs is None:
        return row
    n, s, out = len(signs), signs.tolist(), []
    for start in range(0, len(row), n):
        block = oracle.hadamard(row[start : start + n], [1.0] * n if inverse else s)
        out += [mul32(v, sign) for v, sign in zip(block, s, strict=True)] if inverse else block
    return out


def _down_to_wire(case: SeamCase, i: Inputs) -> Outputs:
    assert case.path is not None
    wire = case.path.wire
    signs = None if "sent" in case.words else wire.signs
    y = [_rotated(row, signs) for row in _product(i["x"], i["w"], i["groups"])]
    return along_features("payload", y, ops.Cast(wire.fmt))


def _aggregate(case: SeamCase, i: Inputs) -> Outputs:
    assert case.path is not None
    rows, slots = decoded(i["payload"]), i["slots"].tolist()
    found = {}
    signs = None if "returned" in case.words else case.path.wire.signs
    named = {"unweighted": None} if "weights" in i else {}
    for name, weights in ({"out": i["weights"].tolist() if "weights" in i else None} | named).items():
        out = []
        for t, token in enumerate(slots):
            terms = [[v if weights is None else mul32(v, weights[t][k]) for v in rows[r]] for k, r in enumerate(token)]
            total = terms[0]
            for term in terms[1:]:
                total = [add32(a, b) for a, b in zip(total, term, strict=True)]
            out.append(_rotated(total, signs, inverse=True))
        found[name] = bf16(out)
    if {"cancelling", "returned"} & set(case.words):
        return {"out": found["out"]}
    return found | {"decoded": torch.tensor([rows[r] for token in slots for r in token], dtype=torch.float32)}


def _grad_to_wire(case: SeamCase, i: Inputs) -> Outputs:
    assert case.path is not None
    g, weights = i["g"].tolist(), i["weights"].flatten().tolist()
    rows = [[mul32(v, weight) for v in g[t]] for t, weight in zip(i["tokens"].tolist(), weights, strict=True)]
    if "drawn" in case.words:
        drawn = ops.Cast(case.path.grad.fmt, None, nm.Rounding.STOCHASTIC)
        return along_features("payload", rows, drawn, _row_fields(i["random"].rows, i["random"]))
    return along_features("payload", rows, case.path.grad)


def _requantize_transpose(case: SeamCase, i: Inputs) -> Outputs:
    if "plain" in case.words:
        rows = decoded(i["q"])
        weighted = [[mul32(v, w) for v in row] for row, (w,) in zip(rows, i["rows"].tolist(), strict=True)]
        return {"values": bf16(rows), "weighted": bf16(weighted)}
    p, random, groups = case.path, i["random"], i["groups"]
    assert p is not None
    if "moved" in case.words:
        cast = ops.Cast(nm.MXFP8, None, nm.Rounding.STOCHASTIC)
        moved = decoded(i["dy"])
        if isinstance(i["q"], nm.BlockTensor) and i["q"].outer is not None:
            moved = [[mul32(v, outer_of(i["q"], r) or 1.0) for v in row] for r, row in enumerate(moved)]
        operand = along_rows("operand", decoded(i["q"], outer=False), cast, groups, random)
        return operand | along_rows("gradient", moved, cast, groups, random) | {"values": bf16(decoded(i["q"]))}
    found = along_rows(
        "input", decoded(i["q"]), ops.Cast(p.saved_input.fmt, None, p.saved_input.rounding), groups, random
    )
    cast, each = ops.Cast(p.saved_weight.fmt, None, p.saved_weight.rounding), []
    for e in range(EXPERTS):
        each.append(along_rows("weight", decoded(i["w"], e, outer=False), cast, None, random, e))
    found |= {name: torch.stack([part[name] for part in each]) for name in each[0]}
    kept = isinstance(i["w"], nm.BlockTensor) and i["w"].outer is not None
    return found | ({"weight.outer": i["w"].outer} if kept else {})


def _grad_products(case: SeamCase, i: Inputs) -> Outputs:
    g, g_tokens, x = (decoded(i[name], outer=False) for name in ("g", "g_tokens", "x"))
    n, k = i["g"].shape[1], i["x"].shape[1]
    dx, dw = [], []
    for e, (start, end) in enumerate(pairwise(i["groups"])):
        w = turned(decoded(i["w"], e, outer=False), k)
        dx += [[scaled(dot(g[r], line), None, outer_of(i["w"], e)) for line in w] for r in range(start, end)]
        a, b = turned(g_tokens[start:end], n), turned(x[start:end], k)
        dw.append([[dot(left, right) for right in b] for left in a])
    return {"dx": torch.tensor(dx, dtype=torch.float32), "dw": torch.tensor(dw, dtype=torch.float32)}


def _glu_backward(case: SeamCase, i: Inputs) -> Outputs:
    out, width = [], i["dh"].shape[1]
    for dh, row in zip(i["dh"].tolist(), i["gate_up"].to(torch.float64).tolist(), strict=True):
        pairs = list(zip(dh, row[:width], row[width:], strict=True))
        d_gate = [mul32(mul32(d, up), silu_slope(gate)) for d, gate, up in pairs]
        out.append(d_gate + [mul32(d, silu(gate)) for d, gate, _ in pairs])
    return {"d_gate_up": bf16(out)}


TWINS: dict[str, Callable[[SeamCase, Inputs], Outputs]] = {
    "quantize_tokens": _quantize_tokens,
    "gate_up_glu": _gate_up_glu,
    "down_to_wire": _down_to_wire,
    "aggregate": _aggregate,
    "grad_to_wire": _grad_to_wire,
    "requantize_transpose": _requantize_transpose,
    "grad_products": _grad_products,
    "glu_backward": _glu_backward,
}


def reaches(case: SeamCase) -> bool:
    """Whether the case has a twin here: its bits are defined, it computes something, and no transform comes first."""
    return case.function in TWINS and not case.bounded and "rotated" not in case.words


def outputs(case: SeamCase, inputs: Inputs) -> Outputs:
    """What the case's calls must give, by the oracle."""
    return TWINS[case.function](case, inputs)
