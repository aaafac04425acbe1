"""Clients that are lost during a run: every algorithm, at every point of its rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from mpifl.client.worker import Worker
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Speed
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.replayed_schedule import ClientIncident, ReplaySchedule
from mpifl.server.evaluator import EvaluationRequest
from mpifl.server.loop import ServerLoop
from mpifl.transport.in_process import InProcessTransport
from tests.algorithms.test_state import CASES, UPDATES, N, build, clients, same
from tests.mpi.cases import SMALL, job
from tests.mpi.conftest import write
from tests.mpi.files import differing
from tests.quadratic_runs import Log
from tests.server.test_resume import finish_at_once, kept, mpifl, run  # noqa: F401 - a fixture

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
        self.incidents = [ClientIncident(row.kind, row.time, *row[2:]) for row in self.rows.events]

    def _evaluate(self, request: EvaluationRequest) -> bool:
        self.evaluations.append((request.time, request.updates, request.version, request.age))
        assert np.isfinite(request.x).all()
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
    assert set(one.rows.states) == {incident.client for incident in one.incidents} <= one.link.dead
    for incident in one.incidents:
        later = one.rows.updates[incident.updates :]
        assert incident.kind == "lost" and incident.client not in {row[1] for row in later}
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
def test_every_algorithm(case: str, deaths: str) -> None:
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
    assert {(i.client, i.updates, i.version) for i in run.incidents} == {(i, 0, 0) for i in members}
    assert not {row[1] for row in run.rows.updates} & {*members} and run.rows.updates[0][2] == 0


# -- runs of the command, in one process -------------------------------------------------------------------------------
FAILING = {"name": "tests.mpi.own:Failing", "at": "train", "step_weights": "one", "trigger": {"every": 3}}


def failing(**more: Any) -> dict[str, Any]:
    return job(FAILING, {**SMALL, "dtype": "float64"}, stop={"updates": 90}, **more)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["freeze", "rehost"])
def test_resumed_with_a_lost_client(tmp_path: Path, kept: list[Path], policy: str) -> None:  # noqa: F811
    """The client stays lost, or is lost again at the same place; in one process there is no rank to move it to."""
    whole = run(tmp_path, "whole", failing(checkpoint={"updates": 4}, faults={"lost": policy}))
    with open_run(whole) as file:
        (at,) = file.events.updates[file.events.kind == "lost"]
    assert 4 < at < 60
    for k in (0, at // 4 - 1, at // 4, len(kept) - 1):  # the middle two just before and after it
        assert mpifl("resume", kept[k], "--trust") == 0
        assert not differing(whole, kept[k], but=("events",))
        with open_run(kept[k]) as file:
            assert file.clients.state.tolist() == ["live", "lost", *["live"] * 5]
            assert file.events.kind.tolist().count("lost") == 1
    assert mpifl("replay", kept[0], "--trust") == 0
    assert not differing(whole, kept[0].with_name("whole-replay.h5"), but=("events",))


def test_a_run_that_failed_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `stop` a lost client fails the run; resumed, it fails there again, and the checkpoint remains."""
    finish_at_once(monkeypatch)  # given up where it has the error that ends the run
    file = write(tmp_path, "stop", failing(checkpoint={"updates": 4}, faults={"lost": "stop"}))
    path = tmp_path / "stop.h5"
    assert mpifl("run", file, f"output={path}") == 3
    for _ in range(2):
        with open_run(path) as done:
            assert done.status == "failed" and "failed" in set(done.events.kind)
            count = len(done.updates)
        capsys.readouterr()
        assert mpifl("resume", path, "--trust") == 3
        assert "client 1 was lost: raised on rank 0" in capsys.readouterr().err
    with open_run(path) as done:
        assert len(done.updates) == count and done.events.kind.tolist().count("resumed") == 1


def test_every_model_is_measured_again(tmp_path: Path) -> None:
    """Three clients, an aggregation every three updates; client 1 fails from its fourth contact on.

    Two more updates follow, both evaluated, and only then an aggregation of what is there. A replay evaluates all of it
    again.
    """
    problem = {**SMALL, "clients": 3, "dtype": "float64"}
    more = {"stop": {"updates": 30}, "evaluate": {"updates": 1}}
    path = run(tmp_path, "few", job({**FAILING, "reply": "deferred"}, problem, **more))
    with open_run(path) as file:
        assert file.clients.state.tolist() == ["live", "lost", "live"]
        assert file.evaluations.updates.tolist() == list(range(31))
        assert file.evaluations.version.tolist() == [u // 3 if u < 10 else 3 + (u - 10) // 2 for u in range(31)]
    assert mpifl("replay", path, "--trust") == 0
    assert not differing(path, path.with_name("few-replay.h5"))
