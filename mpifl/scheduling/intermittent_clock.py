"""The real clock for clients that go on and off.

The message tells a client's rank for how long it holds the update back: until the contact is over by the timeline. An
update that arrives while its client is off, because computing or the network took longer, waits at the server until the
client is on.
"""

from __future__ import annotations

from math import inf

from mpifl.algorithms.base import Update
from mpifl.checkpoint.snapshot import ClockState
from mpifl.errors import RunFailed
from mpifl.scheduling.delays import ContactTimes, SplitTimes
from mpifl.scheduling.due_queue import DueQueue
from mpifl.scheduling.live_schedule import STALLED, RealClock
from mpifl.scheduling.schedule import UpdateSource
from mpifl.scheduling.timeline import Timeline


class IntermittentRealClock(RealClock):
    """Seconds of wall time since `start`; clients are on as the timeline says."""

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
        return over - sent

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        if deadline == stop == inf and self.is_stalled:
            raise RunFailed(STALLED)
        if got := super().next_update(source, deadline, stop):
            self.waited = self._waits.pop(got[0])
        return got

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
