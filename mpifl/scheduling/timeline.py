"""The times of contacts with clients that go on and off: one rule for every clock."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from mpifl.errors import RunFailed
from mpifl.scheduling.availability import MAX_PERIODS, NextOn


class Timeline:
    """The on periods of n clients, and what follows from them; a function of its arguments alone."""

    def __init__(self, next_on: NextOn, clients: int, restart: bool = False) -> None:
        """restart: an off period loses the work of a contact; else it pauses it."""
        self._next_on, self._clients, self._restart = next_on, clients, restart

    def contact(self, i: int, sent: float, seconds: float) -> tuple[float, float]:
        """When client i begins a contact of so many seconds whose message was sent at `sent`, and when it is over (s).

        It begins when the client is on, and ends while it is on, before the end of an on period; the client is on
        when it uploads. Infinite: the client is not on again, or not for long enough. Raises RunFailed for a contact
        that meets too many on periods.
        """
        start, end = self._next_on(i, sent)
        begin = now = max(start, sent)
        left = seconds
        for _ in range(MAX_PERIODS):
            if now + left < end or now == inf:
                return begin, now + left
            if not self._restart:
                left = max(0.0, left - (end - now))
            now, end = self._next_on(i, end)
        rule = "restart" if self._restart else "paused"
        text = f"a contact of client {i}, {seconds:g} s long, is not over after {MAX_PERIODS:,} on periods"
        raise RunFailed(f"clock.availability.interrupted={rule}: {text}; longer on periods, or shorter contacts")

    def next_on(self, i: int, time: float) -> float:
        """When client i is on first from this time (s) on; infinity: never."""
        return max(time, self._next_on(i, time)[0])

    def off(self, time: float, inactive: Collection[int] = ()) -> frozenset[int]:
        """The clients that are off at this time (s); if all are, those that are still off when the first comes on.

        inactive: clients that do not count.
        """
        starts = {i: self.next_on(i, time) for i in range(self._clients) if i not in inactive}
        first = min(starts.values(), default=time)
        return frozenset(i for i, start in starts.items() if start > first)

    def on_seconds(self, i: int, begin: float, end: float) -> float:
        """For how long client i is on between two times (s)."""
        total, now = 0.0, begin
        while now < end:
            start, stop = self._next_on(i, now)
            total += max(0.0, min(stop, end) - max(start, now))
            now = stop
        return total
