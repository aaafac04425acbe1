"""Clocks whose clients go on and off: times, what waits, what a checkpoint keeps, runs that cannot go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mpifl import open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.config.job import Faults
from mpifl.errors import RunFailed
from mpifl.scheduling import clocks
from mpifl.scheduling.availability import NextOn, Renewal
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import Fixed
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.timeline import Timeline
from mpifl.server.client_table import ClientTable
from mpifl.server.failures import Action, ClientFailures
from tests.mpi.cases import CASES, SMALL, intermittent, job
from tests.mpi.conftest import mpifl, write
from tests.mpi.files import differing
from tests.mpi.test_virtual import METHODS
from tests.quadratic_runs import quadratics, run
from tests.tiers import long, parameters

CLIENTS = quadratics([1, 1, 1], [0, 1, 2])


def spans(*own: list[tuple[float, float]]) -> NextOn:
    """On periods as listed, one list for each client."""
    return lambda i, time: next((span for span in own[i] if span[1] > time), (inf, inf))


ALL = [(0.0, inf)]


def virtual(*own: list[tuple[float, float]], seconds: float = 2.0, restart: bool = False) -> VirtualClock:
    line = Timeline(spans(*own), len(own), restart)
    return VirtualClock(Fixed(seconds=seconds).contact_times(len(own), 0), None, line)


# -- virtual -----------------------------------------------------------------------------------------------------------
def test_updates_wait_in_virtual_time_until_their_clients_are_on() -> None:
    """Contacts of 2 s. Client 0 is always on; client 1 is on in 1..2 and from 5; client 2 in 0..5 and from 9."""
    own = [ALL, [(1.0, 2.0), (5.0, inf)], [(0.0, 5.0), (9.0, inf)]]
    for restart, second, third in ((False, [6.0, 8.0, 10.0], 10.0), (True, [7.0, 9.0, 11.0], 11.0)):
        log = run(Area(), CLIENTS, clock=virtual(*own, restart=restart), stop_time=11.0)
        found = [[(row.time, row.waited) for row in log.updates if row.client == i] for i in range(3)]
        assert found[0] == [(2.0, 0), (4.0, 0), (6.0, 0), (8.0, 0), (10.0, 0)]
        assert found[1] == [*zip(second, (1, 0, 0))] and found[2] == [(2.0, 0), (4.0, 0), (third, 0)]


def test_a_round_waits_for_members_that_are_off() -> None:
    log = run(FedAvg(), CLIENTS, clock=virtual(ALL, [(3.0, inf)], ALL), stop_updates=6)
    assert [(row.time, row.client, row.waited) for row in log.updates] == [
        (2, 0, 0), (2, 2, 0), (5, 1, 3), (7, 0, 0), (7, 1, 0), (7, 2, 0),
    ]  # fmt: skip


def test_a_run_that_cannot_go_on_fails() -> None:
    """All clients are off for ever after 5 s; with stop.time the run ends then."""
    own = [[(0.0, 5.0)]] * 3
    for evaluate_every in (None, 1.0):
        with pytest.raises(RunFailed, match=r"no client with a message is on again \(clock.availability\)"):
            run(Area(), CLIENTS, clock=virtual(*own), stop_updates=9, evaluate_every=evaluate_every)
    log = run(Area(), CLIENTS, clock=virtual(*own), stop_time=8.0)
    assert len(log.updates) == 6 and log.evaluations[-1][0] == 8.0


# -- real --------------------------------------------------------------------------------------------------------------
class Wall:
    """A wall clock and a source of updates that arrive at given times (s), which it advances to."""

    def __init__(self, *arrivals: tuple[float, int]) -> None:
        self.time, self.arrivals, self.kept = 0.0, list(arrivals), list[int]()
        self.buffer, self.client_failures = np.zeros(2), list[tuple[int, str]]()

    def perf_counter(self) -> float:
        return self.time

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        if self.arrivals and self.arrivals[0][0] <= self.time + timeout:
            when, i = self.arrivals.pop(0)
            self.time, self.buffer[:] = max(self.time, when), i
            return i, Update((self.buffer,), 1)
        self.time += timeout
        return None

    def receive_from(self, i: int, timeout: float = inf) -> None: ...

    def release_update(self, i: int) -> None: ...

    def keep_update(self, i: int, update: Update) -> Update:
        self.kept.append(i)
        return update._replace(vectors=tuple(v.copy() for v in update.vectors))


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RealClock]:
    def new(wall: Wall, *own: list[tuple[float, float]], seconds: float = 2.0) -> RealClock:
        monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=wall.perf_counter))
        contacts = Fixed(seconds=seconds).contact_times(len(own), 0)
        clock = RealClock(contacts, None, Timeline(spans(*own), len(own)))
        clock.start()
        return clock

    return new


def drive(clock: RealClock, wall: Wall, until: float) -> list[tuple[float, int, float]]:
    """Time, client and wait of the updates up to a time."""
    found = []
    while clock.time < until:
        if got := clock.next_update(wall, until, until):  # type: ignore[arg-type]
            assert got[1].vectors[0].tolist() == [got[0]] * 2
            found.append((clock.time, got[0], got[1].waited))
    return found


def test_how_long_a_rank_holds_an_update(real: Callable[..., RealClock]) -> None:
    """Until the contact is over by the timeline: sent at 0, 3 and 9 s, contacts of 2 s; if it never is, a run fails."""
    wall = Wall()
    clock = real(wall, ALL, [(1.0, 2.0), (5.0, inf)], [(0.0, 1.0)])
    assert [clock.contact_time(i, 0) for i in range(3)] == [2.0, 6.0, inf]
    assert not clock.is_stalled
    wall.time = 9.0
    assert clock.contact_time(1, 1) == 2.0
    clock = real(wall, [(0.0, 1.0)])
    clock.contact_time(0, 0)
    assert clock.is_stalled
    with pytest.raises(RunFailed, match="no client with a message is on again"):
        list(LiveSchedule(clock, None, 0).events(wall))  # type: ignore[arg-type]


def test_a_run_whose_only_update_came_after_its_client_was_on_for_the_last_time(real: Callable[..., RealClock]) -> None:
    """The contact was to end at 2 s and took until 7 s, when the client was off for good: the run fails."""
    wall = Wall((7.0, 0))
    clock = real(wall, [(0.0, 6.0)])
    clock.contact_time(0, 0)
    assert drive(clock, wall, 8.0) == [] and clock.held_count == 1 and clock.is_stalled
    with pytest.raises(RunFailed, match="no client with a message is on again"):
        list(LiveSchedule(clock, None, 0, evaluate_every=1.0).events(wall))  # type: ignore[arg-type]


def test_an_update_that_arrives_while_its_client_is_off_waits(real: Callable[..., RealClock]) -> None:
    """Client 1 computes until 7 s, when it is off until 9 s; others are consumed meanwhile, and the buffer is free."""
    wall = Wall((2.0, 0), (7.0, 1), (7.5, 2))
    clock = real(wall, ALL, [(0.0, 6.0), (9.0, inf)], ALL)
    for i in range(3):
        clock.contact_time(i, 0)
    assert drive(clock, wall, 8.0) == [(2.0, 0, 0.0), (7.5, 2, 0.0)]
    assert wall.kept == [1] and clock.held_count == 1 and clock.has_in_flight
    wall.buffer[:] = -1  # for another update
    assert drive(clock, wall, 10.0) == [(pytest.approx(9.0), 1, 0.0)]
    assert clock.held_count == 0 and not clock.has_in_flight


def test_a_held_update_is_cancelled_or_saved(real: Callable[..., RealClock]) -> None:
    wall = Wall((2.5, 1))
    clock = real(wall, ALL, [(1.0, 2.2), (9.0, inf)], seconds=1.0)
    clock.contact_time(1, 0)
    assert drive(clock, wall, 3.0) == [] and clock.held_count == 1
    saved = clock.save()
    assert (saved.client, saved.waited, saved.due) == ([1], [1.0], [0.0])
    again = real(wall, ALL, [(1.0, 2.2), (9.0, inf)], seconds=1.0)
    again.load(saved)
    again.start()
    wall.arrivals = [(3.0, 1)]  # the client sends it again
    assert drive(again, wall, 8.0) == [] and again.held_count == 1
    assert drive(again, wall, 10.0) == [(pytest.approx(9.0), 1, 1.0)]
    clock.cancel(1)
    assert clock.held_count == 0 and not clock.has_in_flight


def test_patience_counts_the_time_on(real: Callable[..., RealClock]) -> None:
    """Client 1 is on in 0..2 and from 8: at 9 s it was silent for 3 s."""
    wall = Wall()
    clock = real(wall, ALL, [(0.0, 2.0), (8.0, inf)])
    wall.time = 9.0
    assert (clock.on_seconds(0, 9.0), clock.on_seconds(1, 9.0), clock.on_seconds(1, 1.5)) == (9.0, 3.0, 1.0)
    table = ClientTable(2)
    transport = SimpleNamespace(has_arrived=lambda i: False)
    failures = ClientFailures(Faults(patience=5.0), table, transport, clock.on_seconds)  # type: ignore[arg-type]
    table.in_flight[0] = table.in_flight[1] = time.perf_counter() - 9.0  # the policy has a clock of its own
    found = [d for d in failures.decide_silent() if d.action is not Action.WAIT]
    assert {d.client for d in found} == {0}


# -- runs --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cohort_from", [long("all"), "available"])
def test_a_real_run_is_replayed(tmp_path: Path, cohort_from: str) -> None:
    """Waits and cohorts are those that were recorded: the same rows and model. Members of all clients have to wait."""
    clock = intermittent({"mode": "real", "delay": {"name": "exponential", "rate": 200}}, on=0.02, off=0.06,
                         cohort_from=cohort_from, interrupted="restart")  # fmt: skip
    case = job({"name": "fedavg", "cohort": 3}, {**SMALL, "clients": 4}, clock=clock, stop={"updates": 36, "time": 60})
    path = tmp_path / "run.h5"
    assert mpifl("run", "-q", write(tmp_path, "run", case), f"output={path}") == 0
    assert mpifl("replay", "-q", path, f"output={tmp_path / 'again.h5'}") == 0
    assert not differing(path, tmp_path / "again.h5", but=("events",))
    with open_run(path) as file:
        assert cohort_from == "available" or (file.updates.waited > 0).any()
        assert 0.05 < file.clients.on.mean() < 0.6
    assert mpifl("verify", path) == 0


def test_members_are_on_when_their_round_begins(tmp_path: Path) -> None:
    """With cohort_from: available a message waits only where nobody was on; with all, members may be off."""
    waits = {}
    for which in ("available", "all"):
        case = job({"name": "fedavg", "cohort": 4}, {**SMALL, "clients": 12}, clock=intermittent(cohort_from=which))
        path = tmp_path / f"{which}.h5"
        assert mpifl("run", "-q", write(tmp_path, which, case), f"output={path}") == 0
        with open_run(path) as file:
            waits[which] = file.updates.waited.to_numpy()
    assert (waits["available"] == 0).all() and (waits["all"] > 0).any()


SHORT = [  # of each hook of methods one
    ("async-sgd-ringmaster", "paused"), ("fedcompass", "restart"), ("mifa-period", "paused"), ("proxskip", "restart"),
    ("ringleader", "paused"),
]  # fmt: skip
NAMES = {*METHODS, "area-digits", "mifa-period"} - {"many-clients"}
EVERY = {(name, how) for name in NAMES for how in ("paused", "restart")} - {("rescaled-asgd", "restart")}  # no rates


@pytest.mark.parametrize(("name", "interrupted"), parameters(sorted(EVERY), SHORT))
def test_every_method_runs_with_clients_on_and_off_and_is_replayed(name: str, interrupted: str, tmp_path: Path) -> None:
    """Each update is consumed while its client is on, some messages have waited, and a replay has the same bits."""
    case = {**CASES[name], "seed": 4, "stop": {"updates": 60, "time": 500}}  # a seed by which few are on at first
    periods = {"on": 1.0, "off": 1.0, "spread": 1.3, "interrupted": interrupted}
    path, clients = tmp_path / "run.h5", case["problem"]["clients"]
    file = write(tmp_path, "run", {**case, "clock": intermittent(case["clock"], **periods)})
    assert mpifl("run", "-q", file, f"output={path}") == 0
    next_on = Renewal(**periods).on_periods(clients, case["seed"])  # type: ignore[arg-type]
    with open_run(path) as file:
        rows, on = file.updates, file.clients.on
        assert len(rows) == 60 and file.status == "completed"
        assert all(next_on(row.client, row.time)[0] <= row.time for row in rows.itertuples())
        assert (rows.waited > 0).any() and (rows.waited == 0).any() and on.min() < 1
    assert mpifl("replay", "-q", path, f"output={tmp_path / 'again.h5'}") == 0
    assert not differing(path, tmp_path / "again.h5", but=("events",))


def test_methods_are_given_rates_while_on(tmp_path: Path, refused: Callable[..., str]) -> None:
    case = job({"name": "async-sgd", "rescale": "rates"}, SMALL, clock=intermittent(on=[1] * 6 + [9]))
    file = write(tmp_path, "rates", case)
    assert mpifl("run", "-q", file, f"output={tmp_path / 'a.h5'}") == 0
    said = refused("run", "-q", file, "clock.availability.interrupted=restart", f"output={tmp_path / 'b.h5'}")
    assert "rescale=rates: clock.delay and clock.availability give no rates; expected times or counts" in said
