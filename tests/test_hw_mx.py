"""The kernel that quantizes to MXFP8, MXFP4 and MXS2F6 along features, in the interpreter and compiled.

Contract: `hw.kernel_mx.mx` has the codes and scales of `numerics.quantize` by rule rceil, bit for bit, whatever its
rows come about as. Oracle: the emulator.
"""

import pytest
import torch
from kernel_cases import RANDOM, assert_bits, data, glu, picked
from kernel_cases import device as device

import numerics as nm
from hw.cases import DATA
from numerics.layout import swizzle_scales

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_mx import mx
from hw.kernel_nvfp4 import Quantized
from hw.sources import Source, Words

# numpy, which interprets kernels, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

KINDS = pytest.mark.parametrize("name", DATA)
FORMATS = pytest.mark.parametrize("fmt", [nm.MXFP8, nm.MXFP4, nm.MXS2F6], ids=lambda fmt: fmt.name)
DRAWN = pytest.mark.parametrize("fmt", [nm.MXFP8, nm.MXFP4], ids=lambda fmt: fmt.name)
SR = nm.Rounding.STOCHASTIC
SIGNS = nm.hadamard_signs(32, (1, 2))


def check(found: Quantized, q: nm.BlockTensor) -> None:
    """A matrix, or a batch of them as rows."""
    assert found.outer is None and found.values is None
    assert_bits(found.codes, q.packed().flatten(0, -2))
    assert_bits(found.scales, q.scales.flatten(0, -2))


@FORMATS
@KINDS
def test_every_kind_of_data(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    """FP32 and BF16, two programs, the last blocks of which are empty."""
    for dtype in (torch.float32, torch.bfloat16):
        x = data(name, 45, 96).to(dtype)
        check(mx(Source(x.to(device)), fmt.element.name), nm.quantize(x, fmt))


@FORMATS
@KINDS
def test_hadamard(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    x = data(name, 7, 96)
    expected = nm.quantize(nm.hadamard(x, 32, SIGNS), fmt)
    check(mx(Source(x.to(device)), fmt.element.name, SIGNS.to(device)), expected)


@pytest.mark.every(3)
@DRAWN
@KINDS
def test_stochastic_rounding(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    """Random words by row, by expert's row, and by matrix; after a transform too."""
    x, element = data(name, 9, 64), fmt.element.name
    rows, signs = Source(x.to(device)), SIGNS.to(device)
    for groups in (None, (0, 0, 4, 4, 9)):
        random = nm.Random(RANDOM.key, RANDOM.counter, groups)
        words = Words.of(random, 9, 1, device)
        check(mx(rows, element, words=words), nm.quantize(x, fmt, rounding=SR, random=random))
    rotated = nm.hadamard(x, 32, SIGNS)
    check(mx(rows, element, signs, words), nm.quantize(rotated, fmt, rounding=SR, random=random))
    words = Words.of(RANDOM, 9, 3, device)
    check(mx(rows, element, words=words), nm.quantize(x.view(3, 3, 64), fmt, rounding=SR, random=RANDOM))


@FORMATS
@KINDS
def test_rows_gathered_with_factors(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    """With and without index, with and without factor; BF16 rows times a factor are FP32."""
    (index, factor), element = picked(9, 20), fmt.element.name
    for dtype in (torch.float32, torch.bfloat16):
        x = data(name, 9, 64).to(dtype)
        there, i, f = x.to(device), index.to(device), factor.to(device)
        rows = x.to(torch.float32)
        check(mx(Source(there, i, f), element), nm.quantize(rows[index] * factor[:, None], fmt))
    check(mx(Source(there, i), element), nm.quantize(x[index], fmt))
    check(mx(Source(there, None, f[:9]), element), nm.quantize(rows * factor[:9, None], fmt))


@FORMATS
@KINDS
def test_swiglu(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    """Gate and up are kept, rounded once; NaN and infinities among them."""
    x, (_, factor), element = data(name, 9, 128), picked(9, 9), fmt.element.name
    kept = torch.empty(9, 128, dtype=torch.bfloat16, device=device)
    gate_up, h = glu(x, factor)
    check(mx(Source(x.to(device), None, factor.to(device), True, kept), element), nm.quantize(h, fmt))
    assert_bits(kept, gate_up)
    gate_up, h = glu(x, torch.ones(9))
    check(mx(Source(gate_up.to(device), None, None, True), element), nm.quantize(h, fmt))


@FORMATS
def test_both_sides_of_every_tie(fmt: nm.BlockFormat, device: torch.device) -> None:
    """A block maximum that makes the scale 1: every value, midpoint and their neighbours, of both signs."""
    values = fmt.element.values()
    values = values[(values >= 0) & values.isfinite()].unique()
    points = torch.cat([values, (values[1:] + values[:-1]) / 2])
    away, zero = torch.tensor(torch.inf), torch.tensor(0.0)
    points = torch.cat([points, points.nextafter(away), points.nextafter(zero)])
    points = points[points <= fmt.element.max]
    x = torch.zeros(2, -(-len(points) // 31), 31)
    x[0].view(-1)[: len(points)], x[1].view(-1)[: len(points)] = points, -points
    largest = torch.tensor([1.0, -1.0])[:, None, None].expand(2, x.shape[1], 1) * fmt.element.max
    x = torch.cat([largest, x], 2).view(-1, 32)
    q = nm.quantize(x, fmt)
    assert bool((q.scales == 127).all())
    check(mx(Source(x.to(device)), fmt.element.name), q)


@FORMATS
def test_every_exponent_and_both_sides_of_every_power(fmt: nm.BlockFormat, device: torch.device) -> None:
    """Block maxima at every power of two and at the largest value times it, with their neighbours."""
    steps = torch.arange(-149, 128, dtype=torch.float64)
    most = torch.cat([torch.exp2(steps), fmt.element.max * torch.exp2(steps)]).to(torch.float32)
    most = torch.cat([most, most.nextafter(torch.tensor(torch.inf)), most.nextafter(torch.tensor(0.0))])
    most = most[most.isfinite()]
    x = torch.stack([most, -most / 3, most / 7, most * 0], 1).repeat(1, 8)
    check(mx(Source(x.to(device)), fmt.element.name), nm.quantize(x, fmt))


def test_swizzled_scales(device: torch.device) -> None:
    """Whole tiles of 128 x 4 scales, ragged ones, several along both axes; what no block has is zero."""
    for rows, width in ((128, 128), (1, 32), (130, 160), (33, 288)):
        x = data("row scales", rows, width)
        for fmt in (nm.MXFP8, nm.MXFP4, nm.MXS2F6):
            q, found = nm.quantize(x, fmt), mx(Source(x.to(device)), fmt.element.name, swizzled=True)
            assert_bits(found.scales, swizzle_scales(q.scales))
            assert_bits(found.codes, q.packed())


@FORMATS
def test_widths(fmt: nm.BlockFormat, device: torch.device) -> None:
    for rows, width in ((300, 32), (1, 32), (2, 4128)):
        x = data("tails", rows, width)
        check(mx(Source(x.to(device)), fmt.element.name), nm.quantize(x, fmt))


@FORMATS
def test_nothing(fmt: nm.BlockFormat, device: torch.device) -> None:
    for rows, width in ((0, 64), (4, 0), (0, 0)):
        found = mx(Source(torch.zeros(rows, width, device=device)), fmt.element.name)
        assert found.codes.shape == (rows, width * fmt.element.bits // 8 if fmt.element.bits == 4 else width)
        assert found.scales.shape == (rows, width // 32)
