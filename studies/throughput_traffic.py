"""What each benchmarked operation has to move, and what a benchmark's table says when its bytes are counted.

Traffic is compulsory traffic: every input read and every result written once, in bytes per element of the float32
matrix, and the matrix read twice where its largest magnitude must be known before the first code. Temporaries are not
in it, so an operation that writes them to memory shows as one that uses little of its bandwidth. Codes are bytes, one a
value; a scale is a byte a block.

    GB/s            traffic x elements / seconds
    share of copy   traffic / 8 x seconds of a copy / own seconds; a copy moves 8 bytes an element
    best ratio      8 / traffic: how much faster than a copy the operation would be at the copy's bandwidth
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hw.bench_numerics import COPY, E2M1_PEER, E4M3_PEER, FOUND, FOUR_OVER_SIX, GIVEN, QUANTIZE, REQUANTIZE

COLUMNS = ("operation", "mode", "seconds", "mega_elements_per_second", "reference", "ratio", "peak")
NEAR, HALF = 0.8, 0.5  # shares of the copy's bandwidth: limited by memory, and in part


@dataclass(frozen=True)
class Traffic:
    """Bytes per element: the matrix or the codes read, and results written. why: what they are."""

    read: float
    written: float
    why: str

    @property
    def total(self) -> float:
        return self.read + self.written


_CODES_NVFP4, _CODES_MXFP8 = 1 + 1 / 16, 1 + 1 / 32
_ENCODE = Traffic(4, 1, "values; codes")
_WITH_CODES = Traffic(8, _CODES_NVFP4 + 4, "values twice; codes, scales, values")
_GIVEN, _FOUND = Traffic(4, 4, "values; values"), Traffic(8, 4, "values twice; values")
TRAFFIC = {
    COPY: Traffic(4, 4, "values; values"),
    E2M1_PEER: _ENCODE,
    E4M3_PEER: _ENCODE,
    "E2M1 encode": _ENCODE,
    "E4M3 encode": _ENCODE,
    QUANTIZE: _WITH_CODES,
    QUANTIZE + GIVEN: _GIVEN,
    QUANTIZE + FOUND: _FOUND,
    FOUR_OVER_SIX: _WITH_CODES,
    FOUR_OVER_SIX + GIVEN: _GIVEN,
    FOUR_OVER_SIX + FOUND: _FOUND,
    REQUANTIZE: Traffic(_CODES_NVFP4, _CODES_MXFP8, "codes, scales; codes, scales"),
    QUANTIZE + ", codes alone": Traffic(4, 0.5 + 1 / 16, "values; packed codes, scales"),
}
_FLOAT64 = ("gfloat",)  # packages that work on float64, whose traffic differs


def known(operation: str, mode: str) -> bool:
    """Whether the operation's traffic is stated here."""
    return operation in TRAFFIC and mode not in _FLOAT64


def read(path: Path) -> pd.DataFrame:
    """The table that `fourbit bench numerics --out` wrote.

    Raises:
        ValueError: the file is none of its tables, or has no copy.
    """
    try:
        frame = pd.read_csv(path)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)!r} is no table of `fourbit bench numerics --out`: {error}") from error
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise ValueError(f"{str(path)!r} lacks {', '.join(missing)}: use a table of `fourbit bench numerics --out`")
    if COPY not in set(frame.operation):
        raise ValueError(f"{str(path)!r} has no line {COPY!r}: use a whole table of `fourbit bench numerics --out`")
    return frame


def rooflines(frame: pd.DataFrame) -> pd.DataFrame:
    """Each line of a benchmark's table with its bytes counted; lines of unknown traffic are left out.

    Args: frame: as `read` gives it.

    Returns:
        Columns operation, mode, bytes, why, elements_per_second, gb_per_second, share (of the copy's bandwidth, by the
        ratio to the reference right before, and that one's to the copy), best, peak, limit.
    """
    to_copy = {row.operation: row.ratio for row in frame.iloc[::-1].itertuples() if row.reference == COPY}
    found = []
    for row in frame.itertuples():
        if not known(row.operation, row.mode):
            continue
        traffic = TRAFFIC[row.operation]
        ratio = 1.0 if row.operation == COPY else row.ratio * (1.0 if row.reference == COPY else to_copy[row.reference])
        share = ratio * traffic.total / TRAFFIC[COPY].total
        rate = row.mega_elements_per_second * 1e6
        found.append(
            {
                "operation": row.operation,
                "mode": row.mode,
                "bytes": traffic.total,
                "why": traffic.why,
                "elements_per_second": rate,
                "gb_per_second": traffic.total * rate / 1e9,
                "share": share,
                "best": TRAFFIC[COPY].total / traffic.total,
                "peak": row.peak,
                "limit": limit(share, row.peak),
            }
        )
    return pd.DataFrame(found)


def limit(share: float, peak: float) -> str:
    """What limits an operation, as far as bytes tell: "memory" at `NEAR` of the copy's bandwidth or more, "memory in
    part" at `HALF` or more; "temporaries" if it were there with all memory beyond inputs and results written and read
    once; else "arithmetic", which includes calls.

    Args: peak: most memory over that of inputs and results, NaN where it was not measured.
    """
    if share >= HALF:
        return "memory" if share >= NEAR else "memory in part"
    return "temporaries" if share * (1 + 2 * (peak - 1)) >= HALF else "arithmetic"
