"""What the tests of Triton kernels share: where they run, the data they meet, and what equal means.

`device` is a fixture: "interpreter" runs on the CPU, "gpu" on a CUDA device; each is skipped where the other one is at
hand, since triton chooses between them when it is imported.
"""

import os

import numpy as np
import pytest
import torch
from torch import Tensor

from hw.cases import DATA
from hw.compare import Row, compare
from hw.device import INTERPRET


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
