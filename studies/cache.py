"""Parts of a study that were measured before are read instead of measured again.

A part is named by its function, its inputs and the sources that can change it: `numerics`, the function's module and
what that imports of its own folder and of `reference`. A change of any of them measures it anew. Parts are CSV files
whose numbers read back to the same bits, under a line with their digest: one that was damaged is measured again. An
interrupted study goes on behind the last one that was finished.

    with cache.using(folder):
        rows = cache.part(measure_seed, seed=3, size=256)       # measure_seed(seed=3, size=256) -> a frame

Without `using`, everything is measured.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pandas as pd

import numerics
from reference.checkpoint import make_folder, write_atomic

_SELF = Path(__file__)
_FOLDER: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextmanager
def using(folder: Path) -> Iterator[None]:
    """Keep parts in `folder`, made at the first one."""
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def part(measure: Callable[..., pd.DataFrame], **inputs: Any) -> pd.DataFrame:
    """`measure(**inputs)`, or what it gave before.

    Args:
        measure: a function at the top of a module that depends on its inputs, `numerics`, its own module and what this
            imports relatively.
        inputs: JSON values.

    Returns:
        Frame with columns of numbers, truth values and texts (none of them "nan"), and a plain index.

    Raises:
        TypeError: inputs that are no JSON values, or a result that is no frame.
    """
    folder = _FOLDER.get()
    if folder is None:
        return _measured(measure, inputs)
    name = f"{measure.__module__}.{measure.__qualname__}"
    asked = json.dumps([name, inputs, sources(Path(inspect.getfile(measure)))], sort_keys=True)
    path = folder / f"{name}.{hashlib.sha256(asked.encode()).hexdigest()[:24]}.csv"
    text = _kept(path)
    if text is None:
        found = _measured(measure, inputs)
        text = found.to_csv(index=False, lineterminator="\n", na_rep="nan")
        make_folder(folder)
        write_atomic(path, f"{_digest(text)}\n{text}".encode())
    # also what was just measured is read back, so that a first run and a later one see the same types
    return pd.read_csv(io.StringIO(text), engine="python", keep_default_na=False, na_values=["nan"])  # exact floats


def _kept(path: Path) -> str | None:
    """The part in a file, None where there is none, or not what was written."""
    if not path.exists():
        return None
    digest, _, text = path.read_bytes().decode("utf-8", "replace").partition("\n")
    return text if digest == _digest(text) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _measured(measure: Callable[..., pd.DataFrame], inputs: dict[str, Any]) -> pd.DataFrame:
    found = measure(**inputs)
    if not isinstance(found, pd.DataFrame):
        raise TypeError(f"{measure.__qualname__} gave {type(found).__name__}: a part is a DataFrame")
    return found.reset_index(drop=True)


@functools.cache
def sources(module: Path) -> str:
    """A digest of what `module` depends on: `numerics`, and `files`."""
    digest = hashlib.sha256()
    for path in [*sorted(Path(numerics.__file__).parent.glob("*.py")), *files(module)]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def files(module: Path) -> list[Path]:
    """The module's file and those that it imports relatively or of `reference`, and these in turn, by name.

    What this module itself takes from there changes no measurement.
    """
    found, left = set(), [module]
    while left:
        path = left.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                left += [path.with_name(f"{name}.py") for name in names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reference.") and path != _SELF:
                left.append(_SELF.parent.parent / f"{str(node.module).replace('.', '/')}.py")
    return sorted(found)
