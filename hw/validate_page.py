"""The page of `validate --ops`: one HTML file that loads nothing. Text is escaped here; a status is always a word."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Protocol


class Line(Protocol):
    """What the page tells of a line of the table."""

    operation: str
    data: str
    function: str
    against: str
    elements: int
    differing: int
    first: str | None
    not_run: str | None
    derivation: tuple[str, ...]
    repeat: str | None

    @property
    def failed(self) -> bool: ...


_CSS = """
:root { color-scheme: light; }
body { margin: 2rem auto; padding: 0 1.1rem; max-width: 78rem; background: #fff; color: #1c1c1c;
       font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; padding-top: .9rem; border-top: 1px solid #d6d6d6; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
code, pre { font: .85rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: #f5f5f3; border-radius: 4px; padding: .7rem .9rem; white-space: pre-wrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: left; border: 1px solid #fff; white-space: nowrap; }
thead th { vertical-align: bottom; border-bottom: 1.5px solid #1c1c1c; }
tbody th { font-weight: normal; }
.passed { background: #e2f0e4; } .failed { background: #b3261e; color: #fff; font-weight: bold; }
.absent { background: #ececec; color: #4a4a4a; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; }
dt { color: #4a4a4a; } dd { margin: 0; min-width: 0; }
@media print { body { margin: 0; max-width: none; font-size: 9pt; } .scroll { overflow: visible; } }
"""


def page(title: str, summary: str, facts: dict[str, str], rows: Sequence[Line]) -> str:
    """The whole page: summary, a matrix of operations and data, each failed case, where it was made.

    Args: title: the implementation. facts: versions and device. rows: of the table, in its order.
    """
    failed = [row for row in rows if row.failed]
    heading = f"fourbit validate --ops {title}"
    parts = [
        f"<h1>{_text(heading)}</h1>\n<p><strong>{_text(summary)}</strong></p>",
        "<h2>Operations and data</h2>",
        "<p>Each cell: the verdict over all shapes and seeds, and how many elements differ or were compared. Outputs "
        "are compared bit for bit; sums whose order is not defined, by the bound of n roundings. An empty cell: the "
        "operation is not judged on such data here.</p>",
        _matrix(rows),
        f"<h2>Failed cases: {len(failed)}</h2>",
        *(_case(row) for row in failed),
        "<h2>Not run</h2>",
        _absent(rows),
        "<h2>Where it comes from</h2>",
        "<dl>" + "\n".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in facts.items()) + "</dl>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{_text(heading)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return html.escape(text)


def _matrix(rows: Iterable[Line]) -> str:
    """One line for each operation and reference, one column for each kind of data."""
    rows = list(rows)
    kinds = list(dict.fromkeys(row.data for row in rows if row.not_run is None))
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in ("operation", "against", *kinds))
    lines = []
    for operation, against in dict.fromkeys((row.operation, row.against) for row in rows):
        own = {row.data: row for row in rows if (row.operation, row.against) == (operation, against)}
        absent = all(row.not_run is not None for row in own.values())
        whole = f'<td class="absent" colspan="{max(len(kinds), 1)}">not run</td>'
        cells = [whole] if absent else [_cell(own.get(kind)) for kind in kinds]
        lead = f'<th scope="row">{_text(operation)}</th><td>{_text(against)}</td>'
        lines.append(f"<tr>{lead}{''.join(cells)}</tr>")
    body = "\n".join(lines)
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _cell(row: Line | None) -> str:
    if row is None:
        return "<td></td>"
    if row.not_run is not None:
        return '<td class="absent">not run</td>'
    if row.failed:
        return f'<td class="failed">FAILED:<br>{row.differing:,} of {row.elements:,}</td>'
    return f'<td class="passed">passed:<br>{row.elements:,}</td>'


def _case(row: Line) -> str:
    """A failed case: its first difference, the derivation, how to repeat it."""
    derivation = "\n".join(row.derivation)
    title = f"{row.operation}, {row.data}, against {row.against}"
    return "\n".join(
        [
            f"<h3>FAILED: {_text(title)}</h3>",
            f"<p>{row.differing:,} of {row.elements:,} elements differ. First:</p>",
            f"<pre>{_text(row.first or 'nothing was compared')}</pre>",
            f"<pre>{_text(derivation)}</pre>" if derivation else "",
            f"<p>Again, this case alone:</p>\n<pre>{_text(row.repeat)}</pre>" if row.repeat else "",
        ]
    )


def _absent(rows: Iterable[Line]) -> str:
    """What was not run, and why."""
    items = [f"<li>{_text(row.operation)}: {_text(row.not_run)}</li>" for row in rows if row.not_run is not None]
    return "<ul>\n" + "\n".join(items) + "\n</ul>" if items else "<p>Nothing: every operation was run.</p>"
