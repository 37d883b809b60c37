"""The records of a run for Weights & Biases: the numbers that TensorBoard gets, under the same names and steps.

A run folder is one run there: its id is in wandb.json, so a resumed run goes on in it. Where no connection or account
is at hand the records are written into the folder `wandb` of the run folder, and a line on stderr says how to send
them; WANDB_MODE and the library's other settings hold. Steps that a killed run takes again have the same numbers, and
the service keeps the first ones. Needs the extra `wandb`.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import checkpoint
from .board import numbers, raised_text

_PATIENCE = 30  # seconds for a connection


class Logbook:
    """Writes records to one run of a project; use as a context manager."""

    def __init__(self, project: str, folder: Path, config: dict[str, Any]) -> None:
        """Begin, or go on.

        Args:
            project: its name there.
            folder: the run folder.
            config: what decides the run, a JSON object.

        Raises:
            ValueError: the package is not installed, or wandb.json is damaged.
        """
        require_wandb(project)
        path = folder / "wandb.json"
        if not path.exists():
            checkpoint.write_json(path, {"id": uuid.uuid4().hex})
        options = {"project": project, "id": checkpoint.read_json(path, "id")["id"], "name": folder.name}
        self._run = _begin(options | {"dir": str(folder), "config": config, "resume": "allow"})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.finish(exit_code=0 if kind is None else 1)

    def add(self, record: dict[str, Any]) -> None:
        """Add one record of a log."""
        told = raised_text(record)
        self._run.log(numbers(record) | ({"raised": told} if told else {}), step=record["step"])


def _begin(options: dict[str, Any]) -> Any:
    """A run of the library: online where that is possible and not forbidden, else on the disk."""
    import wandb

    try:
        return wandb.init(**options, settings=wandb.Settings(init_timeout=_PATIENCE))
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
        print(
            f"wandb {options['project']!r} cannot be reached ({reason}); its records are kept on the disk, and `wandb "
            f"sync {options['dir']}/wandb/offline-run-*` sends them",
            file=sys.stderr,
        )
        wandb.teardown()  # what failed holds the run's id
        return wandb.init(**options, mode="offline")


def require_wandb(project: str) -> None:
    """Raises ValueError unless the package is there and `project` can be a name."""
    if not project or set(project) & set("/\\#?%:"):
        raise ValueError(f"wandb {project!r} cannot be a project's name; use one without any of / \\ # ? % :")
    try:
        import wandb  # noqa: F401
    except ImportError:
        raise ValueError(
            f"wandb {project!r} needs a package that is not installed; install the extra `wandb`: pip install "
            "'fourbit[wandb]'"
        ) from None
