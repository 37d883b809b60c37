"""An interrupt of a run, by Ctrl-C or SIGTERM: the step under way is finished, a checkpoint is saved, the run ends.

Before the first step, and at a second interrupt, the run ends at once. Either way the last line on stderr says what is
saved. The exit code is 128 + the signal's number: 130 of Ctrl-C, 143 of SIGTERM. A program that handles these signals
itself keeps its handlers, and so do several ranks, whose steps end together.

A checkpoint that an interrupt made is like any other: the run goes on from it with the same losses. What the monitor
says of weights that oscillate counts steps since a checkpoint, so its next window may be shorter; `transitions` says by
how much.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from . import checkpoint

_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Interrupted(KeyboardInterrupt):
    """A run was interrupted. The message is one sentence; `code`: to exit with."""

    def __init__(self, text: str, number: int = signal.SIGINT) -> None:
        super().__init__(text)
        self.code = 128 + number


class Interrupts:
    """What has been asked for. `stepping`: whether a step is under way, which is finished first; `asked`: the signal
    that came, None if none has."""

    def __init__(self) -> None:
        self.stepping, self.asked = False, 0

    @contextlib.contextmanager
    def steps(self) -> Iterator[None]:
        """Steps are taken inside; whoever takes them looks at `asked` after each."""
        self.stepping = True
        try:
            yield
        finally:
            self.stepping = False

    def take(self, number: int, _: FrameType | None = None) -> None:
        """A signal's handler."""
        again, self.asked = bool(self.asked), number
        if again or not self.stepping:
            raise KeyboardInterrupt
        # not by print: the signal may have come in the middle of one
        os.write(2, b"\nfourbit: interrupted; a checkpoint is saved after this step, once more ends the run at once\n")


@contextlib.contextmanager
def interruptible(folder: Path, alone: bool = True) -> Iterator[Interrupts]:
    """A run in it. alone: whether signals are this process's own to handle.

    Raises:
        Interrupted: in the place of every KeyboardInterrupt that does not say yet what is saved.
    """
    found = Interrupts()
    here = alone and threading.current_thread() is threading.main_thread()
    taken = [n for n, default in _DEFAULTS.items() if here and signal.getsignal(n) == default]
    for number in taken:
        signal.signal(number, found.take)
    try:
        yield found
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        if not alone:
            raise
        raise Interrupted(f"interrupted; {_kept(folder)}", found.asked or signal.SIGINT) from error
    finally:
        for number in taken:
            signal.signal(number, _DEFAULTS[number])


def saved(step: int, steps: int, number: int) -> Interrupted:
    """What to raise after the checkpoint of `step` has been saved."""
    return Interrupted(
        f"interrupted after step {step} of {steps}, whose checkpoint is saved; the same command goes on from it", number
    )


def _kept(folder: Path) -> str:
    last = checkpoint.steps(folder) if folder.is_dir() else []
    if not last:
        return "nothing is saved, since no checkpoint had been written"
    return f"the last checkpoint is that of step {last[-1]}; the same command goes on from it"
