"""The interfaces of a schedule, and of the source that it receives updates from."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple, Protocol

from mpifl.algorithms.base import Update
from mpifl.scheduling.polls import LocalProgress
from mpifl.scheduling.timeline import Timeline


class Event(NamedTuple):
    """One step of the server."""

    kind: str  # update | refused | aggregate | poll | evaluate | checkpoint | idle, and in a replay: lost
    time: float  # s of the run's clock
    client: int = -1
    update: Update | None = None
    late_by: float = 0.0  # s from when the evaluation was due to `time`
    text: str = ""
    ends: bool = False  # this checkpoint is that of the run's end


class UpdateSource(Protocol):
    """Where a schedule receives the clients' updates from: the server's end of a transport."""

    client_failures: list[tuple[int, str]]  # clients found to have failed, and why; whoever handles them removes them

    def receive_from(self, i: int, timeout: float = inf) -> Update | None:
        """Waits for client i's update, at most `timeout` seconds; None where it did not come, or never will.

        A client that has failed is then in `client_failures`.
        """

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        """Waits for the next update of any client, at most `timeout` seconds; None where none came."""

    def keep_update(self, i: int, update: Update) -> Update:
        """Returns the update with vectors of its own, outside the receive buffers, so that it can wait."""


class Schedule:
    """The order of all server events, made by policies (`LiveSchedule`) or recorded by a run (`ReplaySchedule`)."""

    is_replay: bool
    deterministic: bool  # the order can be repeated
    held: int = 0  # updates that have arrived and wait until their clients are on

    def __init__(self, timeline: Timeline | None, progress: LocalProgress | None) -> None:
        """timeline: when clients are on; None: always. progress: local steps of clients between polls; None: no limit.

        The server loop sets the other attributes, except `checkpoint_end`.
        """
        self.timeline, self.progress = timeline, progress
        self.checkpoint_end = False  # the run's end is a checkpoint
        self.checkpoint_requested = False  # a checkpoint is to be the next event
        self.round_size = 0  # updates that complete the present synchronous round
        self.alarm = inf  # s: when the algorithm wants to aggregate, or to poll
        self.polls = False  # alarms are polls, at which rounds begin

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        """Notes that a message asking for `work` units is sent to client i now; returns the delay (s) it carries."""
        return 0.0

    def cancel(self, i: int) -> None:
        """Stops expecting an update of client i."""

    def aggregates(self, ready: bool | None) -> bool:
        """Whether the last update triggers an aggregation.

        ready: what the algorithm decides; None: it leaves that to the schedule. A replay takes what was recorded.
        """
        raise NotImplementedError

    def on_seconds(self, i: int, seconds: float) -> float:
        """How many of the last `seconds` s of wall time client i was on; `faults.patience` is compared with that."""
        return seconds

    def events(self, source: UpdateSource) -> Iterator[Event]:
        """The run's events in order; ends when the run ends."""
        raise NotImplementedError
