"""The value of every code.

Contract: `Format.value`, `.values()`, `.table()`, `nm.decode` and the derived properties give the numbers that the
format's specification gives. Oracles: tables written out here by hand from OCP Microscaling Formats v1.0 (E2M1, E4M3,
E8M0), PTX ISA 9.1 section 5.2.4 (S2F6) and IEEE 754 (BF16 is the upper half of binary32); ml_dtypes; gfloat.
All codes, bitwise.
"""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

import numerics as nm
from numerics import oracle

FORMATS = (nm.E2M1, nm.E4M3, nm.E8M0, nm.S2F6, nm.BF16)
ML_DTYPES = (
    (nm.E2M1, ml_dtypes.float4_e2m1fn),
    (nm.E4M3, ml_dtypes.float8_e4m3fn),
    (nm.E8M0, ml_dtypes.float8_e8m0fnu),
    (nm.BF16, ml_dtypes.bfloat16),
)
NAN = math.nan


def all_codes(fmt: nm.Format) -> torch.Tensor:
    return torch.arange(1 << fmt.bits).to(fmt.code_dtype)


def same(a: float, b: float) -> bool:
    """Equal numbers with equal signs, zeros too, or both NaN."""
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


# ---- tables by hand --------------------------------------------------------------------------------------------------


def test_e2m1_all_sixteen_values():
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    expected = magnitudes + [-m for m in magnitudes]
    assert all(same(nm.E2M1.value(code), value) for code, value in enumerate(expected))
    assert nm.E2M1.values().tolist() == [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.mark.parametrize(
    ("fmt", "code", "value"),
    [
        (nm.E4M3, 0x00, 0.0),
        (nm.E4M3, 0x80, -0.0),
        (nm.E4M3, 0x01, 2.0**-9),
        (nm.E4M3, 0x07, 7 * 2.0**-9),
        (nm.E4M3, 0x08, 2.0**-6),
        (nm.E4M3, 0x38, 1.0),
        (nm.E4M3, 0x39, 1.125),
        (nm.E4M3, 0x6C, 96.0),  # 0|1101|100
        (nm.E4M3, 0x77, 240.0),
        (nm.E4M3, 0x78, 256.0),  # the top exponent is an ordinary binade but for its last code
        (nm.E4M3, 0x7E, 448.0),
        (nm.E4M3, 0x7F, NAN),
        (nm.E4M3, 0xFE, -448.0),
        (nm.E4M3, 0xFF, NAN),
        (nm.E8M0, 0x00, 2.0**-127),
        (nm.E8M0, 0x01, 2.0**-126),
        (nm.E8M0, 0x7F, 1.0),
        (nm.E8M0, 0x85, 64.0),
        (nm.E8M0, 0xFE, 2.0**127),
        (nm.E8M0, 0xFF, NAN),
        (nm.S2F6, 0x00, 0.0),
        (nm.S2F6, 0x01, 1 / 64),
        (nm.S2F6, 0x40, 1.0),
        (nm.S2F6, 0x7F, 127 / 64),
        (nm.S2F6, 0x80, -2.0),
        (nm.S2F6, 0x81, -127 / 64),
        (nm.S2F6, 0xFF, -1 / 64),
        (nm.BF16, 0x0001, 2.0**-133),
        (nm.BF16, 0x0080, 2.0**-126),
        (nm.BF16, 0x3F80, 1.0),
        (nm.BF16, 0x7F7F, 255 * 2.0**120),
        (nm.BF16, 0x7F80, math.inf),
        (nm.BF16, 0x7FC0, NAN),
        (nm.BF16, 0x8000, -0.0),
        (nm.BF16, 0xFF80, -math.inf),
    ],
)
def test_spot_codes(fmt: nm.Format, code: int, value: float):
    assert same(fmt.value(code), value)


@pytest.mark.parametrize(
    ("fmt", "bits", "top", "min_normal", "min_subnormal", "finite", "max_code", "nan_code"),
    [
        (nm.E2M1, 4, 6.0, 1.0, 0.5, 15, 7, None),
        (nm.E4M3, 8, 448.0, 2.0**-6, 2.0**-9, 253, 0x7E, 0x7F),
        (nm.E8M0, 8, 2.0**127, 2.0**-127, 2.0**-127, 255, 0xFE, 0xFF),
        (nm.S2F6, 8, 127 / 64, 1 / 64, 1 / 64, 256, 0x7F, None),
        (nm.BF16, 16, 255 * 2.0**120, 2.0**-126, 2.0**-133, 2 * 0x7F80 - 1, 0x7F7F, 0x7FC0),
    ],
)
def test_properties(fmt, bits, top, min_normal, min_subnormal, finite, max_code, nan_code):
    assert (fmt.bits, fmt.max, fmt.min_normal, fmt.min_subnormal) == (bits, top, min_normal, min_subnormal)
    assert (fmt.max_code, fmt.nan_code) == (max_code, nan_code)
    values = fmt.values()
    assert values.dtype == torch.float32 and len(values) == finite
    assert bool((values.diff() > 0).all()) and float(values[-1]) == top


def test_s2f6_is_a_byte_over_64():
    """Two's complement: code i is int8(i) / 64, the element of OCP's MXINT8; -128/64 to 127/64."""
    expected = np.arange(256).astype(np.uint8).view(np.int8) / np.float32(64)
    assert np.array_equal(nm.S2F6.table().numpy(), expected)
    assert (float(nm.S2F6.values()[0]), float(nm.S2F6.values()[-1])) == (-2.0, 1.984375)


def test_bf16_is_the_upper_half_of_binary32():
    codes = np.arange(1 << 16, dtype=np.uint32)
    assert np.array_equal(nm.BF16.table().numpy(), (codes << 16).view(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(nm.BF16.table().numpy()[[0, 0x8000]]), [False, True])


# ---- all codes against other implementations -------------------------------------------------------------------------


@pytest.mark.parametrize(("fmt", "dtype"), ML_DTYPES, ids=lambda p: getattr(p, "name", ""))
def test_all_codes_equal_ml_dtypes(fmt: nm.Format, dtype: type):
    codes = np.arange(1 << fmt.bits).astype(np.uint8 if fmt.bits <= 8 else np.uint16)
    expected = codes.view(dtype).astype(np.float32)
    for ours in (fmt.table().numpy(), nm.decode(codes, fmt), nm.decode(torch.from_numpy(codes), fmt).numpy()):
        assert ours.dtype == np.float32 and np.array_equal(ours, expected, equal_nan=True)
        numbers = ~np.isnan(expected)
        assert np.array_equal(np.signbit(ours)[numbers], np.signbit(expected)[numbers])


@pytest.mark.parametrize(
    ("fmt", "name"),
    [
        (nm.E2M1, "format_info_ocp_e2m1"),
        (nm.E4M3, "format_info_ocp_e4m3"),
        (nm.E8M0, "format_info_ocp_e8m0"),
        (nm.S2F6, "format_info_ocp_int8"),
        (nm.BF16, "format_info_bfloat16"),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_all_codes_equal_gfloat(fmt: nm.Format, name: str):
    gfloat = pytest.importorskip("gfloat")
    formats = pytest.importorskip("gfloat.formats")
    info = getattr(formats, name)
    for code in range(0, 1 << fmt.bits, 1 if fmt.bits <= 8 else 7):  # 7 is prime to 2^16: every pattern of low bits
        assert same(fmt.value(code), gfloat.decode_float(info, code).fval), hex(code)


# ---- codes and values, there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_encode_inverts_decode(fmt: nm.Format):
    """Every finite code comes back, whatever the input type; -0 of S2F6 does not exist, its NaN neither."""
    codes = all_codes(fmt)
    values = nm.decode(codes, fmt)
    finite = torch.isfinite(values)
    modes = [nm.Rounding.NEAREST_EVEN, nm.Rounding.TOWARD_ZERO, nm.Rounding.TOWARD_POSITIVE]
    for mode in modes:
        for dtype in (torch.float32, torch.float64):
            back = nm.encode(values.to(dtype), fmt, mode)
            assert back.dtype == fmt.code_dtype and torch.equal(back[finite], codes[finite])
    nans = torch.isnan(values)
    assert all(code == fmt.nan_code for code in nm.encode(values, fmt)[nans].tolist())


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_oracle_search_finds_every_code(fmt: nm.Format):
    for code in range(0, 1 << fmt.bits, 1 if fmt.bits <= 8 else 61):
        value = fmt.value(code)
        if math.isfinite(value):
            assert oracle.nearest(value, fmt) == code == oracle.stochastic(value, fmt, 0xFFFF)


def test_decode_rejects_what_is_no_code():
    with pytest.raises(ValueError, match=r"E2M1 has codes 0 to 15"):
        nm.decode(torch.tensor([3, 16], dtype=torch.uint8), nm.E2M1)
    with pytest.raises(ValueError, match=r"-1"):
        nm.decode(torch.tensor([-1], dtype=torch.int32), nm.E4M3)
    with pytest.raises(TypeError, match="codes"):
        nm.decode(torch.tensor([1.0]), nm.E4M3)
    with pytest.raises(ValueError, match="256"):
        nm.E4M3.value(256)


def test_format_is_hashable_data():
    assert len({nm.E2M1, nm.E4M3, nm.E2M1}) == 2
    with pytest.raises(AttributeError):
        nm.E2M1.bias = 2
    with pytest.raises(ValueError, match="kind="):
        nm.Format("X", "decimal", 4, 2, 1, 1)
    with pytest.raises(ValueError, match="need"):
        nm.Format("X", "float", 8, 2, 1, 1)


def test_a_format_of_ones_own():
    """Unsigned without NaN: E3M2 magnitudes; negative numbers and NaN go to the ends."""
    own = nm.Format("U3M2", "float", 5, 3, 2, bias=3, signed=False)
    assert (
        own.max == nm.E3M2.max
        and own.min == 0.0
        and own.values().tolist() == [v for v in nm.E3M2.values().tolist() if v >= 0]
    )
    x = torch.tensor([-1.0, -0.0, 0.3, 1e9, float("nan")])
    assert nm.decode(nm.encode(x, own), own).tolist() == [0.0, 0.0, 0.3125, 28.0, 28.0]
    with pytest.raises(ValueError, match=r"bits=6 of format X: sign, exponent and mantissa need 5"):
        nm.Format("X", "float", 6, 2, 2, bias=1)
