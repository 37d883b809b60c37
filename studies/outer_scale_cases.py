"""What `outer_scale` measures; each function is a part of its own, for one seed.

Tensors are (experts, tokens, width), blocks along the width. A scope says what shares an outer scale: everything, an
expert's tokens, or one token; "power of two" rounds it up to one. Bit-equal means the decoded values; `codes` also
compares the bytes of elements and of block scales.

    changed    share of the other tokens' values that are not what they were
    leak       sum (after - before)^2 / sum before^2 over those tokens
    flushed    share of non-zero values that become zero; zero_blocks: of blocks with block scale 0
    error      relMSE of each token, mean over tokens: a small token counts as much as a large one
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
import torch

import numerics as nm
from numerics.scales import Rule, static

FORMATS = {"NVFP4": nm.NVFP4, "four-over-six": nm.NVFP4_46}
# what four-over-six does when it does not choose 4
SIX = "6 alone, scales to 256"
_SIX = replace(nm.NVFP4, name=SIX, rule=Rule(SIX, partial(static, largest=6.0), 256.0, "arXiv 2512.02010, section 3"))
REPEATS = 4  # random orders of each seed


@dataclass(frozen=True)
class Scope:
    """name; outer and rounding as in `nm.quantize`."""

    name: str
    outer: str
    rounding: str | None = None


SCOPES = (
    Scope("tensor", "tensor"),
    Scope("tensor, power of two", "tensor", "pow2"),
    Scope("expert", "leading"),
    Scope("expert, power of two", "leading", "pow2"),
    Scope("token", "row"),
    Scope("token, power of two", "row", "pow2"),
)
CHANGES = ("half of the tokens", "other order", "zero tokens added", "other experts", "one token x 10")


def quantized(x: torch.Tensor, fmt: str, scope: Scope) -> nm.BlockTensor:
    return nm.quantize(x, FORMATS[fmt], outer=scope.outer, outer_rounding=scope.rounding)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _rows(q: nm.BlockTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Decoded values and bytes, one row per token."""
    return q.dequantize().flatten(0, 1), torch.cat([q.codes, q.scales], -1).flatten(0, 1)


def changed(x: torch.Tensor, change: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The tensor after `change`, and which of its tokens (flattened) are which of the tokens before, int64."""
    experts, tokens, width = x.shape
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(experts * tokens).view(experts, tokens)
    if change == "other experts":  # the same tokens, routed otherwise
        source = torch.randperm(experts * tokens, generator=generator)
        return x.reshape(-1, width)[source].view(x.shape), place.flatten(), source
    order = torch.stack([torch.randperm(tokens, generator=generator) for _ in range(experts)])
    if change in ("half of the tokens", "other order"):
        kept = order[:, : tokens // 2] if change.startswith("half") else order
        new = torch.gather(x, 1, kept[..., None].expand(-1, -1, width))
        return new, torch.arange(kept.numel()), place.gather(1, kept).flatten()
    if change == "zero tokens added":
        new = torch.cat([x, x.new_zeros(experts, tokens, width)], 1)
        return new, (torch.arange(experts)[:, None] * 2 * tokens + torch.arange(tokens)).flatten(), place.flatten()
    if change != "one token x 10":
        raise ValueError(f"change={change!r}: use one of {CHANGES}")
    return louder(x, 10.0), place.flatten()[:-1], place.flatten()[:-1]


def louder(x: torch.Tensor, factor: float) -> torch.Tensor:
    """The last token of the last expert times `factor`."""
    new = x.clone()
    new[-1, -1] *= factor
    return new


def invariance(fmt: str, seed: int, experts: int, tokens: int, width: int) -> pd.DataFrame:
    """Share of tokens that keep their decoded bits, and their codes, when their company changes."""
    x, rows = normal(seed, experts, tokens, width), []
    for scope in SCOPES:
        before = _rows(quantized(x, fmt, scope))
        for change in CHANGES:
            same = torch.zeros(2, dtype=torch.float64)
            for repeat in range(REPEATS):
                new, now, then = changed(x, change, seed * REPEATS + repeat)
                after = _rows(quantized(new, fmt, scope))
                for i, (a, b) in enumerate(zip(before, after, strict=True)):
                    same[i] += (b[now] == a[then]).all(-1).double().mean() * (1 / REPEATS)
            case = {"format": fmt, "scope": scope.name, "change": change, "seed": seed, "n": len(now)}
            rows.append(case | {"values": float(same[0]), "codes": float(same[1])})
    return pd.DataFrame(rows)


def leaks(fmt: str, seed: int, experts: int, tokens: int, width: int, factors: list[float]) -> pd.DataFrame:
    """What the other tokens see of the last one, times each factor."""
    x, rows = normal(seed, experts, tokens, width), []
    for scope in SCOPES:
        before, bytes_before = (t[:-1] for t in _rows(quantized(x, fmt, scope)))
        for factor in factors:
            after, bytes_after = (t[:-1] for t in _rows(quantized(louder(x, factor), fmt, scope)))
            case = {"format": fmt, "scope": scope.name, "factor": factor, "seed": seed, "n": before.numel()}
            case |= {"changed": float((before != after).double().mean())}
            case |= {"codes": float((bytes_before != bytes_after)[:, :width].double().mean())}
            rows.append(case | {"leak": nm.metrics.error(before, after).rel_mse})
    return pd.DataFrame(rows)


def spreads(fmt: str, of: str, seed: int, experts: int, tokens: int, width: int, decades: list[float]) -> pd.DataFrame:
    """Underflow and error where the scales of "tokens" or of "experts" are 10^-u, u uniform over so many decades; the
    scales of experts evenly so."""
    x, rows = normal(seed, experts, tokens, width), []
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(experts, tokens, 1, generator=generator)
    if of == "experts":
        u = torch.linspace(0, 1, experts).view(-1, 1, 1)
    for each in decades:
        scaled = x * 10.0 ** (-each * u)
        for scope in SCOPES:
            q = quantized(scaled, fmt, scope)
            values = q.dequantize()
            energy = scaled.double().square().sum(-1)
            error = ((values.double() - scaled.double()).square().sum(-1) / energy).mean()
            total = nm.metrics.error(scaled, values)
            case = {"format": fmt, "of": of, "scope": scope.name, "decades": each, "seed": seed, "n": x.numel()}
            case |= {"flushed": total.flush_to_zero, "zero_blocks": float((q.scales == 0).double().mean())}
            rows.append(case | {"error": float(error), "total_error": total.rel_mse})
    return pd.DataFrame(rows)


def thresholds(fmt: str, largest: list[float]) -> pd.DataFrame:
    """The largest block maximum whose block scale is 0, found by bisection over float32 numbers, as the ratio of the
    tensor's largest magnitude to it; one row for each such magnitude and rounding of the outer scale. fmt: of
    `FORMATS`, or SIX."""
    block_format = _SIX if fmt == SIX else FORMATS[fmt]
    rows = []
    for rounding in (None, "pow2"):
        for amax in largest:
            low, high = 1, int(torch.tensor(amax).view(torch.int32))  # bits of float32: flushed, and not
            while high - low > 1:
                middle = (low + high) // 2
                x = torch.zeros(2, 16)
                x[0, 0], x[1, 0] = amax, torch.tensor(middle, dtype=torch.int32).view(torch.float32)
                zero = bool(nm.quantize(x, block_format, outer_rounding=rounding).scales[1] == 0)
                low, high = (middle, high) if zero else (low, middle)
            bmax = float(torch.tensor(low, dtype=torch.int32).view(torch.float32))
            rows.append({"format": fmt, "rounding": rounding or "FP32", "amax": amax, "ratio": amax / bmax})
    return pd.DataFrame(rows)
