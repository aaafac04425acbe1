"""Turns on the GIL: a loop lets a background thread have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from time import clock_gettime, perf_counter, pthread_getcpuclockid, sleep

LOOK_INTERVAL = 0.001  # s between two looks at the thread's CPU time
REST_SECONDS = 0.0001  # s for which the loop sleeps


class InterpreterTurns:
    """Lets a thread that works have the GIL of a loop that releases it for moments only, as NumPy does.

    Each release wakes the thread, which finds the lock taken again, perhaps for seconds.
    """

    def __init__(self) -> None:
        self._clock: int | None = None  # id of the thread's CPU clock, while it works
        self._looked = self._used = 0.0  # perf_counter and CPU time at the last look

    @contextmanager
    def working(self) -> Iterator[None]:
        """The calling thread works in this block."""
        self._clock = pthread_getcpuclockid(get_ident())
        try:
            yield
        finally:
            self._clock = None

    def give(self) -> None:
        """Called by the loop after each event: sleeps for a moment where the thread had less than half of the time."""
        clock, now = self._clock, perf_counter()
        if clock is None or now < self._looked + LOOK_INTERVAL:
            return
        with suppress(OSError):  # the thread has ended
            if clock_gettime(clock) - self._used < (now - self._looked) / 2:
                sleep(REST_SECONDS)
            self._looked, self._used = perf_counter(), clock_gettime(clock)
