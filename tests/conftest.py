"""Settings of every test run, made before a test module is imported; and a fixture that several modules use."""

import os
from collections.abc import Iterator

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    """Make a run depend less on the machine. The settings reach the processes that tests start."""
    # FP32 sums depend on the number of threads: the same one everywhere; more only wait for each other in small tests
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # draw figures without a window
    os.environ["MPLBACKEND"] = "Agg"
    # without a GPU Triton's kernels run in its interpreter, which is chosen before triton is imported
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch on one thread while a module's tests run: small operations are fastest so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
