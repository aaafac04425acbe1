"""The real clock under overload: a wall clock that a test advances, so that every time follows from a formula.

A contact takes the server `CONTACT` seconds, as with clients in its own process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import ceil, exp, floor, nan
from types import SimpleNamespace

import pytest

from mpifl.algorithms.base import Update
from mpifl.algorithms.participation import Trigger
from mpifl.scheduling import clocks
from mpifl.scheduling.clocks import RealClock
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.overload import describe_overload
from mpifl.scheduling.schedule import Event

CONTACT = 0.4


class Wall:
    """A wall clock and a transport with one client: reading the clock takes `tick` seconds, a contact `CONTACT`."""

    def __init__(self, tick: float = 0.0) -> None:
        self.time, self.tick, self.contacts = 100.0, tick, 0

    def perf_counter(self) -> float:
        self.time += self.tick
        return self.time

    def receive_any(self, timeout: float) -> tuple[int, Update]:
        self.time += CONTACT
        self.contacts += 1
        return 0, Update((), 1)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Wall]:
    def new(tick: float = 0.0) -> Wall:
        made = Wall(tick)
        monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=made.perf_counter))
        return made

    return new


def drive(plan: LiveSchedule, source: object, limit: int = 100_000) -> Iterator[Event]:
    """The events of a plan with one client, which is sent a new message after each update."""
    plan.clock.start()
    plan.clock.contact_time(0, 0)
    for count, event in enumerate(plan.events(source)):  # type: ignore[arg-type]
        assert count < limit, "the run does not end"
        yield event
        if event.kind in ("update", "refused"):
            plan.clock.contact_time(0, 1)


def real() -> RealClock:
    return RealClock(lambda i, round: 0.0)


OVERDUE = {
    "evaluate.every 0.1": {"evaluate_every": 0.1},
    "evaluate.every 1e-6": {"evaluate_every": 1e-6},
    "period 1e-300": {"trigger": Trigger(period=1e-300)},
    "poisson 1e4": {"trigger": Trigger(poisson=1e4)},
    "all": {"trigger": Trigger(period=0.01), "evaluate_every": 0.01, "checkpoint_every": 0.01},
}


@pytest.mark.parametrize("case", OVERDUE)
def test_stop_time_is_honoured_whatever_is_overdue(case: str, wall: Callable[..., Wall]) -> None:
    """Contacts of 0.4 s until 3 s: the 8th ends at 3.2 s, and no other begins; one event of each kind between two.

    Times never decrease in the order of events.
    """
    options = dict(OVERDUE[case])
    source = wall()
    plan = LiveSchedule(real(), options.pop("trigger", Trigger(every=1)), 0, stop_time=3.0, **options)  # type: ignore[arg-type]
    events = list(drive(plan, source))
    assert all(a.time <= b.time for a, b in pairwise(events))
    updates = [e.time for e in events if e.kind == "update"]
    assert updates == pytest.approx([CONTACT * (k + 1) for k in range(ceil(3.0 / CONTACT))])
    assert source.contacts == len(updates)
    assert events[-1].time == updates[-1] and events[-1].kind == "evaluate"
    for kind in ("aggregate", "evaluate", "checkpoint"):
        assert sum(e.kind == kind for e in events) <= len(updates) + 2, kind


def test_updates_have_their_turn_beside_overdue_events(wall: Callable[..., Wall]) -> None:
    """Aggregations and evaluations that are overdue at any time: an update is taken between any two of them."""
    plan = LiveSchedule(real(), Trigger(period=1e-6), 0, stop_time=10.0, evaluate_every=1e-6)
    kinds = [e.kind for e in drive(plan, wall(1e-4)) if e.kind != "idle"]
    assert kinds.count("update") == floor(10.0 / CONTACT)
    triples = zip(kinds[1:], kinds[2:], kinds[3:-1], strict=False)
    assert all("update" in triple for triple in triples)


def test_a_stalled_server_evaluates_once_and_keeps_the_grid(wall: Callable[..., Wall]) -> None:
    """The server is stalled for 36 s: one evaluation, 36.15 s late; the next is due at the next multiple of 0.25 s.

    An evaluation has the time at which its model is taken.
    """
    source = wall()
    plan = LiveSchedule(real(), Trigger(every=1), 0, stop_time=60.0, stop_updates=3, evaluate_every=0.25)
    found = []
    for event in drive(plan, source):
        found.append((event.kind, round(event.time, 9), round(event.late_by, 9)))
        if len(found) == 2:
            source.time += 36.0
    assert found == [
        ("evaluate", 0.0, 0.0), ("update", 0.4, 0.0), ("evaluate", 36.4, 36.15), ("update", 36.8, 0.0),
        ("evaluate", 36.8, 0.3), ("update", 37.2, 0.0), ("evaluate", 37.2, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize("trigger", [Trigger(period=0.5), Trigger(poisson=2.0)])
def test_timed_aggregations_that_were_missed_are_not_made_up_for(trigger: Trigger, wall: Callable[..., Wall]) -> None:
    """A stall of 50 s, in which 100 are due: one is made after it, the others at their own times as before."""
    source = wall(1e-3)
    plan = LiveSchedule(real(), trigger, 5, stop_time=100.0)
    times = []
    for event in drive(plan, source):
        times += [event.time] if event.kind == "aggregate" else []
        if event.kind == "update" and 20.0 < event.time < 30.0 and source.time < 170.0:
            source.time += 50.0
    before, after = [t for t in times if t < 30], [t for t in times if t > 70]
    assert len(before) + len(after) == len(times)
    gaps = [b - a for a, b in [*pairwise(before), *pairwise(after)]]
    # Each contact ends with an aggregation if one became due in it: always, or with the Poisson process's probability.
    mean = 0.5 if trigger.period else CONTACT / (1 - exp(-CONTACT * 2.0))
    assert sum(gaps) / len(gaps) == pytest.approx(mean, rel=0.02 if trigger.period else 0.15)
    if trigger.period:
        assert all(t % 0.5 < CONTACT + 0.05 for t in [*before, *after[1:]])  # the grid of multiples is kept


def test_the_next_multiple_of_a_period() -> None:
    """After an aggregation that was late: the first multiple after it. In time: the product, bit for bit."""
    trigger = Trigger(period=0.1)
    assert [trigger.next_time(k * 0.1, k, 0) for k in range(99)] == [(k + 1) * 0.1 for k in range(99)]
    assert trigger.next_time(7.25, 3, 0) == pytest.approx(7.3, abs=1e-12)
    assert Trigger(period=1e-300).next_time(7.25, 3, 0) >= 7.25


def test_an_aggregation_that_is_due_at_the_end_is_made(wall: Callable[..., Wall]) -> None:
    """At equal times the end comes last, also where it is noticed late: what was received is in the final model."""
    plan = LiveSchedule(real(), Trigger(period=1.0), 0, stop_time=2.0, evaluate_every=1.0)
    tail = [(e.kind, round(e.time, 9)) for e in drive(plan, wall())][-4:]
    assert tail == [("update", 1.6), ("update", 2.0), ("aggregate", 2.0), ("evaluate", 2.0)]


def test_an_overdue_evaluation_after_a_resume(wall: Callable[..., Wall]) -> None:
    """The clock goes on from the time that was saved; what had been merged is not due again."""
    source = wall()
    plan = LiveSchedule(real(), Trigger(every=1), 0, stop_time=3.0, evaluate_every=0.1)
    state = None
    for event in drive(plan, source):
        if event.kind == "evaluate" and event.time > 1.0:
            state = plan.save()
            break
    assert state
    source.time += 1000.0
    again = LiveSchedule(real(), Trigger(every=1), 0, stop_time=3.0, evaluate_every=0.1)
    again.load(state)
    rest = [(e.kind, round(e.time, 9), round(e.late_by, 9)) for e in drive(again, source)]
    assert rest[:3] == [("update", 1.6, 0.0), ("evaluate", 1.6, 0.3), ("update", 2.0, 0.0)]
    assert rest[-1][:2] == ("evaluate", 3.2)


def test_the_overload_is_described_with_what_to_change() -> None:
    """Where evaluations are later than 1 s and than their interval; a NaN is a file without the column."""
    text = describe_overload(36.04, 0.1, one_process=False)
    what = "the server was overloaded: evaluations up to 36 s late"
    assert text == f"{what} (use a longer evaluate.every than 0.1 s or a core of its own for rank 0)"
    assert "(mpirun)" in describe_overload(36.04, None, one_process=True)
    for age, every in ((0.99, 0.001), (4.0, 5.0), (1.0, None), (nan, 0.1), (0.0, None)):
        assert describe_overload(age, every, one_process=False) == ""
