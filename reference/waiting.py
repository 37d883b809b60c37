"""How long this process has waited for other ranks, and whether it does now: what tells a slow rank from those it holds
up. A collective is called inside `waiting`, which costs a microsecond; `snapshot` may be read by another thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Waits:
    """seconds: waited in all, without the wait that is under way. what, since: of that one; None if there is none.
    since: as `time.monotonic`."""

    seconds: float = 0.0
    what: str | None = None
    since: float = 0.0


_now = [Waits()]


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Inside, other ranks are waited for; `what` names it in messages. One inside another is the outer one's."""
    before, start = _now[0], time.monotonic()
    if before.what is None:
        _now[0] = Waits(before.seconds, what, start)
    try:
        yield
    finally:
        if before.what is None:
            _now[0] = Waits(before.seconds + time.monotonic() - start)


def snapshot() -> Waits:
    """The state now, of any thread."""
    return _now[0]
