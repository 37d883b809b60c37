"""SwiGLU whose bits do not depend on a math library: silu by table.

    h      = bf16(silu(gate) * up)              silu(gate) correctly rounded to BF16 first
    d_gate = bf16((dh * up) * silu'(gate))      silu'(gate) correctly rounded to FP32
    d_up   = bf16(dh * silu(gate))              the BF16 silu that the forward used

A BF16 number has 65,536 patterns, so silu and its derivative are tables, computed in float64; a test checks every
entry in 60 digits. Near zero, x/2 + x^2/4 and 1/2 + x/2 - x^3/12 lie beyond a tie by less than float64 can hold;
there the last term only decides the side. gate and up are BF16, dh is FP32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import require_same_shape, require_tensor
from .cache import cached
from .subnormals import kept

_BF16 = (torch.bfloat16,)


@cached(maxsize=8)
def silu_tables(device: str) -> tuple[Tensor, Tensor]:
    """silu (BF16) and its derivative (float32) of every BF16 pattern in code order, shape (65536,) on `device`."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    x = patterns.to(torch.float64)
    sigmoid, complement = 1 / (1 + torch.exp(-x)), 1 / (1 + torch.exp(x))
    silu = torch.where(x.abs() < 2.0**-26, _beside(x * 0.5, x.square()), x * sigmoid)
    silu = torch.where(x == -torch.inf, -0.0, torch.where(x == 0, x, silu))
    slope = torch.where(x.abs() < 2.0**-12, _beside(0.5 + x * 0.5, x**3 * (-1 / 12)), sigmoid * (1 + x * complement))
    derivative = torch.where(x == -torch.inf, -0.0, torch.where(x == torch.inf, 1.0, slope))
    return _bf16_of_float64(silu).to(device), derivative.to(torch.float32).to(device)


def _beside(value: Tensor, term: Tensor) -> Tensor:
    """value + term, moved one float64 step to the side of `term` where the sum would not show it."""
    total = value + term
    side = torch.where(term > 0, torch.inf, -torch.inf).to(value.dtype)
    return torch.where((total == value) & (value != 0), torch.nextafter(value, side), total)


def _bf16_of_float64(x: Tensor) -> Tensor:
    """One rounding from float64 to BF16, nearest even: through float32 rounded to odd."""
    near = x.to(torch.float32)
    bits = near.view(torch.int32)
    too_far = (near.to(torch.float64).abs() > x.abs()).to(torch.int32)
    inexact = (near.to(torch.float64) != x) & ~torch.isnan(x)
    odd = torch.where(inexact, (bits - too_far) | 1, bits)
    return odd.view(torch.float32).to(torch.bfloat16)


def look_up(which: int, x: Tensor) -> Tensor:
    """silu (0) or its derivative (1) of each value of `x`."""
    table, codes = silu_tables(str(x.device))[which], x.contiguous().view(torch.uint16).to(torch.int32)
    return table.index_select(0, codes.flatten()).view(x.shape)


@kept
def silu(x: Tensor) -> Tensor:
    """silu of a BF16 tensor, correctly rounded to BF16, any shape. TypeError: another kind or dtype."""
    require_tensor(x, "x", _BF16)
    return look_up(0, x)


@kept
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """h = bf16(silu(gate) * up) of BF16 tensors of one shape; BF16. TypeError, ValueError: anything else."""
    require_tensor(gate, "gate", _BF16)
    require_tensor(up, "up", _BF16)
    require_same_shape({"gate": gate, "up": up})
    return (silu(gate).to(torch.float32) * up.to(torch.float32)).to(torch.bfloat16)


@kept
def swiglu_backward(dh: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """(d_gate, d_up), BF16, from FP32 `dh` and the saved BF16 `gate` and `up`, all of one shape.

    Raises: TypeError for other kinds and dtypes, ValueError for shapes that differ.
    """
    require_tensor(gate, "gate", _BF16)
    require_tensor(up, "up", _BF16)
    require_tensor(dh, "dh", (torch.float32,))
    require_same_shape({"gate": gate, "up": up, "dh": dh})
    slope = look_up(1, gate)
    d_gate = (dh * up.to(torch.float32)) * slope
    return d_gate.to(torch.bfloat16), (dh * silu(gate).to(torch.float32)).to(torch.bfloat16)
