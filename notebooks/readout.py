"""Small pieces of what notebooks say beside pictures: numbers as words, and tables in HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

import pandas as pd
from IPython.display import HTML

CELL = "padding:1px 7px;text-align:"


def told(value: float, digits: int = 5) -> str:
    """A number in few characters: at most `digits` significant digits; NaN and infinities by name."""
    return f"{value + 0.0:.{digits}g}" if math.isfinite(value) else "NaN" if math.isnan(value) else str(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", align: str = "right") -> str:
    """An HTML table of texts, which are escaped; numbers align at the right, words at the "left"."""
    over = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    first = "".join(f'<th style="{CELL}{align}">{html.escape(cell)}</th>' for cell in head)
    lines = ["".join(f'<td style="{CELL}{align}">{html.escape(cell)}</td>' for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{over}<thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(lines: Iterable[str]) -> str:
    """Lines of plain text, each a paragraph."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def shown(frame: pd.DataFrame, caption: str = "") -> HTML:
    """A data frame as a table that a notebook displays: numbers as `told` writes them, no index."""
    cells = [[told(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in frame.to_numpy(object)]
    return HTML(table(list(frame.columns), cells, caption))
