"""`fourbit check` reads every public layout of codes and scales, and names what is wrong with one.

Contract: sound bytes pass in each layout, by the quantizer that made them, and the report says how they lie; bytes out
of place fail by name, or are read as they lie; padding columns of real rows must decode to zeros, padding rows need
not. Oracle: the dialects' bytes, moved here by index arithmetic and reshapes of torch, one fault each put in by hand.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import numerics as nm
from hw.check import check
from hw.check_case import LIES
from numerics.scales import DIALECTS

Dump = dict[str, Tensor]
RANDOM = torch.Generator().manual_seed(11)
X = torch.randn(100, 96, generator=RANDOM) * torch.exp(torch.randn(100, 1, generator=RANDOM))  # 6 scales a row
W = (torch.randn(64, 192, generator=RANDOM) * 0.02).bfloat16()
STACK = torch.randn(3, 40, 96, generator=RANDOM) * torch.tensor([1.0, 50.0, 0.02]).view(3, 1, 1)
EIGHT = torch.randn(198, 300, generator=RANDOM) * torch.exp(torch.randn(198, 1, generator=RANDOM))
EXPERTS = (0, 33, 70, 70, 100)
OFFSETS = torch.tensor(EXPERTS)
pack = nm.layout.pack_nibbles


def dump_of(q, x: Tensor, **changes) -> Dump:
    outer = {} if q.outer is None else {"outer": q.outer.contiguous()}
    return {"x": x, "codes": q.codes, "scales": q.scales} | outer | changes


def te(x: Tensor = X, name: str = "te", fmt: str = "NVFP4", **changes) -> Dump:
    return dump_of(DIALECTS[name].quantize(x, fmt), x, **changes)


def mxfp8(**changes) -> Dump:
    return dump_of(nm.quantize(X, nm.MXFP8), X, **changes)


def mxfp4(**changes) -> Dump:
    return dump_of(DIALECTS["ocp_floor"].quantize(X, "MXFP4"), X, **changes)


Q = DIALECTS["te"].quantize(X)


def tiled(scales: Tensor, rows: int) -> Tensor:
    """One scale of a tile for each of its rows."""
    return scales.repeat_interleave(16, -2)[..., :rows, :]


def padded(t: Tensor, rows: int, columns: int, fill: int = 0) -> Tensor:
    out = torch.full((*t.shape[:-2], rows, columns), fill, dtype=t.dtype)
    out[..., : t.shape[-2], : t.shape[-1]] = t
    return out


def by_expert(scales: Tensor, swizzle: Callable[[Tensor], Tensor] = nm.layout.swizzle_scales) -> Tensor:
    return torch.cat([swizzle(scales[a:b]) for a, b in pairwise(EXPERTS)])


def own_outers() -> Dump:
    """Each expert of the stacked rows quantized by itself."""
    parts = [DIALECTS["modelopt"].quantize(X[a:b]) for a, b in pairwise(EXPERTS)]
    outer = torch.cat([q.outer.flatten() for q in parts])
    codes, scales = (torch.cat([getattr(q, name) for q in parts]) for name in ("codes", "scales"))
    return {"x": X, "codes": codes, "scales": scales, "outer": outer, "groups": OFFSETS}


# ---- NVFP4 and MX ----------------------------------------------------------------------------------------------------

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


# ---- FP8 in blocks of 128 --------------------------------------------------------------------------------------------


def power_blocks(x: Tensor, tile: int) -> Tensor:
    """x with the largest value of each block or tile 448 times a power of two, so that its scale is one."""
    out = torch.empty_like(x)
    for rows in torch.arange(len(x)).split(tile):
        for columns in torch.arange(x.shape[1]).split(128):
            part = x[rows][:, columns].double()
            power = torch.exp2(torch.round(torch.log2(part.abs().max() / 448)))
            out[rows[:, None], columns] = (
                part / part.abs().max() * 448 * power
            ).float()  # exact where |part| is largest
    return out


P, PT = power_blocks(EIGHT, 1), power_blocks(EIGHT, 128)
F, FT, FP, FPT = (
    DIALECTS["fourbit_fp8"].quantize(x, fmt)
    for x, fmt in ((EIGHT, "FP8_1X128"), (EIGHT, "FP8_128X128"), (P, "FP8_1X128"), (PT, "FP8_128X128"))
)


def exponents(scales: Tensor) -> Tensor:
    """The E8M0 bytes of float32 powers of two: their exponent fields."""
    assert int((scales.contiguous().view(torch.int32) & 0x7FFFFF).max()) == 0
    return (scales.contiguous().view(torch.int32) >> 23).to(torch.uint8)


def four(scales: Tensor) -> Tensor:
    """Exponents of a (rows, 3) matrix, four in an int32; the fourth is 1."""
    return padded(exponents(scales), len(scales), 4, 127).view(torch.int32)


def fp8(q, x: Tensor, scales: Tensor, codes: Tensor | None = None) -> Dump:
    return {"x": x, "codes": (q.codes if codes is None else codes).view(torch.float8_e4m3fn), "scales": scales}


FP8: dict[str, tuple[Callable[[], Dump], str, tuple[str, ...]]] = {
    "1 x 128": (lambda: fp8(F, EIGHT, F.scales), "FP8_1X128", ("scales row-major",)),
    "1 x 128, column-major": (lambda: fp8(F, EIGHT, F.scales.mT.contiguous()), "FP8_1X128", ("scales transposed",)),
    "1 x 128, rows aligned": (
        lambda: fp8(F, EIGHT, padded(F.scales.mT, 3, 200)),
        "FP8_1X128",
        ("scales transposed, padded",),
    ),
    "128 x 128": (lambda: fp8(FT, EIGHT, FT.scales), "FP8_128X128", ("one scale for each 128 x 128 tile",)),
    "128 x 128, transposed": (
        lambda: fp8(FT, EIGHT, FT.scales.mT.contiguous()),
        "FP8_128X128",
        ("128 x 128 tile", "scales transposed"),
    ),
    "128 x 128 for each row": (
        lambda: fp8(FT, EIGHT, FT.scales.repeat_interleave(128, 0)[:198]),
        "FP8_128X128",
        ("repeated for each row of a tile",),
    ),
    "UE8M0 bytes": (lambda: fp8(FP, P, exponents(FP.scales)), "FP8_1X128", ("UE8M0 bytes",)),
    "UE8M0 of tiles": (
        lambda: fp8(FPT, PT, exponents(FPT.scales).view(torch.float8_e8m0fnu)),
        "FP8_128X128",
        ("UE8M0 bytes",),
    ),
    "UE8M0 in float32": (lambda: fp8(FP, P, FP.scales), "FP8_1X128", ()),
    "four UE8M0 in an int32": (lambda: fp8(FP, P, four(FP.scales)), "FP8_1X128", ("four bytes in an int32",)),
    "the same along the rows, aligned": (
        lambda: fp8(FP, P, padded(four(FP.scales), 200, 1).mT.contiguous()),
        "FP8_1X128",
        ("transposed, four bytes in an int32",),
    ),
    "four UE8M0 of tiles for each row": (
        lambda: fp8(FPT, PT, four(FPT.scales.repeat_interleave(128, 0)[:198])),
        "FP8_128X128",
        ("repeated for each row of a tile", "four bytes in an int32"),
    ),
    "codes of a padded matrix": (
        lambda: fp8(F, EIGHT, F.scales, padded(F.codes, 256, 384)),
        "FP8_1X128",
        ("padded to 256 x 384",),
    ),
}


@pytest.mark.parametrize("name", FP8)
def test_fp8_blocks_pass(name: str):
    make, fmt, words = FP8[name]
    report = check(make())
    assert report and "fourbit_fp8" in report.contracts and report.format == fmt, str(report)
    for text in words:
        assert text in str(report), str(report)


# ---- what is wrong ---------------------------------------------------------------------------------------------------


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
        lambda: fp8(F, EIGHT, padded(F.scales, 198, 4, float("nan"))),
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
        lambda: fp8(FP, P, four(FP.scales).view(torch.uint8).flip(-1).view(torch.int32)),
        "the four scales of each int32 are in the wrong byte order",
        {},
    ),
    "FP8 scales upside down": (lambda: fp8(FPT, PT, 1 / FPT.scales), "the scales are upside down", {}),
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


# ---- names -----------------------------------------------------------------------------------------------------------


def padded_as_te(x: Tensor, name: str, fmt: str = "NVFP4") -> Dump:
    """Transformer Engine's tensors: scales in the padded matrix of the swizzle, row-major."""
    q = DIALECTS[name].quantize(x, fmt)
    scales = q.scales if fmt == "NVFP4" else tiled(q.scales, len(x))
    grid = padded(scales, -(-len(x) // 128) * 128, -(-scales.shape[1] // 4) * 4)
    assert q.outer is not None
    return {"_rowwise_data": pack(q.codes), "_rowwise_scale_inv": grid, "_amax_rowwise": q.outer.reshape(-1)}


def rows_of_te(x: Tensor, name: str) -> Dump:
    """The same with an amax for each row."""
    parts = [padded_as_te(row, name) for row in x.split(1)]
    codes, amax = (torch.cat([part[key] for part in parts]) for key in ("_rowwise_data", "_amax_rowwise"))
    scales = torch.cat([part["_rowwise_scale_inv"][:1] for part in parts])
    return {"_rowwise_data": codes, "_rowwise_scale_inv": padded(scales, 128, scales.shape[1]), "_amax_rowwise": amax}


def columns_of_te(x: Tensor, name: str) -> Dump:
    return {key.replace("rowwise", "columnwise"): t for key, t in rows_of_te(x.T.contiguous(), name).items()}


Y = X[:64]  # 64 rows: 4 scales a column
NAMES: dict[str, tuple[Callable[[], Dump], dict]] = {
    "ModelOpt": (
        lambda: (
            {"weight": pack((q := DIALECTS["modelopt"].quantize(X)).codes), "weight_scale": q.scales.view(torch.uint8)}
            | {"x": X, "weight_scale_2": q.outer, "input_scale": torch.ones(())}
        ),
        {"contract": "modelopt"},
    ),
    "compressed-tensors": (
        lambda: (
            {"model.layers.0.weight_packed": pack((q := DIALECTS["compressed_tensors"].quantize(X)).codes)}
            | {"model.layers.0.weight_scale": q.scales.view(torch.float8_e4m3fn), "input": X}
            | {"model.layers.0.weight_global_scale": q.outer.flatten(), "model.layers.0.input_global_scale": q.outer}
        ),
        {"contract": "compressed_tensors"},
    ),
    "Transformer Engine": (lambda: {"x": X} | padded_as_te(X, "te"), {"contract": "te"}),
    "its tiles": (lambda: {"x": X[:96]} | padded_as_te(X[:96], "te", "NVFP4_2D"), {"contract": "te"}),
    "its rows": (lambda: {"x": X} | rows_of_te(X, "te"), {"contract": "te"}),
    "its columns, four over six": (
        lambda: {"x": Y} | columns_of_te(Y, "te_46") | padded_as_te(Y, "te"),
        {"axis": -2, "contract": "te_46"},
    ),
    "vLLM": (
        lambda: (
            {"w13_weight": pack(Q.codes), "w13_blockscale_swizzled": nm.layout.swizzle_scales(Q.scales).view(128, 8)}
            | {"x": X, "w13_weight_scale_2": Q.outer.float() / 2688, "w13_input_scale": torch.ones(())}
        ),
        {},
    ),
    "DeepSeek": (
        lambda: {
            "original": EIGHT,
            "weight": FT.codes.view(torch.float8_e4m3fn),
            "weight_scale_inv": FT.scales,
        },
        {"fmt": "fp8_128x128"},
    ),
    "a weight and its codes": (lambda: {"weight": X, "weight_packed": pack(Q.codes), "sf": Q.scales}, {}),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_libraries_are_known(name: str):
    make, how = NAMES[name]
    report = check(make(), **how)
    assert report and report.contracts, str(report)


FACTOR = X.abs().max() / 2688


@pytest.mark.parametrize("called", ["weight_scale_2", "weight_global_scale", "global_sf", "amax", "per_tensor_scale"])
@pytest.mark.parametrize("stored", ["multiply by", "divide by", "largest magnitude"])
def test_a_name_says_in_which_direction_an_outer_is_stored(called: str, stored: str):
    """The same codes and scales, beside an outer in each direction under each name."""
    said = {"weight_global_scale": "divide by", "global_sf": "divide by", "amax": "largest magnitude"}
    numbers = {"multiply by": FACTOR, "divide by": 1 / FACTOR, "largest magnitude": FACTOR * 2688}
    report = check({"x": X, "codes": Q.codes, "scales": Q.scales, called: numbers[stored]})
    right = said.get(called, "multiply by")
    assert bool(report) == (stored == right), str(report)
    if not report:
        words = f"the outer scale is called {called!r}, "
        assert words in report.faults[0] and right in report.faults[0] and f"{stored} is stored" in report.faults[0]
    assert check({"x": X, "codes": Q.codes, "scales": Q.scales, "outer": numbers[stored]})


def test_a_padded_matrix_is_a_fault_only_where_nothing_says_so():
    d = te(scales=padded(Q.scales, 128, 8))
    assert "the scales are not swizzled" in check(d).faults[0] and check(d, scale_layout="row-major")


# ---- products --------------------------------------------------------------------------------------------------------

A, B = nm.quantize(X, nm.NVFP4, outer="row"), nm.quantize(torch.randn(48, 96, generator=RANDOM), nm.NVFP4)
E = nm.quantize(torch.randn(4, 48, 96, generator=RANDOM), nm.NVFP4, outer="leading")
T = nm.quantize(torch.randn(48, 96, generator=RANDOM), nm.NVFP4_2D)
A8, B8 = nm.quantize(EIGHT, nm.FP8_1X128), nm.quantize(torch.randn(140, 300, generator=RANDOM), nm.FP8_128X128)


def product(a: nm.BlockTensor = A, b: nm.BlockTensor = B, groups: tuple[int, ...] | None = None, **changes) -> Dump:
    d = {"a_codes": a.packed(), "a_scales": a.scales, "b_codes": b.packed(), "b_scales": b.scales}
    d |= {f"{name}_outer": q.outer for name, q in (("a", a), ("b", b)) if q.outer is not None}
    y = a.dequantize().double() @ b.dequantize().double().mT if groups is None else None
    if groups is not None:
        experts = enumerate(pairwise(groups))
        y = torch.cat([a.dequantize()[s:e].double() @ b.dequantize()[i].double().mT for i, (s, e) in experts])
        d["groups"] = torch.tensor(groups)
    return d | {"output": y.float()} | changes


def one_outer_each() -> Dump:
    """Stacked rows of which every expert has one outer."""
    sizes = torch.tensor([end - start for start, end in pairwise(EXPERTS)])
    outer = torch.tensor([0.5, 0.25, 1.0, 2.0])
    a = nm.quantize(X, nm.NVFP4, outer=outer.repeat_interleave(sizes).unsqueeze(-1))
    return product(a, E, EXPERTS, a_outer=outer, a_scales=by_expert(a.scales))


NAN = nm.layout.swizzle_scales(padded(A.scales, 100, 8, 0x7F))
PRODUCTS: dict[str, tuple[Callable[[], Dump], str | None]] = {
    "8x4": (lambda: product(a_scales=nm.layout.swizzle_scales_8x4(A.scales)), None),
    "GGML's nibbles": (lambda: product(b_codes=nm.layout.pack_halves(B.codes, 16)), None),
    "experts swizzled on their own": (lambda: product(A, E, EXPERTS, a_scales=by_expert(A.scales)), None),
    "one outer for each expert": (one_outer_each, None),
    "tiles": (lambda: product(b=T), None),
    "FP8 of 1 x 128 and 128 x 128": (lambda: product(A8, B8), None),
    "codes padded to more than the other's": (lambda: product(a_codes=padded(A.packed(), 100, 64)), None),
    "finite scales in padding columns": (
        lambda: product(a_scales=nm.layout.swizzle_scales(padded(A.scales, 100, 8, 0x7E))),
        None,
    ),
    "NaN scales in padding columns": (lambda: product(a_scales=NAN), "a: stale padding: 200 scales in the columns"),
    "the same, in the output too": (
        lambda: product(a_scales=NAN, output=torch.full((100, 48), torch.nan)),
        "0 * NaN is NaN, and the output is NaN there",
    ),
    "the same of one column of b": (
        lambda: product(b_scales=padded(B.scales, 48, 8).index_fill(1, torch.tensor([7]), 0x7F)),
        "b: stale padding: 48 scales in the columns beyond 6 are NaN",
    ),
    "stale codes in padding columns": (
        lambda: product(a_codes=padded(A.packed(), 100, 64, 0x33)),
        "a: stale padding: 3,200 bytes around the codes are not zero",
    ),
    "experts swizzled as one": (
        lambda: product(A, E, EXPERTS, a_scales=nm.layout.swizzle_scales(A.scales)),
        "a is read wrongly: expert padding is missing",
    ),
    "int32 in the other byte order": (
        lambda: product(b_scales=padded(B.scales, 48, 8).view(48, 2, 4).flip(-1).flatten(1).view(torch.int32)),
        "b is read wrongly: the four scales of each int32 are in the wrong byte order",
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str):
    make, words = PRODUCTS[name]
    report = check(make())
    if words is None:
        assert report and report.contracts, str(report)
    else:
        assert not report and len(report.faults) == 1 and words in report.faults[0], str(report)
