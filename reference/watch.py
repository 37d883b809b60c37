"""What becomes of ranks together: one that dies ends the job, with one message that names it; a slow one is named.

Every rank's thread tells the store of torchrun, twice a second, that it lives and whether it waits for the others, and
looks at what they tell. A rank has died when its process is gone (seen at once on its own machine) or has told nothing
for `timeout` seconds. Then, and when a rank meets an error, one of the ranks says so on stderr, the first that claims
it in the store; all others end silently. A collective that would wait for the dead one is not waited for.

Slow ranks are named too: see `signs`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from .ranks import holds_store, open_store, world_size
from .same import named
from .signs import Sign, Slow
from .waiting import snapshot

BEAT = 0.5
_ENDED = 2  # exit code, as for every mistake that the user is told of
_LINGER = 5.0  # seconds that the process of the store stays for the others, at most
_GRACE = 3.0  # seconds in which a rank whose connection broke looks for the one that has gone


class Watch:
    """This rank's watch over all. store: of torchrun, or anything with set, get, multi_get, check and add; `holds`:
    whether it ends with this process."""

    def __init__(self, rank: int, world: int, timeout: float, store: Any, holds: bool = False) -> None:
        self._rank, self._world, self._timeout, self._store = rank, world, timeout, store
        self._began, self._waited = time.monotonic(), snapshot().seconds
        self._holds, self._count, self._lock = holds, 0, threading.Lock()
        self._error: str | None = None
        self._stop = threading.Event()
        self._met: dict[int, tuple[int, float]] = {}  # by rank: the count of its last sign, when it was new
        self._slow = Slow(rank, world)
        self._thread = threading.Thread(target=self._run, daemon=True, name="fourbit watch")

    def start(self) -> None:
        """Begin; without it, errors are still told once."""
        self._sign()
        self._thread.start()

    def stop(self) -> None:
        """This rank has finished: from now on it may be silent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
            with contextlib.suppress(RuntimeError):
                self._sign(left=True, error=self._error)
        self._linger()

    def _linger(self) -> None:
        """The process that holds the store stays until the others have ended: one that finds no store takes this rank
        for dead, and says so."""
        until = time.monotonic() + _LINGER
        while self._holds and time.monotonic() < until:
            with contextlib.suppress(RuntimeError):
                signs = self._signs()
                others = [sign for rank, sign in signs.items() if rank != self._rank]
                if len(others) == self._world - 1 and all(s.left or s.gone or s.error for s in others):
                    return
            time.sleep(BEAT / 5)

    def told(self, error: BaseException) -> bool:
        """Say on stderr what ended this rank, unless another rank has spoken; whether it is something to be said in one
        sentence, a mistake of a user or of a rank that has gone, and not a defect with a traceback."""
        usual = isinstance(error, (ValueError, OSError)) or type(error).__name__ == "TrainingStopped"
        if not usual:
            lost = self._look_for_lost() if isinstance(error, RuntimeError) else None
            if lost is not None:
                self._say(lost)
                return True
            with contextlib.suppress(RuntimeError):
                self._store.add("told", 1)  # its traceback is what is told
                self._sign(error=f"rank {self._rank} ended by a defect, {type(error).__name__}")
            return False
        sentence = " ".join(str(error).split()) or type(error).__name__
        if not getattr(error, "of_all", False):
            sentence = f"rank {self._rank}: {sentence}"
        self._say(sentence)
        with contextlib.suppress(RuntimeError):
            self._sign(error=sentence)
        return True

    def terminated(self) -> None:
        """Another process ends this one: say which rank has gone, if one has. If none has, all are ended on purpose,
        and the first to go is no rank that has died."""
        lost = self._look_for_lost(_GRACE / 3)
        if lost is not None:
            self._say(lost)
            return
        with contextlib.suppress(RuntimeError):
            self._store.add("told", 1)

    def _look_for_lost(self, seconds: float = _GRACE) -> str | None:
        """After a connection broke: the sentence about who has gone, once the store knows."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                signs = self._signs()
            except RuntimeError:
                return self._lost([0], "its store does not answer")
            if any(sign.error for sign in signs.values()):
                return next(sign.error for sign in signs.values() if sign.error)
            gone = [rank for rank, sign in signs.items() if sign.gone]
            if gone:
                return self._lost(gone, "its process has ended")
            time.sleep(BEAT / 5)
        return None

    def _run(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                self._sign()
                signs = self._signs()
            except RuntimeError:
                if self._stop.is_set() or self._store_is_back():
                    continue
                self._end(self._lost([0], "its store does not answer"))
            lost = self._dead(signs)
            if lost is not None:
                self._end(lost)
            for sentence in self._slow.look(signs) if self._rank == 0 else []:
                print(f"fourbit: {sentence}", file=sys.stderr, flush=True)

    def _dead(self, signs: dict[int, Sign]) -> str | None:
        """What is to be said about ranks that have died, or have met an error and ended; None if all live."""
        now = time.monotonic()
        for rank, sign in signs.items():
            if self._met.get(rank, (-1, 0.0))[0] != sign.count:
                self._met[rank] = sign.count, now
        failed = [sign.error for sign in signs.values() if sign.error]
        if failed:
            time.sleep(BEAT)  # this rank's own end, which may be under way, is cleaner
            return failed[0]
        gone = [rank for rank, sign in signs.items() if sign.gone]
        if gone:
            return self._lost(gone, "its process has ended")
        silent = [r for r, sign in signs.items() if not sign.left and now - self._met[r][1] > self._timeout]
        return self._lost(silent, f"no sign of life for {self._timeout:g} s") if silent else None

    def _lost(self, ranks: list[int], why: str) -> str:
        return (
            f"{named(ranks)} of {self._world} {'has' if len(ranks) == 1 else 'have'} died ({why}); the job ends, and "
            "the same command, or torchrun's --max-restarts, goes on from the last complete checkpoint"
        )

    def _end(self, sentence: str) -> None:
        """From the watch's own thread: the main one may wait for ever."""
        self._say(sentence)
        self._linger()
        os._exit(_ENDED)

    def _say(self, sentence: str) -> None:
        """On stderr, if no rank has spoken yet."""
        try:
            first = self._store.add("told", 1) == 1
        except RuntimeError:
            first = True
        if first:
            print(f"fourbit: error: {sentence}", file=sys.stderr, flush=True)

    def _sign(self, left: bool = False, error: str | None = None) -> None:
        with self._lock:
            self._count += 1
            waits, now = snapshot(), time.monotonic()
            seconds = 0.0 if waits.what is None else now - waits.since
            busy = now - self._began - (waits.seconds - self._waited) - seconds
            self._error = error
            sign = Sign(self._count, socket.gethostname(), os.getpid(), busy, waits.what, seconds, left, error)
            self._store.set(f"sign/{self._rank}", json.dumps(sign.__dict__))

    def _signs(self) -> dict[int, Sign]:
        """What all ranks that have begun have told last."""
        keys = {rank: f"sign/{rank}" for rank in range(self._world)}
        known = keys if len(self._met) == self._world else {r: k for r, k in keys.items() if self._store.check([k])}
        return {
            rank: Sign(**json.loads(text))
            for rank, text in zip(known, self._store.multi_get(list(known.values())), strict=True)
        }

    def _store_is_back(self) -> bool:
        with contextlib.suppress(RuntimeError):
            self._store.check(["told"])
            return True
        return False


@contextlib.contextmanager
def shared_fate(timeout: float) -> Iterator[Watch | None]:
    """Inside, a mistake or the death of any rank ends all of them, told once; None, and nothing, without torchrun.

    Raises:
        SystemExit: after a mistake, which has been told.
    """
    world = world_size()
    if world is None:
        yield None
        return
    watch = Watch(int(os.environ["RANK"]), world, timeout, open_store(timeout), holds_store())
    with _terminated(watch):
        try:
            yield watch
        except Exception as error:
            if watch.told(error):
                raise SystemExit(_ENDED) from error
            raise
        finally:
            watch.stop()


@contextlib.contextmanager
def _terminated(watch: Watch) -> Iterator[None]:
    """torchrun ends the other ranks by SIGTERM as soon as one has gone, perhaps before any has seen it: whoever gets it
    looks for the one first. The main thread may be in a collective, so that the signal's own thread is the watch's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    there, wake = os.pipe()
    os.set_blocking(wake, False)

    def end() -> None:
        for number in iter(lambda: os.read(there, 1), b""):
            if number[0] == signal.SIGTERM:
                watch.terminated()
                os._exit(128 + signal.SIGTERM)

    thread = threading.Thread(target=end, daemon=True, name="fourbit signals")
    before, fd = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd)
        signal.signal(signal.SIGTERM, before)
        os.close(wake)
        thread.join()
        os.close(there)
