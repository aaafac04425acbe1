"""Clients that fail while the server goes on: lost, silent, or refused an update; and the policy for them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from mpifl.config.faults import Faults
from mpifl.errors import RunFailed, brief
from mpifl.scheduling.schedule import Event

if TYPE_CHECKING:
    from mpifl.server.loop import ServerLoop

LIVE, LOST, ASIDE = "live", "lost", "aside"  # states of a client; aside: its updates were refused too often
LOOK = 0.5  # s between two looks for clients that have not answered for too long


class ClientFailures:
    """Which clients of a loop have failed, and what is done about it."""

    def __init__(self, loop: ServerLoop, faults: Faults, n: int) -> None:
        self._loop, self.faults, self._n = loop, faults, n
        self.states = [LIVE] * n
        self.refused = [0] * n  # updates of each client that were refused in a row
        self.missed = [0] * n  # times in a row that each client could not answer where it was
        self.lost: set[int] = set()  # clients that are not live
        self._told: set[str] = set()  # last lines of tracebacks that were printed
        self._looked = 0.0  # perf_counter
        self._there = time.perf_counter()  # when the loop came by last

    def saved(self) -> dict[str, Any]:
        """JSON-able."""
        return {"states": self.states, "refused": self.refused, "missed": self.missed}

    def load(self, saved: dict[str, Any]) -> None:
        self.states, self.refused, self.missed = saved["states"], saved["refused"], saved["missed"]
        self.lost = {i for i, state in enumerate(self.states) if state != LIVE}

    def watch(self, at: float) -> None:
        """Sees to the clients that the link has lost, and to those that have not answered for too long.

        Called after every event; a clock that waits makes one each LOOK_UP s. More than LOOK from one call to the next
        means that the server was away, when no large message moves: all who are out have that much longer.
        """
        loop, patience = self._loop, self.faults.patience
        for i, why in loop.link.lost():
            self.miss(at, i, why)
        if patience is None:
            return
        now = time.perf_counter()
        away, self._there = now - self._there, now
        if away > LOOK:
            for i in loop.out:
                loop.out[i] = max(loop.out[i], min(loop.out[i] + away, now))  # not before it was sent something
        if now < self._looked + LOOK:
            return
        self._looked = now
        for i in list(loop.out):
            waited = now - loop.out.get(i, now)
            if waited > patience / 2 and loop.link.answered(i):
                loop.out[i] = now  # the server takes it in when it is due; that may take as long again
            elif waited > patience:
                loop.link.give_up(i)
                self.miss(at, i, f"gave no answer for {patience:g} s")

    def answered(self, i: int) -> None:
        """Client i's update was consumed."""
        self.refused[i] = self.missed[i] = 0

    def refuse(self, event: Event) -> None:
        """Answers an update that the client's loop did not let out with a fresh message, or sets the client aside."""
        loop, i, update = self._loop, event.client, event.update
        assert update
        loop.link.release(i)
        self.refused[i] += 1
        self._tell(event.time, "refused", i, update.refused)
        if self.refused[i] < self.faults.refusals:
            del loop.out[i]
            loop.send([i])
        else:
            self.lose(event.time, i, f"{self.refused[i]} updates refused in a row: {update.refused}", ASIDE)

    def lose(self, at: float, i: int, why: str, state: str = LOST) -> None:
        """Goes on without client i; what it has sent stays as it is. Raises RunFailed where nobody is left."""
        if i in self.lost:
            return
        loop = self._loop
        self.lost.add(i)
        self.states[i] = state
        loop.record.state(i, state)
        self._tell(at, state, i, why)
        if len(self.lost) == self._n:
            raise RunFailed(f"all clients are lost; the last, client {i}: {why}")
        working = loop.out.pop(i, None) is not None
        loop.schedule.forget(i)
        if i in loop.waiting:
            loop.waiting.remove(i)
        if loop.cohort and working:
            loop.schedule.round_size -= 1
            if loop.schedule.round_size:
                loop.algorithm.drop(loop.server, i)
            else:
                loop.begin()  # none of the round's members is left

    def miss(self, at: float, i: int, why: str) -> None:
        """The policy for a client that cannot answer where it is."""
        if i in self.lost:
            return
        if "\n" in why and (what := why.splitlines()[-1]) not in self._told:
            self._told.add(what)
            print(f"mpifl: client {i} {why}", file=sys.stderr, flush=True)
        why = brief(why)
        if self.faults.lost == "stop":
            raise RunFailed(f"client {i} was lost: {why}")
        self.missed[i] += 1
        if self.faults.lost == "freeze" or self.missed[i] > self.faults.refusals or not self._rehosted(at, i, why):
            self.lose(at, i, why)

    def _rehosted(self, at: float, i: int, why: str) -> bool:
        """Whether another rank could take over client i."""
        loop = self._loop
        where = loop.keeper.rehost(i, at, loop) if loop.keeper else ""
        if not where:
            return False
        self._tell(at, "rehosted", i, f"{where}: {why}")
        loop.algorithm.readmit(loop.server, i)
        if loop.out.pop(i, None) is not None:
            loop.schedule.forget(i)
            loop.send([i])
        return True

    def _tell(self, at: float, kind: str, i: int, text: str) -> None:
        self._loop.record.event(at, kind, i, text, self._loop.updates, self._loop.version)
