"""MX as microxcaling and Quark emulate it: rules and entries. Both keep values only; the bytes are fourbit's.

Notation as in `dialects_mx`; fl(log2 b) is taken in x's dtype.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .dialects_casts import const, nearest, rounded_logarithm
from .dialects_core import Blocks, Dialect, Outer, Prose, Steps
from .dialects_mx import NAN, emax, power, rounded_up_at_half
from .dialects_orders import one_level
from .formats import E8M0, Format

_FORMATS = ("MXFP4", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP8", "MXFP8_E5M2")
_QUARK_FORMATS = ("MXFP4", "MXFP6_E2M3", "MXFP6_E3M2")
LEAST = 2.0**-126


# ---- microxcaling ----------------------------------------------------------------------------------------------------


def microxcaling(blocks: Blocks, outer: Outer, rounding: str) -> Steps:
    """2^(floor(fl(log2 b)) - emax), at least 2^-127, b 2^-126 for zeros; q = sign(x) round(|x / 2^k| / u) u, where u is
    the place of the last bit of a value with the exponent floor(fl(log2 |x / 2^k|)).

    "nearest" is floor(t + 1/2), which float32 rounds up already at t = 1/2 - 2^-25; "even" takes 1 off at ties of even
    t; "floor" truncates.
    """
    b, element = blocks.amax, blocks.element
    exponent = torch.floor(rounded_logarithm(torch.where(b == 0, const(b, LEAST), b), blocks.dtype)) - emax(element)
    byte = torch.where(torch.isfinite(exponent), exponent.clamp(-127, 127) + 127, NAN).to(torch.int32)

    def rounded(t: Tensor) -> Tensor:
        return t.to(blocks.dtype).to(torch.float32)

    scaled = rounded(blocks.x / torch.where(byte == NAN, torch.nan, power(byte)))
    size = scaled.abs()
    own = torch.floor(rounded_logarithm(torch.where(size == 0, const(size, 1.0), size), blocks.dtype))
    unit = torch.exp2(own.clamp(min=1 - element.bias) - element.mantissa_bits)
    places = rounded(size / unit)
    whole = torch.floor(places if rounding == "floor" else rounded(places + 0.5))
    if rounding == "even":
        whole = whole - (torch.remainder(rounded(places - 0.5), 2.0) == 0).to(torch.float32)
    values = torch.sign(scaled) * (whole * unit).clamp(max=element.max)
    return Steps(b / const(b, 2.0 ** emax(element)), byte.to(torch.uint8), scaled, nearest(values, element))


def _microxcaling(name: str, rounding: str, elements: str, ties: str) -> Dialect:
    return Dialect(
        name,
        f'microsoft/microxcaling 7bc4195, mx/mx_ops.py, _quantize_mx, round="{rounding}"; mx/elemwise_ops.py, '
        "_quantize_elemwise_core, without the CUDA extension",
        _FORMATS,
        Prose(
            "none",
            "2^(floor(fl(log2 b)) - emax)",
            "0x00 (2^-127)",
            f"x / 2^k, {elements}, saturating, -0 becomes +0",
            "an infinity or a NaN makes its block's scale 0xFF and its values NaN",
            "q * 2^k",
            "the bytes are fourbit's, it keeps values only; the code of a NaN",
        ),
        partial(microxcaling, rounding=rounding),
        one_level,
        defined_nan=False,
        scale_format=E8M0,
        rounding=ties,
    )


# ---- Quark -----------------------------------------------------------------------------------------------------------


def quark(blocks: Blocks, outer: Outer, mode: str) -> Steps:
    """`even`: 2^(e(b rounded half up to the element's significand) - emax), at least 2^-127. `floor`, `ceil`:
    2^(floor or ceil(fl(log2 b)) - emax), 2^-23 for zeros. q rounds x / 2^k, every zero becomes +0."""
    b, element = blocks.amax, blocks.element
    if mode == "even":
        exponent = rounded_logarithm(torch.where(b == 0, const(b, LEAST), rounded_up_at_half(b, element.mantissa_bits)))
    else:
        exponent = rounded_logarithm(b, blocks.dtype)
        exponent = torch.floor(exponent) if mode == "floor" else torch.ceil(exponent)
    exponent = (exponent - emax(element)).clamp(-127, 127)
    exponent = torch.where((b == 0) & (mode != "even"), -23.0, exponent)
    byte = torch.where(torch.isnan(exponent), NAN, exponent + 127).to(torch.int32)
    scaled = blocks.x / torch.where(byte == NAN, torch.nan, power(byte))
    return Steps(b / const(b, 2.0 ** emax(element)), byte.to(torch.uint8), scaled, _plus_zero(scaled, element))


def _plus_zero(scaled: Tensor, element: Format) -> Tensor:
    codes = nearest(scaled, element)
    return torch.where(codes == 1 << (element.bits - 1), 0, codes).to(torch.uint8)


def _quark(name: str, mode: str, scale: str, zero: str) -> Dialect:
    return Dialect(
        name,
        "amd/Quark 0.13, quark/torch/kernel/hw_emulation/hw_emulation_interface.py, fake_quantize_mx, "
        f'scale_calculation_mode="{mode}"; csrc/mx/funcs.cuh, fake_quantize_element',
        _QUARK_FORMATS,
        Prose(
            "none",
            scale,
            zero,
            "x / 2^k, ties to even, saturating, every zero becomes +0",
            "not claimed",
            "q * 2^k",
            "the bytes are fourbit's, it keeps values only; NaN, infinities and scales below 2^-127",
        ),
        partial(quark, mode=mode),
        one_level,
        defined_nan=False,
        scale_format=E8M0,
    )


EMULATORS: tuple[Dialect, ...] = (
    _microxcaling(
        "microxcaling", "nearest", "ties away from zero (so is the number before 1/4 a tie)", "ties away from zero"
    ),
    _microxcaling("microxcaling_even", "even", "ties to even", "ties to even"),
    _microxcaling("microxcaling_floor", "floor", "truncated", "truncated"),
    _quark("quark", "even", "2^(e(b rounded half up to the element's significand) - emax)", "0x00 (2^-127)"),
    _quark("quark_floor", "floor", "2^(floor(fl(log2 b)) - emax)", "0x68 (2^-23)"),
    _quark("quark_ceil", "ceil", "2^(ceil(fl(log2 b)) - emax)", "0x68 (2^-23)"),
)
