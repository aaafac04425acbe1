"""Random schedules through the server loop: invariants of every run, recomputed from its rows alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifl.algorithms.area import Area
from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.base import Algorithm, Clients, Message, State
from mpifl.algorithms.fedasync import FedAsync
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Reply, Trigger
from mpifl.rng import stream
from tests.quadratic_runs import Log, Picked, random_quadratics, run
from tests.tiers import examples

REPLIES = st.sampled_from(["before", "after", "deferred"])
ANSWERS = st.sampled_from(["before", "after"])
PICKS = st.lists(st.integers(0, 59), min_size=1, max_size=50)
KINDS = st.sampled_from(["uniform", "samples"])
SEEDS = st.integers(0, 10**6)
END = 80.0  # s; updates come one a second
METHODS = [Area(), AsyncFedAvg(), AsyncFedAvg(rule="server-memory"), FedBuff(staleness="inverse-sqrt")]


@st.composite
def asynchronous(draw: st.DrawFn) -> tuple[Algorithm, int]:
    n = draw(st.integers(1, 6))
    trigger = draw(
        st.builds(Trigger, every=st.integers(1, n))
        | st.builds(Trigger, period=st.sampled_from([0.25, 0.5, 1.0, 1.5, 4.0, 9.0]))
        | st.builds(Trigger, poisson=st.floats(0.1, 3))
        | st.builds(Trigger, bernoulli=st.floats(0.1, 1))
    )
    algorithm: Algorithm = draw(st.sampled_from(METHODS))
    reply = draw(ANSWERS if trigger.bernoulli else REPLIES)  # deferred by coin, all may come to wait
    algorithm = replace(algorithm, trigger=trigger, reply=reply)  # type: ignore[call-arg]
    if draw(st.booleans()) and draw(st.booleans()):
        algorithm = FedAsync(reply=draw(ANSWERS))
    algorithm.validate(n)
    return algorithm, n


def drive(algorithm: Algorithm, n: int, seed: int, picks: list[int]) -> Log:
    versions = []
    stop = {"stop_updates": len(picks), "stop_time": END}
    clients = random_quadratics(seed, n, 2)
    watch = lambda log: versions.append(len(log.aggregations))  # noqa: E731
    log = run(algorithm, clients, clock=Picked(picks), seed=seed, watch=watch, **stop)
    assert versions == sorted(versions)
    return log


@pytest.mark.parametrize("reply, ahead", [("before", 1), ("after", 0)])
def test_a_reply_before_the_aggregation_leaves_before_the_update_is_recorded(
    monkeypatch: pytest.MonkeyPatch, reply: Reply, ahead: int
) -> None:
    """When the k-th update is recorded, n + k - 1 messages have been sent, and with `before` its answer too."""
    sent, append = [], Log.append
    monkeypatch.setattr(Log, "append", lambda log, row: (sent.append(len(log.sent)), append(log, row)))
    run(Area(trigger=Trigger(every=100), reply=reply), random_quadratics(0, 3), clock=Picked([0] * 6), stop_updates=6)
    assert sent == [3 + k - 1 + ahead for k in range(1, 7)]


def test_an_update_whose_answer_fails_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    logs, message = list[Log](), Area.message  # the log of the run, again and again

    def failing(self: Area, server: State, i: int) -> Message:
        if server.k == 2 * (8 - 3) - 1:  # k counts updates and aggregations, one after each
            raise RuntimeError("message 8")
        return message(self, server, i)

    monkeypatch.setattr(Area, "message", failing)
    with pytest.raises(RuntimeError, match="message 8"):
        run(Area(), random_quadratics(0, 3), clock=Picked([0] * 9), watch=logs.append)
    assert len(logs[0].updates) == len(logs[0].consumed) == 8 - 3


@dataclass(frozen=True)
class Sends(FedAvg):
    """A message with these numbers and this work, and so many vectors of this size."""

    numbers: Any = ()
    work: Any = 1
    count: int = 1
    size: int = 3

    def message(self, server: State, i: int) -> Message:
        return Message((server.x[: self.size],) * self.count, self.numbers, self.work)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"numbers": (1.0, None)}, "numbers=(1.0, None), not numbers of float64"),
        ({"numbers": (0.5,) * 7}, "7 numbers, more than 6"),
        ({"work": 1.5}, "work=1.5, not an integer from 0 to 2^63 - 1"),
        ({"work": -1}, "work=-1, not an integer"),
        ({"work": 2**63}, "work=9223372036854775808, not an integer"),
        ({"count": 2}, "2 vectors, more than vectors_down (1)"),
        ({"size": 1}, "float64 of shape (1,), not float64 of shape (3,)"),
    ],
)
def test_what_a_message_cannot_hold_is_an_error(wrong: dict[str, Any], text: str) -> None:
    says = rf"^client 0 is sent .*{re.escape(text)}.*; test_loop\.py:\d+, Sends\.message"
    with pytest.raises(ValueError, match=says):
        run(Sends(**wrong), random_quadratics(0, 3), clock=Picked([0]))


@pytest.mark.parametrize("numbers", [(np.float32(0.5), 3), (True, 0.25), np.array([0.0, 1.0])])
def test_numbers_and_work_are_what_mpi_sends(numbers: Sequence[Any]) -> None:
    """float64 and an integer of Python's, whatever the rule gave."""
    log = run(Sends(numbers=numbers, work=np.int64(2)), random_quadratics(0, 3), clock=Picked([0]), stop_updates=1)
    for _, message in log.sent:
        assert message.numbers == tuple(map(float, numbers)) and {*map(type, message.numbers)} <= {float}
        assert message.work == 2 and type(message.work) is int


@dataclass(frozen=True)
class InPlace(FedAvg):
    """Changes the model that it has sent."""

    def aggregate(self, server: State) -> None:
        server.x -= 1


def test_the_server_cannot_change_a_model_that_it_has_sent() -> None:
    with pytest.raises(ValueError, match="read-only"):
        run(InPlace(), random_quadratics(0, 2), clock=Picked([0] * 4), stop_updates=4)


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(asynchronous(), SEEDS, PICKS)
def test_every_update_is_consumed_once(case: tuple[Algorithm, int], seed: int, picks: list[int]) -> None:
    """Each message is answered by one update, which is consumed once, or in flight at the end, or not yet made
    (deferred)."""
    log = drive(*case, seed, picks)
    sent = Counter((i, message.round) for i, message in log.sent)
    consumed = Counter((i, update.round) for i, update in log.consumed)
    assert log.link
    flying = Counter((i, update.round) for i, update in log.link.in_flight.items())
    assert set(sent.values()) == {1}
    assert sent == consumed + flying
    assert log.order == [i for i, _ in log.consumed]
    assert len(log.updates) == len(log.consumed) == len([row for row in log.updates if row[1] < case[1]])
    for i in range(case[1]):
        assert [update.round for k, update in log.consumed if k == i] == list(range(log.order.count(i)))


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(asynchronous(), SEEDS, PICKS)
def test_staleness_is_what_the_rows_say(case: tuple[Algorithm, int], seed: int, picks: list[int]) -> None:
    """The version and staleness of every update equal those recomputed from the order of updates and aggregations."""
    algorithm, n = case
    log = drive(algorithm, n, seed, picks)
    trigger, answers = algorithm.aggregation_trigger(), algorithm.reply_policy()
    assert trigger
    before = [updates for _, updates in log.aggregations]

    def at(count: int, with_it: bool) -> int:
        """The version after `count` updates, with or without the aggregations that follow that update."""
        own = with_it and not trigger.timed  # a timed aggregation at this count comes after the answer
        return sum(u < count or (own and u == count) for u in before)

    version = [0] * n  # of each client's present message
    for count, (_, i, echoed, staleness, *_) in enumerate(log.updates, 1):
        assert echoed == version[i]
        now = sum(u < count for u in before)
        assert staleness == now - version[i] >= 0
        if answers == "deferred":  # answered by the first aggregation from here on
            version[i] = next((k for k, u in enumerate(before, 1) if u >= count), -1)
        else:
            version[i] = at(count, answers == "after")
    for _, message in log.sent:
        assert 0 <= message.version <= len(before)
    for i in range(n):
        versions = [message.version for k, message in log.sent if k == i]
        assert versions == sorted(versions)


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(asynchronous(), SEEDS, PICKS)
def test_aggregations_come_where_the_trigger_says(case: tuple[Algorithm, int], seed: int, picks: list[int]) -> None:
    """Every Delta updates; with probability p after each update; at multiples of a period; at the events of a Poisson
    process."""
    algorithm, n = case
    log = drive(algorithm, n, seed, picks)
    trigger = algorithm.aggregation_trigger()
    assert trigger
    times, before = [t for t, _ in log.aggregations], [u for _, u in log.aggregations]
    count = len(log.updates)
    end = log.evaluations[-1][0]
    if trigger.every:
        assert before == list(range(trigger.every, count + 1, trigger.every))
    elif trigger.bernoulli:
        p = trigger.bernoulli
        assert before == [k for k in range(1, count + 1) if stream(seed, "trigger", round=k).random() < p]
    else:
        gaps = (stream(seed, "trigger", round=k).exponential(1 / (trigger.poisson or 1)) for k in range(300))
        due = np.cumsum([trigger.period] * 300 if trigger.period else list(gaps))
        # The run ends with its last update, before an aggregation that is due at that very time; or at END, after it.
        assert times == due[due <= end if count < len(picks) else due < end].tolist()
    arrivals = [row[0] for row in log.updates]
    for time, updates in log.aggregations:
        expected = sum(t <= time for t in arrivals)  # at equal times updates come first
        assert updates == expected


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[FedAvg, int]:
    n = draw(st.integers(1, 7))
    sampling, weights = draw(KINDS), draw(KINDS)
    return FedAvg(cohort=draw(st.integers(1, n)), sampling=sampling, weights=weights), n


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(cohorts(), SEEDS, PICKS)
def test_synchronous_rounds_never_mix(case: tuple[FedAvg, int], seed: int, picks: list[int]) -> None:
    """Between two aggregations every member of that round's cohort sends one update, and nobody else; nothing is
    stale."""
    algorithm, n = case
    log = drive(algorithm, n, seed, picks)
    samples = np.array([o.samples for o in random_quadratics(seed, n, 2)])
    cohort = algorithm.participation(Clients(samples), seed)
    before = [u for _, u in log.aggregations]
    edges = [0, *before]
    for round, (a, b) in enumerate(pairwise(edges)):
        assert sorted(log.order[a:b]) == sorted(set(cohort.sample(round)))
        assert all(row[2:4] == (round, 0) for row in log.updates[a:b])
    rest = log.order[edges[-1] :]
    assert len(rest) == len(set(rest)) and set(rest) < set(cohort.sample(len(before)))
    assert {message.version for _, message in log.sent} == set(range(len(before) + 1))


def test_rows_hold_what_was_sent() -> None:
    """local_steps, bytes and norm of an update's row are those of the update: 128 bytes and 8 a number."""
    log = run(Area(local_steps=3), random_quadratics(0, 2, 5), [0, 1, 0])
    for row, (_, update) in zip(log.updates, log.consumed, strict=True):
        assert row[4] == 3
        assert row[5] == 128 + 5 * 8
        assert np.isclose(row[6], np.linalg.norm(update.vectors[0]), rtol=1e-14)
