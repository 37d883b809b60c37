"""`fourbit check` at its edges: what it must not claim, dumps that are nearly empty, and input of every kind.

Contract: a fault is named only if it explains what differs; data whose codes lose most of it are still judged by their
bytes; chance is named only where there are enough elements to see it; any array or tensor is read or refused in one
sentence that names it; products that FP32 sums may give are inside the bound, at overflow and underflow too. Oracle:
`nm.quantize` and divisions written here, with one fault each put in by hand.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import numerics as nm
from hw import check_folded
from hw.check import check
from hw.check_dump import read

Dump = dict[str, Tensor]
R = nm.Rounding
RANDOM = torch.Generator().manual_seed(3)
X = torch.randn(64, 256, generator=RANDOM)
HEAVY = X * torch.exp(2 * torch.randn(64, 256, generator=RANDOM))
TIES = torch.randint(-24, 25, (64, 256), generator=RANDOM) / 4
TIES[:, ::16] = 6.0


def dump_of(x: Tensor, fmt: nm.BlockFormat = nm.NVFP4, **how) -> Dump:
    q = nm.quantize(x, fmt, **how)
    return {"x": x, "codes": q.codes, "scales": q.scales} | ({} if q.outer is None else {"outer": q.outer})


def stepwise(x: Tensor, scales: Tensor, outer: Tensor, mode: R = R.NEAREST_EVEN) -> Tensor:
    """E2M1 codes of x / (scale * outer)."""
    step = nm.decode(scales, nm.E4M3).double() * outer.double()
    return nm.encode(x.double() / step.repeat_interleave(16, -1), nm.E2M1, mode)


# Little or nothing to judge.


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46, nm.MXFP8, nm.MXFP4], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("shape", [(4, 0), (0, 32), (0,), (2, 0, 32)], ids=str)
def test_empty_tensors_pass_and_say_so(shape: tuple[int, ...], fmt: nm.BlockFormat):
    report = check(dump_of(torch.zeros(shape), fmt))
    assert report and "there are no values" in str(report)


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46, nm.MXFP8, nm.MXFP4], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("value", [0.0, 1.0, 1e-40, 1e-45, 3e38, torch.inf, torch.nan])
def test_constant_tensors_pass(value: float, fmt: nm.BlockFormat):
    """Their layouts look alike, their codes may all be zero, or their blocks all NaN."""
    report = check(dump_of(torch.full((32, 64), value), fmt))
    assert report, str(report)


def test_an_outer_of_one_beside_one_level_is_no_fault():
    report = check(dump_of(X, nm.MXFP8) | {"outer": torch.ones(())})
    assert report and "rceil" in report.contracts, str(report)


# Faults on data that make codes and x unlike.


@pytest.mark.every(4)
@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP8, nm.MXFP4, nm.MXS2F6], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize(("step", "axis", "words"), [(1, 0, "row -1"), (-1, 0, "row +1"), (1, 1, "block -1")])
def test_scales_out_of_place_are_named_on_heavy_tails(fmt: nm.BlockFormat, step: int, axis: int, words: str):
    d = dump_of(HEAVY, fmt)
    report = check(d | {"scales": d["scales"].roll(step, axis)})
    assert report.format == fmt.name and len(report.faults) == 1 and f"that of its {words}" in report.faults[0]


def test_the_format_is_that_which_explains_the_bytes():
    """Codes that belong to the scales of the row before look more like E5M2 of x than like E4M3."""
    q = nm.quantize(HEAVY, nm.MXFP8)
    step = nm.decode(q.scales.roll(1, 0), nm.E8M0).repeat_interleave(32, -1)
    report = check({"x": HEAVY, "codes": nm.encode(HEAVY / step, nm.E4M3), "scales": q.scales.roll(1, 0)})
    assert report.format == "MXFP8" and len(report.faults) == 1 and "row -1" in report.faults[0], str(report)


def test_elements_without_the_outer_scale_are_named():
    d = dump_of(X.bfloat16())
    report = check(d | {"codes": stepwise(d["x"], d["scales"], torch.ones(()))})
    assert len(report.faults) == 1 and "elements are divided by the block scale alone" in report.faults[0]


def test_a_largest_value_that_wraps_to_zero_is_not_another_tensor():
    d = dump_of(HEAVY)
    report = check(d | {"codes": torch.where((d["codes"] & 7) == 7, 8, d["codes"])})
    assert not report and "another tensor" not in str(report) and "every one of 1,024" in str(report)


def test_an_outer_scale_upside_down_is_not_calibration():
    """Used as 2688 / A where A / 2688 is stored: scales of b * outer / 6."""
    outer = HEAVY.abs().max() / torch.tensor(2688.0)
    scales = nm.encode(HEAVY.view(64, 16, 16).abs().amax(-1) / (6 / outer), nm.E4M3)
    report = check({"x": HEAVY, "codes": stepwise(HEAVY, scales, 1 / outer), "scales": scales, "outer": outer})
    assert len(report.faults) == 1 and "used in the wrong direction" in report.faults[0], str(report)


# What must not be claimed.


def test_stochastic_rounding_of_ties_is_told():
    d = dump_of(TIES, nm.MXFP4, rounding=R.STOCHASTIC, random=nm.Random((1, 2)))
    report = check(d)
    assert report and "codes: stochastic" in str(report)


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP8, nm.MXFP4], ids=lambda fmt: fmt.name)
def test_one_wrong_code_in_a_small_tensor_is_not_chance(fmt: nm.BlockFormat):
    d = dump_of(X[:2, :32], fmt)
    for place in range(0, 32, 5):
        codes = d["codes"].clone()
        codes[1, place] ^= 1
        report = check(d | {"codes": codes})
        assert not report, str(report)


@pytest.mark.parametrize("mode", [R.NEAREST_EVEN, R.NEAREST_AWAY])
def test_one_wrong_code_among_ties_is_not_chance(mode: R):
    d = dump_of(TIES, nm.MXFP4, rounding=mode)
    d["codes"][5, 5] ^= 1
    report = check(d)
    assert not report and "stochastic" not in str(report)


def test_codes_by_tossing_a_coin_have_no_name():
    low, high = (nm.quantize(X, nm.MXFP4, rounding=mode).codes for mode in (R.TOWARD_NEGATIVE, R.TOWARD_POSITIVE))
    coin = torch.rand(X.shape, generator=RANDOM) < 0.5
    report = check(dump_of(X, nm.MXFP4) | {"codes": torch.where(coin, low, high)})
    assert len(report.faults) == 1 and "is the nearest law" in report.faults[0], str(report)


def test_a_sign_is_lost_only_where_x_makes_zeros():
    d = dump_of(X)
    one = d["codes"].clone()
    i = (one == 9).nonzero()[0]
    one[*i] = 8  # -0 for -0.5
    assert "sign" not in check(d | {"codes": one}).faults[0]
    d = dump_of(X, nm.MXFP6_E2M3)  # MXFP4 so would be DeepGEMM's
    zeros = torch.where(d["codes"] == 0x20, 0, d["codes"])
    assert "all of them zeros: their sign is lost" in check(d | {"codes": zeros}).faults[0]


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP8], ids=lambda fmt: fmt.name)
def test_the_nan_policy_is_no_fault_where_it_is_kept(fmt: nm.BlockFormat):
    x = X.clone()
    x[3, 5] = torch.nan
    x[7, 9] = torch.inf
    report = check(dump_of(x, fmt, rounding=R.TOWARD_ZERO))
    assert len(report.faults) == 1 and "toward zero" in report.faults[0], str(report)


def test_a_smaller_scale_of_a_short_block_is_not_stale_padding():
    d = dump_of(X[:, :250], nm.MXFP8)
    d["scales"][1, -1] -= 1
    report = check(d)
    assert not report and "stale" not in str(report)


def test_a_larger_scale_where_every_block_is_short_is_not_stale_padding():
    d = dump_of(X[:3, :10], nm.MXFP8)
    d["scales"][1] += 1
    assert "stale" not in str(check(d))


# Arrays and tensors of every kind.

D = {name: t.numpy() for name, t in dump_of(X).items()}
KINDS: dict[str, Callable[[], dict]] = {
    "big-endian": lambda: D | {"x": D["x"].astype(">f4"), "outer": D["outer"].astype(">f4")},
    "big-endian codes": lambda: D | {"codes": D["codes"].astype(">i4")},
    "read-only": lambda: D | {"x": np.frombuffer(D["x"].tobytes(), np.float32).reshape(64, 256)},
    "a numpy scalar": lambda: D | {"outer": D["outer"].reshape(())[()]},
    "uint16": lambda: D | {"codes": torch.from_numpy(D["codes"]).to(torch.uint16)},
    "uint64": lambda: D | {"scales": torch.from_numpy(D["scales"]).to(torch.uint64)},
    "strides": lambda: D | {"codes": np.repeat(D["codes"], 2, -1)[:, ::2], "x": D["x"][::-1].copy()[::-1]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_of_array_is_read(kind: str):
    assert check(KINDS[kind](), contract="fourbit")


P = {f"{n}_{k}": t for n in "ab" for k, t in dump_of(X, nm.MXFP8).items() if k != "x"} | {"output": X @ X.T}
REFUSED: dict[str, tuple[Callable[[], dict], dict, str]] = {
    "x of float8": (lambda: D | {"x": X.to(torch.float8_e4m3fn)}, {}, "x has dtype torch.float8_e4m3fn"),
    "sparse": (lambda: D | {"x": X.to_sparse()}, {}, "x has layout torch.sparse_coo"),
    "meta": (lambda: {k: t.to("meta") for k, t in dump_of(X).items()}, {}, "device meta"),
    "complex codes": (lambda: D | {"codes": X + 0j}, {}, "codes has dtype torch.complex64"),
    "a ragged list": (lambda: D | {"x": [[1.0], [1.0, 2.0]]}, {}, "x is a list that is no array of numbers"),
    "a list as contract": (lambda: D, {"contract": ["te"]}, "contract=['te']"),
    "many keys": (lambda: {f"layer.{i:03}": X for i in range(200)}, {}, "layer.011 and 188 more"),
    "output of float8": (lambda: P | {"output": X.to(torch.float8_e5m2)}, {}, "output has dtype torch.float8_e5m2"),
    "an empty output": (lambda: P | {"output": torch.zeros(0, 64)}, {}, "output has shape (0, 64)"),
    "contract of a product": (lambda: P, {"contract": "te"}, "contract='te': the dump holds a product"),
    "layout of a product": (lambda: P, {"scale_layout": "swizzled"}, "scale_layout='swizzled': the dump holds a"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name: str):
    make, how, words = REFUSED[name]
    with pytest.raises(ValueError) as error:
        check(make(), **how)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_one_array_named_npz_is_refused(tmp_path: Path):
    with (tmp_path / "dump.npz").open("wb") as file:
        np.save(file, D["x"])
    with pytest.raises(ValueError, match=r"is no whole npz file of arrays.*it holds one array"):
        read(tmp_path / "dump.npz")


# Products.


def product(a: Tensor, b: Tensor, output: Callable[[Tensor], Tensor], fmt: nm.BlockFormat = nm.MXFP8) -> Dump:
    """A product of two quantized matrices, whose FP32 sums run from the first term to the last."""
    p, q = nm.quantize(a, fmt), nm.quantize(b, fmt)
    y = torch.zeros(len(a), len(b))
    for u, v in zip(p.dequantize().unbind(1), q.dequantize().unbind(1), strict=True):
        y = y + torch.outer(u, v)
    return {"a_codes": p.codes, "a_scales": p.scales, "b_codes": q.codes, "b_scales": q.scales, "output": output(y)}


SUMS: dict[str, Callable[[], Dump]] = {
    "overflow to float16": lambda: product(X * 100, X * 100, lambda y: y.half()),
    "overflow to float32": lambda: product(X * 1e25, X * 1e25, lambda y: y),
    "underflow": lambda: product(X * 1e-22, X * 1e-22, lambda y: y),
    "one sign": lambda: product(X.abs(), X.abs(), lambda y: y),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_fp32_gives_are_inside_the_bound(name: str):
    report = check(SUMS[name](), "mxfp8")
    assert report, str(report)


def test_infinite_codes_make_infinite_products():
    a, b = nm.quantize(X, nm.MXFP8_E5M2), nm.quantize(X.abs() + 1, nm.MXFP8_E5M2)
    codes = a.codes.clone()
    codes[1, 1] = 0x7C
    y = a.dequantize()
    y[1, 1] = torch.inf
    d = {"a_codes": codes, "a_scales": a.scales, "b_codes": b.codes, "b_scales": b.scales}
    assert check(d | {"output": y @ b.dequantize().T}, "mxfp8_e5m2")
    assert not check(d | {"output": a.dequantize() @ b.dequantize().T}, "mxfp8_e5m2")


def test_an_infinity_without_overflow_is_outside():
    d = product(X, X, lambda y: torch.where(torch.arange(64) == 3, torch.inf, y))
    assert not check(d)


def test_a_truncated_output_is_named():
    d = product(X, X, lambda y: (y.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16())
    assert check(d).faults == ("the output is truncated to bfloat16, not rounded to nearest",)


def test_a_fault_in_one_row_of_a_tall_output_is_named():
    """Row 37 alone meets the wrong expert: outside the rows on which faults are tried first."""
    a, b = nm.quantize(X.repeat(10, 1), nm.NVFP4), nm.quantize(X.view(2, 32, 256), nm.NVFP4)
    d = {"a_codes": a.codes, "a_scales": a.scales, "a_outer": a.outer}
    d |= {"b_codes": b.codes, "b_scales": b.scales, "b_outer": b.outer, "groups": torch.tensor([0, 37, 640])}
    assert check(d | {"output": nm.matmul(a, b, groups=(0, 37, 640))})
    report = check(d | {"output": nm.matmul(a, b, groups=(0, 38, 640))})
    assert len(report.faults) == 1 and "offsets are off by one" in report.faults[0], str(report)


# Large tensors: laws are tried on a sample of blocks, and what survives is run on all.


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("fmt", "how"),
    [
        *[(fmt, {"outer": outer}) for outer in ("tensor", "row") for fmt in (nm.NVFP4, nm.NVFP4_46)],
        (nm.MXFP8, {}),
    ],
    ids=lambda value: value.name if isinstance(value, nm.BlockFormat) else value.get("outer", "no outer"),
)
def test_a_large_tensor_is_judged_as_a_small_one(fmt: nm.BlockFormat, how: dict, monkeypatch: pytest.MonkeyPatch):
    d = dump_of(HEAVY, fmt, **how)
    one = d["scales"].clone()
    one[40, 3] += 1
    truncated = nm.quantize(HEAVY, fmt, rounding=R.TOWARD_ZERO).codes
    changes = [{"scales": d["scales"].roll(1, 0)}, {"scales": one}, {"codes": truncated}]
    small = [check(d | change) for change in changes]
    monkeypatch.setattr(check_folded, "SIZE", 16)
    assert [check(d | change).faults for change in changes] == [report.faults for report in small]
