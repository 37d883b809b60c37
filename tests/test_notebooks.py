"""Contract: each notebook runs from top to bottom and still prints what it shows. Oracle: its own stored outputs."""

import contextlib
import io
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs_and_prints_what_it_shows(path: Path):
    plt = pytest.importorskip("matplotlib.pyplot")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert "**You will learn**" in "".join(cells[0]["source"])
    scope: dict = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        shown, printed = cell["outputs"], io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), scope)
        stored = "".join("".join(o["text"]) for o in shown if o.get("name") == "stdout")
        assert printed.getvalue() == stored, f"cell {number}"
        assert bool(plt.get_fignums()) == any("image/png" in o.get("data", {}) for o in shown), f"cell {number}"
        plt.close("all")
