"""Contract: `exact` is the exact sum rounded once, whatever the exponents; outers stay outside where they can.

Oracle: Python's Fraction, with the nearest float32 found by comparing both neighbours.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

import numerics as nm
from numerics.exact_sum import block_width, exact_product, row_width


def _spread(shape: tuple[int, ...], exponents: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randint(-exponents, exponents + 1, shape, generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), shift)


def _is_nearest(got: torch.Tensor, exact: Fraction) -> bool:
    inf = torch.full_like(got, torch.inf)
    below, above = (Fraction(float(torch.nextafter(got, side))) for side in (-inf, inf))
    value = Fraction(float(got))
    return abs(value - exact) <= min(abs(below - exact), abs(above - exact))


def _dot(a: torch.Tensor, b: torch.Tensor) -> Fraction:
    return sum((Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)), Fraction(0))


@pytest.mark.parametrize("exponents", [0, 3, 12, 40, 60])
def test_exact_sum_is_rounded_once(exponents: int):
    a, b = _spread((4, 70), exponents, 1), _spread((5, 70), exponents, 2)
    b[0] = a[0].roll(35) * torch.tensor([1.0, -1.0]).repeat_interleave(35)  # cancels against a[0] exactly
    got = nm.matmul(a, b)
    assert float(got[0, 0]) == 0.0 and _dot(a[0], b[0]) == 0
    assert all(_is_nearest(got[i, j], _dot(a[i], b[j])) for i in range(4) for j in range(5))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("tail", [0.0, 2.0**-60, -(2.0**-60), 2.0**-100])
def test_a_tail_beyond_float64_breaks_the_tie(sign: float, tail: float):
    """1 + 2^-24 is a tie of float32; 2^-60 and smaller lie beyond what one float64 sum could hold."""
    a = torch.tensor([[1.0, 2.0**-24, tail]]) * sign
    got = float(nm.matmul(a, torch.ones(1, 3)))
    assert got == sign * (1.0 + 2.0**-23 if tail > 0 else 1.0)


def test_any_split_or_order_gives_the_same_bits():
    x, w = torch.randn(33, 512, generator=torch.Generator().manual_seed(3)), _spread((20, 512), 20, 4)
    whole = nm.matmul(x, w)
    order = torch.randperm(512, generator=torch.Generator().manual_seed(5))
    assert torch.equal(nm.matmul(x[:, order], w[:, order]), whole)
    assert torch.equal(torch.cat([nm.matmul(x[:1], w), nm.matmul(x[1:], w)]), whole)


@pytest.mark.parametrize("fmts", [(nm.NVFP4_46, "row", nm.NVFP4, "tensor"), (nm.MXFP8, None, nm.MXFP8, None)])
def test_block_tensors(fmts):
    """The exact sum of code value x block scale, rounded to FP32, then times fl(outer x outer)."""
    fmt_a, outer_a, fmt_b, outer_b = fmts
    a = nm.quantize(_spread((3, 96), 6, 6), fmt_a, outer=outer_a)
    b = nm.quantize(_spread((4, 96), 6, 7), fmt_b, outer=outer_b)
    got = nm.matmul(a, b)
    for i in range(3):
        for j in range(4):
            inner = nm.matmul(a.values()[i : i + 1], b.values()[j : j + 1])
            assert _is_nearest(inner[0, 0], _dot(a.values()[i], b.values()[j]))
            outer = torch.ones(()) if outer_a is None else a.outer[i, 0] * b.outer[0, 0]
            assert torch.equal(got[i, j], inner[0, 0] * outer)
    # FP32: at most K additions of terms bounded by sum |a b|, each off by 2^-24 of a partial sum
    bound = 97 * 2.0**-23 * (a.dequantize().abs() @ b.dequantize().abs().mT)
    assert bool(((nm.matmul(a, b, "fp32") - got).abs() <= bound).all())


def test_outer_along_the_contraction_takes_part_in_the_exact_sum():
    """wgrad: a token's outer varies along the contraction, so it cannot be taken out."""
    q = nm.quantize(torch.randn(40, 16, generator=torch.Generator().manual_seed(8)), nm.NVFP4, outer="row")
    g = torch.randn(40, 3, generator=torch.Generator().manual_seed(9))
    tokens = nm.quantize(g, nm.MXFP8, axis=0)
    x = nm.BlockTensor(q.codes, q.scales, q.outer, q.fmt, q.rule, q.axis)
    a = nm.requantize(x, nm.MXFP8, axis=0, outer="drop", rounding=nm.Rounding.NEAREST_EVEN)
    kept = nm.BlockTensor(a.codes, a.scales, q.outer, a.fmt, a.rule, a.axis)
    got = nm.matmul(tokens.mT, kept.mT)
    for i in range(3):
        for j in range(16):
            terms = zip(
                tokens.values()[:, i].tolist(), kept.values()[:, j].tolist(), q.outer[:, 0].tolist(), strict=True
            )
            assert _is_nearest(
                got[i, j], sum((Fraction(s) * Fraction(t) * Fraction(u) for s, t, u in terms), Fraction(0))
            )


@pytest.mark.parametrize("accumulator", ["exact", "fp32", "library"])
def test_groups_are_separate_products(accumulator: str):
    groups = [0, 4, 4, 13]
    a = nm.quantize(torch.randn(13, 64, generator=torch.Generator().manual_seed(1)), nm.NVFP4_46, outer="row")
    b = nm.quantize(torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(2)), nm.NVFP4, outer="leading")
    rows = nm.matmul(a, b, accumulator, groups=groups)
    assert rows.shape == (13, 8)
    left = torch.randn(5, 13, generator=torch.Generator().manual_seed(3))
    right = torch.randn(6, 13, generator=torch.Generator().manual_seed(4))
    ragged = nm.matmul(left, right, accumulator, groups=groups)
    assert ragged.shape == (3, 5, 6) and not bool(ragged[1].any())
    for e, (i, j) in enumerate(pairwise(groups)):
        part = nm.matmul(a.values()[i:j], b.values()[e], accumulator) * (a.outer[i:j] * b.outer[e])
        assert torch.equal(rows[i:j], part)
        assert torch.equal(ragged[e], nm.matmul(left[:, i:j], right[:, i:j], accumulator))


def test_non_finite_rows_follow_ieee_and_spare_the_others():
    a, b = _spread((4, 32), 30, 5), _spread((3, 32), 30, 6)
    clean = nm.matmul(a, b)
    a[1, 3], a[2, 5] = float("nan"), float("inf")
    got = nm.matmul(a, b)
    assert bool(got[1].isnan().all()) and torch.equal(got[2], torch.copysign(torch.tensor(torch.inf), b[:, 5]))
    assert torch.equal(got[[0, 3]], clean[[0, 3]])


def test_empty_and_added():
    assert torch.equal(nm.matmul(torch.randn(2, 0), torch.randn(3, 0)), torch.zeros(2, 3))
    assert nm.matmul(torch.randn(0, 4), torch.randn(3, 4)).shape == (0, 3)
    a, c = torch.ones(2, 4), torch.full((2, 2), 0.5)
    assert torch.equal(nm.matmul(a, a, c=c), torch.full((2, 2), 4.5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: nm.matmul(a, a[:, :3]), "last axes, the contraction, must agree"),
        (lambda a: nm.matmul(a, a, "tf32"), "accumulator='tf32': use one of exact, fp32"),
        (lambda a: nm.matmul(nm.quantize(a, nm.MXFP8, axis=0), a), "a has its blocks along axis 0.*use .mT"),
        (lambda a: nm.matmul(a, torch.ones(2, 3, 32), groups=[0, 32]), "groups has 2 offsets: b holds 2 experts"),
        (lambda a: nm.matmul(a[:1], a[:3], c=torch.zeros(5, 3)), r"c has shape \(5, 3\): the product has \(1, 3\)"),
        (
            lambda a: nm.matmul(a[:1], a[:3], c=torch.zeros(1, 1, 3)),
            r"c has shape \(1, 1, 3\): the product has \(1, 3\)",
        ),
        (
            lambda a: nm.matmul(a, a[None], c=torch.zeros(2, 32), groups=[0, 32]),
            r"c has shape \(2, 32\): .* \(32, 32\)",
        ),
        (lambda a: nm.matmul(a, a, c=torch.zeros(2, 32, 32), groups=[0, 32]), r"c has .*the product has \(1, 32, 32\)"),
    ],
)
def test_bad_arguments_are_named(call, message: str):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(32, 32))


WRONG = [torch.float64, torch.int32, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]


@pytest.mark.parametrize("accumulator", ["exact", "fp32", "library"])
@pytest.mark.parametrize("dtype", [*WRONG, torch.float4_e2m1fn_x2])
def test_other_dtypes_are_refused(dtype: torch.dtype, accumulator: str):
    a = torch.ones(4, 4)
    wrong = torch.zeros(4, 4, dtype=torch.uint8).view(dtype) if dtype.itemsize == 1 else a.to(dtype)
    remedy = "pass float32, float16 or bfloat16"
    for call in (lambda: nm.matmul(wrong, a, accumulator), lambda: nm.matmul(a, wrong, accumulator)):
        with pytest.raises(TypeError, match=rf"^[ab] is {dtype}: {remedy}"):
            call()
    with pytest.raises(TypeError, match=rf"^c has dtype {dtype}: {remedy}"):
        nm.matmul(a, a, accumulator, c=wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_c_broadcasts_to_the_product_and_never_enlarges_it(dtype: torch.dtype):
    a, b = _spread((2, 3, 40), 3, 8), _spread((5, 40), 3, 9)
    product = nm.matmul(a, b)
    for shape in ((2, 3, 5), (3, 5), (5,), (2, 1, 5), (2, 3, 1), (1, 1), ()):
        c = _spread(shape, 3, 10).to(dtype)
        got = nm.matmul(a, b, c=c)
        assert got.dtype == torch.float32 and torch.equal(got, product + c.to(torch.float32))


@pytest.mark.parametrize("accumulator", ["exact", "fp32", "library"])
def test_autocast_leaves_products_alone(accumulator: str):
    a, b = _spread((6, 64), 3, 11), _spread((5, 64), 3, 12)
    q, w = nm.quantize(a, nm.NVFP4, outer="row"), nm.quantize(b, nm.NVFP4)
    groups, stacked = (0, 2, 6), torch.stack((b, b.flip(0)))

    def products() -> list[torch.Tensor]:
        plain = [nm.matmul(x, y, accumulator, c=torch.ones(5)) for x, y in ((a, b), (q, w))]
        return [*plain, nm.matmul(a, stacked, accumulator, groups=groups)]

    expected = products()
    with torch.autocast("cpu", torch.bfloat16):
        found = products()
        assert torch.is_autocast_enabled("cpu") and (a @ b.mT).dtype == torch.bfloat16, "on again afterwards"
    assert all(x.dtype == torch.float32 and torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("terms", [129, 1025])
def test_slices_of_full_significands(terms: int):
    """48-bit integers and a length just above a power of two fill every slice to its last bit."""
    generator = torch.Generator().manual_seed(terms)
    a, b = (torch.randint(-(1 << 48), 1 << 48, (2, terms), generator=generator).double() for _ in range(2))
    got = exact_product(a, b)
    assert all(_is_nearest(got[i, j], _dot(a[i], b[j])) for i in range(2) for j in range(2))
    same = torch.full((1, terms), float((1 << 48) - 1), dtype=torch.float64)
    assert _is_nearest(exact_product(same, same)[0, 0], _dot(same[0], same[0]))


def test_a_zero_sum_is_positive_zero():
    for a in (torch.tensor([[-0.0]]), torch.tensor([[-0.0, -0.0]]), torch.tensor([[1.0, -1.0]])):
        out = nm.matmul(a, torch.ones(1, a.shape[1]))
        assert float(out) == 0 and not bool(torch.signbit(out))


def test_runs_of_a_long_contraction():
    """Products of 23 and 23 bits span 46: float64 sums of 128 are exact, of 1000 they are not. Sums of 2^55 lie one
    above or below a tie of float32, where every lost bit shows."""
    generator = torch.Generator().manual_seed(6)
    a, b = ((1 << 23) - 1 - 2 * torch.randint(0, 500, (2, 8, 1000), generator=generator)).float()
    for row, (x, y) in enumerate(zip(a, b, strict=True)):
        x[-2:], y[-2:] = torch.tensor([4096.0, 1.0]), 0.0
        total = int(_dot(x, y))
        ulp = 1 << (total.bit_length() - 24)
        lacks = (total // ulp + 2) * ulp + ulp // 2 + (-1) ** row - total
        y[-2:] = torch.tensor(divmod(lacks, 4096))
    assert row_width(a) == row_width(b) == 23
    got = nm.matmul(a, b)
    assert all(_is_nearest(got[i, j], _dot(a[i], b[j])) for i in range(8) for j in range(8))


@pytest.mark.parametrize("fmt", [*nm.BLOCK_FORMATS.values()])
def test_the_width_of_blocks_is_never_less_than_that_of_their_values(fmt: nm.BlockFormat):
    generator = torch.Generator().manual_seed(fmt.block)
    for spread in (0, 8, 60):
        q = nm.quantize(_spread((32, 256), spread, 12), fmt, outer=None)
        scales = q.scales
        if fmt.scale is not None and spread == 60:  # every scale, NaN and zero too
            scales = torch.randint(0, 256, scales.shape, generator=generator).to(torch.uint8)
        q = nm.BlockTensor(q.codes, scales, None, fmt, q.rule, 1)
        values = q.values()
        assert block_width(q) >= row_width(values.masked_fill(~torch.isfinite(values), 0.0))


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP8, nm.MXFP4])
@pytest.mark.parametrize("spread", [1, 8, 40])
def test_exact_does_not_depend_on_rows_blocks_or_batch(fmt: nm.BlockFormat, spread: int):
    a = nm.quantize(_spread((24, 640), spread, 13), fmt, outer=None)
    b = nm.quantize(_spread((20, 640), spread, 14), fmt, outer=None)
    whole = nm.matmul(a, b)
    order = torch.randperm(640 // fmt.block, generator=torch.Generator().manual_seed(15))

    def moved(q: nm.BlockTensor) -> nm.BlockTensor:
        codes = q.codes.unflatten(1, (-1, fmt.block))[:, order].flatten(1)
        return nm.BlockTensor(codes, q.scales[:, order], None, fmt, q.rule, 1)

    assert torch.equal(nm.matmul(moved(a), moved(b)), whole)
    for size in (1, 7):
        rows = [nm.matmul(a.rows(torch.arange(i, min(i + size, 24))), b) for i in range(0, 24, size)]
        assert torch.equal(torch.cat(rows), whole)
    stacked = nm.BlockTensor(a.codes.view(4, 6, -1), a.scales.view(4, 6, -1), None, fmt, a.rule, 2)
    assert torch.equal(nm.matmul(stacked, b).flatten(0, 1), whole)
    i, j = divmod(int(whole.abs().argmin()), 20)
    assert _is_nearest(whole[i, j], _dot(a.values()[i], b.values()[j]))


def test_fp32_is_the_sum_in_order_of_k():
    """Whatever rows or batch come along; numpy's scalar operations round to nearest."""
    a, b = _spread((70, 90), 6, 16), _spread((3, 65, 90), 6, 17)
    got = nm.matmul(a, b, "fp32")
    for n, i, j in ((0, 0, 0), (1, 30, 64), (2, 69, 5)):
        total = np.float32(0)
        for x, y in zip(a[i].numpy(), b[n, j].numpy(), strict=True):
            total += x * y
        assert float(got[n, i, j]) == float(total)
    assert torch.equal(nm.matmul(a[11:12], b[1], "fp32"), got[1, 11:12])
    parts = [nm.matmul(a[:, k : k + 30], b[..., k : k + 30], "fp32") for k in (0, 30, 60)]
    assert torch.equal(nm.matmul(a, b, "fp32", splits=3), parts[0] + parts[1] + parts[2])
    assert torch.equal(nm.matmul(a, b, "fp32", promote=30), parts[0] + parts[1] + parts[2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spread", [1, 8, 40])
def test_exact_and_fp32_on_a_gpu_give_the_same_bits(spread: int):
    a, b = _spread((2, 40, 300), spread, 18), _spread((50, 300), spread, 19)
    for x, y in ((a, b), (nm.quantize(a, nm.NVFP4), nm.quantize(b, nm.NVFP4))):
        for accumulator in ("exact", "fp32"):
            on_gpu = [
                t.cuda() if isinstance(t, torch.Tensor) else t.derived(
                    codes=t.codes.cuda(), scales=t.scales.cuda(), outer=t.outer.cuda()
                ) for t in (x, y)
            ]  # fmt: skip
            assert torch.equal(nm.matmul(*on_gpu, accumulator).cpu(), nm.matmul(x, y, accumulator))
