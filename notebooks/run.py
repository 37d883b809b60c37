"""Execute the notebooks and keep what they show: `python -m notebooks.run [NAME ...]`, from a checkout.

What is saved is for a reader without a kernel: a widget is replaced by its present picture and readout, so a page on
the web, or JupyterLab before the first run, shows figures and no broken widgets. Pictures carry their data
(`figure_data`), which the tests compare with a fresh execution.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from .panel import FIGURE, READOUT, WIDGET

HERE = Path(__file__).resolve().parent
SECONDS = 300  # for one cell: a notebook takes less than 25 s where nothing else runs


def paths(names: list[str]) -> list[Path]:
    """Files of the notebooks whose stems start with one of `names`; all of them without names.

    Raises:
        ValueError: a name that no notebook has.
    """
    every = sorted(HERE.glob("*.ipynb"))
    for name in names:
        if not any(path.stem.startswith(name) for path in every):
            raise ValueError(f"NAME={name!r}: use one of {', '.join(path.stem for path in every)}")
    return [path for path in every if not names or any(path.stem.startswith(name) for name in names)]


def executed(path: Path) -> Any:
    """A copy of the notebook at `path`, run from top to bottom in a fresh kernel, stills in the place of widgets.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", store_widget_state=False)
    client.execute(cwd=str(HERE))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
        if cell.cell_type == "code":
            cell.outputs = [still for output in _joined(cell.outputs) for still in stills(output)]
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}  # not the version at hand
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """Outputs with consecutive pieces of one stream joined: where a stream is cut depends on time."""
    joined: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def stills(output: Any) -> list[Any]:
    """An output without what needs a kernel: the picture and, as an output of its own, its readout."""
    data = output.get("data", {})
    data.pop(WIDGET, None)
    readout = data.pop(READOUT, None)
    if FIGURE not in data or readout is None:
        return [output]
    words = nbformat.v4.new_output("display_data", data={"text/html": readout["html"], "text/plain": "readout"})
    return [output, words]


def compact(text: str) -> str:
    """The same JSON with lists of numbers, and lists of such lists, on one line each: a figure has thousands.

    A line break is never part of a string in JSON, so a list that begins with one is a list.
    """
    for inside in (r'[^][{}"]+', r'(?:\s*\[[^][{}"\n]*\],?)+\s*'):
        text = re.sub(rf"\[\n({inside})\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    return text


def main(argv: list[str]) -> int:
    """Execute and save; returns the exit code 0. Raises ValueError for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m notebooks.run", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="a notebook, such as 01; all if left out")
    for path in paths(parser.parse_args(argv).names):
        print(f"running {path.name}", file=sys.stderr, flush=True)
        path.write_text(compact(nbformat.writes(executed(path))) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
