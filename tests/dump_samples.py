"""Sound dumps of every dialect for `fourbit check`, drawn by a seed.

A dump is x, the dialect's own codes, scales and outer, perhaps its values, kept as a GPU or a checkpoint may keep them:
packed or not, transposed, padded, swizzled. Sizes lie around the boundaries: 1 to 3 blocks, whole or short, 1 row, and
127 to 129 rows, where a swizzled tile ends. The outer is the dialect's own, absent, or calibrated: of a tensor 4 times
as large, of half the amax (of normal values, which saturates some blocks), or one for each row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import numerics as nm
from numerics.dialects_core import Dialect, Quantized
from numerics.dialects_layout import LAYOUTS, Layout
from numerics.scales import DIALECTS

Dump = dict[str, Tensor]
MADE = [(name, fmt) for name, d in DIALECTS.items() for fmt in d.formats]
ROWS = (1, 2, 15, 16, 17, 127, 128, 129)
CONTENTS = (
    "normal",
    "heavy",
    "bfloat16",
    "zero rows",
    "one value",
    "outlier",
    "ties",
    "zeros",
    "constant",
    "tiny",
    "huge",
)
PLAIN = CONTENTS[:6]  # of which calibrations are drawn
OUTERS = ("own", "absent", "four", "half", "rows")
CODES = ("plain", "packed", "transposed", "packed, transposed", "padded")
SCALES = ("plain", "swizzled", "transposed", "flat", "padded")
RARE_CODES = ("halves", "in blocks", "int32")
RARE_SCALES = ("8x4", "grid", "int32", "int32, swizzled", "int32, transposed", "each row", "other numbers")


@dataclass(frozen=True)
class Sample:
    """A sound dump, and how `check` is asked about it. q: the bytes before they were laid out; outer: whatever the
    dialect was run with, though the dump may lack it."""

    name: str
    fmt: str
    words: tuple[str, ...]
    x: Tensor
    q: Quantized
    dump: Dump
    asked: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} {self.fmt} {tuple(self.x.shape)}: {', '.join(self.words)}; {self.asked}"


def content(kind: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Values of a kind, with the range that every dialect can hold but for "tiny" and "huge"."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    if kind == "heavy":
        return x * torch.exp(1.5 * torch.randn(shape, generator=g))
    if kind == "bfloat16":
        return (x * 0.02).bfloat16()
    if kind == "zero rows":
        return torch.where(torch.arange(shape[-2]).unsqueeze(-1) % 3 == 1, 0.0, x)
    if kind == "one value":
        return torch.where(torch.arange(x.numel()).view(shape) == x.numel() // 2, 1.5, 0.0)
    if kind == "outlier":
        return torch.where(torch.arange(x.numel()).view(shape) == x.numel() // 2, 300.0, x)
    if kind == "ties":
        return torch.randint(-24, 25, shape, generator=g) / 4
    return {"zeros": x * 0, "constant": x * 0 + 0.7, "tiny": x * 1e-39, "huge": x.clamp(-3, 3) * 1e38}.get(kind, x)


def outer_for(kind: str, d: Dialect, x: Tensor, fmt: str) -> Tensor | None:
    """What the dialect is run with; None: what it derives from x."""
    if kind in ("own", "absent") or d.outer_of is None:
        return None
    layout = LAYOUTS[fmt]
    size = x.float().abs()
    amax = size.amax(-1, keepdim=True) if kind == "rows" and layout.tile == 1 else size.amax()
    amax = amax * {"four": 4.0, "half": 0.5}.get(kind, 1.0)
    stored = d.outer_of(torch.where(amax > 0, amax, 1.0), x.dtype)
    return stored.reshape([1] * x.ndim) if stored.ndim == 0 else stored


def laid_codes(codes: Tensor, how: str, layout: Layout) -> Tensor:
    """Codes as they are kept; plain where the format or the shape does not allow that."""
    whole = layout.element.bits == 4 and codes.shape[-1] % layout.block == 0
    if how == "halves" and whole:
        return nm.layout.pack_halves(codes, layout.block)
    if how == "in blocks" and whole:
        return nm.layout.pack_nibbles(codes).unflatten(-1, (-1, layout.block // 2))
    if how == "int32" and whole:
        return nm.layout.pack_nibbles(codes).view(torch.int32)
    packed = "packed" in how and layout.element.bits == 4
    if packed:
        codes = nm.layout.pack_nibbles(pad(codes, (0, codes.shape[-1] % 2)))
    if how == "padded":
        codes = pad(codes, (0, -codes.shape[-1] % 32, 0, -codes.shape[-2] % 16))
    return codes.mT.contiguous() if "transposed" in how else codes


def laid_scales(scales: Tensor, how: str, layout: Layout, rows: int) -> Tensor:
    """Scales as they are kept. Those of tiles are swizzled, as products read them, for each row; FP8's are not."""
    if how in RARE_SCALES:
        return rarely_laid(scales, how, layout, rows)
    if how == "swizzled" and scales.dtype == torch.uint8:
        if layout.tile > 1:
            scales = scales.repeat_interleave(layout.tile, -2)[..., :rows, :]
        return nm.layout.swizzle_scales(scales.contiguous())
    if how == "transposed":
        return scales.mT.contiguous()
    if how == "padded" and scales.dtype == torch.uint8 and layout.tile == 1:
        whole = pad(scales, (0, -scales.shape[-1] % 2, 0, -scales.shape[-2] % 8))
        swizzled = nm.layout.padded_scales(rows, scales.shape[-1])
        return scales if whole.shape[-2:] == swizzled else whole  # that must be swizzled
    return scales.flatten() if how == "flat" else scales


def rarely_laid(scales: Tensor, how: str, layout: Layout, rows: int) -> Tensor:
    """Scales as a few libraries keep them; plain where the format or the shape does not allow that."""
    bits = scales.contiguous().view(torch.int32) if layout.scale is None else scales
    powers = layout.scale is None and bool(((bits & 0x7FFFFF) == 0).all() & (bits > 0).all())
    if how == "other numbers" and layout.scale is not nm.E4M3:  # E8M0 in float32, float32 powers of two in E8M0
        return (bits >> 23).to(torch.uint8) if powers else nm.decode(scales, nm.E8M0) if layout.scale else scales
    if layout.scale is None and not powers:
        return scales.repeat_interleave(layout.tile, -2)[..., :rows, :] if how == "each row" else scales
    scales = (bits >> 23).to(torch.uint8) if powers else scales
    scales = scales.repeat_interleave(layout.tile, -2)[..., :rows, :]
    if how in ("int32", "int32, transposed"):
        four = pad(scales, (0, -scales.shape[-1] % 4)).contiguous().view(torch.int32)
        return four if how == "int32" else pad(four, (0, 0, 0, -rows % 4)).mT.contiguous()
    if powers or how == "each row":
        return scales
    if how == "8x4":
        return nm.layout.swizzle_scales_8x4(scales)
    swizzled = nm.layout.swizzle_scales(scales)
    if how == "int32, swizzled":
        return swizzled.view(torch.int32)
    return swizzled.view(*scales.shape[:-2], *nm.layout.padded_scales(rows, scales.shape[-1]))


def sample(seed: int, name: str | None = None, fmt: str | None = None, **fixed: str) -> Sample:
    """A sound dump. fixed: `content`, `outer`, `codes`, `scales`, else drawn; `rows` and `length` too."""
    r = Random(seed)
    name, fmt = (name, fmt) if name and fmt else r.choice(MADE)
    d, layout = DIALECTS[name], LAYOUTS[fmt]
    drawn = {
        "content": r.choice(CONTENTS),
        "outer": r.choice(OUTERS),
        "codes": r.choice(CODES),
        "scales": r.choice(SCALES),
        "values": r.choice(("none", "float32", "bfloat16")),
    } | fixed
    rows, blocks = r.choice(ROWS), r.randint(1, 3)
    length = blocks * layout.block - r.choice((0, 0, 1, layout.block // 2, layout.block - 1))
    shape = (r.choice((2, 3)), rows, length) if r.random() < 0.2 else (rows, length)
    if drawn["outer"] in ("four", "half", "rows") and drawn["content"] not in PLAIN:
        drawn["outer"] = "own"
    if drawn["content"] == "tiny" and drawn["values"] == "bfloat16":  # its subnormal numbers are too few
        drawn["values"] = "float32"
    if drawn["outer"] == "half" and (drawn["content"] != "normal" or "fouroversix" in name):  # its cast makes 0 of 7
        drawn["outer"] = "four"
    x = content(drawn["content"], shape, seed)
    q = d.quantize(x, fmt, outer=outer_for(drawn["outer"], d, x, fmt))
    dump = {"x": x, "codes": laid_codes(q.codes, drawn["codes"], layout)}
    dump["scales"] = laid_scales(q.scales, drawn["scales"], layout, rows)
    if q.outer is not None and drawn["outer"] != "absent":
        dump["outer"] = q.outer.contiguous()
    if drawn["values"] != "none":
        dump["values"] = d.dequantize(q).to(getattr(torch, drawn["values"]))
    asked = {"fmt": fmt.lower()} if layout.scale is None or r.random() < 0.5 else {}
    asked |= {"contract": name} if r.random() < 0.5 else {}
    return Sample(name, fmt, tuple(drawn.values()), x, q, dump, asked)
