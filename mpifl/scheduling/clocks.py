"""Clocks: the order in which updates are consumed, and what time it is when they are.

real     completion order; a client holds its update back until its drawn contact time is over.
virtual  due time = time of the message + the drawn contact time; ties go to the lower client. Deterministic, whatever
         computes the updates and however long that takes.
"""

from __future__ import annotations

import heapq
import time
from math import inf, nan
from typing import Any, Protocol

from mpifl.algorithms.base import Update
from mpifl.errors import RunFailed
from mpifl.scheduling.delays import Parts, Seconds

LOOK_UP = 0.2  # s of real time after which a waiting server sees whether it was told to stop, or lost somebody


class Link(Protocol):
    """How messages travel between the server and the clients."""

    def send(self, i: int, message, delay: float) -> None:  # type: ignore[no-untyped-def]
        """Sends client i a message and goes on; the client holds its update back for `delay` seconds."""

    def take(self, i: int, timeout: float = inf) -> Update | None:
        """Waits for client i's update, at most `timeout` seconds; None where it did not come, or never will."""

    def any(self, timeout: float) -> tuple[int, Update] | None:
        """Waits for the next update of any client, at most `timeout` seconds; None where none came."""

    def release(self, i: int) -> None:
        """The vectors of client i's update are no longer needed."""

    def lost(self) -> list[tuple[int, str]]:
        """Clients that were found to be lost since the last call, and why; one that is taken from, once it is asked."""

    def answered(self, i: int) -> bool:
        """Whether client i's update is there, to be consumed when its turn comes; never waits."""

    def give_up(self, i: int) -> None:
        """Client i is not waited for any more; an answer that still comes is dropped."""

    def finish(self, code: int, patience: float = inf) -> int:
        """Takes in and drops all that is still out, ends the client loops; how many updates were dropped. Those that
        have not ended after `patience` seconds are left to themselves."""


class Clock(Protocol):
    """Decides the order in which updates are consumed, and what time it is."""

    time: float  # s since start
    deterministic: bool
    waiting: bool  # `next` returned None before the deadline, to let the server look up

    @property
    def working(self) -> bool:
        """Whether any client has been sent a message whose update has not come."""

    def start(self) -> None:
        """The run begins, or goes on."""

    def forget(self, i: int) -> None:
        """What client i was sent will not be answered."""

    def save(self) -> dict[str, Any]:
        """JSON-able: what `load` wants to go on from here."""

    def load(self, saved: dict[str, Any]) -> None:
        """To be followed by `start`."""

    def now(self) -> float: ...

    def sent(self, i: int, round: int, work: int = 1) -> float:
        """A message that asks for so much work leaves for client i now; the delay (s) that the client must keep."""

    def next(self, link: Link, deadline: float) -> tuple[int, Update] | None:
        """The next update up to the deadline, or None. `time` is then the update's time, or the deadline, or earlier
        where the clock only lets the server look up. The update is told what computing and exchanging took."""


class RealClock:
    """Seconds of wall time since `start`."""

    deterministic = False

    def __init__(self, delays: Seconds, parts: Parts | None = None) -> None:
        self._delays, self._parts, self.time = delays, parts, 0.0
        self._late = self.waiting = False  # late: the last thing was due by the clock, and not an update
        self._out: dict[int, tuple[float, tuple[float, float] | None]] = {}  # client -> when it was asked, its times

    @property
    def working(self) -> bool:
        return bool(self._out)

    def start(self) -> None:
        self._origin = time.perf_counter() - self.time

    def forget(self, i: int) -> None:
        self._out.pop(i, None)

    def save(self) -> dict[str, Any]:
        return {"time": self.now(), "late": self._late, "out": list(self._out.items())}

    def load(self, saved: dict[str, Any]) -> None:
        self.time, self._late = saved["time"], saved["late"]
        self._out = {i: (asked, parts and (parts[0], parts[1])) for i, (asked, parts) in saved["out"]}

    def sent(self, i: int, round: int, work: int = 1) -> float:
        parts = self._parts(i, round, work) if self._parts else None
        self._out[i] = self.now(), parts
        return sum(parts) if parts else self._delays(i, round)

    def next(self, link: Link, deadline: float) -> tuple[int, Update] | None:
        if not self._out and deadline == inf:
            raise RunFailed("no client is working and nothing is due: the run cannot go on")
        now = self.now()
        until = min(deadline, now + LOOK_UP)
        # What is overdue comes first, but not twice running: a clock that asks too much leaves updates their turn.
        got = link.any(max(0.0, until - now)) if now < until or self._late else None
        self._late = got is None
        self.time = self.now() if got else until
        self.waiting = not got and until < deadline
        return got and (got[0], self._timed(*got))

    def _timed(self, i: int, update: Update) -> Update:
        """With what computing and exchanging took: as emulated where they are, else as measured."""
        asked, parts = self._out.pop(i)
        compute, exchange = parts or (update.compute, self.time - asked - update.busy)
        return update._replace(compute=compute, exchange=exchange)

    def now(self) -> float:
        """The time (s) at this instant."""
        return time.perf_counter() - self._origin


class VirtualClock:
    """Time that passes from one due event to the next."""

    deterministic = True

    def __init__(self, delays: Seconds, parts: Parts | None = None) -> None:
        self._delays, self._parts, self.time, self.waiting = delays, parts, 0.0, False
        self._due: list[tuple[float, int, tuple[float, float]]] = []  # when, client, its times

    @property
    def working(self) -> bool:
        return bool(self._due)

    def start(self) -> None: ...

    def forget(self, i: int) -> None:
        self._due = [entry for entry in self._due if entry[1] != i]
        heapq.heapify(self._due)

    def save(self) -> dict[str, Any]:
        return {"time": self.time, "due": self._due}

    def load(self, saved: dict[str, Any]) -> None:
        self.time = saved["time"]
        self._due = [(when, i, (parts[0], parts[1])) for when, i, parts in saved["due"]]
        heapq.heapify(self._due)

    def sent(self, i: int, round: int, work: int = 1) -> float:
        parts = self._parts(i, round, work) if self._parts else (nan, nan)
        delay = sum(parts) if self._parts else self._delays(i, round)
        heapq.heappush(self._due, (self.time + delay, i, parts))
        return 0.0

    def next(self, link: Link, deadline: float) -> tuple[int, Update] | None:
        if not self._due and deadline == inf:
            raise RunFailed("no client is working and nothing is due: the run cannot go on")
        self.waiting = False
        if not self._due or self._due[0][0] > deadline:
            self.time = deadline
            return None
        due, i, (compute, exchange) = self._due[0]
        if not (update := link.take(i, LOOK_UP)):
            self.waiting = True
            return None
        heapq.heappop(self._due)
        self.time = due
        return i, update._replace(compute=compute, exchange=exchange)

    def now(self) -> float:
        """The time (s) of the present event."""
        return self.time
