"""The Hadamard study's figures, each with its caption."""

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import numerics as nm

from . import hadamard_data as data
from . import plots

# colour: width of the elements and kind of scale; dash and marker: FP or INT
_LOOKS = {
    "MXFP8": (plots.BLUE, "o-"),
    "MXINT8": (plots.BLUE, "s--"),
    "MXFP6": (plots.GREEN, "o-"),
    "MXINT6": (plots.GREEN, "s--"),
    "MXFP4": (plots.ORANGE, "o-"),
    "MXINT4": (plots.ORANGE, "s--"),
    "NVFP4": (plots.VERMILION, "o-"),
    "NVINT4": (plots.VERMILION, "s--"),
    "IF4": (plots.BLACK, "^:"),
}
_LENGTHS_AT = 32  # outlier size of the right panel
_BLOCK_OUTLIER = 20.0
SIGN_FORMATS = ("MXINT8", "MXFP4", "NVFP4")


def gains(outliers: pd.DataFrame) -> tuple[Figure, str]:
    """Gain against outlier size, and QSNR against the transform's length."""
    mean = outliers.groupby(["format", "outlier", "size"], sort=False).qsnr.mean().unstack()
    with plots.style():
        figure, (left, right) = plots.panels(2, height=3.3, ratios=(1.1, 1))
        places = range(len(data.OUTLIERS))
        for name, (color, look) in _LOOKS.items():
            left.plot(places, mean.loc[name][32] - mean.loc[name][0], look, color=color, label=name)
            right.plot(range(len(data.SIZES)), mean.loc[name, _LENGTHS_AT], look, color=color)
        left.axhline(0, color=plots.GREY, linewidth=0.8)
        left.set_xticks(places, ["none", *map(str, data.OUTLIERS[1:])])
        left.set_xlabel(f"outlier, standard deviations (one in {data.SPACING} values)")
        left.set_ylabel("gain in QSNR, dB")
        left.set_title("What a transform of 32 gains")
        right.set_xticks(range(len(data.SIZES)), ["none", *map(str, data.SIZES[1:])])
        right.set_xlabel("length of the transform")
        right.set_ylabel("QSNR, dB")
        right.set_title(f"By its length, outliers of {_LENGTHS_AT}")
        figure.legend(loc="outside lower center", ncols=5)
    gain = mean[32] - mean[0]
    best, worst = gain.idxmax(), gain.idxmin()
    caption = (
        "Left: change of the QSNR by a random Hadamard transform of 32, on normal numbers with outliers; most is "
        f"gained by {best[0]} at {best[1]} ({gain[best]:+.1f} dB), most is lost by {worst[0]} at {worst[1]} "
        f"({gain[worst]:+.1f} dB). Right: QSNR by the length of the transform. Mean over "
        f"{outliers.seed.nunique()} seeds."
    )
    return figure, caption


def block(seed: int) -> tuple[Figure, str]:
    """One block of 32 with an outlier: before and after the transform, and the errors of MXINT4 either way."""
    x = data.normal(seed, 1, 32)
    x[0, 11] = _BLOCK_OUTLIER
    signs = nm.hadamard_signs(32, (seed, 0))
    y = nm.hadamard(x, 32, signs)
    plain = nm.quantize(x, nm.MXINT4).dequantize()
    coded = nm.quantize(y, nm.MXINT4).dequantize()
    back = nm.hadamard_inverse(coded, 32, signs)
    before, after = (nm.metrics.crest_factor(t, 32) for t in (x, y))
    with plots.style():
        figure = Figure(figsize=(plots.PAGE, 3.6))
        axes = figure.subplots(2, 2, sharex=True)
        _bars(axes[0, 0], x, plain, plots.VERMILION, f"The block: crest factor {before:.2f}")
        _bars(axes[0, 1], y, coded, plots.BLUE, f"Transformed: crest factor {after:.2f}")
        for place, (decoded, color) in zip(axes[1], ((plain, plots.VERMILION), (back, plots.BLUE)), strict=True):
            error = nm.metrics.error(x, decoded)
            place.bar(range(32), (decoded - x)[0].tolist(), color=color)
            place.set_title(f"Error of the decoded block: QSNR {error.qsnr:.1f} dB")
            place.set_xlabel("value of the block")
        limit = 1.1 * max(float((t - x).abs().max()) for t in (plain, back))
        for place in axes.flat:
            place.set_axisbelow(True)
        for place in axes[1]:
            place.set_ylim(-limit, limit)
        axes[0, 0].set_ylabel("value")
        axes[1, 0].set_ylabel("error")
        axes[0, 0].legend(loc="upper right")
    lost = [int(((t == 0) & (x != 0)).sum()) for t in (plain, coded)]
    caption = (
        f"A block of 32 normal numbers with one of {_BLOCK_OUTLIER:g}, in MXINT4, without a transform (left) and with "
        f"a random one of 32 (right): crest factor {before:.2f} and {after:.2f}, zeros {lost[0]} and {lost[1]}. "
        "Below, what is decoded, the transform undone, less the block."
    )
    return figure, caption


def _bars(axes: Axes, values: torch.Tensor, decoded: torch.Tensor, color: str, title: str) -> None:
    axes.bar(range(32), values[0].tolist(), color="#c8c8c8", label="value")
    axes.plot(range(32), decoded[0].tolist(), ".", color=color, markersize=5, label="decoded")
    axes.set_title(title)


def signs(rows: pd.DataFrame, apart: str) -> tuple[Figure, str]:
    """Error against the offset for three formats: no transform, deterministic and random signs, `apart` in words."""
    square = rows.assign(square=rows.rms_error**2).groupby(["format", "signs", "offset"]).square.mean()
    rms = np.sqrt(square.unstack())
    looks = {"none": (plots.GREY, "^:"), "deterministic": (plots.VERMILION, "o-"), "random": (plots.BLUE, "s--")}
    names = SIGN_FORMATS
    with plots.style():
        figure, axes = plots.panels(len(names), height=2.9)
        for place, name in zip(axes, names, strict=True):
            for kind, (color, look) in looks.items():
                curve = rms.loc[name, kind]
                label = "no transform" if kind == "none" else f"{kind} signs"
                place.plot(range(len(curve)), curve, look, color=color, label=label if place is axes[0] else None)
            place.set_yscale("log")
            place.set_xticks(range(len(data.OFFSETS)), list(map(str, data.OFFSETS)))
            place.set_xlabel("offset m")
            place.set_title(name)
        axes[0].set_ylabel("root mean square error")
        figure.legend(loc="outside lower center", ncols=3)
    caption = (
        "Error on normal numbers plus a constant m. Signs of +1 gather the constant in one coefficient, random ones "
        f"spread it. Deterministic signs have, against random ones, error: {apart}. Mean squares over "
        f"{rows.seed.nunique()} seeds."
    )
    return figure, caption
