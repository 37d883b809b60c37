"""The JSON record of a validation: what was compared, where, with which code, and what came out.

command, date, versions (with a digest of the numerics folder), config, reference, then the result: a status,
totals, and one line for each case.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

import numerics as nm

from .device import describe


def require_writable(out: Path | None) -> None:
    """Make the folder of `out`. Raises: ValueError if `out` is a folder; OSError if its folder cannot be made."""
    if out is None:
        return
    if out.is_dir():
        raise ValueError(f"out={str(out)!r} is a folder; name a file")
    out.parent.mkdir(parents=True, exist_ok=True)


def write_record(out: Path | None, config: dict[str, Any], result: dict[str, Any]) -> None:
    """Write the record, whole or not at all, if `out` names a file. `config`: what was asked; `result`: its "cases"
    are dictionaries."""
    if out is None:
        return
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    if importlib.util.find_spec("triton") is not None:
        versions["triton"] = importlib.metadata.version("triton")
    versions["sources of numerics, sha256"] = _sources()
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"command": "validate", "date": date, "versions": versions, "config": config}
    text = _json({**about, "reference": describe(torch.device("cpu")), **result})
    partial_file = out.with_name(out.name + ".partial")
    partial_file.write_text(text + "\n", "utf-8")
    os.replace(partial_file, out)


def _sources() -> str:
    """Digest of the code that was compared: names and contents of the numerics folder's modules."""
    digest = hashlib.sha256()
    for path in sorted(Path(nm.__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _json(record: dict[str, Any]) -> str:
    """JSON with one line per case."""
    cases = record.get("cases", [])
    head = json.dumps({name: value for name, value in record.items() if name != "cases"}, indent=1)
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    return head if not cases else f'{head[:-2]},\n "cases": [\n  {lines}\n ]\n}}'
