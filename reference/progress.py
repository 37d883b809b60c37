"""Progress of work that takes more than a few seconds: a bar on a terminal, else now and then a line.

A log file or a pipe gets one line each time another twentieth is done, at most one every two seconds, so it stays
readable and still shows how far the work is; of a run, one after the first step and then every so many steps.
"""

import sys
import time
from types import TracebackType
from typing import Literal, Self, TextIO

from tqdm import tqdm

_LINES = 20
_SECONDS = 2.0


class Progress:
    """Counts `total` units of work on a stream (stderr by default); use as a context manager.

    Args: label: what the work is. shown: "auto" is a bar on a terminal and lines elsewhere, "show" a bar, "hide"
        neither. every: units between two lines, however fast they are done; a twentieth, if that takes two seconds,
        if left out.
    """

    def __init__(
        self,
        total: int,
        label: str,
        stream: TextIO | None = None,
        shown: Literal["auto", "show", "hide"] = "auto",
        every: int | None = None,
    ) -> None:
        self._total, self._label = total, label
        self._stream = sys.stderr if stream is None else stream
        self._done = self._skipped = 0
        self._began = self._told = time.monotonic()
        self._every, bar = every, shown == "show" or (shown == "auto" and self._stream.isatty())
        self._lines = shown == "auto" and not bar
        self._bar = tqdm(total=total, desc=label, file=self._stream, dynamic_ncols=True) if bar else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def skip(self, units: int, note: str = "done before") -> None:
        """Count units that are not done now; they do not enter the speed. `note` says why, if nothing else is left."""
        if units == 0:
            return
        self._done += units
        self._skipped += units
        if self._bar is not None:
            self._bar.initial += units
            self._bar.n += units
            self._bar.last_print_n += units
            self._bar.refresh()
        elif self._lines and self._done == self._total:
            print(self._line(note), file=self._stream, flush=True)

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count units that have just been done; `note` says what."""
        before, self._done = self._done, self._done + units
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(units)
        elif self._lines and self._due(before):
            self._told = time.monotonic()
            print(self._line(note), file=self._stream, flush=True)

    def _due(self, before: int) -> bool:
        if self._done == self._total:
            return True
        if self._every is not None:
            return before == self._skipped or before // self._every < self._done // self._every
        crossed = before * _LINES // self._total < self._done * _LINES // self._total
        return crossed and time.monotonic() - self._told >= _SECONDS

    def _line(self, note: str) -> str:
        elapsed = time.monotonic() - self._began
        left = elapsed * (self._total - self._done) / max(1, self._done - self._skipped)
        parts = [f"{self._label}: {100 * self._done // self._total:3d} %", note, f"{_clock(elapsed)} passed"]
        parts += [f"about {_clock(left)} left"] if self._done < self._total else []
        return ", ".join(filter(None, parts))


def of_steps(steps: int, start: int, label: str, shown: Literal["auto", "show", "hide"]) -> Progress:
    """Of a run that goes on after step `start`: a line every twentieth of the steps, at least every 50 steps."""
    progress = Progress(steps, label, shown=shown, every=min(50, -(-steps // _LINES)))
    progress.skip(start)
    return progress


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
