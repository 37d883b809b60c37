"""The kernel of SwiGLU's gradient, in the interpreter and compiled.

Contract: `hw.kernel_glu_backward.glu_backward` is `numerics.ops.glu_backward`, bit for bit, signs of zeros too; any NaN
equals any NaN. Oracle: the emulator.
"""

import pytest
import torch
from kernel_cases import assert_bits, data
from kernel_cases import device as device
from torch import Tensor

from hw.cases import DATA
from numerics import ops

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_glu_backward import glu_backward

# numpy, which interprets kernels, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


def check(dh: Tensor, gate_up: Tensor, there: torch.device) -> None:
    assert_bits(glu_backward(dh.to(there), gate_up.to(there)), ops.glu_backward(dh, gate_up))


@pytest.mark.parametrize("name", DATA)
def test_every_kind_of_data(name: str, device: torch.device) -> None:
    check(data(name, 21, 50), data(name, 21, 100, seed=1).to(torch.bfloat16), device)


def test_every_pattern_of_gate_and_of_up(device: torch.device) -> None:
    """Each with a pattern far away, and gradients that reach ties of BF16, subnormals and the largest numbers."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(64, 1024)
    gate_up = torch.cat([patterns, patterns.roll(777 * 8, 1).flip(0)], 1)
    for dh in (data("normal", 64, 1024), data("huge", 64, 1024), data("denormals", 64, 1024), torch.ones(64, 1024)):
        check(dh, gate_up, device)


@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (3, 0), (5, 1030), (1030, 1), (7, 300)])
def test_programs_and_ragged_rows(rows: int, width: int, device: torch.device) -> None:
    """Two programs along either axis, the last of them partly empty."""
    check(data("normal", rows, width), data("normal", rows, 2 * width, seed=1).to(torch.bfloat16), device)


def test_parts_that_are_not_contiguous(device: torch.device) -> None:
    dh, gate_up = data("normal", 12, 5).mT, data("normal", 24, 5, seed=1).to(torch.bfloat16).mT
    check(dh, gate_up, device)
