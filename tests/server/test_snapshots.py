"""What a checkpoint contains of the loop, the schedule and its clock: each goes on from any cut as without it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from math import inf, isnan, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from mpifl import open_run
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, State, Update
from mpifl.algorithms.participation import Trigger
from mpifl.checkpoint.part import PartStatus, PartWriter
from mpifl.checkpoint.snapshot import (
    ClientSnapshot,
    ClientTableState,
    ClockState,
    EvaluatorState,
    LoopState,
    ScheduleState,
)
from mpifl.config.job import Faults
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import Exponential, Fixed, Speed
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.schedule import Event
from mpifl.server import checkpointer as checkpointer_module
from mpifl.server.checkpointer import Checkpointer
from mpifl.server.client_table import ClientTable
from mpifl.server.loop import ServerLoop
from mpifl.transport.mpi_server import MPIServerTransport
from tests.checkpoint.sets import finished
from tests.quadratic_runs import Answers
from tests.runfile.test_writer import writer


def test_the_loop_by_itself() -> None:
    """Saving a loaded state gives the same state again: nothing is added or lost."""
    table = ClientTableState(
        state=["live", "lost", "aside", "live", "live"], rounds=[3, 1, 2, 0, 1], bytes_down=[5, 6, 7, 8, 9],
        refused=[2, 0, 1, 0, 0], moved=[0, 1, 0, 1, 0], in_flight=[0, 3], grace=[0.0, 0.0], waiting=[4],
        accuracies=[0.5, 0.25, nan, 0.0, 1.0],
    )  # fmt: skip
    saved, algorithm, people = LoopState(7, 31, table), Area(), Clients(np.ones(5, int))
    plan = LiveSchedule(VirtualClock(Fixed().contact_times(5, 0)), None, 0, stop_updates=9)
    server = algorithm.init_server(np.zeros(3), people)
    loop = ServerLoop(algorithm, server, people, SimpleNamespace(), plan, SimpleNamespace(), lambda *_: False, 0)  # type: ignore[arg-type]
    loop.load(saved)
    assert loop.clients.inactive == {1, 2}
    again = asdict(loop.save())
    again["clients"]["grace"] = [round(seconds, 1) for seconds in again["clients"]["grace"]]
    assert json.dumps(again) == json.dumps(asdict(saved))


# -- plans and clocks --------------------------------------------------------------------------------------------------
def through(plan: LiveSchedule, rounds: list[int]) -> Iterator[tuple[Event, tuple[ScheduleState, list[int]]]]:
    """The events of a plan, each client asked again after its update; and what the plan saves after each event."""
    for event in plan.events(Answers()):  # type: ignore[arg-type]
        if event.kind == "update":
            rounds[event.client] += 1
            plan.clock.contact_time(event.client, rounds[event.client])
        yield event, (plan.save(), list(rounds))


TRIGGERS = {"every": Trigger(every=2), "period": Trigger(period=0.3), "poisson": Trigger(poisson=2.0),
            "bernoulli": Trigger(bernoulli=0.5), "round": None}  # fmt: skip


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_plan_saved_after_any_event_produces_the_remaining_events(trigger: str) -> None:
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
        plan.clock.contact_time(i, 0)
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


@pytest.mark.parametrize(
    ("seconds", "updates", "cuts"), [([1.0, 3.5], 12, [2.0, 4.0, 6.0, 8.0]), ([5.0], 3, [5.0, 10.0])]
)
def test_checkpoints_by_time(seconds: list[float], updates: int, cuts: list[float]) -> None:
    """At the first event after each multiple of 2 s, and once only for several that were missed."""
    n = len(seconds)
    clock = VirtualClock(Fixed(seconds=seconds).contact_times(n, 0))
    plan = LiveSchedule(clock, Trigger(every=1), 0, stop_updates=updates, checkpoint_every=2.0)
    for i in range(n):
        plan.clock.contact_time(i, 0)
    assert [e.time for e, _ in through(plan, [0] * n) if e.kind == "checkpoint"] == cuts


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


@pytest.mark.parametrize("speed", [False, True])
def test_the_real_clock(speed: bool) -> None:
    """It continues from the time of the cut, whatever the wall clock is, and keeps the times at which clients were
    asked."""
    law: Any = Speed(compute=0.5, exchange=0.25) if speed else Fixed(seconds=0.0)
    delays = law.contact_times(3, 0), law.split_times(3, 0) if speed else None
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
    late = Update((), 1, compute=0.25, busy=0.25)
    i, update = again.next_update(SimpleNamespace(receive_any=lambda timeout: (1, late)), inf)  # type: ignore[arg-type, misc]
    assert i == 1 and 150 <= again.time < 152
    if speed:
        assert (update.compute, update.exchange) == (0.5, 0.25)
    else:
        assert update.compute == 0.25 and update.exchange == pytest.approx(again.time - asked - 0.25, abs=0.1)
    again.cancel(0)
    assert not again.has_in_flight


# -- when a checkpoint is complete, and when it is abandoned -----------------------------------------------------------
class Ranks:
    """Ranks 1 and 2 with one client each, which save their parts when they are asked to."""

    def __init__(self, folder: Path) -> None:
        self.live_ranks, self.unresponsive_ranks, self.rank_of = {1, 2}, set[int](), [1, 2]
        self.part_statuses: list[PartStatus] = []
        self.errors: set[int] = set()
        self.writers = {rank: PartWriter(folder, rank) for rank in (1, 2)}

    def send_marker(self, number: int) -> None: ...

    def poll(self) -> None: ...

    def unreported_client_errors(self) -> set[int]:
        return self.errors

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        return []


class Scene:
    """A server that has begun checkpoint 1 before either client has answered."""

    def __init__(self, path: Path, lost: str) -> None:
        self.writer, self.ranks = writer(path), Ranks(folder_of(path))
        evaluator: Any = SimpleNamespace(save=lambda: (EvaluatorState(nan, False, []), {}))
        schedule = ScheduleState(ClockState(0.0, [], [], [], [], []), 0, 0, 0, 0, 0, 0.0, 0, 0, 0)
        plan: Any = SimpleNamespace(save=lambda: schedule)
        self.clients = ClientTable(2)
        for i in range(2):
            self.clients.rounds[i], self.clients.in_flight[i] = 1, 0.0
        loop: Any = SimpleNamespace(
            server=State(x=np.zeros(3)), clients=self.clients, failures=SimpleNamespace(faults=Faults(lost=lost)),
            updates=0, version=0, save=lambda: LoopState(0, 0, self.clients.save(0.0)), transport=self.ranks,
            algorithm=Area(step_size=0.1),
        )  # fmt: skip
        self.keeper = Checkpointer(loop, plan, self.writer, evaluator, float, rehost=False)
        self.keeper.begin(0.0)

    def saves(self, rank: int) -> None:
        """The rank's part is durable, and the server knows."""
        part = self.ranks.writers[rank]
        part.save(1, lambda: {rank - 1: ClientSnapshot({"x": np.zeros(3)})})
        self.ranks.part_statuses += finished(part)
        self.keeper.poll(0.0)

    def dies(self, rank: int) -> None:
        self.ranks.live_ranks.discard(rank)

    def hangs(self, rank: int) -> None:
        self.ranks.unresponsive_ranks.add(rank)

    def sets_aside(self, client: int) -> None:
        self.clients.inactive.add(client)

    def raises(self, client: int) -> None:
        self.ranks.errors.add(client)

    def answers(self, client: int) -> None:
        """The server has consumed the client's update and sent it another message."""
        self.clients.rounds[client] += 1

    def is_busy(self, _: int) -> None:
        self.keeper.poll(0.0)
        assert self.keeper.busy

    def disk_is_full(self, _: int) -> None:
        self.keeper._commit = Mock(side_effect=OSError(28, "No space left on device"))  # type: ignore[method-assign]

    def end(self) -> list[str]:
        """The result of the checkpoint, once everything that was due has arrived."""
        deadline = time.monotonic() + 20
        while self.keeper.busy and time.monotonic() < deadline:
            self.keeper.poll(0.0)
            time.sleep(0.001)
        for part in (self.keeper, *self.ranks.writers.values()):
            part.close()
        self.writer.close("failed")
        with open_run(self.writer.path) as run:
            return [f"{row.kind}: {row.text}" for row in run.events.itertuples()]


STORY: dict[str, tuple[str, str]] = {  # what happens to ranks 1 and 2, or clients 0 and 1; why there is no checkpoint
    "a rank that lives saves though its client is set aside": ("saves 1, sets_aside 1, is_busy 0, saves 2", ""),
    "a rank that died when it had saved": ("saves 2, dies 2, sets_aside 1, saves 1", ""),
    "a rank that died": ("saves 1, dies 2", "rank 2 was lost"),
    "a rank that hangs, with clients that may answer": ("saves 1, hangs 2, is_busy 0, saves 2", ""),
    "a rank that hangs": ("saves 1, hangs 2, is_busy 0, sets_aside 1", "rank 2 was lost"),
    "a client that raised where the run goes on": ("raises 1, saves 1, saves 2", ""),
    "the server's part": ("disk_is_full 0, saves 1, saves 2", "[Errno 28] No space left on device"),
    # Where an error ends the run, a checkpoint that contains it would fail again.
    "stop: a client that raised": ("raises 1, saves 1, saves 2", "client 1 raised"),
    "stop: a client that raised after its part": ("raises 1, answers 1, saves 1, saves 2", ""),
}


@pytest.mark.parametrize("case", STORY)
def test_a_checkpoint_is_complete_or_says_why_not(case: str, tmp_path: Path) -> None:
    steps, failure = STORY[case]
    made = Scene(tmp_path / "run.h5", "stop" if case.startswith("stop") else "freeze")
    for step in steps.split(", "):
        name, number = step.split()
        getattr(made, name)(int(number))
    (told,) = made.end()
    given_up = f"checkpoint-failed: checkpoint 1 could not be completed: {failure}"
    assert told == given_up if failure else told.startswith("checkpoint: 1: 3 parts")
    assert sets(folder_of(made.writer.path)) == ([] if failure else [1]) and made.keeper.complete == (not failure)


def test_a_client_of_a_dead_rank_has_not_raised() -> None:
    """What its rank has saved contains no error."""
    failed = {"_errors": {0: "", 1: ""}, "client_failures": [(2, ""), (3, "")]}
    end: Any = SimpleNamespace(**failed, rank_of=[1, 2, 1, 2], live_ranks={1})
    assert MPIServerTransport.unreported_client_errors(end) == {0, 2}


def test_a_rank_that_hangs_is_named_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the end of a run waits for a checkpoint in progress."""
    monkeypatch.setattr(checkpointer_module, "QUIET_SECONDS", 0.05)
    made = Scene(tmp_path / "run.h5", "freeze")
    made.saves(1)
    made.keeper.finish(0.0, 0.3)
    assert not made.keeper.busy
    assert "checkpoint 1 waits for the parts of rank 2; faults.patience limits that" in caplog.text
    assert made.end() == ["checkpoint-failed: checkpoint 1 could not be completed: no answer for 0.3 s"]
