"""Contract: `hw.kernel_both` gives the bits of two quantizations, along features and along tokens. Oracle: numerics."""

import pytest
import torch
from kernel_cases import assert_bits, data
from kernel_cases import device as device

import numerics as nm
from hw.cases import DATA

pytest.importorskip("triton")

from hw.kernel_both import both


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_both_axes(device: torch.device, kind: str, dtype: torch.dtype):
    for shape, groups in (((70, 96), (0, 0, 33, 50, 70)), ((32, 160), None), ((0, 32), (0, 0))):
        x = data(kind, *shape).to(dtype)
        found = both(x.to(device), groups)
        along, across = nm.quantize(x, nm.MXFP8), nm.quantize(x, nm.MXFP8, -2, None, groups=groups)
        for f, e in zip(found, (along.codes, along.scales, across.codes, across.scales), strict=True):
            assert_bits(f, e)


def test_other_widths_are_refused(device: torch.device):
    with pytest.raises(ValueError, match="x has rows of 40 values"):
        both(torch.zeros(32, 40, device=device), None)
