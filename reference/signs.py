"""What ranks tell each other about themselves, and who of them is slow.

A rank is slow when others have waited `SLOW` seconds for it while it waits for nobody, or when its own work took twice
the median over `WINDOW` seconds. Rank 0 says so, once for each rank; the run goes on.
"""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from .same import named

SLOW, WINDOW = 10.0, 60.0


@dataclass(frozen=True)
class Sign:
    """What a rank has told last. count: of signs; busy: seconds of its own work since it began; waits: for what, None
    if for nothing, and seconds: how long by now; left: it has finished; error: the mistake that it ended with."""

    count: int
    host: str
    pid: int
    busy: float
    waits: str | None = None
    seconds: float = 0.0
    left: bool = False
    error: str | None = None

    @property
    def gone(self) -> bool:
        """Whether its process is known to have ended; only its own machine knows."""
        if self.host != socket.gethostname() or self.left:
            return False
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return Path("/proc/self/stat").exists()


class Slow:
    """Who holds the others up, as rank 0 sees it."""

    def __init__(self, rank: int, world: int) -> None:
        self._named: set[int] = set()
        self._from: tuple[float, dict[int, float]] | None = None

    def look(self, signs: dict[int, Sign]) -> list[str]:
        """Sentences about slow ranks, each rank once."""
        held = {rank: sign for rank, sign in signs.items() if sign.waits and sign.seconds > SLOW}
        found = []
        for rank in signs if held else ():
            if signs[rank].waits is None and not signs[rank].left and rank not in self._named:
                self._named.add(rank)
                seconds, what = max((sign.seconds, sign.waits) for sign in held.values())
                found.append(f"rank {rank} is slow: {named(sorted(held))} waited {seconds:.0f} s for it ({what})")
        return found + self._chronic({rank: sign.busy for rank, sign in signs.items()})

    def _chronic(self, busy: dict[int, float]) -> list[str]:
        now = time.monotonic()
        if self._from is None or self._from[1].keys() != busy.keys():
            self._from = now, busy
        began, before = self._from
        if now - began < WINDOW or len(busy) < 2:
            return []
        self._from = now, busy
        spent = {rank: busy[rank] - before[rank] for rank in busy}
        slowest = max(spent, key=lambda rank: spent[rank])
        middle = statistics.median(spent[rank] for rank in spent if rank != slowest)
        if slowest in self._named or spent[slowest] < 2 * max(middle, 1e-3):
            return []
        self._named.add(slowest)
        return [
            f"rank {slowest} is slow: of {now - began:.0f} s its own work took {spent[slowest]:.0f}, the others' "
            f"{middle:.0f}"
        ]
