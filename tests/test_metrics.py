"""Contract: error measures follow their formulas; the bias interval covers the truth at its level.

Oracle: the formulas by hand on a few values, and repeated draws for the interval.
"""

import math

import pytest
import torch

from numerics import metrics


def test_by_hand():
    error = metrics.error(torch.tensor([3.0, -4.0, 0.0]), torch.tensor([3.0, 0.0, 0.0]))
    assert error.rel_mse == pytest.approx(16 / 25) and error.qsnr == pytest.approx(-10 * math.log10(16 / 25))
    assert error.bias == pytest.approx(-16 / 25) and error.flush_to_zero == 0.5
    assert error.max_error == 4.0 and error.n == 3


def test_bias_interval_covers_at_95_percent():
    generator = torch.Generator().manual_seed(0)
    inside = 0
    for _ in range(400):
        x = torch.randn(2000, generator=generator)
        e = metrics.error(x, x * 1.01 + torch.randn(2000, generator=generator) * 0.1)
        inside += abs(e.bias - 0.01) <= e.bias_interval
    assert 0.91 <= inside / 400 <= 0.98  # binomial spread of 400 draws: 2.5 standard deviations


def test_exact_copy_and_zeros():
    x = torch.randn(10, generator=torch.Generator().manual_seed(1))
    assert metrics.error(x, x).rel_mse == 0 and metrics.error(x, x).qsnr == math.inf
    assert math.isnan(metrics.error(torch.zeros(3), torch.zeros(3)).rel_mse)


def test_crest_and_cosine():
    x = torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert metrics.crest_factor(x, 4) == pytest.approx(1.5)
    gaussian = torch.randn(1 << 20, generator=torch.Generator().manual_seed(2)).view(-1, 32)
    assert metrics.crest_factor(gaussian, 16) == pytest.approx(2.110, rel=0.003)
    assert metrics.crest_factor(gaussian, 32) == pytest.approx(2.366, rel=0.003)
    assert metrics.cosine(x[0], x[1]) == pytest.approx(0.5)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"x has shape \(2,\), x_q \(3,\)"):
        metrics.error(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="block=3 does not divide"):
        metrics.crest_factor(torch.ones(4), 3)
