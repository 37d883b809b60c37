"""Tables of the modelled expert layer: beside what was published, recipe by recipe, width by width, and assumptions."""

from __future__ import annotations

from typing import Any

import pandas as pd

from . import moe_model as model
from . import moe_timeline_cases as cases
from .moe_model import FULL, Setup
from .published import Range, compared, table
from .result import Table

_CURSOR = "Cursor, MXFP8 kernels for mixture-of-experts layers (2025)"
_NEMO = "NVIDIA NeMo-RL, Qwen3-30B-A3B with NVFP4 rollouts"
_BOUND = "V4-Pro and V4-Flash at B200's peaks; never above 2; the shape and rates behind 1.92 are not stated"
_MEASURED = "1 to the largest bound; the kernel beside which the gain was measured is not modelled"
_PRINTED = "15e15 / 900e9; printed as"
_ROUNDED = "largest of 8 lines, the model's counts over measured times; half a unit is rounding"
_GAIN = "{:.1f} with all as assumed, the range is 95 % of settings; the article's shape and schedule are not public"
_ROLLOUT = "one layer against MXFP8 here, a whole model against BF16 there"


def published(found: dict[str, Any]) -> Table:
    """What others state, beside the model. found: the study's summary."""
    lines, peaks = cases.benches(), model.GB300
    large = lines[lines.tokens >= 8192]
    bound = (float(large.bound.min()), float(large.bound.max()))
    flops = (lines.published_flops - lines.flops).abs().max() / 1e12
    link = (lines.published_link - lines.link).abs().max() / 1e9
    v4 = model.hidden_balance(3072, cases.V4.dispatch, cases.V4.combine)
    gains = [found["gains"][name] for name in cases.GAINS]
    train, learn = ((100 * gain["low"], 100 * gain["high"]) for gain in gains)
    why_train, why_learn = (_GAIN.format(100 * gain["base"]) for gain in gains)
    article, deepseek, deepgemm, share = cases.ARTICLE, cases.DEEPSEEK, cases.DEEPGEMM, 100 * found["expert_share"]
    bits, counts = model.BF16_BITS / FULL.dispatch, "6 h d FLOP, 3 h bytes"
    # quantity, ours, published, its rounding, source, explanation
    entries: list[tuple[str, float | Range, float | Range, float, str, str]] = [
        ("FLOP per byte, NVFP4", found["balance"], (15.5e3, 17e3), 0, article, f"{_PRINTED} about 16,000"),
        ("rate, NVFP4 / MXFP8", peaks.nvfp4 / peaks.mxfp8, 3, 0, article, "peaks of GB300; printed as about 3"),
        ("rate, NVFP4 / BF16", peaks.nvfp4 / peaks.bf16, 6, 0, article, "peaks of GB300; printed as up to 6"),
        ("bits, BF16 / NVFP4", bits, 3.6, 0.05, article, "16 / 4.5"),
        ("C / B hidden at d = 3,072", v4, 6144, 0, deepseek, counts),
        ("gain of overlap, bound", bound, 1.92, 0, deepseek, _BOUND),
        ("gain of overlap", (1.0, bound[1]), cases.MEASURED_OVERLAP, 0, deepseek, _MEASURED),
        ("products, TFLOP/s, difference", flops, 0, 1, deepgemm, _ROUNDED),
        ("link, GB/s, difference", link, 0, 1, deepgemm, _ROUNDED),
        ("gain in training, %", train, 8, 0, article, why_train),
        ("gain in reinforcement learning, %", learn, 20, 0, article, why_learn),
        ("experts' share of a step, %", share, (27, 53), 0, _CURSOR, "other models"),
        ("gain of a rollout", found["rollout"], 1.4, 0, _NEMO, _ROLLOUT),
    ]
    rows = [compared(name, ours, at, by, absolute=off, explanation=why) for name, ours, at, off, by, why in entries]
    return table(rows, "Modelled, beside what others published:")


def tables(setup: Setup, swings: pd.DataFrame, found: dict[str, Any]) -> tuple[Table, ...]:
    """All tables. Args: swings: as `cases.swings` gives them. found: the study's summary."""
    return (
        published(found),
        Table("ladder", _ladder(setup), "Modelled: from MXFP8 to the whole recipe, one change after the other."),
        Table("widths", _widths(setup), "Modelled: least expert width whose products hide all traffic of a forward."),
        Table("kernel", _kernel(), "Modelled at B200's peaks (its GPU is assumed), beside DeepGEMM's measured table."),
        Table("parameters", _ranges(setup, swings), "Assumptions of the model; modelled gains at the ends of ranges."),
    )


def _ladder(setup: Setup) -> pd.DataFrame:
    rungs = cases.ladder(setup)
    steps = pd.DataFrame({"modelled recipe": rungs.recipe, "bits, both ways": rungs.wire_bits})
    for name in ("traffic", "products", "forward", "backward"):
        steps[f"{name}, ms"] = (rungs[name] * 1e3).round(3)
    steps["step, ms"] = (rungs.step * 1e3).round(1)
    steps["rollout's layer, µs"] = (rungs.rollout * 1e6).round(1)
    steps["gain in training, %"] = (rungs.training_gain * 100).round(1)
    steps["gain in RL, %"] = (rungs.learning_gain * 100).round(1)
    return steps


def _widths(setup: Setup) -> pd.DataFrame:
    least = cases.widths(setup)
    names = {"peak": "at peak", "one": "at peak, experts on own GPUs", "here": "at the assumed efficiencies"}
    told = {name: least[key].map("{:,.0f}".format) for key, name in names.items()}
    return least[["wire", "dispatch", "combine"]].rename(columns={"wire": "modelled wire"}).assign(**told)


def _kernel() -> pd.DataFrame:
    lines = cases.benches()
    columns = {
        "measured, µs": lines.measured * 1e6,
        "modelled floor, µs": lines.floor * 1e6,
        "floor / measured": lines.share,
        "modelled bound of overlap": lines.bound,
        "measured gain": lines.published_gain,
        "TFLOP/s by the model's counts": lines.flops / 1e12,
        "published TFLOP/s": lines.published_flops / 1e12,
        "GB/s by the model's counts": lines.link / 1e9,
        "published GB/s": lines.published_link / 1e9,
    }
    digits = (1, 1, 2, 2, 2, 1, 0, 1, 0)
    rounded = {name: cells.round(n) for (name, cells), n in zip(columns.items(), digits, strict=True)}
    return lines[["model", "tokens"]].assign(**rounded)


def _ranges(setup: Setup, swings: pd.DataFrame) -> pd.DataFrame:
    ends = swings.set_index(["gain", "parameter", "end"]).result
    found = []
    for p in cases.PARAMETERS:
        cells = {"parameter": p.label, "assumed": cases.written(p, getattr(setup, p.field))}
        cells["range"] = f"{cases.written(p, p.low)} to {cases.written(p, p.high)}"
        for gain in cases.GAINS:
            low, high = (100 * ends[gain, p.field, end] for end in ("low", "high"))
            cells[f"modelled gain in {gain}, %"] = f"{low:.1f} to {high:.1f}"
        found.append(cells)
    return pd.DataFrame(found)
