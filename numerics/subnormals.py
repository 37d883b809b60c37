"""Bits that neither `torch.set_flush_denormal(True)` nor `torch.set_default_device` changes.

The first makes the processor take subnormal numbers as zeros, and give zeros for them, in every operation of the
calling thread. This package works with them where nobody expects it: a subnormal E4M3 scale, ordinary in NVFP4, is read
by way of a float32 subnormal, the least positive float32 decides which way a directed mode rounds, E8M0 reaches down to
2^-127, and SiLU, outer scales and products may be subnormal. A function under `kept` therefore switches the setting off
while it runs, and on again. Threads of the pool that torch started under the setting keep it for good, so the function
runs on one thread then. Where nobody flushes, the check takes 0.1 microseconds.

The second sets where tensors lie that are made without a device, as tables and constants here are, some of them for
the life of the process. They are made on the CPU and go to the arguments' device: the function runs under that default.

GPUs have no such first setting. What is not seen: a pool that was started under it, and the setting off since.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch._C import _len_torch_function_stack as modes

F = TypeVar("F", bound=Callable[..., Any])

_LEAST = 2.0**-1022  # the least normal number of Python's floats: half of it is subnormal


def flushed() -> bool:
    """Whether this thread's processor takes subnormal numbers as zeros."""
    return _LEAST * 0.5 == 0.0


def kept(function: F) -> F:
    """`function`, whose subnormal numbers are no zeros and whose constants are on the CPU, whatever torch is set to."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        # a default device is one of the modes that see every call of torch
        if modes() and torch.get_default_device().type != "cpu":
            with torch.device("cpu"):
                return run(*args, **kwargs)
        if _LEAST * 0.5 != 0.0:
            return function(*args, **kwargs)
        threads = torch.get_num_threads()
        torch.set_flush_denormal(False)
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)
            torch.set_flush_denormal(True)

    return run  # type: ignore[return-value]
