"""Clients that are lost during a run: every algorithm, at every point of its rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpifl.scheduling.clocks as clocks_module
import mpifl.server.failures as failures_module
import mpifl.server.loop as loop_module
from mpifl import open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from mpifl.checkpoint.snapshot import PendingEvaluation
from mpifl.client.worker import Worker
from mpifl.config.job import Faults
from mpifl.errors import RunFailed
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import NoDelay, Speed
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.replayed_schedule import ReplaySchedule
from mpifl.server.loop import ServerLoop
from mpifl.transport.in_process import InProcessTransport
from mpifl.transport.server_end import describe_clients
from tests.algorithms.test_state import CASES, UPDATES, N, build, clients, same
from tests.mpi.cases import SMALL, job
from tests.mpi.conftest import mpifl, write
from tests.mpi.files import differing
from tests.mpi.own import Failing
from tests.quadratic_runs import Log
from tests.server.test_resume import finish_at_once

DEATHS: dict[str, dict[int, tuple[int, ...]]] = {  # updates consumed -> the clients that are lost then
    "one": {7: (2,)},
    "at once": {8: (0, 1, 2, 3)},  # whole rounds among them
    "before any answer": {0: (1, 4)},
    "one by one": {3: (4,), 4: (0,), 19: (3,), 20: (1,)},
}


# -- runs in memory ----------------------------------------------------------------------------------------------------
class Dying(InProcessTransport):
    """Clients die after given numbers of consumed updates; their updates in flight never arrive."""

    def __init__(self, worker: Worker, deaths: Mapping[int, Iterable[int]]) -> None:
        super().__init__(worker)
        self._deaths, self._consumed, self.dead = deaths, 0, set[int]()
        self.sent_late: list[int] = []  # clients that were sent a message after they were reported as lost
        self._reported: set[int] = set()
        self._die()

    def _die(self) -> None:
        self.dead |= set(self._deaths.get(self._consumed, ()))

    def send(self, i: int, message: Message, delay: float) -> None:
        if i in self._reported:
            self.sent_late.append(i)
        super().send(i, message, delay)

    def receive_from(self, i: int, timeout: float = inf) -> Update | None:
        if i in self.dead:
            self.client_failures.append((i, f"rank {i} died"))
            self._reported.add(i)
            return None
        return super().receive_from(i, timeout)

    def release_update(self, i: int) -> None:
        self._consumed += 1
        self._die()


class Run:
    """A run in which clients die, or the replay of one."""

    def __init__(
        self, algorithm: Algorithm, deaths: Mapping[int, Iterable[int]], again: ReplaySchedule | None = None,
        evaluate: int = 7,
    ) -> None:  # fmt: skip
        x0, objectives = clients("float64")
        people = Clients(np.array([1, 2, 3, 4, 5]), seed=3)
        speed = Speed(compute=0.1, exchange=0.02, spread=2.5, noise="exponential")
        clock = VirtualClock(speed.contact_times(N, 0), speed.split_times(N, 0))
        self.rows, self.worker = Log(), Worker(algorithm, x0, objectives)
        self.evaluations: list[tuple[float, int, int, float]] = []
        self.link = Dying(self.worker, {} if again else deaths)
        plan = again or LiveSchedule(
            clock, algorithm.aggregation_trigger(), 0, stop_updates=UPDATES, stop_time=6000.0, evaluate_updates=evaluate
        )
        server = self.rows.server = algorithm.init_server(x0, people)
        ServerLoop(algorithm, server, people, self.link, plan, self.rows, self._evaluate, 0).run()
        self.incidents = [(row.kind, row.time, *row[2:]) for row in self.rows.events]

    def _evaluate(self, request: PendingEvaluation) -> bool:
        self.evaluations.append((request.time, request.updates, request.version, request.age))
        assert np.isfinite(request.model).all()
        return False

    def record(self, timed: bool) -> ReplaySchedule:
        updates, aggregations = [(*row[:2], *row[8:]) for row in self.rows.updates], self.rows.aggregations
        return ReplaySchedule(updates, aggregations, self.evaluations, timed, self.incidents)  # type: ignore[arg-type]

    def states(self) -> list[State]:
        return [self.rows.server, *(self.worker.states[i] for i in range(N))]


def check(algorithm: Algorithm, deaths: str, evaluate: int = 7) -> Run:
    """The run ends without the clients that died, and a replay of its record gives the same run."""
    one = Run(algorithm, DEATHS[deaths], evaluate=evaluate)
    assert len(one.rows.updates) == UPDATES and not one.link.sent_late
    assert set(one.rows.states) == {row.client for row in one.rows.events} <= one.link.dead
    for row in one.rows.events:
        assert row.kind == "lost" and row.client not in {later.client for later in one.rows.updates[row.updates :]}
    again = Run(algorithm, {}, one.record(bool((when := algorithm.aggregation_trigger()) and when.timed)))
    assert again.rows.updates == one.rows.updates
    assert again.rows.aggregations == one.rows.aggregations
    assert again.evaluations == one.evaluations
    assert {row[1] for row in one.evaluations} == {*range(0, UPDATES, evaluate), UPDATES}
    for i, (state, other) in enumerate(zip(again.states(), one.states(), strict=True), -1):
        if i not in one.link.dead:  # what those did last nobody knows
            assert same(state, other), i
    return one


@pytest.mark.parametrize(
    ("case", "deaths"),  # in the short tier one way to die each, in turn
    [
        pytest.param(case, deaths, marks=() if n % len(DEATHS) == k else pytest.mark.long)
        for n, case in enumerate(case for case in CASES if "solver" not in case)
        for k, deaths in enumerate(DEATHS)
    ],
)
def test_every_algorithm_goes_on_without_lost_clients_and_is_replayed(case: str, deaths: str) -> None:
    check(build(case), deaths)


MORE = {
    "deferred, few": Area(step_size=0.02, reply="deferred", trigger=Trigger(every=4)),
    "deferred, coin": FedBuff(step_size=0.02, reply="deferred", trigger=Trigger(bernoulli=0.6)),
    "deferred, period": Area(step_size=0.02, reply="deferred", trigger=Trigger(period=0.2)),
    "after": Area(step_size=0.02, reply="after", trigger=Trigger(every=3)),
    "poisson": FedBuff(step_size=0.02, trigger=Trigger(poisson=9.0)),
}


@pytest.mark.parametrize("deaths", DEATHS)
@pytest.mark.parametrize("case", MORE)
def test_triggers_and_replies(case: str, deaths: str) -> None:
    """If fewer clients live than an aggregation waits for, it happens with the last of them; every model is
    evaluated."""
    run = check(MORE[case], deaths, evaluate=1)
    if (case, deaths) == ("deferred, few", "at once"):
        assert len(run.rows.aggregations) > UPDATES - 12 and run.link.dead == {0, 1, 2, 3}


def test_a_whole_round_is_lost() -> None:
    """The next round is drawn from the live clients, at the same version."""
    first = build("feddr-cohort=2").participation(Clients(np.ones(N, int), seed=3), 0)
    assert first
    members = first.sample(0)
    run = Run(build("feddr-cohort=2"), {0: members})
    assert {(i.client, i.updates, i.version) for i in run.rows.events} == {(i, 0, 0) for i in members}
    assert not {row[1] for row in run.rows.updates} & {*members} and run.rows.updates[0][2] == 0


# -- a run of the command, in one process ------------------------------------------------------------------------------
def test_a_run_that_failed_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Any) -> None:
    """With `stop` a lost client fails the run; resumed, it fails there again, and the checkpoint remains."""
    finish_at_once(monkeypatch)  # given up where it has the error that ends the run
    failing = {"name": "tests.mpi.own:Failing", "at": "train", "trigger": {"every": 3}}
    more = {"stop": {"updates": 90}, "checkpoint": {"updates": 4}, "faults": {"lost": "stop"}}
    file, path = write(tmp_path, "stop", job(failing, SMALL, **more)), tmp_path / "stop.h5"
    assert mpifl("run", file, f"output={path}") == 3
    for _ in range(2):
        with open_run(path) as done:
            assert done.status == "failed" and "failed" in set(done.events.kind)
            count = len(done.updates)
        assert "client 1 was lost: raised on rank 0" in printed("resume", path, "--trust", code=3).err
    with open_run(path) as done:
        assert len(done.updates) == count and done.events.kind.tolist().count("resumed") == 1
    monkeypatch.setattr(Failing, "train", Area.train)  # no checkpoint contains the error
    assert mpifl("resume", path, "--trust") == mpifl("run", file, f"output={tmp_path / 'whole.h5'}") == 0
    assert not differing(tmp_path / "whole.h5", path, but=("events",))


# -- silent clients are abandoned after faults.patience, without the time in which the server was busy -----------------
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

    def idle(self, seconds: float, updates: int = 0) -> None:
        """An idle event after some seconds."""
        self.now[0] += seconds
        self.loop.failures.report_waiting(updates)

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
def waiting(monkeypatch: pytest.MonkeyPatch, patience: float | None = None) -> Scene:
    """Clients 1 and 3 on rank 2 have not answered, those on rank 1 have."""
    scene = started(monkeypatch, Faults(patience=patience))
    scene.transport.rank_of, scene.transport.when = [1, 2, 1, 2, 1], dict.fromkeys([0, 2, 4], 0.0)
    scene.idle(0.0)
    return scene


@pytest.mark.parametrize(
    ("patience", "then"), [(None, "null, so it waits without limit"), (30.0, "30, then they are lost")]
)
def test_one_line_names_rank_and_clients_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, patience: float | None, then: str
) -> None:
    """It names those whose updates have not arrived, and is repeated after a minute."""
    scene = waiting(monkeypatch, patience)
    scene.idle(5.0)
    assert not caplog.messages
    for _ in range(25):
        scene.idle(0.2)
    assert caplog.messages == [
        f"no update for 8 s: the server waits for clients 1, 3 on rank 2; faults.patience={then}"
    ]
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
    scene = waiting(monkeypatch)
    if why == "delay":
        scene.clients.in_flight[:] = 100.0 + 115.0
    if why == "off":
        monkeypatch.setattr(scene.loop.failures, "_on_seconds", lambda i, seconds: min(seconds, 7.0))
    if why == "arrived":
        scene.transport.when |= {1: 0.0, 3: 0.0}
    for count in range(20):
        scene.idle(6.0, count if why == "updates come" else 0)
    assert not caplog.messages


def test_clients_are_named_with_their_rank() -> None:
    rank_of = [1, 2, 3] * 10
    assert describe_clients([4], rank_of) == "client 4 on rank 2"
    assert describe_clients([4, 0, 2, 7], rank_of) == "clients 4, 7 on rank 2 and 2 more on other ranks"
    assert describe_clients(range(1, 30, 3), rank_of) == "clients 1, 4, 7, 10, 13, 16, 19, 22, ... on rank 2"
