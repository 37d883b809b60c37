"""What a run says about itself, its log and its environment; and the folder for these.

The log is the one file of a run that grows. It has one JSON line per step, is flushed before each checkpoint, and is
cut back to the checkpoint's step on resume: every step has exactly one line, however often the run was killed. Its
writer holds a lock (flock, which the system lifts when the holder dies), so a run has one writer at a time.
"""

import contextlib
import fcntl
import importlib.metadata
import json
import logging
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from . import checkpoint

EVALUATION = ("heldout_ce", "heldout_bits_per_byte")  # what an evaluation adds to a step's line in pretraining


def require_run_folder(folder: Path, identity: dict[str, Any], longer: bool = False) -> None:
    """Raises ValueError, as `open_run` does, for a folder that another run, a file or something else is in. longer:
    whether it may be the same run with other steps."""
    stored = folder / "config.json"
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out {str(folder)!r} is a file; name a folder")
    if stored.exists():
        _require_same(stored, identity, longer)
    elif folder.exists() and not all(map(checkpoint.is_leftover, folder.iterdir())):
        raise ValueError(f"out {str(folder)!r} holds files but no run; name an empty or a new folder")


def open_run(folder: Path, identity: dict[str, Any], lengthen: Callable[[int], None] | None = None) -> "Log":
    """Make a run folder, or enter it if it holds the same run, and take its log.

    Args:
        folder: made if missing, its parents too.
        identity: the run's configuration as a JSON object, kept in config.json.
        lengthen: makes the folder one to go on from, if its run differs in the steps alone, which it is told; such a
            run is refused if left out.

    Returns:
        The log, locked: until it is closed, no other process can open the run.

    Raises:
        ValueError: a file is in the way, the folder holds something else or another configuration, or another process
            writes it; nothing was written.
        OSError: the disk refuses.
    """
    require_run_folder(folder, identity, lengthen is not None)
    stored = folder / "config.json"
    if not stored.exists():
        checkpoint.make_folder(folder)
        checkpoint.write_json(stored, identity)
    log = Log(folder / "log.jsonl")
    if lengthen is not None and (before := checkpoint.read_json(stored)["steps"]) != identity["steps"]:
        with log.closed_by_errors():
            lengthen(before)
            checkpoint.write_json(stored, identity)
    # Only now is no other process writing here.
    for path in filter(checkpoint.is_leftover, folder.iterdir()):
        checkpoint.remove(path)
    return log


class Log:
    """The one writer of a run's log; use as a context manager.

    Floats are written as `repr` does, the shortest digits that read back to the same bits.
    """

    def __init__(self, path: Path) -> None:
        """Open or create `path` and lock it.

        Raises:
            ValueError: another process writes it.
        """
        self._path = path
        self._file = open(path, "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ValueError(
                f"log {str(path)!r} is being written by another process; wait for it to end, or use another run folder"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with checkpoint.naming(self._path):  # what a full disk has refused it refuses once more
            self._file.close()

    @contextlib.contextmanager
    def closed_by_errors(self) -> Iterator[None]:
        """An error inside closes the log."""
        try:
            yield
        except BaseException:
            self._file.close()
            raise

    def cut(self, step: int) -> None:
        """Keep the lines of steps 1 to `step` and drop what follows, an unfinished line included.

        Raises:
            ValueError: one of the lines to keep is missing.
        """
        self._file.seek(0)
        lines = self._file.read().split(b"\n")[:-1]
        for number in range(1, step + 1):
            if number > len(lines) or _step_of(lines[number - 1]) != number:
                raise ValueError(
                    f"log {str(self._path)!r} lacks the line of step {number}, which its checkpoint "
                    "counts; start again in another run folder"
                )
        with checkpoint.naming(self._path):
            self._file.truncate(sum(len(line) + 1 for line in lines[:step]))
        self.sync()

    def append(self, record: dict[str, Any]) -> None:
        """Add one line; it survives a kill of this process at once, and a power cut after `sync`."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        with checkpoint.naming(self._path):
            self._file.write(line)
            self._file.flush()

    def sync(self) -> None:
        """Force the lines to the disk."""
        with checkpoint.naming(self._path):
            os.fsync(self._file.fileno())


def read_log(path: Path, *numbers: str, evaluation: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Read the records of a log, one per step, in order; an unfinished last line is left out.

    Raises:
        ValueError: there is no such log, or a line is damaged, lacks one of the finite `numbers`, or one of those of
            an `evaluation` where it has another.
    """
    if not path.is_file():
        raise ValueError(f"log {str(path)!r} does not exist; name the folder of a run")
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        if _step_of(line) != number:
            raise ValueError(
                f"log {str(path)!r} is damaged at line {number}; resume the run to cut it back to its checkpoint"
            )
        record = json.loads(line)
        evaluated = evaluation if any(name in record for name in evaluation) else ()
        for name in (*numbers, *evaluated):
            value = record.get(name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(
                    f"log {str(path)!r} is damaged at line {number}: {name} is {value!r}, no number; start again in "
                    "another run folder"
                )
        records.append(record)
    return records


def _step_of(line: bytes) -> int | None:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None


def environment(device: str) -> dict[str, Any]:
    """Describe what, besides the configuration, can change a run's bits.

    Args:
        device: "cpu" or "cuda".

    Returns:
        JSON object: versions of python, torch, numpy and fourbit, platform, device name, and the git commit of this
        checkout with "+changes" if files differ from it, None outside a checkout.
    """
    if device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        # The instruction set decides how the library sums, so it can change bits.
        name = f"{platform.processor() or platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "fourbit": _version(),
        "commit": _commit(Path(__file__).parent.parent),
        "platform": platform.platform(),
        "device": name,
    }


def record_environment(
    folder: Path, device: str, about: dict[str, Any], start: int, command: str | None = None
) -> None:
    """Write meta.json of a new run; of a resumed one, add the environment and the command if one of them is not the one
    before.

    Args:
        folder: the run folder.
        device: "cpu" or "cuda".
        about: what else to tell, a JSON object.
        start: the step that the run continues from, 0 for a new one.
        command: that runs it, as a shell takes it; what it does again is told besides.

    Raises:
        ValueError: there is a damaged meta.json. OSError: the disk refuses.
    """
    path, now = folder / "meta.json", environment(device)
    said = {} if command is None else {"command": command}
    if start == 0 or not path.exists():
        again = {} if command is None else {"reproduce": _again(command, now, about.get("corpus", {}))}
        checkpoint.write_json(path, {**about, **said, **again, "environment": now, "resumed": []})
        return
    meta = checkpoint.read_json(path, "environment", "resumed")
    entries = [meta, *meta["resumed"]] if isinstance(meta["resumed"], list) else [None]
    if not all(isinstance(entry, dict) and isinstance(entry.get("environment"), dict) for entry in entries):
        raise ValueError(f"{str(path)!r} is damaged: environment or resumed is of another kind; restore it")
    last = entries[-1]["environment"]
    changes = ", ".join(f"{name} {last.get(name)} -> {now[name]}" for name in now if now[name] != last.get(name))
    if changes:
        logging.getLogger(__name__).warning(
            "%s resumes in another environment (%s): its bits may differ from those of an uninterrupted run",
            folder,
            changes,
        )
    if changes or command not in (None, entries[-1].get("command")):
        entry = {"step": start, **said, "environment": now}
        checkpoint.write_json(path, meta | {"resumed": [*meta["resumed"], entry]})


def _again(command: str, now: dict[str, Any], corpus: dict[str, Any]) -> list[str]:
    """What to do for the same bits, line by line."""
    commit, changes, _ = (now["commit"] or "").partition("+changes")
    code = f"git checkout {commit}" if commit else f"pip install fourbit=={now['fourbit']}"
    return [
        code + "; its files had been changed, how is not known here" * bool(changes),
        f"python {now['python']}; pip install torch=={now['torch']} numpy=={now['numpy']}",
        f"{command}; in another --out",
        f"the corpus has sha256 {corpus.get('digest')}, the device was {now['device']}: with the same of both "
        "log.jsonl is the same but for `seconds`, and so is the last checkpoint",
    ]


def _version() -> str | None:
    try:
        return importlib.metadata.version("fourbit")
    except importlib.metadata.PackageNotFoundError:
        return None  # run from a checkout that is not installed


def _commit(root: Path) -> str | None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    if not (root / ".git").exists():
        return None  # an installed copy: a repository around it would not be ours
    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _require_same(stored: Path, identity: dict[str, Any], longer: bool = False) -> None:
    try:
        there = _flat(json.loads(stored.read_bytes()))
    except (ValueError, AttributeError):
        raise ValueError(
            f"out {str(stored.parent)!r} holds a config.json that is not a run's; name another folder"
        ) from None
    here = _flat(identity)
    pairs = {name: (there.get(name, "absent"), here.get(name, "absent")) for name in {**there, **here}}
    pairs = {name: (old, new) for name, (old, new) in pairs.items() if old != new}
    odd = ", ".join(f"{name} ({old} there, {new} now)" for name, (old, new) in pairs.items())
    if odd and not (longer and list(pairs) == ["steps"] and type(there.get("steps")) is int):
        raise ValueError(
            f"out {str(stored.parent)!r} holds a run with another configuration: {odd}; use its values to "
            "resume it, or another out"
        )


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Name nested fields with dots, as the command line does."""
    flat = {}
    for name, value in tree.items():
        nested = _flat(value) if isinstance(value, dict) else None
        flat |= {f"{name}.{inner}": deep for inner, deep in nested.items()} if nested is not None else {name: value}
    return flat
