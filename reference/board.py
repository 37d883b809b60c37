"""The records of a run for TensorBoard: losses and rates of each step, the monitor's numbers of the observed ones.

Tags: the record's own names (`loss`, `heldout_ce`, `grad_norm`, `loss_z` ..); `rel_mse/3.hidden` and so on, grouped by
measure, then layer and role; raised layers as the text `raised`. Needs the extra `tensorboard`.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

_SCALARS = ("loss", "balance", "heldout_ce", "grad_norm", "lr", "loss_deviation", "loss_z", "seconds")


class Board:
    """Writes event files into a folder; use as a context manager."""

    def __init__(self, folder: Path, start: int = 0) -> None:
        """`start`: the step that a run continues from; what the folder has of later steps is hidden.

        Raises:
            ValueError: the package is not installed, or the folder is a file.
        """
        require_tensorboard(folder)
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=start + 1 if start else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def add(self, record: dict[str, Any]) -> None:
        """Add one record of a log."""
        step = record["step"]
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, step)
        if told := raised_text(record):
            self._writer.add_text("raised", told, step)


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """Tag -> number of one record of a log."""
    found = {name: record[name] for name in _SCALARS if name in record}
    for key, value in record.get("monitor", {}).items():
        where, _, measure = key.rpartition(".")
        found[f"{measure}/{where}"] = value
    return found


def raised_text(record: dict[str, Any]) -> str:
    """What a record says of raised layers, a paragraph each; empty if it raised none."""
    entries = record.get("raised", ())
    return "\n\n".join(f"layer {entry['layer']} to {entry['to']}: {entry['because']}" for entry in entries)


def require_tensorboard(folder: Path) -> None:
    """Raises ValueError unless the package is there and `folder` may be one."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"tensorboard {str(folder)!r} is a file; name a folder")
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise ValueError(
            f"tensorboard {str(folder)!r} needs a package that is not installed; install the extra `tensorboard`: "
            "pip install 'fourbit[tensorboard]'"
        ) from None
