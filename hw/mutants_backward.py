"""Mutants of the backward operations: wires of gradients, requantized operands, their products, SwiGLU's gradient."""

from __future__ import annotations

from .mutants import Mutant
from .mutants_casts import AWAY, LINE, MADE, NEAREST, POWER

DOT = "return torch.stack([(g * decoded.index_select(0, rows)).sum(-1) for rows in slots.unbind(1)], dim=1)"
ROTATED = "g = hadamard(g, len(wire.signs), wire.signs)"
SENT = "return quantize_tokens(g.to(torch.float32).index_select(0, tokens) * row_weights, cast, random)"
LEFT = "        return q.outer\n    return None"
AGAIN = "return requantize(q, recast.fmt, -2, groups, outer, recast.rounding, random)"
KEPT = 'outer = "drop" if recast.outer == "gradient" else recast.outer'
VALUES = "values = values if rows is None else values * rows"
LAST = "return quantize_tokens(values, Cast(recast.fmt, recast.scope, recast.rounding), random, groups, -2, signs)"
DX = "dx = matmul(g, w.mT, accumulator, groups=groups)"
DW = "dw = matmul(g_tokens.mT, x.mT, accumulator, groups=groups)"
PARTS = "product(a[:, i:j], b[:, i:j], None if start is None else start[e])"
LIBRARY = "return a @ b.mT"
GATE = "d_gate = (dh * up.to(torch.float32)) * slope"
UP = "return d_gate.to(torch.bfloat16), (dh * silu(gate).to(torch.float32)).to(torch.bfloat16)"
SLOPE = "slope = look_up(1, gate)"
JOINED = "return torch.cat(swiglu_backward(dh, *gate_up.chunk(2, dim=-1)), dim=-1)"

_ROUTER_GRADIENT = [
    ("gradient not rotated", "ops", ROTATED, "g = g + 0"),
    ("signs reversed", "ops", ROTATED, ROTATED.replace(", wire.signs)", ", wire.signs.flip(0))")),
    ("last column missing", "ops", DOT, DOT.replace("rows)).sum", "rows))[:, :-1].sum")),
    ("products in BF16", "ops", DOT, DOT.replace("(g * decoded.index_select(0, rows))", "(g.to(torch.bfloat16) * decoded.index_select(0, rows).to(torch.bfloat16)).float()")),
    ("sum in BF16", "ops", DOT, f"{DOT}.to(torch.bfloat16).float()"),
    ("rows of the next token", "ops", DOT, DOT.replace("slots.unbind", "slots.roll(1, 0).unbind")),
    ("experts exchanged", "ops", DOT, DOT.replace("slots.unbind", "slots.flip(1).unbind")),
    ("divided by the width", "ops", DOT, DOT.replace("sum(-1)", "mean(-1)")),
    ("one value per row", "ops", DOT, f"{DOT}.flatten()"),
]  # fmt: skip
_GRAD_TO_WIRE = [
    ("weighted gradient rounded to BF16", "ops", SENT, SENT.replace("* row_weights,", "* row_weights).to(torch.bfloat16),").replace("quantize_tokens(g.", "quantize_tokens((g.")),
    ("weight forgotten", "ops", SENT, SENT.replace(" * row_weights", "")),
    ("weight in BF16", "ops", SENT, SENT.replace("row_weights", "row_weights.to(torch.bfloat16)")),
    ("weight of the next row", "ops", SENT, SENT.replace("row_weights", "row_weights.roll(1, 0)")),
    ("gradient of the next token", "ops", SENT, SENT.replace("tokens) *", "tokens.roll(1, 0)) *")),
    ("rows in the order of tokens", "ops", SENT, SENT.replace("tokens) *", "tokens.sort().values) *")),
    ("block scale rounded down", "scales_power", POWER, "scale = (bits >> 23).add_(offset)"),
    ("block scale raised at a power of two", "scales_power", POWER, POWER.replace("0x7FFFFF", "0x800000")),
    ("ties away from zero", "rounding", NEAREST, AWAY),
    ("random words not passed on", "ops", SENT, SENT.replace("cast, random)", "Cast(cast.fmt, cast.outer), None)")),
]  # fmt: skip
_ROW_SCALE = [
    ("outer scale lost", "ops", LEFT, "        return None\n    return None"),
    ("reciprocal", "ops", LEFT, "        return 1 / q.outer\n    return None"),
    ("left to the gradient always", "ops", 'and recast.outer == "gradient":\n        return q.outer', "and True:\n        return q.outer"),
    ("without its axis", "ops", LEFT, "        return q.outer if q.outer is None else q.outer.flatten()\n    return None"),
    ("in float64", "ops", LEFT, "        return q.outer if q.outer is None else q.outer.double()\n    return None"),
    ("of the token before", "ops", LEFT, "        return q.outer if q.outer is None else q.outer.roll(1, 0)\n    return None"),
]  # fmt: skip
_REQUANTIZE = [
    ("outer scale lost", "ops", KEPT, 'outer = "drop" if recast.outer != "keep" else "keep"'),
    ("outer scale not left to the gradient", "ops", KEPT, 'outer = "multiply" if recast.outer == "gradient" else recast.outer'),
    ("outer scale of the token before", "blocks", "outer = outer.expand(self.scales.shape).reshape(rows, 1, trail)", "outer = outer.roll(1, 0).expand(self.scales.shape).reshape(rows, 1, trail)"),
    ("decoded through BF16", "quantizer", 'values = q.dequantize() if outer == "multiply" else q.values()', 'values = (q.dequantize() if outer == "multiply" else q.values()).to(torch.bfloat16)'),
    ("decoded with the scale of the neighbour block", "blocks", "values = self._inner(element, self._decoded(scales[part]), out[part])", "values = self._inner(element, self._decoded(scales[part].roll(1, 0)), out[part])"),
    ("not transposed", "ops", AGAIN, AGAIN.replace("-2,", "-1,").replace("groups,", "None,")),
    ("groups ignored", "ops", AGAIN, f"{AGAIN.replace('groups,', 'None,')}.derived(groups=groups and tuple(groups))"),
    ("groups start one row late", "ops", AGAIN, AGAIN.replace("groups,", "groups and (0, *(min(g + 1, groups[-1]) for g in groups[1:-1]), groups[-1]),")),
    ("stale padding behind a group", "partition", "x = pad(x, (0, 1)).index_select", "x = pad(x, (0, 1), value=3.0).index_select"),
    ("nearest instead of stochastic", "ops", AGAIN, AGAIN.replace("recast.rounding, random", "Rounding.NEAREST_EVEN")),
    ("stochastic: truncated", "rounding", "leading.add_(random_bits.to(integer))", "leading.add_(random_bits.to(integer) * 0)"),
    ("random words reused in every column", "partition", LINE, LINE.replace("line = ", "line = 0 * ")),
    ("random words reused for every expert", "partition", "expert = partition.group_of.repeat_interleave(per_block)", "expert = 0 * partition.group_of.repeat_interleave(per_block)"),
    ("random words reused for every matrix", "partition", "expert = torch.arange(experts, device=device)", "expert = 0 * torch.arange(experts, device=device)"),
    ("random bits cut to 8", "philox", "return torch.stack((pair, reverse16(pair)), dim=-1).flatten(-3)", "return torch.stack((pair, reverse16(pair)), dim=-1).flatten(-3) & 0xFF00"),
    ("rows' factors forgotten", "ops", VALUES, "values = values + 0"),
    ("rows' factors inverted", "ops", VALUES, "values = values if rows is None else values / rows"),
    ("rows' factors rounded to BF16", "ops", VALUES, "values = values if rows is None else values * rows.to(torch.bfloat16)"),
    ("not rotated", "ops", LAST, LAST.replace(", signs)", ", None if groups is None else signs)").replace("None if groups is None else signs", "signs * 0 + 1 if signs is not None else None")),
    ("signs reversed", "ops", LAST, LAST.replace(", signs)", ", None if signs is None else signs.flip(0))")),
    ("a tile's scale from its first line", "folding", "return x.movedim(-2, -4).movedim(-1, -2).flatten(-2)", "x = x.movedim(-2, -4).movedim(-1, -2)\n        return x[..., :1, :].expand(x.shape).flatten(-2)"),
    ("scale of the neighbour block", "quantizer", MADE, MADE.replace("(scales)", "(scales.roll(1, -2))")),
    ("block scale rounded down", "scales_power", POWER, "scale = (bits >> 23).add_(offset)"),
    ("BF16 values returned in float32", "ops", LAST, f"out = quantize_tokens(values, Cast(recast.fmt, recast.scope, recast.rounding), random, groups, -2, signs)\n    return out.float() if recast.fmt is None else out"),
    ("first expert's outer scale for all", "quantizer", "return new.derived(outer=q.outer if new.outer is None", "return new.derived(outer=q.outer[:1].expand_as(q.outer) if new.outer is None"),
]  # fmt: skip
_GRAD_PRODUCTS = [
    ("dgrad: last expert dropped", "matmul", "parts.append(_scaled(product(p.a[i:j], p.b[expert], start), rows, matrix))", "parts.append(_scaled(product(p.a[i:j], p.b[expert], start), rows, matrix) * (expert < p.b.shape[0] - 1))"),
    ("dgrad: matrix of the first expert", "ops", DX, DX.replace("groups=groups", "groups=(0, groups[-1], *[groups[-1]] * (len(groups) - 2))")),
    ("dgrad: rows assigned one late", "ops", DX, DX.replace("groups=groups", "groups=(0, *(min(g + 1, groups[-1]) for g in groups[1:-1]), groups[-1])")),
    ("dgrad: outer scale of the weights lost", "ops", DX, DX.replace("w.mT", "(w.derived(outer=None) if isinstance(w, BlockTensor) else w).mT")),
    ("dgrad: in BF16", "ops", DX, f"{DX}.to(torch.bfloat16).float()"),
    ("wgrad: in BF16", "ops", DW, f"{DW}.to(torch.bfloat16).float()"),
    ("wgrad: NaN for an expert without rows", "ops", DW, f"{DW}\n    dw = torch.where((torch.tensor(groups).diff() == 0).to(dw.device)[:, None, None], torch.nan, dw)"),
    ("wgrad: result of the expert before where there are no rows", "ops", DW, f"{DW}\n    empty = (torch.tensor(groups).diff() == 0).to(dw.device)[:, None, None]\n    dw = torch.where(empty, dw.roll(1, 0), dw)"),
    ("wgrad: last row of each expert missing", "matmul", PARTS, PARTS.replace("i:j", "i : max(i, j - 1)")),
    ("wgrad: rows of all experts", "matmul", PARTS, PARTS.replace("i:j", ":")),
    ("wgrad: groups before they were filled up", "ops", "        groups = g_tokens.groups\n", "        groups = (*groups[:-1], g_tokens.groups[-1])\n"),
    ("wgrad: added to the result before", "ops", DW, f"{DW}\n    held = globals().setdefault('_kept_held', {{}})\n    dw = dw + held.get(dw.shape, 0)\n    held[dw.shape] = dw"),
    ("wgrad: outer scale of the rows lost", "ops", DW, DW.replace("x.mT", "(x.derived(outer=None) if isinstance(x, BlockTensor) else x).mT")),
    ("library: sum kept in 13 bits", "matmul", LIBRARY, "s = a @ b.mT\n    return (s.view(torch.int32) & -1024).view(torch.float32)"),
    ("library: the last product missing", "matmul", LIBRARY, "return a[:, :-1] @ b[:, :-1].mT"),
]  # fmt: skip
_GLU_BACKWARD = [
    ("d_gate and d_up exchanged", "ops", JOINED, "return torch.cat(swiglu_backward(dh, *gate_up.chunk(2, dim=-1))[::-1], dim=-1)"),
    ("gate and up exchanged", "ops", JOINED, "return torch.cat(swiglu_backward(dh, *reversed(gate_up.chunk(2, dim=-1))), dim=-1)"),
    ("dh rounded to BF16", "ops", JOINED, JOINED.replace("(dh,", "(dh.to(torch.bfloat16).float(),")),
    ("slope first", "swiglu", GATE, "d_gate = (dh * slope) * up.to(torch.float32)"),
    ("slope in BF16", "swiglu", SLOPE, "slope = look_up(1, gate).to(torch.bfloat16).float()"),
    ("slope from a rounded sigmoid", "swiglu", SLOPE, "s = torch.sigmoid(gate).float()\n    slope = s * (1 + gate.float() * (1 - s))"),
    ("slope in FP32 arithmetic", "swiglu", SLOPE, "s = torch.sigmoid(gate.float())\n    slope = s * (1 + gate.float() * (1 - s))"),
    ("slope is the sigmoid alone", "swiglu", SLOPE, "slope = torch.sigmoid(gate.float())"),
    ("slope at infinity is NaN", "swiglu", SLOPE, "slope = look_up(1, gate)\n    slope = torch.where(torch.isinf(gate), torch.nan, slope)"),
    ("d_up with silu in FP32", "swiglu", UP, "g = gate.to(torch.float32)\n    return d_gate.to(torch.bfloat16), (dh * (g / (1 + torch.exp(-g)))).to(torch.bfloat16)"),
    ("result truncated", "swiglu", UP, "d = torch.stack((d_gate, dh * silu(gate).to(torch.float32)))\n    d = (d.view(torch.int32) & -65536).view(torch.float32).to(torch.bfloat16)\n    return d[0], d[1]"),
    ("subnormals flushed to zero", "swiglu", UP, "d = torch.stack((d_gate, dh * silu(gate).to(torch.float32))).to(torch.bfloat16)\n    d = torch.where(d.abs() < 2.0**-126, 0 * d, d)\n    return d[0], d[1]"),
    ("result in float32", "ops", JOINED, f"{JOINED}.float()"),
    ("dh changed in place", "ops", JOINED, f"out = torch.cat(swiglu_backward(dh, *gate_up.chunk(2, dim=-1)), dim=-1)\n    dh.zero_()\n    return out"),
    ("written over gate_up", "ops", JOINED, f"return gate_up.copy_(torch.cat(swiglu_backward(dh, *gate_up.chunk(2, dim=-1)), dim=-1))"),
]  # fmt: skip

MUTANTS = [
    *(Mutant("router_gradient", *row) for row in _ROUTER_GRADIENT),
    *(Mutant("grad_to_wire", *row) for row in _GRAD_TO_WIRE),
    *(Mutant("row_scale", *row) for row in _ROW_SCALE),
    *(Mutant("requantize_transpose", *row) for row in _REQUANTIZE),
    *(Mutant("grad_products", *row) for row in _GRAD_PRODUCTS),
    *(Mutant("glu_backward", *row) for row in _GLU_BACKWARD),
]
