"""Checks of arguments: every public function refuses what it cannot use before it computes anything.

Each check returns nothing, or the argument in the form that the caller needs, or raises TypeError (a wrong kind of
object or dtype) or ValueError (a wrong value or shape). The message names the argument, tells what came and what to
pass. No check reads a tensor's values on a GPU, which would have to wait for them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def shown(value: Any) -> str:
    """`value` in a message: what it is and, if that is short, its text."""
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"a numpy {value.dtype} array of shape {value.shape}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def require_kind(value: Any, kinds: type | tuple[type, ...], name: str, remedy: str) -> None:
    """Raises TypeError unless `value` is one of `kinds`. A bool is no int here."""
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, listed) or (isinstance(value, bool) and bool not in listed):
        raise TypeError(f"{name} is {shown(value)}: {remedy}")


def require_tensor(value: Any, name: str, dtypes: tuple[torch.dtype, ...] | None = None) -> None:
    """Raises TypeError unless `value` is a torch tensor, of one of `dtypes` if they are given."""
    require_kind(value, Tensor, name, "pass a torch tensor")
    if dtypes is not None and value.dtype not in dtypes:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name} has dtype {value.dtype}: pass {names}")


def require_integers(x: Tensor, name: str, remedy: str) -> None:
    """Raises TypeError unless the tensor holds integers; bool counts as none."""
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool:
        raise TypeError(f"{name} have dtype {x.dtype}: {remedy}")


def integer(value: Any, name: str, remedy: str) -> int:
    """An int, numpy's ones too, as int. Raises TypeError for anything else, bool and whole floats included."""
    if isinstance(value, (bool, np.bool_, Tensor, np.ndarray)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {shown(value)}: {remedy}")
    return operator.index(value)


def axis_of(axis: Any, shape: Sequence[int], of: str = "x") -> int:
    """`axis` of a tensor of this shape, counted from the front.

    Raises: TypeError if it is no integer. ValueError without axes, or where it is none of them.
    """
    ndim = len(shape)
    if ndim == 0:
        raise ValueError(f"{of} has no axis: pass a tensor of one axis or more")
    number = integer(axis, "axis", f"use an integer, {-ndim} to {ndim - 1}")
    if not -ndim <= number < ndim:
        raise ValueError(f"axis={number}: {of} has shape {tuple(shape)}; use {-ndim} to {ndim - 1}")
    return number % ndim


def require_same_shape(named: dict[str, Tensor]) -> None:
    """Raises ValueError unless the tensors agree in shape and device."""
    (first, x), *others = named.items()
    for name, y in others:
        if y.shape != x.shape:
            raise ValueError(f"{name} has shape {tuple(y.shape)}: {first} has {tuple(x.shape)}; make them equal")
        require_same_device(y, name, x, first)


def require_same_device(x: Tensor, name: str, other: Tensor, its_name: str) -> None:
    """Raises ValueError unless both lie on one device."""
    if x.device != other.device:
        raise ValueError(f"{name} is on {x.device}: {its_name} is on {other.device}; move one of them")


def require_row_numbers(index: Tensor, name: str, rows: int) -> None:
    """Raises ValueError where an integer tensor names a row that is not there; looked at on a CPU only."""
    if index.device.type == "cpu" and index.numel():
        low, high = (int(end) for end in torch.aminmax(index))
        if low < 0 or high >= rows:
            raise ValueError(f"{name} reaches from {low} to {high}: there are {rows} rows, 0 to {rows - 1}")


def broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes broadcast to each other."""
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))
