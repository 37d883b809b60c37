"""Block-scaled products in Triton's interpreter, so that the NATIVE branch of a product runs where no Blackwell is.

Triton 3.6 and 3.7 do not interpret `tl.dot_scaled`, later ones read E4M3 scales as powers of two.
`block_scaled_products` gives the interpreter a product of its own: codes and scales decoded by `numerics`, each product
exact in float64, sums of one step in float64, rounded once to FP32 together with the accumulator. An order of its own,
as tensor cores have theirs, and exact where sums are. What it takes is what the kernels here pass: E2M1, packed along
the contraction, under E4M3 scales of 16, and E4M3 under E8M0 scales of 32, on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl

from numerics import E2M1, E4M3, E8M0, decode
from numerics.layout import unpack_nibbles


def _values(codes: Any, scales: Any, kind: str) -> np.ndarray:
    """float64 (rows, K) of the interpreter's tensors: codes with the contraction last, scales (rows, blocks).

    Raises: ValueError for a combination that is not taken.
    """
    narrow = kind.endswith("E2M1")
    expected, block = (tl.float8e4nv, 16) if narrow else (tl.uint8, 32)
    if not (narrow or kind.endswith("E4M3")) or scales is None or scales.dtype.scalar != expected:
        found = None if scales is None else scales.dtype
        raise ValueError(f"{kind} under scales {found}: interpreted are E2M1 under float8e4nv, E4M3 under uint8 (E8M0)")
    stored = torch.from_numpy(np.ascontiguousarray(codes.data).view(np.uint8))
    value = decode(unpack_nibbles(stored) if narrow else stored, E2M1 if narrow else E4M3)
    given = torch.from_numpy(np.ascontiguousarray(scales.data).view(np.uint8))
    if given.shape[1] * block != value.shape[1]:
        raise ValueError(f"scales of shape {tuple(given.shape)} for values of shape {tuple(value.shape)} by {block}")
    scale = decode(given, E4M3 if narrow else E8M0).repeat_interleave(block, 1)
    return (value.double() * scale.double()).numpy()


def _dot_scaled(
    self: Any, a: Any, a_scale: Any, a_kind: Any, b: Any, b_scale: Any, b_kind: Any, fast: bool, a_pack: bool,
    b_pack: bool, acc: Any,
) -> Any:  # fmt: skip
    """The interpreter's operation: a (M, K), b (K, N), scales (M, blocks) and (N, blocks), acc float32 (M, N)."""
    from triton.runtime.interpreter import TensorHandle

    if not (a_pack and b_pack):
        raise ValueError("codes packed across the contraction are not interpreted")
    first = _values(a, a_scale, str(a_kind))
    turned = TensorHandle(b.data.T, b.dtype)
    second = _values(turned, b_scale, str(b_kind))
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity are results like others
        total = (first @ second.T + acc.data.astype(np.float64)).astype(np.float32)
    return TensorHandle(total, acc.dtype.scalar)


@contextmanager
def block_scaled_products() -> Iterator[None]:
    """`tl.dot_scaled` is interpreted as the module's docstring says, while this lasts."""
    from triton.runtime.interpreter import InterpreterBuilder

    before = getattr(InterpreterBuilder, "create_dot_scaled", None)
    InterpreterBuilder.create_dot_scaled = _dot_scaled
    try:
        yield
    finally:
        if before is None:
            del InterpreterBuilder.create_dot_scaled
        else:
            InterpreterBuilder.create_dot_scaled = before
