"""AREA: its exact invariants, its limits, and how it relates to FedAvg."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifl.algorithms.area import Area
from mpifl.algorithms.common.step_schedules import StronglyConvex
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.participation import Trigger
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Exponential
from tests.quadratic_runs import Log, Picked, close, optimum, random_quadratics, run
from tests.tiers import examples


def plain(step: float = 0.1, every: int = 1, reply: str = "before", **more: object) -> Area:
    kinds = {"step_weights": "one", "trigger": Trigger(every=every), **more}
    return Area(step_size=step, reply=reply, **kinds)  # type: ignore[arg-type]


# -- AREA.1 and AREA.7: what holds after every event -------------------------------------------------------------------
@st.composite
def cases(draw: st.DrawFn) -> tuple[Area, int, int, list[int]]:
    """An algorithm, the number of clients, a seed for them, and which client at work is next, event by event."""
    n = draw(st.integers(1, 7))
    trigger = draw(
        st.one_of(
            st.builds(Trigger, every=st.integers(1, n)),
            st.builds(Trigger, period=st.floats(0.3, 7)),
            st.builds(Trigger, poisson=st.floats(0.1, 3)),
            st.builds(Trigger, bernoulli=st.floats(0.1, 1)),
        )
    )
    algorithm = Area(
        step_size=draw(st.sampled_from([0.05, 0.2])),
        step_weights=draw(st.sampled_from(["one", "samples", "uniform"])),
        local_steps=draw(st.integers(1, 8)),
        trigger=trigger,
        reply=draw(st.sampled_from(["before", "after", "deferred"])),
        first_contact=draw(st.sampled_from(["compute", "zero"])),
    )
    return algorithm, n, draw(st.integers(0, 10**6)), draw(st.lists(st.integers(0, 59), min_size=1, max_size=40))


@settings(max_examples=examples(80), deadline=None, derandomize=True)
@given(cases())
def test_memories_add_up_after_every_event(case: tuple[Area, int, int, list[int]]) -> None:
    """AREA.1: x_s + u/n = (1/n) sum y_i, y_i the memory in client i's last consumed upload. AREA.7: with the uploads in
    flight, the same holds for the clients' own memories."""
    algorithm, n, seed, picks = case
    events = []

    def watch(log: Log) -> None:
        assert log.worker and log.link
        known = log.server.x + log.server.u / n
        close(known, sum(log.memories.values()) / n)
        flying = sum((update.vectors[0] for update in log.link.in_flight.values()), np.zeros(2))
        close(known + flying / n, sum(state.y for state in log.worker.states.values()) / n)
        events.append(1)

    times = {"stop_updates": len(picks), "stop_time": 100.0}
    x0, clock = np.array([1.0, -2.0]), Picked(picks)
    log = run(algorithm, random_quadratics(seed, n, 2), x0=x0, clock=clock, watch=watch, seed=seed, **times)
    assert len(events) > len(log.updates) + len(log.aggregations)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_step_weights_by_samples_weight_the_objectives() -> None:
    """AREA.4: Client step a w_i with w_i = s_i/S, server factor 1/n, M = 1: the limit is argmin sum w_i f_i."""
    clients = random_quadratics(14, 4, low=1.5)
    order = np.random.default_rng(3).choice(4, 2500, p=[0.4, 0.3, 0.2, 0.1]).tolist()
    log = run(plain(0.5, 3, step_weights="samples"), clients, order)
    close(log.x, optimum(clients, [o.share for o in clients]))
    assert np.abs(log.x - optimum(clients)).max() > 1e-2


@pytest.mark.parametrize("steps", [1, 4])
def test_round_robin_is_fedavg_at_half_the_pace(steps: int) -> None:
    """AREA.5: Round robin, Delta = n, reply before: after round r, x_s is FedAvg's iterate ceil(r/2)."""
    clients = random_quadratics(15, 4)
    log = run(plain(0.1, 4, local_steps=steps), clients, [0, 1, 2, 3] * 20, x0=1.0)
    fedavg = run(FedAvg(step_size=0.1, local_steps=steps), clients, [0, 1, 2, 3] * 10, x0=1.0)
    close(log.models, np.repeat(fedavg.models, 2, axis=0))


def test_a_zero_first_contact_comes_one_round_later() -> None:
    """first_contact: zero delays the iterates of AREA.5 by one contact and changes nothing else."""
    clients = random_quadratics(15, 4)
    order = [0, 1, 2, 3] * 20
    box = run(plain(0.1, 4, local_steps=3), clients, order, x0=1.0)
    late = run(plain(0.1, 4, local_steps=3, first_contact="zero"), clients, order, x0=1.0)
    close(late.models[0], np.ones(3))
    close(late.models[1:], box.models[:-1])
    assert [row[4] for row in late.updates[:8]] == [0] * 4 + [3] * 4
    assert [row[6] for row in late.updates[:4]] == [0.0] * 4


# -- the event counter and the output ----------------------------------------------------------------------------------
@pytest.mark.parametrize("trigger", [Trigger(every=3), Trigger(period=1.7)], ids=str)
def test_average_output(trigger: Trigger) -> None:
    """output: average is the mean of x_s over all events, uploads and aggregations alike."""
    clients = random_quadratics(22, 3)
    order = [0, 1, 2, 1, 0, 0, 2, 1, 0, 2]
    algorithm = plain(trigger=trigger, output="average")
    log = run(algorithm, clients, order, x0=1.0)
    assert len(log.trail) == len(log.updates) + len(log.aggregations) == log.server.k
    close(algorithm.model(log.server), np.mean(log.trail, axis=0))
    last = run(replace(algorithm, output="last"), clients, order, x0=1.0)
    close(last.x, log.x)


def test_step_of_a_contact_is_the_one_it_was_given() -> None:
    """A client takes all its steps with the alpha_k of its message, k counted when the message left."""
    clients = random_quadratics(23, 3)
    algorithm = plain(every=2, local_steps=2, step_schedule=StronglyConvex(mu=0.5, L=3.0), step_weights="one")
    log = run(algorithm, clients, clock=VirtualClock(Exponential(rate=1.0).contact_times(3, 0)), stop_updates=40)
    steps: dict[tuple[int, int], float] = {(i, m.round): m.numbers[0] for i, m in log.sent}
    y = {i: np.zeros(3) for i in range(3)}
    for (i, update), base in zip(log.consumed, log.bases, strict=True):
        new = clients[i].steps(base, steps[i, update.round], 2)
        close(update.vectors[0], new - y[i])
        y[i] = new
    assert len(set(steps.values())) > 30
