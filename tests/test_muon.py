"""Contract of reference.muon: what Newton-Schulz does to singular values, and a whole step.

Oracles: numpy's singular value decomposition with the polynomial applied to each value alone; the published band; a
step written out in numpy and float64, whose orthogonalization goes through that decomposition.
"""

import itertools

import numpy as np
import pytest
import torch

from reference.muon import COEFFICIENTS, move, nesterov, orthogonalize, parts

SHAPES = [(8, 8), (8, 24), (24, 8), (3, 16, 8), (2, 3, 5, 40), (1, 7), (7, 1)]


def polynomial(s: np.ndarray) -> np.ndarray:
    """What five iterations make of singular values of a matrix of norm 1."""
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


def oracle(u: np.ndarray) -> np.ndarray:
    """X p(S / (||S|| + 1e-7)) Y^T, float64."""
    x, s, y = np.linalg.svd(u.astype(np.float64), full_matrices=False)
    length = np.sqrt((s * s).sum(-1, keepdims=True)) + 1e-7
    return (x * polynomial(s / length)[..., None, :]) @ y


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_go_through_the_polynomial_and_vectors_stay(shape: tuple[int, ...]) -> None:
    """An iteration makes an error of a few units at its largest value, 1.2, and multiplies earlier ones by at most
    3.4445: 485 in all. With sums of at most 40 terms that is 485 * 40 units, 2^-53 in float64 and 2^-24 in float32."""
    u = normal(*shape)
    assert np.abs(orthogonalize(u, torch.float64).numpy() - oracle(u.numpy())).max() < 485 * 40 * 2.0**-53
    single = orthogonalize(u.float(), torch.float32)
    assert single.dtype == torch.float32
    assert np.abs(single.numpy() - oracle(u.float().numpy())).max() < 485 * 40 * 2.0**-24


def test_coefficients_are_the_published_ones_and_the_band_too() -> None:
    assert COEFFICIENTS == (3.4445, -4.7750, 2.0315)
    band = polynomial(np.linspace(0.0015, 1, 1 << 20))
    assert 0.67 < band.min() < 0.71 and 1.12 < band.max() < 1.21
    assert polynomial(np.array([1e-4])) < 0.1  # what starts lower stays lower


@pytest.mark.parametrize(("dtype", "low", "high"), [(torch.float32, 0.67, 1.21), (torch.bfloat16, 0.5, 1.5)])
def test_the_result_is_nearly_orthogonal(dtype: torch.dtype, low: float, high: float) -> None:
    """0.7 to 1.2 in FP32; under BF16 products within the 0.5 to 1.5 that its author promises."""
    u = normal(4, 48, 96).float()
    values = torch.linalg.svdvals(orthogonalize(u, dtype))
    assert low < values.min() and values.max() < high
    x, _, y = np.linalg.svd(u.numpy(), full_matrices=False)
    # along U's own vectors: the distance from X Y^T is the largest distance of a value from 1
    distance = np.linalg.norm(orthogonalize(u, dtype).numpy() - x @ y, ord=2, axis=(-2, -1))
    assert distance.max() < max(1 - low, high - 1)


def test_length_does_not_matter_and_zero_stays_zero() -> None:
    u = normal(6, 10)
    a, b = orthogonalize(u, torch.float64), orthogonalize(u * 2.0**60, torch.float64)
    assert torch.allclose(a, b, rtol=0, atol=1e-6)  # the 1e-7 beside a norm of about 8, times 485 at most
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 4), torch.float32), torch.zeros(2, 3, 4))
    assert torch.equal(orthogonalize(torch.zeros(3, 4), torch.bfloat16), torch.zeros(3, 4))


def test_a_matrix_of_a_batch_does_not_see_the_others() -> None:
    u = normal(3, 8, 12)
    alone = torch.stack([orthogonalize(one, torch.float64) for one in u])
    assert torch.allclose(orthogonalize(u, torch.float64), alone, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "shape", "rows"),
    [
        ("layers.0.moe.w13", (4, 64, 32), [32, 32]),
        ("layers.0.moe.w2", (4, 32, 32), [32]),
        ("layers.0.moe.shared_in.weight", (64, 32), [32, 32]),
        ("layers.0.moe.shared_out.weight", (32, 32), [32]),
        ("layers.0.attention.qkv.weight", (96, 32), [32, 32, 32]),
        ("layers.0.attention.qkv.weight", (48, 32), [32, 8, 8]),  # four heads share one pair of keys and values
        ("layers.0.attention.out.weight", (32, 32), [32]),
    ],
)
def test_matrices_that_are_stored_as_one_are_told_apart(name: str, shape: tuple[int, ...], rows: list[int]) -> None:
    assert parts(name, torch.Size(shape)) == rows and sum(rows) == shape[-2]


@pytest.mark.parametrize(
    ("shape", "rows"), [((12, 20), [12]), ((20, 12), [20]), ((3, 16, 10), [8, 8]), ((16, 8), [8, 4, 4])]
)
def test_steps_follow_numpy_in_float64(shape: tuple[int, ...], rows: list[int]) -> None:
    """Over five steps, FP32 against float64: as above each step's direction is off by 485 * 40 units at most, times its
    length lr 0.2 sqrt(20)."""
    lr, momentum, decay = 0.02, 0.95, 0.1
    weight = normal(*shape, seed=1).float()
    moment = torch.zeros(shape)
    w, m = weight.numpy().astype(np.float64), np.zeros(shape)
    cuts = list(itertools.accumulate(rows))[:-1]
    for i in range(5):
        gradient = normal(*shape, seed=2 + i).float()
        u = nesterov(gradient, moment, momentum)
        move(list(weight.split(rows, dim=-2)), list(u.split(rows, dim=-2)), lr, decay)
        g = gradient.numpy().astype(np.float64)
        m = momentum * m + (1 - momentum) * g
        u = momentum * m + (1 - momentum) * g
        scaled = [oracle(p) * 0.2 * np.sqrt(max(p.shape[-2:])) for p in np.split(u, cuts, axis=-2)]
        w = w * (1 - lr * decay) - lr * np.concatenate(scaled, axis=-2)
    assert np.abs(weight.numpy() - w).max() < 5 * lr * 0.2 * 20**0.5 * 485 * 40 * 2.0**-24
    assert np.abs(moment.numpy() - m).max() < 1e-6


def test_a_step_is_as_long_as_one_of_adamw() -> None:
    """Root mean square 0.2 lr, times the band of the singular values, whatever the shape."""
    for shape in ((16, 64), (64, 16), (48, 48)):
        weight = torch.zeros(shape)
        move([weight], [normal(*shape).float()], lr=1.0, weight_decay=0.0)
        assert 0.2 * 0.67 < weight.square().mean().sqrt() < 0.2 * 1.21


def test_matrices_of_one_shape_move_together_as_they_do_alone() -> None:
    """Tall, wide and batched ones of the same two lengths, and another; FP32 products may be summed otherwise."""
    shapes = [(8, 12), (12, 8), (3, 8, 12), (2, 2, 12, 8), (8, 8)]
    weights, directions = ([normal(*s, seed=i + j).float() for i, s in enumerate(shapes)] for j in (0, 50))
    alone = [w.clone() for w in weights]
    for weight, u in zip(alone, directions, strict=True):
        move([weight], [u], 0.1, 0.2)
    move(weights, directions, 0.1, 0.2)
    for together, one in zip(weights, alone, strict=True):
        assert (together - one).abs().max() < 0.1 * 0.2 * 12**0.5 * 485 * 40 * 2.0**-24
