"""Which functions `fourbit validate --ops` judges: an implementation of the seam, all of it or a part.

    emulated        `numerics.ops` itself
    triton          this folder's Triton kernels, by `KERNELS`
    blackwell       this folder's kernels for sm_100a and later, by `KERNELS`
    blackwell-library  the Triton kernels with the products of torch's scaled_mm, by `KERNELS`
    package.module  anybody's, importable from the working directory; or the path of a .py file

The contract is `numerics.ops`: the same names, signatures and results. A function that an implementation lacks is not
run, which is never passed; and so is one that it has only imported from `numerics.ops`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from numerics import ops

from .device import library_absent, triton_absent

# operation -> "module:function" of this folder, by kind of kernel; what is added here is judged from then on
_TRITON = (
    "quantize_tokens", "gate_up_glu", "down_to_wire", "aggregate", "router_gradient", "grad_to_wire", "row_scale",
    "requantize_transpose", "grad_products", "glu_backward",
)  # fmt: skip
KERNELS: dict[str, dict[str, str]] = {
    "triton": {name: f"ops:{name}" for name in _TRITON},
    "blackwell": {},
    "blackwell-library": {name: f"blackwell_library:{name}" for name in _TRITON},
}
_KIND = {"triton": "Triton", "blackwell": "Blackwell", "blackwell-library": "library"}
_CHOICES = (
    "use emulated, triton, blackwell, blackwell-library, an importable module such as mykernels.ops, or the path of a "
    ".py file"
)


@dataclass(frozen=True)
class Implementation:
    """Functions of the seam by name, and for each that is missing the reason, in words."""

    name: str
    functions: dict[str, Callable[..., Any]]
    absent: dict[str, str]


def seam() -> dict[str, Callable[..., Any]]:
    """The functions of `numerics.ops`, in its order."""
    return {name: f for name, f in vars(ops).items() if inspect.isfunction(f) and f.__module__ == ops.__name__}


def implementation(name: str, device: torch.device | None) -> Implementation:
    """What `--ops name` means on a device; without one (None) nothing is looked for there.

    Raises: ValueError in one sentence: no such module or file, one that cannot be imported or that offers nothing of
    the seam, a function of another signature.
    """
    if name == "emulated":
        return Implementation(name, seam(), {})
    if name in KERNELS:
        return _kernels(name, device)
    module = _load(name)
    if module is ops:
        raise ValueError(f"ops={name!r} is the emulation, which others are judged by; use --ops emulated")
    offered = {f: getattr(module, f) for f in seam() if callable(getattr(module, f, None))}
    if not offered:
        raise ValueError(f"ops={name!r} offers none of the seam's functions; define some of {', '.join(seam())}")
    own = {f: function for f, function in offered.items() if function is not seam()[f]}
    for f, function in own.items():
        _require_signature(name, f, function)
    lent = {f: f"its {f} is the one of numerics.ops" for f in offered.keys() - own.keys()}
    return Implementation(name, own, {f: lent.get(f, f"{name} has no {f}") for f in seam() if f not in own})


def _kernels(name: str, device: torch.device | None) -> Implementation:
    """This folder's kernels of one kind, as far as they exist and can run on `device`."""
    functions, absent = {}, {}
    lacking = None if device is None else lacks(name, device)
    for f in seam():
        if f not in KERNELS[name]:
            absent[f] = f"hw has no {_KIND[name]} kernel of {f} yet"
        elif device is None or lacking is not None:
            absent[f] = lacking or "no device"
        else:
            module, _, function = KERNELS[name][f].partition(":")
            functions[f] = getattr(importlib.import_module(f".{module}", __package__), function)
            _require_signature(name, f, functions[f])
    return Implementation(name, functions, absent)


def lacks(name: str, device: torch.device) -> str | None:
    """Why no kernel of a kind can run on `device`; None: they can."""
    if name == "triton":
        return triton_absent(device)
    if name == "blackwell-library":
        return library_absent(device)
    if device.type != "cuda":
        return f"kernels for Blackwell need sm_100a or later, and {device} is no CUDA device"
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= 10 else f"kernels for Blackwell need sm_100a or later, and {device} is sm_{major}{minor}"


@contextmanager
def importable(name: str | None) -> Iterator[None]:
    """Modules beside a .py file, or else in the working directory, can be imported while this lasts."""
    before = list(sys.path)
    if name is not None:
        sys.path.insert(0, str(Path(name).resolve().parent if _is_file(name) else Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def _is_file(name: str) -> bool:
    return name.endswith(".py") or "/" in name or "\\" in name


def _load(name: str) -> ModuleType:
    if _is_file(name):
        path = Path(name)
        if not path.is_file() or path.suffix != ".py":
            raise ValueError(f"ops={name!r}: there is no such .py file; {_CHOICES}")
        spec = importlib.util.spec_from_file_location(f"ops_under_test_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and others look their module up there
        with _one_sentence(name):
            spec.loader.exec_module(module)
        return module
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"ops={name!r} is no name of a module; {_CHOICES}")
    with _one_sentence(name):
        return importlib.import_module(name)


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    """Whatever a stranger's module raises while it is imported becomes a ValueError that says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"ops={name!r}: no module of this name is found from {Path.cwd()}; {_CHOICES}") from error
        raise ValueError(f"ops={name!r} imports {error.name}, which is not found; install it") from error
    except (Exception, SystemExit) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(f"ops={name!r} cannot be imported ({why}); make it importable first") from error


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def _require_signature(name: str, f: str, function: Callable[..., Any]) -> None:
    """Raises ValueError unless names, kinds and defaults of the parameters are those of `numerics.ops`."""

    def shown(of: Callable[..., Any]) -> str:
        return str(
            inspect.Signature([p.replace(annotation=p.empty) for p in inspect.signature(of).parameters.values()])
        )

    try:
        same, found = _parameters(function) == _parameters(seam()[f]), shown(function)
    except (TypeError, ValueError):
        same, found = False, "(what Python cannot tell)"
    if not same:
        raise ValueError(f"ops={name!r}: {f}{found} has another signature than the seam's {f}{shown(seam()[f])}")
