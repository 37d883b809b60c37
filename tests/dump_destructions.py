"""Destroyed dumps for `fourbit check`, drawn by a seed, each with a proof that it is destroyed.

A destruction changes codes, scales, outer, values, padding or order of a sound dump. It counts where x cannot be had
back: with v what the sound dump decodes to and w what the destroyed one does, by the dialect that made it and in the
layout in which it is kept,

    w_i is not finite, or |w_i - x_i| > |v_i - x_i| + 0.6 |x_i|       for some finite x_i

(for zeros: any w_i but 0). Codes and scales that follow from another outer may be a calibration, which clips a few
values: there it must hold for half of the x_i that are not 0. A change that leaves the meaning intact, as a permutation
of equal rows, is drawn again. So is one that happens to be the bytes that some other dialect makes of x: these are a
contract. Nothing here uses `check`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import torch
from dump_samples import PLAIN, Dump, Sample, laid_codes, laid_scales, sample
from torch import Tensor
from torch.nn.functional import pad

import numerics as nm
from numerics.dialects_core import Quantized
from numerics.dialects_layout import LAYOUTS
from numerics.scales import DIALECTS


@dataclass(frozen=True)
class Destroyed:
    """A destroyed dump: what was done, to which sample, and how `check` is asked."""

    words: str
    of: Sample
    dump: Dump

    def __str__(self) -> str:
        return f"{self.words}: {self.of}"


def laid(s: Sample, q: Quantized) -> Dump:
    """Other bytes in the layout of a sample."""
    _, _, codes, scales, _ = s.words
    dump = s.dump | {
        "codes": laid_codes(q.codes, codes, LAYOUTS[s.fmt]),
        "scales": laid_scales(q.scales, scales, LAYOUTS[s.fmt], s.x.shape[-2]),
    }
    return dump | ({"outer": q.outer.contiguous()} if "outer" in dump and q.outer is not None else {})


def decoded(s: Sample, q: Quantized) -> Tensor:
    return DIALECTS[s.name].dequantize(q)


def is_destroyed(x: Tensor, sound: Tensor, now: Tensor, share: float = 0.0) -> bool:
    """The definition of the module, for more than a share of the values that are not 0, or for any zero."""
    x, sound, now = (t.double() for t in (x, sound, now))
    far = ((now - x).abs() > (sound - x).abs() + 0.6 * x.abs()) | ~torch.isfinite(now)
    return int(far.sum()) > share * int((x != 0).sum())


def is_a_contract(s: Sample, q: Quantized) -> bool:
    """Whether some dialect makes these bytes of x alone, its outer among them."""
    made = (d.quantize(s.x, s.fmt) for d in DIALECTS.values() if s.fmt in d.formats)
    return any(
        torch.equal(m.codes, q.codes)
        and torch.equal(m.scales, q.scales)
        and (m.outer is None or q.outer is None or torch.equal(*torch.broadcast_tensors(m.outer, q.outer)))
        for m in made
    )


def permuted(t: Tensor, dim: int, r: Random) -> Tensor:
    """Two slices exchanged, or all of them reversed or moved by one."""
    n = t.shape[dim]
    order = list(range(n))
    i, j = r.randrange(n), r.randrange(n)
    order[i], order[j] = order[j], order[i]
    order = r.choice((order, order[::-1], order[1:] + order[:1]))
    return t.index_select(dim, torch.tensor(order))


def one(t: Tensor, r: Random, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy with one entry changed."""
    out = t.clone().flatten()
    i = r.randrange(out.numel())
    out[i] = change(out[i])
    return out.view(t.shape)


# ---- of codes and scales: (bytes, random) -> bytes -----------------------------------------------------------------


def codes_changed(s: Sample, r: Random) -> tuple[str, Quantized]:
    """Of the codes alone."""
    c, bits = s.q.codes, LAYOUTS[s.fmt].element.bits
    sign = 1 << (bits - 1)
    other = torch.randint(0, 1 << bits, c.shape, generator=torch.Generator().manual_seed(r.randrange(1 << 30)))
    even = pad(c, (0, c.shape[-1] % 2)).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)[..., : c.shape[-1]]
    ways = {
        "nibbles swapped": even,
        "codes all zero": c * 0,
        "codes all the largest": c * 0 + LAYOUTS[s.fmt].element.max_code,
        "every sign flipped": c ^ sign,
        "one sign flipped": one(c, r, lambda v: v ^ sign),
        "one bit flipped": one(c, r, lambda v: v ^ (1 << r.randrange(bits))),
        "codes of noise": other.to(torch.uint8),
        "rows of codes in another order": permuted(c, -2, r),
        "codes of a row in another order": permuted(c, -1, r),
        "half of the codes zero": torch.where(torch.arange(c.shape[-2]).unsqueeze(-1) * 2 < c.shape[-2], c, 0),
    }
    words = r.choice(list(ways))
    return words, replace(s.q, codes=ways[words])


def scales_changed(s: Sample, r: Random) -> tuple[str, Quantized]:
    """Of the scales alone."""
    t, fmt = s.q.scales, LAYOUTS[s.fmt].scale
    if fmt is None:
        twice, half, nan, plain, inverse = (lambda v: v * 2), (lambda v: v / 2), torch.nan, 1.0, 1 / t
    else:
        step, nan, plain, top = (8, 0x7F, 0x38, 0x70) if fmt == nm.E4M3 else (1, 0xFF, 0x7F, 0xFE)
        twice, half, inverse = (lambda v: v + step), (lambda v: v - step), top - t
    ways = {
        "one scale twice as large": one(t, r, twice),
        "one scale half as large": one(t, r, half),
        "one scale 0": one(t, r, lambda v: v * 0),
        "one scale NaN": one(t, r, lambda v: v * 0 + nan),
        "scales all NaN": t * 0 + nan,
        "scales all 1": t * 0 + plain,
        "rows of scales in another order": permuted(t, -2, r),
        "scales of a row in another order": permuted(t, -1, r),
        "scales inverted": inverse,
        "scales of the last block stale": torch.cat([t[..., :-1], twice(twice(t[..., -1:]))], -1),
    }
    words = r.choice(list(ways))
    return words, replace(s.q, scales=ways[words])


def order_changed(s: Sample, r: Random) -> tuple[str, Quantized] | None:
    """Codes and scales of whole rows, blocks or experts together."""
    if LAYOUTS[s.fmt].tile > 1:
        return None
    dim = r.randrange(s.x.ndim)
    length, block = s.q.codes.shape[-1], LAYOUTS[s.fmt].block
    if dim == s.x.ndim - 1:  # blocks
        codes = pad(s.q.codes, (0, -length % block)).unflatten(-1, (-1, block))
        seed = r.randrange(1 << 30)
        moved = permuted(codes, -2, Random(seed)).flatten(-2)[..., :length]
        return "blocks in another order", replace(s.q, codes=moved, scales=permuted(s.q.scales, -1, Random(seed)))
    seed = r.randrange(1 << 30)
    codes, scales = (permuted(t, dim, Random(seed)) for t in (s.q.codes, s.q.scales))
    return f"axis {dim} in another order", replace(s.q, codes=codes, scales=scales)


def outer_changed(s: Sample, r: Random) -> tuple[str, Quantized] | None:
    """Of the stored outer alone, or the bytes that follow from one that is no scale of x."""
    if s.q.outer is None or "outer" not in s.dump:
        return None
    o = s.q.outer
    bad = r.choice((0.0, torch.inf, torch.nan, -float(o.flatten()[0]), 2.0**-126, 1e30))
    times = 2.0 ** r.choice((-40, -20, -10, -5, -2, 2, 5, 10, 20, 40))
    ways = {
        "outer times a power of two": o * times,
        f"outer {bad:g}": o * 0 + bad if r.random() < 0.5 else one(o, r, lambda v: v * 0 + bad),
        "outers of other rows": permuted(o, r.randrange(o.ndim), r),
        "outer inverted": 1 / o,
    }
    words = r.choice(list(ways))
    if r.random() < 0.5:
        return words, replace(s.q, outer=ways[words])
    if words == "outer times a power of two":
        ways[words] = o * 2.0 ** r.choice((-60, -30, -8, -4, 16, 18, 20, 30, 60))
    return f"{words}, bytes follow", DIALECTS[s.name].quantize(s.x, s.fmt, outer=ways[words])


CHANGES = (codes_changed, scales_changed, order_changed, outer_changed)


# ---- of decoded values and padding ---------------------------------------------------------------------------------


def values_changed(s: Sample, r: Random) -> tuple[str, Tensor]:
    """Of the decoded values, bytes being sound."""
    v = decoded(s, s.q)
    bare = decoded(s, replace(s.q, outer=torch.ones_like(s.q.outer))) if s.q.outer is not None else v * 2
    ways = {
        "values without the outer": bare,
        "values divided by the factor": torch.where(v == 0, v, bare * (bare / v)),
        "values times a power of two": v * 2.0 ** r.choice((-30, -7, -1, 1, 5, 40)),
        "values negated": -v,
        "values all zero": v * 0,
        "values NaN": v * torch.nan,
        "one value NaN": one(v, r, lambda t: t * torch.nan),
        "one value twice as large": one(v, r, lambda t: t * 2 + 1e-30),
        "rows of values in another order": permuted(v, -2, r),
        "values of a row in another order": permuted(v, -1, r),
        "a half of values zero": torch.where(torch.arange(v.shape[-1]) * 2 < v.shape[-1], v, 0.0),
    }
    words = r.choice(list(ways))
    return words, ways[words]


def padding_changed(s: Sample, r: Random) -> tuple[str, Dump] | None:
    """Padding columns of real rows that decode to something: a product reads them."""
    layout = LAYOUTS[s.fmt]
    room = -s.x.shape[-1] % layout.block
    if not room or layout.tile > 1 or 1 in s.x.shape[-2:]:  # of one row, these may be padding rows, transposed
        return None
    stale = torch.full((*s.q.codes.shape[:-1], room), 3, dtype=torch.uint8)
    codes = torch.cat([s.q.codes, stale], -1)
    if layout.element.bits == 4 and r.random() < 0.5:
        codes = nm.layout.pack_nibbles(codes)
    return "padding columns are stale", s.dump | {"codes": codes}


def destruction(seed: int, **laid_as: str) -> Destroyed:
    """The destroyed dump of a seed. laid_as: how codes and scales lie, else drawn."""
    r = Random(seed)
    while True:
        fixed = {"content": r.choice((*PLAIN, "ties", "constant")), "values": "none"} | laid_as
        s = sample(r.randrange(1 << 30), **fixed)
        if not bool((s.x != 0).any()):
            continue
        sound, kind = decoded(s, s.q), r.choice(("bytes", "bytes", "bytes", "bytes", "values", "padding"))
        if kind == "padding":
            stale = padding_changed(s, r)
            if stale is not None:
                return Destroyed(stale[0], s, stale[1])
            continue
        if kind == "values":
            words, values = values_changed(s, r)
            if is_destroyed(s.x, sound, values):
                return Destroyed(words, s, s.dump | {"values": values})
            continue
        changed = r.choice(CHANGES)(s, r)
        if changed is None:
            continue
        words, q = changed
        if "inverted" in words and "outer" in words:  # a direction like another, where no contract says which
            s = replace(s, asked=s.asked | {"contract": s.name})
        follows = "follow" in words
        if is_destroyed(s.x, sound, decoded(s, q), 0.5 * follows) and (follows or not is_a_contract(s, q)):
            return Destroyed(words, s, laid(s, q))
