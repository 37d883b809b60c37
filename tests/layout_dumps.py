"""Dumps in the layouts that libraries use, for tests of `fourbit check`: dialects' bytes, moved by reshapes and indices
written here. 100 rows of 96 values (6 NVFP4 scales, 3 of MX) and 198 of 300 (3 FP8 blocks) fill no tile."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import Quantized
from numerics.scales import DIALECTS

Dump = dict[str, Tensor]
RANDOM = torch.Generator().manual_seed(11)
X = torch.randn(100, 96, generator=RANDOM) * torch.exp(torch.randn(100, 1, generator=RANDOM))  # 6 scales a row
W = (torch.randn(64, 192, generator=RANDOM) * 0.02).bfloat16()
STACK = torch.randn(3, 40, 96, generator=RANDOM) * torch.tensor([1.0, 50.0, 0.02]).view(3, 1, 1)
EIGHT = torch.randn(198, 300, generator=RANDOM) * torch.exp(torch.randn(198, 1, generator=RANDOM))
EXPERTS = (0, 33, 70, 70, 100)
OFFSETS = torch.tensor(EXPERTS)
pack = nm.layout.pack_nibbles


def dump_of(q, x: Tensor, **changes) -> Dump:
    outer = {} if q.outer is None else {"outer": q.outer.contiguous()}
    return {"x": x, "codes": q.codes, "scales": q.scales} | outer | changes


def te(x: Tensor = X, name: str = "te", fmt: str = "NVFP4", **changes) -> Dump:
    return dump_of(DIALECTS[name].quantize(x, fmt), x, **changes)


def mxfp8(**changes) -> Dump:
    return dump_of(nm.quantize(X, nm.MXFP8), X, **changes)


def mxfp4(**changes) -> Dump:
    return dump_of(DIALECTS["ocp_floor"].quantize(X, "MXFP4"), X, **changes)


Q = DIALECTS["te"].quantize(X)


def tiled(scales: Tensor, rows: int) -> Tensor:
    """One scale of a tile for each of its rows."""
    return scales.repeat_interleave(16, -2)[..., :rows, :]


def padded(t: Tensor, rows: int, columns: int, fill: int = 0) -> Tensor:
    out = torch.full((*t.shape[:-2], rows, columns), fill, dtype=t.dtype)
    out[..., : t.shape[-2], : t.shape[-1]] = t
    return out


def by_expert(scales: Tensor, swizzle: Callable[[Tensor], Tensor] = nm.layout.swizzle_scales) -> Tensor:
    return torch.cat([swizzle(scales[a:b]) for a, b in pairwise(EXPERTS)])


def own_outers() -> Dump:
    """Each expert of the stacked rows quantized by itself."""
    parts = [DIALECTS["modelopt"].quantize(X[a:b]) for a, b in pairwise(EXPERTS)]
    outer = torch.cat([q.outer.flatten() for q in parts])
    codes, scales = (torch.cat([getattr(q, name) for q in parts]) for name in ("codes", "scales"))
    return {"x": X, "codes": codes, "scales": scales, "outer": outer, "groups": OFFSETS}


# FP8 in blocks of 128, as DeepGEMM makes them: scales in float32, and powers of two.

F, FT, FP, FPT = (
    DIALECTS[name].quantize(EIGHT, fmt)
    for name in ("deepgemm_fp8", "deepgemm_fp8_ue8m0")
    for fmt in ("FP8_1X128", "FP8_128X128")
)


def exponents(scales: Tensor) -> Tensor:
    """The E8M0 bytes of float32 powers of two: their exponent fields."""
    assert int((scales.contiguous().view(torch.int32) & 0x7FFFFF).max()) == 0
    return (scales.contiguous().view(torch.int32) >> 23).to(torch.uint8)


def four(scales: Tensor) -> Tensor:
    """Exponents of a (rows, 3) matrix, four in an int32; the fourth is 1."""
    return padded(exponents(scales), len(scales), 4, 127).view(torch.int32)


def fp8(q: Quantized, scales: Tensor, codes: Tensor | None = None) -> Dump:
    return {"x": EIGHT, "codes": (q.codes if codes is None else codes).view(torch.float8_e4m3fn), "scales": scales}
