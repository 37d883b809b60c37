"""What FP32 sums of any order may be: intervals for `router_gradient` and for products under accumulator="library".

A sum of K products a_i b_i, each operation rounded in FP32, to nearest or truncated, in any order and with or without
fused multiply-adds, errs by at most (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1)

    |s - sum a_i b_i| <= gamma sum |a_i b_i| + K 2^-149        gamma = K u / (1 - K u), u = 2^-23

where the last term is what products lose to underflow: `numerics.matmul_bound` of "library". Exact sums are computed in
float64, whose own error, below K 2^-52 sum |a_i b_i|, is added. Everything that follows a sum is one rounding, and
roundings are monotone: the ends of the interval go through the same operations, rounded outward where float64 stands
for an exact number. Through a Hadamard transform of size n the widths add up, and its own log2(n) additions and one
product with a rounded factor err by at most gamma of log2(n) + 2 operations. A code is then judged under the scale that
was found beside it.

Where sums of magnitudes reach FLT_MAX, partial sums may overflow in one order and not in another: nothing is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import numerics as nm
from numerics import ops, swiglu

from .cases import Inputs, Outputs, parts
from .cases_seam import ExpertPath
from .compare import Place, Row

FLT_MAX = torch.finfo(torch.float32).max
_INF = float("inf")


@dataclass(frozen=True)
class Interval:
    """Ends of what a value may be, of one shape and dtype; from -inf to inf, anything."""

    low: Tensor
    high: Tensor

    def rounded(self, dtype: torch.dtype) -> Interval:
        """Of the values rounded to nearest."""
        return Interval(self.low.to(dtype), self.high.to(dtype))

    @property
    def judged(self) -> Tensor:
        """Where it says anything."""
        return ~((self.low == -_INF) & (self.high == _INF))

    def holds(self, x: Tensor) -> Tensor:
        """Where `x` lies within; NaN where both ends are."""
        nan = torch.isnan(self.low) & torch.isnan(self.high) & torch.isnan(x)
        return nan | ((x >= self.low) & (x <= self.high)) | ~self.judged


def _gamma(operations: int) -> float:
    return operations * 2.0**-23 / (1 - operations * 2.0**-23)


def sums(a: Tensor, b: Tensor) -> Interval:
    """a @ b.T of float32 matrices, float64."""
    total, width = a.to(torch.float64) @ b.to(torch.float64).mT, nm.matmul_bound(a, b, "library")
    finite = torch.isfinite(total)
    width = torch.where(finite, width, 0.0)
    return Interval(total - width, total + width)


def _factors(x: ops.Operand) -> tuple[Tensor, Tensor | None]:
    """The factor inside a sum along the last axis and the one outside, as `numerics.matmul` takes them."""
    if isinstance(x, Tensor):
        return x.to(torch.float32), None
    if x.outer is None or (x.outer.shape[-1] == 1 and x.outer_block is None):
        return x.values(), x.outer
    return x.dequantize(), None


def _scaled(total: Interval, a: Tensor | None, b: Tensor | None) -> Interval:
    """Times fl(a * b), outer scales (M, 1) and (N or 1, 1): float32."""
    if a is None and b is None:
        return total.rounded(torch.float32)
    first, second = (torch.ones(1, 1) if t is None else t for t in (a, b))
    factor = (first * second.mT).to(torch.float64)
    low = torch.nextafter(total.low * factor, torch.full((), -_INF, dtype=torch.float64))
    high = torch.nextafter(total.high * factor, torch.full((), _INF, dtype=torch.float64))
    return Interval(low, high).rounded(torch.float32)


def product(a: ops.Operand, b: ops.Operand, groups: tuple[int, ...]) -> Interval:
    """`numerics.matmul(a, b, "library", groups=groups)`."""
    (x, outer_x), (w, outer_w) = _factors(a), _factors(b)
    found = []
    for e, (i, j) in enumerate(pairwise(groups)):
        if w.ndim == 3:
            rows = None if outer_x is None else outer_x.expand(x.shape[0], -1)[i:j]
            matrix = None if outer_w is None else outer_w.expand(w.shape[0], -1, -1)[e]
            found.append(_scaled(sums(x[i:j], w[e]), rows, matrix))
        else:
            found.append(_scaled(sums(x[:, i:j], w[:, i:j]), outer_x, outer_w))
    join = torch.cat if w.ndim == 3 else torch.stack
    return Interval(join([t.low for t in found]), join([t.high for t in found]))


def _through_hadamard(y: Interval, signs: Tensor) -> Interval:
    """H S y / sqrt(n), float64."""
    n = len(signs)
    centre, width = (t.to(torch.float64) for t in ((y.low.double() + y.high) / 2, (y.high.double() - y.low) / 2))
    blocks, widths = ((t / n**0.5).unflatten(-1, (-1, n)) for t in (centre, width))
    matrix = nm.hadamard(torch.eye(n), n).sign().to(torch.float64)
    out = (blocks * signs.to(torch.float64)) @ matrix
    operations = n.bit_length() + 1
    err = widths.sum(-1, keepdim=True) + (_gamma(operations) + 2.0**-40) * (blocks.abs() + widths).sum(-1, keepdim=True)
    wide = (~y.judged).unflatten(-1, (-1, n)).any(-1, keepdim=True)
    low, high = torch.where(wide, -_INF, out - err - 2.0**-140), torch.where(wide, _INF, out + err + 2.0**-140)
    return Interval(low.flatten(-2), high.flatten(-2))


def _coded(y: Interval, fmt: nm.BlockFormat, found: Outputs) -> dict[str, Interval]:
    """Scales and codes of whole E8M0 blocks by `rceil`, codes (as values) under the scales that were found."""
    scales = found["payload.scales"]
    small, large = torch.minimum(y.low.abs(), y.high.abs()), torch.maximum(y.low.abs(), y.high.abs())
    sizes = torch.where(y.low * y.high > 0, small, 0.0), large
    ends = [nm.quantize(size.to(torch.float32), fmt, outer=None).scales.to(torch.float64) for size in sizes]
    wide = (~y.judged).unflatten(-1, (-1, fmt.block)).any(-1)
    scale = Interval(torch.where(wide, -_INF, ends[0]), torch.where(wide, _INF, ends[1]))
    step, wide = (t.repeat_interleave(fmt.block, -1) for t in (nm.decode(scales, nm.E8M0).to(torch.float64), wide))
    low, high = (nm.decode(nm.encode(t / step, fmt.element), fmt.element) for t in (y.low, y.high))
    code = Interval(torch.where(wide, -_INF, low), torch.where(wide, _INF, high))
    return {"payload.scales": scale, "payload.codes": code}


def judged(function: str, p: ExpertPath | None, i: Inputs, found: Outputs) -> tuple[dict[str, Interval], Outputs]:
    """Intervals by output, and outputs that follow from what was found bit for bit.

    Codes are judged by their values: see `value_of`.
    """
    if function == "router_gradient":
        return {"d_weights": router(i, p)}, {}
    assert p is not None
    if function == "grad_products":
        dx = product(i["g"], i["w"].mT, i["groups"])
        return {"dx": dx, "dw": product(i["g_tokens"].mT, i["x"].mT, i["groups"])}, {}
    y = product(i["x"], i["w"], i["groups"])
    if function == "gate_up_glu":
        hidden = swiglu.swiglu(*found["gate_up"].chunk(2, dim=-1))
        return {"gate_up": y.rounded(torch.bfloat16)}, parts("h", ops.quantize_tokens(hidden, p.activation))
    if p.wire.fmt is None:
        return {"payload": y.rounded(torch.bfloat16)}, {}
    assert function == "down_to_wire" and p.wire.signs is not None
    return _coded(_through_hadamard(y, p.wire.signs), p.wire.fmt, found), {}


def compare_within(
    row: Row, where: str, ends: dict[str, Interval], found: Outputs, p: ExpertPath | None
) -> Place | None:
    """Count the elements that are judged, and those that lie outside; name and index of the first of them."""
    place: Place | None = None
    for name, interval in ends.items():
        x = value_of(name, found[name], p)
        row.elements += int(interval.judged.sum())
        outside = ~interval.holds(x)
        row.differing += int(outside.sum())
        if place is None and bool(outside.any()):
            at = tuple(outside.nonzero()[0].tolist())
            place = name, at
            low, high = float(interval.low[at]), float(interval.high[at])
            row.first = row.first or f"{where}: {name}{list(at)} is {float(x[at])!r}, outside of [{low!r}, {high!r}]"
    return place


def value_of(name: str, x: Tensor, p: ExpertPath | None) -> Tensor:
    """What an interval bounds: codes by their values, scale bytes as numbers, others as they are."""
    if name.endswith(".codes") and p is not None and p.wire.fmt is not None:
        return nm.decode(x, p.wire.fmt.element)
    return x.to(torch.float64) if name.endswith(".scales") else x


def router(i: Inputs, p: ExpertPath | None) -> Interval:
    """`ops.router_gradient`: the transform has defined bits, the sum over D has not."""
    g: Any = i["g"].to(torch.float32)
    if p is not None and p.wire.signs is not None:
        g = nm.hadamard(g, len(p.wire.signs), p.wire.signs)
    rows = i["decoded"].index_select(0, i["slots"].flatten()).unflatten(0, i["slots"].shape)  # [T, K, D]
    found = sums(g[:, None, :], rows)
    return Interval(found.low.squeeze(1), found.high.squeeze(1)).rounded(torch.float32)
