"""Scalar twins of the dialects: each formula once more, one number at a time, for tests/test_dialects.py.

`TWINS[name](xs, amax)` takes a block's finite FP32 values and the largest magnitude of the outer's scope and returns
the scale byte, the element codes and the decoded values. Arithmetic is `numerics.oracle`'s: exact rationals, rounded
to FP32 where the formula rounds. Nothing is shared with the torch code but the formats.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from numerics.formats import E2M1, E4M3, E8M0, Format
from numerics.oracle import FLT_MAX, add32, div32, float32, mul32, nearest, outer_scale

Result = tuple[int, list[int], list[float]]
Twin = Callable[[Sequence[float], float], Result]


def largest(xs: Sequence[float]) -> float:
    return max(abs(x) for x in xs)


def e4m3(value: float) -> tuple[int, float]:
    code = nearest(value, E4M3)
    return code, E4M3.value(code)


def hardware(value: float) -> int:
    """cvt.rn.satfinite: -0 kept, NaN 7."""
    return nearest(value, E2M1)


def compared(value: float) -> int:
    """A cast by comparisons: -0 is +0, NaN 0."""
    return 0 if value == 0 or math.isnan(value) else nearest(value, E2M1)


def finish(scale: int, codes: list[int], decode: Callable[[float, float], float]) -> Result:
    return scale, codes, [decode(E2M1.value(code), E4M3.value(scale)) for code in codes]


def encode(amax: float, top: float = 2688.0) -> float:
    s_enc = min(div32(top, amax), FLT_MAX)
    return 1.0 if s_enc == 0 else s_enc


def te_codes(xs: Sequence[float], s: float, s_enc: float, cast: Callable[[float], int]) -> list[int]:
    multiplier = min(div32(1.0, mul32(s, div32(1.0, s_enc))), FLT_MAX)
    return [cast(mul32(x, multiplier)) for x in xs]


def te_decode(amax: float, top: float) -> Callable[[float, float], float]:
    return lambda q, s: mul32(q, mul32(mul32(s, amax), div32(1.0, top)))


def te(cast: Callable[[float], int], zero: float | None = None) -> Twin:
    def twin(xs: Sequence[float], amax: float) -> Result:
        s_enc = zero if zero is not None and amax == 0 else encode(amax)
        code, s = e4m3(mul32(largest(xs), mul32(s_enc, div32(1.0, 6.0))))
        return finish(code, te_codes(xs, s, s_enc, cast), te_decode(amax, 2688.0))

    return twin


def te_before_2_15(xs: Sequence[float], amax: float) -> Result:
    s_enc = 1.0 if amax == 0 else encode(amax)
    code, s = e4m3(mul32(mul32(largest(xs), div32(1.0, 6.0)), s_enc))
    return finish(code, [hardware(mul32(x, div32(s_enc, s))) for x in xs], te_decode(amax, 2688.0))


def divide_first(xs: Sequence[float], amax: float) -> Result:
    s_enc = 1.0 if amax == 0 else encode(amax)
    code, s = e4m3(mul32(div32(largest(xs), 6.0), s_enc))
    return finish(code, te_codes(xs, s, s_enc, hardware), te_decode(amax, 2688.0))


def app_b(xs: Sequence[float], amax: float) -> Result:
    code, codes, _ = divide_first(xs, amax)
    s_dec = div32(1.0, 1.0 if amax == 0 else encode(amax))
    return finish(code, codes, lambda q, s: mul32(mul32(q, s), s_dec))


def te_46(bound: float, error: Callable[[float], float]) -> Twin:
    top = 6 * bound

    def twin(xs: Sequence[float], amax: float) -> Result:
        s_enc = encode(amax, top)
        base, found = mul32(div32(largest(xs), 6.0), s_enc), []
        for ratio in (base, mul32(base, 1.5)):
            code, s = e4m3(ratio)
            codes, sums = te_codes(xs, s, s_enc, compared), []
            for i, (q, x) in enumerate(zip(codes, xs, strict=True)):
                if i % 16 == 0:  # of a tile, each line on its own
                    sums.append(0.0)
                sums[-1] = add32(sums[-1], error(add32(div32(mul32(mul32(E2M1.value(q), s), amax), top), -x)))
            while len(sums) > 1:
                sums = [add32(a, b) for a, b in zip(sums[: len(sums) // 2], sums[len(sums) // 2 :], strict=True)]
            found.append((sums[0], code, codes))
        six, four = found
        return finish(*(four if four[0] < six[0] else six)[1:], te_decode(amax, top))

    return twin


def torchao(xs: Sequence[float], amax: float) -> Result:
    outer = div32(amax, 2688.0)
    ratio = div32(div32(largest(xs), 6.0), outer)
    code, s = e4m3(ratio if math.isnan(ratio) else min(max(ratio, 2.0**-6), 448.0))
    multiplier = div32(div32(1.0, outer), s)
    return finish(code, [hardware(mul32(x, multiplier)) for x in xs], lambda q, s: mul32(q, mul32(s, outer)))


def torchao_one_level(xs: Sequence[float], amax: float) -> Result:
    code, s = e4m3(min(max(div32(largest(xs), 6.0), 2.0**-6), 448.0))
    return finish(code, [hardware(mul32(x, div32(1.0, s))) for x in xs], mul32)


def modelopt(xs: Sequence[float], amax: float) -> Result:
    outer = div32(amax, 2688.0)
    ratio = div32(largest(xs), mul32(6.0, outer))
    ratio = 1.0 if ratio == 0 else ratio
    code, s = e4m3(ratio if math.isnan(ratio) else min(max(ratio, 2.0**-9), 448.0))
    return finish(code, [compared(div32(x, mul32(s, outer))) for x in xs], lambda q, s: mul32(q, mul32(s, outer)))


def compressed_tensors(xs: Sequence[float], amax: float) -> Result:
    factor = mul32(div32(1.0, max(amax, 2.0**-126)), 2688.0)
    factor = factor if math.isfinite(factor) else 1.0
    code, s = e4m3(mul32(factor, div32(largest(xs), 6.0)))
    code, s = (0x20, 0.125) if s == 0 else (code, s)
    return finish(code, [compared(div32(x, div32(s, factor))) for x in xs], lambda q, s: mul32(q, div32(s, factor)))


def or_zero(value: float) -> float:
    return 0.0 if value == 0 else div32(1.0, value)


def flashinfer(xs: Sequence[float], amax: float) -> Result:
    factor = mul32(div32(1.0, amax), 2688.0)
    code, s = e4m3(mul32(factor, mul32(largest(xs), div32(1.0, 6.0))))
    multiplier = or_zero(mul32(s, or_zero(factor)))
    decode = lambda q, s: mul32(mul32(q, s), div32(1.0, factor))  # noqa: E731
    return finish(code, [compared(mul32(x, multiplier)) for x in xs], decode)


def flashinfer_exact(xs: Sequence[float], amax: float) -> Result:
    factor, b = mul32(div32(1.0, amax), 2688.0), largest(xs)
    code, s = e4m3(0.0 if b == 0 else mul32(b, mul32(factor, div32(1.0, 6.0))))
    multiplier = 0.0 if b == 0 else min(div32(1.0, mul32(s, div32(1.0, factor))), FLT_MAX)
    decode = lambda q, s: mul32(mul32(q, s), div32(1.0, factor))  # noqa: E731
    return finish(code, [hardware(mul32(x, multiplier)) for x in xs], decode)


def fouroversix_candidate(xs: Sequence[float], amax: float, top: float, bound: float, expand: float):
    factor = div32(top * bound, amax)
    code, s = e4m3(0.0 if amax == 0 else mul32(mul32(div32(largest(xs), top), factor), expand))
    multiplier = div32(1.0, mul32(div32(1.0, factor), s))
    codes, values = [], []
    for x in xs:
        scaled = 0.0 if s == 0 else mul32(x, multiplier)
        beyond = abs(scaled) >= 7  # 7 to 9 round to 8, whose code is 8
        codes.append(8 if beyond else compared(scaled))
        values.append(math.copysign(8.0, scaled) if beyond else E2M1.value(codes[-1]))
    return code, s, codes, values


def fouroversix(total: Callable[[list[float]], float]) -> Twin:
    def twin(xs: Sequence[float], amax: float) -> Result:
        found = []
        for expand in (1.0, 1.5):
            code, s, codes, values = fouroversix_candidate(xs, amax, 6.0, 256.0, expand)
            decoded = [div32(mul32(mul32(q, s), amax), 1536.0) for q in values]
            found.append((total([add32(d, -x) for d, x in zip(decoded, xs, strict=True)]), code, codes))
        six, four = found
        pick = four if four[0] < six[0] else six
        return finish(*pick[1:], lambda q, s: div32(mul32(mul32(q, s), amax), 1536.0))

    return twin


def fouroversix_static(top: float) -> Twin:
    def twin(xs: Sequence[float], amax: float) -> Result:
        code, _, codes, _ = fouroversix_candidate(xs, amax, top, 448.0, 1.0)
        return finish(code, codes, lambda q, s: div32(mul32(mul32(q, s), amax), top * 448.0))

    return twin


def tree(values: list[float]) -> float:
    while len(values) > 1:
        values = [add32(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def away_with_sign(value: float) -> int:
    """Ties away; whatever is not positive gets the sign bit."""
    code = nearest(abs(value), E2M1, "nearest_away")
    return code if value > 0 else code | 8


def toward_positive_ties(value: float) -> int:
    """Ties toward +infinity, every zero +0."""
    code = nearest(abs(value), E2M1, "nearest_away")
    if value < 0 and code and 2 * abs(value) == E2M1.value(code) + E2M1.value(code - 1):
        code -= 1
    return code | 8 if value < 0 and code else code


def quartet_block(xs: Sequence[float], outer: float, ratio: float, cast: Callable[[float], int]):
    code, s = e4m3(ratio)
    code, s = (0x38, 1.0) if s == 0 else (code, s)
    return code, s, [cast(div32(x, mul32(s, outer))) for x in xs]


def quartet_ii(xs: Sequence[float], amax: float) -> Result:
    outer = div32(div32(amax, 448.0), 6.0) or 1.0
    code, _, codes = quartet_block(xs, outer, div32(div32(largest(xs), 6.0), outer), away_with_sign)
    return finish(code, codes, lambda q, s: mul32(q, mul32(s, outer)))


def quartet_ii_46(xs: Sequence[float], amax: float) -> Result:
    outer = div32(div32(amax, 256.0), 6.0) or 1.0
    base, found = div32(largest(xs), 6.0), []
    for numerator in (base, mul32(base, 1.5)):
        code, s, codes = quartet_block(xs, outer, div32(numerator, outer), away_with_sign)
        gaps = [add32(x, -mul32(E2M1.value(q), mul32(s, outer))) for q, x in zip(codes, xs, strict=True)]
        found.append((tree([mul32(gap, gap) for gap in gaps]), code, codes))
    six, four = found
    return finish(*(four if four[0] < six[0] else six)[1:], lambda q, s: mul32(q, mul32(s, outer)))


def quartet_ii_torch(xs: Sequence[float], amax: float) -> Result:
    outer = div32(amax, float32(Fraction(447.99 * 6.0))) or 1.0
    code, _, codes = quartet_block(xs, outer, div32(div32(largest(xs), 6.0), outer), toward_positive_ties)
    return finish(code, codes, lambda q, s: mul32(q, mul32(s, outer)))


def tetrajet_v2(xs: Sequence[float], amax: float) -> Result:
    outer = div32(div32(amax, 448.0), 6.0) or 1.0
    code, s = e4m3(div32(div32(largest(xs), outer), 6.0) or 2.0**-9)
    multiplier = or_zero(mul32(outer, s))
    return finish(code, [hardware(mul32(x, multiplier)) for x in xs], lambda q, s: mul32(q, mul32(s, outer)))


def thunderkittens(xs: Sequence[float], amax: float) -> Result:
    least, outer = float32(Fraction(1e-12)), div32(amax, 2688.0)
    code, s = e4m3(mul32(div32(largest(xs), 6.0), div32(1.0, max(outer, least))))
    multiplier = div32(1.0, max(mul32(s, outer), least))
    return finish(code, [hardware(mul32(x, multiplier)) for x in xs], lambda q, s: mul32(mul32(q, s), outer))


def qwix(xs: Sequence[float], amax: float) -> Result:
    ratio = div32(largest(xs), 6.0)
    code, s = e4m3(1.0 if ratio < 2.0**-63 else ratio)
    return finish(code, [hardware(div32(x, s)) for x in xs], mul32)


def exact(xs: Sequence[float], amax: float) -> Result:
    a, b = Fraction(amax), Fraction(largest(xs))
    code = nearest_fraction(Fraction(0) if a == 0 else 448 * b / a, 1.0, E4M3)
    step = Fraction(E4M3.value(code)) * a
    codes = [nearest_fraction(Fraction(0) if step == 0 else 2688 * abs(Fraction(x)) / step, x, E2M1) for x in xs]
    value = [float32(Fraction(E2M1.value(q)) * Fraction(E4M3.value(code)) * a / 2688) for q in codes]
    return code, codes, [math.copysign(v, E2M1.value(q)) for v, q in zip(value, codes, strict=True)]


def nearest_fraction(size: Fraction, sign: float, fmt: Format) -> int:
    """Nearest code, ties to even, of a real magnitude that need not be a float."""
    table = [(Fraction(fmt.value(code)), code) for code in range(fmt.max_code + 1)]
    best = min(table, key=lambda entry: (abs(entry[0] - size), entry[1] & 1))
    return best[1] | (8 if fmt == E2M1 and math.copysign(1.0, sign) < 0 else 0)


def fourbit(xs: Sequence[float], amax: float) -> Result:
    outer = outer_scale(amax, 2688.0)
    s_enc = 1.0 if amax == 0 else encode(amax)
    code, s = e4m3(mul32(largest(xs), mul32(s_enc, div32(1.0, 6.0))))
    return finish(code, te_codes(xs, s, s_enc, hardware), lambda q, s: mul32(mul32(q, s), outer))


def fourbit_static(xs: Sequence[float], outer: float, top: float) -> tuple[int, list[int]]:
    code, s = e4m3(div32(largest(xs), mul32(outer, top)))
    step = mul32(s, outer)
    return code, [hardware(div32(x, step) if step else math.copysign(0.0, x)) for x in xs]


def fourbit_static_6(xs: Sequence[float], amax: float) -> Result:
    outer = outer_scale(amax, 2688.0)
    return finish(*fourbit_static(xs, outer, 6.0), lambda q, s: mul32(mul32(q, s), outer))


def fourbit_46(xs: Sequence[float], amax: float) -> Result:
    outer, found = outer_scale(amax, 1536.0), []
    for top in (6.0, 4.0):
        code, codes = fourbit_static(xs, outer, top)
        _, _, values = finish(code, codes, lambda q, s: mul32(mul32(q, s), outer))
        gaps = [add32(v, -x) for v, x in zip(values, xs, strict=True)]
        found.append((tree([mul32(gap, gap) for gap in gaps]), code, codes))
    six, four = found
    return finish(*(four if four[0] < six[0] else six)[1:], lambda q, s: mul32(mul32(q, s), outer))


def square(value: float) -> float:
    return mul32(value, value)


TWINS: dict[str, Twin] = {
    "te": te(compared),
    "te_kernel": te(hardware, zero=1.0),
    "te_before_2_15": te_before_2_15,
    "te_before_2_15_transpose": divide_first,
    "app_b": app_b,
    "te_46": te_46(256.0, abs),
    "te_46_mse": te_46(256.0, square),
    "te_46_448": te_46(448.0, abs),
    "te_46_mse_448": te_46(448.0, square),
    "torchao": torchao,
    "torchao_one_level": torchao_one_level,
    "modelopt": modelopt,
    "compressed_tensors": compressed_tensors,
    "flashinfer": flashinfer,
    "flashinfer_exact": flashinfer_exact,
    "fouroversix": fouroversix(lambda gaps: tree([square(gap) for gap in gaps])),
    "fouroversix_mae": fouroversix(lambda gaps: tree([abs(gap) for gap in gaps])),
    "fouroversix_abs_max": fouroversix(lambda gaps: max(abs(gap) for gap in gaps)),
    "fouroversix_static_6": fouroversix_static(6.0),
    "fouroversix_static_4": fouroversix_static(4.0),
    "quartet_ii": quartet_ii,
    "quartet_ii_46": quartet_ii_46,
    "quartet_ii_torch": quartet_ii_torch,
    "tetrajet_v2": tetrajet_v2,
    "thunderkittens": thunderkittens,
    "qwix": qwix,
    "exact": exact,
    "fourbit": fourbit,
    "fourbit_static_6": fourbit_static_6,
    "fourbit_46": fourbit_46,
}


# ---- MX --------------------------------------------------------------------------------------------------------------

MxTwin = Callable[[Sequence[float], Format], tuple[int, list[int]]]


def floor_exponent(value: float) -> int:
    """Of the largest power of two that is not larger; -1000 for 0."""
    return math.frexp(value)[1] - 1 if value else -1000


def mx_codes(xs: Sequence[float], exponent: int, fmt: Format) -> list[int]:
    return [nearest(math.ldexp(x, -exponent), fmt) for x in xs]


def floor_scale(b: float, fmt: Format) -> int:
    return min(max(floor_exponent(b) - floor_exponent(fmt.max), -127), 127)


def half_up(b: float, bits: int) -> float:
    """b rounded half up to `bits` mantissa bits, as far as its exponent goes."""
    if b < 2.0**-126:  # on float32's subnormals the same integer is added: half a unit of 2^(-126 - bits)
        return b + 2.0 ** (-127 - bits)
    quantum = 2.0 ** (floor_exponent(b) - bits)
    return math.floor(b / quantum + 0.5) * quantum


def ocp_floor(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    k = floor_scale(largest(xs), fmt)
    return k + 127, mx_codes(xs, k, fmt)


def rceil(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    b = largest(xs)
    k = next(k for k in range(-127, 128) if k == 127 or math.ldexp(fmt.max, k) >= b)  # exact: `max` has few bits
    return k + 127, mx_codes(xs, k, fmt)


def torchao_floor(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    k = floor_scale(largest(xs), fmt)
    return k + 127, mx_codes(xs, max(k, -126), fmt)


def even(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    k = floor_scale(half_up(largest(xs), fmt.mantissa_bits), fmt)
    return k + 127, mx_codes(xs, max(k, -126), fmt)


def rounded_log2(value: float) -> int:
    """ceil of the FP32 number nearest to log2(value), by Python's logarithm with 53 bits."""
    return math.ceil(float32(Fraction(math.log2(value)))) if value else -1000


def torchao_rceil(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    k = min(max(rounded_log2(div32(largest(xs), fmt.max)), -127), 127)
    return k + 127, mx_codes(xs, 0 if k == -127 else k, fmt)


def te_mxfp8(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    ratio = mul32(largest(xs), div32(1.0, fmt.max))
    k = next(k for k in range(-127, 128) if k == 127 or 2.0**k >= ratio)
    return k + 127, mx_codes(xs, k, fmt)


def compressed_tensors_mx(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    k = floor_scale(half_up(largest(xs), 1), fmt)
    codes = [0 if fmt == E2M1 and x == 0 else code for x, code in zip(xs, mx_codes(xs, k, fmt), strict=True)]
    return k + 127, codes


def fouroversix_mx(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    ratio = div32(largest(xs), 6.0)
    if ratio == 0:
        return 0, [0] * len(xs)
    k = next(k for k in range(-126, 129) if 2.0**k >= ratio)
    return k + 127, [0 if x == 0 else code for x, code in zip(xs, mx_codes(xs, k, fmt), strict=True)]


MX_TWINS: dict[str, MxTwin] = {
    "ocp_floor": ocp_floor,
    "rceil": rceil,
    "torchao_floor": torchao_floor,
    "even": even,
    "torchao_rceil": torchao_rceil,
    "te_mxfp8": te_mxfp8,
    "compressed_tensors_mx": compressed_tensors_mx,
    "fouroversix_mx": fouroversix_mx,
}
assert all(E8M0.value(127 + k) == 2.0**k for k in (-127, 0, 127))


# ---- FP8 blocks ------------------------------------------------------------------------------------------------------

Fp8Twin = Callable[[Sequence[float]], tuple[float, list[int]]]


def fourbit_fp8(xs: Sequence[float]) -> tuple[float, list[int]]:
    scale = div32(largest(xs), 448.0) if largest(xs) else 1.0
    return scale, [nearest(div32(x, scale) if scale else math.copysign(0.0, x), E4M3) for x in xs]


FP8_TWINS: dict[str, Fp8Twin] = {"fourbit_fp8": fourbit_fp8}
