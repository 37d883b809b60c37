"""What a folder of studies holds: which are complete, which are of now, and who may work in it.

A study is finished when all its files are there, meta.json can be read, and the sources that it comes from are those of
now: its modules, `numerics`, and whether trained data are installed, if it asks for them.

    with kept.alone(out):                               # one report at a time
        if not kept.is_finished(study, out / study.name, fast=True): ...
"""

import contextlib
import fcntl
import inspect
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reference.checkpoint import make_folder

from . import cache, real_data
from .result import Study


def is_finished(study: Study, folder: Path, fast: bool) -> bool:
    """Whether a study is in `folder`, of the sources of now, in the version asked for or in the full one."""
    meta = read(folder)
    return meta is not None and meta["sources"] == sources(study) and (fast or not meta["fast"])


def read(folder: Path) -> dict[str, Any] | None:
    """What meta.json of a complete study says; None where a file is missing or meta.json is damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        asked = ("name", "title", "question", "finding", "caption", "date", "seconds", "device", "command")
        whole = {"fast", "sources", *asked} <= meta.keys() and {"fourbit", "commit", "torch"} <= meta[
            "environment"
        ].keys()
        tables, plates = ([part["name"] for part in meta[kind]] for kind in ("tables", "plates"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    names = [f"{name}.{kind}" for name in ("figure", *plates) for kind in ("svg", "png")]
    names += ["rows.csv", "finding.md", *(f"{name}.{kind}" for name in tables for kind in ("csv", "md"))]
    return meta if whole and all((folder / name).is_file() for name in names) else None


def sources(study: Study) -> str:
    """What the study comes from: a digest of its code and, if it asks for real data, whether they are there."""
    module = Path(inspect.getfile(study.run))
    real = any(path.stem == "real_data" for path in cache.files(module)) and not real_data.missing()
    return cache.sources(module) + ", real data" * real


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Hold `out` for one report, and clear what a killed one left; the system lets go of it when the holder dies.

    Raises:
        ValueError: another report holds it.
    """
    make_folder(out)
    descriptor = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"out {str(out)!r}: another report works in it; wait for it or name another") from None
        _clear(out)
        yield
    finally:
        os.close(descriptor)


def _clear(out: Path) -> None:
    """Remove half-written studies, named .NAME.PID.new, of processes that are gone; give .NAME.PID.old its place."""
    for path in [*out.glob(".*.new"), *out.glob(".*.old")]:
        name, pid, kind = path.name[1:].rsplit(".", 2) if path.name.count(".") > 2 else ("", "", "")
        if not pid.isdecimal() or _lives(int(pid)):
            continue
        if kind == "old" and not (out / name).exists():
            path.rename(out / name)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _lives(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
