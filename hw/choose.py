"""The operations of the expert path by name: which module a trainer is handed for --ops. Imports none that is not asked
for, and never puts one in another's place."""

from __future__ import annotations

import importlib
from types import ModuleType

from numerics import ops

from .device import resolve
from .seam import lacks

MODULES = {"emulated": ops.__name__, "triton": "hw.ops", "blackwell-library": "hw.blackwell_library"}


def operations(name: str, device: str) -> ModuleType:
    """The module of operations called `name`, for tensors on `device`.

    Args: name: "emulated", `numerics.ops`; "triton", this folder's kernels; "blackwell-library", these with the
    block-scaled products of torch. device: "cpu", "cuda", ...
    Raises: ValueError in one sentence: an unknown name; a device that is absent, or on which those kernels cannot run.
    """
    if name == "blackwell":
        raise ValueError(
            "ops='blackwell': hw has no whole set of kernels for Blackwell yet; use emulated, triton or "
            "blackwell-library"
        )
    if name not in MODULES:
        raise ValueError(f"ops={name!r}: use one of {', '.join(MODULES)}")
    if name == "emulated":
        return ops
    reason = lacks(name, resolve(device))
    if reason is not None:
        raise ValueError(f"ops={name!r} on device={device!r}: {reason}; or use --ops emulated")
    return importlib.import_module(MODULES[name])
