"""Pages: one HTML file that holds what it shows, figures included, for a screen, light or dark, a phone or paper.

A page loads nothing: style and figures are inside it, and it has no scripts. Its only links lead to its own sections
and to files beside it. Text is escaped here, so callers pass plain text; what is HTML already has the type `Html`.

A study's section shows its figure, its finding and its key table, the first of its tables; the rest is folded.
"""

import base64
import csv
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NewType

Html = NewType("Html", str)

_CSS = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1c1c; --soft: #4a4a4a; --rule: #d6d6d6; --faint: #e3e3e3;
        --box: #f5f5f3; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #e6e4df; --soft: #a9a9a4; --rule: #43464b;
        --faint: #303338; --box: #212429; --link: #8ab8ec; } }
body { margin: 2.5rem auto; padding: 0 1.1rem; max-width: 56rem; background: var(--paper); color: var(--ink);
       font: 1.03rem/1.55 Charter, "Bitstream Charter", Georgia, "DejaVu Serif", serif; overflow-wrap: break-word; }
h1, h2, th, figcaption, .note, nav, summary { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.4rem 0 .5rem; padding-top: .9rem;
     border-top: 1px solid var(--rule); }
p { margin: .6rem 0; max-width: 46rem; }
a { color: var(--link); }
.note { color: var(--soft); font-size: .85rem; line-height: 1.45; overflow-wrap: anywhere; }
code, pre { font: .88em/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
code { overflow-wrap: anywhere; }
pre { background: var(--box); border-radius: 4px; padding: .7rem .9rem; white-space: pre-wrap;
      overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums lining-nums; line-height: 1.35; }
figcaption { color: var(--soft); font-size: .85rem; line-height: 1.45; padding-top: .5rem; max-width: 46rem; }
th, td { padding: .34rem .9rem .34rem 0; text-align: left; vertical-align: baseline; }
th:last-child, td:last-child { padding-right: 0; }
th.number, td.number { text-align: right; }
td.number { white-space: nowrap; }
thead th { font-size: .82rem; border-bottom: 1.5px solid var(--ink); vertical-align: bottom; }
tbody td { border-bottom: 1px solid var(--faint); }
figure { margin: 1.2rem 0; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 3px; }
figure .wide { min-width: 38rem; }
.row { display: flex; flex-wrap: wrap; gap: 0 1.5rem; }
.row figure { flex: 1 1 20rem; min-width: 0; }
ul { padding-left: 1.2rem; max-width: 45rem; }
li { margin: .3rem 0; }
nav ol { columns: 2 17rem; padding-left: 1.4rem; font-size: .92rem; line-height: 1.5; margin: .6rem 0 1.6rem; }
details { border-left: 3px solid var(--faint); padding-left: .9rem; margin: .9rem 0; }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; margin-left: -.9rem; padding: .2rem .9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .8rem 0; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
                            body { margin-top: 1.2rem; } th, td { padding-right: .6rem; font-size: .92rem; } }
@media print { :root { --paper: #fff; --ink: #1c1c1c; --soft: #4a4a4a; --rule: #d6d6d6; --faint: #e3e3e3; }
               body { margin: 0; max-width: none; font-size: 10pt; } figure, table { break-inside: avoid; }
               h2 { break-after: avoid; } figure .wide { min-width: 0; } .scroll { overflow: visible; } }
"""


def _text(text: str) -> str:
    """Plain text as HTML; a line does not break around a sign that joins two numbers."""
    return html.escape(text).replace(" ± ", "\u00a0±\u00a0")


def page(title: str, *parts: Html) -> str:
    """A whole page: `title` as its heading and, in order, its parts."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'  # else a browser asks the page's server for one
        f"<title>{html.escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        f"<h1>{_text(title)}</h1>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def heading(text: str, anchor: str = "") -> Html:
    """The heading of a section; `anchor` is what `contents` links to."""
    named = f' id="{html.escape(anchor)}"' if anchor else ""
    return Html(f"<h2{named}>{_text(text)}</h2>")


def contents(sections: Iterable[tuple[str, str]]) -> Html:
    """A table of contents from anchors and titles."""
    items = "\n".join(f'<li><a href="#{html.escape(anchor)}">{_text(title)}</a></li>' for anchor, title in sections)
    return Html(f'<nav aria-label="Contents">\n<ol>\n{items}\n</ol>\n</nav>')


def folded(summary: str, *parts: Html) -> Html:
    """Parts that are shown when the line `summary` is clicked."""
    return Html(f"<details>\n<summary>{_text(summary)}</summary>\n" + "\n".join(parts) + "\n</details>")


def files(lead: str, paths: Iterable[str]) -> Html:
    """Links to files, by paths relative to the page."""
    links = ", ".join(f'<a href="{html.escape(path)}">{_text(path.rpartition("/")[2])}</a>' for path in paths)
    return Html(f'<p class="note">{_text(lead)} {links}</p>')


def paragraph(text: str, lead: str = "") -> Html:
    """A paragraph; `lead` stands before it in bold."""
    start = f"<strong>{_text(lead)}</strong> " if lead else ""
    return Html(f"<p>{start}{_text(text)}</p>")


def note(text: str) -> Html:
    """A remark in small print."""
    return Html(f'<p class="note">{_text(text)}</p>')


def bullets(items: Iterable[str]) -> Html:
    """A list of sentences."""
    return Html("<ul>\n" + "\n".join(f"<li>{_text(item)}</li>" for item in items) + "\n</ul>")


def command(text: str) -> Html:
    """A command to type."""
    return Html(f"<pre>{_text(text)}</pre>")


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Names and what they stand for."""
    rows = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in pairs)
    return Html(f"<dl>\n{rows}\n</dl>")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> Html:
    """A table of texts; the first column is left-aligned, the others, numbers, are right-aligned."""

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = ["", *[' class="number"'] * (len(cells) - 1)]
        return (
            "<tr>"
            + "".join(f"<{tag}{kind}>{_text(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
            + "</tr>"
        )

    body = "\n".join(line("td", row) for row in rows)
    head = line("th", header)
    below = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
    return Html(
        f'<figure><div class="scroll"><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
        f"{below}</figure>"
    )


def figure(image: bytes, alt: str, caption: str = "", wide: bool = False) -> Html:
    """A figure from the contents of an SVG or PNG file, inside the page.

    Args:
        alt: what it shows, for those who do not see it. wide: its text needs the whole width; a phone scrolls.
    """
    kind = "png" if image.startswith(b"\x89PNG") else "svg+xml"
    source = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
    size = ' class="wide"' if wide else ""
    img = f'<img{size} src="{source}" alt="{html.escape(alt)}">'
    below = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
    return Html(f'<figure><div class="scroll">{img}</div>{below}</figure>')


def row(*parts: Html) -> Html:
    """Figures side by side where there is room, else one below the other."""
    return Html('<div class="row">' + "\n".join(parts) + "</div>")


LISTED = 60  # rows of a table that a page lists; longer ones are links


def study(folder: Path, base: Path) -> list[Html]:
    """The section on a finished study, from what the harness wrote into `folder`. base: the folder of the page."""
    meta = json.loads((folder / "meta.json").read_bytes())
    about, tables, plates = meta["environment"], meta["tables"], meta["plates"]
    rest = [(folder / f"{t['name']}.csv", t["caption"]) for t in tables[1:]]
    lengths = {path: len(path.read_text("utf-8").splitlines()) - 1 for path, _ in rest}
    names = ["rows.csv", *(f"{t['name']}.csv" for t in tables), "figure.svg", *(f"{p['name']}.svg" for p in plates)]
    return [
        heading(meta["title"], meta["name"]),
        paragraph(meta["question"]),
        _kept_figure(folder, "figure", meta["caption"], meta["title"]),
        paragraph(meta["finding"], "Finding."),
        *(_kept_table(folder / f"{t['name']}.csv", t["caption"]) for t in tables[:1]),
        folded(
            "Everything measured",
            *([bullets(meta["details"])] if meta["details"] else []),
            *(_kept_figure(folder, p["name"], p["caption"], meta["title"]) for p in plates),
            *(_kept_table(path, caption) for path, caption in rest if lengths[path] <= LISTED),
            files("Files:", [(folder / name).relative_to(base).as_posix() for name in [*names, "meta.json"]]),
        ),
        note(
            f"{meta['date'][:10]}, {meta['seconds']:.0f} s on {meta['device']}{', fast version' * meta['fast']}; "
            f"fourbit {version(about)}, torch {about['torch']}; made by: {meta['command']}"
        ),
    ]


def _kept_figure(folder: Path, name: str, caption: str, alt: str) -> Html:
    return figure((folder / f"{name}.svg").read_bytes(), alt, caption, wide=True)


def _kept_table(path: Path, caption: str) -> Html:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return table(header, rows, caption)


def version(environment: dict[str, Any]) -> str:
    """The project's own version in an environment of `reference.log`, with the commit if there is one."""
    commit, plus, changes = (environment["commit"] or "").partition("+")
    parts = [environment["fourbit"] or "", f"commit {commit[:12]}{plus}{changes}" if commit else ""]
    return " ".join(filter(None, parts)) or "not installed"


def studies(folders: Sequence[Path], base: Path) -> str:
    """The page of all finished studies, in the order of `folders`. base: the folder of the page."""
    sections = [(folder.name, json.loads((folder / "meta.json").read_bytes())["title"]) for folder in folders]
    return page("fourbit: studies", contents(sections), *[part for folder in folders for part in study(folder, base)])
