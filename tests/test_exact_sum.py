"""Contract: `exact_product` is the exact sum rounded once for whatever factors `matmul` hands it, in bounded memory.

Oracle: Python's Fraction; a float32 is the nearest if neither neighbour is nearer.
"""

from fractions import Fraction

import pytest
import torch

import numerics as nm
from numerics import exact_sum
from numerics.exact_sum import exact_product


def _is_nearest(got: torch.Tensor, exact: Fraction) -> bool:
    ends = [torch.nextafter(got, torch.full_like(got, side)) for side in (-torch.inf, torch.inf)]
    return all(abs(Fraction(float(got)) - exact) <= abs(Fraction(float(end)) - exact) for end in ends)


def _dot(a: torch.Tensor, b: torch.Tensor) -> Fraction:
    return sum((Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)), Fraction(0))


@pytest.mark.parametrize("terms", [1, 2, 3, 8, 9])
def test_products_wider_than_float64(terms: int):
    """Factors of 30 bits, a code, a scale and an outer scale, make products of 60: none is a float64 number."""
    g = torch.Generator().manual_seed(terms)
    a, b = (torch.randint(1 << 29, 1 << 30, (20, terms), generator=g).double() for _ in range(2))
    if terms > 1:  # all but the low bits cancels
        a[:, 1], b[:, 1] = a[:, 0] + 1, -b[:, 0]
    got = exact_product(a, b)
    assert all(_is_nearest(got[i, j], _dot(a[i], b[j])) for i in range(20) for j in range(20))


def test_outer_scales_inside_a_short_contraction():
    g = torch.Generator().manual_seed(0)
    a, b = (nm.quantize(torch.randn(60, 8, generator=g), nm.NVFP4, outer=128) for _ in range(2))
    got, wide = nm.matmul(a, b), [x.values().double() * x.outer_per_value().double() for x in (a, b)]
    assert all(_is_nearest(got[i, j], _dot(wide[0][i], wide[1][j])) for i in range(60) for j in range(60))


@pytest.mark.parametrize("lead", [(), (2,)])
def test_slices_by_rows_give_the_same_bits_in_less_memory(monkeypatch: pytest.MonkeyPatch, lead: tuple[int, ...]):
    g = torch.Generator().manual_seed(1)
    a, b = (torch.ldexp(torch.randn(s, generator=g), torch.randint(-60, 60, s, generator=g))
            for s in ((*lead, 21, 40), (15, 40)))  # fmt: skip
    whole, most = exact_product(a, b), []
    rounded = exact_sum._round_expansion
    monkeypatch.setattr(exact_sum, "_SLICED", 1 << 12)
    monkeypatch.setattr(
        exact_sum, "_round_expansion", lambda sums: most.append(sum(x.numel() for x in sums)) or rounded(sums)
    )
    assert torch.equal(exact_product(a, b), whole)
    assert len(most) > 1 and max(most) <= 1 << 12
