"""Kernels that quantize along tokens and in tiles, and the maxima of outer scales, in the interpreter and compiled.

Contract: `hw.kernel_tokens.tokens` and `hw.kernel_tokens_nvfp4.tokens_nvfp4` have the bits of `numerics.quantize` and
`numerics.requantize` along axis -2, blocks starting anew at each group; `hw.kernel_tiles` those of NVFP4_2D; maxima are
those of blocks without NaN and infinities. Oracle: the emulator.
"""

from itertools import accumulate, pairwise

import pytest
import torch
from kernel_cases import GROUPS, RANDOM, assert_bits, data, picked
from kernel_cases import device as device
from torch import Tensor

import numerics as nm
from hw.cases import DATA
from numerics import ops
from numerics.outer import outer_scale

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_amax import block_amax
from hw.kernel_tiles import tile_amax, tiles
from hw.kernel_tokens import tokens
from hw.kernel_tokens_nvfp4 import tokens_nvfp4

# numpy, which interprets kernels, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

KINDS = pytest.mark.parametrize("name", DATA)
NEAREST, SR = nm.Rounding.NEAREST_EVEN, nm.Rounding.STOCHASTIC
SIGNS = nm.hadamard_signs(16, (1, 2))
ROWS = GROUPS[-1]
BOTH = ((NEAREST, None), (SR, RANDOM))


def check(found: tuple[Tensor, ...], q: nm.BlockTensor) -> None:
    assert_bits(found[0], q.codes)
    assert_bits(found[1], q.scales)
    if q.outer is not None:
        assert_bits(found[2], q.outer)


def columns(width: int, rows: int = ROWS) -> Tensor:
    """Every kind of data, `width` columns of each: they do not see each other."""
    return torch.cat([data(name, rows, width) for name in DATA], 1)


@pytest.mark.exhaustive
def test_values_along_tokens(device: torch.device) -> None:
    """Every kind of data, FP32 and BF16, nearest and stochastic, in groups and whole."""
    for dtype in (torch.float32, torch.bfloat16):
        x = columns(8).to(dtype)
        for rounding, random in BOTH:
            q = nm.quantize(x, nm.MXFP8, -2, groups=GROUPS, rounding=rounding, random=random)
            check(tokens(x.to(device), GROUPS, random=random), q)
    check(tokens(x.to(device), None), nm.quantize(x, nm.MXFP8, -2))


def test_blocks_of_a_group_have_words_of_their_own(device: torch.device) -> None:
    """Two whole blocks of a group, and a short one, behind another group."""
    x, groups = data("normal", 77, 8), (0, 5, 77)
    q = nm.quantize(x, nm.MXFP8, -2, groups=groups, rounding=SR, random=RANDOM)
    check(tokens(x.to(device), groups, random=RANDOM), q)


def test_values_times_factors(device: torch.device) -> None:
    x, (_, factor) = columns(8), picked(ROWS, ROWS)
    for rounding, random in BOTH:
        recast = ops.Recast(nm.MXFP8, "multiply", rounding)
        q = ops.requantize_transpose(x, recast, GROUPS, random, factor[:, None])
        assert isinstance(q, nm.BlockTensor)
        check(tokens(x.to(device), GROUPS, factor=factor.to(device), random=random), q)


FEW = (0, 0, 7)  # a block costs the interpreter 0.3 seconds


def again(
    q: nm.BlockTensor,
    there: torch.device,
    rounding: nm.Rounding = NEAREST,
    factor: Tensor | None = None,
    outer: str = "multiply",
    groups: tuple[int, ...] | None = FEW,
) -> None:
    """Codes to codes."""
    rows = len(q.codes)
    own = q.outer if outer == "multiply" else None
    own = None if own is None else own.expand(rows, 1).flatten().contiguous().to(there)
    random = RANDOM if rounding is SR else None
    times = None if factor is None else factor[:rows, None]
    expected = ops.requantize_transpose(q, ops.Recast(nm.MXFP8, outer, rounding), groups, random, times)
    assert isinstance(expected, nm.BlockTensor)
    scale = None if factor is None else factor[:rows].contiguous().to(there)
    check(tokens(q.packed().to(there), groups, q.scales.to(there), own, scale, random), expected.derived(outer=None))


@pytest.mark.every(3)
@KINDS
def test_saved_nvfp4(name: str, device: torch.device) -> None:
    """Under outer scales or without, with factors or without; outer scales beyond those that lend 2^63 too."""
    q, (_, factor) = nm.quantize(data(name, 7, 48), nm.NVFP4_46, outer="row"), picked(7, 7)
    assert q.outer is not None
    again(q, device)
    again(q, device, SR, outer="gradient")
    again(q.derived(outer=q.outer * 2.0**100), device, SR, factor)


def test_saved_nvfp4_under_the_outer_scale_of_the_tensor(device: torch.device) -> None:
    again(nm.quantize(data("normal", 7, 48), nm.NVFP4, outer="tensor"), device)


@pytest.mark.every(3)
@KINDS
def test_saved_mxfp8(name: str, device: torch.device) -> None:
    q, (_, factor) = nm.quantize(data(name, 7, 64), nm.MXFP8), picked(7, 7)
    again(q, device)
    again(q.derived(outer=factor.abs()[:, None].contiguous()), device, SR, factor)


def test_saved_mxfp8_at_the_ends_of_float32(device: torch.device) -> None:
    """Every code under scales 0 to 4 and 243 to 255: saturation, subnormal products, NaN codes and scales."""
    ends = torch.tensor([*range(5), *range(243, 256)], dtype=torch.uint8)
    codes = torch.arange(256, dtype=torch.uint8).repeat(18, 2)
    scales = torch.cat([ends.repeat_interleave(8).view(18, 8), ends[torch.arange(18 * 8) % 18].view(18, 8)], 1)
    again(nm.BlockTensor(codes, scales, None, nm.MXFP8, "rceil", 1), device, groups=None)
    for scale in (247, 248):  # that of a whole row: the first that overflow, alone
        row = nm.BlockTensor(codes[:1, :256], torch.full_like(scales[:1, :8], scale), None, nm.MXFP8, "rceil", 1)
        again(row, device, groups=None)


@pytest.mark.exhaustive
def test_saved_nvfp4_under_every_scale(device: torch.device) -> None:
    """Every code under every scale; under outer scales of either size, two beside 1e15, every fifth scale."""
    scales = torch.arange(128, dtype=torch.uint8)[None]
    for outer in (1.0, 1e-38, 2.0**-128, 1e15, 1.0000001e15, 3e38):
        some = scales if outer == 1 else scales[:, ::5].contiguous()
        codes = torch.arange(16, dtype=torch.uint8).repeat(1, some.shape[1])
        again(nm.BlockTensor(codes, some, torch.full((1, 1), outer), nm.NVFP4, "nvfp4", 1), device, groups=None)


@pytest.mark.exhaustive
def test_saved_operands_of_groups(device: torch.device) -> None:
    """One without rows, one of two blocks, one of one row."""
    for fmt, scope in ((nm.NVFP4_46, "row"), (nm.MXFP8, None)):
        again(nm.quantize(data("tails", 46, 64), fmt, outer=scope), device, SR, groups=(0, 7, 7, 45, 46))


def test_two_programs_of_columns_and_no_rows(device: torch.device) -> None:
    x = data("tails", 5, 520)
    check(tokens(x.to(device), None), nm.quantize(x, nm.MXFP8, -2))
    for rows, width, groups in ((0, 64, (0, 0)), (5, 0, None), (0, 64, None)):
        codes, scales = tokens(torch.zeros(rows, width, device=device), groups)
        assert codes.shape == (rows, width) and scales.shape == (-(-rows // 32), width)


# NVFP4 along tokens.


@pytest.mark.every(3)
@KINDS
def test_nvfp4_along_tokens(name: str, device: torch.device) -> None:
    """The tensor's outer scale; FP32 and BF16, nearest and stochastic, in groups and whole."""
    for dtype in (torch.float32, torch.bfloat16):
        x = data(name, ROWS, 40).to(dtype)
        for rounding, random in BOTH:
            q = nm.quantize(x, nm.NVFP4, -2, "tensor", groups=GROUPS, rounding=rounding, random=random)
            check(tokens_nvfp4(x.to(device), GROUPS, random=random), q)
    check(tokens_nvfp4(x.to(device), None), nm.quantize(x, nm.NVFP4, -2, "tensor"))


@pytest.mark.every(3)
@KINDS
def test_nvfp4_along_tokens_after_hadamard(name: str, device: torch.device) -> None:
    """Groups are filled up with zero rows, whose codes come along."""
    x, signs = data(name, ROWS, 40), SIGNS.to(device)
    for rounding, random in BOTH:
        q = ops.quantize_tokens(x, ops.Cast(nm.NVFP4, "tensor", rounding), random, GROUPS, -2, SIGNS)
        assert isinstance(q, nm.BlockTensor)
        assert q.groups == tuple(accumulate((-(-(b - a) // 16) * 16 for a, b in pairwise(GROUPS)), initial=0))
        check(tokens_nvfp4(x.to(device), GROUPS, signs, random), q)
    q = ops.quantize_tokens(x[:32], ops.Cast(nm.NVFP4, "tensor"), axis=-2, signs=SIGNS)
    assert isinstance(q, nm.BlockTensor)
    check(tokens_nvfp4(x[:32].to(device), None, signs), q)


def test_nvfp4_along_tokens_in_two_programs_and_of_no_rows(device: torch.device) -> None:
    x = data("row scales", 33, 264)
    check(tokens_nvfp4(x.to(device), None), nm.quantize(x, nm.NVFP4, -2, "tensor"))
    for rows, width in ((0, 64), (5, 0)):
        codes, scales, outer = tokens_nvfp4(torch.zeros(rows, width, device=device), None)
        assert codes.shape == (rows, width) and scales.shape == (-(-rows // 16), width)
        assert_bits(outer, torch.ones(1, 1))


# Tiles, maxima.


def largest(x: Tensor, rows: int) -> Tensor:
    """float32 (E,): the largest magnitude in blocks of `rows` by 16 of each matrix that are finite."""
    x = torch.nn.functional.pad(x.to(torch.float32), (0, -x.shape[2] % 16, 0, -x.shape[1] % rows)).abs()
    blocks = x.unflatten(1, (-1, rows)).unflatten(3, (-1, 16)).amax((2, 4))  # (E, blocks, blocks)
    return torch.where(blocks.isfinite(), blocks, 0).flatten(1).amax(1)


@pytest.mark.every(3)
@KINDS
def test_tiles(name: str, device: torch.device) -> None:
    """Three matrices, FP32 and BF16, ragged along both axes; quantized along either they have the same codes."""
    for dtype in (torch.float32, torch.bfloat16):
        x = data(name, 3, 35, 40).to(dtype)
        assert_bits(tile_amax(x.to(device)), largest(x, 16))
        q = nm.quantize(x, nm.NVFP4_2D, outer="leading")
        outer, encode = outer_scale(largest(x, 16), 2688.0)
        assert q.outer is not None
        assert_bits(outer.view(3, 1, 1), q.outer)
        codes, scales = tiles(x.to(device), encode.to(device))
        check((codes, scales), q.derived(outer=None))
        check((codes, scales), nm.quantize(x, nm.NVFP4_2D, -2, "leading").derived(outer=None))


@KINDS
def test_maxima_of_blocks(name: str, device: torch.device) -> None:
    """One of the matrix, one of each of three, one of each row."""
    for dtype in (torch.float32, torch.bfloat16):
        x = data(name, 9, 80).to(dtype)
        for matrices in (1, 3, 9):
            found = block_amax(x.to(device), matrices)
            assert_bits(found, largest(x.view(matrices, 9 // matrices, 80), 1))


def test_maxima_of_two_programs_and_of_nothing(device: torch.device) -> None:
    x = data("tails", 2, 600 * 16)
    x[0, 0], x[1, -1] = 1e6, -1e6  # in the first and in the last block
    x[0, 20], x[1, 40] = torch.inf, torch.nan  # whose blocks do not count
    for matrices in (1, 2):
        assert_bits(block_amax(x.to(device), matrices), torch.full((matrices,), 1e6))
    for shape in ((0, 16), (4, 0)):
        assert_bits(block_amax(torch.zeros(shape, device=device), 2), torch.zeros(2))
        assert_bits(tile_amax(torch.zeros(2, *shape, device=device)), torch.zeros(2))
        codes, scales = tiles(torch.zeros(2, *shape, device=device), torch.ones(2, device=device))
        assert codes.shape == (2, *shape) and scales.shape == (2, -(-shape[0] // 16), -(-shape[1] // 16))
