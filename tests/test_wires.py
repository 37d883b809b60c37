"""Rows as bytes.

Contract: `pack` makes of a row [codes | block scales | outer scales], 4-bit codes two to a byte, 6-bit codes four to
three, and `unpack` makes the same tensor of it, bit for bit; a row's bytes are exactly what the formula says.
Oracle: a slow twin, one Python integer per row, and the figures 4.5 + 32 / d, 8.25 and 16 written out.
"""

import struct
from fractions import Fraction

import pytest
import torch

import numerics as nm
from numerics.block_formats import BLOCK_FORMATS
from numerics.ops import Cast, quantize_tokens
from reference.wires import PIECE, WIRES, Layout, bits_per_value, pack, unpack

ROW_FORMATS = [fmt for fmt in BLOCK_FORMATS.values() if fmt.tile == 1]
CASTS = [Cast(fmt, outer) for fmt in ROW_FORMATS for outer in (None, "row", "tensor", 128)]
CASTS = [cast for cast in CASTS if cast.outer is None or cast.fmt.scale is nm.E4M3]
CASTS.append(Cast(None))
NAMES = [f"{'BF16' if cast.fmt is None else cast.fmt.name}-{cast.outer}" for cast in CASTS]


def tokens(rows: int, width: int) -> torch.Tensor:
    """Rows of different magnitude, in which outer scales differ."""
    made = torch.Generator().manual_seed(rows * 1000 + width)
    x = torch.randn(rows, width, generator=made) * torch.exp2(torch.randint(-6, 7, (rows, 1), generator=made))
    return x.to(torch.bfloat16)


def parts(q: object) -> list[torch.Tensor]:
    return [q] if isinstance(q, torch.Tensor) else [q.codes, q.scales, *([] if q.outer is None else [q.outer])]


def slow(q: nm.BlockTensor) -> list[bytes]:
    """Each row as bytes: the codes as one integer, the first one lowest, then scales, then outer scales."""
    bits, found = q.fmt.element.bits, []
    for r in range(q.shape[0]):
        joined = sum(code << bits * i for i, code in enumerate(q.codes[r].tolist()))
        row = joined.to_bytes(q.shape[1] * bits // 8, "little")
        scales = q.scales[r].tolist()
        row += bytes(scales) if q.fmt.scale is not None else struct.pack(f"<{len(scales)}f", *scales)
        if q.outer is not None:
            outer = q.outer[r if len(q.outer) > 1 else 0].tolist()
            row += struct.pack(f"<{len(outer)}f", *outer)
        found.append(row)
    return found


@pytest.mark.parametrize("cast", CASTS, ids=NAMES)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_what_is_unpacked_is_what_was_packed(cast: Cast, rows: int) -> None:
    q = quantize_tokens(tokens(rows, 256), cast)
    layout = Layout(256, cast)
    buffer = pack(q)
    assert buffer.dtype == torch.uint8 and buffer.shape == (rows, layout.row_bytes) and buffer.is_contiguous()
    back = unpack(buffer, layout)
    if rows or cast.outer != "tensor":  # of no rows nobody can tell the outer scale of the tensor
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(parts(back), parts(q), strict=True))
    if cast.fmt is not None:
        assert (back.fmt, back.rule, back.axis, back.groups) == (q.fmt, q.rule, q.axis, q.groups)
        assert back.outer_block == q.outer_block and (back.outer is None) == (q.outer is None)
        assert back.shape == q.shape
        nm.BlockTensor(*parts(back)[:2], back.outer, back.fmt, back.rule, 1, None, back.outer_block)  # checks itself
        assert [bytes(row.tolist()) for row in buffer] == slow(q)


@pytest.mark.parametrize("cast", CASTS, ids=NAMES)
@pytest.mark.parametrize("width", [128, 384, 4096])
def test_a_row_has_the_bytes_of_the_formula(cast: Cast, width: int) -> None:
    layout = Layout(width, cast)
    assert Fraction(8 * layout.row_bytes, width) == layout.bits_per_value == bits_per_value(cast, width)
    assert pack(quantize_tokens(tokens(2, width), cast)).numel() * 8 == 2 * width * layout.bits_per_value


def test_the_wires_have_the_published_bits() -> None:
    for width in (128, 2048, 4096):
        bits = {name: bits_per_value(cast, width) for name, (cast, _) in WIRES.items()}
        assert bits == {"bf16": 16, "mxfp8": 8.25, "nvfp4": 4.5 + 32 / width, "s2f6_rht": 8.25}
    both = bits["nvfp4"] + bits["s2f6_rht"]
    assert round(32 / float(both), 3) == 2.508  # BF16 both ways against these, width 4096


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP6_E2M3, nm.MXFP8], ids=lambda fmt: fmt.name)
def test_pieces_of_a_large_tensor_join(fmt: nm.BlockFormat) -> None:
    rows = 2 * PIECE // 512 + 3
    q = nm.quantize(tokens(rows, 512), fmt, outer=None)
    assert torch.equal(unpack(pack(q), Layout(512, Cast(fmt))).codes, q.codes)


def test_gathered_bytes_are_gathered_rows() -> None:
    """Packing, then choosing rows, is choosing rows, then packing; bytes that are no whole tensor unpack too."""
    cast = WIRES["nvfp4"][0]
    q, index = quantize_tokens(tokens(9, 96), cast), torch.tensor([8, 0, 0, 3])
    gathered = pack(q).index_select(0, index)
    assert torch.equal(gathered, pack(q.rows(index)))
    back = unpack(gathered[1:3], Layout(96, cast))
    assert torch.equal(back.codes, q.codes[[0, 0]]) and torch.equal(back.outer, q.outer[[0, 0]])


def test_one_row_of_a_tensor_is_told_from_one_row_with_its_own_scale() -> None:
    """A tensor of one row looks the same either way: what arrives with others has the shape that the cast says."""
    q = quantize_tokens(tokens(1, 64), Cast(nm.NVFP4, "row"))
    both = pack(q).expand(3, -1)
    assert unpack(both, Layout(64, Cast(nm.NVFP4, "row"))).outer.shape == (3, 1)
    assert unpack(both, Layout(64, Cast(nm.NVFP4, "tensor"))).outer.shape == (1, 1)


def test_codes_in_other_strides_are_packed() -> None:
    q = nm.quantize(tokens(64, 64), nm.NVFP4, outer=None)
    q = nm.BlockTensor(q.codes.T.contiguous().T, q.scales.T.contiguous().T, None, q.fmt, q.rule, 1)
    assert not q.codes.is_contiguous() and not q.scales.is_contiguous()
    back = unpack(pack(q), Layout(64, Cast(nm.NVFP4)))
    assert torch.equal(back.codes, q.codes) and torch.equal(back.scales, q.scales)
    x = tokens(8, 64)[:, ::2]
    assert torch.equal(unpack(pack(x), Layout(32, Cast(None))), x)


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: pack(torch.zeros(2, 2)), TypeError, "q has dtype torch.float32: pass bfloat16"),
        (lambda: pack(torch.zeros(2, dtype=torch.bfloat16)), ValueError, "pass rows"),
        (lambda: pack(nm.quantize(torch.ones(32, 32), nm.MXFP8, axis=0)), ValueError, "blocks along them"),
        (lambda: pack(nm.quantize(torch.ones(2, 32, 32), nm.MXFP8)), ValueError, "pass rows"),
        (lambda: pack(nm.quantize(torch.ones(32, 32), nm.NVFP4_2D)), ValueError, "NVFP4_2D: its scales are shared"),
        (lambda: pack(nm.quantize(torch.ones(2, 33), nm.NVFP4)), ValueError, "width=33: codes of 4 bits"),
        (lambda: pack(nm.quantize(torch.ones(2, 34), nm.MXFP6_E2M3)), ValueError, "width=34: codes of 6 bits"),
        (lambda: Layout(0, Cast(None)), ValueError, "width=0: pass 1 or more"),
        (lambda: Layout(32, nm.MXFP8), TypeError, "cast is .* pass a numerics.ops.Cast"),
        (lambda: Layout(32, Cast(nm.NVFP4, "leading")), ValueError, "cast.outer='leading'"),
        (lambda: unpack(torch.zeros(2, 3), Layout(32, Cast(None))), TypeError, "buffer has dtype"),
        (lambda: unpack(torch.zeros(2, 3, dtype=torch.uint8), Layout(32, Cast(nm.MXFP8))), ValueError, "33 bytes"),
    ],
)
def test_bad_input_is_told(call: object, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        call()
