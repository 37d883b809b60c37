"""The vectorized block quantizers against the scalar twin.

Contract: codes, block scales, outer scales, dequantized values, transforms and exact products of `numerics` are those
of `numerics.oracle`, bit for bit (the sign of zero too), for every rule, scope, rounding and shape here; the oracle's
own FP32 operations are the processor's (numpy float32). Data: normal values in FP32 and BF16, exact ties, zeros of
both signs, zero rows, an outlier that makes block scales subnormal, huge and tiny magnitudes, ragged last blocks.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch

import numerics as nm
from numerics import oracle

FLT_MAX = oracle.FLT_MAX


# ---- data ------------------------------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_outlier(value: float) -> torch.Tensor:
    x = normal(8, 64)
    x[3, 17] = value
    return x


def ties() -> torch.Tensor:
    """Quarters up to 6 in random order, with a 6 in every block, so that scaled values lie on the midpoints of E2M1."""
    steps = torch.randint(-24, 25, (16, 64), generator=torch.Generator().manual_seed(1)) / 4
    steps[:, ::16] = 6.0
    steps[::3, 5] = -0.0
    return steps


def zeros_in_places() -> torch.Tensor:
    x = normal(6, 64)
    x[1] = 0.0
    x[2, 16:32] = -0.0
    x[4, ::2] = 0.0
    return x


def magnitudes_over_decades() -> torch.Tensor:
    return normal(16, 64) * 10.0 ** torch.linspace(-12, 3, 64).roll(7)


DATA = {
    "normal": normal(24, 64),
    "bfloat16": normal(24, 64, seed=1).to(torch.bfloat16),
    "float16": normal(8, 64, seed=2).to(torch.float16),
    "ties": ties(),
    "zeros": torch.zeros(3, 32),
    "negative zeros": -torch.zeros(3, 32),
    "zeros in places": zeros_in_places(),
    "outlier 3e5": with_outlier(3e5),  # block scales become subnormal
    "outlier 3e6": with_outlier(-3e6),  # most block scales become zero
    "decades": magnitudes_over_decades(),
    "huge": with_outlier(FLT_MAX) * torch.linspace(0.1, 1, 8).view(8, 1),
    "all huge": (normal(4, 64) * 1e38).clamp(-FLT_MAX, FLT_MAX),
    "tiny": normal(8, 64) * 1e-30,
    "below the cap of s_enc": normal(8, 64) * 1e-36,
    "tiny beside zeros": zeros_in_places() * 1e-36,
    "subnormal": normal(8, 64) * 1e-40,
    "one least subnormal": torch.eye(4, 32) * 2.0**-149,
    "lognormal rows": normal(16, 64) * torch.exp(4 * normal(16, 1, seed=3)),
    "ragged": normal(5, 45),
    "one value": torch.tensor([[3.7]]),
    "no rows": torch.zeros(0, 32),
}
FINE = {k: DATA[k] for k in ("normal", "bfloat16", "ties", "decades", "ragged", "zeros in places")}


# ---- comparison ------------------------------------------------------------------------------------------------------


def assert_bitwise(ours: torch.Tensor, theirs: list, label: str) -> None:
    """Equal shape and bits; says how many differ and where the first one is."""
    expected = torch.tensor(theirs, dtype=ours.dtype).reshape(ours.shape)
    a, b = (t.contiguous().view(torch.int32) if t.dtype == torch.float32 else t for t in (ours, expected))
    wrong = (a != b).nonzero()
    if len(wrong):
        i = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{label}: {len(wrong)}/{a.numel()} differ, first at {i}: {ours[i].item()!r}, not {expected[i].item()!r}"
        )


def blocks_of(row: list[float], size: int) -> list[list[float]]:
    """The row cut into blocks, the last one padded with zeros."""
    return [(row[i : i + size] + [0.0] * size)[:size] for i in range(0, len(row), size)]


def amaxes(rows: list[list[float]], scope: str) -> list[float]:
    """The amax that each row's outer scale follows."""
    each = [max((abs(v) for v in row), default=0.0) for row in rows]
    return each if scope == "row" else [max(each, default=0.0)] * len(rows)


@dataclass
class Expected:
    """What the oracle says of a two-dimensional tensor with blocks along its rows."""

    scales: list[list[int]] = field(default_factory=list)
    codes: list[list[int]] = field(default_factory=list)
    outers: list[float] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)


def nvfp4_codes(block: list[float], amax: float, outer: float, rule: str) -> tuple[int, list[int]]:
    if rule == "nvfp4":
        return oracle.nvfp4_block(block, amax)
    return oracle.four_over_six_block(block, outer)[:2]


def expect_nvfp4(rows: list[list[float]], scope: str, rule: str) -> Expected:
    out = Expected()
    for row, amax in zip(rows, amaxes(rows, scope), strict=True):
        outer = oracle.outer_scale(amax, {"nvfp4": 2688.0, "four_over_six": 1536.0}[rule])
        pairs = [nvfp4_codes(block, amax, outer, rule) for block in blocks_of(row, 16)]
        out.outers.append(outer)
        out.scales.append([scale for scale, _ in pairs])
        out.codes.append([code for _, codes in pairs for code in codes][: len(row)])
        out.values.append([oracle.dequantize_nvfp4(c, s, outer) for s, codes in pairs for c in codes][: len(row)])
    return out


def expect_mx(rows: list[list[float]], fmt: nm.Format, fields: list[list[int]] | None = None) -> Expected:
    """MX of the rows; `fields` has a row of random fields for each, as long as the padded row."""
    out = Expected()
    for i, row in enumerate(rows):
        chunks = blocks_of(fields[i], 32) if fields else [None] * len(blocks_of(row, 32))
        pairs = [oracle.mx_block(block, fmt, chunk) for block, chunk in zip(blocks_of(row, 32), chunks, strict=True)]
        out.scales.append([scale for scale, _ in pairs])
        out.codes.append([code for _, codes in pairs for code in codes][: len(row)])
        out.values.append([oracle.dequantize_mx(c, s, fmt) for s, codes in pairs for c in codes][: len(row)])
    return out


def assert_quantized(q: nm.BlockTensor, expected: Expected) -> None:
    """Scales, codes, values (without outer where the oracle gave none) of a tensor with blocks along its rows."""
    assert_bitwise(q.scales, expected.scales, "scales")
    assert_bitwise(q.codes, expected.codes, "codes")
    assert_bitwise(q.dequantize(), expected.values, "values")


def exact(x: torch.Tensor) -> list:
    """Nested lists of the tensor's values; float32 and narrower are exact in Python floats."""
    return x.to(torch.float64).tolist()


# ---- the oracle's own arithmetic -------------------------------------------------------------------------------------


def test_fp32_operations_are_the_processors():
    """Multiply, divide, add of bit patterns of every kind: normal, subnormal results, overflow, zeros, Inf, NaN."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, (4, 6000), dtype=np.uint64).astype(np.uint32)
    near_one = (bits[2:] & 0x807FFFFF) | (rng.integers(60, 190, (2, 6000)) << 23).astype(np.uint32)
    pairs = np.concatenate((bits[:2], near_one), axis=1).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, FLT_MAX, 2.0**-126], np.float32)
    mesh = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    a, b = np.concatenate((pairs, mesh), axis=1)
    with np.errstate(all="ignore"):
        for ours, theirs in ((oracle.mul32, a * b), (oracle.div32, a / b), (oracle.add32, a + b)):
            got = np.array([ours(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)])
            assert np.array_equal(got, theirs.astype(np.float64), equal_nan=True), ours.__name__
            numbers = ~np.isnan(theirs)
            assert np.array_equal(np.signbit(got)[numbers], np.signbit(theirs)[numbers]), ours.__name__


def test_float32_ties_and_limits():
    one = oracle.Fraction(1)
    assert oracle.float32(one + one / 2**24) == 1.0  # tie to even
    assert oracle.float32(one + 3 * one / 2**24) == 1 + 2.0**-22
    assert oracle.float32(one / 2**150) == 0.0 and oracle.float32(3 * one / 2**150) == 2.0**-148
    assert oracle.float32(oracle.Fraction(2**128 - 2**103 - 1)) == FLT_MAX
    assert oracle.float32(oracle.Fraction(2**128 - 2**103)) == math.inf


# ---- NVFP4 -----------------------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("scope", ["tensor", "row"])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46], ids=lambda f: f.name)
def test_nvfp4(fmt: nm.BlockFormat, data: str, scope: str):
    x = DATA[data]
    q = nm.quantize(x, fmt, outer=scope)
    expected = expect_nvfp4(exact(x), scope, fmt.rule.name)
    assert q.outer.shape == ((1, 1) if scope == "tensor" else (x.shape[0], 1))
    if x.shape[0]:
        assert_bitwise(q.outer, expected.outers[: q.outer.shape[0]], "outer")
    assert_quantized(q, expected)
    assert bool(torch.isfinite(q.dequantize()).all())


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46], ids=lambda f: f.name)
def test_nvfp4_along_another_axis_and_per_expert(fmt: nm.BlockFormat):
    x = normal(3, 32, 6) * torch.tensor([1.0, 1e-3, 50.0]).view(3, 1, 1)
    q = nm.quantize(x, fmt, axis=-2, outer="leading")
    assert q.outer.shape == (3, 1, 1)
    for e in range(3):
        columns = expect_nvfp4(exact(x[e].mT), "tensor", fmt.rule.name)
        assert_bitwise(q.outer[e, 0], columns.outers[:1], "outer")
        assert_bitwise(q.scales[e].mT, columns.scales, "scales")
        assert_bitwise(q.codes[e].mT, columns.codes, "codes")
        assert_bitwise(q.dequantize()[e].mT, columns.values, "values")


def test_nvfp4_without_outer_scale():
    """outer=None is s_enc = 1: the amax that gives it is 2688."""
    x = normal(8, 64)
    q = nm.quantize(x, nm.NVFP4, outer=None)
    pairs = [oracle.nvfp4_block(block, 2688.0) for row in exact(x) for block in blocks_of(row, 16)]
    assert q.outer is None
    assert_bitwise(q.scales, [scale for scale, _ in pairs], "scales")
    assert_bitwise(q.codes, [codes for _, codes in pairs], "codes")


@pytest.mark.parametrize("data", FINE)
def test_outer_rounded_up_to_a_power_of_two(data: str):
    """The outer 2^k is that of the amax 2688 x 2^k, whose s_enc is exactly 2^-k."""
    x = FINE[data]
    amax = float(x.abs().max())
    k = math.ceil(math.log2(oracle.outer_scale(amax, 2688.0)))
    assert 2.0 ** (k - 1) < oracle.outer_scale(amax, 2688.0) <= 2.0**k
    q = nm.quantize(x, nm.NVFP4, outer_rounding="pow2")
    pairs = [oracle.nvfp4_block(block, 2688.0 * 2.0**k) for row in exact(x) for block in blocks_of(row, 16)]
    assert float(q.outer) == 2.0**k
    assert_bitwise(q.scales, [scale for scale, _ in pairs], "scales")
    codes = [codes for _, codes in pairs]
    assert_bitwise(q.codes.flatten(), trimmed(codes, x.shape), "codes")


def trimmed(blocks: list[list[int]], shape: torch.Size) -> list[int]:
    """Codes of consecutive blocks of 16, without the padding of each row."""
    per_row = -(-shape[1] // 16)
    flat = [code for block in blocks for code in block]
    return [code for i in range(shape[0]) for code in flat[16 * per_row * i :][: shape[1]]]


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46], ids=lambda f: f.name)
@pytest.mark.parametrize("outer", ["tensor", "row", "tensor rounded", "given"])
def test_zeros_beside_values_whose_encode_scale_overflows(fmt: nm.BlockFormat, outer: str):
    """Outer 2^-128, the least: 1 / outer is no FP32 number. Finite data has finite scales, zeros stay zeros."""
    x = DATA["tiny beside zeros"]
    if outer == "given":
        q = nm.quantize(x, fmt, outer=torch.full((1, 1), 2.0**-128))
    else:
        q = nm.quantize(x, fmt, outer=outer.split()[0], outer_rounding="pow2" if "rounded" in outer else None)
    values = q.dequantize()
    assert not bool((q.scales == nm.E4M3.nan_code).any())
    assert bool(torch.isfinite(values).all()) and not bool(values[1].any()) and not bool(values[2, 16:32].any())


def test_four_over_six_with_a_given_outer():
    """Any outer scale, one per row; and the choices themselves, which the scales alone could hide."""
    x = normal(16, 64)
    outer = torch.rand(16, 1, generator=torch.Generator().manual_seed(5)) / 100
    q = nm.quantize(x, nm.NVFP4_46, outer=outer)
    assert_bitwise(q.outer, exact(outer), "outer")
    picked = []
    for i, row in enumerate(exact(x)):
        triples = [oracle.four_over_six_block(block, float(outer[i])) for block in blocks_of(row, 16)]
        assert_bitwise(q.scales[i], [scale for scale, _, _ in triples], "scales")
        assert_bitwise(q.codes[i], [codes for _, codes, _ in triples], "codes")
        picked += [picked4 for _, _, picked4 in triples]
    assert 10 < sum(picked) < 54  # of 64: both choices occur


@pytest.mark.parametrize(
    "bf16",
    [  # found by search among Gaussians, outer 1: another sum of the errors picks the other scale for each
        "3f3b bf08 beca bc21 3f6a 3f3f bf9d 3bcf bdb6 3f51 beb4 3fba be98 3df4 3eed 3fc8",
        "bfd1 3f9d be22 bec4 3f36 bf4f ba9a be4d bdfa 3dd4 3e3b bf40 3f89 3e40 bf15 bf97",
        "4015 bb73 3ebb bf54 3ec0 3ec2 bfef bfb5 bd54 bfa8 c016 3ebb 3f21 bf4f bf45 3fa9",
    ],
    ids=["halves", "in order", "in order too"],
)
def test_choice_where_the_order_of_summation_decides(bf16: str):
    """Adding the first half to the second, or one after the other, instead of the tree over adjacent pairs."""
    x = nm.decode(torch.tensor([int(code, 16) for code in bf16.split()]), nm.BF16)
    q = nm.quantize(x, nm.NVFP4_46, outer=torch.ones(1))
    scale, codes, _ = oracle.four_over_six_block(exact(x), 1.0)
    assert (q.scales.tolist(), q.codes.tolist()) == ([scale], codes)


def test_encode_rule_where_the_order_of_operations_shows():
    """amax 1.5, block maximum 2.74658203125e-4: bmax x (s_enc x fl(1/6)) gives .0859375, (bmax / 6) x s_enc .078125."""
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 16] = 1.5, 2.74658203125e-4
    q = nm.quantize(x, nm.NVFP4)
    assert nm.decode(q.scales, nm.E4M3).tolist() == [[448.0, 0.0859375]]
    bmax, s_enc = 2.74658203125e-4, oracle.div32(2688.0, 1.5)
    literal = oracle.nearest(oracle.mul32(oracle.div32(bmax, 6.0), s_enc), nm.E4M3)
    assert nm.E4M3.value(literal) == 0.078125


# ---- MX --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("fmt", [nm.MXFP8, nm.MXS2F6], ids=lambda f: f.name)
def test_mx(fmt: nm.BlockFormat, data: str):
    x = DATA[data]
    q = nm.quantize(x, fmt)
    assert q.outer is None
    assert_quantized(q, expect_mx(exact(x), fmt.element))


@pytest.mark.parametrize(
    ("fmt", "amax", "exponent"),
    [
        (nm.MXFP8, 448.0, 0),
        (nm.MXFP8, 449.0, 1),
        (nm.MXFP8, 2.0, -7),
        (nm.MXFP8, 1.75, -8),
        (nm.MXFP8, 1e-45, -127),
        (nm.MXFP8, FLT_MAX, 120),
        (nm.MXS2F6, 1.984375, 0),
        (nm.MXS2F6, 1.985, 1),
        (nm.MXS2F6, 3.97, 2),
        (nm.MXS2F6, 200.0, 7),
        (nm.MXS2F6, 2.0, 1),
        (nm.MXS2F6, FLT_MAX, 127),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_rceil_exponents(fmt: nm.BlockFormat, amax: float, exponent: int, sign: int):
    """Smallest p = 2^exponent with p x max >= amax, clamped to 2^-127 and 2^127."""
    x = torch.zeros(1, 32)
    x[0, 3] = sign * amax
    assert int(nm.quantize(x, fmt).scales) - 127 == exponent
    assert oracle.rceil(float(x.abs().max()), fmt.element) - 127 == exponent


@pytest.mark.parametrize("fmt", [nm.MXFP8, nm.MXS2F6], ids=lambda f: f.name)
def test_rceil_around_every_threshold(fmt: nm.BlockFormat):
    """max x 2^k and powers of two with both FP32 neighbours, over all exponents: where log2 and division go wrong."""
    powers = np.ldexp(1.0, np.arange(-149, 128, 1 if fmt is nm.MXFP8 else 2))
    points = np.concatenate((powers, powers * fmt.element.max))
    points = points[points <= FLT_MAX].astype(np.float32)
    around = np.concatenate((points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(FLT_MAX))))
    x = torch.zeros(len(around), 32)
    x[:, 5] = torch.from_numpy(around)
    q = nm.quantize(x, fmt)
    assert_bitwise(q.scales, [oracle.rceil(a, fmt.element) for a in around.tolist()], "scales")


# ---- stochastic rounding and requantization --------------------------------------------------------------------------

KEY, COUNTER = (1234, 56), (3 * 64 + 1, 16)


def fields_of(line: int, length: int, bits: int, expert: int = 0) -> list[int]:
    """Random fields of one line, padded to whole blocks of 32."""
    counter = (COUNTER[0], COUNTER[1] + expert)
    return [oracle.random_field(KEY, counter, line, position, bits) for position in range(-(-length // 32) * 32)]


@pytest.mark.parametrize("data", FINE)
@pytest.mark.parametrize("fmt", [nm.MXFP8, nm.MXS2F6], ids=lambda f: f.name)
def test_stochastic_mx(fmt: nm.BlockFormat, data: str):
    x = FINE[data]
    q = nm.quantize(x, fmt, rounding=nm.Rounding.STOCHASTIC, random=nm.Random(KEY, COUNTER))
    fields = [fields_of(line, x.shape[1], 8) for line in range(x.shape[0])]
    assert_quantized(q, expect_mx(exact(x), fmt.element, fields))


def test_stochastic_nvfp4_takes_four_bit_fields():
    """Scales as in nearest rounding; elements rounded by the fields of the 4-bit split."""
    x = normal(4, 64)
    q = nm.quantize(x, nm.NVFP4, rounding=nm.Rounding.STOCHASTIC, random=nm.Random(KEY, COUNTER))
    assert torch.equal(q.scales, nm.quantize(x, nm.NVFP4).scales)
    amax = float(x.abs().max())
    s_dec = oracle.div32(1.0, oracle.div32(2688.0, amax))
    for line, row in enumerate(exact(x)):
        for position, value in enumerate(row):
            scale = nm.E4M3.value(int(q.scales[line, position // 16]))
            scaled = oracle.mul32(value, oracle.div32(1.0, oracle.mul32(scale, s_dec)))
            expected = oracle.stochastic(scaled, nm.E2M1, oracle.random_field(KEY, COUNTER, line, position, 4))
            assert int(q.codes[line, position]) == expected, (line, position)


def expect_requantized(values: list[list[float]], groups: list[int], stochastic: bool) -> Expected:
    """MXFP8 along tokens of (tokens, features) values: a group starts a block, an expert and its random counters."""
    columns = [list(column) for column in zip(*values, strict=True)]
    parts = []
    for expert, (start, stop) in enumerate(pairwise(groups)):
        fields = [fields_of(line, stop - start, 8, expert) for line in range(len(columns))] if stochastic else None
        parts.append(expect_mx([column[start:stop] for column in columns], nm.E4M3, fields))
    joined = Expected()
    for name in ("scales", "codes", "values"):
        rows = [[v for part in parts for v in getattr(part, name)[i]] for i in range(len(columns))]
        setattr(joined, name, rows)
    return joined


def values_of(q: nm.BlockTensor, with_outer: bool) -> list[list[float]]:
    """Values of an NVFP4 tensor by the oracle, from its codes and scales."""
    outers = q.outer.expand(q.shape[0], 1).flatten().tolist() if with_outer else [1.0] * q.shape[0]
    codes, scales = q.codes.tolist(), q.scales.tolist()
    return [
        [oracle.dequantize_nvfp4(code, scales[i][j // 16], outers[i]) for j, code in enumerate(row)]
        for i, row in enumerate(codes)
    ]


@pytest.mark.parametrize("groups", [None, (0, 32, 32, 37, 80), (0, 0, 1, 80)], ids=str)
@pytest.mark.parametrize("how", ["keep", "multiply", "drop"])
@pytest.mark.parametrize("rounding", [nm.Rounding.NEAREST_EVEN, nm.Rounding.STOCHASTIC], ids=lambda r: r.name)
def test_requantize_along_tokens(groups: tuple[int, ...] | None, how: str, rounding: nm.Rounding):
    """A saved operand (80 tokens, 16 features) to MXFP8 along tokens, ragged and empty experts included."""
    x = normal(80, 16) * torch.exp(normal(80, 1, seed=9))
    q = nm.quantize(x, nm.NVFP4_46, outer="tensor" if how == "keep" else "row")
    stochastic = rounding is nm.Rounding.STOCHASTIC
    random = nm.Random(KEY, COUNTER) if stochastic else None
    r = nm.requantize(q, nm.MXFP8, axis=-2, groups=groups, outer=how, rounding=rounding, random=random)
    expected = expect_requantized(values_of(q, how == "multiply"), list(groups or (0, 80)), stochastic)
    assert_bitwise(r.scales.mT, expected.scales, "scales")
    assert_bitwise(r.codes.mT, expected.codes, "codes")
    assert_bitwise(r.values().mT, expected.values, "values")
    if how == "keep":
        assert torch.equal(r.outer, q.outer)
        outer = float(q.outer)
        whole = [[oracle.mul32(v, outer) for v in row] for row in expected.values]
        assert_bitwise(r.dequantize().mT, whole, "values with outer")
    else:
        assert r.outer is None


def test_requantize_weights_per_expert():
    """(experts, out, in) weights with one outer each, to MXFP8 along out: expert e draws from counter c1 + e."""
    w = normal(3, 64, 32) * torch.tensor([1.0, 0.01, 7.0]).view(3, 1, 1)
    q = nm.quantize(w, nm.NVFP4, outer="leading")
    r = nm.requantize(q, nm.MXFP8, axis=-2, random=nm.Random(KEY, COUNTER))
    assert torch.equal(r.outer, q.outer)
    for e in range(3):
        part = nm.BlockTensor(q.codes[e], q.scales[e], q.outer[e], q.fmt, q.rule, 1)
        columns = [list(column) for column in zip(*values_of(part, False), strict=True)]
        expected = expect_mx(columns, nm.E4M3, [fields_of(line, 64, 8, e) for line in range(32)])
        assert_bitwise(r.scales[e].mT, expected.scales, "scales")
        assert_bitwise(r.codes[e].mT, expected.codes, "codes")


def test_one_expert_alone_draws_the_same_bits():
    """Codes of an expert's rows do not depend on the experts before it, given its own counter."""
    x = normal(80, 32)
    q = nm.quantize(x, nm.NVFP4, outer="row")
    groups = (0, 32, 37, 80)
    whole = nm.requantize(q, nm.MXFP8, groups=groups, outer="drop", random=nm.Random(KEY, COUNTER))
    for e, (start, stop) in enumerate(pairwise(groups)):
        rows = q.rows(torch.arange(start, stop))
        alone = nm.requantize(rows, nm.MXFP8, outer="drop", random=nm.Random(KEY, (COUNTER[0], COUNTER[1] + e)))
        assert torch.equal(alone.codes, whole.codes[start:stop])


# ---- Hadamard and exact products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_hadamard(size: int):
    zeros = torch.zeros(1, 128)
    x = torch.cat((normal(4, 128), magnitudes_over_decades()[:4].repeat(1, 2), zeros, -zeros))
    signs = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(size)) * 2.0 - 1
    plus = [1.0] * size
    for given in (signs, None):
        s = plus if given is None else given.tolist()
        blocks = [block for row in exact(x) for block in blocks_of(row, size)]
        assert_bitwise(nm.hadamard(x, size, given), [oracle.hadamard(b, s) for b in blocks], "transform")
        inverse = [[oracle.mul32(y, sign) for y, sign in zip(oracle.hadamard(b, plus), s, strict=True)] for b in blocks]
        assert_bitwise(nm.hadamard_inverse(x, size, given), inverse, "inverse")


def test_hadamard_along_another_axis_and_in_bfloat16():
    x = normal(64, 3).to(torch.bfloat16)
    ours = nm.hadamard(x, 32, axis=0)
    columns = [block for column in exact(x.mT) for block in blocks_of(column, 32)]
    assert_bitwise(ours.mT.contiguous(), [oracle.hadamard(b, [1.0] * 32) for b in columns], "transform")


def cancelling(rows: int, length: int) -> torch.Tensor:
    """Pairs that cancel to far below their size, shuffled, over 60 binades: where any rounded sum fails."""
    generator = torch.Generator().manual_seed(11)
    half = torch.randn(rows, length // 2, generator=generator) * 2.0 ** torch.randint(-30, 30, (rows, length // 2))
    noise = torch.randn(rows, length // 2, generator=generator)
    x = torch.cat((half, noise - half), dim=1)
    return x[:, torch.randperm(length, generator=generator)]


PRODUCTS = {
    "normal": (normal(5, 64), normal(7, 64, seed=1)),
    "decades": (magnitudes_over_decades()[:5], magnitudes_over_decades()[5:9]),
    "cancelling": (cancelling(6, 64), torch.ones(1, 64)),
    "both cancelling": (cancelling(6, 64), cancelling(4, 64).flip(0)),
    "bfloat16": (normal(5, 64).to(torch.bfloat16), normal(7, 64, seed=1).to(torch.bfloat16)),
    "subnormal results": (normal(3, 16) * 1e-22, normal(3, 16, seed=1) * 1e-20),
    # head on an FP32 tie; what decides lies in the second of three parts, not in the third, of the opposite sign
    "tie decided by the second part": (
        torch.tensor([[2.0**60, 2.0**36, 1.0, -(2.0**-60)], [2.0**60, 2.0**36, -1.0, 2.0**-60]]),
        torch.ones(1, 4),
    ),
    "tie": (torch.tensor([[2.0**60, 2.0**36, 2.0**-60, -(2.0**-60)]]), torch.ones(1, 4)),
    # 58 bits from the first to the last: float64 drops the 2^-54 that decides
    "tie decided beyond float64": (torch.tensor([[1.0, 2.0**-24, 2.0**-54]]), torch.ones(1, 3)),
    "zero": (torch.tensor([[1.0, -1.0], [0.0, -0.0]]), torch.ones(2, 2)),
}


@pytest.mark.parametrize("data", PRODUCTS)
def test_exact_products(data: str):
    a, b = PRODUCTS[data]
    theirs = [[oracle.exact_dot(x, y) for y in exact(b)] for x in exact(a)]
    assert_bitwise(nm.matmul(a, b, "exact"), theirs, "product")


def test_exact_product_of_block_tensors():
    """The sum is over decoded values without the outers, rounded once; then x fl(outer_a x outer_b)."""
    a, b = nm.quantize(normal(5, 64), nm.NVFP4_46, outer="row"), nm.quantize(normal(7, 64, seed=1), nm.NVFP4)
    ours = nm.matmul(a, b, "exact")
    rows, columns = values_of(a, False), values_of(b, False)
    theirs = []
    for i, x in enumerate(rows):
        outer = oracle.mul32(float(a.outer[i]), float(b.outer))
        theirs.append([oracle.mul32(oracle.exact_dot(x, y), outer) for y in columns])
    assert_bitwise(ours, theirs, "product")


# ---- what is no number -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46, nm.MXFP8, nm.MXS2F6], ids=lambda f: f.name)
def test_a_block_that_holds_nan_or_inf_gets_a_nan_scale(fmt: nm.BlockFormat, bad: float):
    """Only that block, and outer scales follow the others: they are as if the bad value were zero."""
    x = normal(4, 64)
    x[0, 0], x[2, 40] = 5.0, 0.0
    clean = nm.quantize(x, fmt)
    x[2, 40] = bad
    q = nm.quantize(x, fmt)
    others = torch.ones_like(q.scales, dtype=torch.bool)
    others[2, 40 // fmt.block] = False
    assert int(q.scales[2, 40 // fmt.block]) == fmt.scale.nan_code
    assert torch.equal(q.scales[others], clean.scales[others])
    values, clean_values = (t.dequantize().unflatten(1, (-1, fmt.block)) for t in (q, clean))
    assert bool(torch.isnan(values[~others]).all())
    assert torch.equal(values[others], clean_values[others])
    with pytest.raises(ValueError, match=r"\(2, 40\)"):
        nm.quantize(x, fmt, check_finite=True)
