"""Scalar twins of the dialects of engines and emulators, in the manner of `dialect_twins`: for tests/test_dialects.py.

`ENGINE_TWINS[name](xs, amax)` for NVFP4, `ENGINE_MX_TWINS[name](xs, fmt)` for MX, `ENGINE_FP8_TWINS[name](xs)` for FP8
blocks. Logarithms are Python's, of 53 bits, rounded to FP32.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from dialect_twins import (
    Fp8Twin,
    MxTwin,
    Result,
    Twin,
    compared,
    e4m3,
    encode,
    finish,
    floor_exponent,
    half_up,
    hardware,
    largest,
    mx_codes,
    te,
    te_codes,
    te_decode,
)

from numerics.formats import E2M1, E4M3, Format
from numerics.oracle import add32, div32, float32, mul32, nearest

SIXTH = div32(1.0, 6.0)
CENTIMILLI, TINY = float32(Fraction(1e-4)), float32(Fraction(1e-10))


def log2(value: float) -> float:
    return float32(Fraction(math.log2(value)))


def ceil_power(value: float) -> int:
    """The exponent of the least power of two that is not smaller."""
    fraction, exponent = math.frexp(value)
    return exponent - 1 if fraction == 0.5 else exponent


def first_code(x: float, step: float) -> int:
    """The first of the 16 values times step with the least error in FP32; no comparison with NaN holds."""
    best, least = 0, abs(add32(0.0, -x))
    for code in range(1, 16):
        error = abs(add32(mul32(E2M1.value(code), step), -x))
        if error < least:
            best, least = code, error
    return best


def ties_down(value: float, fmt: Format) -> int:
    """Nearest, of two equally near the smaller, and no negative zero."""
    table = range(fmt.max_code + 1)
    code = min(table, key=lambda c: (abs(Fraction(fmt.value(c)) - abs(Fraction(value))), c))
    return code | 8 if value < 0 and code else code


# ---- NVFP4 -----------------------------------------------------------------------------------------------------------


def four_over_six(top: float, gap: Callable[[float, float, float, float], float], zeros: bool) -> Twin:
    """`gap` of q s, x, A and S_enc. `zeros`: hardware casts, and no signs in a zero block."""

    def twin(xs: Sequence[float], amax: float) -> Result:
        s_enc, found = encode(amax, top), []
        base = mul32(div32(largest(xs), 6.0), s_enc)
        for ratio in (base, mul32(base, 1.5)):
            code, s = e4m3(ratio)
            codes, total = te_codes(xs, s, s_enc, hardware if zeros else compared), 0.0
            for q, x in zip(codes, xs, strict=True):
                total = add32(total, abs(gap(mul32(E2M1.value(q), s), x, amax, s_enc)))
            found.append((total, code, [0] * len(xs) if zeros and not largest(xs) else codes))
        six, four = found
        pick = (four if four[0] < six[0] else six)[1:]
        if zeros:
            return finish(*pick, lambda q, s: mul32(mul32(q, s), div32(1.0, s_enc)))
        return finish(*pick, te_decode(amax, top))

    return twin


def in_fp16(qs: float, x: float, amax: float, s_enc: float) -> float:
    return add32(qs, -mul32(x, s_enc))


def decoded(qs: float, x: float, amax: float, s_enc: float) -> float:
    return add32(mul32(qs, div32(1.0, s_enc)), -x)


def reciprocal(value: float) -> float:
    return div32(1.0, 1e8 if value == 0 else value)


def vllm(xs: Sequence[float], amax: float) -> Result:
    factor = mul32(div32(1.0, amax), 2688.0)
    code, s = e4m3(mul32(factor, mul32(largest(xs), SIXTH)))
    multiplier = reciprocal(mul32(s, reciprocal(factor)))
    codes = [compared(mul32(x, multiplier)) for x in xs]
    return finish(code, codes, lambda q, s: mul32(q, div32(s, factor)))


def triton_nvfp4(xs: Sequence[float], amax: float) -> Result:
    code, s = e4m3(div32(largest(xs), 6.0))
    return finish(code, [hardware(mul32(x, div32(1.0, s) if s else 0.0)) for x in xs], mul32)


def mlx(outer: bool) -> Twin:
    def twin(xs: Sequence[float], amax: float) -> Result:
        s_enc = div32(2688.0, amax) if outer else 1.0
        ratio = mul32(div32(largest(xs), 6.0), s_enc)
        code, s = e4m3(448.0 if math.isnan(ratio) else ratio)
        multiplier = div32(s_enc, s) if s else 0.0
        decode = (lambda q, s: mul32(q, mul32(s, div32(amax, 2688.0)))) if outer else mul32
        return finish(code, [hardware(mul32(x, multiplier)) for x in xs], decode)

    return twin


def mlx_cpu(xs: Sequence[float], amax: float) -> Result:
    code, s = e4m3(div32(largest(xs), 6.0))
    return finish(code, [first_code(div32(x, s), 1.0) for x in xs], mul32)


def ggml(xs: Sequence[float], amax: float) -> Result:
    ratio = min(div32(largest(xs), 6.0), 448.0)
    if ratio < 2.0**-6:
        code = min(math.floor(add32(mul32(ratio, 512.0), 0.5)), 7)
    else:
        code = nearest(ratio, E4M3, "nearest_away")
        code = 0x7E if E4M3.value(code) >= 256 else code
    return finish(code, [first_code(x, E4M3.value(code)) for x in xs], mul32)


ENGINE_TWINS: dict[str, Twin] = {
    "te_row": te(compared),
    "te_46_fast": four_over_six(1536.0, in_fp16, False),
    "flashinfer_46": four_over_six(2688.0, decoded, True),
    "flashinfer_46_fast": four_over_six(2688.0, in_fp16, True),
    "vllm": vllm,
    "triton_nvfp4": triton_nvfp4,
    "mlx_nvfp4": mlx(False),
    "mlx_nvfp4_two_level": mlx(True),
    "mlx_nvfp4_cpu": mlx_cpu,
    "ggml_nvfp4": ggml,
}


# ---- MX --------------------------------------------------------------------------------------------------------------


def emax(fmt: Format) -> int:
    return floor_exponent(fmt.max)


def clamped(k: int) -> int:
    return min(max(k, -127), 127)


def triton(up: bool) -> MxTwin:
    def twin(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
        ratio = div32(largest(xs), fmt.max if up else 2.0 ** emax(fmt))
        least = 2.0**-149 if up else 2.0**-126
        if ratio < least:
            return 0, [nearest(math.copysign(0.0, x), fmt) for x in xs]
        k = max(ceil_power(ratio), -126) if up else floor_exponent(ratio)
        return k + 127, mx_codes(xs, k, fmt)

    return twin


def ggml_mx(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    b = largest(xs)
    k = math.floor(log2(b)) - 2 if b else -127
    return k + 127, [first_code(x, 2.0**k) for x in xs]


def mlx_mx(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    ratio = div32(largest(xs), fmt.max)
    k = next(k for k in range(-127, 128) if 2.0**k >= ratio)
    return k + 127, mx_codes(xs, k, fmt)


def mlx_before(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    ratio = div32(largest(xs), fmt.max)
    k = clamped(math.floor(abs(log2(ratio)) + 0.5) * (1 if ratio > 1 else -1)) if ratio else -127
    return k + 127, mx_codes(xs, k, fmt)


def mlx_cpu_before(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    ratio = div32(largest(xs), fmt.max)
    k = round(log2(ratio)) if ratio else 0  # Python's round takes halves to even
    scaled = [div32(x, 2.0**k) for x in xs]
    return k + 127, [first_code(v, 1.0) if fmt == E2M1 else nearest(v, fmt) for v in scaled]


def deepgemm(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    k = ceil_power(div32(max(largest(xs), CENTIMILLI), 6.0))
    return k + 127, [ties_down(math.ldexp(x, -k), fmt) for x in xs]


def vllm_mxfp4(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    k = clamped(floor_exponent(half_up(largest(xs), 1)) - 2)
    return k + 127, mx_codes(xs, k, fmt)


def vllm_mxfp8(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    k = clamped(math.ceil(log2(div32(max(largest(xs), 2.0**-126), 448.0))))
    return k + 127, mx_codes(xs, k, fmt)


def vllm_mxfp8_floor(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
    k = clamped(math.floor(log2(max(largest(xs), 2.0**-126))))
    return k + 127, mx_codes(xs, k, fmt)


def microxcaling(whole: Callable[[float], int]) -> MxTwin:
    def twin(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
        k = clamped(math.floor(log2(largest(xs) or 2.0**-126)) - emax(fmt))

        def code(x: float) -> int:
            v = div32(x, 2.0**k)
            e = max(math.floor(log2(abs(v))), 1 - fmt.bias) if v else 0
            unit = 2.0 ** (e - fmt.mantissa_bits)
            return nearest(math.copysign(min(whole(abs(v) / unit) * unit, fmt.max), v), fmt) if v else 0

        return k + 127, [code(x) for x in xs]

    return twin


def half_even(t: float) -> int:
    return math.floor(add32(t, 0.5)) - ((t - 0.5) % 2 == 0)


def quark(exponent: Callable[[float, Format], int], zero: int) -> MxTwin:
    def twin(xs: Sequence[float], fmt: Format) -> tuple[int, list[int]]:
        b = largest(xs)
        k = clamped(exponent(b, fmt) - emax(fmt)) if b else zero
        return k + 127, [code if fmt.value(code) else 0 for code in mx_codes(xs, k, fmt)]

    return twin


ENGINE_MX_TWINS: dict[str, MxTwin] = {
    "triton_up": triton(True),
    "triton_down": triton(False),
    "ggml_mxfp4": ggml_mx,
    "mlx_mx": mlx_mx,
    "mlx_mx_before": mlx_before,
    "mlx_mxfp4_cpu_before": mlx_cpu_before,
    "mlx_mxfp8_cpu_before": mlx_cpu_before,
    "deepgemm_mxfp4": deepgemm,
    "vllm_mxfp4": vllm_mxfp4,
    "vllm_mxfp8": vllm_mxfp8,
    "vllm_mxfp8_floor": vllm_mxfp8_floor,
    "microxcaling": microxcaling(lambda t: math.floor(add32(t, 0.5))),
    "microxcaling_even": microxcaling(half_even),
    "microxcaling_floor": microxcaling(math.floor),
    "quark": quark(lambda b, fmt: floor_exponent(half_up(b, fmt.mantissa_bits)), -127),
    "quark_floor": quark(lambda b, fmt: math.floor(log2(b)), -23),
    "quark_ceil": quark(lambda b, fmt: math.ceil(log2(b)), -23),
}


# ---- FP8 blocks ------------------------------------------------------------------------------------------------------


def deepgemm_fp8(power: bool) -> Fp8Twin:
    def twin(xs: Sequence[float]) -> tuple[float, list[int]]:
        ratio = div32(max(largest(xs), CENTIMILLI), 448.0)
        scale = 2.0 ** ceil_power(ratio) if power else ratio
        return scale, [nearest(mul32(x, div32(1.0, scale)), E4M3) for x in xs]

    return twin


def vllm_fp8(scale_of: Callable[[float], float]) -> Fp8Twin:
    def twin(xs: Sequence[float]) -> tuple[float, list[int]]:
        scale = scale_of(largest(xs))
        return scale, [nearest(div32(x, scale), E4M3) for x in xs]

    return twin


ENGINE_FP8_TWINS: dict[str, Fp8Twin] = {
    "deepgemm_fp8": deepgemm_fp8(False),
    "deepgemm_fp8_ue8m0": deepgemm_fp8(True),
    "vllm_fp8": vllm_fp8(lambda b: mul32(max(b, TINY), div32(1.0, 448.0))),
    "vllm_fp8_ue8m0": vllm_fp8(lambda b: 2.0 ** math.ceil(log2(mul32(max(b, TINY), div32(1.0, 448.0))))),
    "vllm_fp8_native": vllm_fp8(lambda b: max(div32(b, 448.0), float32(Fraction(1, 229376)))),
}
