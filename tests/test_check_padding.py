"""`fourbit check` names what is wrong with a layout, whatever the values: padding, order, names.

Contract: padding columns of real rows must decode to zeros, padding rows need not; bytes out of place fail by name, or
are read as they lie. Oracle: layout_dumps.py, with one fault each put in by hand.
"""

from collections.abc import Callable

import pytest
import torch
from layout_dumps import FP, FPT, OFFSETS, Dump, F, Q, W, X, by_expert, four, fp8, mxfp8, pack, padded, te, tiled

import numerics as nm
from hw.check import check
from numerics.scales import DIALECTS


def stale_scale_columns(byte: int, fmt: str = "te") -> Dump:
    """Padding columns of real rows hold a byte; those of padding rows too."""
    d = te() if fmt == "te" else mxfp8()
    grid = padded(d["scales"], 128, 8 if fmt == "te" else 4, byte)
    return d | {"scales": nm.layout.swizzle_scales(grid)}


def stale_scale_rows(byte: int) -> Dump:
    grid = padded(Q.scales, 128, 8)
    grid[100:] = byte
    return te(scales=nm.layout.swizzle_scales(grid))


def experts_stale(byte: int) -> Dump:
    scales = padded(Q.scales, 100, 8, byte)
    return te(scales=by_expert(scales), groups=OFFSETS)


def odd(byte: int) -> Dump:
    """95 columns: the last byte's high nibble belongs to no value."""
    d = te(X[:, :95].contiguous())
    return d | {"codes": pack(padded(d["codes"], 100, 96, byte))}


def one_row_of_a_tile() -> Dump:
    scales = tiled(DIALECTS["te"].quantize(W, "NVFP4_2D").scales, 64).clone()
    scales[5, 3] += 1
    return te(W, fmt="NVFP4_2D", scales=scales)


UNPADDED = "expert padding is missing"
WRONG: dict[str, tuple[Callable[[], Dump], str, dict]] = {
    "NaN scale columns": (lambda: stale_scale_columns(0x7F), "200 scales in the columns beyond 6 are NaN", {}),
    "negative NaN scale columns": (lambda: stale_scale_columns(0xFF), "0 * NaN is NaN", {}),
    "NaN scale columns of MXFP8": (lambda: stale_scale_columns(0xFF, "mx"), "scales in the columns beyond 3", {}),
    "NaN scale columns in rows": (lambda: te(scales=padded(Q.scales, 100, 8, 0x7F)), "beyond 6 are NaN", {}),
    "NaN scale columns of experts": (lambda: experts_stale(0x7F), "200 scales in the columns beyond 6 are NaN", {}),
    "NaN in an aligned FP8 scale": (
        lambda: fp8(F, padded(F.scales, 198, 4, float("nan"))),
        "198 scales in the columns beyond 3 are NaN",
        {},
    ),
    "stale code columns": (lambda: te(codes=padded(Q.codes, 100, 128, 3)), "3,200 bytes around the codes", {}),
    "stale codes in a packed column": (lambda: odd(0xA), "100 bytes around the codes are not zero", {}),
    "NaN codes in columns": (lambda: mxfp8(codes=padded(mxfp8()["codes"], 100, 128, 0x7F)), "3,200 bytes around", {}),
    "experts swizzled as one": (
        lambda: te(scales=nm.layout.swizzle_scales(Q.scales), groups=OFFSETS),
        UNPADDED,
        {},
    ),
    "experts swizzled as one in 8x4": (
        lambda: te(scales=nm.layout.swizzle_scales_8x4(Q.scales), groups=OFFSETS),
        UNPADDED,
        {},
    ),
    "int32 in the other byte order": (
        lambda: te(scales=padded(Q.scales, 100, 8).unflatten(-1, (-1, 4)).flip(-1).flatten(-2).view(torch.int32)),
        "the four scales of each int32 are in the wrong byte order",
        {},
    ),
    "UE8M0 in the other byte order": (
        lambda: fp8(FP, four(FP.scales).view(torch.uint8).flip(-1).view(torch.int32)),
        "the four scales of each int32 are in the wrong byte order",
        {},
    ),
    "FP8 scales upside down": (lambda: fp8(FPT, 1 / FPT.scales), "the scales are upside down", {}),
    "one row of a tile": (one_row_of_a_tile, "the rows of 1 of 48 tiles have different scales", {}),
    "8x4 where 128x4 is wanted": (
        lambda: te(scales=nm.layout.swizzle_scales_8x4(Q.scales)),
        "the scales are not 128x4, as they should be",
        {"scale_layout": "128x4"},
    ),
    "128x4 where 8x4 is wanted": (
        lambda: te(scales=nm.layout.swizzle_scales(Q.scales)),
        "the scales are not 8x4, as they should be",
        {"scale_layout": "8x4"},
    ),
    "no swizzle under a name that says so": (
        lambda: {"x": X, "w13_weight": pack(Q.codes), "w13_blockscale_swizzled": Q.scales, "amax": Q.outer},
        "the scales are not 128x4-swizzled, as their name 'w13_blockscale_swizzled' says",
        {},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_layout_is_named(name: str):
    make, words, how = WRONG[name]
    report = check(make(), **how)
    assert not report and len(report.faults) == 1 and words in report.faults[0], str(report)


@pytest.mark.parametrize("byte", [0x7E, 0x38, 0x80])
def test_finite_scales_beside_zero_codes_are_harmless(byte: int):
    report = check(stale_scale_columns(byte))
    assert report and "200 entries in the columns beyond 6 not zero, but finite" in str(report), str(report)
    assert check(experts_stale(byte)) and check(te(scales=padded(Q.scales, 100, 8, byte)))


def test_padding_rows_may_hold_anything():
    report = check(stale_scale_rows(0x7F))
    assert report and "entries of padding rows not zero, whose outputs nobody keeps" in str(report)
    codes = padded(Q.codes, 128, 96)
    codes[100:] = 7
    assert check(te(codes=codes)) and check(te(codes=pack(codes)))


def test_minus_zero_is_a_zero():
    assert check(te(codes=padded(Q.codes, 100, 128, 8))) and check(odd(8))


def test_tiles_out_of_place_do_not_pass():
    """The scale of the tile below, and tiles in transposed order under the shape of the matrix's own."""
    d = te(X[:96], fmt="NVFP4_2D")
    assert d["scales"].shape == (6, 6)
    assert not check(d | {"scales": d["scales"].roll(1, 0)})
    turned = check(d | {"scales": d["scales"].T.contiguous()})
    assert "scales transposed" in str(turned) and check(d) and "transposed" not in str(check(d))
