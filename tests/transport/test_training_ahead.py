"""Clients of the server's process that compute before their updates are asked for: how many, and that nothing else
of a run changes by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Message, State, Update
from mpifl.client.worker import Worker
from mpifl.objective import Objective
from mpifl.transport import in_process
from mpifl.transport.in_process import InProcessTransport
from tests.quadratic_runs import Quadratic

N = 6


class Failing(Area):
    """AREA, of which client 2 fails at its contact 3, and refuses to send an update at its contact 1."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        if objective.i == 2 and message.round == 3:  # type: ignore[attr-defined]
            raise ValueError("no more data")
        if objective.i == 2 and message.round == 1:  # type: ignore[attr-defined]
            return Update((np.full_like(update.vectors[0], np.nan),), 1)
        return update


@pytest.fixture(autouse=True)
def no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which clients compute does not depend on the machine's speed."""
    monkeypatch.setattr(in_process, "AHEAD_SECONDS", 600.0)


def transport(d: int) -> tuple[InProcessTransport, list[int]]:
    """A transport to N clients that have been sent a message, and the clients that compute, in that order."""
    rules, order = Area(), list[int]()
    worker = Worker(rules, np.zeros(d), {i: Quadratic(np.ones(d), np.full(d, float(i))) for i in range(N)})
    train: Callable[..., Any] = worker.train

    def counted(i: int, message: Message) -> Any:
        order.append(i)
        return train(i, message)

    worker.train = counted  # type: ignore[method-assign]
    found = InProcessTransport(worker, N)
    found.next_clients = lambda most: [3, 0, 5, 3, 1][:most]
    for i in range(N):
        found.send(i, Message((np.zeros(d),), (0.5,)), 0.0)
    return found, order


def test_the_next_clients_compute_with_the_first() -> None:
    """Once each, and their updates are those of their own: 0.5 * c_i / n, a step of AREA from 0."""
    both_ends, order = transport(2)
    for i in (3, 0, 1, 5, 4):
        update = both_ends.receive_from(i)
        assert update
        np.testing.assert_allclose(update.vectors[0], np.full(2, 0.5 * i * Quadratic.share))
    assert order == [3, 0, 5, 1, 4]
    assert [len(both_ends.waiting()), both_ends.shut_down(0)] == [1, 1]


@pytest.mark.parametrize(
    ("bound", "value", "d", "expected"),
    [
        ("AHEAD", 2, 2, [3, 0]),
        ("AHEAD_SECONDS", -1.0, 2, [3]),
        ("AHEAD_BYTES", 4 * 32 - 1, 2, [3]),
        ("AHEAD_BYTES", 4 * 32, 2, [3, 0, 5]),
        ("AHEAD_BYTES", 5 * 32, 2, [3, 0, 5, 1]),
        ("AHEAD", 64, 8192, [3, 0, 5]),
        ("AHEAD", 64, 8193, [3]),
    ],
)
def test_bounds(bound: str, value: float, d: int, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the number, of the time, and of the bytes: two float64 vectors for each of at least four clients."""
    monkeypatch.setattr(in_process, bound, value)
    both_ends, order = transport(d)
    assert both_ends.receive_from(3)
    assert order == expected


def test_what_is_in_flight_ahead_of_its_time() -> None:
    """A cancelled update is dropped, and one that the run does not come to is counted as dropped."""
    both_ends, order = transport(2)
    both_ends.receive_from(3)
    both_ends.cancel(0)
    assert both_ends.receive_from(0) is None and order == [3, 0, 5, 1]
    both_ends.send(0, Message((np.zeros(2),), (0.5,), round=1), 0.0)
    assert both_ends.receive_from(0) and order[4:] == [0]
    assert both_ends.shut_down(0) == 4  # 1, 2, 4 and 5


def test_where_it_is_not_worthwhile() -> None:
    """Four clients compute ahead with the first update. None is left for the next ones, so it is tried at the 2nd, and
    then each time after twice as many."""
    both_ends, order = transport(2)
    tried = list[int]()
    both_ends.next_clients = lambda most: tried.append(len(order)) or list(range(4))  # type: ignore[func-returns-value]
    for k in range(40):
        i = 4 + k % 2
        assert both_ends.receive_from(i)
        both_ends.send(i, Message((np.zeros(2),), (0.5,), round=k), 0.0)
    assert order[:5] == [4, 0, 1, 2, 3] and len(order) == 40 + 4
    assert [tried[0], *(k - 4 for k in tried[1:])] == [1, 2, 4, 8, 16, 32]


def test_a_slow_client_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the first one counts."""
    both_ends, order = transport(2)
    clock = iter(range(1000))
    monkeypatch.setattr(in_process, "AHEAD_SECONDS", 0.5)
    monkeypatch.setattr(in_process.time, "perf_counter", lambda: float(next(clock)))
    both_ends.receive_from(3)
    assert order == [3]


def test_errors_that_are_not_due() -> None:
    """They count as dropped where the run does not come to them; one that is cancelled does not."""
    both_ends, order = transport(2)
    for i in (0, 1):
        both_ends.send(i, Message((), ()), 0.0)  # AREA raises without a vector
    assert both_ends.receive_from(3) and order == [3, 0, 5, 1]
    assert both_ends.unreported_client_errors() == {0, 1}
    both_ends.cancel(0)
    assert both_ends.unreported_client_errors() == {1} and not both_ends.client_failures
    assert both_ends.shut_down(0) == 4  # 1, 2, 4 and 5
    assert not both_ends.unreported_client_errors()


@pytest.mark.parametrize("lost", ["freeze", "stop"])
def test_a_run_has_the_same_rows(lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of updates, aggregations and events: what clients fail or refuse counts when their updates are due."""

    def run(output: str) -> list[Any]:
        job = {
            "name": "ahead", "seed": 3, "problem": {"model": {"name": "quadratic", "dim": 3}, "clients": 8},
            "algorithm": {"name": f"{__name__}:Failing", "step_size": 0.1, "trigger": {"every": 2}},
            "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 1.0}}, "stop": {"updates": 100},
            "faults": {"lost": lost}, "checkpoint": {"updates": 30}, "evaluate": {"updates": 20}, "log_interval": None,
            "output": str(tmp_path / output),
        }  # fmt: skip
        if lost == "stop":
            with pytest.raises(mpifl.RunFailed, match="no more data"):
                mpifl.run(job)
        else:
            mpifl.run(job)
        with mpifl.open_run(tmp_path / output) as file:
            columns = ["time", "client", "version", "norm"]
            assert {*file.events["kind"]} >= ({"refused", "lost"} if lost == "freeze" else {"refused"})
            return [file.model, file.updates[columns].to_numpy(), file.events[["time", "kind", "client", "text"]]]

    ahead = run("ahead.h5")
    monkeypatch.setattr(in_process, "AHEAD_SECONDS", -1.0)
    for values, expected in zip(ahead, run("due.h5"), strict=True):
        np.testing.assert_array_equal(values, expected)
