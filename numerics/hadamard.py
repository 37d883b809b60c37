"""Block randomized Hadamard transform as an add/subtract butterfly.

    y = H S x / sqrt(n) on every block of n along an axis: signs S first, then stages with strides 1, 2, .. n/2
    (Sylvester order), all in FP32, then one product with fl(n^-1/2).

Each output is the same fixed tree of FP32 additions on every device; a matrix product would sum in another order
and differ in most values. H is symmetric and H H = n, so the inverse is the butterfly, the factor, then the signs.
The transform is linear: a weighted sum of transformed vectors may be inverted once, if all used the same signs
(the combine of "End-to-End 4-Bit Training", Thinking Machines Lab, 2026).
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from .arguments import FLOATS, axis_of, integer, require_kind, require_tensor
from .codes import as_tensor, require_float, step_by_step
from .partition import Partition, check_groups
from .philox import philox
from .subnormals import kept

SIZES = (16, 32, 64, 128)


@kept
def hadamard_signs(size: int, key: tuple[int, int]) -> Tensor:
    """Random signs from Philox: sign i is bit i % 32 of word i // 32 of counter (0, 0, 0, 0).

    Args: size: one of SIZES. key: integers, taken modulo 2^32.
    Returns: float32 of +-1, shape (size,), on the CPU.
    Raises: TypeError for other kinds of arguments. ValueError for a size that no transform has, a key that is no pair.
    """
    _require_size(size)
    require_kind(key, (tuple, list), "key", "pass a pair of integers, such as (seed, layer)")
    if len(key) != 2:
        raise ValueError(f"key={key}: pass a pair of integers")
    key = (integer(key[0], "key[0]", "pass integers"), integer(key[1], "key[1]", "pass integers"))
    words = philox(key, (0, 0, 0, 0)).tolist()
    bits = torch.tensor([word >> shift & 1 for word in words for shift in range(32)][:size])
    return (1 - 2 * bits).to(torch.float32)


@kept
def hadamard(x: Any, size: int = 32, signs: Tensor | None = None, axis: int = -1, groups: Any = None) -> Any:
    """H S x / sqrt(size) on blocks of `size` along `axis`.

    Args:
        x: floating point, torch or numpy; computed in FP32. size: one of 16, 32, 64, 128, dividing the axis.
        signs: +-1, shape (size,), the same for every block; None: all +1. On a GPU, and when compiled, their values
            are not looked at.
        groups: offsets of expert groups along `axis`, of any lengths: blocks start anew at each, and a group's last
            block is filled up with zeros.

    Returns: float32, shape and kind of `x`; with groups a pair: that, `axis` as long as the whole blocks, and the
    groups' offsets in it, a tuple.
    Raises: TypeError for other kinds of arguments (signs are a torch tensor). ValueError for another size, an axis that
    `x` does not have or that the size does not divide, signs of another shape or, on a CPU, other than +1 and -1;
    groups that do not cover the axis.
    """
    if groups is None:
        return _transform(x, size, signs, axis, inverse=False)
    tensor, is_numpy = as_tensor(x, "x")
    require_float(tensor, "x")
    axis = axis_of(axis, tensor.shape)
    _require_size(size)
    offsets = check_groups(groups, tensor.shape[axis])
    assert offsets is not None
    blocks = Partition.of(tensor.shape[axis], size, offsets).split(tensor.to(torch.float32).movedim(axis, -1), size)
    y = _transform(blocks, size, signs, -1, inverse=False).flatten(-2).movedim(-1, axis)
    whole = tuple(accumulate((-(-(end - start) // size) * size for start, end in pairwise(offsets)), initial=0))
    return (y.numpy() if is_numpy else y), whole


@kept
def hadamard_inverse(y: Any, size: int = 32, signs: Tensor | None = None, axis: int = -1) -> Any:
    """Inverse of `hadamard` up to FP32 rounding: butterfly, factor, then signs. Arguments and errors as there."""
    return _transform(y, size, signs, axis, inverse=True)


def _transform(x: Any, size: int, signs: Tensor | None, axis: int, inverse: bool) -> Any:
    tensor, is_numpy = as_tensor(x, "x")
    require_float(tensor, "x")
    axis = axis_of(axis, tensor.shape)
    _require_size(size)
    if tensor.shape[axis] % size:
        raise ValueError(f"axis {axis} of x has length {tensor.shape[axis]}: size={size} does not divide it")
    signs = torch.ones(size, dtype=torch.float32) if signs is None else _checked_signs(signs, size)
    signs = signs.to(device=tensor.device)
    y = tensor.to(torch.float32).movedim(axis, -1)
    shape = y.shape
    y = y.unflatten(-1, (shape[-1] // size, size))
    y = _butterfly(y) * signs if inverse else _butterfly(y * signs)
    y = y.reshape(shape).movedim(-1, axis)
    return y.numpy() if is_numpy else y


def _checked_signs(signs: Tensor, size: int) -> Tensor:
    """`signs` as float32. Errors as `hadamard`."""
    require_tensor(signs, "signs")
    remedy = "pass +1 and -1, as nm.hadamard_signs gives them"
    if signs.dtype not in (*FLOATS, torch.int8, torch.int16, torch.int32, torch.int64):
        raise TypeError(f"signs have dtype {signs.dtype}: {remedy}")
    if tuple(signs.shape) != (size,):
        raise ValueError(f"signs has shape {tuple(signs.shape)}: one sign per element of a block, ({size},)")
    wrong = signs.abs() != 1
    if step_by_step(signs.device) and bool(wrong.any()):
        place = int(wrong.nonzero()[0, 0])
        raise ValueError(f"signs[{place}] is {signs[place].item()}: {remedy}")
    return signs.to(torch.float32)


def _require_size(size: Any) -> None:
    listed = ", ".join(map(str, SIZES))
    if integer(size, "size", f"use one of {listed}") not in SIZES:
        raise ValueError(f"size={size}: use one of {listed}")


def _butterfly(x: Tensor) -> Tensor:
    """H x fl(n^-1/2) over the last axis (n long)."""
    size = x.shape[-1]
    stride = 1
    while stride < size:
        pairs = x.unflatten(-1, (-1, 2, stride))
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        stride *= 2
    return x * x.new_tensor(size**-0.5)
