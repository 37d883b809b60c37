"""What the model of `moe_model` is asked: its parameters and their ranges, and the published numbers beside it.

A range says what a parameter could plausibly be, not how likely. Published numbers are the authors'; which GPU
DeepGEMM's table was measured on is not stated there, B200's rates are assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

import numerics as nm

from . import moe_gain
from . import moe_model as model
from .moe_model import FULL, LADDER, Recipe, Setup

ARTICLE = "Thinking Machines Lab, End-to-End 4-Bit Training (2026)"
DEEPSEEK = "DeepSeek-V4, arXiv 2606.19348, section 3.1"
DEEPGEMM = "DeepGEMM, pull request 316 (2026)"
PRETRAIN, LEARNING = 0.08, 0.20  # the article's gains
MEASURED_OVERLAP = (1.50, 1.73)  # DeepSeek-V4's
GAINS = {"training": moe_gain.training_gain, "reinforcement learning": moe_gain.learning_gain}


@dataclass(frozen=True)
class Parameter:
    """A field of `Setup`, what it is called, its range, and how a value over `unit` is written (a format string)."""

    field: str
    label: str
    low: float
    high: float
    form: str = "{:g}"
    unit: float = 1.0


PARAMETERS = (
    Parameter("width", "expert width", 1024, 4096, "{:,.0f}"),
    Parameter("top_k", "experts a token", 2, 8),
    Parameter("rest", "other parameters a token meets (1e9)", 3e9, 12e9, unit=1e9),
    Parameter("tokens", "tokens a GPU in training", 1024, 32768, "{:,.0f}"),
    Parameter("decode_tokens", "tokens a GPU in a rollout", 8, 512),
    Parameter("waves", "waves", 1, 32),
    Parameter("imbalance", "busiest GPU / mean", 1.0, 2.0),
    Parameter("own_gpus", "experts on GPUs of their own", False, True),
    Parameter("behind", "traffic behind other layers' work", 0.0, 1.0, "{:.0%}"),
    Parameter("fp4", "efficiency of FP4 products", 0.4, 0.8, "{:.0%}"),
    Parameter("fp8", "efficiency of FP8 products", 0.4, 0.8, "{:.0%}"),
    Parameter("bf16", "efficiency of everything else", 0.3, 0.7, "{:.0%}"),
    Parameter("link", "efficiency of the link", 0.4, 0.9, "{:.0%}"),
    Parameter("memory", "efficiency of memory", 0.3, 0.9, "{:.0%}"),
    Parameter("latency", "latency of a transfer (µs)", 1e-6, 1e-5, unit=1e-6),
    Parameter("extra_bytes", "requantization's extra bytes a value", 0.0, 1.6),
    Parameter("last", "layers kept in MXFP8", 0.0, 1 / 3, "{:.0%}"),
    Parameter("rollouts", "rollouts' share of the time", 0.4, 0.9, "{:.0%}"),
    Parameter("rollout_experts", "experts' share of a rollout", 0.25, 0.75, "{:.0%}"),
)


def written(parameter: Parameter, value: float) -> str:
    """A value of a parameter for readers."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return parameter.form.format(value / parameter.unit)


def swings(setup: Setup) -> pd.DataFrame:
    """Gains with one parameter at an end of its range, the others as in `setup`.

    Returns:
        Columns gain, parameter, end ("low" or "high"), value, result.
    """
    found = []
    for parameter in PARAMETERS:
        for end, value in (("low", parameter.low), ("high", parameter.high)):
            changed = replace(setup, **{parameter.field: value})
            found += [(name, parameter.field, end, value, gain(changed)) for name, gain in GAINS.items()]
    return pd.DataFrame(found, columns=["gain", "parameter", "end", "value", "result"])


def drawn(setup: Setup, draws: int, seed: int) -> pd.DataFrame:
    """Gains with all parameters drawn from their ranges at once, independent of each other: counts uniformly in their
    logarithm and rounded, shares uniformly.

    Returns:
        Columns gain, draw, result.
    """
    random, found = np.random.default_rng(seed), []
    for draw in range(draws):
        values = {parameter.field: _one(parameter, getattr(setup, parameter.field), random) for parameter in PARAMETERS}
        changed = replace(setup, **values)
        found += [(name, draw, gain(changed)) for name, gain in GAINS.items()]
    return pd.DataFrame(found, columns=["gain", "draw", "result"])


def _one(parameter: Parameter, base: float, random: np.random.Generator) -> float:
    if isinstance(base, bool):
        return bool(random.integers(2))
    if isinstance(base, int):
        return round(math.exp(random.uniform(math.log(parameter.low), math.log(parameter.high))))
    return float(random.uniform(parameter.low, parameter.high))


def ladder(setup: Setup) -> pd.DataFrame:
    """From the baseline to the whole recipe, one change at a time; seconds of a layer, a step and a rollout's layer."""
    found = []
    for recipe in LADDER:
        first, second = moe_gain.layer_seconds(setup, recipe)
        phases = model.forward(setup, recipe)
        found.append(
            {
                "recipe": recipe.name,
                "wire_bits": recipe.dispatch + recipe.combine,
                "traffic": phases.dispatch + phases.combine,
                "products": phases.products,
                "forward": first,
                "backward": second,
                "step": moe_gain.step_seconds(setup, recipe),
                "rollout": moe_gain.decode(setup, recipe).total,
                "training_gain": moe_gain.training_gain(setup, recipe),
                "learning_gain": moe_gain.learning_gain(setup, recipe),
            }
        )
    return pd.DataFrame(found)


def widths(setup: Setup) -> pd.DataFrame:
    """Least expert widths that hide all traffic of a forward pass, at peak rates and at the setup's efficiencies."""
    peak = model.balance(setup.machine)
    here = peak * setup.fp4 / setup.link
    wires = {
        "BF16 + BF16": (model.BF16_BITS, model.BF16_BITS),
        "FP8 + BF16": (float(nm.E4M3.bits), model.BF16_BITS),
        "NVFP4 + BF16": (FULL.dispatch, model.BF16_BITS),
        "NVFP4 + S2F6": (FULL.dispatch, FULL.combine),
    }
    found = []
    for name, (dispatch, combine) in wires.items():
        both, one = (model.break_even_width(peak, dispatch, combine, own) for own in (False, True))
        now = model.break_even_width(here, dispatch, combine)
        found.append({"wire": name, "dispatch": dispatch, "combine": combine, "peak": both, "one": one, "here": now})
    return pd.DataFrame(found)


@dataclass(frozen=True)
class Bench:
    """A line of DeepGEMM's table: 8 GPUs, top 6, FP8 dispatch, BF16 combine, MXFP4 weights; seconds, FLOP/s, B/s."""

    name: str
    hidden: int
    width: int
    experts: int
    tokens: int
    seconds: float
    flops: float
    link: float
    gain: float


_PRO, _FLASH = ("V4-Pro", 7168, 3072, 384), ("V4-Flash", 4096, 2048, 256)
BENCHES = (
    Bench(*_FLASH, 1, 56.5e-6, 5e12, 1e9, 1.96),
    Bench(*_FLASH, 512, 146.5e-6, 1056e12, 266e9, 1.73),
    Bench(*_FLASH, 8192, 1283.1e-6, 1928e12, 499e9, 1.56),
    Bench(*_FLASH, 32768, 4855.5e-6, 2038e12, 529e9, 1.62),
    Bench(*_PRO, 1, 108.1e-6, 7e12, 1e9, 1.61),
    Bench(*_PRO, 512, 369.6e-6, 1098e12, 182e9, 1.54),
    Bench(*_PRO, 8192, 2818.5e-6, 2304e12, 393e9, 1.50),
    Bench(*_PRO, 32768, 10655.2e-6, 2438e12, 417e9, 1.54),
)
V4 = Recipe("FP8 + BF16", 8, 16, nm.MXFP4.bits_per_value, "mxfp8")
_REDUCTION = 6.5e12  # B/s; their script takes the time of the combine's sum off before it divides bytes by time


def overlap(bench: Bench) -> dict[str, float]:
    """The model at B200's peaks beside a line of DeepGEMM's table.

    Returns:
        products, traffic, memory: seconds at peak. floor: the largest of them and share: floor / measured time.
        bound: what overlap can moe_gain. flops, link: of the measured time, by the model's counts.
    """
    shape = Setup(
        model.B200, bench.hidden, bench.width, 6, bench.experts, gpus=8, tokens=bench.tokens, imbalance=1.0,
        decode_tokens=bench.tokens, fp8=1.0, link=1.0, memory=1.0, latency=0.0,
    )  # fmt: skip
    phases, step = model.forward(shape, V4), moe_gain.decode(shape, V4)
    traffic = phases.dispatch + phases.combine
    floor = max(phases.products, traffic, step.memory)
    count = model.rows(shape, bench.tokens)
    overlapped = bench.seconds - bench.tokens * bench.hidden * 2 * 7 / _REDUCTION
    return {
        "products": phases.products,
        "traffic": traffic,
        "memory": step.memory,
        "floor": floor,
        "share": floor / bench.seconds,
        "bound": model.overlap_bound(phases.products, traffic),
        "flops": 6 * bench.hidden * bench.width * count / bench.seconds,
        "link": 3 * bench.hidden * count / overlapped,
    }


def benches() -> pd.DataFrame:
    """All lines of DeepGEMM's table beside the model."""
    found = []
    for b in BENCHES:
        told = {"published_gain": b.gain, "published_flops": b.flops, "published_link": b.link}
        found.append({"model": b.name, "tokens": b.tokens, "measured": b.seconds} | told | overlap(b))
    return pd.DataFrame(found)
