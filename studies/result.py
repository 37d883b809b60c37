"""What a study is, and what it returns: data for the harness in `study`."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

FINDING_WORDS, KEY_ROWS = 60, 12


@dataclass(frozen=True, eq=False)
class Table:
    """A table for readers, kept as CSV and Markdown. name: of its files. frame: cells as they are to be read, numbers
    already rounded. caption: one sentence of plain text."""

    name: str
    frame: pd.DataFrame
    caption: str


@dataclass(frozen=True, eq=False)
class Plate:
    """A further figure. name: of its files. caption: what it shows, with its finding, in plain text."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True, eq=False)
class Result:
    """What a study found.

    Attributes:
        rows: every measurement, one a row, with a column for each thing that was varied.
        figure: drawn with `plots`.
        caption: what the figure shows, one or two sentences of plain text.
        finding: the answer in one or two sentences of plain text, with its main number, n and interval, computed from
            `rows`.
        details: what else was found, a sentence each.
        seeds: all seeds that were used.
        summary: the finding's numbers, a JSON object.
        device: where it ran, "cpu" or "cuda".
        tables: for readers. The first is the key table: what the finding rests on, in at most 12 rows and with three
            digits. plates: figures beside the first.

    Raises:
        ValueError: a finding of more than 60 words, or a key table of more than 12 rows.
    """

    rows: pd.DataFrame
    figure: Figure
    caption: str
    finding: str
    seeds: tuple[int, ...]
    summary: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    tables: tuple[Table, ...] = ()
    plates: tuple[Plate, ...] = ()
    details: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        words = len(self.finding.split())
        if words > FINDING_WORDS:
            raise ValueError(f"finding has {words} words: say it in {FINDING_WORDS}, and the rest in details")
        if self.tables and len(self.tables[0].frame) > KEY_ROWS:
            rows = len(self.tables[0].frame)
            raise ValueError(f"tables[0], the key table, has {rows} rows: keep the {KEY_ROWS} that matter")


def key_table(frame: pd.DataFrame, caption: str) -> Table:
    """The key table of a study: `frame` with decimals cut to three digits."""
    return Table("key", frame.map(three_digits), caption)


_DECIMAL = re.compile(r"(-?\d+\.\d+)( ± )?(?(2)(\d+\.\d+))(?!\d)")


def three_digits(cell: Any) -> Any:
    """A cell whose decimals have three digits: 9.041 ± 0.037 becomes 9.04 ± 0.04. Integers and words stay."""
    if isinstance(cell, float):
        return "" if math.isnan(cell) else f"{cell:.3g}"
    if not isinstance(cell, str):
        return cell

    def short(found: re.Match[str]) -> str:
        number, half = float(found[1]), found[3]
        places = 2 if number == 0 else max(0, 2 - math.floor(math.log10(abs(number))))
        places = min(places, len(found[1].partition(".")[2]))
        if half is None:
            return f"{number:.{places}f}"
        short_half = f"{float(half):.{places}f}"
        return f"{number:.{places}f} ± {short_half if float(short_half) else f'{float(half):.1g}'}"

    return _DECIMAL.sub(short, cell)


def markdown(frame: pd.DataFrame) -> str:
    """The frame as a Markdown table; columns of numbers to the right."""
    kinds = ["--:" if pd.api.types.is_numeric_dtype(frame[name]) else "---" for name in frame]
    lines = [list(map(str, frame.columns)), kinds, *([_cell(v) for v in row] for row in frame.itertuples(index=False))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cell(value: Any) -> str:
    text = "" if value is None or value != value else f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


@dataclass(frozen=True)
class Study:
    """A question and the function that answers it.

    Attributes:
        name: of its folder and on the command line.
        title: a few words.
        question: one sentence.
        run: measures; its argument asks for the fast version, which is smaller but complete.
        threads: of torch while it runs, because the order of FP32 sums depends on them. Studies of small tensors are
            fastest on one: with more, each of many small operations waits for a thread that another program may hold.
        alone: whether it times something, so that nothing else may run beside it.
    """

    name: str
    title: str
    question: str
    run: Callable[[bool], Result]
    threads: int = 1
    alone: bool = False
