"""The interface of a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from mpifl.algorithms.base import Update
from mpifl.scheduling.clocks import Clock, UpdateSource
from mpifl.scheduling.polls import StepsSoFar


class Event(NamedTuple):
    """One step of the server."""

    kind: str  # update | refused | aggregate | poll | evaluate | checkpoint | idle, and in a replay: lost
    time: float  # s of the run's clock
    client: int = -1
    update: Update | None = None
    late_by: float = 0.0  # s from when the evaluation was due to `time`
    text: str = ""
    ends: bool = False  # this checkpoint is that of the run's end


class Schedule:
    """The order of all server events, made by policies (`LiveSchedule`) or recorded by a run (`ReplaySchedule`)."""

    is_replay: bool

    def __init__(self, clock: Clock, progress: StepsSoFar | None) -> None:
        """progress: local steps of clients between polls; None: no limit.

        The server loop sets `checkpoint_requested`, `round_size`, `alarm` and `polls`.
        """
        self.clock, self.progress = clock, progress
        self.checkpoint_end = False  # the run's end is a checkpoint
        self.checkpoint_requested = False  # a checkpoint is to be the next event
        self.round_size = 0  # updates that complete the present synchronous round
        self.alarm = inf  # s: when the algorithm wants to aggregate, or to poll
        self.polls = False  # alarms are polls, at which rounds begin

    def aggregates(self, ready: bool | None) -> bool:
        """Whether the last update triggers an aggregation.

        ready: what the algorithm decides; None: it leaves that to the schedule. A replay takes what was recorded.
        """
        raise NotImplementedError

    def events(self, source: UpdateSource) -> Iterator[Event]:
        """The run's events in order; ends when the run ends."""
        raise NotImplementedError
