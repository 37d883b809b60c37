"""How `fourbit check` explains a product that is outside its bound, and what it says of one that nothing explains.

Contract: sums that are split along K and rounded in between, outputs that are truncated, flushed, saturated, or have
another outer scale, are named if that explains every element; otherwise the report says how many elements are outside,
in which rows, columns or experts, and how many times the exact ones they are. Oracle: sums of decoded values in float64
and torch's casts.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import numerics as nm
from hw.check import check

Dump = dict[str, Tensor]
G = torch.Generator().manual_seed(11)
BF16, FP16 = torch.bfloat16, torch.float16
GROUPS = (0, 20, 44, 64)
A = nm.quantize(torch.randn(64, 256, generator=G), nm.NVFP4)
B = nm.quantize(torch.randn(48, 256, generator=G), nm.NVFP4)
W = nm.quantize(
    torch.randn(3, 48, 256, generator=G) * torch.tensor([1.0, 3.0, 0.5])[:, None, None], nm.NVFP4, outer="leading"
)
X, Y = A.dequantize().double(), B.dequantize().double()


def dump_of(output: Tensor, b: nm.BlockTensor = B, **more: Tensor) -> Dump:
    d = {"a_codes": A.codes, "a_scales": A.scales, "a_outer": A.outer, "b_codes": b.codes, "b_scales": b.scales}
    return d | {"b_outer": b.outer, "output": output} | more


def parts(n: int) -> list[Tensor]:
    """Sums of each of n parts of K."""
    return [x @ y.T for x, y in zip(X.chunk(n, 1), Y.chunk(n, 1), strict=True)]


def split(n: int, dtype: torch.dtype) -> Tensor:
    """Partial sums, each rounded, added one after the other in their dtype."""
    total, *others = (p.to(dtype) for p in parts(n))
    for p in others:
        total = total + p
    return total


def tree(n: int, dtype: torch.dtype) -> Tensor:
    sums = [p.to(dtype) for p in parts(n)]
    while len(sums) > 1:
        sums = [p + q for p, q in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def in_fp32(n: int, dtype: torch.dtype) -> Tensor:
    return sum(p.to(dtype).float() for p in parts(n)).to(dtype)


def toward_zero(t: Tensor, dtype: torch.dtype) -> Tensor:
    near = t.to(dtype)
    return torch.where(near.double().abs() > t.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def by_expert(outers: Tensor) -> Tensor:
    """The product under other outer scales of the experts."""
    values = W.dequantize().double() / W.outer.double() * outers.double().view(3, 1, 1)
    return torch.cat([X[s:e] @ values[i].T for i, (s, e) in enumerate(pairwise(GROUPS))]).float()


def experts(output: Tensor) -> Dump:
    return dump_of(output, W, groups=torch.tensor(GROUPS))


E = X @ Y.T
COLUMNS, ROWS = torch.arange(48), torch.arange(64).view(-1, 1)
BIG = dump_of((E * 3e4).half(), a_outer=A.outer * 3e4)
SMALL = A.outer * 1e-6  # so that products are near the least normal number of float16, 6e-5
FAULTS: dict[str, tuple[Callable[[], Dump], str]] = {
    **{
        f"split in {n}, {str(dtype)[6:]}": (
            lambda n=n, dtype=dtype: dump_of(split(n, dtype)),
            f"K is split in {n} parts, whose sums are rounded to {str(dtype)[6:]} and added in it",
        )
        for n in (2, 4, 8)
        for dtype in (BF16, FP16)
    },
    "tree": (
        lambda: dump_of(tree(8, BF16)),
        "split in 8 parts, whose sums are rounded to bfloat16 and added in it as a tree",
    ),
    "in FP32": (
        lambda: dump_of(in_fp32(4, BF16)),
        "split in 4 parts, whose sums are rounded to bfloat16, then added in FP32",
    ),
    "float32 of bfloat16 parts": (
        lambda: dump_of(sum(p.to(BF16).float() for p in parts(2))),
        "split in 2 parts, whose sums are rounded to bfloat16",
    ),
    "truncated, bfloat16": (lambda: dump_of(toward_zero(E, BF16)), "the output is truncated to bfloat16"),
    "truncated, float16": (lambda: dump_of(toward_zero(E, FP16)), "the output is truncated to float16"),
    "flushed": (
        lambda: dump_of(torch.where((E * 1e-6).abs() < 2.0**-14, 0, (E * 1e-6).half()), a_outer=SMALL),
        "subnormal results are flushed to zero in float16",
    ),
    "saturated": (lambda: BIG | {"output": BIG["output"].clamp(-65504, 65504)}, "the output saturates at 65504"),
    "NaN": (
        lambda: BIG | {"output": torch.where(torch.isinf(BIG["output"]), torch.nan, BIG["output"])},
        "results are NaN where float16 overflows, not infinite",
    ),
    "float16 numbers": (lambda: dump_of(E.half().float()), "every element is a float16 number, though it is float32"),
    "a neighbour's outer": (
        lambda: experts(by_expert(W.outer.roll(-1))),
        "the outer scale of each expert of b is that of its expert +1",
    ),
    "the first for all": (
        lambda: experts(by_expert(W.outer.flatten()[:1].expand(3))),
        "the outer scale of each expert of b is that of expert 0",
    ),
    "gate and up": (
        lambda: dump_of((E * torch.where(COLUMNS < 24, 1, 1.3)).float()),
        "another outer scale: the output is 1.3 times the product in the second half of the columns, as of gate and up",
    ),
    "every other column": (
        lambda: dump_of((E * torch.where(COLUMNS % 2 == 0, 0.7, 1)).to(BF16)),
        "times the product in the even columns, as of gate and up",
    ),
    "one expert": (
        lambda: experts(by_expert(W.outer.flatten() * torch.tensor([1, 2.5, 1]))),
        "another outer scale: the output is 2.5 times the product in the rows of expert 1",
    ),
    "another outer": (lambda: dump_of((E * 1.01).float()), "another outer scale: the output is 1.01 times the product"),
    "zero columns": (
        lambda: dump_of((E * (COLUMNS < 24)).float()),
        "the output is 0 in the second half of the columns",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_product_is_named(name: str):
    make, words = FAULTS[name]
    report = check(make(), "nvfp4")
    assert not report and len(report.faults) == 1 and words in report.faults[0], str(report)


@pytest.mark.parametrize(
    "name", ["split in 4, bfloat16", "truncated, float16", "saturated", "gate and up", "one expert"]
)
def test_a_fault_that_nearly_explains_a_product_is_not_named(name: str):
    make, words = FAULTS[name]
    d = make()
    y = d["output"].clone()
    y[5::13, 3::11] *= 1.5
    report = check(d | {"output": y}, "nvfp4")
    assert len(report.faults) == 1 and words not in report.faults[0], str(report)
    assert "elements are outside the bound" in report.faults[0] and "no known fault explains it" in report.faults[0]


@pytest.mark.parametrize("dtype", [torch.float32, BF16, FP16])
def test_sound_products_pass(dtype: torch.dtype):
    assert check(dump_of(E.to(dtype)), "nvfp4")


def test_where_elements_are_outside_is_said():
    def fault(where: Tensor, factor: float = 1.25, noise: float = 0.1) -> str:
        uneven = 1 + noise * torch.randn(64, 48, generator=G)
        return check(experts(by_expert(W.outer) * torch.where(where, factor * uneven, 1.0)), "nvfp4").faults[0]

    assert "all in rows of expert 1, 1.25 times the exact ones" in fault((ROWS >= 20) & (ROWS < 44), noise=0.001)
    assert "all in the second half of the columns;" in fault((COLUMNS >= 24) & (ROWS % 2 < 2))
    assert "all in every 4th row from row 3;" in fault((ROWS % 4 == 3) & (COLUMNS >= 0))
    assert "all in column 7;" in fault((COLUMNS == 7) & (ROWS >= 0))
    assert "all in" not in fault(torch.rand(64, 48, generator=G) < 0.1)
