"""Which way of requantizing keeps a saved NVFP4 tensor's values, and at what price: six choices, one at a time.

    kind        nearest, stochastic and MS-EDEN, into MXFP8 and NVFP4: bias against variance
    headroom    what the block's largest magnitude is mapped to, 6 or 6 x 16/17, and what small block scales do
    bits        8, 16 and 32 random bits for each value
    outer       FP32 multiplied in, FP32 outside (of wgrad: folded into the gradient), or rounded up to a power of two
    source      the forward's tensor requantized, or the originals quantized again

`requantization_cases` measures, `requantization_figures` draws. Intervals are Student's over seeds, 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from reference.progress import Progress

from . import cache, requantization_figures
from . import requantization_cases as cases
from .interval import Interval, listed, over_seeds, shown
from .requantization_published import published
from .result import Result, Study, Table, key_table

RATIOS = (1e-1, 1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
SPREADS = (0.0, 1.0)
OPERANDS = ("activations", "weights")


@dataclass(frozen=True)
class Size:
    """Tensors of `size` squared values, how many draws give a variance, and the seeds."""

    size: int
    draws: int
    seeds: tuple[int, ...]


FAST, FULL = Size(256, 8, tuple(range(5))), Size(512, 32, tuple(range(8)))
Frames = dict[str, pd.DataFrame]


def measure(at: Size) -> Frames:
    """A frame of each part, all seeds together."""
    plan: list[tuple[str, Any, dict[str, Any]]] = [
        *(("kinds", cases.kinds, {"operand": operand, "draws": at.draws}) for operand in (*OPERANDS, "originals")),
        ("lengths", cases.lengths, {}),
        ("small_scales", cases.small_scales, {"block": "median", "ratios": list(RATIOS)}),
        ("small_scales", cases.small_scales, {"block": "every", "ratios": [1e-5]}),
        ("mxfp8_bits", cases.mxfp8_bits, {}),
        *(("outers", cases.outers, {"operand": operand}) for operand in OPERANDS),
        *(("products", cases.products, {"spread": spread}) for spread in SPREADS),
        *(("sources", cases.sources, {"operand": operand}) for operand in OPERANDS),
    ]
    found: dict[str, list[pd.DataFrame]] = {}
    with Progress(len(plan) * len(at.seeds), "requantization_kinds") as progress:
        for seed in at.seeds:
            for name, function, inputs in plan:
                found.setdefault(name, []).append(cache.part(function, seed=seed, size=at.size, **inputs))
                progress.advance(1, f"{name}, seed {seed}")
    return {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}


def payback(rows: pd.DataFrame, operand: str, kind: str, nearest: str) -> int | None:
    """How many independent draws of `kind` have a mean with at most 1.01 times the error that `nearest` has; None: no
    number does. (Uniform fractions give stochastic rounding twice the error of nearest: 2 draws then tie with it.)"""
    mean = rows[rows.operand == operand].groupby("kind")[["error", "variance", "squared_bias"]].mean()
    room = 1.01 * mean.error[nearest] - max(0.0, mean.squared_bias[kind])
    return math.ceil(mean.variance[kind] / room) if room > 0 else None


def find(frames: Frames) -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements."""
    kinds = frames["kinds"]
    n = f"95 % intervals over {kinds.seed.nunique()} seeds of {int(kinds.n.iloc[0]):,} normal values"
    told = [_about_kinds(kinds), _about_headroom(frames), _about_bits(frames), _about_outers(frames)]
    return (_lead(kinds), *told, _about_sources(frames["sources"]), f"{n}.")


def _lead(rows: pd.DataFrame) -> str:
    bias, error = (over_seeds(rows, ["kind", "operand"], name) for name in ("squared_bias", "error"))
    drawn = [kind.name for kind in cases.KINDS if kind.draws]
    zero = [kind for kind in drawn if all(bias[kind, operand].holds(0) for operand in OPERANDS)]
    told = [f"{kind} ({error[kind, OPERANDS[0]].text(2, 1e3)})" for kind in zero]
    return (
        f"Of {len(drawn)} stochastic ways to requantize a saved operand, {len(zero)} show no squared bias: "
        f"{listed(told or ['none'])}, with the squared error of one draw in thousandths of the energy."
    )


def _about_kinds(rows: pd.DataFrame) -> str:
    bias = over_seeds(rows, ["kind", "operand"], "squared_bias")
    error = over_seeds(rows, ["kind", "operand"], "error")
    drawn = [kind.name for kind in cases.KINDS if kind.draws]
    zero = [kind for kind in drawn if all(bias[kind, operand].holds(0) for operand in OPERANDS)]
    kept = [f"{kind} ({_either(error, kind, 2, 1e3)})" for kind in zero]
    others = [f"{kind} {_either(bias, kind, 3, 1e3)}" for kind in drawn if kind not in zero]
    told = [
        f"Squared error of one draw, in thousandths of the energy, activations / weights: "
        f"{'; '.join(f'{kind.name} {_either(error, kind.name, 2, 1e3)}' for kind in cases.KINDS if not kind.draws)}.",
        f"No squared bias can be seen in {listed(kept)}." if kept else "No kind is without squared bias.",
    ]
    if others:
        told.append(f"Its interval excludes 0 for one operand or both in {listed(others)} thousandths.")
    paid = []
    for kind in zero:
        nearest = f"{kind.split(',')[0]}, nearest"
        counts = [payback(rows, operand, kind, nearest) for operand in OPERANDS]
        paid.append(f"{' / '.join('never' if count is None else str(count) for count in counts)} for {kind}")
    if paid:
        told.append(f"Independent draws whose mean errs no more, within 1 %, than nearest rounding: {listed(paid)}.")
    return " ".join(told)


def _either(found: dict[tuple[Any, ...], Interval], key: Any, digits: int, factor: float) -> str:
    return " / ".join(found[key, operand].text(digits, factor) for operand in OPERANDS)


def _about_headroom(frames: Frames) -> str:
    rows = frames["lengths"]
    rows = rows[rows.bits == 16]
    six, published, ours = cases.HEADROOMS
    mean, top, clipped = (over_seeds(rows, ["headroom"], name) for name in ("shrinkage", "top", "clipped"))
    small = abs(mean[published,].mean) < abs(mean[six,].mean) / 100
    judged = (
        f"so the shrinkage is of rounding to 6, and {published}, published as unbiased, is not concerned where block "
        "scales are normal"
        if small
        else f"so {published}, published as unbiased, shrinks as well"
    )
    told = (
        f"Stochastic NVFP4 to {six} changes the mean magnitude by {mean[six,].text(3, 100)} %, that of blocks' largest "
        f"values by {top[six,].text(2, 100)} %, for {clipped[six,].text(1, 100)} % of blocks saturate; to {published} "
        f"by {mean[published,].mean:.1e} of itself: {judged}."
    )
    far = frames["small_scales"]
    far = far[far.block == "median"]
    biases = over_seeds(far, ["headroom", "ratio"], "bias")
    tenth = [r for r in RATIOS if abs(biases[published, r].mean) > 1e-3 >= abs(biases[ours, r].mean)]
    if not tenth:
        return f"{told} Small block scales change nothing of this."
    least = max(tenth)
    return (
        f"{told} It is where they are subnormal: with a median block maximum of {least:g} of the tensor's the bias "
        f"along values is {_percent(biases[published, least])}, {_percent(biases[published, min(RATIOS)])} at "
        f"{min(RATIOS):g}; with subnormal scales rounded up the largest bias is "
        f"{max(abs(biases[ours, r].mean) for r in RATIOS):.0e}."
    )


def _percent(value: Interval) -> str:
    return f"{value.text(2, 100)} %"


def _about_bits(frames: Frames) -> str:
    nv = over_seeds(frames["lengths"], ["headroom", "bits"], "shrinkage")
    name = list(cases.HEADROOMS)[1]
    told = [f"{nv[name, bits].mean:+.1e} with {bits}" for bits in cases.WIDTHS]
    mx = over_seeds(frames["mxfp8_bits"], ["outer", "bits"], "shrinkage")
    exact = frames["mxfp8_bits"].groupby(["outer", "bits"]).exact.min()
    free = [outer for outer in cases.OUTERS if exact[outer, 8] == 1]
    inside = cases.OUTERS[0]
    sentence = (
        f"Too few random bits shrink: the mean magnitude in NVFP4 to {name} changes by {listed(told)} of itself; "
        f"that of saved weights in MXFP8, outer scale {inside}, by {mx[inside, 8].mean:+.1e} with 8"
    )
    if not free:
        return f"{sentence}, and no place of the outer scale avoids it."
    return f"{sentence}, and by nothing, value by value, where it is {' or '.join(free)}, which no source states."


def _about_outers(frames: Frames) -> str:
    rows, told = frames["outers"], []
    inside, outside, power = cases.OUTERS
    for operand in OPERANDS:
        part = rows[rows.operand == operand]
        exact, drawn, fine = (over_seeds(part, ["outer"], name) for name in ("exact", "stochastic", "forward"))
        told.append(
            f"{exact[power,].text(1, 100)} % of non-zero {operand} ({inside}: {exact[inside,].text(1, 100)} %) and has "
            f"{drawn[power,].mean / drawn[inside,].mean:.2f} times the stochastic error ({drawn[power,].text(3, 1e3)} "
            f"against {drawn[inside,].text(3, 1e3)} thousandths), at "
            f"{fine[power,].mean / fine[inside,].mean:.3f} times the forward error"
        )
    products = over_seeds(frames["products"], ["product", "outer", "spread"], "error")
    gains = [
        f"{name} {' / '.join(products[name, outer, 0.0].text(2, 1e3) for outer in cases.OUTERS)}"
        for name in ("dgrad", "wgrad")
    ]
    apart = [
        abs(products[name, power, spread].mean / products[name, outside, spread].mean - 1)
        for name in ("dgrad", "wgrad")
        for spread in SPREADS
    ]
    same = (
        f"a power of two does without either what keeping it outside of dgrad and folding it into wgrad's gradient do, "
        f"within {100 * max(apart):.0f} %, which no source states"
        if max(apart) < 0.1
        else f"a power of two is up to {100 * max(apart):.0f} % away from keeping it outside and folding"
    )
    return (
        f"An outer scale that is a power of two keeps exact {listed(told)}. Error of the backward products in "
        f"thousandths, outer scale {' / '.join(cases.OUTERS)}: {listed(gains)}; {same}."
    )


def _about_sources(rows: pd.DataFrame) -> str:
    rows = rows[rows.operand == "activations"]
    forward = over_seeds(rows, ["route"], "to_forward")
    original = over_seeds(rows, ["route"], "to_originals")
    again, kept = "originals again, MXFP8, nearest", "requantized, MXFP8, nearest"
    nearer = "though" if original[again,].mean < original[kept,].mean else "and"
    return (
        f"Activations quantized again from the originals into MXFP8 are {forward[again,].text(2, 1e3)} thousandths "
        f"from what the forward multiplied, requantized ones {forward[kept,].text(2, 1e3)}, {nearer} the former are "
        f"{original[again,].text(2, 1e3)} and the latter {original[kept,].text(2, 1e3)} from the originals."
    )


def tables(frames: Frames) -> tuple[Table, ...]:
    """For readers: every part with intervals, and the published values."""
    milli, percent = (1e3, 3), (100.0, 4)
    of_kinds = shown(
        frames["kinds"],
        ["operand", "kind"],
        dict.fromkeys(("error", "variance", "squared_bias"), milli) | {"bias": percent},
    )
    lengths = shown(
        frames["lengths"],
        ["headroom", "bits"],
        dict.fromkeys(("bias", "shrinkage", "top"), percent) | {"clipped": (100, 1)},
    )
    outer = shown(
        frames["outers"],
        ["operand", "outer"],
        {"exact": (100, 1)} | dict.fromkeys(("nearest", "stochastic", "forward"), milli),
    )
    bits = shown(frames["mxfp8_bits"], ["outer", "bits"], {"bias": percent, "shrinkage": percent, "exact": (100, 1)})
    small = shown(frames["small_scales"], ["headroom", "block", "ratio"], {"bias": percent, "shrinkage": percent})
    return (
        Table("kinds", of_kinds, "Errors in thousandths of the energy, bias in percent, of one requantization."),
        Table("headroom", lengths, "Stochastic NVFP4 of normal values: changes of length in percent, exact means."),
        Table("small_scales", small, "Changes of length in percent, 16 random bits."),
        Table("bits", bits, "Stochastic MXFP8 of saved weights: change of length and share of unbiased values, %."),
        Table("outer", outer, "Into MXFP8: non-zero values kept exactly, %, and errors in thousandths."),
        Table(
            "products",
            shown(frames["products"], ["product", "outer", "spread"], {"error": milli}),
            "Error of the backward products in thousandths; spread: of the logarithm of the tokens' scales.",
        ),
        Table(
            "sources",
            shown(
                frames["sources"],
                ["operand", "route"],
                {"to_forward": milli, "to_originals": milli, "differ": (100, 1)},
            ),
            "Errors in thousandths; values that are not the forward's, %.",
        ),
        published(frames),
    )


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 8 seeds of 512 x 512 values, or 5 of 256 x 256 when `fast`."""
    at = FAST if fast else FULL
    frames = measure(at)
    rows = pd.concat([frame.assign(part=name) for name, frame in frames.items()], ignore_index=True)
    summary = {
        f"{kind} of {operand}": {name: asdict(value) for name, value in zip(columns, values, strict=True)}
        for columns in [("error", "variance", "squared_bias", "bias")]
        for (kind, operand), values in _joined(frames["kinds"], ["kind", "operand"], columns).items()
    }
    figure, caption = requantization_figures.kinds(frames["kinds"])
    plates = (requantization_figures.headroom(frames), requantization_figures.outer(frames))
    finding, *told = find(frames)
    each = tables(frames)
    kinds = each[0].frame[each[0].frame.operand == OPERANDS[0]].drop(columns="operand")
    key = key_table(kinds, f"{OPERANDS[0].capitalize()}: {each[0].caption}")
    return Result(rows, figure, caption, finding, at.seeds, summary, "cpu", (key, *each), plates, tuple(told))


def _joined(rows: pd.DataFrame, keys: list[str], columns: Sequence[str]) -> dict[tuple[Any, ...], tuple[Interval, ...]]:
    each = [over_seeds(rows, keys, name) for name in columns]
    return {key: tuple(found[key] for found in each) for key in each[0]}


STUDY = Study(
    name="requantization_kinds",
    title="Ways to requantize",
    question="When a saved NVFP4 tensor becomes a backward operand, what do the rounding, the headroom, the number of "
    "random bits, the place of the outer scale and the source of the values cost in bias and in noise?",
    run=run,
)
