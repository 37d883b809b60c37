"""The arguments of torch's block-scaled products (`hw.scaled_mm`).

Contract: torch takes them, in every product of the expert path, and they mean the stored values; what torch does not
take is refused. Oracles: torch's own shape inference on the meta device, and a reading of the arguments by cuBLAS's
documented layouts (`library_model`), against `numerics.BlockTensor.values` and exact sums.
"""

from itertools import pairwise
from typing import Any

import library_model
import pytest
import torch
from kernel_cases import data
from torch import Tensor
from torch.nn import functional

import numerics as nm

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw import scaled_mm

GROUPS = (0, 0, 5, 5, 138, 139, 171, 171)  # ragged, empty at both ends, one row, a whole block, more than a tile
FORMATS = pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP8], ids=lambda fmt: fmt.name)
SIZES = [j - i for i, j in pairwise(GROUPS)]


def meta(q: nm.BlockTensor) -> nm.BlockTensor:
    return q.derived(codes=q.codes.to("meta"), scales=q.scales.to("meta"), outer=None)


def by_rows(fmt: nm.BlockFormat, k: int, n: int, weight: nm.BlockFormat | None = None) -> Any:
    """Operands of fprop: rows and matrices with blocks along k."""
    x, w = data("normal", GROUPS[-1], k), data("row scales", len(GROUPS) - 1, n, k, seed=1)
    return nm.quantize(x, fmt, outer=None), nm.quantize(w, weight or fmt, outer=None)


def by_columns(fmt: nm.BlockFormat, n: int, k: int) -> Any:
    """Operands of wgrad, blocks along tokens, seen with the contraction last."""
    return tuple(
        nm.quantize(data("normal", GROUPS[-1], width, seed=width), fmt, -2, outer=None, groups=GROUPS).mT
        for width in (n, k)
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What scaled_mm is called with; torch's own answers."""
    seen: list[dict[str, Any]] = []

    def watched(**arguments: Any) -> Tensor:
        seen.append(arguments)
        return library_model.TORCHS(**arguments)

    monkeypatch.setattr(functional, "scaled_mm", watched)
    return seen


# Torch takes them.


@FORMATS
@pytest.mark.parametrize("product", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize(("k", "n"), [(256, 128), (96, 48), (40, 24), (15, 1)])
def test_torch_takes_the_arguments(
    fmt: nm.BlockFormat, product: str, k: int, n: int, calls: list[dict[str, Any]]
) -> None:
    """In its own shape inference; one call for each expert with rows; FP32 sums of the right shape."""
    experts, counts = len(GROUPS) - 1, [5, 133, 1, 32]
    if product == "wgrad":
        a, b = by_columns(fmt, n, k)
        out = scaled_mm.columns_by_experts(meta(a), meta(b), GROUPS)
        assert out.shape == (experts, n, k)
    else:
        a, b = by_rows(fmt, k, n)
        if product == "dgrad":  # the weight's blocks run along its first axis, seen with the contraction last
            b = nm.quantize(data("normal", experts, k, n), fmt, -2, outer=None).mT
        out = scaled_mm.rows_by_experts(meta(a), meta(b), GROUPS)
        assert out.shape == (GROUPS[-1], n)
    assert out.dtype == torch.float32 and out.is_meta and len(calls) == len(counts)
    packing, block = (2, 16) if fmt is nm.NVFP4 else (1, 32)
    kinds, swizzles = functional.ScalingType, functional.SwizzleType
    recipe, swizzle = [kinds.BlockWise1x32], [swizzles.SWIZZLE_32_4_4]
    if fmt is nm.NVFP4:
        recipe, swizzle = [kinds.BlockWise1x16, kinds.TensorWise], [swizzles.SWIZZLE_32_4_4, swizzles.NO_SWIZZLE]
    for call, count in zip(calls, counts, strict=True):
        lines, length, width = (n, count, k) if product == "wgrad" else (count, k, n)
        assert call["output_dtype"] == torch.float32
        m, deep = call["mat_a"].shape
        assert deep * packing == -(-length // 32) * 32 and m == (-(-lines // 16) * 16 if product == "wgrad" else lines)
        assert call["mat_b"].shape == (deep, -(-width // 16) * 16)
        assert call["mat_a"].stride(1) == 1 and call["mat_b"].stride(0) == 1
        for side, count_of in (("a", lines), ("b", width)):
            assert (call[f"scale_recipe_{side}"], call[f"swizzle_{side}"]) == (recipe, swizzle)
            assert len(call[f"scale_{side}"]) == len(recipe)  # the GPU's side compares them, the inference does not
            assert call[f"scale_{side}"][0].shape == (-(-count_of // 128) * 128 * -(-length // (4 * block)) * 4,)


def test_nothing_to_multiply(calls: list[dict[str, Any]]) -> None:
    for fmt in (nm.NVFP4, nm.MXFP8):
        w = nm.quantize(torch.ones(2, 16, 32), fmt, outer=None)
        none = nm.quantize(torch.ones(0, 32), fmt, outer=None)
        assert scaled_mm.rows_by_experts(none, w, (0, 0, 0)).shape == (0, 16)
        none = nm.quantize(torch.ones(0, 32), fmt, -2, outer=None, groups=(0, 0, 0)).mT
        assert torch.equal(scaled_mm.columns_by_experts(none, none, (0, 0, 0)), torch.zeros(2, 32, 32))
        no_depth = nm.quantize(torch.ones(3, 0), fmt, outer=None), nm.quantize(torch.ones(1, 4, 0), fmt, outer=None)
        assert torch.equal(scaled_mm.rows_by_experts(*no_depth, (0, 3)), torch.zeros(3, 4))
    assert not calls


# And would not take others.


def _scale(side: str, level: int, change: Any) -> Any:
    def changed(call: dict[str, Any]) -> None:
        scales = list(call[f"scale_{side}"])
        scales[level] = change(scales[level])
        call[f"scale_{side}"] = scales

    return changed


def _other_recipe(call: dict[str, Any]) -> None:
    kinds = functional.ScalingType
    recipe = [kinds.BlockWise1x16 if len(call["scale_a"]) == 1 else kinds.BlockWise1x32]
    call.update(scale_recipe_a=recipe, scale_recipe_b=recipe)


SCALES = r"for (MX|NV|single-level NV) scaling"
WRONG: dict[str, tuple[Any, str]] = {
    "outer scales of rows as second level": (
        _scale("a", -1, lambda s: s.new_ones(133, 1, dtype=torch.float32)),
        SCALES,
    ),
    "not swizzled": (
        lambda call: call.update(swizzle_a=[functional.SwizzleType.NO_SWIZZLE] * len(call["swizzle_a"])),
        SCALES,
    ),
    "no swizzle named": (lambda call: call.update(swizzle_b=None), SCALES),
    "scales without padding": (_scale("a", 0, lambda s: s[: 133 * 4]), SCALES),
    "scales of another matrix": (_scale("b", 0, lambda s: torch.cat([s, s])), SCALES),
    "scales as bytes": (_scale("b", 0, lambda s: s.view(torch.uint8)), SCALES),
    "the recipe of the other format": (_other_recipe, SCALES),
    "b row-major": (lambda call: call.update(mat_b=call["mat_b"].contiguous()), "mat2 must be col_major"),
    "a column-major": (lambda call: call.update(mat_a=call["mat_a"].T.contiguous().T), "self must be row_major"),
    "a contraction of 40 bytes": (
        lambda call: call.update(mat_a=call["mat_a"][:, :40]),
        r"self.size\(1\) to be divisible by 16",
    ),
    "24 columns": (lambda call: call.update(mat_b=call["mat_b"][:, :24]), "both dimensions of mat2 to be divisible"),
    "codes as bytes": (
        lambda call: call.update(mat_a=call["mat_a"].view(torch.uint8)),
        "Expected both inputs to be fp8 or fp4",
    ),
}


@FORMATS
@pytest.mark.parametrize("name", WRONG)
def test_torch_would_not_take_others(fmt: nm.BlockFormat, name: str) -> None:
    """So what it takes above it has looked at."""
    a, b = by_rows(fmt, 96 if fmt is nm.NVFP4 else 48, 48)
    call = scaled_mm.arguments(scaled_mm.rows(meta(a), GROUPS)[3], scaled_mm.matrices(meta(b))[3])
    assert library_model.TORCHS(**call).shape == (133, 48)
    change, message = WRONG[name]
    change(call)
    with pytest.raises((RuntimeError, ValueError), match=message):
        library_model.TORCHS(**call)


# What they mean.


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46, nm.NVFP4_2D, nm.MXFP8], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("k", [256, 96, 40, 15])
def test_arguments_mean_the_stored_values(fmt: nm.BlockFormat, k: int) -> None:
    """Codes and scales read back by the documented layout; zeros where they are filled up."""
    along = nm.NVFP4 if fmt is nm.NVFP4_2D else fmt  # tiles belong to weights
    x, w = by_rows(along, k, 20, fmt)
    expected = list(zip(x.values().split(SIZES), scaled_mm.rows(x, GROUPS), strict=True))
    expected += zip(w.values(), scaled_mm.matrices(w), strict=True)
    across = nm.quantize(data("normal", 3, k, 20), fmt, -2, outer=None).mT
    expected += zip(across.values(), scaled_mm.matrices(across), strict=True)
    for q in by_columns(along, 20, k):
        expected += zip(q.values().split(SIZES, 1), scaled_mm.columns(q, GROUPS), strict=True)
    for values, piece in expected:
        assert piece.lines == len(values)
        if values.numel():
            found = library_model.read(piece.codes, piece.scales)
            whole = torch.zeros_like(found)
            whole[: values.shape[0], : values.shape[1]] = values
            assert torch.equal(found, whole)


@pytest.mark.parametrize("weight", [nm.NVFP4, nm.NVFP4_2D, nm.NVFP4_46, nm.MXFP8], ids=lambda fmt: fmt.name)
def test_products_are_exact_sums_of_the_stored_values(weight: nm.BlockFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "scaled_mm", library_model.scaled_mm)
    fmt = nm.MXFP8 if weight is nm.MXFP8 else nm.NVFP4_46
    for k, n in ((96, 48), (40, 20)):
        x, w = by_rows(fmt, k, n, weight)
        assert torch.equal(scaled_mm.rows_by_experts(x, w, GROUPS), nm.matmul(x, w, "exact", groups=GROUPS))
        a, b = by_columns(fmt, n, k)
        assert torch.equal(scaled_mm.columns_by_experts(a, b, GROUPS), nm.matmul(a, b, "exact", groups=GROUPS))


def test_one_code_changes_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands are the stored codes: nothing is kept beside them."""
    monkeypatch.setattr(functional, "scaled_mm", library_model.scaled_mm)
    x, w = by_rows(nm.NVFP4, 40, 20)
    before = scaled_mm.rows_by_experts(x, w, GROUPS)
    codes = x.codes.clone()
    codes[140, 39] ^= 8 if codes[140, 39] & 7 else 2
    after = scaled_mm.rows_by_experts(x.derived(codes=codes), w, GROUPS)
    assert (before != after).any(1).nonzero().flatten().tolist() == [140]


def test_codes_at_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that starts between multiples of 16 bytes is copied to one."""
    x, _ = by_rows(nm.MXFP8, 64, 16)
    store = torch.zeros(x.codes.numel() + 4, dtype=torch.uint8)
    store[4:] = x.codes.flatten()
    moved = x.derived(codes=store[4:].view(x.codes.shape))
    assert moved.codes.data_ptr() % 16
    for piece, expected in zip(scaled_mm.rows(moved, GROUPS), x.values().split(SIZES), strict=True):
        assert piece.codes.data_ptr() % 16 == 0
        assert torch.equal(library_model.read(piece.codes, piece.scales)[: piece.lines], expected.double())


# Refusals.


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (nm.NVFP4, nm.MXFP8, "not NVFP4 by MXFP8; use --ops triton or emulated, or a recipe without it"),
        (nm.MXFP4, nm.MXFP4, "not MXFP4 by MXFP4"),
        (nm.MXFP8_E5M2, nm.MXFP8, "not MXFP8_E5M2 by MXFP8"),
        (nm.MXS2F6, nm.MXS2F6, "not MXS2F6 by MXS2F6"),
        (nm.NVINT4, nm.NVFP4, "not NVINT4 by NVFP4"),
    ],
    ids=str,
)
def test_formats_that_torch_does_not_multiply(a: nm.BlockFormat, b: nm.BlockFormat, message: str) -> None:
    x, w = nm.quantize(data("normal", 3, 32), a, outer=None), nm.quantize(data("normal", 1, 16, 32), b, outer=None)
    with pytest.raises(ValueError, match=message):
        scaled_mm.rows_by_experts(x, w, (0, 3))


def test_operands_that_do_not_fit() -> None:
    x, w = by_rows(nm.NVFP4, 64, 16)
    with pytest.raises(ValueError, match="outer scales that vary along the contraction"):
        scaled_mm.rows_by_experts(nm.quantize(data("normal", 3, 256), nm.NVFP4, outer=128), w, (0, 3))
    with pytest.raises(ValueError, match="b has its blocks along axis 1: the contraction is the last one"):
        scaled_mm.rows_by_experts(x, w.mT, GROUPS)
    with pytest.raises(ValueError, match=r"a has shape \(171, 64\) and b \(7, 16, 32\): their last axes"):
        scaled_mm.rows_by_experts(x, by_rows(nm.NVFP4, 32, 16)[1], GROUPS)
    along = nm.quantize(data("normal", 40, 16), nm.MXFP8, -2).mT
    with pytest.raises(ValueError, match=r"a has its blocks from offsets \(0, 40\), the experts are at \(0, 8, 40\)"):
        scaled_mm.columns_by_experts(along, along, (0, 8, 40))
    other = nm.quantize(data("normal", 40, 16), nm.MXFP8, -2, groups=(0, 32, 40)).mT
    with pytest.raises(ValueError, match=r"offsets \(0, 32, 40\), the experts are at \(0, 40\)"):
        scaled_mm.columns_by_experts(other, other, (0, 40))
    assert [piece.codes.shape[1] for piece in scaled_mm.columns(along, (0, 32, 40))] == [32, 32]
