"""Contract of reference.exact: a sum is the exact one rounded once to FP32; exp and log have bits of their argument
alone, exp the true value rounded to FP32 (of what is drawn here), log within 2^-50.

Oracles: `numerics.matmul` under "exact", whose own oracle is Fraction arithmetic; Python's Fraction here too; for exp
and log Decimal in 50 digits.
"""

from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import torch
from nearest import nearest
from torch import Tensor

import numerics as nm
from reference import exact

INFINITY = float("inf")


def drawn(*shape: int, seed: int = 0, spread: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return x * (torch.randn(shape, generator=generator) * spread).exp()


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 24, 5), (8, 96, 40), (2, 300, 7), (5, 0, 4), (0, 4, 2)])
@pytest.mark.parametrize("spread", [0.0, 4.0])
@pytest.mark.parametrize("kinds", [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")])
def test_dot_has_the_bits_of_the_exact_product(shape: tuple[int, int, int], spread: float, kinds: list[str]) -> None:
    m, k, n = shape
    a = drawn(m, k, seed=1, spread=spread).to(getattr(torch, kinds[0]))
    b = drawn(n, k, seed=2, spread=spread).to(getattr(torch, kinds[1]))
    wanted = nm.matmul(a.float(), b.float(), "exact")
    assert torch.equal(exact.dot(a, b), wanted)
    assert torch.equal(exact.dot(a, b, torch.bfloat16), wanted.to(torch.bfloat16))


def test_dot_rounds_to_bf16_by_way_of_fp32() -> None:
    """Halves between two BF16 numbers, what lies just beside them in FP32, and what FP32 rounds onto them."""
    rest = [0.0, 2.0**-23, -(2.0**-23), 2.0**-30, -(2.0**-30), 2.0**-60, -(2.0**-60), 2.0**-24]
    a = torch.tensor([[x, half, r] for x in (1.0, 1.0078125) for half in (2.0**-8, -(2.0**-9)) for r in rest])
    for kind in (torch.float32, torch.bfloat16):
        found = exact.dot(a.to(kind), torch.ones(1, 3, dtype=kind), torch.bfloat16)[:, 0]
        wanted = torch.tensor([nearest(sum(map(Fraction, row))) for row in a.to(kind).tolist()]).to(torch.bfloat16)
        assert torch.equal(found, wanted)


def test_dot_settles_what_one_product_cannot() -> None:
    """Ties, sums that cancel to nothing or almost, and what lies below float64's sum."""
    tiny = 2.0**-100
    rows = [
        *([1.0, 2.0**-24, 0.0, 0.0], [1.0, 2.0**-24, tiny, 0.0], [1.0, 2.0**-24, -tiny, 0.0]),  # a tie, above, below
        *([1.0, -1.0, tiny, 0.0], [1.0, -1.0, 0.0, 0.0], [-1.0, tiny, 1.0, -tiny], [0.0] * 4, [-0.0] * 4),
        *([3e38, 3e38, -3e38, 1.0], [1e-45, 1e-45, 0.0, 0.0], [-(2.0**-75), 2.0**-149, 0.0, 0.0]),
    ]
    a, ones = torch.tensor(rows), torch.ones(1, 4)
    wanted = []
    for row in a.tolist():
        total = sum(map(Fraction, row))
        wanted.append(nearest(total))
    found = exact.dot(a, ones)[:, 0]
    assert found.tolist() == wanted
    assert not torch.signbit(found[[4, 5, 6, 7]]).any()  # a sum of nothing is +0
    assert torch.equal(found, nm.matmul(a, ones, "exact")[:, 0])


def test_dot_of_nan_and_infinity_is_that_of_ieee() -> None:
    a = torch.tensor([[INFINITY, 1.0], [INFINITY, -INFINITY], [float("nan"), 0.0], [1.0, 2.0]])
    found = exact.dot(a, torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    wanted = torch.tensor([[INFINITY, float("nan")], [float("nan")] * 2, [float("nan")] * 2, [3.0, 2.0]])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_dot_depends_on_a_row_alone() -> None:
    a, b = drawn(2, 3, 40, 24, seed=3), drawn(2, 3, 50, 24, seed=4)
    whole = exact.dot(a, b)
    assert torch.equal(torch.cat([exact.dot(part, b) for part in a.split(7, 2)], 2), whole)
    assert torch.equal(exact.dot(a[1:, :1, 5:6], b[1:, :1, 9:10]), whole[1:, :1, 5:6, 9:10])
    zeros = torch.zeros(2, 3, 1, 13)
    wide = [torch.cat([x, zeros.expand(-1, -1, x.shape[2], -1)], -1) for x in (a, b)]
    assert torch.equal(exact.dot(*wide), whole)  # places that are not there
    shuffled = torch.randperm(24, generator=torch.Generator().manual_seed(5))
    assert torch.equal(exact.dot(a[..., shuffled], b[..., shuffled]), whole)


def test_total_is_an_exact_sum() -> None:
    x = drawn(50, 33, seed=6, spread=3.0)
    wanted = [nearest(sum(map(Fraction, row))) for row in x.tolist()]
    assert exact.total(x)[:, 0].tolist() == wanted


def test_exp_and_log_are_the_true_ones_rounded() -> None:
    x = torch.cat([-drawn(400, seed=7).abs() * 30, torch.tensor([0.0, -0.0, -1e-30, -87.4, -103.5, 88.0, 0.5])])
    with localcontext() as context:
        context.prec = 50
        for value, e in zip(x.tolist(), exact.exp(x).tolist(), strict=True):
            true = Fraction(Decimal(value).exp())
            # within 2^-50 before it is rounded: another neighbour in one draw of 2^25, of which there are 400
            assert e == nearest(true)
        for value in [*(x.abs() + 1).tolist(), 1.0, 2.0, 65536.0, 1.5, 2.0**0.5]:
            found = exact.log(torch.tensor([value], dtype=torch.float64)).item()
            assert abs(Decimal(found) - Decimal(value).ln()) <= Decimal(2) ** -50 * max(Decimal(value).ln(), 1)
    assert exact.exp(torch.tensor([-INFINITY, -1000.0])).tolist() == [0.0, 0.0]
    assert exact.exp(torch.tensor([float("nan")])).isnan().all()


def test_exp_and_log_do_not_know_where_a_number_lies() -> None:
    """A library's differ between a vector and its tail; these do not, at any length, offset or stride."""
    x = -drawn(70_000, seed=8).abs() * 20
    whole, logs = exact.exp(x), exact.log(1 - x)
    for start, stop, step in ((0, 1, 1), (3, 10, 1), (5, 40, 7), (65_530, 65_545, 1), (1, 70_000, 3)):
        assert torch.equal(exact.exp(x[start:stop:step]), whole[start:stop:step])
        assert torch.equal(exact.log((1 - x)[start:stop:step]), logs[start:stop:step])
    assert torch.equal(exact.exp(x.view(700, 100).mT), whole.view(700, 100).mT)
