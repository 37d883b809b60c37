"""Published numbers that `accumulation` measures as well."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from . import accumulation_cases as cases
from .published import compared, table
from .result import Table

DEEPSEEK = "arXiv 2412.19437, section 3.3.2"
MMA_SIM = "arXiv 2511.10909, table 8"
NEARLY = 0.25  # "nearly 2 %", "around 14 bits": what round words may leave open
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
    "of_rms": ("largest error over the rms result", "neither data nor definition are published; grows with the matrix"),
    "of_largest": ("largest error over the largest result", "neither data nor definition are published"),
    "of_result": (
        "largest error over its own result",
        "neither data nor definition are published; where sums may cancel this has no bound, where they cannot every "
        "cut has one direction",
    ),
}
_KEPT = "the model's own claim, read off its results"


def published(frames: Mapping[str, pd.DataFrame]) -> Table:
    """The table. frames: what the study measured; "largest" is used."""
    rows = [
        compared(
            "bits that Hopper's FP8 register keeps",
            float(cases.significant_bits("hopper_fp8")),
            14,
            DEEPSEEK,
            explanation=_KEPT,
        )
    ]
    largest = frames["largest"]
    largest = largest[largest.promote == largest.k]
    for data, part in largest.groupby("data", sort=False):
        for column, (name, why) in DEFINITIONS.items():
            ours = (
                100 * float(part[column].min()),
                100 * float(part[column].max()),
            )  # a largest has no mean to speak of
            quantity = f"hopper_fp8, K = {int(part.k.iloc[0])}, {data}: {name}, %"
            rows.append(compared(quantity, ours, 2.0, DEEPSEEK, relative=NEARLY, explanation=why))
    rows += [
        compared(f"2^23 - 2^23 - 1/2 - 1/4 - 1/8 by {name}", cases.sanity(name), value, MMA_SIM)
        for name, value in SANITY.items()
    ]
    return table(
        rows,
        "DeepSeek-V3's 2 % has neither data nor definition, so every reading stands here, with its range over seeds.",
    )


def about(frames: Mapping[str, pd.DataFrame]) -> str:
    """What the table shows: a sentence."""
    frame = published(frames).frame
    agree = frame.verdict == "agrees"
    readings = frame.quantity.str.startswith("hopper_fp8")
    largest = frames["largest"]
    largest = largest[(largest.promote == largest.k) & (largest.data != "uniform in 0 to 1")]
    one = frames["largest"]
    one = one[(one.promote == one.k) & (one.data == "uniform in 0 to 1")]
    return (
        f"{agree.sum()} of {len(frame)} published numbers agree. DeepSeek-V3's nearly 2 % at K = 4096, which comes without "
        f"data or definition, is met by {(agree & readings).sum()} of {readings.sum()} readings: the largest error over "
        f"the rms result is {100 * largest.of_rms.min():.2f} to {100 * largest.of_rms.max():.2f} % on data of both signs, "
        f"{100 * one.of_rms.min():.2f} to {100 * one.of_rms.max():.2f} % on data of one."
    )
