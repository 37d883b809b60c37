"""Kernels with Blackwell's instructions, executed on a CPU: NATIVE in Triton's interpreter, PTX by `hw.ptx_run`.

Contract: with NATIVE the kernels have the bits that they have without it, those of `numerics`, on every kind of data,
whatever the questions turn out to be that no source settles about the instructions. The tests are those of the portable
kernels, run again; the costly ones under the marker `exhaustive`. Oracle: the emulator.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType

import pytest
import torch
from kernel_cases import RANDOM, assert_bits, data
from kernel_cases import device as device
from torch import Tensor

import numerics as nm
from hw.device import INTERPRET
from numerics.outer import outer_scale
from numerics.ptx import OPEN_QUESTIONS

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

import test_hw_aggregate
import test_hw_both
import test_hw_decode
import test_hw_mx
import test_hw_nvfp4
import test_hw_tokens
import triton
import triton.language as tl

from hw import kernel_ptx, launches
from hw.kernel_aggregate import aggregate
from hw.kernel_casts import E2M1, E4M3, S2F6, rceil_scale
from hw.kernel_decode import decode
from hw.kernel_mx import mx
from hw.kernel_nvfp4 import nvfp4
from hw.kernel_scales import rceil
from hw.kernel_tiles import tiles
from hw.kernel_tokens import tokens
from hw.kernel_tokens_nvfp4 import tokens_nvfp4
from hw.ptx_run import interpreted
from hw.sources import Source, Words

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),  # numpy's, which interprets kernels
    pytest.mark.skipif(os.environ.get(INTERPRET) != "1", reason="not run: kernels are compiled here"),
]


@pytest.fixture(autouse=True)
def executed() -> Iterator[set[str]]:
    """Every kernel is NATIVE; the strings of PTX that have been executed."""
    with launches.forced(True), interpreted() as texts:
        yield texts


def again(function: Callable[..., None], *marks: pytest.MarkDecorator) -> Callable[..., None]:
    """A test of another module, for this one."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy.__doc__ = function.__doc__
    copy.pytestmark = [*getattr(function, "pytestmark", []), *(mark.mark for mark in marks)]  # type: ignore[attr-defined]
    return copy


LONG, FEW = pytest.mark.exhaustive, pytest.mark.every(4)

test_nvfp4_of_every_kind = again(test_hw_nvfp4.test_every_kind_of_data, FEW)
test_nvfp4_power_outers = again(test_hw_nvfp4.test_outer_scales_of_powers_of_two, LONG)
test_nvfp4_given_outers = again(test_hw_nvfp4.test_outer_scales_that_are_given, LONG)
test_nvfp4_far_outers = again(test_hw_nvfp4.test_outer_scales_where_three_operations_are_no_division)
test_nvfp4_ties = again(test_hw_nvfp4.test_both_sides_of_every_tie, FEW)
test_nvfp4_drawn = again(test_hw_nvfp4.test_stochastic_rounding, FEW)
test_nvfp4_gathered = again(test_hw_nvfp4.test_rows_gathered_with_factors, LONG)
test_nvfp4_swiglu = again(test_hw_nvfp4.test_swiglu, LONG)
test_nvfp4_hadamard = again(test_hw_nvfp4.test_hadamard, LONG)
test_nvfp4_swizzled = again(test_hw_nvfp4.test_swizzled_scales, LONG)
test_nvfp4_widths = again(test_hw_nvfp4.test_widths)
test_nvfp4_nothing = again(test_hw_nvfp4.test_nothing)

test_mx_of_every_kind = again(test_hw_mx.test_every_kind_of_data, FEW)
test_mx_hadamard = again(test_hw_mx.test_hadamard, LONG)
test_mx_drawn = again(test_hw_mx.test_stochastic_rounding, FEW)
test_mx_gathered = again(test_hw_mx.test_rows_gathered_with_factors, LONG)
test_mx_swiglu = again(test_hw_mx.test_swiglu, LONG)
test_mx_ties = again(test_hw_mx.test_both_sides_of_every_tie, FEW)
test_mx_powers = again(test_hw_mx.test_every_exponent_and_both_sides_of_every_power)
test_mx_swizzled = again(test_hw_mx.test_swizzled_scales, LONG)
test_mx_widths = again(test_hw_mx.test_widths, LONG)

test_tokens_values = again(test_hw_tokens.test_values_along_tokens)
test_tokens_words = again(test_hw_tokens.test_blocks_of_a_group_have_words_of_their_own)
test_tokens_factors = again(test_hw_tokens.test_values_times_factors, LONG)
test_tokens_saved_nvfp4 = again(test_hw_tokens.test_saved_nvfp4, LONG)
test_tokens_saved_mxfp8 = again(test_hw_tokens.test_saved_mxfp8, LONG)
test_tokens_ends = again(test_hw_tokens.test_saved_mxfp8_at_the_ends_of_float32, LONG)
test_tokens_every_scale = again(test_hw_tokens.test_saved_nvfp4_under_every_scale)
test_tokens_groups = again(test_hw_tokens.test_saved_operands_of_groups, LONG)
test_tokens_programs = again(test_hw_tokens.test_two_programs_of_columns_and_no_rows)
test_tokens_nvfp4 = again(test_hw_tokens.test_nvfp4_along_tokens, LONG)
test_tokens_nvfp4_hadamard = again(test_hw_tokens.test_nvfp4_along_tokens_after_hadamard, FEW)
test_tokens_nvfp4_programs = again(test_hw_tokens.test_nvfp4_along_tokens_in_two_programs_and_of_no_rows)
test_tiles_of_every_kind = again(test_hw_tokens.test_tiles)

test_both_axes = again(test_hw_both.test_both_axes)
test_aggregate_of_every_kind = again(test_hw_aggregate.test_every_kind_of_data, LONG)
test_aggregate_codes = again(test_hw_aggregate.test_every_code_under_scales_at_the_ends)
test_aggregate_programs = again(test_hw_aggregate.test_programs_and_ragged_rows, LONG)
test_decode_codes = again(test_hw_decode.test_every_code_under_every_scale, LONG)
test_decode_flag = again(test_hw_decode.test_the_flag_of_each_scale)
test_decode_packed = again(test_hw_decode.test_packed_nvfp4_under_every_scale)
test_decode_of_every_kind = again(test_hw_decode.test_every_kind_of_data, LONG)


@triton.jit
def _scales(x, native, portable, ELEMENT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    amax = tl.load(x + i)
    tl.store(native + i, rceil(amax, ELEMENT, True))
    tl.store(portable + i, rceil_scale(amax, ELEMENT))


def scales(amax: Tensor, element: tl.constexpr) -> tuple[Tensor, Tensor]:
    """E8M0 codes by the instruction, and in integers."""
    size = triton.next_power_of_2(len(amax))
    x = torch.nn.functional.pad(amax, (0, size - len(amax)))
    native, portable = x.new_empty(2, size, dtype=torch.int32)
    _scales[(1,)](x, native, portable, ELEMENT=element, N=size)
    return native[: len(amax)], portable[: len(amax)]


ROUNDED_UP = pytest.mark.parametrize(
    ("fmt", "element"), [(nm.MXFP8, E4M3), (nm.MXFP4, E2M1), (nm.MXS2F6, S2F6)], ids=["E4M3", "E2M1", "S2F6"]
)


@ROUNDED_UP
def test_scales_are_those_of_every_maximum(fmt: nm.BlockFormat, element: tl.constexpr) -> None:
    """Each code has the numbers between two neighbours of max times a power of two. Both ways of finding it never fall
    when amax grows: where they agree at the ends of every code, they agree everywhere."""
    steps = (fmt.element.max * torch.exp2(torch.arange(-127, 128, dtype=torch.float64))).to(torch.float32)
    steps = steps[steps.isfinite()]
    largest = torch.finfo(torch.float32).max
    ends = torch.cat([torch.tensor([0.0, 1e-45, largest]), steps, steps.nextafter(torch.tensor(torch.inf))])
    ends = ends[ends.isfinite()]
    native, portable = scales(ends, element)
    assert torch.equal(native, portable)
    blocks = torch.nn.functional.pad(ends[:, None], (0, 31))
    assert torch.equal(native, nm.quantize(blocks, fmt).scales[:, 0].to(torch.int32))


@pytest.mark.exhaustive
@ROUNDED_UP
def test_scales_of_every_number(fmt: nm.BlockFormat, element: tl.constexpr) -> None:
    many = 1 << 20  # the most that a Triton tensor holds
    for first in range(0, 0x7F800000, many):
        native, portable = scales(torch.arange(first, first + many, dtype=torch.int32).view(torch.float32), element)
        assert torch.equal(native, portable)


def touched() -> list[tuple[str, str]]:
    """Open questions about instructions that kernels use, each with another answer than the assumed one."""
    texts = " ".join(str(getattr(value, "value", "")) for value in vars(kernel_ptx).values())
    used = {word for word in texts.split() if word.startswith("cvt.")}
    return [
        (name, other)
        for name, question in OPEN_QUESTIONS.items()
        if any(question.touches(word) for word in used)
        for other in question.alternatives
    ]


def test_questions_that_are_open() -> None:
    names = {name for name, _ in touched()}
    assert names == {
        "s2f6 negative saturation", "s2f6 NaN scale", "s2f6 subnormal operand", "rs NaN sign", "NaN of a scaled product"
    }  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize(("name", "answer"), touched(), ids=str)
def test_no_bit_hangs_on_an_open_question(name: str, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it matters: S2F6 of subnormal and of the largest numbers, NaN under random words, every code and scale."""
    monkeypatch.setitem(OPEN_QUESTIONS, name, replace(OPEN_QUESTIONS[name], assumption=answer))
    largest = torch.finfo(torch.float32).max
    ends = torch.tensor([-largest, largest, -largest / 2, -1.99 * 2.0**127, 2.0**-127, -1e-45, 3e-39, -(2.0**-120)])
    ends = torch.cat([ends[:, None], ends[:, None] / torch.linspace(2, 100, 31)], 1)
    for x in (*ends.split(1), *(data(kind, 9, 64) for kind in ("denormals", "huge", "NaN, Inf", "zeros"))):
        q, found = nm.quantize(x, nm.MXS2F6), mx(Source(x), "S2F6")
        assert_bits(found.codes, q.codes)
        assert_bits(found.scales, q.scales)
    x = data("NaN, Inf", 9, 64).negative()
    q = nm.quantize(x, nm.MXFP8, rounding=nm.Rounding.STOCHASTIC, random=RANDOM)
    assert_bits(mx(Source(x), "E4M3", words=Words.of(RANDOM, 9, 1, x.device)).codes, q.codes)
    codes = torch.arange(256, dtype=torch.uint8).expand(256, 256).contiguous()
    powers = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 8).contiguous()
    expected = nm.BlockTensor(codes, powers, None, nm.MXS2F6, "rceil", 1).dequantize()
    lines = torch.arange(256, dtype=torch.int32)
    assert_bits(decode(codes, powers, lines, "S2F6", 32, powers=True)[0], expected)
    assert_bits(aggregate(codes, lines.long()[:, None], None, None, powers, nm.S2F6), expected.to(torch.bfloat16))


def test_every_string_is_used_by_a_kernel(executed: set[str]) -> None:
    x, words = data("normal", 32, 64), Words.of(RANDOM, 32, 1, torch.device("cpu"))
    one = torch.ones(1)
    for four_over_six in (False, True):
        nvfp4(Source(x), four_over_six, values=True)
    nvfp4(Source(x), words=words)
    for element in ("E4M3", "E2M1", "S2F6"):
        mx(Source(x), element)
    q = nm.quantize(x, nm.NVFP4, outer="row")
    assert q.outer is not None
    tokens(q.packed(), None, q.scales, q.outer.view(-1), random=RANDOM)
    tokens_nvfp4(x, None)
    tiles(x[None], one)
    s = nm.quantize(x, nm.MXS2F6)
    decode(s.codes, s.scales, torch.arange(32, dtype=torch.int32), "S2F6", 32, powers=True)
    texts = {value.value for value in vars(kernel_ptx).values() if "$0" in str(getattr(value, "value", ""))}
    assert executed == texts


def test_outer_scale_of_a_tensor_and_tiny_scales(device: torch.device) -> None:
    """Blocks whose scale is subnormal or zero beside large ones, under one outer scale."""
    x = data("row scales", 16, 64) * torch.logspace(-9, 0, 16)[:, None]
    outer, encode = outer_scale(x.abs().amax().view(1), 2688.0)
    q = nm.quantize(x, nm.NVFP4, outer="tensor")
    found = nvfp4(Source(x), given=(outer, encode))
    assert int((q.scales == 0).sum()) and int(((q.scales > 0) & (q.scales < 8)).sum())
    assert_bits(found.codes, q.packed())
    assert_bits(found.scales, q.scales)
