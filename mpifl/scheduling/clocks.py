"""Clocks: what time it is, and in which order the updates in flight are consumed.

real     updates in order of completion; a client holds its update back until its drawn contact time is over. Every
         event has the time at which it happens; what is overdue happens late, once.
virtual  an update is due at the time of its message + the drawn contact time; ties go to the lower client.
         Deterministic, whatever computes the updates and however long that takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from math import inf, isnan, nan
from typing import NamedTuple, Protocol

from mpifl.algorithms.base import Update
from mpifl.checkpoint.snapshot import ClockState
from mpifl.scheduling.delays import ContactTimes, SplitTimes
from mpifl.scheduling.due_queue import DueQueue
from mpifl.scheduling.timeline import Timeline

POLL_INTERVAL = 0.2  # s of real time that a clock waits at most, so that the server can handle signals and failures


class UpdateSource(Protocol):
    """Where a schedule receives the clients' updates from: the server's end of a transport."""

    client_failures: list[tuple[int, str]]  # clients found to have failed, and why; whoever handles them removes them

    def receive_from(self, i: int, timeout: float) -> Update | None:
        """Waits for client i's update, at most `timeout` seconds; None where it did not come, or never will.

        A client that has failed is then in `client_failures`.
        """

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        """Waits for the next update of any client, at most `timeout` seconds; None where none came."""

    def keep_update(self, i: int, update: Update) -> Update:
        """Returns the update with vectors of its own, outside the receive buffers, so that it can wait."""


class Contact(NamedTuple):
    """A contact as the clock foresees it when its message is sent; times in s of the run's clock."""

    sent: float
    due: float  # when it is over
    compute: float  # s of computing by the delay model; nan: it has no such time
    exchange: float  # s of exchanging, likewise
    waited: float  # s that the message waits until its client is on; inf: the client is not on again for long enough


class Clock:
    """Decides the order in which updates are consumed, and what time it is; foresees contacts by the delay model."""

    deterministic: bool  # the order can be repeated

    def __init__(
        self, contact_times: ContactTimes, split_times: SplitTimes | None = None, timeline: Timeline | None = None
    ) -> None:
        """timeline: when clients are on; None: always."""
        self._contact_times, self._split_times, self.timeline = contact_times, split_times, timeline
        self.time = 0.0  # s since start
        self.timed_out = False  # the last `next_update` returned None only because POLL_INTERVAL was over

    def _contact(self, i: int, round: int, work: int, sent: float) -> Contact:
        """The contact of client i's message that asks for `work` units and is sent at `sent` (s)."""
        compute = exchange = nan
        if self._split_times:
            compute, exchange = self._split_times(i, round, work)
            seconds = compute + exchange
        else:
            seconds = self._contact_times(i, round)
        if not self.timeline:
            return Contact(sent, sent + seconds, compute, exchange, 0.0)
        begin, due = self.timeline.contact(i, sent, seconds)
        return Contact(sent, due, compute, exchange, begin - sent if due < inf else inf)

    @property
    def has_in_flight(self) -> bool:
        """Whether any client has been sent a message whose update is not consumed."""
        raise NotImplementedError

    @property
    def is_stalled(self) -> bool:
        """Whether no update will come any more: none is in flight, or none of their clients will be on again."""
        raise NotImplementedError

    @property
    def held_count(self) -> int:
        """Updates that have arrived and wait until their clients are on."""
        return 0

    def start(self) -> None:
        """Starts or continues the run."""

    def cancel(self, i: int) -> None:
        """Stops expecting an update of client i."""

    def save(self) -> ClockState:
        """The state that `load` restores."""
        raise NotImplementedError

    def load(self, saved: ClockState) -> None:
        """Restores a state; `start` is to follow."""
        raise NotImplementedError

    def now(self) -> float:
        """The time (s) at this instant; in virtual time, of the present event."""
        return self.time

    def on_seconds(self, i: int, seconds: float) -> float:
        """How many of the last `seconds` s of wall time client i was on; `faults.patience` is compared with that."""
        return seconds

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        """Notes that a message asking for `work` units is sent to client i now; returns the delay (s) it carries."""
        raise NotImplementedError

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        """The next update up to the deadline and the stop time, with the times of its computing and exchange, or None.

        Sets `time`, which never decreases and does not change once the stop time is reached:

        an update           its time
        deadline or stop    that time, or in real time a later one
        timed out           a time before both
        """
        raise NotImplementedError


class RecordedClock(Clock):
    """The clock of a replay, whose times are recorded: foresees nothing."""

    deterministic = True

    def __init__(self, timeline: Timeline | None = None) -> None:
        super().__init__(lambda i, round: 0.0, timeline=timeline)
        self.in_flight = set[int]()  # clients that were sent a message whose update is not consumed

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        self.in_flight.add(i)
        return 0.0

    def cancel(self, i: int) -> None:
        self.in_flight.discard(i)


def _state(time: float, contacts: Mapping[int, Contact], starts: list[float]) -> ClockState:
    """The state of a clock with these contacts in flight; starts: `ClockState.due`."""
    each = contacts.values()
    return ClockState(
        time, list(contacts), starts, [c.compute for c in each], [c.exchange for c in each], [c.waited for c in each]
    )


def _saved_contacts(saved: ClockState) -> Iterator[tuple[int, Contact]]:
    """The contacts of a state; each has its start in `ClockState.due` as both `sent` and `due`."""
    for i, start, *others in zip(saved.client, saved.due, saved.compute, saved.exchange, saved.waited, strict=True):
        yield i, Contact(start, start, *others)


class RealClock(Clock):
    """Seconds of wall time since `start`.

    The message tells a client's rank for how long it holds the update back: until the contact is over. Where clients go
    on and off, an update that arrives while its client is off, because computing or the network took longer, waits at
    the server until the client is on.
    """

    deterministic = False

    def __init__(
        self, contact_times: ContactTimes, split_times: SplitTimes | None = None, timeline: Timeline | None = None
    ) -> None:
        super().__init__(contact_times, split_times, timeline)
        self._last_receive = 0.0  # s, when updates were last asked for
        self._in_flight: dict[int, Contact] = {}  # by client
        self._held = DueQueue[Update]()  # updates that have arrived, until their clients are on
        self.contacts, self.asked, self.took = 0, 0.0, 0.0  # contacts with a delay, s that they were to take, and took

    @property
    def has_in_flight(self) -> bool:
        return bool(self._in_flight)

    @property
    def is_stalled(self) -> bool:
        if not self.timeline:  # no message waits for its client
            return not self._in_flight
        held = self._held.entries()
        return all(contact.waited == inf or (i in held and held[i][0] == inf) for i, contact in self._in_flight.items())

    @property
    def held_count(self) -> int:
        return len(self._held)

    def start(self) -> None:
        self._origin = time.perf_counter() - self.time

    def cancel(self, i: int) -> None:
        self._in_flight.pop(i, None)
        self._held.discard(i)

    def save(self) -> ClockState:
        """Updates that are held are in flight: a resume sends them again."""
        return _state(self.now(), self._in_flight, [contact.sent for contact in self._in_flight.values()])

    def load(self, saved: ClockState) -> None:
        self.time = self._last_receive = saved.time
        self._in_flight = dict(_saved_contacts(saved))  # due when they were sent: not among those in `asked`

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        self._in_flight[i] = contact = self._contact(i, round, work, self.now())
        return contact.due - contact.sent

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        end = min(deadline, stop)
        now = self.now()
        # Events already overdue at the last receive come first. Later ones wait for one receive, so that they cannot
        # starve updates.
        if now < end or (self._last_receive < end and now < stop):
            got = self._receive(source, min(POLL_INTERVAL, max(0.0, end - now)))
            self._last_receive = self.time = now = self.now()
            if got:
                self.timed_out = False
                i, update = got
                contact = self._in_flight.pop(i)
                if contact.due > contact.sent:
                    self.contacts, self.took = self.contacts + 1, self.took + now - contact.sent
                    self.asked += contact.due - contact.sent
                # The times of the delay model if it has them, else those that were measured.
                compute, exchange = contact.compute, contact.exchange
                if isnan(compute):
                    compute, exchange = update.compute, now - contact.sent - update.busy
                return i, update._replace(compute=compute, exchange=exchange, time=now, waited=contact.waited)
        elif self.time < stop:
            self.time = now
        self.timed_out = self.time < end
        return None

    def _receive(self, source: UpdateSource, timeout: float) -> tuple[int, Update] | None:
        """The next update whose client is on; one whose client is off is held until then."""
        if not (timeline := self.timeline):
            return source.receive_any(timeout)
        now = self.now()
        if due := self._held.pop_due(now):
            return due
        if not (got := source.receive_any(min(timeout, self._held.first()[0] - now))):
            return None
        i, update = got
        now = self.now()
        if (on := timeline.next_on(i, now)) <= now:
            return got
        self._held.add(i, on, source.keep_update(i, update))
        return None

    def now(self) -> float:
        return time.perf_counter() - self._origin

    def on_seconds(self, i: int, seconds: float) -> float:
        now = self.now()
        return self.timeline.on_seconds(i, max(0.0, now - seconds), now) if self.timeline else seconds


class VirtualClock(Clock):
    """Time that jumps from one due event to the next."""

    deterministic = True

    def __init__(
        self, contact_times: ContactTimes, split_times: SplitTimes | None = None, timeline: Timeline | None = None
    ) -> None:
        super().__init__(contact_times, split_times, timeline)
        self._due = DueQueue[Contact]()

    @property
    def has_in_flight(self) -> bool:
        return len(self._due) > 0

    @property
    def is_stalled(self) -> bool:
        return self._due.first()[0] == inf

    def cancel(self, i: int) -> None:
        self._due.discard(i)

    def save(self) -> ClockState:
        contacts = {i: contact for i, (_, contact) in self._due.entries().items()}
        return _state(self.time, contacts, [contact.due for contact in contacts.values()])

    def load(self, saved: ClockState) -> None:
        self.time = saved.time
        for i, contact in _saved_contacts(saved):
            self._due.add(i, contact.due, contact)

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        contact = self._contact(i, round, work, self.time)
        self._due.add(i, contact.due, contact)
        return 0.0

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        end = min(deadline, stop)
        due, i = self._due.first()
        self.timed_out = False
        if due > end:
            self.time = end
            return None
        if not (update := source.receive_from(i, POLL_INTERVAL)):
            self.timed_out = True
            return None
        contact = self._due.pop(i)
        self.time = due
        return i, update._replace(
            compute=contact.compute, exchange=contact.exchange, time=due, waited=contact.waited
        )  # fmt: skip
