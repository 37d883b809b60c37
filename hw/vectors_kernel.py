"""Someone else's kernels, written from the prose of the conformance pack with numpy and ml_dtypes; see `test_vectors`.

Nothing here knows fourbit. `kernel` answers every case: casts to nearest through ml_dtypes, the rest in numpy.
`vectors_broken` spoils it, one operation at a time.
"""

from fractions import Fraction
from itertools import pairwise

import ml_dtypes
import numpy as np

F32 = np.float32
FLT_MAX = np.finfo(F32).max
TYPES = {
    "E2M1": ml_dtypes.float4_e2m1fn,
    "E2M3": ml_dtypes.float6_e2m3fn,
    "E3M2": ml_dtypes.float6_e3m2fn,
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E8M0": ml_dtypes.float8_e8m0fnu,
}
MAX = {"E2M1": 6.0, "E2M3": 7.5, "E3M2": 28.0, "E4M3": 448.0, "E5M2": 57344.0, "S2F6": 127 / 64}
LEAST_EXPONENT = {"E2M1": (0, 1), "E2M3": (0, 3), "E3M2": (-2, 2), "E4M3": (-6, 3), "E5M2": (-14, 2)}
NAN = {"E2M1": 7, "E2M3": 0x1F, "E3M2": 0x1F, "E4M3": 0x7F, "E5M2": 0x7F, "S2F6": 0x7F}


def decode(codes, fmt):
    """Codes to float32."""
    if fmt == "S2F6":
        return codes.view(np.int8).astype(F32) / F32(64)
    return codes.view(TYPES[fmt]).astype(F32)


def cast(x, fmt):
    """float32 to codes, nearest even, saturating."""
    limit = F32(-2 if fmt == "S2F6" else -MAX[fmt]), F32(MAX[fmt])
    inside = np.clip(np.where(np.isnan(x), F32(0), x), *limit)
    if fmt == "S2F6":
        codes = np.rint(inside * F32(64)).astype(np.int8).view(np.uint8)
    else:
        codes = inside.astype(TYPES[fmt]).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(NAN[fmt]), codes)


def cast_stochastic(x, fmt, r):
    """float32 to codes with 16 random bits per element, in integers held by float64."""
    magnitude = np.minimum(np.abs(np.where(np.isnan(x), 0, x)).astype(np.float64), MAX[fmt])
    least, m = LEAST_EXPONENT[fmt]
    q = np.maximum(np.frexp(magnitude)[1] - 1, least) - m
    n = (np.floor(np.ldexp(magnitude, 16 - q)).astype(np.int64) + r) >> 16
    value = np.minimum(np.ldexp(n.astype(np.float64), q), MAX[fmt])
    return cast(np.where(np.isnan(x), F32("nan"), np.copysign(value, x).astype(F32)), fmt)


def cast_e8m0(x, up, saturate):
    """Magnitudes to powers of two."""
    bits = np.abs(x).view(np.uint32).astype(np.int64)
    exponent, rest = np.maximum(bits >> 23, 0), bits & 0x7FFFFF
    low = exponent == 0  # 2^-127 is the subnormal 0x00400000
    code = np.where(low, up & (rest > 0x400000), exponent + (up & (rest > 0)))
    beyond = 254 if saturate else 255
    code = np.where((code > 254) | np.isinf(x) | (up & (np.abs(x) > 2.0**127)), beyond, code)
    return np.where(np.isnan(x), 255, code).astype(np.uint8)


def cast_any(p, x, random_bits=None):
    """Every cast of the pack."""
    fmt = p["format"]
    if fmt == "E8M0":
        return cast_e8m0(x, p["rounding"] == "toward_positive", p["saturate"])
    if p["rounding"] == "nearest_even":
        return cast(x, fmt)
    if p["rounding"] == "stochastic":
        return cast_stochastic(x, fmt, random_bits.astype(np.int64))
    if fmt == "S2F6":
        return cast(np.trunc(x * F32(64)) / F32(64), fmt)
    return cast_stochastic(x, fmt, 0)  # no random bits: truncation


def instruction(words, a, b, e=None, f=None, rbits=None, scale=None):
    """cvt.MODE.satfinite[.scaled::n2::ue8m0].TYPExN.f32 on every row."""
    fmt = {"s2f6x2": "S2F6", "ue8m0x2": "E8M0"}.get(words[-2], words[-2].upper()[:4])
    field, result = (4, np.uint8) if fmt == "E2M1" else (8, np.uint16)
    if words[1] == "rs":
        number = split(np.stack((rbits,) * 4, -1), 4 if fmt == "E2M1" else 8)[..., :4].astype(np.int64)
        codes = [cast_stochastic(x, fmt, number[:, i]) for i, x in enumerate((f, e, b, a))]
        result = np.uint16 if fmt == "E2M1" else np.uint32
    elif fmt == "E8M0":
        codes = [cast_e8m0(x, words[1] == "rp", True) for x in (b, a)]
    else:
        if scale is not None:
            a, b = (np.ldexp(x, 127 - (scale >> s & 255).astype(np.int32)) for x, s in ((a, 8), (b, 0)))
        codes = [cast(x, fmt) for x in (b, a)]
    return sum(code.astype(np.uint64) << np.uint64(field * i) for i, code in enumerate(codes)).astype(result)


def blocks(x, p):
    """x with its axis last and cut into blocks, padded with zeros: (.., blocks, B); and the way back."""
    x, groups = np.moveaxis(x, p["axis"], -1), p.get("groups") or [0, x.shape[p["axis"]]]
    pieces, kept = [], []
    for start, end in pairwise(groups):
        padding = -(end - start) % p["block"]
        pieces.append(np.pad(x[..., start:end], [(0, 0)] * (x.ndim - 1) + [(0, padding)]))
        kept += [True] * (end - start) + [False] * padding
    folded = np.concatenate(pieces, -1)

    def back(y):
        return np.ascontiguousarray(np.moveaxis(y.reshape(folded.shape)[..., kept], -1, p["axis"]))

    return folded.reshape(*folded.shape[:-1], -1, p["block"]), back


def tree(x):
    """The sum of the last axis over adjacent pairs."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x


def outer_scale(bmax, p, limit):
    """(outer, s_enc) from block maxima (.., blocks, 1)."""
    axes = {"tensor": tuple(range(bmax.ndim)), "row": (-2, -1), "leading": tuple(range(1, bmax.ndim))}[p["outer"]]
    amax = bmax.max(axes, keepdims=True)
    s_enc = np.minimum(F32(limit) / amax, FLT_MAX)
    outer = np.maximum(amax / F32(limit), F32(2.0**-128))
    return np.where(amax == 0, F32(1), outer), np.where(amax == 0, F32(1), s_enc)


def quantize(p, x, outer=None, random_bits=None):
    """Codes, scales and outer scale of a matrix, for every rule of the pack."""
    folded, back = blocks(x, p)
    finite = np.isfinite(folded).all(-1, keepdims=True)
    bmax = np.where(finite, np.abs(folded).max(-1, keepdims=True), F32(0))
    given, one = outer is not None, np.ones(1, F32)
    if p["outer"] == "none":
        factor, s_enc = one, one
    elif given:
        factor = outer.reshape(*outer.shape, 1)
        s_enc = np.minimum(one / factor, FLT_MAX)
    else:
        limit = {"nvfp4": 2688, "four_over_six": 1536, "unbiased": 2688 * 16 / 17}[p["rule"]]
        factor, s_enc = outer_scale(bmax, p, limit)
    bits = None if random_bits is None else blocks(random_bits.astype(np.int64), p)[0]

    def element(y):
        y = np.copysign(y, folded)
        return cast(y, p["element"]) if bits is None else cast_stochastic(y, p["element"], bits)

    scales, codes = RULES[p["rule"]](folded, bmax, factor, s_enc, element, p)
    scales = np.where(finite, scales, np.uint8(0x7F if p["scale"] == "E4M3" else 0xFF))
    codes = np.where(finite, codes, np.uint8(0x7F if p["element"] == "S2F6" else NAN[p["element"]]))
    if p["element"] == "E4M3":
        codes = np.where(finite, codes, np.uint8(0x7E))
    out = {"codes": back(codes), "scales": np.ascontiguousarray(np.moveaxis(scales[..., 0], -1, p["axis"]))}
    if p["outer"] != "none" and not given:
        out["outer"] = np.ascontiguousarray(np.moveaxis(factor[..., 0], -1, p["axis"])).astype(F32)
    return out


def nvfp4(x, bmax, outer, s_enc, element, p):
    """One block scale by multiplication with fl(1/6), elements by the rounded reciprocal."""
    scales = cast(bmax * (s_enc * F32(1 / 6)), "E4M3")
    return scales, element(x * np.minimum(F32(1) / (decode(scales, "E4M3") * (F32(1) / s_enc)), FLT_MAX))


def divided(x, scales, outer, element):
    """Elements by division."""
    step = decode(scales, "E4M3") * outer
    return element(np.where(step == 0, F32(0), x / step))


def candidates(x, bmax, outer, element):
    """Scales, codes and errors with the maximum mapped to 6 and to 4."""
    for m in (6, 4):
        scales = cast(bmax / (outer * F32(m)), "E4M3")
        codes = divided(x, scales, outer, element)
        difference = decode(codes, "E2M1") * decode(scales, "E4M3") * outer - x
        yield scales, codes, tree(difference * difference)


def four_over_six(x, bmax, outer, s_enc, element, p):
    """4 if it errs less."""
    (scale6, code6, error6), (scale4, code4, error4) = candidates(x, bmax, outer, element)
    return np.where(error4 < error6, scale4, scale6), np.where(error4 < error6, code4, code6)


def unbiased(x, bmax, outer, s_enc, element, p):
    """Headroom 16/17; subnormal scales rounded up."""
    t = bmax / (outer * F32(6 * 16 / 17))
    scales = cast(t, "E4M3")
    scales = scales + ((t < 2.0**-6) & (decode(scales, "E4M3") < t)).astype(np.uint8)
    return scales, divided(x, scales, outer, element)


def rceil(x, bmax, outer, s_enc, element, p):
    """The smallest power of two that holds the maximum, in float64, where all of this is exact."""
    exponent = np.full(bmax.shape, -127)
    while (short := (np.ldexp(MAX[p["element"]], exponent) < bmax) & (exponent < 127)).any():
        exponent = exponent + short
    return (exponent + 127).astype(np.uint8), element(np.ldexp(x.astype(np.float64), -exponent).astype(F32))


RULES = {"nvfp4": nvfp4, "four_over_six": four_over_six, "unbiased": unbiased, "rceil": rceil}


def dequantize(p, codes, scales, outer=None):
    """(code * scale) * outer, float32's largest number where a product of finite numbers overflows."""
    folded, back = blocks(codes, p)
    scale = np.moveaxis(decode(scales, p["scale"]), p["axis"], -1)
    largest = np.finfo(np.float32).max
    values = np.clip(back(decode(folded, p["element"]) * scale[..., None]), -largest, largest)
    return values if outer is None else np.clip(values * outer, -largest, largest)


def pack(codes):
    """Two nibbles a byte."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def places(rows, k):
    """The byte of each scale in the 128x4 layout, and how many there are."""
    r, c = np.arange(rows)[:, None], np.arange(k)
    tiles = -(-k // 4)
    return (r // 128 * tiles + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4, -(-rows // 128) * tiles * 512


def swizzle(scales):
    """Into the 128x4 layout."""
    at, size = places(*scales.shape[-2:])
    out = np.zeros((*scales.shape[:-2], size), np.uint8)
    out[..., at] = scales
    return out


def butterfly(x, n):
    """n add/subtract stages and the factor."""
    y, stride = x.reshape(*x.shape[:-1], -1, n), 1
    while stride < n:
        pairs = y.reshape(*y.shape[:-1], -1, 2, stride)
        u, v = pairs[..., 0, :], pairs[..., 1, :]
        y, stride = np.stack((u + v, u - v), -2).reshape(y.shape), 2 * stride
    return y * F32(n**-0.5)


def philox(key, counter):
    """Ten rounds on uint32 words."""
    k, c, low = key.astype(np.uint64), [w.astype(np.uint64) for w in np.moveaxis(counter, -1, 0)], np.uint64(0xFFFFFFFF)
    k0, k1, half = k[..., 0], k[..., 1], np.uint64(32)
    for _ in range(10):
        a, b = c[2] * np.uint64(0xCD9E8D57), c[0] * np.uint64(0xD2511F53)
        c = [a >> half ^ c[1] ^ k0, a & low, b >> half ^ c[3] ^ k1, b & low]
        k0, k1 = k0 + np.uint64(0x9E3779B9) & low, k1 + np.uint64(0xBB67AE85) & low
    return np.stack(c, -1).astype(np.uint32)


def split(words, element_bits):
    """16 random bits for each of the 16 elements that four words serve."""
    byte = words.view(np.uint8).reshape(*words.shape, 4).astype(np.uint16)
    order = ((2, 0), (3, 1)) if element_bits == 4 else ((1, 0), (3, 2))
    field = np.stack([byte[..., i] << 8 | byte[..., j] for i, j in order], -1)
    reverse = sum((field >> i & 1) << 15 - i for i in range(16)).astype(np.uint16)
    return np.stack((field, reverse), -1).reshape(*words.shape[:-1], 16)


def element_bits(p):
    """The random bits of a whole matrix."""
    line, place = np.indices(p["shape"])[:: 1 if p["axis"] == 1 else -1].astype(np.int64)
    starts = np.array(p.get("groups") or [0])
    expert = 0 * place if len(starts) == 1 else np.searchsorted(starts, place, side="right") - 1
    place = place - starts[expert]
    first, second = p["counter"]
    counter = np.stack((0 * place + first, second + expert, line, place // 16), -1)
    words = philox(np.array(p["key"]), counter)
    return np.take_along_axis(split(words, p["element_bits"]), place[..., None] % 16, -1)[..., 0]


def exact(a, b):
    """a @ b.T, each sum rounded once: Fractions to the float32 numbers around them."""
    out = np.zeros((len(a), len(b)), F32)
    for i, row in enumerate(a):
        for j, column in enumerate(b):
            total = sum(
                (Fraction(u) * Fraction(v) for u, v in zip(row.tolist(), column.tolist(), strict=True)), Fraction()
            )
            near = F32(float(total))
            around = (near, np.nextafter(near, F32(-np.inf)), np.nextafter(near, F32(np.inf)))
            # by distance, then the even mantissa
            out[i, j] = min(around, key=lambda y: (abs(Fraction(float(y)) - total), int(y.view(np.uint32)) & 1))
    return out


def matmul(p, name, part):
    """Grouped products, each sum exact."""
    a, b = (
        dequantize({**p, "axis": part[f"{s}_codes"].ndim - 1, "groups": p["groups"] if "contraction" in name else None},
                   part[f"{s}_codes"], part[f"{s}_scales"]).astype(np.float64)
        for s in "ab"
    )  # fmt: skip
    ends = list(pairwise(p["groups"]))
    if "contraction" in name:
        return np.stack([exact(a[:, i:j], b[:, i:j]) for i, j in ends])
    outer = (part.get(f"{s}_outer", np.ones(1, F32)) for s in "ab")
    factor = np.broadcast_to(next(outer) * next(outer), (len(b), 1, 1))
    return np.concatenate([exact(a[i:j], b[e]) * factor[e] for e, (i, j) in enumerate(ends)])


@np.errstate(all="ignore")
def kernel(case, part):
    """Every operation that is done here; None for the rest."""
    operation, p, name = case["operation"], case["parameters"], case["name"]
    if operation == "decode":
        return {"values": decode(part["codes"], p["format"])}
    if operation == "cast":
        return {"codes": cast_any(p, part["x"], part.get("random_bits"))}
    if operation == "instruction":
        return {"d": instruction(p["instruction"].split("."), **part)}
    if operation in ("quantize", "combine_send"):
        if operation == "combine_send":
            rotated = part["x"].reshape(len(part["x"]), -1, 32) * part.pop("signs")
            part["x"] = butterfly(rotated.reshape(part["x"].shape), 32).reshape(part["x"].shape)
        return quantize(p, **part)
    if operation == "four_over_six_errors":
        x, outer = part["x"][:, None], part["outer"][..., None]
        found = candidates(x, np.abs(x).max(-1, keepdims=True), outer, lambda y: cast(np.copysign(y, x), "E2M1"))
        return {f"error_{m}": error[:, 0] for m, (_, _, error) in zip((6, 4), found, strict=True)}
    if operation == "dequantize":
        return {"values": dequantize(p, **part)}
    if operation == "requantize":
        bits = part.pop("random_bits", None)
        outer = part.pop("outer") if p["source_outer"] != "multiply" else None
        source = {"element": "E2M1", "scale": "E4M3", "block": 16, "axis": part["codes"].ndim - 1}
        return quantize(p, dequantize(source, **part), random_bits=bits) | {"unused": outer}
    if operation == "payload":
        q = quantize(p, part["x"])
        return {"packed": pack(q["codes"]), "swizzled": swizzle(q["scales"]), "outer": q["outer"]}
    if operation == "matmul":
        return {"y": matmul(p, name, part)}
    return _bytes(operation, p, part)


def _bytes(operation, p, part):
    """Layouts, transforms and random words."""
    if operation == "pack_nibbles":
        return {"packed": pack(part["codes"])}
    if operation == "unpack_nibbles":
        packed = part["packed"]
        return {"codes": np.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], -1)}
    if operation == "swizzle_scales":
        return {"swizzled": swizzle(part["scales"])}
    if operation == "unswizzle_scales":
        return {"scales": part["swizzled"][..., places(*p["shape"][-2:])[0]]}
    if operation in ("hadamard", "hadamard_inverse"):
        x, n = part["x"], p["size"]
        folded, signs = x.reshape(len(x), -1, n), part["signs"]
        forward = operation == "hadamard"
        y = butterfly((folded * signs if forward else folded).reshape(x.shape), n)
        return {"y": (y if forward else y * signs).reshape(x.shape)}
    if operation == "combine_receive":
        source = {"element": "S2F6", "scale": "E8M0", "block": 32, "axis": 1}
        rows, total = dequantize(source, part["codes"], part["scales"]), None
        for slot, weight in zip(part["slots"].T, part["weights"].T, strict=True):
            term = rows[slot] * weight[:, None]
            total = term if total is None else total + term
        y = (butterfly(total, 32) * part["signs"]).reshape(total.shape)
        return {"out": y.astype(ml_dtypes.bfloat16).astype(F32)}
    if operation == "philox":
        return {"words": philox(part["key"], part["counter"])}
    if operation == "random_bits_split":
        return {"random_bits": split(part["words"], p["element_bits"])}
    if operation == "random_bits":
        return {"random_bits": element_bits(p)}
    if operation == "hadamard_signs":
        words = philox(np.array(p["key"]), np.zeros(4, np.int64))
        bits = [int(words[i // 32]) >> i % 32 & 1 for i in range(p["size"])]
        return {"signs": np.array([1 - 2 * bit for bit in bits], F32)}
    return None
