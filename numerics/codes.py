"""Between numbers and codes of one element format: `encode`, `decode`, `round_to`.

Policy. Values beyond the largest finite one saturate, infinities too. The sign of zero is kept by signed float formats.
NaN becomes the format's NaN; where there is none, +max as the hardware's `cvt...satfinite` gives (PTX ISA 9.3,
9.7.9.22), or an error under nan="raise". Unsigned formats (UE4M3, E8M0) hold no negative number: it becomes their NaN,
or their least value where they have none. E8M0 holds no zero: zero becomes its least value.

float64, float32, float16 and bfloat16 inputs are rounded once, from their exact value. Nothing goes through
torch's float8 casts, whose meaning changes between releases.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arguments import FLOATS, require_integers, require_kind, require_same_device, shown
from .formats import TABLE_BITS, Format, cached_table
from .rounding import RANDOM_WIDTHS, Rounding, pattern, round_magnitude, working_dtype
from .subnormals import kept

CHUNK = 1 << 16  # elements that stay in a CPU's cache through all steps of an encoding
ELEMENT_FORMAT = "pass an element format such as nm.E2M1"


_NUMPY = ("float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


def as_tensor(x: Any, name: str) -> tuple[Tensor, bool]:
    """`x` as a tensor, and whether it came as a numpy array (ml_dtypes' bfloat16 included)."""
    if isinstance(x, Tensor):
        if x.layout != torch.strided or x.is_nested or x.is_quantized:
            raise TypeError(f"{name} is sparse, nested or quantized by torch: pass a dense tensor")
        return x.resolve_neg(), False
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: fill it first")
    if isinstance(x, np.ndarray):
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.uint16).copy()).view(torch.bfloat16), True
        if x.dtype.newbyteorder("=").name not in _NUMPY:
            raise TypeError(f"{name} has numpy dtype {x.dtype}: convert it to float32 first")
        native = np.ascontiguousarray(x.astype(x.dtype.newbyteorder("="), copy=not x.flags.writeable))
        return torch.from_numpy(native), True
    raise TypeError(f"{name} is {shown(x)}: pass a torch tensor or a numpy array")


def require_float(x: Tensor, name: str) -> None:
    """Raises TypeError unless `x` is real floating point of 16 bits or more."""
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} has dtype {x.dtype}: convert it to float32, float64, float16 or bfloat16")


@kept
def encode(
    x: Any,
    fmt: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    random_bits: Any = None,
    nan: str = "max",
    random_width: int = 16,
) -> Any:
    """Codes of `x` in `fmt`, saturating. Not differentiable.

    Args:
        x: float64, float32, float16 or bfloat16; torch (any device) or numpy; any shape.
        fmt: the element format.
        rounding: the mode; STOCHASTIC needs `random_bits`.
        random_bits: integers in [0, 2^random_width), one per element, shape of `x`; their width is 16 (as the
            hardware's) or 32.
        nan: "max": a NaN becomes the format's NaN, else +max; "raise": a NaN is an error.

    Returns:
        Codes, shape of `x`, `fmt.code_dtype` (uint8, uint16 or int32), numpy if `x` was.

    Raises:
        TypeError: `x` is not floating point, `fmt` no format. ValueError: random bits missing, superfluous or of
        another shape; a NaN under nan="raise"; an unknown `nan` or width.
    """
    require_kind(fmt, Format, "fmt", ELEMENT_FORMAT)
    tensor, is_numpy = as_tensor(x, "x")
    tensor = tensor.detach()
    require_float(tensor, "x")
    require_kind(nan, str, "nan", "use 'max' or 'raise'")
    if nan not in ("max", "raise"):
        raise ValueError(f"nan={nan!r}: use 'max' or 'raise'")
    field = _check_random(tensor, rounding, random_bits, random_width)
    if nan == "raise":
        count = int(torch.isnan(tensor).sum())
        if count:
            raise ValueError(f"x holds {count} NaN: remove them or pass nan='max'")
    codes = encode_tensor(tensor, fmt, rounding, field, random_width)
    return codes.numpy() if is_numpy else codes


def encode_tensor(
    x: Tensor, fmt: Format, rounding: Rounding, random_bits: Tensor | None = None, random_width: int = 16
) -> Tensor:
    """`encode` on checked tensors; on a CPU in chunks that stay in its cache."""
    parts = chunks(x.numel(), 1, x.device)
    if len(parts) <= 1:
        return _encode(x, fmt, rounding, random_bits, random_width)
    flat = x.reshape(-1)
    fields = None if random_bits is None else random_bits.reshape(-1)
    out = torch.empty(x.shape, dtype=fmt.code_dtype)
    for part in parts:
        out.view(-1)[part] = _encode(flat[part], fmt, rounding, None if fields is None else fields[part], random_width)
    return out


def step_by_step(device: torch.device) -> bool:
    """Whether this runs on a CPU, one operation after the other, each reading and writing memory: not compiled."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def chunks(rows: int, width: int, device: torch.device) -> list[slice]:
    """Rows of `width` elements in slices that stay in a CPU's cache through many steps; one slice elsewhere."""
    step = max(1, CHUNK // max(1, width) if step_by_step(device) else rows)
    return [slice(start, start + step) for start in range(0, rows, step)]


def _encode(x: Tensor, fmt: Format, rounding: Rounding, random_bits: Tensor | None, random_width: int) -> Tensor:
    x = x.to(working_dtype(x.dtype, fmt))
    integer = torch.int32 if x.dtype == torch.float32 else torch.int64
    bits = x.view(integer)
    last = torch.iinfo(integer).bits - 1
    magnitude = bits & torch.iinfo(integer).max
    # masks of -1 and 0: on a CPU integer arithmetic is several times faster than comparing and choosing
    sign = (bits >> last).to(torch.int32)
    if x.dtype == torch.float32:
        not_a_number = (pattern(float("inf"), x.dtype) - magnitude) >> last
    else:
        # a GPU's compiler fuses conversions from float32 with taking magnitudes, and leaves the signs of NaNs
        not_a_number = -torch.isnan(x).to(torch.int32)
        # below every format's reach, where a product with 2^-q would underflow to zero
        magnitude = torch.where(magnitude > 0, magnitude.clamp(min=pattern(2.0**-900, x.dtype)), magnitude)
    # as integers NaN exceeds infinity, and infinity every number: one clamp saturates all three
    largest = pattern(fmt.max, x.dtype)
    if fmt.kind == "fixed":  # two's complement reaches one step further on the negative side: -2.0 in S2F6
        further = pattern(-fmt.min, x.dtype) - largest
        magnitude = torch.minimum(magnitude, largest - sign.to(integer) * further)
    else:
        magnitude = magnitude.clamp_(max=largest)
    if fmt.kind == "exponent":
        magnitude = magnitude.clamp_(min=pattern(fmt.min, x.dtype))
    code = round_magnitude(magnitude.view(x.dtype), fmt, rounding, x, random_bits, random_width)
    if fmt.kind == "exponent" or not fmt.signed:
        code = torch.where(x < 0, 0 if fmt.nan_code is None else fmt.nan_code, code)
    else:
        code = with_sign(code, sign, fmt)
    replacement = fmt.max_code if fmt.nan_code is None else fmt.nan_code
    return (code ^ ((code ^ replacement) & not_a_number)).to(fmt.code_dtype)


def with_sign(magnitude: Tensor, sign: Tensor, fmt: Format) -> Tensor:
    """Whole codes, int32, from magnitude codes and signs (-1 or 0, int32): a sign bit, or two's complement."""
    if fmt.kind == "fixed":
        return ((magnitude ^ sign) - sign) & ((1 << fmt.bits) - 1)
    return magnitude | (sign & (1 << (fmt.bits - 1)))


@kept
def decode(codes: Any, fmt: Format) -> Any:
    """Values of `codes`, float32, any shape; numpy if `codes` is. Exact.

    Raises:
        TypeError: `codes` are not integers. ValueError: a code out of the format's range.
    """
    require_kind(fmt, Format, "fmt", ELEMENT_FORMAT)
    tensor, is_numpy = as_tensor(codes, "codes")
    require_integers(tensor, "codes", f"pass integer codes of {fmt.name}")
    if tensor.numel() and fmt.bits < 8 * tensor.element_size():
        low, high = torch.aminmax(tensor.to(torch.int64))
        if low < 0 or high >= 1 << fmt.bits:
            raise ValueError(f"codes reach from {low} to {high}: {fmt.name} has codes 0 to {(1 << fmt.bits) - 1}")
    elif tensor.dtype in (torch.int8, torch.int16):  # the bits of a code, whatever the sign of the integer
        tensor = tensor.to(torch.int32) & ((1 << fmt.bits) - 1)
    values = decode_tensor(tensor, fmt)
    return values.numpy() if is_numpy else values


def decode_tensor(codes: Tensor, fmt: Format) -> Tensor:
    """`decode` on checked codes: a table look-up, or the formula for formats too wide for a table; float32."""
    if fmt.bits <= TABLE_BITS:
        return cached_table(fmt, str(codes.device)).index_select(0, codes.reshape(-1).to(torch.int32)).view(codes.shape)
    codes = codes.to(torch.int64) & ((1 << fmt.bits) - 1)  # codes of 32 bits come as int32
    if fmt.kind == "fixed":
        signed = codes - ((codes >> (fmt.bits - 1)) << fmt.bits)
        return (signed.to(torch.float64) * 2.0**-fmt.mantissa_bits).to(torch.float32)
    width = fmt.bits - int(fmt.signed)
    magnitude, m = codes & ((1 << width) - 1), fmt.mantissa_bits
    exponent, mantissa = magnitude >> m, magnitude & ((1 << m) - 1)
    significand = mantissa + ((exponent > 0).to(torch.int64) << m)
    value = torch.ldexp(significand.to(torch.float64), exponent.clamp(min=1) - (fmt.bias + m))
    infinite = (magnitude == fmt.max_code + 1) & (fmt.specials == "ieee")
    value = torch.where(magnitude > fmt.max_code, torch.where(infinite, torch.inf, torch.nan), value)
    return torch.where(codes >> width > 0, -value, value).to(torch.float32)


@kept
def round_to(
    x: Any,
    fmt: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    random_bits: Any = None,
    random_width: int = 16,
) -> Any:
    """`x` rounded to values of `fmt`: decode(encode(x)), dtype and kind of `x` kept, NaN kept. Errors as `encode`.

    Not differentiable. A value of `fmt` beyond the dtype of `x` (65,536 of BF16 in float16) becomes infinite there.
    """
    require_kind(fmt, Format, "fmt", ELEMENT_FORMAT)
    tensor, is_numpy = as_tensor(x, "x")
    tensor = tensor.detach()
    require_float(tensor, "x")
    field = _check_random(tensor, rounding, random_bits, random_width)
    codes = encode_tensor(tensor, fmt, rounding, field, random_width)
    values = torch.where(torch.isnan(tensor), tensor, decode_tensor(codes, fmt).to(tensor.dtype))
    return _to_numpy(values) if is_numpy else values


def _to_numpy(x: Tensor) -> np.ndarray:
    if x.dtype == torch.bfloat16:
        import ml_dtypes  # only for arrays that came as ml_dtypes.bfloat16

        return x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def _check_random(x: Tensor, rounding: Rounding, random_bits: Any, width: int) -> Tensor | None:
    require_kind(rounding, Rounding, "rounding", "use a member of nm.Rounding")
    require_kind(width, int, "random_width", "use 16 or 32")
    if width not in RANDOM_WIDTHS:
        raise ValueError(f"random_width={width}: use 16 or 32")
    if rounding is not Rounding.STOCHASTIC:
        if random_bits is not None:
            raise ValueError(f"random_bits given with rounding={rounding}: they serve STOCHASTIC only")
        return None
    if random_bits is None:
        raise ValueError(f"rounding=STOCHASTIC needs random_bits: one integer in [0, 2^{width}) per element")
    field, _ = as_tensor(random_bits, "random_bits")
    require_integers(field, "random_bits", f"pass integers in [0, 2^{width})")
    if field.shape != x.shape:
        raise ValueError(f"random_bits has shape {tuple(field.shape)}: x has {tuple(x.shape)}; make them equal")
    require_same_device(field, "random_bits", x, "x")
    field = field.to(torch.int64)
    if field.numel() and (int(field.min()) < 0 or int(field.max()) >= 1 << width):
        raise ValueError(f"random_bits go beyond {width} bits: pass integers in [0, {1 << width})")
    return field.to(torch.int32) if width == 16 else field
