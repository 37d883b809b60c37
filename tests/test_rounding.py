"""One number to one code, under every mode.

Contract: `nm.encode` rounds the exact value of its input once, saturates, keeps the sign of zero, and treats NaN and
Inf as PTX `cvt ... .satfinite` does; STOCHASTIC is the rule of `cvt.rs` with 16 random bits. Oracles: `numerics.oracle`
(a search in the table of values, in rationals); ml_dtypes (nearest even); a transcription of the integer rule of
`cvt.rs` (PTX ISA 8.7, "rbits" and "truncated off bits"); tables of NVIDIA's header emulation of the instructions.
Exhaustive over 16-bit inputs and over 16-bit random fields; sampled with all specials for float32 and float64. Bitwise.
"""

import importlib
import math

import ml_dtypes
import numpy as np
import pytest
import torch

import numerics as nm
from numerics import oracle

ELEMENTS = (nm.E2M1, nm.E4M3, nm.S2F6, nm.BF16)
MODES = {
    nm.Rounding.NEAREST_EVEN: "nearest_even",
    nm.Rounding.NEAREST_AWAY: "nearest_away",
    nm.Rounding.TOWARD_ZERO: "toward_zero",
    nm.Rounding.TOWARD_POSITIVE: "toward_positive",
    nm.Rounding.TOWARD_NEGATIVE: "toward_negative",
}
CASES = [(fmt, mode) for fmt in ELEMENTS for mode in MODES]
CASES += [(nm.E8M0, mode) for mode in MODES if mode is not nm.Rounding.TOWARD_NEGATIVE]
INF, NAN = math.inf, math.nan


def name(parameter: object) -> str:
    return getattr(parameter, "name", str(parameter))


def bfloat16_inputs() -> torch.Tensor:
    return torch.arange(1 << 16).to(torch.uint16).view(torch.bfloat16)


def float16_inputs() -> torch.Tensor:
    return torch.arange(1 << 16).to(torch.uint16).view(torch.float16)


def float32_patterns(n: int, seed: int = 0) -> torch.Tensor:
    """Bit patterns: half uniform (NaN payloads and huge values), half near 1, and a sixteenth subnormal."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(1 << 31), 1 << 31, (n,), generator=generator)
    near_one = (bits & 0x807FFFFF) | torch.randint(105, 140, (n,), generator=generator) << 23
    bits[: n // 2] = near_one[: n // 2]
    bits[-n // 16 :] &= 0x807FFFFF
    special = torch.tensor([0, 1 << 31, 1, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00001, 0x7F7FFFFF, 0x00800000])
    return torch.cat((bits, special)).to(torch.int32).view(torch.float32)


def grid(fmt: nm.Format, stride: int = 1) -> np.ndarray:
    """Every value of `fmt`, every midpoint, and one past the top, float64 (all exact)."""
    values = fmt.values().numpy().astype(np.float64)
    step = values[-1] - values[-2] if fmt.kind != "exponent" else 0
    values = np.concatenate((values, [values[-1] + step, values[-1] + 2 * step, values[0] - step]))
    values.sort()
    return np.concatenate((values, (values[1:] + values[:-1]) / 2))[::stride]


def neighbourhoods(points: np.ndarray, dtype: type) -> np.ndarray:
    """Each point, its two neighbours in `dtype`, and the negatives of the three."""
    points = points.astype(dtype)
    around = np.concatenate((points, np.nextafter(points, dtype(INF)), np.nextafter(points, dtype(-INF))))
    return np.concatenate((around, -around))


def expected(x: torch.Tensor, fmt: nm.Format, mode: nm.Rounding) -> torch.Tensor:
    """The oracle's codes."""
    codes = [oracle.nearest(value, fmt, MODES[mode]) for value in x.to(torch.float64).tolist()]
    return torch.tensor(codes, dtype=fmt.code_dtype)


def assert_codes(ours: torch.Tensor, theirs: torch.Tensor, x: torch.Tensor) -> None:
    """Bitwise, with the count and the first difference in the message."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    wrong = (ours.to(torch.int32) != theirs.to(torch.int32)).nonzero().flatten()
    if len(wrong):
        i = int(wrong[0])
        value = float(x[i])
        raise AssertionError(
            f"{len(wrong)}/{len(x)} codes differ; first: {value.hex()} gives {int(ours[i]):#x}, not {int(theirs[i]):#x}"
        )


def with_nonnegative_exponents(x: torch.Tensor, fmt: nm.Format) -> torch.Tensor:
    """E8M0 holds magnitudes; its treatment of negative input has a test of its own."""
    return x.abs() if fmt.kind == "exponent" else x


# ---- nearest and directed modes against the oracle -------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize(("fmt", "mode"), CASES, ids=name)
def test_all_bfloat16_inputs(fmt: nm.Format, mode: nm.Rounding):
    """All 65,536 to nearest even; the other modes take every third."""
    x = with_nonnegative_exponents(bfloat16_inputs(), fmt)
    x = x if mode is nm.Rounding.NEAREST_EVEN else x[::3]
    assert_codes(nm.encode(x, fmt, mode), expected(x, fmt, mode), x)


@pytest.mark.parametrize(("fmt", "mode"), [case for case in CASES if case[0] is not nm.BF16], ids=name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_grid_points_and_midpoints_one_ulp_around(fmt: nm.Format, mode: nm.Rounding, dtype: type):
    x = with_nonnegative_exponents(torch.from_numpy(neighbourhoods(grid(fmt), dtype)), fmt)
    assert_codes(nm.encode(x, fmt, mode), expected(x, fmt, mode), x)


@pytest.mark.parametrize("mode", MODES, ids=name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bf16_grid_points_and_midpoints_one_ulp_around(mode: nm.Rounding, dtype: type):
    """Every 29th point here; all of them against ml_dtypes below. Beyond FLT_MAX the input itself is infinite."""
    with np.errstate(over="ignore"):
        x = torch.from_numpy(neighbourhoods(grid(nm.BF16, stride=29), dtype))
    assert_codes(nm.encode(x, nm.BF16, mode), expected(x, nm.BF16, mode), x)


@pytest.mark.parametrize(("fmt", "mode"), CASES, ids=name)
def test_random_float32_patterns(fmt: nm.Format, mode: nm.Rounding):
    x = with_nonnegative_exponents(float32_patterns(10_000), fmt)
    assert_codes(nm.encode(x, fmt, mode), expected(x, fmt, mode), x)


@pytest.mark.parametrize(("fmt", "mode"), CASES, ids=name)
def test_float64_rounds_once(fmt: nm.Format, mode: nm.Rounding):
    """A midpoint plus 2^-40 of itself is that midpoint in float32: a way through float32 would see a tie."""
    points = grid(fmt, stride=1 if fmt.bits <= 8 else 101)
    x = np.concatenate([points * (1 + sign * 2.0**-shift) for sign in (1, -1) for shift in (26, 40, 52)])
    x = np.concatenate((x, -x, [5e-324, -5e-324, 2.0**-149, 1e-310, 1e300, -1e300]))
    x = with_nonnegative_exponents(torch.from_numpy(x), fmt)
    assert_codes(nm.encode(x, fmt, mode), expected(x, fmt, mode), x)


def test_float64_examples_that_float32_would_round_twice():
    x = torch.tensor([0.25 * (1 + 2.0**-40), 2.5 * (1 + 2.0**-40), 5 * (1 - 2.0**-40)], dtype=torch.float64)
    assert nm.encode(x, nm.E2M1).tolist() == [1, 5, 6]
    assert nm.encode(x.to(torch.float32), nm.E2M1).tolist() == [0, 4, 6]


@pytest.mark.parametrize("fmt", [nm.E2M1, nm.E4M3, nm.S2F6, nm.BF16], ids=name)
def test_all_float16_inputs(fmt: nm.Format):
    x = float16_inputs()
    assert_codes(nm.encode(x, fmt), expected(x, fmt, nm.Rounding.NEAREST_EVEN), x)


# ---- nearest even against ml_dtypes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "dtype"),
    [
        (nm.E2M1, ml_dtypes.float4_e2m1fn),
        (nm.E4M3, ml_dtypes.float8_e4m3fn),
        (nm.E8M0, ml_dtypes.float8_e8m0fnu),
        (nm.BF16, ml_dtypes.bfloat16),
    ],
    ids=name,
)
def test_nearest_even_equals_ml_dtypes(fmt: nm.Format, dtype: type):
    """ml_dtypes overflows to NaN or Inf, keeps the sign of NaN, has no E8M0 for zero: clip, leave those out."""
    with np.errstate(over="ignore"):
        around = neighbourhoods(grid(fmt), np.float32)
    parts = [bfloat16_inputs().float(), float16_inputs().float(), float32_patterns(1 << 20), torch.from_numpy(around)]
    x = torch.cat(parts)
    x = with_nonnegative_exponents(x[~torch.isnan(x)], fmt).clamp(-fmt.max, fmt.max)
    if fmt.kind == "exponent":  # nor does it round float32's subnormals to nearest: 1.02 2^-127 becomes 2^-126
        x = x[x >= 2.0**-126]
    theirs = x.numpy().astype(dtype).view(np.uint8 if fmt.bits <= 8 else np.uint16)
    assert_codes(nm.encode(x, fmt), torch.from_numpy(theirs), x)


def test_s2f6_equals_round_half_even_of_64_x():
    x = torch.cat((float32_patterns(1 << 20), torch.from_numpy(neighbourhoods(grid(nm.S2F6), np.float32))))
    x = x[~torch.isnan(x)]
    theirs = np.rint(np.clip(x.numpy().astype(np.float64) * 64, -128, 127)).astype(np.int8).view(np.uint8)
    assert_codes(nm.encode(x, nm.S2F6), torch.from_numpy(theirs), x)


# ---- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_e2m1_ties(sign: int):
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.1, 7.0, 1e30]
    even = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, 6.0]
    away = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 6.0, 6.0, 6.0]
    x = sign * torch.tensor(ties)
    assert torch.equal(nm.round_to(x, nm.E2M1), sign * torch.tensor(even))
    assert torch.equal(nm.round_to(x, nm.E2M1, nm.Rounding.NEAREST_AWAY), sign * torch.tensor(away))
    above = torch.nextafter(torch.tensor(0.25), torch.tensor(1.0))
    assert int(nm.encode(above, nm.E2M1)) == 1


def test_e4m3_ties():
    """Halfway cases: subnormals , the step to normals, [8, 16) with quantum 1, the top binade, overflow."""
    ties = [0.5, 1.5, 2.5, 7.5]
    x = torch.tensor([t * 2.0**-9 for t in ties] + [8.5, 9.5, 15.5, 272, 304, 432, 448, 464, 1e9])
    even = torch.tensor([t * 2.0**-9 for t in (0, 2, 2, 8)] + [8, 10, 16, 256, 320, 448, 448, 448, 448])
    assert torch.equal(nm.round_to(x, nm.E4M3), even)
    assert torch.equal(nm.round_to(-x, nm.E4M3), -even)


@pytest.mark.parametrize(
    ("fmt", "x", "code"),
    [
        (nm.E4M3, 0.0, 0x00),
        (nm.E4M3, -0.0, 0x80),
        (nm.E4M3, INF, 0x7E),
        (nm.E4M3, -INF, 0xFE),
        (nm.E4M3, NAN, 0x7F),
        (nm.E4M3, -NAN, 0x7F),
        (nm.E4M3, 449.0, 0x7E),
        (nm.E4M3, 480.0, 0x7E),  # where the non-saturating cast gives NaN
        (nm.E4M3, -1e30, 0xFE),
        (nm.E4M3, 2.0**-10, 0x00),  # tie with zero
        (nm.E4M3, -(2.0**-10), 0x80),
        (nm.E4M3, 2.0**-10 * (1 + 2**-23), 0x01),
        (nm.E4M3, 1e-45, 0x00),
        (nm.E4M3, -1e-45, 0x80),
        (nm.E2M1, 0.0, 0x0),
        (nm.E2M1, -0.0, 0x8),
        (nm.E2M1, INF, 0x7),
        (nm.E2M1, -INF, 0xF),
        (nm.E2M1, NAN, 0x7),  # no NaN: +6
        (nm.E2M1, -NAN, 0x7),
        (nm.E2M1, 7.0, 0x7),  # not 8 = -0
        (nm.E2M1, -7.0, 0xF),
        (nm.E2M1, -0.25, 0x8),
        (nm.E2M1, -1e-45, 0x8),
        (nm.S2F6, INF, 0x7F),
        (nm.S2F6, 1.99, 0x7F),
        (nm.S2F6, -INF, 0x80),
        (nm.S2F6, -2.0, 0x80),
        (nm.S2F6, -1.99, 0x81),  # to -127/64
        (nm.S2F6, -1.9922, 0x80),  # -127.5/64 lies at -1.9921875
        (nm.S2F6, NAN, 0x7F),
        (nm.S2F6, -0.0, 0x00),
        (nm.S2F6, -1 / 128, 0x00),  # tie to even
        (nm.S2F6, 3 / 128, 0x02),
        (nm.BF16, NAN, 0x7FC0),
        (nm.BF16, INF, 0x7F7F),
        (nm.BF16, -INF, 0xFF7F),
        (nm.BF16, 3.4028234e38, 0x7F7F),
        (nm.BF16, 2.0**-134, 0x0000),
        (nm.BF16, -(2.0**-134), 0x8000),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saturation_zero_and_nan(fmt: nm.Format, x: float, code: int, dtype: torch.dtype):
    """PTX ISA 9.7.9.22 and NVIDIA's header emulation for E4M3 and E2M1; 5.2.4 for S2F6."""
    assert int(nm.encode(torch.tensor(x, dtype=dtype), fmt)) == code
    assert oracle.nearest(x, fmt) == code


E8M0_TABLE = [  # cvt.rz.satfinite.ue8m0x2, cvt.rp.satfinite.ue8m0x2
    (0.0, 0x00, 0x00),
    (1e-45, 0x00, 0x00),
    (2.0**-128, 0x00, 0x00),
    (2.0**-127, 0x00, 0x00),
    (2.0**-127 * (1 + 2**-22), 0x00, 0x01),
    (2.0**-126 * (1 - 2**-23), 0x00, 0x01),
    (2.0**-126, 0x01, 0x01),
    (1.0, 0x7F, 0x7F),
    (1 + 2.0**-23, 0x7F, 0x80),
    (1.5, 0x7F, 0x80),
    (2 - 2.0**-23, 0x7F, 0x80),
    (2.0**127, 0xFE, 0xFE),
    (2.0**127 * (1 + 2**-23), 0xFE, 0xFE),
    (3.4028234e38, 0xFE, 0xFE),
    (INF, 0xFE, 0xFE),
    (NAN, 0xFF, 0xFF),
]


@pytest.mark.parametrize(("x", "toward_zero", "toward_positive"), E8M0_TABLE)
def test_e8m0_table(x: float, toward_zero: int, toward_positive: int):
    value = torch.tensor(x, dtype=torch.float32)
    for mode, code in ((nm.Rounding.TOWARD_ZERO, toward_zero), (nm.Rounding.TOWARD_POSITIVE, toward_positive)):
        assert int(nm.encode(value, nm.E8M0, mode)) == code
        assert oracle.nearest(float(value), nm.E8M0, MODES[mode]) == code


def test_e8m0_has_no_negative_numbers():
    """Policy: NaN, as ml_dtypes gives; `cvt.{rz,rp}.satfinite.ue8m0x2` would convert the magnitude. -0 is a zero."""
    x = -torch.tensor([row[0] for row in E8M0_TABLE], dtype=torch.float32)
    for mode in (nm.Rounding.TOWARD_ZERO, nm.Rounding.TOWARD_POSITIVE):
        wanted = [0 if value == 0 else 255 for value in x.tolist()]
        assert [oracle.nearest(value, nm.E8M0, MODES[mode]) for value in x.tolist()] == wanted
        assert nm.encode(x, nm.E8M0, mode).tolist() == wanted
    assert x[x < 0].numpy().astype(ml_dtypes.float8_e8m0fnu).view(np.uint8).tolist() == [255] * int((x < 0).sum())


def test_e8m0_nearest_rounds_at_one_and_a_half():
    """The linear midpoint 1.5 2^k; the tie goes up, as NVIDIA's header and ml_dtypes do."""
    below = 1.5 - 2.0**-23
    x = torch.tensor([1.0, below, 1.5, 2.0, 2 * below, 3.0])
    assert nm.encode(x, nm.E8M0).tolist() == [127, 127, 128, 128, 128, 129]


# ---- stochastic ------------------------------------------------------------------------------------------------------


def cvt_rs(pattern: int, field: int, emin: int, m: int, max_code: int) -> int:
    """cvt.rs in integers, from a finite float32 bit pattern: keep = sig >> s, plus the carry of top 16 bits + field."""
    exponent = max(pattern >> 23 & 0xFF, 1)
    sig = (pattern & 0x7FFFFF) | (0x800000 if pattern >> 23 & 0xFF else 0)
    e = exponent - 127
    q = max(e, emin) - m  # exponent of the result's last bit
    s = q - (e - 23)  # bits that go
    discarded = sig & ((1 << s) - 1)
    keep, top = sig >> s, discarded >> (s - 16)
    magnitude = keep + (top + field >> 16)
    # code of magnitude x 2^q: exponent field and mantissa run on from each other
    code = magnitude + ((q + m - emin) << m)
    return min(code, max_code)


@pytest.mark.parametrize(("fmt", "emin", "m"), [(nm.E2M1, 0, 1), (nm.E4M3, -6, 3), (nm.BF16, -126, 7)], ids=name)
def test_stochastic_equals_the_integer_rule(fmt: nm.Format, emin: int, m: int):
    x = float32_patterns(20_000, seed=1)
    x = x[torch.isfinite(x)]
    field = torch.randint(0, 1 << 16, x.shape, generator=torch.Generator().manual_seed(2))
    patterns = (x.view(torch.int32).to(torch.int64) & 0xFFFFFFFF).tolist()
    sign = 1 << (fmt.bits - 1)
    theirs = [
        cvt_rs(p & 0x7FFFFFFF, r, emin, m, fmt.max_code) | (sign if p >> 31 else 0)
        for p, r in zip(patterns, field.tolist(), strict=True)
    ]
    ours = nm.encode(x, fmt, nm.Rounding.STOCHASTIC, random_bits=field)
    assert_codes(ours, torch.tensor(theirs, dtype=fmt.code_dtype), x)


@pytest.mark.parametrize("fmt", ELEMENTS, ids=name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_stochastic_equals_the_oracle(fmt: nm.Format, dtype: torch.dtype):
    x = float32_patterns(20_000, seed=3).to(dtype)
    if dtype == torch.float64:
        x = x * (1 + 2.0**-30)  # bits beyond float32 count for the 16 leading discarded ones only
    field = torch.randint(0, 1 << 16, x.shape, generator=torch.Generator().manual_seed(4))
    pairs = zip(x.double().tolist(), field.tolist(), strict=True)
    theirs = torch.tensor([oracle.stochastic(v, fmt, r) for v, r in pairs], dtype=fmt.code_dtype)
    assert_codes(nm.encode(x, fmt, nm.Rounding.STOCHASTIC, random_bits=field), theirs, x)


def fractions() -> list[float]:
    """Places between two neighbours: ends, 16ths, and values whose 17th and later bits must be ignored."""
    sixteenths = [k / 16 for k in (0, 1, 4, 7, 8, 11, 15)]
    fine = [2.0**-16, 1 - 2.0**-16, 2.0**-17, 3 * 2.0**-17, 1 - 2.0**-17, 12345 / 65536, 12345.5 / 65536]
    return sixteenths + fine


@pytest.mark.parametrize("fmt", ELEMENTS, ids=name)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_all_65536_fields_round_up_exactly_as_often_as_the_discarded_bits_say(fmt: nm.Format, sign: float):
    """floor(fraction 2^16) of the 2^16 fields round up, the largest ones: exact unbiasedness to 2^-16, no z-test."""
    field = torch.arange(1 << 16)
    step = fmt.min_subnormal
    lows = {0.0, step, fmt.min_normal, 1.0, fmt.max}
    if fmt.kind == "float":  # the last value below a power of two, where the carry enters the exponent
        lows |= {2.0 - 2.0**-fmt.mantissa_bits, fmt.value(fmt.max_code - 1)}
    for low in sorted(lows):
        code = oracle.nearest(low, fmt)
        high = fmt.value(code + 1) if code < fmt.max_code else low
        for fraction in fractions():
            x = low + fraction * (high - low)  # exact in float64: 17 bits below the format's own
            codes = nm.encode(torch.full((1 << 16,), sign * x, dtype=torch.float64), fmt, nm.Rounding.STOCHASTIC, field)
            up = math.floor(fraction * 65536) if high > low else 0
            down_code = oracle.nearest(sign * low, fmt)
            up_code = oracle.nearest(sign * high, fmt)
            expected_codes = torch.where(field >= (1 << 16) - up, up_code, down_code)
            assert torch.equal(codes.to(torch.int64), expected_codes), (low, fraction)


def test_stochastic_in_float32_all_fields():
    """The same in the float32 path: 5.4 / 2 in E2M1, a subnormal and a normal E4M3."""
    field = torch.arange(1 << 16)
    for fmt, value in ((nm.E2M1, 2.7), (nm.E4M3, 0.3 * 2.0**-9), (nm.E4M3, 433.0), (nm.S2F6, 0.7)):
        x = torch.full((1 << 16,), value)
        codes = nm.encode(x, fmt, nm.Rounding.STOCHASTIC, field)
        theirs = torch.tensor([oracle.stochastic(float(x[0]), fmt, r) for r in range(1 << 16)]).to(torch.uint8)
        assert torch.equal(codes, theirs)


@pytest.mark.parametrize("r", [0, 1, 0x8000, 0xFFFF])
def test_stochastic_specials(r: int):
    """Exact values never move, Inf and overflow give max, NaN as in every mode, far too small values signed zero."""
    x = torch.tensor([0.0, -0.0, 1.0, -6.0, INF, -INF, 7.0, NAN, 2.0**-18, -(2.0**-18), 1e-45])
    codes = nm.encode(x, nm.E2M1, nm.Rounding.STOCHASTIC, torch.full(x.shape, r))
    assert codes.tolist() == [0, 8, 2, 15, 7, 15, 7, 7, 0, 8, 0]
    x = torch.tensor([448.0, 460.0, -1e9, NAN, -NAN, 2.0**-26, -(2.0**-26)])
    codes = nm.encode(x, nm.E4M3, nm.Rounding.STOCHASTIC, torch.full(x.shape, r))
    assert codes.tolist() == [0x7E, 0x7E, 0xFE, 0x7F, 0x7F, 0, 0x80]


# ---- which random bits an element gets -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rbits", "bits", "f", "e", "b", "a"),
    [
        (0x12345678, 8, 0x5678, 0x1E6A, 0x1234, 0x2C48),
        (0x12345678, 4, 0x3478, 0x1E2C, 0x1256, 0x6A48),
        (1 << 31, 8, 0, 0, 0x8000, 0x0001),
        (1 << 31, 4, 0, 0, 0x8000, 0x0001),
        (1 << 8, 8, 0x0100, 0x0080, 0, 0),
        (1 << 8, 4, 0, 0, 0x0001, 0x8000),
    ],
)
def test_fields_of_one_word_as_measured_on_a_b200(monkeypatch, rbits: int, bits: int, f: int, e: int, b: int, a: int):
    """Word w of a counter serves elements 4w..4w+3 as operands f, e, b, a; published read-outs of cvt.rs ... x4."""
    assert oracle.split_word(rbits, bits) == [f, e, b, a]
    for w in range(4):
        words = [torch.zeros(1, dtype=torch.int64) for _ in range(4)]
        words[w] += rbits
        module = importlib.import_module("numerics.philox")  # nm.philox is the function of that name
        monkeypatch.setattr(module, "philox_words", lambda key, counter, words=words: tuple(words))
        fields = nm.Random((0, 0)).fields(0, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), bits)
        theirs = [0] * 16
        theirs[4 * w : 4 * w + 4] = [f, e, b, a]
        assert fields.flatten().tolist() == theirs


@pytest.mark.parametrize("bits", [4, 8])
def test_fields_equal_the_oracle(bits: int):
    key, counter = (0xDEADBEEF, 7), (5 * 64 + 3, 11)
    line, group = torch.arange(3).view(3, 1), torch.arange(4)
    for expert in (0, 2):
        ours = nm.Random(key, counter).fields(expert, line, group, bits)
        assert ours.shape == (3, 4, 16)
        theirs = [
            [oracle.random_field(key, (counter[0], counter[1] + expert), row, p, bits) for p in range(64)]
            for row in range(3)
        ]
        assert ours.flatten(1).tolist() == theirs


# ---- containers, dtypes, errors --------------------------------------------------------------------------------------


def test_numpy_and_torch_give_the_same_codes():
    x = float32_patterns(4096, seed=5)
    field = torch.randint(0, 1 << 16, x.shape, generator=torch.Generator().manual_seed(6))
    for fmt in ELEMENTS:
        ours = nm.encode(x.numpy(), fmt)
        assert isinstance(ours, np.ndarray) and np.array_equal(ours, nm.encode(x, fmt).numpy())
        ours = nm.encode(x.numpy(), fmt, nm.Rounding.STOCHASTIC, field.numpy().astype(np.uint16))
        assert np.array_equal(ours, nm.encode(x, fmt, nm.Rounding.STOCHASTIC, field).numpy())
    half = x.to(torch.bfloat16)
    ours = nm.encode(half.float().numpy().astype(ml_dtypes.bfloat16), nm.E4M3)
    assert np.array_equal(ours, nm.encode(half, nm.E4M3).numpy())


def test_any_shape_and_layout():
    x = torch.randn(6, 10, generator=torch.Generator().manual_seed(7))
    codes = nm.encode(x, nm.E4M3)
    assert torch.equal(nm.encode(x.mT, nm.E4M3), codes.mT)
    assert torch.equal(nm.encode(x[::2, 1::3], nm.E4M3), codes[::2, 1::3])
    assert nm.encode(torch.zeros(0, 4), nm.E4M3).shape == (0, 4)
    assert nm.encode(torch.tensor(1.0), nm.E4M3).shape == ()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_round_to_keeps_dtype_and_nan(dtype: torch.dtype):
    x = torch.tensor([5.4, -0.2, 100.0, -0.0, NAN, INF], dtype=dtype)
    y = nm.round_to(x, nm.E2M1)
    assert y.dtype == dtype
    assert y[:4].tolist() == [6.0, -0.0, 6.0, -0.0] and torch.signbit(y[:4]).tolist() == [False, True, False, True]
    assert bool(torch.isnan(y[4])) and float(y[5]) == 6.0
    assert torch.equal(y[:4].float(), nm.decode(nm.encode(x, nm.E2M1), nm.E2M1)[:4])


def test_input_is_left_alone():
    x = float32_patterns(256)
    before = x.clone().view(torch.int32)
    field = torch.zeros(x.shape, dtype=torch.int32)
    nm.encode(x, nm.E4M3)
    nm.encode(x, nm.E4M3, nm.Rounding.STOCHASTIC, field)
    nm.round_to(x, nm.E2M1)
    assert torch.equal(x.view(torch.int32), before) and not field.any()


def test_errors():
    x = torch.tensor([1.0, NAN])
    for wrong in (torch.tensor([1, 2]), torch.tensor([True]), [1.0], 1.0, np.array(["a"])):
        with pytest.raises(TypeError, match="x "):
            nm.encode(wrong, nm.E2M1)
    with pytest.raises(ValueError, match="1 NaN"):
        nm.encode(x, nm.E2M1, nan="raise")
    with pytest.raises(ValueError, match="nan='zero'"):
        nm.encode(x, nm.E2M1, nan="zero")
    for call in (nm.encode, nm.round_to):
        with pytest.raises(ValueError, match="needs random_bits"):
            call(x, nm.E2M1, nm.Rounding.STOCHASTIC)
        with pytest.raises(ValueError, match="random_bits has shape"):
            call(x, nm.E2M1, nm.Rounding.STOCHASTIC, torch.zeros(3, dtype=torch.int64))
        with pytest.raises(ValueError, match="random_bits given"):
            call(x, nm.E2M1, nm.Rounding.NEAREST_EVEN, torch.zeros(2, dtype=torch.int64))
        with pytest.raises(TypeError, match="random_bits"):
            call(x, nm.E2M1, nm.Rounding.STOCHASTIC, torch.zeros(2))
    for field in (-1, 1 << 16):
        with pytest.raises(ValueError, match="16 bits"):
            nm.encode(x, nm.E2M1, nm.Rounding.STOCHASTIC, torch.tensor([0, field]))
