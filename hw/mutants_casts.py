"""Mutants of `quantize_tokens`: rounding, scales, zeros and NaN, blocks, random words, and how arguments are treated."""

from __future__ import annotations

from .mutants import Mutant

NEAREST = "return ((v + start).view(_LAYOUT[v.dtype][2]) - pattern(start, v.dtype)).to(torch.int32)"
AWAY = "return (v.floor() + (v - v.floor() >= 0.5)).to(torch.int32)"
DOWN = AWAY.replace(">=", ">")
SCALE = "codes = round_magnitude(magnitude, E4M3, rounding, value).to(torch.uint8)"
MADE = "return made(folding.unfold(codes), folding.scales(scales), kept,"
CAST = (
    "    return quantize(x, cast.fmt, axis, cast.outer, cast.outer_rounding, groups, "
    "rounding=cast.rounding, random=random)"
)
START = "    require_float(x, \"x\")\n    require_kind(cast, Cast"
POWER = "scale = ((bits + (0x7FFFFF - mantissa)) >> 23).add_(offset)"
WORDS = "return torch.stack((pair, reverse16(pair)), dim=-1).flatten(-3)"
LINE = "line = torch.arange(math.prod(lines), device=device).view(*lines, 1)"


def _first(code: str) -> str:
    """`code` before anything else is done."""
    return f'    require_float(x, "x")\n    {code}\n    require_kind(cast, Cast'


def _after(code: str) -> str:
    """`code` that makes the result `q` another one, of block formats alone."""
    return CAST.replace("    return quantize", "    q = quantize") + f"\n    {code}"


_ROUNDING = [
    ("ties away from zero", "rounding", NEAREST, AWAY),
    ("ties toward zero", "rounding", NEAREST, DOWN),
    ("floor instead of round", "rounding", NEAREST, "return v.floor().to(torch.int32)"),
    ("ceiling instead of round", "rounding", NEAREST, "return v.ceil().to(torch.int32)"),
    ("rounded to BF16 before the element", "rule", "(scaled.view(torch.int32) &", "(scaled.to(torch.bfloat16).float().view(torch.int32) &"),
    ("the largest element code is never reached", "rule", ".clamp_(max=largest)", ".clamp_(max=largest - 0x400000)"),
    ("stochastic: rounded to nearest instead", "ops", "rounding=cast.rounding, random=random)", "rounding=Rounding.NEAREST_EVEN)"),
    ("stochastic: one part in 65536 too often up", "rounding", "leading.add_(random_bits.to(integer))", "leading.add_(random_bits.to(integer) + 1)"),
    ("stochastic: ties are never moved", "rounding", "leading = (v * 2.0**random_width).to(integer)", "leading = (v * 2.0**random_width).round().to(integer)"),
]  # fmt: skip
_SCALES = [
    ("E4M3 scale truncated", "scales", SCALE, SCALE.replace("rounding, value", "Rounding.TOWARD_ZERO, value")),
    ("E4M3 scale rounded up", "scales", SCALE, SCALE.replace("rounding, value", "Rounding.TOWARD_POSITIVE, value")),
    ("scale of the neighbour block", "quantizer", MADE, MADE.replace("(scales)", "(scales.roll(1, -2))")),
    ("scales below 2^-6 are raised to it", "scales", "clamp(max=pattern(E4M3.max, value.dtype))", "clamp(pattern(2.0**-6, value.dtype), pattern(E4M3.max, value.dtype))"),
    ("scales below 2^-6 become 0", "scales", SCALE, SCALE + "\n    codes = torch.where(codes < 8, 0, codes).to(torch.uint8)"),
    ("one outer scale for all tokens", "outer", "scope = amax.amax(tuple(dims), keepdim=True)", "scope = amax.amax().expand(amax.amax(tuple(dims), keepdim=True).shape)"),
    ("outer scale of the token before", "outer", "scope = amax.amax(tuple(dims), keepdim=True)", "scope = amax.amax(tuple(dims), keepdim=True).roll(1, 0)"),
    ("outer scale from 2688 for four-over-six", "quantizer", "scope, chosen.outer_max(fmt.element), folding", "scope, chosen.outer_max(fmt.element) and 2688.0, folding"),
    ("outer scale not stored, but used", "quantizer", MADE, MADE.replace("kept,", "None if kept is None else torch.ones_like(kept),")),
    ("outer scale of NaN from blocks that hold one", "quantizer", "amax = torch.where(finite, largest, 0)", "amax = largest.clone()"),
    ("outer scale without a floor", "outer", ".clamp(min=LEAST_OUTER)", ".clamp(min=0.0)"),
    ("outer scale of a token of zeros is 0", "outer", "return torch.where(zero, one, outer)", "return torch.where(zero, one * 0, outer)"),
    ("outer scale to the nearest power of two", "outer", "exponent - (fraction == 0.5).to(exponent.dtype)", "exponent - (fraction < 0.75).to(exponent.dtype)"),
    ("four-over-six: a tie takes 4", "scales", "use_4 = error4 < error6", "use_4 = error4 <= error6"),
    ("four-over-six: always 6", "scales", "use_4 = error4 < error6", "use_4 = error4 < 0"),
    ("four-over-six: error by magnitude", "scales", "(scale, codes, measure(block.decode(codes, e4m3_value(scale)) - block.x))", "(scale, codes, _absolute(block.decode(codes, e4m3_value(scale)) - block.x))"),
    ("four-over-six: error in BF16", "scales", "return tree(d * d, torch.add)", "return tree(d * d, torch.add).to(torch.bfloat16).float()"),
    ("four-over-six: error summed from left to right", "scales", "return tree(d * d, torch.add)", "return (d * d).cumsum(-1)[..., -1:]"),
    ("four-over-six: product with the reciprocal", "scales", 'block.x / torch.where(step == 0, float("inf"), step)', 'block.x * (torch.ones_like(step) / torch.where(step == 0, float("inf"), step))'),
    ("NVFP4: division instead of the reciprocal", "scales", "block.encode(block.x * multiplier)", "block.encode(block.x / step.clamp(min=1e-38))"),
    ("NVFP4: 1/6 comes last", "scales", "else block.s_enc * sixth)", "else block.s_enc) * sixth"),
    ("NVFP4: amax divided by 6", "scales", "block.amax * (sixth if", "(block.amax / block.amax.new_tensor(6.0)) * (1.0 if"),
    ("E8M0 scale rounded down", "scales_power", POWER, "scale = (bits >> 23).add_(offset)"),
    ("E8M0 scale raised at a power of two", "scales_power", POWER, POWER.replace("0x7FFFFF", "0x800000")),
    ("E8M0 scale never below 2^-126", "scales_power", "scale = scale.clamp_(0, 254)", "scale = scale.clamp_(1, 254)"),
    ("E8M0 scale off by one", "scales_power", "scale = scale.clamp_(0, 254)", "scale = (scale + 1).clamp_(0, 254)"),
]  # fmt: skip
_VALUES = [
    ("sign of zero lost", "codes", "return magnitude | (sign & (1 << (fmt.bits - 1)))", "return magnitude | (sign & (1 << (fmt.bits - 1)) & -(magnitude > 0).int())"),
    ("sign lost where an element rounds to zero", "rule", "code, self.x.view(torch.int32) >> 31,", "code, torch.where(code == 0, torch.zeros_like(self.x), self.x).view(torch.int32) >> 31,"),
    ("NaN: codes of the block kept", "quantizer", "codes = torch.where(finite, codes, fmt.element.max_code)", "codes = codes"),
    ("NaN: scale of the block is finite", "quantizer", "scales = torch.where(finite, scales, poison)", "scales = torch.where(finite, scales, 0x7E)"),
    ("NaN taken for zero", "ops", START, _first("x = x.nan_to_num(0.0)")),
    ("infinity taken for the largest number", "ops", START, _first("x = x.nan_to_num(torch.nan)")),
    ("subnormals flushed to zero", "ops", START, _first("x = torch.where(x.abs() < 2.0**-126, x * 0, x)")),
    ("blocks of zeros get scale 1", "quantizer", MADE, MADE.replace("(scales)", "(torch.where(amax == 0, 127, scales).to(scales.dtype))")),
    ("float32 rows rounded to BF16 first", "ops", START, _first("x = x.to(torch.bfloat16)")),
    ("BF16 rows rounded to FP16 first", "ops", START, _first("x = x.to(torch.float16).to(x.dtype)")),
]  # fmt: skip
_BLOCKS = [
    ("stale padding behind a short block", "partition", "x = pad(x, (0, self.blocks * block - self.length))", "x = pad(x, (0, self.blocks * block - self.length), value=3.0)"),
    ("stale padding behind a group", "partition", "x = pad(x, (0, 1)).index_select", "x = pad(x, (0, 1), value=3.0).index_select"),
    ("groups ignored: blocks straddle experts", "ops", CAST, CAST.replace("groups,", "None,").replace("return quantize", "q = quantize") + "\n    return q.derived(groups=None if groups is None else tuple(groups))"),
    ("blocks along the other axis", "ops", CAST, CAST.replace("axis,", "-1,").replace("groups,", "None if axis == -2 else groups,")),
    ("groups start one row late", "ops", CAST, CAST.replace("groups,", "groups and (0, *(min(g + 1, groups[-1]) for g in groups[1:-1]), groups[-1]),")),
    ("codes of the last rows missing", "ops", CAST, _after("q.codes[-(len(q.codes) % 8) :].zero_() if len(q.codes) % 8 else None\n    return q")),
    ("nibbles swapped", "ops", CAST, _after("n = q.codes.shape[-1] // 2 * 2\n    q.codes[..., :n] = q.codes[..., :n].unflatten(-1, (-1, 2)).flip(-1).flatten(-2)\n    return q")),
    ("Hadamard: missing 1/sqrt(n)", "hadamard", "return x * x.new_tensor(size**-0.5)", "return x"),
    ("Hadamard: strides in the other order", "hadamard", "stride = 1\n    while stride < size:\n        pairs = x.unflatten(-1, (-1, 2, stride))", "stride = 1\n    while stride < size:\n        pairs = x.unflatten(-1, (-1, 2, size // 2 // stride))"),
    ("Hadamard: in BF16", "hadamard", "x = torch.stack((a + b, a - b), dim=-2).flatten(-3)", "x = torch.stack((a + b, a - b), dim=-2).flatten(-3).to(torch.bfloat16).float()"),
    ("Hadamard: signs after the stages", "hadamard", "if inverse else _butterfly(y * signs)", "if inverse else _butterfly(y) * signs"),
    ("Hadamard: a factor in each stage", "hadamard", "return x * x.new_tensor(size**-0.5)", "return x * x.new_tensor(0.5**0.5) ** (size.bit_length() - 1)"),
    ("Hadamard: padding rows are not zero", "hadamard", "blocks = Partition.of(tensor.shape[axis], size, offsets).split(", "blocks = 1e-3 + Partition.of(tensor.shape[axis], size, offsets).split("),
]  # fmt: skip
_RANDOM = [
    ("random words reused in every row", "partition", LINE, LINE.replace("line = ", "line = 0 * ")),
    ("random words reused for every expert", "partition", "expert = partition.group_of.repeat_interleave(per_block)", "expert = 0 * partition.group_of.repeat_interleave(per_block)"),
    ("random words reused in every block", "partition", "group = (partition.index_in_group[:, None] * per_block +", "group = (0 * partition.index_in_group[:, None] * per_block +"),
    ("random words counted from the first row", "partition", "group = (partition.index_in_group[:, None] *", "group = (torch.arange(partition.blocks)[:, None] *"),
    ("random words by the row of all experts", "partition", "by_row.group_of, by_row.index_in_group)", "by_row.group_of, torch.arange(lines[0]))"),
    ("random bits cut to 8", "philox", WORDS, f"{WORDS} & 0xFF00"),
    ("random bits of the first of each pair not reversed", "philox", WORDS, WORDS.replace("reverse16(pair)", "pair")),
    ("random fields of a word exchanged", "philox", "low, high = words & 0xFFFF, words >> 16", "high, low = words & 0xFFFF, words >> 16"),
    ("random bits of E2M1 split as those of 8 bits", "philox", "if element_bits <= 4:", "if element_bits < 4:"),
    ("random words: seven rounds", "philox", "for _ in range(rounds):", "for _ in range(7):"),
    ("random words: key's step ignored", "philox", "k0, k1 = key\n", "k0, k1 = key[0], 0\n"),
    ("random words: the layer ignored", "philox", "torch.full_like(group, first), (expert + second)", "torch.full_like(group, 0), (expert + second)"),
    ("random words: line and group exchanged", "philox", "(c0, c1, line & _MASK, group & _MASK)", "(c0, c1, group & _MASK, line & _MASK)"),
]  # fmt: skip
_CALLS = [
    ("changes its input", "ops", START, _first("x[x == 0] = 0")),
    ("reads rows as if they were contiguous", "ops", START, _first("x = x if x.is_contiguous() else x.new_zeros(x.numel() + x.untyped_storage().nbytes() // x.element_size()).copy_(torch.cat([x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), (x.untyped_storage().nbytes() // x.element_size() - x.storage_offset(),)), x.new_zeros(x.numel() + x.storage_offset())]))[: x.numel()].view(x.shape)")),
    ("ignores where a view starts", "ops", START, _first("x = x if x.storage_offset() == 0 else x.as_strided(x.shape, x.stride(), 0)")),
    ("works in torch's default dtype", "ops", START, _first("x = x.to(torch.get_default_dtype()).to(x.dtype)")),
    ("scales as int32", "ops", CAST, _after("return q.derived(scales=q.scales.to(torch.int32))")),
    ("outer scale without its axis", "ops", CAST, _after("return q if q.outer is None else q.derived(outer=q.outer.flatten())")),
    ("BF16 rows returned in float32", "ops", "        return x.to(torch.bfloat16)\n    random = ", "        return x.to(torch.float32)\n    random = "),
    ("results share a buffer", "ops", CAST, _after("out = globals().setdefault('_kept_buffers', {}).setdefault(q.codes.shape, q.codes)\n    return q.derived(codes=out.copy_(q.codes))")),
    ("a result is remembered by its input's address", "ops", CAST, _after("return globals().setdefault('_kept_known', {}).setdefault((x.data_ptr(), x.shape, cast, axis, groups, random), q)")),
    ("no token raises", "ops", START, _first("x.abs().max()")),
]  # fmt: skip

MUTANTS = [
    Mutant("quantize_tokens", *row) for row in (*_ROUNDING, *_SCALES, *_VALUES, *_BLOCKS, *_RANDOM, *_CALLS)
]
