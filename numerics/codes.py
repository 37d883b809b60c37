"""Between numbers and codes of one element format: `encode`, `decode`, `round_to`.

Policy. Values beyond the largest finite one saturate, infinities too. The sign of zero is kept by float formats.
NaN becomes the format's NaN; where there is none, +max as the hardware's `cvt...satfinite` gives (PTX ISA 9.3,
9.7.9.22), or an error under nan="raise". E8M0 holds no negative number: negative input becomes its NaN.

float64, float32, float16 and bfloat16 inputs are rounded once, from their exact value. Nothing goes through
torch's float8 casts, whose meaning changes between releases.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .formats import Format
from .rounding import RANDOM_BITS, Rounding, exponent_codes, round_magnitude, working_dtype

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def as_tensor(x: Any, name: str) -> tuple[Tensor, bool]:
    """`x` as a tensor, and whether it came as a numpy array (ml_dtypes' small floats included)."""
    if isinstance(x, Tensor):
        return x, False
    if isinstance(x, np.ndarray):
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.uint16).copy()).view(torch.bfloat16), True
        if x.dtype.kind not in "fiu":
            raise TypeError(f"{name} has numpy dtype {x.dtype}: convert it to float32 first")
        return torch.from_numpy(np.ascontiguousarray(x)), True
    raise TypeError(f"{name} is a {type(x).__name__}: pass a torch tensor or a numpy array")


def require_float(x: Tensor, name: str) -> None:
    """Raises TypeError unless `x` is real floating point of 16 bits or more."""
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} has dtype {x.dtype}: convert it to float32, float64, float16 or bfloat16")


def encode(
    x: Any,
    fmt: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    random_bits: Any = None,
    nan: str = "max",
) -> Any:
    """Codes of `x` in `fmt`, saturating.

    Args:
        x: float64, float32, float16 or bfloat16; torch (any device) or numpy; any shape.
        fmt: the element format.
        rounding: the mode; STOCHASTIC needs `random_bits`.
        random_bits: integers in [0, 2^16), one per element, shape of `x`.
        nan: "max": a NaN becomes the format's NaN, else +max; "raise": a NaN is an error.

    Returns:
        Codes, shape of `x`, uint8 (uint16 for formats wider than 8 bits), numpy if `x` was.

    Raises:
        TypeError: `x` is not floating point. ValueError: random bits missing, superfluous or of another shape;
        a NaN under nan="raise"; an unknown `nan`; a mode that `fmt` lacks.
    """
    tensor, is_numpy = as_tensor(x, "x")
    require_float(tensor, "x")
    if nan not in ("max", "raise"):
        raise ValueError(f"nan={nan!r}: use 'max' or 'raise'")
    field = _check_random(tensor, rounding, random_bits)
    if nan == "raise":
        count = int(torch.isnan(tensor).sum())
        if count:
            raise ValueError(f"x holds {count} NaN: remove them or pass nan='max'")
    codes = encode_tensor(tensor, fmt, rounding, field)
    return codes.numpy() if is_numpy else codes


def encode_tensor(x: Tensor, fmt: Format, rounding: Rounding, random_bits: Tensor | None = None) -> Tensor:
    """`encode` on a checked tensor."""
    if fmt.kind == "exponent":
        return exponent_codes(x if x.dtype == torch.float64 else x.to(torch.float32), rounding).to(torch.uint8)
    x = x.to(working_dtype(x.dtype, fmt))
    negative = torch.signbit(x)
    not_a_number = torch.isnan(x)
    # two's complement reaches one step further on the negative side: -2.0 in S2F6
    limit = fmt.max + negative * fmt.min_subnormal if fmt.kind == "fixed" else torch.full_like(x, fmt.max)
    magnitude = torch.where(not_a_number, 0.0, torch.minimum(x.abs(), limit.to(x.dtype)))
    code = with_sign(round_magnitude(magnitude, fmt, rounding, x, random_bits), -negative.to(torch.int32), fmt)
    code = torch.where(not_a_number, fmt.max_code if fmt.nan_code is None else fmt.nan_code, code)
    return code.to(fmt.code_dtype)


def with_sign(magnitude: Tensor, sign: Tensor, fmt: Format) -> Tensor:
    """Whole codes, int32, from magnitude codes and signs (-1 or 0, int32): a sign bit, or two's complement."""
    if fmt.kind == "fixed":
        return ((magnitude ^ sign) - sign) & ((1 << fmt.bits) - 1)
    return magnitude | (sign & (1 << (fmt.bits - 1)))


def decode(codes: Any, fmt: Format) -> Any:
    """Values of `codes`, float32, any shape; numpy if `codes` is. Exact.

    Raises:
        TypeError: `codes` are not integers. ValueError: a code out of the format's range.
    """
    tensor, is_numpy = as_tensor(codes, "codes")
    if tensor.dtype.is_floating_point or tensor.dtype == torch.bool:
        raise TypeError(f"codes have dtype {tensor.dtype}: pass integer codes of {fmt.name}")
    if tensor.numel() and (fmt.bits < 8 or tensor.dtype not in (torch.uint8, torch.uint16)):
        low, high = torch.aminmax(tensor.to(torch.int64))
        if low < 0 or high >= 1 << fmt.bits:
            raise ValueError(f"codes reach from {low} to {high}: {fmt.name} has codes 0 to {(1 << fmt.bits) - 1}")
    values = decode_tensor(tensor, fmt)
    return values.numpy() if is_numpy else values


def decode_tensor(codes: Tensor, fmt: Format) -> Tensor:
    """`decode` on checked codes: one table look-up, float32."""
    return fmt.table(codes.device).index_select(0, codes.reshape(-1).to(torch.int32)).view(codes.shape)


def round_to(x: Any, fmt: Format, rounding: Rounding = Rounding.NEAREST_EVEN, random_bits: Any = None) -> Any:
    """`x` rounded to values of `fmt`: decode(encode(x)), dtype and kind of `x` kept, NaN kept. Errors as `encode`."""
    tensor, is_numpy = as_tensor(x, "x")
    require_float(tensor, "x")
    codes = encode_tensor(tensor, fmt, rounding, _check_random(tensor, rounding, random_bits))
    values = torch.where(torch.isnan(tensor), tensor, decode_tensor(codes, fmt).to(tensor.dtype))
    return _to_numpy(values) if is_numpy else values


def _to_numpy(x: Tensor) -> np.ndarray:
    if x.dtype == torch.bfloat16:
        import ml_dtypes  # only for arrays that came as ml_dtypes.bfloat16

        return x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def _check_random(x: Tensor, rounding: Rounding, random_bits: Any) -> Tensor | None:
    if rounding is not Rounding.STOCHASTIC:
        if random_bits is not None:
            raise ValueError(f"random_bits given with rounding={rounding}: they serve STOCHASTIC only")
        return None
    if random_bits is None:
        raise ValueError("rounding=STOCHASTIC needs random_bits: one integer in [0, 65536) per element")
    field, _ = as_tensor(random_bits, "random_bits")
    if field.dtype.is_floating_point or field.dtype == torch.bool:
        raise TypeError(f"random_bits have dtype {field.dtype}: pass integers in [0, 65536)")
    if field.shape != x.shape:
        raise ValueError(f"random_bits has shape {tuple(field.shape)}: x has {tuple(x.shape)}")
    field = field.to(torch.int64)
    if field.numel() and (int(field.min()) < 0 or int(field.max()) >= 1 << RANDOM_BITS):
        raise ValueError("random_bits go beyond 16 bits: pass integers in [0, 65536)")
    return field.to(torch.int32)
