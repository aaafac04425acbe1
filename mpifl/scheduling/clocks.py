"""Clocks: what time it is, and in which order the updates in flight are consumed.

real     updates in order of completion; a client holds its update back until its drawn contact time is over. Every
         event has the time at which it happens; what is overdue happens late, once.
virtual  an update is due at the time of its message + the drawn contact time; ties go to the lower client.
         Deterministic, whatever computes the updates and however long that takes.
"""

from __future__ import annotations

import time
from math import inf, isnan, nan
from typing import NamedTuple, Protocol

from mpifl.algorithms.base import Update
from mpifl.checkpoint.snapshot import ClockState
from mpifl.errors import RunFailed
from mpifl.scheduling.delays import ContactTimes, SplitTimes
from mpifl.scheduling.due_queue import DueQueue
from mpifl.scheduling.schedule import UpdateSource
from mpifl.scheduling.timeline import Timeline

STALLED = (
    "no client with a message is on again (clock.availability): the run cannot continue; give stop.time, "
    "after: repeat, or cohort_from: available"
)
POLL_INTERVAL = 0.2  # s of real time that a clock waits at most, so that the server can handle signals and failures


class Clock(Protocol):
    """Decides the order in which updates are consumed, and what time it is."""

    time: float  # s since start
    deterministic: bool
    timed_out: bool  # `next_update` returned None before the deadline, for the server to poll

    @property
    def has_in_flight(self) -> bool:
        """Whether any client has been sent a message whose update is not consumed."""

    @property
    def is_stalled(self) -> bool:
        """Whether updates are in flight and none of their clients is on again."""

    @property
    def held(self) -> int:
        """Updates that have arrived and wait until their clients are on."""

    def start(self) -> None:
        """Starts or continues the run."""

    def cancel(self, i: int) -> None:
        """Stops expecting an update of client i."""

    def save(self) -> ClockState:
        """The state that `load` restores."""

    def load(self, saved: ClockState) -> None:
        """Restores a state; `start` is to follow."""

    def now(self) -> float: ...

    def on_seconds(self, i: int, seconds: float) -> float:
        """How many of the last `seconds` s of wall time client i was on; `faults.patience` is compared with that."""

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        """Notes that a message asking for `work` units is sent to client i now; returns the delay (s) it carries."""

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        """The next update up to the deadline and the stop time, with the times of its computing and exchange, or None.

        Sets `time`, which never decreases and does not change once the stop time is reached:

        an update           its time
        deadline or stop    that time, or in real time a later one
        timed out           a time before both
        """


class RealClock:
    """Seconds of wall time since `start`."""

    deterministic = False
    held = 0
    is_stalled = False

    def __init__(self, contact_times: ContactTimes, split_times: SplitTimes | None = None) -> None:
        self._contact_times, self._split_times, self.time = contact_times, split_times, 0.0
        self._last_receive, self.timed_out = 0.0, False  # _last_receive: s, when updates were last asked for
        # By client: when its message was sent (s), and the emulated times of computing and exchange.
        self._in_flight: dict[int, tuple[float, tuple[float, float] | None]] = {}
        self._asked: dict[int, float] = {}  # client in flight -> s that its contact is to take
        self.contacts, self.asked, self.took = 0, 0.0, 0.0  # contacts with a delay, s that they were to take, and took

    @property
    def has_in_flight(self) -> bool:
        return bool(self._in_flight)

    def start(self) -> None:
        self._origin = time.perf_counter() - self.time

    def cancel(self, i: int) -> None:
        self._in_flight.pop(i, None)
        self._asked.pop(i, None)

    def save(self) -> ClockState:
        times = [times or (nan, nan) for _, times in self._in_flight.values()]
        return ClockState(
            self.now(), list(self._in_flight), [sent for sent, _ in self._in_flight.values()],
            [compute for compute, _ in times], [exchange for _, exchange in times], [0.0] * len(times),
        )  # fmt: skip

    def load(self, saved: ClockState) -> None:
        self.time = self._last_receive = saved.time
        in_flight = zip(saved.client, saved.due, saved.compute, saved.exchange, strict=True)
        self._in_flight = {i: (sent, None if isnan(c) else (c, e)) for i, sent, c, e in in_flight}

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        times = self._split_times(i, round, work) if self._split_times else None
        self._in_flight[i] = time.perf_counter() - self._origin, times
        self._asked[i] = sum(times) if times else self._contact_times(i, round)
        return self._asked[i]

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        end = min(deadline, stop)
        if end == inf and not self._in_flight:
            raise RunFailed("no update is in flight and nothing is due: the run cannot continue")
        now = time.perf_counter() - self._origin
        # Events already overdue at the last receive come first. Later ones wait for one receive, so that they cannot
        # starve updates.
        if now < end or (self._last_receive < end and now < stop):
            got = self._receive(source, min(POLL_INTERVAL, max(0.0, end - now)))
            self._last_receive = self.time = now = time.perf_counter() - self._origin
            if got:
                self.timed_out = False
                i, update = got
                sent, times = self._in_flight.pop(i)
                if asked := self._asked.pop(i, 0.0):  # 0 also where the message was sent before a resume
                    self.contacts, self.asked, self.took = self.contacts + 1, self.asked + asked, self.took + now - sent
                # The times of the delay model if it has them, else those that were measured.
                compute, exchange = times or (update.compute, now - sent - update.busy)
                return i, update._replace(compute=compute, exchange=exchange, time=now)
        elif self.time < stop:
            self.time = now
        self.timed_out = self.time < end
        return None

    def _receive(self, source: UpdateSource, timeout: float) -> tuple[int, Update] | None:
        """The next update of any client, as `UpdateSource.receive_any`."""
        return source.receive_any(timeout)

    def now(self) -> float:
        """The time (s) at this instant."""
        return time.perf_counter() - self._origin

    def on_seconds(self, i: int, seconds: float) -> float:
        return seconds


class IntermittentRealClock(RealClock):
    """Seconds of wall time since `start`; clients go on and off as the timeline says.

    The message tells a client's rank for how long it holds the update back: until the contact is over by the timeline.
    An update that arrives while its client is off, because computing or the network took longer, waits at the server
    until the client is on.
    """

    def __init__(self, contact_times: ContactTimes, split_times: SplitTimes | None, timeline: Timeline) -> None:
        super().__init__(contact_times, split_times)
        self._timeline = timeline
        self._waits: dict[int, float] = {}  # client in flight -> s that its message waits; inf: it is never over
        self._held = DueQueue[Update]()  # updates that have arrived, until their clients are on

    @property
    def held(self) -> int:  # type: ignore[override]
        return len(self._held)

    @property
    def is_stalled(self) -> bool:  # type: ignore[override]
        return bool(self._waits) and min(self._waits.values()) == inf

    def cancel(self, i: int) -> None:
        super().cancel(i)
        self._waits.pop(i, None)
        self._held.discard(i)

    def save(self) -> ClockState:
        """Updates that are held are in flight: a resume sends them again."""
        saved = super().save()
        saved.waited[:] = [self._waits[i] for i in saved.client]
        return saved

    def load(self, saved: ClockState) -> None:
        super().load(saved)
        self._waits = dict(zip(saved.client, saved.waited, strict=True))

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        seconds = super().contact_time(i, round, work)
        sent, _ = self._in_flight[i]
        begin, over = self._timeline.contact(i, sent, seconds)
        self._waits[i] = begin - sent if over < inf else inf
        self._asked[i] = over - sent
        return over - sent

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        if deadline == stop == inf and self.is_stalled:
            raise RunFailed(STALLED)
        if not (got := super().next_update(source, deadline, stop)):
            return None
        i, update = got
        return i, update._replace(waited=self._waits.pop(i))

    def _receive(self, source: UpdateSource, timeout: float) -> tuple[int, Update] | None:
        """The next update whose client is on; one whose client is off is held until then."""
        now = self.now()
        if due := self._held.pop_due(now):
            return due
        if not (got := source.receive_any(min(timeout, self._held.first()[0] - now))):
            return None
        i, update = got
        now = self.now()
        if (on := self._timeline.next_on(i, now)) <= now:
            return got
        self._held.add(i, on, source.keep_update(i, update))
        return None

    def on_seconds(self, i: int, seconds: float) -> float:
        now = self.now()
        return self._timeline.on_seconds(i, max(0.0, now - seconds), now)


class Contact(NamedTuple):
    """What the clock knows of a contact before it is over."""

    compute: float = nan  # s of computing, where the delay model has it
    exchange: float = nan  # s of exchanging, where the delay model has it
    waited: float = 0.0  # s that the message waits until its client is on


class VirtualClock:
    """Time that jumps from one due event to the next."""

    deterministic = True
    held = 0

    def __init__(
        self, contact_times: ContactTimes, split_times: SplitTimes | None = None, timeline: Timeline | None = None
    ) -> None:
        self._contact_times, self._split_times, self.time, self.timed_out = contact_times, split_times, 0.0, False
        self._timeline = timeline
        self._due = DueQueue[Contact]()

    @property
    def has_in_flight(self) -> bool:
        return len(self._due) > 0

    @property
    def is_stalled(self) -> bool:
        return len(self._due) > 0 and self._due.first()[0] == inf

    def start(self) -> None: ...

    def cancel(self, i: int) -> None:
        self._due.discard(i)

    def save(self) -> ClockState:
        entries = self._due.entries()
        contacts = [contact for _, contact in entries.values()]
        return ClockState(
            self.time, list(entries), [due for due, _ in entries.values()], [c.compute for c in contacts],
            [c.exchange for c in contacts], [c.waited for c in contacts],
        )  # fmt: skip

    def load(self, saved: ClockState) -> None:
        self.time = saved.time
        columns = saved.client, saved.due, saved.compute, saved.exchange, saved.waited
        for i, due, compute, exchange, waited in zip(*columns, strict=True):
            self._due.add(i, due, Contact(compute, exchange, waited))

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        compute = exchange = nan
        if self._split_times:
            compute, exchange = self._split_times(i, round, work)
            delay = compute + exchange
        else:
            delay = self._contact_times(i, round)
        begin, due = self.time, self.time + delay
        if self._timeline:
            begin, due = self._timeline.contact(i, self.time, delay)
        self._due.add(i, due, Contact(compute, exchange, begin - self.time))
        return 0.0

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        end = min(deadline, stop)
        due, i = self._due.first()
        self.timed_out = False
        if due > end or i < 0:
            if end == inf:
                raise RunFailed("no update is in flight and nothing is due: the run cannot continue")
            self.time = end
            return None
        if due == inf:  # `end` is infinite too
            raise RunFailed(STALLED)
        if not (update := source.receive_from(i, POLL_INTERVAL)):
            self.timed_out = True
            return None
        contact = self._due.pop(i)
        self.time = due
        return i, update._replace(
            compute=contact.compute, exchange=contact.exchange, time=due, waited=contact.waited
        )  # fmt: skip

    def now(self) -> float:
        """The time (s) of the present event."""
        return self.time

    def on_seconds(self, i: int, seconds: float) -> float:
        return seconds  # the clients compute whatever the virtual time is
