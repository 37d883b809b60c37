"""What a study is, and what it returns: data for the harness in `study`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure


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
    """

    rows: pd.DataFrame
    figure: Figure
    caption: str
    finding: str
    seeds: tuple[int, ...]
    summary: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"


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
    """

    name: str
    title: str
    question: str
    run: Callable[[bool], Result]
    threads: int = 1
