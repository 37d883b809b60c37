"""Contract: the butterfly is the Hadamard matrix to FP32 rounding, keeps energy, and is inverted by its twin.

Oracle: scipy's Sylvester matrix in float64; bitwise agreement with the scalar butterfly is in test_oracle.py.
"""

from itertools import pairwise

import pytest
import scipy.linalg
import torch

import numerics as nm

SIZES = [16, 32, 64, 128]


def _data(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("size", SIZES)
def test_is_the_sylvester_matrix(size: int):
    x, signs = _data(7, 3 * size), nm.hadamard_signs(size, (1, 2))
    matrix = torch.from_numpy(scipy.linalg.hadamard(size)).double() * size**-0.5
    expected = (x.double().unflatten(-1, (3, size)) * signs.double()) @ matrix.T
    got = nm.hadamard(x, size, signs).unflatten(-1, (3, size))
    # log2(size) additions and one product: each step is off by at most 2^-24 of the block's L1 norm / sqrt(size)
    bound = 9 * 2.0**-24 * x.unflatten(-1, (3, size)).abs().sum(-1, keepdim=True) * size**-0.5
    assert bool(((got - expected).abs() <= bound).all())


@pytest.mark.parametrize("size", SIZES)
def test_inverse_and_energy(size: int):
    x, signs = _data(16, 4 * size), nm.hadamard_signs(size, (3, 4))
    y = nm.hadamard(x, size, signs)
    assert float(y.double().square().sum() / x.double().square().sum()) == pytest.approx(1, abs=1e-6)
    assert nm.metrics.error(x, nm.hadamard_inverse(y, size, signs)).rel_mse < 1e-12
    assert nm.metrics.error(x, nm.hadamard_inverse(y, size)).rel_mse > 0.1  # other signs are no inverse


def test_inverting_a_sum_once_equals_inverting_each():
    """Linear: what the combine relies on. Equal to FP32 rounding, not bitwise, hence one fixed order."""
    x, signs = _data(8, 256), nm.hadamard_signs(32, (5, 6))
    y = nm.hadamard(x, 32, signs)
    once = nm.hadamard_inverse(y.sum(0), 32, signs)
    each = nm.hadamard_inverse(y, 32, signs).sum(0)
    assert float((once - each).norm() / each.norm()) < 1e-6 and not torch.equal(once, each)


def test_axis_signs_and_kind():
    x = _data(64, 5)
    assert torch.equal(nm.hadamard(x, 32, axis=0), nm.hadamard(x.T.contiguous(), 32).T)
    signs = nm.hadamard_signs(128, (7, 8))
    assert set(signs.tolist()) == {-1.0, 1.0} and torch.equal(signs, nm.hadamard_signs(128, (7, 8)))
    assert not torch.equal(signs, nm.hadamard_signs(128, (7, 9)))
    assert nm.hadamard(x.numpy(), 64, axis=0).shape == (64, 5)


@pytest.mark.parametrize(
    ("size", "signs", "message"),
    [
        (24, None, "size=24: use one of 16"),
        (64, None, "length 96: size=64 does not divide"),
        (32, torch.ones(16), "signs has shape"),
    ],
)
def test_bad_arguments_are_named(size: int, signs: torch.Tensor | None, message: str):
    with pytest.raises(ValueError, match=message):
        nm.hadamard(_data(2, 96), size, signs)


@pytest.mark.parametrize("transform", [nm.hadamard, nm.hadamard_inverse])
@pytest.mark.parametrize("wrong", [2.0, float("nan"), 0.0, -1.5, float("inf")])
def test_a_sign_is_plus_or_minus_one(wrong: float, transform):
    signs = nm.hadamard_signs(32, (1, 2))
    signs[5] = wrong
    with pytest.raises(ValueError, match=rf"signs\[5\] is {wrong}: pass \+1 and -1, as nm.hadamard_signs gives them"):
        transform(_data(2, 96), 32, signs)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bfloat16, torch.float64])
def test_signs_of_any_dtype(dtype: torch.dtype):
    x, signs = _data(2, 96), nm.hadamard_signs(32, (1, 2))
    assert torch.equal(nm.hadamard(x, 32, signs.to(dtype)), nm.hadamard(x, 32, signs))
    with pytest.raises(TypeError, match=r"signs have dtype torch.uint8: pass"):
        nm.hadamard(x, 32, signs.to(torch.uint8))


@pytest.mark.parametrize("shift", [2**32, -(2**32), 2**70])
def test_words_of_the_key_count_modulo_two_to_the_32(shift: int):
    assert torch.equal(nm.hadamard_signs(128, (7 + shift, 8 + shift)), nm.hadamard_signs(128, (7, 8)))


def test_signs_follow_philox_bit_by_bit():
    """Bit i of word 0 of Philox(0, 0), 0x6627e8d5, from the lowest: a set bit is -1."""
    bits = [0x6627E8D5 >> i & 1 for i in range(32)]
    assert nm.hadamard_signs(32, (0, 0)).tolist() == [1.0 - 2 * bit for bit in bits]


def test_zero_rows():
    assert nm.hadamard(torch.zeros(0, 64), 32).shape == (0, 64)


@pytest.mark.parametrize("axis", [-1, -2])
def test_groups_are_transformed_apart_and_filled_up(axis: int):
    """Oracle: each group alone, padded by hand."""
    groups, size = (0, 5, 5, 37, 90), 16
    x = torch.randn(3, 90, 90, generator=torch.Generator().manual_seed(1))
    signs = nm.hadamard_signs(size, (4, 2))
    y, offsets = nm.hadamard(x, size, signs, axis, groups)
    assert offsets == (0, 16, 16, 48, 112)
    for (start, end), (first, last) in zip(pairwise(groups), pairwise(offsets), strict=True):
        part = x.movedim(axis, -1)[..., start:end]
        alone = nm.hadamard(torch.nn.functional.pad(part, (0, last - first - (end - start))), size, signs)
        assert torch.equal(y.movedim(axis, -1)[..., first:last], alone)
    array, again = nm.hadamard(x.numpy(), size, signs, axis, groups)
    assert again == offsets and torch.equal(torch.from_numpy(array), y)
    with pytest.raises(ValueError, match="end at the axis length 90"):
        nm.hadamard(x, size, signs, axis, (0, 5))
