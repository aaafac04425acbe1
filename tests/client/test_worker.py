"""The worker's snapshots: a client is restored on another rank from what a checkpoint holds of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, Objective, State, Update
from mpifl.client.worker import Worker
from mpifl.transport.client_end import ClientError
from tests.quadratic_runs import Quadratic

X0 = np.array([1.0, -2.0, 0.5])


@dataclass
class Counting(Quadratic):
    """An objective with a state: the number of gradients it has computed."""

    own: dict[str, np.ndarray] = field(default_factory=lambda: {"calls": np.zeros(1)})

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        self.own["calls"] = self.own["calls"] + 1
        return super().gradient(x, rows)

    def save(self) -> dict[str, Any]:
        return dict(self.own)

    def load(self, saved: dict[str, Any]) -> None:
        self.own = dict(saved)


def worker(*clients: int, norm: float | None = None) -> Worker:
    algorithm = Area(step_size=0.5, local_steps=3)
    return Worker(algorithm, X0, {i: Counting(np.full(3, 1.0 + i), np.full(3, float(i))) for i in clients}, norm=norm)


def message(round: int) -> Message:
    return Message((X0 / 2,), (0.5,), version=round + 4, round=round)


def trained(host: Worker, i: int, round: int) -> Update:
    update = host.train(i, message(round))
    assert isinstance(update, Update)
    return update


def test_a_restored_client_continues_as_the_one_that_was_saved() -> None:
    first, second = worker(0, 2), worker(0, 2)
    sent = trained(first, 2, 0)
    first.held.add(2, time.perf_counter() + 100, sent)
    saved = first.snapshots()[2]
    assert saved.objective["calls"] == [3.0]  # local steps
    update, hold = second.restore(2, saved)
    assert 99 < hold < 100
    assert update is not None
    for got in (update, second.last_updates[2]):
        np.testing.assert_array_equal(got.vectors[0], sent.vectors[0])
        assert got._replace(vectors=()) == sent._replace(vectors=())
    for name, value in vars(first.states[2]).items():
        np.testing.assert_array_equal(getattr(second.states[2], name), value)
    one, other = trained(first, 2, 1), trained(second, 2, 1)
    np.testing.assert_array_equal(one.vectors[0], other.vectors[0])
    assert first.snapshots()[2].objective["calls"] == second.snapshots()[2].objective["calls"] == [6.0]


@dataclass(frozen=True)
class Numbered(Area):
    """An update with these numbers."""

    numbers: tuple[Any, ...] = ()

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        return Update((message.vectors[0],), 1, self.numbers)


def test_the_numbers_of_an_update_are_what_mpi_sends() -> None:
    host = Worker(Numbered(numbers=(np.float64(0.5), 3, True)), X0, {0: Counting(np.ones(3), np.zeros(3))})
    numbers = trained(host, 0, 0).numbers
    assert numbers == (0.5, 3.0, 1.0) and {*map(type, numbers)} == {float}
    host = Worker(Numbered(numbers=(0.5,) * 7), X0, {0: Counting(np.ones(3), np.zeros(3))})
    assert trained(host, 0, 0).refused == "client 0 sends 7 numbers, more than 6"


def test_a_client_without_an_update_is_restored_without_one() -> None:
    first, second = worker(1), worker(1)
    trained(second, 1, 0)
    assert second.restore(1, first.snapshots()[1])[0] is None


def test_a_failed_client_is_saved_with_its_error_alone() -> None:
    host, other = worker(0, 1), worker(0, 1)
    host.add_failed_client(1, "raised on rank 2")
    saved = host.snapshots()
    assert (saved[1].error, saved[1].state, saved[1].update) == ("raised on rank 2", None, None)
    assert saved[0].state is not None
    assert other.restore(1, saved[1]) == (None, 0.0)
    assert other.train(1, message(0)) == ClientError("raised on rank 2")


def test_clients_that_are_added_keep_those_that_are_there() -> None:
    host = worker(0)
    before = trained(host, 0, 0)
    host.add_failed_client(3, "could not be hosted")
    host.add_clients({3: Counting(np.full(3, 4.0), np.full(3, 3.0))})
    assert sorted(host.states) == [0, 3]
    assert host.failed_clients == {}
    assert host.last_updates == {0: before}
    np.testing.assert_array_equal(trained(host, 3, 0).vectors[0], trained(worker(3), 3, 0).vectors[0])


def test_an_update_above_the_norm_is_refused_and_the_state_restored() -> None:
    host = worker(0, norm=1e-3)
    before = dict(vars(host.states[0]))
    update = trained(host, 0, 0)
    assert update.vectors == ()
    assert update.refused.endswith("is above faults.norm")
    assert float(update.refused.split()[3]) == pytest.approx(update.norm, rel=1e-5)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(host.states[0], name), value)
