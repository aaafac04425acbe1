"""Silent clients: they are named in the log, and abandoned after `faults.patience` in which the server was not busy."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpifl.scheduling.clocks as clocks_module
import mpifl.server.failures as failures_module
import mpifl.server.loop as loop_module
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Message, Update
from mpifl.algorithms.participation import Trigger
from mpifl.config.job import Faults
from mpifl.errors import RunFailed
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import NoDelay
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.server.client_table import ClientTable
from mpifl.server.failures import ClientFailures
from mpifl.server.loop import ServerLoop
from mpifl.transport.in_process import InProcessTransport
from mpifl.transport.server_end import describe_clients
from tests.algorithms.test_state import N, clients
from tests.quadratic_runs import Log

NONE: Any = NoDelay().contact_times(N, 0)


class SilentTransport(InProcessTransport):
    """Records when updates arrived (perf_counter) and which clients were abandoned; waiting takes time."""

    def __init__(self, now: list[float]) -> None:
        self.now = now
        self.when: dict[int, float] = {}
        self.abandoned: list[int] = []
        self.client_failures = []

    def send(self, i: int, message: Message, delay: float) -> None: ...

    def receive_from(self, i: int, timeout: float = inf) -> Update | None:
        self.now[0] += timeout
        return None

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        self.now[0] += timeout
        return None

    def has_arrived(self, i: int) -> bool:
        return i in self.when

    def cancel(self, i: int) -> None: ...

    def abandon_client(self, i: int) -> None:
        assert i not in self.when
        self.abandoned.append(i)


class Scene:
    """A loop, its transport, and the clients that were moved; the test sets the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: Faults, clock: Any = None) -> None:
        self.now = [100.0]
        for module in (failures_module, loop_module, clocks_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now[0]))
        self.transport, self.moved, algorithm = SilentTransport(self.now), list[int](), Area(trigger=Trigger(every=2))
        x0, _ = clients("float64")
        people = Clients(np.ones(N, int))
        server = algorithm.init_server(x0, people)
        plan = LiveSchedule(clock or VirtualClock(NONE), None, 0, stop_updates=1)
        checkpointer: Any = SimpleNamespace(rehost=self.rehost, busy=False)
        self.loop = ServerLoop(algorithm, server, people, self.transport, plan, Log(), self.evaluate, 0, faults)
        self.loop.checkpointer = checkpointer
        self.clients, self.long = self.loop.clients, 0.0

    def rehost(self, i: int, *_: Any) -> str:
        self.moved.append(i)
        return "to rank 9"

    def evaluate(self, *_: Any) -> bool:
        """An evaluation that the server waits for."""
        self.now[0] += self.long
        return False

    def wait(self, seconds: float) -> None:
        """Time passes while the server waits and polls every quarter of a second."""
        for _ in range(int(4 * seconds)):
            self.now[0] += 0.25
            self.loop._after_event(0.0)

    def be_busy(self, seconds: float) -> None:
        """Time passes in one event."""
        self.now[0] += seconds
        self.loop._after_event(0.0)


def started(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> Scene:
    scene = Scene(monkeypatch, faults)
    scene.loop.start_round()
    return scene


def test_a_client_whose_update_has_arrived_is_not_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that waits for its turn has arrived in time; once it is its turn, it has time to be received."""
    scene = started(monkeypatch, Faults(patience=4.0))
    transport = scene.transport
    transport.when[2] = scene.now[0]
    scene.wait(10)
    assert sorted(transport.abandoned) == [0, 1, 3, 4] == sorted(scene.clients.inactive)
    del transport.when[2]  # it is being received now
    scene.wait(1.5)
    assert 2 not in transport.abandoned
    with pytest.raises(RunFailed, match="all clients are lost"):
        scene.wait(4.5)


def test_an_update_that_arrives_while_others_are_abandoned_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = started(monkeypatch, Faults(patience=4.0, lost="rehost"))

    def slow(i: int, *args: Any) -> str:
        scene.transport.when[3] = scene.now[0]
        return scene.rehost(i, *args)

    monkeypatch.setattr(scene.loop.checkpointer, "rehost", slow)
    scene.wait(5)
    assert scene.moved == [0, 1, 2, 4] == scene.transport.abandoned


def test_a_client_that_never_answers_is_moved_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would silence one rank after the other; a consumed update resets the count."""
    scene = started(monkeypatch, Faults(patience=4.0, lost="rehost", refusals=2))
    clients, transport, moved = scene.clients, scene.transport, scene.moved
    transport.when = dict.fromkeys([0, 2, 3, 4], 0.0)
    scene.wait(30)
    assert moved == [1, 1] and clients.inactive == {1} and clients.state[1] == "lost"
    transport.when = dict.fromkeys([0, 3, 4], 0.0)
    for k in range(1, 4):
        scene.wait(4.5)
        assert moved == [1, 1] + [2] * k
        clients.moved[2] = 0
    assert clients.inactive == {1}


# -- the server itself is busy -----------------------------------------------------------------------------------------
def one_silent(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """All but client 1 have answered; the patience is 4 s."""
    scene = started(monkeypatch, Faults(patience=4.0))
    scene.transport.when = dict.fromkeys([0, 2, 3, 4], 0.0)
    return scene


def abandoned_after(scene: Scene, seconds: float) -> None:
    """Client 1 may be silent for this long and no longer: the next poll abandons it, and no other client."""
    scene.wait(seconds)
    assert not scene.transport.abandoned
    scene.wait(0.75)
    assert scene.transport.abandoned == [1]


def test_silence_does_not_count_while_the_server_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is busy for ten times the patience: a client that had been silent for 2 s has exactly 2 s left."""
    scene = one_silent(monkeypatch)
    scene.wait(2)
    scene.be_busy(40)
    assert not scene.transport.abandoned
    abandoned_after(scene, 2)  # 4 s in all, which is not longer than the patience


def test_a_message_sent_meanwhile_gets_no_extra_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message sent to client 1 at the end of an event of 40 s leaves it 4 s from then on."""
    scene = one_silent(monkeypatch)
    scene.now[0] += 40
    scene.loop.send([1])
    scene.loop._after_event(0.0)
    abandoned_after(scene, 4)


@pytest.mark.parametrize("clock", [RealClock, VirtualClock])
def test_a_long_evaluation(monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    """The first evaluation takes 40 s while the first messages are in flight.

    The clients are abandoned once the server has waited for them for 4 s, at its next poll: it waits in the transport,
    and is not busy.
    """
    scene = Scene(monkeypatch, Faults(patience=4.0), clock(NONE))
    scene.long = 40.0
    if clock is RealClock:
        scene.loop.schedule.clock.start()  # type: ignore[attr-defined]
    with pytest.raises(RunFailed, match="all clients are lost; the last, client 4: gave no answer for 4 s"):
        scene.loop.run()
    assert 144 < scene.now[0] < 144 + failures_module.POLL_INTERVAL + 2 * clocks_module.POLL_INTERVAL


# -- the log says whom the server waits for ----------------------------------------------------------------------------
class Waiting:
    """Four clients on ranks 1, 2, 1, 2; `idle` is an idle event after some seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, patience: float | None = None) -> None:
        self.now, self.arrived, self.on = 100.0, {0, 2}, inf
        monkeypatch.setattr(failures_module, "time", SimpleNamespace(perf_counter=lambda: self.now))
        self.clients = ClientTable(4)
        self.clients.in_flight[:] = self.now
        transport: Any = SimpleNamespace(rank_of=[1, 2, 1, 2], has_arrived=self.arrived.__contains__)
        faults = Faults(patience=patience)
        self.failures = ClientFailures(faults, self.clients, transport, lambda i, s: min(s, self.on))
        self.idle(0.0)

    def idle(self, seconds: float, updates: int = 0) -> None:
        self.now += seconds
        self.failures.report_waiting(updates)


@pytest.mark.parametrize(
    ("patience", "then"),
    [
        (None, "faults.patience=null, so it waits without limit"),
        (30.0, "faults.patience=30, then they are lost"),
    ],
)  # fmt: skip
def test_one_line_names_rank_and_clients_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, patience: float | None, then: str
) -> None:
    """It names those whose updates have not arrived, and is repeated after a minute."""
    scene = Waiting(monkeypatch, patience)
    scene.idle(5.0)
    assert not caplog.messages
    for _ in range(25):
        scene.idle(0.2)
    assert caplog.messages == [f"no update for 8 s: the server waits for clients 1, 3 on rank 2; {then}"]
    for _ in range(280):
        scene.idle(0.2)
    assert len(caplog.messages) == 1
    scene.idle(5.0)
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("why", ["updates come", "delay", "off", "arrived"])
def test_no_line_while_something_happens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """Updates are consumed, the drawn delay of the clients is not over, they are off, or their updates have arrived."""
    scene = Waiting(monkeypatch)
    if why == "delay":
        scene.clients.in_flight[:] = 100.0 + 115.0
    if why == "off":
        scene.on = 7.0
    if why == "arrived":
        scene.arrived |= {1, 3}
    for count in range(20):
        scene.idle(6.0, count if why == "updates come" else 0)
    assert not caplog.messages


def test_clients_are_named_with_their_rank() -> None:
    rank_of = [1, 2, 3] * 10
    assert describe_clients([4], rank_of) == "client 4 on rank 2"
    assert describe_clients([4, 0, 2, 7], rank_of) == "clients 4, 7 on rank 2 and 2 more on other ranks"
    assert describe_clients(range(1, 30, 3), rank_of) == "clients 1, 4, 7, 10, 13, 16, 19, 22, ... on rank 2"
