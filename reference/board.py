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
        for name in _SCALARS:
            if name in record:
                self._writer.add_scalar(name, record[name], step)
        for key, value in record.get("monitor", {}).items():
            where, _, measure = key.rpartition(".")
            self._writer.add_scalar(f"{measure}/{where}", value, step)
        if raised := record.get("raised"):
            lines = (f"layer {entry['layer']} to {entry['to']}: {entry['because']}" for entry in raised)
            self._writer.add_text("raised", "\n\n".join(lines), step)


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
