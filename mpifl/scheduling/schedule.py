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
    aggregates: bool = False  # this update triggers an aggregation
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
        """Client i's update, to be consumed later: its vectors are in no buffer that other updates need."""


class Schedule(Protocol):
    """The order of all server events, made by policies (`LiveSchedule`) or recorded by a run (`ReplaySchedule`)."""

    is_replay: bool
    round_size: int  # updates that complete the present synchronous round; the server loop sets it
    checkpoint_requested: bool  # a checkpoint is to be the next event; the server loop sets it
    checkpoint_end: bool  # the run's end is a checkpoint
    alarm: float  # s: when the algorithm wants to aggregate, or to poll; the server loop sets it
    polls: bool  # alarms are polls, at which rounds begin; the server loop sets it
    progress: LocalProgress | None  # the local steps of clients between polls; None: as many as they may take
    timeline: Timeline | None  # when clients are on; None: always

    @property
    def held(self) -> int:
        """Updates that have arrived and wait until their clients are on."""

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        """Notes that a message asking for `work` units is sent to client i now; returns the delay (s) it carries."""

    def cancel(self, i: int) -> None:
        """Stops expecting an update of client i."""

    def set_aggregates(self, ready: bool) -> bool:
        """Sets whether the last update triggers an aggregation, where the algorithm decides; returns it.

        A live schedule takes `ready`, a replay what was recorded.
        """

    def on_seconds(self, i: int, seconds: float) -> float:
        """How many of the last `seconds` s of wall time client i was on; `faults.patience` is compared with that."""

    def events(self, source: UpdateSource) -> Iterator[Event]:
        """The run's events in order; ends when the run ends."""
