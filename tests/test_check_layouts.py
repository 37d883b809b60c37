"""`fourbit check` reads every public layout of codes and scales, and says which it is.

Contract: sound bytes pass in each layout, by the quantizer that made them, and the report says how they lie; a layout
that is asked for is demanded. Oracle: layout_dumps.py.
"""

from collections.abc import Callable

import pytest
import torch
from layout_dumps import (
    FP,
    FPT,
    FT,
    OFFSETS,
    STACK,
    Dump,
    F,
    Q,
    W,
    X,
    by_expert,
    dump_of,
    exponents,
    four,
    fp8,
    mxfp4,
    mxfp8,
    own_outers,
    pack,
    padded,
    te,
    tiled,
)

import numerics as nm
from hw.check import check
from hw.check_case import LIES
from numerics.scales import DIALECTS

SOUND: dict[str, tuple[Callable[[], Dump], tuple[str, ...], dict]] = {
    "one scale a tile": (lambda: te(W, fmt="NVFP4_2D"), ("one scale for each 16 x 16 tile",), {"contract": "te"}),
    "a tile's scale for each row": (
        lambda: te(W, fmt="NVFP4_2D", scales=tiled(DIALECTS["te"].quantize(W, "NVFP4_2D").scales, 64)),
        ("one scale for each 16 x 16 tile", "repeated for each row of a tile"),
        {"fmt": "nvfp4"},
    ),
    "the same, swizzled, four over six": (
        lambda: te(
            W,
            "te_46",
            "NVFP4_2D",
            scales=nm.layout.swizzle_scales(tiled(DIALECTS["te_46"].quantize(W, "NVFP4_2D").scales, 64)),
        ),
        ("scales 128x4-swizzled, repeated for each row of a tile",),
        {"contract": "te_46"},
    ),
    "tiles of a ragged matrix": (lambda: te(X[:, :70], fmt="NVFP4_2D"), ("16 x 16 tile",), {"contract": "te"}),
    "tiles of experts": (
        lambda: dump_of(nm.quantize(STACK, nm.NVFP4_2D, outer="leading"), STACK),
        ("16 x 16 tile", "one for each of 3 matrices"),
        {"contract": "fourbit"},
    ),
    "transposed tiles": (
        lambda: dump_of(nm.quantize(W, nm.NVFP4_2D, axis=-2), W),
        ("16 x 16 tile", "scales transposed"),
        {"axis": -2},
    ),
    "8x4": (
        lambda: te(codes=pack(Q.codes), scales=nm.layout.swizzle_scales_8x4(Q.scales)),
        ("scales 8x4-swizzled",),
        {"scale_layout": "8x4"},
    ),
    "8x4 of few rows": (
        lambda: te(X[:5], scales=nm.layout.swizzle_scales_8x4(DIALECTS["te"].quantize(X[:5]).scales)),
        ("scales 8x4-swizzled",),
        {"contract": "te"},
    ),
    "8x4 of MXFP8": (
        lambda: mxfp8(scales=nm.layout.swizzle_scales_8x4(nm.quantize(X, nm.MXFP8).scales)),
        ("scales 8x4-swizzled",),
        {},
    ),
    "the rows of a batch swizzled as one": (
        lambda: dump_of(
            (q := DIALECTS["te"].quantize(STACK)),
            STACK,
            codes=pack(q.codes).view(120, 48),
            scales=nm.layout.swizzle_scales(q.scales.view(120, 6)).view(128, 8),
        ),
        ("128x4-swizzled, the rows of all matrices as one",),
        {"scale_layout": "swizzled"},
    ),
    "each expert's rows swizzled": (
        lambda: te(scales=by_expert(Q.scales), groups=OFFSETS),
        ("128x4-swizzled, the rows of each expert padded to 128", "the rows of 4 experts, stacked"),
        {"scale_layout": "swizzled", "contract": "te"},
    ),
    "each expert's rows swizzled in 8x4": (
        lambda: te(scales=by_expert(Q.scales, nm.layout.swizzle_scales_8x4), groups=OFFSETS),
        ("8x4-swizzled, the rows of each expert padded to 8",),
        {"scale_layout": "8x4"},
    ),
    "a buffer that is longer than the experts": (
        lambda: te(scales=torch.cat([by_expert(Q.scales), torch.zeros(100 * 8, dtype=torch.uint8)]), groups=OFFSETS),
        ("and 100 rows that belong to none",),
        {},
    ),
    "an outer for each expert of stacked rows": (
        own_outers,
        ("outer: one for each of 4 experts",),
        {"contract": "modelopt"},
    ),
    "the same, without the outers": (
        lambda: {name: t for name, t in own_outers().items() if name != "outer"},
        ("outer: one for each expert",),
        {"contract": "modelopt"},
    ),
    "the same, swizzled by expert": (
        lambda: (d := own_outers()) | {"scales": by_expert(d["scales"])},
        ("one for each of 4 experts", "the rows of each expert padded to 128"),
        {"contract": "modelopt"},
    ),
    "an outer for each matrix": (
        lambda: dump_of((q := nm.quantize(STACK, nm.NVFP4, outer="leading")), STACK, outer=q.outer.flatten()),
        ("outer: one for each of 3 matrices",),
        {"contract": "fourbit"},
    ),
    "four scales in an int32": (
        lambda: te(scales=padded(Q.scales, 100, 8).view(torch.int32)),
        ("four bytes in an int32",),
        {"scale_layout": "row-major"},
    ),
    "the same, swizzled": (
        lambda: te(scales=nm.layout.swizzle_scales(Q.scales).view(128, 8).view(torch.int32)),
        ("128x4-swizzled, four bytes in an int32",),
        {"scale_layout": "swizzled"},
    ),
    "four scales in an int32, along the rows": (
        lambda: mxfp8(scales=padded(nm.quantize(X, nm.MXFP8).scales, 100, 4).view(torch.int32).mT.contiguous()),
        ("transposed, four bytes in an int32",),
        {},
    ),
    "eight codes in an int32": (lambda: te(codes=pack(Q.codes).view(torch.int32)), ("four bytes in an int32",), {}),
    "E8M0 as float32": (
        lambda: mxfp8(scales=nm.decode(nm.quantize(X, nm.MXFP8).scales, nm.E8M0)),
        ("float32 powers of two",),
        {"contract": "rceil"},
    ),
    "blocks of gpt-oss": (
        lambda: {
            "original": STACK,
            "gate_up_proj_blocks": pack((q := DIALECTS["ocp_floor"].quantize(STACK, "MXFP4")).codes).view(3, 40, 3, 16),
            "gate_up_proj_scales": q.scales,
        },
        ("in blocks of 16 bytes",),
        {"contract": "ocp_floor"},
    ),
    "GGML's nibbles": (
        lambda: mxfp4(codes=nm.layout.pack_halves(mxfp4()["codes"], 32)),
        ("each block's first half in the low nibbles, its second in the high (GGML)",),
        {"contract": "ocp_floor"},
    ),
    "GGML's nibbles of NVFP4": (lambda: te(codes=nm.layout.pack_halves(Q.codes, 16)), ("(GGML)",), {"contract": "te"}),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_layout_passes_and_is_told(name: str):
    make, words, how = SOUND[name]
    report = check(make(), **how)
    assert report and report.contracts, str(report)
    for text in words:
        assert text in str(report), str(report)


FP8: dict[str, tuple[Callable[[], Dump], str, tuple[str, ...]]] = {
    "1 x 128": (lambda: fp8(F, F.scales), "FP8_1X128", ("scales row-major",)),
    "1 x 128, column-major": (lambda: fp8(F, F.scales.mT.contiguous()), "FP8_1X128", ("scales transposed",)),
    "1 x 128, rows aligned": (
        lambda: fp8(F, padded(F.scales.mT, 3, 200)),
        "FP8_1X128",
        ("scales transposed, padded",),
    ),
    "128 x 128": (lambda: fp8(FT, FT.scales), "FP8_128X128", ("one scale for each 128 x 128 tile",)),
    "128 x 128, transposed": (
        lambda: fp8(FT, FT.scales.mT.contiguous()),
        "FP8_128X128",
        ("128 x 128 tile", "scales transposed"),
    ),
    "128 x 128 for each row": (
        lambda: fp8(FT, FT.scales.repeat_interleave(128, 0)[:198]),
        "FP8_128X128",
        ("repeated for each row of a tile",),
    ),
    "UE8M0 bytes": (lambda: fp8(FP, exponents(FP.scales)), "FP8_1X128", ("UE8M0 bytes",)),
    "UE8M0 of tiles": (
        lambda: fp8(FPT, exponents(FPT.scales).view(torch.float8_e8m0fnu)),
        "FP8_128X128",
        ("UE8M0 bytes",),
    ),
    "UE8M0 in float32": (lambda: fp8(FP, FP.scales), "FP8_1X128", ()),
    "four UE8M0 in an int32": (lambda: fp8(FP, four(FP.scales)), "FP8_1X128", ("four bytes in an int32",)),
    "four UE8M0 along the rows, aligned": (
        lambda: fp8(FP, padded(four(FP.scales), 200, 1).mT.contiguous()),
        "FP8_1X128",
        ("transposed, four bytes in an int32",),
    ),
    "four UE8M0 of tiles for each row": (
        lambda: fp8(FPT, four(FPT.scales.repeat_interleave(128, 0)[:198])),
        "FP8_128X128",
        ("repeated for each row of a tile", "four bytes in an int32"),
    ),
    "codes of a padded matrix": (
        lambda: fp8(F, F.scales, padded(F.codes, 256, 384)),
        "FP8_1X128",
        ("padded to 256 x 384",),
    ),
}


@pytest.mark.parametrize("name", FP8)
def test_fp8_blocks_pass(name: str):
    make, fmt, words = FP8[name]
    report = check(make())
    maker = "deepgemm_fp8_ue8m0" if "UE8M0" in name else "deepgemm_fp8"
    assert report and maker in report.contracts and report.format == fmt, str(report)
    for text in words:
        assert text in str(report), str(report)


def test_every_way_to_lie_can_be_asked_for():
    scales = nm.quantize(X, nm.MXFP8).scales
    swizzled = nm.layout.swizzle_scales(scales)
    lying = {"row-major": scales, "transposed": scales.T.contiguous(), "8x4": nm.layout.swizzle_scales_8x4(scales)}
    assert {*lying, "swizzled", "128x4"} == set(LIES)
    for asked in LIES:
        right = lying.get(asked, swizzled)
        for name, stored in {**lying, "128x4": swizzled}.items():
            assert bool(check(mxfp8(scales=stored), "mxfp8", scale_layout=asked)) == (stored is right), (asked, name)


def test_equal_scales_lie_as_is_asked():
    """A constant tensor's bytes are alike in every layout of one size."""
    d = te(torch.ones(128, 64))
    for asked in ("row-major", "swizzled", "8x4"):
        assert check(d, scale_layout=asked), asked


@pytest.mark.parametrize("bad", [float("nan"), 3.0, 0.0, -1.0, float("inf")])
def test_a_float32_scale_that_is_no_power_of_two_is_a_fault_of_its_block(bad: float) -> None:
    """Its dump is read as the others are, and fails."""
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(0))
    q = DIALECTS["quark"].quantize(x, "MXFP4")
    scales = nm.decode(q.scales, nm.E8M0).to(torch.float32)
    assert check({"x": x, "codes": q.codes, "scales": scales})
    scales[1, 1] = bad
    report = check({"x": x, "codes": q.codes, "scales": scales})
    assert not report and any("1 of 12" in fault for fault in report.faults), str(report)
