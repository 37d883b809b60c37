"""What a study is, and what it returns: data for the harness in `study`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure


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
        finding: the answer in plain text, one paragraph without the question; states n and an interval, computed
            from `rows`.
        seeds: all seeds that were used.
        summary: the finding's numbers, a JSON object.
        device: where it ran, "cpu" or "cuda".
        tables: for readers, in the order of the page. plates: figures beside the first.
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
