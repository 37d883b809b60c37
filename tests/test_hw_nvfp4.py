"""The kernel that quantizes to NVFP4 along features, in the interpreter and compiled.

Contract: `hw.kernel_nvfp4.nvfp4` has the codes, scales and outer scales of `numerics.quantize` in NVFP4 and NVFP4_46,
bit for bit, whatever its rows come about as; values are those of `BlockTensor.values`. Oracle: the emulator.
"""

import pytest
import torch
from kernel_cases import RANDOM, assert_bits, data, glu, picked
from kernel_cases import device as device
from torch import Tensor

import numerics as nm
from hw.cases import DATA
from numerics.layout import swizzle_scales
from numerics.outer import outer_scale

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_nvfp4 import Quantized, nvfp4
from hw.sources import Source, Words

# numpy, which interprets kernels, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

KINDS = pytest.mark.parametrize("name", DATA)
FORMATS = pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46], ids=lambda fmt: fmt.name)
SR = nm.Rounding.STOCHASTIC
SIGNS = nm.hadamard_signs(16, (1, 2))


def check(found: Quantized, q: nm.BlockTensor) -> None:
    """A matrix, or a batch of them as rows."""
    assert_bits(found.codes, q.packed().flatten(0, -2))
    assert_bits(found.scales, q.scales.flatten(0, -2))
    if q.outer is not None:
        assert found.outer is not None
        assert_bits(found.outer.view(q.outer.shape), q.outer)
    if found.values is not None:
        assert_bits(found.values, q.values().to(torch.bfloat16).flatten(0, -2))


@FORMATS
@KINDS
def test_every_kind_of_data(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    """Rows with outer scales of their own, FP32 and BF16; two programs, the last rows and blocks of which are empty."""
    for dtype in (torch.float32, torch.bfloat16):
        x = data(name, 19, 80).to(dtype)
        found = nvfp4(Source(x.to(device)), fmt is nm.NVFP4_46, values=True)
        assert found.outer is not None and found.outer.shape == (19, 1)
        check(found, nm.quantize(x, fmt, outer="row"))


@KINDS
def test_outer_scales_of_powers_of_two(name: str, device: torch.device) -> None:
    x = data(name, 7, 64)
    check(nvfp4(Source(x.to(device)), pow2=True), nm.quantize(x, nm.NVFP4, outer="row", outer_rounding="pow2"))


@FORMATS
@KINDS
def test_outer_scales_that_are_given(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    """One of each of three matrices, one of the tensor, and 1."""
    x, own = data(name, 3, 3, 64), fmt is nm.NVFP4_46
    rows = Source(x.view(9, 64).to(device))
    blocks = x.view(3, -1, 16).abs()
    each = torch.where(blocks.isfinite().all(-1), blocks.amax(-1), 0).amax(-1)
    for scope, amax in (("leading", each), ("tensor", each.amax().view(1))):
        outer, encode = outer_scale(amax, 1536.0 if own else 2688.0)
        check(nvfp4(rows, own, (outer.to(device), encode.to(device))), nm.quantize(x, fmt, outer=scope))
    one = torch.ones(1, device=device)
    check(nvfp4(rows, own, (one, one), values=True), nm.quantize(x, fmt, outer=None))


def test_outer_scales_where_three_operations_are_no_division(device: torch.device) -> None:
    """Four-over-six beside 1e-27 and 1e27, and one such row in a program of ordinary ones."""
    x = data("normal", 32, 64)
    for far in (1e-27, 1e-30, 1e-36, 1e27, 1e30, 1e34):
        x[3] *= far * 1536 / x[3].abs().max()
        check(nvfp4(Source(x.to(device)), True), nm.quantize(x, nm.NVFP4_46, outer="row"))
        x[3] = x[4]


def test_both_sides_of_every_tie(device: torch.device) -> None:
    """Block scale and outer scale 1: every tie of E2M1 and both its neighbours; and every BF16 pattern below 8."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    near = torch.cat([ties, ties.nextafter(torch.tensor(9.0)), ties.nextafter(torch.tensor(0.0)), torch.zeros(9)])
    x = torch.zeros(4, 16)
    x[:, 0], x[:2, 1:] = 6.0, near.view(2, 15)
    x[2:] = -x[:2]
    one = torch.ones(1, device=device)
    check(nvfp4(Source(x.to(device)), given=(one, one)), nm.quantize(x, nm.NVFP4, outer=None))
    every = torch.arange(0x4100, dtype=torch.int16).view(torch.bfloat16).view(65, 256)
    check(nvfp4(Source(every.to(device)), given=(one, one)), nm.quantize(every, nm.NVFP4, outer=None))


@KINDS
def test_stochastic_rounding(name: str, device: torch.device) -> None:
    """Random words by row, by expert's row, and by matrix; under outer scales of rows and of none."""
    x = data(name, 9, 64)
    rows, one = Source(x.to(device)), torch.ones(1, device=device)
    for groups in (None, (0, 0, 4, 4, 9)):
        random = nm.Random(RANDOM.key, RANDOM.counter, groups)
        words = Words.of(random, 9, 1, device)
        check(nvfp4(rows, words=words), nm.quantize(x, nm.NVFP4, outer="row", rounding=SR, random=random))
        check(
            nvfp4(rows, given=(one, one), words=words), nm.quantize(x, nm.NVFP4, outer=None, rounding=SR, random=random)
        )
    stack = x.view(3, 3, 64)
    words = Words.of(RANDOM, 9, 3, device)
    check(nvfp4(rows, words=words), nm.quantize(stack, nm.NVFP4, outer="row", rounding=SR, random=RANDOM))


@FORMATS
@KINDS
def test_rows_gathered_with_factors(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    """With and without index, with and without factor; BF16 rows times a factor are FP32."""
    index, factor = picked(9, 20)
    for dtype in (torch.float32, torch.bfloat16):
        x, own = data(name, 9, 48).to(dtype), fmt is nm.NVFP4_46
        there, i, f = x.to(device), index.to(device), factor.to(device)
        rows = x.to(torch.float32)
        check(nvfp4(Source(there, i, f), own), nm.quantize(rows[index] * factor[:, None], fmt, outer="row"))
    check(nvfp4(Source(there, i), own), nm.quantize(x[index], fmt, outer="row"))
    check(nvfp4(Source(there, None, f[:9]), own), nm.quantize(rows * factor[:9, None], fmt, outer="row"))


@FORMATS
@KINDS
def test_swiglu(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    """Gate and up are kept, rounded once; NaN and infinities among them."""
    x, (_, factor) = data(name, 9, 96), picked(9, 9)
    kept = torch.empty(9, 96, dtype=torch.bfloat16, device=device)
    gate_up, h = glu(x, factor)
    source = Source(x.to(device), None, factor.to(device), True, kept)
    check(nvfp4(source, fmt is nm.NVFP4_46, values=True), nm.quantize(h, fmt, outer="row"))
    assert_bits(kept, gate_up)
    gate_up, h = glu(x, torch.ones(9))
    check(nvfp4(Source(gate_up.to(device), None, None, True), fmt is nm.NVFP4_46), nm.quantize(h, fmt, outer="row"))


@FORMATS
@KINDS
def test_hadamard(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    x = data(name, 9, 80)
    expected = nm.quantize(nm.hadamard(x, 16, SIGNS), fmt, outer="row")
    check(nvfp4(Source(x.to(device)), fmt is nm.NVFP4_46, signs=SIGNS.to(device)), expected)


def swizzled(x: Tensor, there: torch.device) -> None:
    q, found = nm.quantize(x, nm.NVFP4, outer="row"), nvfp4(Source(x.to(there)), swizzled=True)
    assert_bits(found.scales, swizzle_scales(q.scales))
    assert_bits(found.codes, q.packed())


def test_swizzled_scales(device: torch.device) -> None:
    """Whole tiles of 128 x 4 scales, ragged ones, several along both axes; what no block has is zero."""
    for rows, width in ((128, 64), (1, 16), (130, 80), (33, 144)):
        swizzled(data("row scales", rows, width), device)


def test_widths(device: torch.device) -> None:
    """Rows of one block, and of more than 128: one row a program, the last of its blocks empty."""
    for rows, width in ((300, 16), (3, 2064), (2, 4096)):
        x = data("tails", rows, width)
        check(nvfp4(Source(x.to(device))), nm.quantize(x, nm.NVFP4, outer="row"))
        check(nvfp4(Source(x.to(device)), True), nm.quantize(x, nm.NVFP4_46, outer="row"))


def test_nothing(device: torch.device) -> None:
    for rows, width in ((0, 64), (4, 0), (0, 0)):
        found = nvfp4(Source(torch.zeros(rows, width, device=device)), values=True)
        assert found.codes.shape == (rows, width // 2) and found.scales.shape == (rows, width // 16)
        assert found.values is not None and found.values.shape == (rows, width)
        assert found.outer is not None and found.outer.shape == (rows, 1)


def test_rows_that_are_too_wide(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"x has rows of 65552 values: this kernel takes up to 65536"):
        nvfp4(Source(torch.zeros(1, 65552, device=device)))
