"""What `accumulation` found, in words, and published numbers beside it."""

from typing import Any

import numpy as np
import pandas as pd

from .interval import Interval, interval, listed
from .published import compared, table
from .result import Table

DEEPSEEK = "arXiv 2412.19437, section 3.3.2"


def over_seeds(frame: pd.DataFrame, column: str) -> Interval:
    """The column's interval over seeds, one row for each."""
    return interval(frame.sort_values("seed")[column].tolist())


def summary(length: pd.DataFrame, option: pd.DataFrame, share: pd.DataFrame) -> dict[str, Any]:
    """The finding's numbers: of the longest K, of growth with K, of promotion and of the recipe."""
    longest, seeds = int(length.k.max()), int(length.seed.nunique())
    last = length[length.k == longest]
    at = {
        name: {kind: over_seeds(rows, "error") for kind, rows in part.groupby("data", sort=False)}
        for name, part in last.groupby("accumulator", sort=False)
    }
    bias = {name: over_seeds(part, "bias") for name, part in last[last.data == "one sign"].groupby("accumulator")}
    promoted = {
        kind: {int(n): over_seeds(rows, "error") for n, rows in part.groupby("value")}
        for kind, part in option[option.option == "promote"].groupby("data", sort=False)
    }
    ratio = share.assign(share=share.accumulation / share.total)
    recipe = {
        f"{what} by {name}": (over_seeds(part, "share"), over_seeds(part, "total"))
        for (what, name), part in ratio.groupby(["product", "accumulator"], sort=False)
    }
    growth = {name: _slopes(part) for name, part in length[length.data == "one sign"].groupby("accumulator")}
    return {"k": longest, "seeds": seeds, "error": at, "bias": bias, "promoted": promoted, "recipe": recipe} | {
        "growth": {name: slope for name, slope in growth.items() if slope is not None}
    }


def _slopes(part: pd.DataFrame) -> Interval | None:
    """Of log2 error against log2 K; None where a sum was exact."""
    curves = part.pivot(index="seed", columns="k", values="error")
    if bool((curves <= 0).to_numpy().any()):
        return None
    k = np.log2(np.array(curves.columns, dtype=float))
    return interval([float(np.polyfit(k, np.log2(curve), 1)[0]) for curve in curves.to_numpy()])


def find(told: dict[str, Any]) -> str:
    """The finding."""
    k, seeds, error = told["k"], told["seeds"], told["error"]
    exact = [name for name, kinds in error.items() if kinds["random"].mean == 0]
    inexact = [name for name in error if name not in exact]
    ranked = sorted(inexact, key=lambda name: error[name]["random"].mean)
    worst = ranked[-1]
    words = [
        f"At K = {k:,} the root mean square error of random sums is "
        + listed(_number(name, error[name]["random"]) for name in ranked)
        + f", relative to the sums (95 % intervals over {seeds} seeds)"
        + (f"; without error: {listed(exact)}." if exact else ".")
    ]
    signed = error[worst]["one sign"]
    words.append(
        f"Products of one sign are where cutting toward zero shows: {worst} is off by {signed.text(3, 100)} %, its "
        f"bias {told['bias'][worst].text(3, 100)} %"
        + (f", growing as K to the {told['growth'][worst].text(2)}." if worst in told["growth"] else ".")
    )
    signs = {name: each for name, each in told["bias"].items() if not each.holds(0)}
    shrink = [name for name, each in signs.items() if each.mean < 0]
    words.append(f"Sums shrink, beyond the interval, under {listed(sorted(shrink)) if shrink else 'none'}.")
    words += _promotion(told["promoted"]) + _recipe(told["recipe"])
    return " ".join(words)


def _number(name: str, each: Interval) -> str:
    return f"{each.mean:.2g} ± {each.half:.1g} ({name})"


def _promotion(promoted: dict[str, dict[int, Interval]]) -> list[str]:
    words = []
    for kind, each in promoted.items():
        never, often = each[max(each)], each[128]
        words.append(
            f"Promotion of hopper_fp8 every 128 products lowers the error on {kind} data from {never.text(3, 100)} % "
            f"to {often.text(3, 100)} %, {never.mean / often.mean:.0f} times; every {min(each)} to "
            f"{each[min(each)].text(4, 100)} %."
        )
    return [*words, "Splitting K in S parts is promotion every K / S products, bit for bit."]


def _recipe(recipe: dict[str, tuple[Interval, Interval]]) -> list[str]:
    name, (most, _) = max(recipe.items(), key=lambda item: item[1][0].mean)
    told = [
        f"Of the recipe's own error accumulation is at most {most.mean:.2g} ± {most.half:.1g} of the whole ({name})"
        if most.mean > 0
        else "In the recipe's products accumulation adds nothing"
    ]
    none = [what for what, (share, _) in recipe.items() if share.mean == 0]
    told[0] += f"; nothing in {listed(none)}." if none and most.mean > 0 else "."
    return told


def published(option: pd.DataFrame) -> Table:
    """DeepSeek-V3's statements on the same sums."""
    never = option[(option.option == "promote") & (option.value == option.value.max())]
    largest = {kind: over_seeds(part, "largest").times(100) for kind, part in never.groupby("data", sort=False)}
    reason = (
        "their data are not described; the largest relative error is that of the sum nearest to zero, so it depends on "
        "how many sums there are; ours of one sign have none near zero and all cuts the same way"
    )
    rows = [
        compared(
            f"largest relative error of one sum, K = 4096, {kind}, %", each, 2.0, DEEPSEEK, absolute=0.5,
            explanation=reason,
        )
        for kind, each in largest.items()
    ]  # fmt: skip
    return table(rows, "Published numbers beside ours.")
