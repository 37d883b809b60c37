"""`numerics.subnormals`: no bit of `numerics` depends on torch.set_flush_denormal, nor on torch's default device.

Contract: every public function gives the same bits with the setting as without it, and leaves it as it was. Oracle: the
same calls without the setting; that the setting works here, and would change them, is shown on torch's own operations.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import numerics as nm
from hw.compare import bits_of
from numerics import ops, swiglu
from numerics.partition import Partition
from numerics.subnormals import flushed, kept

R = nm.Rounding


@pytest.fixture
def flushing() -> Iterator[Callable[[], None]]:
    """What switches the setting on; off again after the test."""
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor has no such setting")
    yield lambda: torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)


def spread(rows: int, columns: int) -> Tensor:
    """Rows of all sizes, least subnormals to the largest numbers, that reach over twelve powers of two each."""
    generator = torch.Generator().manual_seed(4)
    exponents = torch.linspace(-149, 120, rows).round()[:, None] + torch.randint(
        -12, 1, (rows, columns), generator=generator
    )
    return torch.ldexp(torch.randn(rows, columns, generator=generator).clamp(-1.9, 1.9), exponents)


X = spread(128, 128)
SMALL = 2.0**-100 * X
ORDINARY = torch.cat([torch.linspace(0.1, 1, 16), torch.full((16,), 1e5)])  # the first scale is a subnormal E4M3
WEIGHTS = torch.tensor([[2.0**-130, 2.0**-131]])
WIDE = nm.Format("wide", "float", 31, 8, 22, 127, "ieee")
SIGNS = nm.hadamard_signs(32, (1, 2))
ROWS, TWO, ONE = torch.arange(128), torch.tensor([[70, 71]]), torch.tensor([1])
CALLS: dict[str, Callable[[], list[Tensor]]] = {
    **{
        f"quantize {f.name}": lambda f=f: parts(nm.quantize(X, f)) + parts(nm.quantize(X[:16], f))
        for f in nm.BLOCK_FORMATS.values()
    },
    "an ordinary scale": lambda: parts(nm.quantize(ORDINARY, nm.NVFP4)),
    "requantize": lambda: parts(nm.requantize(nm.quantize(X, nm.NVFP4), nm.MXFP8, random=nm.Random((1, 2)))),
    "values": lambda: [nm.quantize(X, nm.MXFP8).values()],
    "dequantize": lambda: [nm.quantize(X, nm.NVFP4_46, outer="row").dequantize()],
    "encode": lambda: [nm.encode(X, f, m) for f in nm.FORMATS.values() for m in list(R)[:5]],
    "decode": lambda: [nm.decode(ONE, WIDE)],
    "round_to": lambda: [nm.round_to(X, nm.E5M2, R.TOWARD_POSITIVE)],
    "hadamard": lambda: [nm.hadamard(X, 32, SIGNS), nm.hadamard_inverse(X, 32, SIGNS)],
    "matmul": lambda: [nm.matmul(X, SMALL[64:72], kind) for kind in ("exact", "fp32")],
    "swiglu": lambda: [swiglu.silu(X.bfloat16()), *swiglu.swiglu_backward(X, X.bfloat16(), X.flip(0).bfloat16())],
    "aggregate": lambda: list(ops.aggregate(X.bfloat16(), TWO, WEIGHTS, ops.Wire(None))),
    "router_gradient": lambda: [ops.router_gradient(X, X.roll(64, 0), ROWS[:, None], ops.Wire(None))],
    "grad_to_wire": lambda: parts(ops.grad_to_wire(X, ROWS, X[:, :1], ops.Cast(nm.MXFP8))),
    "dialects": lambda: [t for d in ("app_b", "torchao") for t in parts(nm.scales.DIALECTS[d].quantize(X))],
}


def parts(q: object) -> list[Tensor]:
    return [t for t in vars(q).values() if isinstance(t, Tensor)]


@pytest.mark.parametrize("name", CALLS)
def test_flushing_changes_no_bit(name: str, flushing: Callable[[], None]) -> None:
    expected, threads = CALLS[name](), torch.get_num_threads()
    flushing()
    found = CALLS[name]()
    assert flushed() and torch.get_num_threads() == threads
    torch.set_flush_denormal(False)
    for e, f in zip(expected, found, strict=True):
        same = bits_of(e) == bits_of(f)
        assert bool((same | (e.isnan() & f.isnan()) if e.is_floating_point() else same).all())


def test_the_setting_is_one(flushing: Callable[[], None]) -> None:
    """It flushes what it is told to, which `kept` forbids, also where the function raises."""
    least, half = torch.tensor([2.0**-126]), torch.tensor([0.5])
    assert not flushed()
    flushing()
    zero, number = (least * half).view(torch.int32), kept(torch.mul)(least, half).view(torch.int32)
    with pytest.raises(ValueError, match="axis=5"):
        nm.quantize(X, nm.MXFP8, axis=5)
    assert flushed() and int(zero) == 0 and int(number) == 1 << 22


def test_tables_made_under_the_setting_are_right(flushing: Callable[[], None]) -> None:
    """They are kept for the process."""
    swiglu.silu_tables.cache_clear()
    flushing()
    table = swiglu.silu_tables("cpu")[0].view(torch.int16).clone()
    torch.set_flush_denormal(False)
    swiglu.silu_tables.cache_clear()
    assert torch.equal(table, swiglu.silu_tables("cpu")[0].view(torch.int16))


@pytest.mark.parametrize("name", CALLS)
def test_the_default_device_changes_no_bit(name: str) -> None:
    """Tables that are made under it, and kept for the process, lie where the arguments do."""
    expected = CALLS[name]()
    swiglu.silu_tables.cache_clear()
    Partition.of.cache_clear()
    with torch.device("meta"):
        found = CALLS[name]()
        assert torch.get_default_device().type == "meta"
    for e, f, later in zip(expected, found, CALLS[name](), strict=True):
        assert torch.equal(bits_of(e), bits_of(f)) and torch.equal(bits_of(e), bits_of(later))
