"""Small HTML tables for readouts: text in, markup out."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """An HTML table of plain texts; the first column is its rows' names."""
    top = "".join(f"<th>{html.escape(text)}</th>" for text in head)
    lines = [
        f"<tr><th>{html.escape(name)}</th>" + "".join(f"<td>{html.escape(text)}</td>" for text in cells) + "</tr>"
        for name, *cells in rows
    ]
    said = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{said}<tr>{top}</tr>{''.join(lines)}</table>"
