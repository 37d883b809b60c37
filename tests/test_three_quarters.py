"""The rule of arXiv 2502.20586: MXFP4 of three quarters of x, which stochastic rounding leaves unbiased.

Contract: the scale is that of `floor`; codes are 3/4 x / s rounded, none saturates; values carry 4/3 as their outer
scale; their mean over random words is x. Oracle: rational arithmetic, and all 65,536 words of one element.
"""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

import numerics as nm
from numerics import oracle

THREE = replace(nm.MXFP4, name="MXFP4_3_4", rule=nm.scales.RULES["three_quarters"])
FLOOR = replace(nm.MXFP4, name="MXFP4_FLOOR", rule=nm.scales.RULES["floor"])


def sample() -> torch.Tensor:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)) * 2.0 ** torch.arange(-32, 32)[:, None]
    x[0] = 0
    x[1, :32] = torch.linspace(-8, 8, 32)
    x[2, 0], x[2, 1] = 7.999999, -7.9999995  # three quarters of these are still below 6
    return x


def test_scales_are_those_of_floor_and_codes_three_quarters():
    x = sample()
    q, floor = nm.quantize(x, THREE), nm.quantize(x, FLOOR)
    assert torch.equal(q.scales, floor.scales)
    for row in range(64):
        for column in range(64):
            scale = Fraction(2) ** (int(q.scales[row, column // 32]) - 127)
            part = Fraction(oracle.float32(Fraction(float(x[row, column])) * Fraction(3, 4)))  # rounded to float32
            assert abs(part / scale) < 6
            code = oracle.nearest(math.copysign(float(part / scale), x[row, column]), nm.E2M1)
            assert int(q.codes[row, column]) == code


def test_values_carry_four_thirds():
    q = nm.quantize(sample(), THREE)
    assert q.outer.shape == (1, 1) and float(q.outer) == float(torch.tensor(4.0) / 3)
    assert torch.equal(q.dequantize(), q.values() * q.outer)
    again = nm.requantize(q, nm.MXFP8, -2, rounding=nm.Rounding.NEAREST_EVEN)
    assert torch.equal(again.outer, q.outer)
    twice = nm.requantize(q, THREE, -2, rounding=nm.Rounding.NEAREST_EVEN)
    assert torch.equal(twice.outer, q.outer * q.outer)


def test_the_mean_over_all_words_is_three_quarters():
    """Every 16-bit field once: the number of steps up is what the discarded bits demand."""
    fields = torch.arange(1 << 16)
    for value in (7.75, 5.1, 1.0, 0.3, -2.2):
        exact = value * 0.75
        codes = nm.encode(torch.full((1 << 16,), exact), nm.E2M1, nm.Rounding.STOCHASTIC, fields)
        mean = float(nm.decode(codes, nm.E2M1).double().mean())
        assert mean == pytest.approx(float(torch.tensor(exact)), abs=2.0**-15)


def test_an_outer_scope_is_refused():
    with pytest.raises(ValueError, match="outer='tensor': the format's rule sets no outer scale of its own"):
        nm.quantize(sample(), THREE, outer="tensor")
    with pytest.raises(ValueError, match="with rule='three_quarters': its outer scale is a constant; use None"):
        nm.quantize(sample(), THREE, outer=torch.ones(1, 1))
