"""The kernels that decode codes, in the interpreter and compiled.

Contract: `hw.kernel_decode.decode` has the bits of `BlockTensor.dequantize`, or of `values` without outer scales, as
FP32 and as BF16, and its flag says whether BF16 did not hold a value; `hw.kernel_decode_nvfp4.decode_nvfp4` those of
`values`. Any NaN equals any NaN. Oracle: the emulator.
"""

import pytest
import torch
from kernel_cases import GROUPS, assert_bits, data, picked
from kernel_cases import device as device
from torch import Tensor

import numerics as nm
from hw.cases import DATA
from numerics.blocks import made
from numerics.partition import Partition

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_decode import decode
from hw.kernel_decode_nvfp4 import decode_nvfp4

# numpy, which interprets kernels, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

KINDS = pytest.mark.parametrize("name", DATA)
NARROW = torch.bfloat16
FORMATS = pytest.mark.parametrize(
    "fmt", [nm.NVFP4, nm.NVFP4_2D, nm.MXFP4, nm.MXFP8, nm.MXS2F6], ids=lambda fmt: fmt.name
)


def lines(q: nm.BlockTensor) -> Tensor:
    """int32 (R,): the row of scales of each row of codes of a matrix."""
    step, groups = (q.fmt.block, q.groups) if q.axis == 0 else (q.fmt.tile, None)
    return Partition.of(q.shape[0], step, groups).block_of.to(torch.int32)


def check(q: nm.BlockTensor, there: torch.device, factor: Tensor | None = None) -> None:
    """A matrix: FP32 and BF16, without and with its outer scales, with a factor and without."""
    block = q.fmt.block if q.axis == 1 else q.fmt.tile
    parts = (q.codes.contiguous().to(there), q.scales.contiguous().to(there), lines(q).to(there))
    outer = None if q.outer is None else q.outer.expand(len(q.codes), 1).flatten().contiguous()
    stored = q.values()
    held = (stored.to(NARROW).to(torch.float32) == stored) | stored.isnan()
    for own in (None, outer) if outer is not None else (None,):
        for times in (None, factor) if factor is not None else (None,):
            expected = q.derived(outer=None if own is None else own[:, None]).dequantize()
            expected = expected if times is None else expected * times[:, None]
            rest = (None if own is None else own.to(there), None if times is None else times.to(there))
            found, flag = decode(*parts, q.fmt.element.name, block, *rest, powers=q.fmt.scale is nm.E8M0)
            assert_bits(found, expected)
            assert flag.tolist() == [0]
            found, flag = decode(*parts, q.fmt.element.name, block, *rest, powers=q.fmt.scale is nm.E8M0, narrow=True)
            assert_bits(found, expected.to(NARROW))
            if q.fmt.scale is nm.E8M0:  # whether BF16 holds what is stored, whatever multiplies it
                assert flag.tolist() == [int(not bool(held.all()))]


def every(fmt: nm.BlockFormat) -> nm.BlockTensor:
    """Every code under every scale byte: a row a byte."""
    width = -(-(1 << fmt.element.bits) // fmt.block) * fmt.block
    codes = (torch.arange(width) % (1 << fmt.element.bits)).to(torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, width // fmt.block)
    return nm.BlockTensor(codes, scales, None, fmt, fmt.rule.name, 1)


@pytest.mark.every(4)
@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP4, nm.MXFP8, nm.MXS2F6], ids=lambda fmt: fmt.name)
def test_every_code_under_every_scale(fmt: nm.BlockFormat, device: torch.device) -> None:
    """And times outer scales that saturate or underflow, and factors of both signs."""
    q, (_, factor) = every(fmt), picked(256, 256)
    check(q, device, factor)
    for outer in (2.0**-128, 3e-20, 3e38):
        check(q.derived(outer=torch.full((256, 1), outer)), device)


@pytest.mark.parametrize("fmt", [nm.MXFP4, nm.MXFP8, nm.MXS2F6], ids=lambda fmt: fmt.name)
def test_the_flag_of_each_scale(fmt: nm.BlockFormat, device: torch.device) -> None:
    """Raised for just those scales under which BF16 does not hold every code's value."""
    q = every(fmt)
    expected = q.values()
    held = ((expected.to(NARROW).to(torch.float32) == expected) | expected.isnan()).all(1)
    assert bool(held[127]) and (fmt is nm.MXFP4 or not bool(held.all()))
    table = torch.zeros(1, dtype=torch.int32, device=device)
    for scale in (*range(12), 120, 127, 134, *range(244, 256)):
        one = (q.codes[:1].to(device), q.scales[scale : scale + 1].to(device), table)
        found, flag = decode(*one, fmt.element.name, 32, powers=True, narrow=True)
        assert flag.tolist() == [int(not held[scale])], scale
        assert_bits(found, expected[scale : scale + 1].to(NARROW))


def test_packed_nvfp4_under_every_scale(device: torch.device) -> None:
    q = every(nm.NVFP4)
    assert_bits(decode_nvfp4(q.packed().to(device), q.scales.to(device)), q.values().to(NARROW))
    assert torch.equal(q.values().to(NARROW).to(torch.float32).nan_to_num(), q.values().nan_to_num())


@pytest.mark.every(4)
@FORMATS
@KINDS
def test_every_kind_of_data(name: str, fmt: nm.BlockFormat, device: torch.device) -> None:
    """Blocks along features, the last of them short, and along tokens in groups; tiles have no groups."""
    rows, (_, factor) = GROUPS[-1], picked(GROUPS[-1], GROUPS[-1])
    x = data(name, rows, 40)
    check(nm.quantize(x, fmt), device, factor)
    if fmt is not nm.MXFP4:
        check(nm.quantize(x, fmt, -2, groups=None if fmt.tile > 1 else GROUPS), device)


def test_mxfp4_along_tokens(device: torch.device) -> None:
    check(nm.quantize(data("normal", GROUPS[-1], 40), nm.MXFP4, -2, groups=GROUPS), device)


@KINDS
def test_packed_nvfp4(name: str, device: torch.device) -> None:
    for fmt in (nm.NVFP4, nm.NVFP4_46):
        q = nm.quantize(data(name, 9, 80), fmt, outer="row")
        assert_bits(decode_nvfp4(q.packed().to(device), q.scales.to(device)), q.values().to(NARROW))


def test_two_programs_and_nothing(device: torch.device) -> None:
    """Programs along both axes, the last of them partly empty; the flag is raised by the last value alone."""
    q = nm.quantize(data("normal", 9, 1056), nm.MXFP8)
    check(q, device)
    codes, scales = torch.zeros_like(q.codes), torch.full_like(q.scales, 127)
    codes[-1, -1], scales[-1, -1] = 9, 0
    check(made(codes, scales, None, nm.MXFP8, "rceil", 1, None, None), device)
    q = nm.quantize(data("normal", 9, 1040), nm.NVFP4, outer="row")
    assert_bits(decode_nvfp4(q.packed().to(device), q.scales.to(device)), q.values().to(NARROW))
    for rows, width in ((0, 64), (4, 0)):
        empty = torch.zeros(rows, width, dtype=torch.uint8, device=device)
        table = torch.zeros(rows, dtype=torch.int32, device=device)
        found, flag = decode(empty, empty[:, : width // 32], table, "E4M3", 32, powers=True, narrow=True)
        assert found.shape == (rows, width) and flag.tolist() == [0]
        assert decode_nvfp4(empty[:, : width // 2], empty[:, : width // 16]).shape == (rows, width)
