"""Waiting without spinning, where ranks may outnumber cores."""

from __future__ import annotations

import ctypes
import os
import time

LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # number of ranks on this host, set by launchers


def _tune() -> None:
    """Makes short sleeps short, and keeps freed memory for the next vectors (Linux, glibc).

    Without this a sleep of 1 us takes 60, and a new vector of 40 MB costs 10,000 page faults.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, 1 ns
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError):
        pass  # another system: it is a little slower


_tune()


def _ranks_per_core() -> float:
    ranks = next((int(os.environ[k]) for k in LOCAL_SIZE if k in os.environ), 1)
    return ranks / len(os.sched_getaffinity(0))


class Backoff:
    """Waits between two polls: yields the core ten times, then sleeps for 1 us, doubling to 1 ms.

    Where more than 16 ranks of a host share a core all pauses are longer, so that waiting ranks leave it to the others:
    16 that poll each millisecond take about a fifth of a core.
    """

    longest = 1e-3 * max(1.0, _ranks_per_core() / 16)
    idle = 1e-3 * max(1.0, _ranks_per_core())  # longest pause while other ranks start, and need the cores for that
    crowded = longest > 1e-3

    def __init__(self, longest: float = longest) -> None:
        self.longest = longest
        self.reset()

    def reset(self) -> None:
        self._yields, self._pause = (1, self.longest / 64) if self.crowded else (10, 1e-6)

    def sleep(self, limit: float = 1.0) -> None:
        if self._yields:
            self._yields -= 1
            os.sched_yield()
            return
        time.sleep(max(0.0, min(self._pause, limit)))
        self._pause = min(2 * self._pause, self.longest)
