"""`fourbit check`: what made a dump's bytes, or what is wrong with them, in words.

Contract: the bytes of every dialect are named from a dump, packed and swizzled as a GPU keeps them; every fault of a
list of kernels' usual ones is named as itself, and a dump without it passes; products are inside a bound that FP32 sums
keep and faults do not; a dump that cannot be judged is one sentence with what was found and expected. Oracle: the
dialects' own bytes and `nm.quantize`, with one fault each put in here by hand.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import numerics as nm
from hw import check as command
from hw.check import check
from numerics.dialects_layout import LAYOUTS
from numerics.scales import DIALECTS

Dump = dict[str, Tensor]
ROOT = Path(__file__).resolve().parent.parent
RANDOM = torch.Generator().manual_seed(1)
X = torch.randn(96, 256, generator=RANDOM) * torch.exp(torch.randn(96, 1, generator=RANDOM))
RAGGED, GROUPS = X[:, :250], (0, 33, 70, 70, 96)
SIGNS = nm.hadamard_signs(32, (0, 0))


def dump_of(x: Tensor, q: nm.BlockTensor, **more: Tensor) -> Dump:
    outer = {} if q.outer is None else {"outer": q.outer}
    return {"x": x, "codes": q.codes, "scales": q.scales, **outer, **more}


def nvfp4(**changes: Tensor) -> Dump:
    return dump_of(X, nm.quantize(X, nm.NVFP4)) | changes


def padded(scales: Tensor, value: int = 0) -> Tensor:
    """Scales in the padded shape of the 128x4 layout, row-major."""
    out = torch.full((128, 16), value, dtype=torch.uint8)
    out[: len(scales)] = scales
    return out


def elements(fmt: nm.Format, scale: Tensor) -> Tensor:
    return nm.encode(X / scale.repeat_interleave(X.shape[1] // scale.shape[1], -1), fmt)


def ties() -> Tensor:
    """Quarters, with outer and block scales of 1."""
    x = torch.randint(-24, 25, (96, 256), generator=torch.Generator().manual_seed(2)) / 4
    x[:, ::16] = 6.0
    x[0, 0] = 2688.0
    return x


def wrong_tie() -> Dump:
    x = ties()
    return dump_of(x, nm.quantize(x, nm.NVFP4, rounding=nm.Rounding.NEAREST_AWAY))


def truncated_scales() -> Dump:
    q = nm.quantize(X, nm.NVFP4)
    ratio = X.view(96, 16, 16).abs().amax(-1) / (q.outer * 6)
    scales = nm.encode(ratio, nm.E4M3, nm.Rounding.TOWARD_ZERO)
    return dump_of(X, q) | {"scales": scales, "codes": elements(nm.E2M1, nm.decode(scales, nm.E4M3) * q.outer)}


def swapped_nibbles() -> Dump:
    codes = nm.quantize(X, nm.NVFP4).codes
    return nvfp4(codes=nm.layout.pack_nibbles(codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)))


def stale_padding() -> Dump:
    """The buffer behind the last, short block still holds large values when its maximum is taken."""
    full = torch.cat([RAGGED, torch.full((96, 6), 50.0)], -1)
    q = nm.quantize(full, nm.MXFP8)
    return {"x": RAGGED, "codes": q.codes[:, :250], "scales": q.scales}


def stale_codes() -> Dump:
    q = nm.quantize(RAGGED, nm.MXFP8)
    codes = torch.full((96, 256), 9, dtype=torch.uint8)
    codes[:, :250] = q.codes
    return {"x": RAGGED, "codes": codes, "scales": q.scales}


def unrounded_payload() -> Dump:
    largest = X.view(96, 8, 32).abs().amax(-1) / 448
    return dump_of(X, nm.quantize(X, nm.MXFP8)) | {"codes": elements(nm.E4M3, largest)}


def through_bfloat16() -> Dump:
    q = nm.quantize(X, nm.NVFP4)
    scaled = X / (nm.decode(q.scales, nm.E4M3) * q.outer).repeat_interleave(16, -1)
    return dump_of(X, q) | {"codes": nm.encode(scaled.bfloat16().float(), nm.E2M1)}


def rotated(y: Tensor) -> Dump:
    return dump_of(X, nm.quantize(y, nm.MXS2F6), signs=SIGNS)


def grouped(offsets: tuple[int, ...]) -> Dump:
    return dump_of(X, nm.quantize(X, nm.MXFP8, axis=-2, groups=offsets), groups=torch.tensor(GROUPS))


def lost_outer() -> Dump:
    return dump_of(X, nm.quantize(X, nm.NVFP4, outer=None), outer=nm.quantize(X, nm.NVFP4).outer)


def other_nan() -> Dump:
    x = X.clone()
    x[3, 5] = torch.nan
    q = nm.quantize(x, nm.NVFP4)
    scales = q.scales.clone()
    scales[3, 0] = 0
    return dump_of(x, q) | {"scales": scales}


Q = nm.quantize(X, nm.NVFP4)
# what is wrong, the dump, words that name it, and how it is read
FAULTS: dict[str, tuple[Callable[[], Dump], str, dict]] = {
    "wrong tie": (wrong_tie, "codes are rounded with ties away from zero instead of to even", {}),
    "truncated codes": (
        lambda: nvfp4(codes=nm.quantize(X, nm.NVFP4, rounding=nm.Rounding.TOWARD_ZERO).codes),
        "codes are rounded toward zero, not to nearest",
        {},
    ),
    "truncated scales": (truncated_scales, "scales are rounded toward zero, not to nearest", {}),
    "swapped nibbles": (swapped_nibbles, "the nibbles are swapped", {}),
    "unswizzled scales": (lambda: nvfp4(scales=padded(Q.scales)), "the scales are not swizzled", {}),
    "swizzle asked for": (nvfp4, "the scales are not swizzled, as they should be", {"scale_layout": "swizzled"}),
    "stale padding": (stale_padding, "stale padding: scales of the short last blocks alone are wrong", {}),
    "stale padding of codes": (stale_codes, "stale padding: 576 bytes around the codes are not zero", {}),
    "scales of the row before": (lambda: nvfp4(scales=Q.scales.roll(1, 0)), "each is that of its row -1", {}),
    "reversed sign": (
        lambda: rotated(nm.hadamard(X, 32, -SIGNS)),
        "every sign of the Hadamard transform is reversed",
        {},
    ),
    "signs in reverse": (
        lambda: rotated(nm.hadamard(X, 32, SIGNS.flip(0))),
        "the signs of the Hadamard transform are applied in reversed order",
        {},
    ),
    "no signs": (lambda: rotated(nm.hadamard(X, 32)), "applied without its signs", {}),
    "no transform": (lambda: rotated(X), "x was not transformed", {}),
    "off-by-one group": (lambda: grouped((0, 34, 71, 71, 96)), "offsets are off by one: blocks start +1", {"axis": -2}),
    "off by one, early": (
        lambda: grouped((0, 32, 69, 69, 96)),
        "offsets are off by one: blocks start -1",
        {"axis": -2},
    ),
    "E8M0 rounded, payload not": (unrounded_payload, "the scale byte is rounded, the payload is not", {}),
    "lost outer": (lost_outer, "the outer scale is lost", {}),
    "outer of 1": (lambda: nvfp4(outer=torch.ones(())), "the outer scale is lost: 1 is stored", {}),
    "outer lost in values": (lambda: nvfp4(values=Q.values()), "the outer scale is lost in values", {}),
    "another outer": (lambda: nvfp4(outer=Q.outer * 3), "does not belong to codes and scales", {}),
    "double rounding": (through_bfloat16, "elements are rounded twice: to bfloat16 before E2M1", {}),
    "NaN policy": (other_nan, "NaN policy: 1 blocks hold NaN or Inf and have scale bytes 0x00", {}),
    "another tensor": (lambda: nvfp4(x=X.flip(0)), "they are of another tensor", {}),
    "another contract": (nvfp4, "not the bytes of qwix", {"contract": "qwix"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str):
    make, words, how = FAULTS[name]
    report = check(make(), **how)
    assert not report
    assert [fault for fault in report.faults if words in fault], str(report)
    assert len(report.faults) == 1, str(report)
    assert str(report).startswith("FAILED: ")


SOUND: dict[str, tuple[Callable[[], Dump], dict]] = {
    "plain": (nvfp4, {"contract": "fourbit"}),
    "ties": (lambda: dump_of(ties(), nm.quantize(ties(), nm.NVFP4)), {"contract": "fourbit"}),
    "packed, swizzled": (
        lambda: nvfp4(codes=Q.packed(), scales=nm.layout.swizzle_scales(Q.scales)),
        {"scale_layout": "swizzled"},
    ),
    "padding of scales": (lambda: nvfp4(scales=nm.layout.swizzle_scales(padded(Q.scales, 5))), {}),
    "transposed": (lambda: nvfp4(codes=Q.codes.mT.contiguous(), scales=Q.scales.mT.contiguous()), {}),
    "ragged": (lambda: dump_of(RAGGED, nm.quantize(RAGGED, nm.MXFP8)), {"contract": "rceil"}),
    "rotated": (lambda: rotated(nm.hadamard(X, 32, SIGNS)), {"contract": "rceil"}),
    "groups": (lambda: grouped(GROUPS), {"axis": -2, "contract": "rceil"}),
    "values": (lambda: nvfp4(values=Q.dequantize()), {}),
    "values in bfloat16": (lambda: nvfp4(values=Q.dequantize(torch.bfloat16)), {}),
    "one outer per token": (lambda: dump_of(X, nm.quantize(X, nm.NVFP4_46, outer="row")), {"contract": "fourbit_46"}),
    "no outer in the dump": (lambda: {k: t for k, t in nvfp4().items() if k != "outer"}, {}),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_dump_passes(name: str):
    make, how = SOUND[name]
    report = check(make(), **how)
    assert report and report.contracts and not report.faults, str(report)
    assert str(report).startswith("passed: ")


MADE = [(name, fmt) for name, d in DIALECTS.items() for fmt in d.formats]


@pytest.mark.parametrize(("name", "fmt"), MADE)
def test_every_dialect_is_named_from_a_dump(name: str, fmt: str, tmp_path: Path):
    x = X.bfloat16().clamp(-4, 4)
    q = DIALECTS[name].quantize(x, fmt)
    wide = LAYOUTS[fmt].element.bits > 4
    tensors = {"x": x, "codes": q.codes if wide else nm.layout.pack_nibbles(q.codes), "scales": q.scales}
    if LAYOUTS[fmt].tile == 1 and LAYOUTS[fmt].scale is not None:
        tensors["scales"] = nm.layout.swizzle_scales(q.scales)
    if q.outer is not None:
        tensors["outer"] = q.outer.contiguous()
    save_file(tensors, tmp_path / "dump.safetensors")
    report = check(command.read(tmp_path / "dump.safetensors"), contract=name)
    assert report and name in report.contracts, str(report)
    assert report.format == fmt


def test_stochastic_rounding_is_told_from_its_words():
    q = nm.quantize(X, nm.NVFP4, rounding=nm.Rounding.STOCHASTIC, random=nm.Random((1, 2)))
    report = check(dump_of(X, q))
    assert report and not report.contracts
    assert "codes: stochastic: each is one of its element's two neighbours" in str(report)
    up = nm.quantize(X, nm.NVFP4, rounding=nm.Rounding.TOWARD_POSITIVE)
    assert "codes are rounded toward +infinity" in str(check(dump_of(X, up)))


@pytest.mark.parametrize("scale", [1.5, 1.0])
def test_an_approximate_division_is_told_from_its_nearness_to_ties(scale: float):
    """By 1 every division is exact: there is nothing to approximate."""
    x = ties() * scale
    x[0, 0] = 2688.0
    q = nm.quantize(x, nm.NVFP4)
    noise = 1 + torch.randint(-2, 3, x.shape, generator=torch.Generator().manual_seed(3)) * 2.0**-23
    close = nm.encode(x / nm.decode(q.scales, nm.E4M3).repeat_interleave(16, -1) * noise, nm.E2M1)
    report = check(dump_of(x, q) | {"codes": close})
    assert ("of a tie: an approximate division, or another order of operations" in str(report)) == (scale == 1.5)
    assert not report and "ties alone" in report.faults[0], str(report)


def test_one_wrong_byte_is_counted_and_derived():
    codes = Q.codes.clone()
    codes[5, 7] ^= 1
    report = check(nvfp4(codes=codes), contract="fourbit")
    assert not report and "1 of 24,576 differ" in report.faults[0]
    assert "first difference: code at (5, 7)" in report.first and "element before rounding" in report.first


# Products.


def product(**changes: Tensor) -> Dump:
    return OPERANDS | {"output": Y} | changes


A, B = nm.quantize(X, nm.NVFP4, outer="row"), nm.quantize(torch.randn(64, 256, generator=RANDOM), nm.NVFP4)
W = nm.quantize(torch.randn(4, 64, 256, generator=RANDOM), nm.NVFP4, outer="leading")
Y = nm.matmul(A, B, "library")
OPERANDS = {"a_codes": A.packed(), "a_scales": A.scales, "a_outer": A.outer}
OPERANDS |= {"b_codes": B.packed(), "b_scales": B.scales, "b_outer": B.outer}
EXPERTS = OPERANDS | {"b_codes": W.packed(), "b_scales": W.scales, "b_outer": W.outer, "groups": torch.tensor(GROUPS)}
SWAPPED = nm.layout.unpack_nibbles(A.packed()).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)

PRODUCTS: dict[str, tuple[Callable[[], Dump], str | None]] = {
    "fp32": (product, None),
    "exact": (lambda: product(output=nm.matmul(A, B)), None),
    "bfloat16": (lambda: product(output=Y.bfloat16()), None),
    "float16": (lambda: product(output=Y.half()), None),
    "swizzled": (lambda: product(a_scales=nm.layout.swizzle_scales(A.scales)), None),
    "by expert": (lambda: EXPERTS | {"output": nm.matmul(A, W, "library", groups=GROUPS)}, None),
    "lost outer of a": (lambda: product(output=nm.matmul(A.derived(outer=None), B)), "the outer scale of a is lost"),
    "lost outer of b": (lambda: product(output=nm.matmul(A, B.derived(outer=None))), "the outer scale of b is lost"),
    "divided by": (
        lambda: product(output=Y / B.outer / B.outer),
        "the outer scale of b is used in the wrong direction",
    ),
    "twice": (lambda: product(output=Y * A.outer), "the outer scale of a is multiplied in twice"),
    "double rounding": (lambda: product(output=Y.bfloat16().float()), "the output is rounded twice"),
    "swapped nibbles": (
        lambda: product(a_codes=nm.layout.pack_nibbles(SWAPPED)),
        "of a or of b the nibbles are swapped",
    ),
    "unswizzled scales": (lambda: product(a_scales=padded(A.scales)), "a is read wrongly: the scales are not swizzled"),
    "off-by-one group": (
        lambda: EXPERTS | {"output": nm.matmul(A, W, groups=(0, 34, 71, 71, 96))},
        "experts' offsets are off by one",
    ),
    "another product": (lambda: product(output=Y + 1), "6,144 of 6,144 elements are outside the bound"),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str):
    make, words = PRODUCTS[name]
    report = check(make())
    if words is None:
        assert report and report.contracts, str(report)
    else:
        assert not report and len(report.faults) == 1 and words in report.faults[0], str(report)


def test_the_bound_is_close_enough_to_see_a_lost_term():
    """Without the largest of its 256 terms every element is outside."""
    terms = A.dequantize().unsqueeze(1) * B.dequantize()
    lost = terms.gather(-1, terms.abs().argmax(-1, keepdim=True)).squeeze(-1)
    report = check(product(output=Y - lost))
    assert not report and "6,144 of 6,144 elements are outside the bound" in report.faults[0]


# Dumps that cannot be judged.

BAD: dict[str, tuple[Callable[[], Dump], dict, str]] = {
    "nothing": (dict, {}, "the dump holds nothing and lacks x, codes, scales"),
    "a missing key": (lambda: {"x": X, "codes": Q.codes}, {}, "holds codes, x and lacks scales"),
    "half a product": (lambda: dict(OPERANDS), {}, "lacks output"),
    "both kinds": (lambda: product(x=X), {}, "not parts of both"),
    "twice": (lambda: nvfp4(qdata=Q.codes), {}, "holds codes twice"),
    "codes of another shape": (lambda: nvfp4(codes=Q.codes[:, :100]), {}, "no layout"),
    "the same, format named": (lambda: nvfp4(codes=Q.codes[:, :100]), {"fmt": "nvfp4"}, "codes have shape (96, 100)"),
    "scales of another shape": (lambda: nvfp4(scales=Q.scales[:5]), {"fmt": "nvfp4"}, "scales have shape (5, 16)"),
    "x of integers": (lambda: nvfp4(x=X.long()), {}, "x has dtype torch.int64"),
    "codes of floats": (lambda: nvfp4(codes=Q.codes.float()), {}, "codes has dtype torch.float32"),
    "codes beyond bytes": (lambda: nvfp4(codes=Q.codes.int() + 300), {}, "codes reach from 300"),
    "codes beyond the format": (lambda: nvfp4(codes=Q.codes + 17), {"fmt": "nvfp4"}, "codes reach up to 32"),
    "outer of float64": (lambda: nvfp4(outer=Q.outer.double()), {}, "outer has dtype torch.float64"),
    "outer of another shape": (lambda: nvfp4(outer=torch.ones(7)), {}, "outer has shape (7,)"),
    "signs of another size": (lambda: nvfp4(signs=torch.ones(7)), {}, "signs has shape (7,)"),
    "groups that do not end": (lambda: nvfp4(groups=torch.tensor([0, 5])), {}, "end at the axis length 256"),
    "groups of floats": (lambda: nvfp4(groups=torch.tensor([0.0, 96.0])), {}, "groups has dtype torch.float32"),
    "several devices": (lambda: nvfp4(codes=Q.codes.to("meta")), {}, "on several devices"),
    "an unknown format": (nvfp4, {"fmt": "nvfp5"}, "format='nvfp5' is unknown: use one of nvfp4"),
    "an unknown dialect": (nvfp4, {"contract": "TE"}, "contract='TE': use one of te"),
    "an unknown layout": (nvfp4, {"scale_layout": "tiled"}, "scale_layout='tiled'"),
    "another axis": (nvfp4, {"axis": 5}, "axis=5"),
    "an output of one axis": (lambda: product(output=Y[0]), {}, "output has shape (64,)"),
    "an output of other rows": (lambda: product(output=Y[:5]), {}, "no format explains the shapes"),
    "operands that do not meet": (
        lambda: product(b_codes=B.packed()[:, :64], b_scales=B.scales[:, :8]),
        {"fmt": "nvfp4"},
        "lengths along K differ",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_judged_is_one_sentence(name: str):
    make, how, words = BAD[name]
    with pytest.raises(ValueError) as error:
        check(make(), **how)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_other_kinds_of_values_are_refused():
    with pytest.raises(TypeError, match="x is a str"):
        check(nvfp4(x="x"))
    with pytest.raises(TypeError, match="the dump is a list"):
        check([X])


# Files and the command.


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture):
    save_file({k: t.contiguous() for k, t in nvfp4().items()}, tmp_path / "dump.safetensors")
    np.savez(tmp_path / "dump.npz", **{k: t.numpy() for k, t in nvfp4().items()})
    for name in ("dump.safetensors", "dump.npz"):
        assert command.main([str(tmp_path / name), "--format", "nvfp4"]) == 0
        assert "fourbit" in capsys.readouterr().out
    np.savez(tmp_path / "swapped.npz", **{k: t.numpy() for k, t in swapped_nibbles().items()})
    assert command.main([str(tmp_path / "swapped.npz")]) == 1
    assert "the nibbles are swapped" in capsys.readouterr().out


def test_bfloat16_in_npz(tmp_path: Path):
    import ml_dtypes

    x = X.bfloat16()
    q = nm.quantize(x, nm.NVFP4)
    array = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    np.savez(tmp_path / "dump.npz", x=array, codes=q.codes.numpy(), scales=q.scales.numpy(), outer=q.outer.numpy())
    assert check(command.read(tmp_path / "dump.npz"), contract="fourbit")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("dump.safetensors", b"\xff" * 100, "is no whole safetensors file"),
        ("dump.npz", b"PK\x03\x04 and no more", "is no whole npz file"),
        ("dump.npz", b"", "is no whole npz file"),
        ("dump.pt", b"x", "pass a .safetensors or .npz file"),
        ("dump", b"x", "pass a .safetensors or .npz file"),
    ],
)
def test_bad_files(name: str, content: bytes, words: str, tmp_path: Path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        command.read(tmp_path / name)


def test_a_truncated_file(tmp_path: Path):
    save_file({k: t.contiguous() for k, t in nvfp4().items()}, tmp_path / "dump.safetensors")
    np.savez(tmp_path / "dump.npz", **{k: t.numpy() for k, t in nvfp4().items()})
    for name in ("dump.safetensors", "dump.npz"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=f"{name} is no whole"):
            command.read(tmp_path / name)


def test_objects_in_npz_are_refused(tmp_path: Path):
    np.savez(tmp_path / "dump.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="is no whole npz file of arrays"):
        command.read(tmp_path / "dump.npz")


def test_the_command_line(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "-m", "fourbit", "check", str(tmp_path / "none.npz")], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 2 and run.stderr.startswith("fourbit: error: No such file") and run.stderr.count("\n") == 1
