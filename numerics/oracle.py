"""The slow scalar twin of numerics: every rule once more, one number at a time, in exact rational arithmetic.

This file is a second opinion, so it shares nothing with the vectorized code but the formats, which are data. It is
written to be read beside the formulas, not to be fast: a rounding is a search for the two neighbours in the format's
own table of values, and an FP32 operation is the exact operation on `Fraction`s followed by `float32`.

Numbers are Python floats, which hold every FP32, BF16 and FP16 value, keep the sign of zero, and convert to `Fraction`
exactly; codes are ints; a block is a list. Functions named `...32` round to FP32 as IEEE 754 nearest-even does, with
subnormals and infinities. Everything is exact: there is no tolerance anywhere, and a difference from the vectorized
code is a bug in one of the two.

Sources: PTX ISA 9.x sections 9.7.9 (cvt) and 5.2.3 (formats); Transformer Engine's NVFP4 quantizer and "Pretraining
LLMs with NVFP4" (arXiv 2509.25149) App. B; "Four Over Six" (arXiv 2512.02010) section 3; "Recipes for Pre-training
LLMs with MXFP8" (arXiv 2506.08027); Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from .formats import E2M1, E4M3, E8M0, Format

FLT_MAX = float.fromhex("0x1.fffffep127")
MODES = ("nearest_even", "nearest_away", "toward_zero", "toward_positive", "toward_negative")


# ---- FP32 ------------------------------------------------------------------------------------------------------------


def float32(value: Fraction) -> float:
    """The FP32 number nearest to an exact value, ties to even; +-inf from 2^128 - 2^103 on, subnormals kept.

    The quantum is 2^(max(e, -126) - 23) for 2^e <= |value| < 2^(e+1) (IEEE 754 binary32).
    """
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # bit lengths give e or e + 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(size / quantum) * quantum  # round() of a Fraction: an exact tie goes to the even integer
    return math.copysign(math.inf if rounded >= 2**128 else float(rounded), value)


def mul32(a: float, b: float) -> float:
    """a x b, rounded once to FP32 (a * b of Python only decides signs of zero, infinities and NaN)."""
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return float32(Fraction(a) * Fraction(b))


def div32(a: float, b: float) -> float:
    """a / b, rounded once to FP32; x / 0 is a signed infinity, 0 / 0 NaN."""
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0:
        return a / b
    return float32(Fraction(a) / Fraction(b))


def add32(a: float, b: float) -> float:
    """a + b, rounded once to FP32; subtract with add32(a, -b)."""
    if not (math.isfinite(a) and math.isfinite(b)) or a == -b or a == b == 0:
        return a + b
    return float32(Fraction(a) + Fraction(b))


# ---- one element -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _magnitudes(fmt: Format, negative: bool) -> tuple[list[float], list[int]]:
    """Magnitudes of one sign, ascending, and their codes; an exponent format knows no sign, zero counts as both."""
    table = []
    for code in range(1 << fmt.bits):
        value = fmt.value(code)
        if not math.isfinite(value):
            continue
        unsigned_zero = value == 0 and fmt.kind == "fixed"
        if fmt.kind == "exponent" or unsigned_zero or (math.copysign(1.0, value) < 0) == negative:
            table.append((abs(value), code))
    table.sort()
    return [size for size, _ in table], [code for _, code in table]


def _neighbours(value: float, fmt: Format) -> tuple[int, int, Fraction]:
    """Codes below and above |value| with value's sign, and the fraction of the gap; equal codes where saturated."""
    sizes, codes = _magnitudes(fmt, math.copysign(1.0, value) < 0)
    below = bisect_right(sizes, abs(value)) - 1
    if below < 0 or below == len(sizes) - 1:  # under 2^-127 in E8M0, or at and beyond the largest value
        code = codes[max(below, 0)]
        return code, code, Fraction(0)
    lower, upper = Fraction(sizes[below]), Fraction(sizes[below + 1])
    return codes[below], codes[below + 1], (Fraction(abs(value)) - lower) / (upper - lower)


def _nan(fmt: Format) -> int:
    """Code for a NaN: the format's NaN, sign dropped, or +max where there is none (PTX: satfinite conversions)."""
    return fmt.max_code if fmt.nan_code is None else fmt.nan_code


def nearest(value: float, fmt: Format, mode: str = "nearest_even") -> int:
    """Code of `value` under one of `MODES`: saturating, sign of zero kept, NaN by `_nan` (PTX cvt ... .satfinite).

    Directed modes look at the signed value. E8M0 has no negative numbers: they become its NaN, as in ml_dtypes, where
    the instruction would take the magnitude. Ties to even: to the even code, which is the even significand; in E8M0
    up, as its neighbours are 1 and 2 quanta of the lower one.
    """
    if math.isnan(value) or (fmt.kind == "exponent" and value < 0):
        return _nan(fmt)
    below, above, fraction = _neighbours(value, fmt)
    if fraction == 0:
        return below
    if mode == "toward_zero":
        return below
    if mode in ("toward_positive", "toward_negative"):
        return above if (mode == "toward_positive") != (value < 0) else below
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: use one of {', '.join(MODES)}")
    if fraction != Fraction(1, 2):
        return above if fraction > Fraction(1, 2) else below
    return above if mode == "nearest_away" or below % 2 or fmt.kind == "exponent" else below


def stochastic(value: float, fmt: Format, field: int) -> int:
    """Code of `value` by the rule of PTX cvt.rs with a 16-bit field: up iff floor(fraction x 2^16) + field >= 2^16.

    `fraction` is the place of |value| between its neighbours, so floor(fraction x 2^16) are the top 16 discarded bits,
    in subnormals too; lower bits are ignored. P(up) = floor(fraction x 2^16) / 2^16; saturating; field 0 truncates.
    """
    if not 0 <= field < 1 << 16:
        raise ValueError(f"field={field} is not 16 bits wide: use 0 to 65535")
    if math.isnan(value):
        return _nan(fmt)
    below, above, fraction = _neighbours(value, fmt)
    return above if math.floor(fraction * 65536) + field >= 65536 else below


# ---- blocks ----------------------------------------------------------------------------------------------------------


def outer_scale(amax: float, divisor: float) -> float:
    """FP32 scale of a tensor, row or expert: amax / divisor in one FP32 division; 1 for amax = 0.

    Not less than fl(1 / FLT_MAX) = 2^-128, where the NVFP4 rule caps s_enc at FLT_MAX. divisor: 6 x 448 = 2688, with
    four-over-six 6 x 256 = 1536.
    """
    return 1.0 if amax == 0 else max(div32(amax, divisor), div32(1.0, FLT_MAX))


def nvfp4_block(xs: Sequence[float], amax: float) -> tuple[int, list[int]]:
    """E4M3 scale code and E2M1 codes of one NVFP4 block of finite FP32 values by Transformer Engine's current rule.

    With every operation rounded to FP32, amax that of the whole tensor (row, expert) and bmax that of the block:
        s_enc = min(2688 / amax, FLT_MAX), 1 if amax = 0 or s_enc = 0
        scale = e4m3(bmax x (s_enc x fl(1/6)))
        multiplier = min(1 / (scale x (1 / s_enc)), FLT_MAX)
        code  = e2m1(x x multiplier)
    """
    s_enc = min(div32(2688.0, amax), FLT_MAX)
    if amax == 0 or s_enc == 0:
        s_enc = 1.0
    bmax = max(abs(x) for x in xs)
    scale = nearest(mul32(bmax, mul32(s_enc, div32(1.0, 6.0))), E4M3)
    s_dec = div32(1.0, s_enc)
    multiplier = min(div32(1.0, mul32(E4M3.value(scale), s_dec)), FLT_MAX)
    return scale, [nearest(mul32(x, multiplier), E2M1) for x in xs]


def _tree_sum32(xs: Sequence[float]) -> float:
    """((x0 + x1) + (x2 + x3)) + ..., FP32; the length is a power of two."""
    while len(xs) > 1:
        xs = [add32(a, b) for a, b in zip(xs[::2], xs[1::2], strict=True)]
    return xs[0]


def _candidate(xs: Sequence[float], outer: float, top: float) -> tuple[float, int, list[int]]:
    """Error, scale code and codes of one block whose largest element is mapped to `top` (6 or 4)."""
    bmax = max(abs(x) for x in xs)
    scale = nearest(div32(bmax, mul32(outer, top)), E4M3)
    step = mul32(E4M3.value(scale), outer)
    codes = [nearest(div32(x, step) if step else math.copysign(0.0, x), E2M1) for x in xs]
    gaps = [add32(dequantize_nvfp4(c, scale, outer), -x) for c, x in zip(codes, xs, strict=True)]
    return _tree_sum32([mul32(gap, gap) for gap in gaps]), scale, codes


def four_over_six_block(xs: Sequence[float], outer: float) -> tuple[int, list[int], bool]:
    """E4M3 scale code, E2M1 codes and whether M = 4 was picked, for one block of 16 under "Four Over Six".

    For M in (6, 4), every operation rounded to FP32:
        S_M = e4m3(bmax / (outer x M)),  q = e2m1(x / (S_M x outer)), signed zeros where S_M x outer is 0
        error_M = sum (((q x S_M) x outer) - x)^2, a binary tree over adjacent pairs
    M = 4 wins only if error_4 < error_6.
    """
    error6, scale6, codes6 = _candidate(xs, outer, 6.0)
    error4, scale4, codes4 = _candidate(xs, outer, 4.0)
    return (scale4, codes4, True) if error4 < error6 else (scale6, codes6, False)


def dequantize_nvfp4(code: int, scale: int, outer: float) -> float:
    """(E2M1 value x E4M3 scale) x outer; the first product is exact in FP32, the second rounded, both finite."""
    return _finite(mul32(mul32(E2M1.value(code), E4M3.value(scale)), outer))


def _finite(x: float) -> float:
    """FP32's largest number instead of infinity, with its sign; NaN stays."""
    largest = float(2**128 - 2**104)
    return x if math.isnan(x) else max(-largest, min(largest, x))


def rceil(amax: float, fmt: Format) -> int:
    """E8M0 code of the smallest power of two p with p x fmt.max >= amax, clamped to 0..254 (as cvt.rp.ue8m0x2)."""
    for code in range(255):
        if Fraction(E8M0.value(code)) * Fraction(fmt.max) >= Fraction(amax):
            return code
    return 254


def mx_block(xs: Sequence[float], fmt: Format, fields: Sequence[int] | None = None) -> tuple[int, list[int]]:
    """E8M0 scale code by `rceil` and element codes of one MX block; with 16-bit `fields` rounded stochastically.

    x / scale is exact: a power of two moves the exponent only. (In FP32 it could underflow, but only to values that
    are less than 2^-16 of the element's smallest number, which both roundings send to zero.)
    """
    scale = rceil(max(abs(x) for x in xs), fmt)
    scaled = [math.ldexp(x, E8M0.bias - scale) for x in xs]
    if fields is None:
        return scale, [nearest(x, fmt) for x in scaled]
    return scale, [stochastic(x, fmt, field) for x, field in zip(scaled, fields, strict=True)]


def dequantize_mx(code: int, scale: int, fmt: Format, outer: float = 1.0) -> float:
    """(element value x 2^(scale - 127)) x outer, both products rounded to FP32, both finite."""
    return _finite(mul32(_finite(mul32(fmt.value(code), E8M0.value(scale))), outer))


# ---- transforms, products, random bits -------------------------------------------------------------------------------


def hadamard(xs: Sequence[float], signs: Sequence[float]) -> list[float]:
    """Randomized Hadamard transform of one block: signs, then butterflies (a + b, a - b), then x fl(size^-1/2).

    Strides 1, 2, ... size / 2 (Sylvester order), every operation in FP32. The size is a power of two.
    """
    size = len(xs)
    ys = [mul32(x, s) for x, s in zip(xs, signs, strict=True)]
    stride = 1
    while stride < size:
        for i in range(size):
            if not i & stride:
                a, b = ys[i], ys[i + stride]
                ys[i], ys[i + stride] = add32(a, b), add32(a, -b)
        stride *= 2
    # 256 correct bits of size^-1/2 decide its FP32 rounding: an irrational number is no tie, a power of two is exact.
    factor = float32(Fraction(math.isqrt((1 << 512) // size), 1 << 256))
    return [mul32(y, factor) for y in ys]


def exact_dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Sum of products, exact, rounded once to FP32; an exact zero is +0."""
    return float32(sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0)))


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words of Philox-4x32-10 (SC 2011, section 4.3): ten rounds of two 32 x 32 -> 64-bit products."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return c0, c1, c2, c3


def split_word(rbits: int, bits: int) -> list[int]:
    """The 16-bit fields of operands f, e, b, a of cvt.rs ... x4 in one 32-bit `rbits`, for 8- or 4-bit elements.

    8-bit: (b, a) share rbits[31:16], (f, e) share rbits[15:0]. 4-bit: (b, a) share {rbits[31:24], rbits[15:8]},
    (f, e) share {rbits[23:16], rbits[7:0]}. f and b read their 16 bits straight, e and a in reverse.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits={bits}: cvt.rs packs four elements of 4 or 8 bits")
    byte3, byte2, byte1, byte0 = rbits.to_bytes(4, "big")
    low, high = (byte1 << 8 | byte0, byte3 << 8 | byte2) if bits == 8 else (byte2 << 8 | byte0, byte3 << 8 | byte1)
    reverse = [int(f"{half:016b}"[::-1], 2) for half in (low, high)]
    return [low, reverse[0], high, reverse[1]]


def random_field(key: tuple[int, int], counter: tuple[int, int], line: int, position: int, bits: int) -> int:
    """The 16-bit field of the element at `position` along the quantized axis of line `line`, for 4- or 8-bit elements.

    Counter words: (counter[0], counter[1], line, position // 16). Word w serves the group's elements 4w..4w+3, which
    are operands f, e, b, a of cvt.rs ... x4. Words are taken modulo 2^32.
    """
    k0, k1, c0, c1 = (word % (1 << 32) for word in (*key, *counter))
    words = philox((k0, k1), (c0, c1, line, position // 16))
    return split_word(words[position % 16 // 4], bits)[position % 4]
