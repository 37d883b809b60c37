"""`vectors_kernel` with one operation spoiled, as the environment variable BROKEN names it; see `test_vectors`.

The faults are those that published quantizers have had: other ties, swapped nibbles, scales left row-major, an outer
scale forgotten, rounding through BF16 first, groups off by one row, block scales rounded down, a rotation negated.
"""

import os

import ml_dtypes
import numpy as np
import vectors_kernel as good

F32 = np.float32
cast, quantize, dequantize, blocks, butterfly = good.cast, good.quantize, good.dequantize, good.blocks, good.butterfly


def ties_away(x, fmt):
    """E2M1 ties rounded away from zero."""
    return cast(np.nextafter(x, np.copysign(F32(np.inf), x)) if fmt == "E2M1" else x, fmt)


def through_bfloat16(x, fmt):
    """Rounded twice."""
    return cast(x.astype(ml_dtypes.bfloat16).astype(F32), fmt)


def row_major(scales):
    """Scales padded, in the place where they are, not swizzled."""
    *lead, rows, k = scales.shape
    out = np.zeros((*lead, -(-rows // 128) * 128, -(-k // 4) * 4), np.uint8)
    out[..., :rows, :k] = scales
    return out.reshape(*lead, -1)


def late_groups(x, p):
    """Every group but the first starts one row late."""
    groups = p.get("groups")
    return blocks(x, p if groups is None else {**p, "groups": [0, *(g + 1 for g in groups[1:-1]), groups[-1]]})


def floor(x, bmax, outer, s_enc, element, p):
    """The exponent of the maximum less that of the format's maximum."""
    exponent = np.clip(np.frexp(bmax)[1] - np.frexp(good.MAX[p["element"]])[1], -127, 127)
    return (exponent + 127).astype(np.uint8), element(np.ldexp(x.astype(np.float64), -exponent).astype(F32))


SPOILED = {
    "tie": {"cast": ties_away},
    "double rounding": {"cast": through_bfloat16},
    "swapped nibbles": {"pack": lambda codes: codes[..., 1::2] | codes[..., 0::2] << 4},
    "unswizzled scales": {"swizzle": row_major},
    "lost outer": {"dequantize": lambda p, codes, scales, outer=None: dequantize(p, codes, scales)},
    "late groups": {"blocks": late_groups},
    "floor scale": {"RULES": {**good.RULES, "rceil": floor}},
    "rotation": {"butterfly": lambda x, n: -butterfly(x, n)},
}


def broken(case, part):
    """`vectors_kernel.kernel` with some of its functions replaced for this one call."""
    changes = SPOILED[os.environ["BROKEN"]]
    kept = {name: getattr(good, name) for name in changes}
    for name, function in changes.items():
        setattr(good, name, function)
    try:
        return good.kernel(case, part)
    finally:
        for name, function in kept.items():
            setattr(good, name, function)
