"""What bits depend on in torch, pinned while a model trains or is evaluated: threads, and algorithms that repeat."""

import contextlib
import os
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Pin what bits depend on in torch, and give it back afterwards."""
    before = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    # cuBLAS is deterministic only with a fixed workspace, and reads this when CUDA is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads memory that it has not written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled
        torch.set_num_threads(before)
        if workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
