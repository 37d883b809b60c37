"""Devices by name: "cpu", "cuda" or "cuda:1". A named device is used or refused, never replaced by another.

Also where Triton's kernels can run: compiled on a CUDA device, or in its interpreter, which TRITON_INTERPRET=1 chooses
when triton is imported.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class DeviceAbsent(ValueError):
    """A device with a valid name that this machine, or this build of torch, does not have."""


def resolve(name: str) -> torch.device:
    """The device called `name`; "cuda" is torch's current CUDA device, returned with its index.

    Raises:
        ValueError: a name of another form.
        DeviceAbsent: a CUDA device that torch cannot use here.
    """
    match = re.fullmatch(r"cpu|cuda(?::([0-9]+))?", name)
    if match is None:
        raise ValueError(f"device={name!r} is not a device; use 'cpu', 'cuda' or 'cuda:1'")
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None or torch.version.hip is not None
        reason = "finds no CUDA device" if built else "is built without CUDA"
        raise DeviceAbsent(f"device={name!r}: torch {torch.__version__} {reason}; use 'cpu', or a machine with a GPU")
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if match[1] is None else int(match[1])
    if index >= count:
        known = "'cuda:0'" if count == 1 else f"'cuda:0' to 'cuda:{count - 1}'"
        raise DeviceAbsent(f"device={name!r}: torch finds {count} CUDA device{'s' * (count > 1)}; use {known}")
    return torch.device("cuda", index)


def describe(device: torch.device) -> dict[str, str | None]:
    """What to write beside results of `device`, as strings that JSON holds.

    Returns:
        device: "cuda:0". name: the chip's. capability: the compute capability ("9.0"), or the vector instructions
        that torch uses on a CPU ("AVX2"). torch, cuda: versions; cuda is the toolkit of torch's build, or None.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    else:
        name, capability = _processor(), torch.backends.cpu.get_cpu_capability()
    return {
        "device": str(device),
        "name": name,
        "capability": capability,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def conditions(device: torch.device, threads: int) -> str:
    """What a time depends on, in a line: the chip, torch, CPU threads and, where it is told, the machine's load."""
    facts = describe(device)
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{facts['name']}, torch {facts['torch']}, {threads} threads{load}"


def _processor() -> str:
    """The processor's name: Linux tells it in a file, other systems through `platform`."""
    table = Path("/proc/cpuinfo")
    text = table.read_text("utf-8", errors="replace") if table.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


INTERPRET = "TRITON_INTERPRET"


def triton_absent(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on `device`, in words that end in the remedy; None: they can. Imports nothing."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; pip install 'fourbit[hw]' (Linux)"
    if device.type != "cuda" and os.environ.get(INTERPRET) != "1":
        return f"triton compiles for GPUs; on a CPU set {INTERPRET}=1, which runs its interpreter"
    return None


catching: list[list[Any]] = []  # see `launches.catching`


def is_blackwell(device: torch.device) -> bool:
    """Whether `device` has the instructions of sm_100a and sm_103a: stochastic conversions, block-scaled products."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in ((10, 0), (10, 3))


def library_absent(device: torch.device) -> str | None:
    """Why torch's block-scaled products cannot run on `device`, in words that end in the remedy; None: they can."""
    if not is_blackwell(device):
        found = f"{device} is no CUDA device"
        if device.type == "cuda":
            found = f"{device} has " + ".".join(map(str, torch.cuda.get_device_capability(device)))
        return (
            "torch's block-scaled products need a GPU of compute capability 10.0 or 10.3 (sm_100, sm_103), and "
            f"{found}; use such a GPU"
        )
    if not hasattr(torch.nn.functional, "scaled_mm"):
        return f"torch {torch.__version__} has no torch.nn.functional.scaled_mm; install torch 2.10 or later"
    return triton_absent(device)


def require_launch(kernel: Any, x: Tensor, name: str) -> None:
    """Raises ValueError unless `kernel`, as triton.jit made it, can run where `x`, the argument `name`, is."""
    from triton.runtime import JITFunction

    if catching:
        return
    if isinstance(kernel, JITFunction) and x.device.type != "cuda":
        raise ValueError(
            f"{name} is on {x.device}: a compiled kernel runs on a CUDA device; move it there, or set {INTERPRET}=1 "
            "before triton is imported"
        )
