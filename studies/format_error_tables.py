"""Tables of the study `format_error`: errors by format and data, closed forms beside them, and crossovers."""

import math

import numpy as np
import pandas as pd
import torch

import numerics as nm

from . import format_error_crest
from .format_error_cases import FORMS, KINDS, REAL, REST, VARIANTS
from .format_error_published import LLAMA, over
from .format_error_theory import PAIRS, RHO, closed_crossover, closed_form
from .interval import interval, listed, stated
from .result import Table

NOT = "not measured"
INTEGERS, FLOATS = "nowhere: integers err less", "everywhere: floating point errs less"


def table_of(rows: pd.DataFrame, what: str, digits: int, factor: float, caption: str) -> Table:
    """Formats by data: means with intervals; a kind of real data that is missing says so."""
    kinds = [*KINDS, REST, *REAL]
    lines = []
    for name in VARIANTS:
        cells = {kind: _cell(rows, kind, name, what, digits, factor) for kind in kinds}
        lines.append({"format": name, "bits": VARIANTS[name].fmt.bits_per_value} | cells)
    return Table(what, pd.DataFrame(lines), caption)


def _cell(rows: pd.DataFrame, kind: str, name: str, what: str, digits: int, factor: float) -> str:
    if not ((rows.data == kind) & (rows.format == name)).any():
        return NOT
    return stated(over(rows, kind, name, what, factor), digits)


def forms(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured QSNR beside the closed form, as the paper has it and with what was measured, mean over tensors.

    Columns: data, format, crest, inflation, measured, paper (rho 1.5, 2^(b-1) steps), refined (rho as measured, the
    steps that there are), and the differences of both to measured.
    """
    lines = []
    for (kind, name), part in rows[rows.crest.notna()].groupby(["data", "format"], sort=False):
        fmt = VARIANTS[name].fmt
        paper = [closed_form(fmt, r.crest, RHO, r.normal, r.subnormal) for r in part.itertuples()]
        refined = [closed_form(fmt, r.crest, r.inflation, r.normal, r.subnormal, True) for r in part.itertuples()]
        means = [float(np.mean(column)) for column in (part.crest, part.inflation, part.qsnr, paper, refined)]
        lines.append((kind, name, *means, means[3] - means[2], means[4] - means[2]))
    names = ["data", "format", "crest", "inflation", "measured", "paper", "refined", "paper off", "refined off"]
    return pd.DataFrame(lines, columns=names)


def crossings(crest: pd.DataFrame) -> pd.DataFrame:
    """Where integer and floating point cross: published, closed forms, and measured, over seeds."""
    lines = []
    for pair in PAIRS:
        names = pair.integer, pair.floating
        parts = [part for _, part in crest.groupby("seed", sort=False)]
        found = [format_error_crest.crossing(part, *names) for part in parts]
        back = [format_error_crest.crossing(part, *reversed(names)) for part in parts]
        size = VARIANTS[pair.integer].fmt.block
        lines.append(
            {
                "pair": pair.name,
                "integer": pair.integer,
                "floating point": pair.floating,
                "published": pair.published,
                "closed form": round(closed_crossover(pair), 3),
                "with the steps there are": round(closed_crossover(pair, fine=True), 3),
                "measured": _crossed(found),
                "integers again from": stated(interval(back)) if all(map(math.isfinite, back)) else "",
                "largest possible crest": round(math.sqrt(size), 3),
            }
        )
    return pd.DataFrame(lines)


def _crossed(found: list[float]) -> str:
    if all(map(math.isfinite, found)):
        return interval(found).text(3)
    return {math.inf: INTEGERS, -math.inf: FLOATS}.get(found[0] if len(set(found)) == 1 else 0.0, "not resolved")


def real_table(rows: pd.DataFrame, reason: str) -> Table:
    """Formats on real data beside what others found on a larger model."""
    lines = []
    for name in FORMS:
        cells = {kind: _cell(rows, kind, name, "qsnr", 2, 1.0) for kind in REAL}
        lines.append({"format": name} | cells | {"Llama-3.1-8B, published": LLAMA.get(name)})
    counts = [f"{rows[rows.data == kind].tensor.nunique()} {kind}" for kind in REAL if (rows.data == kind).any()]
    caption = (
        f"Real data not measured: {reason}."
        if reason
        else f"QSNR in dB of all-MiniLM-L6-v2 ({listed(counts)}), mean and 95 % interval over matrices; published: "
        "arXiv 2510.25602, mean over 10,752 tensors of another model, so equal numbers are not expected."
    )
    return Table("real", pd.DataFrame(lines), caption)


def crossover_caption() -> str:
    """What the crossovers are, and why those measured lie below the published ones."""
    lost = []
    for pair in PAIRS:
        top = int(nm.encode(torch.ones(1) * 1e9, VARIANTS[pair.integer].fmt.element))
        lost.append(f"{20 * math.log10((top + 1) / top):.2f} dB in {pair.name}")
    return (
        "Crest of a block above which floating point errs less than integers. The published forms give an integer of b "
        f"bits 2^(b-1) steps up to its largest value; symmetric ones have one less, which costs {listed(lost)}."
    )
