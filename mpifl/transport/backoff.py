"""Waiting without spinning, where ranks may outnumber cores."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from math import inf
from typing import Any

YIELDS = 10  # yields of the core before the first sleep
SHORTEST_SLEEP, LONGEST_SLEEP = 1e-6, 1e-3  # s: sleeps
LONGEST_IDLE = 0.02  # s: the longest sleep of a rank without work; where ranks share cores, others may need them
REPORT_INTERVAL = 10.0  # s


def report_times() -> Iterator[float]:
    """When a wait is reported (s from its beginning): every ten seconds in the first minute, then every minute."""
    for k in itertools.count(1):
        yield REPORT_INTERVAL * (k if k <= 6 else 6 * (k - 5))


class Backoff:
    """Waits between two polls: yields the core a few times, then sleeps, each time twice as long as before, up to 1 ms.

    With a larger `longest` each further sleep is an eighth longer than the one before, so that a message is noticed
    late by at most 1 ms and an eighth of the wait.
    """

    def __init__(self, longest: float = LONGEST_SLEEP) -> None:
        self._longest = longest
        self.reset()

    def reset(self) -> None:
        """Begins again, after something has arrived."""
        self._yields, self._sleep = YIELDS, SHORTEST_SLEEP

    def pause(self, limit: float = inf) -> None:
        """Yields the core or, after that, sleeps; for `limit` s at most."""
        if self._yields:
            self._yields -= 1
            os.sched_yield()
            return
        time.sleep(max(0.0, min(self._sleep, limit)))
        self._sleep = min((2 if self._sleep < LONGEST_SLEEP else 9 / 8) * self._sleep, self._longest)


def wait(*requests: Any, longest: float = LONGEST_SLEEP) -> None:
    """Waits for MPI requests without spinning; longest: the longest sleep (s)."""
    pending, backoff = [request for request in requests if not request.Test()], Backoff(longest)
    while pending:
        backoff.pause()
        pending = [request for request in pending if not request.Test()]
