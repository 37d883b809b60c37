"""Contract: SwiGLU and its gradient have the same bits everywhere, because silu is a correctly rounded table.

Oracle: mpmath (a dependency of torch's sympy) in 60 digits, over every BF16 pattern; torch's own formula for shape.
"""

from fractions import Fraction

import pytest
import torch

from numerics.swiglu import silu, silu_tables, swiglu, swiglu_backward

mpmath = pytest.importorskip("mpmath")


def _neighbours(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    inf = torch.full_like(table, torch.inf)
    return torch.nextafter(table, -inf).double(), torch.nextafter(table, inf).double()


@pytest.mark.every(2)
@pytest.mark.parametrize("which", ["silu", "derivative"])
def test_every_entry_is_the_nearest_number(which: str) -> None:
    table = silu_tables("cpu")[which == "derivative"]
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).double().tolist()
    low, high = _neighbours(table)
    wrong = []
    with mpmath.workdps(60):
        for code, (value, got, below, above) in enumerate(zip(x, table.double(), low, high, strict=True)):
            if value != value or abs(value) == float("inf"):
                continue
            m = mpmath.mpf(value)
            sigmoid = 1 / (1 + mpmath.exp(-m))
            exact = m * sigmoid if which == "silu" else sigmoid * (1 + m / (1 + mpmath.exp(m)))
            # nearest: the exact value lies between the midpoints to both neighbours (sums exact in 60 digits)
            got_m = mpmath.mpf(float(got))
            if not (got_m + mpmath.mpf(float(below))) / 2 <= exact <= (got_m + mpmath.mpf(float(above))) / 2:
                wrong.append(code)
    assert wrong == []


def test_ends() -> None:
    ends = torch.tensor([float("inf"), -float("inf"), 0.0, -0.0, float("nan")], dtype=torch.bfloat16)
    assert silu(ends)[:4].tolist() == [float("inf"), 0.0, 0.0, 0.0] and bool(silu(ends)[4].isnan())
    assert torch.signbit(silu(ends)[:4]).tolist() == [False, True, False, True]


def test_products_round_once() -> None:
    generator = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(1000, generator=generator).bfloat16() for _ in range(2))
    h = swiglu(gate, up)
    exact = [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(silu(gate), up, strict=True)]
    low, high = _neighbours(h)
    for value, got, below, above in zip(exact, h.double().tolist(), low.tolist(), high.tolist(), strict=True):
        assert (Fraction(got) + Fraction(below)) / 2 <= value <= (Fraction(got) + Fraction(above)) / 2


def test_gradient_is_that_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(1)
    gate, up = (torch.randn(4096, generator=generator).bfloat16() for _ in range(2))
    dh = torch.randn(4096, generator=generator)
    g, u = gate.double().requires_grad_(), up.double().requires_grad_()
    (torch.nn.functional.silu(g) * u * dh.double()).sum().backward()
    d_gate, d_up = swiglu_backward(dh, gate, up)
    # two FP32 products and one BF16 rounding: relative 2^-8 + 3 * 2^-24; d_up also carries silu's BF16 rounding
    assert bool(((d_gate.double() - g.grad).abs() <= g.grad.abs() * (2**-8 + 2**-22) + 1e-30).all())
    assert bool(((d_up.double() - u.grad).abs() <= u.grad.abs() * (2 * 2**-8 + 2**-14) + 1e-30).all())


def test_gradient_bit_for_bit():
    """d_up from the BF16 silu of the forward; d_gate from (dh * up) first, then the slope, one rounding at the end."""
    generator = torch.Generator().manual_seed(2)
    gate, up = (torch.randn(1 << 21, generator=generator).bfloat16() for _ in range(2))
    dh = torch.randn(1 << 21, generator=generator)
    d_gate, d_up = swiglu_backward(dh, gate, up)
    slope = silu_tables("cpu")[1][gate.view(torch.uint16).long()]
    assert torch.equal(d_up, (dh * silu(gate).float()).bfloat16())
    assert torch.equal(d_gate, ((dh * up.float()) * slope).bfloat16())
    assert not torch.equal(d_gate, (dh * (up.float() * slope)).bfloat16())  # the order shows, in some 4 of a million
