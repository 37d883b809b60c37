"""Whose largest magnitude may set the FP32 scale outside of NVFP4's block scales: tensor, expert or token?

    company     is a token bit-equal when other tokens leave, come, are reordered, are routed otherwise or grow?
    leak        how much of a causal model's earlier tokens changes when the last one is multiplied by a factor?
    underflow   which blocks become zero beside larger ones, and with token scales spread over decades how many?
    error       relMSE of each token

Each scope also with its outer scale rounded up to a power of two: a change of its amax then moves the outer by powers
of two, which block scales take up exactly while they are normal, so decoded values stay though bytes do not.

Data are standard normal; `outer_scale_cases` measures, `outer_scale_figures` draws. Intervals are Student's over seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from reference.progress import Progress

from . import cache, outer_scale_figures
from . import outer_scale_cases as cases
from .interval import listed, over_seeds, shown
from .published import RECOMPUTED, Claim, Range, claimed
from .result import Result, Study, Table, key_table

FACTORS = (10.0, 1e2, 1e3, 1e4, 1e5, 1e6)
DECADES = (0.0, 2.0, 4.0, 5.0, 6.0, 8.0)
LARGEST = (1.0, 1.25, 1.3125, 1.5, 1.75, 5.33)
Frames = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Size:
    """Tensors of (experts, tokens, width) and the seeds."""

    shape: tuple[int, int, int]
    seeds: tuple[int, ...]


FAST, FULL = Size((4, 32, 512), tuple(range(5))), Size((4, 64, 2048), tuple(range(8)))


def measure(at: Size) -> Frames:
    """A frame of each part, all seeds and both formats together."""
    plan: list[tuple[str, Any, dict[str, Any]]] = [
        ("invariance", cases.invariance, {}),
        ("leaks", cases.leaks, {"factors": list(FACTORS)}),
        *(("spreads", cases.spreads, {"of": of, "decades": list(DECADES)}) for of in ("tokens", "experts")),
    ]
    sizes = dict(zip(("experts", "tokens", "width"), at.shape, strict=True))
    names = (*cases.FORMATS, cases.SIX)
    found = {"thresholds": [cache.part(cases.thresholds, fmt=name, largest=list(LARGEST)) for name in names]}
    with Progress(len(plan) * len(at.seeds) * len(cases.FORMATS), "outer_scale") as progress:
        for seed in at.seeds:
            for fmt in cases.FORMATS:
                for name, function, inputs in plan:
                    part = cache.part(function, fmt=fmt, seed=seed, **sizes, **inputs)
                    found.setdefault(name, []).append(part)
                    progress.advance(1, f"{name} of {fmt}, seed {seed}")
    return {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}


def find(frames: Frames) -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements."""
    seeds, values = frames["leaks"].seed.nunique(), int(frames["spreads"].n.iloc[0])
    n = f"95 % intervals over {seeds} seeds of {values:,} normal values"
    told = [_about_company(frames["invariance"]), _about_leak(frames["leaks"]), _about_power(frames)]
    return (_lead(frames, n), *told, _about_underflow(frames), _about_error(frames["spreads"]), f"{n}.")


def _lead(frames: Frames, n: str) -> str:
    rows, company = frames["leaks"], frames["invariance"]
    changed = over_seeds(rows[rows.factor == FACTORS[0]], ["format", "scope"], "changed")
    fmt = next(iter(cases.FORMATS))
    told = [f"{changed[fmt, scope].text(1, 100)} % (one per {scope})" for scope in ("tensor", "expert")]
    least = company.groupby("scope", sort=False)["values"].min()
    kept = [scope for scope in least.index if least[scope] == 1]
    first = f"When one token grows tenfold, {listed(told)} of all other tokens' values change in {fmt} ({n})."
    return _bracketed(first + (f" None changes with one per {listed(kept)}." if kept else ""))


def _about_company(rows: pd.DataFrame) -> str:
    lowest = rows.groupby("scope", sort=False)[["values", "codes"]].min()
    bytes_too = [scope for scope in lowest.index if lowest.codes[scope] == 1]
    values = [scope for scope in lowest.index if lowest["values"][scope] == 1]
    only = [scope for scope in values if scope not in bytes_too]
    one = rows[rows.format == rows.format.iloc[0]]  # formats see the same tensors: they are no further seeds
    part = over_seeds(one, ["scope", "change"], "values")
    halved, grown = (
        listed(f"{scope} {part[scope, change].text(0, 100)} %" for scope in lowest.index if scope not in values)
        for change in ("half of the tokens", "one token x 10")
    )
    told = [
        f"Whether tokens leave, come, change order or expert, or one grows tenfold, a token's bytes stay where the "
        f"scope of the outer scale is {' or '.join(bytes_too)}"
        if bytes_too
        else "With no scope do a token's bytes stay whatever its company does"
    ]
    if only:
        told.append(f"its decoded values, though not all bytes, stay also where it is {' or '.join(only)}")
    if len(values) < len(lowest):
        told.append(
            f"otherwise the tokens whose values stay are, when half of the tokens leave, {halved}, and when one grows "
            f"tenfold, {grown} ({one.format.iloc[0]})"
        )
    return _bracketed("; ".join(told) + ".")


def _bracketed(text: str) -> str:
    """Names of scopes as they read in a list: `token (power of two)`."""
    return text.replace(", power of two", " (power of two)")


def _about_leak(rows: pd.DataFrame) -> str:
    tenfold = rows[rows.factor == FACTORS[0]]
    changed, leak = (over_seeds(tenfold, ["format", "scope"], name) for name in ("changed", "leak"))
    told = []
    for fmt in cases.FORMATS:
        told += [
            f"{changed[fmt, scope].text(1, 100)} % by a relMSE of {leak[fmt, scope].text(1, 1e3)} thousandths "
            f"({fmt}, {scope})"
            for scope in ("tensor", "expert")
        ]
    token = rows[rows.scope.str.startswith("token")].changed.max()
    none = "none, whatever the factor" if token == 0 else f"up to {100 * token:.1f} %"
    return f"The last token times 10 changes, of all others' values, {listed(told)}; with an outer per token {none}."


def _about_power(frames: Frames) -> str:
    rows = frames["leaks"]
    rows = rows[rows.scope == "tensor, power of two"]
    power = rows.groupby("factor").changed.max()
    clean = [factor for factor in power.index if (power[power.index <= factor] == 0).all()]
    if not clean:
        return "A power of two for the tensor leaks as well."
    most = max(clean)
    beyond = min((factor for factor in power.index if factor > most), default=None)
    most_of = rows[rows.factor == beyond].groupby("format", sort=False).changed.max()
    shares = listed(f"{100 * share:.1f} % in {fmt}" for fmt, share in most_of.items()) if beyond is not None else ""
    after = f", and up to {shares} at {beyond:g}, as block scales are subnormal" if shares else ""
    return (
        f"One for the tensor, rounded up to a power of two, leaks nothing up to a factor of {most:g}{after}: no source "
        "states that a power of two makes values independent of their company without a scale per token."
    )


def _about_underflow(frames: Frames) -> str:
    limits = frames["thresholds"]
    ratio = limits.groupby(["format", "rounding"]).ratio.agg(["min", "max"])
    told = [f"{fmt} from {ratio['min'][fmt, 'FP32']:,.0f} on" for fmt in (*cases.FORMATS, cases.SIX)]
    saved = ratio["min"]["four-over-six", "FP32"] / ratio["min"][cases.SIX, "FP32"]
    choice = f", since the choice of 4 reaches {saved:.2f} times as far, which no source states" if saved > 1.01 else ""
    lowest = listed(f"{fmt} {ratio['min'][fmt, 'pow2']:,.0f}" for fmt in cases.FORMATS)
    rows = frames["spreads"]
    most = max(DECADES)
    rows = rows[(rows.format == "NVFP4") & (rows.of == "tokens")]
    zero = over_seeds(rows[rows.decades == most], ["scope"], "zero_blocks")
    lost = [f"{scope} {zero[scope,].text(1, 100)} %" for scope in ("tensor", "expert", "token")]
    return (
        f"A block becomes zero where the tensor's largest magnitude is at least so many times its own: {listed(told)}"
        f"{choice}; with a power of two, from as little as {lowest} on. With token scales spread over {most:g} "
        f"decades, blocks that become zero: {listed(lost)}."
    )


def _about_error(rows: pd.DataFrame) -> str:
    equal = over_seeds(rows[(rows.decades == 0) & (rows.of == "tokens")], ["format", "scope"], "error")
    told = [
        f"{fmt} {' / '.join(equal[fmt, scope.name].text(3, 1e3) for scope in cases.SCOPES)}" for fmt in cases.FORMATS
    ]
    means = {fmt: [equal[fmt, scope.name].mean for scope in cases.SCOPES] for fmt in cases.FORMATS}
    apart = max(max(each) / min(each) - 1 for each in means.values())
    verdict = (
        f"scopes differ by {100 * apart:.1f} % at most" if apart < 0.02 else f"scopes differ by {100 * apart:.0f} %"
    )
    names = _bracketed(" / ".join(scope.name for scope in cases.SCOPES))
    return f"For equal tokens {verdict} in error ({listed(told)} thousandths for {names})."


TOLERANCE = 0.03
_TENSOR = {"scope": "tensor", "factor": 10.0}
_MANTISSA = "depends on how far the outer moves by other than a power of two: other draws give 3 to 11"


def _error(fmt: str, scope: str, value: float) -> Claim:
    where = {"format": fmt, "scope": scope, "decades": 0.0, "of": "tokens"}
    return Claim(f"{fmt}, outer of {scope}: error x 1e-3", "spreads", where, "error", value, RECOMPUTED)


def _leak(fmt: str, column: str, value: float | Range, factor: float, note: str = "") -> Claim:
    unit = "%" if factor == 100 else "x 1e-3"
    quantity = f"{fmt}, last token x 10, outer of tensor: {column}, {unit}"
    return Claim(quantity, "leaks", _TENSOR | {"format": fmt}, column, value, RECOMPUTED, factor, note)


def _limit(fmt: str, ratio: float, note: str = "") -> Claim:
    where = {"format": fmt, "rounding": "FP32"}
    quantity = f"{fmt}: a block becomes zero at amax / bmax"
    return Claim(quantity, "thresholds", where, "ratio", ratio, RECOMPUTED, 1.0, note)


VALUES = (
    *(_leak(fmt, "changed", (92, 93), 100) for fmt in cases.FORMATS),
    *(_leak(fmt, "leak", (6.5, 7.5), 1e3, _MANTISSA) for fmt in cases.FORMATS),
    _leak("NVFP4", "codes", 6.7, 100, "one draw; " + _MANTISSA.split(":", maxsplit=1)[0]),
    _leak("four-over-six", "codes", 18, 100, "one draw; " + _MANTISSA.split(":", maxsplit=1)[0]),
    Claim("any factor, outer of token: changed, %", "leaks", {"scope": "token"}, "changed", 0, RECOMPUTED, 100),
    _limit("NVFP4", 458752),
    _limit(cases.SIX, 262144),
    _limit(
        "four-over-six", 262144, "published: of the candidate 6; that of 4 has a scale 1.5 times as large, and is taken"
    ),
    _error("NVFP4", "tensor", 9.050),
    _error("NVFP4", "tensor, power of two", 9.037),
    _error("NVFP4", "token", 9.054),
    _error("four-over-six", "tensor", 7.562),
    _error("four-over-six", "tensor, power of two", 7.553),
    _error("four-over-six", "token", 7.562),
)


def tables(frames: Frames, width: int) -> tuple[Table, ...]:
    """For readers: every part with intervals, and the published values."""
    percent, milli = (100.0, 1), (1e3, 3)
    company = shown(frames["invariance"], ["format", "scope", "change"], {"values": percent, "codes": percent})
    leak = shown(frames["leaks"], ["format", "scope", "factor"], {"changed": percent, "codes": percent, "leak": milli})
    columns = {"flushed": percent, "zero_blocks": percent, "error": milli, "total_error": milli}
    spread = shown(frames["spreads"], ["format", "of", "scope", "decades"], columns)
    cost = f"a scale per token costs 32 bits a token, {32 / width:g} bits per value here"
    one = leak[leak.factor.astype(float) == FACTORS[0]].drop(columns="factor")
    caption = f"Other tokens' values and codes that change when one token grows {FACTORS[0]:g} times, %; relMSE x 1e3."
    return (
        key_table(one, caption),
        Table("invariance", company, "Tokens that stay bit-equal when their company changes, %: values and bytes."),
        Table("leak", leak, "Other tokens' values and element codes that change, %, and relMSE in thousandths."),
        Table("spread", spread, f"Scales of tokens or experts spread over decades: %, and thousandths; {cost}."),
        Table("thresholds", frames["thresholds"], "Ratio of the largest magnitudes from which a block becomes zero."),
        claimed(frames, VALUES, TOLERANCE),
    )


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 8 seeds of 4 x 64 x 2048 values, or 5 of 4 x 32 x 512 when `fast`."""
    at = FAST if fast else FULL
    frames = measure(at)
    rows = pd.concat([frame.assign(part=name) for name, frame in frames.items()], ignore_index=True)
    changed = over_seeds(frames["leaks"], ["format", "scope", "factor"], "changed")
    summary = {
        "changed": {f"{fmt}, {scope}, x {factor:g}": value.mean for (fmt, scope, factor), value in changed.items()},
        "thresholds": frames["thresholds"].to_dict("records"),
    }
    figure, caption = outer_scale_figures.main(frames)
    plates = (outer_scale_figures.company(frames["invariance"]),)
    finding, *told = find(frames)
    shown_ = tables(frames, at.shape[2])
    return Result(rows, figure, caption, finding, at.seeds, summary, "cpu", shown_, plates, tuple(told))


STUDY = Study(
    name="outer_scale",
    title="Whose outer scale",
    question="When NVFP4's outer scale is shared by a tensor, by an expert or by one token, as FP32 or as a power of "
    "two, what do tokens see of each other, and which values are lost?",
    run=run,
)
