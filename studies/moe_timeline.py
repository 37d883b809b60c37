"""What do 4 bits buy in a mixture-of-experts layer of an NVL72 rack? A model, not a measurement.

`moe_model` counts FLOP and bytes and plays the waves of one layer; `moe_timeline_cases` says what is varied and what
was published. Nothing here runs on a GPU, and no time of it was measured: every number is a consequence of the counts,
of published peak rates and of the assumed efficiencies in the table of parameters.

The expert's shape is that of Inkling-Small (hidden 4096, width 2048, top 6 of 256, 40 layers); that of the article's
model is not public. The baseline has MXFP8 products and dispatch and a BF16 combine. Gains are work in the same time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from . import moe_gain
from . import moe_model as model
from . import moe_timeline_cases as cases
from . import moe_timeline_draw as figures
from .interval import listed
from .moe_model import BASELINE, FULL, LADDER, SIXTEEN, Setup
from .moe_timeline_tables import tables
from .result import Plate, Result, Study, key_table

SEED = 0
TOP = 3  # parameters that the finding names


def inside(value: float, low: float, high: float) -> str:
    """On which side of an interval a value lies."""
    return "below" if value < low else "above" if value > high else "inside"


def summarize(setup: Setup, draws: pd.DataFrame) -> dict[str, Any]:
    """The finding's numbers."""
    rungs = cases.ladder(setup).set_index("recipe")
    found: dict[str, Any] = {
        "balance": model.balance(setup.machine),
        "widths": cases.widths(setup).set_index("wire")[["peak", "one", "here"]].to_dict("index"),
        "forward_ms": {r.name: 1e3 * float(rungs.forward[r.name]) for r in (BASELINE, SIXTEEN, FULL)},
        "traffic_over_products": float(rungs.traffic[BASELINE.name] / rungs.products[BASELINE.name]),
        "ladder": {r.name: float(rungs.training_gain[r.name]) for r in LADDER[2:]},
        "expert_share": moe_gain.expert_share(setup),
        "layer": float((rungs.forward + rungs.backward)[BASELINE.name] / (rungs.forward + rungs.backward)[FULL.name]),
        "rollout": float(rungs.rollout[BASELINE.name] / rungs.rollout[FULL.name]),
        "gains": {},
    }
    for name, gain in cases.GAINS.items():
        results = draws[draws.gain == name].result.to_numpy()
        low, middle, high = (float(x) for x in np.quantile(results, [0.025, 0.5, 0.975]))
        published = cases.PRETRAIN if name == "training" else cases.LEARNING
        found["gains"][name] = {
            "base": gain(setup), "low": low, "median": middle, "high": high,
            "published": published, "below_published": float((results < published).mean()),
        }  # fmt: skip
    return found


def largest(swings: pd.DataFrame, gain: str, base: float, count: int = TOP) -> list[str]:
    """The parameters that move a gain farthest from `base`, with the gains at both ends of their range."""
    ends = swings[swings.gain == gain].pivot(index="parameter", columns="end", values="result")
    order = (ends - base).abs().max(axis=1).sort_values(ascending=False).index[:count]
    label = {parameter.field: parameter.label for parameter in cases.PARAMETERS}
    return [f"{label[f]} ({100 * ends.low[f]:.1f} to {100 * ends.high[f]:.1f} %)" for f in order]


def find(setup: Setup, swings: pd.DataFrame, draws: pd.DataFrame) -> tuple[str, ...]:
    """The finding and its details, in words."""
    found = summarize(setup, draws)
    gains = [_about_gain(name, gain, swings, draws.draw.nunique()) for name, gain in found["gains"].items()]
    return (
        _lead(setup, found, draws.draw.nunique()),
        _about_balance(setup, found),
        _about_layer(setup, found),
        *gains,
        _about_kernel(cases.benches()),
    )


def _lead(setup: Setup, found: dict[str, Any], count: int) -> str:
    told = [
        f"{100 * gain['base']:.1f} % in {name} ({100 * gain['low']:.1f} to {100 * gain['high']:.1f} % in 95 % of n = "
        f"{count:,} settings; published {100 * gain['published']:.0f} %)"
        for name, gain in found["gains"].items()
    ]
    return (
        f"Modelled, not measured, for {setup.machine.name}: NVFP4 products and dispatch with an S2F6 combine gain "
        f"{listed(told)} over MXFP8."
    )


def _about_balance(setup: Setup, found: dict[str, Any]) -> str:
    wide = found["widths"]
    bf16, s2f6 = wide["NVFP4 + BF16"], wide["NVFP4 + S2F6"]
    return (
        f"Modelled, not measured, for {setup.machine.name}. At peak a GPU does {found['balance']:,.0f} FLOP while one "
        "direction of its link carries a byte; with NVFP4 dispatch, products hide all traffic from expert width d = "
        f"{bf16['peak']:,.0f} with a BF16 combine and {s2f6['peak']:,.0f} with S2F6. It is {bf16['one']:,.0f} and "
        f"{s2f6['one']:,.0f} only where experts have GPUs of their own, since else each direction of a link carries "
        f"dispatch and combine. S2F6 at d = {setup.width:,} hides it where products run at "
        f"{_share(setup, s2f6['peak'])} of their peak or less, or at {_share(setup, s2f6['one'])} with GPUs of their "
        "own, and the link at its peak."
    )


def _about_layer(setup: Setup, found: dict[str, Any]) -> str:
    ms, rungs, ratio = found["forward_ms"], found["ladder"], found["traffic_over_products"]
    hidden = [name for name, each in found["widths"].items() if setup.width >= each["here"]]
    return (
        f"With products at {setup.fp4:.0%} of peak and the link at {setup.link:.0%}, NVFP4 products hide traffic of "
        + (listed(hidden) if hidden else "no wire format")
        + f": a forward pass takes {ms[BASELINE.name]:.2f} ms under MXFP8, {ms[SIXTEEN.name]:.2f} ms with NVFP4 and 16 "
        f"bits back, {ms[FULL.name]:.2f} ms with 8.25 bits back. MXFP8's forward is bound by its "
        f"{'traffic' if ratio > 1 else 'products'}, which takes {max(ratio, 1 / ratio):.2f} times as long as its "
        f"{'products' if ratio > 1 else 'traffic'}: NVFP4 products alone gain {100 * rungs[LADDER[2].name]:.1f} % in "
        f"training, with 4-bit dispatch {100 * rungs[LADDER[3].name]:.1f} %, with the 8.25-bit combine too "
        f"{100 * rungs[LADDER[4].name]:.1f} %."
    )


def _about_gain(name: str, gain: dict[str, float], swings: pd.DataFrame, count: int) -> str:
    base, low, middle, high, theirs = (100 * gain[key] for key in ("base", "low", "median", "high", "published"))
    return (
        f"Gain in {name}: {base:.1f} %; {low:.1f} to {high:.1f} % in 95 % of n = {count:,} settings drawn from the "
        f"ranges of all parameters, median {middle:.1f} %. The published {theirs:.0f} % is "
        f"{inside(theirs, low, high)}; {100 * gain['below_published']:.0f} % of settings gain less. It depends most on "
        f"{listed(largest(swings, name, gain['base']))}; {_reaching(swings, name, gain)} the published gain alone."
    )


def _reaching(swings: pd.DataFrame, name: str, gain: dict[str, float]) -> str:
    """Which parameters, moved over their range with all others as assumed, bring the gain to the published one."""
    span = swings[swings.gain == name].groupby("parameter").result.agg(["min", "max"])
    low, high = (span[end].combine(gain["base"], choose) for end, choose in (("min", min), ("max", max)))
    met = (low <= gain["published"]) & (gain["published"] <= high)
    labels = [parameter.label for parameter in cases.PARAMETERS if met[parameter.field]]
    return f"{listed(labels)} {'reach' if len(labels) > 1 else 'reaches'}" if labels else "no parameter reaches"


def _share(setup: Setup, width: float) -> str:
    """The share of peak at which products of the setup's width hide what at peak only `width` hides."""
    return f"{min(1.0, setup.width / width):.0%}"


def _about_kernel(lines: pd.DataFrame) -> str:
    large = lines[lines.tokens >= 512]
    kept = int((large.published_gain <= large.bound).sum())
    times = 1 / large[large.tokens >= 8192].share
    return (
        f"Beside DeepGEMM's fused kernel: {kept} of {len(large)} measured gains at 512 tokens or more stay below the "
        f"model's bound of overlap ({large.bound.min():.2f} and {large.bound.max():.2f}), and at 8,192 tokens or more "
        f"it takes {times.min():.1f} to {times.max():.1f} times the model's floor at peak rates: hence efficiencies "
        "near one half."
    )


def run(fast: bool) -> Result:
    """Evaluate the model; `fast` draws fewer settings."""
    setup, count = Setup(), 500 if fast else 5000
    swings, draws = cases.swings(setup), cases.drawn(setup, count, SEED)
    summary = summarize(setup, draws)
    rows = pd.concat([swings.assign(part="one parameter"), draws.assign(part="all parameters")], ignore_index=True)
    ms = summary["forward_ms"]
    caption = (
        f"Modelled timeline of one layer's forward pass on the busiest GPU ({setup.waves} waves, d = {setup.width:,}, "
        f"top {setup.top_k}, {setup.tokens:,} tokens a GPU): 8.25 instead of 16 bits back shorten it from "
        f"{ms[SIXTEEN.name]:.2f} to {ms[FULL.name]:.2f} ms, 4-bit products and dispatch alone from "
        f"{ms[BASELINE.name]:.2f} to {ms[SIXTEEN.name]:.2f} ms."
    )
    finding, *told = find(setup, swings, draws)
    each = {table.name: table for table in tables(setup, swings, summary)}
    ladder = each.pop("ladder")
    return Result(
        rows,
        figures.gantt(setup),
        caption,
        finding,
        (SEED,),
        summary,
        tables=(key_table(ladder.frame, ladder.caption), *each.values()),
        plates=plates(setup, swings, summary),
        details=tuple(told),
    )


def plates(setup: Setup, swings: pd.DataFrame, found: dict[str, Any]) -> tuple[Plate, ...]:
    """The further figures."""
    wide, gains, lines = found["widths"], found["gains"], cases.benches()
    times = 1 / lines[lines.tokens == 1].share
    train, learn = (100 * gains[name]["base"] for name in cases.GAINS)
    balance = (
        "Modelled. Left: FLOP per byte that products of width d hide, at peak rates; S2F6 lowers the least width from "
        f"{wide['NVFP4 + BF16']['peak']:,.0f} to {wide['NVFP4 + S2F6']['peak']:,.0f}. Right: share of a forward pass "
        f"beyond its products, at the assumed efficiencies; the line marks d = {setup.width:,}."
    )
    rollout = (
        "Modelled floors of one layer of a rollout's step: weights from memory bound small steps, traffic large ones; "
        f"at {setup.decode_tokens} tokens the 4-bit layer is {found['rollout']:.2f} times as fast. DeepGEMM's kernel "
        f"takes {times.min():.1f} to {times.max():.1f} times its floor at one token: costs dominate there that the "
        "model leaves out."
    )
    tornado = (
        f"Modelled gains with one parameter at an end of its range; all as assumed, {train:.1f} % in training and "
        f"{learn:.1f} % in reinforcement learning. Effects below {figures.LEAST:g} points are left out."
    )
    return (
        Plate("balance", figures.balance(setup), balance),
        Plate("rollout", figures.floors(setup), rollout),
        Plate("tornado", figures.tornado(setup, swings), tornado),
    )


STUDY = Study(
    name="moe_timeline",
    title="Modelled: a 4-bit expert layer on an NVL72 rack",
    question="By a model of rates and bytes, what do 4-bit products and an 8.25-bit combine gain in a "
    "mixture-of-experts layer of a GB300 rack, in training and in rollouts, and what does that depend on?",
    run=run,
)
