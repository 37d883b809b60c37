"""Thresholds on what the monitor measures: a layer, or the run, goes on in higher precision when one is exceeded.

Loss deviation, of every step while the monitor is on, which the log has as one of

    loss_deviation   (loss - reference) / reference, where another run's log has a loss of the same step
    loss_z           (loss - median) / (1.4826 median |loss_i - median|) over the last 50 losses before the step, 10 at
                     least: standard deviations, if losses were normal; a spike is far above 0

What exceeds a threshold in a step is told, recorded in that step's line of the log, and holds from the next step on.
A resumed run reads from the log what was raised, and the losses before.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .config import TrainConfig
from .log import read_log
from .schedule import Schedule, raises

LOSSES, LEAST_LOSSES = 50, 10

_FIELDS = {"rel_mse": "raise_error", "flush": "raise_flush", "saturation": "raise_saturation"}


def reference_losses(folder: Path, out: Path) -> dict[int, float]:
    """Step -> loss of the run in `folder`, for the run in `out`. Raises ValueError for the run itself, for a folder
    without a log, or with one that lacks losses."""
    if folder.resolve() == out.resolve():
        raise ValueError(
            f"monitor_reference {str(folder)!r} is this run's own folder; name another run's, or leave it out"
        )
    try:
        records = read_log(folder / "log.jsonl")
    except ValueError as error:
        raise ValueError(f"monitor_reference {str(folder)!r}: {error}") from None
    losses = {record["step"]: record.get("loss") for record in records}
    if not losses or any(
        not isinstance(loss, (int, float)) or not math.isfinite(loss) or loss == 0 for loss in losses.values()
    ):
        raise ValueError(f"monitor_reference {str(folder)!r} has a log without losses; name the folder of a run")
    return losses


def digest(losses: dict[int, float]) -> str:
    """What tells one reference from another: sha256, hex, of its losses."""
    return hashlib.sha256(json.dumps(sorted(losses.items())).encode()).hexdigest()


def raised_layers(record: dict[str, Any]) -> set[int]:
    """The layers that were raised in a step, of its record of a log. ValueError for a damaged one."""
    try:
        layers = {entry["layer"] for entry in record.get("raised", ())}
    except (KeyError, TypeError):
        layers = {None}
    if not all(type(layer) is int for layer in layers):
        raise ValueError(
            f"log is damaged at line {record['step']}: raised is {record['raised']!r}; start again in another run "
            "folder"
        )
    return layers


class Guard:
    """Judges a run's steps; `raised` are the layers that have been raised so far."""

    def __init__(self, config: TrainConfig, schedule: Schedule, reference: dict[int, float] | None = None) -> None:
        self._config, self._schedule, self._reference = config, schedule, reference
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self.raised: set[int] = set()

    def resume(self, records: Iterable[dict[str, Any]]) -> None:
        """Take up what the log of the steps before says."""
        for record in records:
            self._losses.append(record["loss"])
            self.raised |= raised_layers(record)

    def deviation(self, step: int, loss: float) -> dict[str, float]:
        """The loss deviation of a step under its name; empty where there is nothing to compare with. Once a step."""
        before = list(self._losses)
        self._losses.append(loss)
        if self._reference is not None:
            other = self._reference.get(step)
            return {} if other is None else {"loss_deviation": (loss - other) / other}
        if len(before) < LEAST_LOSSES:
            return {}
        median = statistics.median(before)
        spread = 1.4826 * statistics.median(abs(value - median) for value in before)
        return {"loss_z": (loss - median) / spread} if spread else {}

    def judge(self, step: int, deviation: dict[str, float], numbers: dict[str, float]) -> list[dict[str, Any]]:
        """Raise what exceeds a threshold in `step`; returns the log's entries, one per layer.

        Args: deviation: of this step's loss. numbers: `layer.role.measure` -> number, empty if none was observed.
        """
        if self._schedule.raised is None:
            return []
        now = self._schedule.at(step + 1, self.raised)
        entries = []
        for layer, because in self._exceeded(deviation, numbers).items():
            if layer not in self.raised and raises(now[layer], self._schedule.raised[layer]):
                entries.append({"layer": layer, "to": self._config.raise_to, "because": because})
        self.raised |= {entry["layer"] for entry in entries}
        return entries

    def _exceeded(self, deviation: dict[str, float], numbers: dict[str, float]) -> dict[int, str]:
        """Layer -> the first reason to raise it, layers ascending."""
        found: dict[int, str] = {}
        limit = self._config.raise_loss
        for name, value in deviation.items():
            if limit is not None and value > limit:
                reason = f"{name} {value:.4g} is above raise_loss {limit:g}"
                model = self._config.model
                found |= dict.fromkeys(range(model.dense_layers, model.depth), reason)  # those with experts
        for key, value in numbers.items():
            layer, role, measure = key.split(".")
            field = "raise_output" if role in ("output", "shared_output") else _FIELDS.get(measure)
            limit = None if field is None else getattr(self._config, field)
            if limit is not None and value > limit:
                found.setdefault(int(layer), f"{measure} {value:.4g} of {role} is above {field} {limit:g}")
        return dict(sorted(found.items()))
