"""Waiting without spinning, where ranks may outnumber cores."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

from mpifl.transport.cores import ranks_per_core

YIELDS, MORE_YIELDS = 10, 50  # before the first sleep: always, and while nobody else takes the core
QUICK = 2e-5  # s: a yield that takes longer has given the core to another process


def set_timer_slack(seconds: float = 1e-9) -> None:
    """Sets how much later than it asks for this thread may wake from a sleep (Linux); the system's default is 50 us."""
    with contextlib.suppress(OSError, AttributeError):  # another system: it is a little slower
        ctypes.CDLL(None).prctl(29, round(seconds * 1e9), 0, 0, 0)  # PR_SET_TIMERSLACK


set_timer_slack()  # a sleep of 1 us would take 60


class Backoff:
    """Waits between two polls: yields the core ten times, then sleeps with exponential backoff, first for 1 us.

    While no other process takes the core it yields up to 50 times: it then runs again at once, after a sleep some tens
    of microseconds later.

    Where each rank has a core for itself, each pause is 1.25 times the one before, up to 0.25 ms: a message is noticed
    late by at most a quarter of the wait. Where ranks share cores, polls take time from the others: each pause is 1.5
    times the one before, up to 1 ms. Where more than 16 ranks of a host share a core all pauses are longer: 16 that
    poll each millisecond take about a fifth of a core.

    A rank without work is `patient`: after the longest of these pauses each one is 1/16 longer than the one before, up
    to `idle`. So is every rank that has a core for itself.
    """

    _ranks = ranks_per_core()
    alone, crowded = _ranks <= 1, _ranks > 16
    growth, longest = (1.25, 2.5e-4) if alone else (1.5, 1e-3 * max(1.0, _ranks / 16))
    idle = 1e-3 * max(1.0, _ranks)  # longest pause (s) of a patient rank, and while other ranks start

    def __init__(self, longest: float = longest, patient: bool = alone) -> None:
        self.longest, self._patient = longest, patient
        self._yields, self._pause = (1, longest / 64) if self.crowded else (MORE_YIELDS, 1e-6)

    def reset(self) -> None:
        self._yields, self._pause = (1, self.longest / 64) if self.crowded else (MORE_YIELDS, 1e-6)

    def yielded(self) -> bool:
        """Yields the core, unless it is time to sleep; returns whether it did."""
        left = self._yields
        if not left:
            return False
        self._yields = left - 1
        if left > MORE_YIELDS - YIELDS:
            os.sched_yield()
        else:
            before = time.perf_counter()
            os.sched_yield()
            if time.perf_counter() - before > QUICK:
                self._yields = 0
        return True

    def pause(self, limit: float = 1.0) -> None:
        """Yields the core or, after that, sleeps; for `limit` s at most."""
        if self.yielded():
            return
        time.sleep(max(0.0, min(self._pause, limit)))
        if self._pause < self.longest:
            self._pause = min(self.growth * self._pause, self.longest)
        elif self._patient:
            self._pause = min(self._pause * 17 / 16, max(self.idle, self.longest))
