"""`fourbit explorer`: notebooks 1 and 2 as one static page, for a browser without Python, a server or a network.

    fourbit explorer --out explorer.html

The page computes by itself, in JavaScript (`explorer_page/`): its pure part (`numbers.js`, `formats.js`, `card.js`,
`blocks.js`) does what numerics does, operation by operation, and the tests compare the two bit for bit, all codes of
every format; the rest of it draws. What a format is, the values of its codes and the constants of the rules are not
written there: they are taken from numerics when the page is made, and its foot tells their sha256. Equal tables give
equal pages: nothing of the time or of the machine is in it but the version of fourbit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from importlib import metadata
from pathlib import Path
from typing import Any

import numerics as nm
from numerics.formats import FORMATS, Format
from numerics.outer import FLT_MAX, LEAST_OUTER
from numerics.rounding import reciprocal

PARTS = Path(__file__).resolve().parent / "explorer_page"
ARITHMETIC = ("numbers.js", "formats.js", "card.js", "blocks.js")  # runs without a page too
VIEWS = ("draw.js", "line.js", "bits.js", "bars.js", "block.js", "main.js")
TABLE_BITS = 8  # wider formats are decoded by their formula: a table of TF32 has half a million entries

BLOCKS = {"NVFP4": nm.NVFP4, "NVFP4_46": nm.NVFP4_46, "MXFP4": nm.MXFP4}
TARGETS = (6.0, 4.0)  # what four-over-six maps a block's largest magnitude to: numerics.scales.four_over_six


def described(fmt: Format) -> dict[str, Any]:
    """A format as the page takes it: its fields, what follows from them and, up to 8 bits, the value of every code."""
    fields = ("name", "kind", "bits", "exponent_bits", "mantissa_bits", "bias", "specials", "signed")
    derived = ("min_exponent", "max_code", "nan_code", "min", "max", "min_normal", "min_subnormal")
    about = {name: getattr(fmt, name) for name in (*fields, *derived)}
    if fmt.bits <= TABLE_BITS:
        about["table"] = [_number(value) for value in fmt.table().tolist()]
    return about


def _number(value: float) -> float | str:
    """A value as JSON has it: NaN and infinities as the words that JavaScript's Number() reads."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def tables() -> dict[str, Any]:
    """Everything that the page takes from numerics, ready for JSON."""
    blocks = {}
    for name, fmt in BLOCKS.items():
        assert fmt.scale is not None  # each of the three has scale codes
        blocks[name] = {
            "element": fmt.element.name,
            "scale": fmt.scale.name,
            "length": fmt.block,
            "rule": fmt.rule.name,
            "source": fmt.rule.source,
            "outer_max": None if fmt.outer is None else fmt.rule.outer_max(fmt.element),
            "reciprocal": reciprocal(fmt.element.max),
            "targets": list(TARGETS),
        }
    formats = {name: described(fmt) for name, fmt in FORMATS.items()}
    roundings = [rounding.value for rounding in nm.Rounding]
    limits = {"float32_max": FLT_MAX, "least_outer": LEAST_OUTER}
    return {"formats": formats, "blocks": blocks, "roundings": roundings} | limits


def text_of(data: dict[str, Any]) -> str:
    """The tables as the page holds them. Shortest decimals: every number is read back as it was."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def page() -> str:
    """The whole page. Raises ValueError if a part of it could end its own element early."""
    data = text_of(tables())
    digest = hashlib.sha256(data.encode()).hexdigest()
    parts = {
        "style": _read("page.css"),
        "data": data,
        "arithmetic": "\n".join(map(_read, ARITHMETIC)),
        "views": "\n".join(map(_read, VIEWS)),
        "version": _version(),
        "digest": digest,
    }
    whole = _read("page.html")
    for name, text in parts.items():
        if "</script" in text.lower() or "</style" in text.lower() or "<!--" in text:
            raise ValueError(f"{name} of the page holds the end of an element: write it in two pieces")
        whole = whole.replace("{{" + name + "}}", text)
    return whole


def _read(name: str) -> str:
    return (PARTS / name).read_text("utf-8").rstrip("\n")


def _version() -> str:
    try:
        return metadata.version("fourbit")
    except metadata.PackageNotFoundError:
        return "not installed"


def main(argv: list[str]) -> int:
    """Write the page; returns the exit code 0. Raises OSError for a path that cannot be written."""
    about = "Write one static page that shows the bits of numbers and blocks of sixteen values; open it in a browser."
    parser = argparse.ArgumentParser(prog="fourbit explorer", description=about)
    parser.add_argument("--out", type=Path, default=Path("explorer.html"), metavar="FILE", help="default: %(default)s")
    out = parser.parse_args(argv).out
    out.write_text(page(), "utf-8")
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB; open it in a browser")
    return 0
