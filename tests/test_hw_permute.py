"""The kernel that gathers rows, in the interpreter and compiled.

Contract: `hw.kernel_permute.permute` gives `index_select(0, index)` of every tensor, byte for byte. Oracle: torch.
"""

import numpy as np
import pytest
import torch
from kernel_cases import data
from kernel_cases import device as device
from torch import Tensor

import numerics as nm

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_permute import _words, permute

INDEX = torch.tensor([4, 0, 4, 5, 6, 1, 3])


def check(index: Tensor, *rows: Tensor, there: torch.device) -> None:
    found = permute(index.to(there), *(x.to(there) for x in rows))
    assert len(found) == len(rows)
    for x, out in zip(rows, found, strict=True):
        assert out.dtype == x.dtype and out.shape == (len(index), x.shape[1])
        assert torch.equal(out.cpu().view(torch.uint8), x.contiguous().view(torch.uint8).index_select(0, index))


@pytest.mark.parametrize("outer", [True, False])
def test_a_dispatch(outer: bool, device: torch.device) -> None:
    """Packed codes, scales and outer scales, of words and of bytes, also where tensors are absent or wide."""
    for width in (64, 96, 48, 8272):
        q = nm.quantize(data("normal", 7, width), nm.NVFP4, outer="row")
        parts = (q.packed(), q.scales, q.outer)[: 2 + outer]
        check(INDEX, *parts, there=device)
        check(INDEX, parts[0], there=device)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int64], ids=str
)
def test_dtypes_and_widths(dtype: torch.dtype, device: torch.device) -> None:
    """Bits of any kind, NaN payloads too; the widest has two programs a row."""
    draw = torch.Generator().manual_seed(0)
    for width in (1, 3, 4, 1028):
        size = torch.empty(0, dtype=dtype).element_size()
        bits = torch.randint(2 if dtype == torch.bool else 256, (7, width * size), generator=draw, dtype=torch.uint8)
        check(INDEX, bits.view(dtype), bits, bits[:, :1].contiguous(), there=device)


def test_numbers_of_rows(device: torch.device) -> None:
    x, y = data("normal", 7, 5), torch.arange(21, dtype=torch.uint8).view(7, 3)
    for count in (0, 1, 7):
        check(INDEX[:count], x, y, there=device)
    check(torch.arange(3000) % 7, y[:, :1], x, there=device)
    check(INDEX, x, y[:, :0], y, there=device)  # nothing to gather in the second


def test_starts_that_are_no_words_and_strides(device: torch.device) -> None:
    flat = torch.arange(100, dtype=torch.uint8)
    base, halves = flat.to(device), flat.view(torch.bfloat16).to(device)
    for x in (base[1:57].view(7, 8), base[4:60].view(7, 8), halves[1:29].view(7, 4), base[:56].view(8, 7).mT):
        (found,) = permute(INDEX.to(device), x)
        assert torch.equal(found.view(torch.uint8), x.index_select(0, INDEX.to(device)).view(torch.uint8))


def test_words_start_where_words_may() -> None:
    """Memory that torch did not allocate may start anywhere."""
    foreign = torch.from_numpy(np.arange(57, dtype=np.uint8)[1:]).view(7, 8)
    assert foreign.storage_offset() == 0 and foreign.data_ptr() % 4
    for x, dtype in ((foreign, torch.uint8), (foreign.clone(), torch.int32), (foreign[:, :6].clone(), torch.uint8)):
        assert {t.dtype for t in _words(torch.empty_like(x), x)} == {dtype}


def test_errors(device: torch.device) -> None:
    x = torch.zeros(7, 4, device=device)
    for rows in ((), (x, x, x, x)):
        with pytest.raises(ValueError, match=f"rows are {len(rows)} tensors: pass 1 to 3"):
            permute(INDEX.to(device), *rows)
