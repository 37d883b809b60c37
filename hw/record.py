"""The JSON record of a validation: what was compared, where, with which code, and what came out; files written whole.

command, date, versions (with a digest of the numerics folder), config, reference, then the result: a status,
totals, and one line for each case.
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

import numerics as nm

from .device import describe


def require_writable(out: Path | None, name: str = "out") -> None:
    """Make the folder of `out` and see that `write_whole` can write there; commands ask before they work.

    Args: name: of the argument, for the message.

    Raises: ValueError if `out` is a folder or a device, or if it cannot be written.
    """
    if out is None:
        return
    try:
        if out.exists() and not out.is_file():
            raise ValueError(f"{name}={str(out)!r} is {'a folder' if out.is_dir() else 'no file'}; name a file")
        out.parent.mkdir(parents=True, exist_ok=True)
        partial_file = _partial(out)
        partial_file.touch()
        partial_file.unlink()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(
            f"{name}={str(out)!r} cannot be written ({reason}); name a file in a folder that can be written"
        ) from error


def write_whole(out: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all, line ends as they are in `content`."""
    _partial(out).write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(_partial(out), out)


def _partial(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def write_record(out: Path | None, config: dict[str, Any], result: dict[str, Any]) -> None:
    """Write the record, whole or not at all, if `out` names a file. `config`: what was asked; `result`: its "cases"
    are dictionaries."""
    if out is None:
        return
    about = {"command": "validate", "date": date(), "versions": versions(), "config": config}
    write_whole(out, _json({**about, "reference": describe(torch.device("cpu")), **result}) + "\n")


def date() -> str:
    """Now, in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Of what takes part in a comparison, with a digest of the code that was compared."""
    found = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    if importlib.util.find_spec("triton") is not None:
        found["triton"] = importlib.metadata.version("triton")
    return found | {"sources of numerics, sha256": _sources()}


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


def write_csv(rows: Sequence[Any], path: Path) -> None:
    """One line per row, one or more dataclasses of a kind, a header first; an absent number is empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [field.name for field in fields(rows[0])])
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_whole(path, text.getvalue())
