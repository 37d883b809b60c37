"""Where each code and each block scale lies in memory.

Contract: `pack_nibbles`, `swizzle_scales` and their inverses move bytes as their docstring's formulas say, pad with
zeros, and change nothing. Oracles: the formulas in plain Python loops, known answers by hand, round trips. Bitwise.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics import layout

E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
SHAPES = [(1, 1), (1, 4), (3, 5), (32, 4), (33, 1), (127, 3), (128, 4), (129, 5), (200, 9), (256, 8), (384, 2)]
properties = settings(max_examples=60, deadline=None, derandomize=True)


def random_bytes(*shape: int) -> torch.Tensor:
    """Bytes from 1 to 255: none looks like padding."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=generator)


def by_formula(scales: torch.Tensor) -> list[int]:
    """The 128x4 layout of a matrix, byte by byte."""
    rows, k = scales.shape
    tiles_k = math.ceil(k / 4)
    out = [0] * (math.ceil(rows / 128) * tiles_k * 512)
    for r in range(rows):
        for c in range(k):
            tile = (r // 128) * tiles_k + c // 4
            out[tile * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4] = int(scales[r, c])
    return out


# ---- block scales ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_swizzle_equals_the_formula(shape: tuple[int, int]):
    scales = random_bytes(*shape)
    swizzled = layout.swizzle_scales(scales)
    assert swizzled.dtype == torch.uint8 and swizzled.is_contiguous()
    assert swizzled.tolist() == by_formula(scales)


def test_swizzle_by_hand():
    """130 rows of 5 scales: four tiles. Rows 0, 1, 32, 96 and 128, columns 0 and 4, each at the byte worked out."""
    scales = torch.zeros(130, 5, dtype=torch.uint8)
    expected = {
        (0, 0): 0,
        (0, 3): 3,  # the four columns of a row are neighbours
        (1, 0): 16,  # the next row is 16 bytes on
        (31, 0): 31 * 16,
        (32, 0): 4,  # row 32 shares 16 bytes with row 0
        (96, 2): 14,
        (127, 3): 511,  # the last byte of the first tile
        (0, 4): 512,  # the next tile along k
        (1, 4): 528,
        (128, 0): 1024,  # the third tile: the second 128 rows, after both tiles of the first
        (129, 4): 1024 + 512 + 16,
    }
    for index, (r, c) in enumerate(expected):
        scales[r, c] = index + 1
    swizzled = layout.swizzle_scales(scales)
    assert len(swizzled) == 4 * 512
    for index, offset in enumerate(expected.values()):
        assert swizzled[offset] == index + 1, offset
    assert int((swizzled != 0).sum()) == len(expected)


def test_padding_is_zero_and_nothing_else_is():
    scales = random_bytes(129, 5)
    swizzled = layout.swizzle_scales(scales)
    assert len(swizzled) == 256 * 8 and int((swizzled == 0).sum()) == 256 * 8 - 129 * 5
    assert torch.equal(swizzled.sort().values[-129 * 5 :], scales.flatten().sort().values)


def test_padded_sizes():
    assert layout.padded_scales(1, 1) == (128, 4)
    assert layout.padded_scales(128, 4) == (128, 4)
    assert layout.padded_scales(129, 5) == (256, 8)
    assert layout.padded_scales(0, 5) == (0, 8) and layout.padded_scales(7, 0) == (128, 0)


@properties
@given(st.lists(st.integers(0, 3), max_size=2), st.integers(0, 300), st.integers(0, 20), st.sampled_from([E4M3, E8M0]))
def test_unswizzle_inverts_swizzle(lead: list[int], rows: int, k: int, dtype: torch.dtype):
    scales = random_bytes(*lead, rows, k)
    swizzled = layout.swizzle_scales(scales.view(dtype))
    assert swizzled.dtype == dtype
    assert swizzled.shape == (*lead, math.prod(layout.padded_scales(rows, k)))
    back = layout.unswizzle_scales(swizzled, scales.shape, check_padding=True)
    assert back.dtype == dtype and back.is_contiguous() and torch.equal(back.view(torch.uint8), scales)


def test_leading_axes_are_matrices_of_their_own():
    scales = random_bytes(2, 3, 130, 6)
    swizzled = layout.swizzle_scales(scales)
    for i in range(2):
        for j in range(3):
            assert torch.equal(swizzled[i, j], layout.swizzle_scales(scales[i, j]))


def test_non_contiguous_scales_and_bytes():
    scales = random_bytes(6, 140)
    assert torch.equal(layout.swizzle_scales(scales.T), layout.swizzle_scales(scales.T.contiguous()))
    strided = random_bytes(256, 16)[::2, ::2]
    assert layout.swizzle_scales(strided.view(E8M0)).view(torch.uint8).tolist() == by_formula(strided)
    swizzled = layout.swizzle_scales(strided)
    spread = torch.stack((swizzled, swizzled), dim=-1)[:, 0]
    assert not spread.is_contiguous() and torch.equal(layout.unswizzle_scales(spread, (128, 8)), strided)


def test_the_input_is_left_alone():
    """Also where nothing is padded and one tile alone is moved."""
    for shape in ((128, 4), (1, 4)):
        scales = random_bytes(*shape)
        before = scales.clone()
        layout.swizzle_scales(scales).zero_()
        assert torch.equal(scales, before)
        swizzled = layout.swizzle_scales(scales)
        layout.unswizzle_scales(swizzled, shape).zero_()
        assert torch.equal(swizzled, layout.swizzle_scales(scales))


def test_unswizzle_takes_a_padded_matrix():
    """Other libraries keep the bytes in a tensor of the padded matrix's shape."""
    scales = random_bytes(3, 130, 6)
    swizzled = layout.swizzle_scales(scales).view(3, 256, 8)
    assert torch.equal(layout.unswizzle_scales(swizzled, scales.shape), scales)


def test_foreign_padding_is_ignored_or_reported():
    scales = random_bytes(130, 6)
    swizzled = layout.swizzle_scales(scales)
    swizzled[swizzled == 0] = 0x7F  # NaN in E4M3
    assert torch.equal(layout.unswizzle_scales(swizzled, (130, 6)), scales)
    count = 256 * 8 - 130 * 6
    with pytest.raises(ValueError, match=rf"{count} non-zero bytes of padding, the first at index \(0, 6\)"):
        layout.unswizzle_scales(swizzled, (130, 6), check_padding=True)


def test_nothing_at_all():
    for shape in ((0, 4), (5, 0), (0, 0), (0, 130, 4), (2, 0, 3)):
        empty = torch.zeros(shape, dtype=torch.uint8)
        assert layout.swizzle_scales(empty).numel() == 0
        assert layout.unswizzle_scales(layout.swizzle_scales(empty), shape).shape == shape


def test_shapes_on_meta():
    scales = torch.zeros(2, 130, 6, dtype=torch.uint8, device="meta").view(E8M0)
    swizzled = layout.swizzle_scales(scales)
    assert (swizzled.shape, swizzled.dtype, swizzled.device.type) == ((2, 2048), E8M0, "meta")
    assert layout.unswizzle_scales(swizzled, (2, 130, 6)).shape == scales.shape


def test_swizzle_rejects_what_is_no_scale():
    with pytest.raises(TypeError, match=r"scales has dtype torch.float32: pass uint8"):
        layout.swizzle_scales(torch.ones(128, 4))
    with pytest.raises(TypeError, match=r"swizzled has dtype torch.int32"):
        layout.unswizzle_scales(torch.ones(512, dtype=torch.int32), (128, 4))
    with pytest.raises(ValueError, match=r"\(4,\): pass \(\.\.\., rows, k\)"):
        layout.swizzle_scales(torch.ones(4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"shape=\(4,\)"):
        layout.unswizzle_scales(torch.ones(512, dtype=torch.uint8), (4,))
    with pytest.raises(ValueError, match=r"shape=\(-1, 4\)"):
        layout.unswizzle_scales(torch.ones(512, dtype=torch.uint8), (-1, 4))
    with pytest.raises(ValueError, match=r"512 bytes: scales of shape \(129, 4\) have 1024, 256 rows by 4 columns"):
        layout.unswizzle_scales(torch.ones(512, dtype=torch.uint8), (129, 4))


# ---- 8x4 -------------------------------------------------------------------------------------------------------------


def by_formula_8x4(scales: torch.Tensor) -> list[int]:
    """The 8x4 layout of a matrix, byte by byte."""
    rows, k = scales.shape
    tiles_k = math.ceil(k / 4)
    out = [0] * (math.ceil(rows / 8) * tiles_k * 32)
    for r in range(rows):
        for c in range(k):
            out[((r // 8) * tiles_k + c // 4) * 32 + (r % 8) * 4 + c % 4] = int(scales[r, c])
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_8x4_equals_the_formula_and_back(shape: tuple[int, int]):
    scales = random_bytes(*shape)
    swizzled = layout.swizzle_scales_8x4(scales)
    assert swizzled.is_contiguous() and swizzled.tolist() == by_formula_8x4(scales)
    assert torch.equal(layout.unswizzle_scales_8x4(swizzled, shape), scales)


def test_8x4_by_hand():
    """9 rows of 5 scales: four tiles of 32 bytes; rows are 4 bytes apart, the next tile along k 32."""
    scales = torch.zeros(9, 5, dtype=torch.uint8)
    expected = {(0, 0): 0, (0, 3): 3, (1, 0): 4, (7, 3): 31, (0, 4): 32, (7, 4): 60, (8, 0): 64, (8, 4): 96}
    for index, (r, c) in enumerate(expected):
        scales[r, c] = index + 1
    swizzled = layout.swizzle_scales_8x4(scales)
    assert len(swizzled) == 128 and [int(swizzled[at]) for at in expected.values()] == list(range(1, 9))
    assert int((swizzled != 0).sum()) == 8


def test_8x4_of_several_matrices_and_dtypes():
    scales = random_bytes(2, 3, 13, 6)
    swizzled = layout.swizzle_scales_8x4(scales.view(E8M0))
    assert swizzled.dtype == E8M0 and swizzled.shape == (2, 3, 16 * 8)
    assert torch.equal(swizzled[1, 2].view(torch.uint8), layout.swizzle_scales_8x4(scales[1, 2]))
    back = layout.unswizzle_scales_8x4(swizzled.view(2, 3, 16, 8), scales.shape)
    assert back.dtype == E8M0 and torch.equal(back.view(torch.uint8), scales)
    assert layout.unswizzle_scales_8x4(layout.swizzle_scales_8x4(scales[:, :0]), (2, 0, 13, 6)).shape == (2, 0, 13, 6)


def test_8x4_is_not_128x4():
    with pytest.raises(ValueError, match=r"1024 bytes: scales of shape \(100, 8\) have 832, 104 rows by 8 columns"):
        layout.unswizzle_scales_8x4(layout.swizzle_scales(random_bytes(100, 8)), (100, 8))


# ---- nibbles ---------------------------------------------------------------------------------------------------------


def test_the_even_index_is_the_low_nibble():
    codes = torch.tensor([[0x1, 0x2, 0xF, 0x0], [0x0, 0x8, 0x7, 0xF]], dtype=torch.uint8)
    packed = layout.pack_nibbles(codes)
    assert packed.dtype == torch.uint8 and packed.tolist() == [[0x21, 0x0F], [0x80, 0xF7]]
    assert torch.equal(layout.unpack_nibbles(packed), codes)


def test_every_pair_of_codes():
    low, high = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    codes = torch.stack((low, high), dim=-1).to(torch.uint8)
    packed = layout.pack_nibbles(codes)
    assert torch.equal(packed[..., 0].to(torch.int64), low + 16 * high)
    assert torch.equal(layout.unpack_nibbles(packed), codes)


@properties
@given(st.lists(st.integers(0, 4), max_size=3), st.integers(0, 9))
def test_unpack_inverts_pack(lead: list[int], pairs: int):
    codes = random_bytes(*lead, 2 * pairs) & 0xF
    packed = layout.pack_nibbles(codes)
    assert packed.shape == (*lead, pairs) and torch.equal(layout.unpack_nibbles(packed), codes)
    last_first = codes.movedim(-1, 0).contiguous().movedim(0, -1)  # the same values, other strides
    assert torch.equal(layout.pack_nibbles(last_first), packed)


def test_nibbles_reject_what_they_are_not():
    with pytest.raises(ValueError, match=r"\(2, 3\): the last axis must be even"):
        layout.pack_nibbles(torch.zeros(2, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="must be even"):
        layout.pack_nibbles(torch.tensor(1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="codes reach up to 16: a nibble holds 0 to 15"):
        layout.pack_nibbles(torch.tensor([16, 1], dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"codes have dtype torch.int64: pass uint8"):
        layout.pack_nibbles(torch.tensor([1, 2]))
    with pytest.raises(TypeError, match=r"packed.view\(torch.uint8\)"):
        layout.unpack_nibbles(torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    with pytest.raises(ValueError, match="no axis"):
        layout.unpack_nibbles(torch.tensor(1, dtype=torch.uint8))


# ---- GGML ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [2, 16, 32])
def test_halves_of_a_block_share_bytes(block: int):
    codes = random_bytes(3, 3 * block) & 0xF
    packed = layout.pack_halves(codes, block)
    for row, b, i in itertools.product(range(3), range(3), range(block // 2)):
        low, high = codes[row, b * block + i], codes[row, b * block + i + block // 2]
        assert int(packed[row, b * block // 2 + i]) == int(low) + 16 * int(high)
    assert torch.equal(layout.unpack_halves(packed, block), codes)
    if block == 2:
        assert torch.equal(packed, layout.pack_nibbles(codes))


def test_halves_refuse_what_is_no_block():
    with pytest.raises(ValueError, match=r"codes of shape \(2, 48\): the last axis must be whole blocks of 32 codes"):
        layout.pack_halves(torch.zeros(2, 48, dtype=torch.uint8), 32)
    with pytest.raises(ValueError, match=r"packed of shape \(24,\): the last axis must be whole blocks of 32"):
        layout.unpack_halves(torch.zeros(24, dtype=torch.uint8), 32)
    with pytest.raises(ValueError, match="block=3"):
        layout.pack_halves(torch.zeros(6, dtype=torch.uint8), 3)
