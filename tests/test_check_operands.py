"""Products whose operands lie in the layouts of libraries, or are padded with what does not decode to zeros.

Contract: a product of float64, rounded once, passes in each layout of its operands; a layout or padding that is wrong
is named. Oracle: layout_dumps.py, and `dequantize` of both operands.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from layout_dumps import EIGHT, EXPERTS, Dump, X, by_expert, padded

import numerics as nm
from hw.check import check

RANDOM = torch.Generator().manual_seed(12)
A, B = nm.quantize(X, nm.NVFP4, outer="row"), nm.quantize(torch.randn(48, 96, generator=RANDOM), nm.NVFP4)
E = nm.quantize(torch.randn(4, 48, 96, generator=RANDOM), nm.NVFP4, outer="leading")
T = nm.quantize(torch.randn(48, 96, generator=RANDOM), nm.NVFP4_2D)
A8, B8 = nm.quantize(EIGHT, nm.FP8_1X128), nm.quantize(torch.randn(140, 300, generator=RANDOM), nm.FP8_128X128)


def product(a: nm.BlockTensor = A, b: nm.BlockTensor = B, groups: tuple[int, ...] | None = None, **changes) -> Dump:
    d = {"a_codes": a.packed(), "a_scales": a.scales, "b_codes": b.packed(), "b_scales": b.scales}
    d |= {f"{name}_outer": q.outer for name, q in (("a", a), ("b", b)) if q.outer is not None}
    y = a.dequantize().double() @ b.dequantize().double().mT if groups is None else None
    if groups is not None:
        experts = enumerate(pairwise(groups))
        y = torch.cat([a.dequantize()[s:e].double() @ b.dequantize()[i].double().mT for i, (s, e) in experts])
        d["groups"] = torch.tensor(groups)
    return d | {"output": y.float()} | changes


def one_outer_each() -> Dump:
    """Stacked rows of which every expert has one outer."""
    sizes = torch.tensor([end - start for start, end in pairwise(EXPERTS)])
    outer = torch.tensor([0.5, 0.25, 1.0, 2.0])
    a = nm.quantize(X, nm.NVFP4, outer=outer.repeat_interleave(sizes).unsqueeze(-1))
    return product(a, E, EXPERTS, a_outer=outer, a_scales=by_expert(a.scales))


NAN = nm.layout.swizzle_scales(padded(A.scales, 100, 8, 0x7F))
PRODUCTS: dict[str, tuple[Callable[[], Dump], str | None]] = {
    "8x4": (lambda: product(a_scales=nm.layout.swizzle_scales_8x4(A.scales)), None),
    "GGML's nibbles": (lambda: product(b_codes=nm.layout.pack_halves(B.codes, 16)), None),
    "experts swizzled on their own": (lambda: product(A, E, EXPERTS, a_scales=by_expert(A.scales)), None),
    "one outer for each expert": (one_outer_each, None),
    "tiles": (lambda: product(b=T), None),
    "FP8 of 1 x 128 and 128 x 128": (lambda: product(A8, B8), None),
    "codes padded to more than the other's": (lambda: product(a_codes=padded(A.packed(), 100, 64)), None),
    "finite scales in padding columns": (
        lambda: product(a_scales=nm.layout.swizzle_scales(padded(A.scales, 100, 8, 0x7E))),
        None,
    ),
    "NaN scales in padding columns": (lambda: product(a_scales=NAN), "a: stale padding: 200 scales in the columns"),
    "the same, in the output too": (
        lambda: product(a_scales=NAN, output=torch.full((100, 48), torch.nan)),
        "0 * NaN is NaN, and the output is NaN there",
    ),
    "the same of one column of b": (
        lambda: product(b_scales=padded(B.scales, 48, 8).index_fill(1, torch.tensor([7]), 0x7F)),
        "b: stale padding: 48 scales in the columns beyond 6 are NaN",
    ),
    "stale codes in padding columns": (
        lambda: product(a_codes=padded(A.packed(), 100, 64, 0x33)),
        "a: stale padding: 3,200 bytes around the codes are not zero",
    ),
    "experts swizzled as one": (
        lambda: product(A, E, EXPERTS, a_scales=nm.layout.swizzle_scales(A.scales)),
        "a is read wrongly: expert padding is missing",
    ),
    "int32 in the other byte order": (
        lambda: product(b_scales=padded(B.scales, 48, 8).view(48, 2, 4).flip(-1).flatten(1).view(torch.int32)),
        "b is read wrongly: the four scales of each int32 are in the wrong byte order",
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str):
    make, words = PRODUCTS[name]
    report = check(make())
    if words is None:
        assert report and report.contracts, str(report)
    else:
        assert not report and len(report.faults) == 1 and words in report.faults[0], str(report)
