"""Contract: each notebook runs from top to bottom in a fresh kernel and still shows what is stored in it: the texts,
the tables, and the data of every figure. Oracle: its own stored outputs, which somebody has looked at.

A stored number that depends on the order of floating-point sums may differ from machine to machine: RELATIVE lists the
cells that train, with the tolerance of what they show and why.
"""

import ast
import json
import math
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipywidgets")
run = pytest.importorskip("notebooks.run")

from notebooks.panel import FIGURE  # noqa: E402

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
NAMES = ["01_formats", "02_nvfp4_block", "03_transpose", "04_requantization", "05_hadamard_combine", "06_recipe"]
# notebook, what the cell calls -> tolerance, of decimals: relative, and absolute for those below 1
RELATIVE: dict[tuple[str, str], float] = {
    # Losses of 24 steps, 6.3 to 1.4 nats. Runs part after the first rounding that falls the other way: with six
    # settings of torch's and MKL's vector instructions (AVX-512, AVX2, none) single losses were up to 0.028 apart, so
    # differences of two runs can be 0.056 apart. This is less than twice that.
    ("06_recipe", "tiny_runs.watched("): 0.1,
}


def test_the_notebooks_are_there():
    assert [path.stem for path in NOTEBOOKS] == NAMES


DECIMAL = re.compile(r"[-+]?\d+\.\d+")  # counts and names stay exact


def differences(stored, shown, relative: float, where: str = "") -> list[str]:
    """Places where two JSON values differ: numbers by more than `relative`, all else at all."""
    if isinstance(stored, dict) and isinstance(shown, dict):
        keys = sorted(stored.keys() | shown.keys())
        return [d for k in keys for d in differences(stored.get(k), shown.get(k), relative, f"{where}/{k}")]
    if isinstance(stored, list) and isinstance(shown, list) and len(stored) == len(shown):
        pairs = enumerate(zip(stored, shown, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, relative, f"{where}/{i}")]
    if (
        isinstance(stored, str)
        and isinstance(shown, str)
        and relative
        and DECIMAL.split(stored) == DECIMAL.split(shown)
    ):
        pairs = [list(map(float, DECIMAL.findall(text))) for text in (stored, shown)]
        return differences(*pairs, relative, where)
    both = isinstance(stored, float | int) and isinstance(shown, float | int)
    if stored == shown or (both and math.isclose(stored, shown, rel_tol=relative, abs_tol=relative)):
        return []
    return [f"{where}: stored {stored!r:.80}, shown {shown!r:.80}"]


def contents(output) -> dict:
    """What an output says, without its pixels."""
    if output.output_type == "stream":
        return {output.name: output.text}
    return {kind: value for kind, value in output.data.items() if kind not in ("image/png", "text/plain")} | {
        "has a picture": "image/png" in output.data
    }


def tolerance(stem: str, source: str) -> float:
    """Of what a cell shows."""
    return max((value for (name, call), value in RELATIVE.items() if name == stem and call in source), default=0.0)


def test_tolerance_is_for_decimals_of_cells_that_train():
    assert tolerance("06_recipe", "tiny_runs.watched(3)") == 0.1 and tolerance("06_recipe", "show(1)") == 0.0
    assert differences({"a": [1.0, "24 steps, +0.0123"]}, {"a": [1.05, "24 steps, -0.0456"]}, 0.1) == []
    assert len(differences({"a": [1.0, "24 steps, +0.01"]}, {"a": [1.2, "25 steps, +0.01"]}, 0.1)) == 2
    assert differences(["x 0.5", 0.5], ["x 0.7", 0.7], 0.1) and differences("x 0.5", "x 0.5000", 0.0)


@pytest.mark.every(3)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_shows_what_is_stored(path: Path):
    stored, shown = nbformat.read(path, as_version=4), run.executed(path)
    assert stored.cells[0].source.startswith("# ")
    assert "**You will learn**" in stored.cells[0].source
    for number, (old, new) in enumerate(zip(stored.cells, shown.cells, strict=True)):
        if old.cell_type == "code":
            before, now = [contents(o) for o in old.outputs], [contents(o) for o in new.outputs]
            found = differences(before, now, tolerance(path.stem, old.source))
            assert not found, f"cell {number}: {found[:5]}; run python -m notebooks.run {path.stem} and look at it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_is_stored_for_a_reader_without_a_kernel(path: Path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert "widgets" not in notebook.metadata
    assert all("widget" not in kind for o in outputs for kind in o.get("data", {}))
    assert all(o.output_type != "error" for o in outputs)
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert pictures and all(FIGURE in o.data for o in pictures), "show figures through notebooks.panel"
    for picture in pictures:  # what a screen reader says, and a page whose pictures do not load
        told = picture.metadata.get("image/png", {}).get("alt", "")
        assert told.startswith("Figure: ") and "without a title" not in told, told
        assert "$" not in told + picture.data["text/plain"]


# GitHub, VS Code and a page without a network leave these as they are; superscripts are letters: 2\u207b\u00b9.
FORMULA = re.compile(r"\$|\\[a-z]+|\w\^[-\w{(]")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_prose_needs_no_formula_renderer(path: Path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            found = FORMULA.search(re.sub(r"`[^`]*`", "", cell.source))
            assert not found, f"raw formula {found and found[0]!r} in: {cell.source[:60]}"


def test_finds_raw_formulas():
    for text in ("from $2^{-127}$", "2^-9", "w^T", r"\mathrm{swiglu}"):
        assert FORMULA.search(text), text
    for text in ("2\u207b\u00b9\u00b2\u2077", "w\u2082 swiglu(x)", "2 / 3"):
        assert not FORMULA.search(text), text


def test_compact_is_the_same_json():
    """Lists of numbers, and lists of such lists, on one line; what looks like one in a string is left alone."""
    value = {"a": [[1, -2.5e-9], [3]], "b": ["[\n 1,\n 2\n]", "x"], "c": [], "d": [{"e": [True, None]}], "f": [[[4]]]}
    text = run.compact(json.dumps(value, indent=1))
    assert json.loads(text) == value and '"a": [[1, -2.5e-09], [3]]' in text and text.count("\n") < 20


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_cells_stay_short(path: Path):
    """Definitions of more than ten lines belong into a module."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    assert node.end_lineno - node.lineno < 10, node.name
