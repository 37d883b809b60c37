"""The kernel that writes rows in BF16 as they come about, in the interpreter and compiled.

Contract: `hw.kernel_rows.rows` is `Source.tensor`, rounded once to BF16, bit for bit; any NaN equals any NaN. Oracle:
torch's own operations and `numerics.swiglu`.
"""

import pytest
import torch
from kernel_cases import assert_bits, data, glu, picked
from kernel_cases import device as device

from hw.cases import DATA

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_rows import rows
from hw.sources import Source

# numpy, which interprets kernels, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DATA)
def test_gathered_and_weighted(name: str, dtype: torch.dtype, device: torch.device) -> None:
    x = data(name, 9, 48).to(dtype)
    index, factor = picked(9, 21)
    expected = (x.to(torch.float32)[index] * factor[:, None]).to(torch.bfloat16)
    assert_bits(rows(Source(x.to(device), index.to(device), factor.to(device))), expected)
    assert_bits(rows(Source(x.to(device), index.to(device))), x[index].to(torch.bfloat16))
    assert_bits(rows(Source(x.to(device))), x.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DATA)
def test_swiglu(name: str, dtype: torch.dtype, device: torch.device) -> None:
    x = data(name, 7, 80).to(dtype)
    _, factor = picked(7, 7)
    kept = torch.empty(7, 80, dtype=torch.bfloat16, device=device)
    gate_up, expected = glu(x, factor)
    assert_bits(rows(Source(x.to(device), None, factor.to(device), True, kept)), expected)
    assert_bits(kept, gate_up)
    assert_bits(rows(Source(x.to(device), glu=True)), glu(x, torch.ones(7))[1])


@pytest.mark.parametrize(("count", "width"), [(0, 16), (3, 0), (1, 8), (300, 24), (5, 4096), (4, 13)])
def test_programs_and_widths(count: int, width: int, device: torch.device) -> None:
    """Several programs, the last of them partly empty; a width that no piece of eight divides."""
    x = data("normal", count, width)
    assert_bits(rows(Source(x.to(device))), x.to(torch.bfloat16))
