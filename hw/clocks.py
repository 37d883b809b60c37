"""Clocks: seconds that one call of a function takes, on the host or on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

Clock = Callable[[Callable[[], Any]], float]


def host_clock(run: Callable[[], Any]) -> float:
    """Seconds of one call on the host."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def device_clock(device: torch.device, calls: int = 10) -> Clock:
    """A clock of a CUDA device's own time, mean of `calls` in its queue.

    One more call comes first and is not measured: while the device runs it, the host queues the others. Otherwise the
    time that the host takes for its first call, 0.1 ms for a compiled function, would stand in the result.
    """

    def clock(run: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(device):
            run()
            start.record()
            for _ in range(calls):
                run()
            end.record()
            end.synchronize()
        return start.elapsed_time(end) / calls / 1e3

    return clock


def clock_of(device: torch.device, calls: int = 10) -> Clock:
    """The clock to use for work on `device`; `calls` as in `device_clock`."""
    return device_clock(device, calls) if device.type == "cuda" else host_clock
