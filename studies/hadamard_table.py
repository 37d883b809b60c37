"""The Hadamard study's tables for readers, and the published numbers that stand in them."""

from dataclasses import dataclass

import pandas as pd
import torch

from . import hadamard_data as data
from .interval import interval
from .published import compared, table
from .result import Table

SOURCE = "arXiv 2510.25602, tensor-wise analysis"


@dataclass(frozen=True)
class Pair:
    """Formats of one width and one kind of scale, and the crest factor at which arXiv 2510.25602, section 4, finds
    them equal: below it the integer errs less."""

    name: str
    integer: str
    floating: str
    crossover: float


PAIRS = (
    Pair("MXINT8 / MXFP8", "MXINT8", "MXFP8", 7.55),
    Pair("MXINT6 / MXFP6", "MXINT6", "MXFP6", 1.96),
    Pair("MXINT4 / MXFP4", "MXINT4", "MXFP4", 2.04),
    Pair("NVINT4 / NVFP4", "NVINT4", "NVFP4", 2.39),
)

# Llama-3.1-8B, 10,752 tensors: without a transform, and behind a random one of 32
QSNR = {
    "MXFP8": (31.50, 31.51),
    "MXINT8": (40.35, 41.93),
    "MXFP6": (30.39, 31.03),
    "MXINT6": (28.57, 30.18),
    "MXFP4": (17.98, 18.79),
    "MXINT4": (15.89, 17.22),
    "NVFP4": (20.60, 20.35),
    "NVINT4": (20.55, 21.65),
}
CREST = {32: (2.48, 2.35), 16: (2.16, 2.10)}  # medians over tensors, blocks of 32 and 16

_SET = "the tail of the data was chosen to give it"
_BEFORE = "other data: one Student-t tail stands for all tensors, and equal crest factors leave the tail open"
_BEHIND = "other data; behind the transform both are nearly normal"
NEAR = 0.25  # dB, within which numbers of other data are called alike
_MILD = 8  # outlier size that the explanation of what is left names


def published_table(tails: pd.DataFrame, outliers: pd.DataFrame) -> Table:
    """Published numbers of real tensors beside those of Student-t numbers.

    outliers: what explains differences behind a transform, where tails are gone and large outliers are not.
    """
    rows = []
    mild = outliers[(outliers.outlier == _MILD) & (outliers["size"] == 32)].groupby("format").qsnr.mean()
    student = tails[tails.data == "Student-t"]
    for name, values in QSNR.items():
        for size, value in zip((0, 32), values, strict=True):
            ours = interval(student[(student.format == name) & (student["size"] == size)].qsnr.tolist())
            near = abs(ours.mean - value) <= NEAR
            behind = _BEHIND if near else f"other data; normal numbers with outliers of {_MILD} have {mild[name]:.2f}"
            what, why = f"QSNR of {name}, {_named(size)}, dB", behind if size else _BEFORE
            rows.append(compared(what, ours, value, SOURCE, absolute=NEAR, explanation=why))
    for block, values in CREST.items():
        form = "MXFP8" if block == 32 else "NVFP4"
        for size, value in zip((0, 32), values, strict=True):
            part = student[(student.format == form) & (student["size"] == size)]
            ours = interval(part.crest_median.tolist())
            far = f"the mean over blocks, {part.crest_mean.mean():.2f}, may be what is published"
            why = _SET if (block, size) == (32, 0) else "" if abs(ours.mean - value) <= 0.01 else far
            what = f"median crest factor, blocks of {block}, {_named(size)}"
            rows.append(compared(what, ours, value, SOURCE, absolute=0.05, explanation=why))
    return table(rows, "Published numbers of real tensors beside this study's data:")


def _named(size: int) -> str:
    return f"transform of {size}" if size else "no transform"


def gains_table(outliers: pd.DataFrame) -> pd.DataFrame:
    """One row a format, one column an outlier size: "QSNR without > with"."""
    mean = outliers.groupby(["format", "outlier", "size"], sort=False).qsnr.mean()
    rows = []
    for name in outliers.format.unique():
        row = {"format": name}
        for outlier in outliers.outlier.unique():
            row[f"{outlier} sd" if outlier else "no outlier"] = (
                f"{mean[name, outlier, 0]:.1f} > {mean[name, outlier, 32]:.1f}"
            )
        rows.append(row)
    return pd.DataFrame(rows)


def winners_table(outliers: pd.DataFrame) -> pd.DataFrame:
    """One row a pair and transform: at how many outlier sizes the integer is ahead, what the crest factor foretells."""
    mean = outliers.groupby(["size", "outlier", "format"])[["qsnr", "crest_mean"]].mean()
    sizes = list(outliers.outlier.unique())
    rows = []
    for pair in PAIRS:
        for size in (0, 32):
            by_format = [mean.loc[size, outlier] for outlier in sizes]
            ahead = [each.qsnr[pair.integer] > each.qsnr[pair.floating] for each in by_format]
            crests = [each.crest_mean[pair.integer] for each in by_format]
            right = sum(a == (crest < pair.crossover) for a, crest in zip(ahead, crests, strict=True))
            margins = [each.qsnr[pair.integer] - each.qsnr[pair.floating] for each in by_format]
            count, foretold = (f"{n} of {len(sizes)}" for n in (sum(ahead), right))
            margin, crest = f"{min(margins):+.1f} to {max(margins):+.1f}", f"{min(crests):.2f} to {max(crests):.2f}"
            rows.append((pair.name, str(size or "none"), count, margin, crest, pair.crossover, foretold))
    names = ["pair", "transform", "INT ahead at", "INT less FP, dB", "mean crest factor", "published crossover"]
    return pd.DataFrame(rows, columns=[*names, "crossover right at"])


def signs_table(signs: pd.DataFrame) -> pd.DataFrame:
    """One row a format and kind of signs, one column an offset: root mean square errors."""
    square = signs.assign(square=signs.rms_error**2)
    mean = square.groupby(["format", "signs", "offset"], sort=False).square.mean().unstack() ** 0.5
    frame = mean.map(lambda value: f"{value:.3g}").rename(columns=lambda offset: f"m = {offset}").reset_index()
    return frame


def constants_table(constants: pd.DataFrame) -> pd.DataFrame:
    """One row a size of the transform."""
    published = data.largest_of_constant(torch.tensor(data.TRANSFORMER_ENGINE))
    return pd.DataFrame(
        {
            "size": constants["size"],
            "all +1": constants.deterministic.round(2),
            "random, median": constants.random.round(2),
            "random, extremes": [f"{a:.2f} to {b:.2f}" for a, b in zip(constants.least, constants.most, strict=True)],
            "draws": constants["keys"],
            "Transformer Engine's": [f"{published:.2f}" if size == 16 else "" for size in constants["size"]],
        }
    )


def claims_table(outliers: pd.DataFrame, tails: pd.DataFrame, signs: pd.DataFrame) -> pd.DataFrame:
    """What sources say of where a transform helps, what is measured here, and whether that goes with it.

    Sources speak of training and of real tensors; only errors are measured here.
    """
    mean = outliers.groupby(["format", "outlier", "size"]).qsnr.mean()
    gain = mean.xs(32, level="size") - mean.xs(0, level="size")
    tail = tails[tails.data == "Student-t"].groupby(["format", "size"]).qsnr.mean().unstack()
    tail_gain = tail[32] - tail[0]
    by_length = {size: mean["NVFP4", 32, size] for size in data.SIZES[1:]}
    spread = max(by_length.values()) - min(by_length.values())
    square = signs.assign(square=signs.rms_error**2).groupby(["format", "offset", "signs"]).square.mean().unstack()
    less = square.loc["MXFP4"].query("offset > 0").eval("deterministic < random")
    ahead = {size: tail[size]["NVINT4"] - tail[size]["NVFP4"] for size in (0, 32)}
    rows = [
        (
            "NVFP4's blocks of 16 leave a rotation little to win, MXFP4 gains (arXiv 2509.23202)",
            f"Student-t: NVFP4 {tail_gain['NVFP4']:+.2f} dB, MXFP4 {tail_gain['MXFP4']:+.2f} dB",
            _verdict(tail_gain["NVFP4"] < 0.1, tail_gain["MXFP4"] > 0.1),
        ),
        (
            "behind a rotation NVINT4 passes NVFP4 (arXiv 2510.25602)",
            f"Student-t: NVINT4 less NVFP4 {ahead[0]:+.2f} dB before, {ahead[32]:+.2f} dB behind",
            _verdict(ahead[0] < 0, ahead[32] > 0),
        ),
        (
            "a transform in the NVFP4 forward hurts training (arXiv 2509.25149, appendix E)",
            f"NVFP4 with outliers: {gain['NVFP4'].loc[4:].min():+.1f} to {gain['NVFP4'].loc[4:].max():+.1f} dB",
            _verdict(gain["NVFP4"].loc[4:].max() < 0),
        ),
        (
            "its length, 16 to 128, makes little difference in training, 128 is slightly better (the same)",
            f"NVFP4, outliers of 32: {', '.join(f'{value:.1f} dB at {size}' for size, value in by_length.items())}",
            _verdict(by_length[128] >= max(by_length.values()), spread < 1),
        ),
        (
            "for MXFP4 weight gradients deterministic signs help where random ones do not (arXiv 2605.09825)",
            f"less error with deterministic signs at m = {', '.join(str(m) for m in less.index[less]) or 'none'}",
            _verdict(bool(less.any()), bool(less.all())),
        ),
        (
            "in the combine S2F6 needs the transform, and MXFP8 stays lossy with it (Thinking Machines Lab, 2026)",
            f"outliers of 64: MXINT8 {gain['MXINT8'][64]:+.1f} dB, MXFP8 {gain['MXFP8'][64]:+.1f} dB",
            _verdict(gain["MXINT8"][64] > 3, gain["MXFP8"][64] < 1),
        ),
    ]
    return pd.DataFrame(rows, columns=["claim", "measured here", "goes with it"])


def _verdict(*holds: bool) -> str:
    return "yes" if all(holds) else "in part" if any(holds) else "no"
