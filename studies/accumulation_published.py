"""Published numbers that `accumulation` measures as well.

DeepSeek-V3 reports, of two random matrices and K = 4096, "a maximum relative error of nearly 2%" without saying how
they were drawn or what the error is relative to. So all readings are measured; a single one that agreed would prove
little.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from . import accumulation_cases as cases
from .published import Range, compared, table
from .result import Table

DEEPSEEK = "arXiv 2412.19437, section 3.3.2"
MMA_SIM = "arXiv 2511.10909, table 8"
NEARLY = 0.25  # what "nearly" may leave open
POSITIVE = "uniform in 0 to 1"
SANITY = {
    "volta_fp16": 0.0,
    "ampere_fp16": -0.5,
    "ampere_bf16": -0.5,
    "hopper_fp16": -0.75,
    "hopper_bf16": -0.75,
    "blackwell_bf16": -0.75,
    "blackwell_fp8": -0.75,
    "hopper_fp8": 0.0,
    "ada_fp8": 0.0,
}
DEFINITIONS = {
    "of_rms": ("largest error over the rms result", "it grows with the matrix"),
    "of_largest": ("largest error over the largest result", "the largest result stands far out"),
    "of_result": ("largest error over its own result", "it has no bound where a sum cancels"),
}
_UNSTATED = "published without data and definition; "
_ONE_SIGN = "here all products have one sign, and every cut shortens the sum"
_KEPT = "the model's own claim, read off its results"
_CAPTION = "DeepSeek-V3's 2 % has neither data nor definition: every reading stands here, with its range over seeds."


def published(frames: Mapping[str, pd.DataFrame]) -> Table:
    """The table. frames: what the study measured; "largest" is used."""
    bits = float(cases.significant_bits("hopper_fp8"))
    rows = [compared("bits that Hopper's FP8 register keeps", bits, 14, DEEPSEEK, explanation=_KEPT)]
    for data, part in _unpromoted(frames).groupby("data", sort=False):
        for column, (name, why) in DEFINITIONS.items():
            quantity = f"hopper_fp8, K = {int(part.k.iloc[0])}, {data}: {name}, %"
            why = _UNSTATED + (_ONE_SIGN if data == POSITIVE else why)
            rows.append(compared(quantity, _range(part[column]), 2.0, DEEPSEEK, relative=NEARLY, explanation=why))
    for name, value in SANITY.items():
        rows.append(compared(f"2^23 - 2^23 - 1/2 - 1/4 - 1/8 by {name}", cases.sanity(name), value, MMA_SIM))
    return table(rows, _CAPTION)


def about(frames: Mapping[str, pd.DataFrame]) -> str:
    """What the table shows, in words."""
    frame = published(frames).frame
    agree = frame.verdict == "agrees"
    readings = frame.quantity.str.startswith("hopper_fp8")
    part = _unpromoted(frames)
    both, one = (_range(part.of_rms[(part.data == POSITIVE) == kind]) for kind in (False, True))
    return (
        f"{agree.sum()} of {len(frame)} published numbers agree. DeepSeek-V3's nearly 2 % at K = {int(part.k.iloc[0])} "
        f"without data or definition is met by {(agree & readings).sum()} of {readings.sum()} readings: the largest "
        f"error over the rms result is {both[0]:g} to {both[1]:g} % on data of both signs, {one[0]:g} to {one[1]:g} % "
        "on data of one."
    )


def _unpromoted(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    return frames["largest"][frames["largest"].promote == frames["largest"].k]


def _range(values: pd.Series) -> Range:
    """Least and largest over seeds, in percent: a largest value has no interval of its mean to speak of."""
    return float(f"{100 * values.min():.3g}"), float(f"{100 * values.max():.3g}")
