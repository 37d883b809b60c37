"""The numbers that papers print, as tests.

Contract and oracle: each example of "End-to-End 4-Bit Training" (Thinking Machines Lab, 2026) and the tables 1 and 2 of
"Four Over Six" (arXiv 2512.02010) come out of the public functions exactly as printed, or as recomputed by hand where
the article rounds; so do counts over all BF16 pairs, known from an independent recomputation. Bitwise.
"""

import pytest
import torch

import numerics as nm
from numerics import oracle


def block(*values: float) -> torch.Tensor:
    """One row of 16 that starts with `values`."""
    x = torch.zeros(1, 16)
    x[0, : len(values)] = torch.tensor(values)
    return x


# ---- one block, no outer scale ---------------------------------------------------------------------------------------


def test_block_maximum_minus_54_gives_code_minus_6_and_scale_9():
    """5.4 / 9 = 0.6 rounds to 0.5: 4.5."""
    q = nm.quantize(block(-54.0, 5.4), nm.NVFP4, outer=None)
    assert nm.decode(q.scales, nm.E4M3).tolist() == [[9.0]]
    assert nm.decode(q.codes, nm.E2M1)[0, :2].tolist() == [-6.0, 0.5]
    assert q.dequantize()[0, :2].tolist() == [-54.0, 4.5]


def test_e4m3_scale_96_and_the_error_of_593_7():
    """E4M3 0|1101|100 is 96; 96 x 6 = 576, 17.7 below 593.7."""
    assert nm.E4M3.value(0b0_1101_100) == 96.0
    x = block(593.7)
    q = nm.quantize(x, nm.NVFP4, outer=None)
    assert q.scales.tolist() == [[0b0_1101_100]]
    assert float(q.dequantize()[0, 0]) == 576.0
    # both numbers have FP32 quantum 2^-14 and lie within a factor of 2, so the difference is exact; 593.7 itself is
    # rounded to FP32 by at most half a quantum
    assert abs(float((q.dequantize() - x)[0, 0]) + 17.7) <= 2.0**-15


@pytest.mark.parametrize(
    ("outer", "least", "largest"), [(1.0, 2.0**-10, 2688.0), (2.0, 2.0**-9, 5376.0), (0.5, 2.0**-11, 1344.0)]
)
def test_range_of_magnitudes(outer: float, least: float, largest: float):
    """0.5 x 2^-9 up to 6 x 448, times the outer scale: over every pair of a code and a scale."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(0x7F, 1)
    scales = torch.arange(0x7F, dtype=torch.uint8).view(-1, 1)
    q = nm.BlockTensor(codes, scales, torch.tensor([[outer]]), nm.NVFP4, nm.NVFP4.rule.name, 1)
    magnitudes = q.dequantize().abs()
    assert float(magnitudes[magnitudes > 0].min()) == least
    assert float(magnitudes.max()) == largest


def test_range_of_s2f6():
    values = nm.S2F6.values()
    assert (float(values[0]), float(values[-1])) == (-128 / 64, 127 / 64)


# ---- requantization --------------------------------------------------------------------------------------------------


def saved_4_5() -> nm.BlockTensor:
    """Values 4.5 = 0.5 x 9 in row 0, 12 = 6 x 2 in row 1: a new block down a column has the scale 2.

    Column 0 holds the -54 that makes the scale 9, and belongs to no example.
    """
    x = torch.zeros(16, 32)
    x[0], x[1] = 5.4, 12.0
    x[0, ::16] = -54.0
    return nm.quantize(x, nm.NVFP4, outer=None)


def columns(q: nm.BlockTensor) -> torch.Tensor:
    """The columns of the example, from a tensor of 32."""
    return q.dequantize()[:, [j for j in range(32) if j % 16]]


def test_saved_value():
    assert columns(saved_4_5())[0].tolist() == [4.5] * 30


def test_requantized_to_nvfp4_nearest_gives_4():
    q = nm.requantize(saved_4_5(), nm.NVFP4, axis=-2, rounding=nm.Rounding.NEAREST_EVEN)
    assert nm.decode(q.scales, nm.E4M3)[0, 1:16].tolist() == [2.0] * 15
    assert columns(q)[0].tolist() == [4.0] * 30


def test_requantized_to_nvfp4_stochastically_gives_4_or_6_and_4_5_on_average():
    """4.5 / 2 = 2.25 becomes 2 for 3/4 and 3 for 1/4 of the 2^16 random fields, exactly."""
    codes = nm.encode(torch.full((1 << 16,), 2.25), nm.E2M1, nm.Rounding.STOCHASTIC, torch.arange(1 << 16))
    values, counts = torch.unique(2 * nm.decode(codes, nm.E2M1), return_counts=True)
    assert values.tolist() == [4.0, 6.0] and counts.tolist() == [3 << 14, 1 << 14]
    assert float((values * counts).sum()) / (1 << 16) == 4.5
    seen = set()
    for step in range(8):
        q = nm.requantize(saved_4_5(), nm.NVFP4, axis=-2, random=nm.Random((0, step)))
        seen |= set(columns(q)[0].tolist())
        assert columns(q)[1].tolist() == [12.0] * 30  # the block's maximum lies on the grid
    assert seen == {4.0, 6.0}


@pytest.mark.parametrize("step", range(4))
def test_requantized_to_mxfp8_is_exact(step: int):
    """4.5 = 1.125 x 2^2 is an E4M3 number at any power-of-two scale, whatever the random bits."""
    q = nm.requantize(saved_4_5(), nm.MXFP8, axis=-2, random=nm.Random((0, step)))
    assert torch.equal(columns(q), columns(saved_4_5()))


def test_transpose_figure():
    """A block with values 0, 1, 4, 16, 64: scale e4m3(64 / 6) = 11; 16 -> 16.5, 4 -> 5.5, and 1 < 0.25 x 11 -> 0."""
    x = block(64.0, 16.0, 4.0, 1.0, 0.0, 2.75, 2.76).T.contiguous()
    q = nm.quantize(x, nm.NVFP4, axis=0, outer=None)
    assert nm.decode(q.scales, nm.E4M3).tolist() == [[11.0]]
    # 2.75 = 0.25 x 11 is the threshold: as a tie it goes to the even code, 0
    assert q.dequantize()[:7, 0].tolist() == [66.0, 16.5, 5.5, 0.0, 0.0, 0.0, 5.5]


# ---- four over six ---------------------------------------------------------------------------------------------------

TABLE = (10.0, 20.0, 30.0, 40.0)


def test_four_over_six_block_mapped_to_6():
    """Scale 40/6 -> 6.5; 30/6.5 = 4.615 -> 4. Squared errors .0625 + .25 + 16 + 1 = 17.3125, over 4 values 4.328."""
    q = nm.quantize(block(*TABLE), nm.NVFP4, outer=None)
    values = q.dequantize()[0, :4]
    assert nm.decode(q.scales, nm.E4M3).tolist() == [[6.5]]
    assert values.tolist() == [9.75, 19.5, 26.0, 39.0]
    assert float(((values - torch.tensor(TABLE)) ** 2).sum()) == 17.3125


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_four_over_six_block_mapped_to_4(sign: float):
    """Scale 10: 1, 2, 3, 4, no error, so 4 wins."""
    x = sign * block(*TABLE)
    q = nm.quantize(x, nm.NVFP4_46, outer=torch.ones(1, 1))
    assert nm.decode(q.scales, nm.E4M3).tolist() == [[10.0]]
    assert nm.decode(q.codes, nm.E2M1)[0, :4].tolist() == [sign * v for v in (1.0, 2.0, 3.0, 4.0)]
    assert torch.equal(q.dequantize(), x)
    assert oracle.four_over_six_block(x[0].tolist(), 1.0)[2]


def test_four_over_six_keeps_6_on_equal_errors():
    """6 alone is exact under both (6 x 1 and 4 x 1.5): the tie goes to 6."""
    q = nm.quantize(block(6.0), nm.NVFP4_46, outer=torch.ones(1, 1))
    assert nm.decode(q.codes, nm.E2M1)[0, 0] == 6.0 and nm.decode(q.scales, nm.E4M3).tolist() == [[1.0]]


CELL = 2.0**-13  # of an integral over [0, 6]


def errors(step: float) -> torch.Tensor:
    """Of the midpoints of all cells of [0, 6], quantized with the exact scale `step`."""
    x = (torch.arange(int(6 / CELL), dtype=torch.float64) + 0.5) * CELL
    return (nm.round_to(x / step, nm.E2M1) * step - x).abs()


def test_dead_zone():
    """One value uniform in [0, 6]: MSE 7/48 and 15/128, largest error 1 and .75, elementwise best .07422 (= 19/256).

    The error is linear within a cell, for where it bends lie multiples of 1/8, so that the mean of its square there is
    the midpoint's square + cell^2 / 12. The tolerance is float64's.
    """
    six, four = errors(1.0), errors(1.5)
    for d, mse in ((six, 7 / 48), (four, 15 / 128), (torch.minimum(six, four), 19 / 256)):
        assert float(d.square().mean()) + CELL**2 / 12 == pytest.approx(mse, rel=1e-12)
    assert [float(d.max()) + CELL / 2 for d in (six, four)] == [pytest.approx(v, rel=1e-12) for v in (1.0, 0.75)]


# ---- the block scale's order of operations, over every pair ----------------------------------------------------------


def bf16_pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """amax over the 128 BF16 numbers of [1, 2), block maxima over all BF16 numbers from 2^-12 to amax.

    A power of two on both moves nothing, so that these are all pairs with ratios down to about 2^-12.
    """
    mantissas = 1 + torch.arange(128) / 128
    maxima = torch.cat([mantissas * 2.0**e for e in range(-12, 1)])
    amax, bmax = torch.meshgrid(mantissas, maxima, indexing="ij")
    return amax[bmax <= amax], bmax[bmax <= amax]


def test_block_scales_over_every_pair():
    """Ours, Transformer Engine's, differs from (bmax/6) s_enc for 203 of 204,864, from bmax/(outer 6) for 314."""
    amax, bmax = bf16_pairs()
    assert len(amax) == 204_864
    x = torch.zeros(len(amax), 32)
    x[:, 0], x[:, 16] = amax, bmax
    ours, quotient = (nm.quantize(x, nm.NVFP4, rule=rule, outer="row").scales[:, 1] for rule in ("nvfp4", "static_6"))
    literal = nm.encode(bmax / torch.tensor(6.0) * (torch.tensor(2688.0) / amax), nm.E4M3)
    assert int((ours != literal).sum()) == 203
    assert int((ours != quotient).sum()) == 314


def test_scales_of_candidate_4_over_every_pair():
    """((bmax/6) s_enc) 1.5 against bmax (s_enc/4), with s_enc = 1536/amax: 99 differ."""
    amax, bmax = bf16_pairs()
    s_enc = torch.tensor(1536.0) / amax
    first = nm.encode(bmax / torch.tensor(6.0) * s_enc * torch.tensor(1.5), nm.E4M3)
    assert int((first != nm.encode(bmax * (s_enc / torch.tensor(4.0)), nm.E4M3)).sum()) == 99


# ---- zeros -----------------------------------------------------------------------------------------------------------

NEAREST, RANDOM = nm.Rounding.NEAREST_EVEN, nm.Rounding.STOCHASTIC


@pytest.mark.parametrize("rounding", [NEAREST, RANDOM], ids=lambda r: r.name)
@pytest.mark.parametrize("rule", nm.scales.RULES)
def test_a_block_of_zeros_beside_others(rule: str, rounding: nm.Rounding):
    """Codes of zero that decode to zero, without NaN, under every rule; so does a tensor of nothing else."""
    fmt = next((f for f in nm.BLOCK_FORMATS.values() if f.rule.name == rule and f.tile == 1), nm.NVFP4)
    fmt = {"floor": nm.MXFP8, "three_quarters": nm.MXFP4}.get(rule, fmt)
    x = torch.randn(4, 4 * fmt.block, generator=torch.Generator().manual_seed(0))
    x[1, fmt.block : 2 * fmt.block] = 0.0
    x[2] = 0.0
    for values in (x, torch.zeros_like(x)):
        random = nm.Random((0, 1)) if rounding is RANDOM or nm.scales.RULES[rule].draws else None
        q = nm.quantize(values, fmt, rule=rule, rounding=rounding, random=random)
        assert bool(torch.isfinite(q.dequantize()).all())
        assert not bool(q.dequantize()[values == 0].any() | nm.decode(q.codes, fmt.element)[values == 0].any())
