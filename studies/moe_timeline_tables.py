"""Tables of the modelled expert layer: beside what was published, recipe by recipe, width by width, and assumptions."""

from __future__ import annotations

from typing import Any

import pandas as pd

from . import moe_model as model
from . import moe_timeline_cases as cases
from .moe_model import FULL, Setup
from .result import Table

_CURSOR = "Cursor, MXFP8 kernels for mixture-of-experts layers (2025)"
_NEMO = "NVIDIA NeMo-RL, Qwen3-30B-A3B with NVFP4 rollouts"
_BOUND = "V4-Pro and V4-Flash at B200's peaks; never above 2; the shape and rates behind 1.92 are not stated"
_MEASURED = "1 to the largest bound; the kernel beside which the gain was measured is not modelled"
_ROUNDED = "largest of 8 lines, the model's counts over measured times; half a unit is rounding"
_GAIN = "{:.1f} with all as assumed, the range is 95 % of settings; the article's shape and schedule are not public"
_ROLLOUT = "one layer against MXFP8 here, a whole model against BF16 there"


def agreement(ours: tuple[float, ...], theirs: tuple[float, float]) -> str:
    """Whether two ranges meet; a single number is a range too."""
    return "agrees" if min(ours) <= max(theirs) and min(theirs) <= max(ours) else "differs"


def published(found: dict[str, Any]) -> pd.DataFrame:
    """What others state, beside the model.

    Args: found: the study's summary.

    Returns:
        Columns quantity, modelled, published, verdict, source, explanation.
    """
    lines, peaks, low_high = cases.benches(), model.GB300, cases.MEASURED_OVERLAP
    large = lines[lines.tokens >= 8192]
    bound = (float(large.bound.min()), float(large.bound.max()))
    flops = (lines.published_flops - lines.flops).abs().max() / 1e12
    link = (lines.published_link - lines.link).abs().max() / 1e9
    v4 = model.hidden_balance(3072, cases.V4.dispatch, cases.V4.combine)
    gains = [found["gains"][name] for name in cases.GAINS]
    train, learn = ((100 * gain["low"], 100 * gain["high"]) for gain in gains)
    why_train, why_learn = (_GAIN.format(100 * gain["base"]) for gain in gains)
    article, deepseek, deepgemm = cases.ARTICLE, cases.DEEPSEEK, cases.DEEPGEMM
    entries = [
        # quantity, ours (one number or a range), theirs as a range, as printed there, source, explanation
        ("FLOP per byte, NVFP4", (found["balance"],), (15.5e3, 17e3), "about 16,000", article, "15e15 / 900e9"),
        ("rate, NVFP4 / MXFP8", (peaks.nvfp4 / peaks.mxfp8,), (3, 3), "about 3", article, "peaks of GB300"),
        ("rate, NVFP4 / BF16", (peaks.nvfp4 / peaks.bf16,), (6, 6), "up to 6", article, "peaks of GB300"),
        ("bits, BF16 / NVFP4", (model.BF16_BITS / FULL.dispatch,), (3.55, 3.65), "3.6", article, "16 / 4.5"),
        ("C / B hidden at d = 3,072", (v4,), (6144, 6144), "6,144", deepseek, "6 h d FLOP, 3 h bytes"),
        ("gain of overlap, bound", bound, (1.92, 1.92), "1.92", deepseek, _BOUND),
        ("gain of overlap", (1.0, bound[1]), low_high, "1.50 to 1.73", deepseek, _MEASURED),
        ("products, TFLOP/s, difference", (flops,), (0, 1), "0", deepgemm, _ROUNDED),
        ("link, GB/s, difference", (link,), (0, 1), "0", deepgemm, _ROUNDED),
        ("gain in training, %", train, (8, 8), "8", article, why_train),
        ("gain in reinforcement learning, %", learn, (20, 20), "20", article, why_learn),
        ("experts' share of a step, %", (100 * found["expert_share"],), (27, 53), "27 to 53", _CURSOR, "other models"),
        ("gain of a rollout", (found["rollout"],), (1.4, 1.4), "1.40", _NEMO, _ROLLOUT),
    ]
    told = [(name, _range(ours), text, agreement(ours, at), by, why) for name, ours, at, text, by, why in entries]
    return pd.DataFrame(told, columns=["quantity", "modelled", "published", "verdict", "source", "explanation"])


def _range(numbers: tuple[float, ...]) -> str:
    return " to ".join(f"{x:.3g}" if x < 1000 else f"{x:,.0f}" for x in numbers)


def tables(setup: Setup, swings: pd.DataFrame, found: dict[str, Any]) -> tuple[Table, ...]:
    """All tables. Args: swings: as `cases.swings` gives them. found: the study's summary."""
    return (
        Table("published", published(found), "Modelled, beside what others published."),
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
