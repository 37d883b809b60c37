"""Small pieces of HTML that stand alone: what formats, tensors and recipes show of themselves in a notebook.

Everything is escaped, nothing is loaded, and no text has a colour of its own: on a light page and on a dark one it
keeps the page's, and what colours tell stands behind it, half transparent, or is told in words as well. Where a page
drops styles, as some viewers of notebooks do, tables and words remain.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# backgrounds, colours of Okabe and Ito (2008), told apart with any colour vision: fields of a code, kinds of formats
HUES = {
    "sign": "213,94,0",
    "exponent": "0,114,178",
    "mantissa": "0,158,115",
    "orange": "230,159,0",
    "sky": "86,180,233",
    "purple": "204,121,167",
    "grey": "128,128,128",
}
_LEFT = "text-align:left;vertical-align:top"


class Html(str):
    """Text that is HTML already: `escaped` leaves it alone."""


def escaped(text: str) -> Html:
    """`text` with the letters that HTML gives a meaning replaced."""
    return text if isinstance(text, Html) else Html(html.escape(text))


def mathematical(text: str) -> Html:
    """Escaped text, with `2^-9` and `2^(13 - 7)` as powers, `a x b` as products and `-1` with a minus sign."""
    raised = re.sub(r"\^(?:\(([^()]*)\)|(-?\w+))", lambda m: f"<sup>{m[1] or m[2]}</sup>", escaped(text))
    signed = re.sub(r"(?<![\w.])-(?=\d|\(|inf)|(?<= )-(?= )", "\N{MINUS SIGN}", raised)
    return Html(signed.replace(" x ", " \N{MULTIPLICATION SIGN} "))


def chip(text: str, hue: str) -> Html:
    """`text` on one of `HUES`."""
    style = f"background:rgba({HUES[hue]},.3);border-radius:.25em;padding:.05em .35em;white-space:nowrap"
    return Html(f'<span style="{style}">{escaped(text)}</span>')


def code(text: str) -> Html:
    """`text` in letters of one width."""
    return Html(f"<code>{escaped(text)}</code>")


def joined(parts: Iterable[str], by: str = "") -> Html:
    """Pieces in a row, those that are no HTML escaped."""
    return Html(escaped(by).join(escaped(part) for part in parts))


def table(rows: Iterable[Sequence[str]], caption: str = "", head: Sequence[str] = ()) -> Html:
    """A table whose rows start with their names; `head` names the columns."""
    top = "".join(f'<th scope="col" style="{_LEFT}">{escaped(name)}</th>' for name in head)
    lines = [
        f'<tr><th scope="row" style="{_LEFT}">{escaped(name)}</th>'
        + "".join(f'<td style="{_LEFT}">{escaped(cell)}</td>' for cell in cells)
        + "</tr>"
        for name, *cells in rows
    ]
    title = f'<caption style="{_LEFT};caption-side:top">{escaped(caption)}</caption>' if caption else ""
    thead = f"<thead><tr>{top}</tr></thead>" if top else ""
    return Html(f"<table>{title}{thead}<tbody>{''.join(lines)}</tbody></table>")
