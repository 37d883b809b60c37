"""Block tensors as torch's block-scaled products take them (`torch_views`, and through it `torch_scales`).

Contract: `as_torch` gives dtypes, shapes, recipes and bytes of `scaled_mm`'s and `scaled_grouped_mm`'s operands, and
`from_torch` gives the same codes and scales back. Oracles: torch's own checks, run on meta tensors, which refuse wrong
sizes, dtypes and recipes; `layout`, tested by itself, for the bytes; a product worked out from the operand's bytes
alone, by the formula of the layout. Bitwise. No CPU has these products, so none runs here.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

import numerics as nm
from numerics import layout
from numerics.blocks import BlockFormat
from numerics.torch_views import PRODUCTS, TorchOperand, as_torch, from_torch

FP4, E4M3, E8M0 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn, torch.float8_e8m0fnu
FORMATS = [nm.NVFP4, nm.NVFP4_2D, nm.MXFP4, nm.MXFP8, nm.MXFP8_E5M2]  # those with one-byte scales
FP32 = [nm.FP8_1X128, nm.FP8_128X128]
SWIZZLED, PLAIN = SwizzleType.SWIZZLE_32_4_4, SwizzleType.NO_SWIZZLE
named = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)


def sample(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator) * torch.exp(torch.randn((*shape[:-1], 1), generator=generator))


def same(a: nm.BlockTensor, b: nm.BlockTensor) -> bool:
    return (a.fmt, a.axis, a.groups) == (b.fmt, b.axis, b.groups) and all(
        torch.equal(*pair) for pair in ((a.codes, b.codes), (a.scales, b.scales), (a.dequantize(), b.dequantize()))
    )


def per_row(q: nm.BlockTensor) -> torch.Tensor:
    """Its scales, one for each row: those of a tile repeated."""
    return q.scales.repeat_interleave(q.fmt.tile, dim=-2)[..., : q.shape[-2], :]


def meta_product(a: TorchOperand, b: TorchOperand) -> torch.Tensor:
    """torch's `scaled_mm` without data: all its checks, none of its arithmetic."""
    scales_a, scales_b = ([scale.to("meta") for scale in operand.scales] for operand in (a, b))
    return scaled_mm(
        a.data.to("meta"),
        b.data.to("meta").mT,
        scales_a,
        a.recipes,
        scales_b,
        b.recipes,
        a.swizzles,
        b.swizzles,
        output_dtype=torch.float32,
    )


# ---- what torch is given ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "data", "scale", "recipes"),
    [
        (nm.NVFP4, (FP4, (130, 80)), (E4M3, 256 * 12), [ScalingType.BlockWise1x16, ScalingType.TensorWise]),
        (nm.NVFP4_2D, (FP4, (130, 80)), (E4M3, 256 * 12), [ScalingType.BlockWise1x16, ScalingType.TensorWise]),
        (nm.MXFP4, (FP4, (130, 80)), (E8M0, 256 * 8), [ScalingType.BlockWise1x32]),
        (nm.MXFP8, (E4M3, (130, 160)), (E8M0, 256 * 8), [ScalingType.BlockWise1x32]),
        (nm.MXFP8_E5M2, (torch.float8_e5m2, (130, 160)), (E8M0, 256 * 8), [ScalingType.BlockWise1x32]),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_dtypes_shapes_recipes_and_bytes(fmt: BlockFormat, data: tuple, scale: tuple, recipes: list[ScalingType]):
    q = nm.quantize(sample(130, 160), fmt)
    operand = as_torch(q)
    assert (operand.data.dtype, tuple(operand.data.shape)) == data and operand.data.is_contiguous()
    assert torch.equal(operand.data.view(torch.uint8), q.packed())
    assert (operand.scales[0].dtype, operand.scales[0].numel()) == scale
    assert torch.equal(operand.scales[0].view(torch.uint8), layout.swizzle_scales(per_row(q)))
    assert operand.recipes == recipes and operand.swizzles == [SWIZZLED, PLAIN][: len(recipes)]
    assert len(operand.scales) == len(recipes) and operand.outer is None and operand.offs is None
    if len(recipes) == 2:
        assert operand.scales[1].shape == () and float(operand.scales[1]) == float(q.outer)


@named
def test_torch_accepts_the_operands(fmt: BlockFormat):
    a, b = as_torch(nm.quantize(sample(130, 160), fmt)), as_torch(nm.quantize(sample(48, 160), fmt))
    # for MXFP4 these checks, unlike the kernel's, take the bytes along K for K: the newer entry point's always, the
    # older one's before torch 2.13
    if fmt is not nm.MXFP4:
        out = meta_product(a, b)
        assert (tuple(out.shape), out.dtype) == ((130, 48), torch.float32)
    if len(a.scales) == 1 and (
        fmt is not nm.MXFP4 or torch.__version__ >= (2, 13)
    ):  # the older one has no second scale
        tensors = [t.to("meta") for t in (a.data, b.data.mT, a.scales[0], b.scales[0])]
        assert tuple(torch._scaled_mm(*tensors, out_dtype=torch.bfloat16).shape) == (130, 48)


def test_torch_refuses_what_is_not_swizzled_or_not_padded():
    """The check above would be worthless if torch took anything."""
    a, b = as_torch(nm.quantize(sample(130, 160), nm.MXFP8)), as_torch(nm.quantize(sample(48, 160), nm.MXFP8))
    with pytest.raises(RuntimeError, match="swizzle"):
        meta_product(replace(a, swizzles=[PLAIN]), b)
    with pytest.raises(RuntimeError, match="must have 2048"):
        meta_product(replace(a, scales=[a.scales[0][:-512]]), b)
    with pytest.raises(RuntimeError, match="types"):
        meta_product(replace(a, scales=[a.scales[0].view(torch.uint8).view(E4M3)]), b)


@named
def test_the_bytes_multiply_to_the_product(fmt: BlockFormat):
    """x @ w.T from the operands' bytes alone, each scale fetched at the offset that the hardware computes."""
    x, w = nm.quantize(sample(40, 96), fmt), nm.quantize(sample(130, 96), fmt)
    values = []
    for operand in (as_torch(x), as_torch(w)):
        codes = operand.data.view(torch.uint8)
        codes = layout.unpack_nibbles(codes) if operand.data.dtype == FP4 else codes
        rows, k = codes.shape[0], codes.shape[1] // fmt.block
        r, c = torch.arange(rows)[:, None], torch.arange(k)
        tiles_k = (k + 3) // 4
        offset = ((r // 128) * tiles_k + c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4
        scales = nm.decode(operand.scales[0].view(torch.uint8)[offset], fmt.scale)
        values.append(nm.decode(codes, fmt.element) * scales.repeat_interleave(fmt.block, dim=1))
        assert torch.equal(values[-1], (x, w)[len(values) - 1].values())


def test_eight_bit_data_are_a_view_of_the_codes():
    q = nm.quantize(sample(64, 64), nm.MXFP8)
    operand = as_torch(q, swizzle=PLAIN)
    assert operand.data.data_ptr() == q.codes.data_ptr()
    assert operand.scales[0].data_ptr() == q.scales.data_ptr() and tuple(operand.scales[0].shape) == (64, 2)
    back = from_torch(operand, nm.MXFP8)
    assert back.codes.data_ptr() == q.codes.data_ptr() and back.scales.data_ptr() == q.scales.data_ptr()


def test_a_backward_operand():
    """Requantized along axis -2, then turned so that the contraction is last: its codes were written in that order."""
    x = nm.quantize(sample(64, 48), nm.NVFP4)
    q = nm.requantize(x, nm.MXFP8, axis=-2, outer="multiply", rounding=nm.Rounding.NEAREST_EVEN).mT
    operand = as_torch(q)
    assert tuple(operand.data.shape) == (48, 64) and operand.data.data_ptr() == q.codes.data_ptr()
    assert same(from_torch(operand, nm.MXFP8), q)


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f.tile == 1], ids=lambda f: f.name)
def test_non_contiguous_codes_are_laid_out_anew(fmt: BlockFormat):
    q = nm.quantize(sample(66, 96), fmt)
    every_other = replace(q, codes=q.codes[::2], scales=q.scales[::2])
    for swizzle in (SWIZZLED, PLAIN):
        operand = as_torch(every_other, swizzle=swizzle)
        assert operand.data.is_contiguous() and operand.scales[0].is_contiguous()
        assert same(from_torch(operand, fmt), every_other)


# ---- FP32 scales -----------------------------------------------------------------------------------------------------


def test_fp32_scales():
    x, w = nm.quantize(sample(130, 640), nm.FP8_1X128), nm.quantize(sample(272, 640), nm.FP8_128X128)
    a, b = as_torch(x), as_torch(w)
    assert (a.recipes, b.recipes) == ([ScalingType.BlockWise1x128], [ScalingType.BlockWise128x128])
    assert a.swizzles == b.swizzles == [PLAIN] and a.data.dtype == b.data.dtype == E4M3
    assert (tuple(a.scales[0].shape), a.scales[0].stride()) == ((130, 5), (1, 130))
    assert torch.equal(a.scales[0], x.scales)
    assert (tuple(b.scales[0].shape), b.scales[0].stride()) == ((8, 3), (1, 8))  # 5 along K, padded to 8
    assert torch.equal(b.scales[0][:5].T, w.scales) and not b.scales[0][5:].any()
    assert same(from_torch(a, nm.FP8_1X128), x) and same(from_torch(b, nm.FP8_128X128), w)


def test_torch_accepts_fp32_scales():
    rows, tiles = (as_torch(nm.quantize(sample(256, 640), fmt)) for fmt in FP32)
    for a, b in ((rows, rows), (rows, tiles), (tiles, rows)):
        assert tuple(meta_product(a, b).shape) == (256, 256)
    with pytest.raises(RuntimeError, match="stride"):
        meta_product(replace(rows, scales=[rows.scales[0].contiguous()]), rows)


@pytest.mark.parametrize("fmt", FP32, ids=lambda f: f.name)
@pytest.mark.parametrize("shape", [(1, 16), (1, 300), (200, 100), (0, 128), (5, 0)], ids=str)
def test_fp32_scales_at_the_edges(fmt: BlockFormat, shape: tuple[int, int]):
    """One row, one block, none: the strides that torch checks are set along axes of length 1 too."""
    q = nm.quantize(sample(*shape), fmt)
    operand = as_torch(q)
    assert operand.scales[0].stride() == (1, max(1, operand.scales[0].shape[0]))
    assert same(from_torch(operand, fmt), q)


def test_fp32_scales_have_no_grouped_product():
    for fmt in FP32:
        with pytest.raises(ValueError, match=r"\(2, 32, 128\), groups=None and FP32 scales"):
            as_torch(nm.quantize(sample(2, 32, 128), fmt))
        with pytest.raises(ValueError, match=r"groups=.*FP32 scales"):
            as_torch(nm.quantize(sample(32, 128), fmt, groups=(0, 64, 128)))
        with pytest.raises(ValueError, match="with one-byte scales and without groups"):
            as_torch(nm.quantize(sample(32, 128), fmt), row_groups=(0, 32))


# ---- outer scales ----------------------------------------------------------------------------------------------------


def test_an_outer_scale_outside_is_left_to_the_caller():
    q = nm.quantize(sample(64, 64), nm.NVFP4, outer="row")
    operand = as_torch(q, outer="outside")
    assert operand.recipes == [ScalingType.BlockWise1x16] and operand.swizzles == [SWIZZLED]
    assert operand.outer is q.outer and tuple(operand.outer.shape) == (64, 1)
    b = as_torch(nm.quantize(sample(32, 64), nm.NVFP4), outer="outside")
    assert tuple(meta_product(operand, b).shape) == (64, 32)  # single-level NVFP4
    assert same(from_torch(operand, nm.NVFP4), q)


def test_an_outer_scale_that_torch_has_no_place_for_is_an_error():
    with pytest.raises(ValueError, match=r"shape \(64, 1\) of NVFP4 \(64, 64\); pass outer='outside'"):
        as_torch(nm.quantize(sample(64, 64), nm.NVFP4, outer="row"))
    q = nm.quantize(sample(64, 64), nm.NVFP4)
    kept = nm.requantize(q, nm.MXFP8, axis=-1, rounding=nm.Rounding.NEAREST_EVEN)
    with pytest.raises(ValueError, match=r"of MXFP8 .*pass outer='outside'"):
        as_torch(kept)
    assert as_torch(kept, outer="outside").outer is q.outer
    with pytest.raises(ValueError, match="use 'inside' or 'outside'"):
        as_torch(q, outer="drop")
    runs = nm.quantize(sample(64, 256), nm.NVFP4, outer=128)
    with pytest.raises(ValueError, match=r"\(64, 2\) that varies along the contraction.*outer='multiply'"):
        as_torch(runs, outer="outside")


def test_no_outer_scale_at_all():
    q = nm.quantize(sample(64, 64), nm.NVFP4, outer=None)
    operand = as_torch(q)
    assert operand.recipes == [ScalingType.BlockWise1x16] and operand.outer is None
    assert from_torch(operand, nm.NVFP4).outer is None


# ---- experts ---------------------------------------------------------------------------------------------------------

ROWS = (0, 100, 100, 256)  # an expert without tokens, and none of a multiple of 128


@named
def test_tokens_and_weights_of_experts(fmt: BlockFormat):
    x, w = nm.quantize(sample(256, 160), fmt), nm.quantize(sample(3, 48, 160), fmt)
    a, b = as_torch(x, row_groups=ROWS), as_torch(w)
    k = 12 if fmt.block == 16 else 8
    assert tuple(a.scales[0].shape) == (128 + 0 + 256, k) and tuple(b.scales[0].shape) == (3, 128 * k)
    assert a.offs.tolist() == [100, 100, 256] and a.offs.dtype == torch.int32 and b.offs is None
    stored = a.scales[0].view(torch.uint8).flatten()
    assert torch.equal(stored[: 128 * k], layout.swizzle_scales(per_row(x)[:100]))
    assert torch.equal(stored[128 * k :], layout.swizzle_scales(per_row(x)[100:]))
    assert torch.equal(b.scales[0].view(torch.uint8)[2], layout.swizzle_scales(per_row(w)[2]))
    if fmt.block == 16:
        assert torch.equal(a.scales[1], x.outer.flatten().expand(3)) and b.scales[1].shape == (3,)
    assert same(from_torch(a, fmt), x) and same(from_torch(b, fmt), w)


def test_torch_accepts_tokens_and_weights_of_experts():
    """The older entry point has checks that run without data; it takes MXFP8 alone."""
    a = as_torch(nm.quantize(sample(256, 160), nm.MXFP8), row_groups=ROWS)
    b = as_torch(nm.quantize(sample(3, 48, 160), nm.MXFP8))
    tensors = [t.to("meta") for t in (a.data, b.data.mT, a.scales[0], b.scales[0], a.offs)]
    assert tuple(torch._scaled_grouped_mm(*tensors, out_dtype=torch.bfloat16).shape) == (256, 48)
    tensors[3] = tensors[3][:, :-4]
    with pytest.raises(RuntimeError, match="scale shape"):
        torch._scaled_grouped_mm(*tensors, out_dtype=torch.bfloat16)


@named
def test_groups_along_the_contraction(fmt: BlockFormat):
    """Weight gradients: tokens are the contraction, cut by expert; each expert's scales are padded to 4 alone."""
    groups = (0, 48, 48, 208, 256)
    q = nm.quantize(sample(130, 256), fmt, groups=groups)
    operand = as_torch(q)
    assert operand.offs.tolist() == [48, 48, 208, 256] and operand.row_groups is None
    ends = (0, 3, 3, 13, 16) if fmt.block == 16 else (0, 2, 2, 7, 9)
    parts = [layout.swizzle_scales(per_row(q)[:, i:j]) for i, j in pairwise(ends)]
    assert torch.equal(operand.scales[0].view(torch.uint8).flatten(), torch.cat(parts))
    assert operand.scales[0].ndim == 2 and operand.scales[0].shape[0] == 256
    assert same(from_torch(operand, fmt), q)


def test_one_group_is_still_a_group():
    """torch asks for two axes as soon as there are offsets."""
    rows = as_torch(nm.quantize(sample(64, 64), nm.MXFP8), row_groups=(0, 64))
    columns = as_torch(nm.quantize(sample(64, 64), nm.MXFP8, groups=(0, 64)))
    assert rows.scales[0].shape == columns.scales[0].shape == (128, 4) and rows.offs.tolist() == [64]


def test_an_outer_scale_per_expert():
    w = nm.quantize(sample(3, 48, 64), nm.NVFP4, outer="leading")
    operand = as_torch(w)
    assert torch.equal(operand.scales[1], w.outer.flatten()) and same(from_torch(operand, nm.NVFP4), w)
    # torch's own form for tokens: one global scale per expert, which becomes one per row
    x = nm.quantize(sample(256, 64), nm.NVFP4, outer=None)
    scale = torch.tensor([2.0, 3.0, 5.0])
    tokens = as_torch(x, row_groups=ROWS)
    recipes, swizzles = [*tokens.recipes, ScalingType.TensorWise], [*tokens.swizzles, PLAIN]
    tokens = replace(tokens, scales=[*tokens.scales, scale], recipes=recipes, swizzles=swizzles)
    back = from_torch(tokens, nm.NVFP4)
    assert back.outer.flatten().tolist() == [2.0] * 100 + [5.0] * 156
    assert torch.equal(back.dequantize(), x.values() * back.outer)
    # and for weight gradients one per position along the contraction
    g = nm.quantize(sample(16, 96), nm.NVFP4, outer=None, groups=(0, 32, 48, 96))
    columns = as_torch(g)
    columns = replace(columns, scales=[*columns.scales, scale], recipes=recipes, swizzles=swizzles)
    back = from_torch(columns, nm.NVFP4)
    assert back.outer.shape == (1, 96) and back.outer.flatten().tolist() == [2.0] * 32 + [3.0] * 16 + [5.0] * 48


# ---- round trips and edges -------------------------------------------------------------------------------------------


@named
@pytest.mark.parametrize("swizzle", [SWIZZLED, PLAIN], ids=["swizzled", "plain"])
@pytest.mark.parametrize("shape", [(1, 16), (130, 90), (0, 64), (2, 33, 48), (3, 0, 32), (5, 0)], ids=str)
def test_round_trip(fmt: BlockFormat, swizzle: SwizzleType, shape: tuple[int, ...]):
    q = nm.quantize(sample(*shape), fmt)
    back = from_torch(as_torch(q, swizzle=swizzle), fmt, rule=q.rule)
    assert same(back, q) and back.rule == q.rule
    assert from_torch(as_torch(q, swizzle=swizzle), fmt).rule == "unknown"


@pytest.mark.parametrize("groups", [(0, 0), (0, 0, 0)], ids=str)
def test_no_rows_and_no_columns_in_groups(groups: tuple[int, ...]):
    for shape in ((0, 64), (0, 0)):
        q = nm.quantize(sample(*shape), nm.MXFP8)
        assert same(from_torch(as_torch(q, row_groups=groups), nm.MXFP8), q)
    q = nm.quantize(sample(64, 0), nm.MXFP8, groups=groups)
    assert same(from_torch(as_torch(q), nm.MXFP8), q)


def test_nan_blocks_keep_their_bytes():
    x = sample(32, 64)
    x[3, 5], x[7, 40] = torch.nan, torch.inf
    for fmt in FORMATS:
        assert torch.equal(from_torch(as_torch(nm.quantize(x, fmt)), fmt).scales, nm.quantize(x, fmt).scales)


def test_as_torch_rejects_what_torch_does_not_take():
    x = sample(64, 64)
    for fmt in (nm.MXS2F6, nm.MXFP6_E2M3, nm.NVINT4, nm.IF4):
        with pytest.raises(ValueError, match=rf"{fmt.name}\(.*\) has no product in torch, .* E2M1 x 16 with E4M3, "):
            as_torch(nm.quantize(x, fmt))
    with pytest.raises(ValueError, match=r"along axis 0 of 2: they must be last; pass q.mT"):
        as_torch(nm.quantize(x, nm.MXFP8, axis=0))
    with pytest.raises(ValueError, match=r"\(64,\): torch's products take"):
        as_torch(nm.quantize(x[0], nm.MXFP8))
    with pytest.raises(ValueError, match=r"\(2, 32, 64\) and groups=\(0, 32, 64\)"):
        as_torch(nm.quantize(sample(2, 32, 64), nm.MXFP8, groups=(0, 32, 64)))
    with pytest.raises(ValueError, match="the last axis must be even"):
        as_torch(nm.quantize(sample(64, 63), nm.NVFP4))
    with pytest.raises(ValueError, match=r"groups=\(0, 31, 64\): a byte holds two E2M1 codes"):
        as_torch(nm.quantize(x, nm.NVFP4, groups=(0, 31, 64)))
    with pytest.raises(ValueError, match=r"groups=\[0, 65\]: offsets must start at 0"):
        as_torch(nm.quantize(x, nm.NVFP4), row_groups=(0, 65))
    with pytest.raises(ValueError, match=r"row_groups=\[0, 64\] with NVFP4, shape \(64, 64\) and groups=\(0, 64\)"):
        as_torch(nm.quantize(x, nm.NVFP4, groups=(0, 64)), row_groups=(0, 64))


def test_from_torch_rejects_other_tensors():
    operand = as_torch(nm.quantize(sample(130, 64), nm.MXFP8), row_groups=(0, 2, 130))
    with pytest.raises(ValueError, match=r"float8_e4m3fn.*: NVFP4 is .*float4_e2m1fn_x2"):
        from_torch(operand, nm.NVFP4)
    with pytest.raises(ValueError, match="1020 bytes: these groups have 1024"):
        from_torch(replace(operand, scales=[operand.scales[0].flatten()[:-4]]), nm.MXFP8)
    with pytest.raises(ValueError, match="1024 bytes"):
        from_torch(replace(operand, row_groups=None, data=operand.data[:64]), nm.MXFP8)
    with pytest.raises(ValueError, match="offsets must start at 0"):
        from_torch(replace(operand, row_groups=(0, 2, 129)), nm.MXFP8)
    with pytest.raises(ValueError, match=r"\(256, 4\): plain scales of these data have \(130, 2\)"):
        from_torch(replace(operand, swizzles=[PLAIN]), nm.MXFP8)
    with pytest.raises(ValueError, match=r"operand.data has shape \(64,\)"):
        from_torch(replace(operand, data=operand.data[0]), nm.MXFP8)
    tiled = as_torch(nm.quantize(sample(64, 64), nm.NVFP4_2D))
    scales = tiled.scales[0].clone().view(torch.uint8)
    scales[0] ^= 1
    with pytest.raises(ValueError, match="scales differ within tiles of 16 rows"):
        from_torch(replace(tiled, scales=[scales.view(E4M3), tiled.scales[1]]), nm.NVFP4_2D)
    padded = as_torch(nm.quantize(sample(64, 256), nm.FP8_128X128))
    with pytest.raises(ValueError, match=r"scales have shape \(3, 1\): 1 x 2 tiles have \(4, 1\)"):
        from_torch(replace(padded, scales=[padded.scales[0][:3]]), nm.FP8_128X128)
    two = as_torch(nm.quantize(sample(4, 64), nm.NVFP4))
    with pytest.raises(ValueError, match=r"operand.scales\[1\] has shape \(3,\), torch.float32"):
        from_torch(replace(two, scales=[two.scales[0], torch.ones(3)]), nm.NVFP4)


def test_from_torch_takes_no_lists_that_contradict_each_other():
    two, one = as_torch(nm.quantize(sample(4, 64), nm.NVFP4)), as_torch(nm.quantize(sample(4, 64), nm.MXFP8))
    for name in ("scales", "recipes", "swizzles"):
        short = {name: getattr(two, name)[:1]}
        with pytest.raises(ValueError, match=r"operand has [12] scales, [12] recipes and [12] swizzles: .* as many"):
            from_torch(replace(two, **short), nm.NVFP4)
    for wrong in (None, 0, "SWIZZLE_32_4_4"):
        with pytest.raises(TypeError, match=rf"operand.swizzles\[0\] is {wrong!r} .*: use a member of .*SwizzleType"):
            from_torch(replace(one, swizzles=[wrong]), nm.MXFP8)
        with pytest.raises(TypeError, match=rf"operand.swizzles\[1\] is {wrong!r}"):
            from_torch(replace(two, swizzles=[two.swizzles[0], wrong]), nm.NVFP4)
        with pytest.raises(TypeError, match=rf"operand.recipes\[0\] is {wrong!r} .*: use a member of .*ScalingType"):
            from_torch(replace(one, recipes=[wrong]), nm.MXFP8)
    with pytest.raises(ValueError, match=r"operand.recipes\[1\] is .*BlockWise1x16: .*TensorWise"):
        from_torch(replace(two, recipes=two.recipes[:1] * 2), nm.NVFP4)
    with pytest.raises(ValueError, match=r"operand.swizzles\[1\] is .*SWIZZLE_32_4_4.*: .*NO_SWIZZLE"):
        from_torch(replace(two, swizzles=two.swizzles[:1] * 2), nm.NVFP4)
    with pytest.raises(ValueError, match=r"operand has an outer of shape \(4, 1\) and a second scale: pass one"):
        from_torch(replace(two, outer=torch.ones(4, 1)), nm.NVFP4)


def test_every_product_is_tried_here():
    tried = {(f.element, f.scale, f.block, f.tile if f.scale is None else 1) for f in FORMATS + FP32}
    assert set(PRODUCTS) - tried == {(nm.E2M1, nm.UE4M3, 16, 1)}  # the same bytes as E4M3's


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: torch finds no CUDA device")
@named
def test_a_gpu_lays_out_the_same_bytes(fmt: BlockFormat):
    q = nm.quantize(sample(130, 160), fmt)
    there = replace(q, codes=q.codes.cuda(), scales=q.scales.cuda(), outer=None if q.outer is None else q.outer.cuda())
    cpu, gpu = as_torch(q, row_groups=(0, 7, 130)), as_torch(there, row_groups=(0, 7, 130))
    for a, b in zip([cpu.data, *cpu.scales], [gpu.data, *gpu.scales], strict=True):
        assert torch.equal(a.view(torch.uint8), b.cpu().view(torch.uint8))
    assert gpu.offs.device.type == "cuda" and torch.equal(from_torch(gpu, fmt).codes.cpu(), q.codes)


HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.skipif(not HOPPER, reason="not run: torch finds no Hopper GPU, which alone multiplies with FP32 scales")
@pytest.mark.parametrize("second", FP32, ids=lambda f: f.name)
def test_a_hopper_gpu_multiplies_them(second: BlockFormat):
    """Rows differ in magnitude by orders: scales in a wrong place are far beyond the tolerance."""
    x, w = nm.quantize(sample(256, 640).cuda(), nm.FP8_1X128), nm.quantize(sample(384, 640).cuda(), second)
    a, b = as_torch(x), as_torch(w)
    y = scaled_mm(
        a.data, b.data.mT, a.scales, a.recipes, b.scales, b.recipes, a.swizzles, b.swizzles, output_dtype=torch.float32
    )
    exact = x.values().double() @ w.values().double().mT
    size = x.values().double().abs() @ w.values().double().abs().mT
    # Hopper's FP8 products add 32 terms and the sum so far, each cut at 2^-13 of the largest, and cut the result there:
    # 34 units, four times per block of 128. Adding blocks in FP32 is small beside that.
    assert bool(((y.double() - exact).abs() <= size * (4 * 34 * 2.0**-13)).all())
    assert bool(((y.double() - exact).abs() > size * 2.0**-40).any())  # the hardware's product, no emulation
