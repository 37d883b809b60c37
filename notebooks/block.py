"""Notebook 2: one block of up to sixteen values in three 4-bit formats. Numbers only; `block_panel` draws them.

    NVFP4           E2M1 codes, one E4M3 scale for 16 values, an FP32 outer scale; the largest value is mapped to 6
    four over six   the same, mapped to 6 or to 4, whichever has the smaller squared error (arXiv 2512.02010)
    MXFP4           E2M1 codes, one E8M0 scale, a power of two, for 32 values; no outer scale

    decoded = (code value x scale) x outer          dead zone: +-level(1) / 2, where the nearest level is zero

Every number comes from codes that `nm.quantize` made and `BlockTensor.dequantize` read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

import numerics as nm

from .panel import brief, number
from .readout import told

LONGEST = 16
NV, SIX, MX = "NVFP4", "NVFP4, four over six", "MXFP4"
FORMATS = {NV: nm.NVFP4, SIX: nm.NVFP4_46, MX: nm.MXFP4}
FLT_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class View:
    """What one format makes of a block of n values.

    scale_code, scale: of the block. outer: FP32, None in MXFP4. codes: n of E2M1. values: decoded, float32 (n).
    levels: what the sixteen codes decode to with this scale. rel_mse: NaN for a block of zeros. lost: bool (n), which
    values became zero. candidates: four over six's errors by the code value that the maximum is mapped to.
    """

    scale_code: int
    scale: float
    outer: float | None
    codes: tuple[int, ...]
    values: Tensor
    levels: tuple[float, ...]
    rel_mse: float
    lost: Tensor
    candidates: dict[int, float]

    @property
    def dead(self) -> float:
        """Magnitudes up to this one become zero: half the least level. Infinite where every level is zero."""
        return self.levels[1] / 2 if self.levels[1] else math.inf

    @property
    def winner(self) -> int:
        """What four over six maps the maximum to: 4 only if its error is strictly smaller."""
        return 4 if self.candidates and self.candidates[4] < self.candidates[6] else 6


def words(text: str) -> list[str]:
    """What a text holds, cut at commas, semicolons and spaces."""
    return [word for word in re.split(r"[,;\s]+", text) if word]


def parse(text: str) -> list[float]:
    """The numbers of a text, as `words` cuts it.

    Raises:
        ValueError: none, more than sixteen, or one that is no number; says which.
    """
    found = words(text)
    if not 1 <= len(found) <= LONGEST:
        there = f"{len(found)} values" if found else "no value"
        raise ValueError(f"{there}: a block holds sixteen; type 1 to {LONGEST} numbers, separated by spaces or commas")
    return [number(word, f"value {place}") for place, word in enumerate(found, 1)]


def parse_outer(text: str) -> float | None:
    """An outer scale, or None for `auto`.

    Raises:
        ValueError: neither `auto` nor a number that a float32 outer scale can be.
    """
    if text.strip().lower() in ("auto", ""):
        return None
    value = number(text, "outer")
    if not 2.0**-128 <= value <= FLT_MAX:
        raise ValueError(f"outer={brief(text)}: type auto, or a number from 2.94e-39 to 3.4e38")
    return value


def block(values: list[float]) -> Tensor:
    """float32 (n): finite numbers beyond its range become its largest ones."""
    x = torch.tensor(values, dtype=torch.float64)
    return torch.where(x.isinf(), x, x.clamp(-FLT_MAX, FLT_MAX)).to(torch.float32)


def views(x: Tensor, outer: float | None = None) -> dict[str, View]:
    """Each format's view of a block.

    Args:
        x: float32 (n), n from 1 to 16. outer: of both NVFP4 formats; None: amax / 2688, with four over six amax / 1536.
    """
    return {name: _view(x, fmt, outer) for name, fmt in FORMATS.items()}


def _view(x: Tensor, fmt: nm.BlockFormat, outer: float | None) -> View:
    scope = None if fmt.outer is None else "tensor" if outer is None else torch.tensor([outer], dtype=torch.float32)
    q = nm.quantize(x, fmt, outer=scope)
    assert fmt.scale is not None
    every = torch.arange(1 << fmt.element.bits, dtype=torch.uint8)
    values = q.dequantize()
    return View(
        scale_code=int(q.scales),
        scale=float(nm.decode(q.scales, fmt.scale)),
        outer=None if q.outer is None else float(q.outer),
        codes=tuple(q.codes.tolist()),
        values=values,
        levels=tuple(q.derived(codes=every).dequantize().tolist()),
        rel_mse=nm.metrics.error(x, values).rel_mse,
        lost=(values == 0) & (x != 0),
        candidates=_candidates(x, q.outer) if fmt is nm.NVFP4_46 else {},
    )


def _candidates(x: Tensor, outer: Tensor | None) -> dict[int, float]:
    """Squared errors of both candidates, summed as the rule sums them: FP32, a tree over adjacent pairs of sixteen."""
    padded = torch.nn.functional.pad(x, (0, LONGEST - len(x)))
    found = {}
    for most in (6, 4):
        gap = nm.quantize(padded, nm.NVFP4, rule=f"static_{most}", outer=outer).dequantize() - padded
        found[most] = float(nm.scales.tree(gap * gap, torch.add))
    return found


def remarks(typed: list[float], x: Tensor, seen: dict[str, View]) -> list[str]:
    """What is out of the ordinary about a block, in plain sentences."""
    said = []
    for place, (value, held) in enumerate(zip(typed, x.tolist(), strict=True), 1):
        if not math.isfinite(value):
            kind = "NaN" if math.isnan(value) else "infinite"
            said.append(f"Value {place} is {kind}: the block's scale is NaN, and every value decodes to NaN.")
        elif abs(value) > FLT_MAX:
            said.append(f"Value {place} is beyond float32: {held:.6g} was taken.")
        elif value and not held:
            said.append(f"Value {place} is below float32's least number: 0 was taken.")
    if len(x) < LONGEST:
        said.append(f"{len(x)} of sixteen values: a short block, whose scale follows the values that are there.")
    said.append("A block of MXFP4 holds 32: sixteen are a short one; more values could only make its scale larger.")
    if not bool(x.any()):
        return [*said, "All values are zero: an automatic outer scale is 1, and every code is 0."]
    if not bool(x.isfinite().all()):
        return said
    for name, smallest in ((NV, 6), (SIX, 4)):  # the code values that the maximum may be mapped to
        said += _beyond(name, float(x.abs().amax()), seen[name], smallest)
    errors = seen[SIX].candidates
    if math.isinf(errors[6]) and math.isinf(errors[4]):
        said.append("Both errors of four over six are beyond float32, so 4 does not win.")
    return said


def _beyond(name: str, largest: float, view: View, mapped: int) -> list[str]:
    outer = view.outer or 1.0
    if view.scale == 0:
        least = 2.0**-10 * mapped * outer  # at the tie to E4M3's least scale, 2^-9, and below it
        return [f"{name}: the scale is rounded to 0 and all is lost: the largest value would have to pass {least:.3g}."]
    if largest > 6 * 448 * outer:
        return [f"{name}: the scale saturates at 448, so values do at 6 x 448 x outer = {6 * 448 * outer:.6g}."]
    return []


# ---- what the notebook shows without a widget ------------------------------------------------------------------------


def beside(values: list[float], most: list[float]) -> dict[str, list[list[float]]]:
    """What `values` become beside a block maximum of each size: format -> one list per maximum."""
    found: dict[str, list[list[float]]] = {name: [] for name in FORMATS}
    for largest in most:
        for name, view in views(block([largest, *values])).items():
            found[name].append(view.values[1:].tolist())
    return found


def shares(sizes: list[float], blocks: int = 512, seed: int = 0) -> dict[str, list[float]]:
    """Share of the fifteen standard normal values of a block that become zero beside an outlier of each size.

    Every block has an outer scale of its own, so that only its own scale counts.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(blocks, LONGEST, generator=generator)
    found: dict[str, list[float]] = {name: [] for name in FORMATS}
    for size in sizes:
        x[:, 0] = size
        for name, fmt in FORMATS.items():
            values = nm.quantize(x, fmt, outer=None if fmt.outer is None else "row").dequantize()
            found[name].append(nm.metrics.error(x[:, 1:], values[:, 1:]).flush_to_zero)
    return found


SPECIAL = {
    "0 0 0 0": "1",
    "1 2 NaN 4": "1",
    "1 2 inf 4": "1",
    "0.001 0.002": "1",
    "0.001 0.002 ": "auto",
    "10000 20000": "1",
    "10000 20000 ": "auto",
    "1e-45 2e-45": "auto",
}


def special() -> pd.DataFrame:
    """Blocks of zeros, NaN, infinities, and values beyond what the scales reach: one row each."""
    rows = []
    for text, outer in SPECIAL.items():
        row = [text.strip(), outer]
        for view in views(block(parse(text)), parse_outer(outer)).values():
            row += [told(view.scale), " ".join(map(told, view.values.tolist()))]
        rows.append(row)
    names = [part for name in FORMATS for part in (f"{name}: scale", "decoded")]
    return pd.DataFrame(rows, columns=["block", "outer", *names])
