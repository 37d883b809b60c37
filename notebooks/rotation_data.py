"""One block of an expert's output on its way through the combine, as numbers: rotation, wire, inverse.

    y = H S x / sqrt(32)      codes of y      decoded      S H (decoded) / sqrt(32)

A wire is one of `studies.combine_data`: BF16, MXFP8 or S2F6, with or without the rotation ("RHT"). All that the
receiver has is decoded from codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import numerics as nm
from studies.combine_data import BLOCK, SIZES, WIRES, Wire, blocks_with_outliers, travel
from studies.combine_norms import crossings
from studies.hadamard_data import OFFSETS, crest, normal

ROWS = ("normal", "all zero", "all one")
SIGNS = ("random", "all +1")
BY_NAME = {wire.name: wire for wire in WIRES}
PLAIN, ROTATED = BY_NAME["MXFP8"], BY_NAME["RHT + S2F6"]
TRADED = ("BF16", "MXFP8", "S2F6", "RHT + S2F6")  # wires of `trade`
WEIGHTS = (0.5, 0.3, 0.2)  # of the experts of `sums`


def row_of(kind: str, seed: int, size: float, place: int) -> Tensor:
    """32 numbers of a kind of ROWS, with `size` at `place`; float32."""
    if kind == "normal":
        x = torch.from_numpy(np.random.default_rng(seed).standard_normal(BLOCK, dtype=np.float32))
    else:
        x = torch.full((BLOCK,), float(kind == "all one"))
    x[place] = size
    return x


def signs_of(kind: str, key: int) -> Tensor:
    """32 signs of a kind of SIGNS; `key` draws random ones."""
    return nm.hadamard_signs(BLOCK, (key, 0)) if kind == "random" else torch.ones(BLOCK)


@dataclass(frozen=True)
class Trip:
    """One block on one wire. sent: what the wire carries (None: BF16); received: float32 (32,), rotated back."""

    wire: Wire
    sent: nm.BlockTensor | None
    received: Tensor
    errors: Tensor

    @property
    def scale(self) -> float:
        """Of the block; NaN for BF16, which has none."""
        return float("nan") if self.sent is None else float(nm.decode(self.sent.scales, nm.E8M0))

    def wire_bytes(self) -> list[int]:
        """The scale's byte, then the codes'."""
        return [] if self.sent is None else [*self.sent.scales.tolist(), *self.sent.packed().tolist()]

    def rms(self, of: Tensor | None = None) -> float:
        """Root mean square error of all values, or of those that the mask `of` names."""
        errors = self.errors if of is None else self.errors[of]
        return float(errors.square().mean().sqrt())


def rotated(x: Tensor, signs: Tensor) -> Tensor:
    return nm.hadamard(x, BLOCK, signs)


def trip(x: Tensor, signs: Tensor, wire: Wire) -> Trip:
    """`x` (32,) sent over `wire`."""
    y = rotated(x, signs) if wire.rotated else x
    sent = None if wire.fmt is None else nm.quantize(y, wire.fmt)
    received = travel(x, wire, signs)
    return Trip(wire, sent, received, (received.to(torch.float64) - x.to(torch.float64)).abs())


def crest_of(x: Tensor) -> float:
    """max / rms of one block; NaN if it is all zero or not finite."""
    return nm.metrics.crest_factor(x, BLOCK) if bool(torch.isfinite(x).all()) else float("nan")


# ---- bits on the wire -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Payload:
    """Bytes that one token takes."""

    name: str
    codes: int
    scales: int
    outer: int
    width: int

    @property
    def total(self) -> int:
        return self.codes + self.scales + self.outer

    @property
    def bits(self) -> float:
        return 8 * self.total / self.width


def payload(name: str, fmt: nm.BlockFormat | None, width: int) -> Payload:
    """Counted on a token of `width` values; fmt None: BF16. NVFP4 has an outer scale for each token."""
    x = normal(0, 1, width)
    if fmt is None:
        return Payload(name, x.to(torch.bfloat16).nbytes, 0, 0, width)
    q = nm.quantize(x, fmt, outer="row" if fmt.outer else None)
    return Payload(name, q.packed().nbytes, q.scales.nbytes, 0 if q.outer is None else q.outer.nbytes, width)


def payloads(width: int = 4096) -> list[Payload]:
    """What may travel, in one direction or the other."""
    named = {"BF16": None, "MXFP8": nm.MXFP8, "RHT + S2F6": nm.MXS2F6, "NVFP4": nm.NVFP4}
    return [payload(name, fmt, width) for name, fmt in named.items()]


# ---- many blocks ----------------------------------------------------------------------------------------------------


def crests(seed: int = 0, blocks: int = 512) -> dict[str, list[float]]:
    """Mean crest factor of blocks with one outlier, before and after, for each of SIZES."""
    signs, found = signs_of("random", seed), {"before": [], "after": []}
    for size in SIZES:
        x, _ = blocks_with_outliers(seed, blocks, 1, size)
        found["before"].append(crest(x, BLOCK)[0])
        found["after"].append(crest(rotated(x, signs), BLOCK)[0])
    return found


def offset_crests(seed: int = 0, rows: int = 128) -> dict[str, list[float]]:
    """Mean crest factor of normal numbers plus each of OFFSETS: as they are, and rotated with either kind of signs."""
    z = normal(seed, rows, 4 * BLOCK)
    turns = {"no rotation": None, "signs all +1": signs_of("all +1", 0), "random signs": signs_of("random", seed)}
    return {
        name: [crest(z + m if signs is None else rotated(z + m, signs), BLOCK)[0] for m in OFFSETS]
        for name, signs in turns.items()
    }


def trade(seed: int = 0, blocks: int = 512) -> dict[str, dict[str, list[float]]]:
    """Root mean square errors by part (outlier, others, all) and wire of TRADED, for each of SIZES."""
    signs = signs_of("random", seed)
    found: dict[str, dict[str, list[float]]] = {part: {name: [] for name in TRADED} for part in PARTS}
    for size in SIZES:
        x, loud = blocks_with_outliers(seed, blocks, 1, size)
        for name in TRADED:
            square = (travel(x, BY_NAME[name], signs) - x).to(torch.float64).square()
            for part, values in zip(PARTS, (square[loud], square[~loud], square), strict=True):
                found[part][name].append(float(values.mean().sqrt()))
    return found


PARTS = ("outlier", "others", "all")


def overtakes(found: dict[str, list[float]], wire: str, other: str) -> float:
    """The outlier size above which `wire` has the larger error than `other`; infinity: none, 0: every one of SIZES."""
    return crossings(np.array(SIZES, float), np.array(found[wire]), np.array(found[other]))


def sums(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three experts' rows for one token, and their weighted sum: exact, inverted once after the sum, and before it.

    Returns:
        rows (3, 32), each with an outlier; the three sums (32,), float32, the first float64; summed in expert order.
    """
    rows = torch.stack([row_of("normal", seed + e, size, 9 * e + 4) for e, size in enumerate((60.0, -40.0, 25.0))])
    signs = signs_of("random", seed)
    decoded = nm.quantize(rotated(rows, signs), nm.MXS2F6).dequantize()
    back = nm.hadamard_inverse(decoded, BLOCK, signs)
    once, each = (weights_sum(each) for each in (decoded, back))
    return rows, weights_sum(rows.to(torch.float64)), nm.hadamard_inverse(once, BLOCK, signs), each


def weights_sum(rows: Tensor) -> Tensor:
    """sum_e WEIGHTS[e] rows[e], in expert order."""
    total = torch.zeros_like(rows[0])
    for weight, row in zip(WEIGHTS, rows, strict=True):
        total = total + weight * row
    return total
