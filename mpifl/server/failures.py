"""Client failures: detects silent clients and decides how the server handles failed ones. Changes no client."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum, auto
from math import isnan
from typing import NamedTuple

from mpifl.config.job import Faults
from mpifl.errors import first_and_last_line
from mpifl.server.client_table import ASIDE, LOST, ClientTable
from mpifl.server.reports import FailureReports
from mpifl.text import format_count
from mpifl.transport.server_end import QUIET_INTERVAL, QUIET_SECONDS, ServerTransport, describe_clients

log = logging.getLogger(__package__)

POLL_INTERVAL = 0.5  # s between two looks for silent clients


class Action(Enum):
    """What the server loop does with a client."""

    WAIT = auto()  # count its silence from `Decision.since` on only
    ABANDON = auto()  # drop its update in flight, should it still arrive
    RESEND = auto()  # send it a new message
    MOVE = auto()  # move it to another rank; lose it where there is none
    LOSE = auto()  # go on without it
    SET_ASIDE = auto()  # go on without it: its updates were refused too often
    FAIL = auto()  # end the run


class Decision(NamedTuple):
    """An action, its client and the reason, which is one line."""

    action: Action
    client: int
    reason: str = ""
    since: float = 0.0  # perf_counter


class ClientFailures:
    """The policy of a job's `faults` for clients that fail; reads the client table."""

    def __init__(
        self, faults: Faults, clients: ClientTable, transport: ServerTransport,
        on_seconds: Callable[[int, float], float] = lambda i, seconds: seconds,
    ) -> None:  # fmt: skip
        """on_seconds: as `Clock.on_seconds`: only while a client is on it can be silent."""
        self.faults, self._clients, self._transport, self._on_seconds = faults, clients, transport, on_seconds
        self.reports = FailureReports()
        self.refusals = 0  # number of refused updates of all clients
        self.first_refusal = ""  # client and reason of the first refused update
        self._logged: set[str] = set()  # last lines of the tracebacks that were printed
        self._printed: set[int] = set()  # clients whose traceback was printed and that are not reported as lost yet
        self._silence_checked = 0.0  # perf_counter of the last look for silent clients
        self._last_poll = time.perf_counter()
        self._consumed = -1  # updates consumed at the last idle event
        self._next_notice = 0.0  # perf_counter from which the log says whom the server waits for

    def decide_silent(self) -> Iterator[Decision]:
        """Yields decisions on clients that have not answered for longer than `faults.patience`, if it is set.

        Called after every event; a waiting clock yields an idle event each poll interval. More than POLL_INTERVAL
        between two calls means that the server was busy and transferred no large message: each client's silence is
        shortened by that time, at most to the time since its message.
        """
        clients, patience = self._clients, self.faults.patience
        if patience is None:
            return
        now = time.perf_counter()
        busy, self._last_poll = now - self._last_poll, now
        if busy > POLL_INTERVAL:
            for i, since in clients.in_flight_times():  # a message may have been sent within that time
                yield Decision(Action.WAIT, i, since=max(since, min(since + busy, now)))
        if now < self._silence_checked + POLL_INTERVAL:
            return
        self._silence_checked = now
        for i, _ in clients.in_flight_times():
            present = clients.in_flight[i]  # the caller acts on each decision
            waited = 0.0 if isnan(present) else now - present
            if waited > patience / 2:
                waited = self._on_seconds(i, waited)
            if waited > patience / 2 and self._transport.has_arrived(i):
                yield Decision(Action.WAIT, i, since=now)  # the update has arrived, and waits until it is due
            elif waited > patience:
                yield Decision(Action.ABANDON, i)
                yield self.decide_failed(i, f"gave no answer for {patience:g} s")

    def report_waiting(self, updates: int) -> None:
        """Logs which clients the server waits for, if no update has come for QUIET_SECONDS; called at idle events.

        updates: those consumed or refused so far.
        """
        now = time.perf_counter()
        if updates != self._consumed:
            self._consumed, self._next_notice = updates, now + QUIET_SECONDS
        if now < self._next_notice:
            return
        self._next_notice = now + POLL_INTERVAL
        waits = [(i, now - since) for i, since in self._clients.in_flight_times()]
        late = [i for i, waited in waits if waited >= QUIET_SECONDS and self._on_seconds(i, waited) >= QUIET_SECONDS]
        silent = [i for i in late if not self._transport.has_arrived(i)]
        if silent:
            patience = self.faults.patience
            limit = "null, so it waits without limit" if patience is None else f"{patience:g}, then they are lost"
            named = describe_clients(silent, self._transport.rank_of)
            text = "no update for %.0f s: the server waits for %s; faults.patience=%s"
            log.warning(text, QUIET_SECONDS, named, limit)
            self._next_notice = now + QUIET_INTERVAL

    def decide_failed(self, i: int, reason: str) -> Decision:
        """Decides on live client i, which cannot answer on its rank; prints a traceback once."""
        if printed := "\n" in reason and (what := reason.splitlines()[-1]) not in self._logged:
            self._logged.add(what)
            log.warning("client %d %s", i, reason)  # the run continues
        reason = first_and_last_line(reason)
        if self.faults.lost == "stop":
            return Decision(Action.FAIL, i, f"client {i} was lost: {reason}")
        if self.faults.lost == "freeze" or self._clients.moved[i] >= self.faults.refusals:
            if printed:
                self._printed.add(i)
            return Decision(Action.LOSE, i, reason)
        return Decision(Action.MOVE, i, reason)

    def decide_refused(self, i: int, reason: str) -> Decision:
        """Decides on live client i, whose update was refused before it left the client."""
        count = self._clients.refused[i]
        if count < self.faults.refusals:
            return Decision(Action.RESEND, i)
        return Decision(Action.SET_ASIDE, i, f"{count} updates refused in a row: {reason}")

    def count_refusal(self, i: int, reason: str, report: bool = True) -> None:
        """Counts an update of client i that was refused; report: in the log too."""
        text = reason if reason.startswith(f"client {i} ") else f"client {i}: {reason}"
        self.refusals += 1
        self.first_refusal = self.first_refusal or text
        if report:
            self.reports.refused(text)

    def report_lost(self, i: int, state: str, reason: str) -> None:
        """Reports that client i is not live any more, unless its traceback was just printed."""
        if i not in self._printed:
            self.reports.client_lost(i, state, reason)
        self._printed.discard(i)

    def notes(self) -> list[str]:
        """Clauses of the run's final line: clients that are not live, updates refused; only what is not zero."""
        states = Counter(self._clients.state)
        counts = [f"{states[state]:,} {state}" for state in (LOST, ASIDE) if states[state]]
        notes = [f"of {self._clients.n:,} clients {', '.join(counts)}"] if counts else []
        if self.refusals:
            notes.append(f"{format_count(self.refusals, 'update')} refused")
        return notes
