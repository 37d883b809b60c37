"""Products as a tensor core forms them: the rules of `accumulators`, vectorized; the same bits on CPU and CUDA.

Everything is exact but the two truncations that the hardware makes. Products are formed in float32 where every product
of two of the formats is one (FP8), else in float64; times 2^(F - emax), a power of two, and converted to int32, which
truncates toward zero. Terms are less than 2^(F + 2) in size: sums of 15 of them fit int32 for F <= 25, and such sums
are added in float64. Results are computed in tiles that stay in a CPU's cache, so memory beside operands and result is
a few tiles. There are no waits for a GPU inside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from .accumulators import Accumulator
from .floats import power_of_two, toward_zero, whole
from .terms import ZERO, Terms

CPU_TILE, GPU_TILE = 1 << 14, 1 << 22  # results; on a CPU below what torch would give to more than one thread
_RUN = 8  # terms that are added in int32
NAN = 0x7FFFFFFF  # the one NaN that comes out


@dataclass(frozen=True)
class _Side:
    """One operand, K first: value, exponent (K, batch, rows); scale (K / group, batch, rows) or None; special: value
    with NaN and infinity where there are any, else None. batch: 1 where every batch has the same."""

    value: Tensor
    exponent: Tensor
    scale: Tensor | None
    special: Tensor | None

    def part(self, index: tuple[slice, ...]) -> _Side:
        """Every plane that is there, indexed; (K, batch, rows)."""
        planes = (self.value, self.exponent, self.scale, self.special)
        return _Side(*(None if p is None else p[index] for p in planes))  # type: ignore[arg-type]

    def tile(self, batch: slice, rows: slice) -> _Side:
        """What a tile of the result needs."""
        return self.part((slice(None), batch if self.value.shape[1] > 1 else slice(None), rows))


def tensor_core_product(
    a: Terms, b: Terms, row: Accumulator, c: Tensor | None = None, promote: int | None = None, splits: int = 1
) -> Tensor:
    """a @ b.T (+ c), float32 (..., M, N).

    Args: a (..., M, K), b (..., N, K) whose leading axes broadcast; c: float32 of the result's shape, the value that
    the register starts from, only with `promote` None and one split. promote: a multiple of the step's length, or
    None. splits: see `matmul`.
    """
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    first, second = (_side(t if t.shape[:-2].numel() == 1 else t.expand(lead), row) for t in (a, b))
    shape = (*lead, a.shape[-2], b.shape[-2])
    out = torch.empty(lead.numel(), *shape[-2:], dtype=torch.float32, device=a.value.device)
    if c is not None:
        c = c.reshape(out.shape)
    for batch, rows, columns in tiles(out):
        x, y = first.tile(batch, rows), second.tile(batch, columns)
        start = None if c is None else c[batch, rows, columns]
        out[batch, rows, columns] = _summed(x, y, row, start, promote, splits)
    return out.view(shape)


def one_nan(x: Tensor) -> Tensor:
    """float32 values, every NaN the hardware's, in place."""
    x.view(torch.int32).masked_fill_(torch.isnan(x), NAN)
    return x


def tiles(out: Tensor) -> list[tuple[slice, slice, slice]]:
    """Parts of a result (batch, M, N)."""
    if not out.numel():
        return []
    on_cpu = out.device.type == "cpu"
    limit = CPU_TILE if on_cpu else GPU_TILE
    count, m, n = out.shape
    wide = min(n, 1024 if on_cpu else limit)
    tall = min(m, max(1, limit // wide))
    deep = max(1, limit // (wide * tall))
    cuts = [[slice(i, i + step) for i in range(0, size, step)] for size, step in ((count, deep), (m, tall), (n, wide))]
    return list(product(*cuts))


def _side(t: Terms, row: Accumulator) -> _Side:
    """Terms padded with zeros to whole steps, K first."""
    assert row.length is not None
    pad = -t.shape[-1] % row.length
    value, exponent = (functional.pad(p, (0, pad), value=z) for p, z in ((t.value, 0.0), (t.exponent, ZERO)))
    scale = None if t.scale is None else functional.pad(t.scale, (0, pad))
    if row.rule == "halves":  # of 32 products first those with k % 4 in {0, 1}
        value, exponent = (p.unflatten(-1, (-1, 8, 2, 2)).transpose(-3, -2).flatten(-4) for p in (value, exponent))
    scaled = value if scale is None else value * scale
    odd = ~torch.isfinite(scaled)
    special = None
    if bool(odd.any()):
        special = scaled.to(torch.float64)
        value, exponent = value.masked_fill(odd, 0.0), exponent.masked_fill(odd, ZERO)
        scale = None if scale is None else scale.nan_to_num(nan=0.0)
    if scale is not None:
        scale, exponent = (p[..., :: row.group] for p in (scale, exponent))
        scale = scale.to(torch.float64)
    planes = (value.to(torch.float32 if _narrow(row) else torch.float64), exponent, scale, special)
    return _Side(*(None if p is None else k_first(p) for p in planes))  # type: ignore[arg-type]


def k_first(plane: Tensor) -> Tensor:
    """(..., rows, K) as (K, batch, rows)."""
    flat = plane.reshape(plane.shape[:-2].numel(), *plane.shape[-2:])
    return flat.permute(2, 0, 1).contiguous()


def _narrow(row: Accumulator) -> bool:
    """Whether products of operands are float32 numbers, whatever the operands."""
    return row.rule == "groups" or all(getattr(fmt, "bits", 32) == 8 for fmt in row.operands)


def _shape(a: Tensor, b: Tensor) -> tuple[int, int, int]:
    """Of the results of two planes."""
    return max(a.shape[1], b.shape[1]), a.shape[2], b.shape[2]


def _summed(a: _Side, b: _Side, row: Accumulator, c: Tensor | None, promote: int | None, splits: int) -> Tensor:
    """One tile."""
    assert row.length is not None
    steps = len(a.value) // row.length
    zero = torch.zeros(_shape(a.value, b.value), dtype=torch.float32, device=a.value.device)
    if promote is None and splits == 1:
        return _chain(a, b, row, range(steps), zero if c is None else c)
    size = -(-steps // splits) or 1
    every = size if promote is None else promote // row.length
    total: Tensor | None = None
    for start in range(0, max(steps, 1), size):
        stop, register = min(start + size, steps), None
        for first in range(start, max(stop, start + 1), every):
            part = _chain(a, b, row, range(first, min(first + every, stop)), zero)
            register = part if register is None else register + part
        assert register is not None
        total = register if total is None else total + register
    assert total is not None
    return total


def _chain(a: _Side, b: _Side, row: Accumulator, steps: range, c: Tensor) -> Tensor:
    """Steps in order, each starting from what the one before it left."""
    assert row.length is not None
    for step in steps:
        k = slice(step * row.length, (step + 1) * row.length)
        if row.rule == "halves":
            half = replace(row, rule="fused", length=16)
            c = c + _chain(a.part((k,)), b.part((k,)), half, range(2), torch.zeros_like(c))
        else:
            c = _step(a, b, row, k, c)
    return c


def _step(a: _Side, b: _Side, row: Accumulator, k: slice, c: Tensor) -> Tensor:
    """The register after one step."""
    assert row.fraction_bits is not None and row.zero_exponent is not None
    finite = torch.isfinite(c)
    start = torch.where(finite, c, 0.0)
    exponent = ((start.view(torch.int32) >> 23) & 0xFF).clamp(min=1) - 127
    exponent = torch.where(start == 0, row.zero_exponent, exponent)
    add = _groups if row.rule == "groups" else _products
    total, most = add(a, b, row, k, exponent)
    total += whole(start.to(torch.float64) * power_of_two(row.fraction_bits - most, torch.float64))
    total *= power_of_two(most - row.fraction_bits, torch.float64)
    out = torch.where(finite, toward_zero(total, row.output.mantissa_bits), c)
    odd = _special(a, b, row, k)
    return out if odd is None else torch.where(odd == 0, out, torch.where(finite, 0.0, c) + odd.to(torch.float32))


def _products(a: _Side, b: _Side, row: Accumulator, k: slice, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of truncated products in units of 2^(emax - F), float64, and emax, int32; `exponent`: of c."""
    assert row.fraction_bits is not None
    most = torch.full(exponent.shape, -(1 << 15), dtype=torch.int16, device=exponent.device)
    for i in range(k.start, k.stop):
        torch.maximum(most, a.exponent[i, :, :, None] + b.exponent[i, :, None], out=most)
    emax = torch.maximum(most.to(torch.int32), exponent)
    dtype = a.value.dtype
    # in float32, emax below -28 means that all products are zero
    unit = power_of_two((row.fraction_bits - emax).clamp(max=100 if dtype == torch.float32 else 1000), dtype)
    total = torch.zeros(exponent.shape, dtype=torch.float64, device=exponent.device)
    term = torch.empty(exponent.shape, dtype=dtype, device=exponent.device)
    cut, run = (torch.empty(exponent.shape, dtype=torch.int32, device=exponent.device) for _ in range(2))
    for start in range(k.start, k.stop, _RUN):
        run.zero_()
        for i in range(start, min(start + _RUN, k.stop)):
            torch.mul(a.value[i, :, :, None], b.value[i, :, None], out=term)
            run += cut.copy_(term.mul_(unit))
        total += run
    return total, emax


def _groups(a: _Side, b: _Side, row: Accumulator, k: slice, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """The same for groups of products that share their scales."""
    assert row.fraction_bits is not None and a.scale is not None and b.scale is not None
    groups = range(k.start // row.group, k.stop // row.group)
    emax = exponent
    for g in groups:
        emax = torch.maximum(emax, (a.exponent[g, :, :, None] + b.exponent[g, :, None]).to(torch.int32))
    total = torch.zeros(exponent.shape, dtype=torch.float64, device=exponent.device)
    for g in groups:
        inside = slice(g * row.group, (g + 1) * row.group)
        # multiples of 1/4 below 2^10: exact in any order, in TF32 too
        term = (a.value[inside].permute(1, 2, 0) @ b.value[inside].permute(1, 0, 2)).to(torch.float64)
        term *= a.scale[g, :, :, None] * b.scale[g, :, None]
        own = (a.exponent[g, :, :, None] + b.exponent[g, :, None]).to(torch.int32)
        total += whole(term.mul_(power_of_two((own - emax + row.fraction_bits).clamp(min=-1000), torch.float64)))
    return total, emax


def _special(a: _Side, b: _Side, row: Accumulator, k: slice) -> Tensor | None:
    """What NaN and infinity among the products add up to: NaN, infinity, or 0 without any."""
    if a.special is None and b.special is None:
        return None
    first, second = (x.special if x.special is not None else _plain(x, row) for x in (a, b))
    total = torch.zeros(_shape(first, second), dtype=torch.float64, device=first.device)
    for i in range(k.start, k.stop):
        term = first[i, :, :, None] * second[i, :, None]
        total += torch.where(torch.isfinite(term), 0.0, term)
    return total


def _plain(x: _Side, row: Accumulator) -> Tensor:
    """Values of an operand without NaN and infinity; of a zero scale zero, the size does not matter."""
    value = x.value.to(torch.float64)
    return value if x.scale is None else value * x.scale.repeat_interleave(row.group, 0)
