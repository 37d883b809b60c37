"""Notebook 5: an outlier before and after a random rotation, and what MXFP8 and S2F6 make of it.

The panel of `rotation_data` (the numbers) and `rotation_draw` (the pictures), its readout, and the tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ipywidgets
import torch
from torch import Tensor

import numerics as nm
from studies.combine_data import BLOCK, WIRES, order_part, sent_bits

from .panel import Panel, Picture, number
from .readout import table, told
from .rotation_data import (
    PLAIN,
    ROTATED,
    ROWS,
    SIGNS,
    Trip,
    overtakes,
    payloads,
    rotated,
    row_of,
    signs_of,
    trip,
)
from .rotation_draw import draw


def readout(x: Tensor, signs: Tensor, place: int) -> str:
    """Errors on every wire, and what the rotation does to the outlier."""
    other = torch.arange(BLOCK) != place
    rows = []
    for wire in WIRES:
        each = trip(x, signs, wire)
        errors = (float(each.errors[place]), each.rms(other), each.rms())
        cells = [told(error, 4) for error in errors]
        scale = "none" if wire.fmt is None else told(each.scale, 6)
        rows.append([wire.name, f"{sent_bits(wire):g}", scale, told(float(each.received[place]), 6), *cells])
    head = ["wire", "bits a value", "scale", "outlier arrives as", "its error", "rms error, others", "rms error, all"]
    return _words(x, signs, place) + table(head, rows)


def _words(x: Tensor, signs: Tensor, place: int) -> str:
    size = float(x[place])
    if not math.isfinite(size):
        lost = [int((~torch.isfinite(trip(x, signs, wire).received)).sum()) for wire in (PLAIN, ROTATED)]
        return (
            f"<p>The outlier is {told(size)} in float32. The block's scale becomes NaN (byte 0xFF): {lost[0]} of 32 "
            "values are lost on MXFP8. The rotation would spread it to all 32 coefficients: "
            f"{lost[1]} of 32 are lost on RHT + S2F6.</p>"
        )
    y = rotated(x, signs)
    text = (
        f"<p>Alone, {size:g} becomes 32 coefficients of size {abs(size):g} / √32 = {abs(size) / BLOCK**0.5:.4g}; with "
        f"the others the largest is {float(y.abs().max()):.4g}.</p>"
    )
    if not bool(torch.isfinite(trip(x, signs, ROTATED).received).all()):
        text += "<p>The sums of the inverse rotation, kept in float32, go beyond its largest number.</p>"
    return text


def picture(size: str, place: int, row: str, seed: int, signs: str, key: int) -> Picture:
    """The controls' values to a picture. Raises ValueError for text that is no number."""
    x, vector = row_of(row, seed, _float32(size), place), signs_of(signs, key)
    trips: list[Trip] = [trip(x, vector, wire) for wire in (PLAIN, ROTATED)]
    return Picture(draw(x, vector, trips), readout(x, vector, place))


def _float32(text: str) -> float:
    return torch.tensor(number(text, "outlier"), dtype=torch.float32).item()


def panel(size: str = "200", place: int = 11) -> Panel:
    """One block of 32 values, an outlier among them."""
    controls = {
        "size": ipywidgets.Text(size, description="outlier", continuous_update=False),
        "place": ipywidgets.IntSlider(place, 0, BLOCK - 1, description="place"),
        "row": ipywidgets.Dropdown(options=ROWS, description="the others"),
        "seed": ipywidgets.IntSlider(0, 0, 99, description="their seed"),
        "signs": ipywidgets.Dropdown(options=SIGNS, description="signs"),
        "key": ipywidgets.IntSlider(0, 0, 99, description="their key"),
    }
    return Panel(controls, picture, rows=[["size", "place"], ["row", "seed"], ["signs", "key"]])


def formats_table(values: Sequence[float]) -> str:
    """Each value rounded to both element formats, without a scale."""
    rows = []
    for value in values:
        rounded = [float(nm.round_to(torch.tensor([value]), fmt)) for fmt in (nm.E4M3, nm.S2F6)]
        rows.append([f"{value:g}", *(text for x in rounded for text in (f"{x:.6g}", f"{abs(x / value - 1):.2%}"))])
    return table(["value", "E4M3", "off by", "S2F6", "off by"], rows)


def payload_table(width: int = 4096) -> str:
    """Bytes of one token of `width` values, by format."""
    first, *_ = found = payloads(width)
    rows = [
        [
            p.name,
            *(f"{n:,}" for n in (p.codes, p.scales, p.outer, p.total)),
            f"{p.bits:g}",
            f"{first.total / p.total:.2f}",
        ]
        for p in found
    ]
    head = ["format", "codes", "scales", "outer", "bytes", "bits a value", "times smaller than BF16"]
    return table(head, rows, f"One token of {width:,} values")


def trade_words(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """From which outlier size on which wire is ahead, for each part of the block."""
    told = []
    for part, errors in found.items():
        size = overtakes(errors, ROTATED.name, PLAIN.name)
        if math.isinf(size):
            words = f"{ROTATED.name} has the smaller error up to the largest outlier"
        elif size == 0:
            words = f"{PLAIN.name} has the smaller error at every size"
        else:
            words = f"{PLAIN.name} has the smaller error beyond an outlier of {size:.0f} standard deviations"
        told.append(f"{part}: {words}")
    return told


def order_table(seed: int = 0, tokens: int = 64, experts: int = 6) -> str:
    """One inverse after the sum against one for each expert: how far the results lie apart."""
    found = order_part(seed=seed, tokens=tokens, experts=experts).iloc[0]
    rows = [
        ["relative difference (norm)", f"{found['relative']:.1e}"],
        ["equal in every bit, float32", f"{found['equal']:.1%}"],
        ["equal in every bit, once in BF16", f"{found['equal_bf16']:.2%}"],
        ["inverses, one after the sum", f"{tokens:,}"],
        ["inverses, one for each expert", f"{tokens * experts:,}"],
    ]
    return table(["", "value"], rows, f"{tokens} tokens of {int(found['n']) // tokens:,} values, {experts} experts")
