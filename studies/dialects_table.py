"""`fourbit dialects`: every dialect in a line, what it makes of zeros, NaN and ties, and how far it errs.

fourbit dialects                    the table
fourbit dialects --format nvfp4     of one format; --csv and --markdown for other programs and pages
fourbit dialects te ggml_nvfp4      these two, with their formulas in words

zero block    the scale of a block of zeros beside others that are not
outer         what is stored outside the block scales: the tensor's amax A, a factor to multiply by ("decode") or to
              divide by ("encode"), for each row or for each 128 values where it says so
NaN           which scales one NaN changes, and its own code where that is a rule
SQNR          as in the study `dialects`, of 256 tokens of 512 standard normal values, float32, seed 0
fixed         whether the decoded values, quantized again, make the same bytes; else the share of blocks that do
source        repository, and the version or commit that was read
"""

import argparse
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import LAYOUTS, Dialect, Layout
from numerics.dialects_layout import scale_values, scales_differ
from numerics.exact_text import exact
from numerics.near import did_you_mean

from .dialects_cases import normal, sqnr
from .result import markdown

TOKENS, WIDTH, SEED = 256, 512, 0
DIALECTS = nm.scales.DIALECTS


def frame(formats: list[str]) -> pd.DataFrame:
    """One row per format and dialect that makes it, in the order of `DIALECTS`."""
    x = normal(SEED, TOKENS, WIDTH)
    rows = [_row(d, LAYOUTS[fmt], x) for fmt in formats for d in DIALECTS.values() if fmt in d.formats]
    return pd.DataFrame(rows)


def _row(d: Dialect, layout: Layout, x: Tensor) -> dict[str, str]:
    where, version = d.origin
    q = d.quantize(x, layout.name)
    values = d.dequantize(q)
    return {
        "dialect": d.name,
        "format": layout.name,
        "zero block": _zero_block(d, layout),
        "outer": _outer(d),
        "NaN": _nan(d, layout),
        "elements": d.rounding,
        "SQNR, dB": f"{sqnr(x, values):.3f}",
        "fixed": _fixed(d, layout, q, d.quantize(values, layout.name)),
        "source": f"{where} {version}".strip(),
    }


def _sample(layout: Layout) -> Tensor:
    """Two blocks, or tiles, along either axis."""
    return normal(SEED, 2 * layout.tile, 2 * layout.block)


def _zero_block(d: Dialect, layout: Layout) -> str:
    x = _sample(layout)
    x[layout.tile :, layout.block :] = 0
    return _stored(d.quantize(x, layout.name).scales[-1, -1], d)


def _stored(scale: Tensor, d: Dialect) -> str:
    if d.scale_format is None:
        return f"{float(scale):.4g}"
    return f"{int(scale):#04x} ({exact(float(scale_values(scale, d.scale_format)))})"


def _outer(d: Dialect) -> str:
    if d.direction is None:
        return "none"
    return d.direction + (" per row" if d.rows else "" if d.run is None else f" per {d.run}")


def _nan(d: Dialect, layout: Layout) -> str:
    """Which scales one NaN makes NaN, or what it makes of its own, where a zero in its place makes another."""
    if d.prose.nonfinite == "not claimed":
        return "not claimed"
    x = _sample(layout)
    x[0, 0] = 0
    without = d.quantize(x, layout.name)
    x[0, 0] = torch.nan
    q = d.quantize(x, layout.name)
    code = f", code {int(q.codes[0, 0]):#04x}" if d.defined_nan else ""
    if poisoned := int(torch.isnan(scale_values(q.scales, d.scale_format)).sum()):
        which = "its scale" if poisoned == 1 else "all scales" if poisoned == q.scales.numel() else "its row's scales"
        return f"{which} NaN{code}"
    if bool(scales_differ(q.scales, without.scales, d.scale_format)[0, 0]):
        return f"its scale {_stored(q.scales[0, 0], d)}{code}"
    return f"passed over{code}"


def _fixed(d: Dialect, layout: Layout, q: Any, again: Any) -> str:
    """Whether two quantizations are the same bytes, or the share of blocks that are."""
    fold = layout.folding(q.codes.shape, 1).fold
    same = (fold(q.codes) == fold(again.codes)).all(-1) & ~scales_differ(q.scales, again.scales, d.scale_format)
    return "yes" if bool(same.all()) else f"{100 * float(same.double().mean()):.2f} %"


def formats_of(name: str | None) -> list[str]:
    """The formats that are called `name`, in any case; all without one. Raises ValueError for an unknown one."""
    if name is None:
        return list(LAYOUTS)
    if name.upper() not in LAYOUTS:
        raise ValueError(f"--format {name}: use one of {', '.join(LAYOUTS)}")
    return [name.upper()]


def words(names: list[str]) -> Iterator[str]:
    """Dialects in words. Raises ValueError for an unknown one."""
    for name in names:
        if name not in DIALECTS:
            raise ValueError(f"dialect {name!r} is unknown{did_you_mean(name, DIALECTS)}: `fourbit dialects` lists all")
        yield str(DIALECTS[name])


def main(argv: list[str]) -> int:
    """`fourbit dialects`: print the table, or dialects in words; return the exit code 0."""
    about, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="fourbit dialects",
        description=about,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="dialects to print in words")
    parser.add_argument("--format", metavar="FORMAT", help=f"one of {', '.join(LAYOUTS)}, in any case")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--csv", action="store_true", help="print CSV")
    how.add_argument("--markdown", action="store_true", help="print a Markdown table")
    given = parser.parse_args(argv)
    if given.names:
        print("\n".join(words(given.names)))
        return 0
    table = frame(formats_of(given.format))
    if given.csv:
        print(table.to_csv(index=False), end="")
    elif given.markdown:
        print(markdown(table))
    else:
        print(table.to_string(index=False, justify="left", formatters={c: _left(table[c]) for c in table}))
        print(f"{table.dialect.nunique()} dialects; `fourbit dialects NAME` prints one in words, --help the columns")
    return 0


def _left(column: pd.Series) -> Any:
    width = max(map(len, [*column, str(column.name)]))
    return lambda text: f"{text:<{width}}"
