"""Hadamard transforms in `fourbit check`: in the dtype of x, and maxima of x as it was before.

Contract: a transform whose result has the dtype of x is sound, and is stated; one through another dtype is a fault; so
are an outer scale and block maxima of x before the transform, each named as itself. Oracle: the matrix of the
transform in float64, and `plain_quantizer`.
"""

import numpy as np
import pytest
import torch
from plain_quantizer import blocks, nvfp4

import numerics as nm
from hw.check import check
from numerics.scales import DIALECTS

X = torch.randn(64, 256, generator=torch.Generator().manual_seed(7)) * torch.exp2(torch.arange(64) % 5).view(-1, 1)
SIGNS = nm.hadamard_signs(128, (5, 0))


def dump_of(y: torch.Tensor, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    q = DIALECTS["te"].quantize(y)
    return {"x": X, "codes": q.codes, "scales": q.scales, "outer": q.outer} | more


def rotated(x: torch.Tensor, size: int) -> torch.Tensor:
    """H S x / sqrt(size), in float64."""
    i = torch.arange(size)
    bits = sum((i[:, None] >> b & 1) * (i[None] >> b & 1) for b in range(7))
    matrix = (1 - 2 * (bits % 2)).double() * SIGNS[:size].double() / size**0.5  # columns are multiplied by signs: H S
    return (x.double().unflatten(-1, (-1, size)) @ matrix.mT).flatten(-2)


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [16, 64])
def test_a_rotation_in_the_dtype_of_x_is_sound_and_stated(size: int, dtype: torch.dtype):
    x = X.to(dtype)
    report = check(dump_of(rotated(x, size).to(dtype), x=x, signs=SIGNS[:size]), contract="te")
    assert report and "te" in report.contracts, str(report)
    assert f"the signs, rounded to {str(dtype)[6:]}, the dtype of x" in str(report)


def test_a_wrong_rotation_in_the_dtype_of_x_is_named_alone():
    x = X.bfloat16()
    y = nm.hadamard(x.float(), 16).bfloat16()
    report = check(dump_of(y, x=x, signs=SIGNS[:16]))
    assert report.faults == ("the Hadamard transform is applied without its signs",), str(report)


def test_bfloat16_between_a_float32_tensor_and_its_bytes_is_a_fault():
    y = nm.hadamard(X, 16, SIGNS[:16]).bfloat16()
    report = check(dump_of(y, signs=SIGNS[:16]))
    assert not report and "x is rounded to bfloat16" in str(report)


BEFORE = "of x before the Hadamard transform"


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("outer", "maxima", "words"),
    [
        (True, False, f"the outer scale is that {BEFORE}"),
        (False, True, f"block maxima are those {BEFORE}"),
        (True, True, f"outer and block maxima are those {BEFORE}"),
    ],
)
def test_maxima_of_x_before_the_transform_are_named(outer: bool, maxima: bool, words: str):
    y = rotated(X, 16).float()
    of = [np.float32(t.abs().max() / 2688) for t in (X, y)]
    largest = np.abs(blocks((X if maxima else y).double().numpy(), 16)).max(-1)
    d = nvfp4(y, used=of[0] if outer else of[1], outer=of[1], amax=lambda b: largest)
    report = check(d | {"x": X, "signs": SIGNS[:16]})
    assert len(report.faults) == 1 and report.faults[0].startswith(words), str(report)


def test_a_stored_outer_of_x_before_the_transform_is_named():
    y = rotated(X, 16).float()
    report = check(nvfp4(y, outer=np.float32(X.abs().max() / 2688)) | {"x": X, "signs": SIGNS[:16]})
    assert len(report.faults) == 1 and report.faults[0].startswith(f"the outer scale is that {BEFORE}"), str(report)
