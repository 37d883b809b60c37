"""The ends of ranges, and formats that nobody ships: finite in, finite out; wide codes; what cannot work is refused.

Oracles: rational arithmetic, or the property that is named. Formats are made for each test.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import numerics as nm
from numerics.partition import Partition

R = nm.Rounding
FLT_MAX = torch.finfo(torch.float32).max
FP32 = nm.Format("FP32", "float", 32, 8, 23, bias=127, specials="ieee")
E5M15 = nm.Format("E5M15", "float", 21, 5, 15, bias=15)
F20 = nm.Format("F20", "fixed", 20, 0, 8, bias=0)
F24 = nm.Format("F24", "fixed", 24, 0, 8, bias=0)


@pytest.mark.parametrize("fmt", [E5M15, F20, F24, FP32, nm.TF32, nm.BF16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("width", [16, 32])
def test_stochastic_rounding_keeps_exact_values_of_wide_formats(fmt: nm.Format, width: int) -> None:
    x = torch.tensor([1.0, -1.5, 2.0, 300.0, -300.25, 1000.0])
    field = torch.tensor([0, (1 << width) - 1] * 3)
    assert torch.equal(nm.round_to(x, fmt, R.STOCHASTIC, field, width), nm.round_to(x, fmt))


def test_codes_of_32_bits_keep_their_sign() -> None:
    x = torch.tensor([-1.5, 1.5, -0.0, FLT_MAX, -FLT_MAX, 2.0**-149])
    codes = nm.encode(x, FP32)
    assert torch.equal(codes, x.view(torch.int32))
    for form in (codes, codes.to(torch.int64) & 0xFFFFFFFF):
        assert torch.equal(nm.decode(form, FP32).view(torch.int32), x.view(torch.int32))


@pytest.mark.parametrize(
    ("dtype", "fmt"), [(torch.int8, nm.E4M3), (torch.int8, nm.S2F6), (torch.int16, nm.FP16), (torch.int16, nm.BF16)]
)
def test_signed_integers_are_read_as_the_bits_of_a_code(dtype: torch.dtype, fmt: nm.Format) -> None:
    codes = torch.arange(1 << fmt.bits, dtype=torch.int32)
    expected, found = nm.decode(codes, fmt), nm.decode(codes.to(dtype), fmt)
    assert torch.equal(expected.view(torch.int32), found.view(torch.int32))


@pytest.mark.parametrize("bias", [0, -112])
def test_directed_rounding_sees_the_least_float64(bias: int) -> None:
    fmt = nm.Format("wide", "float", 8, 4, 3, bias=bias)
    x = torch.tensor([5e-324, -5e-324, 1e-300], dtype=torch.float64)
    assert nm.encode(x, fmt, R.TOWARD_POSITIVE).tolist() == [1, 0x80, 1]
    assert nm.encode(x, fmt, R.TOWARD_NEGATIVE).tolist() == [0, 0x81, 0]
    assert nm.encode(x, fmt).tolist() == [0, 0x80, 0]


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float64], ids=str)
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("fmt", nm.BLOCK_FORMATS.values(), ids=lambda fmt: fmt.name)
def test_the_default_dtype_changes_nothing(fmt: nm.BlockFormat, default_dtype: torch.dtype) -> None:
    x = torch.randn(32, 128, dtype=torch.float32, generator=torch.Generator().manual_seed(3))
    found = nm.quantize(x, fmt)
    pair = found.dequantize(), found.values(), nm.hadamard(x), nm.matmul(x, x)
    torch.set_default_dtype(torch.float32)
    again = nm.quantize(x, fmt)
    for a, b in zip(pair, (again.dequantize(), again.values(), nm.hadamard(x), nm.matmul(x, x)), strict=True):
        assert a.dtype == torch.float32 and torch.equal(a, b)


HUGE = [FLT_MAX, 3.4e38, 3.3895e38, 2.0**127, 1e36]


@pytest.mark.parametrize("fmt", nm.BLOCK_FORMATS.values(), ids=lambda fmt: fmt.name)
def test_finite_numbers_never_become_infinite(fmt: nm.BlockFormat) -> None:
    options: list[dict[str, Any]] = [{}, {"outer": None}, {"random": nm.Random((0, 1)), "rounding": R.STOCHASTIC}]
    if fmt.outer is not None:
        options += [{"outer_rounding": "pow2"}]
    if fmt.tile == 1:
        options += [{"outer": torch.full((1, 1), s)} for s in (2.0**-128, 2.0**-40, 2.0**120, FLT_MAX)]
    for value, option in itertools.product(HUGE, options):
        x = torch.full((32, 128), value)
        x[:, ::3] *= -1
        x[0, 0], x[1, 1] = 1.0, 2.0**-149
        q = nm.quantize(x, fmt, **option)
        for found in (q.values(), q.dequantize()):
            assert torch.isfinite(found).all(), (value, option)
        again = nm.requantize(q, nm.MXFP8, -1, outer="multiply", rounding=R.NEAREST_EVEN)
        assert torch.isfinite(again.dequantize()).all(), (value, option)


@pytest.mark.parametrize("rule", ["static_6", "static_4", "four_over_six", "unbiased", "four_over_six_mae"])
def test_no_rule_makes_finite_numbers_infinite(rule: str) -> None:
    for value, outer in itertools.product(HUGE, ("tensor", "row", None)):
        q = nm.quantize(torch.full((2, 32), value), nm.NVFP4, outer=outer, rule=rule)
        assert torch.isfinite(q.dequantize()).all(), (value, outer)


def test_finite_float64_stays_finite() -> None:
    x = torch.tensor([[1e300, -1e200, 1.0, math.inf] + [0.0] * 28] * 2, dtype=torch.float64)
    x[1, 3] = 0.0
    found = nm.quantize(x, nm.MXFP8, check_finite=False).dequantize()
    assert torch.isnan(found[0]).all() and torch.isfinite(found[1]).all()
    with pytest.raises(ValueError, match=r"1 non-finite values, the first at index \(0, 3\)"):
        nm.quantize(x, nm.MXFP8, check_finite=True)


RULES = nm.scales.RULES
REFUSED = {
    "block=24": lambda: nm.BlockFormat("x", nm.E2M1, 24, nm.E4M3, RULES["four_over_six"]),
    "tile=3": lambda: nm.BlockFormat("x", nm.E2M1, 16, nm.E4M3, RULES["nvfp4"], tile=3),
    "block=1000000000": lambda: nm.BlockFormat("x", nm.E2M1, 10**9, nm.E4M3, RULES["nvfp4"]),
    "element=UE4M3": lambda: nm.BlockFormat("x", nm.UE4M3, 32, nm.E8M0, RULES["rceil"]),
    "element=BF16": lambda: nm.BlockFormat("x", nm.BF16, 32, nm.E8M0, RULES["rceil"]),
    "element=q": lambda: nm.BlockFormat("x", nm.Format("q", "float", 8, 4, 3, bias=140), 32, nm.E8M0, RULES["rceil"]),
    "rule='nvfp4'": lambda: nm.BlockFormat("x", nm.E2M1, 16, nm.E5M2, RULES["nvfp4"]),
    "it makes scales of E4M3": lambda: nm.BlockFormat("x", nm.E2M1, 16, None, RULES["nvfp4"]),
    "rule='rceil'": lambda: nm.BlockFormat(
        "x", nm.E2M1, 16, nm.Format("S", "exponent", 8, 8, 0, 128, "nan"), RULES["rceil"]
    ),
    "rule='if4'": lambda: nm.BlockFormat("x", nm.E2M1, 16, nm.E4M3, RULES["if4"]),
    "alternative": lambda: nm.BlockFormat("x", nm.E2M1, 16, nm.E4M3, RULES["if4"], alternative=nm.S2F6),
    "rule='if4' makes": lambda: nm.quantize(torch.ones(16), nm.NVFP4, rule=RULES["if4"]),
    "rule='rceil' makes": lambda: nm.quantize(torch.ones(16), nm.NVFP4, rule=RULES["rceil"]),
    "rule='nvfp4' makes": lambda: nm.quantize(torch.ones(128), nm.FP8_1X128, rule=RULES["nvfp4"]),
    "specials='ieee'": lambda: nm.Format("E2M0", "float", 3, 2, 0, bias=1, specials="ieee"),
    "signed='no'": lambda: nm.Format("E2M1", "float", 4, 2, 1, bias=1, signed="no"),
    "groups of 16": lambda: nm.quantize(
        torch.ones(8),
        nm.BlockFormat("x", nm.E2M1, 8, nm.E4M3, RULES["nvfp4"]),
        rounding=R.STOCHASTIC,
        random=nm.Random((0, 1)),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_work_is_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


def test_a_table_that_is_written_to_changes_nothing_else() -> None:
    nm.E2M1.table().mul_(2)
    assert nm.decode(torch.tensor([2]), nm.E2M1).item() == 1.0


@pytest.mark.parametrize("groups", [None, (0, 37), (0, 5, 5, 37), (0, 0, 16, 32, 37, 37), (0, 16, 32, 32)])
def test_a_partition_is_what_a_loop_makes(groups: tuple[int, ...] | None) -> None:
    length, block = 37 if groups is None else groups[-1], 16
    block_of, slot, group_of, index_in_group, source = [], [], [], [], []
    for g, (start, end) in enumerate(itertools.pairwise(groups or (0, length))):
        for index, first in enumerate(range(start, end, block)):
            inside = range(first, min(first + block, end))
            block_of += [len(group_of)] * len(inside)
            slot += [len(group_of) * block + i for i in range(len(inside))]
            source += [*inside] + [length] * (block - len(inside))
            group_of.append(g)
            index_in_group.append(index)
    found = Partition.of(length, block, groups)
    assert (found.length, found.blocks, found.groups) == (length, len(group_of), groups)
    listed = found.block_of.tolist(), found.group_of.tolist(), found.index_in_group.tolist()
    assert listed == (block_of, group_of, index_in_group)
    x = torch.arange(1.0, length + 1)
    padded = torch.cat((x, torch.zeros(1)))[torch.tensor(source)].view(-1, block)
    assert torch.equal(found.split(x, block), padded) and torch.equal(found.join(padded), x)
    if found.slot is not None and found.source is not None:
        assert (found.slot.tolist(), found.source.tolist()) == (slot, source)
