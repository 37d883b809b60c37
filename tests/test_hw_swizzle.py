"""The kernel that lays block scales out in 128x4 atoms, in the interpreter and compiled.

Contract: the atoms of each group are `numerics.layout.swizzle_scales` of its scales, those along the contraction of
their transpose, and groups follow each other. Bitwise. Oracle: that function.
"""

from itertools import pairwise

import pytest
import torch
from kernel_cases import device as device

from numerics.layout import swizzle_scales

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_swizzle import swizzle_columns, swizzle_rows

CASES = pytest.mark.parametrize(
    "lines, groups",
    [
        (1, (0, 1)),
        (128, None),
        (129, (0, 129)),
        (300, (0, 0, 130, 131, 131, 300)),
        (12, (0, 4, 8, 12)),
        (14, (0, 5, 5, 6, 14)),
    ],
    ids=str,
)


def scales(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))


@CASES
@pytest.mark.parametrize("width", [1, 4, 18])  # two programs
def test_scales_along_features(lines: int, groups: tuple[int, ...] | None, width: int, device: torch.device) -> None:
    x = scales(lines, width)
    found = swizzle_rows(x.to(device), groups).cpu()
    each = [swizzle_scales(x[i:j]) for i, j in pairwise(groups or (0, lines))]
    assert torch.equal(found.flatten(), torch.cat(each))
    assert found.shape[1:] == (-(-width // 4), 512)


@CASES
@pytest.mark.parametrize("width", [1, 130, 529])  # two programs
def test_scales_along_the_contraction(
    lines: int, groups: tuple[int, ...] | None, width: int, device: torch.device
) -> None:
    x = scales(lines, width)
    found = swizzle_columns(x.to(device), groups).cpu()
    each = [swizzle_scales(x[i:j].T.contiguous()) for i, j in pairwise(groups or (0, lines))]
    assert torch.equal(found.flatten(), torch.cat(each))
    assert found.shape[1:] == (-(-width // 128), 512)


def test_matrices_of_experts(device: torch.device) -> None:
    """Equal groups: what `swizzle_scales` makes of a batch at once."""
    x = scales(3, 136, 10)
    assert torch.equal(swizzle_rows(x.view(-1, 10).to(device), (0, 136, 272, 408)).cpu().view(3, -1), swizzle_scales(x))
    found = swizzle_columns(x.view(-1, 10).to(device), (0, 136, 272, 408)).cpu().view(3, -1)
    assert torch.equal(found, swizzle_scales(x.mT.contiguous()))


def test_nothing(device: torch.device) -> None:
    assert swizzle_rows(scales(0, 4).to(device)).numel() == swizzle_columns(scales(0, 4).to(device)).numel() == 0
    assert swizzle_rows(scales(5, 0).to(device)).numel() == swizzle_columns(scales(5, 0).to(device)).numel() == 0
