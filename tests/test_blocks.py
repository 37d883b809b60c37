"""Contract: `quantize` and `requantize` on whole tensors: unbiasedness, tiles, runs, groups, any shape and kind.

Oracles: slicing, draws that average out, errors of requantization known from an independent recomputation. Published
errors of formats are in test_oracle_numbers.py, causality in test_causality.py, the scalar oracle's bitwise comparisons
in test_oracle.py.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

import numerics as nm

SAMPLES = (2048, 2048)  # 4 M


@pytest.fixture(scope="module")
def gaussian() -> torch.Tensor:
    return torch.randn(SAMPLES, generator=torch.Generator().manual_seed(11))


def test_headroom_makes_stochastic_rounding_unbiased(gaussian: torch.Tensor):
    """relMSE 23.55e-3 and no bias; also where most block scales are subnormal, for one outlier sets the outer scale."""
    options = dict(rule="unbiased", rounding=nm.Rounding.STOCHASTIC, random=nm.Random((5, 6)))
    error = nm.metrics.error(gaussian, nm.quantize(gaussian, nm.NVFP4, **options).dequantize())
    assert error.rel_mse == pytest.approx(23.55e-3, rel=0.01) and abs(error.bias) < error.bias_interval
    x = gaussian[:512].clone()
    x[0, 0] = 3e5
    rest = nm.quantize(x, nm.NVFP4, **options)
    error = nm.metrics.error(x[1:], rest.dequantize()[1:])
    assert float((rest.scales < 8).float().mean()) > 0.9 and abs(error.bias) < error.bias_interval
    plain = nm.quantize(x, nm.NVFP4, **(options | {"rule": "nvfp4"}))
    assert nm.metrics.error(x[1:], plain.dequantize()[1:]).bias < -0.01


def test_four_over_six_has_one_of_two_scales(gaussian: torch.Tensor):
    """The one that 4 gives or the one that 6 gives; both occur."""
    outer, amax = nm.quantize(gaussian, nm.NVFP4_46).outer, gaussian.unflatten(-1, (-1, 16)).abs().amax(-1)
    q = nm.quantize(gaussian, nm.NVFP4_46)
    four, six = (nm.encode(amax / (outer * m), nm.E4M3) for m in (4.0, 6.0))
    assert bool(((q.scales == four) | (q.scales == six)).all())
    assert bool((q.scales != four).any()) and bool((q.scales != six).any())


def test_four_over_six_never_loses_to_six(gaussian: torch.Tensor):
    x = gaussian[:64]
    both = nm.quantize(x, nm.NVFP4_46)
    always_six = nm.quantize(x, nm.NVFP4, outer=both.outer)
    blocks = [(q.dequantize() - x).square().unflatten(-1, (-1, 16)).double().sum(-1) for q in (both, always_six)]
    # the rules scale elements by division and by reciprocal: equal up to FP32 rounding of the error sums
    assert bool((blocks[0] <= blocks[1] * (1 + 1e-5)).all())


# --- tiles, runs, alternatives --------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(48, 64), (20, 37)])
def test_tiles_share_one_scale_and_are_quantized_alone(axis: int, shape: tuple[int, int]):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(21)) * torch.arange(1, shape[0] + 1)[:, None]
    outer = nm.quantize(x, nm.NVFP4).outer
    q = nm.quantize(x, nm.NVFP4_2D, axis=axis)
    assert torch.equal(q.outer, outer)
    for i in range(0, shape[0], 16):
        for j in range(0, shape[1], 16):
            tile = x[i : i + 16, j : j + 16]
            scale = nm.encode(tile.abs().amax() * (2688 / x.abs().amax() * torch.tensor(1 / 6.0)), nm.E4M3)
            assert int(q.scales[i // 16, j // 16]) == int(scale)
            step = nm.decode(scale, nm.E4M3) * (torch.ones(()) / (2688 / x.abs().amax()))
            assert torch.equal(q.codes[i : i + 16, j : j + 16], nm.encode(tile * (torch.ones(()) / step), nm.E2M1))
    assert torch.equal(q.mT.dequantize(), q.dequantize().mT)
    transposed = nm.quantize(x.T.contiguous(), nm.NVFP4_2D, axis=axis)
    assert torch.equal(transposed.dequantize(), q.dequantize().T)  # what tiles are for: one tensor in both directions


def test_tiles_refuse_an_outer_scale_per_row():
    with pytest.raises(ValueError, match="outer='row': a tile has one scale for lines with different ones"):
        nm.quantize(torch.randn(32, 32), nm.NVFP4_2D, outer="row")


@pytest.mark.parametrize("fmt", [nm.NVFP4_2D, nm.FP8_128X128], ids=lambda f: f.name)
@pytest.mark.parametrize(("shape", "scope"), [((40, 70), "tensor"), ((3, 40, 70), "tensor"), ((3, 40, 70), "leading")])
@pytest.mark.parametrize("axis", [-1, -2])
def test_tiles_take_a_given_outer_scale(fmt: nm.BlockFormat, shape: tuple[int, ...], scope: str, axis: int):
    """One per tensor or per leading index gives what the scope of that name gives: powers of two, whose reciprocals
    are exact, so that the two ways to the encode scale meet."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(21)) * torch.linspace(1, 900, shape[0]).view(
        -1, *[1] * (len(shape) - 1)
    )
    named = nm.quantize(x, nm.NVFP4_2D, axis, outer=scope, outer_rounding="pow2")
    assert named.outer is not None and tuple(named.outer.shape[-2:]) == (1, 1)
    given = nm.quantize(x, fmt, axis, outer=named.outer)
    expected = named if fmt is nm.NVFP4_2D else nm.quantize(x / named.outer, fmt, axis)
    assert torch.equal(given.codes, expected.codes) and torch.equal(given.scales, expected.scales)
    assert given.outer is not None and torch.equal(given.outer, named.outer)
    assert torch.equal(given.dequantize(), expected.values() * named.outer)
    assert torch.equal(nm.quantize(x.mT, fmt, -3 - axis, outer=named.outer).codes, given.codes.mT)


def test_a_matrix_of_tiles_has_no_leading_scope():
    """Its leading axis is one that tiles reach along: a scale per index would differ within a tile."""
    with pytest.raises(ValueError, match=r"outer='leading': a tile has one scale .*; use 'tensor', or a tensor with 1"):
        nm.quantize(torch.randn(40, 40), nm.NVFP4_2D, outer="leading")


@pytest.mark.parametrize("groups", [None, [0, 100, 100, 300]])
def test_outer_scale_per_run(groups: list[int] | None):
    """Each run of 128, within its group, equals the run quantized alone with its own outer scale."""
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(22)) * torch.logspace(-3, 3, 300)
    q = nm.quantize(x, nm.NVFP4, outer=128, groups=groups)
    values = q.dequantize()
    for start, stop in pairwise(groups or [0, 300]):
        for i in range(start, stop, 128):
            run = x[:, i : min(i + 128, stop)]
            alone = nm.quantize(run, nm.NVFP4, outer="row")
            assert torch.equal(values[:, i : min(i + 128, stop)], alone.dequantize())
    assert q.outer.shape == (5, 3) and q.outer_block == 128
    assert torch.equal(q.mT.dequantize(), values.mT)
    with pytest.raises(ValueError, match="outer=40: use a multiple of the block 16"):
        nm.quantize(x, nm.NVFP4, outer=40)
    exact = nm.matmul(q, torch.ones(1, 300))
    assert torch.allclose(exact[:, 0].double(), values.double().sum(-1), rtol=1e-6, atol=0)  # FP32 rounding of values


def test_alternative_elements_are_chosen_block_by_block():
    """IF4: uniform blocks prefer INT4, peaked ones FP4; each block has the smaller of both errors."""
    generator = torch.Generator().manual_seed(23)
    x = torch.cat([torch.rand(64, 64, generator=generator), torch.randn(64, 64, generator=generator) ** 3])
    q = nm.quantize(x, nm.IF4)
    integer = (q.scales & 0x80) > 0
    assert float(integer[:64].float().mean()) > 0.8 > 0.4 > float(integer[64:].float().mean())
    fp4 = nm.quantize(x, nm.NVFP4, rule="static_6")

    def error(values: torch.Tensor) -> torch.Tensor:
        return (values - x).double().square().unflatten(-1, (-1, 16)).sum(-1)

    alone = error(fp4.dequantize())
    assert torch.allclose(error(q.dequantize())[~integer], alone[~integer]) and bool(
        (error(q.dequantize()) <= alone * (1 + 1e-5)).all()
    )


@pytest.mark.parametrize("fmt", [nm.FP8_1X128, nm.FP8_128X128], ids=lambda f: f.name)
def test_fp8_with_float32_scales(fmt: nm.BlockFormat):
    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(24))
    q = nm.quantize(x, fmt)
    blocks = x.unflatten(-1, (3, 128)).abs()
    amax = blocks.amax(-1) if fmt.tile == 1 else blocks.unflatten(0, (2, 128)).amax((1, 3))
    assert q.scales.dtype == torch.float32 and torch.equal(q.scales, amax / torch.tensor(448.0))
    assert nm.metrics.error(x, q.dequantize()).qsnr > 31


def test_rules_that_make_other_scales_are_refused():
    with pytest.raises(ValueError, match="rule='rceil' makes no scales of NVFP4: use one of nvfp4, static_6"):
        nm.quantize(torch.randn(2, 32), nm.NVFP4, rule="rceil")


# --- requantization -------------------------------------------------------------------------------------------------


def _slope(rounding: nm.Rounding) -> float:
    """log2 slope of the relMSE of the mean over 1, 2, .. 64 draws against the dequantized tensor."""
    x = torch.randn(512, 256, generator=torch.Generator().manual_seed(5))
    q = nm.quantize(x, nm.NVFP4_46, outer="row")
    total, errors = torch.zeros(x.shape, dtype=torch.float64), []
    for draw in range(64):
        random = nm.Random((1, draw)) if rounding is nm.Rounding.STOCHASTIC else None
        again = nm.requantize(q, nm.MXFP8, axis=-2, outer="multiply", rounding=rounding, random=random)
        total += again.dequantize().double()
        if draw + 1 in (1, 2, 4, 8, 16, 32, 64):
            errors.append(nm.metrics.error(q.dequantize(), total / (draw + 1)).rel_mse)
    return float(np.polyfit(range(7), np.log2(errors), 1)[0])


def _is_unbiased(rounding: nm.Rounding) -> bool:
    slope = _slope(rounding)
    assert slope == slope
    return abs(slope + 1) <= 0.02


def test_stochastic_requantization_is_unbiased():
    assert _is_unbiased(nm.Rounding.STOCHASTIC)


def test_nearest_requantization_fails_the_same_test():
    assert not _is_unbiased(nm.Rounding.NEAREST_EVEN) and abs(_slope(nm.Rounding.NEAREST_EVEN)) < 1e-9


@pytest.mark.parametrize(
    ("outer_of", "outer", "nearest", "stochastic"),
    [("row", "multiply", 0.709e-3, 1.415e-3), ("fixed", "keep", 0.445e-3, 0.79e-3)],
)
def test_requantization_error(outer_of: str, outer: str, nearest: float, stochastic: float):
    """Activations with their token scale multiplied in; weights with a fixed outer (amax 5.33) kept outside: +-3 %."""
    x = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(8))
    if outer_of == "fixed":
        q = nm.quantize(x.clamp(-5.33, 5.33), nm.NVFP4, outer=torch.tensor([[5.33]]) / torch.tensor([[2688.0]]))
    else:
        q = nm.quantize(x, nm.NVFP4_46, outer=outer_of)
    for rounding, expected in ((nm.Rounding.NEAREST_EVEN, nearest), (nm.Rounding.STOCHASTIC, stochastic)):
        random = nm.Random((0, 0)) if rounding is nm.Rounding.STOCHASTIC else None
        again = nm.requantize(q, nm.MXFP8, outer=outer, rounding=rounding, random=random)
        assert nm.metrics.error(q.dequantize(), again.dequantize()).rel_mse == pytest.approx(expected, rel=0.03)


def test_requantize_reads_the_codes_not_the_originals():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    q = nm.quantize(x, nm.NVFP4)
    again = nm.requantize(q, nm.MXFP8, rounding=nm.Rounding.NEAREST_EVEN)
    direct = nm.quantize(q.values(), nm.MXFP8, axis=-2)
    assert torch.equal(again.codes, direct.codes) and torch.equal(again.scales, direct.scales)
    assert again.outer is q.outer


def test_keep_refuses_an_outer_that_varies_along_the_contraction():
    q = nm.quantize(torch.randn(64, 64), nm.NVFP4, outer="row")
    with pytest.raises(ValueError, match=r"outer='keep'.*multiply.*drop"):
        nm.requantize(q, nm.MXFP8, axis=0, random=nm.Random((0, 0)))


# --- batch invariance, groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "outer"), [(nm.NVFP4_46, "row"), (nm.NVFP4, "row"), (nm.MXFP8, None), (nm.MXS2F6, None)]
)
def test_rows_do_not_depend_on_their_batch(fmt: nm.BlockFormat, outer: str | None):
    x = torch.randn(37, 96, generator=torch.Generator().manual_seed(3))
    index = torch.randperm(37, generator=torch.Generator().manual_seed(4))[:11]
    whole, part = nm.quantize(x, fmt, outer=outer), nm.quantize(x[index], fmt, outer=outer)
    chosen = whole.rows(index)
    assert torch.equal(chosen.codes, part.codes) and torch.equal(chosen.scales, part.scales)
    assert torch.equal(chosen.dequantize(), part.dequantize())


def test_groups_are_quantized_alone():
    x = torch.randn(200, 64, generator=torch.Generator().manual_seed(6))
    groups = [0, 0, 5, 77, 77, 200]
    whole = nm.quantize(x, nm.MXFP8, axis=0, groups=groups)
    assert whole.scales.shape == (0 + 1 + 3 + 0 + 4, 64)
    for start, stop in pairwise(groups):
        alone = nm.quantize(x[start:stop], nm.MXFP8, axis=0)
        assert torch.equal(whole.codes[start:stop], alone.codes)
        assert torch.equal(whole.dequantize()[start:stop], alone.dequantize())


def test_stochastic_groups_draw_their_own_words():
    """An expert's words depend on its index and the position in its group, not on where the group lies."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(7))
    q = nm.quantize(x, nm.NVFP4_46, outer="row")
    options = dict(axis=0, outer="drop")
    together = nm.requantize(q, nm.MXFP8, groups=[0, 24, 64], random=nm.Random((1, 2), (3, 8)), **options)
    second = nm.requantize(q.rows(torch.arange(24, 64)), nm.MXFP8, random=nm.Random((1, 2), (3, 9)), **options)
    assert torch.equal(together.codes[24:], second.codes)
    assert not torch.equal(
        together.codes[:24],
        nm.requantize(q.rows(torch.arange(24)), nm.MXFP8, random=nm.Random((1, 2), (3, 9)), **options).codes,
    )


# --- ordinary inputs that break quantizers --------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", nm.BLOCK_FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("shape", [(0, 64), (4, 0), (3, 50), (7,), (2, 3, 40), (1, 1)])
def test_any_shape(fmt: nm.BlockFormat, shape: tuple[int, ...]):
    tiled = fmt.tile > 1
    for axis in range(max(0, len(shape) - 2) if tiled else 0, len(shape)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        if tiled and len(shape) < 2:
            with pytest.raises(ValueError, match="tiles need `axis` to be one of the last two axes"):
                nm.quantize(x, fmt, axis=axis)
            continue
        q = nm.quantize(x, fmt, axis=axis)
        expected = list(shape)
        expected[axis] = -(-shape[axis] // fmt.block)
        if tiled:
            other = 2 * len(shape) - 3 - axis
            expected[other] = -(-shape[other] // fmt.tile)
        assert q.codes.shape == x.shape and list(q.scales.shape) == expected
        assert q.dequantize().shape == x.shape
        if x.numel():
            assert nm.metrics.error(x, q.dequantize()).rel_mse < 0.04  # the coarsest, MXINT4, has .021 on average


@pytest.mark.parametrize("fmt", nm.BLOCK_FORMATS.values(), ids=lambda f: f.name)
def test_zeros_stay_zeros(fmt: nm.BlockFormat):
    q = nm.quantize(torch.zeros(4, 64), fmt)
    assert torch.equal(q.dequantize(), torch.zeros(4, 64))
    assert q.outer is None or q.outer.item() == 1.0


@pytest.mark.parametrize("fmt", nm.BLOCK_FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_poison_their_block_only(fmt: nm.BlockFormat, bad: float):
    x = torch.randn(4, 128, generator=torch.Generator().manual_seed(9))
    x[1, 70] = bad
    q = nm.quantize(x, fmt, outer="row" if fmt.outer and fmt.tile == 1 else fmt.outer)
    start = 70 // fmt.block * fmt.block
    values = q.dequantize()
    block = (slice(1, 2) if fmt.tile == 1 else slice(None), slice(start, start + fmt.block))
    assert bool(values[block].isnan().all()) and bool((q.codes[block] == fmt.element.max_code).all())
    values[block] = 0
    assert bool(torch.isfinite(values).all())
    with pytest.raises(ValueError, match=r"1 non-finite values, the first at index \(1, 70\)"):
        nm.quantize(x, fmt, check_finite=True)


def test_a_poisoned_block_does_not_set_the_outer_scale():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(9)) * 1e-3
    clean = nm.quantize(x[:, 16:], nm.NVFP4)
    x[0, 0] = float("nan")
    x[1:, :16] = 0
    q = nm.quantize(x, nm.NVFP4)
    assert torch.equal(q.outer, clean.outer) and torch.equal(q.codes[:, 16:], clean.codes)


def test_outer_scale_rounded_to_a_power_of_two():
    for amax, wanted in ((2688.0, 1.0), (2689.0, 2.0), (1345.0, 1.0), (1344.0, 0.5), (5376.0, 2.0)):
        q = nm.quantize(torch.tensor([[amax] * 16]), nm.NVFP4, outer_rounding="pow2")
        assert float(q.outer) == wanted


def test_elements_are_scaled_by_the_encode_scale_not_by_the_outer():
    """A BF16 block on which 1 / (s * (1 / s_enc)) and 1 / (s * outer) give 0.6015625 different codes."""
    bits = "3f1a 3e61 bf20 c004 3c8b 3fd4 bf5a 3a6b bf0f 3f3d bd72 bf4f bfbb bf26 bd32 3e8e"
    x = torch.tensor([[int(b, 16) for b in bits.split()]], dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    assert float(x[0, 0]) == 0.6015625
    assert int(nm.quantize(x, nm.NVFP4, outer="row").codes[0, 0]) == 3


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-30, 1e30, 1e37])
def test_tiny_and_huge_tensors_decode_near_themselves(scale: float):
    """Every format within its reach: NVFP4 follows its outer scale, MX formats end at E8M0's 2^-127."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(10)) * scale
    for fmt in nm.BLOCK_FORMATS.values():
        values = nm.quantize(x, fmt).dequantize()
        assert bool(torch.isfinite(values).all())
        if scale > 1e-36:
            assert nm.metrics.error(x, values).rel_mse < 0.025


def test_numpy_and_ml_dtypes_arrays_are_taken():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(ml_dtypes.bfloat16)
    q = nm.quantize(x, nm.NVFP4)
    assert torch.equal(q.codes, nm.quantize(torch.from_numpy(x.astype(np.float32)), nm.NVFP4).codes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: nm.quantize(x.int(), nm.NVFP4), "x has dtype torch.int32"),
        (lambda x: nm.quantize(x, nm.NVFP4, axis=2), r"axis=2.*use -2 to 1"),
        (lambda x: nm.quantize(x, nm.NVFP4, outer="rows"), "outer='rows'.*'row'"),
        (lambda x: nm.quantize(x, nm.MXFP8, outer="row"), "rule sets no outer scale"),
        (lambda x: nm.quantize(x, nm.NVFP4, outer=torch.ones(3, 1)), r"outer of shape \(3, 1\)"),
        (lambda x: nm.quantize(x, nm.NVFP4, outer=torch.zeros(1, 1)), "at least 2"),
        (lambda x: nm.quantize(x, nm.NVFP4, axis=0, outer="leading"), "outer='leading' with axis=0"),
        (lambda x: nm.quantize(x, nm.NVFP4, rule="ceil"), "known rules are nvfp4"),
        (lambda x: nm.quantize(x, nm.NVFP4, outer_rounding="pow3"), "use None or 'pow2'"),
        (lambda x: nm.quantize(x, nm.MXFP8, axis=0, groups=[0, 3]), r"groups=\[0, 3\].*axis length 4"),
        (lambda x: nm.quantize(x, nm.MXFP8, rounding=nm.Rounding.STOCHASTIC), "needs random"),
        (lambda x: nm.quantize(x, nm.NVFP4, random=nm.Random((0, 0))), "others None"),
        (lambda x: nm.requantize(nm.quantize(x, nm.NVFP4), nm.MXFP8, outer="hold"), "use 'keep', 'multiply' or 'drop'"),
    ],
)
def test_bad_arguments_are_named(call, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        call(torch.randn(4, 64))


def test_packing_and_transposed_view():
    q = nm.quantize(torch.randn(6, 32, generator=torch.Generator().manual_seed(12)), nm.NVFP4, outer="row")
    assert torch.equal(nm.layout.unpack_nibbles(q.packed()), q.codes)
    assert int(q.packed()[0, 0]) == int(q.codes[0, 0]) | int(q.codes[0, 1]) << 4
    assert torch.equal(q.mT.dequantize(), q.dequantize().mT) and q.mT.axis == 0 and q.mT.mT.axis == 1
