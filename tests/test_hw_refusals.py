"""Contract: what has no kernel is refused in words, and what only looks alike is told apart. Oracle: numerics.ops."""

import pytest
import torch

import numerics as nm
from numerics import ops

pytest.importorskip("triton")

from hw import ops as kernels
from hw.grouped import decoded

SR = nm.Rounding.STOCHASTIC
X = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
RANDOM = nm.Random((0, 1))
CASTS = [
    ops.Cast(nm.NVFP4_46, "row", SR), ops.Cast(nm.MXS2F6, None, SR), ops.Cast(nm.MXFP8, None, nm.Rounding.TOWARD_ZERO),
    ops.Cast(nm.NVFP4, 32), ops.Cast(nm.NVINT4, "row"), ops.Cast(nm.MXFP8_E5M2), ops.Cast(nm.FP8_1X128),
]  # fmt: skip


@pytest.mark.parametrize("cast", CASTS, ids=lambda c: f"{c.fmt.name} {c.outer} {c.rounding.value}")
@pytest.mark.parametrize("axis", [-1, -2])
def test_a_cast_without_a_kernel_is_refused(cast: ops.Cast, axis: int):
    with pytest.raises(ValueError, match=r"hw has no Triton kernel for .*; use --ops emulated"):
        kernels.quantize_tokens(X, cast, RANDOM, None, axis)


def test_what_features_have_and_tokens_have_not():
    for cast in (ops.Cast(nm.MXFP4), ops.Cast(nm.NVFP4_46, "tensor"), ops.Cast(nm.NVFP4, "row")):
        assert kernels.quantize_tokens(X, cast).fmt == cast.fmt
        with pytest.raises(ValueError, match="hw has no Triton kernel for"):
            kernels.quantize_tokens(X, cast, None, None, -2)
    with pytest.raises(ValueError, match="a Hadamard transform of 64 before blocks of 32"):
        kernels.quantize_tokens(X, ops.Cast(nm.MXFP8), signs=torch.ones(64))


@pytest.mark.parametrize("fmt", [nm.MXFP4, nm.MXFP8, nm.NVFP4, nm.NVFP4_2D], ids=lambda f: f.name)
@pytest.mark.parametrize("axis", [-1, -2])
def test_scales_are_read_by_their_format_along_either_axis(fmt: nm.BlockFormat, axis: int):
    q = nm.quantize(X, fmt, axis)
    outer = None if q.outer is None else q.outer.expand(32, 1).flatten().contiguous()
    assert torch.equal(decoded(q, outer=outer)[0], q.dequantize())
    narrow, flag = decoded(q, True)
    assert torch.equal(narrow, q.values().to(torch.bfloat16)) and (flag is None or not int(flag))


def test_a_payload_along_tokens_is_decoded_along_tokens():
    q, slots = nm.quantize(X, nm.MXFP8, -2), torch.arange(32).view(16, 2)
    for a, b in zip(*(o.aggregate(q, slots, None, ops.Wire(None)) for o in (kernels, ops)), strict=True):
        assert torch.equal(a, b)
