"""Mutants of `gate_up_glu`, `down_to_wire` and `aggregate`."""

from __future__ import annotations

from .mutants import Mutant
from .mutants_casts import AWAY, MADE, NEAREST

GATE_UP = "gate_up = matmul(x, w13, accumulator, groups=groups).to(torch.bfloat16)"
HIDDEN = "return quantize_tokens(swiglu(*gate_up.chunk(2, dim=-1)), hidden), gate_up"
SWIGLU = "return (silu(gate).to(torch.float32) * up.to(torch.float32)).to(torch.bfloat16)"
ROWS = "parts.append(_scaled(product(p.a[i:j], p.b[expert], start), rows, matrix))"
LIBRARY = "return a @ b.mT"
DOWN = "y = matmul(h, w2, accumulator, groups=groups)"
ROTATED = "y = hadamard(y, len(wire.signs), wire.signs)"
FACTOR = "return x * x.new_tensor(size**-0.5)"
TERM = "term = term * weights[:, k : k + 1]"
TOTAL = "total = term if total is None else total + term"
SLOTS = "term = decoded.index_select(0, slots[:, k])"
BACK = "total = hadamard_inverse(total, len(wire.signs), wire.signs)"
OUT = "return total.to(torch.bfloat16), decoded"
ABOVE = "scale += (bits & 0x7FFFFF) >"
LOOP = "for k in range(slots.shape[1]):"

_GATE_UP_GLU = [
    ("gate and up exchanged", "ops", HIDDEN, HIDDEN.replace("*gate_up.chunk(2, dim=-1)", "*reversed(gate_up.chunk(2, dim=-1))")),
    ("gate and up interleaved", "ops", HIDDEN, HIDDEN.replace("*gate_up.chunk(2, dim=-1)", "gate_up[:, 0::2], gate_up[:, 1::2]")),
    ("products not rounded to BF16 before SwiGLU", "ops", HIDDEN, "g, u = matmul(x, w13, accumulator, groups=groups).chunk(2, dim=-1)\n    return quantize_tokens((torch.nn.functional.silu(g) * u).to(torch.bfloat16), hidden), gate_up"),
    ("silu not rounded to BF16", "swiglu", SWIGLU, "g = gate.to(torch.float32)\n    return (g / (1 + torch.exp(-g)) * up.to(torch.float32)).to(torch.bfloat16)"),
    ("silu rounded through FP32 products", "swiglu", SWIGLU, "g = gate.to(torch.float32)\n    return ((g * up.to(torch.float32)) * torch.sigmoid(g)).to(torch.bfloat16)"),
    ("silu by a tanh that is rounded to BF16", "swiglu", SWIGLU, "half = 0.5 * gate\n    return ((half * (1 + torch.tanh(half))).to(torch.float32) * up.to(torch.float32)).to(torch.bfloat16)"),
    ("quick GELU for silu", "swiglu", SWIGLU, "return ((gate * torch.sigmoid(1.702 * gate.float())) * up.to(torch.float32)).to(torch.bfloat16)"),
    ("gate clipped at 7", "swiglu", SWIGLU, SWIGLU.replace("silu(gate)", "silu(gate.clamp(max=7.0))")),
    ("h not rounded to BF16 before its cast", "swiglu", SWIGLU, SWIGLU.replace(".to(torch.bfloat16)", "")),
    ("exp of a large negative gate overflows", "swiglu", SWIGLU, SWIGLU.replace("silu(gate)", "(gate / (1 + torch.exp(-gate.double())).float())")),
    ("outer scales one after the other", "matmul", "return sums * (outer_a * outer_b.mT)", "return (sums * outer_a) * outer_b.mT"),
    ("outer scale of the tokens lost", "matmul", "return sums * (outer_a * outer_b.mT)", "return sums * outer_b.mT"),
    ("outer scale of the weights lost", "matmul", "return sums * (outer_a * outer_b.mT)", "return sums * outer_a"),
    ("outer scale of the expert before", "matmul", "p.outer_b.expand(p.b.shape[0], -1, -1)[expert]", "p.outer_b.expand(p.b.shape[0], -1, -1)[expert - 1]"),
    ("sum rounded to BF16 before the outer scales", "matmul", ROWS, ROWS.replace("start), rows", "start).to(torch.bfloat16).float(), rows")),
    ("last expert dropped", "matmul", ROWS, ROWS.replace("matrix))", "matrix) * (expert < p.b.shape[0] - 1))")),
    ("matrix of the expert before", "matmul", ROWS, ROWS.replace("p.b[expert]", "p.b[expert - 1]")),
    ("an expert without rows takes the next one's", "matmul", "for expert, (i, j) in enumerate(pairwise(offsets)):\n        rows", "for expert, (i, j) in enumerate((i, j) for i, j in [*((i, j) for i, j in pairwise(offsets) if i < j), *((i, j) for i, j in pairwise(offsets) if i == j)]):\n        rows"),
    ("an expert without rows raises", "matmul", ROWS, f"p.a[i:j].max() if p.a.shape[0] else None\n        {ROWS}"),
    ("rows assigned one late", "ops", GATE_UP, GATE_UP.replace("groups=groups", "groups=(0, *(min(g + 1, groups[-1]) for g in groups[1:-1]), groups[-1])")),
    ("tail of K beyond a multiple of 16 dropped", "matmul", ROWS, ROWS.replace("product(p.a[i:j], p.b[expert], start)", "product(p.a[i:j, : p.a.shape[1] // 16 * 16], p.b[expert][:, : p.a.shape[1] // 16 * 16], start)")),
    ("library: sum kept in 13 bits", "matmul", LIBRARY, "s = a @ b.mT\n    return (s.view(torch.int32) & -1024).view(torch.float32)"),
    ("library: products in BF16", "matmul", LIBRARY, "return (a.to(torch.bfloat16) @ b.mT.to(torch.bfloat16)).float()"),
    ("library: the last product missing", "matmul", LIBRARY, "return a[:, :-1] @ b[:, :-1].mT"),
    ("ties away from zero in h", "rounding", NEAREST, AWAY),
    ("scale of the neighbour block in h", "quantizer", MADE, MADE.replace("(scales)", "(scales.roll(1, -2))")),
    ("gate_up returned in float32", "ops", HIDDEN, HIDDEN.replace("hidden), gate_up", "hidden), gate_up.float()")),
    ("results exchanged", "ops", HIDDEN, HIDDEN.replace("return quantize_tokens", "h = quantize_tokens").replace(", gate_up", "") + "\n    return gate_up, h"),
]  # fmt: skip
_DOWN_TO_WIRE = [
    ("product rounded to BF16 before the butterfly", "ops", DOWN, f"{DOWN}.to(torch.bfloat16).float()"),
    ("signs reversed", "ops", ROTATED, ROTATED.replace(", wire.signs)", ", wire.signs.flip(0))")),
    ("no rotation", "ops", ROTATED, "y = y + 0"),
    ("rotation in blocks of 16", "ops", ROTATED, "y = hadamard(y, 16, wire.signs[:16])"),
    ("rotation with the inverse", "ops", ROTATED, ROTATED.replace("hadamard(", "hadamard_inverse(")),
    ("missing 1/sqrt(n)", "hadamard", FACTOR, "return x"),
    ("rotated in BF16", "hadamard", FACTOR, "return (x * x.new_tensor(size**-0.5)).to(torch.bfloat16).float()"),
    ("1/sqrt(n) in BF16", "hadamard", FACTOR, "return x * x.new_tensor(size**-0.5).to(torch.bfloat16).float()"),
    ("block scale rounded down", "scales_power", ABOVE, "scale += (bits & 0) >"),
    ("block scale raised at a power of two", "scales_power", ABOVE, "scale += (bits & 0x7FFFFF) >="),
    ("block scale of subnormal blocks", "scales_power", "torch.where(bits < 0x800000, (mantissa | 0x800000) >> 1, mantissa)", "mantissa"),
    ("ties away from zero", "rounding", NEAREST, AWAY),
    ("S2F6 truncated", "rounding", NEAREST, "return v.floor().to(torch.int32)"),
    ("S2F6 by sign and magnitude", "codes", "return ((magnitude ^ sign) - sign) & ((1 << fmt.bits) - 1)", "return magnitude | (sign & (1 << (fmt.bits - 1)))"),
    ("scale of the neighbour block", "quantizer", MADE, MADE.replace("(scales)", "(scales.roll(1, -2))")),
    ("outer scale of the weights lost", "matmul", "return sums * (outer_a * outer_b.mT)", "return sums * outer_a"),
    ("matrix of the first expert", "matmul", ROWS, ROWS.replace("p.b[expert]", "p.b[0]")),
    ("NaN becomes the largest value", "quantizer", "scales = torch.where(finite, scales, poison)", "scales = torch.where(finite, scales, 254)"),
    ("library: sum kept in 13 bits", "matmul", LIBRARY, "s = a @ b.mT\n    return (s.view(torch.int32) & -1024).view(torch.float32)"),
]  # fmt: skip
_AGGREGATE = [
    ("added in the reverse order", "ops", LOOP, "for k in reversed(range(slots.shape[1])):"),
    ("added in pairs", "ops", "assert total is not None", "terms = [decoded.index_select(0, slots[:, k]) * (1 if weights is None else weights[:, k : k + 1]) for k in range(slots.shape[1])]\n    total = terms[0] if len(terms) == 1 else sum(terms[2:4], start=torch.zeros(())) + (terms[0] + terms[1])\n    assert total is not None"),
    ("products fused with the sum", "ops", TOTAL, "total = (decoded.index_select(0, slots[:, k]).double() * (1 if weights is None else weights[:, k : k + 1].double()) + (0 if total is None else total.double())).float()"),
    ("weights in BF16", "ops", TERM, "term = term * weights[:, k : k + 1].to(torch.bfloat16).float()"),
    ("weights in FP16", "ops", TERM, "term = term * weights[:, k : k + 1].to(torch.float16).float()"),
    ("sums kept in BF16", "ops", TOTAL, f"{TOTAL}\n        total = total.to(torch.bfloat16).float()"),
    ("terms rounded to BF16", "ops", TOTAL, "term = term.to(torch.bfloat16).float()\n        " + TOTAL),
    ("weights normalized again", "ops", TERM, "term = term * (weights / weights.sum(1, keepdim=True))[:, k : k + 1]"),
    ("weight of the next expert", "ops", TERM, "term = term * weights.roll(-1, 1)[:, k : k + 1]"),
    ("weighted after the sum", "ops", TERM, "term = term * weights[:, :1]"),
    ("last expert dropped", "ops", LOOP, "for k in range(max(1, slots.shape[1] - 1)):"),
    ("row of the next token", "ops", SLOTS, "term = decoded.index_select(0, slots.roll(1, 0)[:, k])"),
    ("mean where there are no weights", "ops", "        if weights is not None:\n            term", "        if weights is None:\n            term = term / slots.shape[1]\n        else:\n            term"),
    ("rounded to BF16 before the inverse rotation", "ops", BACK, BACK.replace("hadamard_inverse(total,", "hadamard_inverse(total.to(torch.bfloat16),")),
    ("rotation not inverted", "ops", BACK, BACK.replace("hadamard_inverse(", "hadamard(")),
    ("signs lost", "ops", BACK, BACK.replace(", wire.signs)", ", None)")),
    ("each row rotated back on its own", "ops", SLOTS, f"{SLOTS}\n        term = term if wire.signs is None else hadamard(hadamard_inverse(term, len(wire.signs), wire.signs), len(wire.signs), wire.signs)"),
    ("decoded rows rotated back", "ops", OUT, "decoded = decoded if wire.signs is None else hadamard_inverse(decoded, len(wire.signs), wire.signs)\n    return total.to(torch.bfloat16), decoded"),
    ("decoded rows in FP16", "ops", OUT, "return total.to(torch.bfloat16), decoded.to(torch.float16).float()"),
    ("decoded rows by token", "ops", OUT, "return total.to(torch.bfloat16), decoded.index_select(0, slots.flatten())"),
    ("result in float32", "ops", OUT, "return total, decoded"),
    ("result truncated to BF16", "ops", OUT, "return (total.view(torch.int32) & -65536).view(torch.float32).to(torch.bfloat16), decoded"),
    ("weights changed in place", "ops", LOOP, f"None if weights is None else weights.mul_(1 + 2**-20)\n    {LOOP}"),
    ("negative zero lost", "ops", OUT, "return (total + 0.0).to(torch.bfloat16), decoded"),
]  # fmt: skip

MUTANTS = [
    *(Mutant("gate_up_glu", *row) for row in _GATE_UP_GLU),
    *(Mutant("down_to_wire", *row) for row in _DOWN_TO_WIRE),
    *(Mutant("aggregate", *row) for row in _AGGREGATE),
]
