"""Mutants: the seam's operations with one deliberate fault each, which `fourbit validate --ops` must find.

A mutant is a text of a file of `numerics` replaced by another, in force while one operation of the seam runs and in no
other: the emulation that it is compared with stays true. `killed` runs the cases of that operation against it; a mutant
that no case fails has survived, which is a gap of the cases.

    kill score = mutants that a case fails / all mutants

The table is mutants.toml.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Args:
        operation: of the seam, in which alone the fault is. name: the fault in words, unique in the operation.
        file: of `numerics`, without .py. text: stands there once, inside a function. replacement: what stands there
            instead.
    """

    operation: str
    name: str
    file: str
    text: str
    replacement: str

    @property
    def key(self) -> str:
        """What records and the command call it."""
        return f"{self.operation}: {self.name}"


@functools.cache
def mutants() -> tuple[Mutant, ...]:
    """Those of mutants.toml. Raises: ValueError for two of one name."""
    table = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text("utf-8"))
    found = tuple(Mutant(operation, **row) for operation, rows in table.items() for row in rows)
    keys = [mutant.key for mutant in found]
    if len(set(keys)) < len(keys):
        raise ValueError(f"mutants {sorted({key for key in keys if keys.count(key) > 1})} come twice: rename one")
    return found


# The fault.


@functools.cache
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


def _place(source: str, at: int) -> list[str]:
    """The names on the way to the outermost function that holds character `at`: ["run"], or ["Class", "run"]."""
    line = source.count("\n", 0, at) + 1
    names: list[str] = []
    body: list[ast.stmt] = _tree(source).body
    while True:
        kinds = (ast.FunctionDef, ast.ClassDef)
        node = next(n for n in body if isinstance(n, kinds) and n.lineno <= line <= (n.end_lineno or n.lineno))
        names.append(node.name)
        if isinstance(node, ast.FunctionDef):
            return names
        body = node.body


def _function(module: Any, names: list[str]) -> FunctionType:
    """The plain function behind decorators, properties and static methods."""
    found: Any = module
    for name in names:
        found = vars(found)[name]
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    plain = inspect.unwrap(found)
    assert isinstance(plain, FunctionType)
    return plain


@functools.lru_cache(maxsize=256)
def _codes(mutant: Mutant) -> tuple[FunctionType, CodeType]:
    """The function that holds the fault, and its code with the fault.

    Raises: ValueError if the text is not there exactly once.
    """
    module = importlib.import_module(f"numerics.{mutant.file}")
    path = str(module.__file__)
    source = Path(path).read_text("utf-8")
    if source.count(mutant.text) != 1:
        place = f"numerics/{mutant.file}.py has {mutant.text!r} {source.count(mutant.text)} times"
        raise ValueError(f"{mutant.key}: {place}; quote a text that stands there once")
    names = _place(source, source.index(mutant.text))
    code = compile(source.replace(mutant.text, mutant.replacement), path, "exec", dont_inherit=True)
    for name in names:
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return _function(module, names), code


@contextmanager
def faulty(mutant: Mutant) -> Iterator[None]:
    """The fault is in force while this lasts: the function's code is exchanged, whoever refers to the function."""
    function, code = _codes(mutant)
    before = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before


def forget() -> None:
    """What mutants keep between calls, in names `_kept..` of their modules, is gone."""
    for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "numerics"]:
        for name in [name for name in vars(module) if name.startswith("_kept_")]:
            delattr(module, name)


def function(mutant: Mutant) -> Callable[..., Any]:
    """The operation with the fault: an implementation that `validate --ops` may judge."""
    from .seam import seam

    true = seam()[mutant.operation]
    forget()

    @functools.wraps(true)
    def run(*args: Any, **kwargs: Any) -> Any:
        with faulty(mutant):
            return true(*args, **kwargs)

    return run
