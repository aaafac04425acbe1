"""Who answers, and who does not: clients are given up after `faults.patience`, in which the server was there."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpifl.scheduling.live as live_module
import mpifl.server.failures as failures_module
import mpifl.server.loop as loop_module
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Message, Update
from mpifl.algorithms.participation import Trigger
from mpifl.config.job import Faults
from mpifl.errors import RunFailed
from mpifl.scheduling.delays import NoDelay
from mpifl.scheduling.live import LiveSchedule, RealClock, VirtualClock
from mpifl.server.loop import ServerLoop
from mpifl.transport.in_process import InProcessTransport
from tests.algorithms.test_state import N, clients
from tests.server.test_failures import Rows

NONE: Any = NoDelay().contact_times(N, 0)


class Silence(InProcessTransport):
    """A link that knows when clients answered (perf_counter); what is given up is listed. A wait takes its time."""

    def __init__(self, now: list[float]) -> None:
        self.now = now
        self.when: dict[int, float] = {}
        self.given_up: list[int] = []

    def send(self, i: int, message: Message, delay: float) -> None: ...

    def receive_from(self, i: int, timeout: float = inf) -> Update | None:
        self.now[0] += timeout
        return None

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        self.now[0] += timeout
        return None

    def pop_client_failures(self) -> list[tuple[int, str]]:
        return []

    def has_arrived(self, i: int) -> bool:
        return i in self.when

    def abandon_client(self, i: int) -> None:
        assert i not in self.when
        self.given_up.append(i)


class World:
    """A loop, its link, and the clients that were moved, at times that a test makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: Faults, clock: Any = None) -> None:
        self.now, self.calls = [100.0], 0
        for module in (failures_module, loop_module, live_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=self._perf_counter))
        self.link, self.moved, algorithm = Silence(self.now), list[int](), Area(trigger=Trigger(every=2))
        x0, _ = clients("float64")
        people = Clients(np.ones(N, int))
        server, plan = (
            algorithm.init_server(x0, people),
            LiveSchedule(clock or VirtualClock(NONE), None, 0, stop_updates=1),
        )
        keeper: Any = SimpleNamespace(rehost=self.rehost, busy=False)
        self.loop = ServerLoop(algorithm, server, people, self.link, plan, Rows(), self.look, 0, faults, keeper)
        self.clients, self.long = self.loop.clients, 0.0

    def _perf_counter(self) -> float:
        self.calls += 1
        return self.now[0]

    def rehost(self, i: int, *_: Any) -> str:
        self.moved.append(i)
        return "to rank 9"

    def look(self, *_: Any) -> bool:
        """An evaluation that the server waits for."""
        self.now[0] += self.long
        return False

    def there(self, seconds: float) -> None:
        """So much time passes while the server waits: it comes by every quarter of a second."""
        for _ in range(int(4 * seconds)):
            self.now[0] += 0.25
            self.loop._poll(0.0)

    def away(self, seconds: float) -> None:
        """So much time passes in one event."""
        self.now[0] += seconds
        self.loop._poll(0.0)


def begun(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> World:
    here = World(monkeypatch, faults)
    here.loop.start_round()
    return here


def test_who_has_answered_is_not_given_up_while_the_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that waits for its turn was there in time; once its turn comes, it has time to arrive."""
    here = begun(monkeypatch, Faults(patience=4.0))
    link = here.link
    link.when[2] = here.now[0]
    here.there(10)
    assert sorted(link.given_up) == [0, 1, 3, 4] == sorted(here.clients.inactive)
    del link.when[2]  # it is being received now
    here.there(1.5)
    assert 2 not in link.given_up
    with pytest.raises(RunFailed, match="all clients are lost"):
        here.there(4.5)


def test_an_answer_that_comes_while_others_are_given_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    here = begun(monkeypatch, Faults(patience=4.0, lost="rehost"))

    def slow(i: int, *args: Any) -> str:
        here.link.when[3] = here.now[0]
        return here.rehost(i, *args)

    monkeypatch.setattr(here.loop.checkpointer, "rehost", slow)
    here.there(5)
    assert here.moved == [0, 1, 2, 4] == here.link.given_up


def test_a_client_that_never_answers_is_moved_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would silence one rank after the other; an update that is consumed starts the count anew."""
    here = begun(monkeypatch, Faults(patience=4.0, lost="rehost", refusals=2))
    clients, link, moved = here.clients, here.link, here.moved
    link.when = dict.fromkeys([0, 2, 3, 4], 0.0)
    here.there(30)
    assert moved == [1, 1] and clients.inactive == {1} and clients.state[1] == "lost"
    link.when = dict.fromkeys([0, 3, 4], 0.0)
    for k in range(1, 4):
        here.there(4.5)
        assert moved == [1, 1] + [2] * k
        clients.moved[2] = 0
    assert clients.inactive == {1}


# -- the server itself is away -----------------------------------------------------------------------------------------
def one_silent(monkeypatch: pytest.MonkeyPatch) -> World:
    """All but client 1 have answered; the patience is 4 s."""
    here = begun(monkeypatch, Faults(patience=4.0))
    here.link.when = dict.fromkeys([0, 2, 3, 4], 0.0)
    return here


def has_left(here: World, seconds: float) -> None:
    """Client 1 may be silent for so long and no longer: the next look gives it up, and no other."""
    here.there(seconds)
    assert not here.link.given_up
    here.there(0.75)
    assert here.link.given_up == [1]


def test_nobody_is_silent_while_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as long as the patience, in the middle of it: who was silent for 2 s has 2 s more, and no more."""
    here = one_silent(monkeypatch)
    here.there(2)
    here.away(40)
    assert not here.link.given_up
    has_left(here, 2)  # 4 s in all, which is not longer than the patience


def test_what_was_sent_meanwhile_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of an event of 40 s, client 1 is sent something; it has 4 s from then on."""
    here = one_silent(monkeypatch)
    here.now[0] += 40
    here.loop.send([1])
    here.loop._poll(0.0)
    has_left(here, 4)


def test_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3.25 s the server is there for the last 0.25: more than 4 s are over after 17 times."""
    here = one_silent(monkeypatch)
    for _ in range(17):
        here.away(3)
        assert not here.link.given_up
        here.there(0.25)
    here.away(3)  # the next look
    assert here.link.given_up == [1]


@pytest.mark.parametrize("clock", [RealClock, VirtualClock])
def test_a_long_evaluation(monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    """The first of a run, 40 s long, while the first messages are under way: the clients are given up when the server
    has waited for them for 4 s, at its next look. Its wait is in the link, and is no absence."""
    here = World(monkeypatch, Faults(patience=4.0), clock(NONE))
    here.long = 40.0
    if clock is RealClock:
        here.loop.schedule.clock.start()  # type: ignore[attr-defined]
    with pytest.raises(RunFailed, match="all clients are lost; the last, client 4: gave no answer for 4 s"):
        here.loop.run()
    assert 144 < here.now[0] < 144 + failures_module.POLL_INTERVAL + 2 * live_module.POLL_INTERVAL


def test_without_patience_nobody_asks_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event costs next to nothing."""
    here = begun(monkeypatch, Faults())
    before = here.calls
    here.there(10)
    assert here.calls == before and not here.link.given_up
