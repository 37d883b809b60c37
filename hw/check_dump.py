"""Dumps that `check` judges: what a file, or a dictionary of tensors, must hold.

    quantization    x, codes, scales; and, if there are any: outer, values, groups, signs
    product         a_codes, a_scales, b_codes, b_scales, output; and, if there are any: a_outer, b_outer, groups

x is what was quantized, in the dtype in which it was; codes one per byte or two E2M1 per byte; scales bytes, float8,
four bytes in an int32, or floating point (FP8 blocks); outer float32; values what the kernel decodes; groups the
offsets of experts along the blocks' axis or along the rows (quantization), or along the rows of a (product); signs
those of a Hadamard transform that comes first. A product is a @ b.T, a (M, K) and b (N, K) or, with groups, (E, N, K),
both with blocks along K. Names that other libraries use are known: `check_keys`.

Files: safetensors, or numpy's npz (no pickle; two-byte voids, as ml_dtypes' bfloat16 is stored, are bfloat16).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from .check_keys import PRODUCT, QUANTIZATION, Key
from .check_keys import named as known

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BYTES = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2")


@dataclass(frozen=True)
class Dump:
    """Tensors by their names here, on the CPU: codes uint8 (or int32 that hold four bytes each), scales likewise or
    floating point, outer scales and output float32 or narrower floats; groups: a tuple of integers; keys: what each was
    called, and what that implies."""

    tensors: dict[str, Tensor]
    groups: tuple[int, ...] | None
    keys: dict[str, tuple[str, Key]]

    @property
    def is_product(self) -> bool:
        """Whether it holds a product, else a quantization."""
        return "output" in self.tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def get(self, name: str) -> Tensor | None:
        """The tensor of that name, or None."""
        return self.tensors.get(name)


def read(path: Path) -> Mapping[str, Any]:
    """The tensors of a file, under their own names.

    Raises: ValueError for a file that is no safetensors or npz, is truncated or holds objects. OSError if it cannot be
    opened.
    """
    with path.open("rb"):  # the system's own error, with the file's name
        pass
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is no whole safetensors file ({error}); dump it again") from error
    if path.suffix == ".npz":
        try:
            file = np.load(path, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it holds one array without a name")
            with file:
                return {name: file[name] for name in file.files}
        except (zipfile.BadZipFile, ValueError, EOFError, KeyError, AttributeError) as error:
            text = " ".join(str(error).split())
            raise ValueError(f"{path} is no whole npz file of arrays ({text}); dump it again with np.savez") from error
    raise ValueError(f"{path} ends with {path.suffix or 'nothing'!r}: pass a .safetensors or .npz file")


def dump_of(tensors: Mapping[str, Any], axis: int = -1) -> Dump:
    """Tensors or arrays by name, checked. `axis`: of x, along which blocks run.

    Raises: TypeError for values that are no tensors. ValueError for names that are missing or twice, dtypes that
    cannot be what the name says, or several devices.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"the dump is a {type(tensors).__name__}: pass tensors by name, {', '.join(QUANTIZATION)}")
    named: dict[str, Tensor] = {}
    keys: dict[str, tuple[str, Key]] = {}
    for called, name, key in known(tensors, axis):
        if name in named:
            raise ValueError(f"the dump holds {name} twice, as {keys[name][0]!r} and {called!r}: leave one of them out")
        named[name], keys[name] = _tensor(tensors[called], called), (called, key)
    _require_names(named, tensors)
    for name, t in named.items():
        if t.layout != torch.strided:
            raise ValueError(f"{name} has layout {t.layout}: pass a dense tensor")
    devices = {name: str(t.device) for name, t in named.items()}
    if len(set(devices.values())) > 1:
        raise ValueError(f"the dump is on several devices, {_listed(devices)}: move all of it to one")
    if "meta" in devices.values():
        raise ValueError("the dump is on the device meta, which holds no values: pass tensors that do")
    groups = named.pop("groups", None)
    checked = {name: _typed(t.cpu(), name) for name, t in named.items()}
    return Dump(checked, None if groups is None else _groups(groups), keys)


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)
        if value.dtype.kind == "V" and value.dtype.itemsize in (1, 2):
            kind = (np.uint8, np.int16)[value.dtype.itemsize - 1]
            bits = torch.from_numpy(np.ascontiguousarray(value).view(kind))
            return bits if value.dtype.itemsize == 1 else bits.view(torch.bfloat16)
        if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
            raise ValueError(f"{name} is an array of {value.dtype}: pass numbers")
        # a copy of what torch does not take: another byte order, memory that is not writable
        own = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
        return torch.from_numpy(own.reshape(value.shape))
    if isinstance(value, (int, float, list, tuple)):
        try:
            return torch.tensor(value)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"{name} is a {type(value).__name__} that is no array of numbers ({error})") from error
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: pass tensors or arrays")
    return value.detach()


def _require_names(named: dict[str, Tensor], given: Mapping[str, Any]) -> None:
    wanted = PRODUCT if any(name in named for name in PRODUCT) else QUANTIZATION
    if any(name in named for name in QUANTIZATION) and wanted is PRODUCT:
        raise ValueError(
            f"the dump holds {', '.join(sorted(named))}: pass a quantization ({', '.join(QUANTIZATION)}) or a product "
            f"({', '.join(PRODUCT)}), not parts of both"
        )
    missing = [name for name in wanted if name not in named]
    if missing:
        raise ValueError(
            f"the dump holds {_some(given)} and lacks {', '.join(missing)}: a "
            f"quantization has {', '.join(QUANTIZATION)}, a product {', '.join(PRODUCT)}"
        )


def _typed(t: Tensor, name: str) -> Tensor:
    """Codes and scales as uint8, or as int32 that hold four bytes each; floating point as it is; see `dump_of` for
    errors."""
    if name.endswith(("codes", "scales")):
        if str(t.dtype).removeprefix("torch.") in _BYTES:
            return t.view(torch.uint8)
        if name.endswith("scales") and t.dtype in FLOATS:
            return t
        if t.is_floating_point() or t.is_complex() or t.is_quantized or t.dtype == torch.bool:
            raise ValueError(f"{name} has dtype {t.dtype}: pass bytes (uint8, or a float8 or float4 dtype)")
        four = t.view(torch.int32) if t.dtype in (torch.int32, torch.uint32) else None
        t = t if t.dtype == torch.uint8 else t.to(torch.int64)
        if four is not None:
            return four
        if t.numel() and (int(t.min()) < -128 or int(t.max()) > 255):
            raise ValueError(f"{name} reach from {int(t.min())} to {int(t.max())}: pass bytes, 0 to 255")
        return t.bitwise_and(255).to(torch.uint8)
    if t.dtype not in FLOATS:
        if name == "signs" and not t.is_complex():
            return t.to(torch.float32)
        raise ValueError(f"{name} has dtype {t.dtype}: pass floating point, {', '.join(map(str, FLOATS))}")
    if name.endswith("outer"):
        if t.dtype != torch.float32:
            raise ValueError(f"{name} has dtype {t.dtype}: outer scales are float32")
    return t


def _groups(t: Tensor) -> tuple[int, ...]:
    if t.is_floating_point() or t.ndim != 1:
        raise ValueError(f"groups has dtype {t.dtype} and shape {tuple(t.shape)}: pass the experts' integer offsets")
    return tuple(int(n) for n in t)


def _some(given: Mapping[str, Any]) -> str:
    """The first keys of a dump."""
    names = sorted(map(str, given))
    return ", ".join(names[:12]) + f" and {len(names) - 12:,} more" * (len(names) > 12) or "nothing"


def _listed(named: dict[str, str]) -> str:
    return ", ".join(f"{name} on {device}" for name, device in named.items())
