"""What the tests of Triton kernels share: where they run, the data they meet, and what equal means.

`device` is a fixture: "interpreter" runs on the CPU, "gpu" on a CUDA device; each is skipped where the other one is at
hand, since triton chooses between them when it is imported.
"""

import os

import numpy as np
import pytest
import torch
from torch import Tensor

import numerics as nm
from hw.cases import DATA
from hw.compare import Row, compare
from hw.device import INTERPRET
from numerics.swiglu import swiglu

RANDOM = nm.Random((7, 0xFFFFFFF0), (66, 30))  # words for stochastic rounding
GROUPS = (0, 0, 12, 17, 17, 45, 46)  # ragged, two experts without rows, the last with one row


@pytest.fixture(params=["interpreter", "gpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    interprets = os.environ.get(INTERPRET) == "1"
    if request.param == "gpu" and (interprets or not torch.cuda.is_available()):
        pytest.skip("not run: triton interprets here" if interprets else "not run: torch finds no CUDA device")
    if request.param == "interpreter" and not interprets:
        pytest.skip(f"not run: kernels are compiled here; {INTERPRET}=1 interprets them")
    return torch.device("cuda" if request.param == "gpu" else "cpu")


def data(kind: str, *shape: int, seed: int = 0) -> Tensor:
    """One of `hw.cases.DATA` as float32."""
    return torch.from_numpy(DATA[kind](np.random.default_rng(seed), shape).astype(np.float32))


def assert_bits(found: Tensor, expected: Tensor) -> None:
    """Shape, dtype and every bit are equal; any NaN equals any NaN."""
    row = Row("", "", "")
    compare(row, "kernel", {"found": expected}, {"found": found.cpu()}, None)
    assert row.first is None, row.first


def picked(rows: int, count: int) -> tuple[Tensor, Tensor]:
    """Row numbers, int64 (count,), and a factor of each of these rows, float32, of both signs."""
    draw = torch.Generator().manual_seed(rows + count)
    return torch.randint(rows, (count,), generator=draw), torch.randn(count, generator=draw)


def glu(x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and up, BF16 (R, 2F), of rows times their factor, and silu(gate) * up, BF16 (R, F)."""
    gate_up = (x.to(torch.float32) * factor[:, None]).to(torch.bfloat16)
    return gate_up, swiglu(*gate_up.chunk(2, -1))
