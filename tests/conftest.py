"""Settings of every test run, made before a test module is imported."""

import os

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
