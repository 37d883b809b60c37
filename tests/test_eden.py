"""MS-EDEN (arXiv 2601.22813): nearest elements, a corrected and randomly rounded scale.

Contract: the correction is <x, x> / <x, x_q> of the block before the scale is drawn; the drawn scale is one of its two
neighbours, up as often as the discarded bits demand; over rotations and draws the mean converges on x as 1 / n. Oracle:
float64 by hand, and the published error.
"""

from dataclasses import replace

import pytest
import torch

import numerics as nm

EDEN = replace(nm.NVFP4, name="NVFP4_EDEN", rule=nm.scales.RULES["eden"])
TOP = 6 * 16 / 17 / 0.93


def normal(rows: int = 128, columns: int = 1024) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def test_codes_and_scales_by_hand():
    x = normal()
    q = nm.quantize(x, EDEN, outer="tensor", random=nm.Random((1, 2)))
    blocks, outer = x.double().view(128, 64, 16), float(q.outer)
    assert outer == pytest.approx(float(x.abs().max()) / (256 * TOP), rel=2e-7)
    amax = blocks.abs().amax(-1)
    first = nm.decode(nm.encode(amax / (outer * TOP), nm.E4M3), nm.E4M3).double()
    codes = nm.encode(blocks / (first * outer).unsqueeze(-1), nm.E2M1)
    wrong = int((codes.view(128, 1024) != q.codes).sum())
    assert wrong <= 2  # float64 and float32 quotients on either side of a tie
    x_q = nm.decode(codes, nm.E2M1).double() * (first * outer).unsqueeze(-1)
    target = first * blocks.square().sum(-1) / (blocks * x_q).sum(-1)
    low, high = (nm.encode(target, nm.E4M3, mode) for mode in (nm.Rounding.TOWARD_ZERO, nm.Rounding.TOWARD_POSITIVE))
    near = (q.scales == low) | (q.scales == high)
    assert float(near.double().mean()) > 0.999  # the correction is a float32 sum: it may cross a code
    below, above = nm.decode(low, nm.E4M3).double(), nm.decode(high, nm.E4M3).double()
    share = ((target - below) / (above - below)).nan_to_num()
    up = (q.scales == high) & (low != high)
    spread = float((share * (1 - share)).sum().sqrt())
    assert abs(float(up.sum() - share.sum())) < 4 * spread


def test_the_error_is_the_published_one_and_averages_out():
    """relMSE 9.4e-3 for one draw; of the mean of 16 rotations and draws a sixteenth."""
    x, total = normal(), 0.0
    for draw in range(16):
        signs = nm.hadamard_signs(128, (draw, 1))
        q = nm.quantize(nm.hadamard(x, 128, signs), EDEN, outer="tensor", random=nm.Random((draw, 2)))
        total = total + nm.hadamard_inverse(q.dequantize(), 128, signs).double()
        if draw == 0:
            one = nm.metrics.error(x, total).rel_mse
    assert one == pytest.approx(9.4e-3, rel=0.03)
    assert one / nm.metrics.error(x, total / 16).rel_mse == pytest.approx(16, rel=0.05)


def test_zeros_and_what_needs_words():
    zero = nm.quantize(torch.zeros(4, 32), EDEN, random=nm.Random((1, 2)))
    assert not bool(zero.dequantize().any()) and not bool(zero.scales.any())
    with pytest.raises(ValueError, match=r"by rule eden with random=None: .* so does a rule that draws scales"):
        nm.quantize(normal(), EDEN)
