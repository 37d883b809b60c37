"""How large is the error of each block format, on which data, and when do integers beat floating point?

    relMSE = sum (x_q - x)^2 / sum x^2      QSNR = -10 log10 relMSE, dB

`format_error_cases` says how formats quantize which data, `format_error_theory` has the closed forms of arXiv
2510.25602, `format_error_crest` measures QSNR against the crest factor of a block, `format_error_published` has the
numbers of others. Seeds are independent tensors; intervals are Student's over seeds, or over matrices of real
data, 95 %.
"""

from collections.abc import Iterable
from dataclasses import asdict

import pandas as pd

from reference.progress import Progress

from . import cache, format_error_crest, format_error_draw, published, real_data
from .format_error_cases import ASKED, KINDS, NEAREST, REAL, REST, VARIANTS, measure, measure_real
from .format_error_published import claims, over
from .format_error_tables import crossings, crossover_caption, forms, real_table, table_of
from .interval import Interval, interval, listed, stated
from .result import Plate, Result, Study, Table, key_table

FOUR = ("NVFP4", "4/6", "16x16", "NVINT4", "IF4", "MXFP4", "MXINT4")
IN_HARDWARE = ("NVFP4", "4/6", "16x16", "MXFP4")  # formats that tensor cores multiply
KEY = ("NVFP4", "4/6", "16x16", "IF4", "MXFP4", "MXFP8", "S2F6 (MXINT8)", "FP8 1x128", "FP8 128x128")
EIGHT = ("MXFP8", "MXFP8 E5M2", "S2F6 (MXINT8)", "FP8 1x128", "FP8 128x128")


def find(rows: pd.DataFrame, crest: pd.DataFrame, reason: str) -> tuple[str, ...]:
    """The finding and its details, in words, from the measurements."""
    synthetic = rows[~rows.data.isin(list(REAL))]
    seeds, values = synthetic.seed.nunique(), int(synthetic["values"].max())
    shown = ("NVFP4", "4/6", "16x16", "MXFP4", "MXFP8", "S2F6 (MXINT8)")
    levels = listed(f"{name} {stated(over(rows, 'gaussian', name, 'qsnr'))}" for name in shown)
    return (
        f"QSNR in dB on normal values: {levels} ({seeds} seeds of {values:,} values, 95 % intervals over seeds).",
        f"{_best(rows, FOUR, 'Of the 4-bit formats')}; {_best(rows, IN_HARDWARE, 'of those in hardware')}; "
        f"{_best(rows, EIGHT, 'of the 8-bit formats')}.",
        _spread(rows),
        _about_forms(forms(rows)),
        _about_crossings(crossings(crest)),
        _about_real(rows, reason),
        published.agreement(claims(rows).frame),
    )


def _kinds(rows: pd.DataFrame) -> list[str]:
    return [kind for kind in [*KINDS, *REAL] if (rows.data == kind).any()]


def best(rows: pd.DataFrame, kind: str, names: Iterable[str]) -> str:
    """The format with the largest mean QSNR on a kind of data; "" where the next is as good within the interval."""
    first, second, *_ = sorted(names, key=lambda name: -over(rows, kind, name, "qsnr").mean)
    gain = interval(gains(rows, kind, first, second))
    return first if gain.mean > gain.half else ""


def _best(rows: pd.DataFrame, names: Iterable[str], what: str) -> str:
    winners: dict[str, list[str]] = {}
    for kind in _kinds(rows):
        winners.setdefault(best(rows, kind, names), []).append(kind)
    said = {name: "all data" if len(winners) == 1 else f"{listed(kinds)} data" for name, kinds in winners.items()}
    told = [f"{name or 'not decided'} on {kinds}" for name, kinds in said.items()]
    return f"{what} the best is {listed(told)}"


def _spread(rows: pd.DataFrame) -> str:
    """How much formats of 8 bits depend on the data, and what they leave of values beside an outlier."""
    told = []
    for name in ("MXFP8", "S2F6 (MXINT8)", "NVFP4"):
        means = [over(rows, kind, name, "qsnr").mean for kind in KINDS]
        rest = over(rows, REST, name, "qsnr")
        told.append(
            f"{name} {min(means):.1f} to {max(means):.1f} dB, and {stated(rest)} on the values beside an outlier"
        )
    return f"Over the {len(KINDS)} kinds of random data: {'; '.join(told)}."


def _about_forms(table: pd.DataFrame) -> str:
    """How far the closed forms lie from what was measured, integers and floating point apart."""
    part = table[table.data != "outlier"]
    fixed = part.format.map(lambda name: VARIANTS[name].fmt.element.kind == "fixed")
    told = []
    for what, these in (("integers", part[fixed]), ("floating point", part[~fixed])):
        paper, refined = (_range(these[column]) for column in ("paper off", "refined off"))
        told.append(f"{what} {paper} as published and {refined} with the scales' measured rho and the steps there are")
    return f"Closed forms minus measured, dB, outlier data apart: {'; '.join(told)}."


def _range(values: pd.Series) -> str:
    return f"{values.min():+.2f} to {values.max():+.2f}"


def _about_crossings(table: pd.DataFrame) -> str:
    told = []
    for _, row in table.iterrows():
        largest = row["largest possible crest"]
        beyond = row.published > largest
        because = f", which is beyond the {largest:.2f} that a block of that size can have" if beyond else ""
        where = f"at {row.measured}" if row.measured[0].isdigit() else row.measured
        again = f", integers again from {text}" if (text := row["integers again from"]) else ""
        told.append(f"{row.pair} {where} (published {row.published:g}{because}){again}")
    return f"Crest of a block above which floating point errs less than integers: {'; '.join(told)}."


def _about_real(rows: pd.DataFrame, reason: str) -> str:
    if reason:
        return f"Real data not measured: {reason}."
    told = []
    for kind in REAL:
        levels = [
            f"{name} {stated(over(rows, kind, name, 'qsnr'))}" for name in ("NVFP4", "4/6", "MXFP8", "S2F6 (MXINT8)")
        ]
        gain = interval(gains(rows, kind, "4/6", "NVFP4"))
        told.append(
            f"{rows[rows.data == kind].tensor.nunique()} {kind}: {listed(levels)}, four-over-six gains {stated(gain)}"
        )
    return f"On a trained model, dB over matrices: {'; '.join(told)}."


def gains(rows: pd.DataFrame, kind: str, name: str, other: str) -> list[float]:
    """How much better a format is than another, dB, tensor by tensor."""
    curves = rows[rows.data == kind].pivot(index="tensor", columns="format", values="qsnr")
    found: list[float] = (curves[name] - curves[other]).tolist()
    return found


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 8 seeds of 1024 x 1024 values of each kind, or 5 of 256 x 1024 when `fast`."""
    lines, blocks, seeds = (256, 1 << 14, tuple(range(5))) if fast else (1024, 1 << 17, tuple(range(8)))
    reason = real_data.missing()
    kinds = [] if reason else list(REAL)
    parts, crests = [], []
    with Progress(len(seeds) * (len(KINDS) + 1) + len(kinds), "format_error") as progress:
        for seed in seeds:
            for kind in KINDS:
                parts.append(cache.part(measure, kind=kind, seed=seed, rows=lines, columns=1024))
                progress.advance(1, f"{kind}, seed {seed}")
            crests.append(cache.part(format_error_crest.measure, seed=seed, count=blocks))
            progress.advance(1, f"crest, seed {seed}")
        for kind in kinds:
            parts.append(cache.part(measure_real, kind=kind, identity=real_data.identity()))
            progress.advance(1, kind)
    rows, crest = pd.concat(parts, ignore_index=True), pd.concat(crests, ignore_index=True)
    rows[list(ASKED)] = rows[list(ASKED)].apply(pd.to_numeric)  # empty cells were read as texts
    return _result(rows, crest, seeds, reason)


def _result(rows: pd.DataFrame, crest: pd.DataFrame, seeds: tuple[int, ...], reason: str) -> Result:
    theory, crossed = forms(rows), crossings(crest)
    over_what = "mean and 95 % interval over seeds, of weights and activations over matrices"
    absent = " Real data not measured." if reason else ""  # the finding and their own table say why
    qsnr = table_of(rows, "qsnr", 2, 1.0, f"QSNR in dB, {over_what}.{absent}")
    tables = (
        key_table(qsnr.frame[qsnr.frame.format.isin(KEY)].drop(columns=list(REAL)), f"QSNR in dB, {over_what}."),
        qsnr,
        table_of(rows, "rel_mse", 4, 1e3, f"relMSE x 1e-3, {over_what}.{absent}"),
        real_table(rows, reason),
        Table(
            "closed_forms", theory.round(4), "QSNR in dB measured and by the closed forms; off: form minus measured."
        ),
        Table("crossovers", crossed, crossover_caption()),
        claims(rows),
        Table("crest", crest, "QSNR in dB by crest factor of the block: bins of a seed."),
    )
    summary = {
        "qsnr": {
            f"{name} on {kind}": asdict(over(rows, kind, name, "qsnr")) for kind in _kinds(rows) for name in NEAREST
        },
        "crossovers": crossed.to_dict("records"),
        "real": reason or "measured",
    }
    caption = (
        "QSNR of each format by kind of data, mean over seeds (over matrices of the trained model); 95 % intervals "
        f"where wider than the marker. {_best(rows, FOUR, 'Of the 4-bit formats')}.{absent}"
    )
    plate = Plate("crest", format_error_draw.draw_crest(crest, crossed), _crest_caption(crossed))
    figure = format_error_draw.draw_errors(_levels(rows))
    finding, *told = find(rows, crest, reason)
    return Result(rows, figure, caption, finding, seeds, summary, "cpu", tables, (plate,), tuple(told))


def _levels(rows: pd.DataFrame) -> dict[str, dict[str, Interval]]:
    """QSNR by kind of data, then by format."""
    return {kind: {name: over(rows, kind, name, "qsnr") for name in NEAREST} for kind in [*_kinds(rows)]}


def _crest_caption(crossed: pd.DataFrame) -> str:
    return (
        "QSNR against the crest factor of a block: points measured, mean over seeds; lines the closed forms for normal "
        f"values. {_about_crossings(crossed)}"
    )


STUDY = Study(
    name="format_error",
    title="Error of every block format",
    question="How large is the error of each block format on random and on real data, do the closed forms predict it, "
    "and at which crest factor does floating point overtake integers?",
    run=run,
)
