// NVIDIA's own host code for 4-, 6- and 8-bit conversions, as plain C functions over arrays.
//
// Built by tests/test_host_headers.py with g++ against the headers of the pip packages nvidia-cuda-runtime and
// nvidia-cuda-cccl. Nothing here converts: each function only calls the header's function for every element.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

namespace {

enum Format { E2M1, E2M3, E3M2, E4M3, E5M2, E8M0 };

template <class In> struct Call;

// The header's functions by input type: float, double, half bits, bfloat16 bits.
template <> struct Call<float> {
    static uint8_t fp4(float x, cudaRoundMode r) { return __nv_cvt_float_to_fp4(x, __NV_E2M1, r); }
    static uint8_t fp6(float x, __nv_fp6_interpretation_t k, cudaRoundMode r) { return __nv_cvt_float_to_fp6(x, k, r); }
    static uint8_t fp8(float x, __nv_fp8_interpretation_t k) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, k); }
    static uint8_t e8m0(float x, __nv_saturation_t s, cudaRoundMode r) { return __nv_cvt_float_to_e8m0(x, s, r); }
};

template <> struct Call<double> {
    static uint8_t fp4(double x, cudaRoundMode r) { return __nv_cvt_double_to_fp4(x, __NV_E2M1, r); }
    static uint8_t fp6(double x, __nv_fp6_interpretation_t k, cudaRoundMode r) { return __nv_cvt_double_to_fp6(x, k, r); }
    static uint8_t fp8(double x, __nv_fp8_interpretation_t k) { return __nv_cvt_double_to_fp8(x, __NV_SATFINITE, k); }
    static uint8_t e8m0(double x, __nv_saturation_t s, cudaRoundMode r) { return __nv_cvt_double_to_e8m0(x, s, r); }
};

struct Half { uint16_t bits; };
struct Bfloat { uint16_t bits; };

template <> struct Call<Half> {
    static __half_raw raw(Half x) { __half_raw r; r.x = x.bits; return r; }
    static uint8_t fp4(Half x, cudaRoundMode r) { return __nv_cvt_halfraw_to_fp4(raw(x), __NV_E2M1, r); }
    static uint8_t fp6(Half x, __nv_fp6_interpretation_t k, cudaRoundMode r) { return __nv_cvt_halfraw_to_fp6(raw(x), k, r); }
    static uint8_t fp8(Half x, __nv_fp8_interpretation_t k) { return __nv_cvt_halfraw_to_fp8(raw(x), __NV_SATFINITE, k); }
    static uint8_t e8m0(Half, __nv_saturation_t, cudaRoundMode) { return 0; }  // the header has none; never asked for
};

template <> struct Call<Bfloat> {
    static __nv_bfloat16_raw raw(Bfloat x) { __nv_bfloat16_raw r; r.x = x.bits; return r; }
    static uint8_t fp4(Bfloat x, cudaRoundMode r) { return __nv_cvt_bfloat16raw_to_fp4(raw(x), __NV_E2M1, r); }
    static uint8_t fp6(Bfloat x, __nv_fp6_interpretation_t k, cudaRoundMode r) {
        return __nv_cvt_bfloat16raw_to_fp6(raw(x), k, r);
    }
    static uint8_t fp8(Bfloat x, __nv_fp8_interpretation_t k) {
        return __nv_cvt_bfloat16raw_to_fp8(raw(x), __NV_SATFINITE, k);
    }
    static uint8_t e8m0(Bfloat x, __nv_saturation_t s, cudaRoundMode r) { return __nv_cvt_bfloat16raw_to_e8m0(raw(x), s, r); }
};

// One loop per format with the mode a constant in it, so that the compiler can drop the header's other branches.
template <class In, cudaRoundMode R>
int convert(int format, bool saturate, const In* x, uint8_t* out, size_t n) {
    using C = Call<In>;
    switch (format) {
    case E2M1: for (size_t i = 0; i < n; ++i) out[i] = C::fp4(x[i], R); return 0;
    case E2M3: for (size_t i = 0; i < n; ++i) out[i] = C::fp6(x[i], __NV_E2M3, R); return 0;
    case E3M2: for (size_t i = 0; i < n; ++i) out[i] = C::fp6(x[i], __NV_E3M2, R); return 0;
    case E4M3: for (size_t i = 0; i < n; ++i) out[i] = C::fp8(x[i], __NV_E4M3); return 0;
    case E5M2: for (size_t i = 0; i < n; ++i) out[i] = C::fp8(x[i], __NV_E5M2); return 0;
    case E8M0:
        if (saturate) for (size_t i = 0; i < n; ++i) out[i] = C::e8m0(x[i], __NV_SATFINITE, R);
        else for (size_t i = 0; i < n; ++i) out[i] = C::e8m0(x[i], __NV_NOSAT, R);
        return 0;
    }
    return 1;
}

template <class In>
int dispatch(int format, int mode, bool saturate, const In* x, uint8_t* out, size_t n) {
    switch (mode) {
    case 0: return convert<In, cudaRoundNearest>(format, saturate, x, out, n);
    case 1: return convert<In, cudaRoundZero>(format, saturate, x, out, n);
    case 2: return convert<In, cudaRoundPosInf>(format, saturate, x, out, n);
    case 3: return convert<In, cudaRoundMinInf>(format, saturate, x, out, n);
    }
    return 1;
}

}  // namespace

extern "C" {

int cuda_version() { return CUDART_VERSION; }

// Codes of n numbers. format: 0 to 5 as in Format; mode: 0 nearest, 1 toward zero, 2 toward +inf, 3 toward -inf;
// saturate: of E8M0 only, the others always saturate. Returns 0, or 1 for an unknown format or mode.
int from_float(int format, int mode, int saturate, const float* x, uint8_t* out, size_t n) {
    return dispatch(format, mode, saturate != 0, x, out, n);
}
int from_double(int format, int mode, int saturate, const double* x, uint8_t* out, size_t n) {
    return dispatch(format, mode, saturate != 0, x, out, n);
}
int from_half(int format, int mode, int saturate, const uint16_t* x, uint8_t* out, size_t n) {
    return dispatch(format, mode, saturate != 0, reinterpret_cast<const Half*>(x), out, n);
}
int from_bfloat16(int format, int mode, int saturate, const uint16_t* x, uint8_t* out, size_t n) {
    return dispatch(format, mode, saturate != 0, reinterpret_cast<const Bfloat*>(x), out, n);
}

// Packed pairs as the instructions see them: x is the lower, y the upper element of each result.
int pairs(int format, int mode, int saturate, const float* x, const float* y, uint16_t* out, size_t n) {
    const auto round = static_cast<cudaRoundMode>(mode);
    const auto sat = saturate ? __NV_SATFINITE : __NV_NOSAT;
    for (size_t i = 0; i < n; ++i) {
        const float2 v = {x[i], y[i]};
        switch (format) {
        case E2M1: out[i] = __nv_cvt_float2_to_fp4x2(v, __NV_E2M1, round); break;
        case E2M3: out[i] = __nv_cvt_float2_to_fp6x2(v, __NV_E2M3, round); break;
        case E3M2: out[i] = __nv_cvt_float2_to_fp6x2(v, __NV_E3M2, round); break;
        case E4M3: out[i] = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3); break;
        case E5M2: out[i] = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E5M2); break;
        case E8M0: out[i] = __nv_cvt_float2_to_e8m0x2(v, sat, round); break;
        default: return 1;
        }
    }
    return 0;
}

// Packed words back to two halves or bfloat16s, the upper element in the upper 16 bits.
int to_half(int format, const uint16_t* words, uint32_t* out, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        __half2_raw r;
        switch (format) {
        case E2M1: r = __nv_cvt_fp4x2_to_halfraw2(static_cast<uint8_t>(words[i]), __NV_E2M1); break;
        case E2M3: r = __nv_cvt_fp6x2_to_halfraw2(words[i], __NV_E2M3); break;
        case E3M2: r = __nv_cvt_fp6x2_to_halfraw2(words[i], __NV_E3M2); break;
        case E4M3: r = __nv_cvt_fp8x2_to_halfraw2(words[i], __NV_E4M3); break;
        case E5M2: r = __nv_cvt_fp8x2_to_halfraw2(words[i], __NV_E5M2); break;
        default: return 1;
        }
        out[i] = static_cast<uint32_t>(r.y) << 16 | r.x;
    }
    return 0;
}
int to_bfloat16(int format, const uint16_t* words, uint32_t* out, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        __nv_bfloat162_raw r;
        switch (format) {
#if CUDART_VERSION >= 13040  // headers before that convert to bfloat16 from E8M0 only
        case E2M1: r = __nv_cvt_fp4x2_to_bf162raw(static_cast<uint8_t>(words[i]), __NV_E2M1); break;
        case E2M3: r = __nv_cvt_fp6x2_to_bf162raw(words[i], __NV_E2M3); break;
        case E3M2: r = __nv_cvt_fp6x2_to_bf162raw(words[i], __NV_E3M2); break;
        case E4M3: r = __nv_cvt_fp8x2_to_bf162raw(words[i], __NV_E4M3); break;
        case E5M2: r = __nv_cvt_fp8x2_to_bf162raw(words[i], __NV_E5M2); break;
#endif
        case E8M0: r = __nv_cvt_e8m0x2_to_bf162raw(words[i]); break;
        default: return 1;
        }
        out[i] = static_cast<uint32_t>(r.y) << 16 | r.x;
    }
    return 0;
}

}  // extern "C"
