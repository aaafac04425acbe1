"""What a checkpoint contains of the loop: a run resumed from any cut ends as if it had not been interrupted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from math import inf, isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Algorithm, Clients, State, Update
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from mpifl.checkpoint.snapshot import (
    ClientSnapshot,
    EvaluatorState,
    ScheduleState,
    ServerSnapshot,
    read_clients,
    read_server,
    write_part,
)
from mpifl.client.worker import Worker
from mpifl.config.job import Faults
from mpifl.runfile.tables import EventRow, Row
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import Exponential, Fixed, Speed
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.schedule import Event
from mpifl.server.evaluator import EvaluationRequest
from mpifl.server.loop import ServerLoop
from mpifl.transport.in_process import InProcessTransport
from tests.algorithms.test_state import CASES, LONG, UPDATES, N, build, clients, same
from tests.tiers import parameters

EVERY = 11  # updates from one cut to the next: in rounds of 5 each falls elsewhere
MORE = {
    "before": Area(step_size=0.02, reply="before", trigger=Trigger(every=2)),
    "after": Area(step_size=0.02, reply="after", trigger=Trigger(bernoulli=0.4)),
    "deferred": Area(step_size=0.02, reply="deferred", trigger=Trigger(every=3)),
    "period": Area(step_size=0.02, trigger=Trigger(period=0.11)),
    "poisson, deferred": FedBuff(step_size=0.02, reply="deferred", trigger=Trigger(poisson=8.0)),
}


# -- runs in memory, with a cut every few updates ----------------------------------------------------------------------
class Cuts:
    """A checkpointer that writes the files of a checkpoint and keeps their content."""

    busy = False

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.taken: list[tuple[int, ServerSnapshot, dict[int, ClientSnapshot]]] = []

    def begin(self, time: float, loop: ServerLoop) -> None:
        loop.transport.send_marker(1)  # clients in flight have then computed their updates
        schedule, server = loop.schedule.save(), loop.server.save()  # type: ignore[attr-defined]
        evaluator = EvaluatorState(nan, False, [])
        saved = ServerSnapshot(
            1, "", "", 0, 0, "", nan, "", time, 0.0, {}, [], loop.save(), schedule, evaluator, server
        )
        with TemporaryDirectory() as folder:
            for rank, content in enumerate((saved, self.worker.snapshots())):
                write_part(Path(folder, str(rank)), 1, rank, content)  # type: ignore[arg-type]
            self.taken.append((loop.updates, read_server(Path(folder, "0")), read_clients(Path(folder, "1"))))

    def poll(self, time: float, loop: ServerLoop) -> None: ...

    def consumed(self, i: int, vectors: tuple[np.ndarray, ...]) -> None: ...

    def rehost(self, i: int, time: float, loop: ServerLoop) -> str:
        return ""


def counts(taken: list[Any]) -> list[str]:
    """The counters of the loop and the schedule; NaNs are equal."""
    return [repr((snapshot.loop, snapshot.schedule)) for _, snapshot, _ in taken]


class Rows:
    """A recorder that keeps what is recorded."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def append(self, row: Row) -> None:
        self.rows.append((type(row), *row))

    def set_client_state(self, client: int, state: str) -> None:
        self.rows.append(("state", client, state))


class Run:
    """A run of an algorithm on noisy quadratics, from its beginning or from a cut of another run."""

    def __init__(
        self, algorithm: Algorithm, dtype: str, every: int = EVERY, saved: Any = None, faults: Faults = Faults()  # noqa: B008
    ) -> None:  # fmt: skip
        x0, objectives = clients(dtype)
        people = Clients(np.array([1, 2, 3, 4, 5]), seed=3)
        speed = Speed(compute=0.1, exchange=0.02, spread=2.5, noise="exponential")
        clock = VirtualClock(speed.contact_times(N, 0), speed.split_times(N, 0))
        plan = LiveSchedule(
            clock,
            algorithm.aggregation_trigger(),
            0,
            stop_updates=UPDATES,
            evaluate_updates=7,
            evaluate_every=0.3,
            checkpoint_updates=every,
        )
        self.worker, self.record = Worker(algorithm, x0, objectives, norm=faults.norm), Rows()
        link, self.cuts = InProcessTransport(self.worker), Cuts(self.worker)
        self.server = algorithm.init_server(x0, people)
        if saved:
            _, snapshot, parts = saved
            self.server = State.load(snapshot.algorithm)
            plan.load(snapshot.schedule)
            for i in objectives:
                update, held = self.worker.restore(i, parts[i]) if i in parts else (None, 0.0)
                if i in snapshot.loop.clients.in_flight and update:
                    self.worker.answer(i, update, time.perf_counter() + held)
        loop = ServerLoop(algorithm, self.server, people, link, plan, self.record, self._look, 0, faults, self.cuts)
        if saved:
            loop.load(snapshot.loop)
        loop.run()

    def _look(self, request: EvaluationRequest) -> bool:
        known = None if request.accuracies is None else str(request.accuracies)
        self.record.rows.append(("evaluation", *request._replace(x=request.x.tobytes(), accuracies=known)))
        return False

    def states(self) -> list[State]:
        return [self.server, *(self.worker.states[i] for i in range(N))]


def check(algorithm: Algorithm, dtype: str = "float64", every: int = EVERY, **more: Any) -> Run:
    """From every cut of a run the rest is the same, row by row, and so are all states at its end."""
    whole = Run(algorithm, dtype, every, **more)
    assert [updates for updates, *_ in whole.cuts.taken] == list(range(every, UPDATES, every))
    for k, saved in enumerate(whole.cuts.taken):
        again = Run(algorithm, dtype, every, saved, **more)
        count = len(again.record.rows)
        assert repr(again.record.rows) == repr(whole.record.rows[-count:]) and count >= UPDATES - saved[0], k
        assert all(map(same, again.states(), whole.states())), k
        assert counts(again.cuts.taken) == counts(whole.cuts.taken[k + 1 :])
    return whole


@pytest.mark.parametrize("case", parameters(CASES, [case for case in CASES if case not in LONG][::8]))
def test_every_algorithm(case: str) -> None:
    check(build(case), ["float64", "float32"][list(CASES).index(case) % 2])


@pytest.mark.parametrize("case", MORE)
def test_triggers_and_replies(case: str) -> None:
    check(MORE[case])


@pytest.mark.long
def test_updates_that_are_refused() -> None:
    """Cuts fall where a refusal is pending, where clients have been refused, and where they have been set aside."""
    algorithm = Area(step_size=0.1, step_weights="one", trigger=Trigger(every=2))
    whole = check(algorithm, every=3, faults=Faults(norm=0.8, refusals=4))
    kinds = [row[2] for row in whole.record.rows if row[0] is EventRow]
    assert kinds.count("refused") == 9 and kinds.count("aside") == 2
    assert any(c.update and c.update.refused for *_, parts in whole.cuts.taken for c in parts.values())


def test_the_loop_by_itself() -> None:
    """Saving a loaded state gives the same state again: nothing is added or lost."""
    algorithm = build("fedamp-attention=cosine")
    _, snapshot, _ = Run(algorithm, "float64").cuts.taken[-1]
    plan = LiveSchedule(VirtualClock(Fixed().contact_times(N, 0)), None, 0, stop_updates=9)
    people = Clients(np.ones(N, int))
    loop = ServerLoop(
        algorithm, State.load(snapshot.algorithm), people, SimpleNamespace(), plan, Rows(), lambda *_: False, 0  # type: ignore[arg-type]
    )  # fmt: skip
    saved = snapshot.loop
    states = ["live", "lost", "aside", "live", "live"]
    saved = replace(saved, clients=replace(saved.clients, state=states, refused=[2] * N, moved=[0, 1, 0, 1, 0]))
    loop.load(saved)
    assert loop.clients.inactive == {1, 2}
    assert json.dumps(asdict(loop.save())) == json.dumps(asdict(saved))
    assert loop.clients.accuracies is not None and loop.clients.accuracies.shape == (N,)


# -- plans and clocks --------------------------------------------------------------------------------------------------
class Answers:
    """A link whose clients answer at once."""

    def receive_from(self, i: int, timeout: float = inf) -> Update:
        return Update((), 1)

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        return None


def through(
    plan: LiveSchedule, rounds: list[int], limit: int = 200
) -> Iterator[tuple[Event, tuple[ScheduleState, list[int]]]]:
    """The events of a plan, each client asked again after its update; and what the plan saves after each event."""
    for event in plan.events(Answers()):  # type: ignore[arg-type]
        if event.kind == "update":
            rounds[event.client] += 1
            plan.contact_time(event.client, rounds[event.client])
        yield event, (plan.save(), list(rounds))
        limit -= 1
        assert limit


TRIGGERS = {"every": Trigger(every=2), "period": Trigger(period=0.3), "poisson": Trigger(poisson=2.0),
            "bernoulli": Trigger(bernoulli=0.5), "round": None}  # fmt: skip


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_plan(trigger: str) -> None:
    """A new plan made from what is saved after any event produces the remaining events."""

    def new() -> LiveSchedule:
        clock = VirtualClock(Exponential(rate=2.0, spread=0.5).contact_times(3, 1))
        plan = LiveSchedule(
            clock, TRIGGERS[trigger], 1, stop_time=6.0, stop_updates=25, evaluate_every=0.7, evaluate_updates=4,
            checkpoint_every=0.9, checkpoint_updates=5,
        )  # fmt: skip
        plan.round_size = 3
        return plan

    plan = new()
    for i in range(3):
        plan.contact_time(i, 0)
    whole = list(through(plan, [0, 0, 0]))
    assert {"update", "evaluate", "checkpoint"} <= {event.kind for event, _ in whole}
    for k, (event, saved) in enumerate(whole[:-1]):
        if event.kind == "update" and whole[k + 1][0].time == event.time:
            continue  # an evaluation by updates follows at once: a cut falls before or after the two
        plan = new()
        state, rounds = saved
        plan.load(state)
        rest = list(through(plan, list(rounds)))
        assert repr(rest) == repr(whole[k + 1 :]), k


def test_checkpoints_by_time_and_by_updates() -> None:
    """By time: at the first event after each multiple, and once only for several that were missed."""
    clock = VirtualClock(Fixed(seconds=[1.0, 3.5]).contact_times(2, 0))
    plan = LiveSchedule(clock, Trigger(every=1), 0, stop_updates=12, checkpoint_every=2.0)
    for i in range(2):
        plan.contact_time(i, 0)
    assert [e.time for e, _ in through(plan, [0, 0]) if e.kind == "checkpoint"] == [2.0, 4.0, 6.0, 8.0]
    plan = LiveSchedule(
        VirtualClock(Fixed(seconds=5.0).contact_times(1, 0)), Trigger(every=1), 0, stop_updates=3, checkpoint_every=2.0
    )
    plan.contact_time(0, 0)
    assert [e.time for e, _ in through(plan, [0]) if e.kind == "checkpoint"] == [5.0, 10.0]


def test_the_virtual_clock() -> None:
    """Ties and forgotten clients are kept, and NaN times."""
    clock = VirtualClock(Fixed(seconds=[1.0, 1.0, 2.0, 1.0]).contact_times(4, 0))
    for i in (3, 0, 2, 1):
        clock.contact_time(i, 0)
    clock.cancel(3)
    assert clock.next_update(Answers(), inf)[0] == 0  # type: ignore[arg-type, index]
    again = VirtualClock(Fixed(seconds=[1.0, 1.0, 2.0, 1.0]).contact_times(4, 0))
    again.load(clock.save())
    got = [again.next_update(Answers(), inf) for _ in range(2)]  # type: ignore[arg-type]
    assert [i for i, _ in got] == [1, 2] and again.time == 2.0 and not again.has_in_flight  # type: ignore[misc]
    assert isnan(got[0][1].compute)  # type: ignore[index]


class Late:
    """A link with one update of client 1, returned to the first caller."""

    def receive_any(self, timeout: float) -> tuple[int, Update]:
        return 1, Update((), 1, compute=0.25, busy=0.25)


@pytest.mark.parametrize("speed", [False, True])
def test_the_real_clock(speed: bool) -> None:
    """It continues from the time of the cut, whatever the wall clock is, and keeps the times at which clients were
    asked."""
    emulated = Speed(compute=0.5, exchange=0.25)
    delays = (
        (emulated.contact_times(3, 0), emulated.split_times(3, 0))
        if speed
        else (Fixed(seconds=0.0).contact_times(3, 0), None)
    )
    clock = RealClock(*delays)
    clock.start()
    clock._origin -= 100.0
    asked = clock.now()
    for i in (0, 1):
        clock.contact_time(i, 0)
    saved = clock.save()
    assert 100 <= asked <= saved.time < 101
    again = RealClock(*delays)
    again.load(saved)
    again.start()
    assert again.has_in_flight and saved.time <= again.now() < saved.time + 1
    again._origin -= 50.0
    i, update = again.next_update(Late(), inf)  # type: ignore[arg-type, misc]
    assert i == 1 and 150 <= again.time < 152
    if speed:
        assert (update.compute, update.exchange) == (0.5, 0.25)
    else:
        assert update.compute == 0.25 and update.exchange == pytest.approx(again.time - asked - 0.25, abs=0.1)
    again.cancel(0)
    assert not again.has_in_flight
