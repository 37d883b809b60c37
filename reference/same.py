"""What must be equal on all ranks before they begin, and the sentence about what is not.

A rank tells fields of its configuration, a sha256 of every source file that decides bits, and versions; a difference is
told by field, the rarest value first.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

_SOURCES = ("numerics", "reference", "hw", "fourbit.py")  # what decides bits
_NAMED = 3  # differing fields that a message spells out


class RanksDiffer(ValueError):
    """Something is wrong with one or more ranks, and every rank raises this with the same words."""

    of_all = True


def check_same(told: list[dict[str, Any]]) -> None:
    """Raises RanksDiffer unless all ranks have told the same. told: by rank, a flat JSON object each."""
    odd = [name for name in dict.fromkeys(key for one in told for key in one) if len(_values(told, name)) > 1]
    if not odd:
        return
    files = [name for name in odd if name.startswith(("code.", "data."))]
    spelled = [_difference(told, name) for name in [*(n for n in odd if n not in files), *files][:_NAMED]]
    more = f"; and {len(odd) - _NAMED} fields more" if len(odd) > _NAMED else ""
    remedy = "start all from the same files" if files else "start every rank with the same command and environment"
    raise RanksDiffer(f"ranks differ: {'; '.join(spelled)}{more}; {remedy}")


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under names with dots."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def code_digests(root: Path) -> dict[str, str]:
    """The start of a sha256 of every source file that decides bits, by its path below `root`."""
    paths = [path for name in _SOURCES for path in ([root / name] if "." in name else (root / name).rglob("*.py"))]
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in sorted(paths)
        if path.is_file()
    }


def software() -> dict[str, Any]:
    """This process's code and versions."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return {"code": code_digests(Path(__file__).resolve().parent.parent), "version": versions}


def _values(told: list[dict[str, Any]], name: str) -> Counter[str]:
    """How often each value of a field was told, as JSON."""
    return Counter(json.dumps(one.get(name, "absent")) for one in told)


def _difference(told: list[dict[str, Any]], name: str) -> str:
    """`model.dim is 256 on rank 3, 128 on ranks 0, 1, 2`: the rarest value first."""
    said = [json.dumps(one.get(name, "absent")) for one in told]
    parts = [
        f"{json.loads(value)} on {named([rank for rank, one in enumerate(said) if one == value])}"
        for value, _ in reversed(_values(told, name).most_common())
    ]
    return f"{name} is {', '.join(parts)}"


def named(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0, 1, 2`."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
